//! Presets of coding agents: chosen by the name of the command, with keys as placeholders and telemetry refused without a word. The programs
//! here only have the names of agents; `tests/agents` drives the real ones.

use crate::support::terminal::on_terminal_in;
use crate::support::world::{PUBLIC, World};
use crate::support::{As, BOTH, Place, either, free_port, holders};
use serde_json::{Value, json};
use std::path::Path;

const VALUE: &str = "hunter2-6f1c9a40d2";
/// A host to which Claude Code sends telemetry.
const TELEMETRY: &str = "browser-intake-us5-datadoghq.com";
/// Asks the model's host something with the key.
const ASK: &str = "echo $CLAUDE_CODE_OAUTH_TOKEN; \
     curl -sS -m 10 -H \"Authorization: Bearer $CLAUDE_CODE_OAUTH_TOKEN\" https://api.anthropic.com/a";

/// A world in which the project has a program `claude`: a shell.
fn world(who: As) -> World {
    let world = World::new(who)
        .host(PUBLIC, &format!("api.anthropic.com other.test {TELEMETRY}"))
        .certificate(&["api.anthropic.com", "other.test"])
        .server("https", PUBLIC, 443);
    world.place.script(world.place.project.join("claude"), "#!/bin/sh\nexec /bin/sh -c \"$1\"\n");
    world
}

/// The server's echo of the header that the broker added.
fn added() -> String {
    format!("auth={}", format!("Bearer {VALUE}").chars().rev().collect::<String>())
}

#[test]
fn a_command_with_the_name_of_an_agent_gets_its_preset() {
    for who in either() {
        let world = world(who);
        let run = world.run_with(&[], &["./claude", ASK], &[("CLAUDE_CODE_OAUTH_TOKEN", VALUE)]);
        run.assert_ok();
        let stdout = run.stdout();
        assert!(stdout.starts_with("cofferdam-secret-CLAUDE_CODE_OAUTH_TOKEN-"), "{}", run.story());
        assert!(stdout.contains(&added()), "the host of the model has the key: {}", run.story());
        assert_eq!(run.stderr().matches("preset claude, by the command's name").count(), 1, "{}", run.story());
        // The preset allows no other host, and a policy or a flag turns it off.
        let other = ["./claude", "curl -sS -m 10 https://other.test/"];
        world.run(&[], &other).assert_denied("net.resolve", "other.test");
        for flags in [&["--no-preset"][..], &["-p", "default"], &["-p", "default", "-q"]] {
            let run = world.run_with(flags, &["./claude", ASK], &[("CLAUDE_CODE_OAUTH_TOKEN", VALUE)]);
            assert!(run.code() != 0 && !run.stdout().contains("hunter2"), "{flags:?}: {}", run.story());
            assert!(!run.stdout().contains("cofferdam-secret") && !run.stderr().contains("preset"), "{flags:?}");
        }
        let run = world.run(&["-q"], &["./claude", "true"]);
        assert!(run.code() == 0 && run.stderr().is_empty(), "{}", run.story());
    }
}

