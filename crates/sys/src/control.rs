//! The control socket between the supervisor and a guest's pid 1: reports with descriptors one way, orders and
//! descriptors the other way, and signals for out-of-band control. `send` runs between clone and exec: raw calls only,
//! as in `child`.

use crate::command::Order;
use crate::diag::Sockets;
use crate::net::Doors;
use crate::op::InsideDir;
use crate::raw::kernel;
use crate::{CallError, doors, errno};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Kinds of reports from pid 1 to the supervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Message {
    #[default]
    Nothing = 0,
    /// A step of the setup failed: `step`, `errno`.
    StepFailed = 1,
    /// Setup is over; the descriptors are attached.
    Ready = 2,
    /// The command could not be executed: `errno`.
    ExecFailed = 3,
    /// The command ended and the tree is gone: `status`, `cpu_us`, `max_rss_kb`.
    Ended = 4,
    /// From a pid 1 that accepts jobs: a shepherd was started, and its pidfd is attached.
    ShepherdStarted = 5,
    /// The command starts; `status` is its pid inside. A pipe that reports a failed exec is attached, and the
    /// terminal's master.
    Started = 6,
    /// The shepherd was killed, and its process tree is gone, too: `cpu_us`, `max_rss_kb`.
    Lost = 7,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Report {
    pub message: Message,
    pub step: u32,
    pub errno: i32,
    pub status: i32,
    pub handles: u64,
    pub cpu_us: u64,
    pub max_rss_kb: u64,
}

/// Descriptors sent with `Message::Ready`, as far as the steps made them.
#[derive(Debug, Default)]
pub struct Handles {
    /// The seccomp listener.
    pub listener: Option<OwnedFd>,
    pub terminal: Option<OwnedFd>,
    /// A sock_diag socket, together with doors, where the kernel supports it.
    pub sockets: Option<Sockets>,
    pub places: InsideHandles,
    pub doors: Option<Doors>,
    /// The name server's socket of a guest without doors.
    pub resolver: Option<OwnedFd>,
}

/// Descriptors of places inside.
#[derive(Debug, Default)]
pub struct InsideHandles {
    pub scratch: Option<OwnedFd>,
    pub workspace: Option<OwnedFd>,
    pub tmp: Option<OwnedFd>,
    pub root: Option<OwnedFd>,
    /// Trees of `InsideDir::Asked`, by their numbers.
    pub asked: Vec<Option<OwnedFd>>,
}

impl InsideHandles {
    pub(crate) fn from(opened: [Option<OwnedFd>; InsideDir::COUNT]) -> InsideHandles {
        let [scratch, workspace, tmp, root, asked @ ..] = opened;
        InsideHandles { scratch, workspace, tmp, root, asked: asked.into() }
    }

    /// Takes each place from `self`, or else from `other`.
    pub fn or(self, other: InsideHandles) -> InsideHandles {
        InsideHandles {
            scratch: self.scratch.or(other.scratch),
            workspace: self.workspace.or(other.workspace),
            tmp: self.tmp.or(other.tmp),
            root: self.root.or(other.root),
            asked: if self.asked.iter().any(Option::is_some) { self.asked } else { other.asked },
        }
    }
}

/// Number of descriptors that a report flags by a bit each: three, the places, and the doors for all addresses.
pub(crate) const FLAGGED_FDS: usize = 3 + InsideDir::COUNT + 2 * doors::SOCKETS_PER_FAMILY;
/// Bound on the descriptors of a report; those after the flagged ones are doors on loopback.
pub(crate) const MAX_REPORT_FDS: usize = FLAGGED_FDS + doors::MOST_LOOPBACK;

/// Buffer for one control message with all descriptors.
#[repr(C, align(8))]
pub(crate) struct ReportSpace(pub [u8; 16 + 4 * MAX_REPORT_FDS + 8]);

/// Bound on the descriptors of one message; the kernel takes a few more. Mount slots are numbered anew after so many.
pub const MOST_HANDLES: usize = 200;

/// Sent to the pid 1 of a guest without a pid namespace, or to a shepherd: kill the whole tree, then exit.
pub const END_SIGNAL: i32 = 62;
/// Sent to a shepherd in place of SIGKILL and SIGSTOP, which it cannot forward because they would hit the shepherd
/// itself.
pub(crate) const KILL_SIGNAL: i32 = 61;
pub(crate) const STOP_SIGNAL: i32 = 60;

/// The supervisor's end of the control socket to pid 1.
pub struct Control(pub(crate) OwnedFd);

impl Control {
    /// Sends the order to a pid 1 that was started early.
    pub(crate) fn order(&self, order: &Order) -> Result<(), CallError> {
        let (line, flags) = (self.0.as_raw_fd(), libc::MSG_NOSIGNAL);
        // SAFETY: a structure with its true length; no address.
        match unsafe { kernel!(SYS_sendto, line, &raw const *order, size_of::<Order>(), flags, 0, 0) } {
            // Pid 1 failed at an earlier step, which its report names; or it was killed, which its pidfd shows.
            Ok(_) | Err(libc::EPIPE | libc::ECONNRESET) => Ok(()),
            Err(errno) => Err(CallError { call: "sendto", errno }),
        }
    }

    /// Releases pid 1 from `AwaitSupervisor`.
    pub fn release(&self) -> Result<(), CallError> {
        let byte = 1u8;
        // SAFETY: one byte from a local.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), (&raw const byte).cast(), 1, libc::MSG_NOSIGNAL) };
        match errno() {
            _ if sent == 1 => Ok(()),
            // As in `order`.
            libc::EPIPE | libc::ECONNRESET => Ok(()),
            errno => Err(CallError { call: "send", errno }),
        }
    }

    /// Sends descriptors to pid 1, which waits for them; at most `MOST_HANDLES` in one message.
    pub fn send_handles(&self, handles: &[BorrowedFd<'_>]) -> Result<(), CallError> {
        match self.send_message(&[1u8], handles, 0) {
            // As in `order`.
            Err(CallError { errno: libc::EPIPE | libc::ECONNRESET, .. }) => Ok(()),
            other => other,
        }
    }

    /// Sends bytes with descriptors.
    pub(crate) fn send_message(&self, bytes: &[u8], handles: &[BorrowedFd<'_>], flags: i32) -> Result<(), CallError> {
        let raw: Vec<RawFd> = handles.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: the macro only computes a size.
        let size = unsafe { libc::CMSG_SPACE(std::mem::size_of_val(raw.as_slice()) as u32) } as usize;
        let mut space = vec![0u64; size.div_ceil(8)];
        // SAFETY: all buffers have their true lengths and outlive the call; `space` is aligned and large enough for one header
        // and all descriptors.
        unsafe {
            let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            if !raw.is_empty() {
                message.msg_control = space.as_mut_ptr().cast();
                message.msg_controllen = size as _;
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(std::mem::size_of_val(raw.as_slice()) as u32) as _;
                std::ptr::copy_nonoverlapping(
                    raw.as_ptr().cast(),
                    libc::CMSG_DATA(header),
                    std::mem::size_of_val(raw.as_slice()),
                );
            }
            match libc::sendmsg(self.0.as_raw_fd(), &message, libc::MSG_NOSIGNAL | flags) {
                sent if sent == bytes.len() as isize => Ok(()),
                _ => Err(CallError::last("sendmsg")),
            }
        }
    }

    pub(crate) fn receive(&self) -> Result<Option<(Report, Handles)>, CallError> {
        Ok(self.receive_report()?.map(|(report, received)| (report, assign(report.handles, received))))
    }

    /// Receives the next report with its descriptors; `None` if the other side is gone.
    pub(crate) fn receive_report(&self) -> Result<Option<(Report, Vec<OwnedFd>)>, CallError> {
        let mut space = ReportSpace([0; _]);
        let mut report = Report::default();
        let mut raw = [0u8; size_of::<Report>()];
        let mut received = Vec::new();
        // SAFETY: all buffers are locals with their true lengths; the control messages are walked with the kernel's
        // own macros and every descriptor received is owned exactly once.
        unsafe {
            let mut part = libc::iovec { iov_base: raw.as_mut_ptr().cast(), iov_len: raw.len() };
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            message.msg_control = space.0.as_mut_ptr().cast();
            message.msg_controllen = space.0.len() as _;
            let mut resets = 0;
            let got = loop {
                let got = libc::recvmsg(self.0.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC);
                // A peer that ends without reading our message gives ECONNRESET once, before the reports that are still
                // queued.
                resets += i32::from(got < 0 && errno() == libc::ECONNRESET);
                if got >= 0 || (errno() != libc::EINTR && resets != 1) {
                    break got;
                }
            };
            if got < 0 {
                return match errno() {
                    libc::ECONNRESET => Ok(None),
                    errno => Err(CallError { call: "recvmsg", errno }),
                };
            }
            let header = libc::CMSG_FIRSTHDR(&message);
            if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let slots = libc::CMSG_DATA(header).cast::<RawFd>();
                received.extend((0..bytes / 4).map(|i| OwnedFd::from_raw_fd(slots.add(i).read_unaligned())));
            }
            if got as usize != raw.len() {
                return Ok(None);
            }
            parse(&raw, &mut report);
        }
        Ok(Some((report, received)))
    }
}

/// Assigns received descriptors to fields: a bit for each that was sent, in the order of the fields; then doors on
/// loopback.
fn assign(which: u64, received: Vec<OwnedFd>) -> Handles {
    let mut received = received.into_iter();
    let named = |bit: usize| if which & (1 << bit) != 0 { received.next() } else { None };
    let mut slots: Vec<Option<OwnedFd>> = (0..FLAGGED_FDS).map(named).collect();
    let mut doors = slots.split_off(FLAGGED_FDS - 2 * doors::SOCKETS_PER_FAMILY);
    let is_alone = doors.iter().flatten().count() == 1;
    let resolver = doors.get_mut(doors::DNS_SLOT).filter(|_| is_alone).and_then(Option::take);
    let mut slots = slots.into_iter();
    let mut next = || slots.next().flatten();
    let doors = Doors::new(doors.into_iter(), || received.collect());
    let (listener, terminal, sockets) = (next(), next(), next().map(Sockets::new));
    Handles {
        listener,
        terminal,
        sockets,
        places: InsideHandles::from(std::array::from_fn(|_| next())),
        doors,
        resolver,
    }
}

/// Parses field by field, so that no bytes from the other side can make an invalid `Message`.
fn parse(raw: &[u8; size_of::<Report>()], report: &mut Report) {
    let word = |at: usize| u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    report.message = match word(0) {
        1 => Message::StepFailed,
        2 => Message::Ready,
        3 => Message::ExecFailed,
        4 => Message::Ended,
        5 => Message::ShepherdStarted,
        6 => Message::Started,
        7 => Message::Lost,
        _ => Message::Nothing,
    };
    report.step = word(4);
    report.errno = word(8) as i32;
    report.status = word(12) as i32;
    report.handles = long(std::mem::offset_of!(Report, handles));
    report.cpu_us = long(std::mem::offset_of!(Report, cpu_us));
    report.max_rss_kb = long(std::mem::offset_of!(Report, max_rss_kb));
}

/// Creates a pair of connected sockets that preserve message boundaries.
pub(crate) fn socket_pair() -> Result<(OwnedFd, OwnedFd), CallError> {
    let mut pair = [0; 2];
    // SAFETY: the kernel fills the two descriptors, which are then owned once each.
    unsafe {
        if libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) < 0 {
            return Err(CallError::last("socketpair"));
        }
        Ok((OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])))
    }
}

/// Sends a report with the given descriptors (negative ones are left out).
pub(crate) fn send(control: RawFd, report: &Report, handles: &[RawFd]) -> Result<(), i32> {
    let mut space = ReportSpace([0; _]);
    let count = handles.iter().filter(|fd| **fd >= 0).count();
    // SAFETY: the buffer holds one header and the most descriptors there are; every pointer is a local that
    // outlives the call.
    unsafe {
        let mut part =
            libc::iovec { iov_base: (report as *const Report as *mut Report).cast(), iov_len: size_of::<Report>() };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if count > 0 {
            message.msg_control = space.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE((count * 4) as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN((count * 4) as u32) as _;
            let mut slot = libc::CMSG_DATA(header).cast::<RawFd>();
            for fd in handles.iter().filter(|fd| **fd >= 0) {
                slot.write_unaligned(*fd);
                slot = slot.add(1);
            }
        }
        kernel!(SYS_sendmsg, control, &raw const message, libc::MSG_NOSIGNAL).map(drop)
    }
}
