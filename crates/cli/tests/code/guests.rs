//! Sandboxes whose interpreters are missing or too old: what is said names the program.

use crate::fixture::CodeFixture;
use crate::support::As;
use crate::support::words::Verbs;
use serde_json::json;

// promise 29
#[test]
fn an_interpreter_that_is_missing_is_named() {
    let f = CodeFixture::with_env(As::User, json!({"PATH": "/nowhere"}));
    for (language, program) in [("python", "python3"), ("javascript", "node"), ("bash", "bash")] {
        let missing = f.call(&["-l", language], "1");
        assert!(missing.status != 0 && missing.message().contains(program), "{language}: {missing:#?}");
    }
    let f = CodeFixture::with(As::User, &["--deny-exec", "/usr/bin/node"]);
    let refused = f.call(&["-l", "javascript"], "1");
    assert!(refused.status != 0 && refused.document.to_string().contains("node"), "{refused:#?}");
    f.python("1").ok();
}

// promise 29
#[test]
fn an_interpreter_that_is_too_old_is_told_with_the_version_that_is_needed() {
    let place = crate::support::Place::new(As::User);
    let path = format!("{}:/usr/bin", place.project.join("bin").display());
    let old_python = "import sys; sys.version_info = (3, 7, 9, 'final', 0); sys.version = '3.7.9 (old)'";
    place.script("home/project/bin/python3", &format!("#!/bin/sh\nexec /usr/bin/python3 -c \"{old_python}\n$2\"\n"));
    let old_node = "Object.defineProperty(process, 'versions', {value: {node: '10.24.0'}});";
    place.script("home/project/bin/node", &format!("#!/bin/sh\nexec /usr/bin/node -e \"{old_node}$2\"\n"));
    let policy = place.policy(json!({"version": 1, "extends": ["default"], "env": {"set": {"PATH": path}}}));
    place.create(&["--name", "s", "-p", &policy]);
    let f = CodeFixture { place };
    for (language, found, needed) in [("python", "3.7.9", "3.8"), ("javascript", "10.24.0", "18")] {
        let told = f.call(&["-l", language], "1");
        let said = told.message();
        assert!(told.status != 0 && said.contains(found) && said.contains(needed), "{language}: {told:#?}");
    }
}