#[test]
fn a_preset_by_name_is_for_run_alone() {
    let place = Place::new(As::User);
    place.script(place.project.join("claude"), "#!/bin/sh\nexec /bin/sh -c \"$1\"\n");
    let done = place.cofferdam(["create", "--name", "lab"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let names = |args: &[&str]| {
        let done = place.cofferdam(args).env("CLAUDE_CODE_OAUTH_TOKEN", VALUE).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        let text = [done.stdout, done.stderr].concat();
        String::from_utf8(text).unwrap()
    };
    let text = "echo token=$CLAUDE_CODE_OAUTH_TOKEN.";
    for args in [&["exec", "lab", "--", "./claude", text][..], &["run", "--sandbox", "lab", "--", "./claude", text]] {
        let told = names(args);
        assert!(told.contains("token=.") && !told.contains("preset"), "{args:?}: {told}");
    }
    assert!(names(&["run", "--", "./claude", text]).contains("token=cofferdam-secret-"), "the control");
}

#[test]
fn keys_that_are_not_set_are_left_out_and_that_is_told() {
    for who in either() {
        let world = world(who);
        let run = world.run(&["-v"], &["./claude", "echo $ANTHROPIC_API_KEY.$CLAUDE_CODE_OAUTH_TOKEN."]);
        run.assert_ok();
        assert!(run.stdout().starts_with(".."), "{}", run.story());
        assert!(run.stderr().contains("no secret has a value") && run.stderr().contains("ANTHROPIC_API_KEY"));
        // With one of them there is nothing to tell, and a source that is typed must have a value.
        let run = world.run_with(&["-v"], &["./claude", "true"], &[("ANTHROPIC_API_KEY", VALUE)]);
        assert!(run.code() == 0 && !run.stderr().contains("no secret has a value"), "{}", run.story());
        world.run(&["--secret", "ANTHROPIC_API_KEY=env:MISSING"], &["./claude", "true"]).assert_code(2);
    }
}

/// The copy of a login has a placeholder for the token, and the model's host alone gets the token: that of the host's file at each run.
#[test]
fn a_login_is_brought_in_without_its_token() {
    const USE: &str = "cat ~/.claude/.credentials.json; t=$(sed 's/.*accessToken\":\"\\([^\"]*\\).*/\\1/' ~/.claude/.credentials.json); \
         curl -sS -m 10 -H \"Authorization: Bearer $t\" https://api.anthropic.com/a";
    for who in either() {
        let world = world(who);
        let file = |token: &str| {
            let oauth = json!({"accessToken": token, "refreshToken": "renewal-4711", "expiresAt": 1, "subscriptionType": "max"});
            world.place.file("home/.claude/.credentials.json", json!({ "claudeAiOauth": oauth }).to_string());
        };
        file("an-older-token");
        let copy = ["--copy-in", "~/.claude/.credentials.json"];
        world.run(&[&copy[..], &["--name", "in"]].concat(), &["./claude", "true"]).assert_ok();
        // The agent outside renewed its login: the next run has that, and the copy is as it was.
        file(VALUE);
        for flags in [&copy[..], &["--sandbox", "in"]] {
            let run = world.run(flags, &["./claude", USE]);
            let told = run.assert_ok().stdout();
            assert!(
                told.contains("cofferdam-secret-CLAUDE_LOGIN-of-a-login") && told.contains("max"),
                "{}",
                run.story()
            );
            assert!(!told.contains(VALUE) && !told.contains("renewal-4711"), "{}", run.story());
            assert!(told.contains(&added()), "the host of the model has the token: {}", run.story());
        }
        for kept_out in ["an-older-token", VALUE, "renewal-4711"] {
            assert!(holders(&world.place.state(), kept_out.as_bytes()).is_empty(), "{kept_out}");
        }
        // The control: under a policy that gives the token to no host, the file that is named is the file.
        let run =
            world.run(&[&copy[..], &["-p", "default"]].concat(), &["./claude", "cat ~/.claude/.credentials.json"]);
        assert!(run.stdout().contains("renewal-4711"), "{}", run.story());
        world.place.file("home/.claude/.credentials.json", "{}");
        let run = world.run(&copy, &["./claude", "true"]);
        assert!(run.stderr().contains("~/.claude/.credentials.json has no token"), "{}", run.story());
    }
}

#[test]
fn an_agent_with_a_sandbox_of_its_own_is_told_to_leave_it_off() {
    for who in either() {
        let place = Place::new(who);
        place.script(place.project.join("codex"), "#!/bin/sh\necho \"$@\"\n");
        let run = |flags: &[&str], words: &[&str]| place.run(flags, &[&["./codex"], words].concat());
        let off = "-c sandbox_mode=danger-full-access";
        let cannot = "its own sandbox cannot start inside this one";
        let plain = run(&[], &["exec", "do it"]);
        assert_eq!(plain.stdout(), format!("{off} exec do it\n"), "{}", plain.story());
        assert!(plain.stderr().contains(&format!("codex gets `{off}`: {cannot}")), "{}", plain.story());
        // What a preset would copy and this home does not have is nothing to tell.
        assert!(!plain.stderr().contains("nothing is copied"), "{}", plain.story());
        // The caller's own words stay alone, and are told to be in vain where they are.
        for (words, is_told) in [(["--sandbox", "workspace-write"], true), (["-s", "danger-full-access"], false)] {
            let typed = run(&[], &words);
            assert_eq!(typed.stdout(), format!("{}\n", words.join(" ")), "{}", typed.story());
            assert_eq!(typed.stderr().contains(cannot), is_told, "{}", typed.story());
        }
        assert_eq!(run(&["--no-preset"], &["exec"]).stdout(), "exec\n", "the control");
        let port = format!("{}:80", free_port());
        assert!(run(&["-p", &port], &["exec"]).stderr().contains("preset codex"), "a port is no policy");
        // Going on in the sandbox of the last run, which has its policy.
        run(&["--keep"], &["exec"]).assert_ok();
        let again = run(&["--continue"], &["exec", "more"]);
        assert_eq!(again.assert_ok().stdout(), format!("{off} exec more\n"));
        assert!(!again.stderr().contains("preset codex") && again.stderr().contains(cannot), "{}", again.story());
    }
}

/// A sandbox as agents make it for a command, of landlock and seccomp: writes only below `kept`, and no mkdir at all.
const OWN_SANDBOX: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    got = libc.syscall(number, *args)
    if got < 0:
        sys.exit(f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return got
WRITE, MAKE_FILE = 1 << 1, 1 << 8
rules = call(444, struct.pack("QQ", WRITE | MAKE_FILE, 0), ctypes.c_size_t(8), 0)
call(445, rules, 1, struct.pack("=Qi", WRITE | MAKE_FILE, os.open("kept", os.O_PATH)), 0)
assert libc.prctl(38, 1, 0, 0, 0) == 0
call(446, rules, 0)
program = b"".join(struct.pack("HBBI", *line) for line in (
    (0x20, 0, 0, 0), (0x15, 0, 1, os.uname().machine == "x86_64" and 83 or 34), (6, 0, 0, 0x50000 | 18), (6, 0, 0, 0x7fff0000)))
held = ctypes.create_string_buffer(program)
call(317 if os.uname().machine == "x86_64" else 277, 1, 0, struct.pack("HxxxxxxQ", 4, ctypes.addressof(held)))
for attempt in (lambda: open("kept/in", "w"), lambda: open("out", "w"), lambda: os.mkdir("kept/dir")):
    try:
        attempt()
        print("done")
    except OSError as e:
        print(os.strerror(e.errno))
"#;

#[test]
fn a_sandbox_of_landlock_and_seccomp_works_inside_and_one_of_namespaces_is_explained() {
    for who in BOTH {
        let place = Place::new(who);
        place.file("home/project/kept/here", "");
        let run = place.run(&[], &["/usr/bin/python3", "-c", OWN_SANDBOX]);
        let said = run.assert_ok().stdout();
        assert_eq!(said, "done\nPermission denied\nInvalid cross-device link\n", "{who:?}: {}", run.story());
        let free = place.run(&[], &["sh", "-c", "echo > out && mkdir kept/dir"]);
        assert_eq!(free.code(), 0, "the control: what it took away is there without it: {}", free.story());
        let run = place.run(&[], &["bwrap", "--ro-bind", "/", "/", "true"]);
        let hint = "no namespaces can be made inside; if the program has a sandbox of its own, switch that off";
        assert!(run.code() != 0 && run.stderr().contains(hint), "{who:?}: {}", run.story());
        assert!(run.stderr().contains("codex: --sandbox danger-full-access"), "{}", run.story());
    }
}

#[test]
fn telemetry_is_refused_without_a_word() {
    for who in either() {
        let world = world(who);
        let ask = |host: &str| format!("curl -sS -m 10 https://{host}/ 2>/dev/null; exit 1");
        let (telemetry, other) = (ask(TELEMETRY), ask("other.test"));
        let run = world.run(&[], &["./claude", &telemetry]);
        run.assert_code(1).assert_denied("net.resolve", TELEMETRY);
        assert_eq!(run.outcome["denials"][0]["quiet"], true, "{}", run.story());
        assert_eq!(run.text("/verdict"), "failed", "what is expected does not make it denied: {}", run.story());
        let screen = on_terminal_in(&world, &["./claude", &telemetry], json!([]));
        screen.assert_code(1);
        assert!(!screen.text.contains(TELEMETRY), "{}", screen.text);
        // Control: another host.
        let run = world.run(&[], &["./claude", &other]);
        assert_eq!((run.text("/verdict").as_str(), &run.outcome["denials"][0]["quiet"]), ("denied", &Value::Null));
        let screen = on_terminal_in(&world, &["./claude", &other], json!([]));
        assert!(screen.text.contains("net.resolve other.test"), "{}", screen.text);
    }
}

#[test]
fn agents_are_listed_with_what_they_get() {
    let place = Place::new(As::User);
    let told = |args: &[&str]| {
        let done = place.cofferdam(args).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let table = told(&["agents"]);
    for word in ["claude", "api.anthropic.com", "ANTHROPIC_API_KEY", "~/.codex/auth.json", "copilot"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    let document: Value = serde_json::from_str(&told(&["agents", "--json"])).unwrap();
    let agents = document["agents"].as_array().unwrap();
    let names: Vec<&str> = agents.iter().filter_map(|agent| agent["name"].as_str()).collect();
    assert_eq!(names, ["claude", "codex", "opencode", "gemini", "aider", "mini", "goose", "copilot"]);
    assert_eq!(agents[1]["adds"], json!(["-c", "sandbox_mode=danger-full-access"]), "{}", agents[1]);
    assert!(table.contains("codex gets `-c sandbox_mode=danger-full-access`: its own sandbox cannot start"), "{table}");
    for name in names {
        let shown = told(&["agents", "show", name]);
        assert_eq!(shown, told(&["policy", "show", name]), "{name}");
    }
    // Each has a page, which says what its preset says.
    for agent in agents {
        let name = agent["name"].as_str().unwrap();
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/guide/agent-{name}.md"));
        let page = std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
        let command = agent["commands"][0].as_str().unwrap();
        assert!(page.contains("cofferdam run ") && page.contains(&format!("-- {command}\n")), "{name}: {command}");
        let lists = ["hosts", "quietly_refused", "copies", "secrets"].map(|key| agent[key].as_array().unwrap().clone());
        let named =
            lists.concat().into_iter().chain([agent["login"].clone()]).filter(|word| *word != agent["login_secret"]);
        for word in named.filter_map(|word| word.as_str().map(String::from)) {
            assert!(page.contains(&word), "{name}: the page does not say {word}");
        }
    }
    let done = place.cofferdam(["agents", "show", "cladue"]).output().unwrap();
    assert!(!done.status.success() && String::from_utf8_lossy(&done.stderr).contains("claude, codex"), "{done:?}");
}
