//! Rules that ask about programs, in a live sandbox: the exec waits, `cofferdam answer` allows that one program for as
//! long as the sandbox is live, and no race of the guest's allows another.

use crate::place::{LiveSandbox, soon};
use crate::questions::AskingSandbox;
use crate::support::{As, BOTH, Place, either, times};
use crate::words::{Verbs, text};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// Minimum time for which a denial is remembered.
const DENIAL_REMEMBERED: Duration = Duration::from_millis(3500);

/// Builds a program that prints the name it was built with.
fn tool(place: &Place, name: &str) -> String {
    let source = format!("#include <stdio.h>\nint main(void) {{ puts(\"this is {name}\"); return 0; }}");
    let made = place.c_program(name, &source);
    let path = place.script(format!("tools/{name}"), "");
    crate::support::copy_program(&made, &path);
    fs::remove_file(made).unwrap();
    path.to_str().unwrap().to_owned()
}

fn live<'a>(place: &'a Place, exec: &str, rules: Value, words: &[&str]) -> AskingSandbox<'a> {
    let tools =
        json!([{"action": "allow", "path": place.root.join("tools"), "perms": ["read_file", "read_dir", "execute"]}]);
    let policy = place.policy(
        json!({"version": 1, "extends": ["default"], "defaults": {"exec": exec}, "fs": {"rules": tools}, "exec": {"rules": rules}}),
    );
    AskingSandbox { live: LiveSandbox::new(place, &[&["-p", &policy], words].concat()) }
}

// promise 21
#[test]
fn a_yes_opens_one_program_as_long_as_it_is_live() {
    for who in either() {
        let place = Place::new(who);
        let (one, other) = (tool(&place, "one"), tool(&place, "other"));
        let tools = place.root.join("tools");
        for (exec, rule) in [("allow", one.as_str()), ("deny", tools.to_str().unwrap())] {
            let sh = json!({"action": "allow", "path": fs::canonicalize("/bin/sh").unwrap()});
            let asked =
                live(&place, exec, json!([{"action": "ask", "path": rule}, {"action": "ask", "path": other}, sh]), &[]);
            let script = format!("{one}; {other}; {one}");
            let answers: &[(&str, &str, &[&str])] = &[("exec", &one, &["allow"]), ("exec", &other, &["deny"])];
            let (said, outcome) = asked.run(&script, answers);
            assert_eq!(said.matches("this is one\n").count(), 2, "{who:?} {said}");
            assert!(!said.contains("this is other"), "{who:?} {said}");
            let denial = &outcome["denials"][0];
            assert_eq!((&denial["op"], &denial["target"]), (&json!("exec"), &json!(other)), "{outcome}");
            assert_eq!(denial["hint"], "the person who was asked refused it");
            // The next command needs no answer for the allowed program, and raises a question for the denied one
            // again; not at once, because shells look for a program under every name that PATH has for it.
            let (said, _) = asked.run(&format!("{one}; {other}"), &[]);
            assert_eq!(said.matches("this is").count(), 1, "{who:?} {said}");
            std::thread::sleep(DENIAL_REMEMBERED);
            let (said, _) = asked.run(&format!("{one}; {other}"), &[("exec", &other, &["allow"])]);
            assert_eq!(said, "this is one\nthis is other\n", "{who:?}");
            // A sandbox that is live again asks again.
            place.json(&["stop", &asked.live.id]);
            place.json(&["start", "--live", &asked.live.id]);
            let (said, _) = asked.run(&one, &[("exec", &one, &["deny"])]);
            assert!(!said.contains("this is"), "{who:?} {said}");
            let log = place.json(&["audit", "log"]);
            let noted = |verb: &str| log["entries"].as_array().unwrap().iter().filter(|e| e["verb"] == verb).count();
            assert!(noted("ask") >= 4 && noted("answer") >= 4, "{log}");
        }
    }
}

/// A command that is itself under an `ask` rule starts and waits; neither the keeper nor other commands wait with it.
// promise 21
#[test]
fn a_command_that_is_asked_about_waits_alone() {
    for who in either() {
        let place = Place::new(who);
        let one = tool(&place, "one");
        for exec in ["allow", "deny"] {
            let sh = json!({"action": "allow", "path": fs::canonicalize("/bin/sh").unwrap()});
            let asked = live(&place, exec, json!([{"action": "ask", "path": one}, sh]), &[]);
            let begin = || {
                let output = place.verb(&["exec", "-d", "-t", "280s", &asked.live.id, "--", &one]);
                assert!(output.status.success(), "{}", text(&output.stderr));
                text(&output.stdout).trim().to_owned()
            };
            let answer = |word: &str| {
                soon(|| asked.open().len() == 1);
                let open = asked.open().remove(0);
                assert_eq!((&open["op"], &open["target"]), (&json!("exec"), &json!(one)), "{open}");
                place.json(&["answer", open["id"].as_str().unwrap(), word]);
            };
            // A process that is killed while it waits withdraws its question.
            let run = begin();
            soon(|| asked.open().len() == 1);
            assert_eq!(text(&asked.live.sh(&[], "echo others go on", b"").stdout), "others go on\n");
            place.json(&["kill", &run]);
            soon(|| asked.open().is_empty());
            let run = begin();
            answer("deny");
            let outcome = asked.live.outcome(&run);
            assert_eq!(
                (&outcome["verdict"], &outcome["exit"]["code"]),
                (&json!("denied"), &json!(127)),
                "{who:?} {outcome}"
            );
            std::thread::sleep(DENIAL_REMEMBERED);
            let run = begin();
            answer("allow");
            let outcome = asked.live.outcome(&run);
            assert_eq!(outcome["success"], true, "{who:?} {outcome}");
            assert_eq!(text(&asked.live.logs(&[&run]).stdout), "this is one\n", "{who:?}");
        }
    }
}

