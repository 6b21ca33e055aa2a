//! Descriptors that become ready when a group reaches a limit or empties. They are hints to read the counters: a
//! descriptor may be ready once too often, and v1 reports out-of-memory *before* it picks a process to kill.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use super::dir::Dir;
use super::layout::Version;
use super::raw;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Read [`oom_kills`](super::Group::oom_kills).
    Oom,
    /// Read [`pids_denied`](super::Group::pids_denied).
    Pids,
    /// Read [`populated`](super::Group::populated).
    Populated,
}

#[derive(Debug)]
pub struct EventFd {
    pub kind: EventKind,
    source: EventFile,
}

#[derive(Debug)]
enum EventFile {
    /// A control file: ready with POLLPRI when it changed since it was last read.
    Changes(File),
    /// A counter that the kernel adds to: ready with POLLIN.
    Counter(File),
}

impl EventFd {
    /// The events to poll for. A control file is always readable, so only POLLPRI may be asked of it.
    pub fn poll_mask(&self) -> i16 {
        match self.source {
            EventFile::Changes(_) => libc::POLLPRI,
            EventFile::Counter(_) => libc::POLLIN,
        }
    }

    /// Resets the descriptor after it was ready: not ready until the next event.
    pub fn rearm(&self) {
        // Reading an empty counter fails with EAGAIN, which is as good as drained.
        let _ = match &self.source {
            EventFile::Changes(file) => file.read_at(&mut [0; 512], 0),
            EventFile::Counter(counter) => (&*counter).read(&mut [0; 8]),
        };
    }

    pub(super) fn changes(kind: EventKind, dir: &Dir, file: &str) -> io::Result<EventFd> {
        let source = EventFile::Changes(dir.file(file, libc::O_RDONLY)?);
        let event = EventFd { kind, source };
        // An unread file counts as changed.
        event.rearm();
        Ok(event)
    }

    pub(super) fn oom(version: Version, dir: &Dir) -> io::Result<EventFd> {
        if version == Version::V2 {
            return EventFd::changes(EventKind::Oom, dir, "memory.events");
        }
        let counter = File::from(raw::event_counter()?);
        let control = dir.file("memory.oom_control", libc::O_RDONLY)?;
        dir.write("cgroup.event_control", &format!("{} {}", counter.as_raw_fd(), control.as_raw_fd()))?;
        Ok(EventFd { kind: EventKind::Oom, source: EventFile::Counter(counter) })
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.source {
            EventFile::Changes(file) | EventFile::Counter(file) => file.as_fd(),
        }
    }
}
