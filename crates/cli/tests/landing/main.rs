//! Approvals through the binary: what lands, what is told, and that nothing harms the base wherever an approval is cut off.
use testkit as support;

mod harmed;
mod verbs;
mod world;

/// Whoever carries it out, what is seen of it is the same.
#[test]
fn the_same_with_a_daemon() {
    support::served::again(4, &["verbs::"], &[]);
}
