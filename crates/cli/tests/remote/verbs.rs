//! Every verb of the command line works at a daemon or reports that it is local: the tree of verbs is walked, and a
//! verb that the table lacks fails the test.

use crate::support::http::Daemon;
use crate::support::{As, Place, to_the_end};
use crate::table::{Side, TABLE};
use std::collections::BTreeSet;
use std::process::Command;

/// Collects the verbs that the help lists, with those below them. A verb that only holds others is left out.
fn walk(place: &Place, above: &[String], found: &mut BTreeSet<String>) {
    let help = place.cofferdam(above).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    // Verbs stand in one or more lists between the usage and the options; so do arguments, which start with a bracket.
    let listed: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.starts_with("Usage:"))
        .take_while(|line| *line != "Options:")
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .collect();
    if listed.is_empty() {
        found.insert(above.join(" "));
    }
    for verb in listed {
        walk(place, &[above, &[verb.to_owned()]].concat(), found);
    }
}

const PRELUDE: &str = r#"
c() { "$COFFERDAM" "$@"; }
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
port() { python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
question() { python3 -c 'import json, sys; print(json.load(sys.stdin)["questions"][0]["id"])'; }
asking() {
    echo hush > .env
    echo '{"version": 1, "extends": ["default"], "fs": {"rules": [{"action": "ask", "path": "$WORKSPACE/.env"}]}}' > ask.json
    c create --name q-$b -p ask.json > /dev/null
    r=$(c exec -d q-$b -- cat .env)
    until c questions q-$b --json | grep -q qst_; do sleep 0.1; done
}
c create --name $b > /dev/null
"#;

/// Sets a state directory that does not exist: a verb carried out locally would find nothing.
fn nowhere(place: &Place, command: &mut Command) {
    command.env("COFFERDAM_STATE", place.root.join("none"));
}

fn shown(place: &Place, daemon: &Daemon, verb: &str, script: &str, wanted: &[&str]) -> Result<(), String> {
    let name = format!("box-{}", verb.replace(' ', "-"));
    let dir = place.dir(format!("home/project/{name}"));
    let mut shell = place.outside("/bin/sh");
    nowhere(place, &mut shell);
    shell.args(["-euc", &format!("{PRELUDE}{script}")]).env("COFFERDAM_SERVER", &daemon.socket).current_dir(dir);
    let out = to_the_end(shell.env("COFFERDAM", crate::support::binary()).env("b", &name), b"");
    let (text, err) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let mut rest = &*text;
    for word in wanted {
        match rest.find(word) {
            Some(at) => rest = &rest[at + word.len()..],
            None => return Err(format!("{verb}: no {word:?} in\n{text}\n{err}")),
        }
    }
    match out.status.success() {
        true => Ok(()),
        false => Err(format!("{verb}: {}\n{text}\n{err}", out.status)),
    }
}

// promise 27
#[test]
fn every_verb_is_asked_of_the_daemon_or_says_that_it_is_local() {
    let place = Place::new(As::User);
    let mut tree = BTreeSet::new();
    walk(&place, &[], &mut tree);
    // A verb with subcommands that is a verb itself.
    tree.insert("snapshot".to_owned());
    let known: BTreeSet<String> = TABLE.iter().map(|(verb, _)| (*verb).to_owned()).collect();
    assert_eq!(tree, known, "the tree of verbs, and the table of where they are carried out");
    let daemon = Daemon::start(&place);
    place.file("home/project/srt.json", r#"{"network": {"allowedDomains": []}, "filesystem": {"denyRead": []}}"#);
    let mut wrong = Vec::new();
    for (verb, place_of_it) in TABLE {
        let here = |args: &[&str]| {
            let mut command = place.cofferdam(args);
            nowhere(&place, &mut command);
            to_the_end(command.arg("--server").arg(&daemon.socket), b"")
        };
        match place_of_it {
            Side::Remote(script, wanted) => wrong.extend(shown(&place, &daemon, verb, script, wanted).err()),
            Side::Local(args) => {
                // Words after `--` belong to the command.
                let (flags, rest) = args.split_at(args.iter().position(|word| *word == "--").unwrap_or(args.len()));
                let mut command = place.cofferdam(flags);
                nowhere(&place, &mut command);
                let out = to_the_end(command.arg("--server").arg(&daemon.socket).args(rest), b"");
                let told = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
                let says = told.contains(&format!("`{verb}` works on this host only and cannot run at the daemon"));
                if out.status.code() != Some(125) || !says {
                    wrong.push(format!("{verb}: {:?} {told}", out.status.code()));
                }
            }
            Side::Pure(args, wanted) => {
                let out = here(args);
                let told = String::from_utf8_lossy(&out.stderr);
                let says = told.contains(&format!("`{verb}` runs here, not at the daemon"));
                let gives = String::from_utf8_lossy(&out.stdout).contains(wanted);
                if !out.status.success() || !says || !gives {
                    wrong.push(format!("{verb}: {:?} {told}", out.status));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} verbs:\n{}", wrong.len(), wrong.join("\n---\n"));
}
