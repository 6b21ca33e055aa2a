//! Contexts: made, listed, restarted, removed; each with its own directory, environment and language.

use crate::fixture::CodeFixture;
use crate::support::words::Verbs;
use crate::support::{As, either};

// promise 29
#[test]
fn a_context_has_a_directory_an_environment_and_a_language_of_its_own() {
    for who in either() {
        let f = CodeFixture::new(who);
        f.place.dir("home/project/sub");
        for (language, code) in [
            ("python", "import os; print(os.environ['MODE'], os.path.basename(os.getcwd()))"),
            ("javascript", "console.log(process.env.MODE, require('path').basename(process.cwd()))"),
            ("bash", "echo $MODE ${PWD##*/}"),
        ] {
            let made = f.place.json(&[
                "context",
                "create",
                language,
                "-l",
                language,
                "-w",
                "sub",
                "-E",
                "MODE=fast",
                "--sandbox",
                "s",
            ]);
            assert_eq!((made["name"].as_str(), made["language"].as_str()), (Some(language), Some(language)));
            assert_eq!(f.call(&["--context", language, "-l", language], code).ok().stdout(), "fast sub\n");
        }
        f.call(&["--context", "plain"], "import os; assert 'MODE' not in os.environ").ok();
        assert_eq!(f.contexts().len(), 4);
    }
}

// promise 29
#[test]
fn a_context_is_restarted_and_removed() {
    let f = CodeFixture::new(As::User);
    f.python("x = 1").ok();
    f.call(&["--context", "b"], "x = 2").ok();
    let before = f.context("python");
    assert_eq!(
        (before["calls"].as_u64(), before["restarts"].as_u64(), &before["state"]),
        (Some(1), Some(0), &"idle".into())
    );
    f.place.json(&["context", "restart", "python", "--sandbox", "s"]);
    f.python("x").failed("NameError");
    assert_eq!(f.context("python")["restarts"], 1);
    assert_eq!(f.call(&["--context", "b"], "x").ok().value(), "2", "another context keeps its state");
    let removed = f.place.json(&["context", "rm", "b", "--sandbox", "s"]);
    assert_eq!((removed["name"].as_str(), removed["was_busy"].as_bool()), (Some("b"), Some(false)));
    assert_eq!(f.contexts().len(), 1);
    f.place.fault(&["context", "rm", "b", "--sandbox", "s"], "not_found");
    f.place.fault(&["context", "restart", "b", "--sandbox", "s"], "not_found");
    f.place.fault(&["context", "interrupt", "b", "--sandbox", "s"], "not_found");
}

// promise 29
#[test]
fn contexts_of_two_sandboxes_share_nothing() {
    let f = CodeFixture::new(As::User);
    f.place.create(&["--name", "t"]);
    f.python("secret = 1").ok();
    f.place.fault(&["context", "restart", "python", "--sandbox", "t"], "not_found");
    let other = f.place.verb(&["code", "--sandbox", "t", "-e", "secret"]);
    assert!(crate::support::words::text(&other.stderr).contains("NameError"), "{other:?}");
    assert_eq!(f.python("secret").ok().value(), "1");
}

// promise 29
#[test]
fn bad_names_and_languages_are_refused() {
    let f = CodeFixture::new(As::User);
    f.call(&["-l", "cobol"], "1").fault("invalid_request");
    f.call(&["--context", ""], "1").fault("invalid_request");
    f.call(&["--context", "../x"], "1").fault("invalid_request");
    f.call(&["--context", &"n".repeat(300)], "1").fault("invalid_request");
    f.call(&["-E", "=x"], "1").fault("invalid_request");
    f.call(&["-t", "banana"], "1").fault("invalid_request");
    f.call(&["-w", "/etc/passwd"], "1").fault("invalid_request");
    let missing = f.call(&["-w", "missing"], "import os; os.getcwd()");
    assert!(missing.document.to_string().contains("missing"), "{missing:#?}");
    f.python("1").ok();
    let other = f.call(&["--context", "python", "-l", "bash"], "1").fault("conflict");
    assert!(other.message().contains("python"), "{other:#?}");
}

// promise 29
#[test]
fn a_context_ends_with_its_sandbox() {
    let f = CodeFixture::new(As::User);
    f.python("x = 1").ok();
    f.place.json(&["stop", "s"]);
    f.place.json(&["start", "s"]);
    f.python("x").failed("NameError");
    f.python("open('kept', 'w').write('files are kept')").ok();
    f.place.json(&["rm", "s", "--force"]);
    assert!(crate::support::left::soon(|| f.processes("cofferdam_worker").is_empty()));
}
