//! Snapshots, forks, restores, templates and workspaces as files, through the binary: what they keep, what they refuse, over every
//! driver, while a command runs, and when any of it is killed in the middle.
use testkit as support;
use testkit::words;

mod drivers;
mod files;
mod killed;
mod running;
mod snapshots;
mod templates;

/// Whoever carries it out, what is seen of it is the same.
#[test]
fn the_same_with_a_daemon() {
    support::served::again(8, &["files::", "snapshots::", "templates::"], &[]);
}
