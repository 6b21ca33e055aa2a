//! Permission profiles of codex (`[permissions.<name>]` in `config.toml`).
//!
//! In codex the most specific path wins. Here a denial always wins, so a `read` or `none` inside a wider path becomes a
//! deny rule, and a wider access inside a `none` stays closed: the notes say so.

mod keys;
mod network;

use super::known::{self, KeyHandling, KeyTable};
use super::{Import, Imported, READ, WRITE, foreign_path};
use crate::cursor::{Cursor, Problem};
use crate::document::Format;
use crate::error::PolicyError;
use crate::path::RulePath;
use crate::perms::Perms;
use crate::read;
use terms::Action;

/// Profiles may extend each other; a longer chain is a circle.
const MAX_EXTENDS: usize = 8;

/// Imports a codex configuration. `profile` selects one of several profiles; otherwise `default_permissions` or the
/// only one is used.
pub fn codex(text: &str, source: &str, profile: Option<&str>) -> Result<Imported, PolicyError> {
    let node = read::tree(text, Format::Toml, source)?;
    let mut import = Import::new(source);
    config(&mut import, &Cursor::root(&node), profile)
        .map_err(|p| read::with_position(p, text, Format::Toml, source))?;
    Ok(import.done())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    None,
}

/// File entries of the chosen profile and those it extends.
type FileEntries = Vec<(RulePath, Access)>;

fn config(import: &mut Import, at: &Cursor<'_>, profile: Option<&str>) -> Result<(), Problem> {
    let mut chosen = profile.map(str::to_owned);
    let mut profiles = Vec::new();
    for (key, at) in known::entries(import, at, "", keys::CONFIG)? {
        match key {
            "permissions" => profiles = at.entries()?,
            _ => chosen = Some(chosen.unwrap_or(at.text()?.to_owned())),
        }
    }
    let names: Vec<&str> = profiles.iter().map(|(name, _)| *name).collect();
    let name = match (chosen, names.as_slice()) {
        (Some(name), _) => name,
        (None, [only]) => (*only).to_owned(),
        (None, []) => return Err(at.problem("no [permissions.<name>] in the file")),
        (None, _) => {
            return Err(at.problem("several permission profiles").hint(format!("choose one of {}", names.join(", "))));
        }
    };
    let mut entries = FileEntries::new();
    extend(import, at, &profiles, &name, &mut entries)?;
    for other in names.iter().filter(|other| **other != name) {
        import.note(format!("permissions.{other}: another profile, left out unless it is extended"));
    }
    apply(import, &entries);
    Ok(())
}

