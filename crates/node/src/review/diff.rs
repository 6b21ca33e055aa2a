//! `diff`: the changes in a sandbox. Writes nothing but the record of the diff that was shown.

use super::history;
use super::{ReviewScope, merge_base};
use crate::unrecorded::starting;
use api::{ChangeBody, Diff, FileDiff, JournalStep, LiveRun, OtherSandbox, Rel, WorkspaceDiff};
use runtime::Node;
use runtime::denied;
use runtime::keeper::place::KeeperDir;
use serde_json::json;
use state::sandbox::{self, Anchored, Reviewed, Sandbox};
use state::{Caller, State};
use std::io::Write;
use std::time::{Duration, Instant};
use store::{Entry, Kept, Tx};
use terms::clock::now_ms;
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};
use workspace::diff::Options;
use workspace::exclude::Exclude;
use workspace::{Stack, sight};

pub struct ReadDiff {
    pub of: ReviewScope,
    /// Show what is withheld, too.
    pub everything: bool,
    pub reader: DiffReader,
    /// The page to return; the whole diff by default.
    pub page: Option<DiffPage>,
}

/// Reader of the diff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiffReader {
    /// A person who is shown all of it; an approval may go by that without saying what was seen.
    Person,
    /// A program. It may not show the diff to a person, so an approval has to name the digest.
    Program,
}

/// A part of a diff that is too large for one response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiffPage {
    /// Most files in it.
    pub files: usize,
    /// The `next` of the previous page.
    pub after: Option<String>,
    /// Includes the lines of each hunk; without them only its id and position.
    pub lines: bool,
}

/// Most files of one page.
pub const MOST_FILES: usize = 10_000;

/// Most bytes of text in one page, except for the last file that began below the limit.
const MOST_TEXT: usize = 8 << 20;

/// A diff with the files that a patch of it is made from.
pub struct Patch {
    stack: Stack,
    diff: Diff,
}

impl Patch {
    pub fn digest(&self) -> &str {
        &self.diff.digest
    }

    /// Writes the diff as a patch for `git apply`.
    pub fn write(&self, out: &mut impl Write) -> Result<(), Fault> {
        workspace::patch::write(out, &self.stack, &self.diff)
    }
}

/// Most other sandboxes in an answer.
const MOST_OTHERS: usize = 100;

pub fn diff(node: &Node, caller: &Caller, ask: &ReadDiff) -> Result<WorkspaceDiff, Fault> {
    Ok(look(node, caller, ask)?.0)
}

/// Reads the diff as a patch.
pub fn patch(node: &Node, caller: &Caller, ask: &ReadDiff) -> Result<Patch, Fault> {
    let (answer, stack) = look(node, caller, ask)?;
    Ok(Patch { stack, diff: answer.diff })
}

fn look(node: &Node, caller: &Caller, ask: &ReadDiff) -> Result<(WorkspaceDiff, Stack), Fault> {
    let state = node.states.open(caller)?;
    if matches!(&ask.of, ReviewScope::Words(words) if words.is_empty()) {
        await_registration(&state, caller)?;
    }
    let opened = state.store.read(|tx| DiffInput::of(tx, &state, caller, &ask.of))?;
    let DiffInput { sandbox, stack, anchors, running, only, others } = opened;
    let exclude = if ask.everything { Exclude::Nothing } else { Exclude::Artefacts };
    let options = Options { exclude, ..Options::default() };
    let before = workspace::rebase::now();
    let mut diff = workspace::diff::diff(&stack, &anchors.anchors, &options).map_err(|f| f.subject(&sandbox.id))?;
    // The digests of the base files that were read: a later `touch` is then no drift. A failure leaves the decision to timestamps.
    let _ = sight::keep_of(&stack, &anchors.anchors, &diff, before);
    merge_base::settle(&state, &sandbox.record, &stack, &anchors.anchors, &mut diff)?;
    denied::mark(&sandbox, caller, &mut diff)?;
    if running {
        diff.notes.push("a command is running in it; it may change more while you read".to_owned());
    }
    diff.notes.extend(sandbox.record.notes.iter().cloned());
    let first = ask.page.as_ref().is_none_or(|page| page.after.is_none());
    let (git, unread) = if first { history::of(caller, &sandbox, &stack) } else { (None, None) };
    diff.notes.extend(unread);
    let drifted = diff.files.iter().filter(|file| file.change.drifted).count();
    if drifted > 0 {
        diff.notes.push(format!(
            "changed or touched in the base, too: {drifted} of these files; `cofferdam rebase` comes first"
        ));
    }
    let files = diff.files.len();
    narrow(&mut diff, &only, &sandbox.id)?;
    let next = ask.page.as_ref().map(|page| cut(&mut diff, page, &sandbox.id)).transpose()?.flatten();
    // The reader of the last page has all of it: the cursor keeps pages of two diffs apart.
    let lines = ask.page.as_ref().is_none_or(|page| page.lines);
    let whole = only.is_empty() && next.is_none() && lines;
    let tip = git.as_ref().and_then(|git| git.commit.clone());
    note(&state, caller, &sandbox.id, (&diff.digest, files, tip), (ask.reader, whole, exclude))?;
    let Kept { id, record, .. } = sandbox;
    let Sandbox { name, base, .. } = record;
    let protocol_version = PROTOCOL_VERSION;
    Ok((WorkspaceDiff { protocol_version, sandbox: id, name, base, running, diff, git, only, next, others }, stack))
}

