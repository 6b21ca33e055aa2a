//! The daemon through its sockets: what it answers, whom it lets in, what it survives, how it ends.
#[path = "../support/mod.rs"]
mod support;
#[path = "../lifecycle/words.rs"]
mod words;

mod admission;
mod agents;
mod bounds;
mod browser;
mod burdens;
mod calls;
mod ceilings;
mod clock;
mod corners;
mod crowd;
mod faults;
mod files;
mod full;
mod fuzz;
mod grants;
mod hostile;
mod input;
mod leftovers;
mod life;
mod network_journal;
mod past;
mod ports;
mod product;
mod publish;
mod questions;
mod quotas;
mod remote;
mod restart;
mod revisions;
mod runs;
mod sandboxes;
mod saved;
mod silent;
mod soak;
mod store;
mod strain;
mod templates;
mod tenants;
mod walls;
mod warm;
mod workspace;
mod world;
