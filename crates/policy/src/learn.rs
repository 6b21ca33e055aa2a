//! Learning: from what a command did, the smallest readable document that lets it do exactly that again.
//! Files are named one by one; when several entries of a directory were used, the directory stands for them, but
//! never one that would open a home directory, the root or a place that keeps credentials.

use crate::document::{Defaults, Document, ExecRule, FsRule};
use crate::path::RulePath;
use crate::perms::{Perm, Perms};
use crate::resolve::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use terms::Action;

/// From how many entries on their directory stands for them.
const MANY: usize = 3;

/// What was seen during a run. Paths are absolute, normalised and real.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// As landlock counts: making and removing is a use of the directory.
    pub files: Vec<(PathBuf, Perms)>,
    /// What was not there before. A rule on such a path would have no effect, so its directory stands for it.
    pub made: Vec<PathBuf>,
    pub programs: Vec<PathBuf>,
}

/// A learned document, and what it could not allow.
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    pub document: Document,
    pub notes: Vec<String>,
}

/// Names below a home directory, and places elsewhere, that keep credentials. A rule learned from other files never
/// covers one of them.
const HOME_CREDENTIALS: [&str; 27] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".gitconfig",
    ".pgpass",
    ".my.cnf",
    ".vault-token",
    ".password-store",
    ".config/gcloud",
    ".config/gh",
    ".config/hub",
    ".config/op",
    ".config/git",
    ".config/rclone",
    ".local/share/keyrings",
    ".mozilla",
    ".config/google-chrome",
    ".config/chromium",
    ".cargo/credentials.toml",
    ".gem/credentials",
];
const SYSTEM_CREDENTIALS: [&str; 8] = [
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/etc/ssh",
    "/etc/ssl/private",
    "/root",
    "/run/secrets",
    "/var/run/secrets",
];

/// The document that allows what was seen. Its `fs` and `exec` defaults deny, so that it stands alone.
pub fn learn(seen: &Observed, ctx: &Context, source: &str) -> Learned {
    let mut notes = Vec::new();
    let mut files = by_path(seen, ctx, &mut notes);
    collapse(&mut files, ctx);
    drop_covered(&mut files);
    let mut document = Document::new(source);
    document.defaults = Defaults { fs: Some(Action::Deny), net: None, exec: Some(Action::Deny) };
    let mut path_of = |path: &Path| {
        let rule = rule_path(path, ctx);
        if rule.is_none() {
            notes.push(format!("{}: no rule can name it", path.display()));
        }
        rule
    };
    for (path, perms) in &files {
        let path = path_of(path);
        document.fs.extend(path.map(|path| FsRule { action: Action::Allow, path, perms: *perms }));
    }
    for path in seen.programs.iter().collect::<BTreeSet<_>>() {
        let path = path_of(path);
        document.exec.extend(path.map(|path| ExecRule { action: Action::Allow, path, sha256: None }));
    }
    Learned { document, notes }
}

/// Whether a rule on `path` would reach credentials.
pub fn holds_credentials(path: &Path, ctx: &Context) -> bool {
    let home = HOME_CREDENTIALS.iter().map(|name| ctx.home.join(name));
    // Root's own home is judged like anybody's, by what is in it.
    let system = SYSTEM_CREDENTIALS.iter().map(PathBuf::from).filter(|p| *p != ctx.home);
    home.chain(system).any(|secret| secret.starts_with(path) || path.starts_with(&secret))
}

/// Uses per path. A program's own file needs no file rule: the exec rule lets it be read and run.
fn by_path(seen: &Observed, ctx: &Context, notes: &mut Vec<String>) -> BTreeMap<PathBuf, Perms> {
    let programs: BTreeSet<&PathBuf> = seen.programs.iter().collect();
    let made: BTreeSet<&PathBuf> = seen.made.iter().collect();
    let mut files: BTreeMap<PathBuf, Perms> = BTreeMap::new();
    for (path, perms) in &seen.files {
        let mut used = perms.minus(Perms::of(&[Perm::Execute]));
        if programs.contains(path) {
            used = used.minus(Perms::of(&[Perm::ReadFile]));
        }
        if used.is_empty() || !path.is_absolute() {
            continue;
        }
        let place = existing(path, &made);
        if place != path && !may_stand_for_all(place, ctx) {
            let (path, dir) = (path.display(), place.display());
            notes.push(format!("{path}: it was made during the run, and a rule on {dir} would open too much"));
            continue;
        }
        let entry = files.entry(place.to_owned()).or_insert(Perms::NONE);
        *entry = entry.union(used);
    }
    files
}

