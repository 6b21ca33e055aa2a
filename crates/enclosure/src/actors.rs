//! Attribution of sockets to processes of a guest, for network refusals where only the two addresses are known. A
//! sock_diag query gives the socket's inode, and `/proc/PID/fd` of the guest's processes gives the holder. The
//! search is bounded, and an ambiguous result names no process. Read-only.

use crate::flock::MOST_STEPS;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sys::diag::Sockets;
use terms::Actor;

/// Entries below /proc that one lookup may visit.
const MAX_PROC_ENTRIES: usize = 4096;
/// Token bucket for lookups: 32 at once, then one more per 60 ms. Further lookups go unanswered, so that a guest cannot
/// keep the supervisor busy by provoking refusals.
const MAX_TOKENS: u32 = 32;
const REFILL_INTERVAL: Duration = Duration::from_millis(60);
/// Bytes read at most of a kernel list of sockets or children.
const LONGEST_LIST: u64 = 1 << 20;

/// The processes of one guest.
#[derive(Debug)]
pub struct Actors {
    /// `/proc/PID` of the guest's first process, held open: a reused pid cannot take its place.
    first: OwnedFd,
    sockets: Option<Sockets>,
    tokens: u32,
    refilled_at: Instant,
}

impl Actors {
    /// Opens `/proc/PID` of a first process that has not been reaped yet. `None` when that fails.
    pub(crate) fn of(first: i32, sockets: Option<Sockets>) -> Option<Actors> {
        use rustix::fs::{Mode, OFlags, open};
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let first = open(format!("/proc/{first}"), flags, Mode::empty()).ok()?;
        Some(Actors { first, sockets, tokens: MAX_TOKENS, refilled_at: Instant::now() })
    }

    /// Returns the process that holds a TCP connection. The kernel has no two connections with the same pair of
    /// addresses.
    pub fn of_stream(&mut self, own: SocketAddr, to: SocketAddr) -> Option<Actor> {
        self.take_token().then_some(())?;
        let inode = self.sockets.as_ref()?.connection(plain(own), plain(to)).ok()??;
        self.holder(inode).map(actor)
    }

    /// Returns the process that sends datagrams from this port. Any socket bound to the port may have sent them,
    /// whatever its address, so more than one candidate gives `None`.
    pub fn of_datagrams(&mut self, own: SocketAddr) -> Option<Actor> {
        self.take_token().then_some(())?;
        self.holder(self.only_at(own.port())?).map(actor)
    }

    /// Returns the process of `among` that is an ancestor of the holder of a connection. All pids are the host's.
    pub fn stream_below(&mut self, (own, to): (SocketAddr, SocketAddr), among: &[i32]) -> Option<i32> {
        self.take_token().then_some(())?;
        let inode = self.sockets.as_ref()?.connection(plain(own), plain(to)).ok()??;
        climb(self.holder(inode)?, among)
    }

    /// Returns the process of `among` that is an ancestor of the sender of datagrams from `own`.
    pub fn datagrams_below(&mut self, own: SocketAddr, among: &[i32]) -> Option<i32> {
        self.take_token().then_some(())?;
        climb(self.holder(self.only_at(own.port())?)?, among)
    }

    /// Returns the inode of the UDP socket bound to this port, if there is exactly one.
    fn only_at(&self, port: u16) -> Option<u64> {
        let mut sockets = BTreeSet::new();
        for table in ["net/udp", "net/udp6"] {
            let list = read(&self.first_dir().join(table))?;
            sockets.extend(list.lines().skip(1).filter_map(|line| bound(line, port)));
        }
        sockets.pop_first().filter(|_| sockets.is_empty())
    }

    /// Returns the process with a descriptor of this socket. Searches descendants before their
    /// ancestors, because a process that connects seldom has children.
    fn holder(&self, inode: u64) -> Option<i32> {
        let wanted = PathBuf::from(format!("socket:[{inode}]"));
        let mut budget = Budget(MAX_PROC_ENTRIES);
        for pid in self.processes(&mut budget).into_iter().rev() {
            for (entry, _) in numbers(&PathBuf::from(format!("/proc/{pid}/fd"))) {
                budget.next()?;
                if fs::read_link(entry).is_ok_and(|link| link == wanted) {
                    return Some(pid);
                }
            }
        }
        None
    }

    fn take_token(&mut self) -> bool {
        let earned = self.refilled_at.elapsed().as_millis() / REFILL_INTERVAL.as_millis();
        if earned > 0 {
            self.tokens = self.tokens.saturating_add(earned.min(MAX_TOKENS.into()) as u32).min(MAX_TOKENS);
            self.refilled_at = Instant::now();
        }
        let may = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        may
    }

