//! User-visible behaviour through the binary: streams, exit statuses, outcomes, limits, policies.
use testkit as support;

mod agents;
mod asking;
mod asking_programs;
mod bench;
mod clients;
mod denials;
mod diff;
mod doctor;
mod environment;
mod hidden;
mod hints;
mod learn;
mod limits;
mod limits_output;
mod limits_refused;
mod limits_tree;
mod locks;
mod lost_output;
mod nameless;
mod network;
mod network_echo;
mod network_told;
mod newcomer;
mod permissions;
mod private_tmp;
mod programs;
mod publish;
mod rebase;
mod repositories;
mod second_driver;
mod secrets;
mod sockets;
mod special_files;
mod start;
mod streams;
mod terminals;
mod workspace;

/// Every test of this binary again through a daemon, except for features that a daemon refuses.
// promise 27
#[test]
fn the_same_with_a_daemon() {
    let but = [
        "a_diff_of_a_running_sandbox_says_so",
        "a_killed_supervisor_leaves",
        "a_rebase_that_is_killed_anywhere",
        "a_sandbox_is_gone_on_with_under_its_own_rules",
        "a_workspace_and_our_own_state",
        "denials_hold_in_a_workspace",
        "in_tmp_the_guest_has_its_own",
        "one_run_at_a_time",
        "other_modes_are_chosen",
        "repositories::",
        "the_home_directory_wants_a_choice",
        "the_end_is_told_in_one_line",
        "what_is_kept_is_as_much",
        "workspaces_are_measured",
    ];
    let watched =
        ["denials::looking_at_what_is_hidden", "denials::ordinary_work_has_no", "denials::the_commands_own_failures"];
    let unread = ["lost_output::a_reader_that_leaves"];
    let tests = [&["diff::", "rebase::", "workspace::"], &watched[..], &unread].concat();
    support::served::again(20, &tests, &but);
}
