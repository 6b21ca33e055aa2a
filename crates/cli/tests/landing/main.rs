//! Approvals through the binary: what lands, what is told, and that nothing harms the base wherever an approval is cut off.
#[path = "../support/mod.rs"]
mod support;

mod harmed;
mod verbs;
mod world;
