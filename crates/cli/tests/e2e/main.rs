//! What a user would notice, through the binary: streams, exit statuses, outcomes, limits, policies.
#[path = "../support/mod.rs"]
mod support;

mod asking;
mod bench;
mod clients;
mod denials;
mod diff;
mod doctor;
mod learn;
mod limits;
mod network;
mod permissions;
mod programs;
mod publish;
mod rebase;
mod second_driver;
mod secrets;
mod sockets;
mod start;
mod streams;
mod workspace;
