//! Sandboxes from create to rm, through the binary: states, versions, keys, reservations, collection, the journal, and
//! the state after a kill in the middle of any of it.
use testkit as support;

mod collect;
mod create;
mod going_on;
mod killed;
mod listed;
mod meanwhile;
mod past;
mod reserve;
mod soak;
mod stop;
mod total;
mod trouble;
use testkit::words;

/// The same tests with a daemon that carries out the verbs.
#[test]
fn the_same_with_a_daemon() {
    let but = ["a_run_that_is_gone", "nothing_is_left_whatever", "a_lost_store", "what_a_killed_run_changed"];
    support::served::again(15, &["create::", "reserve::", "stop::", "collect::"], &but);
}
