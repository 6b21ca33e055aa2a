//! Steps that only the first process can do for itself: limits, seccomp, landlock; and the landlock rules.

use super::grants::top_level;
use super::{Builder, VAR_TMP, of_kind};
use policy::{ExecPlan, HostFileType, Perm, Perms};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use sys::op::Op;
use sys::seccomp::NotifyOptions;
use sys::{landlock, seccomp, spawn};

impl Builder<'_> {
    pub(super) fn limits(&mut self) {
        if crate::limits::wants_group(&self.spec.limits, &self.spec.cpus) {
            self.own.push(Op::JoinGroups);
        }
        // After joining the groups, or the cgroup namespace would be rooted in the caller's group.
        self.own.push(Op::NewNamespace { flags: spawn::NEW_CGROUP, name: "cgroup" });
        self.own.extend(crate::limits::ops(&self.spec.cpus, &self.arena));
    }

    pub(super) fn restrict(&mut self) -> NotifyOptions {
        let abi = landlock::abi();
        let ruleset = self.ruleset.as_raw_fd();
        for (at, rights) in self.rules() {
            let rights = rights & landlock::rights(abi);
            if rights != 0 {
                self.push(Op::LandlockRule { ruleset, at: self.cstring(at.as_bytes()), rights });
            }
        }
        let watch = self.spec.watch(&self.guest);
        let filter = Op::Seccomp { program: self.arena.list(&seccomp::program(&watch)), listener: watch.listener };
        let standing = [Op::AwaitPlaces, Op::ChangeDir { at: self.cpath(&self.spec.cwd) }];
        let landlock = Op::LandlockRestrict { ruleset };
        self.own.extend([Op::NoNewPrivileges, Op::DropCapabilities]);
        // The kernel takes as long to build the filter as the helper takes for the mounts, so they overlap. But
        // notifications are not answered before setup is complete: where the filter notifies reads or calls of the
        // policy's choice, it is installed last.
        if watch.reads || watch.asks || watch.looks || !watch.deny.is_empty() {
            self.own.extend(standing);
            self.own.extend([landlock, filter]);
        } else {
            self.own.push(filter);
            self.own.extend(standing);
            self.own.push(landlock);
        }
        self.own.push(Op::Ready);
        watch
    }

    fn rules(&self) -> BTreeMap<OsString, u64> {
        let plan = &self.spec.plan;
        let mut rules: BTreeMap<OsString, u64> = BTreeMap::new();
        let mut add = |at: &Path, rights: u64| *rules.entry(at.into()).or_default() |= rights;
        let listing = plan.grants.iter().all(|g| g.kind != HostFileType::Dir || g.perms.contains(Perm::ReadDir));
        if listing {
            // Directories that lead to grants can be listed; a grant without read_dir must not inherit that.
            add(Path::new("/"), Perms::of(&[Perm::ReadDir]).bits());
        }
        let execute = if self.lists_programs() { Perms::NONE } else { Perms::of(&[Perm::Execute]) };
        let apart = self.has_var_tmp.then_some(VAR_TMP);
        for private in ["/tmp", "/dev/shm", "/dev/mqueue"].into_iter().chain(apart) {
            let all = Perms::READ.union(Perms::WRITE).union(Perms::of(&[Perm::MakeChar])).union(execute);
            add(Path::new(private), all.bits());
        }
        if let Some(home) = plan.private.home().filter(|_| self.has_home) {
            add(home, Perms::READ.union(Perms::WRITE).union(Perms::of(&[Perm::MakeChar])).union(execute).bits());
        }
        let device = Perms::of(&[Perm::ReadFile, Perm::WriteFile, Perm::ReadDir, Perm::IoctlDev, Perm::Truncate]);
        add(Path::new("/dev"), device.bits());
        add(Path::new("/proc"), Perms::of(&[Perm::ReadFile, Perm::WriteFile, Perm::ReadDir]).bits());
        for grant in plan.grants.iter().flat_map(top_level) {
            let perms =
                if self.lists_programs() { grant.perms.minus(Perms::of(&[Perm::Execute])) } else { grant.perms };
            add(&grant.path, of_kind(perms.bits(), grant.kind));
        }
        for file in &self.generated_files {
            add(file, Perms::of(&[Perm::ReadFile]).bits());
        }
        if let Some(directory) = &self.settings {
            add(directory, Perms::of(&[Perm::ReadFile, Perm::ReadDir]).bits());
        }
        if let ExecPlan::Only { programs, loaders } = &plan.exec {
            let run = Perms::of(&[Perm::Execute, Perm::ReadFile]).bits();
            // Reading a program that a person is asked about needs a file rule.
            let rights = |asked: bool| if asked { Perms::of(&[Perm::Execute]).bits() } else { run };
            programs.iter().for_each(|p| add(&p.path, rights(p.asked)));
            loaders.iter().for_each(|l| add(l, run));
        }
        rules
    }
}
