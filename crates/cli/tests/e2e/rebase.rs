//! Bases that move under a sandbox, sandboxes that change the same files, and git inside.

use crate::support::harm::{Harm, Walk};
use crate::support::{As, BOTH, Place, to_the_end};
use serde_json::Value;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

const TEN: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n";

/// A verb to its end: its status, what it printed as JSON, and what it said.
fn verb(place: &Place, args: &[&str]) -> (i32, Value, String) {
    let output = to_the_end(&mut place.cofferdam(args), b"");
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), json, said)
}

fn create(place: &Place, name: &str) {
    let (status, _, said) = verb(place, &["create", "--name", name]);
    assert_eq!(status, 0, "{said}");
}

/// What a command inside prints.
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
    // What is stamped in the same tick as the sandbox is made would pass for older than it.
    std::thread::sleep(Duration::from_millis(20));
    place
}

#[test]
fn a_rebase_merges_what_both_changed() {
    for who in BOTH {
        let place = repository(who);
        create(&place, "w");
        inside(&place, "w", "sed -i s/^2$/two/ a.txt && echo mine > b.txt");
        let theirs = TEN.replace("9\n", "nine\n");
        place.file("home/project/a.txt", &theirs);
        let (status, told, said) = verb(&place, &["rebase", "w", "--dry-run", "--json"]);
        assert_eq!((status, told["files"][0]["fate"].as_str()), (0, Some("merged")), "{said}");
        assert_eq!(inside(&place, "w", "cat a.txt"), TEN.replace("2\n", "two\n"), "a dry run changes nothing");
        let (status, told, said) = verb(&place, &["rebase", "w", "--json"]);
        assert_eq!((status, told["conflicts"].as_u64()), (0, Some(0)), "{said}");
        assert_eq!(told["files"].as_array().map(Vec::len), Some(1), "{said}");
        assert_eq!(inside(&place, "w", "cat a.txt"), theirs.replace("2\n", "two\n"));
        assert_eq!(fs::read_to_string(place.project.join("a.txt")).unwrap(), theirs, "the base is only read");
        let (_, diff, said) = verb(&place, &["diff", "w", "--json"]);
        let files = diff["files"].as_array().expect(&said).clone();
        assert_eq!(files.len(), 2, "{said}");
        assert!(files.iter().all(|file| file["drifted"].is_null()), "{said}");
        let (status, told, said) = verb(&place, &["rebase", "w", "--json"]);
        assert_eq!((status, told["files"].as_array().map(Vec::len)), (0, Some(0)), "nothing is left to do: {said}");
    }
}

#[test]
fn what_does_not_go_together_is_marked_told_and_remembered() {
    let place = repository(As::User);
    create(&place, "w");
    inside(&place, "w", "sed -i s/^5$/ours/ a.txt");
    place.file("home/project/a.txt", TEN.replace("5\n", "theirs\n"));
    let (_, told, said) = verb(&place, &["conflicts", "w", "--json"]);
    assert_eq!(told["drifted"][0]["path"].as_str(), Some("a.txt"), "{said}");
    let (status, _, said) = verb(&place, &["rebase", "w"]);
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("conflict") && said.contains("a.txt"), "{said}");
    let text = inside(&place, "w", "cat a.txt");
    assert_eq!(text, TEN.replace("5\n", "<<<<<<< workspace\nours\n=======\ntheirs\n>>>>>>> base\n"));
    let (_, told, said) = verb(&place, &["conflicts", "w", "--json"]);
    assert_eq!(told["unresolved"][0]["path"].as_str(), Some("a.txt"), "{said}");
    assert_eq!(told["drifted"].as_array().map(Vec::len), Some(0), "{said}");
    inside(&place, "w", "echo elsewhere >> a.txt");
    let (_, told, said) = verb(&place, &["conflicts", "w", "--json"]);
    assert_eq!(told["unresolved"].as_array().map(Vec::len), Some(1), "the marks are still there: {said}");
    inside(&place, "w", "sed -i '/^[<=>]\\{7\\}/d' a.txt");
    let (_, told, said) = verb(&place, &["conflicts", "w", "--json"]);
    assert_eq!(told["unresolved"].as_array().map(Vec::len), Some(0), "{said}");
}

