//! The private /tmp and /var/tmp: a rule on a parent leaves them private, a rule on a path within shows the host's, and
//! a workspace in them works like any other.

use crate::support::{BOTH, Place, Run, either, to_the_end};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const TOPS: [&str; 2] = ["/tmp", "/var/tmp"];
const READ: [&str; 3] = ["read_file", "read_dir", "execute"];
const WRITE: [&str; 8] = ["read_file", "read_dir", "execute", "write_file", "truncate", "make_*", "remove_*", "refer"];

fn allow(path: impl AsRef<Path>, perms: &[&str]) -> Value {
    json!({"action": "allow", "path": path.as_ref(), "perms": perms})
}

fn rules(place: &Place, rules: Value) -> String {
    place.policy(json!({"version": 1, "fs": {"rules": rules}}))
}

/// A file of the host directly below a private directory, removed on drop.
struct Stray(PathBuf);

impl Stray {
    fn new(place: &Place, top: &str) -> Stray {
        let name = place.root.file_name().unwrap().to_string_lossy().into_owned();
        Stray(place.file(Path::new(top).join(format!("{name}-stray/file")), "of the host"))
    }

    fn dir(&self) -> &Path {
        self.0.parent().unwrap()
    }
}

impl Drop for Stray {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.dir());
    }
}

#[test]
fn a_rule_from_above_reaches_the_workspace_and_nothing_else_of_the_hosts_tmp() {
    let work = |top: &str| format!("cat base; echo new > n; echo scratch > {top}/scratch && cat {top}/scratch");
    for (who, top) in BOTH.into_iter().flat_map(|who| TOPS.map(|top| (who, top))) {
        let place = Place::within(who, Path::new(top));
        let stray = Stray::new(&place, top);
        place.file("home/project/base", "base\n");
        let everything = rules(&place, json!([allow("/", &WRITE)]));
        let twice = rules(&place, json!([allow("/", &WRITE), allow(&place.project, &WRITE)]));
        let by_default = place.policy(json!({"version": 1, "defaults": {"fs": "allow"}}));
        for policy in [&everything, &twice, &by_default] {
            let story = format!("{who:?} {top} {policy}");
            let run = place.sh(&["--direct", "-p", policy], &work(top));
            assert_eq!(run.assert_ok().stdout(), "base\nscratch\n", "{story}: {}", run.story());
            let made = place.project.join("n");
            assert_eq!(fs::read_to_string(&made).ok().as_deref(), Some("new\n"), "{story}");
            fs::remove_file(&made).unwrap();
            let run = place.sh(&["-p", policy], &work(top));
            assert_eq!(run.assert_ok().stdout(), "base\nscratch\n", "{story}: {}", run.story());
            assert!(run.text("/sandbox").starts_with("sbx_") && !made.exists(), "{story}: {}", run.story());
            // Other files of the host stay hidden there, and files that the guest creates there do not reach the host.
            let other = place.sh(&["--direct", "-p", policy], &format!("cat {}", stray.0.display()));
            assert_ne!(other.code(), 0, "{story}");
            assert!(!other.stdout().contains("of the host") && !Path::new(top).join("scratch").exists(), "{story}");
        }
        let read_only = rules(&place, json!([allow("/", &READ)]));
        let run = place.sh(&["--read-only", "-p", &read_only], "cat base; echo new > n");
        assert_eq!((run.stdout().as_str(), run.code() != 0), ("base\n", true), "{who:?}: {}", run.story());
        run.assert_denied("fs.create", place.project.join("n").to_str().unwrap());
    }
}

#[test]
fn a_rule_that_names_something_in_tmp_wins_there() {
    for (who, top) in BOTH.into_iter().flat_map(|who| TOPS.map(|top| (who, top))) {
        let place = Place::new(who);
        let stray = Stray::new(&place, top);
        let (file, dir) = (stray.0.to_str().unwrap(), stray.dir().to_str().unwrap());
        let read = format!("cat {file}");
        for flags in [&["--read", "/", "--read", dir][..], &["--read", "/", "--read", top], &["--read", dir]] {
            let run = place.sh(flags, &read);
            assert_eq!(run.assert_ok().stdout(), "of the host", "{who:?} {flags:?}: {}", run.story());
        }
        // The other private directory does not lead there.
        if top == "/tmp" {
            let other = format!("/var/tmp/{}/file", stray.dir().file_name().unwrap().to_str().unwrap());
            assert_ne!(place.sh(&["--read", top], &format!("cat {other}")).code(), 0, "{who:?}");
        }
        let made = stray.dir().join("made");
        place.sh(&["--read", "/", "--read", top, "--write", dir], &format!("echo > {}", made.display())).assert_ok();
        assert!(made.exists(), "{who:?}");
        // A denial applies to the host's directory: the private one stays usable.
        let scratch = format!("{read}; echo scratch > {top}/scratch && cat {top}/scratch");
        for flags in [&["--read", "/", "--deny-read", top][..], &["--read", "/", "--deny-write", top]] {
            let run = place.sh(flags, &scratch);
            assert_eq!(run.assert_ok().stdout(), "scratch\n", "{who:?} {flags:?}: {}", run.story());
        }
        let run = place.sh(&["--read", dir, "--deny-read", top], &read);
        assert!(run.code() != 0 && !run.stdout().contains("of the host"), "{who:?}: {}", run.story());
    }
}

