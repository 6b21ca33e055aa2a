//! Hidden paths stay hidden under every mount that other rules put over their directory: missing names, listed
//! programs, the workspace.

use crate::support::{BOTH, Place};
use crate::{CANARY, assert_no_canary};
use serde_json::{Value, json};

const READS: [&str; 3] = ["read_file", "read_dir", "execute"];

fn beside(place: &Place, fs: &[Value], more: Value) -> String {
    let mut rules = vec![json!({"action": "allow", "path": place.root.join("tools"), "perms": READS})];
    rules.extend_from_slice(fs);
    let mut document = json!({"version": 1, "extends": ["default"], "fs": {"rules": rules}});
    document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    place.policy(document)
}

fn deny(place: &Place, path: &str) -> Value {
    json!({"action": "deny", "path": place.root.join(path)})
}

/// Regression: the overlay that hides a missing name showed its directory as on the host, without the cover over
/// another name in it and without the workspace below it.
// promise 1
#[test]
fn a_name_that_is_missing_uncovers_nothing_beside_it() {
    for who in BOTH {
        let place = Place::new(who);
        place.file("tools/open", "open\n");
        place.file("tools/secret", CANARY);
        place.file("tools/deep/down/secret", CANARY);
        let tools = place.root.join("tools");
        let tools = tools.display();
        let text =
            format!("cat {tools}/open; cat {tools}/secret {tools}/deep/down/secret {tools}/later; ls {tools}/deep");
        for missing in
            [&["tools/later"][..], &["tools/later", "tools/deep/later", "tools/deep/down/later", "tools/a/b"]]
        {
            let denied = ["tools/secret", "tools/deep/down/secret"].iter().chain(missing);
            let denied: Vec<Value> = denied.map(|path| deny(&place, path)).collect();
            let run = place.sh(&["-p", &beside(&place, &denied, json!({}))], &text);
            assert_no_canary(&run);
            assert_eq!(run.stdout(), "open\ndown\n", "control: {}", run.story());
        }
        let shown = json!({"action": "allow", "path": place.home, "perms": READS});
        let rules = [shown, json!({"action": "deny", "path": place.home.join(".later")})];
        let run = place.sh(&["-p", &beside(&place, &rules, json!({}))], "echo made > made && cat made && pwd");
        run.assert_ok();
        assert_eq!(run.stdout(), format!("made\n{}\n", place.project.display()), "{}", run.story());
        assert!(!place.project.join("made").exists(), "and it is the workspace's");
    }
}

/// Regression: a directory of listed programs was bound over the covers of other rules, so a denied file could be read
/// and a denied program started by its descriptor.
// promise 1
#[test]
fn a_directory_of_listed_programs_uncovers_nothing_in_it() {
    for who in BOTH {
        let place = Place::new(who);
        place.file("tools/secret", CANARY);
        place.file("tools/open", "open\n");
        for name in ["good", "bad"] {
            place.script(format!("tools/{name}"), "");
            crate::support::copy_program("/bin/echo", place.root.join("tools").join(name));
        }
        let (tools, python) = (place.root.join("tools"), std::fs::canonicalize("/usr/bin/python3").unwrap());
        let allowed = |path: &std::path::Path| json!({"action": "allow", "path": path});
        let rules = json!([allowed(&tools), allowed(&python), deny(&place, "tools/bad")]);
        let more = json!({"defaults": {"exec": "deny"}, "exec": {"rules": rules}});
        let later = deny(&place, "tools/later");
        let policy = beside(&place, &[deny(&place, "tools/secret"), later], more);
        let read = |name: &str| format!("print(open('{}/{name}').read())", tools.display());
        let run = place.python(&["-p", &policy], &read("secret"));
        assert_no_canary(&run);
        assert_ne!(run.code(), 0, "{}", run.story());
        place.python(&["-p", &policy], &read("open")).assert_ok();
        for (name, printed) in [("bad", ""), ("good", "ran\n")] {
            let text = format!(
                "import os\nfd = os.open('{}/{name}', os.O_RDONLY)\nos.execve(fd, ['echo', 'ran'], {{}})",
                tools.display()
            );
            let run = place.python(&["-p", &policy], &text);
            assert_eq!(run.stdout(), printed, "{who:?} {name}: {}", run.story());
        }
    }
}

/// Regression: with a denial on a directory of which only a part was shown, no mount kept a program in it from being
/// executed by its descriptor.
// promise 1
#[test]
fn a_denial_above_a_grant_holds_for_programs() {
    for who in BOTH {
        let place = Place::new(who);
        let tool = place.script("tools/deep/tool", "");
        crate::support::copy_program("/bin/echo", &tool);
        let text =
            format!("import os\nfd = os.open('{}', os.O_RDONLY)\nos.execve(fd, ['echo', 'ran'], {{}})", tool.display());
        let shown = json!({"action": "allow", "path": place.root.join("tools/deep"), "perms": READS});
        for (denied, printed) in [("tools", ""), ("tools/deep", ""), ("tools/deep/tool", ""), ("elsewhere", "ran\n")] {
            let exec = json!({"exec": {"rules": [deny(&place, denied)]}});
            let mut document = json!({"version": 1, "extends": ["default"], "fs": {"rules": [shown]}});
            document.as_object_mut().unwrap().extend(exec.as_object().unwrap().clone());
            let run = place.python(&["-p", &place.policy(document)], &text);
            assert_eq!(run.stdout(), printed, "{who:?} {denied}: {}", run.story());
        }
    }
}
