//! One flow of bytes between the guest and the outside: its count, what is told about it, and how streams are read,
//! written and ended.

use crate::court::Court;
use crate::event::{Op, Socket, Stage};
use crate::gate::{Gate, Ruling};
use policy::Proto;
use rustix::net::Shutdown;
use std::cell::RefCell;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use sys::CallError;
use tokio::io::Interest;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::sleep;

/// What is read at once. One buffer serves all flows of the thread, so that a thousand idle ones cost nothing.
const CHUNK: usize = 64 * 1024;

/// After the kernel had no descriptor or no memory for what came.
const AFTER_ERROR: Duration = Duration::from_millis(10);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// Lends out the thread's buffer, which holds the largest datagram.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    SCRATCH.with_borrow_mut(|buffer| work(buffer))
}

/// A descriptor at which things come one by one.
pub(crate) struct Watched {
    /// Whatever it is, this knows when something is there; it is not read from.
    ready: UdpSocket,
}

impl Watched {
    pub fn new(fd: OwnedFd) -> Result<Watched, Error> {
        Ok(Watched { ready: UdpSocket::from_std(fd.into())? })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// What `take` finds, once there is something.
    pub async fn next<T>(
        &self,
        mut take: impl FnMut(BorrowedFd<'_>) -> Result<Option<T>, CallError>,
    ) -> Result<T, Error> {
        loop {
            self.ready.readable().await?;
            let got = self.ready.try_io(Interest::READABLE, || match take(self.fd()) {
                Ok(came) => came.ok_or_else(|| ErrorKind::WouldBlock.into()),
                Err(error) => Err(Error::from_raw_os_error(error.errno)),
            });
            match got {
                Ok(came) => return Ok(came),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => sleep(AFTER_ERROR).await,
            }
        }
    }
}

/// A flow and the story of it: opened once, and closed when it is gone unless it was told to have ended otherwise.
pub(crate) struct Flow {
    pub gate: Arc<Gate>,
    proto: Proto,
    addr: SocketAddr,
    socket: Option<Socket>,
    /// Whose it is, looked for when it is first told of: later its socket may be gone.
    run: OnceLock<Option<Arc<str>>>,
    to_guest: AtomicU64,
    from_guest: AtomicU64,
    story: Mutex<Story>,
}

#[derive(Default)]
struct Story {
    /// What let it through, once that was told.
    opened: Option<Ruling>,
    ended: bool,
    /// The guest may still have bytes in it that were not passed on.
    speaking: bool,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToGuest,
    FromGuest,
}

impl Flow {
    /// A flow to an address, from a socket of the guest.
    pub fn new(gate: &Arc<Gate>, proto: Proto, addr: SocketAddr, socket: Option<Socket>) -> Flow {
        let zero = AtomicU64::default;
        // Datagrams are passed on when they come, or never.
        let speaking = proto == Proto::Tcp;
        if speaking {
            gate.begin_speaking();
        }
        let story = Mutex::new(Story { speaking, ..Story::default() });
        Flow {
            gate: gate.clone(),
            proto,
            addr,
            socket,
            run: OnceLock::new(),
            to_guest: zero(),
            from_guest: zero(),
            story,
        }
    }

    /// All that the guest had to say was passed on.
    pub fn said_all(&self) {
        if std::mem::take(&mut self.story().speaking) {
            self.gate.end_speaking();
        }
    }

    /// Counts bytes before they are passed on; an error when the run may have no more.
    pub fn spend(&self, way: Way, bytes: usize) -> Result<(), Error> {
        let bytes = bytes as u64;
        let (counter, into, out) = match way {
            Way::ToGuest => (&self.to_guest, bytes, 0),
            Way::FromGuest => (&self.from_guest, 0, bytes),
        };
        if !self.gate.spend(into, out) {
            return Err(Error::new(ErrorKind::QuotaExceeded, "the bytes of this run are used up"));
        }
        counter.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    pub fn address(&self) -> SocketAddr {
        self.addr
    }

    pub fn socket(&self) -> Option<Socket> {
        self.socket
    }

    /// Whether the guest got bytes.
    pub fn has_spoken(&self) -> bool {
        self.to_guest.load(Ordering::Relaxed) > 0
    }

    /// Whether bytes of the guest were passed on.
    pub fn guest_has_spoken(&self) -> bool {
        self.from_guest.load(Ordering::Relaxed) > 0
    }

    /// Tells that it began, the first time; later rulings only say better in whose name.
    pub fn opened(&self, ruling: &Ruling) {
        let before = self.story().opened.replace(ruling.clone());
        if before.is_none() {
            self.tell(ruling, Stage::Opened);
        }
    }

    pub fn refused(&self, ruling: &Ruling) {
        self.story().ended = true;
        self.tell(ruling, Stage::Refused);
    }

    pub fn failed(&self, ruling: &Ruling, reason: String) {
        self.story().ended = true;
        self.tell(&Ruling { reason: Some(reason), ..ruling.clone() }, Stage::Failed);
    }

    fn story(&self) -> MutexGuard<'_, Story> {
        self.story.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, ruling: &Ruling, stage: Stage) {
        let mut event = ruling.event(Op::Connect, stage, self.proto, Some(self.addr));
        event.socket = self.socket;
        event.run = self.run.get_or_init(|| self.gate.run_of(self.socket)).clone();
        event.bytes_in = self.to_guest.load(Ordering::Relaxed);
        event.bytes_out = self.from_guest.load(Ordering::Relaxed);
        self.gate.tell(event);
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.said_all();
        let Story { opened, ended, .. } = std::mem::take(&mut *self.story());
        if let Some(ruling) = opened.filter(|_| !ended) {
            self.tell(&ruling, Stage::Closed);
        }
    }
}

/// What was written, which may be nothing.
pub(crate) fn some(written: Result<usize, Error>) -> Result<usize, Error> {
    match written {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}

pub(crate) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> Result<(), Error> {
    while !bytes.is_empty() {
        to.writable().await?;
        bytes = &bytes[some(to.try_write(bytes))?..];
    }
    Ok(())
}

/// Reads what is there, once there is some, at most up to a length of `most`; 0 at the end.
pub(crate) async fn read_more(from: &TcpStream, bytes: &mut Vec<u8>, most: usize) -> Result<usize, Error> {
    let room = most.saturating_sub(bytes.len()).min(CHUNK);
    if room == 0 {
        return Err(Error::new(ErrorKind::InvalidData, "more comes than is read at once"));
    }
    loop {
        from.readable().await?;
        let got = with_scratch(|buffer| {
            let got = from.try_read(&mut buffer[..room]);
            bytes.extend(&buffer[..got.as_ref().copied().unwrap_or(0)]);
            got
        });
        match got {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

/// Says that no more bytes come.
pub(crate) fn hang_up(stream: &TcpStream) {
    // It fails when the other end is gone, which the reading side learns by itself.
    let _ = rustix::net::shutdown(stream, Shutdown::Write);
}

/// Ends a connection so that its other end sees a reset and not an orderly end.
pub(crate) fn reset(stream: impl AsFd) {
    let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
}
