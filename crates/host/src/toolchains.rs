//! Directories that the caller's PATH leads to, so that a command that works outside starts inside. Only reads the file
//! system; returns candidates for grants, and never a path in [`SENSITIVE`].
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
//! Trust: PATH, the variables and the user's own bin directories are the caller's word. Files in the workspace are not,
//! so they can at most bring in a whole known manager, never a path of their choice.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

mod cache;
mod follow;
mod manage;
mod managers;
mod paths;
mod sensitive;

use managers::{COMMON_ENV, INSTALLATION_VARS, MANAGERS, Manager};
use paths::*;
pub use sensitive::{SENSITIVE, is_credential_file, lies_in_sensitive, sensitive};

/// Bounds. A start must not depend on how untidy a home is.
const MAX_PATH_ENTRIES: usize = 4096;
const MAX_FOREIGN_ENTRIES: usize = 64;
const MAX_PATH_LEN: usize = 4096;
const MAX_COMPONENTS: usize = 64;
const MAX_GRANTS: usize = 256;
const MAX_SKIPPED: usize = 64;
/// Names read from one directory; a directory with more is no installation root.
const MAX_NAMES: usize = 512;
/// Links and scripts followed in bin directories, over the whole call.
const MAX_LINKS: usize = 512;
const MAX_SCRIPTS: usize = 32;
/// Bound on chains of links, venvs on venvs, interpreters of interpreters.
const MAX_DEPTH: usize = 8;

/// A path and the reason for it, in words for `--explain`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolchainPath {
    pub path: PathBuf,
    pub why: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Toolchains {
    /// Paths to make readable and executable: absolute, existing files and directories, sorted, none inside another. If
    /// a path is or lies behind a symlink, its target is listed as well.
    pub grants: Vec<ToolchainPath>,
    /// Variables of the caller that these toolchains need: set, and holding only paths or versions.
    pub env: Vec<String>,
    /// Paths that PATH or a link named and that were refused.
    pub skipped: Vec<ToolchainPath>,
}

/// Discovers the toolchains of `path` (a PATH value) for the home `home` and the workspace `cwd`.
///
/// `command` is the program to be started. A tool that PATH finds outside system directories is followed precisely: by
/// link, by `#!` line, by `env` through PATH. Then the first lines of the other scripts beside it are not read, because
/// that would cost as much as the rest of the search. A shell may start any of them, so for a command of the system, or
/// none, up to [`MAX_SCRIPTS`] are read.
pub fn discover(
    path: &OsStr,
    home: &Path,
    cwd: &Path,
    command: Option<&OsStr>,
    env: &dyn Fn(&str) -> Option<OsString>,
) -> Toolchains {
    let mut search = Search::new(home, cwd, env);
    search.read_root_variables();
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

/// Origin of the claim that a path belongs to a toolchain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaimOrigin {
    User,
    Workspace,
}

struct Search<'a> {
    /// The home as named and, if that is a symlink, its target.
    homes: Vec<PathBuf>,
    cwd: PathBuf,
    /// The current directory, unless the home lies in it: then there is no workspace.
    workspace: Option<PathBuf>,
    env: &'a dyn Fn(&str) -> Option<OsString>,
    /// Roots named by variables.
    named: Vec<(&'static Manager, PathBuf)>,
    /// PATH entries that exist outside system directories, in order.
    entries: Vec<PathBuf>,
    /// Real path of each path, or `None` if it does not exist.
    known: HashMap<OsString, Option<PathBuf>>,
    listings: HashMap<OsString, Rc<Listing>>,
    settled: HashMap<(&'static str, OsString), bool>,
    followed: HashSet<OsString>,
    grants: Vec<ToolchainPath>,
    skipped: Vec<ToolchainPath>,
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
            // Windows programs of WSL escape the enclosure through the host, and reading them is slow.
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

    /// Reads the variables that name a manager's root. A variable that names the home, a directory around it, or the
    /// workspace's own files is ignored.
    fn read_root_variables(&mut self) {
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
                self.venv(root, &cause, ClaimOrigin::Workspace, 0);
            }
            return;
        }
        let Some(real) = self.real(entry) else { return };
        self.entries.push(entry.to_path_buf());
        if self.in_workspace(&real) {
            // The link's target belongs to the workspace, so nothing in it is followed.
            self.add(entry, "link", &cause);
            return;
        }
        self.grant_bin_dir(entry, &cause);
        if real != entry && !self.is_system(&real) {
            self.grant_bin_dir(&real, &cause);
        }
    }

    /// Grants the installation that the bin directory `dir` needs.
    fn grant_bin_dir(&mut self, dir: &Path, cause: &str) {
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

    /// Adds a grant; all grants pass through here. A path that leads to a refused path is refused, too.
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
            self.grants.push(ToolchainPath { path: real, why: why.clone() });
        }
        self.grants.push(ToolchainPath { path: path.to_path_buf(), why });
    }

    fn refusal_of_target(&self, real: &Path) -> Option<String> {
        if self.is_system(real) || self.in_workspace(real) { None } else { self.refusal(real) }
    }

    /// Returns the reason why a path may never be granted: it is too broad, or sensitive in a home directory.
    fn refusal(&self, path: &Path) -> Option<String> {
        if is_broad(path) {
            return Some("too broad".into());
        }
        let none = [PathBuf::from("/")];
        let homes = if self.homes.is_empty() { &none } else { self.homes.as_slice() };
        let kind = homes.iter().find_map(|home| sensitive(path, home))?;
        Some(format!("sensitive ({kind})"))
    }

    fn is_granted(&self, path: &Path) -> bool {
        self.grants.iter().any(|grant| inside(path, &grant.path))
    }

    /// Returns true the first time that a path is visited.
    fn is_first_visit(&mut self, path: &Path) -> bool {
        self.followed.insert(path.as_os_str().to_os_string())
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
            self.skipped.push(ToolchainPath { path: path.to_path_buf(), why: why.to_string() });
        }
    }

    fn finish(mut self) -> Toolchains {
        // A stable sort, so that of two reasons for one path the first in PATH order stays.
        self.grants.sort_by(|a, b| a.path.cmp(&b.path));
        self.grants.dedup_by(|next, kept| inside(&next.path, &kept.path));
        self.skipped.sort_by(|a, b| a.path.cmp(&b.path));
        self.skipped.dedup_by(|next, kept| next.path == kept.path);
        let passes = |name: &&&str| (self.env)(name).is_some_and(|value| is_location(&value));
        let env = self.names.iter().filter(passes).map(|name| name.to_string()).collect();
        Toolchains { grants: self.grants, env, skipped: self.skipped }
    }
}
