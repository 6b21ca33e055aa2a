//! Which directories the caller's PATH leads to, so that a command that works outside starts inside.
//! It only reads the file system; it never grants anything itself, and nothing in [`SENSITIVE`].
//!
//! ```text
//! PATH entry ─ system directory ─────────────────────────── nothing, it is there anyway
//!            ─ inside the workspace ─ a venv? ───────────── its base, if a known manager made it
//!            ─ known manager (managers.rs) ──────────────── what that row gives
//!            ─ venv, conda, node_modules/.bin, shims ────── that installation
//!            ─ anything else ────────────────────────────── the directory, lib and share beside it,
//!                                                           and where its links and scripts lead
//! every path above ─ add(): sensitive? too broad? ─ sorted, none inside another
//! ```
//!
//! Trust: PATH, the variables and the user's own bin directories are the caller's word. What lies in
//! the workspace is not, so it can at most bring in a whole known manager, never a path of its choice.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

mod follow;
mod look;
mod managers;
mod sensitive;

use look::*;
use managers::{COMMON_ENV, INSTALLATION_VARS, MANAGERS, Manager};
pub use sensitive::{SENSITIVE, sensitive};

/// Bounds. A launch must not depend on how untidy a home is.
const MAX_PATH_ENTRIES: usize = 4096;
const MAX_FOREIGN_ENTRIES: usize = 64;
const MAX_PATH_LEN: usize = 4096;
const MAX_COMPONENTS: usize = 64;
const MAX_GRANTS: usize = 256;
const MAX_SKIPPED: usize = 64;
/// Names read from one directory; more than this is no installation root.
const MAX_NAMES: usize = 512;
/// Links and scripts followed in bin directories, over the whole call.
const MAX_LINKS: usize = 512;
const MAX_SCRIPTS: usize = 32;
/// Links in a chain, venvs on venvs, interpreters of interpreters.
const MAX_DEPTH: usize = 8;

/// A path and the reason for it, in words for `--explain`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub path: PathBuf,
    pub why: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Toolchains {
    /// To be readable and executable: absolute, existing files and directories, sorted, none inside another.
    /// Where a path is or lies behind a symlink, the path it leads to is listed as well.
    pub grants: Vec<Found>,
    /// Variables of the caller that these toolchains need: set, and holding only paths or versions.
    pub env: Vec<String>,
    /// What PATH or a link asked for and did not get.
    pub skipped: Vec<Found>,
}

/// Walks `path` (a PATH value) for the home `home` and the workspace `cwd`.
///
/// `command` is the program to be started. A tool that PATH finds outside system directories is
/// followed precisely: by link, by `#!` line, by `env` through PATH. Then the first lines of the other
/// scripts beside it stay unread, because they would cost as much as everything else together. A shell
/// may start any of them, so for a command of the system, or none, up to [`MAX_SCRIPTS`] are read.
pub fn discover(
    path: &OsStr,
    home: &Path,
    cwd: &Path,
    command: Option<&OsStr>,
    env: &dyn Fn(&str) -> Option<OsString>,
) -> Toolchains {
    let mut search = Search::new(home, cwd, env);
    search.name_roots();
    search.walk(path);
    for name in INSTALLATION_VARS {
        search.installation_var(name);
    }
    if let Some(command) = command
        && search.command(command)
    {
        search.scripts_left = 0;
    }
    search.scan_all();
    search.finish()
}

/// Who says that a path belongs to a toolchain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Led {
    ByUser,
    ByWorkspace,
}

