//! A real enclosure as the final check, started by our own binary as any user would start it.

use super::{Check, Level};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

pub struct Verdict {
    pub level: Level,
    pub missing: Vec<String>,
    pub degrade: Vec<String>,
    pub check: Check,
}

/// Working directory of the trial: it exists everywhere and is no project, so the guest sees no file of the caller.
const WORKDIR: &str = "/usr";
const NEEDED_FOR: &str = "every run: all of the above together";

pub fn enclosure(exe: &Path) -> Verdict {
    let name = "enclosure";
    let error = match run(exe, &[], None) {
        Ok(missing) if missing.is_empty() => {
            let check = Check::new(name, NEEDED_FOR, true, format!("{} ran in one", program()));
            return Verdict { level: Level::Full, missing, degrade: Vec::new(), check };
        }
        Ok(missing) => format!("it ran, without {}", missing.join(", ")),
        Err(error) => error,
    };
    // Tried again with consent to every gap that can be consented to.
    let mut degrade: Vec<String> = sys::landlock::missing(sys::landlock::abi()).into_iter().map(String::from).collect();
    if sys::probe::attempt(sys::spawn::NEW_USER | sys::spawn::NEW_MOUNT, sys::probe::Trial::Tmpfs).is_err() {
        degrade.push("namespaces".into());
    }
    if sys::core_dumps::exposed().is_some() {
        degrade.push(sys::core_dumps::NAME.into());
    }
    let check = Check::new(name, NEEDED_FOR, false, error).fix("the fixes above; then run `cofferdam doctor` again");
    match run(exe, &[], Some(&policy(&degrade))) {
        Ok(missing) => Verdict { level: Level::Partial, missing, degrade, check },
        // A policy cannot consent to the gap; the first error is the best explanation.
        Err(_) => {
            let missing = if degrade.is_empty() { vec![name.to_owned()] } else { degrade };
            Verdict { level: Level::None, missing, degrade: Vec::new(), check }
        }
    }
}

/// Verifies each limit by a run, with the consent that runs need here; a limit whose run fails counts as missing.
pub fn limits(exe: &Path, verdict: &Verdict, limits: &mut [Check]) {
    let policy = policy(&verdict.degrade);
    let consent = (verdict.level == Level::Partial).then_some(policy.as_str());
    for check in limits.iter_mut().filter(|c| c.ok && verdict.level != Level::None) {
        let flags = match check.name {
            "memory_mb" => ["--memory", "64m"],
            "processes" => ["--pids", "16"],
            "disk_mb" => ["--disk", "8m"],
            "files" => ["--limit", "files=100"],
            _ => continue,
        };
        if let Err(error) = run(exe, &flags, consent) {
            check.ok = false;
            check.detail = error;
        }
    }
}

fn policy(degrade: &[String]) -> String {
    serde_json::json!({"version": 1, "extends": ["default"], "degrade": degrade}).to_string()
}

fn program() -> &'static str {
    ["/bin/true", "/usr/bin/true", "/run/current-system/sw/bin/true"]
        .into_iter()
        .find(|p| Path::new(p).exists())
        .unwrap_or("true")
}

/// Runs a program in an enclosure to its end. Returns the missing mechanisms, or the error.
fn run(exe: &Path, flags: &[&str], policy: Option<&str>) -> Result<Vec<String>, String> {
    let mut command = Command::new(exe);
    command.args(["run", "--read-only", "--json", "--no-stdin"]).args(flags);
    if policy.is_some() {
        command.args(["--settings", "/dev/stdin"]);
    }
    command.arg("--").arg(program()).stdin(if policy.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).current_dir(WORKDIR);
    let mut child = command.spawn().map_err(|e| format!("our own binary cannot be started: {e}"))?;
    if let (Some(policy), Some(mut input)) = (policy, child.stdin.take()) {
        // A child that ended early explains why itself.
        let _ = input.write_all(policy.as_bytes());
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    if document["success"] == true {
        let missing = document.pointer("/enforcement/missing").and_then(Value::as_array);
        let words = missing.into_iter().flatten().filter_map(Value::as_str);
        return Ok(words.map(str::to_owned).collect());
    }
    let message = document["message"].as_str().map(str::to_owned);
    Err(message.unwrap_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("{}: {}", output.status, said.lines().next().unwrap_or("said nothing"))
    }))
}
