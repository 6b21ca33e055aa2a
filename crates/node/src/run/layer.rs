//! The workspace that one run writes to: made or taken up before it, held against all others while it lives, and dropped
//! again when nothing came of it. Records are kept elsewhere.

use super::place::Fresh;
use crate::sandbox::Sandbox;
use crate::{Caller, fresh, state};
use enclosure::Over;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use store::{Kept, Store};
use terms::{ErrorKind, Fault, LimitKind, Limits, Phase};
use workspace::{Dir, Driver, Layer, Layers, Lock, Rel, Stack, remove};

/// Space that must stay free where layers are kept: the larger of the two.
const LEAST_FREE: u64 = 64 << 20;
const LEAST_FREE_SHARE: u64 = 100;

const LONGEST_NAME: usize = 64;

/// Directories from a place up to the root; more than any path can name.
const MOST_ABOVE: usize = 4096;

/// Whose workspace it is.
pub(crate) enum Owner {
    /// Nobody's yet: it was made for this run.
    Run(Fresh),
    Sandbox(Box<Kept<Sandbox>>),
}

/// A workspace while a run has it.
pub(crate) struct Held {
    pub owner: Owner,
    /// The state directory.
    pub state: PathBuf,
    pub layers: Layers,
    /// The directory that it covers.
    pub at: PathBuf,
    pub stack: Stack,
    /// Dropped last of all.
    _lock: Lock,
}

/// What a layer says of itself, so that one whose run was cut off can be taken up later: `meta.json` beside `up`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Meta {
    pub base: PathBuf,
    pub base_id: (u64, u64),
    pub driver: Driver,
    pub since: (i64, u32),
    /// What the repository was at, where the directory is in one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub git_head: Option<String>,
    /// The whole policy document of the run.
    pub policy: serde_json::Value,
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpus: Option<f64>,
    pub run_id: String,
    pub boot: String,
    pub created_ms: u64,
    pub command: Vec<String>,
}

/// The name of that file.
pub const META: &str = "meta.json";

/// Makes a workspace over a directory.
pub(super) fn make(at: &Path, options: &Fresh, caller: &Caller) -> Result<Held, Fault> {
    let (state, dir) = state::prepare(caller)?;
    let unusable = |e: &io::Error| unusable(&state, e);
    let base = Dir::open(at).map_err(|e| no_base(at, &e))?;
    check_apart(at, &base, &state, &dir)?;
    check_free(&dir)?;
    if let Some(name) = &options.name {
        check_name(&state, name)?;
    }
    let layers = Layers::open(&dir).map_err(|e| unusable(&e))?;
    let driver = workspace::driver::choose(&base, &layers.dir, options.driver).map_err(or_without)?;
    let (layer, lock) = layers.make(&base, fresh::random()).map_err(|e| unusable(&e))?;
    let since = layer.made_at().map_err(|e| unusable(&e))?;
    if driver != Driver::Overlay
        && let Err(fault) = workspace::copy::populate(&base, &layer.up, driver, &mut |_| {})
    {
        let _collected_later = crate::lifecycle::meta::drop_layer(&layers, &layer.id);
        return Err(fault);
    }
    let stack = Stack { base, driver, layers: vec![layer], since };
    let owner = Owner::Run(options.clone());
    Ok(Held { owner, state, layers, at: at.to_path_buf(), stack, _lock: lock })
}

/// A run can also do without a workspace.
fn or_without(fault: Fault) -> Fault {
    let hint = fault.hint.clone().unwrap_or_default();
    fault.hint(format!("{hint}; --read-only, and --direct where the policy allows it, need no workspace"))
}