/// The input of a diff.
struct DiffInput {
    sandbox: Kept<Sandbox>,
    stack: Stack,
    anchors: Anchored,
    running: bool,
    only: Vec<Rel>,
    others: Vec<OtherSandbox>,
}

/// Time that a run which has just begun has to register its sandbox.
const REGISTERED: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until runs that have just begun over the caller's directory are recorded: a diff without a name is of the newest.
fn await_registration(state: &State, caller: &Caller) -> Result<(), Fault> {
    let end = Instant::now() + REGISTERED;
    let covers = |live: &LiveRun| caller.cwd.starts_with(&live.base);
    while !caller.is_bound() && starting(state)?.iter().any(covers) && Instant::now() < end {
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

impl DiffInput {
    fn of(tx: &Tx<'_>, state: &State, caller: &Caller, of: &ReviewScope) -> Result<DiffInput, Fault> {
        let (sandbox, only) = of.find(tx, caller)?;
        let stack = sandbox::stack(state, &sandbox)?;
        let anchors = tx.get::<Anchored>(&sandbox.id)?.map(|kept| kept.record).unwrap_or_default();
        // A keeper holds the lock, too, and may be idle.
        let kept = KeeperDir::of(&state.path, &sandbox.id).card().is_some_and(|card| card.handle().is_some());
        let running = state::lock::is_held(state, &sandbox.record)
            && (!kept || !state::process::runs(tx, &sandbox.id)?.is_empty());
        let others = others(tx, state, caller, &sandbox)?;
        Ok(DiffInput { sandbox, stack, anchors, running, only, others })
    }
}

fn others(tx: &Tx<'_>, state: &State, caller: &Caller, of: &Kept<Sandbox>) -> Result<Vec<OtherSandbox>, Fault> {
    let Some(base) = of.record.base.to_str() else { return Ok(Vec::new()) };
    let mut here = tx.list_in::<Sandbox>(base)?;
    here.retain(|kept| kept.id != of.id && caller.sees_kept(kept));
    here.sort_by_key(|kept| std::cmp::Reverse(kept.record.used_ms));
    here.truncate(MOST_OTHERS);
    let other = |kept: Kept<Sandbox>| OtherSandbox {
        running: state::lock::is_held(state, &kept.record),
        sandbox: kept.id,
        name: kept.record.name,
    };
    Ok(here.into_iter().map(other).collect())
}

/// Keeps only the files at or below the chosen paths. A path without changes is refused.
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

/// Keeps one page of the files and returns the cursor of the next. The cursor has the digest and the number of files before it,
/// so that pages of two diffs are never mixed.
fn cut(diff: &mut Diff, page: &DiffPage, sandbox: &str) -> Result<Option<String>, Fault> {
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
            ChangeBody::Text(hunks) => Some(hunks),
            ChangeBody::None | ChangeBody::Whole => None,
        });
        texts.flatten().for_each(|hunk| hunk.lines.clear());
    }
    Ok(next)
}

fn size_of(file: &FileDiff, lines: bool) -> usize {
    match &file.body {
        ChangeBody::Text(hunks) if lines => hunks.iter().flat_map(|hunk| &hunk.lines).map(|line| line.text.len()).sum(),
        ChangeBody::Text(hunks) => hunks.len(),
        ChangeBody::None | ChangeBody::Whole => 0,
    }
}

fn position(after: &str, digest: &str, sandbox: &str) -> Result<usize, Fault> {
    let invalid = || {
        let fault = Fault::invalid(format!("after: {after:?} is not a `next` value of a diff")).phase(Phase::Admission);
        fault.hint("take it from the previous page, or leave it out to start over")
    };
    let (of, at) = after.split_once('.').ok_or_else(invalid)?;
    let at = at.parse().map_err(|_| invalid())?;
    if of == digest {
        return Ok(at);
    }
    let fault = Fault::new(ErrorKind::Conflict, "the workspace changed since the page before").phase(Phase::Review);
    Err(fault.hint("start over without `after`").subject(sandbox))
}

/// Records the diff that was shown: an approval without a digest refers to the last diff that a person was shown as a whole, and
/// withheld files can be approved only after a diff with nothing withheld.
fn note(
    state: &State,
    caller: &Caller,
    sandbox: &str,
    (digest, files, tip): (&str, usize, Option<String>),
    (reader, whole, exclude): (DiffReader, bool, Exclude),
) -> Result<(), Fault> {
    let at_ms = now_ms();
    // Written without a sync: after a power failure an approval reports the diff as not shown.
    state.store.write_soon(|tx| {
        if whole && reader == DiffReader::Person {
            let before = tx.get::<Reviewed>(sandbox)?.map(|kept| kept.record);
            tx.remove::<Reviewed>(sandbox)?;
            let digest = digest.to_owned();
            let shown = match (exclude, before) {
                (Exclude::Artefacts, before) => {
                    Reviewed { digest, all: before.and_then(|before| before.all), tip, at_ms }
                }
                (Exclude::Nothing, Some(before)) => Reviewed { all: Some(digest), tip, at_ms, ..before },
                // No usual diff was shown; this digest belongs only to the one with nothing withheld.
                (Exclude::Nothing, None) => Reviewed { digest: digest.clone(), all: Some(digest), tip, at_ms },
            };
            tx.add(sandbox, shown)?;
        }
        let body = json!({ "digest": digest, "files": files, "whole": whole });
        let entry = Entry { at_ms, verb: "diff", step: JournalStep::Done, subject: sandbox, actor: &caller.user, body };
        tx.note(&entry).map(drop)
    })
}
