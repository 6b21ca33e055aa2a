//! `diff`: what changed in a sandbox. Changes nothing but the record of what was shown.

use super::{Reviewed, denied, rel_of, which};
use crate::Caller;
use crate::fresh::now_ms;
use crate::lifecycle::live;
use crate::sandbox::{self, Anchored, Sandbox};
use crate::state::State;
use serde::Serialize;
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use store::{Entry, Kept, Step, Tx};
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};
use workspace::diff::Options;
use workspace::exclude::Exclude;
use workspace::{Diff, Rel, Stack};

pub struct Ask {
    /// `[ID] [PATH…]`.
    pub words: Vec<OsString>,
    /// Show what is withheld, too.
    pub everything: bool,
}

#[derive(Serialize)]
pub struct Answer {
    pub protocol_version: u32,
    pub sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub base: PathBuf,
    /// A command is running in it, and may be changing more.
    pub running: bool,
    #[serde(flatten)]
    pub diff: Diff,
    /// Only these paths are in `files`; the digest is over all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<Rel>,
    #[serde(skip)]
    stack: Stack,
}

impl Answer {
    /// Writes it as a patch that `git apply` takes.
    pub fn patch(&self, out: &mut impl Write) -> Result<(), Fault> {
        workspace::patch::write(out, &self.stack, &self.diff)
    }
}

pub fn diff(caller: &Caller, ask: &Ask) -> Result<Answer, Fault> {
    let state = State::open(caller)?;
    let opened = state.store.read(|tx| Opened::of(tx, &state, caller, &ask.words))?;
    let Opened { sandbox, stack, anchors, running, only } = opened;
    let exclude = if ask.everything { Exclude::Nothing } else { Exclude::Artefacts };
    let options = Options { exclude, ..Options::default() };
    let mut diff = workspace::diff::diff(&stack, &anchors.anchors, &options).map_err(|f| f.subject(&sandbox.id))?;
    denied::mark(&sandbox, caller, &mut diff)?;
    if running {
        diff.notes.push("a command is running in it; it may change more while you read".to_owned());
    }
    diff.notes.extend(sandbox.record.notes.iter().cloned());
    let drifted = diff.files.iter().filter(|file| file.change.drifted).count();
    if drifted > 0 {
        diff.notes.push(format!("{drifted} of these files changed in the base, too; `cofferdam rebase` comes first"));
    }
    note(&state, caller, &sandbox.id, &diff, only.is_empty().then_some(exclude))?;
    narrow(&mut diff, &only, &sandbox.id)?;
    let Kept { id, record, .. } = sandbox;
    let Sandbox { name, base, .. } = record;
    Ok(Answer { protocol_version: PROTOCOL_VERSION, sandbox: id, name, base, running, diff, only, stack })
}

/// What a diff is made from.
struct Opened {
    sandbox: Kept<Sandbox>,
    stack: Stack,
    anchors: Anchored,
    running: bool,
    only: Vec<Rel>,
}

impl Opened {
    fn of(tx: &Tx<'_>, state: &State, caller: &Caller, words: &[OsString]) -> Result<Opened, Fault> {
        let (sandbox, paths) = which(tx, words, caller)?;
        let stack = sandbox::stack(state, &sandbox)?;
        let anchors = tx.get::<Anchored>(&sandbox.id)?.map(|kept| kept.record).unwrap_or_default();
        let running = live::is_held(state, &sandbox.record);
        let only = paths.iter().map(|word| rel_of(word, &sandbox.record.base, caller));
        let only = only.collect::<Result<Vec<_>, _>>()?;
        Ok(Opened { sandbox, stack, anchors, running, only })
    }
}

/// Leaves only what is at or below the chosen paths. One that chooses nothing is a mistake worth telling.
fn narrow(diff: &mut Diff, only: &[Rel], sandbox: &str) -> Result<(), Fault> {
    if only.is_empty() {
        return Ok(());
    }
    let held = |rel: &Rel| diff.withheld.iter().any(|w| w.path.is_at_or_below(rel) || rel.is_at_or_below(&w.path));
    for rel in only {
        if !diff.files.iter().any(|file| file.change.path.is_at_or_below(rel)) {
            let fault =
                Fault::new(ErrorKind::NotFound, format!("{rel}: nothing changed there")).phase(Phase::Admission);
            let hint = if held(rel) {
                "it is withheld; --all shows it"
            } else {
                "`cofferdam diff --name-only` lists what changed, `cofferdam ls` the sandboxes"
            };
            return Err(fault.hint(hint).subject(sandbox));
        }
    }
    diff.files.retain(|file| only.iter().any(|rel| file.change.path.is_at_or_below(rel)));
    diff.withheld.retain(|withheld| only.iter().any(|rel| withheld.path.is_at_or_below(rel)));
    Ok(())
}

/// Remembers what was shown: an approval without a digest is of the last diff that was shown as a whole, and what is usually
/// withheld is approved only after a diff with nothing withheld.
fn note(state: &State, caller: &Caller, sandbox: &str, diff: &Diff, whole: Option<Exclude>) -> Result<(), Fault> {
    let at_ms = now_ms();
    state.store.write(|tx| {
        if let Some(exclude) = whole {
            let before = tx.get::<Reviewed>(sandbox)?.map(|kept| kept.record);
            tx.remove::<Reviewed>(sandbox)?;
            let digest = diff.digest.clone();
            let shown = match (exclude, before) {
                (Exclude::Artefacts, before) => Reviewed { digest, all: before.and_then(|before| before.all), at_ms },
                (Exclude::Nothing, Some(before)) => Reviewed { all: Some(digest), at_ms, ..before },
                // Nothing usual was shown; nothing has this digest but what shows all.
                (Exclude::Nothing, None) => Reviewed { digest: digest.clone(), all: Some(digest), at_ms },
            };
            tx.add(sandbox, shown)?;
        }
        let body = json!({ "digest": diff.digest, "files": diff.files.len(), "whole": whole.is_some() });
        let entry = Entry { at_ms, verb: "diff", step: Step::Done, subject: sandbox, actor: &caller.user, body };
        tx.note(&entry).map(drop)
    })
}
