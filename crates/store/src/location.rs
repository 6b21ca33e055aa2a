//! The location of a store: a state directory, or a URL that names a back end.

use std::path::{Path, PathBuf};
use terms::{Fault, Phase};

const SQLITE: &str = "sqlite";

/// Location of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location<'a> {
    /// State directory with a SQLite file in it.
    Directory(&'a Path),
    /// `sqlite://DIRECTORY`, the URL form of the same.
    Url(&'a str),
}

impl<'a> Location<'a> {
    /// Returns the state directory of a location. A URL of an unknown back end is refused.
    pub(crate) fn directory(self) -> Result<&'a Path, Fault> {
        let url = match self {
            Location::Directory(dir) => return Ok(dir),
            Location::Url(url) => url,
        };
        match url.split_once("://") {
            Some((SQLITE, dir)) if !dir.is_empty() => Ok(Path::new(dir)),
            _ => {
                // A URL may hold a password; no more than its scheme is told.
                let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
                let fault = Fault::invalid(format!("cannot open a store by a URL with scheme {scheme:?}"));
                Err(fault.phase(Phase::Admission).hint("name a directory, or `sqlite://DIRECTORY`"))
            }
        }
    }
}

impl<'a> From<&'a Path> for Location<'a> {
    fn from(dir: &'a Path) -> Location<'a> {
        Location::Directory(dir)
    }
}

impl<'a> From<&'a PathBuf> for Location<'a> {
    fn from(dir: &'a PathBuf) -> Location<'a> {
        Location::Directory(dir)
    }
}

impl<'a> From<&'a str> for Location<'a> {
    fn from(text: &'a str) -> Location<'a> {
        if text.contains("://") { Location::Url(text) } else { Location::Directory(Path::new(text)) }
    }
}
