//! Every limit on cgroup v2, for root and for a user with a scope that systemd delegated: below the limit, above it,
//! and nothing left afterwards.

use crate::machine::{self, Machine};
use crate::place::{As, BOTH, outcome, run};
use serde_json::json;

/// Limit, flag and script below it, flag and script above it.
const ROWS: [(&str, &str, &str, &str, &str); 9] = [
    ("wall_ms", "-t 600s", "sleep 0.1", "-t 700ms", "sleep 3600"),
    ("cpu_ms", "--limit cpu=300s", "true", "--limit cpu=300ms", "(while :; do :; done) & wait"),
    (
        "memory_mb",
        "-m 64m",
        "head -c 33554432 /dev/zero | tail -c 33554432 > /dev/null",
        "-m 64m",
        "head -c 100663296 /dev/zero | tail -c 100663296 > /dev/null; sleep 3600",
    ),
    ("output_bytes", "--output 6", "printf 123456", "--output 6", "printf 1234567; sleep 3600"),
    (
        "processes",
        "--pids 3",
        "sleep 0.3 & sleep 0.3 & wait",
        "--pids 3",
        "sleep 3600 & sleep 3600 & sleep 3600 & wait; sleep 3600",
    ),
    (
        "open_files",
        "--limit open_files=20",
        "cd /tmp; tee $(seq 17)",
        "--limit open_files=20",
        "cd /tmp; tee $(seq 18); sleep 3600",
    ),
    (
        "disk_mb",
        "--disk 1m",
        "head -c 1048576 /dev/zero > /tmp/x",
        "--disk 1m",
        "head -c 1048577 /dev/zero > /tmp/x; sleep 3600",
    ),
    (
        "files",
        "--limit files=5",
        "cd /tmp; touch 1 2 3 4 5",
        "--limit files=5",
        "cd /tmp; touch 1 2 3 4 5 6; sleep 3600",
    ),
    (
        "net_bytes",
        "--net 127.0.0.1:7100 --limit net=1m",
        "busybox wget -q -O /dev/null http://127.0.0.1:7100/large",
        "--net 127.0.0.1:7100 --limit net=50k",
        "busybox wget -q -O /dev/null http://127.0.0.1:7100/large; sleep 3600",
    ),
];

fn serve_a_file(machine: &Machine) {
    let script = "mkdir -p /srv/www && cd /srv/www && head -c 200000 /dev/zero > large && { busybox wget -q -O /dev/null http://127.0.0.1:7100/large ||
        busybox httpd -p 127.0.0.1:7100 -h /srv/www; }";
    machine.bash(script).assert_ok();
}

// promise 8
#[test]
fn every_limit_holds_and_is_told() {
    let machine = machine::new();
    serve_a_file(machine);
    for who in BOTH {
        let mut runs = Vec::new();
        for (kind, wide, fits, tight, over) in ROWS {
            let answer = run(machine, who, wide, fits);
            let o = outcome(&answer, who, kind);
            assert_eq!((answer.status, &o["verdict"]), (0, &json!("ok")), "{who:?}, {kind}: {o:#}");
            assert_eq!(o["enforcement"]["level"], "full", "{who:?}, {kind}: {o:#}");
            runs.push(o["run_id"].as_str().unwrap().to_owned());
            let answer = run(machine, who, tight, over);
            let o = outcome(&answer, who, kind);
            let status = if kind == "wall_ms" { 124 } else { 137 };
            assert_eq!((&o["verdict"], &o["limit_kind"]), (&json!("limit_exceeded"), &json!(kind)), "{who:?}: {o:#}");
            assert_eq!((answer.status, &o["phase"]), (status, &json!("execution")), "{who:?}, {kind}: {o:#}");
            runs.push(o["run_id"].as_str().unwrap().to_owned());
        }
        nothing_is_left(machine, &runs);
    }
}

/// Control groups contain the id of their run.
fn nothing_is_left(machine: &Machine, runs: &[String]) {
    let said = machine.bash(&format!("groups | grep -E '{}'", runs.join("|")));
    assert_eq!((said.status, said.out.as_str()), (1, ""), "{said:?}");
}

// promise 8
#[test]
fn a_share_of_the_processor_is_not_taken_back_by_systemd() {
    // Starting any unit makes systemd redistribute the controllers of its slices.
    let script =
        "in_scope cofferdam run --read-only --cpus 0.5 -m 64m --pids 20 -- sleep 5001 > /dev/null 2>&1 & ann=$!
        cofferdam run --read-only --cpus 0.5 -m 64m --pids 20 -- sleep 5002 > /dev/null 2>&1 & root=$!
        until_true '[ $(pgrep -fx \"sleep 500[12]\" | wc -l) = 2 ]'
        both=$(for pid in $(pgrep -fx 'sleep 500[12]'); do cut -d: -f3 /proc/$pid/cgroup; done)
        tell() { for at in $both; do echo $(cd /sys/fs/cgroup$at && cat cpu.max memory.max pids.max 2>&1); done; }
        tell | sort | uniq -c
        systemctl daemon-reload; as_ann systemctl --user daemon-reload
        systemd-run --quiet --scope true; as_ann systemd-run --user --quiet --scope true
        tell | sort | uniq -c
        kill $ann $root; wait";
    let machine = machine::new();
    let said = machine.bash(&format!("{}{script}", crate::place::fresh(As::Root))).assert_ok();
    let line = "2 50000 100000 67108864 21";
    assert_eq!(said.lines().map(str::trim).collect::<Vec<_>>(), [line, line], "{said}");
}

