//! Git settings for a project that root's guest may only read. Owners look different inside (see `idmap`), git takes a
//! file with a changed owner for modified, and since it cannot update its index it would read the whole project again
//! each time. Two generated files make it compare size and mtime only, for this one repository, and set the committer.

use std::path::{Path, PathBuf};

/// Generated files for git's configuration directory in the guest's home.
pub struct GitConfigFiles {
    pub directory: PathBuf,
    pub files: [(PathBuf, Vec<u8>); 2],
}

/// Git's configuration directory, whose settings `.gitconfig` overrides.
const DIRECTORY: &str = ".config/git";

/// Committer identity: the caller's own settings do not show inside, and git refuses to commit without one. Commits
/// made inside stay inside.
const IDENTITY: &str = "[user]\n\tname = Agent\n\temail = agent@cofferdam.invalid\n";

/// Returns the repository around `cwd` that is in `shown`, a path of the host that is shown inside.
pub fn around(cwd: &Path, shown: &Path) -> Option<PathBuf> {
    let inside = || cwd.ancestors().take_while(|dir| dir.starts_with(shown));
    // A `.git` file is that of a submodule of the repository around it, or else of a linked work tree.
    let found =
        inside().find(|dir| dir.join(".git").is_dir()).or_else(|| inside().find(|dir| dir.join(".git").is_file()));
    found.map(Path::to_path_buf)
}

/// Returns the files. `None` where the caller has such a directory already, or the repository's path contains glob or
/// quoting characters of git.
pub fn settings(home: &Path, repository: &Path) -> Option<GitConfigFiles> {
    let name = repository.to_str().filter(|name| name.bytes().all(is_plain))?;
    let directory = home.join(DIRECTORY);
    if std::fs::symlink_metadata(&directory).is_ok() {
        return None;
    }
    let include = format!("[includeIf \"gitdir:{name}/\"]\n\tpath = read-only\n{IDENTITY}");
    let trust = b"# Owners look different in here; size and time do not.\n[core]\n\tcheckStat = minimal\n";
    let files = [(directory.join("config"), include.into_bytes()), (directory.join("read-only"), trust.to_vec())];
    Some(GitConfigFiles { directory, files })
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii() || b"/._-+@, ".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_git_would_read_as_patterns_are_left_alone() {
        let home = Path::new("/nonexistent");
        for name in ["/a/b*c", "/a/[b]", "/a/b\"c", "/a/b\\c", "/a/b\nc", "/a/b?"] {
            assert!(settings(home, Path::new(name)).is_none(), "{name:?}");
        }
        let made = settings(home, Path::new("/srv/my project/ä-1.0")).unwrap();
        let text = String::from_utf8(made.files[0].1.clone()).unwrap();
        assert!(text.starts_with("[includeIf \"gitdir:/srv/my project/ä-1.0/\"]\n\tpath = read-only\n"), "{text}");
    }
}
