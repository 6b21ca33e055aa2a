//! Who asks: the surroundings that a door takes from its environment once and hands in.

use crate::reach::Reach;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

#[derive(Clone)]
pub struct Caller {
    pub cwd: PathBuf,
    pub home: PathBuf,
    pub user: String,
    pub env: Vec<(OsString, OsString)>,
    /// Reads a variable anew, for values that must not be in our memory before they are needed.
    pub read_late: fn(&OsStr) -> Option<OsString>,
    pub reach: Reach,
}

impl Caller {
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.env.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_os_str())
    }

    /// Wipes the value of a variable from memory; it can still be read late.
    pub fn forget(&mut self, name: &str) {
        for (_, value) in self.env.iter_mut().filter(|(n, _)| n == name) {
            let mut bytes = std::mem::take(value).into_vec();
            bytes.fill(0);
            // Or the compiler would see that nobody reads it.
            std::hint::black_box(&bytes);
        }
    }
}
