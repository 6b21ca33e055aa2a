//! Snapshots, forks, restores, templates and exports through the binary: content, refusals, every driver, running
//! commands, and a kill at any moment.
use testkit as support;
use testkit::words;

mod drivers;
mod files;
mod home;
mod killed;
mod running;
mod snapshots;
mod templates;

/// The tests of these modules again through a daemon.
#[test]
fn the_same_with_a_daemon() {
    let but = [
        // `--direct` is refused by a daemon, and so is `diff --home`.
        "home::a_run_without_a_workspace_has_a_home_until_it_ends",
        "home::copies_of_the_hosts_files_are_brought_in_and_stay_in_the_sandbox",
        "home::what_is_copied_is_named_bounded_and_below_the_home",
        // A live sandbox is not set up anew for each command, so nothing stands in the way of a mount.
        "home::a_hostile_home_moves_no_mount_point",
        "home::the_way_to_the_workspace_is_not_the_commands_to_choose",
        // Programs are found by the PATH of the daemon, and not by that of the caller.
        "home::programs_of_the_home_are_found",
        "home::what_the_host_shows_below_the_home_stays_where_it_is",
    ];
    support::served::again(8, &["files::", "home::", "snapshots::", "templates::"], &but);
}
