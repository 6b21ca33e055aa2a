//! `provenance`: which approvals brought a path to how it is. Reads records only.

use runtime::Node;
use serde::{Deserialize, Serialize};
use state::batch::{Batch, Paths, Verb};
use state::sandbox::Which;
use state::{Caller, State};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use store::{Kept, Tx};
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};
use utoipa::ToSchema;
use workspace::{Rel, Target};

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Provenance)]
pub struct Answer {
    pub protocol_version: u32,
    /// The whole path that was asked for.
    pub path: Target,
    /// The last first.
    pub batches: Vec<Landed>,
    /// There are more, which are older.
    pub more: bool,
}

/// An approval, or one that was taken back.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = LandedBatch)]
pub struct Landed {
    /// What `undo` takes.
    pub batch: String,
    #[serde(flatten)]
    pub record: Batch,
    /// Those of the batch's paths that are at or below the one that was asked for.
    pub paths: Vec<Rel>,
    /// Further ones that are not listed.
    pub paths_more: u64,
}

const MOST_BATCHES: usize = 1_000;
const MOST_PATHS: usize = 100;

pub fn provenance(node: &Node, caller: &Caller, path: &OsStr) -> Result<Answer, Fault> {
    super::check_named(path)?;
    of_path(&node.states.open(caller)?, absolute(&caller.cwd.join(path)), caller)
}

/// Of a path in the directory that a sandbox covers.
pub fn of_sandbox(node: &Node, caller: &Caller, which: &Which, path: &Rel) -> Result<Answer, Fault> {
    let state = node.states.open(caller)?;
    let base = state.store.read(|tx| state::sandbox::pick(tx, which, caller))?.record.base;
    of_path(&state, absolute(&base.join(path.as_path())), caller)
}

fn of_path(state: &State, whole: PathBuf, caller: &Caller) -> Result<Answer, Fault> {
    let spelled = Target::of(whole.as_os_str().as_bytes());
    let mut answer = Answer { protocol_version: PROTOCOL_VERSION, path: spelled, batches: Vec::new(), more: false };
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
        return Err(fault.hint("only what `cofferdam approve` let through is known").phase(Phase::Admission));
    }
    Ok(answer)
}

fn landed(tx: &Tx<'_>, batch: Kept<Batch>, rel: &Rel) -> Result<Option<Landed>, Fault> {
    let Some(all) = tx.get::<Paths>(&batch.id)? else { return Ok(None) };
    let mut paths: Vec<Rel> = all.record.paths.into_iter().filter(|path| path.is_at_or_below(rel)).collect();
    let paths_more = paths.len().saturating_sub(MOST_PATHS) as u64;
    paths.truncate(MOST_PATHS);
    Ok((!paths.is_empty()).then_some(Landed { batch: batch.id, record: batch.record, paths, paths_more }))
}

impl Landed {
    pub fn is_undo(&self) -> bool {
        self.record.verb == Verb::Undo
    }
}

/// By words alone: what is asked about may be gone.
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
