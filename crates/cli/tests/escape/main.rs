//! Attacks on the enclosure, each with a control that must succeed, as root and as an ordinary user.
use testkit as support;

mod asked_programs;
mod core_dumps;
mod covers;
mod exhaustion;
mod kernel;
mod killed;
mod language;
mod locks;
mod missing;
mod neighbours;
mod network;
mod network_blame;
mod network_held;
mod network_inside;
mod network_strain;
mod network_world;
mod policies;
mod review_paths;
mod review_terminal;
mod review_unseen;
mod sockets;
mod workspace;

/// Text that must never leave a guest.
const CANARY: &str = "canary-b1f6c2d9e07a";

#[track_caller]
fn assert_no_canary(run: &support::Run) {
    assert!(!run.stdout().contains(CANARY) && !run.stderr().contains(CANARY), "leaked: {}", run.story());
}
