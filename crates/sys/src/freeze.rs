//! Freezes all processes of a guest by SIGSTOP, for a moment. A helper that shares our memory thaws them should this
//! process be killed meanwhile.
//!
//! Parents are stopped before their children and continued after them, so that no shell of the guest sees a stopped
//! job.

use crate::{CallError, errno};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bound on the processes that are frozen.
const MOST: usize = 32_768;
/// Number of rounds after which stopped children are continued for a moment, if their parent waits for them (vfork) and
/// therefore cannot stop.
const GRACE_EVERY: u32 = 8;
const PAUSE: Duration = Duration::from_micros(300);
/// First grace period of such children, doubled each time: on a busy machine a child may not get scheduled in less.
const FIRST_GRACE: Duration = Duration::from_millis(2);
const MAX_GRACE: Duration = Duration::from_millis(256);
/// Minimum of rounds in a grace period: in each round the supervisor answers notifications, and a child may need an
/// answer to its exec.
const MIN_GRACE_ROUNDS: u32 = 4;

#[derive(Debug)]
pub enum FreezeError {
    /// The supervisor has no guest processes.
    NoGuest,
    /// The deadline passed; these processes still ran, each with its name and the state of its threads.
    TooSlow(Vec<String>),
    TooMany,
    Call(CallError),
}

impl std::fmt::Display for FreezeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FreezeError::NoGuest => f.write_str("no process of a guest was found"),
            FreezeError::TooSlow(left) => {
                write!(f, "{} processes of the guest did not stand still in time: {}", left.len(), left.join(", "))
            }
            FreezeError::TooMany => write!(f, "the guest has more than {MOST} processes"),
            FreezeError::Call(error) => error.fmt(f),
        }
    }
}

struct StoppedPids {
    count: AtomicUsize,
    pids: Vec<AtomicI32>,
    alarm: RawFd,
    stack: Vec<u8>,
}

/// A frozen guest; dropping the value thaws it.
pub struct Frozen {
    list: NonNull<StoppedPids>,
    release: OwnedFd,
    helper: i32,
}

impl std::fmt::Debug for Frozen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frozen({})", self.list().count.load(Ordering::SeqCst))
    }
}

