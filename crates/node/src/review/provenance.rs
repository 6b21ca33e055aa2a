//! `provenance`: the approvals that changed a path. Reads records only.

use api::{LandedBatch, PathText, Provenance, Rel};
use runtime::Node;
use state::batch::{Batch, Paths};
use state::sandbox::Which;
use state::{Caller, State};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use store::{Kept, Tx};
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};

const MOST_BATCHES: usize = 1_000;
const MOST_PATHS: usize = 100;

pub fn provenance(node: &Node, caller: &Caller, path: &OsStr) -> Result<Provenance, Fault> {
    super::check_named(path)?;
    of_path(&node.states.open(caller)?, absolute(&caller.cwd.join(path)), caller)
}

/// Lists the approvals of a path in the directory that a sandbox covers.
pub fn of_sandbox(node: &Node, caller: &Caller, which: &Which, path: &Rel) -> Result<Provenance, Fault> {
    let state = node.states.open(caller)?;
    let base = state.store.read(|tx| state::sandbox::pick(tx, which, caller))?.record.base;
    of_path(&state, absolute(&base.join(path.as_path())), caller)
}

fn of_path(state: &State, whole: PathBuf, caller: &Caller) -> Result<Provenance, Fault> {
    let spelled = PathText::of(whole.as_os_str().as_bytes());
    let mut answer = Provenance { protocol_version: PROTOCOL_VERSION, path: spelled, batches: Vec::new(), more: false };
    state.store.read(|tx| {
        for base in whole.ancestors() {
            let Some(scope) = base.to_str() else { continue };
            let below = whole.strip_prefix(base).unwrap_or(Path::new(""));
            let Some(rel) = Rel::parse(below.as_os_str().as_bytes()) else { continue };
            let mut batches = tx.list_in::<Batch>(scope)?;
            caller.keep_own(tx, &mut batches, |batch| &batch.record.sandbox)?;
            for batch in batches {
                answer.batches.extend(landed(tx, batch, &rel)?);
            }
        }
        Ok(())
    })?;
    answer.batches.sort_by_key(|landed| std::cmp::Reverse(landed.record.at_ms));
    answer.more = answer.batches.len() > MOST_BATCHES;
    answer.batches.truncate(MOST_BATCHES);
    if answer.batches.is_empty() {
        let fault = Fault::new(ErrorKind::NotFound, format!("{}: nothing landed there", whole.display()));
        return Err(fault.hint("only changes that were approved have a record").phase(Phase::Admission));
    }
    Ok(answer)
}

fn landed(tx: &Tx<'_>, batch: Kept<Batch>, rel: &Rel) -> Result<Option<LandedBatch>, Fault> {
    let Some(all) = tx.get::<Paths>(&batch.id)? else { return Ok(None) };
    let mut paths: Vec<Rel> = all.record.paths.into_iter().filter(|path| path.is_at_or_below(rel)).collect();
    let paths_more = paths.len().saturating_sub(MOST_PATHS) as u64;
    paths.truncate(MOST_PATHS);
    Ok((!paths.is_empty()).then_some(LandedBatch { batch: batch.id, record: batch.record.into(), paths, paths_more }))
}

/// Makes a path absolute without reading the file system: it may be gone.
fn absolute(path: &Path) -> PathBuf {
    let mut whole = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(part) => whole.push(part),
            Component::ParentDir => drop(whole.pop()),
            _ => {}
        }
    }
    whole
}
