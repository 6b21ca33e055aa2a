//! Holds all processes of a guest still for a moment, and lets them go on whatever becomes of us: a helper shares our memory, and
//! should we end without a word, it wakes whom we stopped.
//!
//! Parents are stopped before their children and woken after them, so that no shell of the guest sees a stopped job.

use crate::{CallError, errno};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The most processes that are held.
const MOST: usize = 32_768;
/// Every so many rounds, children are let go on for a moment for whose sake a parent cannot stand still.
const NUDGE: u32 = 8;
const PAUSE: Duration = Duration::from_micros(300);
/// How long they are let go on: twice as long each time, for on a busy machine a child may not even have its turn in less.
const MOMENT: Duration = Duration::from_millis(2);
const LONGEST_MOMENT: Duration = Duration::from_millis(256);
/// And for so many rounds at least: in each the supervisor answers calls, and a child may need an answer to become another program.
const ROUNDS: u32 = 4;

#[derive(Debug)]
pub enum Trouble {
    /// No process of a guest is below the one that was named.
    NoGuest,
    /// Not all stood still in time; these were left, each with its name and the state of its threads.
    TooSlow(Vec<String>),
    TooMany,
    Call(CallError),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::NoGuest => f.write_str("no process of a guest was found"),
            Trouble::TooSlow(left) => {
                write!(f, "{} processes of the guest did not stand still in time: {}", left.len(), left.join(", "))
            }
            Trouble::TooMany => write!(f, "the guest has more than {MOST} processes"),
            Trouble::Call(error) => error.fmt(f),
        }
    }
}

struct List {
    count: AtomicUsize,
    pids: Vec<AtomicI32>,
    alarm: RawFd,
    stack: Vec<u8>,
}

/// A guest that stands still; it goes on when this is dropped.
pub struct Frozen {
    list: NonNull<List>,
    release: OwnedFd,
    helper: i32,
}

impl std::fmt::Debug for Frozen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frozen({})", self.list().count.load(Ordering::SeqCst))
    }
}

