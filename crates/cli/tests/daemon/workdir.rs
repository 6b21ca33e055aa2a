//! Sandboxes without a directory of the host work at `/workspace` with the home `/home/agent`, and see no path of the
//! state directory.

use crate::support::http::Daemon;
use crate::support::{As, BOTH, Place};
use serde_json::{Value, json};

fn sh(daemon: &Daemon, name: &str, text: &str) -> Value {
    let ran = daemon.post(&format!("/v1/sandboxes/{name}/runs?wait=120s"), json!({"shell": text})).assert_ok();
    assert_eq!(ran["outcome"]["verdict"], "ok", "{text}: {ran:#}");
    ran["outcome"]["stdout"].clone()
}

#[test]
fn commands_without_a_directory_of_the_host_work_at_workspace() {
    for who in BOTH {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        daemon.post("/v1/sandboxes", json!({"name": "s"})).assert_ok();
        assert_eq!(
            sh(&daemon, "s", "pwd; echo $PWD $HOME; cd; pwd"),
            "/workspace\n/workspace /home/agent\n/home/agent\n"
        );
        // Whatever is kept is there for the next command, and where the files of a workspace are.
        sh(&daemon, "s", "mkdir sub; echo text > sub/file; echo more > ~/.kept; git init -q; chmod 700 sub");
        assert_eq!(
            sh(&daemon, "s", "cat /workspace/sub/file ~/.kept; git rev-parse --show-toplevel"),
            "text\nmore\n/workspace\n"
        );
        let put =
            daemon.ask("PUT", "/v1/sandboxes/s/files/content?path=put").body("application/octet-stream", b"put\n");
        put.send().assert_ok();
        assert_eq!(sh(&daemon, "s", "cat put; cd sub"), "put\n");
        assert_eq!(daemon.get("/v1/sandboxes/s/files/content?path=sub/file").text(), "text\n");
        // Files of the home and of /tmp, as the guest names them.
        for at in ["/home/agent/.config/file", "/tmp/dir/file"] {
            let at = format!("/v1/sandboxes/s/files/content?path={at}&parents=true");
            daemon.ask("PUT", &at).body("application/octet-stream", b"own\n").send().assert_ok();
        }
        assert_eq!(sh(&daemon, "s", "cat ~/.config/file /tmp/dir/file; echo said > /tmp/said"), "own\nown\n");
        assert_eq!(daemon.get("/v1/sandboxes/s/files/content?path=/tmp/said").text(), "said\n");
        let listed = daemon.get("/v1/sandboxes/s/files/list?path=/home/agent").assert_ok();
        assert!(listed.to_string().contains(".config"), "{listed}");
        let mkdir = daemon.post("/v1/sandboxes/s/files/mkdir", json!({"path": "/home/agent/dir"}));
        mkdir.assert_ok();
        for no in ["/etc/passwd", "/workspacex/file", "/home/agent/../../etc/passwd", "/proc/self/environ"] {
            let refused = daemon.get(&format!("/v1/sandboxes/s/files/content?path={no}"));
            refused.assert_fault(400, "invalid_request");
        }
        let ask = json!({"command": ["pwd"], "workdir": "sub"});
        let ran = daemon.post("/v1/sandboxes/s/runs?wait=120s", ask).assert_ok();
        assert_eq!(ran["outcome"]["stdout"], "/workspace/sub\n", "{ran}");
        let state = place.state();
        let trace = "printf 'def f():\\n  raise ValueError(1)\\nf()\\n' > t.py; python3 t.py 2>&1; env; readlink /proc/self/cwd; true";
        let told = sh(&daemon, "s", trace);
        assert!(told.as_str().unwrap().contains("File \"/workspace/t.py\""), "{told}");
        assert!(!told.as_str().unwrap().contains(state.to_str().unwrap()), "{told}");
        let diff = daemon.get("/v1/sandboxes/s/workspace/diff").assert_ok();
        assert!(diff.to_string().contains("sub/file") && !diff.to_string().contains(".kept"), "{diff:#}");
        // A fork begins at the same place with the same files.
        daemon.post("/v1/sandboxes/s/fork", json!({"name": "f"})).assert_ok();
        assert_eq!(sh(&daemon, "f", "pwd; cat sub/file ~/.kept"), "/workspace\ntext\nmore\n");
        for name in ["s", "f"] {
            daemon.ask("DELETE", &format!("/v1/sandboxes/{name}?force=true&timeout=0s")).send().assert_ok();
        }
    }
}

#[test]
fn rules_about_the_workspace_hold_there() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let rule = json!({"action": "deny", "path": "/workspace/secret", "perms": ["write_file", "make_reg"]});
    let policy = json!({"version": 1, "extends": ["workspace-write"], "fs": {"rules": [rule]}});
    // A directory of the host below the private /tmp.
    let shown = std::env::temp_dir().join(format!("cofferdam-shown-{}", std::process::id()));
    std::fs::create_dir_all(&shown).unwrap();
    std::fs::write(shown.join("file"), "of the host\n").unwrap();
    let host = json!({"version": 1, "extends": ["workspace-write"],
        "fs": {"rules": [{"action": "allow", "path": shown, "perms": ["read_file", "read_dir"]}]}});
    daemon.post("/v1/sandboxes", json!({"name": "shown", "policies": [host]})).assert_ok();
    let at = shown.join("file").to_str().unwrap().to_owned();
    assert_eq!(sh(&daemon, "shown", &format!("cat {at}; echo own > /tmp/own")), "of the host\n", "the control");
    let get = |path: &str| daemon.get(&format!("/v1/sandboxes/shown/files/content?path={path}"));
    assert_eq!(get("/tmp/own").text(), "own\n", "the control");
    get(&at).assert_fault(403, "policy_denied");
    std::fs::remove_dir_all(&shown).unwrap();
    let all = json!({"version": 1, "extends": ["workspace-write"], "fs": {"rules": [{"action": "allow", "path": "/", "perms": ["read_file", "read_dir"]}]}});
    daemon.post("/v1/sandboxes", json!({"name": "rules", "policies": [policy]})).assert_ok();
    daemon.post("/v1/sandboxes", json!({"name": "fixed", "read_only": true})).assert_ok();
    daemon.post("/v1/sandboxes", json!({"name": "all", "policies": [all]})).assert_ok();
    let put = |name: &str, path: &str| {
        let put = daemon.ask("PUT", &format!("/v1/sandboxes/{name}/files/content?path={path}"));
        put.body("application/octet-stream", b"x").send()
    };
    put("rules", "open").assert_ok();
    put("rules", "secret").assert_fault(403, "policy_denied");
    assert_eq!(sh(&daemon, "fixed", "pwd; touch x 2>/dev/null || echo refused"), "/workspace\nrefused\n");
    put("fixed", "x").assert_fault(403, "policy_denied");
    let seen = sh(&daemon, "all", "touch x && pwd; ls x");
    assert_eq!(seen, "/workspace\nx\n");
    let hidden = sh(&daemon, "all", &format!("ls {}/bases 2>/dev/null || echo hidden", place.state().display()));
    assert_eq!(hidden, "hidden\n");
    for name in ["rules", "fixed", "all", "shown"] {
        daemon.ask("DELETE", &format!("/v1/sandboxes/{name}?force=true&timeout=0s")).send().assert_ok();
    }
}
