//! `doctor` reports enforcement and limits of this host with fixes; `setup` delegates control groups to a user.

use crate::support::{As, BOTH, Place, binary};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Output};

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("exit {:?}\n{out}{err}", output.status.code())
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(output)))
}

fn check<'a>(list: &'a Value, name: &str) -> &'a Value {
    let found = list.as_array().and_then(|l| l.iter().find(|c| c["name"] == name));
    found.unwrap_or_else(|| panic!("no check {name} in {list:#}"))
}

#[test]
fn every_wall_stands_here_for_root_and_for_others() {
    for who in BOTH {
        let place = Place::new(who);
        let output = place.cofferdam(["doctor", "--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{who:?}: {}", text(&output));
        let report = json(&output);
        assert_eq!(report["protocol_version"], 1);
        assert_eq!(report["level"], "full");
        assert_eq!(report["missing"], serde_json::json!([]));
        let lists = ["checks", "limits"].map(|l| report[l].as_array().unwrap());
        for item in lists.into_iter().flatten() {
            let keys: Vec<&str> = item.as_object().unwrap().keys().map(String::as_str).collect();
            let mut expected = ["name", "ok", "required", "detail", "needed_for", "fix"];
            expected.sort_unstable();
            let mut sorted = keys.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, expected, "{item}");
            assert!(item["ok"] == true || item["required"] == false, "{who:?}: {item}");
            assert!(item["ok"] == false || item["fix"].is_null(), "nothing to fix: {item}");
        }
        for name in [
            "namespace.user",
            "mount.proc",
            "landlock.scope",
            "seccomp.notify",
            "call.clone3",
            "network.doors",
            "enclosure",
        ] {
            assert_eq!(check(&report["checks"], name)["ok"], true, "{who:?}: {name}");
        }
        // Limits without control groups hold for every user.
        for name in ["wall_ms", "output_bytes", "open_files", "disk_mb", "files"] {
            assert_eq!(check(&report["limits"], name)["ok"], true, "{who:?}: {name}");
        }
        let memory = check(&report["limits"], "memory_mb");
        assert!(memory["ok"] == true || who == As::User, "{memory}");
    }
}

#[test]
fn a_limit_that_lacks_groups_is_shown_with_its_fix_and_does_not_count() {
    let place = Place::new(As::Root);
    // No group was ever delegated to this uid.
    let output = as_uid(unused_uid(1), &place).arg("doctor").output().unwrap();
    let report_text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{report_text}");
    assert!(report_text.contains("missing  memory_mb"), "{report_text}");
    assert!(report_text.contains("sudo cofferdam setup --user"), "{report_text}");
    assert!(
        report_text.contains("enforcement: full: everything can be enforced\nlimits: none on memory_mb"),
        "{report_text}"
    );
    assert!(!report_text.contains('\x1b'), "no colours in a pipe: {report_text}");
}

/// Runs `doctor` where no user namespace can be created, in a user namespace of its own so that other processes keep
/// theirs.
fn doctor_without_namespaces(place: &Place, before: &str) -> Output {
    let script = format!("{before} exec \"$0\" doctor");
    place.outside("unshare").args(["-Ur", "sh", "-ec", &script]).arg(binary()).output().unwrap()
}

// promise 10
#[test]
fn blocked_user_namespaces_are_named_with_a_fix() {
    for who in BOTH {
        let place = Place::new(who);
        let control = doctor_without_namespaces(&place, "");
        assert_eq!(control.status.code(), Some(0), "{who:?}, nested but not blocked: {}", text(&control));

        let output = doctor_without_namespaces(&place, "echo 0 > /proc/sys/user/max_user_namespaces;");
        let report_text = text(&output);
        assert_eq!(output.status.code(), Some(1), "{who:?}: {report_text}");
        assert!(report_text.contains("missing  namespace.user"), "{report_text}");
        assert!(report_text.contains("user.max_user_namespaces is 0"), "{report_text}");
        assert!(report_text.contains("sysctl -w user.max_user_namespaces="), "{report_text}");
        assert!(report_text.contains("missing  enclosure"), "{report_text}");
        assert!(
            report_text.contains("enforcement: partial") && report_text.contains("\"degrade\": [\"namespaces\"]"),
            "{report_text}"
        );
    }
}

