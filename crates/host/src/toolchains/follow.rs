//! Resolution from a program to the installation it belongs to: environments, prefixes, links, `#!` lines. Passes paths
//! to [`Search::add`]; decides nothing about what may be granted.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{CWD, Mode, OFlags};

use super::managers::CONDA_HOLES;
use super::paths::*;
use super::{ClaimOrigin, MAX_DEPTH, MAX_PATH_LEN, Search};

impl Search<'_> {
    /// Grants the installation that has `dir` as its bin directory. True if its kind is known, so that its links need
    /// not be followed.
    pub(super) fn prefix(&mut self, dir: &Path, cause: &str, depth: usize) -> bool {
        let name = dir.file_name().unwrap_or_default().as_bytes();
        let Some(root) = dir.parent() else {
            return true;
        };
        if is_bin(name) && (self.venv(root, cause, ClaimOrigin::User, depth) || self.conda(root, cause)) {
            return true;
        }
        match name {
            b".bin" if root.ends_with("node_modules") => {
                self.add(root, "node_modules", cause);
                return true;
            }
            b"shims" if self.exists(&root.join("versions")) || self.exists(&root.join("installs")) => {
                for part in ["shims", "bin", "libexec", "lib", "versions", "installs", "plugins", "version"] {
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

    /// Grants the rest of an installation prefix, if `root` looks like one and holds nothing else. `etc` and `var` are
    /// excluded: services keep passwords there.
    pub(super) fn beside(&mut self, root: &Path, what: &str, cause: &str) {
        const PREFIX: &[&str] = &["lib", "lib64", "libexec", "share"];
        const REST: &[&str] = &["lib32", "include", "sbin", "bin", "jre", "conf", "jmods", "legal", "release"];
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

    /// Grants a virtual environment and the Python it was made from; false if `root` is none.
    pub(super) fn venv(&mut self, root: &Path, cause: &str, origin: ClaimOrigin, depth: usize) -> bool {
        const PARTS: &[&str] = &["bin", "lib", "lib64", "include", "share", "pyvenv.cfg", "man"];
        const HARMLESS: &[&str] = &[".gitignore", "CACHEDIR.TAG", ".lock", ".project"];
        let config = root.join("pyvenv.cfg");
        let Some(text) = read_head(CWD, &config, [0; 4096]) else {
            return false;
        };
        if origin == ClaimOrigin::User && self.is_first_visit(&config) {
            // A venv is granted whole only if it holds nothing else: `python -m venv .` makes a project one, and `pip
            // config --site` leaves a pip.conf with passwords.
            let granted = self.is_granted(root);
            let listing = if granted { Rc::default() } else { self.list(root) };
            let foreign = |name: &OsString| !PARTS.iter().chain(HARMLESS).any(|part| name == part);
            if granted {
                // Already granted by its manager.
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
        if let Some(base) = parse_venv_home(&text)
            && depth < MAX_DEPTH
        {
            self.base(&base, cause, origin, depth + 1);
        }
        true
    }

    fn conda(&mut self, env: &Path, cause: &str) -> bool {
        if !self.exists(&env.join("conda-meta")) {
            return false;
        }
        let above = env.parent().filter(|envs| envs.ends_with("envs")).and_then(Path::parent).map(Path::to_path_buf);
        let root = above.filter(|root| self.exists(&root.join("conda-meta"))).unwrap_or_else(|| env.to_path_buf());
        if self.refusal(&root).is_none() {
            let holes = self.holes(&root, CONDA_HOLES);
            self.add_around(&root, &holes, "conda", cause);
        }
        true
    }

    /// Grants the installation around the bin directory of a base interpreter.
    pub(super) fn base(&mut self, bin: &Path, cause: &str, origin: ClaimOrigin, depth: usize) {
        let Some(bin) = plain(bin) else { return };
        if self.is_system(&bin) || self.is_granted(&bin) || self.is_workspace(&bin) {
            return;
        }
        let real = self.real(&bin).filter(|real| *real != bin && !self.is_system(real));
        for dir in [Some(bin), real].into_iter().flatten() {
            match self.manager_of(&dir) {
                Some((manager, root)) if self.manage(manager, &root, cause) => {}
                _ if origin == ClaimOrigin::User && is_bin(dir.file_name().unwrap_or_default().as_bytes()) => {
                    self.prefix(&dir, cause, depth);
                }
                _ => {}
            }
        }
    }

    pub(super) fn scan_all(&mut self) {
        for (dir, cause) in std::mem::take(&mut self.to_scan) {
            self.scan(&dir, &cause);
        }
    }

    /// Follows the links and scripts of a bin directory to the installations behind them.
    fn scan(&mut self, dir: &Path, cause: &str) {
        if !self.homes.iter().any(|home| inside(dir, home)) || !self.is_first_visit(dir) {
            return;
        }
        // Names are looked up relative to an open directory: with dozens of them, path resolution dominates the cost.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(open) = rustix::fs::open(dir, flags, Mode::empty()) else {
            return;
        };
        let mut buffer = Vec::with_capacity(512);
        for (name, kind) in self.list(dir).iter() {
            if self.links_left == 0 {
                return;
            }
            self.links_left -= 1;
            match kind {
                PathType::Link => {
                    let Ok(target) = rustix::fs::readlinkat(&open, name, buffer) else {
                        buffer = Vec::with_capacity(512);
                        continue;
                    };
                    let link = dir.join(name);
                    let path = Path::new(OsStr::from_bytes(target.to_bytes()));
                    match self.absolute(&link, path) {
                        // A link out of its installation is followed for the command only.
                        Some(path) if self.is_granted(&path) => self.python_of(&path, cause, 0),
                        Some(path) => self.follow_to(&link, path, cause, ClaimOrigin::User, 0),
                        None => {}
                    }
                    buffer = target.into_bytes();
                }
                PathType::File if self.scripts_left > 0 => {
                    self.scripts_left -= 1;
                    if let Some(text) = read_head(&open, Path::new(name), [0; 256]) {
                        self.interpreter(&text, cause, 0);
                    }
                }
                _ => {}
            }
        }
    }

    /// Follows a chain of symlinks from `link` and grants the installation at each hop, since a path in the middle must
    /// exist inside as well. From the first hop in the workspace on, the origin is the workspace.
    fn follow(&mut self, link: &Path, cause: &str, origin: ClaimOrigin, depth: usize) {
        if let Some(target) = self.link_target(link) {
            self.follow_to(link, target, cause, origin, depth);
        }
    }

    fn follow_to(&mut self, link: &Path, mut target: PathBuf, cause: &str, mut origin: ClaimOrigin, depth: usize) {
        let mut at = link.to_path_buf();
        let mut to_read = false;
        for _ in 0..MAX_DEPTH {
            if self.is_system(&target) || !self.is_first_visit(&target) {
                return;
            }
            let granted = self.is_granted(&target);
            if granted && origin == ClaimOrigin::User {
                self.python_of(&target, cause, depth);
            } else {
                let dir = at.parent().unwrap_or(Path::new("/"));
                if origin == ClaimOrigin::User && self.is_workspace(dir) {
                    origin = ClaimOrigin::Workspace;
                }
                if !is_program(&target) {
                    return;
                }
                if self.is_workspace(&target) {
                    origin = ClaimOrigin::Workspace;
                } else {
                    self.installed(&target, cause, origin, depth);
                }
            }
            to_read = origin == ClaimOrigin::User && !granted;
            at = target;
            match self.link_target(&at) {
                Some(next) => target = next,
                None => break,
            }
        }
        if to_read {
            self.script(&at, cause, depth);
        }
    }

    /// Follows the base of the environment that holds `program`. The target of its `python` link says the same as
    /// pyvenv.cfg for a third of the calls, and ~/.local/bin may lead to dozens of environments.
    fn python_of(&mut self, program: &Path, cause: &str, depth: usize) {
        let Some(bin) = program.parent().filter(|dir| dir.ends_with("bin")) else {
            return;
        };
        let mut python = bin.join("python");
        if !self.is_first_visit(&python) {
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
        if base.as_ref().is_some_and(|base| self.is_system(base) || self.is_granted(base)) {
            return;
        }
        let origin = if self.is_workspace(bin) { ClaimOrigin::Workspace } else { ClaimOrigin::User };
        match base {
            Some(base) => self.base(&base, cause, origin, depth + 1),
            None => {
                self.venv(bin.parent().unwrap_or(bin), cause, origin, depth);
            }
        }
    }

    /// Grants the installation that the program `file` belongs to.
    fn installed(&mut self, file: &Path, cause: &str, origin: ClaimOrigin, depth: usize) {
        let Some(dir) = file.parent() else { return };
        let managed = match self.manager_of(file) {
            Some((manager, root)) => self.manage(manager, &root, cause),
            None => false,
        };
        if origin == ClaimOrigin::Workspace {
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

    /// Returns the directory of a whole installation, recognised by the name of its parent.
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
            [b".local", b"share", _, .., dir, _] if !is_bin(dir) => file.parent().map(Path::to_path_buf),
            _ => None,
        }
    }

    /// Follows the interpreter of a script of the user.
    fn script(&mut self, file: &Path, cause: &str, depth: usize) {
        if depth >= MAX_DEPTH {
            return;
        }
        if let Some(text) = read_head(CWD, file, [0; 256]) {
            self.interpreter(&text, cause, depth);
        }
    }

    fn interpreter(&mut self, text: &[u8], cause: &str, depth: usize) {
        let Some(words) = parse_shebang(text) else {
            return;
        };
        let Some(program) = words.first().map(|word| Path::new(OsStr::from_bytes(word))) else {
            return;
        };
        if program.file_name() == Some(OsStr::new("env")) {
            let named = words[1..].iter().find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
            if let Some(named) = named
                && self.is_first_visit(Path::new(OsStr::from_bytes(named)))
            {
                self.find_in_path(OsStr::from_bytes(named), cause, depth + 1);
            }
            return;
        }
        let Some(program) = plain(program) else {
            return;
        };
        if !self.is_system(&program) && self.is_first_visit(&program) && is_program(&program) {
            self.program(&program, cause, depth + 1);
        }
    }

    /// Follows the command that is about to start; true if it was found and belongs to the user.
    pub(super) fn command(&mut self, command: &OsStr) -> bool {
        if command.is_empty() || command.len() > MAX_PATH_LEN {
            return false;
        }
        if !command.as_bytes().contains(&b'/') {
            return self.find_in_path(command, &format!("command {}", command.display()), 0);
        }
        let file = self.cwd.join(command);
        if let Some(file) = plain(&file).or_else(|| fs::canonicalize(&file).ok())
            && !self.is_system(&file)
            && is_program(&file)
        {
            return self.program(&file, &format!("command {}", self.tilde(&file)), 0);
        }
        false
    }

    /// Finds a command in PATH. Entries in system directories are not searched: at worst a shadowed program is granted
    /// needlessly.
    fn find_in_path(&mut self, name: &OsStr, cause: &str, depth: usize) -> bool {
        if name.as_bytes().contains(&b'/') {
            return false;
        }
        let found = self.entries.iter().map(|dir| dir.join(name)).find(|file| is_program(file));
        found.is_some_and(|file| self.program(&file, cause, depth))
    }

    /// Follows a program; true if it belongs to the user, false if to the workspace.
    fn program(&mut self, file: &Path, cause: &str, depth: usize) -> bool {
        if self.is_workspace(file) {
            if let Some(root) = file.parent().and_then(Path::parent) {
                self.venv(root, cause, ClaimOrigin::Workspace, depth);
            }
            self.follow(file, cause, ClaimOrigin::Workspace, depth);
            return false;
        }
        self.installed(file, cause, ClaimOrigin::User, depth);
        self.script(file, cause, depth);
        self.follow(file, cause, ClaimOrigin::User, depth);
        true
    }

    /// Grants an installation named by a variable instead of a PATH entry.
    pub(super) fn installation_var(&mut self, name: &str) {
        let Some(root) = (self.env)(name).and_then(|value| plain(Path::new(&value))) else {
            return;
        };
        if self.is_system(&root) || self.is_workspace(&root) || self.refusal(&root).is_some() {
            return;
        }
        let bin = root.join("bin");
        if self.exists(&bin) {
            self.base(&bin, &format!("{name} {}", self.tilde(&root)), ClaimOrigin::User, 0);
        }
    }
}
