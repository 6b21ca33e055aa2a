//! Stopping, killing and removing. Everything here is bounded in time.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::super::dir::{Dir, keyed};
use super::super::layout::Version;
use super::super::{RUNS, raw};
use super::Group;

/// Time that an emptying group may stay busy, and that killing without `cgroup.kill` may take.
const REMOVE_TIME: Duration = Duration::from_millis(500);
const KILL_TIME: Duration = Duration::from_secs(5);
/// Depth to which groups that a guest made inside its own are removed.
const MAX_NESTING: usize = 8;

impl Group {
    /// Sends SIGKILL to all members. With `cgroup.kill` this returns at once and the members die later; without it,
    /// this returns when no member is left.
    pub fn kill(&self) -> io::Result<()> {
        if let Some(v2) = self.v2() {
            if v2.dir.write_if_there("cgroup.kill", "1")? {
                return Ok(());
            }
            // A kernel before 5.14: a frozen process cannot fork, and SIGKILL still ends it.
            v2.dir.write_if_there("cgroup.freeze", "1")?;
        }
        self.kill_one_by_one()
    }

    fn kill_one_by_one(&self) -> io::Result<()> {
        if let Some(pids) = self.serving("pids") {
            // Stops a tree that forks faster than we kill.
            let _ = pids.dir.write("pids.max", "0");
        }
        let deadline = Instant::now() + KILL_TIME;
        loop {
            let members = self.members()?;
            members.iter().for_each(|pid| self.kill_member(*pid));
            if members.is_empty() && !self.populated() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("{} still has members", self.name)));
            }
            sleep(Duration::from_micros(500));
        }
    }

    /// Kills one member. The pidfd is opened before membership is checked, so a reused pid is never hit.
    fn kill_member(&self, pid: i32) {
        let Ok(handle) = raw::pidfd_open(pid) else {
            return;
        };
        let table = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let inside = |path: &str| path.split('/').any(|c| c == self.name);
        if pid != std::process::id() as i32 && table.lines().any(inside) {
            let _ = raw::pidfd_kill(&handle);
        }
    }

    /// Returns the member processes of all hierarchies.
    pub fn members(&self) -> io::Result<Vec<i32>> {
        let mut all = Vec::new();
        for part in &self.parts {
            all.extend(part.dir.members()?.0);
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// Freezes or thaws all members; needs v2. Returns before all have stopped: see [`Group::frozen`].
    pub fn freeze(&self, on: bool) -> io::Result<()> {
        let v2 = self.v2().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        v2.dir.write("cgroup.freeze", if on { "1" } else { "0" })
    }

    pub fn frozen(&self) -> bool {
        self.v2().and_then(|p| p.dir.keyed("cgroup.events", "frozen")) == Some(1)
    }

    /// Returns true if any process is left. A group that cannot be read counts as populated.
    pub fn populated(&self) -> bool {
        self.parts.iter().any(|p| match p.version {
            Version::V1 => p.dir.members().map_or_else(|e| !is_gone(&e), |(_, any)| any),
            Version::V2 => match p.dir.read("cgroup.events") {
                Ok(text) => keyed(&text, "populated") != Some(0),
                Err(e) => !is_gone(&e),
            },
        })
    }

    /// Removes the groups. The tree must be gone or going: a busy group is tried again for half a second.
    pub fn remove(mut self) -> io::Result<()> {
        self.remove_parts(Instant::now() + REMOVE_TIME)
    }

    fn remove_parts(&mut self, deadline: Instant) -> io::Result<()> {
        let mut result = Ok(());
        for part in std::mem::take(&mut self.parts) {
            match remove_tree(&part.parent, &self.name, deadline) {
                // The shared directory stays while it holds another owner's groups.
                Ok(()) => drop(part.above.map(|above| above.remove(RUNS))),
                Err(e) => {
                    result = Err(e);
                    self.parts.push(part);
                }
            }
        }
        result
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Usually the group is empty, as after `remove`: there is no process to kill or to wait for.
        if self.remove_parts(Instant::now()).is_ok() {
            return;
        }
        // Untrusted processes must not outlive the handle to their limits. A group that this process itself joined is
        // left alone.
        let us = std::process::id() as i32;
        if self.members().is_ok_and(|m| !m.contains(&us)) {
            let _ = self.kill();
            let _ = self.remove_parts(Instant::now() + REMOVE_TIME);
        }
    }
}

pub(super) fn is_gone(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ENODEV)
}

fn remove_tree(parent: &Dir, name: &str, deadline: Instant) -> io::Result<()> {
    loop {
        match parent.remove(name) {
            Ok(()) => return Ok(()),
            Err(e) if is_gone(&e) => return Ok(()),
            Err(e) if e.kind() != io::ErrorKind::ResourceBusy => return Err(e),
            Err(e) => {
                if let Ok(dir) = parent.child(name) {
                    remove_nested(&dir, MAX_NESTING);
                }
                if Instant::now() >= deadline {
                    return parent.remove(name).map_err(|_| e);
                }
                sleep(Duration::from_micros(200));
            }
        }
    }
}

fn remove_nested(dir: &Dir, depth: usize) {
    for name in dir.children() {
        if let (true, Ok(child)) = (depth > 0, dir.child(&name)) {
            remove_nested(&child, depth - 1);
        }
        let _ = dir.remove(&name);
    }
}
