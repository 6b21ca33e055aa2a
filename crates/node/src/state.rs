//! Where sandboxes live: the state directory with its layers and its store. Belongs to one user, open to nobody else.

use crate::Caller;
use rustix::fs::{Mode, OFlags};
use std::io::Read;
use std::ops::Deref;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
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
    /// Opens it, and makes it where there is none.
    pub fn open(caller: &Caller) -> Result<State, Fault> {
        let (path, dir) = prepare(caller)?;
        let layers = Layers::open(&dir).map_err(|e| unusable(&path, &e.to_string()))?;
        let store = Store::open(&path)?;
        let state = State { path, dir, layers, store };
        crate::review::recover(&state)?;
        crate::lifecycle::restarted::look(&state)?;
        Ok(state)
    }
}

/// States that rest between two verbs of a daemon, each with the place that it was asked for by: to open one takes longer than most of
/// what is then done with it. Few rest, and not for long.
static RESTING: Mutex<Vec<(Instant, PathBuf, State)>> = Mutex::new(Vec::new());
static RESTS: AtomicBool = AtomicBool::new(false);
const MOST_RESTING: usize = 8;
const LONGEST_REST: Duration = Duration::from_millis(400);

/// From now on states that were lent rest for the next verb; whoever says so also sweeps.
pub fn keep_open() {
    RESTS.store(true, Ordering::Relaxed);
}

/// Closes what has rested too long; how many rest on.
pub fn sweep() -> usize {
    resting(|all| {
        all.retain(|(since, ..)| since.elapsed() < LONGEST_REST);
        all.len()
    })
}

