//! Attribution of processes to commands in a resident guest. Each command has a shepherd, and all its processes are
//! descendants of that. Has nothing to do with the file locks of flock(2).

use crate::denials::Denials;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use terms::Denial;

/// Ancestors searched for a shepherd. A process that is nested deeper belongs to no command.
pub(crate) const MOST_STEPS: usize = 64;
/// Refusals that wait to be reported.
const MOST_UNREPORTED: usize = 1024;

/// A command of a resident guest, by number; no number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

#[derive(Default)]
pub struct Flock {
    /// Pid of the first process on the host.
    first: i32,
    /// Shepherds by their pids on the host and in the guest's namespace.
    outside: HashMap<i32, JobId>,
    inside: HashMap<i32, JobId>,
    /// The command that is starting and whose shepherd is not known yet.
    starting: Option<JobId>,
    /// Root directory of the guest, whose /proc has the pids of its namespace.
    root: Option<OwnedFd>,
    denials: BTreeMap<JobId, Denials>,
    unreported: Vec<(Option<JobId>, Denial)>,
}

impl Flock {
    pub fn new(first: i32, root: Option<OwnedFd>) -> Flock {
        Flock { first, root, ..Flock::default() }
    }

    /// Adds a command that is starting. The next may be added once this one has a shepherd.
    pub fn add(&mut self, job: JobId) {
        self.starting = Some(job);
        self.denials.insert(job, Denials::default());
    }

    /// Records the shepherd of the command that is starting.
    pub fn set_shepherd(&mut self, job: JobId, shepherd: BorrowedFd<'_>) {
        self.starting = None;
        if let Some((outside, inside)) = numbers(shepherd) {
            self.outside.insert(outside, job);
            self.inside.insert(inside, job);
        }
    }

    /// Returns the pid of a job's shepherd on the host.
    pub fn shepherd(&self, job: JobId) -> Option<i32> {
        self.outside.iter().find(|(_, of)| **of == job).map(|(pid, _)| *pid)
    }

    /// Returns the job whose shepherd has this pid on the host.
    pub fn tended_by(&self, shepherd: i32) -> Option<JobId> {
        self.outside.get(&shepherd).copied()
    }

    /// Removes a job whose processes are gone; returns its refusals, how many more there were than are listed, and its notes.
    pub fn remove(&mut self, job: JobId) -> (Vec<Denial>, u64, Vec<String>) {
        self.starting = self.starting.filter(|of| *of != job);
        self.outside.retain(|_, of| *of != job);
        self.inside.retain(|_, of| *of != job);
        self.denials.remove(&job).unwrap_or_default().into_parts()
    }

    pub fn denials(&mut self, job: JobId) -> Option<&mut Denials> {
        self.denials.get_mut(&job)
    }

    pub fn tell(&mut self, job: Option<JobId>, denial: Denial) {
        if self.unreported.len() < MOST_UNREPORTED {
            self.unreported.push((job, denial));
        }
    }

    pub fn take_unreported(&mut self) -> Vec<(Option<JobId>, Denial)> {
        std::mem::take(&mut self.unreported)
    }

    /// True for the first process and for shepherds.
    pub fn is_ours(&self, tid: i32) -> bool {
        tid == self.first || self.outside.contains_key(&tid) || parent(tid) == Some(self.first)
    }

    /// Returns the job of a thread, by its id on the host.
    pub fn of(&self, tid: i32) -> Option<JobId> {
        climb(&self.outside, self.starting, self.first, tid, parent)
    }

    /// Returns the job of a process, by its pid inside.
    pub fn of_inside(&self, pid: i32) -> Option<JobId> {
        climb(&self.inside, self.starting, 1, pid, |pid| self.parent_inside(pid))
    }

    fn parent_inside(&self, pid: i32) -> Option<i32> {
        let (flags, resolve) = (OFlags::RDONLY | OFlags::CLOEXEC, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS);
        let file = openat2(self.root.as_ref()?, format!("proc/{pid}/stat"), flags, Mode::empty(), resolve).ok()?;
        let mut text = String::new();
        fs::File::from(file).take(4096).read_to_string(&mut text).ok()?;
        parent_in(&text)
    }
}

/// Climbs from a process to the shepherd above it. A child of the first process that is no known shepherd is that of
/// the command that is starting.
fn climb(
    shepherds: &HashMap<i32, JobId>,
    starting: Option<JobId>,
    first: i32,
    from: i32,
    parent: impl Fn(i32) -> Option<i32>,
) -> Option<JobId> {
    let mut at = from;
    for _ in 0..MOST_STEPS {
        if let Some(job) = shepherds.get(&at) {
            return Some(*job);
        }
        at = match parent(at)? {
            above if above == first => return starting,
            above => above,
        };
    }
    None
}

pub(crate) fn parent(pid: i32) -> Option<i32> {
    parent_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses the parent's pid from `/proc/PID/stat`. The comm field before it may contain any character, parentheses
/// included.
fn parent_in(stat: &str) -> Option<i32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Returns the pids of a process on the host and inside its namespace.
fn numbers(pidfd: BorrowedFd<'_>) -> Option<(i32, i32)> {
    // A single read: the kernel generates fdinfo anew for each.
    let mut info = [0; 1024];
    let length = fs::File::open(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?.read(&mut info).ok()?;
    let info = std::str::from_utf8(&info[..length]).ok()?;
    let mut all = info.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace();
    let outside = all.next()?.parse().ok()?;
    Some((outside, all.next_back()?.parse().ok()?))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_process_is_found_below_its_shepherd() {
        let shepherds = HashMap::from([(10, JobId(1)), (20, JobId(2))]);
        let parents = HashMap::from([(10, 1), (20, 1), (11, 10), (12, 11), (21, 20), (30, 1), (2, 1)]);
        let of_with = |starting, pid| climb(&shepherds, starting, 1, pid, |pid| parents.get(&pid).copied());
        let of = |pid| of_with(None, pid);
        assert_eq!((of(12), of(21), of(10)), (Some(JobId(1)), Some(JobId(2)), Some(JobId(1))));
        assert_eq!((of(30), of(2), of(99)), (None, None, None));
        assert_eq!((of_with(Some(JobId(3)), 30), of_with(Some(JobId(3)), 12)), (Some(JobId(3)), Some(JobId(1))));
        assert_eq!(climb(&shepherds, None, 1, 5, Some), None, "a ring ends");
        assert_eq!(parent_in("7 (a) b (c)) S 6 7 7"), Some(6));
    }
}
