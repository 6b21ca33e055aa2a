//! Who of a guest holds a socket, for refusals that are decided where only its ends are known. The kernel says which socket
//! it is, and the descriptors of the guest's processes say whose; within bounds, and whoever cannot be told from others is
//! not named. Only looks.

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

/// Entries below /proc that one question may look at.
const MOST_LOOKS: usize = 4096;
/// Questions at once, and how long it takes until there may be one more. The rest is not answered: a guest must not keep us
/// busy by being refused.
const MOST_AT_ONCE: u32 = 32;
const ONE_MORE: Duration = Duration::from_millis(60);
/// The longest list of sockets or children that is read.
const LONGEST_LIST: u64 = 1 << 20;

/// The processes of one guest.
#[derive(Debug)]
pub struct Actors {
    /// The directory of its first process, which no other can take the place of.
    first: OwnedFd,
    sockets: Option<Sockets>,
    left: u32,
    since: Instant,
}

impl Actors {
    /// Those below a first process that was not collected yet. `None` when it cannot be looked at.
    pub(crate) fn of(first: i32, sockets: Option<Sockets>) -> Option<Actors> {
        use rustix::fs::{Mode, OFlags, open};
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let first = open(format!("/proc/{first}"), flags, Mode::empty()).ok()?;
        Some(Actors { first, sockets, left: MOST_AT_ONCE, since: Instant::now() })
    }

    /// Whose connection it is. The kernel has no two with the same ends.
    pub fn of_stream(&mut self, own: SocketAddr, to: SocketAddr) -> Option<Actor> {
        self.may_ask().then_some(())?;
        let inode = self.sockets.as_ref()?.connection(plain(own), plain(to)).ok()??;
        self.holder(inode).map(actor)
    }

    /// Whose datagrams come from here. Any socket of that port may have sent them, under whatever address; with more than one
    /// nobody can say which it was.
    pub fn of_datagrams(&mut self, own: SocketAddr) -> Option<Actor> {
        self.may_ask().then_some(())?;
        self.holder(self.only_at(own.port())?).map(actor)
    }

    /// Which of these processes the one that holds a connection came of; all by their numbers outside.
    pub fn stream_below(&mut self, (own, to): (SocketAddr, SocketAddr), among: &[i32]) -> Option<i32> {
        self.may_ask().then_some(())?;
        let inode = self.sockets.as_ref()?.connection(plain(own), plain(to)).ok()??;
        climb(self.holder(inode)?, among)
    }

    /// The same for datagrams that come from here.
    pub fn datagrams_below(&mut self, own: SocketAddr, among: &[i32]) -> Option<i32> {
        self.may_ask().then_some(())?;
        climb(self.holder(self.only_at(own.port())?)?, among)
    }

    /// The only socket for datagrams with this port.
    fn only_at(&self, port: u16) -> Option<u64> {
        let mut sockets = BTreeSet::new();
        for table in ["net/udp", "net/udp6"] {
            let list = read(&self.first_dir().join(table))?;
            sockets.extend(list.lines().skip(1).filter_map(|line| bound(line, port)));
        }
        sockets.pop_first().filter(|_| sockets.is_empty())
    }

    /// The process with a descriptor of this socket, the latest first: whoever connects has seldom children.
    fn holder(&self, inode: u64) -> Option<i32> {
        let wanted = PathBuf::from(format!("socket:[{inode}]"));
        let mut looks = Looks(MOST_LOOKS);
        for pid in self.processes(&mut looks).into_iter().rev() {
            for (entry, _) in numbers(&PathBuf::from(format!("/proc/{pid}/fd"))) {
                looks.next()?;
                if fs::read_link(entry).is_ok_and(|link| link == wanted) {
                    return Some(pid);
                }
            }
        }
        None
    }

