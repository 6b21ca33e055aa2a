//! Kills with SIGKILL of the interpreter, the keeper and the command line during a call: the answer is typed, nothing is left, and the next
//! call works.

use crate::fixture::CodeFixture;
use crate::support::As;
use crate::support::left::soon;
use crate::support::words::Verbs;
use std::process::Stdio;

const LONG: &str = "print('begun', flush=True)\nwhile True: pass";

fn kill(pid: u32) {
    assert!(std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

fn keeper_of(f: &CodeFixture) -> u32 {
    let id = f.place.json(&["inspect", "s"])["id"].as_str().unwrap().to_owned();
    let card = std::fs::read_to_string(f.place.state().join("keepers").join(id).join("keeper.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&card).unwrap()["pid"].as_u64().unwrap() as u32
}

// promise 29
#[test]
fn a_killed_interpreter_is_told_and_started_anew() {
    let f = CodeFixture::new(As::User);
    for language in ["python", "javascript", "bash"] {
        let code = ["while True: pass", "for (;;);", "while :; do :; done"];
        let words = ["cofferdam_worker", "COFFERDAM_WORKER", "--noediting"];
        let at = ["python", "javascript", "bash"].iter().position(|l| *l == language).unwrap();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| f.call(&["-l", language], code[at]));
            assert!(soon(|| f.is_busy(language) && !f.processes(words[at]).is_empty()));
            f.processes(words[at]).into_iter().for_each(kill);
            let lost = call.join().unwrap().ended("lost", 125, true);
            assert!(lost.message().contains("SIGKILL"), "{language}: {lost:#?}");
        });
        f.call(&["-l", language], "1").document["outcome"]["execution_count"].as_u64().expect("a new interpreter");
    }
}

// promise 29
#[test]
fn a_killed_keeper_ends_its_contexts() {
    let f = CodeFixture::new(As::User);
    f.python("x = 1").ok();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| f.python("while True: pass"));
        assert!(soon(|| f.is_busy("python")));
        kill(keeper_of(&f));
        call.join().unwrap().ended("lost", 125, true);
    });
    assert!(soon(|| f.processes("cofferdam_worker").is_empty()), "the interpreter goes with its keeper");
    f.python("x").failed("NameError");
    f.python("x = 2").ok();
}

// promise 29
#[test]
fn a_call_whose_caller_was_killed_does_not_hold_its_context_for_ever() {
    let f = CodeFixture::with(As::User, &["--limit", "wall=2s"]);
    f.python("x = 1").ok();
    let begin = |code: &str| {
        let mut command = f.place.cofferdam(["code", "--sandbox", "s", "-e", code]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    };
    // One that ends: the next call reads past what it said.
    begin(
        "import sys\nprint('begun', flush=True)\nfor _ in range(200): print('x' * 1000)\nx = 2\n'value of the first'",
    );
    let next = f.python("print('mine'); x").ok();
    assert_eq!((next.stdout(), next.value()), ("mine\n", "2"));
    // A shell, whose output has no names of requests.
    let bash = |code: &str| f.call(&["-l", "bash"], code).ok();
    bash("echo first");
    let mut command =
        f.place.cofferdam(["code", "--sandbox", "s", "-l", "bash", "-e", "echo begun; sleep 1; echo secret"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(bash("echo mine").stdout(), "mine\n");
    // One that does not: the sandbox's limit on time ends it.
    begin(LONG);
    f.python("x").ok();
}
