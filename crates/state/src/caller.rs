//! The caller of a verb: user, directories, environment and scopes, which a front end reads from its environment once and passes in.

use crate::reach::Reach;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

#[derive(Clone)]
pub struct Caller {
    pub cwd: PathBuf,
    pub home: PathBuf,
    pub user: String,
    pub env: Vec<(OsString, OsString)>,
    /// Reads a variable again, for values that must not be in our memory before they are needed.
    pub read_late: fn(&OsStr) -> Option<OsString>,
    pub reach: Reach,
    /// The state directory, where the caller names one; see `directory::place`.
    pub state_dir: Option<PathBuf>,
    /// Trace that a run belongs to, in `traceparent` notation.
    pub trace_parent: Option<OsString>,
    pub secret_sources: SecretSources,
}

/// Permitted sources of secrets for a caller's runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecretSources {
    /// Variables, files and commands of the caller, and kept secrets.
    #[default]
    All,
    /// Kept secrets, and those that come with a request. A daemon's clients start no commands of it and read none of its files or
    /// variables.
    KeptOnly,
}

impl Caller {
    /// Creates a caller with the whole reach of its user. `COFFERDAM_STATE` and `TRACEPARENT` in `env` become fields.
    pub fn new(
        cwd: PathBuf,
        home: PathBuf,
        user: String,
        env: Vec<(OsString, OsString)>,
        read_late: fn(&OsStr) -> Option<OsString>,
    ) -> Caller {
        let set = |name: &str| env.iter().find(|(n, v)| n == name && !v.is_empty()).map(|(_, value)| value.clone());
        let (state_dir, trace_parent) = (set("COFFERDAM_STATE").map(PathBuf::from), set("TRACEPARENT"));
        let (reach, secret_sources) = (Reach::default(), SecretSources::default());
        Caller { cwd, home, user, env, read_late, reach, state_dir, trace_parent, secret_sources }
    }

    /// Returns the caller with another state directory.
    pub fn in_state(mut self, state: &Path) -> Caller {
        self.state_dir = Some(state.to_owned());
        self
    }

    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.env.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_os_str())
    }

    /// Wipes the value of a variable from memory; `read_late` can still read it.
    pub fn forget(&mut self, name: &str) {
        for (_, value) in self.env.iter_mut().filter(|(n, _)| n == name) {
            let mut bytes = std::mem::take(value).into_vec();
            bytes.fill(0);
            // Keeps the compiler from removing the wipe as a dead store.
            std::hint::black_box(&bytes);
        }
    }
}
