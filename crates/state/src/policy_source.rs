//! Sources of a policy as a request names them: a preset, a file, a document, single rules.

use api::PolicySource;
use policy::Action;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A rule given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flag {
    /// `--read`, `--allow-read`, `--deny-read`
    Read(Action, String),
    Write(Action, String),
    Exec(Action, String),
    Net(Action, String),
    /// `--secret NAME@HOST[:HEADER[:FORMAT]]`
    Secret(String),
    /// `--copy-in`: a path of the home that is copied into the sandbox's own.
    CopyIn(String),
}

/// A policy by name or file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    Preset(String),
    File(PathBuf),
    /// A document that came with the request, in JSON.
    Text(String),
}

impl Source {
    /// Interprets a word: with a slash, a dot or an existing file it is a file; otherwise the name of a preset.
    pub fn of(word: &OsStr) -> Source {
        let path = Path::new(word);
        match word.to_str() {
            Some(name) if policy::preset(name).is_some() => Source::Preset(name.into()),
            Some(name) if !name.contains(['/', '.']) && !path.exists() => Source::Preset(name.into()),
            _ => Source::File(path.into()),
        }
    }
}

impl From<PolicySource> for Source {
    fn from(policy: PolicySource) -> Source {
        match policy {
            PolicySource::Name(name) => Source::Preset(name),
            PolicySource::Document(document) => Source::Text(serde_json::Value::Object(document).to_string()),
        }
    }
}
