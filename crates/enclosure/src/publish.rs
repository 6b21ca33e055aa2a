//! Published ports: connections to a listener on the host are forwarded to a port inside the guest. One thread serves
//! all of them and ends with the run.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::early_setup::EarlySetup;
use terms::{Fault, Phase};

/// The helper that makes sockets in the guest's network namespace, for one caller at a time.
pub(crate) type Helper = Arc<Mutex<EarlySetup>>;

/// A listener on the host, and the port inside that it forwards to.
#[derive(Debug)]
pub struct Published {
    pub listener: TcpListener,
    pub port: u16,
}

/// Concurrent connections; more wait in the listener's backlog.
const MOST: usize = 128;
/// Descriptors of one connection, one for each half.
const DESCRIPTORS_EACH: u64 = 2;
/// Descriptors reserved for the rest of this process: clients of a published port must not exhaust them.
const DESCRIPTORS_KEPT: u64 = 64;
const CHUNK: usize = 16 * 1024;
/// Time for delivering the guest's last bytes after its end.
const LINGER: Duration = Duration::from_millis(500);

/// Returns the number of concurrent connections that takes at most a quarter of this process's descriptors.
pub(crate) fn max_connections() -> usize {
    let current = sys::host::bound(sys::host::BoundedResource::OpenFiles).current.unwrap_or(u64::MAX);
    let most = current.saturating_sub(DESCRIPTORS_KEPT) / 4 / DESCRIPTORS_EACH;
    most.clamp(1, MOST as u64) as usize
}

/// Returns the descriptors that these ports and connections may need.
pub(crate) fn descriptors(ports: usize, connections: usize) -> u64 {
    ports as u64 + DESCRIPTORS_EACH * connections as u64
}

/// The supervisor's handle on the forwarding thread. Dropping it ends the thread.
pub(crate) struct Publisher {
    shared: Arc<ForwarderState>,
    orders: SyncSender<Order>,
    thread: Option<JoinHandle<()>>,
}

/// The complete set of ports to publish from now on, with listeners for the new ones; `done` acknowledges it.
struct Order {
    wanted: Vec<(SocketAddr, u16)>,
    opened: Vec<Published>,
    done: SyncSender<()>,
}

/// Deadline for the thread's acknowledgement; the thread itself never blocks.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);

struct ForwarderState {
    used: AtomicU64,
    limit: Option<u64>,
    limit_exceeded: AtomicBool,
    ending: AtomicBool,
    /// eventfds: `end` tells the thread of the end or of an order, `wake` tells the supervisor that the limit was
    /// exceeded.
    end: OwnedFd,
    wake: OwnedFd,
}

impl Publisher {
    /// Starts the thread, with `most` concurrent connections. `helper` makes sockets in the guest's network namespace.
    pub(crate) fn start(
        published: Vec<Published>,
        helper: Helper,
        limit: Option<u64>,
        most: usize,
    ) -> Result<Publisher, Fault> {
        let failed =
            |what: &str, e: &dyn std::fmt::Display| Fault::internal(format!("{what}: {e}")).phase(Phase::Start);
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| failed("eventfd", &e));
        for p in &published {
            p.listener.set_nonblocking(true).map_err(|e| failed("a published port", &e))?;
        }
        let shared = Arc::new(ForwarderState {
            used: AtomicU64::new(0),
            limit,
            limit_exceeded: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            end: event()?,
            wake: event()?,
        });
        let of_thread = Arc::clone(&shared);
        let (orders, todo) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("publish".into())
            .stack_size(128 << 10)
            .spawn(move || Server { shared: &of_thread, published, helper, most, forwarded: Vec::new(), todo }.serve())
            .map_err(|e| failed("a thread", &e))?;
        Ok(Publisher { shared, orders, thread: Some(thread) })
    }

    /// Replaces the set of published ports. Connections to ports that are no longer published, or forward elsewhere,
    /// are reset. False once the thread has ended: then no port is published.
    pub(crate) fn set(&self, wanted: Vec<(SocketAddr, u16)>, opened: Vec<Published>) -> bool {
        if opened.iter().any(|published| published.listener.set_nonblocking(true).is_err()) {
            return false;
        }
        let (done, heard) = sync_channel(1);
        let sent = self.orders.send(Order { wanted, opened, done });
        ring(&self.shared.end);
        sent.is_ok() && heard.recv_timeout(ORDER_TIMEOUT).is_ok()
    }

    pub(crate) fn used(&self) -> u64 {
        self.shared.used.load(Ordering::Relaxed)
    }

    pub(crate) fn over_limit(&self) -> bool {
        self.shared.limit_exceeded.load(Ordering::Acquire)
    }

    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    /// Clears the wake event, which stays readable until then.
    pub(crate) fn heard(&self) {
        let _ = rustix::io::read(&self.shared.wake, &mut [0u8; 8]);
    }
}

