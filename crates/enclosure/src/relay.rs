//! Relays bytes between the caller and the guest. Each stream holds one chunk and reads no more until it is written, so
//! a slow reader puts back-pressure on the guest and memory use stays constant.

use crate::capture::Capture;
use rustix::fs::{FileType, SeekFrom};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes that a pipe which polls writable accepts without blocking (PIPE_BUF).
const CHUNK: usize = 4096;
const MOST: usize = 64 * 1024;

/// Fills an emptied buffer with one read. A buffer starts small and grows when a read fills it, because most commands
/// write little.
fn read(source: impl AsFd, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
    let wanted = if buffer.capacity() == buffer.len() { buffer.capacity() * 4 } else { buffer.capacity() };
    buffer.clear();
    buffer.reserve(wanted.clamp(CHUNK, MOST));
    rustix::io::read(source, rustix::buffer::spare_capacity(buffer))
}

/// Destination of a guest's stream.
pub enum Sink {
    /// The supervisor's own standard streams.
    Stdout,
    Stderr,
    Keep(Capture),
}

/// A guest's output stream.
pub struct Outlet {
    source: Option<OwnedFd>,
    pub sink: Sink,
    buffer: Vec<u8>,
    sent: usize,
    /// The caller no longer reads: output is dropped silently, and the guest gets EPIPE.
    closed: bool,
    pub truncated: u64,
    /// Write error that lost bytes although the reader was still there.
    pub lost: Option<Errno>,
}

/// Output limit over both streams.
pub struct Allowance {
    pub left: Option<u64>,
    pub truncate: bool,
    pub used: u64,
}

/// Result of one read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pumped {
    More,
    /// The output limit was exceeded.
    OverLimit,
}

impl Outlet {
    pub fn new(source: Option<OwnedFd>, sink: Sink) -> Outlet {
        Outlet { source, sink, buffer: Vec::new(), sent: 0, closed: false, truncated: 0, lost: None }
    }

    /// Returns the guest's stream when it may be read: no bytes wait to be written.
    pub fn wants_input(&self) -> Option<BorrowedFd<'_>> {
        if self.has_output() { None } else { self.source.as_ref().map(AsFd::as_fd) }
    }

    pub fn has_output(&self) -> bool {
        self.sent < self.buffer.len()
    }

    /// Returns the supervisor's stream when bytes wait to be written to it.
    pub fn wants_output(&self) -> Option<BorrowedFd<'_>> {
        match (&self.sink, self.has_output()) {
            (Sink::Stdout, true) => Some(rustix::stdio::stdout()),
            (Sink::Stderr, true) => Some(rustix::stdio::stderr()),
            _ => None,
        }
    }

    pub fn is_done(&self) -> bool {
        self.source.is_none() && !self.has_output()
    }

    /// Reads one chunk from the guest.
    pub fn pull(&mut self, allowance: &mut Allowance) -> Pumped {
        let Some(source) = &self.source else { return Pumped::More };
        self.sent = 0;
        let got = match read(source, &mut self.buffer) {
            Ok(n) => n,
            Err(Errno::AGAIN | Errno::INTR) => return Pumped::More,
            // EIO: the last process closed the pty's slave side.
            Err(_) => 0,
        };
        if got == 0 {
            self.source = None;
            return Pumped::More;
        }
        self.admit(allowance)
    }

    /// Counts the bytes read and cuts them exactly at the limit.
    fn admit(&mut self, allowance: &mut Allowance) -> Pumped {
        let got = self.buffer.len() as u64;
        let kept = allowance.left.map_or(got, |left| left.min(got));
        allowance.used += kept;
        if let Some(left) = &mut allowance.left {
            *left -= kept;
        }
        self.buffer.truncate(kept as usize);
        let over = got - kept;
        self.truncated += over;
        self.keep();
        if over > 0 && !allowance.truncate { Pumped::OverLimit } else { Pumped::More }
    }

    fn keep(&mut self) {
        if let Sink::Keep(capture) = &mut self.sink {
            capture.add(&self.buffer);
            self.buffer.clear();
        } else if self.closed {
            self.buffer.clear();
        }
    }

    /// Writes pending bytes, as many as fit without blocking.
    pub fn push(&mut self) {
        let Some(target) = self.wants_output() else { return };
        let end = self.buffer.len().min(self.sent + CHUNK);
        match rustix::io::write(target, &self.buffer[self.sent..end]) {
            Ok(n) => self.sent += n,
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The reader is gone: the guest's next write gets EPIPE, as it would outside.
            Err(Errno::PIPE) => self.hang_up(),
            // The guest's own write has succeeded already; further writes get EPIPE, and the outcome reports the loss.
            Err(e) => {
                self.lost = Some(e);
                self.truncated += (self.buffer.len() - self.sent) as u64;
                self.hang_up();
            }
        }
    }

    /// Closes the supervisor's end of the guest's stream.
    pub fn hang_up(&mut self) {
        self.closed = true;
        self.source = None;
        self.buffer.clear();
        self.sent = 0;
    }

    pub fn dropped(&self) -> u64 {
        match &self.sink {
            Sink::Keep(capture) => self.truncated + capture.dropped(),
            _ => self.truncated,
        }
    }
}

