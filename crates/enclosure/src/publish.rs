//! Ports of a guest that the host can reach: connections to a listener of ours are joined to a port inside. One thread
//! serves all of them; it ends with the run.

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
use sys::ahead::Ahead;
use terms::{Fault, Phase};

/// Who makes sockets in the guest's network, for one at a time.
pub(crate) type Helper = Arc<Mutex<Ahead>>;

/// A listener on the host, and the port inside that it leads to.
#[derive(Debug)]
pub struct Published {
    pub listener: TcpListener,
    pub port: u16,
}

/// Connections at a time; more wait in the listener's queue.
const MOST: usize = 128;
/// One for each half of a connection.
const DESCRIPTORS_EACH: u64 = 2;
/// For everything else that this process does: whoever calls must not keep it from seeing what happens.
const DESCRIPTORS_KEPT: u64 = 64;
const CHUNK: usize = 16 * 1024;
/// How long what the guest sent last may take to be delivered after its end.
const LINGER: Duration = Duration::from_millis(500);

/// How many connections there may be at a time, so that they take at most a quarter of what this process may have open.
pub(crate) fn room() -> usize {
    let current = sys::host::bound(sys::host::Bounded::OpenFiles).current.unwrap_or(u64::MAX);
    let most = current.saturating_sub(DESCRIPTORS_KEPT) / 4 / DESCRIPTORS_EACH;
    most.clamp(1, MOST as u64) as usize
}

/// Descriptors that so many ports with so many connections may need.
pub(crate) fn descriptors(ports: usize, connections: usize) -> u64 {
    ports as u64 + DESCRIPTORS_EACH * connections as u64
}

/// The thread, as the supervisor sees it. Dropping this ends it.
pub(crate) struct Publisher {
    shared: Arc<Shared>,
    orders: SyncSender<Order>,
    thread: Option<JoinHandle<()>>,
}

/// What shall be published from now on, and nothing else; what is new brings its listeners. Told when it is so.
struct Order {
    wanted: Vec<(SocketAddr, u16)>,
    opened: Vec<Published>,
    done: SyncSender<()>,
}

/// How long the thread may take to follow an order: it never waits for anybody.
const FOLLOWS: Duration = Duration::from_secs(5);

struct Shared {
    used: AtomicU64,
    limit: Option<u64>,
    over: AtomicBool,
    ending: AtomicBool,
    /// To the thread: it is over, or there is an order. To the supervisor: the limit was met.
    end: OwnedFd,
    wake: OwnedFd,
}

impl Publisher {
    /// Begins to serve, `most` connections at a time. `helper` makes sockets in the guest's network.
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
        let shared = Arc::new(Shared {
            used: AtomicU64::new(0),
            limit,
            over: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            end: event()?,
            wake: event()?,
        });
        let of_thread = Arc::clone(&shared);
        let (orders, todo) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("publish".into())
            .stack_size(128 << 10)
            .spawn(move || Server { shared: &of_thread, published, helper, most, joined: Vec::new(), todo }.serve())
            .map_err(|e| failed("a thread", &e))?;
        Ok(Publisher { shared, orders, thread: Some(thread) })
    }

    /// Publishes just these from now on. Connections to what is published no more, or leads elsewhere, are broken off. False when
    /// it is over: then nothing is published.
    pub(crate) fn set(&self, wanted: Vec<(SocketAddr, u16)>, opened: Vec<Published>) -> bool {
        if opened.iter().any(|published| published.listener.set_nonblocking(true).is_err()) {
            return false;
        }
        let (done, heard) = sync_channel(1);
        let sent = self.orders.send(Order { wanted, opened, done });
        ring(&self.shared.end);
        sent.is_ok() && heard.recv_timeout(FOLLOWS).is_ok()
    }

    pub(crate) fn used(&self) -> u64 {
        self.shared.used.load(Ordering::Relaxed)
    }

    pub(crate) fn over_limit(&self) -> bool {
        self.shared.over.load(Ordering::Acquire)
    }

    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    /// Takes notice of the wake; it stays readable until then.
    pub(crate) fn heard(&self) {
        let _ = rustix::io::read(&self.shared.wake, &mut [0u8; 8]);
    }
}

