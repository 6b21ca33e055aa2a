//! Moving bytes between the caller and the guest. One chunk is held per stream and nothing is read until it has been
//! passed on, so a slow reader makes the guest wait and our memory stays flat.

use crate::capture::Capture;
use rustix::fs::{FileType, SeekFrom};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A pipe that says it is writable takes this much without making us wait.
const CHUNK: usize = 4096;
const MOST: usize = 64 * 1024;

/// Fills an emptied buffer with what one read gives. A buffer starts small and grows when it is filled: most commands
/// say little.
fn read(source: impl AsFd, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
    let wanted = if buffer.capacity() == buffer.len() { buffer.capacity() * 4 } else { buffer.capacity() };
    buffer.clear();
    buffer.reserve(wanted.clamp(CHUNK, MOST));
    rustix::io::read(source, rustix::buffer::spare_capacity(buffer))
}

/// Where a guest's stream goes.
pub enum Sink {
    /// One of our own standard streams.
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
    /// The caller no longer reads; what comes is dropped without a word, and the guest sees a closed pipe.
    closed: bool,
    pub truncated: u64,
    /// Why bytes were lost that somebody wanted.
    pub lost: Option<Errno>,
}

/// What the caller allows to be written, over both streams.
pub struct Allowance {
    pub left: Option<u64>,
    pub truncate: bool,
    pub used: u64,
}

/// How a pumping step went.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pumped {
    More,
    /// More output than allowed.
    OverLimit,
}

impl Outlet {
    pub fn new(source: Option<OwnedFd>, sink: Sink) -> Outlet {
        Outlet { source, sink, buffer: Vec::new(), sent: 0, closed: false, truncated: 0, lost: None }
    }

    /// Ready for the next read: nothing is waiting to be written.
    pub fn wants_input(&self) -> Option<BorrowedFd<'_>> {
        if self.has_output() { None } else { self.source.as_ref().map(AsFd::as_fd) }
    }

    pub fn has_output(&self) -> bool {
        self.sent < self.buffer.len()
    }

    /// Our own stream, when something waits to be written to it.
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
            // A terminal whose last user is gone gives EIO.
            Err(_) => 0,
        };
        if got == 0 {
            self.source = None;
            return Pumped::More;
        }
        self.admit(allowance)
    }

    /// Counts what was read and cuts it at the cap, to the byte.
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

    /// Writes what waits, as much as can be taken at once.
    pub fn push(&mut self) {
        let Some(target) = self.wants_output() else { return };
        let end = self.buffer.len().min(self.sent + CHUNK);
        match rustix::io::write(target, &self.buffer[self.sent..end]) {
            Ok(n) => self.sent += n,
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The reader is gone: the guest's next write meets a closed pipe, as it would outside.
            Err(Errno::PIPE) => self.hang_up(),
            // The guest's own write has succeeded; all that is left is to let it write no more, and to say so.
            Err(e) => {
                self.lost = Some(e);
                self.truncated += (self.buffer.len() - self.sent) as u64;
                self.hang_up();
            }
        }
    }

    /// Drops the guest's end.
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
    /// A terminal hangs up by control character, not by closing.
    is_terminal: bool,
    /// It is a file, whose other readers go on where the command stopped: what the command has not taken is given back.
    lent: bool,
}

impl Inlet {
    pub fn new(target: Option<OwnedFd>, is_terminal: bool) -> Inlet {
        let lent = !is_terminal && is_file(rustix::stdio::stdin()) && target.as_ref().is_some_and(narrow);
        Inlet { ended: target.is_none(), target, buffer: Vec::new(), sent: 0, is_terminal, lent }
    }

    pub fn wants_input(&self) -> Option<BorrowedFd<'_>> {
        let idle = self.sent >= self.buffer.len();
        (idle && !self.ended && self.target.is_some()).then(rustix::stdio::stdin)
    }

    /// The guest's end, and whether it shall be told when that takes more; it is polled for hang-up even when there is nothing to write.
    pub fn target(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let waits = self.sent < self.buffer.len() || (self.lent && self.ended);
        self.target.as_ref().map(|t| (t.as_fd(), waits))
    }

    pub fn pull(&mut self) {
        // The command may have ended since it was asked for.
        if self.wants_input().is_none() {
            return;
        }
        self.sent = 0;
        let got = match self.lent {
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
            // Ctrl-D, so that a shell inside ends like one whose terminal was closed.
            self.buffer.push(4);
        } else if !self.lent {
            self.target = None;
        }
    }

    pub fn push(&mut self) {
        let Some(target) = &self.target else { return };
        if self.sent >= self.buffer.len() {
            // Woken with nothing to write: the command reads no more, or it has taken the last that there was.
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

    /// Sets a file back to where the command stopped reading.
    fn give_back(&mut self) {
        let Some(target) = self.target.as_ref().filter(|_| self.lent) else { return };
        let unread = rustix::io::ioctl_fionread(target).unwrap_or(0) + (self.buffer.len() - self.sent) as u64;
        if let Ok(back) = i64::try_from(unread) {
            // Nobody is worse off than before where it cannot be done.
            let _ = rustix::fs::seek(rustix::stdio::stdin(), SeekFrom::Current(-back));
        }
    }
}

fn is_file(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// A pipe of one page takes more only when all in it was read: that is how we learn that the last has been.
fn narrow(pipe: &OwnedFd) -> bool {
    rustix::pipe::fcntl_setpipe_size(pipe, CHUNK).is_ok()
}

/// As much as such a pipe takes at once.
fn read_page(source: impl AsFd, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
    buffer.clear();
    buffer.resize(CHUNK, 0);
    let got = rustix::io::read(source, &mut buffer[..]);
    buffer.truncate(*got.as_ref().unwrap_or(&0));
    got
}