/// The path, or the nearest directory above it that was there before.
fn existing<'a>(path: &'a Path, made: &BTreeSet<&PathBuf>) -> &'a Path {
    path.ancestors().find(|a| !made.iter().any(|m| m.as_path() == *a)).unwrap_or(path)
}

/// From the deepest directories up, so that a tree that was used all over ends as one rule. Only entries that were
/// used in the same way are put together: reading three files must not let a fourth be written.
fn collapse(files: &mut BTreeMap<PathBuf, Perms>, ctx: &Context) {
    let depth = |path: &Path| path.components().count();
    let deepest = files.keys().map(|p| depth(p)).max().unwrap_or(0);
    for level in (1..deepest).rev() {
        let mut alike: BTreeMap<(PathBuf, Perms), Vec<PathBuf>> = BTreeMap::new();
        for (path, perms) in files.iter().filter(|(p, _)| depth(p) == level + 1) {
            if let Some(parent) = path.parent() {
                alike.entry((parent.to_owned(), *perms)).or_default().push(path.clone());
            }
        }
        for ((parent, perms), entries) in alike {
            if entries.len() >= MANY && may_stand_for_all(&parent, ctx) {
                files.retain(|path, _| entries.binary_search(path).is_err());
                let entry = files.entry(parent).or_insert(Perms::NONE);
                *entry = entry.union(perms);
            }
        }
    }
}

fn may_stand_for_all(dir: &Path, ctx: &Context) -> bool {
    let too_wide = dir == Path::new("/") || ctx.home.starts_with(dir) || is_some_home(dir) || is_shared(dir);
    !too_wide && !holds_credentials(dir, ctx)
}

/// `/home/anyone`, and the directory of all homes.
fn is_some_home(dir: &Path) -> bool {
    let mut parts = dir.components().skip(1);
    let first = parts.next().is_some_and(|c| c.as_os_str() == "home" || c.as_os_str() == "Users");
    first && parts.count() <= 1
}

/// Directories whose entries have nothing to do with each other.
fn is_shared(dir: &Path) -> bool {
    ["/tmp", "/var", "/var/tmp", "/run", "/dev", "/proc", "/sys", "/mnt", "/media", "/srv", "/etc"]
        .iter()
        .any(|shared| dir == Path::new(shared))
}

fn drop_covered(files: &mut BTreeMap<PathBuf, Perms>) {
    let all = files.clone();
    files.retain(|path, perms| {
        let above = path.ancestors().skip(1).filter_map(|a| all.get(a)).fold(Perms::NONE, |all, p| all.union(*p));
        *perms = perms.minus(above);
        !perms.is_empty()
    });
}

/// The path as people would write it: below the workspace or home when it is there.
fn rule_path(path: &Path, ctx: &Context) -> Option<RulePath> {
    let whole = RulePath::literal(path)?;
    for (base, name) in [(&ctx.workspace, "$WORKSPACE"), (&ctx.home, "~")] {
        if base == Path::new("/") {
            continue;
        }
        if let Ok(rest) = path.strip_prefix(base) {
            let rest: Vec<String> =
                crate::glob::names(rest).filter_map(|n| n.to_str()).map(crate::component::escape).collect();
            let text = std::iter::once(name.to_owned()).chain(rest).collect::<Vec<_>>().join("/");
            return RulePath::parse(&text).ok().or(Some(whole));
        }
    }
    Some(whole)
}

#[cfg(test)]
#[path = "learn_test.rs"]
mod test;
