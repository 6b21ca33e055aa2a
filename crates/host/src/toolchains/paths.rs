//! Helpers for paths and files. No knowledge of toolchains, no state.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};

use super::{MAX_COMPONENTS, MAX_PATH_LEN};

/// Returns true for directories that are too broad to grant.
pub(super) fn is_broad(path: &Path) -> bool {
    let parts: Vec<&[u8]> = path.iter().skip(1).take(4).map(OsStrExt::as_bytes).collect();
    matches!(
        parts.as_slice(),
        [] | [_]
            | [b"home" | b"Users" | b"var" | b"mnt" | b"media" | b"run" | b"srv", _]
            | [b"run", b"user", _]
            | [b"proc" | b"sys" | b"dev" | b"boot", ..]
            | [b"run" | b"var", b"secrets" | b"credentials", ..]
    )
}

pub(super) fn is_bin(name: &[u8]) -> bool {
    matches!(name, b"bin" | b"sbin" | b"condabin" | b"Scripts")
}

/// Returns true if `path` is `root` or lies below it. Both are [`plain`], so comparing bytes is enough; comparing
/// components dominated the cost of the search.
pub(super) fn inside(path: &Path, root: &Path) -> bool {
    let root = root.as_os_str().as_bytes();
    root == b"/" || below(path.as_os_str().as_bytes(), root)
}

pub(super) fn below(path: &[u8], root: &[u8]) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Normalises an absolute path of bounded size without `.` or doubled slashes; a path with `..` is refused.
pub(super) fn plain(path: &Path) -> Option<PathBuf> {
    if is_plain(path) {
        return Some(path.to_path_buf());
    }
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let path: PathBuf = path.components().collect();
    (path == Path::new("/") || is_plain(&path)).then_some(path)
}

pub(super) fn is_plain(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let Some(rest) = bytes.strip_prefix(b"/") else {
        return false;
    };
    let mut parts = 0;
    bytes.len() <= MAX_PATH_LEN
        && rest.split(|b| *b == b'/').all(|part| {
            parts += 1;
            !matches!(part, b"" | b"." | b"..") && !part.contains(&0)
        })
        && parts <= MAX_COMPONENTS
}

/// Returns whether a path is a symlink; `None` if it does not exist. `readlink` costs half as much as `lstat`, and this
/// is called for every part of every path.
pub(super) fn is_link(path: &Path) -> Option<bool> {
    let mut target = [0u8; 1];
    match rustix::fs::readlinkat_raw(CWD, path, &mut target) {
        Ok(_) => Some(true),
        Err(rustix::io::Errno::INVAL) => Some(false),
        Err(_) => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PathType {
    Dir,
    File,
    Link,
}

pub(super) type Listing = Vec<(OsString, PathType)>;

/// Lists at most `most` names of a directory, sorted.
pub(super) fn list_up_to(dir: &Path, most: usize) -> Listing {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .flatten()
        .take(most)
        .filter_map(|entry| {
            let kind = entry.file_type().ok()?;
            let kind = match () {
                () if kind.is_symlink() => PathType::Link,
                () if kind.is_dir() => PathType::Dir,
                () if kind.is_file() => PathType::File,
                () => return None,
            };
            Some((entry.file_name(), kind))
        })
        .collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    names
}

pub(super) fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Reads the first bytes of a file. Never blocks: a FIFO in a bin directory yields nothing.
pub(super) fn read_head<const N: usize>(dir: impl AsFd, path: &Path, mut text: [u8; N]) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, path, flags, Mode::empty()).ok()?;
    let read = rustix::io::read(file, &mut text).ok()?;
    Some(text[..read].to_vec())
}

/// Parses `home = …` of a pyvenv.cfg: the bin directory of the Python that made the environment.
pub(super) fn parse_venv_home(config: &[u8]) -> Option<PathBuf> {
    config.split(|b| *b == b'\n').find_map(|line| {
        let (key, value) = line.split_at(line.iter().position(|b| *b == b'=')?);
        (key.trim_ascii() == b"home").then(|| PathBuf::from(OsStr::from_bytes(value[1..].trim_ascii())))
    })
}

/// Parses the words of a `#!` line. Python's installers write a longer path as a second line in shell, `'''exec'
/// "/path/python" "$0" "$@"`, which counts as well.
pub(super) fn parse_shebang(text: &[u8]) -> Option<Vec<&[u8]>> {
    let text = text.strip_prefix(b"#!")?;
    let mut lines = text.split(|b| *b == b'\n');
    let first = lines.next()?;
    if let Some(exec) = lines.next().and_then(|second| second.strip_prefix(b"'''exec' ")) {
        let exec = exec.trim_ascii();
        let path = match exec.strip_prefix(b"\"") {
            Some(quoted) => quoted.split(|b| *b == b'"').next()?,
            None => exec.split(|b| *b == b' ').next()?,
        };
        return Some(vec![path]);
    }
    Some(first.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect())
}

/// Returns true if a settings file is small and contains nothing like a secret. In doubt returns false.
pub(super) fn holds_no_secret(path: &Path) -> bool {
    const TELLING: &[&[u8]] =
        &[b"token", b"secret", b"passw", b"credential", b"api", b"auth", b"[env", b"key", b"proxy", b"@"];
    const MOST: usize = 16 * 1024;
    let Some(mut text) = read_head(CWD, path, [0; MOST]) else {
        return false;
    };
    if text.len() == MOST {
        return false;
    }
    text.make_ascii_lowercase();
    if TELLING.iter().any(|word| text.windows(word.len()).any(|part| part == *word)) {
        return false;
    }
    // A long run of letters and digits is more likely a token than a word.
    let mut runs = text.split(|b| !b.is_ascii_alphanumeric());
    !runs.any(|run| run.len() >= 20 && run.iter().any(u8::is_ascii_digit))
}

/// Returns true if a variable's value is a list of paths or a version, and not a URL, which may contain a password.
pub(super) fn is_location(value: &OsStr) -> bool {
    let bytes = value.as_bytes();
    if bytes.is_empty() || bytes.len() > MAX_PATH_LEN || bytes.windows(3).any(|part| part == b"://") {
        return false;
    }
    bytes.split(|b| *b == b':').all(|part| match part {
        [] => true,
        [b'/', path @ ..] => !path.contains(&b'\n'),
        word => word.len() <= 64 && word.iter().all(|b| b.is_ascii_alphanumeric() || b"._+-/@ ".contains(b)),
    })
}
