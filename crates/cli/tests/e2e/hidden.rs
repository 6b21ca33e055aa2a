//! Hints about hidden files: a failed command whose arguments name a hidden path gets one line per path on stderr. A
//! hint is not a denial, and a command that failed for reasons of its own gets none.

use crate::support::terminal::on_terminal;
use crate::support::{As, Place, Run, either, to_the_end};
use serde_json::json;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};

/// A file in the project, and files outside that the guest cannot see.
fn furnished(who: As) -> Place {
    let place = Place::new(who);
    for name in ["home/project/file", "home/notes/text", "home/.ssh/id", "elsewhere/file"] {
        place.file(name, "text\n");
    }
    place
}

fn hints(run: &Run) -> Vec<String> {
    run.stderr().lines().filter(|line| line.contains("is hidden inside")).map(String::from).collect()
}

// promise 9
#[test]
fn a_hidden_file_is_named_and_the_flag_shows_it() {
    for who in either() {
        let place = furnished(who);
        let secret = place.home.join(".ssh/id").to_str().unwrap().to_owned();
        let run = place.run(&["-v"], &["cat", &secret]);
        let expected = format!("cofferdam: {secret} is hidden inside: rule defaults.fs; allow it with --read {secret}");
        assert_eq!(hints(&run), [expected], "{}", run.story());
        assert_eq!(run.code(), 1);
        assert_eq!(run.text("/verdict"), "failed", "a hint is no denial");
        assert!(run.denials().is_empty(), "{}", run.story());
        assert!(!run.stdout().contains("hidden"), "{}", run.story());
        let shown = place.run(&["-v", "--read", &secret], &["cat", &secret]);
        shown.assert_ok();
        assert_eq!(shown.stdout(), "text\n");
    }
}

#[test]
fn words_are_seen_from_where_the_command_starts() {
    for who in either() {
        let place = furnished(who);
        let notes = place.home.join("notes/text").to_str().unwrap().to_owned();
        symlink("../notes/text", place.project.join("link")).unwrap();
        let wanted = |run: &Run| {
            assert_ne!(run.code(), 0, "{}", run.story());
            assert_eq!(hints(run).len(), 1, "{}", run.story());
            assert!(hints(run)[0].starts_with(&format!("cofferdam: {notes} is hidden")), "{}", run.story());
        };
        wanted(&place.run(&["-v"], &["cat", "../notes/text"]));
        wanted(&place.run(&["-v"], &["cat", "link", "../notes/text"]));
        wanted(&place.run(&["-v"], &["grep", "--file=../notes/text", "file"]));
        wanted(&place.run(&["-v"], &["dd", &format!("if={notes}")]));
        place.dir("home/project/deep");
        wanted(&place.run(&["-v", "--workdir", "deep"], &["cat", "../../notes/text"]));
        wanted(&place.run(&["-v", "--read-only"], &["cat", "../notes/text"]));
        wanted(&place.run(&["-v", "-c", "cat \"$1\""], &["../notes/text"]));
        // Literal paths in a script's text are recognised.
        wanted(&place.sh(&["-v"], "true; cat '../notes/text'|sort; false"));
        wanted(&place.run(&["-v", "-c", "cat ~/notes/text"], &[]));
        // A deny rule on a project file is named in the hint; no flag is offered, because none lifts it.
        let run = place.run(&["-v", "--deny-read", "file"], &["cat", "file"]);
        assert!(hints(&run)[0].contains("/file is hidden inside: rule --deny-read; an allow rule"), "{}", run.story());
    }
}

/// Regression guard: a relative pattern taken for a file name would hide nothing, so it is refused before the start.
#[test]
fn a_denial_by_a_relative_pattern_is_refused() {
    for who in either() {
        let place = furnished(who);
        for name in ["key.pem", "deep/key.pem", "odd[1].txt"] {
            place.file(place.project.join(name), "secret\n");
        }
        for flag in ["--deny-read", "--deny-write", "--deny-exec"] {
            for pattern in ["*.pem", "./key.???", "deep/[a-z]*"] {
                let run = place.run(&[flag, pattern], &["cat", "key.pem"]);
                assert_eq!(run.code(), 2, "{}", run.story());
                assert!(
                    run.story().contains("is no pattern") && run.story().contains("$WORKSPACE/**/"),
                    "{}",
                    run.story()
                );
            }
        }
        // Controls: the pattern that the message suggests hides the files, and a file name with such characters works
        // as a name.
        let all = ["--deny-read", "$WORKSPACE/**/*.pem"];
        assert_ne!(place.run(&all, &["cat", "key.pem"]).code(), 0);
        assert_ne!(place.run(&all, &["cat", "deep/key.pem"]).code(), 0);
        assert_eq!(place.run(&all, &["cat", "odd[1].txt"]).code(), 0);
        let run = place.run(&["--deny-read", "odd[1].txt"], &["cat", "odd[1].txt"]);
        assert_eq!(run.code(), 1, "{}", run.story());
        assert_eq!(place.run(&["--read", "*.pem"], &["cat", "key.pem"]).code(), 0);
    }
}