/// Takes up the workspace of a sandbox. None where another run has it.
pub(super) fn take(state: &state::State, sandbox: Kept<Sandbox>) -> Result<Option<Held>, Fault> {
    let stack = crate::sandbox::stack(state, &sandbox)?;
    let broken = |e: io::Error| Fault::internal(format!("the workspace of {}: {e}", sandbox.id)).subject(&sandbox.id);
    check_apart(&sandbox.record.base, &stack.base, &state.path, &state.dir)?;
    check_free(&state.dir)?;
    let empty = || Fault::internal(format!("{} has no layer", sandbox.id)).subject(&sandbox.id);
    let top = stack.layers.last().ok_or_else(empty)?;
    let Some(lock) = top.lock().map_err(broken)? else { return Ok(None) };
    // Until the lock was ours, a snapshot may have frozen this layer, and then it is not the one to write to.
    let now = state.store.read(|tx| tx.get::<Sandbox>(&sandbox.id))?;
    if now.is_none_or(|now| now.record.layers != sandbox.record.layers) {
        let fault = Fault::new(ErrorKind::Conflict, format!("{} was changed meanwhile", sandbox.id));
        return Err(fault.hint("try again").subject(&sandbox.id).phase(Phase::Admission));
    }
    if stack.driver == Driver::Overlay {
        // What the kernel left there is of no use to the next mount, and keeps it from being made.
        remove::tree(&top.dir, b"work").map_err(broken)?;
        rustix::fs::mkdirat(&top.dir, "work", Mode::from_raw_mode(0o700)).map_err(|e| broken(e.into()))?;
    }
    let layers = Layers { dir: state.layers.dir.try_clone().map_err(broken)? };
    let at = sandbox.record.base.clone();
    Ok(Some(Held {
        state: state.path.clone(),
        layers,
        at,
        stack,
        owner: Owner::Sandbox(Box::new(sandbox)),
        _lock: lock,
    }))
}

impl Held {
    /// What the enclosure lays over the directory.
    pub fn over(&self) -> Over {
        let place = |layer: &Layer| self.state.join("layers").join(&layer.id);
        match (self.stack.driver, self.stack.layers.last()) {
            (Driver::Reflink | Driver::Copy, Some(top)) => Over::Tree(place(top).join("up")),
            _ => Over::Layers(self.stack.layers.iter().map(place).collect()),
        }
    }

    /// The layer that the guest writes to.
    pub fn top(&self) -> Result<&Layer, Fault> {
        self.stack.layers.last().ok_or_else(|| Fault::internal("a workspace without layers"))
    }

    /// Says in the layer what it is, for the case that nobody is left to say it.
    pub fn describe(&self, meta: &Meta) -> Result<(), Fault> {
        let text = serde_json::to_vec(meta).map_err(|e| Fault::internal(e.to_string()))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let name = Rel::top().join(META.as_bytes());
        let written = self
            .top()?
            .dir
            .open_at(&name, flags, Mode::from_raw_mode(0o600))
            .and_then(|fd| io::Write::write_all(&mut std::fs::File::from(fd), &text));
        written.map_err(|e| unusable(&self.state, &e))
    }

    /// Takes the layer away, whatever is in it. What cannot be taken away now is collected later.
    pub fn drop_layer(&self) {
        if let Some(top) = self.stack.layers.last() {
            let _collected_later = crate::lifecycle::meta::drop_layer(&self.layers, &top.id);
        }
    }
}

/// Space in use where layers are kept, and how much may be; where more is.
pub(super) fn overfull(dir: impl std::os::fd::AsFd) -> Option<(u64, u64)> {
    let found = rustix::fs::fstatvfs(dir).ok()?;
    let (whole, free) = (found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize);
    let least = LEAST_FREE.max(whole / LEAST_FREE_SHARE);
    // Of a file system smaller than that nothing can be said, and one that tells no size has no end that we know.
    (whole > least && free < least).then(|| (whole - free, whole - least))
}

