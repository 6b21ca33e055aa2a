//! Whose a process is, where many commands run in one guest: each has a shepherd, and all that came of it is below that.

use crate::denials::Denials;
use crate::residence::Job;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use terms::Denial;

/// How far up is looked for a shepherd. A guest that nests deeper is not told apart.
pub(crate) const MOST_STEPS: usize = 64;
/// Refusals that wait to be told.
const MOST_TOLD: usize = 1024;

#[derive(Default)]
pub struct Flock {
    /// The first process, by its number outside.
    first: i32,
    /// Shepherds by their numbers outside and inside.
    outside: HashMap<i32, Job>,
    inside: HashMap<i32, Job>,
    /// The one whose shepherd is not known yet.
    begins: Option<Job>,
    /// The guest's tree, in which its processes have the numbers that they have inside.
    root: Option<OwnedFd>,
    denials: BTreeMap<Job, Denials>,
    told: Vec<(Option<Job>, Denial)>,
}

impl Flock {
    pub fn new(first: i32, root: Option<OwnedFd>) -> Flock {
        Flock { first, root, ..Flock::default() }
    }

    /// One that begins; the next only when there is a shepherd.
    pub fn add(&mut self, job: Job) {
        self.begins = Some(job);
        self.denials.insert(job, Denials::default());
    }

    /// There is a shepherd.
    pub fn tended(&mut self, job: Job, shepherd: BorrowedFd<'_>) {
        self.begins = None;
        if let Some((outside, inside)) = numbers(shepherd) {
            self.outside.insert(outside, job);
            self.inside.insert(inside, job);
        }
    }

    /// The number of a job's shepherd outside.
    pub fn shepherd(&self, job: Job) -> Option<i32> {
        self.outside.iter().find(|(_, of)| **of == job).map(|(pid, _)| *pid)
    }

    /// The one whose shepherd has this number outside.
    pub fn tended_by(&self, shepherd: i32) -> Option<Job> {
        self.outside.get(&shepherd).copied()
    }

    /// All of it is gone: what was refused, and how often more than is listed.
    pub fn remove(&mut self, job: Job) -> (Vec<Denial>, u64) {
        self.begins = self.begins.filter(|of| *of != job);
        self.outside.retain(|_, of| *of != job);
        self.inside.retain(|_, of| *of != job);
        self.denials.remove(&job).unwrap_or_default().into_parts()
    }

    pub fn denials(&mut self, job: Job) -> Option<&mut Denials> {
        self.denials.get_mut(&job)
    }

    pub fn tell(&mut self, job: Option<Job>, denial: Denial) {
        if self.told.len() < MOST_TOLD {
            self.told.push((job, denial));
        }
    }

    pub fn told(&mut self) -> Vec<(Option<Job>, Denial)> {
        std::mem::take(&mut self.told)
    }

    /// The first process or a shepherd.
    pub fn is_ours(&self, tid: i32) -> bool {
        tid == self.first || self.outside.contains_key(&tid) || parent(tid) == Some(self.first)
    }

    /// Whose a thread is, by its number outside.
    pub fn of(&self, tid: i32) -> Option<Job> {
        climb(&self.outside, self.begins, self.first, tid, parent)
    }

    /// The same by the number that it has inside.
    pub fn of_inside(&self, pid: i32) -> Option<Job> {
        climb(&self.inside, self.begins, 1, pid, |pid| self.parent_inside(pid))
    }

    fn parent_inside(&self, pid: i32) -> Option<i32> {
        let (flags, resolve) = (OFlags::RDONLY | OFlags::CLOEXEC, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS);
        let file = openat2(self.root.as_ref()?, format!("proc/{pid}/stat"), flags, Mode::empty(), resolve).ok()?;
        let mut text = String::new();
        fs::File::from(file).take(4096).read_to_string(&mut text).ok()?;
        parent_in(&text)
    }
}

/// A child of the first that is no known shepherd is that of the one who begins.
fn climb(
    shepherds: &HashMap<i32, Job>,
    begins: Option<Job>,
    first: i32,
    from: i32,
    parent: impl Fn(i32) -> Option<i32>,
) -> Option<Job> {
    let mut at = from;
    for _ in 0..MOST_STEPS {
        if let Some(job) = shepherds.get(&at) {
            return Some(*job);
        }
        at = match parent(at)? {
            above if above == first => return begins,
            above => above,
        };
    }
    None
}

pub(crate) fn parent(pid: i32) -> Option<i32> {
    parent_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name before it may hold anything, brackets included.
fn parent_in(stat: &str) -> Option<i32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The numbers of a process outside and inside.
fn numbers(pidfd: BorrowedFd<'_>) -> Option<(i32, i32)> {
    // In one piece: the kernel makes it up anew for each.
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
        let shepherds = HashMap::from([(10, Job(1)), (20, Job(2))]);
        let parents = HashMap::from([(10, 1), (20, 1), (11, 10), (12, 11), (21, 20), (30, 1), (2, 1)]);
        let of_with = |begins, pid| climb(&shepherds, begins, 1, pid, |pid| parents.get(&pid).copied());
        let of = |pid| of_with(None, pid);
        assert_eq!((of(12), of(21), of(10)), (Some(Job(1)), Some(Job(2)), Some(Job(1))));
        assert_eq!((of(30), of(2), of(99)), (None, None, None));
        assert_eq!((of_with(Some(Job(3)), 30), of_with(Some(Job(3)), 12)), (Some(Job(3)), Some(Job(1))));
        assert_eq!(climb(&shepherds, None, 1, 5, Some), None, "a ring ends");
        assert_eq!(parent_in("7 (a) b (c)) S 6 7 7"), Some(6));
    }
}
