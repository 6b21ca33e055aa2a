//! The sandbox's own home: writable, kept with the sandbox, and nothing of it on the host or in a diff.

use crate::snapshots::{id_of, inside};
use crate::support::{BOTH, Place, Run, either, holders, to_the_end};
use crate::words::{Verbs, text};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// What tools leave in a home.
const WORK: &str = "set -e; test \"$(pwd)\" != \"$HOME\"; mkdir -p ~/.cache/tool ~/.config/tool; echo left-here > ~/.cache/tool/mark; \
    git config --global user.name Somebody; echo ls >> ~/.bash_history; ln -s .cache/tool ~/link; mv ~/.config/tool ~/.config/moved";
const LOOK: &str =
    "cat ~/.cache/tool/mark ~/.bash_history; git config --global user.name; cat ~/link/mark; ls ~/.config";
const LOOKED: &str = "left-here\nls\nSomebody\nleft-here\nmoved\n";

/// A home of the host with a file, a toolchain, and the project.
fn place(who: crate::support::As) -> Place {
    let place = Place::new(who);
    place.file("home/.secret", "of the host\n");
    place.file("home/.config/own", "of the host\n");
    place.file("home/project/base", "base\n");
    place.script("home/.tools/bin/greet", "#!/bin/sh\necho greetings\n");
    place
}

/// Names below the host's home, the project's among them.
fn names(home: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![home.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap().flatten() {
            let path = entry.path();
            found.push(path.strip_prefix(home).unwrap().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                dirs.push(path);
            }
        }
    }
    found.sort();
    found
}

#[track_caller]
fn refused(place: &Place, id: &str, script: &str) -> String {
    let output = place.verb(&["exec", id, "--", "/bin/sh", "-c", script]);
    assert!(!output.status.success(), "{script} must fail: {}", text(&output.stdout));
    text(&output.stdout) + &text(&output.stderr)
}

/// The fault of a command that cannot start, because something in the home is in the way.
#[track_caller]
fn blocked(place: &Place, id: &str) -> serde_json::Value {
    let output = place.verb(&["exec", "--json", id, "--", "true"]);
    let fault: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert_eq!(fault["error_kind"], "conflict", "{fault} {}", text(&output.stderr));
    assert!(fault["hint"].as_str().unwrap().contains("reject --home"), "{fault}");
    fault
}

#[test]
fn the_home_is_writable_private_and_kept_with_its_sandbox() {
    for who in BOTH {
        let place = place(who);
        let before = names(&place.home);
        let id = place.create(&[]);
        inside(&place, &id, WORK);
        assert_eq!(inside(&place, &id, LOOK), LOOKED, "{who:?}");
        // Nothing of the host's home shows, and nothing reached it; a rule that names a path does show it.
        refused(&place, &id, "cat ~/.secret");
        refused(&place, &id, "cat ~/.config/own");
        assert_eq!(names(&place.home), before, "{who:?}");
        let shown = place.sh(&["--read", "~/.secret"], "cat ~/.secret; echo x > ~/.other; ls -A ~");
        assert_eq!(shown.assert_ok().stdout(), "of the host\n.other\n.secret\nproject\n", "{}", shown.story());
        // Nothing of it is offered for landing.
        let diff = place.json(&["diff", &id]);
        assert_eq!(diff["files"], json!([]), "{who:?}: {diff}");
        inside(&place, &id, "echo new > new");
        place.json(&["diff", &id]);
        place.json(&["approve", &id, "new"]);
        let landed: Vec<String> = names(&place.home).into_iter().filter(|name| !before.contains(name)).collect();
        assert_eq!(landed, ["project/new"], "{who:?}");
        // It goes with the sandbox.
        assert!(!holders(&place.state().join("layers"), b"left-here").is_empty(), "{who:?}");
        place.json(&["rm", &id]);
        assert!(holders(&place.state().join("layers"), b"left-here").is_empty(), "{who:?}");
        place.audit();
    }
}

