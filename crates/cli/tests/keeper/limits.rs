//! Limits in a live sandbox: per command, and limits that a single command cannot have.

use crate::place::LiveSandbox;
use crate::support::{Place, either};
use crate::words::Verbs;
use serde_json::{Value, json};

fn outcome(live: &LiveSandbox<'_>, flags: &[&str], script: &str) -> Value {
    let output = live.sh(&[flags, &["--json"]].concat(), script, b"");
    serde_json::from_slice(&output.stdout).unwrap()
}

// promise 20
#[test]
fn wall_and_output_are_each_commands_own() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &["--limit", "wall=120s"]);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| outcome(&live, &[], "sleep 1; echo alive"));
            let slow = outcome(&live, &["-t", "3s"], "echo begun; setsid sleep 300 & sleep 300");
            let told = (&slow["verdict"], &slow["limit_kind"], &slow["limit"], &slow["stdout"]);
            assert_eq!(told, (&json!("limit_exceeded"), &json!("wall_ms"), &json!(3000), &json!("begun\n")), "{slow}");
            let loud = outcome(&live, &["--output", "10"], "seq 100");
            let told = (&loud["limit_kind"], &loud["limit"], &loud["stdout"], &loud["phase"]);
            assert_eq!(told, (&json!("output_bytes"), &json!(10), &json!("1\n2\n3\n4\n5\n"), &json!("execution")));
            let exact = outcome(&live, &["--output", "10"], "printf 0123456789");
            assert_eq!((&exact["verdict"], &exact["stdout"]), (&json!("ok"), &json!("0123456789")));
            assert_eq!(other.join().unwrap()["stdout"], "alive\n", "{who:?}: others do not notice");
        });
    }
}

// promise 20
#[test]
fn output_past_the_limit_can_be_dropped_and_counted() {
    let place = Place::new(crate::support::As::User);
    let policy = place.policy(json!({"version": 1, "extends": ["default"],
        "limits": {"max_output_bytes": 5, "on_output_limit": "truncate"}}));
    let live = LiveSandbox::new(&place, &["-p", &policy]);
    let cut = outcome(&live, &[], "printf 12345678; printf 90 >&2; exit 4");
    assert_eq!((&cut["exit"]["code"], &cut["verdict"]), (&json!(4), &json!("failed")), "{cut}");
    let dropped = cut["truncated"]["stdout"].as_u64().unwrap() + cut["truncated"]["stderr"].as_u64().unwrap();
    assert_eq!(dropped, 5, "{cut}");
    let run = live.detach(&[], "printf 12345678");
    live.outcome(&run);
    let pieces = live.pieces(&[&run]);
    assert_eq!((&pieces[0]["data"], &pieces[1]["dropped"]), (&json!("12345"), &json!(3)));
}

#[test]
fn what_one_command_of_many_cannot_have_is_refused() {
    let place = Place::new(crate::support::As::User);
    let live = LiveSandbox::new(&place, &[]);
    for flags in [&["-m", "64m"][..], &["--cpus", "1"], &["--deny-read", "/etc/hosts"], &["--pids", "9"]] {
        let words = [&["exec"], flags, &[&live.id]].concat();
        let output = live.sh(&[flags, &["--json"]].concat(), "true", b"");
        let fault: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&fault["error_kind"], output.status.code()), (&json!("conflict"), Some(125)), "{words:?} {fault}");
        assert!(fault["hint"].is_string());
    }
    assert_eq!(live.sh(&["-t", "10s"], "exit 5", b"").status.code(), Some(5));
    // In a sandbox that is not live the same rule holds.
    place.json(&["stop", &live.id]);
    place.json(&["start", &live.id]);
    assert_ne!(live.sh(&["--deny-read", "/etc/hosts"], "cat /etc/hosts", b"").status.code(), Some(0));
    assert_eq!(live.sh(&[], "cat /etc/hosts", b"").status.code(), Some(0));
}

#[test]
fn commands_that_cannot_start_say_why() {
    let place = Place::new(crate::support::As::User);
    let live = LiveSandbox::new(&place, &[]);
    for (command, status, kind) in [("/no/such", 127, "not_found"), ("/etc/hosts", 126, "invalid_request")] {
        let output = place.verb(&["exec", "--json", &live.id, "--", command]);
        let fault: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &fault["error_kind"]), (Some(status), &json!(kind)), "{fault}");
    }
    assert_eq!(live.sh(&[], "exit 0", b"").status.code(), Some(0));
    let seen = live.sh(&[], "echo $COFFERDAM; pwd", b"");
    assert_eq!(crate::words::text(&seen.stdout), format!("1\n{}\n", place.project.display()));
}

/// Regression: a command that hit a limit and ended before the next check was reported as failed by itself.
// promise 20
#[test]
fn a_limit_that_is_met_in_passing_is_told() {
    let place = Place::new(crate::support::As::Root);
    let live = LiveSandbox::new(&place, &["--limit", "processes=6,disk=2m"]);
    for _ in 0..5 {
        let crowd = outcome(&live, &[], "for n in 1 2 3 4 5 6 7 8 9; do sleep 100 & done");
        assert_eq!(
            (&crowd["verdict"], &crowd["limit_kind"]),
            (&json!("limit_exceeded"), &json!("processes")),
            "{crowd}"
        );
        // The control: the next command is not charged for it.
        let few = outcome(&live, &[], "for n in 1 2 3; do true & done; wait");
        assert_eq!(few["verdict"], "ok", "{few}");
    }
    let full = outcome(&live, &[], "head -c 3000000 /dev/zero > full");
    assert_eq!((&full["verdict"], &full["limit_kind"]), (&json!("limit_exceeded"), &json!("disk_mb")), "{full}");
    assert_eq!(outcome(&live, &[], "rm full; head -c 100000 /dev/zero > some")["verdict"], "ok");
}

/// Script that holds an unlinked file of `kib` kibibytes, then does `then`.
fn holds(kib: u32, then: &str) -> String {
    format!(
        "exec /usr/bin/python3 -c 'import os,time\nf=os.open(\".\",os.O_TMPFILE|os.O_RDWR)\nos.write(f,b\"z\"*({kib}<<10))\n{then}'"
    )
}

/// Unlinked files of all commands count together, and a killed command's are free again.
#[test]
fn files_without_a_name_count_over_all_commands() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &["--disk", "4m"]);
        let first = live.detach(&[], &holds(3000, "open(\"ready\",\"w\")\ntime.sleep(40)"));
        crate::place::soon(|| live.sh(&[], "test -e ready", b"").status.success());
        // The control: a small file beside the first one.
        assert_eq!(outcome(&live, &[], &holds(600, "time.sleep(0.2)"))["verdict"], "ok", "{who:?}");
        let second = outcome(&live, &[], &holds(1400, "time.sleep(40)"));
        for ended in [&second, &live.outcome(&first)] {
            let told = (&ended["verdict"], &ended["limit_kind"], &ended["limit"]);
            assert_eq!(told, (&json!("limit_exceeded"), &json!("disk_mb"), &json!(4.0)), "{who:?}: {ended}");
        }
        // Ended commands leave no charge behind.
        assert_eq!(outcome(&live, &[], &holds(3000, "time.sleep(0.2)"))["verdict"], "ok", "{who:?}");
        let run = live.detach(&[], &holds(3000, "time.sleep(40)"));
        place.verb(&["kill", &run]);
        live.outcome(&run);
        assert_eq!(outcome(&live, &[], &holds(3000, "time.sleep(0.2)"))["verdict"], "ok", "{who:?}");
    }
}