/// Freezes all processes in pid namespaces below `supervisor`. Gives up after `patience`, and then thaws all.
pub fn freeze_guest(supervisor: u32, patience: Duration) -> Result<Frozen, FreezeError> {
    let deadline = Instant::now() + patience;
    let mut freezing = Freezing::start(supervisor)?;
    while !freezing.step()? {
        if Instant::now() >= deadline {
            return Err(FreezeError::TooSlow(freezing.running()));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(freezing.finish())
}

/// A freeze in progress, step by step, for a supervisor that must answer its guest meanwhile. Dropping it thaws all.
pub struct Freezing {
    supervisor: u32,
    frozen: Frozen,
    stopped: BTreeSet<i32>,
    previous: Option<Vec<i32>>,
    round: u32,
    running_count: usize,
    next_grace: Duration,
    grace: Option<GracePeriod>,
}

/// Children in a grace period, and its end.
struct GracePeriod {
    until: Instant,
    round: u32,
    children: BTreeSet<i32>,
}

impl Freezing {
    pub fn start(supervisor: u32) -> Result<Freezing, FreezeError> {
        let frozen = start().map_err(FreezeError::Call)?;
        let (stopped, previous, next_grace, grace) = (BTreeSet::new(), None, FIRST_GRACE, None);
        Ok(Freezing { supervisor, frozen, stopped, previous, round: 0, running_count: 0, next_grace, grace })
    }

    /// Stops processes that still run; true once none did.
    pub fn step(&mut self) -> Result<bool, FreezeError> {
        self.round += 1;
        // On a host with many processes, listing all of /proc takes longer than a guest needs to fork. So that is done
        // first and last, and in between the children lists are enough to find running processes.
        let known = if self.running_count > 0 { guests_by_children(self.supervisor) } else { None };
        let (is_whole, guests) = (known.is_none(), known.unwrap_or_else(|| guests(self.supervisor)));
        if guests.is_empty() && self.previous.is_none() {
            return Err(FreezeError::NoGuest);
        }
        self.running_count = 0;
        // The grace period ends once no parent waits in vfork, or its time is over.
        let (now, round) = (Instant::now(), self.round);
        let is_over = |go: &GracePeriod| {
            now >= go.until && round >= go.round || !guests.iter().any(|pid| is_uninterruptible(*pid))
        };
        self.grace = self.grace.take().filter(|go| !is_over(go));
        for &pid in &guests {
            if is_stopped(pid) {
                continue;
            }
            self.running_count += 1;
            if self.stopped.insert(pid) {
                self.frozen.note(pid)?;
            }
            if self.grace.as_ref().is_some_and(|go| go.children.contains(&pid)) {
                continue;
            }
            if self.round.is_multiple_of(GRACE_EVERY) && is_uninterruptible(pid) {
                self.continue_children(pid, &guests);
                continue;
            }
            // SAFETY: a plain signal. A descendant of the supervisor belongs to it, even where a pid was reused.
            unsafe { libc::kill(pid, libc::SIGSTOP) };
        }
        // A process that was being forked shows in the second listing.
        let mut found = guests;
        found.sort_unstable();
        let still = is_whole && self.running_count == 0 && self.previous.as_ref() == Some(&found);
        self.previous = Some(found);
        Ok(still)
    }

    /// Continues the children of a process that waits in vfork: it stops only after the child has executed or exited.
    fn continue_children(&mut self, pid: i32, guests: &[i32]) {
        let ours = &self.stopped;
        let children = guests.iter().filter(|child| ours.contains(*child) && parent_of(**child) == Some(pid));
        let children: Vec<i32> = children.copied().collect();
        if children.is_empty() {
            return;
        }
        for child in &children {
            // SAFETY: a plain signal to a process that we stopped; a later round stops it again.
            unsafe { libc::kill(*child, libc::SIGCONT) };
        }
        let (until, round) = (Instant::now() + self.next_grace, self.round + MIN_GRACE_ROUNDS);
        self.next_grace = (self.next_grace * 2).min(MAX_GRACE);
        let go = self.grace.get_or_insert_with(|| GracePeriod { until, round, children: BTreeSet::new() });
        (go.until, go.round) = (until, round);
        go.children.extend(children);
    }

    /// Describes some of the processes that still run.
    pub fn running(&self) -> Vec<String> {
        const SOME: usize = 8;
        let moving = guests(self.supervisor).into_iter().filter(|pid| !is_stopped(*pid));
        moving.take(SOME).map(describe).collect()
    }

    pub fn finish(self) -> Frozen {
        self.frozen
    }
}

/// Asks the kernel to page out the memory of stopped processes (MADV_PAGEOUT); returns the bytes by which their
/// resident size shrank. `None` if the kernel permits that for no process.
pub fn page_out(pids: &[i32]) -> Option<u64> {
    let before: u64 = pids.iter().map(|pid| resident(*pid)).sum();
    let heard = pids.iter().filter(|pid| page_out_one(**pid).is_ok()).count();
    let after: u64 = pids.iter().map(|pid| resident(*pid)).sum();
    (heard > 0).then(|| before.saturating_sub(after))
}

fn page_out_one(pid: i32) -> Result<(), CallError> {
    const PAGE_OUT: i32 = 21;
    /// Ranges per call, and calls per process.
    const RANGES_PER_CALL: usize = 256;
    const CALLS: usize = 64;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let ranges: Vec<libc::iovec> = maps.lines().filter_map(parse_range).take(RANGES_PER_CALL * CALLS).collect();
    if ranges.is_empty() {
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
    for some in ranges.chunks(RANGES_PER_CALL) {
        // SAFETY: a list with its true length; its addresses belong to the other process and are not dereferenced here.
        let got = unsafe {
            libc::syscall(libc::SYS_process_madvise, handle.as_raw_fd(), some.as_ptr(), some.len(), PAGE_OUT, 0u32)
        };
        if got < 0 && errno() == libc::EPERM {
            return Err(CallError::last("process_madvise"));
        }
    }
    Ok(())
}

/// Parses a line of `/proc/PID/maps`, unless it is one of the kernel's mappings.
fn parse_range(line: &str) -> Option<libc::iovec> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let (from, to) = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
    let of_kernel = rest.contains("[v");
    (!of_kernel && to > from).then(|| libc::iovec { iov_base: from as *mut libc::c_void, iov_len: to - from })
}

/// Returns the resident size in bytes.
fn resident(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

impl Frozen {
    fn list(&self) -> &StoppedPids {
        // SAFETY: lives until this is dropped and the helper reaped; only atomics in it change.
        unsafe { self.list.as_ref() }
    }

    /// Records a process before it is stopped, so that the helper continues it even if we are killed in between.
    fn note(&self, pid: i32) -> Result<(), FreezeError> {
        let at = self.list().count.load(Ordering::SeqCst);
        self.list().pids.get(at).ok_or(FreezeError::TooMany)?.store(pid, Ordering::SeqCst);
        self.list().count.store(at + 1, Ordering::SeqCst);
        Ok(())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        continue_all(self.list());
        let done = 1u8;
        // SAFETY: one byte from a local, and then our own child is collected.
        unsafe {
            libc::write(self.release.as_raw_fd(), (&raw const done).cast(), 1);
            if libc::waitpid(self.helper, std::ptr::null_mut(), libc::__WALL) == self.helper {
                // The helper has ended, so no other reference is left.
                drop(Box::from_raw(self.list.as_ptr()));
            }
        }
    }
}

/// Continues all processes, last first. Takes no lock and allocates nothing, because the helper calls it, too.
fn continue_all(list: &StoppedPids) {
    let count = list.count.load(Ordering::SeqCst).min(list.pids.len());
    for pid in list.pids[..count].iter().rev() {
        // SAFETY: a plain signal to a process that we stopped.
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
    let list = StoppedPids { count: AtomicUsize::new(0), pids, alarm: alarm.as_raw_fd(), stack: vec![0; 16 * 1024] };
    let list: *mut StoppedPids = Box::leak(Box::new(list));
    // SAFETY: the list and the stack live until the helper has been reaped, and longer should that fail. The helper has
    // its own descriptor table, runs only `watch`, and uses only atomics of the list and its stack.
    let helper = unsafe {
        let stack = &mut (*list).stack;
        let top = stack.as_mut_ptr().add(stack.len() & !15).cast();
        libc::clone(watch, top, libc::CLONE_VM, list.cast())
    };
    if helper < 0 {
        return Err(CallError::last("clone"));
    }
    // SAFETY: from a box; from here on only shared references to it exist.
    Ok(Frozen { list: unsafe { NonNull::new_unchecked(list) }, release, helper })
}

extern "C" fn watch(list: *mut libc::c_void) -> i32 {
    // SAFETY: made by `start` and kept until this process is reaped; only atomics change.
    let list = unsafe { &*list.cast::<StoppedPids>() };
    // SAFETY: raw calls on our own descriptor table.
    unsafe {
        libc::syscall(libc::SYS_setsid);
        let mut all: [u64; 1] = [u64::MAX];
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw mut all, 0usize, 8usize);
        // Our copy of the write end must close, or the supervisor's end would never show as end of file.
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
            continue_all(list);
        }
        libc::_exit(0)
    }
}

/// Like `guests`, by the children lists. Quick, but a process that is reparented meanwhile may be missed. `None` if the
/// kernel has no children lists.
fn guests_by_children(supervisor: u32) -> Option<Vec<i32>> {
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

/// Returns the children of all threads of a process.
fn children_of(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<i32>>()).collect()
}

/// Returns the descendants of the supervisor in nested pid namespaces, parents first.
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

/// Returns the number of pid namespaces in which a process has a pid; readable for every user, which the namespace
/// itself is not.
fn depth(pid: i32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"));
    line.map_or(0, |numbers| numbers.split_whitespace().count())
}

fn parent_of(pid: i32) -> Option<i32> {
    after_name(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?.split(' ').nth(1)?.parse().ok()
}

/// Returns true if the process is in uninterruptible sleep, as after `vfork`.
fn is_uninterruptible(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    after_name(&stat).is_some_and(|rest| rest.starts_with('D'))
}

/// Returns true if all threads are stopped, or the process is gone.
fn is_stopped(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else { return true };
        after_name(&stat).is_none_or(|rest| matches!(rest.as_bytes().first(), Some(b'T' | b't' | b'Z' | b'X')))
    })
}

/// Describes a process by pid, name and the states of all threads. The name is chosen by the guest, so it is escaped.
fn describe(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    let states: String = stats.filter_map(|stat| after_name(&stat)?.chars().next()).take(64).collect();
    format!("{pid} {:?} {states}", name.trim_end())
}

/// Returns the fields after the name in `/proc/PID/stat`; the name may contain any character, brackets included.
fn after_name(stat: &str) -> Option<&str> {
    stat.rsplit_once(") ").map(|(_, rest)| rest)
}
