//! The same tests with a daemon: a test binary starts itself once more, and every place of that run has a daemon that all of
//! its commands speak to.

use super::Place;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Set where the tests are made with a daemon.
const SERVED: &str = "COFFERDAM_TEST_SERVED";

/// Whether places have a daemon.
pub fn wanted() -> bool {
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

/// Makes these tests of this binary once more, with daemons.
pub fn again(tests: &[&str]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let out = command.env(SERVED, "1").arg("--exact").args(tests).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "with a daemon:\n{text}\n{}", String::from_utf8_lossy(&out.stderr));
    // A name that is no test's would be left out without a word.
    assert!(text.contains(&format!("{} passed", tests.len())), "every one of {} was made:\n{text}", tests.len());
}
