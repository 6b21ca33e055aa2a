//! `snapshot`, `fork` and `restore`.

use crate::support::{As, Place, binary, either, to_the_end, unique};
use crate::words::{Verbs, text};
use std::fs;
use std::path::PathBuf;

/// Output of a command in a sandbox, which must succeed.
#[track_caller]
pub fn inside(place: &Place, id: &str, script: &str) -> String {
    let output = place.verb(&["exec", id, "--", "/bin/sh", "-c", script]);
    assert!(output.status.success(), "{script}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The project as a guest sees it: kinds, modes, content.
#[track_caller]
pub fn view(place: &Place, id: &str) -> String {
    inside(
        place,
        id,
        "find . ! -path './.out*' -printf '%P %y %m %l\\n' | sort; find . -type f ! -path './.out*' | sort | xargs -r sha256sum",
    )
}

pub fn id_of(document: &serde_json::Value) -> String {
    document["id"].as_str().unwrap().to_owned()
}

/// A project with files, and a sandbox over it.
pub fn project(who: As) -> (Place, String) {
    let place = Place::new(who);
    place.file("home/project/kept", "base\n");
    place.file("home/project/changed", "base\n");
    place.file("home/project/dir/one", "1\n");
    place.file("home/project/dir/two", "2\n");
    let id = place.create(&[]);
    (place, id)
}

pub const FIRST: &str = "echo first > changed; rm dir/one; echo new > new; mkdir -p made/empty; ln -s kept link; chmod 755 kept; rm -rf gone";
const SECOND: &str = "echo second > changed; rm -r dir; mkdir dir; echo again > dir/three; rm new; mv made moved";

/// Layer directories of a snapshot or sandbox.
fn frozen_layers(place: &Place, id: &str) -> Vec<PathBuf> {
    let inspected = place.json(&["inspect", id]);
    let layers = inspected["layers"].as_array().cloned().unwrap_or_default();
    let name = |layer: &serde_json::Value| layer["id"].as_str().or(layer.as_str()).unwrap_or_default().to_owned();
    layers.iter().map(|l| place.state().join("layers").join(name(l))).collect()
}

// promise 17
#[test]
fn a_sandbox_goes_back_and_forth_between_snapshots() {
    for who in either() {
        let (place, id) = project(who);
        let empty = view(&place, &id);
        let nothing = id_of(&place.json(&["snapshot", &id]));
        inside(&place, &id, FIRST);
        let first = view(&place, &id);
        let one = id_of(&place.json(&["snapshot", &id, "--name", "one"]));
        assert_eq!(view(&place, &id), first, "a snapshot changes nothing");
        inside(&place, &id, SECOND);
        let second = view(&place, &id);
        assert_ne!(first, second);

        let back = place.json(&["restore", "one", &id]);
        assert_eq!(back["snapshot"], one.as_str());
        assert_eq!(view(&place, &id), first);
        let kept = back["kept"].as_str().expect("what was there is kept").to_owned();
        let again = place.json(&["restore", "one"]);
        assert_eq!(again["unchanged"], true, "{again}");

        place.json(&["restore", &kept]);
        assert_eq!(view(&place, &id), second, "nothing was lost");
        place.json(&["restore", &nothing, "--discard"]);
        assert_eq!(view(&place, &id), empty);
        place.json(&["restore", "one"]);
        assert_eq!(view(&place, &id), first);
        assert_eq!(fs::read_to_string(place.project.join("changed")).unwrap(), "base\n", "the base is untouched");
        assert!(place.project.join("dir/one").exists());
        place.audit();
    }
}

// promise 17
#[test]
fn forks_begin_alike_and_go_their_own_ways() {
    for who in either() {
        let (place, id) = project(who);
        inside(&place, &id, FIRST);
        let first = view(&place, &id);
        let forked = place.json(&["fork", &id, "--count", "10", "--name", "twin"]);
        let made = forked["sandboxes"].as_array().unwrap();
        assert_eq!(made.len(), 10);
        inside(&place, "twin-3", "echo mine > own; rm changed");
        inside(&place, &id, "echo later > later");
        for n in [1, 2, 10] {
            assert_eq!(view(&place, &format!("twin-{n}")), first, "{who:?} twin-{n}");
        }
        assert_eq!(inside(&place, "twin-3", "cat own; ls"), "mine\ndir\nkept\nlink\nmade\nnew\nown\n");
        // The original sandbox can be removed.
        place.json(&["rm", &id]);
        assert_eq!(view(&place, "twin-4"), first);
        assert!(place.json(&["gc"]).get("failed").is_none());
        assert_eq!(view(&place, "twin-5"), first);
    }
}

// promise 17
#[test]
fn a_layer_that_was_changed_is_never_built_upon() {
    let (place, id) = project(As::User);
    inside(&place, &id, FIRST);
    let layer = frozen_layers(&place, &id).pop().unwrap();
    let snapshot = id_of(&place.json(&["snapshot", &id]));
    place.json(&["fork", &snapshot]);
    let before = place.layers().len();
    fs::write(layer.join("up/new"), "tampered\n").unwrap();
    for words in [vec!["fork", &snapshot], vec!["restore", &snapshot], vec!["template", "create", "t", "--from", &id]] {
        let fault = place.fault(&words, "conflict");
        let message = fault["message"].as_str().unwrap();
        assert!(message.contains("new has other bytes"), "{words:?}: {message}");
    }
    let message = place.fault(&["export", &snapshot, "/dev/null"], "conflict")["message"].to_string();
    assert!(message.contains("new has other bytes"), "{message}");
    assert_eq!(place.layers().len(), before, "nothing was left behind");
    fs::write(layer.join("up/new"), "new\n").unwrap();
    place.json(&["fork", &snapshot]);
}

// promise 17
#[test]
fn deep_stacks_are_merged_and_show_the_same() {
    let (place, id) = project(As::User);
    for n in 0..36 {
        inside(
            &place,
            &id,
            &format!(
                "echo {n} > file{}; echo {n} > dir/common; rm -f file{}; mkdir -p d{}; rm -rf d{}",
                n % 7,
                n % 5,
                n % 4,
                n % 3
            ),
        );
        let before = (n % 12 == 11).then(|| view(&place, &id));
        place.json(&["snapshot", &id]);
        let deep = frozen_layers(&place, &id).len();
        assert!(deep <= 34, "{deep} layers after {n}");
        if let Some(before) = before {
            assert_eq!(view(&place, &id), before, "after {n}");
        }
    }
    let all = place.json(&["snapshot", "ls", &id])["snapshots"].as_array().unwrap().clone();
    assert_eq!(all.len(), 36);
    let last = view(&place, &id);
    // Every snapshot keeps its content, whatever became of its original stack.
    let middle = id_of(&all[20]);
    place.json(&["restore", &middle]);
    assert_eq!(inside(&place, &id, "cat dir/common"), "20\n");
    place.json(&["restore", &id_of(&all[35])]);
    assert_eq!(view(&place, &id), last);
}

#[test]
fn what_cannot_be_is_refused_with_a_way_out() {
    let (place, id) = project(As::User);
    place.fault(&["snapshot", "nobody"], "not_found");
    place.fault(&["restore", "snp_none"], "not_found");
    place.fault(&["fork", "nothing"], "not_found");
    place.fault(&["template", "inspect", "nothing"], "not_found");
    place.fault(&["snapshot", &id, "--name=-dash"], "invalid_request");
    inside(&place, &id, "echo 1 > a");
    let one = id_of(&place.json(&["snapshot", &id, "--name", "one"]));
    let twice = place.fault(&["snapshot", &id, "--name", "one"], "conflict");
    assert!(twice["message"].as_str().unwrap().contains(&one));
    place.dir("home/other");
    let other = place.create(&["../other"]);
    place.fault(&["restore", &one, &other], "conflict");
    place.json(&["snapshot", "rm", &one]);
    place.fault(&["restore", &one], "not_found");
    assert_eq!(inside(&place, &id, "cat a"), "1\n", "a snapshot that is forgotten takes nothing away");
    // The base was replaced by another directory.
    let two = id_of(&place.json(&["snapshot", &id]));
    fs::rename(&place.project, place.home.join("elsewhere")).unwrap();
    place.dir("home/project");
    place.fault(&["fork", &two], "conflict");
}

#[test]
fn forgotten_snapshots_give_their_space_back() {
    let (place, id) = project(As::Root);
    inside(&place, &id, "echo 1 > a");
    place.json(&["snapshot", &id, "--name", "one"]);
    inside(&place, &id, "echo 2 > a");
    place.json(&["snapshot", &id, "--name", "two"]);
    place.json(&["restore", "one", "--discard"]);
    place.json(&["snapshot", "rm", "two"]);
    assert_eq!(place.layers().len(), 2, "the layer of the first and the top");
    place.json(&["rm", &id]);
    place.json(&["snapshot", "rm", "one"]);
    assert!(place.json(&["gc"]).get("failed").is_none());
    assert!(place.layers().is_empty(), "{:?}", place.layers());
}

#[test]
fn what_a_guest_shut_is_kept_all_the_same() {
    for who in either() {
        let (place, id) = project(who);
        inside(
            &place,
            &id,
            "mkdir shut; echo in > shut/in; chmod 000 shut; echo y > secret; chmod 000 secret; chmod 555 dir",
        );
        let snapshot = id_of(&place.json(&["snapshot", &id]));
        let forked = place.json(&["fork", &snapshot]);
        let twin = forked["sandboxes"][0]["id"].as_str().unwrap().to_owned();
        let look = "stat -c '%a %n' shut secret dir; chmod 700 shut secret; cat shut/in secret";
        assert_eq!(inside(&place, &twin, look), "0 shut\n0 secret\n555 dir\nin\ny\n", "{who:?}");
        let file = place.home.join("shut.cofferdam");
        place.json(&["export", &snapshot, file.to_str().unwrap()]);
        place.json(&["import", file.to_str().unwrap(), "--onto", ".", "--name", "again"]);
        assert_eq!(inside(&place, "again", look), "0 shut\n0 secret\n555 dir\nin\ny\n", "{who:?}");
        place.json(&["restore", &snapshot]);
        for id in [id.as_str(), &twin, "again"] {
            place.json(&["rm", id]);
        }
    }
}

/// `--sync` returns after the data is on disk, or fails.
#[test]
fn a_snapshot_waits_for_the_disk_where_it_is_asked_to() {
    let (place, id) = project(As::User);
    inside(&place, &id, FIRST);
    let traced = |harm: &[&str], words: &[&str]| {
        let log = place.file(format!("calls-{}", unique()), "");
        let mut command = place.outside("/usr/bin/strace");
        command.arg("-f").arg("-o").arg(&log).args(["-e", "trace=syncfs"]).args(harm).arg(binary()).args(words);
        let output = to_the_end(&mut command, b"");
        (output, fs::read_to_string(&log).unwrap().matches("syncfs(").count())
    };
    let known = || place.json(&["snapshot", "ls"])["snapshots"].as_array().unwrap().len();
    let (output, waited) = traced(&[], &["snapshot", &id]);
    assert!(output.status.success() && waited == 0, "control: nothing is waited for: {}", text(&output.stderr));
    inside(&place, &id, SECOND);
    let (output, _) = traced(&["-e", "inject=syncfs:error=EIO"], &["snapshot", &id, "--sync"]);
    assert!(!output.status.success() && text(&output.stderr).contains("to disk"), "{}", text(&output.stderr));
    assert_eq!(known(), 1, "the disk failed");
    let second = view(&place, &id);
    let (output, waited) = traced(&[], &["snapshot", &id, "--sync"]);
    assert!(output.status.success() && waited == 1, "{waited}: {}", text(&output.stderr));
    assert_eq!((known(), view(&place, &id)), (2, second));
}
