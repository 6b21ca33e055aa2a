//! The owner of a group, encoded in the group's name: `cofferdam-<pid>-<start time>-<pid namespace>-<run id>`.
//!
//! The start time distinguishes a reused pid from its predecessor, and the namespace keeps a sweep in a container from
//! judging pids of the host. In doubt an owner counts as alive.

use std::io;
use std::sync::OnceLock;

use super::{PREFIX, raw};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pid: i32,
    /// Clock ticks after boot.
    start: u64,
    /// Inode number of the pid namespace to which `pid` belongs.
    namespace: u64,
}

impl Owner {
    pub fn current() -> io::Result<Owner> {
        static CACHE: OnceLock<Owner> = OnceLock::new();
        let pid = std::process::id() as i32;
        // A forked child inherits its parent's cached value.
        if let Some(owner) = CACHE.get().filter(|o| o.pid == pid) {
            return Ok(*owner);
        }
        let odd =
            || io::Error::new(io::ErrorKind::InvalidData, "cannot parse start time or pid namespace from /proc/self");
        let owner =
            Owner { pid, start: start_time(pid)?.ok_or_else(odd)?, namespace: pid_namespace().ok_or_else(odd)? };
        let _ = CACHE.set(owner);
        Ok(owner)
    }

    pub fn group_name(&self, run: &str) -> String {
        format!("{PREFIX}{}-{}-{}-{run}", self.pid, self.start, self.namespace)
    }

    pub fn of_group(name: &str) -> Option<Owner> {
        let mut parts = name.strip_prefix(PREFIX)?.splitn(4, '-');
        let owner = Owner {
            pid: parts.next()?.parse().ok().filter(|pid| *pid > 0)?,
            start: parts.next()?.parse().ok()?,
            namespace: parts.next()?.parse().ok()?,
        };
        parts.next().filter(|run| !run.is_empty())?;
        Some(owner)
    }

    /// Returns true only if the owner is certainly gone.
    pub fn is_dead(&self) -> bool {
        if pid_namespace() != Some(self.namespace) {
            return false;
        }
        // pidfd_open instead of /proc, because /proc may hide other processes, and a hidden process is not gone.
        if matches!(raw::pidfd_open(self.pid), Err(e) if e.raw_os_error() == Some(libc::ESRCH)) {
            return true;
        }
        // The pid is in use: the owner is gone if that process, or thread, started at another time.
        matches!(start_time(self.pid), Ok(Some(start)) if start != self.start)
    }
}

fn start_time(pid: i32) -> io::Result<Option<u64>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(parse_start_time(&stat))
}

/// Parses the start time of `/proc/PID/stat`. The command's name stands in parentheses and may contain any character,
/// so fields are counted from the last closing parenthesis.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

fn pid_namespace() -> Option<u64> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let text = link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?;
    text.parse().ok()
}

/// Returns true for a valid run id. Run ids become directory names: letters, digits, `_` and `-`, at most 64.
pub fn is_run_id(run: &str) -> bool {
    let fits = (1..=64).contains(&run.len());
    fits && run.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_gives_its_owner_back() {
        let owner = Owner::current().unwrap();
        let name = owner.group_name("run_1-a");
        assert_eq!(Owner::of_group(&name), Some(owner));
        for odd in
            ["cofferdam", "cofferdam-self", "cofferdam-1-2-3", "cofferdam-1-2-3-", "cofferdam-0-2-3-x", "x-1-2-3-r"]
        {
            assert_eq!(Owner::of_group(odd), None, "{odd}");
        }
    }

    #[test]
    fn only_a_certain_death_counts() {
        let owner = Owner::current().unwrap();
        assert!(!owner.is_dead());
        assert!(Owner { start: owner.start + 1, ..owner }.is_dead(), "a reused pid");
        let elsewhere = Owner { start: owner.start + 1, namespace: 1, ..owner };
        assert!(!elsewhere.is_dead(), "a pid of another namespace says nothing");
        let gone = Owner { pid: i32::MAX, ..owner };
        assert!(gone.is_dead());
    }

    #[test]
    fn start_time_survives_odd_command_names() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(parse_start_time(&format!("9 (a) b) c) {tail}")), Some(777));
        assert_eq!(parse_start_time("9 (short) S 1"), None);
        assert_eq!(parse_start_time(""), None);
    }

    #[test]
    fn run_ids_are_plain() {
        for (run, good) in [("run_01-A", true), ("", false), ("../x", false), ("a b", false), ("é", false)] {
            assert_eq!(is_run_id(run), good, "{run}");
        }
        assert!(is_run_id(&"x".repeat(64)) && !is_run_id(&"x".repeat(65)));
    }
}
