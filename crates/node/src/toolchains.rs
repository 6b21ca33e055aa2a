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
//! every path above ─ admit(): sensitive? too broad? ─ sorted, none inside another
//! ```
//!
//! Trust: PATH, the variables and the user's own bin directories are the caller's word. What lies in
//! the workspace is not, so it can at most bring in a whole known manager, never a path of its choice.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

mod managers;
mod sensitive;

use managers::{COMMON_ENV, CONDA_HOLES, INSTALLATION_VARS, MANAGERS, Manager};
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
/// `command` is the program to be started. Reading the first line of every script in `~/.local/bin`
/// would cost more than the rest of the launch, so scripts are bounded hard and this one is followed
/// precisely: by link, by `#!` line, by `env` through PATH.
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
    if let Some(command) = command {
        search.command(command);
    }
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
    links_left: usize,
    scripts_left: usize,
}

impl<'a> Search<'a> {
    fn new(home: &Path, cwd: &Path, env: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        let mut search = Search {
            homes: Vec::new(),
            cwd: cwd.to_path_buf(),
            workspace: (cwd.is_absolute() && !inside(home, cwd))
                .then(|| plain(cwd))
                .flatten(),
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
            if piece.is_empty()
                || piece.len() > MAX_PATH_LEN
                || self.is_system(entry)
                || !seen.insert(piece)
            {
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
                self.skip(
                    entry,
                    "PATH has too many entries outside system directories",
                );
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
                let first = value
                    .as_bytes()
                    .split(|b| *b == b':')
                    .next()
                    .unwrap_or_default();
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
                self.scan(dir, cause);
            }
            return;
        }
        if !self.prefix(dir, cause, 0) {
            self.scan(dir, cause);
        }
    }

