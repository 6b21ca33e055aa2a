//! Bound on all layers of a state directory together, without a daemon.

use super::words::text;
use crate::support::{As, Place, binary, either};
use serde_json::Value;
use std::process::Output;

/// Runs a verb under a configuration.
fn under(place: &Place, config: &str, words: &[&str]) -> Output {
    let file = place.file("total.toml", config);
    place.outside(binary()).env("COFFERDAM_CONFIG", file).args(words).output().unwrap()
}

#[track_caller]
fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)))
}

fn mib(place: &Place) -> u64 {
    let all = place.outside("du").args(["-sk"]).arg(place.state().join("layers")).output().unwrap();
    text(&all.stdout).split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

/// Fills a file slowly, so that the limit ends it and not the file system.
const SLOWLY: &str = "while :; do head -c 32768 /dev/zero >> big; sleep 0.05; done";
const FAST: &str = "while :; do head -c 524288 /dev/zero >> big; sleep 0.05; done";
const DISK: &str = "[limits]\ntotal_disk = \"8m\"\n";

// promise 8
#[test]
fn all_layers_together_stay_below_the_total() {
    for who in either() {
        let place = Place::new(who);
        let first = document(&under(&place, DISK, &["run", "--json", "-c", "head -c 6291456 /dev/zero > six"]));
        assert_eq!(first["verdict"], "ok", "{first}");
        let second = document(&under(&place, DISK, &["run", "--json", "-c", FAST]));
        assert_eq!(second["verdict"], "limit_exceeded", "{second}");
        assert_eq!((&second["limit_kind"], &second["limit"]), (&"total_disk_mb".into(), &8.0.into()), "{second}");
        assert!(second["message"].as_str().unwrap().contains("all workspaces together"), "{second}");
        let ids = [&first, &second].map(|run| run["sandbox"].as_str().expect("it is kept").to_owned());
        // The total is used up for every verb that needs space.
        let refused = [
            vec!["run", "--json", "--", "true"],
            vec!["exec", "--json", &ids[0], "--", "true"],
            vec!["create", "--json"],
            vec!["start", "--live", "--json", &ids[0]],
        ];
        for words in refused {
            let fault = document(&under(&place, DISK, &words));
            assert_eq!(
                (&fault["error_kind"], &fault["phase"]),
                (&"limit_exceeded".into(), &"admission".into()),
                "{fault}"
            );
            assert_eq!(fault["limit_kind"], "total_disk_mb", "{words:?}: {fault}");
            assert!(fault["hint"].as_str().unwrap().contains("cofferdam rm"), "{fault}");
        }
        assert!(
            under(&place, DISK, &["run", "--read-only", "--", "true"]).status.success(),
            "control, as the hint says"
        );
        assert!(
            under(&place, "", &["run", "--rm", "--", "true"]).status.success(),
            "control: nothing is bound unasked"
        );
        assert!(under(&place, DISK, &["rm", "--force", &ids[0]]).status.success());
        let again = under(&place, DISK, &["run", "--rm", "--", "true"]);
        assert!(again.status.success(), "control, as the hint says: {}", text(&again.stderr));
        // A live sandbox is bound by it, too.
        let id = text(&under(&place, DISK, &["create"]).stdout).trim().to_owned();
        assert!(under(&place, DISK, &["start", "--live", &id]).status.success());
        let live = document(&under(&place, DISK, &["exec", "--json", &id, "--", "sh", "-c", FAST]));
        assert_eq!(
            (&live["verdict"], &live["limit_kind"]),
            (&"limit_exceeded".into(), &"total_disk_mb".into()),
            "{live}"
        );
        assert!(under(&place, DISK, &["stop", &id]).status.success());
    }
}

/// Unlinked files count toward the total, too.
#[test]
fn files_without_a_name_are_in_the_total() {
    for who in either() {
        let place = Place::new(who);
        let holds = |kib: u32, seconds: &str| {
            let text = format!(
                "import os,time\nf=os.open('.',os.O_TMPFILE|os.O_RDWR)\n[os.write(f,b'z'*1024) for _ in range({kib})]\ntime.sleep({seconds})"
            );
            document(&under(&place, DISK, &["run", "--rm", "--json", "--", "/usr/bin/python3", "-c", &text]))
        };
        assert_eq!(holds(7000, "0.5")["verdict"], "ok", "the control, just below");
        let over = holds(9000, "40");
        assert_eq!(
            (&over["verdict"], &over["limit_kind"]),
            (&"limit_exceeded".into(), &"total_disk_mb".into()),
            "{over}"
        );
    }
}

// promise 8
#[test]
fn runs_at_once_share_the_total() {
    let place = Place::new(As::User);
    let file = place.file("total.toml", DISK);
    let run = || {
        let mut command = place.outside(binary());
        command.env("COFFERDAM_CONFIG", &file).args(["run", "--json", "-c", SLOWLY]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let both = [run(), run()].map(|child| document(&child.wait_with_output().unwrap()));
    for outcome in &both {
        assert_eq!(outcome["limit_kind"], "total_disk_mb", "{outcome}");
    }
    // Without sharing, each would have reached 8 MiB and both together 16.
    assert!((7..13).contains(&mib(&place)), "{} MiB", mib(&place));
}

// promise 8
#[test]
fn files_are_counted_together_and_copies_before_they_are_made() {
    let place = Place::new(As::User);
    let files = "[limits]\ntotal_files = 100\n";
    let many = "i=0; while :; do i=$((i+1)); echo > f$i; sleep 0.01; done";
    let outcome = document(&under(&place, files, &["run", "--json", "-c", many]));
    assert_eq!((&outcome["limit_kind"], &outcome["limit"]), (&"total_files".into(), &100.into()), "{outcome}");
    let place = Place::new(As::User);
    for n in 0..150 {
        place.file(format!("home/project/{n}"), "x");
    }
    let fault = document(&under(&place, files, &["create", "--json", "--driver", "copy"]));
    assert_eq!(
        (&fault["error_kind"], &fault["limit_kind"]),
        (&"limit_exceeded".into(), &"total_files".into()),
        "{fault}"
    );
    assert!(under(&place, files, &["create", "--json"]).status.success(), "control: a layer copies nothing");
    let wrong = document(&under(&place, "[limits]\ntotal_disk = \"much\"\n", &["run", "--json", "--", "true"]));
    assert_eq!(wrong["error_kind"], "invalid_request", "{wrong}");
}
