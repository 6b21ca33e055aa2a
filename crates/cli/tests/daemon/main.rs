//! The daemon through its sockets: what it answers, whom it lets in, what it survives, how it ends.
#[path = "../support/mod.rs"]
mod support;

mod admission;
mod agents;
mod faults;
mod files;
mod fuzz;
mod life;
mod ports;
mod product;
mod publish;
mod questions;
mod quotas;
mod revisions;
mod runs;
mod sandboxes;
mod strain;
mod templates;
mod tenants;
mod warm;
mod workspace;
