//! Cgroups of one sandbox, one in each hierarchy that it needs, all under the same name. Dropping the value kills
//! remaining members and removes the groups.

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
use super::parent::Unavailable;
use super::{CgroupError, GroupSpec, RUNS, limit};
use plan::{PlannedPart, plan};

pub use counters::Usage;

/// The way in which the child was created, which decides the groups that it still has to enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildOrigin {
    /// Cloned with CLONE_INTO_CGROUP and [`Group::v2_dir_fd`].
    ClonedIntoV2,
    /// Created by a plain fork or clone.
    Outside,
}

#[derive(Debug)]
pub struct Group {
    name: String,
    parts: Vec<HierarchyPart>,
}

/// A directory that holds a group of a dead owner.
#[derive(Clone, Debug)]
pub(super) struct OrphanDir {
    pub version: Version,
    pub parent: Arc<Dir>,
    pub above: Option<Arc<Dir>>,
    pub path: PathBuf,
}

#[derive(Debug)]
pub(super) struct HierarchyPart {
    version: Version,
    /// Controllers whose limits or counters this part serves.
    serves: Vec<&'static str>,
    parent: Arc<Dir>,
    /// The directory above `parent`, where `parent` is removed together with the last group in it.
    above: Option<Arc<Dir>>,
    path: PathBuf,
    dir: Dir,
}

/// Number of times that the parent directory may be removed, together with another owner's last group, before ours is
/// made in it.
const ATTEMPTS: usize = 16;

impl Group {
    /// Returns the paths at which `create` will make the groups, for callers that need them in advance.
    pub fn paths_of(layout: &Layout, name: &str, want: &GroupSpec) -> Result<Vec<PathBuf>, CgroupError> {
        let name = group_name(name)?;
        let needs = plan(layout, want).map_err(CgroupError::Missing)?;
        Ok(needs.iter().map(|need| need.parent_group.group_dir().join(&name)).collect())
    }

    /// Returns the directories to remove for groups at these paths, for a process that has only paths. The last ones
    /// are the shared directories, which can only be removed when no other group is left in them.
    pub fn paths_to_remove(paths: &[PathBuf]) -> Vec<PathBuf> {
        let homes = paths.iter().filter_map(|path| path.parent().filter(|home| home.ends_with(RUNS)));
        paths.iter().cloned().chain(homes.map(Path::to_path_buf)).collect()
    }

    /// Creates the groups with their limits; on failure no group is left behind. `name` is the run id.
    pub fn create(layout: &Layout, name: &str, want: &GroupSpec) -> Result<Group, CgroupError> {
        let name = group_name(name)?;
        if let Some(cpus) = want.cpu_quota.filter(|c| !c.is_finite() || *c <= 0.0) {
            return Err(CgroupError::Invalid(format!("cpu quota {cpus} is not a positive number")));
        }
        let needs = plan(layout, want).map_err(CgroupError::Missing)?;
        let mut group = Group { name, parts: Vec::with_capacity(needs.len()) };
        for need in needs {
            group.add(layout, need, want)?;
        }
        group.check_clock(want)?;
        Ok(group)
    }

    fn add(&mut self, layout: &Layout, need: PlannedPart<'_>, want: &GroupSpec) -> Result<(), CgroupError> {
        let hierarchy = &layout.hierarchies[need.hierarchy];
        let version = hierarchy.version;
        let path = need.parent_group.group_dir().join(&self.name);
        let failed = |e| CgroupError::io(&path, e);
        let (parent, dir) = match version {
            Version::V1 => (need.parent_group.dir.clone(), need.parent_group.dir.make(&self.name).map_err(failed)?),
            Version::V2 => self.make_v2(&need)?,
        };
        let above = need.parent_group.contested().filter(|_| version == Version::V2);
        let part = HierarchyPart { version, serves: need.serves, parent, above, path: path.clone(), dir };
        let inherits = version == Version::V2 || !hierarchy.controllers().contains(&"cpuset");
        // Pushed before limits are written, so that a failure removes the group.
        self.parts.push(part);
        let part = &self.parts[self.parts.len() - 1];
        if !inherits {
            limit::inherit_cpuset(&part.parent, &part.dir).map_err(failed)?;
        }
        limit::apply(version, &part.serves, want, &part.parent, &part.dir).map_err(failed)?;
        self.pin(want);
        Ok(())
    }

    fn make_v2(&self, need: &PlannedPart<'_>) -> Result<(Arc<Dir>, Dir), CgroupError> {
        let mut attempts = 0..ATTEMPTS;
        loop {
            let parent = need.parent_group.prepare(&need.serves);
            let again = attempts.next().is_some();
            let parent = match parent {
                Err(e) if ending::is_gone(&e) && again => continue,
                other => other.map_err(|e| unprepared(need, e))?,
            };
            match parent.make(&self.name) {
                Ok(dir) => return Ok((parent, dir)),
                Err(e) if ending::is_gone(&e) && again => {}
                Err(e) => return Err(CgroupError::io(&need.parent_group.group_dir().join(&self.name), e)),
            }
        }
    }