impl Publisher {
    /// Delivers what is on its way and ends; the figures stand from then on.
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
    shared: &'a Shared,
    published: Vec<Published>,
    helper: Helper,
    most: usize,
    joined: Vec<Joined>,
    todo: Receiver<Order>,
}

/// One connection from outside with its other half inside.
struct Joined {
    outer: TcpStream,
    inner: TcpStream,
    /// Where it came to, and the port that leads to.
    at: SocketAddr,
    port: u16,
    /// Until the half inside stands: whether the other protocol was tried already.
    connecting: Option<Tried>,
    into: Flow,
    out: Flow,
    broken: bool,
}

const OUTER: usize = 0;
const INNER: usize = 1;

/// What waiting showed of one connection.
#[derive(Clone, Copy, Default)]
struct Seen {
    ready: bool,
    /// By half: nobody is there any more, neither to read from nor to write to.
    hung: [bool; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tried {
    First,
    Both,
}

/// Bytes on their way from one half to the other.
#[derive(Default)]
struct Flow {
    buffer: Vec<u8>,
    sent: usize,
    /// The one side will say no more; the other was told so.
    ended: bool,
    told: bool,
}

impl Server<'_> {
    fn serve(mut self) {
        let mut until = None;
        loop {
            let (ready, accepts) = self.wait(until);
            // Before the reasons are looked at that it is rung for: none can be missed.
            let _ = rustix::io::read(&self.shared.end, &mut [0u8; 8]);
            if until.is_none() && self.shared.ending.load(Ordering::Acquire) {
                self.published.clear();
                until = Some(Instant::now() + LINGER);
            }
            let over = until.is_some_and(|at| self.joined.is_empty() || Instant::now() >= at);
            if over || self.shared.over.load(Ordering::Acquire) {
                return;
            }
            for (joined, seen) in self.joined.iter_mut().zip(ready) {
                if seen.ready {
                    joined.advance(seen, &self.helper, self.shared);
                }
            }
            self.joined.retain_mut(|j| !j.is_over());
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
            self.joined.retain(|joined| {
                let stays = leads(&joined.at) == Some(joined.port);
                if !stays {
                    reset(&joined.outer);
                    reset(&joined.inner);
                }
                stays
            });
            let _ = done.try_send(());
        }
    }

    /// Waits for the next thing to happen: which connections have something to do, and whether there are new ones.
    fn wait(&self, until: Option<Instant>) -> (Vec<Seen>, bool) {
        let mut seen = vec![Seen::default(); self.joined.len()];
        let mut fds = Vec::with_capacity(2 * self.joined.len() + self.published.len() + 1);
        let mut whose = Vec::with_capacity(fds.capacity());
        for (i, joined) in self.joined.iter().enumerate() {
            for (side, half, flags) in joined.interests().into_iter().flatten() {
                fds.push(PollFd::from_borrowed_fd(half, flags));
                whose.push((i, side));
            }
        }
        let listeners = fds.len();
        if self.joined.len() < self.most {
            fds.extend(self.published.iter().map(|p| PollFd::new(&p.listener, PollFlags::IN)));
        }
        if until.is_none() {
            fds.push(PollFd::new(&self.shared.end, PollFlags::IN));
        }
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.map(|l| Timespec { tv_sec: l.as_secs() as i64, tv_nsec: l.subsec_nanos().into() });
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
            while self.joined.len() < self.most {
                match published.listener.accept() {
                    Ok((outer, _)) => self.joined.extend(Joined::new(outer, published, &self.helper)),
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    // Out of descriptors, most likely: trying again at once would only spin.
                    Err(_) => {
                        std::thread::sleep(Duration::from_millis(20));
                        break;
                    }
                }
            }
        }
    }
}

impl Joined {
    fn new(outer: TcpStream, published: &Published, helper: &Helper) -> Option<Joined> {
        let (at, port) = (published.listener.local_addr().ok()?, published.port);
        let begun = outer.set_nonblocking(true).is_ok().then(|| begin(helper, Tried::First, port)).flatten();
        let Some((inner, connecting)) = begun else {
            reset(&outer);
            return None;
        };
        let _ = outer.set_nodelay(true);
        let (into, out) = Default::default();
        Some(Joined { outer, inner, at, port, connecting, into, out, broken: false })
    }

