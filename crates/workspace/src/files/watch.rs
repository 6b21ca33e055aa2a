//! Watches a directory, with `recursive` also everything below it, by inotify. Never blocks: the caller polls the
//! descriptor. Lost events are reported as an overflow.

use super::deadline::{Deadline, Interest};
use super::list::{directory, joined, walk_fault};
use super::tree::TreeWalk;
use super::{Root, error};
use crate::Dir;
use api::{FileEvent, FileEventKind, FileKind, Rel};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};

/// Bound on the directories of one watch.
pub const MOST_DIRECTORIES: usize = 8192;
/// Depth bound of a watch.
const DEEPEST: usize = 256;
/// Time limit for adding watches, at the start and for each batch of events.
const PATIENCE: Duration = Duration::from_secs(10);
/// Size of the inotify read buffer.
const BATCH: usize = 64 << 10;
/// Bound on the existing entries that are reported for a new directory.
const MOST_FOUND: usize = 1000;

/// An inotify watch, which ends when dropped.
#[derive(Debug)]
pub struct InotifyWatch {
    queue: OwnedFd,
    top: Rel,
    recursive: bool,
    /// Path of each directory by watch descriptor.
    dirs: HashMap<i32, Rel>,
    gone: bool,
    /// Cancels the scan of directories once the caller no longer waits.
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

/// Starts to watch a directory. Every event after this call is reported.
pub fn watch(root: Root, path: &Rel, recursive: bool, interest: Interest) -> Result<InotifyWatch, Fault> {
    let deadline = Deadline::new(PATIENCE, &interest);
    let owner = root.act_as_guest()?;
    let (spot, dir) = directory(&root, path)?;
    let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(|e| cannot(path, e))?;
    let top = spot.path;
    let mut watch =
        InotifyWatch { queue, root, top: top.clone(), recursive, dirs: HashMap::new(), gone: false, interest };
    watch.add(&dir, top.clone()).map_err(|e| cannot(path, e))?;
    if recursive {
        watch.add_below(&dir, &top, &deadline, &mut |_, _| {})?;
    }
    drop(owner);
    Ok(watch)
}

fn cannot(path: &Rel, error: Errno) -> Fault {
    match error {
        Errno::MFILE | Errno::NOSPC => {
            let message =
                format!("{}: the limit on inotify watches of this user is reached: {error}", error::shown(path));
            let fault = Fault::new(ErrorKind::Unavailable, message).retry(Retry::Later).phase(Phase::Execution);
            fault.hint("end other watches, or raise fs.inotify.max_user_instances and max_user_watches")
        }
        _ => error::fault(path, "watch it", &error.into()),
    }
}

impl AsFd for InotifyWatch {
    /// Readable when events are pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

/// Event as read from inotify.
struct Raw {
    number: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<Vec<u8>>,
}

/// Events collected by one call of `take`.
struct EventBatch {
    events: Vec<FileEvent>,
    seen: HashSet<(FileEventKind, Rel)>,
    deadline: Deadline,
}

impl InotifyWatch {
    /// Events since the last call, possibly none. No events follow `Gone`.
    pub fn take(&mut self) -> Result<Vec<FileEvent>, Fault> {
        let deadline = Deadline::new(PATIENCE, &self.interest);
        let _owner = self.root.act_as_guest()?;
        let mut raws = self.read().map_err(|e| error::fault(&self.top, "watch it", &e.into()))?.into_iter().peekable();
        let mut so_far = EventBatch { events: Vec::new(), seen: HashSet::new(), deadline };
        while let Some(raw) = raws.next() {
            // The two events of a rename are adjacent.
            let partner = match raw.flags.contains(ReadFlags::MOVED_FROM) {
                true => raws.next_if(|next| next.flags.contains(ReadFlags::MOVED_TO) && next.cookie == raw.cookie),
                false => None,
            };
            self.translate(raw, partner, &mut so_far)?;
        }
        Ok(so_far.events)
    }

    /// Waits for an event or the timeout.
    pub fn wait(&self, time: Duration) {
        let time = sys::deadline::timeout(time);
        // A timeout or signal is not an error: the caller looks at the queue in any case.
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
            // The rest is read by the next call.
            if reader.is_buffer_empty() {
                return Ok(raws);
            }
        }
    }

