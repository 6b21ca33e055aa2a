//! `diff`: what changed in a sandbox. Changes nothing but the record of what was shown.

use super::{Of, Reviewed, merge_base};
use runtime::Node;
use runtime::denied;
use runtime::keeper::place::Place;
use serde::{Deserialize, Serialize};
use serde_json::json;
use state::sandbox::{self, Anchored, Sandbox};
use state::{Caller, State};
use std::io::Write;
use std::path::PathBuf;
use store::{Entry, Kept, Step, Tx};
use terms::clock::now_ms;
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};
use utoipa::ToSchema;
use workspace::diff::Options;
use workspace::exclude::Exclude;
use workspace::{Body, Diff, FileDiff, Rel, Stack, sight};

pub struct Ask {
    pub of: Of,
    /// Show what is withheld, too.
    pub everything: bool,
    pub reader: Reader,
    /// All of it where none is given.
    pub page: Option<Page>,
}

/// Who reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A person who is shown all of it; an approval may go by that without saying what was seen.
    Person,
    /// A program. What it does with it nobody knows, so who approves says what was seen.
    Program,
}

/// A part of a diff that is too large for one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Most files in it.
    pub files: usize,
    /// `next` of the page before.
    pub after: Option<String>,
    /// With the lines of each hunk; without them its id and place are told.
    pub lines: bool,
}

/// Most files of one page.
pub const MOST_FILES: usize = 10_000;

/// Most bytes of text in the files of one page, but for the last file that still fitted.
const MOST_TEXT: usize = 8 << 20;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = WorkspaceDiff)]
pub struct Answer {
    pub protocol_version: u32,
    pub sandbox: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    #[schema(value_type = String)]
    pub base: PathBuf,
    /// A command is running in it, and may be changing more.
    pub running: bool,
    #[serde(flatten)]
    pub diff: Diff,
    /// Only these paths are in `files`; the digest is over all.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub only: Vec<Rel>,
    /// There are further files: what `after` takes for them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
    #[serde(skip)]
    #[schema(ignore)]
    stack: Option<Stack>,
}

impl Answer {
    /// Writes it as a patch that `git apply` takes.
    pub fn patch(&self, out: &mut impl Write) -> Result<(), Fault> {
        match &self.stack {
            Some(stack) => workspace::patch::write(out, stack, &self.diff),
            None => Err(Fault::internal("a diff that was told by another process has no files to make a patch of")),
        }
    }
}