#[test]
fn explain_says_what_holds_in_tmp() {
    for who in BOTH {
        let place = Place::within(who, Path::new("/tmp"));
        let stray = Stray::new(&place, "/tmp");
        place.file("home/project/base", "base");
        let everything = rules(&place, json!([allow("/", &READ)]));
        let explain = |path: &Path, flags: &[&str]| {
            let mut command = place.cofferdam(["policy", "explain", path.to_str().unwrap(), "-p", &everything]);
            String::from_utf8(command.args(flags).output().unwrap().stdout).unwrap()
        };
        let base = explain(&place.project.join("base"), &[]);
        assert!(base.contains("allow read_file"), "{base}");
        let hidden = explain(&stray.0, &[]);
        assert!(hidden.contains("deny  read_file, read_dir  (private /tmp)"), "{hidden}");
        assert!(hidden.contains("/tmp belongs to the sandbox"), "{hidden}");
        let named = explain(&stray.0, &["--read", stray.dir().to_str().unwrap()]);
        assert!(named.contains("allow read_file") && !named.contains("own inside"), "{named}");
    }
}

#[test]
fn a_policy_is_learned_in_tmp_as_anywhere() {
    for (who, top) in BOTH.into_iter().flat_map(|who| TOPS.map(|top| (who, top))) {
        // The state directory lies there as well.
        let place = Place::within(who, Path::new(top));
        place.file("home/project/base", "base\n");
        place.file("home/project/other", "other\n");
        let file = place.root.join("home/learned.json");
        let mut command =
            place.cofferdam(["policy", "learn", "-o", file.to_str().unwrap(), "--", "/usr/bin/cat", "base"]);
        let run = Run { output: to_the_end(&mut command, b""), outcome: Value::Null };
        assert_eq!(run.assert_ok().stdout(), "base\n", "{who:?} {top}: {}", run.story());
        let again = place.run(&["-p", file.to_str().unwrap()], &["/usr/bin/cat", "base"]);
        assert_eq!(again.assert_ok().stdout(), "base\n", "{who:?} {top}: {}", again.story());
        let other = place.run(&["-p", file.to_str().unwrap()], &["/usr/bin/cat", "other"]);
        assert!(other.code() != 0 && other.stdout().is_empty(), "{who:?} {top}: {}", other.story());
    }
}

/// The parents of a workspace in /tmp are the host's, so writes beside the workspace are denied rather than lost.
#[test]
fn what_is_beside_a_workspace_in_tmp_is_refused_aloud() {
    for (who, top) in BOTH.into_iter().flat_map(|who| TOPS.map(|top| (who, top))) {
        let place = Place::within(who, Path::new(top));
        let shelf = place.dir("home/shelf");
        for (text, target) in
            [("echo draft > ../shelf/note", shelf.join("note")), ("echo x > ../n", place.home.join("n"))]
        {
            let run = place.sh(&[], text);
            assert_ne!(run.code(), 0, "{who:?} {text}: {}", run.story());
            run.assert_denied("fs.create", target.to_str().unwrap());
        }
        place.sh(&["--write", "../shelf"], "echo draft > ../shelf/note").assert_ok();
        assert_eq!(fs::read_to_string(shelf.join("note")).unwrap(), "draft\n");
        // Without a rule for the working directory, writes to it are denied as well.
        let elsewhere = rules(&place, json!([allow("/usr", &READ)]));
        let run = place.sh(&["--read-only", "-p", &elsewhere], "echo x > n");
        run.assert_denied("fs.create", place.project.join("n").to_str().unwrap());
        // Directly below the private directory the guest has no such directory, and the error does not reveal the
        // host's.
        let stray = Stray::new(&place, top);
        let at = stray.dir().join("note");
        let run = place.sh(&[], &format!("echo draft > {}", at.display()));
        assert!(run.code() != 0 && run.stderr().contains("nonexistent"), "{who:?}: {}", run.story());
        run.assert_denied("fs.create", at.to_str().unwrap());
        let own = place.sh(&[], &format!("mkdir {top}/d && echo x > {top}/d/f && echo x > {top}/none/f"));
        assert!(own.code() != 0 && own.denials().is_empty(), "{who:?}: {}", own.story());
    }
}

/// Programs that keep a cache in /tmp try its innermost directory first. That the host has the outer one is no refusal.
#[test]
fn directories_of_tmp_that_the_host_has_are_made_without_a_word() {
    for who in either() {
        let place = Place::new(who);
        let stray = Stray::new(&place, "/tmp");
        let dir = stray.dir().display().to_string();
        let run = place.sh(&[], &format!("mkdir {dir}/cache 2> /dev/null || mkdir {dir} {dir}/cache"));
        assert!(run.assert_ok().denials().is_empty(), "{}", run.story());
        // The control: a file there is told.
        let file = stray.dir().join("note");
        place.sh(&[], &format!("echo x > {}", file.display())).assert_denied("fs.create", file.to_str().unwrap());
    }
}
