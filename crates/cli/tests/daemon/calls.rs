//! Parameters of a run, secrets that a run leaves behind, and runs on hosts that lack a mechanism.

use crate::support::HIDE;
use crate::support::http::{Answer, Daemon, with_daemon};
use crate::support::world::{PUBLIC, World as NetworkWorld};
use crate::support::{As, Place, binary, either, holders};
use serde_json::{Value, json};
use std::process::Command;

const CANARY: &str = "canary-5d7e21c49f";

/// Parameters of a run can narrow what the sandbox's policy allows, never widen it.
// promise 23
#[test]
fn no_parameter_of_a_call_widens_the_policy() {
    for who in either() {
        let place = Place::new(who);
        for path in ["home/project/vault/secret", "home/private/secret", "home/project/open"] {
            place.file(path, CANARY);
        }
        let (vault, private) = (place.project.join("vault"), place.home.join("private"));
        std::os::unix::fs::symlink(&vault, place.project.join("way")).unwrap();
        let daemon = Daemon::start(&place);
        let rules = json!({ "version": 1, "extends": ["default"], "fs": { "rules": [{ "action": "deny", "path": vault }] },
            "limits": { "max_output_bytes": 5000 } });
        let made =
            json!({ "name": "s", "dir": place.project, "policies": [rules], "limits": { "max_wall_ms": 20_000 } });
        daemon.post("/v1/sandboxes", made).assert_ok();
        let run = |ask: Value| daemon.post("/v1/sandboxes/s/runs?wait=120s", ask);
        // The control: a path that the policy allows is readable.
        assert_eq!(run(json!({ "shell": "cat open" })).assert_ok()["outcome"]["stdout"], CANARY);
        let look = format!(
            "cat secret vault/secret way/secret ../private/secret {0}/secret {1}/secret 2>/dev/null; ls {0} {1} 2>/dev/null; true",
            vault.display(),
            private.display()
        );
        let base = |ask: Value| {
            let mut whole = json!({ "shell": look });
            whole.as_object_mut().unwrap().extend(ask.as_object().unwrap().clone());
            whole
        };
        let dirs =
            ["vault", "way", "..", "/", "vault/../vault", "./way/.", "/proc/self/cwd", "/proc/1/root", "/proc/1/cwd"];
        let dirs = dirs.into_iter().map(|dir| json!({ "workdir": dir }));
        let dirs = dirs.chain([&vault, &private, &place.root].map(|dir| json!({ "workdir": dir })));
        let dirs = dirs.chain([&vault, &private, &place.root].map(|dir| json!({ "cwd": dir })));
        let mut envs = vec![];
        for name in ["HOME", "PWD", "OLDPWD", "CDPATH", "PATH", "COFFERDAM_STATE", "TMPDIR", "XDG_STATE_HOME", "ENV"] {
            envs.push(json!({ "env": { name: vault } }));
        }
        for name in ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GCONV_PATH", "COFFERDAM_POLICY", "WORKSPACE"] {
            envs.push(json!({ "env": { name: private.join("secret") } }));
        }
        for ask in dirs.chain(envs) {
            let answer = run(base(ask.clone()));
            assert!(!answer.text().contains(CANARY), "{who:?} {ask}: {answer:?}");
            assert!(answer.status != 500, "{answer:?}");
        }
        // Unknown fields are refused, not ignored.
        for (field, value) in [
            ("dir", json!(private)),
            ("policies", json!(["networked"])),
            ("policy", json!({ "version": 1 })),
            ("read", json!([private])),
            ("write", json!([private])),
            ("mounts", json!([{ "from": private, "to": "/mnt" }])),
            ("user", json!("root")),
            ("privileged", json!(true)),
            ("net", json!([{ "action": "allow", "host": "*" }])),
            ("direct", json!(true)),
            ("secrets", json!(["X"])),
        ] {
            let fault = run(base(json!({ field: value }))).assert_fault(400, "invalid_request");
            assert!(fault["message"].as_str().unwrap().contains(field), "{fault}");
        }
        // The tightest limit wins; limits of the whole sandbox cannot be set for one run.
        let long = json!({ "shell": "head -c 9000 /dev/zero", "limits": { "max_output_bytes": 1_000_000, "max_wall_ms": 3_600_000 } });
        assert_eq!(run(long).assert_ok()["outcome"]["limit_kind"], "output_bytes");
        for limit in ["max_memory_mb", "max_processes", "max_disk_mb", "max_net_bytes", "max_open_files", "max_files"] {
            let answer = run(json!({ "command": ["true"], "limits": { limit: 1_000_000 } }));
            assert!(answer.status >= 400 && answer.status != 500, "{limit}: {answer:?}");
        }
        // File verbs of the workspace give no way around the policy.
        for path in ["vault/secret", "way/secret", "../private/secret", private.join("secret").to_str().unwrap()] {
            let path = path.replace('/', "%2F");
            let answer = daemon.get(&format!("/v1/sandboxes/s/files/content?path={path}"));
            assert!(answer.status >= 400 && !answer.text().contains(CANARY), "{path}: {answer:?}");
        }
        daemon.ask("DELETE", "/v1/sandboxes/s?force=true&timeout=0s").send().assert_ok();
    }
}

