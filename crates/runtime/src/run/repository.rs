//! The git repository that a run works in: its top, where the caller stands below it, and the parts of a linked work tree
//! or submodule that lie outside of the workspace.

use super::place::{ChangeDestination, CommandLocation};
use policy::{Action, Perms, Resolved};
use state::Caller;
use state::reach::Reach;
use std::path::{Path, PathBuf};
use workspace::Layer;
use workspace::git::{self, Linked, top_around};

/// Rule name in denials and in `--explain`.
const RULE: &str = "git repository";

/// Top of the repository around a directory, where a workspace covers that instead: not the home directory or one above
/// it, nothing that another user owns, and nothing that holds the state directory.
pub fn top(dir: &Path, caller: &Caller) -> Option<PathBuf> {
    if !matches!(caller.reach, Reach::All) {
        return None;
    }
    let top = top_around(dir).filter(|top| !caller.home.starts_with(top) && top.to_str().is_some())?;
    let holds_state =
        state::directory::places(caller).map_or(true, |places| places.iter().any(|at| at.starts_with(&top)));
    (!holds_state).then_some(top)
}

/// Note for a caller whose workspace is the repository around the directory that it stands in.
pub fn note(top: &Path, dir: &Path) -> String {
    let below = dir.strip_prefix(top).unwrap_or(dir).display();
    format!(
        "the workspace is the git repository {}, and the command starts in {below}; -w . covers {below} alone",
        top.display()
    )
}

/// Shows what git needs of a work tree whose `.git` is a file: its objects, next to the git directory that the workspace
/// has of its own; or the whole git directory, where nothing can be changed. A file that is not followed is a note.
pub(super) fn show(
    resolved: Resolved,
    spot: &CommandLocation,
    place: &ChangeDestination,
    caller: &Caller,
) -> (Resolved, Option<String>) {
    let (dir, read_only) = (&spot.dir, matches!(place, ChangeDestination::ReadOnly));
    // What was shown when the sandbox was made is shown again, and a guest cannot make itself such a sandbox.
    let meant = match &spot.held {
        Some(held) => !held.is_moved() && git::is_seeded(&held.stack),
        None => (spot.layered || read_only) && matches!(caller.reach, Reach::All),
    };
    if !meant {
        return (resolved, None);
    }
    let linked = match Linked::find(dir) {
        Ok(Some(linked)) => linked,
        Ok(None) => return (resolved, None),
        Err(fault) => return (resolved, Some(not_followed(&fault.message))),
    };
    let shown = if read_only { linked.git_directory().to_owned() } else { linked.objects() };
    match resolved.clone().with_fs(Action::Allow, &shown, Perms::READ, RULE) {
        Some(resolved) => (resolved, None),
        None => (resolved, Some(not_followed(&format!("{}: no rule can name it", shown.display())))),
    }
}

/// Gives a new layer over a work tree whose `.git` is a file a git directory of its own. Where that cannot be done the
/// workspace is as good as any, without git; `show` says why, or the note that is returned.
pub fn seed(dir: &Path, layer: &Layer, caller: &Caller) -> Option<String> {
    if !matches!(caller.reach, Reach::All) {
        return None;
    }
    let linked = Linked::find(dir).ok().flatten()?;
    linked.seed(layer).err().map(|fault| not_followed(&fault.message))
}

fn not_followed(why: &str) -> String {
    format!("git does not work inside: the .git file leads to a directory that is not followed: {why}")
}
