//! Rules that ask about files, in a live sandbox: the open waits, `cofferdam answer` decides, and the file that was
//! shown is the one that is opened, with the guest's own rights.

use crate::place::{LiveSandbox, soon};
use crate::support::{As, BOTH, Place, either};
use crate::words::{Verbs, text};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

/// A live sandbox under a policy that asks about paths of the host.
pub struct AskingSandbox<'a> {
    pub live: LiveSandbox<'a>,
}

pub const READS: &str = r#"["read_file", "read_dir"]"#;

impl<'a> AskingSandbox<'a> {
    pub fn new(place: &'a Place, rules: Value) -> AskingSandbox<'a> {
        AskingSandbox::with(place, rules, &[])
    }

    fn with(place: &'a Place, rules: Value, words: &[&str]) -> AskingSandbox<'a> {
        let policy = place.policy(json!({"version": 1, "extends": ["default"], "fs": {"rules": rules}}));
        AskingSandbox { live: LiveSandbox::new(place, &[&["-p", &policy], words].concat()) }
    }

    pub fn open(&self) -> Vec<Value> {
        let open = self.live.place.json(&["questions", &self.live.id]);
        open["questions"].as_array().unwrap().clone()
    }

    /// Waits for a question, which must be this one, and answers it.
    #[track_caller]
    pub fn answer(&self, op: &str, target: &str, words: &[&str]) {
        soon(|| !self.open().is_empty());
        let one = self.open().remove(0);
        assert_eq!((&one["op"], &one["target"]), (&json!(op), &json!(target)), "{one}");
        assert!(one["exe"].as_str().is_some_and(|exe| exe.starts_with('/')), "who asks is told: {one}");
        self.live.place.json(&[&["answer", one["id"].as_str().unwrap()], words].concat());
    }

    /// Starts a command, answers its questions, and returns its output and outcome.
    #[track_caller]
    pub fn run(&self, script: &str, answers: &[(&str, &str, &[&str])]) -> (String, Value) {
        let run = self.live.detach(&["-t", "280s"], &format!("exec 2>&1; {script}"));
        answers.iter().for_each(|(op, target, words)| self.answer(op, target, words));
        let outcome = self.live.outcome(&run);
        (text(&self.live.logs(&[&run]).stdout), outcome)
    }
}

fn docs(place: &Place) -> String {
    place.file("docs/open.txt", "open\n");
    place.file("docs/shut.txt", "shut\n");
    place.file("docs/private/x", "private\n");
    let docs = place.root.join("docs");
    symlink("open.txt", docs.join("link")).unwrap();
    symlink("/etc/passwd", docs.join("out")).unwrap();
    docs.to_str().unwrap().to_owned()
}

fn reads() -> Value {
    serde_json::from_str(READS).unwrap()
}

// promise 21
#[test]
fn a_file_is_opened_once_somebody_says_so_and_no_other() {
    for who in either() {
        let place = Place::new(who);
        let docs = docs(&place);
        let asked = AskingSandbox::new(
            &place,
            json!([{"action": "ask", "path": docs, "perms": reads()}, {"action": "deny", "path": format!("{docs}/private")}]),
        );
        let (one, other) = (format!("{docs}/open.txt"), format!("{docs}/shut.txt"));
        let (said, outcome) = asked.run(&format!("cat {one}"), &[("fs.read", &one, &["allow"])]);
        assert_eq!((said.as_str(), &outcome["denials"]), ("open\n", &json!([])), "{who:?} {outcome}");
        // An answer holds once, and a denial is listed.
        let (said, outcome) = asked.run(&format!("cat {one}"), &[("fs.read", &one, &["deny"])]);
        assert!(!said.contains("open\n"), "{said}");
        let denial = &outcome["denials"][0];
        assert_eq!(
            (&denial["op"], &denial["target"], &denial["action"]),
            (&json!("fs.read"), &json!(one), &json!("ask"))
        );
        assert_eq!(denial["hint"], "the person who was asked refused it");
        // A link is shown by its target; a link to elsewhere is not followed, and denied paths raise no question.
        let (said, _) = asked.run(&format!("cat {docs}/link"), &[("fs.read", &one, &["allow", "--remember"])]);
        assert_eq!(said, "open\n");
        let script = format!("cat {one}; cat {docs}/out; cat {docs}/private/x; cat {docs}/none; ls {docs}");
        let (said, outcome) = asked.run(&script, &[]);
        assert!(said.starts_with("open\n") && !said.contains("root:") && !said.contains("private\n"), "{said}");
        assert!(said.contains("none: No such file"), "{said}");
        let hints: Vec<&str> =
            outcome["denials"].as_array().unwrap().iter().filter_map(|d| d["hint"].as_str()).collect();
        assert!(hints.iter().any(|hint| hint.contains("contains paths that a rule denies")), "{outcome}");
        // The other file stays closed, and a remembered answer holds as long as the sandbox is live.
        let script = format!("cat {other}; cat {other}");
        let (said, outcome) = asked.run(&script, &[("fs.read", &other, &["deny", "--remember"])]);
        assert!(!said.contains("shut\n"), "{said}");
        assert_eq!(outcome["denials"][0]["count"], 2, "{outcome}");
        place.fault(&["answer", "qst_nothing_1", "allow"], "not_found");
        assert_eq!(asked.open(), Vec::<Value>::new());
        // Questions and answers are in the journal, and therefore among the events.
        let log = place.json(&["audit", "log"]);
        let noted = |verb: &str| log["entries"].as_array().unwrap().iter().filter(|e| e["verb"] == verb).count();
        assert_eq!((noted("ask"), noted("answer")), (4, 4), "{log}");
    }
}

// promise 21
#[test]
fn what_is_written_goes_where_it_may() {
    for who in either() {
        let place = Place::new(who);
        place.file("home/project/.env", "A=1\n");
        let notes = place.dir("notes");
        let old = place.file("notes/old", "before\n");
        let write = json!(["write_file", "truncate", "make_reg"]);
        let asked = AskingSandbox::new(
            &place,
            json!([{"action": "ask", "path": "$WORKSPACE/.env"}, {"action": "ask", "path": notes, "perms": write}]),
        );
        let env = place.project.join(".env");
        let env = env.to_str().unwrap();
        let (old, new) = (old.to_str().unwrap(), notes.join("new"));
        let new = new.to_str().unwrap();
        // In the workspace the layer changes; the base does not.
        let script =
            "cat .env; echo B=2 >> .env; python3 -c 'f=open(\".env\",\"r+\"); print(f.read())'; rm .env; mv .env x";
        let answers: &[(&str, &str, &[&str])] =
            &[("fs.read", env, &["allow"]), ("fs.write", env, &["allow"]), ("fs.read_write", env, &["allow"])];
        let (said, outcome) = asked.run(script, answers);
        assert!(said.starts_with("A=1\nA=1\nB=2\n"), "{who:?} {said} {outcome}");
        assert_eq!(fs::read_to_string(env).unwrap(), "A=1\n");
        let layer = place.layers().remove(0).join("up");
        assert_eq!(fs::read_to_string(layer.join(".env")).unwrap(), "A=1\nB=2\n");
        assert!(!layer.join("x").exists(), "an operation that raises no question is refused");
        // Elsewhere the host's file changes, as with an `allow` rule. Permission to write does not permit reading.
        let script = format!("umask 027; echo more > {new}; echo after > {old}; cat {old} && echo READ");
        let answers: &[(&str, &str, &[&str])] = &[("fs.create", new, &["allow"]), ("fs.write", old, &["allow"])];
        let (said, outcome) = asked.run(&script, answers);
        assert!(!said.contains("READ"), "{said}");
        assert_eq!(
            (fs::read_to_string(new).unwrap().as_str(), fs::read_to_string(old).unwrap().as_str()),
            ("more\n", "after\n"),
            "{said} {outcome}"
        );
        let made = fs::metadata(new).unwrap();
        assert_eq!((made.mode() & 0o7777, made.uid()), (0o640, fs::metadata(old).unwrap().uid()));
        let (_, outcome) = asked.run(&format!("echo no > {new}"), &[("fs.write", new, &["deny"])]);
        assert_eq!(
            (fs::read_to_string(new).unwrap().as_str(), &outcome["denials"][0]["op"]),
            ("more\n", &json!("fs.write"))
        );
    }
}

/// An `allow` answer gives nothing that the guest's own user could not have opened.
// promise 21
#[test]
fn an_answer_is_no_privilege() {
    for who in BOTH {
        let place = Place::new(who);
        let (own, others) = (place.file("docs/own", "own\n"), place.file("docs/others", "others\n"));
        let owner = if who == As::Root { 1234 } else { 0 };
        chown(&others, Some(owner), Some(owner)).unwrap();
        [&own, &others]
            .into_iter()
            .for_each(|file| fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap());
        let asked =
            AskingSandbox::new(&place, json!([{"action": "ask", "path": place.root.join("docs"), "perms": reads()}]));
        let (own, others) = (own.to_str().unwrap(), others.to_str().unwrap());
        let answers: &[(&str, &str, &[&str])] = &[("fs.read", own, &["allow"]), ("fs.read", others, &["allow"])];
        let (said, outcome) = asked.run(&format!("cat {own}; cat {others}"), answers);
        assert_eq!(said.lines().next(), Some("own"), "{who:?} {outcome}");
        assert!(!said.contains("others\n"), "{who:?} {said}");
    }
}

// promise 21
#[test]
fn who_waits_can_be_suspended_signalled_and_killed() {
    for who in BOTH {
        let place = Place::new(who);
        let docs = docs(&place);
        // Suspend freezes a control group where there is one, and stops single processes elsewhere.
        let words: &[&str] = if who == As::Root { &["--memory", "1g"] } else { &[] };
        let rules = json!([{"action": "ask", "path": docs, "perms": reads()}]);
        let asked = AskingSandbox::with(&place, rules, words);
        let one = format!("{docs}/open.txt");
        // A frozen command has no open question; afterwards it asks again.
        let run = asked.live.detach(&["-t", "280s"], &format!("cat {one}"));
        soon(|| asked.open().len() == 1);
        assert_eq!(place.json(&["suspend", &asked.live.id])["reached"], "frozen", "{who:?}");
        place.json(&["resume", &asked.live.id]);
        asked.answer("fs.read", &one, &["allow"]);
        assert_eq!(asked.live.outcome(&run)["success"], true, "{who:?}");
        assert_eq!(text(&asked.live.logs(&[&run]).stdout), "open\n");
        // A handled signal runs its handler, and the open goes on waiting.
        let script = format!(
            "exec python3 -c 'import os, signal, threading
signal.signal(signal.SIGUSR1, lambda *_: print(\"signal\", flush=True))
threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
print(open(\"{one}\").read(), end=\"\")'"
        );
        let run = asked.live.detach(&["-t", "280s"], &script);
        soon(|| text(&asked.live.logs(&[&run]).stdout).contains("signal"));
        asked.answer("fs.read", &one, &["allow"]);
        let outcome = asked.live.outcome(&run);
        assert_eq!(text(&asked.live.logs(&[&run]).stdout), "signal\nopen\n", "{who:?} {outcome}");
        // A killed process withdraws its question.
        let run = asked.live.detach(&["-t", "280s"], &format!("cat {one}"));
        soon(|| asked.open().len() == 1);
        place.json(&["kill", &run]);
        soon(|| asked.open().is_empty());
        // The number of open questions is bounded, and waiting processes continue once answered.
        let flood = format!("for i in $(seq 40); do cat {docs}/many/$i & done; wait");
        (1..=40).for_each(|i| drop(place.file(format!("docs/many/{i}"), "many\n")));
        let run = asked.live.detach(&["-t", "280s"], &flood);
        soon(|| asked.open().len() == 16);
        let first = asked.open().remove(0);
        place.json(&["answer", first["id"].as_str().unwrap(), "allow"]);
        soon(|| text(&asked.live.logs(&[&run]).stdout).contains("many\n"));
        asked.open().iter().for_each(|q| drop(place.json(&["answer", q["id"].as_str().unwrap(), "deny"])));
        let outcome = asked.live.outcome(&run);
        assert_eq!(outcome["denials"].as_array().unwrap().len(), 39, "{who:?} {outcome}");
    }
}

// promise 21
#[test]
fn what_nobody_can_be_asked_for_is_refused_before_the_start() {
    let place = Place::new(As::User);
    let docs = docs(&place);
    let rule = json!([{"action": "ask", "path": docs, "perms": ["read_file", "execute", "remove_file"]}]);
    let document =
        |degrade: Value| json!({"version": 1, "extends": ["default"], "fs": {"rules": rule}, "degrade": degrade});
    let refused = place.sh(&["-p", &place.policy(document(json!([])))], "true");
    assert_eq!(
        (refused.code(), refused.text("/error_kind").as_str()),
        (125, "unsupported_policy"),
        "{}",
        refused.story()
    );
    assert!(refused.text("/message").contains("execute, remove_file"), "{}", refused.story());
    place.sh(&["-p", &place.policy(document(json!(["ask"])))], "true").assert_ok();
}
