//! Configuration: one TOML file, the environment and flags make one set of values, each with its origin.
//!
//! Keys are defined by the table in `keys.rs`; flags, variables, `config show` and the reference are made from it.

mod file;
pub mod keys;
mod typed;
mod value;

pub use keys::{ConfigKey, KEYS, ValueKind};
pub use typed::{Keep, LogFormat, LogLevel, Logs, Quota, Serve, Telemetry};
pub use value::Value;

use crate::Caller;
use crate::bounds::{self, BuiltIn};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use terms::{Fault, Phase};

/// Origin of a value. Later variants take precedence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum ValueOrigin {
    Default,
    /// In force for agents' tokens where nothing is set; with the reason, where this host cannot enforce it.
    BuiltIn {
        #[serde(skip_serializing_if = "Option::is_none")]
        unheld: Option<String>,
    },
    File {
        file: PathBuf,
        line: usize,
    },
    Environment {
        variable: String,
    },
    Flag {
        flag: String,
    },
}

impl std::fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ValueOrigin::Default => f.write_str("default"),
            ValueOrigin::BuiltIn { unheld: None } => f.write_str("built in, for agents' tokens"),
            ValueOrigin::BuiltIn { unheld: Some(why) } => write!(f, "built in, but not held here: {why}"),
            ValueOrigin::File { file, line } => write!(f, "{}:{line}", file.display()),
            ValueOrigin::Environment { variable } => write!(f, "environment {variable}"),
            ValueOrigin::Flag { flag } => write!(f, "flag --{flag}"),
        }
    }
}

/// A value with its key and origin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    pub key: String,
    pub value: Value,
    pub origin: ValueOrigin,
}

/// Every value, including unset ones.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
    settings: Vec<Setting>,
}

/// A value given by a flag: the key, and the text or texts.
#[derive(Clone, Debug)]
pub struct Flagged {
    pub key: &'static ConfigKey,
    pub texts: Vec<String>,
}

impl Config {
    /// Reads the named file, or the one at the default path if it exists, then the environment, then the flags.
    pub fn load(named: Option<&Path>, flags: &[Flagged], caller: &Caller) -> Result<Config, Fault> {
        let (path, must_be) = place(named, caller)?;
        let read = file::read(&path, must_be)?;
        let file = read.is_some().then_some(path);
        let mut config = Config { file, settings: defaults() };
        config.put(read.unwrap_or_default());
        config.put(environment(caller)?);
        config.put(flags.iter().map(|flagged| of_flag(flagged, caller)).collect::<Result<_, _>>()?);
        typed::check(&config)?;
        Ok(config)
    }

    /// Returns the defaults.
    pub fn unset() -> Config {
        Config { file: None, settings: defaults() }
    }

    /// Lists settings in the order of the table, then those of single tenants.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Returns the configuration with the built-in ceilings of this host in place of unset ones.
    pub fn with_built_in(mut self, built_in: &BuiltIn) -> Config {
        for kind in bounds::KINDS {
            let key = format!("limits.ceiling.{}", bounds::field(kind));
            let held = built_in.ceiling.amount(kind).map(|amount| (amount, None));
            let unheld = built_in.unheld.get(&kind).map(|(amount, why)| (*amount, Some(why.clone())));
            let setting = self.settings.iter_mut().find(|known| known.key == key && known.value == Value::Unset);
            if let (Some(setting), Some((amount, unheld))) = (setting, held.or(unheld)) {
                let is_count = keys::of(&key).is_some_and(|key| key.kind == ValueKind::Count);
                setting.value = if is_count { Value::Count(amount as u64) } else { Value::Number(amount) };
                setting.origin = ValueOrigin::BuiltIn { unheld };
            }
        }
        self
    }

    pub fn find(&self, key: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.key == key)
    }

    fn put(&mut self, stronger: Vec<Setting>) {
        for new in stronger {
            match self.settings.iter_mut().find(|known| known.key == new.key) {
                Some(known) => *known = new,
                None => self.settings.push(new),
            }
        }
    }
}

/// Returns the path of the file, `--config`, else `COFFERDAM_CONFIG`, else the user's or system's configuration directory; and whether it
/// must exist.
fn place(named: Option<&Path>, caller: &Caller) -> Result<(PathBuf, bool), Fault> {
    if let Some(path) = named {
        return Ok((caller.cwd.join(path), true));
    }
    let set = |name: &str| caller.var(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(path) = set("COFFERDAM_CONFIG") {
        return Ok((caller.cwd.join(path), true));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(("/etc/cofferdam/config.toml".into(), false));
    }
    let dir = set("XDG_CONFIG_HOME").filter(|dir| dir.is_absolute()).unwrap_or_else(|| caller.home.join(".config"));
    Ok((dir.join("cofferdam/config.toml"), false))
}

fn defaults() -> Vec<Setting> {
    let of =
        |key: &ConfigKey| Setting { key: key.name.into(), value: key.default_value(), origin: ValueOrigin::Default };
    KEYS.iter().filter(|key| !key.is_of_tenants()).map(of).collect()
}

/// Reads settings from the environment. An empty variable counts as unset.
fn environment(caller: &Caller) -> Result<Vec<Setting>, Fault> {
    let mut found = Vec::new();
    for key in KEYS.iter().filter(|key| !key.is_of_tenants()) {
        let names = [key.variable()].into_iter().chain(key.also.map(str::to_owned));
        let set = names.filter_map(|name| Some((caller.var(&name).filter(|v| !v.is_empty())?, name))).next();
        let Some((text, variable)) = set else { continue };
        let value = of_texts(key, &variable, &[text])?;
        found.push(Setting { key: key.name.into(), value, origin: ValueOrigin::Environment { variable } });
    }
    Ok(found)
}

/// Reads a setting from a flag. Relative paths start at the caller's directory.
fn of_flag(flagged: &Flagged, caller: &Caller) -> Result<Setting, Fault> {
    let flag = flagged.key.flag.unwrap_or(flagged.key.name);
    let seen = |text: &String| match flagged.key.kind {
        ValueKind::Path => caller.cwd.join(text).into_os_string(),
        _ => text.into(),
    };
    let texts: Vec<OsString> = flagged.texts.iter().map(seen).collect();
    let texts: Vec<&OsStr> = texts.iter().map(OsString::as_os_str).collect();
    let value = of_texts(flagged.key, &format!("--{flag}"), &texts)?;
    Ok(Setting { key: flagged.key.name.into(), value, origin: ValueOrigin::Flag { flag: flag.to_owned() } })
}

fn of_texts(key: &ConfigKey, told_by: &str, texts: &[&OsStr]) -> Result<Value, Fault> {
    let wrong = |why: String| Fault::invalid(format!("{told_by} {why}")).hint(key.about).phase(Phase::Admission);
    let texts: Option<Vec<&str>> = texts.iter().map(|text| text.to_str()).collect();
    let texts = texts.ok_or_else(|| wrong("is not UTF-8".into()))?;
    key.kind.of_texts(&texts).map_err(wrong)
}
