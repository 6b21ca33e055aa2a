//! Secrets: added to requests by the broker, absent from the guest.

use crate::support::family::children;
use crate::support::world::{PUBLIC, World};
use crate::support::{As, Place, binary, either};
use serde_json::json;
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

const VALUE: &str = "hunter2-6f1c9a40d2";

fn world(who: As) -> World {
    World::new(who)
        .host(PUBLIC, "api.test other.test")
        .certificate(&["api.test", "other.test"])
        .server("https", PUBLIC, 443)
}

fn policy(world: &World) -> String {
    world.place.policy(json!({"version": 1, "extends": ["default"],
        "net": {"rules": [{"action": "allow", "host": "api.test"}, {"action": "allow", "host": "other.test"}]},
        "secrets": [{"name": "TOKEN", "inject": {"host": "api.test", "header": "authorization", "format": "Bearer {}"}}]}))
}

fn backwards(text: &str) -> String {
    text.chars().rev().collect()
}

/// The server's echo of the header that the broker added.
fn added() -> String {
    format!("auth={}", backwards(&format!("Bearer {VALUE}")))
}

// promise 6
#[test]
fn the_broker_adds_it_and_the_guest_has_a_placeholder() {
    const TEXT: &str = "echo $TOKEN; curl -sS -m 10 -H \"Authorization: Bearer $TOKEN\" https://api.test/a; \
         curl -sS -m 10 -H \"Authorization: Bearer $TOKEN\" https://other.test/b";
    for who in either() {
        let world = world(who);
        let run = world.run_with(&["-p", &policy(&world)], &["/bin/sh", "-c", TEXT], &[("TOKEN", VALUE)]);
        run.assert_ok();
        let stdout = run.stdout();
        let lines: Vec<&str> = stdout.lines().collect();
        assert!(lines[0].starts_with("cofferdam-secret-TOKEN-"), "{}", run.story());
        assert!(lines[1].contains(&added()), "{}", run.story());
        assert!(!lines[2].contains(&backwards(VALUE)), "another host never sees it: {}", run.story());
    }
}

#[test]
fn it_comes_from_where_the_caller_says() {
    for who in either() {
        let world = world(who);
        let file = world.place.file("secret", format!("{VALUE}\n"));
        let policy = policy(&world);
        let from_file = format!("TOKEN=file:{}", file.display());
        let from_command = format!("TOKEN=cmd:cat {}", file.display());
        for source in ["TOKEN=env:OTHER", &from_file, &from_command] {
            let flags = ["-p", &policy, "--secret", source];
            let curl = ["/usr/bin/curl", "-sS", "-m", "10", "https://api.test/"];
            let run = world.run_with(&flags, &curl, &[("OTHER", VALUE)]);
            run.assert_ok();
            assert!(run.stdout().contains(&added()), "{source}: {}", run.story());
        }
    }
}

#[test]
fn one_is_made_by_a_flag_alone() {
    for who in either() {
        let world = world(who);
        let file = world.place.file("secret", format!("{VALUE}\n"));
        let from_file = format!("TOKEN=file:{}", file.display());
        let curl = ["/usr/bin/curl", "-sS", "-m", "10", "https://api.test/"];
        let entry = ["--net", "api.test,other.test", "--secret", "TOKEN@api.test"];
        let set = [("TOKEN", VALUE)];
        for (more, env) in [(&[][..], &set[..]), (&["--secret", &from_file], &[])] {
            let run = world.run_with(&[&entry[..], more].concat(), &curl, env);
            run.assert_ok();
            assert!(run.stdout().contains(&added()), "{more:?}: {}", run.story());
        }
        let run = world.run_with(&entry, &["/bin/sh", "-c", "echo $TOKEN"], &set);
        assert!(run.stdout().starts_with("cofferdam-secret-TOKEN-"), "{}", run.story());
        let other = ["/usr/bin/curl", "-sS", "-m", "10", "https://other.test/"];
        let run = world.run_with(&entry, &other, &set);
        assert!(run.code() == 0 && !run.stdout().contains(&backwards(VALUE)), "one host: {}", run.story());
        let formatted = ["--net", "api.test", "--secret", "TOKEN@api.test:authorization:token {}"];
        let run = world.run_with(&formatted, &curl, &set);
        assert!(run.stdout().contains(&backwards(&format!("token {VALUE}"))), "{}", run.story());
        // It must have a value, and a host that can be one.
        world.run(&entry, &curl).assert_code(2);
        for bad in ["TOKEN@", "TOKEN@*.test", "TOKEN@api.test:443", &format!("{VALUE}@api.test")] {
            let run = world.run_with(&["--secret", bad], &["echo", "started"], &set);
            run.assert_code(2);
            assert!(!run.stderr().contains(VALUE) && run.text("/hint").contains("NAME@HOST"), "{bad}: {}", run.story());
        }
    }
}

