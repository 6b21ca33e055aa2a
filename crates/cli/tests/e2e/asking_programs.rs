//! Exec rules with action `ask`: a start waits for an answer at the terminal, the command's own start included. Without
//! a yes the program does not run.

use crate::support::terminal::on_terminal;
use crate::support::{As, Place, either};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A copy of `/bin/echo` at `path`.
pub fn tool(place: &Place, path: &str) -> String {
    let path = place.script(path, "");
    crate::support::copy_program("/bin/echo", &path);
    path.to_str().unwrap().to_owned()
}

fn ask(path: &str) -> Value {
    json!({"action": "ask", "path": path})
}

/// Two policies around the given exec rules: one that allows all other programs, one that allows only them, a shell and
/// `cat`.
fn policies(place: &Place, rules: &[Value]) -> [String; 2] {
    let named = |path: &str| json!({"action": "allow", "path": fs::canonicalize(path).unwrap()});
    let shown = json!({"rules": [{"action": "allow", "path": place.root.join("tools"), "perms": ["read_file", "read_dir", "execute"]}]});
    let listed = [rules, &[named("/bin/sh"), named("/bin/cat")]].concat();
    [
        place.policy(json!({"version": 1, "extends": ["default"], "fs": shown, "exec": {"rules": rules}})),
        place.policy(json!({"version": 1, "extends": ["default"], "fs": shown, "defaults": {"exec": "deny"}, "exec": {"rules": listed}})),
    ]
}

fn wants(program: &str) -> Value {
    json!(["expect", format!("wants exec {program}")])
}

fn refusals(outcome: &Value) -> Vec<(String, String, String)> {
    let text = |d: &Value, name: &str| d[name].as_str().unwrap_or_default().to_owned();
    let list = outcome["denials"].as_array().unwrap();
    list.iter().map(|d| (text(d, "op"), text(d, "target"), text(d, "hint"))).collect()
}

// promise 21
#[test]
fn a_program_starts_once_somebody_says_so_and_no_other() {
    for who in either() {
        let place = Place::new(who);
        let (one, other, own) =
            (tool(&place, "tools/one"), tool(&place, "tools/other"), tool(&place, "home/project/own"));
        let (yes, no, prompt) = (json!(["send", "y\r"]), json!(["send", "n\r"]), json!(["expect", "[y]"]));
        // Rules by file name, then by directory: each program gets a question of its own.
        let tools = place.root.join("tools");
        for rules in [[ask(&one), ask(&other), ask(&own)], [ask(tools.to_str().unwrap()), ask(&own), ask(&own)]] {
            for policy in policies(&place, &rules) {
                let text = format!("{one} 1st; {one} 2nd; {other} 3rd; ./own 4th; echo end");
                let steps = json!([
                    wants(&one),
                    ["expect", "asks; without"],
                    ["expect", "[y] yes, until this ends  [n]"],
                    yes,
                    wants(&other),
                    prompt,
                    no,
                    wants(&own),
                    prompt,
                    yes,
                    ["expect", "end"]
                ]);
                let screen = on_terminal(&place, &["-p", &policy, "-c", &text], steps);
                screen.assert_code(0);
                // A yes holds for the rest of the run.
                let printed = |word: &str| screen.text.contains(&format!("{word}\r\n"));
                assert!(
                    printed("1st") && printed("2nd") && !printed("3rd") && printed("4th"),
                    "{who:?} {}",
                    screen.text
                );
                assert_eq!(screen.text.matches("wants exec").count(), 3, "{who:?} {}", screen.text);
                let refused = ("exec".to_owned(), other.clone(), "the person who was asked refused it".to_owned());
                assert_eq!(refusals(&screen.outcome), [refused], "{who:?}");
            }
        }
    }
}

