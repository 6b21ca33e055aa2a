//! `cofferdam diff` after real guests: every change appears in every output form, and no guest text controls the
//! terminal.

use crate::support::terminal::at_terminal;
use crate::support::{As, Place, either, to_the_end};
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Output};

fn stdout_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `cofferdam diff FLAGS…`, which must succeed.
fn diff(place: &Place, flags: &[&str]) -> Output {
    let output = to_the_end(place.cofferdam(["diff"]).args(flags), b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn json(place: &Place, flags: &[&str]) -> Value {
    serde_json::from_slice(&diff(place, &[&["--json"], flags].concat()).stdout).unwrap()
}

fn kinds(document: &Value) -> Vec<String> {
    let kind = |file: &Value| match &file["kind"] {
        Value::String(kind) => kind.clone(),
        other => other.as_object().unwrap().keys().next().unwrap().clone(),
    };
    document["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| format!("{} {}", kind(f), f["path"].as_str().unwrap()))
        .collect()
}

fn project(who: As) -> Place {
    let place = Place::new(who);
    for (path, text) in [
        ("home/project/edit.rs", "fn main() {\n    let word = \"old\";\n}\n"),
        ("home/project/gone", "bye\n"),
        ("home/project/tree/deep/file", "x\n"),
        ("home/project/move-me", "a text that is long enough to be known again\n"),
        ("home/project/mode", "m\n"),
        ("home/project/Makefile", "all:\n\ttrue\n"),
        ("home/project/swap", "file\n"),
    ] {
        place.file(path, text);
    }
    place
}

const GUEST: &str = "sed -i s/old/new/ edit.rs; rm gone; rm -r tree; mv move-me moved; chmod 755 mode; echo new > added; \
    printf '\\tevil\\n' >> Makefile; mkdir empty; rm swap; ln -s edit.rs swap; mkfifo pipe; head -c 3000 /dev/zero > zeros; \
    mkdir -p node_modules/p; echo package > node_modules/p/index.js; touch -d 1999-01-01 mode";

#[test]
fn what_a_guest_did_is_told() {
    for who in either() {
        let place = project(who);
        let before = snapshot(&place);
        place.sh(&[], GUEST).assert_ok();
        let found = json(&place, &[]);
        let want = [
            "modified Makefile",
            "added added",
            "modified edit.rs",
            "added empty",
            "deleted gone",
            "mode mode",
            "renamed moved",
            "added pipe",
            "type swap",
            "deleted tree",
            "deleted tree/deep",
            "deleted tree/deep/file",
            "added zeros",
        ];
        assert_eq!(kinds(&found), want, "{who:?}");
        assert_eq!(found["protocol_version"], 1);
        assert_eq!(found["withheld"][0]["path"], "node_modules");
        let class = |path: &str| {
            found["files"].as_array().unwrap().iter().find(|f| f["path"] == path).unwrap()["class"].clone()
        };
        assert_eq!(
            (class("Makefile"), class("pipe"), class("edit.rs")),
            ("runs_on_host".into(), "never".into(), "ordinary".into())
        );
        assert_eq!(snapshot(&place), before, "nothing landed");
        assert_eq!(json(&place, &[])["digest"], found["digest"], "the digest is stable");
        assert_eq!(json(&place, &["edit.rs"])["digest"], found["digest"], "and over all, whatever is shown");
    }
}

/// A listing of the project: every entry with kind, mode, size and digest.
fn snapshot(place: &Place) -> String {
    let text = "find . -printf '%p %y %m %s %l\\n' | sort; find . -type f -exec sha256sum {} + | sort";
    stdout_of(&place.outside("sh").args(["-c", text]).output().unwrap())
}

#[test]
fn all_forms_tell_the_same() {
    let place = project(As::User);
    place.sh(&[], GUEST).assert_ok();
    let names = stdout_of(&diff(&place, &["--name-only"]));
    assert_eq!(names.lines().count(), 13);
    let status = stdout_of(&diff(&place, &["--name-status"]));
    assert!(
        status.contains("M\tMakefile\n") && status.contains("R\tmove-me\tmoved\n") && status.contains("T\tswap\n"),
        "{status}"
    );
    let stat = stdout_of(&diff(&place, &["--stat"]));
    assert!(
        stat.contains("edit.rs") && stat.contains("runs on your machine") && stat.contains("node_modules"),
        "{stat}"
    );
    let whole = stdout_of(&diff(&place, &[]));
    let at = |text: &str| whole.find(text).unwrap_or_else(|| panic!("{text} in {whole}"));
    assert!(at("RUNS ON YOUR MACHINE") < at("Makefile") && at("Makefile") < at("OTHER CHANGES"));
    assert!(
        at("OTHER CHANGES") < at("NEVER LANDS") && at("NEVER LANDS") < at("WITHHELD") && at("WITHHELD") < at("digest ")
    );
    assert!(!whole.contains('\x1b'), "no colours in a pipe");
    assert!(
        stdout_of(&diff(&place, &["--color", "always"])).contains("\x1b[1;4;32mnew\x1b[0m"),
        "the word that changed"
    );
    let all = json(&place, &["--all"]);
    assert!(kinds(&all).contains(&"added node_modules/p/index.js".to_owned()));
}

/// Unknown file types are marked by content and kind in every output form. Executables that are not text and new hidden
/// entries stay in the workspace until they are named; a script lands with the rest and is marked.
#[test]
fn what_no_rule_knows_is_told_in_every_form() {
    for who in either() {
        let place = Place::new(who);
        place.file("home/project/main.txt", "x\n");
        let script = "mkdir .unheard scripts; echo a > .unheard/of; echo b > .unheardof; cp /bin/true prog; chmod 755 prog; \
            printf '#!/bin/sh\\n' > scripts/foo.sh; chmod 755 scripts/foo.sh; echo c > main.tf; echo d > makefile.py";
        place.sh(&[], script).assert_ok();
        let marks = [
            (".unheard/of", "[new hidden directory, which tools may obey]"),
            (".unheardof", "[new hidden file at the top, which tools may obey]"),
            ("main.tf", "[Terraform configuration]"),
            ("prog", "[executable that is not text]"),
            ("scripts/foo.sh", "[new executable]  [new script]"),
        ];
        let held = [".unheard/of", ".unheardof", "main.tf", "prog"];
        for form in ["--no-pager", "--stat"] {
            let shown = stdout_of(&diff(&place, &[form]));
            let line = |path: &str| shown.lines().find(|line| line.split(' ').any(|word| word == path)).unwrap();
            for (path, mark) in marks {
                assert!(line(path).contains(mark), "{who:?}: {mark} for {path} in {shown}");
            }
            assert!(!line("makefile.py").contains('['), "{who:?}: control: {shown}");
        }
        let found = json(&place, &[]);
        let files = found["files"].as_array().unwrap();
        let file = |path: &str| files.iter().find(|file| file["path"] == path).unwrap();
        for path in held {
            assert_eq!(file(path)["class"], "runs_on_host", "{who:?}: {path}");
        }
        assert_eq!(file("scripts/foo.sh")["flags"], json!(["executable", "script"]), "{who:?}");
        diff(&place, &[]);
        let landed = to_the_end(&mut place.cofferdam(["approve"]), b"");
        let stderr = String::from_utf8_lossy(&landed.stderr).into_owned();
        assert_eq!(stdout_of(&landed), "added     makefile.py\nadded     scripts/foo.sh\n", "{who:?}: {stderr}");
        for path in held {
            assert!(stderr.contains(&format!("left: {path}: ")), "{who:?}: {path} in {stderr}");
        }
        assert!(stderr.contains("--runs-on-host"), "{who:?}: {stderr}");
        diff(&place, &[]);
        let named = to_the_end(&mut place.cofferdam(["approve", "--runs-on-host", ".unheard", "prog"]), b"");
        assert_eq!(stdout_of(&named), "added     .unheard/of\nadded     prog\n", "{who:?}: control: named");
    }
}

/// An approved directory that lands without some of its files is reported as incomplete, with the command for the rest.
#[test]
fn a_directory_that_lands_in_part_is_told() {
    let place = Place::new(As::User);
    place.sh(&[], "mkdir -p pack/lib; echo a > pack/Makefile; echo b > pack/lib/x.py").assert_ok();
    diff(&place, &[]);
    let landed = to_the_end(&mut place.cofferdam(["approve", "pack"]), b"");
    let stderr = String::from_utf8_lossy(&landed.stderr).into_owned();
    assert_eq!(stdout_of(&landed), "added     pack/lib/x.py\n", "{stderr}");
    let note = "pack landed in part: 1 of its files stay";
    assert!(stderr.contains(note) && stderr.contains("`approve --runs-on-host pack`"), "{stderr}");
    diff(&place, &[]);
    let rest = to_the_end(&mut place.cofferdam(["approve", "--runs-on-host", "pack"]), b"");
    let stderr = String::from_utf8_lossy(&rest.stderr).into_owned();
    assert_eq!(stdout_of(&rest), "added     pack/Makefile\n", "{stderr}");
    assert!(!stderr.contains("landed in part"), "control: {stderr}");
}

// promise 13
#[test]
fn git_takes_the_patch() {
    let place = project(As::User);
    place.sh(&[], GUEST).assert_ok();
    let copy = place.root.join("copy");
    assert!(Command::new("cp").arg("-a").arg(&place.project).arg(&copy).status().unwrap().success());
    let patch = diff(&place, &["--patch"]).stdout;
    let mut git = Command::new("git");
    git.arg("apply").current_dir(&copy).env("GIT_DIR", place.root.join("none"));
    let applied = to_the_end(&mut git, &patch);
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    assert!(fs::read_to_string(copy.join("edit.rs")).unwrap().contains("new"));
    assert_eq!(fs::read_link(copy.join("swap")).unwrap().to_str(), Some("edit.rs"));
    assert_eq!(fs::read(copy.join("zeros")).unwrap(), vec![0; 3000]);
    assert!(copy.join("moved").exists() && !copy.join("move-me").exists() && !copy.join("tree/deep/file").exists());
}

/// Screen output of `cofferdam diff FLAGS…` on a terminal with the given pager.
fn on_terminal(place: &Place, flags: &[&str], pager: &str) -> String {
    let driver = "import os, pty, sys\npty.spawn(sys.argv[1:])";
    let mut python = place.outside("/usr/bin/python3");
    python
        .env("TERM", "xterm")
        .env("PAGER", pager)
        .args(["-c", driver])
        .arg(crate::support::binary())
        .arg("diff")
        .args(flags);
    stdout_of(&to_the_end(&mut python, b""))
}

// promise 13
#[test]
fn nothing_of_a_file_drives_a_terminal() {
    let place = Place::new(As::User);
    let hostile = "import os\nt = 'title \\x1b]0;owned\\x07 clip \\x1b]52;c;AAAA\\x07 csi \\x1b[6n c1 \\x9b6n bidi \\u202e zero \\u200b\\n'\n\
        open('text', 'w').write(t)\nopen('na\\x1b[31mme\\u202e', 'w').write('x\\n')\nos.symlink('\\x1b]0;t\\x07', 'link')\nos.setxattr('text', 'user.\\x1b[2J', b'1')";
    place.python(&[], hostile).assert_ok();
    for flags in [&[][..], &["--patch"], &["--stat"], &["--name-only"], &["--color", "never"]] {
        for pager in ["", "cat", "/usr/bin/env cat"] {
            let screen = on_terminal(&place, flags, pager);
            assert!(screen.contains("text"), "{flags:?} {pager}: {screen}");
            // The only escape sequences are our own colours.
            let colours = screen.split('\x1b').skip(1).all(|rest| {
                let end = rest.find('m').unwrap_or(rest.len());
                rest.starts_with('[') && rest[1..end.max(1)].chars().all(|c| c.is_ascii_digit() || c == ';')
            });
            assert!(colours, "{flags:?} {pager}: {screen:?}");
            assert!(!screen.contains(['\x07', '\u{9b}', '\u{202e}', '\u{200b}']), "{flags:?}: {screen:?}");
        }
    }
    let raw = diff(&place, &["--patch"]).stdout;
    assert!(raw.windows(4).any(|w| w == b"\x1b]0;"), "control: a patch into a pipe is byte-exact");
}

/// The rest of a diff that was shown is approved without a second look, unless something else came between.
// promise 15
#[test]
fn the_rest_of_a_diff_needs_no_second_look() {
    for who in either() {
        let place = Place::new(who);
        place.file("home/project/long", (1..40).map(|n| format!("{n}\n")).collect::<String>());
        let text = "echo a > a; echo b > b; sed -i 's/^3$/three/; s/^33$/more/' long";
        place.sh(&["--name", "work"], text).assert_ok();
        let approve = |words: &[&str]| to_the_end(place.cofferdam(["approve", "work"]).args(words), b"");
        let exec = |text: &str| to_the_end(&mut place.cofferdam(["exec", "work", "--", "sh", "-c", text]), b"");
        let why = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        let unseen = approve(&["a"]);
        assert!(why(&unseen).contains("has not been reviewed"), "control: {}", why(&unseen));
        let shown: Value = serde_json::from_slice(&diff(&place, &["work", "--json"]).stdout).unwrap();
        let hunk = shown["files"][2]["body"]["text"][0]["id"].as_str().unwrap().to_owned();
        for words in [&["a"][..], &["--hunk", &hunk], &["b"]] {
            let done = approve(words);
            assert!(done.status.success(), "{who:?} {words:?}: {}", why(&done));
        }
        assert!(exec("echo later > later").status.success());
        let changed = approve(&[]);
        assert!(!changed.status.success() && why(&changed).contains("the workspace changed"), "{}", why(&changed));
        diff(&place, &["work"]);
        assert!(approve(&[]).status.success());
        let landed = fs::read_to_string(place.project.join("long")).unwrap();
        assert!(landed.contains("three\n") && landed.contains("more\n"), "{landed}");
        // Nothing left is no error, and no batch.
        let nothing = approve(&[]);
        assert_eq!(nothing.status.code(), Some(0), "{}", why(&nothing));
        assert!(why(&nothing).contains("nothing is left to approve in work"), "{}", why(&nothing));
    }
}

/// A word that is neither a sandbox nor a changed path is named, with what is near.
// promise 13
#[test]
fn a_mistyped_word_is_named() {
    let place = Place::new(As::User);
    place.sh(&["--name", "feature"], "echo a > settings").assert_ok();
    for (verb, words, wanted) in [
        ("approve", &["faeture"][..], &["no sandbox \"faeture\"", "did you mean \"feature\""][..]),
        ("approve", &["setings"], &["no sandbox \"setings\"", "did you mean \"settings\""]),
        ("approve", &["feature", "nosuch"], &["no changes at nosuch", "diff --name-only"]),
        ("approve", &["unlike-anything"], &["no sandbox", "cofferdam ls"]),
        ("diff", &["faeture"], &["did you mean \"feature\""]),
        ("reject", &["faeture"], &["did you mean \"feature\""]),
    ] {
        // The base does not matter to a word that means nothing: neither what was shown nor what has changed since.
        for look in [false, true] {
            if look {
                diff(&place, &["feature"]);
            }
            let done = to_the_end(place.cofferdam([verb]).args(words), b"");
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert_eq!(done.status.code(), Some(125), "{verb} {words:?}: {said}");
            assert!(wanted.iter().all(|part| said.contains(part)), "{verb} {words:?}: {said}");
        }
    }
    let control = to_the_end(&mut place.cofferdam(["approve", "feature", "settings"]), b"");
    assert!(control.status.success(), "{control:?}");
}

// promise 13
#[test]
fn a_dumb_terminal_gets_lines_and_nothing_else() {
    let place = project(As::User);
    place.sh(&[], GUEST).assert_ok();
    let screen = |term: &str| {
        let mut python = place.outside("/usr/bin/python3");
        python.env("TERM", term).env("PAGER", "sed s/^/paged:/");
        python.args(["-c", "import os, pty, sys\npty.spawn(sys.argv[1:])"]).arg(crate::support::binary()).arg("diff");
        stdout_of(&to_the_end(&mut python, b""))
    };
    let dumb = screen("dumb");
    assert!(dumb.contains("edit.rs") && !dumb.contains('\x1b') && !dumb.contains("paged:"), "{dumb:?}");
    let other = screen("xterm");
    assert!(other.contains('\x1b') && other.contains("paged:"), "control: {other:?}");
}

/// Regression: a file in which only the line ends changed was shown as lines replaced by identical lines.
// promise 13
#[test]
fn line_ends_are_shown_where_they_differ() {
    let place = Place::new(As::User);
    place.file("home/project/unix", "a\nb\n");
    place.file("home/project/dos", "a\r\nb\r\n");
    place.sh(&[], "printf 'a\\r\\nb\\r\\n' > unix; printf 'a\\r\\nc\\r\\n' > dos").assert_ok();
    for colour in ["never", "always"] {
        let unix = plain(&stdout_of(&diff(&place, &["unix", "--color", colour])));
        assert!(unix.contains("-a\n-b\n+a<U+000D>\n+b<U+000D>\n"), "{unix}");
        // Control: uniform line ends are not marked.
        let dos = plain(&stdout_of(&diff(&place, &["dos", "--color", colour])));
        assert!(dos.contains(" a\n-b\n+c\n"), "{dos}");
    }
}

/// Text without colour sequences.
fn plain(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| out + part.split_once('m').map_or(part, |(_, rest)| rest))
}

// promise 13
#[test]
fn a_pager_gets_only_what_it_needs() {
    let place = project(As::User);
    place.sh(&[], GUEST).assert_ok();
    let pager = place.script("pager", "#!/bin/sh\nenv\nexec cat\n");
    let driver = "import os, pty, sys\npty.spawn(sys.argv[1:])";
    let mut python = place.outside("/usr/bin/python3");
    python.env("TERM", "xterm").env("PAGER", &pager).env("LESSOPEN", "|evil %s").env("TOKEN", "secret");
    python.args(["-c", driver]).arg(crate::support::binary()).arg("diff");
    let screen = stdout_of(&to_the_end(&mut python, b""));
    assert!(screen.contains("LESSSECURE=1") && screen.contains("edit.rs"), "{screen}");
    assert!(!screen.contains("LESSOPEN") && !screen.contains("TOKEN"), "{screen}");
    let without = on_terminal(&place, &["--no-pager"], pager.to_str().unwrap());
    assert!(!without.contains("LESSSECURE") && without.contains("edit.rs"), "control");
    assert!(on_terminal(&place, &[], "no-such-pager").contains("edit.rs"), "shown all the same");
}

#[test]
fn mistakes_are_told_with_their_names() {
    let place = project(As::User);
    place.sh(&[], "echo x > new").assert_ok();
    for (words, what) in
        [(&["sbx_nothere"][..], "sbx_nothere"), (&["src/none"], "src/none"), (&["../outside"], "outside")]
    {
        let output = to_the_end(place.cofferdam(["diff", "--json"]).args(words), b"");
        assert!(!output.status.success());
        let fault: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(fault["message"].as_str().unwrap().contains(what) && fault["hint"].is_string(), "{fault}");
    }
    assert_eq!(kinds(&json(&place, &["new"])), ["added new"], "control");
    assert_eq!(kinds(&json(&place, &["./new"])), ["added new"], "control");
}

#[test]
fn artefacts_are_pruned_and_the_review_stays() {
    let place = project(As::User);
    place.sh(&[], GUEST).assert_ok();
    let before = json(&place, &[]);
    let pruned = to_the_end(place.cofferdam(["prune", "--json"]).stdin(std::process::Stdio::null()), b"");
    let answer: Value = serde_json::from_slice(&pruned.stdout).unwrap();
    assert_eq!(answer["files"], 1);
    let after = json(&place, &[]);
    assert_eq!(after["digest"], before["digest"]);
    assert_eq!(after["withheld"], serde_json::json!([]));
}

#[test]
fn a_diff_of_a_running_sandbox_says_so() {
    let place = project(As::User);
    let created = to_the_end(&mut place.cofferdam(["create", "--name", "busy"]), b"");
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let mut exec = place.cofferdam(["exec", "busy", "--", "sh", "-c", "echo one > one; sleep 600"]);
    let mut child = exec.spawn().unwrap();
    let began = std::time::Instant::now();
    let found = loop {
        let found = json(&place, &["busy"]);
        if !kinds(&found).is_empty() || began.elapsed().as_secs() > 180 {
            break found;
        }
    };
    assert_eq!((kinds(&found), &found["running"]), (vec!["added one".to_owned()], &Value::Bool(true)));
    assert!(found["notes"][0].as_str().unwrap().contains("running"));
    let refused = to_the_end(&mut place.cofferdam(["prune", "busy"]), b"");
    assert!(!refused.status.success());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(json(&place, &["busy"])["running"], false, "control");
}

/// A reviewer at a terminal decides hunk by hunk. Changes that run on the reviewer's machine come last and are marked;
/// escape sequences of the guest are shown, not obeyed.
#[test]
fn a_person_lets_through_what_they_choose() {
    for who in either() {
        let place = Place::new(who);
        let lines = |first: &str, last: &str| format!("{first}\n{}{last}\n", "same\n".repeat(20));
        let text = place.file("home/project/text", lines("one", "two"));
        let build = place.file("home/project/Makefile", "all:\n\ttrue\n");
        let script = "sed -i 's/^one/ONE/; s/^two/TWO/' text; printf 'evil \\033]52;c;eA==\\007\\n' > loud; chmod 755 loud; echo x: >> Makefile";
        place.sh(&[], script).assert_ok();
        diff(&place, &[]);
        let steps = json!([
            ["expect", "approve this change"],
            ["send", "?\n"],
            ["expect", "go back"],
            ["send", "n\n"],
            ["expect", "(2/4) approve this hunk"],
            ["send", "y\n"],
            ["expect", "(3/4) approve this hunk"],
            ["send", "n\n"],
            ["expect", "runs on your machine"],
            ["expect", "(4/4)"],
            ["send", "n\n"]
        ]);
        let screen = at_terminal(&place, &["approve", "-i"], steps);
        screen.assert_code(0);
        assert!(!screen.text.contains("\u{1b}]52"), "{who:?}: {:?}", screen.text);
        for expected in ["ONE", "loud", "[new executable]"] {
            assert!(screen.text.contains(expected), "{who:?}: control: {expected} in {}", screen.text);
        }
        let landed = fs::read_to_string(&text).unwrap();
        assert_eq!(landed, lines("ONE", "two"), "{who:?}: one hunk of two");
        assert!(!text.with_file_name("loud").exists(), "{who:?}");
        assert_eq!(fs::read_to_string(&build).unwrap(), "all:\n\ttrue\n", "{who:?}");
        assert_eq!(json(&place, &[])["files"].as_array().unwrap().len(), 3, "{who:?}: the rest is still to be decided");
    }
}

/// A reviewer without a prior diff is shown the chosen hunk only, and asked. After a no the diff still counts as
/// unseen, so the next approval asks again.
#[test]
fn who_has_not_looked_is_asked_about_what_they_chose() {
    let place = Place::new(As::User);
    let lines = |first: &str, last: &str| format!("{first}\n{}{last}\n", "same\n".repeat(20));
    let text = place.file("home/project/text", lines("one", "two"));
    place.sh(&[], "sed -i 's/^one/ONE/; s/^two/TWO/' text; echo > elsewhere; chmod 755 elsewhere").assert_ok();
    // A diff of one path does not count as having seen the whole.
    let id = json(&place, &["text"])["files"][0]["body"]["text"][1]["id"].as_str().unwrap().to_owned();
    for (answer, last) in [("n", "two"), ("y", "TWO")] {
        let steps = json!([["expect", "approve it?"], ["send", format!("{answer}\n")]]);
        let screen = at_terminal(&place, &["approve", "--hunk", &id], steps);
        screen.assert_code(0);
        let shown = (screen.text.contains("TWO"), screen.text.contains("ONE"), screen.text.contains("elsewhere"));
        assert_eq!(shown, (true, false, false), "{answer}: {}", screen.text);
        assert_eq!(fs::read_to_string(&text).unwrap(), lines("one", last), "{answer}");
    }
    let steps = json!([["expect", "these 2 changes"], ["send", "\n"]]);
    let screen = at_terminal(&place, &["approve"], steps);
    for expected in ["elsewhere", "[new executable]", "nothing was approved"] {
        assert!(screen.text.contains(expected), "{expected} in {}", screen.text);
    }
}

/// Nearby changes form one hunk, which can be split at the terminal and by number.
#[test]
fn a_hunk_is_split_and_taken_in_part() {
    let place = Place::new(As::User);
    let text = place.file("home/project/text", "one\nsame\nsame\ntwo\nsame\nsame\nthree\n");
    place.sh(&[], "sed -i 's/^one/ONE/; s/^two/TWO/; s/^three/THREE/' text").assert_ok();
    diff(&place, &[]);
    let steps = json!([
        ["expect", "(1/1) approve this hunk"],
        ["send", "s\n"],
        ["expect", "(1/3) approve this hunk"],
        ["send", "n\n"],
        ["expect", "(2/3) approve this hunk"],
        ["send", "s\n"],
        ["expect", "no unchanged lines"],
        ["send", "y\n"],
        ["expect", "(3/3)"],
        ["send", "n\n"]
    ]);
    at_terminal(&place, &["approve", "-i"], steps).assert_code(0);
    assert_eq!(fs::read_to_string(&text).unwrap(), "one\nsame\nsame\nTWO\nsame\nsame\nthree\n");
    let id = json(&place, &[])["files"][0]["body"]["text"][0]["id"].as_str().unwrap().to_owned();
    let verb = |words: &[&str]| to_the_end(&mut place.cofferdam(words), b"");
    let beyond = verb(&["reject", "--hunk", &format!("{id}.3")]);
    assert!(!beyond.status.success() && String::from_utf8_lossy(&beyond.stderr).contains("no part"), "{beyond:?}");
    let rejected = verb(&["reject", "--hunk", &format!("{id}.1")]);
    assert!(rejected.status.success(), "{rejected:?}");
    let approved = verb(&["approve", "--unseen"]);
    assert!(approved.status.success(), "{approved:?}");
    assert_eq!(fs::read_to_string(&text).unwrap(), "one\nsame\nsame\nTWO\nsame\nsame\nTHREE\n");
}