impl Publisher {
    /// Delivers the bytes in flight and ends the thread; the figures are final from then on.
    pub(crate) fn close(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        ring(&self.shared.end);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.close();
    }
}

fn ring(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

struct Server<'a> {
    shared: &'a ForwarderState,
    published: Vec<Published>,
    helper: Helper,
    most: usize,
    forwarded: Vec<Forwarded>,
    todo: Receiver<Order>,
}

/// A connection from outside with its other half inside.
struct Forwarded {
    outer: TcpStream,
    inner: TcpStream,
    /// Address of the listener, and the port inside.
    at: SocketAddr,
    port: u16,
    /// Set until the inner half is connected: whether the other address family was tried already.
    connecting: Option<Attempts>,
    into: Flow,
    out: Flow,
    broken: bool,
}

const OUTER: usize = 0;
const INNER: usize = 1;

/// Result of one poll for one connection.
#[derive(Clone, Copy, Default)]
struct PollResult {
    ready: bool,
    /// POLLHUP or POLLERR, by half: the peer is gone for reading and writing.
    hung: [bool; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempts {
    First,
    Both,
}

/// Bytes in flight in a single direction of a connection.
#[derive(Default)]
struct Flow {
    buffer: Vec<u8>,
    sent: usize,
    /// `ended`: the source reached end of file. `shutdown_sent`: the target was shut down for writing.
    ended: bool,
    shutdown_sent: bool,
}

impl Server<'_> {
    fn serve(mut self) {
        let mut until = None;
        loop {
            let (ready, accepts) = self.wait(until);
            // Drained before the reasons for the event are checked, so that none is missed.
            let _ = rustix::io::read(&self.shared.end, &mut [0u8; 8]);
            if until.is_none() && self.shared.ending.load(Ordering::Acquire) {
                self.published.clear();
                until = Some(Instant::now() + LINGER);
            }
            let over = until.is_some_and(|at| self.forwarded.is_empty() || Instant::now() >= at);
            if over || self.shared.limit_exceeded.load(Ordering::Acquire) {
                return;
            }
            for (forwarded, seen) in self.forwarded.iter_mut().zip(ready) {
                if seen.ready {
                    forwarded.advance(seen, &self.helper, self.shared);
                }
            }
            self.forwarded.retain_mut(|j| !j.is_over());
            if until.is_none() {
                self.follow_orders();
            }
            if accepts && until.is_none() {
                self.accept();
            }
        }
    }

    fn follow_orders(&mut self) {
        while let Ok(Order { wanted, opened, done }) = self.todo.try_recv() {
            self.published.extend(opened);
            let leads = |at: &SocketAddr| wanted.iter().find(|(known, _)| known == at).map(|(_, port)| *port);
            self.published.retain_mut(|published| {
                let port = published.listener.local_addr().ok().and_then(|at| leads(&at));
                published.port = port.unwrap_or(published.port);
                port.is_some()
            });
            self.forwarded.retain(|forwarded| {
                let stays = leads(&forwarded.at) == Some(forwarded.port);
                if !stays {
                    reset(&forwarded.outer);
                    reset(&forwarded.inner);
                }
                stays
            });
            let _ = done.try_send(());
        }
    }

    /// Polls: returns the state of each connection, and whether a listener is ready.
    fn wait(&self, until: Option<Instant>) -> (Vec<PollResult>, bool) {
        let mut seen = vec![PollResult::default(); self.forwarded.len()];
        let mut fds = Vec::with_capacity(2 * self.forwarded.len() + self.published.len() + 1);
        let mut whose = Vec::with_capacity(fds.capacity());
        for (i, forwarded) in self.forwarded.iter().enumerate() {
            for (side, half, flags) in forwarded.interests().into_iter().flatten() {
                fds.push(PollFd::from_borrowed_fd(half, flags));
                whose.push((i, side));
            }
        }
        let listeners = fds.len();
        if self.forwarded.len() < self.most {
            fds.extend(self.published.iter().map(|p| PollFd::new(&p.listener, PollFlags::IN)));
        }
        if until.is_none() {
            fds.push(PollFd::new(&self.shared.end, PollFlags::IN));
        }
        let left = until.map(sys::deadline::time_left);
        if poll(&mut fds, left.as_ref()).is_err() {
            return (seen, false);
        }
        for (fd, (i, side)) in fds.iter().zip(whose) {
            seen[i].ready |= !fd.revents().is_empty();
            seen[i].hung[side] = fd.revents().intersects(PollFlags::HUP | PollFlags::ERR);
        }
        (seen, fds[listeners..].iter().any(|fd| !fd.revents().is_empty()))
    }

    fn accept(&mut self) {
        for published in &self.published {
            while self.forwarded.len() < self.most {
                match published.listener.accept() {
                    Ok((outer, _)) => self.forwarded.extend(Forwarded::new(outer, published, &self.helper)),
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    // EMFILE, most likely: retrying at once would spin.
                    Err(_) => {
                        std::thread::sleep(Duration::from_millis(20));
                        break;
                    }
                }
            }
        }
    }
}

impl Forwarded {
    fn new(outer: TcpStream, published: &Published, helper: &Helper) -> Option<Forwarded> {
        let (at, port) = (published.listener.local_addr().ok()?, published.port);
        let begun = outer.set_nonblocking(true).is_ok().then(|| begin(helper, Attempts::First, port)).flatten();
        let Some((inner, connecting)) = begun else {
            reset(&outer);
            return None;
        };
        let _ = outer.set_nodelay(true);
        let (into, out) = Default::default();
        Some(Forwarded { outer, inner, at, port, connecting, into, out, broken: false })
    }

