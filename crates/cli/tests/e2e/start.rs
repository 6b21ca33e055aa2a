//! First commands of a new user.

use crate::support::{BOTH, Place, binary};

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

/// Setup pins its helpers to processors; the command does not inherit that affinity.
// promise 2
#[test]
fn a_command_may_use_the_processors_that_its_caller_may() {
    for who in BOTH {
        let place = Place::new(who);
        for few in [None, Some("0")] {
            let mut words = few.map(|few| vec!["/usr/bin/taskset", "--cpu-list", few]).unwrap_or_default();
            let look = "grep ^Cpus_allowed: /proc/self/status";
            let outside = words.iter().chain(&["/bin/sh", "-c", look]).copied().collect::<Vec<_>>();
            words.extend([binary().to_str().unwrap(), "run", "--read-only", "--", "/bin/sh", "-c", look]);
            let [outside, inside] = [outside, words].map(|words| {
                let out = place.outside(words[0]).args(&words[1..]).output().unwrap();
                assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
                String::from_utf8(out.stdout).unwrap()
            });
            assert!(outside.starts_with("Cpus_allowed:"), "control: {outside}");
            assert_eq!(inside, outside, "as {who:?}, {few:?}");
        }
    }
}

/// The setup helper starts with the program, before the arguments show whether there will be a run.
// promise 2
#[test]
fn a_call_that_runs_nothing_leaves_nobody() {
    for who in BOTH {
        let place = Place::new(who);
        // Runs the words under a shell as subreaper, which sees every process that is left.
        let left = |looks: &str, words: &[&str]| {
            // A helper that was told to end may need a moment.
            let script = "\"$@\" > /dev/null 2>&1; code=$?; n=0; left=x; while [ -n \"$left\" ] && [ $n -lt $0 ]; do sleep 0.1; n=$((n+1)); \
                          read left < /proc/$$/task/$$/children; done; echo $left; exit $code";
            let mut outside = place.outside("/usr/bin/python3");
            let out = outside.args(["-c", SUBREAPER, "/bin/sh", "-c", script, looks]).args(words).output().unwrap();
            (out.status.code(), String::from_utf8_lossy(&out.stdout).trim().to_owned())
        };
        let (code, pids) = left("2", &["/bin/sh", "-c", "sleep 20 & exit 7"]);
        assert!(code == Some(7) && !pids.is_empty(), "control: a process that is left is seen");
        for (words, code) in [
            (&["run", "--no-such-flag", "--", "true"][..], 2),
            (&["run", "--help", "true"], 0),
            (&["run", "--explain", "--", "true"], 0),
            (&["run", "--server", "/nowhere/at-all.sock", "--", "true"], 125),
            (&["run", "--sandbox", "sbx_nosuch", "--", "true"], 125),
        ] {
            let words = [&[binary().to_str().unwrap()], words].concat();
            assert_eq!(left("300", &words), (Some(code), String::new()), "as {who:?}: {words:?}");
        }
    }
}

/// Makes itself a subreaper, then executes its arguments.
const SUBREAPER: &str =
    "import ctypes, os, sys; assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0; os.execv(sys.argv[1], sys.argv[1:])";
