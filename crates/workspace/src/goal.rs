//! Target state of base paths for the chosen changes. Strips what may not land: set-id bits, file capabilities, access
//! lists that the base did not have, and attributes that overlayfs would obey.

use crate::plan::{ContentSource, Expected, Goal, Shape};
use crate::select::SelectedChange;
use api::{Change, ChangeKind, ChangeSide, FileKind, Hunk, PathText, Rel};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::collections::BTreeMap;
use terms::{ErrorKind, Fault, Phase};

/// Goals for the chosen changes, and notes for the reviewer.
pub fn goals(picks: &[SelectedChange<'_>]) -> Result<(Vec<Goal>, Vec<String>), Fault> {
    refuse_drifted(picks)?;
    let (mut goals, mut notes) = (Vec::new(), Vec::new());
    for pick in picks {
        let change = &pick.file.change;
        match &pick.hunks {
            Some(hunks) => goals.extend(in_part(change, hunks.clone())?),
            None => goals.extend(whole(change)?),
        }
        if let Some(after) = &change.after {
            notes.extend(taken_off(&change.path, after, change.before.as_ref()));
        }
    }
    Ok((goals, notes))
}

/// Bound on the paths listed in one message.
const MOST_NAMED: usize = 10;

fn refuse_drifted(picks: &[SelectedChange<'_>]) -> Result<(), Fault> {
    let drifted: Vec<&Rel> = picks.iter().filter(|p| p.file.change.drifted).map(|p| &p.file.change.path).collect();
    if drifted.is_empty() {
        return Ok(());
    }
    let mut names: Vec<String> = drifted.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    if drifted.len() > MOST_NAMED {
        names.push(format!("{} more", drifted.len() - MOST_NAMED));
    }
    let message = format!("changed or touched in the base since the workspace saw it: {}", names.join(", "));
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Review);
    Err(fault.hint("`cofferdam rebase` merges the base's changes; then review again"))
}

fn whole(change: &Change) -> Result<Vec<Goal>, Fault> {
    let path = change.path.clone();
    let want = |after: &ChangeSide, before: Option<&ChangeSide>| -> Result<_, Fault> {
        let source = if after.kind == FileKind::File { ContentSource::View(path.clone()) } else { ContentSource::None };
        Ok(Some((shape(&path, after, before)?, source)))
    };
    let before = change.before.as_ref();
    Ok(match (&change.kind, &change.after) {
        (ChangeKind::Renamed { from }, Some(after)) => vec![
            Goal { at: from.clone(), before: before.map(expected), want: None },
            // The file at the old path is not replaced by this one, so its permissions are not inherited.
            Goal { at: path.clone(), before: None, want: want(after, before)? },
        ],
        (_, Some(after)) => vec![Goal { at: path.clone(), before: before.map(expected), want: want(after, before)? }],
        (_, None) => vec![Goal { at: path, before: before.map(expected), want: None }],
    })
}

/// Goals for some hunks only: mode and attributes stay those of the base's file, if there is one.
fn in_part(change: &Change, hunks: Vec<Hunk>) -> Result<Vec<Goal>, Fault> {
    let path = change.path.clone();
    let lines = |shape: Shape| Shape { digest: None, size: 0, ..shape };
    let before = change.before.as_ref();
    Ok(match (&change.kind, before, &change.after) {
        (ChangeKind::Renamed { from }, Some(entry), Some(after)) => {
            let source = ContentSource::Hunks { of: Some(from.clone()), hunks };
            let want = Some((lines(shape(&path, after, before)?), source));
            let gone = Goal { at: from.clone(), before: Some(expected(entry)), want: None };
            vec![gone, Goal { at: path, before: None, want }]
        }
        (_, Some(entry), _) => {
            let source = ContentSource::Hunks { of: Some(path.clone()), hunks };
            let want = Some((lines(shape(&path, entry, before)?), source));
            vec![Goal { at: path, before: Some(expected(entry)), want }]
        }
        (_, None, Some(after)) => {
            let want = Some((lines(shape(&path, after, None)?), ContentSource::Hunks { of: None, hunks }));
            vec![Goal { at: path, before: None, want }]
        }
        (_, None, None) => Vec::new(),
    })
}

fn expected(entry: &ChangeSide) -> Expected {
    Expected { kind: entry.kind, mode: Some(entry.mode), digest: entry.digest.clone() }
}

fn shape(path: &Rel, after: &ChangeSide, before: Option<&ChangeSide>) -> Result<Shape, Fault> {
    if !matches!(after.kind, FileKind::File | FileKind::Dir | FileKind::Symlink) {
        let message = format!("{path} never lands: it is not a file, directory or link");
        return Err(Fault::new(ErrorKind::PolicyDenied, message).phase(Phase::Review));
    }
    Ok(Shape {
        kind: after.kind,
        mode: mode(after, before),
        owner: None,
        mtime: None,
        size: after.size,
        digest: after.digest.clone().filter(|_| after.kind != FileKind::Dir),
        target: after.target.as_ref().map(encoded),
        xattrs: xattrs(after, before),
        kept: None,
    })
}

/// Mode to land. A directory keeps the set-group-id bit it has in the base, which there only determines the group of
/// new files.
fn mode(after: &ChangeSide, before: Option<&ChangeSide>) -> u32 {
    match after.kind {
        FileKind::Dir => {
            let had = before.filter(|b| b.kind == FileKind::Dir).map_or(0, |b| b.mode);
            after.mode & (0o1777 | (had & 0o2000))
        }
        _ => after.mode & 0o777,
    }
}

fn xattrs(after: &ChangeSide, before: Option<&ChangeSide>) -> BTreeMap<String, String> {
    let lands = |(name, value): &(&String, &String)| match name.as_str() {
        own if own.starts_with("user.overlay.") => false,
        own if own.starts_with("user.") => true,
        // An access list that the workspace left unchanged stays.
        access if access.starts_with("system.posix_acl_") => {
            before.is_some_and(|b| b.xattrs.get(access) == Some(*value))
        }
        _ => false,
    };
    after.xattrs.iter().filter(lands).map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn taken_off(path: &Rel, after: &ChangeSide, before: Option<&ChangeSide>) -> Option<String> {
    let mut what = Vec::new();
    if after.mode & 0o7000 != mode(after, before) & 0o7000 {
        what.push("special permission bits");
    }
    let landed = xattrs(after, before);
    if after.xattrs.keys().any(|name| !landed.contains_key(name)) {
        what.push("capabilities, access lists or marks");
    }
    (!what.is_empty()).then(|| format!("{path}: landed without its {}", what.join(" and ")))
}

fn encoded(target: &PathText) -> String {
    match target {
        PathText::Text(text) => BASE64.encode(text),
        PathText::Bytes { base64 } => base64.clone(),
    }
}
