//! Sandboxes from create to rm, through the binary: states, versions, keys, reservations, collection, the journal, and what is
//! left when any of it is killed in the middle.
#[path = "../support/mod.rs"]
mod support;

mod collect;
mod create;
mod killed;
mod reserve;
mod soak;
mod stop;
mod total;
mod trouble;
mod words;