#[test]
fn a_sandbox_gets_no_secret_by_a_flag_of_a_command() {
    let place = Place::new(As::User);
    let made = place.cofferdam(["create", "--name", "lab"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let exec = |flags: &[&str]| {
        let words = [&["exec"], flags, &["lab", "--", "true"]].concat();
        place.cofferdam(words).env("TOKEN", VALUE).output().unwrap()
    };
    assert!(exec(&[]).status.success(), "the control");
    let refused = exec(&["--secret", "TOKEN@api.test"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn one_that_is_kept_is_given_to_runs_that_name_it() {
    let world = world(As::User);
    let file = world.place.file("secret", format!("{VALUE}\n"));
    let kept = |args: &[&str]| {
        let done = world.place.cofferdam(args).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let policy = policy(&world);
    let curl = ["/usr/bin/curl", "-sS", "-m", "10", "https://api.test/"];
    // Control: without a stored secret the run is refused.
    world.run(&["-p", &policy], &curl).assert_code(2);
    kept(&["secret", "set", "TOKEN", "--file", file.to_str().unwrap()]);
    assert!(kept(&["secret", "ls", "--json"]).contains("TOKEN") && !kept(&["secret", "ls", "--json"]).contains(VALUE));
    for flags in [&["-p", &policy][..], &["-p", &policy, "--secret", "TOKEN=store:TOKEN"]] {
        let run = world.run(flags, &curl);
        run.assert_ok();
        assert!(run.stdout().contains(&added()), "{}", run.story());
    }
    kept(&["secret", "rm", "TOKEN"]);
    world.run(&["-p", &policy], &curl).assert_code(2);
}

#[test]
fn what_is_missing_or_typed_is_told_before_the_start() {
    for who in either() {
        let world = world(who);
        let policy = policy(&world);
        let run = world.run(&["-p", &policy], &["echo", "started"]);
        run.assert_code(2);
        assert!(run.text("/message").contains("TOKEN") && run.text("/hint").contains("--secret"), "{}", run.story());
        for (word, says) in [
            (format!("TOKEN={VALUE}"), "env:VARIABLE"),
            ("TOKEN=file:/no/such".into(), ""),
            ("TOKEN=cmd:exit 1".into(), ""),
            ("OTHER=env:HOME".into(), "TOKEN"),
        ] {
            let run = world.run(&["-p", &policy, "--secret", &word], &["echo", "started"]);
            run.assert_code(2);
            assert!(run.text("/hint").contains(says), "{word}: {}", run.story());
            assert!(!run.stderr().contains(VALUE), "{}", run.story());
            assert_eq!(run.stdout(), "");
        }
    }
}

// promise 6
#[test]
fn explaining_a_run_looks_no_secret_up() {
    for who in either() {
        let world = world(who);
        let policy = policy(&world);
        let made = world.place.project.join("made");
        let command = format!("TOKEN=cmd:touch {0}; echo x", made.display());
        let run = world.run(&["--explain", "-p", &policy, "--secret", &command], &["true"]);
        run.assert_ok();
        assert!(run.stdout().contains("# secrets\nTOKEN: the output of the command \"touch "), "{}", run.story());
        assert!(!made.exists(), "{who:?}: the command of a secret was run");
        for (word, says) in [
            ("TOKEN=env:NOWHERE", "TOKEN: the variable NOWHERE, which is not set"),
            ("TOKEN=file:/no/such", "TOKEN: the file /no/such"),
        ] {
            let run = world.run(&["--explain", "-p", &policy, "--secret", word], &["true"]);
            run.assert_ok();
            assert!(run.stdout().contains(says), "{}", run.story());
        }
        world.run(&["-p", &policy, "--secret", &command], &["true"]).assert_ok();
        assert!(made.exists(), "a run runs it");
    }
}

/// Searches a process's memory for the text; needs root.
fn has_in_memory(pid: u32, text: &[u8]) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(memory) = fs::File::open(format!("/proc/{pid}/mem")) else { return false };
    maps.lines().any(|line| {
        let range = line.split(' ').next().and_then(|r| r.split_once('-'));
        let parse = |n: &str| u64::from_str_radix(n, 16).unwrap();
        let Some((from, to)) = range.map(|(a, b)| (parse(a), parse(b))) else { return false };
        let mut bytes = vec![0; ((to - from) as usize).min(64 << 20)];
        let got = memory.read_at(&mut bytes, from).unwrap_or(0);
        bytes[..got].windows(text.len()).any(|w| w == text)
    })
}

fn below(pid: u32) -> Vec<u32> {
    children(pid).into_iter().flat_map(|child| [vec![child], below(child)].concat()).collect()
}

// promise 6
#[test]
fn no_process_inside_has_it_in_its_memory() {
    for who in either() {
        let world = world(who);
        let policy = policy(&world);
        let args = ["run", "-p", &policy, "--env", "TOKEN", "--", "/bin/sh", "-c", "echo ready; exec sleep 30"];
        let mut command = world.command(binary().to_str().unwrap(), &args);
        let mut child = command.env("TOKEN", VALUE).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        let is_ours = |pid: &u32| {
            let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            exe.starts_with(binary()) || exe == Path::new(binary())
        };
        let supervisor = below(child.id()).into_iter().find(is_ours).expect("the supervisor");
        assert!(has_in_memory(supervisor, VALUE.as_bytes()), "the test finds it where it is");
        let inside: Vec<u32> = below(supervisor);
        assert!(inside.len() >= 2, "pid 1 and the command: {inside:?}");
        for pid in inside {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            assert!(!has_in_memory(pid, VALUE.as_bytes()), "{who:?}: {status}");
        }
        let _ = std::process::Command::new("kill").arg(supervisor.to_string()).status();
        child.wait().unwrap();
    }
}