const LIFE: &str = r#"
import glob, signal
def line(*words):
    return subprocess.run([cofferdam, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
said = []
def tell(*words, **more):
    status, document = ask(*words, **more)
    said.append(json.dumps(document))
    assert status < 300, document
    return document
def raw(at):
    wire = Line("localhost")
    wire.request("GET", at)
    answer = wire.getresponse()
    text = answer.read().decode(errors="replace") if "events" not in at else answer.read1(200000).decode(errors="replace")
    wire.close()
    said.append(text)
    return text
tell("PUT", "/v1/secrets/TOKEN", {"value": VALUE})
rules = {"version": 1, "extends": ["workspace-write"], "net": {"rules": [{"action": "allow", "host": "api.test"}]},
    "secrets": [{"name": "TOKEN", "inject": {"host": "api.test", "header": "authorization", "format": "Bearer {}"}}]}
tell("POST", "/v1/sandboxes", {"name": "s", "policies": [rules]})
text = "echo $TOKEN; curl -sS -m 10 -H \"Authorization: Bearer $TOKEN\" https://api.test/a; env > kept; cat /proc/1/environ >> kept; true"
done = tell("POST", "/v1/sandboxes/s/runs?wait=120s", {"shell": text})
# The control: the secret reached its host, which returns it reversed.
assert VALUE[::-1] in done["outcome"]["stdout"], done
tell("POST", "/v1/sandboxes/s/runs", {"shell": "sleep 100"})
tell("GET", "/v1/sandboxes/s/workspace/diff")
tell("POST", "/v1/sandboxes/s/snapshots", {})
for at in ("/v1/openapi.json", "/v1/metrics", "/v1/audit", "/v1/runs", "/v1/sandboxes/s", "/v1/secrets", f"/v1/runs/{done['run']}", "/v1/events?from=0"):
    raw(at)
for words in (["inspect", "s"], ["audit", "log"], ["logs", done["run"]], ["network", "log", "s"], ["ps"], ["top", "--once"]):
    said.append(line(*words).stdout)
# The control: cores are written here.
subprocess.run(["sh", "-c", "mkdir cores; cd cores; ulimit -c unlimited; kill -ABRT $$"], stderr=subprocess.DEVNULL)
assert os.listdir("cores")
# Processes that held the value are aborted: their core dumps do not contain it.
resource = __import__("resource")
for card in glob.glob(state + "/keepers/*/keeper.json"):
    pid = json.load(open(card))["pid"]
    resource.prlimit(pid, resource.RLIMIT_CORE, (1 << 30, resource.RLIM_INFINITY))
    assert VALUE not in open(f"/proc/{pid}/cmdline").read() + open(f"/proc/{pid}/environ").read()
    os.kill(pid, signal.SIGABRT)
resource.prlimit(daemon.pid, resource.RLIMIT_CORE, (1 << 30, resource.RLIM_INFINITY))
os.kill(daemon.pid, signal.SIGABRT)
daemon.wait(20)
assert not any(VALUE in text for text in said), [text for text in said if VALUE in text][0][:2000]
print("told", len(said) > 15, any("event: " in text for text in said))
"#;

/// After a full lifecycle over HTTP, the value of a secret is in its own file and nowhere else: in no response, log,
/// spool, layer, metric, event or core dump.
// promise 23
#[test]
fn a_secret_leaves_no_trace_in_a_whole_life() {
    let world =
        NetworkWorld::new(As::Root).host(PUBLIC, "api.test").certificate(&["api.test"]).server("https", PUBLIC, 443);
    let told = with_daemon(&world, &format!("VALUE = '{CANARY}'\n{LIFE}"));
    assert_eq!(told, "told True True\n");
    let mut holding = holders(&world.place.root, CANARY.as_bytes());
    holding.retain(|path| !path.starts_with(world.place.root.join("world")));
    assert_eq!(holding, [world.place.state().join("secrets/TOKEN")]);
    assert!(
        !holders(&world.place.root, b"cofferdam-secret-TOKEN-").is_empty(),
        "the control: what stands for it is found"
    );
}

/// On a host that lacks a required mechanism the daemon does not start, or refuses every run with the reason; no run
/// starts with fewer mechanisms.
// promise 23
#[test]
fn where_a_wall_is_missing_no_command_runs() {
    for who in either() {
        let place = Place::new(who);
        let hide = place.c_program("hide", HIDE);
        let mark = place.project.join("ran");
        let attempt = |call: u32, errno: &str| -> Option<Answer> {
            let mut command = place.outside(&hide);
            command
                .args([&call.to_string(), errno])
                .arg(binary())
                .args(["serve", "--json"])
                .env("COFFERDAM_LOG_LEVEL", "error");
            let first = Command::new("timeout")
                .args(["-k", "1", "20"])
                .args(words(&command))
                .envs(envs(&command))
                .arg("--check")
                .output();
            first.ok().filter(|done| done.status.success())?;
            let daemon = Daemon::spawn(&place, command);
            let made = daemon.post("/v1/sandboxes", json!({ "dir": place.project, "policies": ["workspace-write"] }));
            if made.status != 201 {
                return Some(made);
            }
            let id = made.json()["id"].as_str().unwrap().to_owned();
            let text = "echo ran > ran; cat ran";
            let run = daemon.post(&format!("/v1/sandboxes/{id}/runs?wait=120s"), json!({ "shell": text }));
            let _ = daemon.ask("DELETE", &format!("/v1/sandboxes/{id}?force=true&timeout=0s")).send();
            Some(run)
        };
        for (name, call) in [
            ("landlock_create_ruleset", 444),
            ("seccomp", 317),
            ("mount", 165),
            ("clone3", 435),
            ("mount_setattr", 442),
            ("pivot_root", 155),
        ] {
            let Some(answer) = attempt(call, "38") else { continue };
            let fault = answer.json();
            assert!(answer.status >= 400 && answer.status != 500, "{who:?} without {name}: {answer:?}");
            assert_eq!(fault["error_kind"], "unsupported_host", "{who:?} without {name}: {fault}");
            assert!(fault["hint"].is_string() && !mark.exists(), "{fault}");
        }
        // The control: runs work without a system call that no mechanism needs.
        let run = attempt(332, "38").expect("it starts").assert_ok();
        assert_eq!(run["outcome"]["stdout"], "ran\n", "{run}");
    }
}

fn words(command: &Command) -> Vec<std::ffi::OsString> {
    std::iter::once(command.get_program()).chain(command.get_args()).map(ToOwned::to_owned).collect()
}

fn envs(command: &Command) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect()
}
