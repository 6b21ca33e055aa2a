//! Being told what changes in a directory, and with `recursive` in all below it. Never waits: whoever watches polls the handle.
//! What could not be told is told as such.

use super::clock::{Clock, Interest};
use super::list::{directory, joined, told};
use super::tree::Tree;
use super::{Root, trouble};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};
use workspace::{Dir, FileKind, Rel};

/// The most directories that one watch is on.
pub const MOST_DIRECTORIES: usize = 8192;
/// How deep it goes.
const DEEPEST: usize = 256;
/// How long one look at directories may take, at the beginning and whenever something is told.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is taken from the kernel at a time.
const BATCH: usize = 64 << 10;
/// The most that is told of what a new directory already held when it was seen.
const MOST_FOUND: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = FileEvent)]
pub struct Event {
    pub what: What,
    /// From the workspace's top.
    pub path: Rel,
    /// Where something that was renamed is now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub to: Option<Rel>,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub is_dir: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = FileEventKind)]
#[serde(rename_all = "snake_case")]
pub enum What {
    Created,
    /// Its content.
    Written,
    /// Permission bits, owner, times or attributes.
    Attributes,
    Removed,
    /// Inside what is watched. What comes in or goes out is created or removed.
    Renamed,
    /// Events were lost; look again at everything below `path`.
    Overflow,
    /// The directory that is watched is gone, or has another name; nothing more will come.
    Gone,
}

impl What {
    /// The word that documents use.
    pub fn name(self) -> &'static str {
        match self {
            What::Created => "created",
            What::Written => "written",
            What::Attributes => "attributes",
            What::Removed => "removed",
            What::Renamed => "renamed",
            What::Overflow => "overflow",
            What::Gone => "gone",
        }
    }
}

/// A watch. It ends when it is dropped.
#[derive(Debug)]
pub struct Watch {
    queue: OwnedFd,
    top: Rel,
    recursive: bool,
    /// By the kernel's number.
    dirs: HashMap<i32, Rel>,
    gone: bool,
    /// Nothing is looked through for nobody.
    interest: Interest,
    root: Root,
}

const INTEREST: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);

/// Begins to watch a directory. All that happens after this is told.
pub fn watch(root: Root, path: &Rel, recursive: bool, interest: Interest) -> Result<Watch, Fault> {
    let clock = Clock::new(PATIENCE, &interest);
    let owner = root.in_its_name()?;
    let (spot, dir) = directory(&root, path)?;
    let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(|e| cannot(path, e))?;
    let top = spot.path;
    let mut watch = Watch { queue, root, top: top.clone(), recursive, dirs: HashMap::new(), gone: false, interest };
    watch.add(&dir, top.clone()).map_err(|e| cannot(path, e))?;
    if recursive {
        watch.add_below(&dir, &top, &clock, &mut |_, _| {})?;
    }
    drop(owner);
    Ok(watch)
}

fn cannot(path: &Rel, error: Errno) -> Fault {
    match error {
        Errno::MFILE | Errno::NOSPC => {
            let message = format!("{}: the kernel watches no more for this user: {error}", trouble::shown(path));
            let fault = Fault::new(ErrorKind::Unavailable, message).retry(Retry::Later).phase(Phase::Execution);
            fault.hint("end other watches, or raise fs.inotify.max_user_instances and max_user_watches")
        }
        _ => trouble::fault(path, "watch it", &error.into()),
    }
}

impl AsFd for Watch {
    /// Readable when something happened.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

/// One event as the kernel tells it.
struct Raw {
    number: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<Vec<u8>>,
}

/// What is told at a time.
struct Told {
    events: Vec<Event>,
    seen: HashSet<(What, Rel)>,
    clock: Clock,
}

impl Watch {
    /// What happened since the last time; nothing when nothing did. After `Gone` nothing more comes.
    pub fn take(&mut self) -> Result<Vec<Event>, Fault> {
        let clock = Clock::new(PATIENCE, &self.interest);
        let _owner = self.root.in_its_name()?;
        let mut raws =
            self.read().map_err(|e| trouble::fault(&self.top, "watch it", &e.into()))?.into_iter().peekable();
        let mut so_far = Told { events: Vec::new(), seen: HashSet::new(), clock };
        while let Some(raw) = raws.next() {
            // The two halves of a rename follow each other.
            let partner = match raw.flags.contains(ReadFlags::MOVED_FROM) {
                true => raws.next_if(|next| next.flags.contains(ReadFlags::MOVED_TO) && next.cookie == raw.cookie),
                false => None,
            };
            self.tell(raw, partner, &mut so_far)?;
        }
        Ok(so_far.events)
    }

    /// Waits until something happened, or the time is over.
    pub fn wait(&self, time: Duration) {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        // That nothing came in time is no reason not to look.
        let _ = poll(&mut [PollFd::new(&self.queue, PollFlags::IN)], Some(&time));
    }

    pub fn is_over(&self) -> bool {
        self.gone
    }

