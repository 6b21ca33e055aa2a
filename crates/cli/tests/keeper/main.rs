//! Live sandboxes through the binary: many commands at once, what they say to the byte, limits, terminals, suspension, and what is
//! left when the keeper is killed.
use testkit as support;
use testkit::words;

mod asked_attacks;
mod asked_programs;
mod commands;
mod counted;
mod ends;
mod hidden;
mod input;
mod limits;
mod place;
mod questions;
mod services;
mod shares;
mod shepherds;
mod silent;
mod sockets;
mod suspended;

/// Whoever carries it out, what is seen of it is the same.
#[test]
fn the_same_with_a_daemon() {
    support::served::again(10, &["commands::", "input::", "limits::"], &[]);
}
