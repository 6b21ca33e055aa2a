//! Real coding agents as their vendors release them, each under its preset and against a scripted model on the host's loopback: it writes a
//! file and runs a command, and neither its key nor the host's home is touched. `tools/agents` installs them; no test reaches a vendor.
use testkit as support;

mod model;

use model::{End, LAST_WORDS, Model, Step, Wire};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use support::{As, Place, holders, to_the_end};

const KEY: &str = "sk-real-9d1f7c52e0b84a36";

/// An agent, with what a user types to have it work with another model server.
struct Agent<'a> {
    name: &'a str,
    /// Directory of its program, below `target/tools/agents`.
    dir: String,
    /// Variable of the key, and the header in which it goes.
    key: (&'a str, &'a str),
    wire: Wire,
    write: Step,
    shell: Step,
    /// A call that ends the conversation, where the model's words do not.
    last: Option<Step>,
    flags: Vec<String>,
    args: Vec<&'a str>,
    /// File of a login below the home, with the key in it, in place of a variable.
    login: Option<(&'a str, String)>,
}

fn tools() -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    top.join("target/tools/agents")
}

/// The architecture in the names of the packages.
fn arch() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" }
}

const MADE: &str = "made by the model";
/// Shows what the file has, where the key would be, and leaves something in the home.
const COMMAND: &str = "cat made.txt > seen.txt; env > env.txt; echo inside > ~/left-by-the-agent";

/// Has an agent play the script and looks at what is left.
#[track_caller]
fn play(place: &Place, agent: Agent<'_>, set_up: impl FnOnce(u16)) {
    let dir = tools().join(&agent.dir);
    assert!(dir.join(agent.name).exists(), "{}: no {}; run tools/agents", dir.display(), agent.name);
    let steps: Vec<Step> = [agent.write, agent.shell].into_iter().chain(agent.last).collect();
    let count = steps.len();
    let end = if count > 2 { End::Call } else { End::Words };
    let model = Model::start(agent.wire, steps);
    set_up(model.port);
    let (variable, header) = agent.key;
    let mut run = place.cofferdam(["run", "--net", &format!("127.0.0.1:{}", model.port)]);
    run.args(["--secret", &format!("{variable}@127.0.0.1:{header}")]);
    run.args(agent.flags.iter().map(|flag| flag.replace("PORT", &model.port.to_string())));
    let login = agent.login.map(|(file, text)| place.file(format!("home/{file}"), text));
    let before = files(&place.home);
    match &login {
        Some(file) => drop(run.arg("--copy-in").arg(file)),
        None => drop(run.env(variable, KEY)),
    }
    run.arg("--").arg(agent.name).args(agent.args);
    run.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", dir.display()));
    let output = to_the_end(&mut run, b"");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let story = format!("{}\nstdout: {stdout}\nstderr: {stderr}", output.status);
    assert!(output.status.success(), "{story}");
    assert!(stderr.contains(&format!("preset {}, by the command's name", agent.name)), "{story}");
    assert!(stdout.contains(LAST_WORDS) || end == End::Call, "{story}");
    model.assert_played(KEY, count, end, &story);

    let diff = place.cofferdam(["diff"]).output().unwrap();
    let diff = String::from_utf8_lossy(&diff.stdout);
    // This one keeps keys from the commands of the model.
    let placeholder = Some(format!("+{variable}=cofferdam-secret-{variable}-")).filter(|_| agent.name != "copilot");
    for line in [format!("+{MADE}")].into_iter().chain(placeholder) {
        assert!(diff.contains(&line), "{line}: {diff}\n{story}");
    }
    assert!(diff.contains("made.txt") && diff.contains("seen.txt"), "{diff}");
    assert!(!diff.contains(KEY) && !diff.contains("left-by-the-agent"), "{diff}");
    assert_eq!(files(&place.home), before, "the host's home is as it was");
    assert_eq!(holders(&place.root, KEY.as_bytes()), Vec::from_iter(login), "the key is in no other file");
}