struct Search<'a> {
    /// The home as named and, where that is a symlink, as it is.
    homes: Vec<PathBuf>,
    cwd: PathBuf,
    /// The current directory, unless the home lies in it: then it is no workspace but everything.
    workspace: Option<PathBuf>,
    env: &'a dyn Fn(&str) -> Option<OsString>,
    /// Roots named by variables.
    named: Vec<(&'static Manager, PathBuf)>,
    /// PATH entries that exist outside system directories, in order.
    entries: Vec<PathBuf>,
    /// What is known about each path: where it really is, or that it does not exist.
    known: HashMap<OsString, Option<PathBuf>>,
    listings: HashMap<OsString, Rc<Listing>>,
    settled: HashMap<(&'static str, OsString), bool>,
    followed: HashSet<OsString>,
    grants: Vec<Found>,
    skipped: Vec<Found>,
    names: BTreeSet<&'static str>,
    /// Bin directories whose links are to be followed, with the cause.
    to_scan: Vec<(PathBuf, String)>,
    links_left: usize,
    scripts_left: usize,
}

impl<'a> Search<'a> {
    fn new(home: &Path, cwd: &Path, env: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        let mut search = Search {
            homes: Vec::new(),
            cwd: cwd.to_path_buf(),
            workspace: (cwd.is_absolute() && !inside(home, cwd)).then(|| plain(cwd)).flatten(),
            env,
            named: Vec::new(),
            entries: Vec::new(),
            known: HashMap::with_capacity(128),
            listings: HashMap::new(),
            settled: HashMap::new(),
            followed: HashSet::new(),
            grants: Vec::new(),
            skipped: Vec::new(),
            names: COMMON_ENV.iter().copied().collect(),
            to_scan: Vec::new(),
            links_left: MAX_LINKS,
            scripts_left: MAX_SCRIPTS,
        };
        if let Some(home) = plain(home) {
            let real = search.real(&home).filter(|real| *real != home);
            search.homes.push(home);
            search.homes.extend(real);
        }
        search
    }

    fn walk(&mut self, path: &OsStr) {
        let mut seen = HashSet::new();
        let mut pieces = path.as_bytes().split(|b| *b == b':');
        for piece in pieces.by_ref().take(MAX_PATH_ENTRIES) {
            let entry = Path::new(OsStr::from_bytes(piece));
            if piece.is_empty() || piece.len() > MAX_PATH_LEN || self.is_system(entry) || !seen.insert(piece) {
                continue;
            }
            if !entry.is_absolute() {
                self.skip(entry, "PATH entry is relative");
                continue;
            }
            // Windows programs of WSL leave the enclosure through the host, and reading them is slow.
            if let [b'/', b'm', b'n', b't', b'/', _, b'/', ..] = piece {
                self.skip(entry, "PATH entry is a Windows directory");
                continue;
            }
            if self.entries.len() == MAX_FOREIGN_ENTRIES {
                self.skip(entry, "PATH has too many entries outside system directories");
                return;
            }
            if let Some(entry) = plain(entry).or_else(|| fs::canonicalize(entry).ok()) {
                self.entry(&entry);
            }
        }
        if pieces.next().is_some() {
            self.skip(Path::new("…"), "PATH has too many entries");
        }
    }

    /// Reads the variables that name a manager's root. One that names the home, a directory around
    /// it, or the workspace's own files is not believed.
    fn name_roots(&mut self) {
        for manager in MANAGERS {
            for name in manager.vars {
                let Some(value) = (self.env)(name) else {
                    continue;
                };
                let first = value.as_bytes().split(|b| *b == b':').next().unwrap_or_default();
                let Some(root) = plain(Path::new(OsStr::from_bytes(first))) else {
                    continue;
                };
                let broad = is_broad(&root) || self.homes.iter().any(|home| inside(home, &root));
                let whole = manager.give.is_empty();
                if broad
                    || self.is_system(&root)
                    || self.is_workspace(&root)
                    || (whole && self.refusal(&root).is_some())
                {
                    continue;
                }
                self.named.push((manager, root));
            }
        }
    }

    fn entry(&mut self, entry: &Path) {
        let cause = format!("PATH entry {}", self.tilde(entry));
        if self.is_system(entry) {
            return;
        }
        if self.in_workspace(entry) {
            self.entries.push(entry.to_path_buf());
            if let Some(root) = entry.parent() {
                self.venv(root, &cause, Led::ByWorkspace, 0);
            }
            return;
        }
        let Some(real) = self.real(entry) else { return };
        self.entries.push(entry.to_path_buf());
        if self.in_workspace(&real) {
            // What is behind the link is the workspace's, so nothing in it is followed.
            self.add(entry, "link", &cause);
            return;
        }
        self.lead(entry, &cause);
        if real != entry && !self.is_system(&real) {
            self.lead(&real, &cause);
        }
    }

    /// Grants what the bin directory `dir` needs.
    fn lead(&mut self, dir: &Path, cause: &str) {
        if let Some(refusal) = self.refusal(dir)
            && self.manager_of(dir).is_none()
        {
            self.skip(dir, &format!("{cause} is {refusal}"));
            return;
        }
        if let Some((manager, root)) = self.manager_of(dir)
            && self.manage(manager, &root, cause)
        {
            if dir != root {
                self.add(dir, manager.name, cause);
            }
            if manager.name == "user commands" {
                self.to_scan.push((dir.to_path_buf(), cause.to_string()));
            }
            return;
        }
        if !self.prefix(dir, cause, 0) {
            self.to_scan.push((dir.to_path_buf(), cause.to_string()));
        }
    }

    /// The manager whose root holds `path`; of several the one with the longest root.
    fn manager_of(&self, path: &Path) -> Option<(&'static Manager, PathBuf)> {
        let mut best: Option<(&'static Manager, PathBuf)> = None;
        let mut better = |manager, root: PathBuf| {
            if best.as_ref().is_none_or(|(_, kept)| kept.as_os_str().len() < root.as_os_str().len()) {
                best = Some((manager, root));
            }
        };
        for (manager, root) in &self.named {
            if inside(path, root) {
                better(manager, root.clone());
            }
        }
        let bytes = path.as_os_str().as_bytes();
        for manager in MANAGERS {
            for root in manager.roots {
                if root.starts_with('/') && below(bytes, root.as_bytes()) {
                    better(manager, PathBuf::from(root));
                }
            }
        }
        for home in &self.homes {
            if !inside(path, home) {
                continue;
            }
            let rel = bytes.get(home.as_os_str().len() + 1..).unwrap_or_default();
            for manager in MANAGERS {
                if let Some(root) = manager.roots.iter().find(|root| below(rel, root.as_bytes())) {
                    better(manager, home.join(root));
                }
            }
        }
        best
    }

    /// Grants what a manager's row says; false when this is not that manager's root after all.
    fn manage(&mut self, manager: &'static Manager, root: &Path, cause: &str) -> bool {
        let key = (manager.name, root.as_os_str().to_os_string());
        if let Some(settled) = self.settled.get(&key) {
            return *settled;
        }
        let here = if manager.marks.is_empty() {
            self.exists(root)
        } else {
            manager.marks.iter().any(|mark| self.exists(&root.join(mark)))
        };
        self.settled.insert(key, here);
        if !here {
            return false;
        }
        if self.is_workspace(root) {
            self.add(root, manager.name, cause);
            return true;
        }
        if manager.give.is_empty() {
            let mut holes = self.holes(root, manager.holes);
            if manager.name == "user commands" {
                holes = self.secrets_in(root);
            }
            self.add_around(root, &holes, manager.name, cause);
        } else {
            let holes = self.holes(root, manager.holes);
            for part in manager.give {
                self.add_around(&root.join(part), &holes, manager.name, cause);
            }
            if manager.name == "go" {
                // ~/go may be an unpacked Go instead of a GOPATH.
                self.beside(root, "go", cause);
            }
        }
        for dir in manager.links {
            self.linked_installations(&root.join(dir), root, cause);
        }
        let Some(home) = self.homes.first().cloned() else {
            return true;
        };
        for path in manager.also {
            self.add(&home.join(path), manager.name, cause);
        }
        for path in manager.settings {
            let path = home.join(path);
            if holds_no_secret(&path) {
                self.add(&path, manager.name, cause);
            }
        }
        for name in manager.with {
            self.companion(name, cause);
        }
        self.names.extend(manager.vars.iter().chain(manager.env));
        true
    }

    fn companion(&mut self, name: &str, cause: &str) {
        let Some(manager) = MANAGERS.iter().find(|m| m.name == name) else {
            return;
        };
        let mut roots: Vec<PathBuf> =
            self.named.iter().filter(|(m, _)| m.name == name).map(|(_, root)| root.clone()).collect();
        if let Some(home) = self.homes.first() {
            roots.extend(manager.roots.iter().map(|root| home.join(root)));
        }
        for root in roots {
            self.manage(manager, &root, cause);
        }
    }

    /// Installations that a manager was told of by a symlink: `rustup toolchain link`, jenv, pyenv.
    fn linked_installations(&mut self, dir: &Path, root: &Path, cause: &str) {
        if self.is_workspace(dir) {
            return;
        }
        for (name, kind) in self.list(dir).iter() {
            if *kind != Kind::Link {
                continue;
            }
            let Some(target) = self.link_target(&dir.join(name)) else {
                continue;
            };
            if inside(&target, root) {
                continue;
            }
            let bin = target.join("bin");
            if self.exists(&bin) {
                self.base(&bin, cause, Led::ByUser, 0);
            }
        }
    }

    /// Paths below `root` that fit the patterns and exist.
    fn holes(&mut self, root: &Path, patterns: &[&str]) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for pattern in patterns {
            let mut paths = vec![root.to_path_buf()];
            for part in pattern.split('/') {
                let mut next = Vec::new();
                for path in &paths {
                    if part != "*" {
                        next.push(path.join(part));
                        continue;
                    }
                    let listing = self.list(path);
                    next.extend(listing.iter().filter(|(_, kind)| *kind == Kind::Dir).map(|(name, _)| path.join(name)));
                }
                paths = next;
            }
            found.extend(paths.into_iter().filter(|path| is_link(path).is_some()));
        }
        found
    }

    /// Names right in an unknown directory that are sensitive wherever they are, such as `.env`.
    fn secrets_in(&mut self, dir: &Path) -> Vec<PathBuf> {
        let hidden = self.list(dir);
        let hidden = hidden.iter().filter(|(name, _)| name.as_bytes().starts_with(b"."));
        hidden.map(|(name, _)| dir.join(name)).filter(|path| sensitive(path, Path::new("/")).is_some()).collect()
    }

    /// Grants `path` but for the holes in it.
    fn add_around(&mut self, path: &Path, holes: &[PathBuf], what: &str, cause: &str) {
        if !holes.iter().any(|hole| inside(hole, path)) {
            self.add(path, what, cause);
            return;
        }
        let listing = self.list(path);
        if listing.is_empty() {
            self.skip(path, &format!("{what}: holds credentials among too many files"));
        }
        for (name, _) in listing.iter() {
            let child = path.join(name);
            if holes.contains(&child) {
                self.skip(&child, &format!("{what}: may hold credentials"));
            } else {
                self.add_around(&child, holes, what, cause);
            }
        }
    }

    /// The only way into `grants`. A path that leads to a refused place is refused with it.
    fn add(&mut self, path: &Path, what: &str, cause: &str) {
        if self.is_system(path) || self.in_workspace(path) || self.is_granted(path) {
            return;
        }
        let Some(real) = self.real(path) else { return };
        if let Some(refusal) = self.refusal(path).or_else(|| self.refusal_of_target(&real)) {
            self.skip(path, &format!("{what}: {cause}: {refusal}"));
            return;
        }
        if self.grants.len() >= MAX_GRANTS {
            self.skip(path, &format!("{what}: {cause}: too many grants"));
            return;
        }
        let why = format!("{what}: {cause}");
        if real != path && !self.is_system(&real) && !self.in_workspace(&real) {
            self.grants.push(Found { path: real, why: why.clone() });
        }
        self.grants.push(Found { path: path.to_path_buf(), why });
    }

    fn refusal_of_target(&self, real: &Path) -> Option<String> {
        if self.is_system(real) || self.in_workspace(real) { None } else { self.refusal(real) }
    }

    /// Why a path may never be granted: it is too broad, or sensitive in somebody's home.
    fn refusal(&self, path: &Path) -> Option<String> {
        if is_broad(path) {
            return Some("too broad".into());
        }
        let none = [PathBuf::from("/")];
        let homes = if self.homes.is_empty() { &none } else { self.homes.as_slice() };
        let kind = homes.iter().find_map(|home| sensitive(path, home))?;
        Some(format!("sensitive ({kind})"))
    }

    fn is_system(&self, path: &Path) -> bool {
        let bytes = path.as_os_str().as_bytes();
        let Some(rest) = bytes.strip_prefix(b"/") else {
            return false;
        };
        let first = rest.split(|b| *b == b'/').next().unwrap_or_default();
        let system = match first {
            b"usr" | b"bin" | b"sbin" | b"opt" | b"etc" => true,
            b"lib" | b"lib32" | b"lib64" | b"libx32" => true,
            b"nix" => below(rest, b"nix/store"),
            _ => false,
        };
        system && !self.homes.iter().any(|home| inside(path, home)) && !bytes.windows(4).any(|w| w == b"/../")
    }

    fn in_workspace(&self, path: &Path) -> bool {
        self.workspace.as_ref().is_some_and(|workspace| inside(path, workspace))
    }

    /// Whether `path` is the workspace's, by name or by where its symlinks lead.
    fn is_workspace(&mut self, path: &Path) -> bool {
        self.in_workspace(path)
            || (self.workspace.is_some() && self.real(path).is_some_and(|real| self.in_workspace(&real)))
    }

    fn is_granted(&self, path: &Path) -> bool {
        self.grants.iter().any(|grant| inside(path, &grant.path))
    }

    /// True the first time a path is asked about.
    fn first_look(&mut self, path: &Path) -> bool {
        self.followed.insert(path.as_os_str().to_os_string())
    }

    fn exists(&mut self, path: &Path) -> bool {
        self.real(path).is_some()
    }

    /// Where `path` really is. One `lstat` per path component and call, since parents are remembered.
    fn real(&mut self, path: &Path) -> Option<PathBuf> {
        if let Some(known) = self.known.get(path.as_os_str()) {
            return known.clone();
        }
        let real = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => self.real(parent).and_then(|parent| {
                let full = parent.join(name);
                match is_link(&full)? {
                    true => fs::canonicalize(full).ok(),
                    false => Some(full),
                }
            }),
            _ => Some(PathBuf::from("/")),
        };
        self.known.insert(path.as_os_str().to_os_string(), real.clone());
        real
    }

    /// The names in a directory, sorted; none when it cannot be read or holds too many.
    fn list(&mut self, dir: &Path) -> Rc<Listing> {
        if let Some(listing) = self.listings.get(dir.as_os_str()) {
            return listing.clone();
        }
        let mut names = list_up_to(dir, MAX_NAMES + 1);
        if names.len() > MAX_NAMES {
            names.clear();
        }
        let listing = Rc::new(names);
        self.listings.insert(dir.as_os_str().to_os_string(), listing.clone());
        listing
    }

    /// Where a symlink points, as an absolute path without `..`.
    fn link_target(&mut self, link: &Path) -> Option<PathBuf> {
        let target = fs::read_link(link).ok()?;
        self.absolute(link, &target)
    }

    fn absolute(&mut self, link: &Path, target: &Path) -> Option<PathBuf> {
        if is_plain(target) {
            return Some(target.to_path_buf());
        }
        let mut path = match target.is_absolute() {
            true => PathBuf::from("/"),
            false => self.real(link.parent()?)?,
        };
        let mut named = false;
        for part in target.components() {
            match part {
                Component::Normal(name) => {
                    path.push(name);
                    named = true;
                }
                // `..` after a name may leave through a symlink, so the kernel is asked.
                Component::ParentDir if named => return fs::canonicalize(link).ok(),
                Component::ParentDir => {
                    path.pop();
                }
                _ => {}
            }
        }
        plain(&path)
    }

    fn tilde(&self, path: &Path) -> String {
        for home in &self.homes {
            if let Ok(rel) = path.strip_prefix(home)
                && home != Path::new("/")
            {
                return Path::new("~").join(rel).display().to_string();
            }
        }
        path.display().to_string()
    }

    fn skip(&mut self, path: &Path, why: &str) {
        if self.skipped.len() < MAX_SKIPPED {
            self.skipped.push(Found { path: path.to_path_buf(), why: why.to_string() });
        }
    }

    fn finish(mut self) -> Toolchains {
        // Stable, so that of two reasons for one path the first in PATH order stays.
        self.grants.sort_by(|a, b| a.path.cmp(&b.path));
        self.grants.dedup_by(|next, kept| inside(&next.path, &kept.path));
        self.skipped.sort_by(|a, b| a.path.cmp(&b.path));
        self.skipped.dedup_by(|next, kept| next.path == kept.path);
        let passes = |name: &&&str| (self.env)(name).is_some_and(|value| is_location(&value));
        let env = self.names.iter().filter(passes).map(|name| name.to_string()).collect();
        Toolchains { grants: self.grants, env, skipped: self.skipped }
    }
}
