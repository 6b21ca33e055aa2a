//! Calls of code: state that is kept, files and standard input, policy and review.

use crate::fixture::{Call, CodeFixture};
use crate::support::words::{Verbs, text};
use crate::support::{As, BOTH, Place, either, to_the_end};
use serde_json::json;

// promise 29
#[test]
fn each_language_keeps_its_state_between_calls() {
    for who in BOTH {
        let f = CodeFixture::new(who);
        for (language, first, second, value) in [
            ("python", "import os; x = 41\ndef twice(n): return 2 * n", "print(twice(x) - 40)", "42\n"),
            ("javascript", "const x = 41; function twice(n) { return 2 * n }", "console.log(twice(x) - 40)", "42\n"),
            (
                "bash",
                "x=41; mkdir -p d; cd d; twice() { echo $((2 * $1)); }",
                "echo $(($(twice x) - 40)) ${PWD##*/}",
                "42 d\n",
            ),
        ] {
            f.call(&["-l", language], first).ok();
            let second = f.call(&["-l", language], second).ok();
            assert_eq!(second.stdout(), value, "{who:?} {language}");
            assert_eq!(second.document["outcome"]["execution_count"], 2);
            assert_eq!(second.document["context"], language, "without a name a context is called like its language");
        }
    }
}

// promise 29
#[test]
fn without_a_sandbox_one_is_made_and_used_again() {
    let place = Place::new(As::User);
    let call = |code: &str| place.verb(&["code", "-e", code]);
    let first = call("x = 6");
    assert!(first.status.success() && text(&first.stderr).contains("made the sandbox"), "{first:?}");
    let second = call("x * 7");
    assert_eq!((text(&second.stdout).as_str(), text(&second.stderr).as_str()), ("42\n", ""));
    assert_eq!(place.states().len(), 1);
}

// promise 29
#[test]
fn code_comes_from_a_file_whose_name_tells_the_language_or_from_standard_input() {
    let f = CodeFixture::new(As::User);
    let file = |name: &str, code: &str| {
        let file = f.place.file(format!("home/project/{name}"), code);
        let done = f.place.verb(&["code", "--sandbox", "s", file.to_str().unwrap()]);
        assert!(done.status.success(), "{name}: {done:?}");
        text(&done.stdout)
    };
    assert_eq!(file("a.py", "print('py')"), "py\n");
    assert_eq!(file("a.js", "console.log('js')"), "js\n");
    assert_eq!(file("a.sh", "echo sh"), "sh\n");
    let mut piped = f.place.cofferdam(["code", "--sandbox", "s"]);
    assert_eq!(text(&to_the_end(&mut piped, b"print(2 ** 10)\n").stdout), "1024\n");
    let ruby = f.place.file("home/project/a.rb", "puts 1");
    let unknown = f.place.verb(&["code", "--sandbox", "s", ruby.to_str().unwrap()]);
    assert!(
        unknown.status.code() == Some(2) && text(&unknown.stderr).contains("a.rb: its name tells no language"),
        "{unknown:?}"
    );
    assert_eq!(f.place.verb(&["code", "--sandbox", "s", "-i", "-e", "1"]).status.code(), Some(2));
    let gone = f.place.verb(&["code", "--sandbox", "s", "gone.py"]);
    assert!(!gone.status.success() && text(&gone.stderr).contains("gone.py"), "{gone:?}");
}

// promise 29
#[test]
fn the_policy_holds_and_its_refusals_are_told() {
    for who in either() {
        let f = CodeFixture::with(who, &["--deny-write", "locked"]);
        f.place.dir("home/project/locked");
        f.python("open('made', 'w').write('by code')").ok();
        let denied = f.python("open('locked/x', 'w')").ended("denied", 1, false);
        let target = denied.document["outcome"]["denials"][0]["target"].as_str().unwrap_or_default().to_owned();
        assert!(target.ends_with("locked/x") || target.ends_with("locked"), "{denied:#?}");
        let said = text(&f.plain(&[], "open('locked/y', 'w')").stderr);
        assert!(said.contains("locked") && said.contains("PermissionError"), "{said}");
        // What code changed is reviewed like what a command changed.
        let diff = text(&f.place.verb(&["diff", "s"]).stdout);
        assert!(diff.contains("made") && diff.contains("by code"), "{diff}");
        assert!(!f.place.project.join("made").exists());
        f.place.json(&["approve", "s", "--all"]);
        assert_eq!(std::fs::read_to_string(f.place.project.join("made")).unwrap(), "by code");
    }
}

// promise 29
#[test]
fn output_of_a_call_is_that_of_its_code_in_a_pipe() {
    let f = CodeFixture::new(As::User);
    let done = f.plain(&[], "import sys\nprint('out')\nprint('err', file=sys.stderr)\n7 * 6");
    assert_eq!((text(&done.stdout).as_str(), text(&done.stderr).as_str()), ("out\n42\n", "err\n"));
    // Also of programs that code starts, and of bytes that are no text.
    let bytes =
        f.call(&[], "import os, subprocess\nsubprocess.run(['printf', r'\\377'])\nos.write(1, b'\\xfe')\nNone").ok();
    assert_eq!((&bytes.document["stdout_encoding"], bytes.stdout()), (&json!("base64"), "//4="));
    let failed = f.plain(&[], "1 / 0");
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).contains("ZeroDivisionError"), "{failed:?}");
}

// promise 29
#[test]
fn two_calls_in_one_context_take_turns_and_two_contexts_do_not_wait() {
    let f = CodeFixture::new(As::User);
    f.python("import os, time").ok();
    std::thread::scope(|scope| {
        let long = scope.spawn(|| {
            f.python("open('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\n'first'")
        });
        let begun = || f.call(&["--context", "other"], "import os; os.path.exists('begun')").value() == "True";
        assert!(crate::support::left::soon(begun), "another context runs meanwhile");
        let busy = f.call(&["--queue", "0s"], "1").fault("conflict");
        assert!(busy.message().contains("python"), "{busy:#?}");
        let second = scope.spawn(|| f.python("'second'"));
        f.call(&["--context", "other"], "open('go', 'w').close()").ok();
        let value = |call: Call| call.ok().value().to_owned();
        assert_eq!((value(long.join().unwrap()), value(second.join().unwrap())), ("'first'".into(), "'second'".into()));
    });
}