#[test]
fn a_run_is_kept_for_its_workspace_and_never_for_its_home() {
    for who in either() {
        let place = place(who);
        let run = place.sh(&["-v"], WORK);
        assert_eq!(run.assert_ok().text("/sandbox"), "", "{}", run.story());
        assert!(run.denials().is_empty() && run.outcome["changes"]["added"] == 0, "{}", run.story());
        assert!(place.layers().is_empty(), "{:?}", place.layers());
        let named = place.sh(&["--name", "dev"], WORK);
        assert!(named.assert_ok().text("/sandbox").starts_with("sbx_"), "{}", named.story());
        assert_eq!(inside(&place, "dev", LOOK), LOOKED);
        let gone = place.sh(&["--rm"], WORK);
        assert_eq!(gone.assert_ok().text("/sandbox"), "");
        assert_eq!(place.layers().len(), 1);
    }
}

/// Without a workspace the home is the run's alone.
#[test]
fn a_run_without_a_workspace_has_a_home_until_it_ends() {
    for who in BOTH {
        let place = place(who);
        let before = names(&place.home);
        let check = |run: &Run| assert_eq!(run.assert_ok().stdout(), LOOKED, "{who:?}: {}", run.story());
        check(&place.sh(&["--read-only"], &format!("{WORK}; {LOOK}")));
        check(&place.sh(&["--direct", "-p", "workspace-write"], &format!("{WORK}; {LOOK}")));
        place.sh(&["--read-only"], "test ! -e ~/.cache").assert_ok();
        assert_eq!(names(&place.home), before, "{who:?}");
        // A link that the run makes leads nowhere, and what leads to the project cannot be moved away.
        place.sh(&["--read-only"], "mv ~/project ~/other && exit 1; cat ~/project/base").assert_ok();
    }
}

#[test]
fn the_home_goes_with_snapshots_forks_and_templates_and_stays_with_merged_layers() {
    for (who, driver) in BOTH.into_iter().zip(["copy", "overlay"]).chain(BOTH.into_iter().zip(["overlay", "copy"])) {
        let place = place(who);
        let what = format!("{who:?} {driver}");
        let id = place.create(&["--driver", driver]);
        let empty = id_of(&place.json(&["snapshot", &id]));
        inside(&place, &id, WORK);
        let full = id_of(&place.json(&["snapshot", &id]));
        assert_eq!(inside(&place, &id, LOOK), LOOKED, "{what}: a snapshot changes nothing");
        inside(&place, &id, "rm -r ~/.cache ~/.config; echo second > ~/.bash_history");
        place.json(&["restore", &full]);
        assert_eq!(inside(&place, &id, LOOK), LOOKED, "{what}: restored");
        place.json(&["restore", &empty, "--discard"]);
        refused(&place, &id, "ls ~/.cache");
        let forks = place.json(&["fork", &full, "--count", "2"]);
        let fork = |n: usize| forks["sandboxes"][n]["id"].as_str().unwrap().to_owned();
        inside(&place, &fork(0), "rm ~/.bash_history");
        assert_eq!(inside(&place, &fork(1), LOOK), LOOKED, "{what}: forked");
        place.json(&["template", "create", "prepared", "--from", &full]);
        let seeded = place.create(&["--template", "prepared"]);
        assert_eq!(inside(&place, &seeded, LOOK), LOOKED, "{what}: from a template");
        // Deep stacks are merged.
        for n in 0..3 {
            inside(&place, &seeded, &format!("echo {n} > ~/n{n}; rm -f ~/n{}", n - 1));
            place.json(&["snapshot", &seeded]);
        }
        place.json(&["gc"]);
        assert_eq!(inside(&place, &seeded, LOOK), LOOKED, "{what}");
        assert_eq!(inside(&place, &seeded, "ls ~ | grep ^n"), "n2\n", "{what}");
        // A frozen home that was tampered with is not built upon.
        let tampered = holders(&place.state().join("layers"), b"left-here");
        for mark in tampered.iter().filter(|path| path.ends_with("home/.cache/tool/mark")) {
            fs::write(mark, "other\n").unwrap();
        }
        assert!(place.verb(&["fork", &full]).status.code() != Some(0), "{what}");
        place.audit();
    }
}

