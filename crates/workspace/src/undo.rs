//! Undoes a landed batch: the base gets its former state back, byte for byte, and the changes wait in the workspace
//! again. Changes that were dropped from a workspace because they had landed are copied back from the base before the
//! base changes. A landing uses this module as well: `landed` writes down what stands in the base right after it, and
//! `drop_landed` removes its changes from the workspace.

use crate::anchor::BaseStat;
use crate::attributes::{self, Marks};
use crate::dir::Dir;
use crate::layer::Stack;
use crate::place;
use crate::plan::{self, ContentSource, Expected, Goal, Plan, PlanItem, Shape};
use crate::top::{Put, TopLayer};
use crate::{stage, trouble};
use api::{Driver, FileKind, Rel};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use terms::{ErrorKind, Fault, Phase};

/// Metadata of each path of a batch right after the landing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landed(pub Vec<(Rel, BaseStat)>);

const LANDED: &str = "landed";

/// Records the metadata of landed paths beside the plan, so that an undo need not read untouched files.
pub fn landed(base: &Dir, batch: &Dir, plan: &Plan) -> Result<Landed, Fault> {
    let mut seen = Vec::with_capacity(plan.items.len());
    for item in &plan.items {
        let now = plan::now_at(base, &item.at)?;
        seen.push((item.at.clone(), now.map_or(BaseStat::Absent, look)));
    }
    let landed = Landed(seen);
    stage::write_unsynced(batch, LANDED, &landed)
        .map_err(|e| trouble::with(&"the batch", "write down what landed", &e))?;
    Ok(landed)
}

/// Paths that a rollback restored, with their present metadata: the renames changed their ctime, and that is not
/// drift.
pub fn restored(base: &Dir, plan: &Plan) -> Result<Landed, Fault> {
    let mut seen = Vec::new();
    for item in &plan.items {
        let (Some(before), Some(now)) = (&item.before, plan::now_at(base, &item.at)?) else { continue };
        let is_dir = now.kind == FileKind::Dir;
        let same = now.kind == before.kind && now.mode == before.mode && now.size == before.size;
        if is_dir || (same && before.mtime == Some(now.mtime)) {
            seen.push((item.at.clone(), look(now)));
        }
    }
    Ok(Landed(seen))
}

fn look(facts: place::FileFacts) -> BaseStat {
    BaseStat::Present { ino: facts.id.ino, size: facts.size, mode: facts.mode, ctime: facts.ctime }
}

/// Reads plan and landed metadata of a batch.
pub fn read(batch: &Dir, id: &str) -> Result<(Plan, Landed), Fault> {
    let plan = read_plan(batch, id)?;
    // Written without fsync; without it every file is compared by its bytes.
    let found = stage::read_back(batch, LANDED).ok().flatten();
    Ok((plan, found.unwrap_or_default()))
}

/// True if the batch was fully staged before an interruption: the plan is staged last.
pub fn was_staged(batch: &Dir) -> io::Result<bool> {
    Ok(batch.meta_of(stage::PLAN.as_bytes())?.is_some())
}

pub fn read_plan(batch: &Dir, id: &str) -> Result<Plan, Fault> {
    let found = stage::read_back(batch, stage::PLAN).map_err(|e| trouble::with(&id, "read its plan", &e))?;
    found.ok_or_else(|| {
        let fault = Fault::new(ErrorKind::NotFound, format!("the files that batch {id} replaced are no longer kept"))
            .subject(id);
        fault.hint("it can no longer be undone; version control may have the former files").phase(Phase::Application)
    })
}

/// Goals of an undo, and notes for the reader. Refused if the base has changed since the landing.
pub fn goals(base: &Dir, plan: &Plan, landed: &Landed) -> Result<(Vec<Goal>, Vec<String>), Fault> {
    let seen: BTreeMap<&Rel, &BaseStat> = landed.0.iter().map(|(at, seen)| (at, seen)).collect();
    let (mut goals, mut notes) = (Vec::new(), Vec::new());
    let mut occupied: BTreeSet<Rel> = BTreeSet::new();
    let ours: BTreeSet<&Rel> = plan.items.iter().map(|item| &item.at).collect();
    // Innermost first, so that it is known if entries of a directory stay.
    for item in plan.items.iter().rev() {
        let before = standing(base, item, seen.get(&item.at).copied())?;
        let is_new_dir = item.before.is_none() && item.after.as_ref().is_some_and(|a| a.kind == FileKind::Dir);
        if is_new_dir && (occupied.contains(&item.at) || has_others(base, &item.at, &ours)?) {
            notes.push(format!("{} stays: it has other contents now", item.at));
            occupied.extend(item.at.split().map(|(above, _)| above));
            continue;
        }
        let want = item.before.as_ref().map(|shape| {
            let source = shape.kept.map_or(ContentSource::None, ContentSource::Kept);
            (Shape { kept: None, ..shape.clone() }, source)
        });
        goals.push(Goal { at: item.at.clone(), before, want });
    }
    goals.reverse();
    Ok((goals, notes))
}

