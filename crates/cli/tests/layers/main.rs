//! Snapshots, forks, restores, templates and exports through the binary: content, refusals, every driver, running
//! commands, and a kill at any moment.
use testkit as support;
use testkit::words;

mod drivers;
mod files;
mod killed;
mod running;
mod snapshots;
mod templates;

/// The tests of these modules again through a daemon.
#[test]
fn the_same_with_a_daemon() {
    support::served::again(8, &["files::", "snapshots::", "templates::"], &[]);
}