// promise 9
#[test]
fn who_fails_for_reasons_of_their_own_hears_nothing() {
    for who in either() {
        let place = furnished(who);
        let elsewhere = place.root.join("elsewhere/file").to_str().unwrap().to_owned();
        let home = place.home.to_str().unwrap().to_owned();
        let state = place.state().join("x").to_str().unwrap().to_owned();
        place.file("state/x", "x");
        let silent: [(&[&str], &[&str]); 10] = [
            (&[], &["grep", "nothing", "file"]),
            (&[], &["cat", "missing"]),
            (&[], &["cat", "/nowhere/at/all"]),
            (&[], &["false", "file", "/etc/passwd", "/", &home, "/dev/null", "/proc/version", ""]),
            (&["--read", &elsewhere], &["grep", "nothing", &elsewhere]),
            // The state directory is never offered: no rule can open it.
            (&[], &["cat", &state]),
            (&["--report-reads"], &["false", &elsewhere]),
            (&[], &["true", &elsewhere]),
            (&[], &["sh", "-c", "exit 3"]),
            (&["-t", "200ms"], &["sh", "-c", "sleep 10", &elsewhere]),
        ];
        for (flags, command) in silent {
            let flags: Vec<&str> = ["-v"].into_iter().chain(flags.iter().copied()).collect();
            let run = place.run(&flags, command);
            assert_eq!(hints(&run), Vec::<String>::new(), "{command:?}: {}", run.story());
        }
        // Control: the same arguments with a hidden file get a hint.
        assert_eq!(hints(&place.run(&["-v"], &["false", "file", &elsewhere])).len(), 1);
        // A recorded denial replaces the hint.
        let run = place.run(&["-v"], &["sh", "-c", "echo > /etc/x; false", &elsewhere]);
        assert_eq!((run.text("/verdict"), hints(&run).len()), ("denied".into(), 0), "{}", run.story());
    }
}

#[test]
fn it_is_told_as_refusals_are() {
    for who in either() {
        let place = furnished(who);
        let hint_count = |flags: &[&str]| {
            let words: Vec<&str> = flags.iter().copied().chain(["--", "cat", "../notes/text"]).collect();
            on_terminal(&place, &words, json!([])).text.matches("is hidden inside").count()
        };
        assert_eq!((hint_count(&[]), hint_count(&["-q"])), (1, 0));
        let run = place.run(&[], &["cat", "../notes/text"]);
        assert_eq!((hints(&run).len(), run.code()), (1, 1), "in a pipe: {}", run.story());
        let run = place.run(&["-q"], &["cat", "../notes/text"]);
        assert_eq!((hints(&run).len(), run.code()), (0, 1), "in a pipe with -q: {}", run.story());
        let json = place.run(&["-v", "--json"], &["cat", "../notes/text"]);
        assert!(!json.stdout().contains("hidden inside"), "{}", json.story());
        assert_eq!(hints(&json).len(), 1, "{}", json.story());
    }
}

// promise 9
#[test]
fn it_is_bounded_and_hostile_names_are_made_visible() {
    let place = furnished(As::User);
    let mut names: Vec<String> = (0..9).map(|n| format!("../notes/n{n}")).collect();
    names.iter().for_each(|name| drop(place.file(place.project.join(name), "x")));
    let words: Vec<&str> = ["cat"].into_iter().chain(names.iter().map(String::as_str)).collect();
    assert_eq!(hints(&place.run(&["-v"], &words)).len(), 4);
    // A path that is named twice gets one hint.
    assert_eq!(hints(&place.run(&["-v"], &["cat", "../notes/n0", "../notes/../notes/n0"])).len(), 1);
    names = vec!["../notes/\u{1b}[2Jx\u{202e}".into(), "../notes/two\ncofferdam: all is well".into()];
    names.iter().for_each(|name| drop(place.file(place.project.join(name), "x")));
    let run = place.run(&["-v"], &["false", &names[0], &names[1]]);
    assert_eq!(hints(&run).len(), 2, "{}", run.story());
    assert!(!run.stderr().contains(['\u{1b}', '\u{202e}']) && !run.stderr().contains("\ncofferdam: all"));
    // A rule cannot name a path that is not UTF-8, so the hint offers none.
    let raw = OsStr::from_bytes(b"../notes/raw\xff");
    fs::write(place.project.join(raw), "x").unwrap();
    let got = to_the_end(place.cofferdam(["run", "-v", "--", "cat"]).arg(raw), b"");
    let stderr = String::from_utf8_lossy(&got.stderr).into_owned();
    assert!(stderr.contains("is hidden inside: rule defaults.fs\n"), "{stderr}");
}

/// An ordinary caller is not offered a file that they could not read either.
#[test]
fn what_the_caller_may_not_read_is_not_offered() {
    let place = furnished(As::User);
    let file = place.root.join("elsewhere/roots");
    fs::write(&file, "x").unwrap();
    let name = file.to_str().unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(hints(&place.run(&["-v"], &["cat", name])).len(), 0);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(hints(&place.run(&["-v"], &["cat", name])).len(), 1);
}

#[test]
fn in_a_sandbox_it_is_told_too() {
    for who in either() {
        let place = furnished(who);
        let do_it = |words: &[&str]| to_the_end(&mut place.cofferdam(words), b"");
        let hint_count =
            |words: &[&str]| String::from_utf8_lossy(&do_it(words).stderr).matches("is hidden inside").count();
        assert!(do_it(&["create", "--name", "lab"]).status.success());
        assert_eq!(hint_count(&["exec", "-v", "lab", "--", "cat", "../notes/text"]), 1, "{who:?}: at rest");
        // A detached command keeps the sandbox live.
        assert!(do_it(&["exec", "--detach", "lab", "--", "sleep", "60"]).status.success());
        assert_eq!(hint_count(&["exec", "-v", "lab", "--", "cat", "../notes/text"]), 1, "{who:?}: live");
        assert_eq!(hint_count(&["exec", "-v", "lab", "--", "cat", "missing"]), 0);
        assert!(do_it(&["rm", "--force", "lab"]).status.success());
    }
}
