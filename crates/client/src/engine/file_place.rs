//! The place of a file as users write it: `SANDBOX:PATH`, or a path of this host.

use api::Rel;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use terms::Fault;

/// A path in a sandbox.
#[derive(Debug, PartialEq, Eq)]
pub struct SandboxPath {
    pub sandbox: String,
    pub path: Vec<u8>,
}

impl SandboxPath {
    /// Makes a place from a path relative to the top of the workspace.
    pub fn at(sandbox: &str, rel: &Rel) -> SandboxPath {
        SandboxPath { sandbox: sandbox.to_owned(), path: path(rel.as_bytes()) }
    }

    /// Parses a word. A colon before any slash ends the name of a sandbox; `./a:b` is a path of this host, and gives none.
    pub fn of(word: &OsStr) -> Option<SandboxPath> {
        let bytes = word.as_bytes();
        let at = bytes.iter().position(|b| *b == b':')?;
        let sandbox = std::str::from_utf8(&bytes[..at]).ok().filter(|name| !name.is_empty() && !name.contains('/'))?;
        Some(SandboxPath { sandbox: sandbox.to_owned(), path: path(&bytes[at + 1..]) })
    }

    /// Parses a word that can only name a sandbox: without a colon it is the sandbox alone.
    pub fn with_sandbox(word: &OsStr) -> Result<SandboxPath, Fault> {
        let alone =
            || Some(SandboxPath { sandbox: word.to_str().filter(|w| !w.contains('/'))?.to_owned(), path: path(b"") });
        let place = SandboxPath::of(word).or_else(alone).filter(|place| !place.sandbox.is_empty());
        let bad = || Fault::invalid(format!("{word:?} does not name a path in a sandbox")).hint("write SANDBOX:PATH");
        place.ok_or_else(bad)
    }
}

fn path(bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() { b".".to_vec() } else { bytes.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_before_any_slash_names_a_sandbox() {
        let of =
            |word: &str| SandboxPath::of(OsStr::new(word)).map(|p| (p.sandbox, String::from_utf8(p.path).unwrap()));
        assert_eq!(of("box:a/b:c"), Some(("box".into(), "a/b:c".into())));
        assert_eq!(of("box:"), Some(("box".into(), ".".into())));
        for here in ["./box:a", "a/b:c", ":a", "plain", "-", "/x:y"] {
            assert_eq!(of(here), None, "{here}");
        }
        assert_eq!(SandboxPath::with_sandbox(OsStr::new("box")).unwrap().path, b".");
        assert!(SandboxPath::with_sandbox(OsStr::new("./box")).is_err());
        assert!(SandboxPath::with_sandbox(OsStr::new("")).is_err());
    }
}