// promise 8
#[test]
fn a_kill_for_memory_is_told_from_other_kills() {
    let machine = machine::new();
    for who in BOTH {
        let answer = run(machine, who, "-m 64m --pids 9", "kill -9 $$");
        let o = outcome(&answer, who, "kill");
        assert_eq!((answer.status, &o["verdict"], &o["exit"]["signal"]), (137, &json!("failed"), &json!(9)), "{o:#}");
        assert!(o.get("limit_kind").is_none(), "{o:#}");
    }
}

// promise 8
#[test]
fn killed_without_warning_it_leaves_nothing() {
    let machine = machine::new();
    for (who, seconds) in [(As::Root, "4001"), (As::Ann, "4002")] {
        let script = format!(
            "{}{} cofferdam run --read-only -m 64m -- sh -c 'sleep {seconds} & sleep {seconds}' > /dev/null 2>&1 &
             until_true '[ $(pgrep -fx \"sleep {seconds}\" | wc -l) = 2 ]'
             main=$(pgrep -fo '^[^ ]*cofferdam run .*sleep {seconds}')
             at=/sys/fs/cgroup$(cut -d: -f3 /proc/$(pgrep -fxo 'sleep {seconds}')/cgroup)
             [ -d $at ] && [ $(cat $at/memory.max) = 67108864 ] || exit 9
             kill -9 $main
             until_true '! pgrep -fx \"sleep {seconds}\" > /dev/null && [ ! -e '$at' ]' && echo gone",
            crate::place::fresh(who),
            who.word()
        );
        assert_eq!(machine.bash(&script).assert_ok(), "gone\n", "{who:?}");
    }
}

// promise 8
#[test]
fn a_user_without_a_scope_is_refused_by_name_and_told_the_way() {
    let machine = machine::new();
    let answer = run(machine, As::Plain, "-m 64m", "echo ran");
    let o = outcome(&answer, As::Plain, "memory");
    assert_eq!(
        (answer.status, &o["error_kind"], &o["limit_kind"]),
        (125, &json!("unsupported_limit"), &json!("memory_mb"))
    );
    assert!(o["hint"].as_str().unwrap().contains("systemd-run --user --scope -p Delegate=yes"), "{o:#}");
    // Setup changes nothing where systemd owns the groups, and recommends the same way.
    let said = machine.bash("cofferdam setup --user ann").assert_ok();
    assert!(said.contains("nothing was changed") && said.contains("systemd-run --user --scope"), "{said}");
    assert_eq!(machine.bash("ls -d /sys/fs/cgroup/cofferdam").status, 2, "no group of ours at the top");
    // The control: without the limit it runs.
    assert_eq!(run(machine, As::Plain, "", "echo ran").status, 0);
}

// promise 8
#[test]
fn a_supervisor_that_is_limited_gives_no_more_than_it_has() {
    // A service with a limit and a shell beside the supervisor: the only groups in which it could create children are
    // above the service's limit.
    let unit = format!("limited-{}", crate::place::unique());
    let script = format!(
        "{}systemd-run --quiet --pipe --wait --unit={unit} -p MemoryMax=500M -p WorkingDirectory=$PWD sh -c 'cofferdam run --json --read-only -m 64m -- true; echo $?'",
        crate::place::fresh(As::Root)
    );
    let machine = machine::new();
    let said = machine.bash(&script).out;
    assert!(said.contains("unsupported_limit") && said.contains("beside us"), "{said}");
    // The control: delegated and alone, it creates groups below the limit.
    let control = script
        .replace("sh -c 'cofferdam", "-p Delegate=yes cofferdam")
        .replace("true; echo $?'", "true")
        .replace(&unit, &format!("{unit}-c"));
    let said = machine.bash(&control).assert_ok();
    assert!(said.contains("\"verdict\": \"ok\""), "{said}");
}

// promise 8
#[test]
fn every_wall_stands() {
    let machine = machine::new();
    for who in BOTH {
        let report = machine.bash(&format!("cd /; {} cofferdam doctor --json", who.word()));
        let report = serde_json::from_str::<serde_json::Value>(&report.assert_ok()).unwrap();
        assert_eq!((&report["level"], &report["missing"]), (&json!("full"), &json!([])), "{who:?}: {report:#}");
        for check in report["checks"].as_array().unwrap().iter().filter(|c| c["required"] == true) {
            assert_eq!(check["ok"], true, "{who:?}: {check}");
        }
        for limit in report["limits"].as_array().unwrap() {
            assert_eq!(limit["ok"], true, "{who:?}: {limit}");
        }
        let group = report["checks"].as_array().unwrap().iter().find(|c| c["name"] == "host.cgroup").unwrap();
        assert_eq!(group["detail"], "v2");
    }
}