    /// Pins the part made last to the wanted cpus. Best effort: a part that cannot pin does not claim to serve cpuset.
    fn pin(&mut self, want: &GroupSpec) {
        let (Some(cpus), Some(part)) = (&want.cpus, self.parts.last_mut()) else {
            return;
        };
        if part.serves.contains(&"cpuset") && limit::pin(cpus, &part.dir).is_err() {
            part.serves.retain(|c| *c != "cpuset");
        }
    }

    /// Fails if the processor time has to be measured and the group's counter cannot be read.
    fn check_clock(&self, want: &GroupSpec) -> Result<(), CgroupError> {
        if !want.cpu_usage || self.cpu_us().is_some() {
            return Ok(());
        }
        let lack = Unavailable { reason: "the kernel shows no processor time for the group".into(), fix: None };
        Err(CgroupError::Missing(lack.of("cpu_ms")))
    }

    /// Takes over a group whose owner is gone, from the directories that hold it.
    pub(super) fn adopt(name: &str, found: Vec<OrphanDir>) -> Group {
        let part = |OrphanDir { version, parent, above, path }: OrphanDir| {
            let dir = parent.child(name).ok()?;
            Some(HierarchyPart { version, serves: Vec::new(), parent, above, path: path.join(name), dir })
        };
        Group { name: name.to_owned(), parts: found.into_iter().filter_map(part).collect() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the directories, in the order in which they were made.
    pub fn paths(&self) -> Vec<&Path> {
        self.parts.iter().map(|p| p.path.as_path()).collect()
    }

    /// Returns the path of `cgroup.kill`, where the kernel has it; writing `1` to it kills the whole tree.
    pub fn kill_file(&self) -> Option<PathBuf> {
        let v2 = self.v2().filter(|p| p.dir.has("cgroup.kill"))?;
        Some(v2.path.join("cgroup.kill"))
    }

    /// Returns true if a cpuset enforces the cpu list of the [`GroupSpec`]; otherwise the caller sets the affinity.
    pub fn pins_cpus(&self) -> bool {
        self.serving("cpuset").is_some()
    }

    /// Returns the directory for CLONE_INTO_CGROUP.
    pub fn v2_dir_fd(&self) -> Option<BorrowedFd<'_>> {
        self.v2().map(|p| p.dir.as_fd())
    }

    /// Returns files to which the child writes `0` to enter the groups, while it still has one thread: the fast way to
    /// join. They are close-on-exec. For a child born in v2 they are v1's only; otherwise v2's is among them, and slow.
    pub fn entry_files(&self, origin: ChildOrigin) -> io::Result<Vec<File>> {
        let open = |part: &HierarchyPart| match part.version {
            Version::V1 => Some(part.dir.file("tasks", libc::O_WRONLY)),
            Version::V2 if origin == ChildOrigin::Outside => Some(part.dir.file("cgroup.procs", libc::O_WRONLY)),
            Version::V2 => None,
        };
        self.parts.iter().filter_map(open).collect()
    }

    /// Returns files that take the pid of a whole process, one per hierarchy. Each write is slow: see the module's
    /// documentation.
    pub fn procs_files(&self) -> io::Result<Vec<File>> {
        self.parts.iter().map(|p| p.dir.file("cgroup.procs", libc::O_WRONLY)).collect()
    }

    /// Moves another process into the groups. Slow: see the module's documentation.
    pub fn attach(&self, pid: i32) -> io::Result<()> {
        let text = pid.to_string();
        self.parts.iter().try_for_each(|p| p.dir.write("cgroup.procs", &text))
    }

    /// Changes the limit on tasks.
    pub fn allow_pids(&self, most: u64) -> io::Result<()> {
        self.serving("pids").map_or(Ok(()), |part| part.dir.write("pids.max", &most.to_string()))
    }

    /// Changes the values of limits with which the group was made; returns false if it was made without one of them.
    pub fn change(&self, want: &GroupSpec) -> io::Result<bool> {
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

    fn serving(&self, controller: &str) -> Option<&HierarchyPart> {
        self.parts.iter().find(|p| p.serves.contains(&controller))
    }

    fn v2(&self) -> Option<&HierarchyPart> {
        self.parts.iter().find(|p| p.version == Version::V2)
    }
}

/// The fault of a parent that refused to enable controllers: a process joined it after it was assessed, or its
/// permissions changed.
fn unprepared(need: &PlannedPart<'_>, e: io::Error) -> CgroupError {
    let limit = match need.serves.first() {
        Some(&"memory") => "memory_mb",
        Some(&"pids") => "processes",
        _ => "cpus",
    };
    let reason = format!("{} would not hand out its controllers: {e}", need.parent_group.path.display());
    CgroupError::Missing(Unavailable { reason, fix: None }.of(limit))
}

/// Returns the directory name of a run's groups. It contains the owner's identity, so that a sweep can tell whether the
/// owner is dead.
fn group_name(run: &str) -> Result<String, CgroupError> {
    if !is_run_id(run) {
        return Err(CgroupError::Invalid(format!(
            "run id {run:?} cannot be a cgroup name: only letters, digits, `_` and `-`, at most 64"
        )));
    }
    let owner = Owner::current().map_err(|e| CgroupError::io(Path::new("/proc/self"), e))?;
    Ok(owner.group_name(run))
}
