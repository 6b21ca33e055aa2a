//! The daemon through its sockets: what it answers, whom it lets in, what it survives, how it ends.
#[path = "../support/mod.rs"]
mod support;

mod admission;
mod faults;
mod files;
mod fuzz;
mod life;
mod ports;
mod product;
mod questions;
mod quotas;
mod remote;
mod revisions;
mod runs;
mod sandboxes;
mod strain;
mod tenants;
mod workspace;