#[test]
fn what_the_host_shows_below_the_home_stays_where_it_is() {
    for (who, driver) in BOTH.into_iter().flat_map(|who| ["overlay", "copy"].map(|driver| (who, driver))) {
        let place = place(who);
        place.file("home/.tools/data", "host\n");
        let output = to_the_end(
            place
                .cofferdam(["create", "--json", "--driver", driver, "--read", "~/.tools/data"])
                .env("PATH", format!("{}/.tools/bin:/usr/bin:/bin", place.home.display())),
            b"",
        );
        let made: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let id = made["id"].as_str().unwrap();
        let exec = |script: &str| {
            let mut command = place.cofferdam(["exec", id, "--", "/bin/sh", "-c", script]);
            command.env("PATH", format!("{}/.tools/bin:/usr/bin:/bin", place.home.display()));
            let output = to_the_end(&mut command, b"");
            (output.status.success(), text(&output.stdout), text(&output.stderr))
        };
        for _ in 0..2 {
            let ran = exec("greet; cat ~/.tools/data; echo x > ~/.tools/cache && cat ~/.tools/cache");
            assert_eq!((ran.0, ran.1.as_str()), (true, "greetings\nhost\nx\n"), "{who:?} {driver}: {}", ran.2);
        }
        for script in
            ["echo x > ~/.tools/bin/greet", "echo x > ~/.tools/data", "rm ~/.tools/data", "mv ~/.tools ~/moved"]
        {
            assert!(!exec(script).0, "{who:?} {driver}: {script}");
        }
        assert!(exec("greet").0);
        assert_eq!(fs::read_to_string(place.home.join(".tools/data")).unwrap(), "host\n");
        assert!(!place.home.join(".tools/cache").exists());
    }
}

/// A home that an earlier command prepared leads no mount elsewhere.
#[test]
fn a_hostile_home_moves_no_mount_point() {
    for (who, driver) in BOTH.into_iter().flat_map(|who| ["overlay", "copy"].map(|driver| (who, driver))) {
        for trick in
            ["ln -s /etc ~/.late", "ln -s /.old/tmp ~/.late", "echo x > ~/.late", "mkdir ~/.late; mkfifo ~/.late/bin"]
        {
            let place = place(who);
            let what = format!("{who:?} {driver} {trick}");
            let id = place.create(&["--driver", driver, "--read", "~/.late/bin"]);
            inside(&place, &id, trick);
            // The control: what does not stand in the way is no trouble.
            inside(&place, &id, "true");
            place.file("home/.late/bin/file", "late\n");
            let fault = blocked(&place, &id);
            let message = fault["message"].as_str().unwrap();
            assert!(message.contains("/home/.late"), "{what}: {message}");
            assert!(!Path::new("/etc/bin").exists() && !Path::new("/tmp/bin").exists(), "{what}");
            fs::remove_dir_all(place.home.join(".late")).unwrap();
            inside(&place, &id, "rm -r ~/.late");
            place.file("home/.late/bin/file", "late\n");
            assert_eq!(inside(&place, &id, "cat ~/.late/bin/file"), "late\n", "{what}");
        }
    }
}

