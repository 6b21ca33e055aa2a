//! The state directory with its layers and its store. Belongs to one user, with mode 0700.

use crate::Caller;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use store::Store;
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};
use workspace::{Dir, Layers};

pub struct State {
    pub path: PathBuf,
    pub dir: Dir,
    pub layers: Layers,
    pub store: Store,
}

impl State {
    /// Opens the state directory of a caller, creating it where there is none. Repairs nothing.
    pub fn open(caller: &Caller) -> Result<State, Fault> {
        let (path, dir) = prepare(caller)?;
        let unusable = |e: io::Error| unusable(&path, &e.to_string());
        let is_full = |e: &io::Error| matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let store = Store::open(&path)?;
        let layers = match Layers::open(&dir) {
            // A store that could not be created either refuses every record, and so every layer. No layer is in the state directory itself.
            Err(e) if is_full(&e) && !store.is_usable() => Layers { dir: dir.try_clone().map_err(unusable)? },
            opened => opened.map_err(unusable)?,
        };
        Ok(State { path, dir, layers, store })
    }

    /// Lists the ids of the layers on disk, sorted.
    pub fn layer_names(&self) -> Result<Vec<String>, Fault> {
        let names = self.layers.dir.names().map_err(|e| Fault::internal(format!("{}: {e}", self.path.display())))?;
        let mut names: Vec<String> = names.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect();
        names.retain(|name| name.starts_with("lay_"));
        names.sort();
        Ok(names)
    }
}