/// Returns the files below a directory with their bytes.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => all.extend(files(&entry.path())),
            false => drop(all.insert(entry.path(), fs::read(entry.path()).unwrap_or_default())),
        }
    }
    all
}

fn step(tool: &'static str, input: Value) -> Step {
    Step { tool, input }
}

fn flags(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn claude_code_works() {
    let place = Place::new(As::Root);
    let file = place.project.join("made.txt");
    let agent = Agent {
        name: "claude",
        dir: format!("node_modules/@anthropic-ai/claude-code-linux-{}", arch()),
        key: ("ANTHROPIC_API_KEY", "x-api-key"),
        wire: Wire::Messages,
        write: step("Write", json!({"file_path": file, "content": format!("{MADE}\n")})),
        shell: step("Bash", json!({"command": COMMAND, "description": "look"})),
        last: None,
        flags: flags(&["-e", "ANTHROPIC_BASE_URL=http://127.0.0.1:PORT"]),
        args: vec!["-p", "do it", "--dangerously-skip-permissions"],
        login: None,
    };
    play(&place, agent, |_| ());
}

#[test]
fn claude_code_works_with_a_login() {
    let place = Place::new(As::Root);
    let file = place.project.join("made.txt");
    let oauth = json!({"accessToken": KEY, "refreshToken": "renewal", "expiresAt": 4_000_000_000_000_u64,
        "scopes": ["user:inference", "user:profile"], "subscriptionType": "max"});
    let agent = Agent {
        name: "claude",
        dir: format!("node_modules/@anthropic-ai/claude-code-linux-{}", arch()),
        key: ("CLAUDE_LOGIN", "authorization"),
        wire: Wire::Messages,
        write: step("Write", json!({"file_path": file, "content": format!("{MADE}\n")})),
        shell: step("Bash", json!({"command": COMMAND, "description": "look"})),
        last: None,
        flags: flags(&["-e", "ANTHROPIC_BASE_URL=http://127.0.0.1:PORT"]),
        args: vec!["-p", "do it", "--dangerously-skip-permissions"],
        login: Some((".claude/.credentials.json", json!({ "claudeAiOauth": oauth }).to_string())),
    };
    play(&place, agent, |_| ());
}

#[test]
fn codex_works_with_a_login() {
    let place = Place::new(As::Root);
    let rust = if cfg!(target_arch = "aarch64") { "aarch64" } else { "x86_64" };
    // The claims of an identity: {"email":"a@b.c"} with the plan.
    let identity = "eyJhbGciOiJub25lIn0.\
        eyJlbWFpbCI6ImFAYi5jIiwiaHR0cHM6Ly9hcGkub3BlbmFpLmNvbS9hdXRoIjp7ImNoYXRncHRfcGxhbl90eXBlIjoicHJvIn19.c2ln";
    let tokens = json!({"id_token": identity, "access_token": KEY, "refresh_token": "renewal", "account_id": "acc"});
    let agent = Agent {
        name: "codex",
        dir: format!("node_modules/@openai/codex/vendor/{rust}-unknown-linux-musl/bin"),
        key: ("CODEX_LOGIN", "authorization"),
        wire: Wire::Responses,
        write: step("exec_command", json!({"cmd": format!("echo '{MADE}' > made.txt")})),
        shell: step("exec_command", json!({"cmd": COMMAND})),
        last: None,
        flags: Vec::new(),
        args: vec!["exec", "--skip-git-repo-check", "-m", "gpt-5", "do it"],
        login: Some((
            ".codex/auth.json",
            json!({"auth_mode": "chatgpt", "OPENAI_API_KEY": null, "tokens": tokens, "last_refresh": "2026-01-01T00:00:00Z"})
                .to_string(),
        )),
    };
    play(&place, agent, |port| {
        let settings = format!(
            "model_provider = \"test\"\n[model_providers.test]\nname = \"test\"\nbase_url = \"http://127.0.0.1:{port}/v1\"\n\
             requires_openai_auth = true\nwire_api = \"responses\"\n"
        );
        place.file("home/.codex/config.toml", settings);
    });
}

#[test]
fn codex_works() {
    let place = Place::new(As::Root);
    let rust = if cfg!(target_arch = "aarch64") { "aarch64" } else { "x86_64" };
    let write = format!("echo '{MADE}' > made.txt");
    let agent = Agent {
        name: "codex",
        dir: format!("node_modules/@openai/codex/vendor/{rust}-unknown-linux-musl/bin"),
        key: ("OPENAI_API_KEY", "authorization"),
        wire: Wire::Responses,
        write: step("exec_command", json!({"cmd": write})),
        shell: step("exec_command", json!({"cmd": COMMAND})),
        last: None,
        flags: Vec::new(),
        args: vec!["exec", "--skip-git-repo-check", "-m", "gpt-5", "do it"],
        login: None,
    };
    // The settings come in as a copy.
    play(&place, agent, |port| {
        let settings = format!(
            "model_provider = \"test\"\n[model_providers.test]\nname = \"test\"\nbase_url = \"http://127.0.0.1:{port}/v1\"\n\
             env_key = \"OPENAI_API_KEY\"\nwire_api = \"responses\"\n"
        );
        place.file("home/.codex/config.toml", settings);
    });
}

#[test]
fn opencode_works() {
    let place = Place::new(As::Root);
    let file = place.project.join("made.txt");
    let agent = Agent {
        name: "opencode",
        dir: format!("node_modules/opencode-linux-{}/bin", arch()),
        key: ("OPENAI_API_KEY", "authorization"),
        wire: Wire::Chat,
        write: step("write", json!({"filePath": file, "content": format!("{MADE}\n")})),
        shell: step("bash", json!({"command": COMMAND, "description": "look"})),
        last: None,
        flags: Vec::new(),
        args: vec!["run", "do it"],
        login: None,
    };
    play(&place, agent, |port| {
        let options = json!({"baseURL": format!("http://127.0.0.1:{port}/v1"), "apiKey": "{env:OPENAI_API_KEY}"});
        let provider = json!({"npm": "@ai-sdk/openai-compatible", "name": "test", "options": options,
            "models": {"m": {"name": "m", "tool_call": true}}});
        let settings = json!({"provider": {"test": provider}, "model": "test/m", "small_model": "test/m"});
        place.file("home/.config/opencode/opencode.json", settings.to_string());
    });
}

#[test]
fn gemini_cli_works() {
    let place = Place::new(As::Root);
    let file = place.project.join("made.txt");
    let agent = Agent {
        name: "gemini",
        dir: "node_modules/.bin".to_owned(),
        key: ("GEMINI_API_KEY", "x-goog-api-key"),
        wire: Wire::Gemini,
        write: step("write_file", json!({"file_path": file, "content": format!("{MADE}\n")})),
        shell: step("run_shell_command", json!({"command": COMMAND, "description": "look"})),
        last: None,
        flags: flags(&["-e", "GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:PORT"]),
        args: vec!["-p", "do it", "--yolo", "-m", "gemini-2.5-flash"],
        login: None,
    };
    play(&place, agent, |_| {
        let settings = json!({"security": {"auth": {"selectedType": "gemini-api-key"}}});
        place.file("home/.gemini/settings.json", settings.to_string());
    });
}

#[test]
fn mini_swe_agent_works() {
    let place = Place::new(As::Root);
    let python = tools().join("mini");
    let agent = Agent {
        name: "mini",
        dir: "mini/bin".to_owned(),
        key: ("OPENAI_API_KEY", "authorization"),
        wire: Wire::Chat,
        write: step("bash", json!({"command": format!("echo '{MADE}' > made.txt")})),
        shell: step("bash", json!({"command": COMMAND})),
        last: Some(step("bash", json!({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}))),
        flags: flags(&[
            "-e",
            "OPENAI_BASE_URL=http://127.0.0.1:PORT/v1",
            "-e",
            "MSWEA_COST_TRACKING=ignore_errors",
            "-e",
            &format!("PYTHONPATH={}", python.display()),
            "--read",
            &python.display().to_string(),
        ]),
        args: vec!["-t", "do it", "-y", "-m", "openai/test", "--exit-immediately"],
        login: None,
    };
    play(&place, agent, |_| ());
}

/// With a model server of the caller's: its own would want an account.
#[test]
fn copilot_works() {
    let place = Place::new(As::Root);
    let file = place.project.join("made.txt");
    let agent = Agent {
        name: "copilot",
        dir: format!("node_modules/@github/copilot-linux-{}", arch()),
        key: ("COPILOT_PROVIDER_API_KEY", "authorization"),
        wire: Wire::Chat,
        write: step("create", json!({"path": file, "file_text": format!("{MADE}\n")})),
        shell: step("bash", json!({"command": COMMAND, "description": "look"})),
        last: None,
        flags: flags(&[
            "-e",
            "COPILOT_PROVIDER_BASE_URL=http://127.0.0.1:PORT/v1",
            "-e",
            "COPILOT_PROVIDER_TYPE=openai",
            "-e",
            "COPILOT_MODEL=test",
        ]),
        args: vec!["-p", "do it", "--allow-all-tools"],
        login: None,
    };
    play(&place, agent, |_| ());
}

/// This one takes files from what the model says, and commits them.
#[test]
fn aider_works() {
    let place = Place::new(As::Root);
    let model = Model::start(Wire::Chat, Vec::new());
    let (aider, mini) = (tools().join("aider"), tools().join("mini"));
    assert!(aider.join("bin/aider").exists(), "{}: run tools/agents", aider.display());
    to_the_end(place.outside("git").args(["init", "-q", "-b", "main"]).current_dir(&place.project), b"");
    let before = files(&place.home.join(".config"));
    let mut run = place.cofferdam(["run", "--net", &format!("127.0.0.1:{}", model.port), "--read"]);
    run.arg(tools()).args(["--secret", "OPENAI_API_KEY@127.0.0.1"]);
    run.args(["-e", &format!("OPENAI_API_BASE=http://127.0.0.1:{}/v1", model.port)]);
    run.args(["-e", &format!("PYTHONPATH={}:{}", aider.display(), mini.display()), "--", "aider", "-m", "do it"]);
    run.args(["--model", "openai/test", "--edit-format", "whole", "--map-tokens", "0", "--yes-always", "--no-pretty"]);
    run.env("OPENAI_API_KEY", KEY).env("PATH", format!("{}/bin:/usr/bin:/bin", aider.display()));
    let output = to_the_end(&mut run, b"");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let story = format!("{}\nstdout: {stdout}\nstderr: {stderr}", output.status);
    assert!(output.status.success() && stdout.contains("Applied edit to made.txt"), "{story}");
    assert!(stderr.contains("preset aider, by the command's name"), "{story}");
    assert!(!stderr.contains("posthog") && !stderr.contains("pypi.org") && !stderr.contains("__pycache__"), "{story}");
    model.assert_played(KEY, 0, End::Words, &story);
    let diff = place.cofferdam(["diff"]).output().unwrap();
    let diff = String::from_utf8_lossy(&diff.stdout);
    assert!(diff.contains("COMMITS on main") && diff.contains(&format!("+{MADE}")), "{diff}");
    assert!(!place.project.join("made.txt").exists() && !place.home.join(".aider").exists());
    assert_eq!(files(&place.home.join(".config")), before);
    assert!(holders(&place.root, KEY.as_bytes()).is_empty(), "the key is in no file");
}
