//! `fake` simulates other hosts with directory trees; `live` uses the real hierarchies of this machine.

pub mod fake;
mod live;
