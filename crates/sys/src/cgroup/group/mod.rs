//! One sandbox's groups, one in each hierarchy that it needs, all under the same name. Dropping it ends what is
//! still inside and removes the groups.

mod counters;
mod ending;
mod plan;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dir::Dir;
use super::layout::{Layout, Version};
use super::owner::{Owner, is_run_id};
use super::place::Lack;
use super::{CgroupError, RUNS, Want, limit};
use plan::{Need, plan};

pub use counters::Usage;

/// How the child came to life, which decides what it still has to enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Born {
    /// With CLONE_INTO_CGROUP and [`Group::v2_dir_fd`].
    InV2,
    /// By a plain fork or clone.
    Outside,
}

#[derive(Debug)]
pub struct Group {
    name: String,
    parts: Vec<Part>,
}

/// A directory in which a group was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub version: Version,
    pub parent: Arc<Dir>,
    pub above: Option<Arc<Dir>>,
    pub path: PathBuf,
}

#[derive(Debug)]
pub(super) struct Part {
    version: Version,
    /// Controllers whose limits or counters this part serves.
    serves: Vec<&'static str>,
    parent: Arc<Dir>,
    /// What holds `parent`, where that goes with the last group in it.
    above: Option<Arc<Dir>>,
    path: PathBuf,
    dir: Dir,
}

/// How often a directory may go, with somebody else's last group, before ours is in it.
const ATTEMPTS: usize = 16;

impl Group {
    /// Where `create` will make the groups, for whoever must know before there is one.
    pub fn paths_of(layout: &Layout, name: &str, want: &Want) -> Result<Vec<PathBuf>, CgroupError> {
        let name = group_name(name)?;
        let needs = plan(layout, want).map_err(CgroupError::Missing)?;
        Ok(needs.iter().map(|need| need.place.home().join(&name)).collect())
    }

    /// What goes when groups at these paths are ended by somebody who has nothing but paths; the last of it only where nobody
    /// else's is left there.
    pub fn to_be_removed(paths: &[PathBuf]) -> Vec<PathBuf> {
        let homes = paths.iter().filter_map(|path| path.parent().filter(|home| home.ends_with(RUNS)));
        paths.iter().cloned().chain(homes.map(Path::to_path_buf)).collect()
    }

    /// Makes the groups with their limits; nothing is left behind on failure. `name` is the run id.
    pub fn create(layout: &Layout, name: &str, want: &Want) -> Result<Group, CgroupError> {
        let name = group_name(name)?;
        if let Some(cpus) = want.cpu_quota.filter(|c| !c.is_finite() || *c <= 0.0) {
            return Err(CgroupError::Invalid(format!("{cpus} is no share of a processor")));
        }
        let needs = plan(layout, want).map_err(CgroupError::Missing)?;
        let mut group = Group { name, parts: Vec::with_capacity(needs.len()) };
        for need in needs {
            group.add(layout, need, want)?;
        }
        group.check_clock(want)?;
        Ok(group)
    }

    fn add(&mut self, layout: &Layout, need: Need<'_>, want: &Want) -> Result<(), CgroupError> {
        let hierarchy = &layout.hierarchies[need.hierarchy];
        let version = hierarchy.version;
        let path = need.place.home().join(&self.name);
        let failed = |e| CgroupError::io(&path, e);
        let (parent, dir) = match version {
            Version::V1 => (need.place.dir.clone(), need.place.dir.make(&self.name).map_err(failed)?),
            Version::V2 => self.make_v2(&need)?,
        };
        let above = need.place.contested().filter(|_| version == Version::V2);
        let part = Part { version, serves: need.serves, parent, above, path: path.clone(), dir };
        let inherits = version == Version::V2 || !hierarchy.controllers().contains(&"cpuset");
        // In the list before it is limited, so that a failure removes it.
        self.parts.push(part);
        let part = &self.parts[self.parts.len() - 1];
        if !inherits {
            limit::inherit_cpuset(&part.parent, &part.dir).map_err(failed)?;
        }
        limit::apply(version, &part.serves, want, &part.parent, &part.dir).map_err(failed)?;
        self.pin(want);
        Ok(())
    }

    fn make_v2(&self, need: &Need<'_>) -> Result<(Arc<Dir>, Dir), CgroupError> {
        let mut attempts = 0..ATTEMPTS;
        loop {
            let parent = need.place.prepare(&need.serves);
            let again = attempts.next().is_some();
            let parent = match parent {
                Err(e) if ending::is_gone(&e) && again => continue,
                other => other.map_err(|e| unprepared(need, e))?,
            };
            match parent.make(&self.name) {
                Ok(dir) => return Ok((parent, dir)),
                Err(e) if ending::is_gone(&e) && again => {}
                Err(e) => return Err(CgroupError::io(&need.place.home().join(&self.name), e)),
            }
        }
    }

