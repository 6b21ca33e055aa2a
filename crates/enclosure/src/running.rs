//! A live guest with one command or many: its first process, its limits, the judge of its notifications, and its
//! network.

use crate::actors::Actors;
use crate::driver::Driver;
use crate::limits::Meter;
use crate::listen::{AskedTrees, Judge, NoexecMount};
use crate::network::{Network, Opening};
use crate::publish::{self, Helper, Published, Publisher};
use crate::spec::GuestSpec;
use crate::steps::Steps;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use sys::janitor::Janitor;
use sys::notify::Listener;
use sys::process;
use sys::spawn::{self, InsideHandles, Spawned};
use terms::{Fault, Limit, LimitHit, LimitKind, Phase};

pub(crate) const SIGKILL: i32 = 9;

/// A live guest, started by `GuestPlan::launch`. `Supervisor` owns one with a single command, `Residence` one with many.
pub(crate) struct RunningGuest<'a> {
    pub spec: Rc<GuestSpec>,
    pub steps: Rc<Steps>,
    pub spawned: Spawned,
    pub meter: Meter<'a>,
    pub judge: Judge<'a>,
    pub listener: Option<Listener>,
    pub network: Option<Box<dyn Network + 'a>>,
    /// Ports to publish once the guest is set up; then `publisher` has them.
    pub publish: Vec<Published>,
    pub publisher: Option<Publisher>,
    /// Concurrent connections to published ports.
    pub max_connections: usize,
    /// Makes sockets in the guest's network namespace, and changes its mounts.
    pub helper: Option<Helper>,
    pub places: InsideHandles,
    /// Removes the control groups if the supervisor is killed. Dropped last, after `meter` has removed them.
    pub _janitor: Option<Janitor>,
}

impl<'a> RunningGuest<'a> {
    /// Takes the handles that the guest sends once it is set up, and starts its network. Returns the pty master, where
    /// it has one.
    pub fn open(&mut self, handles: spawn::Handles) -> Result<Option<OwnedFd>, Fault> {
        // Computed before the broker raises RLIMIT_NOFILE.
        self.max_connections = publish::max_connections();
        if let Some(network) = &mut self.network {
            let names_only = self.spec.network.as_ref().is_some_and(|plan| plan.names_only);
            if handles.doors.is_none() && !names_only {
                return Err(Fault::internal("the guest's doors did not arrive").phase(Phase::Start));
            }
            self.judge.has_resolver = handles.resolver.is_some();
            // More ports may be published later to a resident guest.
            let published = match (self.publish.len(), self.spec.resident) {
                (0, false) => 0,
                (ports, _) => publish::descriptors(ports, self.max_connections),
            };
            let actors = Actors::of(self.spawned.pid, handles.sockets);
            network.open(Opening { doors: handles.doors, resolver: handles.resolver, actors, published })?;
        }
        if !self.publish.is_empty() {
            let ports = std::mem::take(&mut self.publish);
            self.begin_to_publish(ports)?;
        }
        self.listener = handles.listener.map(Listener::new);
        self.places = std::mem::take(&mut self.places).or(handles.places);
        self.judge.asked = AskedTrees::all(&self.spec.plan.asked, std::mem::take(&mut self.places.asked));
        if let Some(root) = &self.places.root {
            self.judge.barred = NoexecMount::all(self.spec.plan.exec.asked(), root);
            // No process of the guest can be inspected for its root before the command runs.
            if let (Ok(root), false) = (root.try_clone(), self.spec.resident) {
                self.judge.look_from(root);
            }
        }
        self.meter.start(self.places.scratch.take());
        if let Some(workspace) = &self.spec.workspace {
            let trees = [Some(workspace.at.as_path()), self.steps.home.as_deref()];
            let trees: Vec<&Path> = trees.into_iter().flatten().collect();
            self.meter.count_nameless(self.spawned.pid, &trees);
        }
        self.judge.scratch = self.meter.scratch_space();
        Ok(handles.terminal)
    }

    /// Starts to publish ports. False where no helper can make sockets in the guest's network.
    pub fn begin_to_publish(&mut self, ports: Vec<Published>) -> Result<bool, Fault> {
        let Some(helper) = &self.helper else { return Ok(false) };
        let most = self.spec.limits.max_net_bytes;
        self.publisher = Some(Publisher::start(ports, Arc::clone(helper), most, self.max_connections)?);
        Ok(true)
    }

    /// Answers one notification. Returns the limit that the call exceeded.
    pub fn hear_call(&mut self) -> Option<LimitHit> {
        if !self.judge.hear(self.listener.as_ref()?) {
            self.listener = None;
        }
        self.judge.scratch_hit.or_else(|| self.judge.descriptors_met.then(|| self.too_many_files()))
    }

    fn too_many_files(&self) -> LimitHit {
        let limit = self.spec.limits.max_open_files.unwrap_or(0);
        LimitHit {
            kind: LimitKind::OpenFiles,
            phase: Phase::Execution,
            limit: Limit::Count(limit),
            used: Limit::Count(limit + 1),
        }
    }

    /// Takes refusals and warnings of the broker, each of which it reports before the guest sees the effect.
    pub fn hear_reports(&mut self) {
        if let Some(network) = &mut self.network {
            network.happened().into_iter().for_each(|report| self.judge.tell(report));
        }
    }

    /// Takes the broker's reports. Returns the limit on bytes where it was exceeded.
    pub fn hear_network(&mut self) -> Option<LimitHit> {
        self.hear_reports();
        if let Some(publisher) = &self.publisher {
            publisher.heard();
        }
        self.net_hit()
    }

    /// Passes questions and answers on, and takes the reports of calls that have waited.
    pub fn hear_asked(&mut self) {
        if let Some(asking) = &mut self.judge.asking {
            asking.turn();
        }
        self.judge.hear_waiters();
    }

    /// Returns the descriptors that are readable when `hear_asked` has something to do.
    pub fn asked_wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let changed = self.judge.asking.as_ref().and_then(|asking| asking.changed());
        changed.into_iter().chain(self.judge.reports.wake())
    }

    /// Returns the bytes in both directions, published ports included.
    pub fn net_bytes(&self) -> u64 {
        self.network.as_ref().map_or(0, |n| n.used()) + self.publisher.as_ref().map_or(0, Publisher::used)
    }

    /// Returns the limit on bytes, where it was exceeded.
    pub fn net_hit(&self) -> Option<LimitHit> {
        let limit = self.spec.limits.max_net_bytes?;
        let used = self.net_bytes();
        let told = self.network.as_ref().is_some_and(|n| n.over_limit())
            || self.publisher.as_ref().is_some_and(Publisher::over_limit);
        (told || used > limit).then(|| LimitHit {
            kind: LimitKind::NetBytes,
            phase: Phase::Execution,
            limit: Limit::Count(limit),
            used: Limit::Count(used.max(limit + 1)),
        })
    }

    /// Kills the guest. The kernel kills every process of a pid namespace along with its pid 1.
    pub fn kill(&self) {
        let signal = match self.spec.enforced.driver {
            Driver::Namespaces => SIGKILL,
            // Without a pid namespace the first process, a subreaper, kills its descendants one by one; `cgroup.kill` is
            // quicker where there is a group.
            Driver::Landlock => spawn::END_SIGNAL,
        };
        process::signal(self.spawned.pidfd.as_fd(), signal);
        self.meter.kill();
    }

    /// Reaps pid 1, and with it every process of its namespaces.
    pub fn reap(&self) {
        process::reap(self.spawned.pidfd.as_fd());
    }
}
