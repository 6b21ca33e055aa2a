//! A home of real files and symlinks, in which every row of the credential table is planted.

use host::toolchains::{SENSITIVE, Toolchains, discover};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A home with a workspace in it, removed at the end.
pub struct Home {
    pub top: PathBuf,
    pub home: PathBuf,
    pub cwd: PathBuf,
    pub vars: Vec<(&'static str, OsString)>,
}

impl Home {
    pub fn new() -> Home {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let top = fs::canonicalize(std::env::temp_dir()).unwrap();
        let top = top.join(format!("toolchains-{}-{number}", std::process::id()));
        let home = top.join("people/u");
        let cwd = home.join("src/project");
        fs::create_dir_all(&cwd).unwrap();
        let made = Home { top, home, cwd, vars: Vec::new() };
        for secret in made.secrets() {
            fs::create_dir_all(secret).unwrap();
        }
        made
    }

    /// Returns each entry of the table, as a directory so that a test can put files in it.
    pub fn secrets(&self) -> Vec<PathBuf> {
        let places = SENSITIVE.iter().map(|(place, _)| place.replace('*', "x"));
        places.map(|place| self.home.join(place)).collect()
    }

    /// Resolves a path: `~/…` is below this home, `T/…` beside it, `W/…` in the workspace.
    pub fn at(&self, path: &str) -> PathBuf {
        match path.split_once('/') {
            Some(("~", rest)) => self.home.join(rest),
            Some(("T", rest)) => self.top.join(rest),
            Some(("W", rest)) => self.cwd.join(rest),
            _ if path == "~" => self.home.clone(),
            _ => PathBuf::from(path),
        }
    }

    /// Makes a file: `path` a program, `path/` a directory, `path = text` a program of that text, `path -> target` a
    /// symlink.
    pub fn make(&self, what: &str) {
        if let Some((link, target)) = what.split_once(" -> ") {
            let link = self.at(link);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            let target = if target.starts_with(['~', 'T', 'W']) { self.at(target) } else { PathBuf::from(target) };
            symlink(target, link).unwrap();
        } else if let Some(dir) = what.strip_suffix('/') {
            fs::create_dir_all(self.at(dir)).unwrap();
        } else {
            let (file, text) = what.split_once(" = ").unwrap_or((what, "\x7fELF"));
            let file = self.at(file);
            let text =
                text.replace('~', self.home.to_str().unwrap()).replace("T/", &format!("{}/", self.top.display()));
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    pub fn var(mut self, name: &'static str, value: &str) -> Home {
        let value = self.at(value).into_os_string();
        self.vars.push((name, value));
        self
    }

    pub fn path(&self, entries: &[&str]) -> OsString {
        let entries: Vec<OsString> = entries.iter().map(|entry| self.at(entry).into_os_string()).collect();
        entries.join(OsStr::new(":"))
    }

    pub fn find(&self, entries: &[&str], command: Option<&str>) -> Toolchains {
        self.find_in(&self.path(entries), command)
    }

    pub fn find_in(&self, path: &OsStr, command: Option<&str>) -> Toolchains {
        let env = |name: &str| self.vars.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
        let found = discover(path, &self.home, &self.cwd, command.map(OsStr::new), &env);
        self.check_shape(&found);
        found
    }

    /// Checks the invariants of every result.
    pub fn check_shape(&self, found: &Toolchains) {
        for pair in found.grants.windows(2) {
            assert!(pair[0].path < pair[1].path, "sorted: {found:#?}");
        }
        for grant in &found.grants {
            assert!(grant.path.is_absolute() && grant.path.exists(), "exists: {grant:?}");
            assert!(!self.home.starts_with(&grant.path), "not the home: {grant:?}");
            assert!(!grant.path.starts_with(&self.cwd), "the workspace needs no grant: {grant:?}");
            let nested = found.grants.iter().filter(|other| grant.path.starts_with(&other.path)).count();
            assert_eq!(nested, 1, "not inside another: {grant:?}");
        }
        for secret in self.secrets() {
            assert!(!granted(found, &secret), "{} is visible: {found:#?}", secret.display());
        }
    }

    #[track_caller]
    pub fn gives(&self, found: &Toolchains, paths: &[&str]) {
        for path in paths {
            let path = self.at(path);
            assert!(path.symlink_metadata().is_ok(), "the test made {}", path.display());
            assert!(granted(found, &path), "{} is not granted: {found:#?}", path.display());
        }
    }

    #[track_caller]
    pub fn hides(&self, found: &Toolchains, paths: &[&str]) {
        for path in paths {
            let path = self.at(path);
            assert!(path.symlink_metadata().is_ok(), "the test made {}", path.display());
            assert!(!granted(found, &path), "{} is granted: {found:#?}", path.display());
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.top);
    }
}

pub fn granted(found: &Toolchains, path: &Path) -> bool {
    found.grants.iter().any(|grant| path.starts_with(&grant.path))
}
