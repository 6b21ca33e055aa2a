//! Git's trust in what it knows of a project that root's guest may only read. Owners look different inside (see `shift`),
//! git takes a file whose owner changed for a changed file, and with nowhere to note what it found it would read the whole
//! project again each time. Two made files tell it, for this one repository, to go by size and time; and who commits.

use std::path::{Path, PathBuf};

/// Files for a directory of the guest's home that git looks into.
pub struct Settings {
    pub directory: PathBuf,
    pub files: [(PathBuf, Vec<u8>); 2],
}

/// Where git looks for settings that those in `.gitconfig` override.
const DIRECTORY: &str = ".config/git";

/// The caller's own settings do not show inside, and git commits for nobody. Commits that are made inside stay inside.
const IDENTITY: &str = "[user]\n\tname = Agent\n\temail = agent@cofferdam.invalid\n";

/// The repository around `cwd` that lies in `shown`, a place of the host that is shown.
pub fn around(cwd: &Path, shown: &Path) -> Option<PathBuf> {
    let mut inside = cwd.ancestors().take_while(|dir| dir.starts_with(shown));
    // A file of that name leads to a repository elsewhere.
    inside.find(|dir| dir.join(".git").is_dir()).map(Path::to_path_buf)
}

/// `None` where the caller has settings of their own in that place, or the name of the repository means more to git than
/// itself.
pub fn settings(home: &Path, repository: &Path) -> Option<Settings> {
    let name = repository.to_str().filter(|name| name.bytes().all(is_plain))?;
    let directory = home.join(DIRECTORY);
    if std::fs::symlink_metadata(&directory).is_ok() {
        return None;
    }
    let include = format!("[includeIf \"gitdir:{name}/\"]\n\tpath = read-only\n{IDENTITY}");
    let trust = b"# Owners look different in here; size and time do not.\n[core]\n\tcheckStat = minimal\n";
    let files = [(directory.join("config"), include.into_bytes()), (directory.join("read-only"), trust.to_vec())];
    Some(Settings { directory, files })
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
