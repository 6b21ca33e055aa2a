//! Records of snapshots and templates. A snapshot is a list of frozen layers, each with a digest over its content, which is verified before
//! anything is built upon it.

use crate::State;
use crate::sandbox::{self, Sandbox};
use api::Driver;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use store::Record;
use terms::{ErrorKind, Fault, Limits, Phase};
use workspace::{Anchors, Dir, Layer, manifest};

/// The layers, policy and limits that sandboxes can be built upon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ground {
    pub base: PathBuf,
    pub base_id: (u64, u64),
    pub driver: Driver,
    /// Ids from the bottom up, in the field that every record with references to layers has.
    pub layers: Vec<String>,
    /// The layers with their digests.
    pub frozen: Vec<FrozenLayer>,
    pub since: (i64, u32),
    /// Commit of the base at that time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub git_head: Option<String>,
    #[serde(default)]
    pub anchors: Anchors,
    pub policy: serde_json::Value,
    #[serde(default)]
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpus: Option<f64>,
}

/// A layer that is no longer written to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenLayer {
    pub id: String,
    pub digest: String,
    pub entries: u64,
    pub bytes: u64,
}

/// Stored by the layer's id, so that every stack with the layer finds its digest.
impl Record for FrozenLayer {
    const KIND: &'static store::Kind = crate::records::kind("frozen");
}

/// A snapshot. Ids are `snp_…`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Sandbox that it was taken of; it may be gone.
    pub sandbox: String,
    /// Made as a part of another verb: kept by `restore`, or for a fork. Collected when nothing needs it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub automatic: bool,
    /// Digest over the digests of all its layers.
    pub digest: String,
    pub created_ms: u64,
    #[serde(flatten)]
    pub ground: Ground,
}

impl Record for Snapshot {
    const KIND: &'static store::Kind = crate::records::kind("snapshot");

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn scope(&self) -> Option<&str> {
        Some(&self.sandbox)
    }
}

impl Ground {
    pub fn digest(&self) -> String {
        manifest::whole(self.frozen.iter().map(|l| l.digest.as_str()))
    }

    /// Bytes of files in all its layers.
    pub fn bytes(&self) -> u64 {
        self.frozen.iter().map(|l| l.bytes).sum()
    }

    /// Builds the ground of a sandbox, with other layers than its own.
    pub fn of(sandbox: &Sandbox, frozen: Vec<FrozenLayer>, anchors: Anchors) -> Ground {
        Ground {
            base: sandbox.base.clone(),
            base_id: sandbox.base_id,
            driver: sandbox.driver,
            layers: frozen.iter().map(|l| l.id.clone()).collect(),
            frozen,
            since: sandbox.since,
            git_head: sandbox.git_head.clone(),
            anchors,
            policy: sandbox.policy.clone(),
            limits: sandbox.limits,
            cpus: sandbox.cpus,
        }
    }

    /// Opens and verifies the frozen layers; one that differs from its digest is a fault that names the difference.
    pub fn verified(&self, state: &State) -> Result<Vec<Layer>, Fault> {
        let open = |frozen: &FrozenLayer| {
            let layer = state.layers.get(&frozen.id).map_err(|e| lost(&frozen.id, &e))?;
            manifest::verify(&layer, &frozen.digest, workspace::Marks::of(self.driver))?;
            Ok(layer)
        };
        self.frozen.iter().map(open).collect()
    }

    pub fn base(&self) -> Result<Dir, Fault> {
        covered(&self.base, self.base_id, self.since)
    }
}

/// Opens a base, which must still be the same directory.
pub fn covered(base: &Path, id: (u64, u64), since: (i64, u32)) -> Result<Dir, Fault> {
    let conflict = |why: String| {
        let fault = Fault::new(ErrorKind::Conflict, format!("{}: {why}", base.display()));
        fault.hint("put the directory back, or export the snapshot and import it elsewhere").phase(Phase::Admission)
    };
    let opened = Dir::open(base).map_err(|e| conflict(e.to_string()))?;
    match sandbox::is_base(&opened, id, since).map_err(|e| conflict(e.to_string()))? {
        true => Ok(opened),
        false => Err(conflict("not the directory that was covered".to_owned())),
    }
}

/// Builds the fault for a layer that cannot be opened.
pub fn lost(id: &str, error: &std::io::Error) -> Fault {
    let message = format!("layer {id} cannot be opened: {error}");
    Fault::new(ErrorKind::Conflict, message)
        .hint("use another snapshot; `cofferdam fsck` shows other damage")
        .subject(id)
}

/// A template. Ids are `tpl_…`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Template {
    pub name: String,
    /// Digest over its layers, policy and limits.
    pub digest: String,
    /// The command that prepared it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prepared: Option<String>,
    pub created_ms: u64,
    #[serde(flatten)]
    pub ground: Ground,
}

impl Record for Template {
    const KIND: &'static store::Kind = crate::records::kind("template");

    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }
}

impl Template {
    /// Returns the content address, which never changes its meaning.
    pub fn address(&self) -> String {
        format!("{}@sha256:{}", self.name, self.digest)
    }
}
