//! Live sandboxes through the binary: concurrent commands, exact output, limits, terminals, suspension, and the state
//! after a keeper is killed.
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

/// The same tests with a daemon that carries out the verbs.
#[test]
fn the_same_with_a_daemon() {
    support::served::again(10, &["commands::", "input::", "limits::"], &[]);
}