    fn read(&self) -> Result<Vec<Raw>, Errno> {
        let mut buffer = vec![std::mem::MaybeUninit::uninit(); BATCH];
        let mut reader = inotify::Reader::new(&self.queue, &mut buffer);
        let mut raws = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_bytes().to_vec());
                    let (number, flags, cookie) = (event.wd(), event.events(), event.cookie());
                    raws.push(Raw { number, flags, cookie, name });
                }
                Err(Errno::AGAIN) => return Ok(raws),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
            // The rest comes with the next call.
            if reader.is_buffer_empty() {
                return Ok(raws);
            }
        }
    }

    fn tell(&mut self, raw: Raw, partner: Option<Raw>, told: &mut Told) -> Result<(), Fault> {
        if raw.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.overflow(told);
        }
        if raw.flags.contains(ReadFlags::IGNORED) {
            self.dirs.remove(&raw.number);
        }
        let Some(dir) = self.dirs.get(&raw.number).cloned() else { return Ok(()) };
        let Some(name) = raw.name.as_deref() else {
            if dir == self.top && raw.flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
                self.gone = true;
                told.events.push(Event { what: What::Gone, path: dir, to: None, is_dir: true });
            }
            return Ok(());
        };
        let (path, is_dir) = (dir.join(name), raw.flags.contains(ReadFlags::ISDIR));
        let to = partner.and_then(|to| Some(self.dirs.get(&to.number)?.join(to.name.as_deref()?)));
        let what = match raw.flags {
            _ if to.is_some() => What::Renamed,
            f if f.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) => What::Created,
            f if f.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) => What::Removed,
            f if f.contains(ReadFlags::MODIFY) => What::Written,
            _ => What::Attributes,
        };
        // A loop of small writes is one event.
        if matches!(what, What::Written | What::Attributes) && !told.seen.insert((what, path.clone())) {
            return Ok(());
        }
        if !matches!(what, What::Written | What::Attributes) {
            told.seen.clear();
        }
        told.events.push(Event { what, path: path.clone(), to: to.clone(), is_dir });
        match (is_dir && self.recursive, what) {
            (true, What::Created) => self.enter(&path, told),
            (true, What::Removed) => {
                self.forget(&path);
                Ok(())
            }
            (true, What::Renamed) => {
                self.renamed(&path, to.unwrap_or_default());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What was lost may have been directories: all is looked at anew.
    fn overflow(&mut self, told: &mut Told) -> Result<(), Fault> {
        told.events.push(Event { what: What::Overflow, path: self.top.clone(), to: None, is_dir: true });
        match self.recursive {
            true => {
                let (_, dir) = directory(&self.root, &self.top.clone())?;
                let top = self.top.clone();
                self.add_below(&dir, &top, &told.clock, &mut |_, _| {})
            }
            false => Ok(()),
        }
    }

    /// A new directory: watched from now on, and what it holds already is told.
    fn enter(&mut self, path: &Rel, told: &mut Told) -> Result<(), Fault> {
        let Ok((spot, dir)) = directory(&self.root, path) else { return Ok(()) };
        // A link stands there by now, or the way leads over one: it is not what was made.
        if spot.path != *path {
            return Ok(());
        }
        let mut found = Vec::new();
        let added = self.add(&dir, path.clone()).map_err(|e| cannot(path, e)).and_then(|()| {
            self.add_below(&dir, path, &told.clock, &mut |path, is_dir| {
                if found.len() <= MOST_FOUND {
                    found.push(Event { what: What::Created, path, to: None, is_dir });
                }
            })
        });
        if added.is_err() || found.len() > MOST_FOUND {
            // More than is watched or told, or than there was time for: whoever listens must look.
            told.events.push(Event { what: What::Overflow, path: path.clone(), to: None, is_dir: true });
            return Ok(());
        }
        told.events.append(&mut found);
        Ok(())
    }

    fn add(&mut self, dir: &Dir, path: Rel) -> Result<(), Errno> {
        // The handle's number is our own.
        let at = format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd());
        let number = inotify::add_watch(&self.queue, at, INTEREST)?;
        self.dirs.insert(number, path);
        Ok(())
    }

    /// Watches every directory below, and hands on what there is.
    fn add_below(&mut self, dir: &Dir, at: &Rel, clock: &Clock, each: &mut dyn FnMut(Rel, bool)) -> Result<(), Fault> {
        let fail = |e: io::Error| told(at, &e);
        let mut tree = Tree::of(dir, DEEPEST, None).map_err(fail)?;
        while let Some(item) = tree.next().map_err(fail)? {
            if clock.is_over() {
                let what = format!("looking through it took more than {} seconds", PATIENCE.as_secs());
                return Err(trouble::too_much(at, what, LimitKind::WallMs, "watch a directory below it"));
            }
            let (path, is_dir) = (joined(at, &item.path), item.meta.kind == FileKind::Dir);
            if is_dir {
                if self.dirs.len() >= MOST_DIRECTORIES {
                    let what = format!("more than {MOST_DIRECTORIES} directories are to be watched");
                    return Err(trouble::too_much(at, what, LimitKind::Files, "watch a directory below it"));
                }
                match directory(&self.root, &path) {
                    Ok((spot, below)) if spot.path == path => {
                        self.add(&below, path.clone()).map_err(|e| cannot(&path, e))?;
                    }
                    // It went or became a link meanwhile, or the guest may not look into it.
                    Ok(_) => {}
                    Err(fault) if fault.error_kind != ErrorKind::Internal => {}
                    Err(fault) => return Err(fault),
                }
            }
            each(path, is_dir);
        }
        Ok(())
    }

    /// What is no longer below is no longer told.
    fn forget(&mut self, path: &Rel) {
        let queue = &self.queue;
        self.dirs.retain(|number, dir| {
            let out = dir.is_at_or_below(path);
            if out {
                // One that is gone has no watch any more.
                let _ = inotify::remove_watch(queue, *number);
            }
            !out
        });
    }

    fn renamed(&mut self, from: &Rel, to: Rel) {
        for dir in self.dirs.values_mut().filter(|dir| dir.is_at_or_below(from)) {
            let rest = dir.parts().skip(from.parts().count()).fold(to.clone(), |path, part| path.join(part));
            *dir = rest;
        }
    }
}
