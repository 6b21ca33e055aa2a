//! Rules with action `ask`: a person answers at the terminal; a run without a terminal is refused.

use crate::sockets::{Service, TRY};
use crate::support::terminal::{on_terminal, on_terminal_in};
use crate::support::world::{PUBLIC, World};
use crate::support::{As, Place, either};
use serde_json::{Value, json};
use std::fs;

const CURL: &str = "curl -sS -m 30 http://good.test/page";

fn world(who: As) -> World {
    World::new(who).host(PUBLIC, "good.test bad.test").server("http", PUBLIC, 80)
}

fn rules(world: &World) -> String {
    let rules = json!([{"action": "ask", "host": "good.test"}]);
    world.place.policy(json!({"version": 1, "extends": ["default"], "net": {"rules": rules}}))
}

fn refusals(outcome: &Value) -> Vec<(String, String)> {
    let text = |d: &Value, name: &str| d[name].as_str().unwrap_or_default().to_owned();
    outcome["denials"].as_array().unwrap().iter().map(|d| (text(d, "op"), text(d, "hint"))).collect()
}

#[test]
fn a_person_at_the_terminal_lets_it_through_or_does_not() {
    for who in either() {
        let world = world(who);
        let policy = rules(&world);
        let events = world.file();
        let flags = ["-p", &policy, "--events", events.to_str().unwrap(), "-c", CURL];
        let wants = json!(["expect", "wants net.resolve good.test"]);
        // An unknown answer repeats the prompt; the question stays open.
        let steps = json!([
            wants,
            ["expect", "[y]"],
            ["send", "what\r"],
            ["expect", "[y]"],
            ["send", "y\r"],
            ["expect", "GET /page host=good.test"]
        ]);
        let screen = on_terminal_in(&world, &flags, steps);
        screen.assert_code(0);
        assert!(screen.text.contains("net.rules[0] asks"), "{}", screen.text);
        assert!(screen.text.contains("/usr/bin/curl ("), "who asks is told: {}", screen.text);
        assert_eq!(screen.outcome["denials"], json!([]));
        let journal = fs::read_to_string(&events).unwrap();
        let stages: Vec<String> = journal
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|line| format!("{} {}", line["op"].as_str().unwrap(), line["stage"].as_str().unwrap()))
            .collect();
        assert_eq!(stages.iter().filter(|s| *s == "net.resolve asked").count(), 1, "{stages:?}");
        assert!(stages.contains(&"net.connect opened".to_owned()), "{stages:?}");

        let screen = on_terminal_in(&world, &flags, json!([wants, ["expect", "[y]"], ["send", "n\r"]]));
        assert_ne!(screen.code, 0, "{}", screen.text);
        assert!(screen.restored && screen.missed.is_none(), "{}", screen.text);
        assert_eq!(screen.outcome["verdict"], "denied");
        assert!(
            refusals(&screen.outcome).contains(&("net.resolve".into(), "the person who was asked refused it".into()))
        );
    }
}

#[test]
fn an_answer_for_the_run_is_asked_for_once_and_the_commands_input_is_its_own() {
    for who in either() {
        let world = world(who);
        let policy = rules(&world);
        // The command reads its own input before and after the question; the answer never reaches it.
        let text = format!("read a; {CURL}; read b; {CURL}; echo \"[$a$b]\"");
        let steps = json!([
            ["send", "first\r"],
            ["expect", "[y]"],
            ["send", "always\r"],
            ["expect", "good.test auth"],
            ["send", "second\r"],
            ["expect", "good.test auth"],
            ["expect", "[firstsecond]"]
        ]);
        let screen = on_terminal_in(&world, &["-p", &policy, "-c", &text], steps);
        screen.assert_code(0);
        assert_eq!(screen.text.matches("wants net").count(), 1, "{}", screen.text);
        // With `--no-stdin` the command has no terminal of its own, so the prompt reads from the caller's.
        let steps = json!([["expect", "[y]"], ["send", "y\n"], ["expect", "good.test auth"]]);
        let screen = on_terminal_in(&world, &["--no-stdin", "-p", &policy, "-c", CURL], steps);
        screen.assert_code(0);
    }
}