/// The workspace is mounted below the home, whatever a command made of the way to it.
#[test]
fn the_way_to_the_workspace_is_not_the_commands_to_choose() {
    for who in BOTH {
        let place = place(who);
        place.file("home/deep/er/project/base", "deep\n");
        let dir = place.home.join("deep/er/project");
        let id = place.create(&[dir.to_str().unwrap()]);
        refused(
            &place,
            &id,
            "python3 -c 'import os; os.rename(os.environ[\"HOME\"] + \"/deep\", os.environ[\"HOME\"] + \"/other\")'",
        );
        refused(&place, &id, "rmdir ~/deep/er/project");
        assert_eq!(inside(&place, &id, "cat base"), "deep\n", "{who:?}");
        let layer = place.layers().pop().unwrap().join("home");
        // As if a command of another version had left it.
        symlink("/etc", layer.join("deep")).unwrap();
        let fault = blocked(&place, &id);
        assert!(fault["message"].as_str().unwrap().contains("deep"), "{who:?}: {fault}");
    }
}

#[test]
fn the_home_counts_in_the_limits_on_disk_and_files() {
    for who in BOTH {
        let place = place(who);
        let write = |mb: u32| format!("head -c {mb}M /dev/zero > ~/fill; sync ~/fill; sleep 0.2");
        let id = place.create(&["--disk", "8m"]);
        inside(&place, &id, &write(4));
        let output = place.verb(&["exec", &id, "--json", "--", "/bin/sh", "-c", &format!("{}; sleep 60", write(16))]);
        let outcome = text(&output.stdout);
        assert!(outcome.contains("disk_mb"), "{who:?}: {outcome} {}", text(&output.stderr));
        inside(&place, &id, "rm ~/fill; echo control > ~/small");
        // What has no name any more counts as well.
        let held = "exec 3> ~/fill; rm ~/fill; head -c 16M /dev/zero >&3; sleep 60";
        let output = place.verb(&["exec", &id, "--json", "--", "/bin/sh", "-c", held]);
        assert!(text(&output.stdout).contains("disk_mb"), "{who:?}: {}", text(&output.stdout));
        let many = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); : > ~/f$i; done; sleep 60";
        let run = place.sh(&["--limit", "files=100"], many);
        assert_eq!(run.text("/limit_kind"), "files", "{who:?}: {}", run.story());
    }
}

#[test]
fn a_rule_that_names_the_home_means_the_hosts() {
    for who in BOTH {
        let place = place(who);
        let run = place.sh(&["--read", "~"], "cat ~/.secret; echo x > ~/made");
        assert_eq!((run.stdout().as_str(), run.code() != 0), ("of the host\n", true), "{who:?}: {}", run.story());
        place.sh(&["--write", "~"], "echo x > ~/made").assert_ok();
        assert_eq!(fs::read_to_string(place.home.join("made")).unwrap(), "x\n", "{who:?}");
        // A rule from above ends at the home.
        let above = place.root.to_str().unwrap();
        let run = place.sh(&["--read", above], "cat ~/.secret || echo own > ~/own && cat ~/own");
        assert_eq!(run.assert_ok().stdout(), "own\n", "{who:?}: {}", run.story());
        assert!(!place.home.join("own").exists(), "{who:?}");
        let told = place.verb(&["policy", "explain", "--read", above, "~/.secret"]);
        let told = text(&told.stdout);
        assert!(told.contains("private home") && told.contains("belongs to the sandbox"), "{who:?}: {told}");
    }
}

#[test]
fn a_layer_of_an_older_version_gets_a_home() {
    for who in either() {
        let place = place(who);
        let id = place.create(&[]);
        inside(&place, &id, "echo new > new");
        place.json(&["snapshot", &id]);
        for layer in place.layers() {
            for part in ["home", "homework"] {
                let _ = fs::remove_dir_all(layer.join(part));
            }
        }
        inside(&place, &id, WORK);
        assert_eq!(inside(&place, &id, &format!("cat new; {LOOK}")), format!("new\n{LOOKED}"));
    }
}

