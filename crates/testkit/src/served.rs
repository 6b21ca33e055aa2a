//! Tests against a daemon: a test binary starts itself once more, and every place of that run has a daemon that all of
//! its commands use.

use super::Place;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Set if the tests run with a daemon.
const SERVED: &str = "COFFERDAM_TEST_SERVED";

/// Returns true if places have a daemon.
pub fn is_enabled() -> bool {
    std::env::var_os(SERVED).is_some()
}

/// A daemon on the state of a place.
pub struct Served {
    child: Child,
    pub socket: PathBuf,
}

impl Served {
    pub fn start(place: &Place) -> Served {
        let mut command = place.cofferdam(["serve", "--json"]);
        command.env("COFFERDAM_LOG_LEVEL", "error").stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(told.by_ref().map_while(Result::ok).any(|line| line == "}"), "the daemon must start");
        Served { child, socket: place.state().join("cofferdam.sock") }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs tests of this binary once more, with daemons: those whose names begin with one of `tests`, except `but`, which
/// need a process of their own. At least `least` tests must run.
pub fn again(least: usize, tests: &[&str], but: &[&str]) {
    let log = std::env::temp_dir().join(format!("cofferdam-served-{}", std::process::id()));
    // Into a file: a process that outlives a failed test would hold a pipe open.
    let file = std::fs::File::create(&log).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(SERVED, "1").args(tests).stdin(Stdio::null()).stderr(file.try_clone().unwrap()).stdout(file);
    for test in but {
        command.args(["--skip", test]);
    }
    let status = command.status().unwrap();
    let text = std::fs::read_to_string(&log).unwrap();
    let _ = std::fs::remove_file(&log);
    assert!(status.success(), "with a daemon:\n{text}");
    let made = text.lines().filter(|line| line.starts_with("test ") && line.ends_with("... ok")).count();
    assert!(made >= least, "{made} tests were made of {least}:\n{text}");
}
