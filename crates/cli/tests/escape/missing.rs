//! Kernels that lack or forbid an enforcement mechanism: the run is refused, and the mechanism named.

use crate::support::{As, BOTH, HIDE, Place, Run, binary, unique};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;

const ENOMEM: &str = "12";
const ENOSYS: &str = "38";
const EPERM: &str = "1";

/// Runs `cofferdam run FLAGS -- COMMAND` with one system call removed.
fn without(place: &Place, hide: &Path, call: u32, errno: &str, flags: &[&str], command: &[&str]) -> Run {
    let status = place.file(format!("status-{}.json", unique()), "");
    let mut c = place.outside("timeout");
    c.args(["--signal", "KILL", "30"]).arg(hide).args([&call.to_string(), errno]).arg(binary());
    let output = c.args(["run", "--status-file"]).arg(&status).args(flags).arg("--").args(command).output().unwrap();
    let outcome = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap_or(Value::Null);
    Run { output, outcome }
}

/// A missing mechanism refuses the run.
// promise 10
#[test]
fn a_missing_kernel_feature_is_a_refusal() {
    let calls = [
        ("landlock_create_ruleset", 444),
        ("landlock_add_rule", 445),
        ("landlock_restrict_self", 446),
        ("seccomp", 317),
        ("clone3", 435),
        ("clone", 56),
        ("unshare", 272),
        ("mount", 165),
        ("umount2", 166),
        ("pivot_root", 155),
        ("open_tree", 428),
        ("move_mount", 429),
        ("mount_setattr", 442),
        ("prctl", 157),
        ("capset", 126),
        ("setresuid", 117),
        ("setresgid", 119),
        ("openat2", 437),
        ("close_range", 436),
        ("setsid", 112),
        ("prlimit64", 302),
    ];
    for who in BOTH {
        let place = Place::new(who);
        let hide = place.c_program("hide", HIDE);
        for (name, call) in calls {
            for errno in [ENOSYS, EPERM] {
                let run = without(&place, &hide, call, errno, &[], &["/bin/sh", "-c", "echo ran"]);
                let story = format!("{who:?}, {name} fails with {errno}: {}", run.story());
                assert_eq!(run.stdout(), "", "ran all the same: {story}");
                assert_eq!(run.code(), 125, "{story}");
                assert_eq!(run.text("/error_kind"), "unsupported_host", "{story}");
                assert!(!run.text("/hint").is_empty(), "the fix is named: {story}");
            }
        }
        // ENOMEM does not mean that a mechanism is blocked; the run can be tried again later.
        for (name, call) in [("mount", 165), ("open_tree", 428), ("clone3", 435)] {
            let run = without(&place, &hide, call, ENOMEM, &[], &["/bin/echo", "ran"]);
            let story = format!("{who:?}, {name}: {}", run.story());
            assert_eq!((run.code(), run.text("/error_kind")), (125, "unavailable".into()), "{story}");
            assert!(
                run.text("/message").contains("out of memory") && !run.text("/message").contains("blocked"),
                "{story}"
            );
        }
        // Control: a call that no mechanism needs.
        assert_eq!(without(&place, &hide, 332, ENOSYS, &[], &["/bin/echo", "ran"]).assert_ok().stdout(), "ran\n");
    }
}

/// Calls that only serve limits and reports must not be missing silently either.
// promise 10
#[test]
fn limits_and_reports_do_not_fade_silently() {
    for who in BOTH {
        let place = Place::new(who);
        let hide = place.c_program("hide", HIDE);
        let held_or_refused = |run: &Run, held: bool| {
            let refused = run.code() == 125 && run.text("/error_kind").starts_with("unsupported");
            assert!(refused || held, "{who:?}: {}", run.story());
        };
        // pidfd_send_signal: the wall limit ends the run, or the run is refused.
        let run = without(&place, &hide, 424, ENOSYS, &["-t", "1s"], &["/bin/sleep", "4000"]);
        held_or_refused(&run, run.code() == 124);
        // process_vm_readv: a refused write is reported, or the run is refused.
        let run = without(&place, &hide, 310, ENOSYS, &[], &["/bin/sh", "-c", "echo x > /etc/hostname"]);
        held_or_refused(&run, run.was_denied("fs.write", "/etc/hostname"));
        // sched_setaffinity, under a processor limit.
        if who == As::Root {
            let run = without(&place, &hide, 203, ENOSYS, &["--cpus", "1"], &["/usr/bin/nproc"]);
            held_or_refused(&run, run.stdout() == "1\n");
        }
        // Control: with every call present the denial is reported.
        place.sh(&[], "echo x > /etc/hostname").assert_denied("fs.write", "/etc/hostname");
    }
}

/// Namespaces that an administrator disabled, one kind at a time.
// promise 10
#[test]
fn a_namespace_that_is_switched_off_is_a_refusal() {
    for who in BOTH {
        let place = Place::new(who);
        let nested = |sysctl: &str| -> Output {
            let script = "[ -z \"$1\" ] || echo 0 > /proc/sys/user/$1 || exit 90; shift; exec \"$@\"";
            let mut c = place.outside("unshare");
            c.args(["--user", "--map-root-user", "sh", "-c", script, "sh", sysctl]).arg(binary());
            c.args(["run", "--json", "--", "/bin/echo", "ran"]).output().unwrap()
        };
        for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "time", "cgroup"] {
            let output = nested(&format!("max_{kind}_namespaces"));
            let story = format!("{who:?}, no {kind} namespaces: {output:?}");
            assert_eq!(output.status.code(), Some(125), "{story}");
            let fault: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(fault["error_kind"], "unsupported_host", "{story}");
            assert!(fault["hint"].as_str().is_some_and(|h| !h.is_empty()), "{story}");
        }
        // Control: in a nested user namespace as such the run works.
        let output = nested("");
        let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(outcome["stdout"], "ran\n", "{who:?}: {output:?}");
        assert_eq!(outcome["enforcement"]["level"], "full", "{who:?}: {output:?}");
    }
}
