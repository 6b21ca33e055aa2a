//! Launches a planned guest: creates its control group, clones its first process, and does the supervisor's part of the
//! setup.

use crate::driver::{self, Driver};
use crate::faults::{internal, step_failed, vanished};
use crate::groundwork::Pipes;
use crate::idmap::IdMapper;
use crate::limits::{self, Meter};
use crate::listen::Judge;
use crate::plan::GuestPlan;
use crate::publish::Helper;
use crate::running::RunningGuest;
use crate::spec::{GuestServices, GuestSpec};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use sys::cgroup::{ChildOrigin, Group, Layout};
use sys::early_setup::{self, EarlySetup};
use sys::janitor::{self, Janitor};
use sys::spawn::{self, Command, Message, SetupSteps, Spawned};
use sys::{cstring, host, process};
use terms::{ErrorKind, Fault, Phase};

impl GuestPlan {
    /// Clones the guest's first process, which sets itself up while the supervisor does its own part.
    pub(crate) fn launch<'a>(mut self, command: Command, beside: GuestServices<'a>) -> Result<RunningGuest<'a>, Fault> {
        let published = beside.publish.len();
        if self.ground.explained_by.is_some() {
            return Err(Fault::internal("this run was planned only to be explained").phase(Phase::Start));
        }
        let layout = limits::wants_group(&self.spec.limits, &self.spec.cpus).then(limits::layout);
        // Started before the group exists, so that the janitor removes it even if the supervisor is killed; and before
        // the helper has files open for a moment, because inherited copies of those would keep it from sealing the
        // root.
        let janitor = layout.as_ref().map(|layout| self.start_janitor(layout)).transpose()?;
        // On cgroup v2 a process is cloned into its group (CLONE_INTO_CGROUP), because migration is slow. On v1 it
        // joins by itself, and the group is created while it sets up.
        let mut group = match &layout {
            Some(layout) if layout.kind == sys::cgroup::HierarchyKind::V2 => {
                self.ground.helper = None;
                Some(self.make_group(layout)?)
            }
            _ => None,
        };
        // Without namespaces the helper has nothing to prepare, and the first process must be a whole copy of the
        // supervisor.
        if self.spec.enforced.driver == Driver::Landlock {
            self.ground.helper = None;
        }
        self.ground.release();
        let mut mapper = IdMapper::new(self.ground.guest);
        let mounts = self.steps.mounts.iter().map(|wanted| mapper.prepare(wanted)).collect::<Result<Vec<_>, _>>()?;
        // `settled`: pid 1 was cloned early. Its ids are mapped, and the helper makes its mounts.
        let (spawned, settled) = self.clone_guest(group.as_ref(), &mounts, command)?;
        // A resident guest may be connected to at any time. Other guests need a helper inside only for published ports
        // and for programs that a person is asked about.
        let needed = published > 0 || self.spec.asks_to_start();
        let wanted = needed || self.spec.resident;
        // The first process still waits for the supervisor at this point.
        let visitor = self.visitor(&spawned, settled, wanted);
        let admitted = self.admit(&spawned, settled, &mounts, layout.as_ref(), &mut group);
        let helper = self.ground.helper.take().filter(|_| settled);
        let places = helper.as_ref().map(|helper| helper.finish(spawned.pidfd.as_fd())).unwrap_or_default();
        drop((mounts, mapper));
        let helper = helper.filter(|_| wanted).or(visitor);
        let admitted = admitted.and_then(|()| match helper.is_some() || !needed {
            true => Ok(()),
            false => Err(unreachable(published)),
        });
        let admitted = admitted.and_then(|()| match process::signal(spawned.pidfd.as_fd(), 0) {
            true => Ok(()),
            // Without it this guest could not be killed later.
            false => Err(driver::lacks("pidfd_send_signal")),
        });
        if let Err(fault) = admitted {
            return Err(self.abandon(&spawned, group, janitor, fault));
        }
        let helper: Option<Helper> = helper.map(|helper| Arc::new(Mutex::new(helper)));
        let mut meter = Meter::new(self.spec.guest_limits(), group);
        meter.watch(beside.gauge);
        let mut judge = Judge::new(Rc::clone(&self.spec), Rc::clone(&self.steps), beside.observer);
        (judge.asking, judge.helper) = (beside.asking, helper.clone());
        Ok(RunningGuest {
            judge,
            spawned,
            meter,
            listener: None,
            network: beside.network,
            publish: beside.publish,
            publisher: None,
            max_connections: 1,
            helper,
            places,
            spec: self.spec,
            steps: self.steps,
            _janitor: janitor,
        })
    }

    /// Ends a guest whose launch failed. A guest that failed first makes the supervisor's calls fail as well, so its
    /// report, or its silent end, names the cause.
    fn abandon(&self, spawned: &Spawned, group: Option<Group>, janitor: Option<Janitor>, fault: Fault) -> Fault {
        let gone = process::has_ended(spawned.pidfd.as_fd());
        process::kill_child(spawned.pid);
        drop(group);
        let fault = match spawned.receive() {
            Ok(Some((report, _))) if report.message == Message::StepFailed => step_failed(&self.steps, &report),
            _ if gone => vanished(),
            _ => fault,
        };
        drop(janitor);
        fault
    }

    fn start_janitor(&self, layout: &Layout) -> Result<Janitor, Fault> {
        let GuestSpec { run_id, limits, cpus, .. } = &*self.spec;
        let groups = limits::group_paths(layout, run_id.as_str(), limits, cpus)?;
        let kill = groups.iter().map(|at| cstring(at.join("cgroup.kill").as_os_str().as_bytes())).collect();
        let paths = Group::paths_to_remove(&groups);
        let paths = paths.iter().map(|at| cstring(at.as_os_str().as_bytes())).collect();
        janitor::start(kill, paths).map_err(|e| internal(Phase::Preparation, e))
    }

    fn make_group(&self, layout: &Layout) -> Result<Group, Fault> {
        let GuestSpec { run_id, limits, cpus, resident, .. } = &*self.spec;
        limits::make_group(layout, run_id.as_str(), limits, cpus, *resident)
    }

    pub(crate) fn command(&self, pipes: &Pipes) -> Command {
        let argv: Vec<&[u8]> = self.spec.argv.iter().map(|s| s.as_bytes()).collect();
        let env = self.spec.env.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
        let env: Vec<Vec<u8>> = env.collect();
        let env: Vec<&[u8]> = env.iter().map(Vec::as_slice).collect();
        let stdio = if self.spec.stdio.terminal { [-1; 3] } else { pipes.command_ends().map(|fd| fd.as_raw_fd()) };
        let mut command =
            Command::new(&self.ground.arena, self.spec.program.as_os_str().as_bytes(), &argv, &env, stdio);
        command.umask = process::umask();
        command.start_mark = self.steps.watch.start_mark.unwrap_or_default();
        command.own_pids = self.spec.enforced.driver == Driver::Namespaces;
        command.open_files = self.spec.limits.max_open_files.map(limits::open_files);
        command
    }

    /// Clones the first process, or gives its order to the one that was cloned early; the flag is true for the latter.
    fn clone_guest(
        &mut self,
        group: Option<&Group>,
        mounts: &[OwnedFd],
        command: Command,
    ) -> Result<(Spawned, bool), Fault> {
        let namespaces = match self.spec.enforced.driver {
            Driver::Namespaces => driver::GUEST_NAMESPACES,
            Driver::Landlock => 0,
        };
        let helper = self.ground.helper.as_mut();
        let group = group.and_then(Group::v2_dir_fd);
        let walk = SetupSteps { ops: &self.steps.ops, first_of_pid1: self.steps.own, mounts };
        spawn::spawn(namespaces, helper, group, walk, command).map_err(|e| driver::blocked(&e))
    }

    /// Starts the helper that makes sockets for published ports and lifts noexec, where no early helper created the
    /// guest's namespaces.
    fn visitor(&self, spawned: &Spawned, settled: bool, wanted: bool) -> Option<EarlySetup> {
        let wanted = !settled && wanted && self.spec.enforced.driver == Driver::Namespaces;
        wanted.then(|| early_setup::visit(spawned.pidfd.as_fd(), &self.ground.arena)).flatten()
    }

    /// Does the supervisor's part of the setup in parallel with the guest's: id maps and mounts where no helper made
    /// them, and control groups.
    fn admit(
        &self,
        spawned: &Spawned,
        settled: bool,
        mounts: &[OwnedFd],
        layout: Option<&Layout>,
        group: &mut Option<Group>,
    ) -> Result<(), Fault> {
        let g = self.ground.guest;
        let control = spawned.control_socket();
        if self.spec.enforced.driver == Driver::Namespaces && !settled {
            host::write_id_maps(spawned.pid, (g.uid, g.host_uid), (g.gid, g.host_gid), !g.privileged)
                .map_err(|e| driver::blocked(&e))?;
            control.release().map_err(|e| internal(Phase::Start, e))?;
            for chunk in mounts.chunks(spawn::MOST_HANDLES) {
                let handles: Vec<BorrowedFd<'_>> = chunk.iter().map(AsFd::as_fd).collect();
                control.send_handles(&handles).map_err(|e| internal(Phase::Start, e))?;
            }
        }
        let Some(layout) = layout else { return Ok(()) };
        if group.is_none() {
            *group = Some(self.make_group(layout)?);
        }
        let Some(group) = group else { return Ok(()) };
        let born = if layout.kind == sys::cgroup::HierarchyKind::V2 {
            ChildOrigin::ClonedIntoV2
        } else {
            ChildOrigin::Outside
        };
        let entries = group.entry_files(born).map_err(|e| Fault::internal(e.to_string()).phase(Phase::Preparation))?;
        let handles: Vec<BorrowedFd<'_>> = entries.iter().map(AsFd::as_fd).collect();
        control.send_handles(&handles).map_err(|e| internal(Phase::Start, e))
    }
}

/// The fault for a guest without a helper in its network and mount namespaces.
fn unreachable(published: usize) -> Fault {
    let message = match published {
        0 => {
            "`ask` rules for programs cannot be enforced here: the guest's mount namespace can be neither created early nor entered"
        }
        _ => "ports cannot be published here: the guest's network namespace can be neither created early nor entered",
    };
    Fault::new(ErrorKind::UnsupportedHost, message).hint(driver::ASK_DOCTOR).phase(Phase::Start)
}