// promise 21
#[test]
fn without_an_answer_a_program_does_not_start() {
    for who in either() {
        let place = Place::new(who);
        let one = tool(&place, "tools/one");
        for policy in policies(&place, &[ask(&one)]) {
            let text = format!("{one} ran; echo end");
            let steps = json!([wants(&one), ["expect", "refused after 1 s"], ["expect", "end"]]);
            let screen = on_terminal(&place, &["--ask-timeout", "1s", "-p", &policy, "-c", &text], steps);
            screen.assert_code(0);
            assert!(!screen.text.contains("ran\r\n"), "{who:?} {}", screen.text);
            assert_eq!(refusals(&screen.outcome)[0].2, "no answer came in time", "{who:?}");
            // Control without a terminal: the program is refused without a question.
            let run = place.sh(&["-p", &policy], &text);
            run.assert_denied("exec", &one);
            assert_eq!(run.stdout(), "end\n", "{who:?} {}", run.story());
        }
    }
}

/// The first exec is done by the supervisor, and waits for an answer like any other.
// promise 21
#[test]
fn the_command_itself_is_asked_about() {
    for who in either() {
        let place = Place::new(who);
        let one = tool(&place, "tools/one");
        for policy in policies(&place, &[ask(&one)]) {
            let flags = ["-p", &policy, "--", &one, "ran"];
            let steps = json!([wants(&one), ["expect", "[y]"], ["send", "y\r"], ["expect", "ran\r\n"]]);
            on_terminal(&place, &flags, steps).assert_code(0);
            let steps = json!([wants(&one), ["expect", "[y]"], ["send", "n\r"]]);
            let screen = on_terminal(&place, &flags, steps);
            screen.assert_code(126);
            assert!(!screen.text.contains("ran\r\n"), "{who:?} {}", screen.text);
            assert_eq!(screen.outcome["error_kind"], "policy_denied", "{who:?} {:#}", screen.outcome);
            assert_eq!(screen.outcome["hint"], "the person who was asked refused it", "{who:?} {:#}", screen.outcome);
            let run = place.run(&["-p", &policy], &[&one, "ran"]);
            assert_eq!((run.code(), run.stdout()), (126, String::new()), "{who:?} {}", run.story());
            assert!(run.text("/message").contains("exec.rules[0]"), "{who:?} {}", run.story());
        }
    }
}

/// A script's start is decided by the rules of script and interpreter; the strictest action wins.
// promise 21
#[test]
fn scripts_and_their_interpreters_are_asked_about() {
    for who in either() {
        let place = Place::new(who);
        let by = tool(&place, "tools/by");
        let script = place.script("tools/script", &format!("#!{by} interpreted\n"));
        let script = script.to_str().unwrap();
        let link = place.project.join("link");
        std::os::unix::fs::symlink(script, &link).unwrap();
        let (yes, no, prompt) = (json!(["send", "y\r"]), json!(["send", "n\r"]), json!(["expect", "[y]"]));
        let run = |rules: &[Value], words: &[&str], steps: Value| {
            policies(&place, rules).map(|policy| {
                let screen = on_terminal(&place, &[&["-p", &policy, "--"], words].concat(), steps.clone());
                assert_eq!(screen.missed, None, "{who:?} {}", screen.text);
                screen.text.contains("interpreted ")
            })
        };
        let both = [ask(script), ask(&by)];
        let asked_twice = json!([wants(script), prompt, yes, wants(&by), prompt, yes, ["expect", "interpreted"]]);
        assert_eq!(run(&both, &[script], asked_twice.clone()), [true, true]);
        assert_eq!(run(&both, &["sh", "-c", "./link; true"], asked_twice), [true, true]);
        assert_eq!(
            run(
                &both,
                &["sh", "-c", &format!("{script}; true")],
                json!([wants(script), prompt, yes, wants(&by), prompt, no])
            ),
            [false, false]
        );
        // A denied interpreter denies the script and vice versa, without a question whose answer could not matter.
        let deny = |path: &str| json!({"action": "deny", "path": path});
        for rules in [[ask(script), deny(&by)], [deny(script), ask(&by)]] {
            for policy in policies(&place, &rules) {
                let screen = on_terminal(
                    &place,
                    &["-p", &policy, "-c", &format!("{script}; echo end")],
                    json!([["expect", "end"]]),
                );
                assert!(
                    !screen.text.contains("wants") && !screen.text.contains("interpreted"),
                    "{who:?} {}",
                    screen.text
                );
            }
        }
    }
}