fn resting<T>(work: impl FnOnce(&mut Vec<(Instant, PathBuf, State)>) -> T) -> T {
    work(&mut RESTING.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A state for one verb.
pub struct Lent {
    place: PathBuf,
    state: Option<State>,
}

impl State {
    /// The same as `open`, for verbs that a daemon is asked for again and again.
    pub fn lend(caller: &Caller) -> Result<Lent, Fault> {
        let place = place(caller)?;
        let rested = resting(|all| {
            let at = all.iter().rposition(|(_, known, _)| *known == place)?;
            Some(all.remove(at).2)
        });
        // Of one that was moved away, replaced or brought to another version nothing is believed any more.
        let same = |state: &State| {
            state.store.is_usable() && std::fs::canonicalize(&place).is_ok_and(|path| path == state.path)
        };
        let state = match rested.filter(same) {
            Some(state) => {
                check_owner(&state.path)?;
                crate::review::recover(&state)?;
                state
            }
            None => State::open(caller)?,
        };
        Ok(Lent { place, state: Some(state) })
    }
}

impl Deref for Lent {
    type Target = State;

    fn deref(&self) -> &State {
        // It is taken out when this is dropped, and not before.
        self.state.as_ref().unwrap_or_else(|| unreachable!("a state that was given back"))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(state) = self.state.take().filter(|state| state.store.is_sound()) else { return };
        if RESTS.load(Ordering::Relaxed) && !std::thread::panicking() {
            let place = std::mem::take(&mut self.place);
            resting(|all| {
                if all.len() < MOST_RESTING {
                    all.push((Instant::now(), place, state));
                }
            });
        }
    }
}

/// The state directory: `COFFERDAM_STATE`, else where the caller's system keeps such things.
pub fn place(caller: &Caller) -> Result<PathBuf, Fault> {
    let set = |name: &str| caller.var(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(own) = set("COFFERDAM_STATE") {
        if !own.is_absolute() {
            let message = format!("COFFERDAM_STATE is {own:?}, which is not absolute");
            return Err(Fault::invalid(message).hint("give the whole path").phase(Phase::Admission));
        }
        return Ok(own);
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/cofferdam".into());
    }
    let state = set("XDG_STATE_HOME").filter(|p| p.is_absolute());
    Ok(state.unwrap_or_else(|| caller.home.join(".local/state")).join("cofferdam"))
}

/// Every name that the state directory has on this host, or will have; that of the whole daemon where it is one tenant's.
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

/// The kernel's table of mounts, in few large reads: it makes the table up anew for each. Without it nobody knows by which other
/// names a directory could be reached, so there is no going on.
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

/// Where a path leads, as far as it is there.
fn real(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|above| Some((above, std::fs::canonicalize(above).ok()?)));
    there.map_or(path.to_owned(), |(above, real)| plain(real.join(path.strip_prefix(above).unwrap_or(Path::new("")))))
}

/// Other names of a directory: where something above it is mounted a second time.
fn aliases(mountinfo: &str, path: &Path) -> Vec<PathBuf> {
    let mounts: Vec<Mounted> = mountinfo.lines().filter_map(Mounted::of).collect();
    // The last mount on the longest way there is the one that it is seen through.
    let own = mounts.iter().filter(|mount| path.starts_with(&mount.at));
    let Some(own) = own.max_by_key(|mount| mount.at.components().count()) else { return Vec::new() };
    let Ok(below) = path.strip_prefix(&own.at) else { return Vec::new() };
    let inside = own.root.join(below);
    let same = mounts.iter().filter(|mount| mount.device == own.device);
    let at = |mount: &Mounted| Some(plain(mount.at.join(inside.strip_prefix(&mount.root).ok()?)));
    same.filter_map(at).filter(|alias| alias != path).collect()
}

/// Without the slash that joining nothing leaves.
fn plain(path: PathBuf) -> PathBuf {
    path.components().collect()
}

struct Mounted {
    device: String,
    /// What of its file system is mounted, and where.
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

/// Spaces, tabs, line ends and backslashes are written as three octal digits.
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

/// The directory, made with its parents, without the store: the way of runs that leave nothing behind.
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

/// Whether the records of a state directory can be read, without changing anything; none are no trouble.
pub fn look(path: &Path) -> Result<(), Fault> {
    store::look(path)
}

/// The state directory and a directory that guests write to must not lie in one another: a guest could else reach the layers and
/// records of all. Names do not decide but identities, up to the root of the file system.
pub fn check_apart(state: &Dir, state_path: &Path, base: &Dir, base_path: &Path) -> Result<(), Fault> {
    let io = |path: &Path, e: std::io::Error| unusable(path, &e.to_string());
    let refuse = |how: &str| {
        let (base, state) = (base_path.display(), state_path.display());
        let fault = Fault::invalid(format!("{base}: {how} the state directory, {state}")).phase(Phase::Admission);
        Err(fault.hint("choose a directory that is apart from it, or set COFFERDAM_STATE to another place"))
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

/// What must stay free where layers are kept: so many bytes, or one part in so many, whichever is more.
const LEAST_FREE: u64 = 64 << 20;
const LEAST_PART: u64 = 100;
/// And so many files must fit on it.
const LEAST_INODES: u64 = 1024;

/// Space in use where layers are kept, and how much may be; where more is.
pub fn overfull(dir: impl std::os::fd::AsFd) -> Option<(u64, u64)> {
    let now = rustix::fs::fstatvfs(dir).ok()?;
    let (whole, free) = (now.f_blocks.saturating_mul(now.f_frsize), now.f_bavail.saturating_mul(now.f_frsize));
    let least = LEAST_FREE.max(whole / LEAST_PART);
    // Of a file system smaller than that nothing can be said, and one that tells no size has no end that we know.
    (whole > least && free < least).then(|| (whole - free, whole - least))
}

/// How much more may be written where layers are kept; none where that cannot be told.
pub fn space_left(dir: impl std::os::fd::AsFd) -> Option<u64> {
    let now = rustix::fs::fstatvfs(dir).ok()?;
    let (whole, free) = (now.f_blocks.saturating_mul(now.f_frsize), now.f_bavail.saturating_mul(now.f_frsize));
    let least = LEAST_FREE.max(whole / LEAST_PART);
    (whole > least).then(|| free.saturating_sub(least))
}

/// Layers are begun only where some space stays, for what is there already and for everybody else.
pub fn check_space(dir: &Dir, path: &Path) -> Result<(), Fault> {
    let now = rustix::fs::fstatvfs(dir).map_err(|e| unusable(path, &e.to_string()))?;
    let what = match overfull(dir) {
        Some((used, most)) => format!("nearly full: {} MiB are in use, and {} may be", used >> 20, most >> 20),
        None if now.f_files > 0 && now.f_favail < LEAST_INODES => "nearly full: hardly an inode is free".to_owned(),
        None => return Ok(()),
    };
    let message = format!("{}: its file system is {what}", path.display());
    let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(LimitKind::DiskMb).phase(Phase::Admission);
    Err(fault.retry(Retry::Later).hint(
        "free some space with `cofferdam gc` or `cofferdam rm`, set COFFERDAM_STATE to another file system, or run with --read-only",
    ))
}

/// Directories that sandboxes got for themselves lie in here, and nothing else does.
pub const BASES: &str = "bases";

/// Whether a directory is one that a sandbox got for itself: it lies right in the place of those.
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

/// Whether the directory `above` is met on the way up from `dir`. No path can be longer than what the kernel lets one make.
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

/// What others could change would not be ours to trust.
fn check_owner(path: &Path) -> Result<(), Fault> {
    let meta = std::fs::metadata(path).map_err(|e| unusable(path, &e.to_string()))?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(unusable(path, "belongs to another user"));
    }
    match meta.mode() & 0o077 {
        0 => Ok(()),
        _ => Err(unusable(path, "others may look into it; `chmod 700` it")),
    }
}

pub(crate) fn unusable(path: &Path, why: &str) -> Fault {
    let message = format!("the state directory {}: {why}", path.display());
    let hint = "set COFFERDAM_STATE to a directory of your own; `cofferdam run --read-only` needs none";
    Fault::new(ErrorKind::Unavailable, message).hint(hint).phase(Phase::Admission)
}

#[cfg(test)]
mod tests {
    use super::*;

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