    /// For each half that is still of use, what must happen to it before there is something to do.
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
        // A half that is gone says so at every look. While nothing can be done about it, it is not looked at.
        let used = |half: usize, from: &Flow, to: &Flow| {
            let heard = self.connecting.is_some() || from.ended || !flags[half].is_empty();
            heard && !(from.ended && to.told)
        };
        [
            used(OUTER, &self.into, &self.out).then(|| (OUTER, self.outer.as_fd(), flags[OUTER])),
            used(INNER, &self.out, &self.into).then(|| (INNER, self.inner.as_fd(), flags[INNER])),
        ]
    }

    fn advance(&mut self, seen: Seen, helper: &Helper, shared: &Shared) {
        if let Some(tried) = self.connecting {
            self.broken = seen.hung[OUTER];
            self.settle(tried, helper);
        } else {
            // One that is gone and has nothing more to say can be told nothing either.
            let gone = (seen.hung[OUTER] && self.into.ended) || (seen.hung[INNER] && self.out.ended);
            let into = self.into.pass(&mut self.outer, &mut self.inner, shared);
            let out = self.out.pass(&mut self.inner, &mut self.outer, shared);
            self.broken = gone || into.and(out).is_err() || shared.over.load(Ordering::Acquire);
        }
        if self.broken {
            reset(&self.outer);
            reset(&self.inner);
        }
    }

    /// The half inside stands, or was refused; then whoever listens may do so on the other protocol.
    fn settle(&mut self, tried: Tried, helper: &Helper) {
        match sockopt::socket_error(&self.inner) {
            Ok(Ok(())) if self.inner.peer_addr().is_ok() => self.connecting = None,
            Ok(Ok(())) => {}
            _ => match (tried, begin(helper, Tried::Both, self.port)) {
                (Tried::First, Some((inner, connecting))) => (self.inner, self.connecting) = (inner, connecting),
                _ => self.broken = true,
            },
        }
    }

    fn is_over(&self) -> bool {
        self.broken || (self.connecting.is_none() && self.into.told && self.out.told)
    }
}

/// Calls a port inside, on the guest's own loopback: a server there sees a neighbour, wherever it listens.
fn begin(helper: &Helper, tried: Tried, port: u16) -> Option<(TcpStream, Option<Tried>)> {
    let at: IpAddr = match tried {
        Tried::First => Ipv4Addr::LOCALHOST.into(),
        Tried::Both => Ipv6Addr::LOCALHOST.into(),
    };
    let socket = helper.lock().ok()?.socket(at.is_ipv6()).ok()?;
    match rustix::net::connect(&socket, &SocketAddr::new(at, port)) {
        Ok(()) => Some((TcpStream::from(socket), None)),
        Err(Errno::INPROGRESS) => Some((TcpStream::from(socket), Some(tried))),
        Err(_) if tried == Tried::First => begin(helper, Tried::Both, port),
        Err(_) => None,
    }
}

/// Connects to a port inside and waits a while for it to stand; none when nobody listens there.
pub(crate) fn reach(helper: &Helper, port: u16) -> Option<TcpStream> {
    const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut tried = Tried::First;
    loop {
        let (stream, connecting) = begin(helper, tried, port)?;
        if connecting.is_some() {
            let _ = poll(&mut [PollFd::new(&stream, PollFlags::OUT)], Some(&PATIENCE));
        }
        if stream.peer_addr().is_ok() {
            return Some(stream);
        }
        match connecting {
            Some(Tried::First) => tried = Tried::Both,
            _ => return None,
        }
    }
}

/// Makes the end of a connection show as one that was broken, not as the end of what was to be said.
fn reset(stream: &TcpStream) {
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

impl Flow {
    fn waits(&self) -> bool {
        self.sent < self.buffer.len()
    }

    /// Moves what can be moved without waiting. An error is the end of both directions.
    fn pass(&mut self, from: &mut TcpStream, to: &mut TcpStream, shared: &Shared) -> Result<(), ()> {
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
        if self.ended && !self.waits() && !self.told {
            self.told = true;
            let _ = to.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    fn fill(&mut self, from: &mut TcpStream, shared: &Shared) -> Result<(), ()> {
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
        if shared.limit.is_some_and(|most| used > most) && !shared.over.swap(true, Ordering::AcqRel) {
            self.buffer.clear();
            ring(&shared.wake);
        }
        Ok(())
    }
}

fn is_later(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
