//! Approvals through the binary: landed changes, receipts, and a base that no interruption harms.
use testkit as support;

mod fixture;
mod harmed;
mod verbs;

/// The verb tests again through a daemon.
#[test]
fn the_same_with_a_daemon() {
    support::served::again(4, &["verbs::"], &[]);
}