// promise 10
#[test]
fn a_filter_of_a_container_is_named_with_a_fix() {
    // The filter of container runtimes: clone3 returns ENOSYS, so that programs fall back to the older call.
    const FILTER: &str = r#"
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <errno.h>
        #include <stddef.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            struct sock_filter code[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            };
            struct sock_fprog program = { sizeof code / sizeof *code, code };
            if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
                return 99;
            execv(argv[1], argv + 1);
            return 98;
        }"#;
    for who in BOTH {
        let place = Place::new(who);
        let wrapper = place.c_program("filtered", FILTER);
        let output = place.outside(&wrapper).arg(binary()).args(["doctor", "--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{who:?}: {}", text(&output));
        let report = json(&output);
        assert_ne!(report["level"], "full");
        let user = check(&report["checks"], "namespace.user");
        assert!(user["detail"].as_str().unwrap().contains("seccomp filter"), "{user}");
        assert!(user["fix"].as_str().unwrap().contains("seccomp"), "{user}");
        assert_eq!(check(&report["checks"], "call.clone3")["ok"], false);
        assert_eq!(check(&report["checks"], "seccomp.outer")["ok"], false);
        assert_eq!(check(&report["checks"], "landlock")["ok"], true, "what works is still said to work");
    }
}

/// A uid without an account, distinct per test.
fn unused_uid(which: u32) -> u32 {
    1_600_000_000 + which * 10_000_000 + std::process::id()
}

fn as_uid(uid: u32, place: &Place) -> Command {
    let mut command = place.outside("setpriv");
    let uid = uid.to_string();
    command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "--"]).arg(binary()).current_dir("/usr");
    command
}

#[test]
fn setup_needs_root_and_a_real_user() {
    let user = Place::new(As::User);
    let output = user.cofferdam(["setup", "--user", "1500"]).output().unwrap();
    let report_text = text(&output);
    assert_eq!(output.status.code(), Some(2), "{report_text}");
    assert!(report_text.contains("run as root: sudo cofferdam setup --user 1500"), "{report_text}");

    let root = Place::new(As::Root);
    for (name, code, expected) in [
        ("no-such-user-anywhere", 125, "there is no user"),
        ("0", 2, "root needs no delegation"),
        ("root", 2, "root needs no"),
    ] {
        let output = root.cofferdam(["setup", "--user", name]).output().unwrap();
        let report_text = text(&output);
        assert_eq!(output.status.code(), Some(code), "{name}: {report_text}");
        assert!(report_text.contains(expected), "{name}: {report_text}");
    }
}

/// Takes the delegation back on drop, also when the test fails.
struct Undo<'a>(&'a Place, String);

impl Undo<'_> {
    fn now(&self) -> Output {
        self.0.cofferdam(["setup", "--undo", "--user", &self.1]).output().unwrap()
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        let _ = self.now();
    }
}

// promise 8
#[test]
fn setup_gives_a_user_limits_and_takes_them_back() {
    let place = Place::new(As::Root);
    let uid = unused_uid(2);
    let name = uid.to_string();
    let limited = || {
        as_uid(uid, &place)
            .args(["run", "--read-only", "-m", "64m", "--pids", "8", "--", "/bin/true"])
            .output()
            .unwrap()
    };
    let before = limited();
    assert_eq!(before.status.code(), Some(125), "refused without groups: {}", text(&before));

    let undo = Undo(&place, name.clone());
    let output = place.cofferdam(["setup", "--user", &name]).output().unwrap();
    let report_text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{report_text}");
    assert!(report_text.contains(&format!("belongs to uid {uid}")), "{report_text}");
    assert!(report_text.contains("until the next boot") && report_text.contains("after every boot"), "{report_text}");
    let dirs: Vec<PathBuf> = report_text
        .lines()
        .filter_map(|l| l.split(" belongs to uid").next())
        .map(PathBuf::from)
        .filter(|p| p.is_dir())
        .collect();
    assert!(!dirs.is_empty(), "{report_text}");
    for dir in &dirs {
        assert_eq!(dir.metadata().unwrap().uid(), uid, "{}", dir.display());
    }
    let after = limited();
    assert_eq!(after.status.code(), Some(0), "with groups: {}", text(&after));
    let report = json(&as_uid(uid, &place).args(["doctor", "--json"]).output().unwrap());
    assert_eq!(check(&report["limits"], "memory_mb")["ok"], true);

    let output = undo.now();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("removed "), "{}", text(&output));
    assert!(dirs.iter().all(|d| !d.exists()), "{dirs:?}");
    let again = undo.now();
    assert!(text(&again).contains("had none"), "a second time changes nothing: {}", text(&again));
    assert_eq!(limited().status.code(), Some(125));
}
