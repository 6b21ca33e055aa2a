//! Limits of a call, and its interruption: typed, and the answer says whether the context kept its state.

use crate::fixture::CodeFixture;
use crate::support::left::soon;
use crate::support::words::Verbs;
use crate::support::{As, Place};
use serde_json::json;

/// A loop in each language, and one that does not let go of its interpreter.
const LOOPS: [(&str, &str); 3] =
    [("python", "while True: pass"), ("javascript", "for (;;);"), ("bash", "while :; do :; done")];
const STUBBORN: &str = "import itertools; max(itertools.repeat(1))";

// promise 29
#[test]
fn time_ends_a_call_and_keeps_the_state() {
    let f = CodeFixture::new(As::User);
    for (language, code) in LOOPS {
        let set = if language == "javascript" { "var x=5" } else { "x=5" };
        f.call(&["-l", language], set).ok();
        let ended = f.call(&["-l", language, "-t", "300ms"], code).ended("limit_exceeded", 124, false);
        let outcome = &ended.document["outcome"];
        let seen = (&outcome["error_kind"], &outcome["limit_kind"], &outcome["phase"], &outcome["limit"]);
        assert_eq!(seen, (&json!("limit_exceeded"), &json!("wall_ms"), &json!("execution"), &json!(300)), "{ended:#?}");
        assert!(outcome["used"].as_u64() >= Some(300));
        let print = ["print(x)", "console.log(x)", "echo $x"][LOOPS.iter().position(|l| l.0 == language).unwrap()];
        assert_eq!(f.call(&["-l", language], print).ok().stdout(), "5\n", "{language}");
    }
    f.call(&["-t", "300ms"], STUBBORN).ended("limit_exceeded", 124, true);
    f.python("x").failed("NameError");
}

// promise 29
#[test]
fn output_is_exact_to_the_byte() {
    let f = CodeFixture::new(As::User);
    for (language, code) in [
        ("python", "import sys; n = sys.stdout.write('x' * 1000)"),
        ("javascript", "process.stdout.write('x'.repeat(1000)); undefined"),
        ("bash", "printf %01000d 0"),
    ] {
        let at = f.call(&["-l", language, "--max-output", "1000"], code).ok();
        assert_eq!(
            (at.stdout().len(), &at.document["outcome"]["usage"]["output_bytes"]),
            (1000, &json!(1000)),
            "{language}"
        );
        let over = f.call(&["-l", language, "--max-output", "999"], code);
        let outcome = over.document["outcome"].clone();
        assert_eq!(
            (over.status, over.stdout().len(), &outcome["limit_kind"]),
            (137, 999, &json!("output_bytes")),
            "{over:#?}"
        );
        assert_eq!(outcome["context_lost"], false, "{language}: {over:#?}");
    }
    // Names of representations count, and values without any.
    let named = f.call(&["--max-output", "1000"], "display({'k' * 5000: 'v'}, raw=True)");
    named.ended("limit_exceeded", 137, false);
    let empty = f.call(&["--max-output", "1000"], "for _ in range(1000): display({}, raw=True)");
    empty.ended("limit_exceeded", 137, false);
    // A flood ends at its limit, also from a program that code started.
    f.call(&["--max-output", "1m"], "import subprocess; subprocess.run(['yes'])").ended("limit_exceeded", 137, false);
}

// promise 29
#[test]
fn limits_that_are_none_of_a_call_are_refused_and_those_of_the_sandbox_hold() {
    let f = CodeFixture::with(As::Root, &["--limit", "memory=300m", "--limit", "wall=2s"]);
    f.python("x = 1").ok();
    f.python("import time; time.sleep(60)").ended("limit_exceeded", 124, false);
    assert_eq!(f.python("x").ok().value(), "1", "the sandbox's wall limit is that of each call");
    let memory = f.python("b = bytearray(1 << 30)");
    let outcome = &memory.document["outcome"];
    let is_typed = outcome["limit_kind"] == "memory_mb" && outcome["context_lost"] == true;
    assert!(is_typed || memory.document["error"]["name"] == "MemoryError", "{memory:#?}");
    f.python("1 + 1").ok();
}

// promise 29
#[test]
fn an_interruption_keeps_the_state() {
    let f = CodeFixture::new(As::User);
    for (language, code) in LOOPS {
        f.call(&["-l", language], if language == "javascript" { "var kept=5" } else { "kept=5" }).ok();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| f.call(&["-l", language], code));
            assert!(soon(|| f.is_busy(language)));
            // The interpreter has begun with the code when it takes the signal, or takes it when it begins.
            let done = f.place.json(&["context", "interrupt", language, "--grace", "20s", "--sandbox", "s"]);
            assert_eq!((&done["interrupted"], &done["context_lost"]), (&json!(true), &json!(false)), "{language}");
            call.join().unwrap().ended("cancelled", 130, false);
        });
        let print =
            ["print(kept)", "console.log(kept)", "echo $kept"][LOOPS.iter().position(|l| l.0 == language).unwrap()];
        assert_eq!(f.call(&["-l", language], print).ok().stdout(), "5\n", "{language}");
    }
    let idle = f.place.json(&["context", "interrupt", "python", "--sandbox", "s"]);
    assert_eq!(idle["interrupted"], false);
}

// promise 29
#[test]
fn code_that_holds_the_interpreter_is_ended_with_it() {
    let f = CodeFixture::new(As::User);
    f.python("kept = 5").ok();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| f.python(STUBBORN));
        assert!(soon(|| f.is_busy("python")));
        std::thread::sleep(std::time::Duration::from_millis(100));
        let done = f.place.json(&["context", "interrupt", "python", "--sandbox", "s"]);
        assert_eq!((&done["interrupted"], &done["context_lost"]), (&json!(true), &json!(true)));
        call.join().unwrap().ended("cancelled", 130, true);
    });
    f.python("kept").failed("NameError");
}

// promise 29
#[test]
fn control_c_interrupts_the_call() {
    let f = CodeFixture::new(As::User);
    f.python("kept = 5").ok();
    let mut command =
        f.place.cofferdam(["code", "--sandbox", "s", "-e", "print('begun', flush=True)\nwhile True: pass"]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line, "begun\n");
    interrupt(&f.place, child.id());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(f.python("kept").ok().value(), "5");
}

fn interrupt(place: &Place, pid: u32) {
    // The test's user may be reached through `setpriv`, which has become the binary.
    let done = place.outside("kill").args(["-INT", &pid.to_string()]).status().unwrap();
    assert!(done.success());
}
