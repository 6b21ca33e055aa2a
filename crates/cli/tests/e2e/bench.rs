//! `bench`: complete measurements, and a census without leftovers after many runs.

use crate::support::left::soon;
use crate::support::{As, BOTH, Place, either};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::process::{Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

fn json(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: exit {:?}: {stderr}", output.status.code()))
}

fn contender<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let list = answer["contenders"].as_array().unwrap();
    list.iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no {name} in {answer:#}"))
}

/// Serialises the network benchmarks: each holds thousands of connections.
fn network_bench_lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn every_contender_is_measured_and_compared() {
    for who in either() {
        let place = Place::new(who);
        let output = place.cofferdam(["bench", "--runs", "10", "--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{who:?}: {}", String::from_utf8_lossy(&output.stderr));
        let answer = json(&output);
        assert_eq!(answer["rounds"], 10);
        assert!(answer["cpus"].as_u64().unwrap() > 0 && !answer["kernel"].as_str().unwrap().is_empty());
        let mut measured = Vec::new();
        for name in ["bare", "cofferdam-version", "bwrap", "cofferdam", "cofferdam-no-limits"] {
            let c = contender(&answer, name);
            let Some(us) = c["us"].as_object() else {
                // Only a contender that cannot run on this host may be absent, and always with a reason.
                assert!(c["absent"].as_str().is_some_and(|why| !why.is_empty()), "{c}");
                let excused = name == "bwrap" || (name == "cofferdam" && who == As::User);
                assert!(excused, "{who:?}: {c}");
                continue;
            };
            let [p50, p95, p99] = ["p50", "p95", "p99"].map(|q| us[q].as_f64().unwrap());
            assert!(0.0 < p50 && p50 <= p95 && p95 <= p99, "{c}");
            measured.push((name, p50, p95));
        }
        let ratios = answer["ratios"].as_array().unwrap();
        let own = answer["own_start_us"].as_f64().unwrap();
        assert!((own - (measured[1].1 - measured[0].1)).abs() < 0.2, "{own} is not the difference: {measured:?}");
        let runs = measured.iter().filter(|(n, ..)| ["cofferdam", "cofferdam-no-limits"].contains(n));
        for (name, p50, p95) in runs {
            for other in measured.iter().filter(|(n, ..)| ["bare", "bwrap"].contains(n)) {
                let ratio = ratios.iter().find(|r| r["name"] == format!("{name}/{}", other.0)).unwrap();
                let near = |found: &Value, want: f64| (found.as_f64().unwrap() - want).abs() < 0.01;
                assert!(near(&ratio["p50"], p50 / other.1), "{ratio} is not {p50} by {}", other.1);
                assert!(near(&ratio["p95"], p95 / other.2), "{ratio} is not {p95} by {}", other.2);
            }
            assert!(*p50 > measured[0].1, "an enclosure cannot cost nothing: {measured:?}");
        }
    }
}

#[test]
fn the_page_has_units_and_says_what_is_left_out() {
    let place = Place::new(As::Root);
    let output = place.cofferdam(["bench", "--runs", "10"]).env("PATH", "/nonexistent").output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    for expected in [
        "10 rounds",
        "p50 µs",
        "p99 µs",
        "p95",
        "own start of the binary",
        "bare ",
        "cofferdam-version ",
        "cofferdam-no-limits ",
        "bwrap is not on PATH",
        "cofferdam/bare",
        "×",
    ] {
        assert!(stdout.contains(expected), "{expected:?} in {stdout}");
    }
    assert!(!stdout.contains('\x1b'), "{stdout}");
    let refused = place.cofferdam(["bench", "--runs", "1"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "too few to say anything about");
}

/// Real workloads inside and outside. Only the presence of figures is checked; their values depend on the machine.
#[test]
fn work_is_compared_inside_and_outside() {
    for who in either() {
        let place = Place::new(who);
        let output = place.cofferdam(["bench", "--runs", "10", "--work", "--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{who:?}: {}", String::from_utf8_lossy(&output.stderr));
        let answer = json(&output);
        let names = [
            "python-start-40-times",
            "compile-2000-files",
            "the-same-report-reads",
            "git-status-60-times",
            "the-same-writable",
            "reads-50000-times",
            "changes-10000-times",
        ];
        let rows = answer["work"].as_array().unwrap();
        assert_eq!(rows.iter().map(|r| r["name"].as_str().unwrap()).collect::<Vec<_>>(), names);
        for row in rows {
            let [outside, inside, ratio] = ["outside_us", "inside_us", "ratio"].map(|f| row[f].as_f64().unwrap_or(0.0));
            assert!(outside > 0.0 && inside > 0.0 && ratio > 0.0, "{who:?}: {row:#}");
        }
        assert_eq!(std::fs::read_dir(&place.project).unwrap().count(), 0, "the place for its files is gone");
    }
}

/// Files whose content git inside would have to read, because the index does not prove them unchanged.
fn doubted(place: &Place, flags: &[&str]) -> String {
    place.sh(flags, "git diff-files --name-only").assert_ok().stdout()
}

/// Regression: a root caller's guest sees other file owners than the index records, so git took every file of a
/// read-only project for changed.
#[test]
fn git_trusts_what_it_knows_of_a_project_it_may_only_read() {
    for who in BOTH {
        let place = Place::new(who);
        let make = "git init -q . && for i in 1 2 3; do echo $i > $i; done && touch -d '1 hour ago' ? && git add . && \
                    git -c user.name=n -c user.email=e commit -q -m m && git status --porcelain";
        let made = place.outside("sh").args(["-c", make]).output().unwrap();
        assert!(made.status.success() && made.stdout.is_empty(), "{made:?}");
        assert_eq!(doubted(&place, &[]), "", "{who:?}");
        assert_eq!(doubted(&place, &["--report-reads"]), "", "{who:?}");
        assert_eq!(doubted(&place, &["--read-only"]), "", "{who:?}");
        // Control: a real change is reported.
        let change = place.outside("sh").args(["-c", "echo changed > 2"]).output().unwrap();
        assert!(change.status.success());
        assert_eq!(doubted(&place, &[]), "2\n", "{who:?}");
        // `core.checkStat=minimal` is set in a workspace, because the next one does not inherit index updates, and for
        // a read-only project only for root's guests. It applies to this repository alone, and not where git can update
        // the index itself.
        let trust = "git config --get core.checkStat; cd /tmp; git init -q x; cd x; git config --get core.checkStat";
        let set = |flags: &[&str]| place.sh(flags, trust).stdout();
        assert_eq!(set(&[]), "minimal\n");
        assert_eq!(set(&["--read-only"]), if who == As::Root { "minimal\n" } else { "" });
        assert_eq!(set(&["--direct", "--write", "."]), "");
        // A caller's git settings are never replaced, whether the guest can read them or not.
        place.file("home/.config/git/config", "[core]\n\teditor = mine\n");
        assert_eq!(set(&[]), "");
        let shown = place.home.join(".config/git");
        let flags = ["--read", shown.to_str().unwrap()];
        assert_eq!(place.sh(&flags, "git config --get core.editor").stdout(), "mine\n");
    }
}

// promise 11
#[test]
fn hundreds_of_runs_leave_nothing_behind() {
    for who in either() {
        let (place, runs) = (Place::new(who), 200);
        let output = place.cofferdam_apart(["bench", "--json", "--soak"]).arg(runs.to_string()).output().unwrap();
        let soaked = json(&output);
        assert_eq!(soaked["before"], soaked["after"], "{who:?}: {soaked:#}");
        assert_eq!((soaked["clean"].as_bool(), soaked["failed"].as_u64()), (Some(true), Some(0)), "{soaked:#}");
        assert_eq!((soaked["runs"].as_u64(), output.status.code()), (Some(runs), Some(0)));
        let peak = |name: &str| soaked[name].as_f64().unwrap();
        assert!(peak("peak_kb_first") > 0.0 && peak("peak_kb_last") <= peak("peak_kb_first") * 1.25, "{soaked:#}");
        // The working directory of the benchmark is removed.
        assert_eq!(std::fs::read_dir(&place.project).unwrap().count(), 0);
    }
}

/// A PATH without npm, so that nothing is downloaded; the npm row must report that.
fn without_npm(place: &Place) -> std::path::PathBuf {
    let bin = place.dir("bin");
    for name in ["curl", "setpriv"] {
        std::os::unix::fs::symlink(format!("/usr/bin/{name}"), bin.join(name)).unwrap();
    }
    bin
}

#[test]
fn the_network_is_compared_and_memory_stays_flat() {
    let _lock = network_bench_lock();
    for who in either() {
        let place = Place::new(who);
        let mut bench = place.cofferdam(["bench", "--net", "--runs", "10", "--bulk", "8", "--json"]);
        let output = bench.env("PATH", without_npm(&place)).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{who:?}: {}", String::from_utf8_lossy(&output.stderr));
        let answer = json(&output);
        assert_eq!((answer["rounds"].as_u64(), answer["bulk_bytes"].as_u64()), (Some(10), Some(8 << 20)));
        for name in ["native", "cofferdam", "cofferdam-inspected"] {
            let c = contender(&answer, name);
            let [p50, p95] = ["p50", "p95"].map(|q| c["first_byte_us"][q].as_f64().unwrap_or(0.0));
            assert!(0.0 < p50 && p50 <= p95 && c["bulk_mb_s"].as_f64().unwrap() > 0.0, "{who:?}: {c:#}");
            assert_eq!(c["failed"], 0, "{who:?}: {c:#}");
        }
        for name in ["srt", "srt-tunnel"] {
            assert_eq!(contender(&answer, name)["absent"], "npm is not on PATH");
        }
        let ratios: Vec<_> = answer["ratios"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
        assert_eq!(ratios, ["cofferdam/native", "cofferdam-inspected/native"]);
        for held in answer["held"].as_array().unwrap() {
            let kb = |when: &str| held["resident_kb"][when].as_u64().unwrap_or_else(|| panic!("{who:?}: {held:#}"));
            assert!(held["connections"] == 1000 && kb("before") < kb("with_first"), "{held:#}");
            // Memory taken for the first thousand connections is reused for the second.
            assert!(kb("with_second") <= kb("with_first") * 5 / 4, "{who:?}: {held:#}");
        }
        // The working directory of the benchmark is removed.
        assert_eq!(std::fs::read_dir(&place.project).unwrap().count(), 0);
    }
}

#[test]
fn the_page_of_the_network_has_every_row() {
    let _lock = network_bench_lock();
    let place = Place::new(As::Root);
    let mut bench = place.cofferdam(["bench", "--net", "--runs", "10", "--bulk", "1"]);
    let output = bench.env("PATH", without_npm(&place)).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    for expected in [
        "10 rounds of 200 fresh connections",
        "p95 µs",
        "bulk MB/s",
        "native ",
        "cofferdam-inspected ",
        "npm is not on PATH",
        "cofferdam/native",
        "resident kB",
        "cofferdam × 1000",
    ] {
        assert!(stdout.contains(expected), "{expected:?} in {stdout}");
    }
    for wrong in [&["bench", "--net", "--work"][..], &["bench", "--bulk", "1"], &["bench", "--net", "--soak", "1"]] {
        assert_eq!(place.cofferdam(wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn workspaces_are_measured_beside_what_people_use_instead() {
    let place = Place::new(As::User);
    let output =
        place.cofferdam(["bench", "--workspace", "--files", "1000", "--runs", "10", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let answer = json(&output);
    let rows = answer["rows"].as_array().unwrap();
    let took = |step: &str, who: &str| {
        let row =
            rows.iter().find(|r| r["step"] == step && r["who"] == who).unwrap_or_else(|| panic!("{step} by {who}"));
        row["us"]["p50"].as_f64().unwrap_or_else(|| panic!("{row}"))
    };
    for (step, others) in [
        ("run in a fresh workspace", &["plain run"][..]),
        ("create and first command", &["git worktree", "cp -a", "overlay by hand"]),
        ("diff of 100 changes", &["git worktree"]),
        ("snapshot", &[]),
        ("snapshot, without a process", &[]),
        ("fork, without a process", &[]),
        ("--version", &[]),
        ("fork, each of 100", &["cp -a"]),
        ("approve 1,000 files", &["cp -a"]),
        ("read 4 KiB 20,000 times", &["bare"]),
        ("write 4 KiB 20,000 times", &["bare"]),
        ("read 128 KiB 2,000 times", &["bare"]),
        ("write 128 KiB 2,000 times", &["bare"]),
    ] {
        assert!(took(step, "cofferdam") > 0.0);
        assert!(others.iter().all(|other| took(step, other) > 0.0));
    }
    let ratio = answer["ratios"]
        .as_array()
        .unwrap()
        .iter()
        .find(|r| r["name"] == "fork, each of 100, 1000 files: cofferdam / cp -a");
    assert!(ratio.unwrap()["p50"].as_f64().unwrap() > 0.0);
    let left: Vec<_> = std::fs::read_dir(&place.project).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A killed bench removes its working directory. SIGINT is not tried: background processes inherit it ignored.
#[test]
fn a_bench_that_is_killed_leaves_nothing_where_it_was_started() {
    for signal in [Signal::TERM, Signal::KILL] {
        let place = Place::new(As::User);
        let there = || fs::read_dir(&place.project).unwrap().flatten().next();
        let mut bench = place.cofferdam(["bench", "--workspace", "--files", "1000", "--runs", "10"]);
        let mut bench = bench.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        assert!(soon(|| there().is_some_and(|dir| dir.path().join("of-1000").exists())));
        kill_process(Pid::from_child(&bench), signal).unwrap();
        assert!(!bench.wait().unwrap().success(), "the control: it was not done");
        assert!(soon(|| there().is_none()), "{signal:?}: {:?}", there());
    }
}

/// A quick daemon benchmark: every figure is present, related figures agree, and bounded ones do not grow.
// promise 20
#[test]
fn a_daemon_under_load_leaves_nothing_behind() {
    for who in either() {
        let place = Place::new(who);
        let output = place.cofferdam_apart(["bench", "--daemon", "--quick", "--json"]).output().unwrap();
        let answer = json(&output);
        assert_eq!(output.status.code(), Some(0), "{who:?}: {answer:#}");
        let unit = answer["unit_us"]["p50"].as_f64().unwrap();
        let rows: Vec<_> =
            answer["rows"].as_array().unwrap().iter().map(|row| (row["name"].as_str().unwrap(), row)).collect();
        let names: Vec<_> = rows.iter().map(|(name, row)| (*name, row["clients"].as_u64().unwrap())).collect();
        let (create, cycle, exec) =
            ("create and first command", "create, command, delete", "command in a live sandbox");
        assert_eq!(names, [(create, 1), (cycle, 1), (cycle, 8), (exec, 1), (exec, 8)]);
        for (_, row) in &rows {
            let [p50, p95, p99] = ["p50", "p95", "p99"].map(|q| row["us"][q].as_f64().unwrap());
            assert!(0.0 < p50 && p50 <= p95 && p95 <= p99 && row["times"].as_u64().unwrap() >= 20, "{row:#}");
            assert!((row["units"].as_f64().unwrap() - p50 / unit).abs() < 0.01, "{row:#}");
            assert!(row["per_second"].as_f64().unwrap() > 0.0);
        }
        let idle = |name: &str| answer["idle"][name].as_f64().unwrap();
        assert_eq!(idle("sandboxes"), 6.0);
        assert!(idle("processes_each") >= 2.0 && idle("pss_kb_each") > 0.0, "{answer:#}");
        assert!(idle("keeper_descriptors_each") < 64.0 && idle("daemon_descriptors_each") < 1.0, "{answer:#}");
        let growth = &answer["growth"];
        assert_eq!((&growth["before"], growth["clean"].as_bool()), (&growth["after"], Some(true)), "{growth:#}");
        assert!(growth["cycles"].as_u64().unwrap() >= 40 && growth["failed"] == 0, "{growth:#}");
        assert_eq!((growth["after"]["sandboxes"].as_u64(), growth["after"]["layers"].as_u64()), (Some(0), Some(0)));
        // Control: every cycle left a tombstone and a run record.
        let made = |when: &str, what: &str| growth[when][what].as_u64().unwrap();
        let cycles = made("late", "tombstones") - made("early", "tombstones");
        assert!(cycles >= 30 && made("late", "runs") - made("early", "runs") == cycles, "{growth:#}");
        assert_eq!(std::fs::read_dir(&place.project).unwrap().count(), 0, "the place for its files is gone");
    }
    let place = Place::new(As::Root);
    for wrong in [
        &["bench", "--daemon", "--net"][..],
        &["bench", "--cycles", "50"],
        &["bench", "--daemon", "--quick", "--cycles", "50"],
    ] {
        assert_eq!(place.cofferdam(wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
    }
}

/// Beside a kernel of Jupyter, which `tools/test` installs.
#[test]
fn code_is_measured_beside_a_jupyter_kernel() {
    let place = Place::new(As::Root);
    let kernel = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/jupyter/bin");
    let kernel = fs::canonicalize(kernel).expect("tools/test installs jupyter_client");
    let mut command = place.cofferdam(["bench", "--code", "--quick", "--json"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", kernel.display()));
    let answer = json(&command.output().unwrap());
    let calls = answer["calls"].as_array().unwrap();
    assert_eq!(calls.len(), 4);
    for call in calls {
        let [p50, p95] = ["p50", "p95"].map(|q| call["us"][q].as_f64().unwrap_or_else(|| panic!("{call}")));
        assert!(0.0 < p50 && p50 <= p95, "{call}");
        let is_kernel = call["name"] == "Jupyter kernel";
        assert_eq!(call["faster_than_jupyter"].is_number(), !is_kernel, "{call}");
    }
    let figures = ["/output/ratio", "/writes/ratio", "/memory/worker_kb", "/memory/plain_kb"];
    assert!(figures.iter().all(|at| answer.pointer(at).and_then(Value::as_f64) > Some(0.0)), "{answer:#}");
}