#[test]
fn without_an_answer_it_is_refused_in_time() {
    let world = world(As::User);
    let policy = rules(&world);
    let flags = ["--ask-timeout", "1s", "-p", &policy, "-c", CURL];
    let screen = on_terminal_in(
        &world,
        &flags,
        json!([["expect", "refused after 1 s"], ["expect", "the question was withdrawn"]]),
    );
    assert!(screen.code != 0 && screen.missed.is_none(), "{}", screen.text);
    assert!(refusals(&screen.outcome).iter().any(|(_, hint)| hint == "no answer within 1 s"), "{:#}", screen.outcome);
    // A pending question does not keep a run alive: it is withdrawn when the command ends.
    let text = format!("{CURL} & exec sleep 4");
    let screen = on_terminal_in(&world, &["-p", &policy, "-c", &text], json!([["expect", "[y]"]]));
    screen.assert_code(0);
    assert!(screen.text.contains("the question was withdrawn"), "{}", screen.text);
}

// promise 21
#[test]
fn where_nobody_can_answer_it_is_refused_at_once() {
    for who in either() {
        let world = world(who);
        let policy = rules(&world);
        let run = world.sh(&["-p", &policy], CURL);
        assert_ne!(run.code(), 0);
        assert_eq!(run.text("/verdict"), "denied");
        let run = world.sh(&["-p", &policy, "--ask-timeout", "5s"], CURL);
        assert_eq!(run.code(), 2, "{}", run.story());
        assert!(run.text("/message").contains("--ask-timeout needs a terminal"), "{}", run.story());
        let run = world.sh(&["--net", "good.test", "--ask-timeout", "5s"], CURL);
        run.assert_ok();
        let run = world.sh(&["-p", &policy, "--ask-timeout", "500ms"], CURL);
        assert_eq!(run.code(), 2, "{}", run.story());
    }
}

/// Questions about files and unix sockets of the host, for a command without a network.
// promise 21
#[test]
fn files_and_sockets_wait_for_an_answer_too() {
    for who in either() {
        let place = Place::new(who);
        let service = Service::new(&place, "run/agent.sock");
        let (open, shut) = (place.file("docs/open", "it is open\n"), place.file("docs/shut", "it is shut\n"));
        let policy = place.policy(json!({"version": 1, "extends": ["default"],
            "fs": {"rules": [{"action": "ask", "path": place.root.join("docs"), "perms": ["read_file"]}]},
            "net": {"rules": [{"action": "ask", "proto": "unix", "path": service.text()}]}}));
        let events = place.file("events", "");
        let flags = ["-p", &policy, "--events", events.to_str().unwrap(), "-c"];
        let text =
            format!("cat {} {}; python3 -c \"{TRY}\" SOCK_STREAM {}", open.display(), shut.display(), service.text());
        let wants = |what: &str| json!(["expect", format!("wants {what}")]);
        let (first, second) = (format!("fs.read {}", open.display()), format!("fs.read {}", shut.display()));
        let (socket, prompt) = (format!("net.connect {}", service.target()), json!(["expect", "[y]"]));
        // Output of the command is printed before or after a question, never within it.
        let steps = json!([
            wants(&first),
            prompt,
            ["send", "y\r"],
            wants(&second),
            prompt,
            ["send", "n\r"],
            ["expect", "Permission denied"],
            wants(&socket),
            prompt,
            ["send", "y\r"],
            ["expect", "agent.sock"]
        ]);
        let screen = on_terminal(&place, &[&flags[..], &[&text]].concat(), steps);
        screen.assert_code(0);
        assert!(screen.text.contains("it is open"), "{who:?} {}", screen.text);
        assert!(!screen.text.contains("it is shut") && service.seen() == 1, "{who:?} {}", screen.text);
        assert_eq!(
            refusals(&screen.outcome),
            [("fs.read".to_owned(), "the person who was asked refused it".to_owned())]
        );
        let journal = fs::read_to_string(&events).unwrap();
        assert_eq!(journal.lines().filter(|line| line.contains("\"asked\"")).count(), 3, "{journal}");
        assert!(journal.contains("\"opened\""), "{journal}");
        let steps = json!([wants(&socket), prompt, ["send", "n\r"], ["expect", "EACCES"]]);
        let text = format!("python3 -c \"{TRY}\" SOCK_STREAM {}", service.text());
        let screen = on_terminal(&place, &[&flags[..], &[&text]].concat(), steps);
        assert_eq!(
            (screen.outcome["denials"][0]["op"].as_str(), service.seen()),
            (Some("net.connect"), 1),
            "{}",
            screen.text
        );
        // Control without a terminal: every operation is refused at once.
        let run = place.sh(&["-p", &policy], &format!("cat {}; {text}", open.display()));
        run.assert_denied("fs.read", open.to_str().unwrap()).assert_denied("net.connect", &service.target());
        assert_eq!(service.seen(), 1);
    }
}