/// Returns the path of the state directory: `COFFERDAM_STATE`, else the user's or system's default.
pub fn place(caller: &Caller) -> Result<PathBuf, Fault> {
    let set = |name: &str| caller.var(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(own) = caller.state_dir.clone() {
        if !own.is_absolute() {
            let message = format!("COFFERDAM_STATE is {own:?}, which is not absolute");
            return Err(Fault::invalid(message).hint("give an absolute path").phase(Phase::Admission));
        }
        return Ok(own);
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/cofferdam".into());
    }
    let state = set("XDG_STATE_HOME").filter(|p| p.is_absolute());
    Ok(state.unwrap_or_else(|| caller.home.join(".local/state")).join("cofferdam"))
}

/// Lists every path that leads to the state directory on this host, now or once it exists; for a tenant, those of the whole daemon's.
pub fn places(caller: &Caller) -> Result<Vec<PathBuf>, Fault> {
    let path = real(&place(caller)?);
    let above = path.parent().filter(|above| above.ends_with("tenants")).and_then(Path::parent);
    let whole = above.filter(|whole| whole.join("store.db").exists()).map_or(path.clone(), Path::to_path_buf);
    let mut places = aliases(&mounts()?, &whole);
    places.push(whole);
    places.sort();
    places.dedup();
    Ok(places)
}

/// Reads the kernel's mount table in few large reads, because the kernel generates it anew for each. Without it the other paths of a
/// directory are unknown, so that is a fault.
fn mounts() -> Result<String, Fault> {
    const TABLE: &str = "/proc/self/mountinfo";
    let mut bytes = Vec::with_capacity(32 << 10);
    let read = std::fs::File::open(TABLE).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(|error| {
        let fault = Fault::new(ErrorKind::UnsupportedHost, format!("{TABLE}: {error}"));
        fault.hint("cofferdam needs /proc to be mounted").phase(Phase::Planning)
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Canonicalizes the existing part of a path.
fn real(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|above| Some((above, std::fs::canonicalize(above).ok()?)));
    there.map_or(path.to_owned(), |(above, real)| plain(real.join(path.strip_prefix(above).unwrap_or(Path::new("")))))
}

/// Lists other paths of a directory: where one of its parents is mounted a second time.
fn aliases(mountinfo: &str, path: &Path) -> Vec<PathBuf> {
    let mounts: Vec<Mounted> = mountinfo.lines().filter_map(Mounted::of).collect();
    // The last mount on the longest prefix is the one that the path is seen through.
    let own = mounts.iter().filter(|mount| path.starts_with(&mount.at));
    let Some(own) = own.max_by_key(|mount| mount.at.components().count()) else { return Vec::new() };
    let Ok(below) = path.strip_prefix(&own.at) else { return Vec::new() };
    let inside = own.root.join(below);
    let same = mounts.iter().filter(|mount| mount.device == own.device);
    let at = |mount: &Mounted| Some(plain(mount.at.join(inside.strip_prefix(&mount.root).ok()?)));
    same.filter_map(at).filter(|alias| alias != path).collect()
}

/// Drops the trailing slash that joining an empty path leaves.
fn plain(path: PathBuf) -> PathBuf {
    path.components().collect()
}

struct Mounted {
    device: String,
    /// Root of the mount within its file system, and the mount point.
    root: PathBuf,
    at: PathBuf,
}

impl Mounted {
    fn of(line: &str) -> Option<Mounted> {
        let mut words = line.split(' ').skip(2);
        let (device, root, at) = (words.next()?, words.next()?, words.next()?);
        Some(Mounted { device: device.to_owned(), root: unescaped(root), at: unescaped(at) })
    }
}

/// Decodes a path of the mount table: spaces, tabs, line breaks and backslashes are written as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..3).and_then(|three| std::str::from_utf8(three).ok());
        match digits.and_then(|three| u8::from_str_radix(three, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[3..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// Opens the directory, creating it with its parents, but not the store: for runs that leave nothing behind.
pub fn prepare(caller: &Caller) -> Result<(PathBuf, Dir), Fault> {
    let path = place(caller)?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&path)
        .map_err(|e| unusable(&path, &e.to_string()))?;
    let path = std::fs::canonicalize(&path).map_err(|e| unusable(&path, &e.to_string()))?;
    let dir = Dir::open(&path).map_err(|e| unusable(&path, &e.to_string()))?;
    check_owner(&path)?;
    Ok((path, dir))
}

/// Checks that the records of a state directory can be read, without changing anything; a missing store is fine.
pub fn look(path: &Path) -> Result<(), Fault> {
    store::look(path)
}

/// Checks that neither the state directory nor a directory that guests write to contains the other: a guest could reach the layers and
/// records of all. Compared by device and inode up to the root of the file system, not by path.
pub fn check_apart(state: &Dir, state_path: &Path, base: &Dir, base_path: &Path) -> Result<(), Fault> {
    let io = |path: &Path, e: std::io::Error| unusable(path, &e.to_string());
    let refuse = |how: &str| {
        let (base, state) = (base_path.display(), state_path.display());
        let fault = Fault::invalid(format!("{base}: {how} the state directory, {state}")).phase(Phase::Admission);
        Err(fault.hint("choose a directory that is apart from it, or set COFFERDAM_STATE to another directory"))
    };
    let (ours, theirs) = (identity(state), identity(base));
    let (ours, theirs) = (ours.map_err(|e| io(state_path, e))?, theirs.map_err(|e| io(base_path, e))?);
    if ours == theirs {
        return refuse("is");
    }
    if is_above(theirs, state).map_err(|e| io(state_path, e))? {
        return refuse("holds");
    }
    match is_above(ours, base).map_err(|e| io(base_path, e))? && !is_own_base(state, base) {
        true => refuse("lies inside"),
        false => Ok(()),
    }
}

/// Space that must stay free where layers are kept: an absolute amount or a fraction, whichever is more.
const LEAST_FREE: u64 = 64 << 20;
const LEAST_PART: u64 = 100;
/// Inodes that must stay free.
const LEAST_INODES: u64 = 1024;

/// Returns the used and the permitted space where layers are kept, if the permitted space is exceeded.
pub fn overfull(dir: impl std::os::fd::AsFd) -> Option<(u64, u64)> {
    let now = rustix::fs::fstatvfs(dir).ok()?;
    let (whole, free) = (now.f_blocks.saturating_mul(now.f_frsize), now.f_bavail.saturating_mul(now.f_frsize));
    let least = LEAST_FREE.max(whole / LEAST_PART);
    // A file system smaller than the reserve cannot be judged; one that reports no size counts as unbounded.
    (whole > least && free < least).then(|| (whole - free, whole - least))
}

/// Returns the space that may still be written where layers are kept; `None` where it is unknown.
pub fn space_left(dir: impl std::os::fd::AsFd) -> Option<u64> {
    let now = rustix::fs::fstatvfs(dir).ok()?;
    let (whole, free) = (now.f_blocks.saturating_mul(now.f_frsize), now.f_bavail.saturating_mul(now.f_frsize));
    let least = LEAST_FREE.max(whole / LEAST_PART);
    (whole > least).then(|| free.saturating_sub(least))
}

/// Refuses to start a layer where less than the reserve would stay free for existing layers and other users.
pub fn check_space(dir: &Dir, path: &Path) -> Result<(), Fault> {
    let now = rustix::fs::fstatvfs(dir).map_err(|e| unusable(path, &e.to_string()))?;
    let what = match overfull(dir) {
        Some((used, most)) => format!("nearly full: {} MiB of {} are in use", used >> 20, most >> 20),
        None if now.f_files > 0 && now.f_favail < LEAST_INODES => "nearly full: almost no inode is free".to_owned(),
        None => return Ok(()),
    };
    let message = format!("{}: its file system is {what}", path.display());
    let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(LimitKind::DiskMb).phase(Phase::Admission);
    Err(fault.retry(Retry::Later).hint(
        "free some space with `cofferdam gc` or `cofferdam rm`, set COFFERDAM_STATE to another file system, or run with --read-only",
    ))
}

/// Directory of the bases that were created for sandboxes; nothing else is in it.
pub const BASES: &str = "bases";

/// Path inside of a base that was created for a sandbox: it is the same everywhere, and tells nothing of the host.
pub const WORKSPACE: &str = "/workspace";

/// Home inside of a sandbox that stands on such a base.
pub const AGENT_HOME: &str = "/home/agent";

/// Returns the path at which commands see a sandbox's directory: its own, or `WORKSPACE` for a base that was created for a sandbox.
pub fn path_inside(base: &Path) -> &Path {
    let bases = base.parent().filter(|bases| bases.ends_with(BASES));
    match bases.and_then(Path::parent).is_some_and(|state| state.join("store.db").exists()) {
        true => Path::new(WORKSPACE),
        false => base,
    }
}

/// Returns whether a directory is a base that was created for a sandbox: its parent is `BASES`.
fn is_own_base(state: &Dir, base: &Dir) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let all = rustix::fs::openat(state, BASES, flags, Mode::empty());
    let above = rustix::fs::openat(base, c"..", flags, Mode::empty());
    let same = all.and_then(|all| above.map(|above| (all, above)));
    same.is_ok_and(|(all, above)| identity(&all).is_ok_and(|all| identity(&above).is_ok_and(|above| above == all)))
}

fn identity(dir: &impl std::os::fd::AsFd) -> std::io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Returns whether `above` is an ancestor of `dir`. The number of steps is bounded by the longest path that the kernel lets one make.
fn is_above(above: (u64, u64), dir: &Dir) -> std::io::Result<bool> {
    const DEEPEST: usize = 1 << 20;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::openat(dir, c"..", flags, Mode::empty())?;
    let mut from = identity(dir)?;
    for _ in 0..DEEPEST {
        let here = identity(&at)?;
        if here == above || here == from {
            return Ok(here == above);
        }
        from = here;
        at = rustix::fs::openat(&at, c"..", flags, Mode::empty())?;
    }
    Err(std::io::ErrorKind::InvalidInput.into())
}

/// Refuses a directory that other users could read or change.
pub(crate) fn check_owner(path: &Path) -> Result<(), Fault> {
    let meta = std::fs::metadata(path).map_err(|e| unusable(path, &e.to_string()))?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(unusable(path, "belongs to another user"));
    }
    match meta.mode() & 0o077 {
        0 => Ok(()),
        _ => Err(unusable(path, "other users can access it; run `chmod 700` on it")),
    }
}

pub fn unusable(path: &Path, why: &str) -> Fault {
    let message = format!("the state directory {}: {why}", path.display());
    let hint = "set COFFERDAM_STATE to a directory of your own; `cofferdam run --read-only` needs none";
    Fault::new(ErrorKind::Unavailable, message).hint(hint).phase(Phase::Admission)
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise 2
    #[test]
    fn a_directory_has_a_name_for_every_mount_that_shows_it() {
        let table = "20 1 8:1 / / rw - ext4 /dev/a rw\n\
                     21 20 8:2 / /var rw - ext4 /dev/b rw\n\
                     22 20 8:2 /lib /mnt/two\\040words rw - ext4 /dev/b rw\n\
                     23 20 8:2 /lib/state/keepers /mnt/part rw - ext4 /dev/b rw\n\
                     24 20 8:1 /var /mnt/under rw - ext4 /dev/a rw\n";
        let aliases = |path: &str| aliases(table, Path::new(path));
        assert_eq!(aliases("/var/lib/state"), [Path::new("/mnt/two words/state")]);
        assert_eq!(aliases("/srv/state"), Vec::<PathBuf>::new());
        assert_eq!(aliases("/var/lib"), [Path::new("/mnt/two words")]);
    }
}
