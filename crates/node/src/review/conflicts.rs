//! `conflicts`: sandboxes that change the same files. Compares all sandboxes with overlapping directories, and their files in
//! dispute with the base.

use super::merge_base;
use api::{ChangeKind, Conflicts, ContestedBy, ContestedFile, Diff, DisputedFile, Rel};
use runtime::Node;
use state::conflicted::Conflicted;
use state::sandbox::{self, Anchored, Sandbox};
use state::{Caller, State};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use store::{Kept, Tx};
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase, Retry};
use workspace::Stack;
use workspace::diff::{Options, diff};

pub struct FindConflicts {
    /// Limits the answer to conflicts of this sandbox; else all of the current directory are listed.
    pub sandbox: Option<String>,
}

/// Most sandboxes in one comparison.
const MOST_SANDBOXES: usize = 256;

/// Most entries in an answer.
const MOST_TOLD: usize = 10_000;

pub fn conflicts(node: &Node, caller: &Caller, ask: &FindConflicts) -> Result<Conflicts, Fault> {
    let state = node.states.open(caller)?;
    let (base, only, found) = state.store.read(|tx| gather(tx, caller, ask))?;
    let mut notes = Vec::new();
    let mut writers: BTreeMap<Rel, Vec<ContestedBy>> = BTreeMap::new();
    let (mut drifted, mut unresolved) = (Vec::new(), Vec::new());
    for Participant { sandbox, anchored, disputes } in &found {
        let looked = look(&state, sandbox, anchored);
        let (stack, diff) = match looked {
            Ok(looked) => looked,
            Err(fault) => {
                notes.push(format!("{} was left out: {}", sandbox.id, fault.message));
                continue;
            }
        };
        let Some(prefix) = below(&base, &sandbox.record.base) else { continue };
        let mine = only.as_ref().is_none_or(|id| *id == sandbox.id);
        let told = |path: &Rel| {
            let name = sandbox.record.name.clone();
            DisputedFile { path: joined(&prefix, path), sandbox: sandbox.id.clone(), name }
        };
        for file in &diff.files {
            let change = &file.change;
            if mine && change.drifted {
                drifted.push(told(&change.path));
            }
            if mine && disputes.is_conflicted(file) {
                unresolved.push(told(&change.path));
            }
            for path in [Some(&change.path), change.kind.from()].into_iter().flatten() {
                let kind = if *path == change.path { change.kind.name() } else { ChangeKind::Deleted.name() };
                let kind = kind.to_owned();
                let first_ms = first_written(&stack, path);
                let (id, name) = (sandbox.id.clone(), sandbox.record.name.clone());
                writers.entry(joined(&prefix, path)).or_default().push(ContestedBy {
                    sandbox: id,
                    name,
                    kind,
                    first_ms,
                });
            }
        }
    }
    let several = |by: &Vec<ContestedBy>| by.iter().map(|w| &w.sandbox).collect::<BTreeSet<_>>().len() > 1;
    let concerned = |by: &Vec<ContestedBy>| only.as_ref().is_none_or(|id| by.iter().any(|w| w.sandbox == *id));
    let mut contested: Vec<ContestedFile> = writers
        .into_iter()
        .filter(|(_, by)| several(by) && concerned(by))
        .map(|(path, mut by)| {
            by.sort_by_key(|writer| (writer.first_ms.is_none(), writer.first_ms));
            ContestedFile { path, by }
        })
        .collect();
    for (what, left) in [
        ("contested files", cut(&mut contested)),
        ("drifted files", cut(&mut drifted)),
        ("unresolved files", cut(&mut unresolved)),
    ] {
        if left > 0 {
            notes.push(format!("{left} more {what} are not listed"));
        }
    }
    Ok(Conflicts { protocol_version: PROTOCOL_VERSION, base, contested, drifted, unresolved, notes })
}

fn cut<T>(list: &mut Vec<T>) -> usize {
    let left = list.len().saturating_sub(MOST_TOLD);
    list.truncate(MOST_TOLD);
    left
}

