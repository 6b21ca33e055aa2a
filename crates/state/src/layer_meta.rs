//! `meta.json` beside a layer's `up`: the purpose of the layer, so that a layer without a record can be recovered.

use crate::sandbox::Sandbox;
use api::{Driver, Rel, Sharing};
use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use terms::Limits;
use workspace::{Layer, Layers};

pub const NAME: &[u8] = b"meta.json";
/// Size bound: a policy document and much besides.
const LARGEST: u64 = 4 << 20;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Meta {
    pub base: PathBuf,
    pub base_id: (u64, u64),
    pub policy: serde_json::Value,
    /// Boot id at its creation.
    pub boot: String,
    pub created_ms: u64,
    /// Run that created it, if one did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub run_id: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub command: Vec<String>,
    /// Pid of that run's supervisor.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
    /// Sandbox that `create` made it for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sandbox: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub since: Option<(i64, u32)>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub git_head: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub driver: Option<Driver>,
    #[serde(default)]
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpus: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub reserve: Vec<Rel>,
    #[serde(default)]
    pub sharing: Sharing,
}

impl Meta {
    /// Collects what is needed to rebuild a sandbox's record from its lowest layer alone.
    pub fn of(id: &str, sandbox: &Sandbox) -> Meta {
        Meta {
            base: sandbox.base.clone(),
            base_id: sandbox.base_id,
            policy: sandbox.policy.clone(),
            boot: crate::process::boot(),
            created_ms: sandbox.created_ms,
            run_id: None,
            command: Vec::new(),
            pid: None,
            sandbox: Some(id.to_owned()),
            name: sandbox.name.clone(),
            since: Some(sandbox.since),
            git_head: sandbox.git_head.clone(),
            driver: Some(sandbox.driver),
            limits: sandbox.limits,
            cpus: sandbox.cpus,
            reserve: sandbox.reserve.clone(),
            sharing: sandbox.sharing,
        }
    }

    /// Same as `of` for a layer of a run that may or may not become a sandbox.
    pub fn of_run(record: &Sandbox, run_id: &str, command: &[String]) -> Meta {
        Meta { run_id: Some(run_id.to_owned()), command: command.to_vec(), sandbox: None, ..Meta::of("", record) }
    }

    pub fn write(&self, layer: &Layer) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = layer.dir.open_at(&Rel::top().join(NAME), flags, Mode::from_raw_mode(0o600))?;
        File::from(file).write_all(serde_json::to_string(self)?.as_bytes())
    }

    /// Reads the metadata of a layer; `None` where it is missing or incomplete.
    pub fn read(layer: &Layer) -> Option<Meta> {
        let mut text = Vec::new();
        layer.dir.file(&Rel::top().join(NAME)).ok()?.take(LARGEST).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// Removes a layer. The metadata goes first, so that a partial layer is never taken for a whole one.
pub fn drop_layer(layers: &Layers, id: &str) -> io::Result<()> {
    let Ok(dir) = layers.dir.dir(&Rel::top().join(id.as_bytes())) else { return Ok(()) };
    match rustix::fs::unlinkat(&dir, NAME, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    drop(dir);
    workspace::remove::tree(&layers.dir, id.as_bytes()).map(|_| ())
}