/// Stops all processes that live in a pid namespace below `supervisor`, until none moves. Gives up after `patience`, and then all go on.
pub fn guest_of(supervisor: u32, patience: Duration) -> Result<Frozen, Trouble> {
    let deadline = Instant::now() + patience;
    let mut freezing = Freezing::start(supervisor)?;
    while !freezing.step()? {
        if Instant::now() >= deadline {
            return Err(Trouble::TooSlow(freezing.moving()));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(freezing.finish())
}

/// The same step by step, for a supervisor who must answer his guest meanwhile. Dropped, all go on.
pub struct Freezing {
    supervisor: u32,
    frozen: Frozen,
    ours: BTreeSet<i32>,
    before: Option<Vec<i32>>,
    round: u32,
    moving: usize,
    moment: Duration,
    let_go: Option<LetGo>,
}

/// Those who are let go on, and until when.
struct LetGo {
    until: Instant,
    round: u32,
    children: BTreeSet<i32>,
}

impl Freezing {
    pub fn start(supervisor: u32) -> Result<Freezing, Trouble> {
        let frozen = start().map_err(Trouble::Call)?;
        let (ours, before, moment, let_go) = (BTreeSet::new(), None, MOMENT, None);
        Ok(Freezing { supervisor, frozen, ours, before, round: 0, moving: 0, moment, let_go })
    }

    /// Stops those who still move; true once nobody did.
    pub fn step(&mut self) -> Result<bool, Trouble> {
        self.round += 1;
        // Where many processes live, a look at all of them takes longer than a guest needs to make new ones. So that is done first
        // and last, and in between it is enough to find those who move.
        let known = if self.moving > 0 { below(self.supervisor) } else { None };
        let (is_whole, guests) = (known.is_none(), known.unwrap_or_else(|| guests(self.supervisor)));
        if guests.is_empty() && self.before.is_none() {
            return Err(Trouble::NoGuest);
        }
        self.moving = 0;
        // Nobody waits for them any more, or they had their time.
        let (now, round) = (Instant::now(), self.round);
        let is_over =
            |go: &LetGo| now >= go.until && round >= go.round || !guests.iter().any(|pid| waits_for_a_child(*pid));
        self.let_go = self.let_go.take().filter(|go| !is_over(go));
        for &pid in &guests {
            if stands_still(pid) {
                continue;
            }
            self.moving += 1;
            if self.ours.insert(pid) {
                self.frozen.note(pid)?;
            }
            if self.let_go.as_ref().is_some_and(|go| go.children.contains(&pid)) {
                continue;
            }
            if self.round.is_multiple_of(NUDGE) && waits_for_a_child(pid) {
                self.let_children_go(pid, &guests);
                continue;
            }
            // SAFETY: a plain signal. Whoever is below the supervisor is its own, even where a number was given anew.
            unsafe { libc::kill(pid, libc::SIGSTOP) };
        }
        // One that was about to be born shows in the second look.
        let mut found = guests;
        found.sort_unstable();
        let still = is_whole && self.moving == 0 && self.before.as_ref() == Some(&found);
        self.before = Some(found);
        Ok(still)
    }

    /// It shares its memory with a child that has not yet become another program, and stands still only afterwards.
    fn let_children_go(&mut self, pid: i32, guests: &[i32]) {
        let ours = &self.ours;
        let children = guests.iter().filter(|child| ours.contains(*child) && parent_of(**child) == Some(pid));
        let children: Vec<i32> = children.copied().collect();
        if children.is_empty() {
            return;
        }
        for child in &children {
            // SAFETY: a plain signal to one that was stopped; a later round stops it again.
            unsafe { libc::kill(*child, libc::SIGCONT) };
        }
        let (until, round) = (Instant::now() + self.moment, self.round + ROUNDS);
        self.moment = (self.moment * 2).min(LONGEST_MOMENT);
        let go = self.let_go.get_or_insert_with(|| LetGo { until, round, children: BTreeSet::new() });
        (go.until, go.round) = (until, round);
        go.children.extend(children);
    }

    /// Some of those who still move.
    pub fn moving(&self) -> Vec<String> {
        const SOME: usize = 8;
        let moving = guests(self.supervisor).into_iter().filter(|pid| !stands_still(*pid));
        moving.take(SOME).map(described).collect()
    }

    pub fn finish(self) -> Frozen {
        self.frozen
    }
}

/// Asks the kernel to put away the memory of processes that stand still; the bytes that they have less afterwards. None where
/// it does not take such wishes from us.
pub fn page_out(pids: &[i32]) -> Option<u64> {
    let before: u64 = pids.iter().map(|pid| resident(*pid)).sum();
    let heard = pids.iter().filter(|pid| page_out_one(**pid).is_ok()).count();
    let after: u64 = pids.iter().map(|pid| resident(*pid)).sum();
    (heard > 0).then(|| before.saturating_sub(after))
}

fn page_out_one(pid: i32) -> Result<(), CallError> {
    const PAGE_OUT: i32 = 21;
    /// Stretches in one call, and calls for one process.
    const EACH: usize = 256;
    const CALLS: usize = 64;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let stretches: Vec<libc::iovec> = maps.lines().filter_map(stretch).take(EACH * CALLS).collect();
    if stretches.is_empty() {
        return Err(CallError { call: "read(maps)", errno: libc::EPERM });
    }
    // SAFETY: numbers only; the descriptor is owned once.
    let handle = unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0u32);
        if fd < 0 {
            return Err(CallError::last("pidfd_open"));
        }
        OwnedFd::from_raw_fd(fd as RawFd)
    };
    for some in stretches.chunks(EACH) {
        // SAFETY: a list with its true length; the addresses in it are the other's and are not followed here.
        let got = unsafe {
            libc::syscall(libc::SYS_process_madvise, handle.as_raw_fd(), some.as_ptr(), some.len(), PAGE_OUT, 0u32)
        };
        if got < 0 && errno() == libc::EPERM {
            return Err(CallError::last("process_madvise"));
        }
    }
    Ok(())
}

/// A line of `/proc/PID/maps`, unless it is the kernel's own.
fn stretch(line: &str) -> Option<libc::iovec> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let (from, to) = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
    let of_kernel = rest.contains("[v");
    (!of_kernel && to > from).then(|| libc::iovec { iov_base: from as *mut libc::c_void, iov_len: to - from })
}