    /// Lists the descendants of the first process, parents before their children.
    fn processes(&self, budget: &mut Budget) -> Vec<i32> {
        let mut found = children(&self.first_dir(), budget);
        let mut at = 0;
        while let Some(pid) = found.get(at) {
            let below = children(Path::new(&format!("/proc/{pid}")), budget);
            found.extend(below);
            at += 1;
        }
        found
    }

    fn first_dir(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.first.as_raw_fd()).into()
    }
}

/// Returns the nearest of `among` on the way from a process to its ancestors, itself included.
fn climb(from: i32, among: &[i32]) -> Option<i32> {
    let mut at = from;
    for _ in 0..MOST_STEPS {
        if among.contains(&at) {
            return Some(at);
        }
        at = crate::flock::parent(at)?;
    }
    None
}

/// Remaining budget of /proc entries.
struct Budget(usize);

impl Budget {
    fn next(&mut self) -> Option<()> {
        self.0 = self.0.checked_sub(1)?;
        Some(())
    }
}

/// Lists the children of all threads of a process.
fn children(process: &Path, budget: &mut Budget) -> Vec<i32> {
    let mut found = Vec::new();
    for (thread, _) in numbers(&process.join("task")) {
        if budget.next().is_none() {
            break;
        }
        let list = read(&thread.join("children")).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()).take(budget.0));
    }
    found
}

/// Lists the directory entries with numeric names.
fn numbers(dir: &Path) -> impl Iterator<Item = (PathBuf, i32)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| Some((e.path(), e.file_name().to_str()?.parse().ok()?)))
}

fn read(file: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(file).ok()?.take(LONGEST_LIST).read_to_string(&mut text).ok()?;
    // A truncated list may lack the line that decides.
    (text.len() < LONGEST_LIST as usize).then_some(text)
}

/// Returns the inode in a line of `/proc/net/udp`, if the socket is bound to this port.
fn bound(line: &str, port: u16) -> Option<u64> {
    let mut words = line.split_whitespace();
    let (_, own) = words.nth(1)?.rsplit_once(':')?;
    let inode = words.nth(7)?.parse().ok()?;
    (u16::from_str_radix(own, 16) == Ok(port)).then_some(inode)
}

/// Resources that a guest's processes use, summed from `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub cpu_us: u64,
    pub memory_bytes: u64,
    pub processes: u64,
}

/// Sums the first process and its descendants, within bounds. The processor time of a reaped
/// process is included in its parent's.
pub(crate) fn tally(first: i32) -> Tally {
    const TICK_US: u64 = 10_000;
    const PAGE: u64 = 4096;
    let mut budget = Budget(MAX_PROC_ENTRIES);
    let mut found = vec![first];
    let mut sum = Tally::default();
    let mut at = 0;
    while let Some(pid) = found.get(at).copied() {
        at += 1;
        let process = PathBuf::from(format!("/proc/{pid}"));
        found.extend(children(&process, &mut budget));
        let Some(stat) = read(&process.join("stat")) else { continue };
        let fields: Vec<u64> = stat
            .rsplit_once(") ")
            .map(|(_, rest)| rest.split(' ').map(|word| word.parse().unwrap_or(0)).collect())
            .unwrap_or_default();
        // utime, stime, cutime and cstime; then the resident pages.
        sum.cpu_us += fields.get(11..15).map_or(0, |times| times.iter().sum::<u64>()) * TICK_US;
        sum.memory_bytes += fields.get(21).copied().unwrap_or(0) * PAGE;
        sum.processes += 1;
    }
    sum
}

/// Normalises an IPv4-mapped IPv6 address, so that both socket families compare equal.
fn plain(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

/// Describes the process of a thread by its pid inside the guest's namespace.
pub(crate) fn actor(tid: i32) -> Actor {
    let exe = fs::read_link(format!("/proc/{tid}/exe")).map(|p| p.to_string_lossy().into_owned());
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let pid = status.lines().find_map(|l| l.strip_prefix("NStgid:")?.split_whitespace().last()?.parse().ok());
    Actor { pid: pid.unwrap_or(0), exe: exe.unwrap_or_default() }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_read() {
        const V4: &str = "   77: 00000000:14E9 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2 0000000000000000 0";
        const V6: &str = "   78: 00000000000000000000000001000000:14E9 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4712 2 0000000000000000 0";
        assert_eq!((bound(V4, 5353), bound(V6, 5353)), (Some(4711), Some(4712)));
        assert_eq!((bound(V4, 53), bound("", 53), bound("a b c", 53)), (None, None, None));
    }

    #[test]
    fn many_questions_are_not_all_answered() {
        let mut actors = Actors::of(std::process::id() as i32, None).unwrap();
        let answered = (0..1000).filter(|_| actors.take_token()).count() as u32;
        assert!((MAX_TOKENS..1000).contains(&answered), "{answered}");
    }

    #[test]
    fn mapped_addresses_are_plain_ones() {
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:80".parse().unwrap();
        assert_eq!(plain(mapped), "192.0.2.1:80".parse().unwrap());
    }
}
