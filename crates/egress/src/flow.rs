//! A flow of bytes between the guest and a server: byte counts, events, and helpers to read, write and close streams.

use crate::event::{EventStage, GuestSocket, Op};
use crate::gate::{Gate, Ruling};
use crate::request_judge::RequestJudge;
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

/// Size of the read buffer. All flows of the thread share one, so that idle flows hold no buffer.
const CHUNK: usize = 64 * 1024;

/// Back-off after the kernel had no descriptor or no memory for an incoming item.
const AFTER_ERROR: Duration = Duration::from_millis(10);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// Lends the thread's buffer, which holds the largest datagram.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    SCRATCH.with_borrow_mut(|buffer| work(buffer))
}

/// Readiness of a descriptor from which packets, datagrams or connections are taken one by one.
pub(crate) struct ReadableFd {
    /// Used for readiness only, whatever type of socket it is; never read from.
    ready: UdpSocket,
}

impl ReadableFd {
    pub fn new(fd: OwnedFd) -> Result<ReadableFd, Error> {
        Ok(ReadableFd { ready: UdpSocket::from_std(fd.into())? })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// Waits until `take` returns an item.
    pub async fn next<T>(
        &self,
        mut take: impl FnMut(BorrowedFd<'_>) -> Result<Option<T>, CallError>,
    ) -> Result<T, Error> {
        loop {
            self.ready.readable().await?;
            let got = self.ready.try_io(Interest::READABLE, || match take(self.fd()) {
                Ok(item) => item.ok_or_else(|| ErrorKind::WouldBlock.into()),
                Err(error) => Err(Error::from_raw_os_error(error.errno)),
            });
            match got {
                Ok(item) => return Ok(item),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => sleep(AFTER_ERROR).await,
            }
        }
    }
}

/// A flow and its events: reported as opened once, and as closed on drop unless it was refused or failed.
pub(crate) struct Flow {
    pub gate: Arc<Gate>,
    proto: Proto,
    addr: SocketAddr,
    socket: Option<GuestSocket>,
    /// Run that the flow belongs to, looked up at the first event: later the socket may be gone.
    run: OnceLock<Option<Arc<str>>>,
    to_guest: AtomicU64,
    from_guest: AtomicU64,
    state: Mutex<FlowState>,
}

#[derive(Default)]
struct FlowState {
    /// Ruling that allowed the flow, once reported.
    opened: Option<Ruling>,
    ended: bool,
    /// True while bytes of the guest may not have been relayed yet.
    is_uploading: bool,
}

/// Direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToGuest,
    FromGuest,
}

impl Flow {
    /// A flow to an address, from a socket of the guest.
    pub fn new(gate: &Arc<Gate>, proto: Proto, addr: SocketAddr, socket: Option<GuestSocket>) -> Flow {
        let zero = AtomicU64::default;
        // Datagrams are relayed at once or dropped.
        let is_uploading = proto == Proto::Tcp;
        if is_uploading {
            gate.begin_upload();
        }
        let state = Mutex::new(FlowState { is_uploading, ..FlowState::default() });
        Flow {
            gate: gate.clone(),
            proto,
            addr,
            socket,
            run: OnceLock::new(),
            to_guest: zero(),
            from_guest: zero(),
            state,
        }
    }

    /// Marks all bytes of the guest as relayed.
    pub fn finish_upload(&self) {
        if std::mem::take(&mut self.state().is_uploading) {
            self.gate.end_upload();
        }
    }

    /// Counts bytes before they are relayed. Fails if the run exceeds its byte limit.
    pub fn count_bytes(&self, direction: Direction, bytes: usize) -> Result<(), Error> {
        let bytes = bytes as u64;
        let (counter, into, out) = match direction {
            Direction::ToGuest => (&self.to_guest, bytes, 0),
            Direction::FromGuest => (&self.from_guest, 0, bytes),
        };
        if !self.gate.count_bytes(into, out) {
            return Err(Error::new(ErrorKind::QuotaExceeded, "the run exceeds limits.max_net_bytes"));
        }
        counter.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    pub fn address(&self) -> SocketAddr {
        self.addr
    }

    pub fn socket(&self) -> Option<GuestSocket> {
        self.socket
    }

    /// Returns true if bytes were relayed to the guest.
    pub fn has_bytes_to_guest(&self) -> bool {
        self.to_guest.load(Ordering::Relaxed) > 0
    }

    /// Returns true if bytes of the guest were relayed.
    pub fn has_bytes_from_guest(&self) -> bool {
        self.from_guest.load(Ordering::Relaxed) > 0
    }

    /// Reports the flow as opened, the first time. A later ruling replaces the stored one, since it knows the host name
    /// better.
    pub fn opened(&self, ruling: &Ruling) {
        let before = self.state().opened.replace(ruling.clone());
        if before.is_none() {
            self.record(ruling, EventStage::Opened);
        }
    }

    pub fn refused(&self, ruling: &Ruling) {
        self.state().ended = true;
        self.record(ruling, EventStage::Refused);
    }

    pub fn failed(&self, ruling: &Ruling, reason: String) {
        self.state().ended = true;
        self.record(&Ruling { reason: Some(reason), ..ruling.clone() }, EventStage::Failed);
    }

    fn state(&self) -> MutexGuard<'_, FlowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, ruling: &Ruling, stage: EventStage) {
        let mut event = ruling.event(Op::Connect, stage, self.proto, Some(self.addr));
        event.socket = self.socket;
        event.run = self.run.get_or_init(|| self.gate.run_of(self.socket)).clone();
        event.bytes_in = self.to_guest.load(Ordering::Relaxed);
        event.bytes_out = self.from_guest.load(Ordering::Relaxed);
        self.gate.record(event);
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.finish_upload();
        let FlowState { opened, ended, .. } = std::mem::take(&mut *self.state());
        if let Some(ruling) = opened.filter(|_| !ended) {
            self.record(&ruling, EventStage::Closed);
        }
    }
}

/// Maps `WouldBlock` to zero bytes written.
pub(crate) fn or_zero(written: Result<usize, Error>) -> Result<usize, Error> {
    match written {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}

pub(crate) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> Result<(), Error> {
    while !bytes.is_empty() {
        to.writable().await?;
        bytes = &bytes[or_zero(to.try_write(bytes))?..];
    }
    Ok(())
}

/// Waits for data and appends it, up to a total length of `most`. Returns 0 at end of stream.
pub(crate) async fn read_more(from: &TcpStream, bytes: &mut Vec<u8>, most: usize) -> Result<usize, Error> {
    let room = most.saturating_sub(bytes.len()).min(CHUNK);
    if room == 0 {
        return Err(Error::new(ErrorKind::InvalidData, "more bytes than the limit for one message"));
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

/// Half-closes the stream: no more bytes follow.
pub(crate) fn half_close(stream: &TcpStream) {
    // Fails if the peer is gone, which the reading side detects itself.
    let _ = rustix::net::shutdown(stream, Shutdown::Write);
}

/// Makes the coming close send a reset (SO_LINGER with zero time) instead of an orderly FIN.
pub(crate) fn reset(stream: impl AsFd) {
    let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
}