/// A program that was installed into the home is found by its name, also by the next command.
#[test]
fn programs_of_the_home_are_found() {
    for who in either() {
        let place = place(who);
        let id = place.create(&[]);
        let install = "mkdir -p ~/.local/bin ~/.local/lib; printf '#!/bin/sh\\necho installed\\n' > ~/.local/lib/tool; \
            chmod 755 ~/.local/lib/tool; ln -s ../lib/tool ~/.local/bin/tool";
        inside(&place, &id, install);
        let path = format!("{}/.local/bin:/usr/bin:/bin", place.home.display());
        let output = to_the_end(place.cofferdam(["exec", &id, "--", "tool"]).env("PATH", path), b"");
        assert_eq!(text(&output.stdout), "installed\n", "{who:?}: {}", text(&output.stderr));
    }
}

/// A home with the settings of a tool, among them a link, a pipe and files with credentials.
fn with_settings(who: crate::support::As) -> Place {
    let place = place(who);
    for (name, text) in
        [(".tool/config", "setting\n"), (".tool/auth.json", "credential\n"), (".tool/deep/er", "deep\n")]
    {
        place.file(format!("home/{name}"), text);
    }
    place.file("home/.config/gh/hosts.yml", "credential\n");
    place.file("home/.config/plain", "plain\n");
    symlink("/etc/hostname", place.home.join(".tool/link")).unwrap();
    std::process::Command::new("mkfifo").arg(place.home.join(".tool/pipe")).status().unwrap();
    place
}

#[test]
fn copies_of_the_hosts_files_are_brought_in_and_stay_in_the_sandbox() {
    for (who, driver) in BOTH.into_iter().flat_map(|who| ["overlay", "copy"].map(|driver| (who, driver))) {
        let place = with_settings(who);
        let what = format!("{who:?} {driver}");
        let made = place.json(&["create", "--driver", driver, "--copy-in", "~/.tool", "--copy-in", "../.config/plain"]);
        let id = id_of(&made);
        let notes = made["notes"].to_string();
        assert!(notes.contains("~/.tool/auth.json") && notes.contains("special files"), "{what}: {notes}");
        assert_eq!(
            inside(&place, &id, "cat ~/.tool/config ~/.tool/deep/er ~/.config/plain"),
            "setting\ndeep\nplain\n",
            "{what}"
        );
        assert_eq!(
            inside(&place, &id, "readlink ~/.tool/link; ls -A ~/.tool"),
            "/etc/hostname\nconfig\ndeep\nlink\n",
            "{what}"
        );
        let changed = |id: &str| {
            let output = place.verb(&["diff", "--home", id]);
            assert!(output.status.success(), "{what}: {}", text(&output.stderr));
            text(&output.stdout)
        };
        assert_eq!(changed(&id), "", "{what}: nothing changed yet");
        inside(&place, &id, "echo more >> ~/.tool/config; rm ~/.tool/deep/er; echo new > ~/.tool/new");
        assert_eq!(changed(&id), "M\t~/.tool/config\nD\t~/.tool/deep/er\nA\t~/.tool/new\n", "{what}");
        let fork = place.json(&["fork", &id])["sandboxes"][0]["id"].as_str().unwrap().to_owned();
        assert_eq!(changed(&fork), changed(&id), "{what}: a fork");
        assert_eq!(place.json(&["diff", &id])["files"], json!([]), "{what}");
        // Back to what was brought, here and not in the fork.
        place.json(&["reject", "--home", &id]);
        assert_eq!(changed(&id), "", "{what}");
        assert_eq!(
            inside(&place, &id, "cat ~/.tool/config ~/.tool/deep/er; ls ~/.tool/new || true"),
            "setting\ndeep\n",
            "{what}"
        );
        assert_eq!(inside(&place, &fork, "cat ~/.tool/config"), "setting\nmore\n", "{what}");
        assert_eq!(fs::read_to_string(place.home.join(".tool/config")).unwrap(), "setting\n", "{what}");
        assert!(place.home.join(".tool/deep/er").exists() && !place.home.join(".tool/new").exists(), "{what}");
        place.audit();
    }
}