// promise 21
#[test]
fn bytes_that_a_rule_names_are_the_ones_that_run() {
    let digest = |path: &str| {
        let output = Command::new("sha256sum").arg(path).output().unwrap();
        String::from_utf8_lossy(&output.stdout)[..64].to_owned()
    };
    for who in either() {
        let place = Place::new(who);
        let (one, other) = (tool(&place, "tools/one"), tool(&place, "tools/other"));
        let rule = |path: &str, sha256: &str| json!({"action": "ask", "path": path, "sha256": sha256});
        let rules = [rule(&one, &digest("/bin/echo")), rule(&other, &digest("/bin/cat"))];
        for policy in policies(&place, &rules) {
            let steps = json!([wants(&one), ["expect", "[y]"], ["send", "y\r"], ["expect", "end"]]);
            let screen =
                on_terminal(&place, &["-p", &policy, "-c", &format!("{one} ran; {other} runs; echo end")], steps);
            assert!(screen.text.contains("ran\r\n") && !screen.text.contains("runs\r\n"), "{who:?} {}", screen.text);
            assert_eq!(refusals(&screen.outcome)[0].1, other, "other bytes are refused: {who:?}");
        }
    }
}

// promise 21
#[test]
fn what_cannot_be_asked_about_is_refused_before_the_start() {
    let place = Place::new(As::User);
    let tools: Vec<PathBuf> = (0..40).map(|i| PathBuf::from(tool(&place, &format!("tools/{i}")))).collect();
    let many = place.root.join("tools/*");
    let refused = |rule: Value, why: &str, hint: &str| {
        let [policy, _] = policies(&place, &[rule]);
        let run = place.sh(&["-p", &policy], "true");
        assert_eq!((run.code(), run.text("/error_kind").as_str()), (125, "unsupported_policy"), "{}", run.story());
        assert!(run.text("/message").contains(why) && run.text("/hint").contains(hint), "{}", run.story());
    };
    refused(ask(many.to_str().unwrap()), "more than 32 programs", "a directory that holds them");
    refused(ask("$WORKSPACE"), "no writable file may be executable", "one by one");
    // In a writable directory the kernel cannot keep a program from being created, so a rule for a missing one is
    // refused.
    let [policy, _] = policies(&place, &[ask("$WORKSPACE/later")]);
    assert_eq!(place.sh(&["-p", &policy], "true").code(), 125);
    let [policy, _] =
        policies(&place, &[ask(tools[0].to_str().unwrap()), ask(place.root.join("tools").to_str().unwrap())]);
    place.sh(&["-p", &policy], "true").assert_ok();
    let explained = place.cofferdam(["policy", "explain", "-p", &policy, tools[1].to_str().unwrap()]).output().unwrap();
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(explained.contains("ask   execute") && explained.contains("exec.rules[1]"), "{explained}");
}

/// A rule with action `ask` grants nothing before the answer, and never read access that no other rule grants.
// promise 21
#[test]
fn a_question_shows_nothing() {
    for who in either() {
        let place = Place::new(who);
        let (hidden, shown) = (tool(&place, "hidden/tool"), tool(&place, "tools/tool"));
        let letters = place.script("hidden/letter", "a letter\n");
        for policy in policies(&place, &[ask(&hidden), ask(letters.to_str().unwrap()), ask(&shown)]) {
            let text = format!("cat {}; {hidden} ran; cat {shown} > copy && echo read", letters.display());
            let run = place.sh(&["-p", &policy], &text);
            assert_eq!(run.stdout(), "read\n", "{who:?} {}", run.story());
        }
        let [policy, _] = policies(&place, &[ask(place.root.to_str().unwrap())]);
        let run = place.sh(&["-p", &policy], "true");
        assert_eq!((run.code(), run.text("/error_kind").as_str()), (125, "unsupported_policy"), "{}", run.story());
        assert!(run.text("/hint").contains("directories that are granted"), "{}", run.story());
    }
}