pub fn diff(node: &Node, caller: &Caller, ask: &Ask) -> Result<Answer, Fault> {
    let state = node.states.open(caller)?;
    let opened = state.store.read(|tx| Opened::of(tx, &state, caller, &ask.of))?;
    let Opened { sandbox, stack, anchors, running, only } = opened;
    let exclude = if ask.everything { Exclude::Nothing } else { Exclude::Artefacts };
    let options = Options { exclude, ..Options::default() };
    let before = workspace::rebase::now();
    let mut diff = workspace::diff::diff(&stack, &anchors.anchors, &options).map_err(|f| f.subject(&sandbox.id))?;
    // What was read of the base is worth knowing: who touches it later has not changed it.
    let _without_it_times_decide = sight::keep_of(&stack, &anchors.anchors, &diff, before);
    merge_base::settle(&state, &sandbox.record, &stack, &anchors.anchors, &mut diff)?;
    denied::mark(&sandbox, caller, &mut diff)?;
    if running {
        diff.notes.push("a command is running in it; it may change more while you read".to_owned());
    }
    diff.notes.extend(sandbox.record.notes.iter().cloned());
    let drifted = diff.files.iter().filter(|file| file.change.drifted).count();
    if drifted > 0 {
        diff.notes.push(format!(
            "changed or touched in the base, too: {drifted} of these files; `cofferdam rebase` comes first"
        ));
    }
    let files = diff.files.len();
    narrow(&mut diff, &only, &sandbox.id)?;
    let next = ask.page.as_ref().map(|page| cut(&mut diff, page, &sandbox.id)).transpose()?.flatten();
    // Whoever has its last page has all of it: pages of two different diffs are never taken for one.
    let lines = ask.page.as_ref().is_none_or(|page| page.lines);
    let whole = only.is_empty() && next.is_none() && lines;
    note(&state, caller, &sandbox.id, (&diff.digest, files), (ask.reader, whole, exclude))?;
    let Kept { id, record, .. } = sandbox;
    let Sandbox { name, base, .. } = record;
    let protocol_version = PROTOCOL_VERSION;
    Ok(Answer { protocol_version, sandbox: id, name, base, running, diff, only, next, stack: Some(stack) })
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
    fn of(tx: &Tx<'_>, state: &State, caller: &Caller, of: &Of) -> Result<Opened, Fault> {
        let (sandbox, only) = of.find(tx, caller)?;
        let stack = sandbox::stack(state, &sandbox)?;
        let anchors = tx.get::<Anchored>(&sandbox.id)?.map(|kept| kept.record).unwrap_or_default();
        // A keeper holds it, too, and may have nothing to do.
        let kept = Place::of(&state.path, &sandbox.id).card().is_some_and(|card| card.handle().is_some());
        let running = state::lock::is_held(state, &sandbox.record)
            && (!kept || !state::process::runs(tx, &sandbox.id)?.is_empty());
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

/// Leaves one page of the files, and gives what the next one is asked for with. It tells the digest and how many files come
/// before it, so that pages of two different diffs are never taken for one.
fn cut(diff: &mut Diff, page: &Page, sandbox: &str) -> Result<Option<String>, Fault> {
    if page.files == 0 || page.files > MOST_FILES {
        let fault = Fault::invalid(format!("limit: {} files in one page", page.files)).phase(Phase::Admission);
        return Err(fault.hint(format!("from 1 to {MOST_FILES}")));
    }
    let from = page.after.as_deref().map(|after| position(after, &diff.digest, sandbox)).transpose()?.unwrap_or(0);
    let mut text = 0;
    let rest = diff.files.get(from..).unwrap_or_default();
    let fitting = rest.iter().take(page.files).take_while(|file| {
        let fits = text < MOST_TEXT;
        text += size_of(file, page.lines);
        fits
    });
    let to = from + fitting.count();
    let next = (to < diff.files.len()).then(|| format!("{}.{to}", diff.digest));
    diff.files = diff.files.drain(from.min(to)..to).collect();
    if !page.lines {
        let texts = diff.files.iter_mut().filter_map(|file| match &mut file.body {
            Body::Text(hunks) => Some(hunks),
            Body::None | Body::Whole => None,
        });
        texts.flatten().for_each(|hunk| hunk.lines.clear());
    }
    Ok(next)
}

fn size_of(file: &FileDiff, lines: bool) -> usize {
    match &file.body {
        Body::Text(hunks) if lines => hunks.iter().flat_map(|hunk| &hunk.lines).map(|line| line.text.len()).sum(),
        Body::Text(hunks) => hunks.len(),
        Body::None | Body::Whole => 0,
    }
}

fn position(after: &str, digest: &str, sandbox: &str) -> Result<usize, Fault> {
    let invalid = || {
        let fault = Fault::invalid(format!("after: {after:?} is no `next` of a diff")).phase(Phase::Admission);
        fault.hint("take it from the page before, or leave it out to begin anew")
    };
    let (of, at) = after.split_once('.').ok_or_else(invalid)?;
    let at = at.parse().map_err(|_| invalid())?;
    if of == digest {
        return Ok(at);
    }
    let fault = Fault::new(ErrorKind::Conflict, "the workspace changed since the page before").phase(Phase::Review);
    Err(fault.hint("begin anew without `after`").subject(sandbox))
}

/// Remembers what was shown: an approval without a digest is of the last diff that a person was shown as a whole, and what is
/// usually withheld is approved only after a diff with nothing withheld.
fn note(
    state: &State,
    caller: &Caller,
    sandbox: &str,
    (digest, files): (&str, usize),
    (reader, whole, exclude): (Reader, bool, Exclude),
) -> Result<(), Fault> {
    let at_ms = now_ms();
    // Nobody waits for the disk: where a power failure takes this back, an approval says that nobody was shown the diff.
    state.store.write_soon(|tx| {
        if whole && reader == Reader::Person {
            let before = tx.get::<Reviewed>(sandbox)?.map(|kept| kept.record);
            tx.remove::<Reviewed>(sandbox)?;
            let digest = digest.to_owned();
            let shown = match (exclude, before) {
                (Exclude::Artefacts, before) => Reviewed { digest, all: before.and_then(|before| before.all), at_ms },
                (Exclude::Nothing, Some(before)) => Reviewed { all: Some(digest), at_ms, ..before },
                // Nothing usual was shown; nothing has this digest but what shows all.
                (Exclude::Nothing, None) => Reviewed { digest: digest.clone(), all: Some(digest), at_ms },
            };
            tx.add(sandbox, shown)?;
        }
        let body = json!({ "digest": digest, "files": files, "whole": whole });
        let entry = Entry { at_ms, verb: "diff", step: Step::Done, subject: sandbox, actor: &caller.user, body };
        tx.note(&entry).map(drop)
    })
}