    /// The manager whose root holds `path`; of several the one with the longest root.
    fn manager_of(&self, path: &Path) -> Option<(&'static Manager, PathBuf)> {
        let mut best: Option<(&'static Manager, PathBuf)> = None;
        let mut better = |manager, root: PathBuf| {
            if best
                .as_ref()
                .is_none_or(|(_, kept)| kept.as_os_str().len() < root.as_os_str().len())
            {
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
                if let Some(root) = manager
                    .roots
                    .iter()
                    .find(|root| below(rel, root.as_bytes()))
                {
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
            manager
                .marks
                .iter()
                .any(|mark| self.exists(&root.join(mark)))
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
        let mut roots: Vec<PathBuf> = self
            .named
            .iter()
            .filter(|(m, _)| m.name == name)
            .map(|(_, root)| root.clone())
            .collect();
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

    /// Grants the installation that has `dir` as its bin directory. True when its kind is known, so
    /// that its links need no look.
    fn prefix(&mut self, dir: &Path, cause: &str, depth: usize) -> bool {
        let name = dir.file_name().unwrap_or_default().as_bytes();
        let Some(root) = dir.parent() else {
            return true;
        };
        if is_bin(name) && (self.venv(root, cause, Led::ByUser, depth) || self.conda(root, cause)) {
            return true;
        }
        match name {
            b".bin" if root.ends_with("node_modules") => {
                self.add(root, "node_modules", cause);
                return true;
            }
            b"shims"
                if self.exists(&root.join("versions")) || self.exists(&root.join("installs")) =>
            {
                for part in [
                    "shims", "bin", "libexec", "lib", "versions", "installs", "plugins", "version",
                ] {
                    self.add(&root.join(part), "shims", cause);
                }
                return true;
            }
            _ => {}
        }
        let secrets = self.secrets_in(dir);
        self.add_around(dir, &secrets, "bin directory", cause);
        if is_bin(name) {
            self.beside(root, "installation", cause);
        }
        false
    }

    /// The rest of an installation prefix, when `root` looks like one and is not a place that holds
    /// other things as well. `etc` and `var` stay out: that is where services keep passwords.
    fn beside(&mut self, root: &Path, what: &str, cause: &str) {
        const PREFIX: &[&str] = &["lib", "lib64", "libexec", "share"];
        const REST: &[&str] = &[
            "lib32", "include", "sbin", "bin", "jre", "conf", "jmods", "legal", "release",
        ];
        const GO: &[&str] = &["pkg", "src", "misc", "VERSION", "go.env"];
        if self.refusal(root).is_some() {
            return;
        }
        let listing = self.list(root);
        let names: HashSet<&[u8]> = listing.iter().map(|(name, _)| name.as_bytes()).collect();
        let has = |name: &&&str| names.contains(name.as_bytes());
        let go = ["VERSION", "pkg", "src"].iter().all(|name| has(&name));
        if !go && (what == "go" || !PREFIX.iter().any(|name| has(&name))) {
            return;
        }
        let go_parts = if go { GO } else { &[] };
        for part in PREFIX.iter().chain(REST).chain(go_parts).filter(has) {
            self.add(&root.join(part), what, cause);
        }
    }

    /// Grants a virtual environment and the Python it was made from; false when `root` is none.
    fn venv(&mut self, root: &Path, cause: &str, led: Led, depth: usize) -> bool {
        const PARTS: &[&str] = &[
            "bin",
            "lib",
            "lib64",
            "include",
            "share",
            "pyvenv.cfg",
            "man",
        ];
        const HARMLESS: &[&str] = &[".gitignore", "CACHEDIR.TAG", ".lock", ".project"];
        let config = root.join("pyvenv.cfg");
        let Some(text) = head(&config, 4096) else {
            return false;
        };
        if led == Led::ByUser && self.first_look(&config) {
            // A venv is granted whole only when nothing else was put in it: `python -m venv .` makes a
            // project one, and `pip config --site` leaves a pip.conf with passwords.
            let granted = self.is_granted(root);
            let listing = if granted {
                Rc::default()
            } else {
                self.list(root)
            };
            let foreign = |name: &OsString| !PARTS.iter().chain(HARMLESS).any(|part| name == part);
            if granted {
                // Its manager gave it already.
            } else if listing.is_empty()
                || listing.iter().any(|(name, _)| foreign(name))
                || self.refusal(root).is_some()
            {
                for part in PARTS {
                    self.add(&root.join(part), "virtual environment", cause);
                }
            } else {
                self.add(root, "virtual environment", cause);
            }
        }
        if let Some(base) = base_of(&text)
            && depth < MAX_DEPTH
        {
            self.base(&base, cause, led, depth + 1);
        }
        true
    }

    fn conda(&mut self, env: &Path, cause: &str) -> bool {
        if !self.exists(&env.join("conda-meta")) {
            return false;
        }
        let above = env
            .parent()
            .filter(|envs| envs.ends_with("envs"))
            .and_then(Path::parent)
            .map(Path::to_path_buf);
        let root = above
            .filter(|root| self.exists(&root.join("conda-meta")))
            .unwrap_or_else(|| env.to_path_buf());
        if self.refusal(&root).is_none() {
            let holes = self.holes(&root, CONDA_HOLES);
            self.add_around(&root, &holes, "conda", cause);
        }
        true
    }

    /// The installation around the bin directory of a base interpreter.
    fn base(&mut self, bin: &Path, cause: &str, led: Led, depth: usize) {
        let Some(bin) = plain(bin) else { return };
        if self.is_system(&bin) || self.is_granted(&bin) || self.is_workspace(&bin) {
            return;
        }
        let real = self
            .real(&bin)
            .filter(|real| *real != bin && !self.is_system(real));
        for dir in [Some(bin), real].into_iter().flatten() {
            match self.manager_of(&dir) {
                Some((manager, root)) if self.manage(manager, &root, cause) => {}
                _ if led == Led::ByUser
                    && is_bin(dir.file_name().unwrap_or_default().as_bytes()) =>
                {
                    self.prefix(&dir, cause, depth);
                }
                _ => {}
            }
        }
    }

    /// Follows the links and scripts of a bin directory to the installations behind them.
    fn scan(&mut self, dir: &Path, cause: &str) {
        if !self.homes.iter().any(|home| inside(dir, home)) || !self.first_look(dir) {
            return;
        }
        for (name, kind) in self.list(dir).iter() {
            if self.links_left == 0 {
                return;
            }
            self.links_left -= 1;
            match kind {
                Kind::Link => self.follow(&dir.join(name), cause, Led::ByUser, 0),
                Kind::File if self.scripts_left > 0 => {
                    self.scripts_left -= 1;
                    self.script(&dir.join(name), cause, 0);
                }
                _ => {}
            }
        }
    }

    /// Follows a chain of symlinks from `link`, granting the installation at each hop, since a path
    /// in the middle must exist inside as well. Once a hop is in the workspace, the workspace leads.
    fn follow(&mut self, link: &Path, cause: &str, mut led: Led, depth: usize) {
        let mut at = link.to_path_buf();
        let mut to_read = false;
        for _ in 0..MAX_DEPTH {
            let Some(target) = self.link_target(&at) else {
                break;
            };
            if self.is_system(&target) || !self.first_look(&target) {
                return;
            }
            let granted = self.is_granted(&target);
            if granted && led == Led::ByUser {
                self.python_of(&target, cause, depth);
            } else {
                let dir = at.parent().unwrap_or(Path::new("/"));
                if led == Led::ByUser && self.is_workspace(dir) {
                    led = Led::ByWorkspace;
                }
                if !is_program(&target) {
                    return;
                }
                if self.is_workspace(&target) {
                    led = Led::ByWorkspace;
                } else {
                    self.installed(&target, cause, led, depth);
                }
            }
            to_read = led == Led::ByUser && !granted;
            at = target;
        }
        if to_read {
            self.script(&at, cause, depth);
        }
    }

    /// The base of the environment that holds `program`. What its `python` links to says the same as
    /// pyvenv.cfg for a third of the calls, and ~/.local/bin may lead to dozens of environments.
    fn python_of(&mut self, program: &Path, cause: &str, depth: usize) {
        let Some(bin) = program.parent().filter(|dir| dir.ends_with("bin")) else {
            return;
        };
        let mut python = bin.join("python");
        if !self.first_look(&python) {
            return;
        }
        let mut base = None;
        for _ in 0..3 {
            match fs::read_link(&python) {
                Ok(target) if target.is_absolute() => {
                    base = target.parent().map(Path::to_path_buf);
                    break;
                }
                Ok(target) => python = bin.join(target),
                Err(_) => break,
            }
        }
        if base
            .as_ref()
            .is_some_and(|base| self.is_system(base) || self.is_granted(base))
        {
            return;
        }
        let led = if self.is_workspace(bin) {
            Led::ByWorkspace
        } else {
            Led::ByUser
        };
        match base {
            Some(base) => self.base(&base, cause, led, depth + 1),
            None => {
                self.venv(bin.parent().unwrap_or(bin), cause, led, depth);
            }
        }
    }

    /// Grants the installation that the program `file` belongs to.
    fn installed(&mut self, file: &Path, cause: &str, led: Led, depth: usize) {
        let Some(dir) = file.parent() else { return };
        let managed = match self.manager_of(file) {
            Some((manager, root)) => self.manage(manager, &root, cause),
            None => false,
        };
        if led == Led::ByWorkspace {
            return;
        }
        let in_bin = is_bin(dir.file_name().unwrap_or_default().as_bytes());
        if managed {
            self.python_of(file, cause, depth);
            self.add(file, "program", cause);
            return;
        }
        if let Some(whole) = self.whole_installation(file) {
            let secrets = self.secrets_in(&whole);
            self.add_around(&whole, &secrets, "installation", cause);
        } else if in_bin {
            self.prefix(dir, cause, depth);
        } else {
            self.add(file, "program", cause);
        }
    }

    /// Directories that hold one installation each, by name of the directory around it.
    fn whole_installation(&self, file: &Path) -> Option<PathBuf> {
        let mut path = PathBuf::new();
        for part in file.components() {
            path.push(part);
            if part.as_os_str() == "node_modules" {
                return Some(path);
            }
        }
        let home = self.homes.iter().find(|home| inside(file, home))?;
        let rel: Vec<&OsStr> = file.strip_prefix(home).ok()?.iter().collect();
        let text: Vec<&[u8]> = rel.iter().map(|part| part.as_bytes()).collect();
        match text.as_slice() {
            [b"opt" | b"Applications", _, _, ..] => Some(home.join(rel[0]).join(rel[1])),
            [b".local", b"opt", _, _, ..] => Some(home.join(".local/opt").join(rel[2])),
            // An application keeps its data in ~/.local/share/NAME; its program is one level down.
            [b".local", b"share", _, .., dir, _] if !is_bin(dir) => {
                file.parent().map(Path::to_path_buf)
            }
            _ => None,
        }
    }

    /// Follows the interpreter that a script of the user's names.
    fn script(&mut self, file: &Path, cause: &str, depth: usize) {
        if depth >= MAX_DEPTH {
            return;
        }
        let Some(text) = head(file, 512) else { return };
        let Some(words) = interpreter(&text) else {
            return;
        };
        let Some(program) = words.first().map(|word| Path::new(OsStr::from_bytes(word))) else {
            return;
        };
        if program.file_name() == Some(OsStr::new("env")) {
            let named = words[1..]
                .iter()
                .find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
            if let Some(named) = named
                && self.first_look(Path::new(OsStr::from_bytes(named)))
            {
                self.by_name(OsStr::from_bytes(named), cause, depth + 1);
            }
            return;
        }
        let Some(program) = plain(program) else {
            return;
        };
        if !self.is_system(&program) && self.first_look(&program) && is_program(&program) {
            self.program(&program, cause, depth + 1);
        }
    }

    /// Follows the command that is about to start.
    fn command(&mut self, command: &OsStr) {
        if command.is_empty() || command.len() > MAX_PATH_LEN {
            return;
        }
        if !command.as_bytes().contains(&b'/') {
            self.by_name(command, &format!("command {}", command.display()), 0);
            return;
        }
        let file = self.cwd.join(command);
        if let Some(file) = plain(&file).or_else(|| fs::canonicalize(&file).ok())
            && !self.is_system(&file)
            && is_program(&file)
        {
            self.program(&file, &format!("command {}", self.tilde(&file)), 0);
        }
    }

    /// Finds a command in PATH. Entries in system directories are not searched: what they shadow is
    /// granted needlessly at worst.
    fn by_name(&mut self, name: &OsStr, cause: &str, depth: usize) {
        if name.as_bytes().contains(&b'/') {
            return;
        }
        let found = self
            .entries
            .iter()
            .map(|dir| dir.join(name))
            .find(|file| is_program(file));
        if let Some(file) = found {
            self.program(&file, cause, depth);
        }
    }

    fn program(&mut self, file: &Path, cause: &str, depth: usize) {
        if self.is_workspace(file) {
            if let Some(root) = file.parent().and_then(Path::parent) {
                self.venv(root, cause, Led::ByWorkspace, depth);
            }
            self.follow(file, cause, Led::ByWorkspace, depth);
            return;
        }
        self.installed(file, cause, Led::ByUser, depth);
        self.script(file, cause, depth);
        self.follow(file, cause, Led::ByUser, depth);
    }

    /// An installation named by a variable instead of a PATH entry.
    fn installation_var(&mut self, name: &str) {
        let Some(root) = (self.env)(name).and_then(|value| plain(Path::new(&value))) else {
            return;
        };
        if self.is_system(&root) || self.is_workspace(&root) || self.refusal(&root).is_some() {
            return;
        }
        let bin = root.join("bin");
        if self.exists(&bin) {
            self.base(
                &bin,
                &format!("{name} {}", self.tilde(&root)),
                Led::ByUser,
                0,
            );
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
                    next.extend(
                        listing
                            .iter()
                            .filter(|(_, kind)| *kind == Kind::Dir)
                            .map(|(name, _)| path.join(name)),
                    );
                }
                paths = next;
            }
            found.extend(
                paths
                    .into_iter()
                    .filter(|path| path.symlink_metadata().is_ok()),
            );
        }
        found
    }

    /// Names right in an unknown directory that are sensitive wherever they are, such as `.env`.
    fn secrets_in(&mut self, dir: &Path) -> Vec<PathBuf> {
        let hidden = self.list(dir);
        let hidden = hidden
            .iter()
            .filter(|(name, _)| name.as_bytes().starts_with(b"."));
        hidden
            .map(|(name, _)| dir.join(name))
            .filter(|path| sensitive(path, Path::new("/")).is_some())
            .collect()
    }

    /// Grants `path` but for the holes in it.
    fn add_around(&mut self, path: &Path, holes: &[PathBuf], what: &str, cause: &str) {
        if !holes.iter().any(|hole| inside(hole, path)) {
            self.add(path, what, cause);
            return;
        }
        let listing = self.list(path);
        if listing.is_empty() {
            self.skip(
                path,
                &format!("{what}: holds credentials among too many files"),
            );
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
            self.grants.push(Found {
                path: real,
                why: why.clone(),
            });
        }
        self.grants.push(Found {
            path: path.to_path_buf(),
            why,
        });
    }

    fn refusal_of_target(&self, real: &Path) -> Option<String> {
        if self.is_system(real) || self.in_workspace(real) {
            None
        } else {
            self.refusal(real)
        }
    }

    /// Why a path may never be granted: it is too broad, or sensitive in somebody's home.
    fn refusal(&self, path: &Path) -> Option<String> {
        if is_broad(path) {
            return Some("too broad".into());
        }
        let none = [PathBuf::from("/")];
        let homes = if self.homes.is_empty() {
            &none
        } else {
            self.homes.as_slice()
        };
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
        system
            && !self.homes.iter().any(|home| inside(path, home))
            && !bytes.windows(4).any(|w| w == b"/../")
    }

    fn in_workspace(&self, path: &Path) -> bool {
        self.workspace
            .as_ref()
            .is_some_and(|workspace| inside(path, workspace))
    }

    /// Whether `path` is the workspace's, by name or by where its symlinks lead.
    fn is_workspace(&mut self, path: &Path) -> bool {
        self.in_workspace(path)
            || (self.workspace.is_some()
                && self.real(path).is_some_and(|real| self.in_workspace(&real)))
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
        self.known
            .insert(path.as_os_str().to_os_string(), real.clone());
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
        self.listings
            .insert(dir.as_os_str().to_os_string(), listing.clone());
        listing
    }

    /// Where a symlink points, as an absolute path without `..`.
    fn link_target(&mut self, link: &Path) -> Option<PathBuf> {
        let target = fs::read_link(link).ok()?;
        if is_plain(&target) {
            return Some(target);
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
            self.skipped.push(Found {
                path: path.to_path_buf(),
                why: why.to_string(),
            });
        }
    }

    fn finish(mut self) -> Toolchains {
        // Stable, so that of two reasons for one path the first in PATH order stays.
        self.grants.sort_by(|a, b| a.path.cmp(&b.path));
        self.grants
            .dedup_by(|next, kept| inside(&next.path, &kept.path));
        self.skipped.sort_by(|a, b| a.path.cmp(&b.path));
        self.skipped.dedup_by(|next, kept| next.path == kept.path);
        let passes = |name: &&&str| (self.env)(name).is_some_and(|value| is_location(&value));
        let env = self
            .names
            .iter()
            .filter(passes)
            .map(|name| name.to_string())
            .collect();
        Toolchains {
            grants: self.grants,
            env,
            skipped: self.skipped,
        }
    }
}

/// Directories of which no part is named: too much lies in them.
fn is_broad(path: &Path) -> bool {
    let parts: Vec<&[u8]> = path
        .iter()
        .skip(1)
        .take(4)
        .map(OsStrExt::as_bytes)
        .collect();
    matches!(
        parts.as_slice(),
        [] | [_]
            | [
                b"home" | b"Users" | b"var" | b"mnt" | b"media" | b"run" | b"srv",
                _
            ]
            | [b"run", b"user", _]
            | [b"proc" | b"sys" | b"dev" | b"boot", ..]
            | [b"run" | b"var", b"secrets" | b"credentials", ..]
    )
}

fn is_bin(name: &[u8]) -> bool {
    matches!(name, b"bin" | b"sbin" | b"condabin" | b"Scripts")
}

/// Whether `path` is `root` or lies below it. Both are [`plain`], so bytes are enough; going by
/// components made this the dearest part of the search.
fn inside(path: &Path, root: &Path) -> bool {
    let root = root.as_os_str().as_bytes();
    root == b"/" || below(path.as_os_str().as_bytes(), root)
}

fn below(path: &[u8], root: &[u8]) -> bool {
    path.strip_prefix(root)
        .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// An absolute path of bounded size without `.`, `..` or doubled slashes; `..` is not guessed at.
fn plain(path: &Path) -> Option<PathBuf> {
    if is_plain(path) {
        return Some(path.to_path_buf());
    }
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let path: PathBuf = path.components().collect();
    (path == Path::new("/") || is_plain(&path)).then_some(path)
}

fn is_plain(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let Some(rest) = bytes.strip_prefix(b"/") else {
        return false;
    };
    let mut parts = 0;
    bytes.len() <= MAX_PATH_LEN
        && rest.split(|b| *b == b'/').all(|part| {
            parts += 1;
            !matches!(part, b"" | b"." | b"..")
        })
        && parts <= MAX_COMPONENTS
}

/// Whether a path is a symlink; `None` when there is nothing. `readlink` says it for half the price
/// of `lstat`, and this is asked for every part of every path.
fn is_link(path: &Path) -> Option<bool> {
    let mut target = [0u8; 1];
    match rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut target) {
        Ok(_) => Some(true),
        Err(rustix::io::Errno::INVAL) => Some(false),
        Err(_) => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Dir,
    File,
    Link,
}

type Listing = Vec<(OsString, Kind)>;

/// At most so many names of a directory, sorted.
fn list_up_to(dir: &Path, most: usize) -> Listing {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .flatten()
        .take(most)
        .filter_map(|entry| {
            let kind = entry.file_type().ok()?;
            let kind = match () {
                () if kind.is_symlink() => Kind::Link,
                () if kind.is_dir() => Kind::Dir,
                () if kind.is_file() => Kind::File,
                () => return None,
            };
            Some((entry.file_name(), kind))
        })
        .collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    names
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The first bytes of a regular file. Never waits: a FIFO in a bin directory is not opened.
fn head(path: &Path, most: usize) -> Option<Vec<u8>> {
    use std::os::unix::fs::OpenOptionsExt;
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut file: File = File::options()
        .read(true)
        .custom_flags(nonblock)
        .open(path)
        .ok()?;
    let mut text = vec![0; most];
    let read = file.read(&mut text).ok()?;
    text.truncate(read);
    Some(text)
}

/// `home = …` of a pyvenv.cfg: the bin directory of the Python that made the environment.
fn base_of(config: &[u8]) -> Option<PathBuf> {
    config.split(|b| *b == b'\n').find_map(|line| {
        let (key, value) = line.split_at(line.iter().position(|b| *b == b'=')?);
        (key.trim_ascii() == b"home")
            .then(|| PathBuf::from(OsStr::from_bytes(value[1..].trim_ascii())))
    })
}

/// The words of a `#!` line. Python's installers write a longer path as a second line in shell,
/// `'''exec' "/path/python" "$0" "$@"`, which counts as well.
fn interpreter(text: &[u8]) -> Option<Vec<&[u8]>> {
    let text = text.strip_prefix(b"#!")?;
    let mut lines = text.split(|b| *b == b'\n');
    let first = lines.next()?;
    if let Some(exec) = lines
        .next()
        .and_then(|second| second.strip_prefix(b"'''exec' "))
    {
        let exec = exec.trim_ascii();
        let path = match exec.strip_prefix(b"\"") {
            Some(quoted) => quoted.split(|b| *b == b'"').next()?,
            None => exec.split(|b| *b == b' ').next()?,
        };
        return Some(vec![path]);
    }
    Some(
        first
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .collect(),
    )
}

/// Whether a settings file is small and free of anything like a secret. Wrong only towards "no".
fn holds_no_secret(path: &Path) -> bool {
    const TELLING: &[&[u8]] = &[
        b"token",
        b"secret",
        b"passw",
        b"credential",
        b"api",
        b"auth",
        b"[env",
        b"key",
        b"proxy",
        b"@",
    ];
    const MOST: usize = 16 * 1024;
    let Some(mut text) = head(path, MOST) else {
        return false;
    };
    if text.len() == MOST {
        return false;
    }
    text.make_ascii_lowercase();
    if TELLING
        .iter()
        .any(|word| text.windows(word.len()).any(|part| part == *word))
    {
        return false;
    }
    // A long run of letters and digits is more likely a token than a word.
    let mut runs = text.split(|b| !b.is_ascii_alphanumeric());
    !runs.any(|run| run.len() >= 20 && run.iter().any(u8::is_ascii_digit))
}

/// Whether a variable's value is a list of paths or a version, and no address with a password in it.
fn is_location(value: &OsStr) -> bool {
    let bytes = value.as_bytes();
    if bytes.is_empty() || bytes.len() > MAX_PATH_LEN || bytes.windows(3).any(|part| part == b"://")
    {
        return false;
    }
    bytes.split(|b| *b == b':').all(|part| match part {
        [] => true,
        [b'/', path @ ..] => !path.contains(&b'\n'),
        word => {
            word.len() <= 64
                && word
                    .iter()
                    .all(|b| b.is_ascii_alphanumeric() || b"._+-/@ ".contains(b))
        }
    })
}
