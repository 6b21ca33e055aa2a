//! Who asks: the surroundings that a door takes from its environment once and hands in.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct Caller {
    pub cwd: PathBuf,
    pub home: PathBuf,
    pub user: String,
    pub env: Vec<(OsString, OsString)>,
}

impl Caller {
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.env.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_os_str())
    }
}