/// The caller's input on its way to the guest.
pub struct Inlet {
    target: Option<OwnedFd>,
    buffer: Vec<u8>,
    sent: usize,
    ended: bool,
    /// A pty gets end of file as a control character, not by closing.
    is_terminal: bool,
    /// Standard input is a file whose offset is shared with later readers: bytes that the command has not read are
    /// given back by seeking.
    is_shared_file: bool,
}

impl Inlet {
    pub fn new(target: Option<OwnedFd>, is_terminal: bool) -> Inlet {
        let is_shared_file =
            !is_terminal && is_file(rustix::stdio::stdin()) && target.as_ref().is_some_and(shrink_to_page);
        Inlet { ended: target.is_none(), target, buffer: Vec::new(), sent: 0, is_terminal, is_shared_file }
    }

    pub fn wants_input(&self) -> Option<BorrowedFd<'_>> {
        let idle = self.sent >= self.buffer.len();
        (idle && !self.ended && self.target.is_some()).then(rustix::stdio::stdin)
    }

    /// Returns the guest's end, and whether to poll it for writing; it is polled for hang-up even when there is nothing
    /// to write.
    pub fn target(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let waits = self.sent < self.buffer.len() || (self.is_shared_file && self.ended);
        self.target.as_ref().map(|t| (t.as_fd(), waits))
    }

    pub fn pull(&mut self) {
        // The command may have ended since the poll.
        if self.wants_input().is_none() {
            return;
        }
        self.sent = 0;
        let got = match self.is_shared_file {
            true => read_page(rustix::stdio::stdin(), &mut self.buffer),
            false => read(rustix::stdio::stdin(), &mut self.buffer),
        };
        match got {
            Ok(0) => self.finish(),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.finish(),
        }
    }

    fn finish(&mut self) {
        self.buffer.clear();
        self.ended = true;
        if self.is_terminal {
            // Ctrl-D (VEOF), so that a shell inside ends like one whose terminal was closed.
            self.buffer.push(4);
        } else if !self.is_shared_file {
            self.target = None;
        }
    }

    pub fn push(&mut self) {
        let Some(target) = &self.target else { return };
        if self.sent >= self.buffer.len() {
            // Woken with nothing to write: the command closed its input, or it has read the last page.
            return self.hang_up();
        }
        match rustix::io::write(target, &self.buffer[self.sent..]) {
            Ok(n) => self.sent += n,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.hang_up(),
        }
    }

    pub fn hang_up(&mut self) {
        self.give_back();
        self.target = None;
        self.ended = true;
        self.buffer.clear();
        self.sent = 0;
    }

    /// Seeks the file back to where the command stopped reading.
    fn give_back(&mut self) {
        let Some(target) = self.target.as_ref().filter(|_| self.is_shared_file) else { return };
        let unread = rustix::io::ioctl_fionread(target).unwrap_or(0) + (self.buffer.len() - self.sent) as u64;
        if let Ok(back) = i64::try_from(unread) {
            // Best effort: on failure the offset stays where it was.
            let _ = rustix::fs::seek(rustix::stdio::stdin(), SeekFrom::Current(-back));
        }
    }
}

fn is_file(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// Shrinks the pipe to one page, so that it polls writable only when the command has read everything in it.
fn shrink_to_page(pipe: &OwnedFd) -> bool {
    rustix::pipe::fcntl_setpipe_size(pipe, CHUNK).is_ok()
}

/// Reads one page, the capacity of such a pipe.
fn read_page(source: impl AsFd, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
    buffer.clear();
    buffer.resize(CHUNK, 0);
    let got = rustix::io::read(source, &mut buffer[..]);
    buffer.truncate(*got.as_ref().unwrap_or(&0));
    got
}