    /// Best effort, on the part made last: one that cannot pin does not claim to.
    fn pin(&mut self, want: &Want) {
        let (Some(cpus), Some(part)) = (&want.cpus, self.parts.last_mut()) else {
            return;
        };
        if part.serves.contains(&"cpuset") && limit::pin(cpus, &part.dir).is_err() {
            part.serves.retain(|c| *c != "cpuset");
        }
    }

    /// A clock that cannot be read is no clock.
    fn check_clock(&self, want: &Want) -> Result<(), CgroupError> {
        if !want.cpu_usage || self.cpu_us().is_some() {
            return Ok(());
        }
        let lack = Lack { reason: "the kernel shows no processor time for the group".into(), fix: None };
        Err(CgroupError::Missing(lack.of("cpu_ms")))
    }

    /// A group that somebody left behind, as found in the directories that hold it.
    pub(super) fn adopt(name: &str, found: Vec<Found>) -> Group {
        let part = |Found { version, parent, above, path }: Found| {
            let dir = parent.child(name).ok()?;
            Some(Part { version, serves: Vec::new(), parent, above, path: path.join(name), dir })
        };
        Group { name: name.to_owned(), parts: found.into_iter().filter_map(part).collect() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directories, in the order in which they were made.
    pub fn paths(&self) -> Vec<&Path> {
        self.parts.iter().map(|p| p.path.as_path()).collect()
    }

    /// The file to write `1` to that ends the whole tree, where the kernel has it.
    pub fn kill_file(&self) -> Option<PathBuf> {
        let v2 = self.v2().filter(|p| p.dir.has("cgroup.kill"))?;
        Some(v2.path.join("cgroup.kill"))
    }

    /// Whether the cpu list of the [`Want`] holds by cpuset; if not, affinity must do.
    pub fn pins_cpus(&self) -> bool {
        self.serving("cpuset").is_some()
    }

    /// The directory for CLONE_INTO_CGROUP.
    pub fn v2_dir_fd(&self) -> Option<BorrowedFd<'_>> {
        self.v2().map(|p| p.dir.as_fd())
    }

    /// The quick way in: the child, while it still has one thread, writes `0` to each of these. They are
    /// close-on-exec. For a child born in v2 these are only v1's; else v2's is among them, and slow.
    pub fn entry_files(&self, born: Born) -> io::Result<Vec<File>> {
        let open = |part: &Part| match part.version {
            Version::V1 => Some(part.dir.file("tasks", libc::O_WRONLY)),
            Version::V2 if born == Born::Outside => Some(part.dir.file("cgroup.procs", libc::O_WRONLY)),
            Version::V2 => None,
        };
        self.parts.iter().filter_map(open).collect()
    }

    /// Files that take the pid of a whole process, one per hierarchy. Each write is slow: see the module's page.
    pub fn procs_files(&self) -> io::Result<Vec<File>> {
        self.parts.iter().map(|p| p.dir.file("cgroup.procs", libc::O_WRONLY)).collect()
    }

    /// Moves a process from outside. Slow: see the module's page.
    pub fn attach(&self, pid: i32) -> io::Result<()> {
        let text = pid.to_string();
        self.parts.iter().try_for_each(|p| p.dir.write("cgroup.procs", &text))
    }

    /// Changes how many tasks there may be.
    pub fn allow_pids(&self, most: u64) -> io::Result<()> {
        self.serving("pids").map_or(Ok(()), |part| part.dir.write("pids.max", &most.to_string()))
    }

    /// Changes the numbers of limits that it was made with; false where it was made without one of them.
    pub fn change(&self, want: &Want) -> io::Result<bool> {
        let wanted =
            [("memory", want.memory_bytes.is_some()), ("pids", want.pids.is_some()), ("cpu", want.cpu_quota.is_some())];
        let mut parts = Vec::new();
        for (controller, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
            let Some(part) = self.serving(controller) else { return Ok(false) };
            parts.push((part, controller));
        }
        for (part, controller) in parts {
            limit::change(part.version, controller, want, &part.parent, &part.dir)?;
        }
        Ok(true)
    }

    fn serving(&self, controller: &str) -> Option<&Part> {
        self.parts.iter().find(|p| p.serves.contains(&controller))
    }

    fn v2(&self) -> Option<&Part> {
        self.parts.iter().find(|p| p.version == Version::V2)
    }
}

/// Somebody joined the group between our look and our write, or took its permissions away.
fn unprepared(need: &Need<'_>, e: io::Error) -> CgroupError {
    let limit = match need.serves.first() {
        Some(&"memory") => "memory_mb",
        Some(&"pids") => "processes",
        _ => "cpus",
    };
    let reason = format!("{} would not hand out its controllers: {e}", need.place.path.display());
    CgroupError::Missing(Lack { reason, fix: None }.of(limit))
}

/// The groups of a run bear its owner's name, so that others know when he is dead.
fn group_name(run: &str) -> Result<String, CgroupError> {
    if !is_run_id(run) {
        return Err(CgroupError::Invalid(format!("{run:?} cannot name a group")));
    }
    let owner = Owner::current().map_err(|e| CgroupError::io(Path::new("/proc/self"), e))?;
    Ok(owner.group_name(run))
}