/// Who only touches files of the base, or switches branches there and back, has changed nothing.
#[test]
fn what_holds_the_same_bytes_as_before_is_no_drift() {
    for who in BOTH {
        let place = repository(who);
        git(&place, &["switch", "-qc", "other"]);
        place.file("home/project/a.txt", "other\n");
        git(&place, &["commit", "-qam", "second"]);
        git(&place, &["switch", "-q", "main"]);
        std::thread::sleep(Duration::from_millis(20));
        let drifted = |name: &str| {
            let (_, diff, said) = verb(&place, &["diff", name, "--json"]);
            assert_eq!(diff["files"].as_array().map(Vec::len), Some(1), "{said}");
            diff["files"][0]["drifted"] == true
        };
        // Nobody has looked at any diff: the end of the command is a look.
        create(&place, "w");
        inside(&place, "w", "sed -i s/^2$/two/ a.txt");
        create(&place, "gone");
        inside(&place, "gone", "rm a.txt");
        let (status, _, said) = verb(&place, &["run", "--name", "once", "--", "/bin/sh", "-c", "echo >> a.txt"]);
        assert_eq!(status, 0, "{said}");
        create(&place, "late");
        git(&place, &["switch", "-q", "other"]);
        assert!(drifted("w") && drifted("gone") && drifted("once"), "control: it is another");
        git(&place, &["switch", "-q", "main"]);
        assert!(!drifted("w") && !drifted("gone") && !drifted("once"), "there and back");
        inside(&place, "late", "sed -i s/^2$/two/ a.txt");
        assert!(drifted("late"), "control: nobody had looked for this one");
        let (status, _, said) = verb(&place, &["approve", "w"]);
        assert_eq!(
            (status, fs::read_to_string(place.project.join("a.txt")).unwrap()),
            (0, TEN.replace("2\n", "two\n")),
            "{said}"
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
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let (_, diff, _) = verb(&place, &["diff", "w", "--json"]);
        if diff["files"].as_array().is_some_and(|files| !files.is_empty()) {
            break;
        }
        assert!(Instant::now() < until, "the command begins");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (status, told, said) = verb(&place, &["rebase", "w", "--json"]);
    assert_eq!((status, told["error_kind"].as_str()), (125, Some("conflict")), "{said}");
    drop(running.stdin.take());
    running.wait().unwrap();
    let (status, _, said) = verb(&place, &["rebase", "w"]);
    assert_eq!(status, 0, "the control: {said}");
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
        let (status, told, said) = verb(&place, args);
        assert_eq!(status, 0, "{said}");
        let contested = told["contested"].as_array().expect(&said);
        assert_eq!(contested.len(), 1, "{said}");
        assert_eq!(contested[0]["path"].as_str(), Some("a.txt"));
        let names: Vec<_> =
            contested[0]["by"].as_array().unwrap().iter().map(|w| w["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["two", "one"], "{said}");
    }
    let (status, told, said) = verb(&place, &["conflicts", "nobody", "--json"]);
    assert_eq!((status, told["error_kind"].as_str()), (125, Some("not_found")), "{said}");
}

#[test]
fn git_works_inside_and_its_commits_stay_inside() {
    for who in BOTH {
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
        let said = inside(&place, "w", script);
        assert!(said.ends_with("inside\ninside\nfirst\n"), "{said}");
        let again = inside(&place, "w", "git log -1 --format=%s refs/heads/side; git status --porcelain | head -3");
        assert!(again.starts_with("side\n"), "{again}");
        assert_eq!(git(&place, &["rev-parse", "HEAD"]), before);
        assert_eq!(git(&place, &["branch", "--format=%(refname:short)"]), "main");
        assert_eq!(git(&place, &["status", "--porcelain"]), "");
        let (_, diff, said) = verb(&place, &["diff", "w", "--json"]);
        let files = diff["files"].as_array().expect(&said);
        let lands = |file: &&Value| file["class"] != "never";
        let names: Vec<_> = files.iter().filter(lands).filter_map(|f| f["path"].as_str()).collect();
        assert!(names.contains(&"a.txt"), "{said}");
        assert!(!names.iter().any(|name| name.split('/').any(|part| part == ".git")), "{names:?}");
    }
}

#[test]
fn what_landed_in_a_submodule_is_committed_in_both() {
    for who in BOTH {
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
        let (status, told, said) = verb(&place, &["approve", "w", "--unseen", "--commit", "-m", "both", "--json"]);
        assert_eq!(status, 0, "{who:?}: {said}");
        let within = git(&place, &["-C", "deps/lib", "rev-parse", "HEAD"]);
        assert_eq!(told["inside"][0]["commit"], within, "{who:?}: {told:#}");
        assert_eq!(told["inside"][0]["path"], "deps/lib");
        assert_eq!(git(&place, &["-C", "deps/lib", "rev-parse", "HEAD^"]), before, "{who:?}");
        assert_eq!(git(&place, &["show", "--name-only", "--format=", "HEAD"]), "a.txt\ndeps/lib", "{who:?}");
        assert_eq!(git(&place, &["status", "--porcelain"]), "", "{who:?}");
        let (_, told, said) = verb(&place, &["provenance", "deps/lib/l", "--json"]);
        assert_eq!(told["batches"][0]["inside"][0]["commit"], within, "{who:?}: {said}");
        // The files of both are taken back; that their commits stay is said of each.
        let (status, told, said) = verb(&place, &["undo", "--json"]);
        assert_eq!(status, 0, "{who:?}: {said}");
        let notes = told["notes"].to_string();
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
        let (status, _, said) = verb(&place, &["create", "--name", &name, base.to_str().unwrap()]);
        assert_eq!(status, 0, "{said}");
        let script = format!("cd {} && sed -i s/^2$/two/ a.txt && echo new > same.txt", base.display());
        inside(&place, &name, &script);
        place.file(format!("{dir}/a.txt"), TEN.replace("9\n", "nine\n"));
        place.file(format!("{dir}/same.txt"), "new\n");
        ((name.clone(), base), vec!["rebase".to_owned(), name])
    };
    let walk = Walk { harm: Harm::Kill, calls: "%file,%desc,fsync,flock", points: 30 };
    let walked = walk.go(&place, fresh, |(name, base), point, _| {
        let (status, _, said) = verb(&place, &["rebase", &name]);
        assert_eq!(status, 0, "after {point:?}: {said}");
        let both = TEN.replace("2\n", "two\n").replace("9\n", "nine\n");
        assert_eq!(inside(&place, &name, &format!("cat {}/a.txt", base.display())), both, "after {point:?}");
        assert_eq!(
            fs::read_to_string(base.join("a.txt")).unwrap(),
            TEN.replace("9\n", "nine\n"),
            "the base is only read"
        );
        let (_, diff, said) = verb(&place, &["diff", &name, "--json"]);
        let files = diff["files"].as_array().expect(&said);
        assert!(files.len() == 1 && files[0]["drifted"].is_null(), "after {point:?}: {said}");
    });
    assert!(walked.tried >= 8, "{walked:?}");
    let (status, _, said) = verb(&place, &["audit", "verify"]);
    assert_eq!(status, 0, "{said}");
}
