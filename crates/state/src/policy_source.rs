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
pub enum RequestedPolicy {
    Preset(String),
    File(PathBuf),
    /// A document that came with the request, in JSON.
    Text(String),
}

impl RequestedPolicy {
    /// Interprets a word: with a slash, a dot or an existing file it is a file; otherwise the name of a preset.
    pub fn of(word: &OsStr) -> RequestedPolicy {
        let path = Path::new(word);
        match word.to_str() {
            Some(name) if policy::preset(name).is_some() => RequestedPolicy::Preset(name.into()),
            Some(name) if !name.contains(['/', '.']) && !path.exists() => RequestedPolicy::Preset(name.into()),
            _ => RequestedPolicy::File(path.into()),
        }
    }
}

impl From<PolicySource> for RequestedPolicy {
    fn from(policy: PolicySource) -> RequestedPolicy {
        match policy {
            PolicySource::Name(name) => RequestedPolicy::Preset(name),
            PolicySource::Document(document) => RequestedPolicy::Text(serde_json::Value::Object(document).to_string()),
        }
    }
}
