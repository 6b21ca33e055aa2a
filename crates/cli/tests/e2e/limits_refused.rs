//! Limits refused before the start: unenforceable on this host, contradicted by another flag, or not a valid amount.

use crate::support::{As, BOTH, Place};

/// Without control groups these limits cannot be enforced for an ordinary user; a run without them would be a silent
/// failure.
// promise 8
#[test]
fn limits_that_cannot_be_held_are_refused_by_name() {
    let place = Place::new(As::User);
    for (flags, limits, kind) in [
        (["-m", "64m"], r#"{"max_memory_mb": 64}"#, "memory_mb"),
        (["--pids", "9"], r#"{"max_processes": 9}"#, "processes"),
        (["--limit", "cpu=9s"], r#"{"max_cpu_ms": 9000}"#, "cpu_ms"),
    ] {
        let text = format!(r#"{{"version": 1, "extends": ["default"], "limits": {limits}}}"#);
        let policy = place.file("limits.json", text);
        for flags in [flags, ["-s", policy.to_str().unwrap()]] {
            let run = place.sh(&flags, "echo ran");
            run.assert_code(125);
            assert_eq!(run.stdout(), "", "{}", run.story());
            assert_eq!(run.text("/error_kind"), "unsupported_limit", "{}", run.story());
            assert_eq!(run.text("/limit_kind"), kind, "{}", run.story());
            assert!(run.text("/message").contains(&format!("max_{kind}")), "{}", run.story());
            assert!(run.text("/hint").contains("cofferdam setup --user"), "the fix is named: {}", run.story());
        }
    }
    let cpus = place.sh(&["--cpus", "1"], "nproc");
    cpus.assert_code(125);
    assert!(cpus.text("/message").contains("cpus"), "named as it was asked for: {}", cpus.story());
    // Control: without the limits the command runs.
    place.sh(&[], "echo ran").assert_ok();
}

/// `degrade` lets a run start without a limit and records that; where the limit can be enforced it still is.
#[test]
fn a_limit_is_given_up_only_by_name() {
    let limits = r#""limits": {"max_memory_mb": 32, "max_wall_ms": 60000}"#;
    for who in BOTH {
        let place = Place::new(who);
        for (degrade, consents) in [(r#"["max_memory_mb"]"#, true), (r#"["max_processes"]"#, false), ("[]", false)] {
            let text = format!(r#"{{"version": 1, "extends": ["default"], {limits}, "degrade": {degrade}}}"#);
            let policy = place.file("p.json", text);
            let run = place.python(&["-s", policy.to_str().unwrap()], "x = bytearray(96 << 20)");
            let enforcement = &run.outcome["enforcement"];
            if who == As::Root {
                assert_eq!(run.text("/limit_kind"), "memory_mb", "{}", run.story());
                assert_eq!(enforcement["level"], "full", "{}", run.story());
            } else if consents {
                run.assert_ok();
                assert_eq!(enforcement["level"], "partial", "{}", run.story());
                assert_eq!(enforcement["missing"], serde_json::json!(["max_memory_mb"]), "{}", run.story());
            } else {
                run.assert_code(125);
                assert_eq!(run.text("/error_kind"), "unsupported_limit", "{}", run.story());
            }
        }
    }
}

/// A quota on the private space cannot bound a directory of the host.
// promise 8
#[test]
fn a_quota_beside_a_write_grant_is_refused() {
    for who in BOTH {
        let place = Place::new(who);
        let shared = place.dir("shared");
        let write = ["--write", shared.to_str().unwrap()];
        for (quota, kind) in [(["--disk", "1m"], "disk_mb"), (["--limit", "files=5"], "files")] {
            let run = place.sh(&[&write[..], &quota[..]].concat(), "echo ran");
            run.assert_code(125);
            assert_eq!(run.text("/error_kind"), "unsupported_limit", "{}", run.story());
            assert_eq!(run.text("/limit_kind"), kind, "{}", run.story());
        }
        place.sh(&write, "echo ran").assert_ok();
    }
}

#[test]
fn bad_amounts_are_refused_before_anything_runs() {
    let place = Place::new(As::User);
    let huge = "18446744073709551615";
    let rows: &[(&[&str], &str)] = &[
        (&["-m", "0"], "--memory"),
        (&["-m", "lots"], "--memory"),
        (&["-m", "12q"], "\"q\""),
        (&["--memory=-1"], "--memory"),
        (&["-m", "99999999999t"], "out of range"),
        (&["-t", "0"], "--timeout"),
        (&["-t", "5w"], "\"w\""),
        (&["-t", "1.5.5s"], "--timeout"),
        (&["--pids", "0"], "--pids"),
        (&["--pids", "1.5"], "--pids"),
        (&["--disk", "0"], "--disk"),
        (&["--output", "0"], "--output"),
        (&["--cpus", "0"], "--cpus"),
        (&["--cpus", "nan"], "--cpus"),
        (&["--limit", "memory"], "NAME=AMOUNT"),
        (&["--limit", "memory="], "memory"),
        (&["--limit", "colour=1"], "no such limit"),
        (&["--limit", "wall=1s,pids=x"], "pids"),
        (&["--limit", "files=0"], "files"),
        (&["--limit", "open_files=abc"], "open_files"),
        (&["--limit", "on_output_limit=maybe"], "truncate"),
        (&["--limit", "max_memory_mb=nan"], "max_memory_mb"),
        (&["--limit", "max_memory_mb=inf"], "max_memory_mb"),
        (&["--limit", "max_disk_mb=-4"], "max_disk_mb"),
        (&["--limit", "max_disk_mb=1e300"], "max_disk_mb"),
    ];
    let all = ["max_wall_ms", "max_cpu_ms", "max_processes", "max_open_files", "max_files", "max_output_bytes"];
    let overflows: Vec<String> = all.iter().map(|name| format!("{name}={huge}")).collect();
    let overflows = overflows.iter().map(|item| (vec!["--limit", item.as_str()], "--limit max_"));
    for (flags, message) in rows.iter().map(|(flags, message)| (flags.to_vec(), *message)).chain(overflows) {
        let run = place.sh(&flags, "echo ran");
        assert_eq!(run.code(), 2, "{flags:?}: {}", run.story());
        assert_eq!(run.stdout(), "", "{flags:?}: {}", run.story());
        assert!(run.stderr().contains(message), "{flags:?} must say {message:?}: {}", run.story());
        assert_eq!(run.text("/error_kind"), "invalid_request", "{flags:?}: {}", run.story());
    }
    place.sh(&["-t", "60", "--limit", "open_files=256,files=1000"], "echo ran").assert_ok();
}

/// A limit above the caller's own is either clamped to it or refused by name.
#[test]
fn more_descriptors_than_there_can_be() {
    for who in BOTH {
        let place = Place::new(who);
        let run = place.sh(&["--limit", "open_files=2000000000"], "echo ran");
        let refused = run.code() == 125
            && run.text("/error_kind") == "unsupported_limit"
            && run.text("/limit_kind") == "open_files";
        assert!(run.code() == 0 || refused, "{}", run.story());
    }
}
