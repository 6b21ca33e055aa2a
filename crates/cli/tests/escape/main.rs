//! Attacks on the enclosure, each with a control that must succeed, as root and as an ordinary user.
#[path = "../support/mod.rs"]
mod support;

mod exhaustion;
mod kernel;
mod killed;
mod neighbours;
mod network;
mod network_blame;
mod network_held;
mod network_inside;
mod network_strain;
mod network_world;
mod review_paths;
mod review_terminal;
mod review_unseen;
mod workspace;