#[test]
fn what_is_copied_is_named_bounded_and_below_the_home() {
    for who in either() {
        let place = with_settings(who);
        // Files with credentials come when they are named themselves.
        let run = place.sh(&["--copy-in", "~/.tool", "--copy-in", "~/.tool/auth.json"], "cat ~/.tool/auth.json");
        assert_eq!(run.assert_ok().stdout(), "credential\n", "{}", run.story());
        let run = place.sh(&["--copy-in", "~/.config"], "cat ~/.config/plain; test ! -e ~/.config/gh/hosts.yml");
        assert_eq!(run.assert_ok().stdout(), "plain\n", "{}", run.story());
        for (path, kind) in [("/etc/hostname", "elsewhere"), ("~", "all"), ("~/../x", "above"), ("~/.none", "missing")]
        {
            let fault = place.fault(&["create", "--copy-in", path], "invalid_request");
            assert!(fault["message"].as_str().unwrap().contains("--copy-in"), "{kind}: {fault}");
        }
        symlink("/etc", place.home.join(".led")).unwrap();
        place.fault(&["create", "--copy-in", "~/.led/hostname"], "invalid_request");
        let run = place.run(&["--read-only", "--copy-in", "~/.tool"], &["true"]);
        assert_eq!(run.text("/error_kind"), "invalid_request", "{}", run.story());
        assert!(place.layers().is_empty(), "{:?}", place.layers());
        // What a policy names may be missing.
        let policy = |paths: serde_json::Value| {
            place.policy(json!({"version": 1, "extends": ["default"], "home": {"copy": paths}}))
        };
        let made = place.json(&["create", "-p", &policy(json!(["~/.none", "~/.tool/config"]))]);
        assert!(made["notes"].to_string().contains("~/.none does not exist"), "{made}");
        assert_eq!(inside(&place, &id_of(&made), "cat ~/.tool/config"), "setting\n");
        for bad in [json!(["/etc"]), json!(["~"]), json!(["~/*"])] {
            let fault = place.fault(&["create", "-p", &policy(bad.clone())], "invalid_request");
            assert!(fault["message"].as_str().unwrap().contains("home"), "{bad}: {fault}");
        }
    }
}

/// A package cache that rules show is the base of what the sandbox adds, where there is a network to add from.
#[test]
fn a_package_cache_of_the_host_is_a_base_for_additions() {
    for who in BOTH {
        let place = place(who);
        let cached = place.file("home/.cargo/registry/cache/one.crate", "of the host\n");
        let work = "cat ~/.cargo/registry/cache/one.crate; echo two > ~/.cargo/registry/cache/two.crate; \
            echo over > ~/.cargo/registry/cache/one.crate; cat ~/.cargo/registry/cache/*";
        let id = place.create(&["--read", "~/.cargo/registry", "--net", "files.test"]);
        assert_eq!(inside(&place, &id, work), "of the host\nover\ntwo\n", "{who:?}");
        assert_eq!(inside(&place, &id, "cat ~/.cargo/registry/cache/*"), "over\ntwo\n", "{who:?}: kept");
        let fork = place.json(&["fork", &id])["sandboxes"][0]["id"].as_str().unwrap().to_owned();
        inside(&place, &fork, "rm ~/.cargo/registry/cache/one.crate");
        assert_eq!(inside(&place, &id, "cat ~/.cargo/registry/cache/*"), "over\ntwo\n", "{who:?}");
        assert_eq!(inside(&place, &fork, "cat ~/.cargo/registry/cache/*"), "two\n", "{who:?}");
        assert_eq!(place.json(&["diff", &id])["files"], json!([]));
        assert_eq!(fs::read_to_string(&cached).unwrap(), "of the host\n", "{who:?}");
        assert!(!place.home.join(".cargo/registry/cache/two.crate").exists());
        // Without a network there is nothing to add, and it is shown as any other path.
        let run =
            place.sh(&["--read", "~/.cargo/registry"], "cat ~/.cargo/registry/cache/*; echo x > ~/.cargo/registry/x");
        assert_eq!((run.stdout().as_str(), run.code() != 0), ("of the host\n", true), "{}", run.story());
    }
}