fn check_free(state: &Dir) -> Result<(), Fault> {
    let Some((used, most)) = overfull(state) else { return Ok(()) };
    let mib = |bytes: u64| bytes >> 20;
    let message = format!(
        "the file system of the state directory is nearly full: {} MiB are in use, and a workspace is begun below {}",
        mib(used),
        mib(most)
    );
    let hint = "free some space (`cofferdam gc`), set COFFERDAM_STATE to another file system, or run with --read-only";
    let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(LimitKind::DiskMb).phase(Phase::Admission);
    Err(fault.hint(hint))
}

/// A name that cannot be had is told before anything runs.
fn check_name(state: &Path, name: &str) -> Result<(), Fault> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let fits = (1..=LONGEST_NAME).contains(&name.len()) && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !fits || !name.chars().all(plain) || name.starts_with("sbx_") {
        let message = format!("--name {name:?}: not a name for a sandbox");
        let hint = format!(
            "use up to {LONGEST_NAME} letters, digits, dots, dashes and underscores, a letter or digit first, no id"
        );
        return Err(Fault::invalid(message).hint(hint).phase(Phase::Admission));
    }
    match Store::open(state)?.read(|tx| tx.get_named::<Sandbox>(name))? {
        None => Ok(()),
        Some(other) => {
            let message = format!("there is a sandbox named {name:?} already: {}", other.id);
            let fault = Fault::new(ErrorKind::Conflict, message).subject(&other.id).phase(Phase::Admission);
            Err(fault.hint("choose another name, or run in it with --sandbox"))
        }
    }
}

/// What a guest can change must not be what we trust, nor the other way round. Told by the directories themselves: names can
/// be spelled in many ways.
fn check_apart(at: &Path, base: &Dir, state: &Path, dir: &Dir) -> Result<(), Fault> {
    let refuse = |why: String| {
        let hint = "set COFFERDAM_STATE to a directory elsewhere, or work on another directory";
        Err(Fault::invalid(why).hint(hint).phase(Phase::Admission))
    };
    let broken = |e: io::Error| no_base(at, &e);
    let (at, state) = (at.display(), state.display());
    if is_at_or_below(dir, base).map_err(broken)? {
        return refuse(format!("the state directory {state} lies in the workspace {at}"));
    }
    if is_at_or_below(base, dir).map_err(broken)? {
        return refuse(format!("the workspace {at} lies in the state directory {state}"));
    }
    Ok(())
}

/// Goes up from `inner`, looking for `outer`.
fn is_at_or_below(inner: &Dir, outer: &Dir) -> io::Result<bool> {
    let id = |dir: &Dir| rustix::fs::fstat(dir).map(|s| (s.st_dev, s.st_ino));
    let (wanted, mut here) = (id(outer)?, inner.try_clone()?);
    let mut at = id(&here)?;
    for _ in 0..MOST_ABOVE {
        if at == wanted {
            return Ok(true);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        here = Dir::from_fd(rustix::fs::openat(&here, "..", flags, Mode::empty())?);
        match id(&here)? {
            // The root is its own parent.
            above if above == at => return Ok(false),
            above => at = above,
        }
    }
    Ok(false)
}

/// What the state directory cannot do, or the host.
fn unusable(state: &Path, error: &io::Error) -> Fault {
    let lacking = [Errno::NOSYS, Errno::PERM].map(Errno::raw_os_error);
    match error.raw_os_error().filter(|errno| lacking.contains(errno)) {
        Some(_) => {
            let message = format!("{}: this host does not let us work in it by handles: {error}", state.display());
            let hint = "`cofferdam doctor` shows what this host offers; --read-only needs no state directory";
            Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Preparation)
        }
        None => state::unusable(state, &error.to_string()),
    }
}

fn no_base(at: &Path, error: &io::Error) -> Fault {
    let message = format!("{}: no workspace can be laid over it: {error}", at.display());
    Fault::invalid(message).hint("it must be a directory that you may read").phase(Phase::Admission)
}

/// Which boot of the machine this is.
pub fn boot() -> String {
    sys::host::kernel_file("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
