//! The contender srt (Anthropic's sandbox-runtime), installed from npm for this measurement only.

use super::super::{BenchConfig, find};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const PACKAGE: &str = "@anthropic-ai/sandbox-runtime";
/// Programs that srt and its installation need.
const NEEDED: [&str; 5] = ["npm", "node", "bwrap", "socat", "rg"];
const PATIENCE: Duration = Duration::from_secs(180);
const LONGEST_REASON: usize = 200;

/// Settings that allow the test server only.
const SETTINGS: &str = r#"{"network": {"allowedDomains": ["localhost", "127.0.0.1"], "deniedDomains": []},
 "filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": []}}"#;

pub struct Srt {
    program: PathBuf,
    settings: PathBuf,
    pub version: String,
}

impl Srt {
    /// Returns the command prefix.
    pub fn words(&self) -> Vec<OsString> {
        vec![self.program.clone().into(), "-s".into(), self.settings.clone().into(), "-c".into()]
    }
}

/// Installs srt below a directory; an error is the reason why it is left out.
pub fn install(config: &BenchConfig, below: &Path) -> Result<Srt, String> {
    if let Some(missing) = NEEDED.iter().find(|name| find(name, config.path.as_deref()).is_none()) {
        return Err(format!("{missing} is not on PATH"));
    }
    let npm = find("npm", config.path.as_deref()).ok_or("npm is not on PATH")?;
    let at = below.join("srt");
    fs::create_dir(&at).map_err(|e| format!("{}: {e}", at.display()))?;
    let log = at.join("npm.txt");
    let errors = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    let child = Command::new(npm)
        .args(["install", "--no-audit", "--no-fund", "--loglevel", "error", "--prefix"])
        .args([at.as_os_str(), PACKAGE.as_ref()])
        .current_dir(&at)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn();
    let status = within(child.map_err(|e| format!("npm: {e}"))?).map_err(|e| format!("npm: {e}"))?;
    if !status.is_some_and(|s| s.success()) {
        return Err(format!("npm could not install it: {}", reason(&log, status.is_none())));
    }
    let settings = at.join("settings.json");
    fs::write(&settings, SETTINGS).map_err(|e| format!("{}: {e}", settings.display()))?;
    let package = at.join("node_modules").join(PACKAGE).join("package.json");
    let package: serde_json::Value =
        fs::read(package).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let version = package["version"].as_str().unwrap_or("unknown").to_owned();
    Ok(Srt { program: at.join("node_modules/.bin/srt"), settings, version })
}

/// Waits for a child; `None` if it was killed at the timeout.
fn within(mut child: Child) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn reason(log: &Path, too_long: bool) -> String {
    if too_long {
        return "it took too long".to_owned();
    }
    let said = fs::read_to_string(log).unwrap_or_default();
    said.lines().next().unwrap_or("it said nothing").chars().take(LONGEST_REASON).collect()
}
