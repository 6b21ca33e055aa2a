//! Stop and rm end every process, whatever it did to stay.

use super::words::{Verbs, text};
use crate::support::{As, BOTH, Place};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Starts a command in a sandbox and waits until it runs.
fn start(place: &Place, id: &str, script: &str) -> Child {
    let script = format!("touch begun; {script}");
    let mut command = place.cofferdam(["exec", id, "--", "sh", "-c", &script]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = place.layers().into_iter().map(|layer| layer.join("up/begun")).collect::<Vec<_>>();
    soon(|| begun.iter().any(|path| path.exists()));
    child
}

#[track_caller]
fn soon(mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(180);
    while !is() {
        assert!(Instant::now() < end, "not in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Command lines with the mark.
fn marked(mark: &str) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten().map(|e| e.path());
    let lines = all.filter_map(|path| fs::read(path.join("cmdline")).ok()).map(|line| text(&line));
    lines.filter(|line| line.contains(mark) && !line.contains("touch begun")).collect()
}

/// A sleep duration that identifies processes of one test.
fn mark(n: u32) -> String {
    format!("{}{:05}", 4000 + n, std::process::id() % 100_000)
}

// promise 18
#[test]
fn nothing_is_left_whatever_the_guest_did() {
    for (n, who) in BOTH.into_iter().enumerate() {
        let place = Place::new(who);
        let mark = mark(n as u32);
        let tricks = [
            format!("sleep {mark}"),
            format!("trap '' TERM INT HUP; sleep {mark} & sleep {mark}; sleep {mark}"),
            format!("(setsid sh -c 'trap \"\" TERM; sleep {mark} & sleep {mark}' &) ; sleep {mark}"),
            format!("(setsid setsid nohup sleep {mark} >/dev/null 2>&1 &) & sleep {mark}"),
            format!("kill -STOP $$; sleep {mark}"),
        ];
        for trick in tricks {
            let id = place.create(&[]);
            let mut child = start(&place, &id, &trick);
            assert_eq!(place.states(), [(id.clone(), "running".to_owned())], "{who:?} {trick}");
            let runs = place.json(&["ps"])["runs"].as_array().unwrap().clone();
            assert_eq!((runs.len(), &runs[0]["sandbox"]), (1, &id.clone().into()), "{runs:?}");
            assert_eq!(runs[0]["pid"], child.id(), "the supervisor is who is named");
            let stopped = place.json(&["stop", "-t", "500ms", &id]);
            assert_eq!(stopped["ended"].as_array().unwrap().len(), 1, "{stopped}");
            assert_eq!(marked(&mark), Vec::<String>::new(), "{who:?} {trick}");
            assert_eq!(place.states(), [(id.clone(), "stopped".to_owned())]);
            child.wait().unwrap();
            let whole = place.json(&["inspect", &id]);
            assert!(whole["last_runs"][0]["ended_ms"].is_u64(), "{whole}");
            assert_eq!(place.json(&["ps"])["runs"].as_array().unwrap().len(), 0);
            let refused = place.verb(&["exec", &id, "--", "true"]);
            assert_eq!(refused.status.code(), Some(125), "stopped is stopped");
            place.json(&["start", &id]);
            assert!(place.verb(&["exec", &id, "--", "true"]).status.success(), "control: started, it runs");
            place.json(&["rm", &id]);
        }
        place.audit();
    }
}

// promise 18
#[test]
fn a_running_sandbox_is_removed_only_by_force() {
    for (n, who) in BOTH.into_iter().enumerate() {
        let place = Place::new(who);
        let (id, mark) = (place.create(&[]), mark(10 + n as u32));
        let mut child = start(&place, &id, &format!("trap '' TERM; sleep {mark}; sleep {mark}"));
        place.fault(&["rm", &id], "conflict");
        assert_eq!(place.json(&["gc"])["items"].as_array().unwrap().len(), 0, "nothing of it is collected");
        assert!(child.try_wait().unwrap().is_none(), "control: it still runs");
        let removed = place.json(&["rm", "-f", "-t", "200ms", &id]);
        assert_eq!(removed["removed"][0]["ended"][0]["killed"], true, "{removed}");
        child.wait().unwrap();
        assert!(marked(&mark).is_empty() && place.layers().is_empty() && place.states().is_empty(), "{who:?}");
    }
}

/// A pid that was reused by another process is not the run.
#[test]
fn a_run_that_is_gone_is_settled_and_nobody_else_is_hit() {
    let place = Place::new(As::User);
    let (id, mark) = (place.create(&[]), mark(20));
    let mut child = start(&place, &id, &format!("sleep {mark}"));
    child.kill().unwrap();
    child.wait().unwrap();
    soon(|| marked(&mark).is_empty());
    soon(|| place.states() == [(id.clone(), "active".to_owned())]);
    assert!(place.json(&["ps"])["runs"].as_array().unwrap().is_empty());
    let listed = place.json(&["gc", "--dry-run"])["items"].clone();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["sort"]), (1, &"lost_run".into()));
    let stopped = place.json(&["stop", &id]);
    assert!(stopped.get("ended").is_none(), "{stopped}");
    let whole = place.json(&["inspect", &id]);
    assert_eq!(whole["last_runs"][0]["verdict"], "lost", "{whole}");
    assert_eq!(whole["pending"]["changes"], 1, "what it changed is still there");
}

/// Trees deeper than PATH_MAX, wide, or unreadable, as a guest can make them: their owner can measure and remove them.
// promise 13, 18
#[test]
fn wide_and_deep_trees_are_removed() {
    let place = Place::new(As::User);
    let id = place.create(&[]);
    let deep = "import os\nfor n in range(3000):\n os.mkdir('d'); os.chdir('d')\nopen('f','w').write('x')\n\
                os.chdir(os.environ['TOP']); os.mkdir('wide')\nfor n in range(5000): open(f'wide/{n}','w')\n\
                os.mkdir('shut'); open('shut/f','w'); os.chmod('shut', 0)";
    // Written straight into the layer as its owner: a guest's tree looks the same there.
    let up = place.layers().remove(0).join("up");
    let mut python = place.outside("python3");
    let made = crate::support::to_the_end(python.args(["-c", deep]).env("TOP", &up).current_dir(&up), b"");
    assert!(made.status.success(), "{}", text(&made.stderr));
    let size = place.json(&["inspect", &id])["disk"]["files"].as_u64().unwrap();
    assert!(size > 8000, "{size}");
    place.json(&["rm", &id]);
    assert!(place.layers().is_empty());
    assert!(Path::new(&place.project).exists());
}