fn extend(
    import: &mut Import,
    root: &Cursor<'_>,
    profiles: &[(&str, Cursor<'_>)],
    name: &str,
    entries: &mut FileEntries,
) -> Result<(), Problem> {
    let mut chain = Vec::new();
    let mut next = Some(name.to_owned());
    while let Some(name) = next.take() {
        if name.starts_with(':') {
            built_in(import, root, &name, entries)?;
            break;
        }
        let Some((_, at)) = profiles.iter().find(|(known, _)| *known == name) else {
            let names: Vec<&str> = profiles.iter().map(|(name, _)| *name).collect();
            return Err(root
                .problem(format!("no profile {name:?}"))
                .hint(format!("the file has {}", names.join(", "))));
        };
        if chain.len() >= MAX_EXTENDS {
            return Err(at.problem(format!("more than {MAX_EXTENDS} profiles extend each other")));
        }
        for (key, at) in at.entries()? {
            if key == "extends" {
                next = Some(at.text()?.to_owned());
            }
        }
        chain.push(at.clone());
    }
    for at in chain.iter().rev() {
        read_profile(import, at, entries)?;
    }
    Ok(())
}

fn built_in(import: &mut Import, root: &Cursor<'_>, name: &str, entries: &mut FileEntries) -> Result<(), Problem> {
    let path = |text: &str| RulePath::parse(text).map_err(|refusal| root.refused(refusal));
    match name {
        ":read-only" => entries.push((path("/")?, Access::Read)),
        ":workspace" => {
            entries.push((path("/")?, Access::Read));
            entries.push((path("$WORKSPACE")?, Access::Write));
            for kept in [".git", ".codex", ".agents"] {
                entries.push((path(&format!("$WORKSPACE/{kept}"))?, Access::Read));
            }
        }
        other => {
            return Err(root
                .problem(format!("the built-in profile {other:?} cannot be carried over"))
                .hint("there are :read-only and :workspace"));
        }
    }
    import.note(format!("{name}: built into codex; written out as it is documented"));
    Ok(())
}

const PROFILE: KeyTable = &[
    ("filesystem", KeyHandling::Carried),
    ("network", KeyHandling::Carried),
    ("extends", KeyHandling::Carried),
    ("description", KeyHandling::Carried),
    (
        "workspace_roots",
        KeyHandling::LeftOut(
            "the directory that a run works on is its workspace; grant others with --read and --write",
        ),
    ),
];

fn read_profile(import: &mut Import, at: &Cursor<'_>, entries: &mut FileEntries) -> Result<(), Problem> {
    for (key, at) in known::entries(import, at, "", PROFILE)? {
        match key {
            "filesystem" => filesystem(import, &at, entries)?,
            "network" => network::network(import, &at)?,
            // Handled by `extend`.
            _ => {}
        }
    }
    Ok(())
}

fn filesystem(import: &mut Import, at: &Cursor<'_>, entries: &mut FileEntries) -> Result<(), Problem> {
    for (key, at) in at.entries()? {
        match key {
            "glob_scan_max_depth" => {
                import.note("filesystem.glob_scan_max_depth: left out; patterns hold at any depth");
                continue;
            }
            "allow_limited_git_writes" => {
                import.left_out(
                    "filesystem.allow_limited_git_writes: not carried over; .git is judged as any other directory",
                );
                continue;
            }
            _ => {}
        }
        let subpaths = match at.node {
            crate::node::Node::Map(_) => at.entries()?,
            _ => vec![("", at.clone())],
        };
        for (subpath, at) in subpaths {
            let access = access(&at)?;
            let Some(base) = special(import, key, access).map_err(|message| at.problem(message))? else {
                continue;
            };
            let text = if subpath.is_empty() || subpath == "." {
                base
            } else {
                format!("{base}/{subpath}").replace("//", "/")
            };
            match foreign_path(&text) {
                Ok(path) => put(entries, path, access),
                Err(refusal) => import.unreadable(&at, denial(access), refusal)?,
            }
        }
    }
    Ok(())
}

/// Returns the path of a special key; `None` if it has no equivalent here. An unknown special key is an error, because
/// it may be meant as a denial.
fn special(import: &mut Import, key: &str, access: Access) -> Result<Option<String>, String> {
    match key {
        ":root" => Ok(Some("/".to_owned())),
        ":project_roots" | ":workspace_roots" | ":cwd" => Ok(Some("$WORKSPACE".to_owned())),
        ":minimal" if access == Access::None => Err(format!("{key} cannot be denied here; leave it out")),
        ":minimal" => {
            import.document.extends = vec!["default".to_owned()];
            import.note(
                ":minimal: the preset \"default\" stands for it; it also makes the workspace and toolchains readable",
            );
            Ok(None)
        }
        ":tmpdir" | ":slash_tmp" if access == Access::None => {
            import.left_out(format!("{key}: \"none\" is not carried over; a run has temporary directories of its own"));
            Ok(None)
        }
        ":tmpdir" | ":slash_tmp" => {
            import.note(format!("{key}: left out; a run has temporary directories of its own"));
            Ok(None)
        }
        other if other.starts_with(':') => {
            Err(format!("{other} is no special path that is known here; known are {}", SPECIAL.join(", ")))
        }
        plain => Ok(Some(plain.to_owned())),
    }
}

const SPECIAL: [&str; 7] = [":root", ":minimal", ":project_roots", ":workspace_roots", ":cwd", ":tmpdir", ":slash_tmp"];

fn access(at: &Cursor<'_>) -> Result<Access, Problem> {
    at.one_of(&[("read", Access::Read), ("write", Access::Write), ("none", Access::None), ("deny", Access::None)])
}

fn denial(access: Access) -> Action {
    if access == Access::None { Action::Deny } else { Action::Allow }
}

/// Adds an entry; a later profile replaces an earlier one.
fn put(entries: &mut FileEntries, path: RulePath, access: Access) {
    entries.retain(|(known, _)| *known != path);
    entries.push((path, access));
}

fn apply(import: &mut Import, entries: &FileEntries) {
    if import.document.extends.is_empty() && !entries.iter().any(|(path, _)| path.to_string() == "/") {
        import.note("neither :root nor :minimal is readable, so system programs will not start");
    }
    for (path, access) in entries {
        let wider =
            |wanted: Access| entries.iter().any(|(other, a)| *a == wanted && other != path && other.contains(path));
        match access {
            Access::Write => import.fs(Action::Allow, path.clone(), WRITE),
            Access::Read => {
                import.fs(Action::Allow, path.clone(), READ);
                if wider(Access::Write) {
                    import.fs(Action::Deny, path.clone(), Perms::CHANGES);
                }
            }
            Access::None => import.fs(Action::Deny, path.clone(), Perms::ALL),
        }
        if *access != Access::None && wider(Access::None) {
            import.note(format!(
                "filesystem: {path} lies inside a path with \"none\" and stays closed: a denial always wins"
            ));
        }
        let inner = |narrow: &RulePath| path.contains(narrow) && narrow != path;
        if *access == Access::Read
            && wider(Access::Write)
            && entries.iter().any(|(other, a)| *a == Access::Write && inner(other))
        {
            import.note(format!(
                "filesystem: what is opened for writing inside {path} stays read-only: a denial always wins"
            ));
        }
    }
}