/// Threads change the path in memory, and links on the path, while the exec waits and when it continues.
const RACER: &str = r##"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[4096], all[3][4096];
static volatile int over;

static void *swap_memory(void *unused) {
    for (int i = 0; !over; i++) { memcpy(path, all[i % 3], 4096); __asm__ volatile("" ::: "memory"); }
    return 0;
}
static void *swap_links(void *unused) {
    for (int i = 0; !over; i++) { symlink(all[i % 3], "l1"); rename("l1", "l"); }
    return 0;
}
static void start(const char *program) {
    char *none[] = {"x", 0};
    /* The vfork child shares this memory, which other threads go on changing. */
    int pid = vfork();
    if (!pid) { execve(program, none, none); _exit(1); }
    if (pid > 0) waitpid(pid, 0, 0);
}

int main(int argc, char **argv) {
    for (int i = 0; i < 3; i++) strcpy(all[i], argv[1 + i]);
    memcpy(path, all[0], 4096);
    symlink(all[0], "l");
    pthread_t t[2];
    pthread_create(&t[0], 0, swap_memory, 0); pthread_create(&t[1], 0, swap_links, 0);
    for (int i = atoi(argv[4]); i > 0; i--) { start(path); start("l"); }
    over = 1; pthread_join(t[0], 0); pthread_join(t[1], 0);
    return 0;
}
"##;

// promise 21
#[test]
fn only_the_program_that_was_allowed_ever_runs() {
    for who in either() {
        let place = Place::new(who);
        let (open, shut, never) = (tool(&place, "open"), tool(&place, "shut"), tool(&place, "never"));
        let racer = place.c_program("racer", RACER);
        for exec in ["allow", "deny"] {
            let listed = json!({"action": "allow", "path": fs::canonicalize("/bin/sh").unwrap()});
            let own = json!({"action": "allow", "path": racer});
            let rules = json!([{"action": "ask", "path": open}, {"action": "ask", "path": shut}, {"action": "deny", "path": never}, listed, own]);
            let asked = live(&place, exec, rules, &[]);
            let script = format!("exec 2>&1; ./racer {open} {shut} {never} {}", times(300, 2_000));
            let run = asked.live.detach(&["-t", "300s"], &script);
            // Both programs raise questions, in either order, perhaps more than once before the answers are known.
            let mut answered = (0, 0);
            soon(|| {
                for one in asked.open() {
                    let yes = one["target"] == json!(open);
                    assert!(yes || one["target"] == json!(shut), "{one}");
                    let words: &[&str] = if yes { &["allow"] } else { &["deny", "--remember"] };
                    // The question may have been withdrawn meanwhile.
                    let id = one["id"].as_str().unwrap();
                    if place.verb(&[&["answer", id], words].concat()).status.success() {
                        answered = (answered.0 + u32::from(yes), answered.1 + u32::from(!yes));
                    }
                }
                answered.0 > 0 && answered.1 > 0
            });
            let outcome = asked.live.outcome(&run);
            let said = text(&asked.live.logs(&[&run]).stdout);
            assert!(said.contains("this is open\n"), "control: {who:?} {exec} {said} {outcome}");
            assert!(!said.contains("shut") && !said.contains("never"), "{who:?} {exec} {said}");
            let refused =
                |name: &str| outcome["denials"].as_array().unwrap().iter().any(|d| d["target"] == json!(name));
            assert!(refused(&shut) && refused(&never), "{who:?} {exec} {outcome}");
        }
    }
}

#[test]
fn a_start_that_waits_can_be_suspended() {
    for who in BOTH {
        let place = Place::new(who);
        let one = tool(&place, "one");
        // `exec`, because a process that a shell waits for by `vfork` could not be frozen before its program runs.
        let words: &[&str] = if who == As::Root { &["--memory", "1g"] } else { &[] };
        let asked = live(&place, "allow", json!([{"action": "ask", "path": one}]), words);
        let run = asked.live.detach(&["-t", "280s"], &format!("exec {one}"));
        soon(|| asked.open().len() == 1);
        assert_eq!(place.json(&["suspend", &asked.live.id])["reached"], "frozen", "{who:?}");
        place.json(&["resume", &asked.live.id]);
        asked.answer("exec", &one, &["allow"]);
        asked.live.outcome(&run);
        let said = text(&asked.live.logs(&[&run]).stdout);
        assert!(said.starts_with("this is one\n"), "held still, it asks again: {who:?} {said}");
    }
}