    fn translate(&mut self, raw: Raw, partner: Option<Raw>, batch: &mut EventBatch) -> Result<(), Fault> {
        if raw.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.overflow(batch);
        }
        if raw.flags.contains(ReadFlags::IGNORED) {
            self.dirs.remove(&raw.number);
        }
        let Some(dir) = self.dirs.get(&raw.number).cloned() else { return Ok(()) };
        let Some(name) = raw.name.as_deref() else {
            if dir == self.top && raw.flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
                self.gone = true;
                batch.events.push(FileEvent { what: FileEventKind::Gone, path: dir, to: None, is_dir: true });
            }
            return Ok(());
        };
        let (path, is_dir) = (dir.join(name), raw.flags.contains(ReadFlags::ISDIR));
        let to = partner.and_then(|to| Some(self.dirs.get(&to.number)?.join(to.name.as_deref()?)));
        let what = match raw.flags {
            _ if to.is_some() => FileEventKind::Renamed,
            f if f.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) => FileEventKind::Created,
            f if f.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) => FileEventKind::Removed,
            f if f.contains(ReadFlags::MODIFY) => FileEventKind::Written,
            _ => FileEventKind::Attributes,
        };
        // A loop of small writes is reported once.
        if matches!(what, FileEventKind::Written | FileEventKind::Attributes)
            && !batch.seen.insert((what, path.clone()))
        {
            return Ok(());
        }
        if !matches!(what, FileEventKind::Written | FileEventKind::Attributes) {
            batch.seen.clear();
        }
        batch.events.push(FileEvent { what, path: path.clone(), to: to.clone(), is_dir });
        match (is_dir && self.recursive, what) {
            (true, FileEventKind::Created) => self.enter(&path, batch),
            (true, FileEventKind::Removed) => {
                self.forget(&path);
                Ok(())
            }
            (true, FileEventKind::Renamed) => {
                self.renamed(&path, to.unwrap_or_default());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Lost events may be about new directories: watches are added for the whole tree again.
    fn overflow(&mut self, batch: &mut EventBatch) -> Result<(), Fault> {
        batch.events.push(FileEvent { what: FileEventKind::Overflow, path: self.top.clone(), to: None, is_dir: true });
        match self.recursive {
            true => {
                let (_, dir) = directory(&self.root, &self.top.clone())?;
                let top = self.top.clone();
                self.add_below(&dir, &top, &batch.deadline, &mut |_, _| {})
            }
            false => Ok(()),
        }
    }

    /// Watches a new directory and reports the entries that it already has.
    fn enter(&mut self, path: &Rel, batch: &mut EventBatch) -> Result<(), Fault> {
        let Ok((spot, dir)) = directory(&self.root, path) else { return Ok(()) };
        // The path resolves through a link by now: not the directory that was created.
        if spot.path != *path {
            return Ok(());
        }
        let mut found = Vec::new();
        let added = self.add(&dir, path.clone()).map_err(|e| cannot(path, e)).and_then(|()| {
            self.add_below(&dir, path, &batch.deadline, &mut |path, is_dir| {
                if found.len() <= MOST_FOUND {
                    found.push(FileEvent { what: FileEventKind::Created, path, to: None, is_dir });
                }
            })
        });
        if added.is_err() || found.len() > MOST_FOUND {
            // A bound or the time limit was met: the listener has to list the directory itself.
            batch.events.push(FileEvent { what: FileEventKind::Overflow, path: path.clone(), to: None, is_dir: true });
            return Ok(());
        }
        batch.events.append(&mut found);
        Ok(())
    }

    fn add(&mut self, dir: &Dir, path: Rel) -> Result<(), Errno> {
        // The descriptor behind `/proc/self/fd` is our own.
        let at = format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd());
        let number = inotify::add_watch(&self.queue, at, INTEREST)?;
        self.dirs.insert(number, path);
        Ok(())
    }

    /// Watches every directory below and passes each entry to `each`.
    fn add_below(
        &mut self,
        dir: &Dir,
        at: &Rel,
        deadline: &Deadline,
        each: &mut dyn FnMut(Rel, bool),
    ) -> Result<(), Fault> {
        let fail = |e: io::Error| walk_fault(at, &e);
        let mut tree = TreeWalk::of(dir, DEEPEST, None).map_err(fail)?;
        while let Some(item) = tree.next().map_err(fail)? {
            if deadline.is_over() {
                let what = format!("walking it took more than {} seconds", PATIENCE.as_secs());
                return Err(error::too_much(at, what, LimitKind::WallMs, "watch a directory below it"));
            }
            let (path, is_dir) = (joined(at, &item.path), item.meta.kind == FileKind::Dir);
            if is_dir {
                if self.dirs.len() >= MOST_DIRECTORIES {
                    let what = format!("more than {MOST_DIRECTORIES} directories are to be watched");
                    return Err(error::too_much(at, what, LimitKind::Files, "watch a directory below it"));
                }
                match directory(&self.root, &path) {
                    Ok((spot, below)) if spot.path == path => {
                        self.add(&below, path.clone()).map_err(|e| cannot(&path, e))?;
                    }
                    // The directory vanished, became a link, or denies the guest access.
                    Ok(_) => {}
                    Err(fault) if fault.error_kind != ErrorKind::Internal => {}
                    Err(fault) => return Err(fault),
                }
            }
            each(path, is_dir);
        }
        Ok(())
    }

    /// Removes the watches at and below a path that left the tree.
    fn forget(&mut self, path: &Rel) {
        let queue = &self.queue;
        self.dirs.retain(|number, dir| {
            let out = dir.is_at_or_below(path);
            if out {
                // The kernel has already removed the watch of a deleted directory.
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