fn has_others(base: &Dir, at: &Rel, ours: &BTreeSet<&Rel>) -> Result<bool, Fault> {
    let names = place::reach(base, at).and_then(|dir| dir.names());
    let names = names.map_err(|e| trouble::with(at, "list it in the base", &e))?;
    Ok(names.iter().any(|name| !ours.contains(&at.join(name))))
}

/// Expected state of a path that is unchanged since the landing. A file that was only touched is compared by its
/// bytes.
fn standing(base: &Dir, item: &PlanItem, seen: Option<&BaseStat>) -> Result<Option<Expected>, Fault> {
    let now = plan::now_at(base, &item.at)?;
    let Some(after) = &item.after else {
        return if now.is_none() { Ok(None) } else { Err(moved_since(&item.at)) };
    };
    let Some(now) = now.filter(|now| now.kind == after.kind) else { return Err(moved_since(&item.at)) };
    let as_landed =
        matches!(seen, Some(BaseStat::Present { ino, ctime, .. }) if *ino == now.id.ino && *ctime == now.ctime);
    let bits = if after.kind == FileKind::Symlink { now.mode } else { after.mode };
    if !as_landed && (now.mode != bits || !has_bytes(base, &item.at, after)?) {
        return Err(moved_since(&item.at));
    }
    // The digest is compared while the copy is made, so it holds for the bytes that are replaced.
    let digest = after.digest.clone().filter(|_| after.kind != FileKind::Dir);
    Ok(Some(Expected { kind: now.kind, mode: Some(now.mode), digest }))
}

fn has_bytes(base: &Dir, at: &Rel, shape: &Shape) -> Result<bool, Fault> {
    let fail = |e: io::Error| trouble::with(at, "read it in the base", &e);
    let digest = match shape.kind {
        FileKind::File => stage::digest_of_file(&mut stage::file_of(base, at).map_err(fail)?).map_err(fail)?,
        FileKind::Symlink => {
            let (dir, name) = place::parent_of(base, at).map_err(fail)?;
            stage::digest_of(&dir.link_target(name).map_err(fail)?)
        }
        _ => return Ok(true),
    };
    Ok(shape.digest.as_ref() == Some(&digest))
}

fn moved_since(at: &Rel) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{at} was changed in the base since it landed"));
    fault.hint("nothing was undone; restore it by hand, or undo the later batches first").phase(Phase::Application)
}

/// Copies landed entries back into the workspace at paths that only show the base, so that they are changes again once
/// the base is restored. The caller holds the layer's lock.
pub fn put_back(stack: &Stack, plan: &Plan) -> Result<(), Fault> {
    let top = TopLayer::of(stack).map_err(|e| trouble::with(&"the workspace's layer", "open it", &e))?.in_bulk();
    let mut hidden: Option<&Rel> = None;
    for item in &plan.items {
        let at = &item.at;
        let fail = |e: io::Error| trouble::with(at, "put it back into the workspace", &e);
        if hidden.is_some_and(|dir| at.is_at_or_below(dir)) || !must_come_back(&top, stack, at).map_err(fail)? {
            continue;
        }
        match &item.after {
            None => {
                top.hide(at).map_err(fail)?;
                hidden = Some(at);
            }
            Some(after) => put_one(&top, &stack.base, at, after).map_err(fail)?,
        }
    }
    top.settle().map_err(|e| trouble::with(&"the workspace's layer", "sync it to disk", &e))
}

/// True with overlayfs if no layer has an entry; a copied tree still has everything.
fn must_come_back(top: &TopLayer<'_>, stack: &Stack, at: &Rel) -> io::Result<bool> {
    Ok(stack.driver == Driver::Overlay && top.own(at)?.is_none() && top.shows_base(at)?)
}

fn put_one(top: &TopLayer<'_>, base: &Dir, at: &Rel, after: &Shape) -> io::Result<()> {
    let (dir, name) = place::parent_of(base, at)?;
    match after.kind {
        FileKind::File => {
            let mut file = dir.file(&Rel::top().join(name))?;
            let carried = attributes::read(&file, Marks::Foreign)?;
            top.put(at, Put::File { bytes: &mut file, mode: after.mode, mtime: after.mtime, carried })
        }
        FileKind::Symlink => top.put(at, Put::Link { target: dir.link_target(name)? }),
        // The mode suffices: for now the base shows through; afterwards the directory has its own entries, or is
        // merged as before.
        _ => top.set_mode(at, after.mode),
    }
}

/// Removes landed entries from the workspace at paths that then show the identical base. An interruption is harmless:
/// remaining entries equal the base and are not changes. The caller holds the layer's lock.
pub fn drop_landed(stack: &Stack, paths: &[Rel]) -> io::Result<()> {
    let top = TopLayer::of(stack)?;
    for at in paths.iter().rev() {
        let Some(own) = top.own(at)? else { continue };
        if own.facts.kind != FileKind::Dir && top.shows_base(at)? {
            top.remove_entry(at)?;
        }
    }
    for at in paths.iter().rev() {
        top.prune(&at.join(b"x"))?;
    }
    Ok(())
}