    fn may_ask(&mut self) -> bool {
        let earned = self.since.elapsed().as_millis() / ONE_MORE.as_millis();
        if earned > 0 {
            self.left = self.left.saturating_add(earned.min(MOST_AT_ONCE.into()) as u32).min(MOST_AT_ONCE);
            self.since = Instant::now();
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }

    /// All below the first, parents before their children.
    fn processes(&self, looks: &mut Looks) -> Vec<i32> {
        let mut found = children(&self.first_dir(), looks);
        let mut at = 0;
        while let Some(pid) = found.get(at) {
            let below = children(Path::new(&format!("/proc/{pid}")), looks);
            found.extend(below);
            at += 1;
        }
        found
    }

    fn first_dir(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.first.as_raw_fd()).into()
    }
}

/// The first of these that is the process or above it.
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

/// How much may still be looked at.
struct Looks(usize);

impl Looks {
    fn next(&mut self) -> Option<()> {
        self.0 = self.0.checked_sub(1)?;
        Some(())
    }
}

/// The processes that threads of this one have made.
fn children(process: &Path, looks: &mut Looks) -> Vec<i32> {
    let mut found = Vec::new();
    for (thread, _) in numbers(&process.join("task")) {
        if looks.next().is_none() {
            break;
        }
        let list = read(&thread.join("children")).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()).take(looks.0));
    }
    found
}

/// The entries of a directory that are numbers.
fn numbers(dir: &Path) -> impl Iterator<Item = (PathBuf, i32)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| Some((e.path(), e.file_name().to_str()?.parse().ok()?)))
}

fn read(file: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(file).ok()?.take(LONGEST_LIST).read_to_string(&mut text).ok()?;
    // What was cut off may be what decides.
    (text.len() < LONGEST_LIST as usize).then_some(text)
}

/// The socket of a line of the kernel's table, if it has this port.
fn bound(line: &str, port: u16) -> Option<u64> {
    let mut words = line.split_whitespace();
    let (_, own) = words.nth(1)?.rsplit_once(':')?;
    let inode = words.nth(7)?.parse().ok()?;
    (u16::from_str_radix(own, 16) == Ok(port)).then_some(inode)
}

/// What the processes of a guest use, as the kernel tells of each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub cpu_us: u64,
    pub memory_bytes: u64,
    pub processes: u64,
}

/// Adds up the first process and all below it, within bounds. Who is gone is in the account of who collected it.
pub(crate) fn tally(first: i32) -> Tally {
    const TICK_US: u64 = 10_000;
    const PAGE: u64 = 4096;
    let mut looks = Looks(MOST_LOOKS);
    let mut found = vec![first];
    let mut sum = Tally::default();
    let mut at = 0;
    while let Some(pid) = found.get(at).copied() {
        at += 1;
        let process = PathBuf::from(format!("/proc/{pid}"));
        found.extend(children(&process, &mut looks));
        let Some(stat) = read(&process.join("stat")) else { continue };
        let fields: Vec<u64> = stat
            .rsplit_once(") ")
            .map(|(_, rest)| rest.split(' ').map(|word| word.parse().unwrap_or(0)).collect())
            .unwrap_or_default();
        // Own time and that of those who were collected; then pages in memory.
        sum.cpu_us += fields.get(11..15).map_or(0, |times| times.iter().sum::<u64>()) * TICK_US;
        sum.memory_bytes += fields.get(21).copied().unwrap_or(0) * PAGE;
        sum.processes += 1;
    }
    sum
}

/// One spelling for an address, whichever protocol's socket it is on.
fn plain(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

/// The process of a thread, by the number that it has inside.
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
        let answered = (0..1000).filter(|_| actors.may_ask()).count() as u32;
        assert!((MOST_AT_ONCE..1000).contains(&answered), "{answered}");
    }

    #[test]
    fn mapped_addresses_are_plain_ones() {
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:80".parse().unwrap();
        assert_eq!(plain(mapped), "192.0.2.1:80".parse().unwrap());
    }
}
