//! Batches: changes that landed together, as records, and their directories with copies of the replaced files.

use crate::State;
use api::{BatchVerb, Rel, SubmoduleCommit};
use rustix::fs::Mode;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use store::Record;
use terms::{ErrorKind, Fault, Phase};
use workspace::Dir;

/// Ids are `bat_…`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub verb: BatchVerb,
    pub sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sandbox_name: Option<String>,
    /// The runs of the sandbox that were recorded when it landed; the last ones where there are many.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub runs: Vec<String>,
    pub base: PathBuf,
    pub base_id: (u64, u64),
    /// Name of the approver.
    pub actor: String,
    pub at_ms: u64,
    /// Digest of the diff that was reviewed.
    pub digest: String,
    pub files: u64,
    /// Batch that this one undid.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub undoes: Option<String>,
    /// Batch that undid this one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub undone_by: Option<String>,
    /// Commit of the landed changes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commit: Option<String>,
    /// Commits of the landed changes in submodules.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub inside: Vec<SubmoduleCommit>,
}

impl From<Batch> for api::Batch {
    fn from(record: Batch) -> api::Batch {
        let Batch {
            verb,
            sandbox,
            sandbox_name,
            runs,
            base,
            base_id,
            actor,
            at_ms,
            digest,
            files,
            undoes,
            undone_by,
            commit,
            inside,
        } = record;
        api::Batch {
            verb,
            sandbox,
            sandbox_name,
            runs,
            base,
            base_id,
            actor,
            at_ms,
            digest,
            files,
            undoes,
            undone_by,
            commit,
            inside,
        }
    }
}

impl Record for Batch {
    const KIND: &'static store::Kind = crate::records::kind("batch");

    fn scope(&self) -> Option<&str> {
        self.base.to_str()
    }
}

/// The paths of a batch, stored apart because there may be many; the id is the batch's.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Paths {
    pub paths: Vec<Rel>,
}

impl Record for Paths {
    const KIND: &'static store::Kind = crate::records::kind("batch_paths");
}

/// A batch in progress: while there is one, its base may be in an intermediate state. The id is the batch's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unfinished {
    pub batch: Batch,
    /// Directories of the base that hold its staged files.
    #[serde(default)]
    pub holds: BTreeSet<Rel>,
    pub stage: BatchStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchStage {
    /// Files are staged beside their destinations, and nothing has changed; or, once the plan is written, they
    /// are being moved into place.
    #[serde(alias = "staging")]
    Landing,
    /// The batch has landed; staged and replaced files are being removed.
    Tidying,
}

impl Record for Unfinished {
    const KIND: &'static store::Kind = crate::records::kind("unfinished");

    fn scope(&self) -> Option<&str> {
        self.batch.base.to_str()
    }
}

/// Opens the directory of all batches; `None` before the first. Readers create nothing.
pub fn batches(state: &State) -> Result<Option<Dir>, Fault> {
    below(&state.dir, "batches")
}

/// Opens the directory of a batch, creating it where it is missing.
pub fn directory(state: &State, id: &str) -> Result<Dir, Fault> {
    let all = make(&state.dir, "batches").map_err(|e| unusable("batches", &e))?;
    make(&all, id).map_err(|e| unusable(id, &e))
}

/// Opens the copies of a landed batch; `None` where they were collected.
pub fn copies(state: &State, id: &str) -> Result<Option<Dir>, Fault> {
    batches(state)?.map_or(Ok(None), |all| below(&all, id))
}

fn below(above: &Dir, name: &str) -> Result<Option<Dir>, Fault> {
    match above.dir(&Rel::top().join(name.as_bytes())) {
        Ok(dir) => Ok(Some(dir)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(unusable(name, &e)),
    }
}

/// Removes the directory of a batch, which then can no longer be undone.
pub fn forget(state: &State, id: &str) -> Result<(), Fault> {
    let Some(all) = batches(state)? else { return Ok(()) };
    workspace::remove::tree(&all, id.as_bytes()).map(drop).map_err(|e| unusable(id, &e))
}

fn make(above: &Dir, name: &str) -> io::Result<Dir> {
    match rustix::fs::mkdirat(above, name, Mode::RWXU) {
        Ok(()) => rustix::fs::fsync(above)?,
        Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    let name = Rel::parse(name.as_bytes()).filter(|rel| rel.parts().count() == 1).ok_or(io::ErrorKind::InvalidInput)?;
    above.dir(&name)
}

fn unusable(what: &str, error: &io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("{what} in the state directory: {error}"));
    fault.hint("the state directory must be writable, with space left").phase(Phase::Application)
}