    /// Returns the poll flags of each half that still matters.
    fn interests(&self) -> [Option<(usize, BorrowedFd<'_>, PollFlags)>; 2] {
        let mut flags = [PollFlags::empty(); 2];
        if self.connecting.is_some() {
            flags[INNER] = PollFlags::OUT;
        } else {
            for (flow, from, to) in [(&self.into, OUTER, INNER), (&self.out, INNER, OUTER)] {
                if flow.waits() {
                    flags[to] |= PollFlags::OUT;
                } else if !flow.ended {
                    flags[from] |= PollFlags::IN;
                }
            }
        }
        // POLLHUP is reported on every poll. A half that is gone is left out while there is nothing to do about it.
        let used = |half: usize, from: &Flow, to: &Flow| {
            let heard = self.connecting.is_some() || from.ended || !flags[half].is_empty();
            heard && !(from.ended && to.shutdown_sent)
        };
        [
            used(OUTER, &self.into, &self.out).then(|| (OUTER, self.outer.as_fd(), flags[OUTER])),
            used(INNER, &self.out, &self.into).then(|| (INNER, self.inner.as_fd(), flags[INNER])),
        ]
    }

    fn advance(&mut self, seen: PollResult, helper: &Helper, shared: &ForwarderState) {
        if let Some(tried) = self.connecting {
            self.broken = seen.hung[OUTER];
            self.settle(tried, helper);
        } else {
            // A peer that is gone and has reached end of file accepts no data either.
            let gone = (seen.hung[OUTER] && self.into.ended) || (seen.hung[INNER] && self.out.ended);
            let into = self.into.pass(&mut self.outer, &mut self.inner, shared);
            let out = self.out.pass(&mut self.inner, &mut self.outer, shared);
            self.broken = gone || into.and(out).is_err() || shared.limit_exceeded.load(Ordering::Acquire);
        }
        if self.broken {
            reset(&self.outer);
            reset(&self.inner);
        }
    }

    /// Completes the inner connection; if IPv4 was refused, tries the server on IPv6.
    fn settle(&mut self, tried: Attempts, helper: &Helper) {
        match sockopt::socket_error(&self.inner) {
            Ok(Ok(())) if self.inner.peer_addr().is_ok() => self.connecting = None,
            Ok(Ok(())) => {}
            _ => match (tried, begin(helper, Attempts::Both, self.port)) {
                (Attempts::First, Some((inner, connecting))) => (self.inner, self.connecting) = (inner, connecting),
                _ => self.broken = true,
            },
        }
    }

    fn is_over(&self) -> bool {
        self.broken || (self.connecting.is_none() && self.into.shutdown_sent && self.out.shutdown_sent)
    }
}

/// Starts a connection to a port on the guest's loopback: the server sees a local client, whichever address it listens
/// on.
fn begin(helper: &Helper, tried: Attempts, port: u16) -> Option<(TcpStream, Option<Attempts>)> {
    let at: IpAddr = match tried {
        Attempts::First => Ipv4Addr::LOCALHOST.into(),
        Attempts::Both => Ipv6Addr::LOCALHOST.into(),
    };
    let socket = helper.lock().ok()?.socket(at.is_ipv6()).ok()?;
    match rustix::net::connect(&socket, &SocketAddr::new(at, port)) {
        Ok(()) => Some((TcpStream::from(socket), None)),
        Err(Errno::INPROGRESS) => Some((TcpStream::from(socket), Some(tried))),
        Err(_) if tried == Attempts::First => begin(helper, Attempts::Both, port),
        Err(_) => None,
    }
}

/// Connects to a port inside with a timeout; `None` when no process listens there.
pub(crate) fn reach(helper: &Helper, port: u16) -> Option<TcpStream> {
    const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut tried = Attempts::First;
    loop {
        let (stream, connecting) = begin(helper, tried, port)?;
        if connecting.is_some() {
            let _ = poll(&mut [PollFd::new(&stream, PollFlags::OUT)], Some(&PATIENCE));
        }
        if stream.peer_addr().is_ok() {
            return Some(stream);
        }
        match connecting {
            Some(Attempts::First) => tried = Attempts::Both,
            _ => return None,
        }
    }
}

/// Makes close(2) send a RST (SO_LINGER 0) rather than a FIN, so that a broken connection is not taken for a complete
/// one.
fn reset(stream: &TcpStream) {
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

impl Flow {
    fn waits(&self) -> bool {
        self.sent < self.buffer.len()
    }

    /// Moves bytes without blocking. An error ends both directions.
    fn pass(&mut self, from: &mut TcpStream, to: &mut TcpStream, shared: &ForwarderState) -> Result<(), ()> {
        if !self.waits() && !self.ended {
            self.fill(from, shared)?;
        }
        if self.waits() {
            match to.write(&self.buffer[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if is_later(&e) => {}
                Err(_) => return Err(()),
            }
        }
        if self.ended && !self.waits() && !self.shutdown_sent {
            self.shutdown_sent = true;
            let _ = to.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    fn fill(&mut self, from: &mut TcpStream, shared: &ForwarderState) -> Result<(), ()> {
        self.sent = 0;
        self.buffer.resize(CHUNK, 0);
        let got = match from.read(&mut self.buffer) {
            Ok(0) => {
                self.ended = true;
                0
            }
            Ok(n) => n,
            Err(e) if is_later(&e) => 0,
            Err(_) => return Err(()),
        };
        self.buffer.truncate(got);
        let used = shared.used.fetch_add(got as u64, Ordering::Relaxed) + got as u64;
        if shared.limit.is_some_and(|most| used > most) && !shared.limit_exceeded.swap(true, Ordering::AcqRel) {
            self.buffer.clear();
            ring(&shared.wake);
        }
        Ok(())
    }
}

fn is_later(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