struct Participant {
    sandbox: Kept<Sandbox>,
    anchored: Anchored,
    disputes: Conflicted,
}

/// Returns the directory above all the bases, the sandbox of the request, and all sandboxes that overlap with it.
fn gather(
    tx: &Tx<'_>,
    caller: &Caller,
    ask: &FindConflicts,
) -> Result<(PathBuf, Option<String>, Vec<Participant>), Fault> {
    let (around, only) = match &ask.sandbox {
        Some(word) => {
            let sandbox = sandbox::find(tx, Some(word), caller)?;
            (sandbox.record.base, Some(sandbox.id))
        }
        None => (nearest(tx, caller)?, None),
    };
    let overlaps = |base: &Path| base.starts_with(&around) || around.starts_with(base);
    let concerns = |s: &Kept<Sandbox>| overlaps(&s.record.base) && caller.sees_kept(s);
    let all: Vec<_> = tx.list::<Sandbox>()?.into_iter().filter(concerns).collect();
    if all.len() > MOST_SANDBOXES {
        let message = format!(
            "{} sandboxes overlap with {}, and at most {MOST_SANDBOXES} are compared",
            all.len(),
            around.display()
        );
        let fault = Fault::new(ErrorKind::LimitExceeded, message).phase(Phase::Review);
        return Err(fault.retry(Retry::Later).hint("remove those that are no longer needed with `cofferdam rm`"));
    }
    let top = all.iter().map(|s| s.record.base.clone()).min_by_key(|base| base.components().count());
    let found = all.into_iter().map(|sandbox| {
        let anchored = tx.get::<Anchored>(&sandbox.id)?.map(|kept| kept.record).unwrap_or_default();
        let disputes = tx.get::<Conflicted>(&sandbox.id)?.map(|kept| kept.record).unwrap_or_default();
        Ok(Participant { sandbox, anchored, disputes })
    });
    Ok((top.unwrap_or(around), only, found.collect::<Result<_, Fault>>()?))
}

/// Returns the nearest directory that a sandbox covers, from the current one upwards.
fn nearest(tx: &Tx<'_>, caller: &Caller) -> Result<PathBuf, Fault> {
    let cwd = caller.cwd.as_path();
    for above in cwd.ancestors() {
        let covered = above.to_str().map(|base| tx.list_in::<Sandbox>(base)).transpose()?;
        if covered.is_some_and(|list| list.iter().any(|kept| caller.sees_kept(kept))) {
            return Ok(above.to_owned());
        }
    }
    let fault = Fault::new(ErrorKind::NotFound, format!("no sandbox covers {}", cwd.display()));
    Err(fault.hint("`cofferdam ls` lists all; name one").phase(Phase::Admission))
}

fn look(state: &State, sandbox: &Kept<Sandbox>, anchored: &Anchored) -> Result<(Stack, Diff), Fault> {
    let stack = sandbox::stack(state, sandbox)?;
    let mut diff = diff(&stack, &anchored.anchors, &Options::default())?;
    merge_base::settle(state, &sandbox.record, &stack, &anchored.anchors, &mut diff)?;
    Ok((stack, diff))
}

fn below(top: &Path, base: &Path) -> Option<Rel> {
    Rel::parse(base.strip_prefix(top).ok()?.as_os_str().as_bytes())
}

fn joined(prefix: &Rel, path: &Rel) -> Rel {
    path.parts().fold(prefix.clone(), |at, part| at.join(part))
}

/// Returns the time at which a path first appeared in a layer. The kernel creates the file in the layer at the first write.
fn first_written(stack: &Stack, path: &Rel) -> Option<u64> {
    let times = stack.layers.iter().filter_map(|layer| {
        let (dir, name) = workspace::place::parent_of(&layer.up, path).ok()?;
        let meta = dir.meta_of(name).ok().flatten().filter(|meta| !meta.is_struck_out())?;
        let (seconds, nanoseconds) = dir.born(name).unwrap_or(meta.mtime);
        Some(u64::try_from(seconds).ok()? * 1000 + u64::from(nanoseconds) / 1_000_000)
    });
    times.min()
}
