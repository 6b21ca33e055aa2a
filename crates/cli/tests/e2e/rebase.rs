//! Bases that change under a sandbox, sandboxes that change the same files, and git inside.

use crate::support::harm::{Harm, Walk};
use crate::support::{As, Place, either, to_the_end};
use serde_json::Value;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

const TEN: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n";

/// Runs a verb: exit status, stdout as JSON, and all output as text.
fn verb(place: &Place, args: &[&str]) -> (i32, Value, String) {
    let output = to_the_end(&mut place.cofferdam(args), b"");
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), json, text)
}

fn create(place: &Place, name: &str) {
    let (status, _, text) = verb(place, &["create", "--name", name]);
    assert_eq!(status, 0, "{text}");
}

/// Output of a command inside.
fn inside(place: &Place, name: &str, script: &str) -> String {
    let output = to_the_end(&mut place.cofferdam(["exec", name, "--", "/bin/sh", "-ec", script]), b"");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn git(place: &Place, args: &[&str]) -> String {
    let output = to_the_end(place.outside("git").args(args), b"");
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// A repository with one file of ten lines.
fn repository(who: As) -> Place {
    let place = Place::new(who);
    place.file("home/.gitconfig", "[user]\n\tname = Rita\n\temail = rita@example.org\n");
    place.file("home/project/a.txt", TEN);
    git(&place, &["init", "-q", "-b", "main"]);
    git(&place, &["add", "-A"]);
    git(&place, &["commit", "-qm", "first"]);
    // A file stamped in the same clock tick as the sandbox would look older than it.
    std::thread::sleep(Duration::from_millis(20));
    place
}

#[test]
fn a_rebase_merges_what_both_changed() {
    for who in either() {
        let place = repository(who);
        create(&place, "w");
        inside(&place, "w", "sed -i s/^2$/two/ a.txt && echo mine > b.txt");
        let theirs = TEN.replace("9\n", "nine\n");
        place.file("home/project/a.txt", &theirs);
        let (status, report, text) = verb(&place, &["rebase", "w", "--dry-run", "--json"]);
        assert_eq!((status, report["files"][0]["fate"].as_str()), (0, Some("merged")), "{text}");
        assert_eq!(inside(&place, "w", "cat a.txt"), TEN.replace("2\n", "two\n"), "a dry run changes nothing");
        let (status, report, text) = verb(&place, &["rebase", "w", "--json"]);
        assert_eq!((status, report["conflicts"].as_u64()), (0, Some(0)), "{text}");
        assert_eq!(report["files"].as_array().map(Vec::len), Some(1), "{text}");
        assert_eq!(inside(&place, "w", "cat a.txt"), theirs.replace("2\n", "two\n"));
        assert_eq!(fs::read_to_string(place.project.join("a.txt")).unwrap(), theirs, "the base is only read");
        let (_, diff, text) = verb(&place, &["diff", "w", "--json"]);
        let files = diff["files"].as_array().expect(&text).clone();
        assert_eq!(files.len(), 2, "{text}");
        assert!(files.iter().all(|file| file["drifted"].is_null()), "{text}");
        let (status, report, text) = verb(&place, &["rebase", "w", "--json"]);
        assert_eq!((status, report["files"].as_array().map(Vec::len)), (0, Some(0)), "nothing is left to do: {text}");
    }
}

#[test]
fn what_does_not_go_together_is_marked_told_and_remembered() {
    let place = repository(As::User);
    create(&place, "w");
    inside(&place, "w", "sed -i s/^5$/ours/ a.txt");
    place.file("home/project/a.txt", TEN.replace("5\n", "theirs\n"));
    let (_, report, text) = verb(&place, &["conflicts", "w", "--json"]);
    assert_eq!(report["drifted"][0]["path"].as_str(), Some("a.txt"), "{text}");
    let (status, _, text) = verb(&place, &["rebase", "w"]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("conflict") && text.contains("a.txt"), "{text}");
    let text = inside(&place, "w", "cat a.txt");
    assert_eq!(text, TEN.replace("5\n", "<<<<<<< workspace\nours\n=======\ntheirs\n>>>>>>> base\n"));
    let (_, report, text) = verb(&place, &["conflicts", "w", "--json"]);
    assert_eq!(report["unresolved"][0]["path"].as_str(), Some("a.txt"), "{text}");
    assert_eq!(report["drifted"].as_array().map(Vec::len), Some(0), "{text}");
    inside(&place, "w", "echo elsewhere >> a.txt");
    let (_, report, text) = verb(&place, &["conflicts", "w", "--json"]);
    assert_eq!(report["unresolved"].as_array().map(Vec::len), Some(1), "the marks are still there: {text}");
    inside(&place, "w", "sed -i '/^[<=>]\\{7\\}/d' a.txt");
    let (_, report, text) = verb(&place, &["conflicts", "w", "--json"]);
    assert_eq!(report["unresolved"].as_array().map(Vec::len), Some(0), "{text}");
}

/// A touched file, or a branch switched there and back, is no drift.
// promise 14
#[test]
fn what_holds_the_same_bytes_as_before_is_no_drift() {
    for who in either() {
        let place = repository(who);
        git(&place, &["switch", "-qc", "other"]);
        place.file("home/project/a.txt", "other\n");
        git(&place, &["commit", "-qam", "second"]);
        git(&place, &["switch", "-q", "main"]);
        std::thread::sleep(Duration::from_millis(20));
        let drifted = |name: &str| {
            let (_, diff, text) = verb(&place, &["diff", name, "--json"]);
            assert_eq!(diff["files"].as_array().map(Vec::len), Some(1), "{text}");
            diff["files"][0]["drifted"] == true
        };
        // No diff was requested: the end of a command records the base's state as well.
        create(&place, "w");
        inside(&place, "w", "sed -i s/^2$/two/ a.txt");
        create(&place, "gone");
        inside(&place, "gone", "rm a.txt");
        let (status, _, text) = verb(&place, &["run", "--name", "once", "--", "/bin/sh", "-c", "echo >> a.txt"]);
        assert_eq!(status, 0, "{text}");
        create(&place, "late");
        git(&place, &["switch", "-q", "other"]);
        assert!(drifted("w") && drifted("gone") && drifted("once"), "control: it is another");
        git(&place, &["switch", "-q", "main"]);
        assert!(!drifted("w") && !drifted("gone") && !drifted("once"), "there and back");
        inside(&place, "late", "sed -i s/^2$/two/ a.txt");
        assert!(drifted("late"), "control: no earlier look at the base");
        let (status, _, text) = verb(&place, &["approve", "w"]);
        assert_eq!(
            (status, fs::read_to_string(place.project.join("a.txt")).unwrap()),
            (0, TEN.replace("2\n", "two\n")),
            "{text}"
        );
        assert!(drifted("gone") && drifted("once"), "control: what landed is another");
    }
}

#[test]
fn nothing_is_rebased_under_a_running_command() {
    let place = repository(As::User);
    create(&place, "w");
    let mut command = place.cofferdam(["exec", "w", "--", "/bin/sh", "-c", "echo > begun; read x"]);
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(180);
    loop {
        let (_, diff, _) = verb(&place, &["diff", "w", "--json"]);
        if diff["files"].as_array().is_some_and(|files| !files.is_empty()) {
            break;
        }
        assert!(Instant::now() < until, "the command begins");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (status, report, text) = verb(&place, &["rebase", "w", "--json"]);
    assert_eq!((status, report["error_kind"].as_str()), (125, Some("conflict")), "{text}");
    drop(running.stdin.take());
    running.wait().unwrap();
    let (status, _, text) = verb(&place, &["rebase", "w"]);
    assert_eq!(status, 0, "the control: {text}");
}

#[test]
fn sandboxes_that_change_the_same_file_are_told_who_was_first() {
    let place = repository(As::User);
    create(&place, "one");
    create(&place, "two");
    inside(&place, "two", "echo 2 >> a.txt; echo 2 > only-two");
    std::thread::sleep(Duration::from_millis(30));
    inside(&place, "one", "echo 1 >> a.txt; echo 1 > only-one");
    for args in [&["conflicts", "--json"][..], &["conflicts", "one", "--json"]] {
        let (status, report, text) = verb(&place, args);
        assert_eq!(status, 0, "{text}");
        let contested = report["contested"].as_array().expect(&text);
        assert_eq!(contested.len(), 1, "{text}");
        assert_eq!(contested[0]["path"].as_str(), Some("a.txt"));
        let names: Vec<_> =
            contested[0]["by"].as_array().unwrap().iter().map(|w| w["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["two", "one"], "{text}");
    }
    let (status, report, text) = verb(&place, &["conflicts", "nobody", "--json"]);
    assert_eq!((status, report["error_kind"].as_str()), (125, Some("not_found")), "{text}");
}

#[test]
fn git_works_inside_and_its_commits_stay_inside() {
    for who in either() {
        let place = repository(who);
        let before = git(&place, &["rev-parse", "HEAD"]);
        create(&place, "w");
        let script = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
            git status --porcelain
            git checkout -q -b work
            echo more >> a.txt
            git commit -qam inside
            git worktree add -q -b side side
            echo s > side/s && git -C side add s && git -C side commit -qm side
            git init -q sub && cd sub && echo x > x && git add x && git commit -qm x && cd ..
            git -c protocol.file.allow=always submodule --quiet add \"$PWD/sub\" deps
            git commit -qm inside deps .gitmodules
            git -c protocol.file.allow=always submodule --quiet update --init
            git log --format=%s work";
        let text = inside(&place, "w", script);
        assert!(text.ends_with("inside\ninside\nfirst\n"), "{text}");
        let again = inside(&place, "w", "git log -1 --format=%s refs/heads/side; git status --porcelain | head -3");
        assert!(again.starts_with("side\n"), "{again}");
        assert_eq!(git(&place, &["rev-parse", "HEAD"]), before);
        assert_eq!(git(&place, &["branch", "--format=%(refname:short)"]), "main");
        assert_eq!(git(&place, &["status", "--porcelain"]), "");
        let (_, diff, text) = verb(&place, &["diff", "w", "--json"]);
        let files = diff["files"].as_array().expect(&text);
        let lands = |file: &&Value| file["class"] != "never";
        let names: Vec<_> = files.iter().filter(lands).filter_map(|f| f["path"].as_str()).collect();
        assert!(names.contains(&"a.txt"), "{text}");
        assert!(!names.iter().any(|name| name.split('/').any(|part| part == ".git")), "{names:?}");
    }
}

// promise 16
#[test]
fn what_landed_in_a_submodule_is_committed_in_both() {
    for who in either() {
        let place = repository(who);
        git(&place, &["init", "-q", "-b", "main", "../library"]);
        place.file("home/library/l", "l\n");
        git(&place, &["-C", "../library", "add", "l"]);
        git(&place, &["-C", "../library", "commit", "-qm", "l"]);
        let library = place.home.join("library");
        let allow = "protocol.file.allow=always";
        git(&place, &["-c", allow, "submodule", "--quiet", "add", library.to_str().unwrap(), "deps/lib"]);
        git(&place, &["commit", "-qm", "submodule"]);
        let before = git(&place, &["-C", "deps/lib", "rev-parse", "HEAD"]);
        create(&place, "w");
        inside(&place, "w", "echo two >> deps/lib/l; echo more >> a.txt");
        let (status, report, text) = verb(&place, &["approve", "w", "--unseen", "--commit", "-m", "both", "--json"]);
        assert_eq!(status, 0, "{who:?}: {text}");
        let within = git(&place, &["-C", "deps/lib", "rev-parse", "HEAD"]);
        assert_eq!(report["inside"][0]["commit"], within, "{who:?}: {report:#}");
        assert_eq!(report["inside"][0]["path"], "deps/lib");
        assert_eq!(git(&place, &["-C", "deps/lib", "rev-parse", "HEAD^"]), before, "{who:?}");
        assert_eq!(git(&place, &["show", "--name-only", "--format=", "HEAD"]), "a.txt\ndeps/lib", "{who:?}");
        assert_eq!(git(&place, &["status", "--porcelain"]), "", "{who:?}");
        let (_, report, text) = verb(&place, &["provenance", "deps/lib/l", "--json"]);
        assert_eq!(report["batches"][0]["inside"][0]["commit"], within, "{who:?}: {text}");
        // The files of both are taken back; for each commit a note says that it stays.
        let (status, report, text) = verb(&place, &["undo", "--json"]);
        assert_eq!(status, 0, "{who:?}: {text}");
        let notes = report["notes"].to_string();
        assert!(notes.contains(&format!("{within} in deps/lib")), "{who:?}: {notes}");
        assert_eq!(fs::read_to_string(place.project.join("deps/lib/l")).unwrap(), "l\n", "{who:?}");
        assert_eq!(git(&place, &["-C", "deps/lib", "status", "--porcelain"]), " M l", "{who:?}");
    }
}

#[test]
fn a_rebase_that_is_killed_anywhere_is_simply_done_again() {
    let place = repository(As::User);
    let mut count = 0;
    let fresh = || {
        count += 1;
        let (name, dir) = (format!("w{count}"), format!("home/project/{count}"));
        place.file(format!("{dir}/a.txt"), TEN);
        place.file(format!("{dir}/same.txt"), TEN);
        git(&place, &["add", "-A"]);
        git(&place, &["commit", "-qm", &name]);
        std::thread::sleep(Duration::from_millis(20));
        let base = place.root.join(&dir);
        let (status, _, text) = verb(&place, &["create", "--name", &name, base.to_str().unwrap()]);
        assert_eq!(status, 0, "{text}");
        let script = format!("cd {} && sed -i s/^2$/two/ a.txt && echo new > same.txt", base.display());
        inside(&place, &name, &script);
        place.file(format!("{dir}/a.txt"), TEN.replace("9\n", "nine\n"));
        place.file(format!("{dir}/same.txt"), "new\n");
        ((name.clone(), base), vec!["rebase".to_owned(), name])
    };
    let walk = Walk { harm: Harm::Kill, calls: "%file,%desc,fsync,flock", points: 12 };
    let walked = walk.go(&place, fresh, |(name, base), point, _| {
        let (status, _, text) = verb(&place, &["rebase", &name]);
        assert_eq!(status, 0, "after {point:?}: {text}");
        let both = TEN.replace("2\n", "two\n").replace("9\n", "nine\n");
        assert_eq!(inside(&place, &name, &format!("cat {}/a.txt", base.display())), both, "after {point:?}");
        assert_eq!(
            fs::read_to_string(base.join("a.txt")).unwrap(),
            TEN.replace("9\n", "nine\n"),
            "the base is only read"
        );
        let (_, diff, text) = verb(&place, &["diff", &name, "--json"]);
        let files = diff["files"].as_array().expect(&text);
        assert!(files.len() == 1 && files[0]["drifted"].is_null(), "after {point:?}: {text}");
    });
    assert!(walked.tried >= 8, "{walked:?}");
    let (status, _, text) = verb(&place, &["audit", "verify"]);
    assert_eq!(status, 0, "{text}");
}
