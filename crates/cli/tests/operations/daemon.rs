//! Fixtures: a daemon whose log can be read, background commands, waiting, and Python packages.

use crate::support::http::{self, Answer};
use crate::support::{Place, unique};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Upper bound for any event that must happen.
const PATIENCE: Duration = Duration::from_secs(180);

pub struct Daemon {
    http: http::Daemon,
    log: PathBuf,
}

impl Daemon {
    pub fn start(place: &Place, args: &[&str], env: &[(&str, &str)]) -> Daemon {
        let log = place.file(format!("log-{}", unique()), "");
        let mut command = place.cofferdam(["serve", "--json", "--listen", "127.0.0.1:0"]);
        let error = File::options().append(true).open(&log).unwrap();
        command.args(args).env("COFFERDAM_LOG_LEVEL", "info").envs(env.iter().copied()).stderr(error);
        Daemon { http: http::Daemon::spawn(place, command), log }
    }

    pub fn ask(&self, method: &str, path: &str) -> http::Ask<'_> {
        self.http.ask(method, path)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.http.get(path)
    }

    pub fn pid(&self) -> u32 {
        self.http.child.id()
    }

    /// The daemon's stderr so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Ends the daemon with SIGTERM and returns its log.
    pub fn end(mut self) -> String {
        self.http.signal("TERM");
        assert_eq!(self.http.ended(), Some(0), "{}", self.log());
        self.log()
    }
}

/// A background command, killed on drop.
pub struct Running(pub Child);

impl Running {
    pub fn begin(mut command: Command) -> Running {
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

/// Polls until there is a value.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Directory in which tools/test installs Python packages for tests.
pub fn python_path() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/python");
    assert!(path.exists(), "{} is not there; tools/test installs it", path.display());
    path
}