/// Bytes that a process has in memory.
fn resident(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

impl Frozen {
    fn list(&self) -> &List {
        // SAFETY: lives until this is dropped and the helper collected; only atomics in it change.
        unsafe { self.list.as_ref() }
    }

    /// Before it is stopped: whoever ends in between leaves nobody behind.
    fn note(&self, pid: i32) -> Result<(), Trouble> {
        let at = self.list().count.load(Ordering::SeqCst);
        self.list().pids.get(at).ok_or(Trouble::TooMany)?.store(pid, Ordering::SeqCst);
        self.list().count.store(at + 1, Ordering::SeqCst);
        Ok(())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        wake(self.list());
        let done = 1u8;
        // SAFETY: one byte from a local, and then our own child is collected.
        unsafe {
            libc::write(self.release.as_raw_fd(), (&raw const done).cast(), 1);
            if libc::waitpid(self.helper, std::ptr::null_mut(), libc::__WALL) == self.helper {
                // Nobody else knows of it any more.
                drop(Box::from_raw(self.list.as_ptr()));
            }
        }
    }
}

/// Wakes all, last first. Takes no lock and allocates nothing: the helper does it, too.
fn wake(list: &List) {
    let count = list.count.load(Ordering::SeqCst).min(list.pids.len());
    for pid in list.pids[..count].iter().rev() {
        // SAFETY: a plain signal to one that was stopped.
        unsafe { libc::kill(pid.load(Ordering::SeqCst), libc::SIGCONT) };
    }
}

fn start() -> Result<Frozen, CallError> {
    let mut pair = [0; 2];
    // SAFETY: the kernel fills both.
    if unsafe { libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(CallError::last("pipe2"));
    }
    // SAFETY: fresh descriptors, owned once each.
    let (alarm, release) = unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
    let pids = (0..MOST).map(|_| AtomicI32::new(0)).collect();
    let list = List { count: AtomicUsize::new(0), pids, alarm: alarm.as_raw_fd(), stack: vec![0; 16 * 1024] };
    let list: *mut List = Box::leak(Box::new(list));
    // SAFETY: the list and the stack live until the helper has been collected, and longer should that fail. The helper has its own
    // descriptor table, runs only `watch`, and uses nothing of the list but atomics and its stack.
    let helper = unsafe {
        let stack = &mut (*list).stack;
        let top = stack.as_mut_ptr().add(stack.len() & !15).cast();
        libc::clone(watch, top, libc::CLONE_VM, list.cast())
    };
    if helper < 0 {
        return Err(CallError::last("clone"));
    }
    // SAFETY: from a box; from here on nobody has it but by shared reference.
    Ok(Frozen { list: unsafe { NonNull::new_unchecked(list) }, release, helper })
}

extern "C" fn watch(list: *mut libc::c_void) -> i32 {
    // SAFETY: made by `start` and kept until we are collected; only atomics change.
    let list = unsafe { &*list.cast::<List>() };
    // SAFETY: raw calls on our own descriptor table.
    unsafe {
        libc::syscall(libc::SYS_setsid);
        let mut all: [u64; 1] = [u64::MAX];
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw mut all, 0usize, 8usize);
        // Our copy of the other end must close, or the end of the one we watch would never show.
        if list.alarm > 0 {
            libc::syscall(libc::SYS_close_range, 0u32, list.alarm as u32 - 1, 0u32);
        }
        libc::syscall(libc::SYS_close_range, list.alarm as u32 + 1, u32::MAX, 0u32);
        let mut byte = 0u8;
        let heard = loop {
            let heard = libc::read(list.alarm, (&raw mut byte).cast(), 1);
            if heard >= 0 || errno() != libc::EINTR {
                break heard;
            }
        };
        if heard != 1 {
            wake(list);
        }
        libc::_exit(0)
    }
}

/// The same as `guests`, from parents to children. Quick, but one who changes parents meanwhile may be missed. None where the kernel
/// does not tell children.
fn below(supervisor: u32) -> Option<Vec<i32>> {
    let own_depth = depth(supervisor as i32);
    let mut found = Vec::new();
    let mut level = vec![supervisor as i32];
    fs::metadata(format!("/proc/{supervisor}/task/{supervisor}/children")).ok()?;
    while !level.is_empty() && found.len() <= MOST {
        level = level.iter().flat_map(|pid| children_of(*pid)).collect();
        found.extend(level.iter().copied().filter(|pid| depth(*pid) > own_depth));
    }
    Some(found)
}

/// Of all its threads.
fn children_of(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<i32>>()).collect()
}

/// Processes below the supervisor that live in a pid namespace of their own, parents first.
pub fn guests(supervisor: u32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let Ok(listed) = fs::read_dir("/proc") else { return Vec::new() };
    for pid in listed.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok()) {
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let own_depth = depth(supervisor as i32);
    let mut found = Vec::new();
    let mut level = vec![supervisor as i32];
    while !level.is_empty() {
        level = level.iter().filter_map(|pid| children.remove(pid)).flatten().collect();
        found.extend(level.iter().copied().filter(|pid| depth(*pid) > own_depth));
    }
    found
}

/// In how many pid namespaces it has a number; readable for all, which the namespace itself is not.
fn depth(pid: i32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"));
    line.map_or(0, |numbers| numbers.split_whitespace().count())
}

fn parent_of(pid: i32) -> Option<i32> {
    after_name(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?.split(' ').nth(1)?.parse().ok()
}

/// In a sleep that no signal but the last ends, as after `vfork`.
fn waits_for_a_child(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    after_name(&stat).is_some_and(|rest| rest.starts_with('D'))
}

/// All its threads are stopped, or it is gone.
fn stands_still(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else { return true };
        after_name(&stat).is_none_or(|rest| matches!(rest.as_bytes().first(), Some(b'T' | b't' | b'Z' | b'X')))
    })
}

/// Number, name and the states of all threads. The name is the guest's own: what is no plain text in it is shown as such.
fn described(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    let states: String = stats.filter_map(|stat| after_name(&stat)?.chars().next()).take(64).collect();
    format!("{pid} {:?} {states}", name.trim_end())
}

/// What follows the name in `/proc/PID/stat`; the name may hold anything, brackets included.
fn after_name(stat: &str) -> Option<&str> {
    stat.rsplit_once(") ").map(|(_, rest)| rest)
}
