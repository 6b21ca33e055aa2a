//! The first things a newcomer types.

use crate::support::{BOTH, Place};

#[test]
fn a_command_runs_and_its_status_is_the_answer() {
    for who in BOTH {
        let place = Place::new(who);
        let run = place.sh(&[], "echo hello; exit 3");
        run.assert_code(3);
        assert_eq!(run.stdout(), "hello\n");
        assert_eq!(run.text("/verdict"), "failed");
        place.sh(&[], "exit 0").assert_ok();
    }
}
