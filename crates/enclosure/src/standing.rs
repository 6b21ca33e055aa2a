//! What stands beside a guest, whether it has one command or many: its first process, its limits, whoever hears its calls, and
//! its network.

use crate::actors::Actors;
use crate::driver::{self, Driver};
use crate::launch::{Beside, Raised, Request};
use crate::limits::Meter;
use crate::listen::{Barred, Held, Judge};
use crate::network::{Network, Opening};
use crate::publish::{self, Helper, Published, Publisher};
use crate::steps::Steps;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use sys::notify::Listener;
use sys::op::{Attr, Op};
use sys::spawn::{self, Places, Report, Spawned};
use sys::{CallError, process};
use terms::{Denial, ErrorKind, Fault, Limit, LimitHit, LimitKind, Limits, Phase, Retry};

pub(crate) const SIGKILL: i32 = 9;

pub(crate) struct Standing<'a> {
    pub request: Rc<Request>,
    pub steps: Rc<Steps>,
    pub spawned: Spawned,
    pub meter: Meter<'a>,
    pub judge: Judge<'a>,
    pub listener: Option<Listener>,
    pub network: Option<Box<dyn Network + 'a>>,
    /// What is to be published once the guest stands; then the one who does it.
    publish: Vec<Published>,
    pub publisher: Option<Publisher>,
    /// Connections from outside at a time.
    room: usize,
    /// Makes sockets in its network, and changes its mounts.
    pub helper: Option<Helper>,
    pub places: Places,
}

impl<'a> Standing<'a> {
    pub fn new(request: Rc<Request>, steps: Rc<Steps>, raised: Raised, beside: Beside<'a>) -> Standing<'a> {
        let limits = match request.resident {
            // Those are each command's own.
            true => Limits { max_wall_ms: None, max_output_bytes: None, ..request.limits },
            false => request.limits,
        };
        let mut meter = Meter::new(limits, raised.group);
        meter.watch(beside.gauge);
        let mut judge = Judge::new(Rc::clone(&request), Rc::clone(&steps), beside.observer);
        judge.asking = beside.asking;
        let helper: Option<Helper> = raised.helper.map(|helper| Arc::new(Mutex::new(helper)));
        judge.helper = helper.clone();
        Standing {
            judge,
            spawned: raised.spawned,
            meter,
            listener: None,
            network: beside.network,
            publish: beside.publish,
            publisher: None,
            room: 1,
            helper,
            places: raised.places,
            request,
            steps,
        }
    }

    /// The guest stands: takes what it hands over, and has its network begin. Gives the terminal, where there is one.
    pub fn open(&mut self, handles: spawn::Handles) -> Result<Option<OwnedFd>, Fault> {
        // Asked before anybody raises the limit that it depends on.
        self.room = publish::room();
        if let Some(network) = &mut self.network {
            let lost = || Fault::internal("the guest's doors did not arrive").phase(Phase::Start);
            // To one that stays more may be published later.
            let published = match (self.publish.len(), self.request.resident) {
                (0, false) => 0,
                (ports, _) => publish::descriptors(ports, self.room),
            };
            let actors = Actors::of(self.spawned.pid, handles.sockets);
            network.open(Opening { doors: handles.doors.ok_or_else(lost)?, actors, published })?;
        }
        if !self.publish.is_empty() {
            let ports = std::mem::take(&mut self.publish);
            self.begin_to_publish(ports)?;
        }
        self.listener = handles.listener.map(Listener::new);
        self.places = std::mem::take(&mut self.places).or(handles.places);
        self.judge.asked = Held::all(&self.request.plan.asked, std::mem::take(&mut self.places.asked));
        if let Some(root) = &self.places.root {
            self.judge.barred = Barred::all(self.request.plan.exec.asked(), root);
            // Before the command runs nobody can be looked at to find it.
            if let (Ok(root), false) = (root.try_clone(), self.request.resident) {
                self.judge.look_from(root);
            }
        }
        self.meter.start(self.places.scratch.take());
        if let Some(workspace) = &self.request.workspace {
            self.meter.count_nameless(self.spawned.pid, &workspace.at);
        }
        self.judge.room = self.meter.room();
        Ok(handles.terminal)
    }

    /// False where there is nobody who makes sockets in the guest's network.
    pub fn begin_to_publish(&mut self, ports: Vec<Published>) -> Result<bool, Fault> {
        let Some(helper) = &self.helper else { return Ok(false) };
        let most = self.request.limits.max_net_bytes;
        self.publisher = Some(Publisher::start(ports, Arc::clone(helper), most, self.room)?);
        Ok(true)
    }

    /// Answers one call; the limit that showed.
    pub fn hear_call(&mut self) -> Option<LimitHit> {
        if !self.judge.hear(self.listener.as_ref()?) {
            self.listener = None;
        }
        self.judge.room_met.or_else(|| self.judge.descriptors_met.then(|| self.too_many_files()))
    }

    fn too_many_files(&self) -> LimitHit {
        let limit = self.request.limits.max_open_files.unwrap_or(0);
        LimitHit {
            kind: LimitKind::OpenFiles,
            phase: Phase::Execution,
            limit: Limit::Count(limit),
            used: Limit::Count(limit + 1),
        }
    }

    /// Refusals and warnings of the network. Each is there to be taken before the guest learns of it.
    pub fn hear_reports(&mut self) {
        if let Some(network) = &mut self.network {
            network.happened().into_iter().for_each(|report| self.judge.tell(report));
        }
    }

    /// The same as they happen, and the limit on bytes.
    pub fn hear_network(&mut self) -> Option<LimitHit> {
        self.hear_reports();
        if let Some(publisher) = &self.publisher {
            publisher.heard();
        }
        self.net_hit()
    }

    /// Passes questions and answers on, and takes what those tell who waited.
    pub fn hear_asked(&mut self) {
        if let Some(asking) = &mut self.judge.asking {
            asking.turn();
        }
        self.judge.hear_waiters();
    }

    /// What becomes readable when there is something to hear.
    pub fn asked_wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let changed = self.judge.asking.as_ref().and_then(|asking| asking.changed());
        changed.into_iter().chain(self.judge.reports.wake())
    }

    /// Bytes over the network both ways, published ports included.
    pub fn net_bytes(&self) -> u64 {
        self.network.as_ref().map_or(0, |n| n.used()) + self.publisher.as_ref().map_or(0, Publisher::used)
    }

    /// The limit on them, where it was met.
    pub fn net_hit(&self) -> Option<LimitHit> {
        let limit = self.request.limits.max_net_bytes?;
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

    /// Ends everything. Pid 1's end is the end of every process in its namespace.
    pub fn kill(&self) {
        let signal = match self.request.enforced.driver {
            Driver::Namespaces => SIGKILL,
            // Without a pid namespace somebody must go through the tree; the group's kill is the quicker where there
            // is a group.
            Driver::Landlock => spawn::END_SIGNAL,
        };
        process::signal(self.spawned.pidfd.as_fd(), signal);
        self.meter.kill();
    }

    /// Waits until pid 1, and with it everything in its namespaces, is gone.
    pub fn reap(&self) {
        process::reap(self.spawned.pidfd.as_fd());
    }
}

/// Why a program did not start that was refused when it was about to.
pub(crate) fn start_refused(denial: &Denial) -> Fault {
    let fault = Fault::new(ErrorKind::PolicyDenied, format!("{}: refused by {}", denial.target, denial.rule));
    let fault = fault.exit(126).phase(Phase::Start);
    denial.hint.iter().fold(fault, |fault, hint| fault.hint(hint.clone()))
}

/// Why a program did not start.
pub(crate) fn exec_failed(program: &Path, report: &Report) -> Fault {
    const ENOENT: i32 = 2;
    const EACCES: i32 = 13;
    const EPERM: i32 = 1;
    let error = std::io::Error::from_raw_os_error(report.errno);
    let name = program.display();
    let fault = match report.errno {
        _ if report.step != 0 => {
            let message = format!("the command could not be started: {error}");
            Fault::new(ErrorKind::UnsupportedHost, message).hint(driver::ASK_DOCTOR)
        }
        ENOENT => {
            let message = format!("{name}: cannot be started: it or its interpreter is not there inside");
            Fault::new(ErrorKind::NotFound, message).exit(127)
        }
        // The caller could run it, so it is the enclosure that could not.
        EACCES | EPERM if rustix::fs::access(program, rustix::fs::Access::EXEC_OK).is_ok() => {
            Fault::new(ErrorKind::PolicyDenied, format!("{name}: cannot be executed: {error}")).exit(126)
        }
        _ => Fault::invalid(format!("{name}: cannot be executed: {error}")).exit(126),
    };
    fault.phase(Phase::Start)
}

/// Somebody killed the first process before the command ran.
pub(crate) fn vanished() -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, "the guest's first process was killed during setup");
    fault.hint("somebody ended it, or memory ran out; try again").phase(Phase::Start)
}

const ENOMEM: i32 = 12;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EDQUOT: i32 = 122;
/// With less than this a file system may have no room for a directory.
const LITTLE_SPACE: u64 = 1 << 20;
const FEW_FILES: u64 = 16;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// What to say where a workspace cannot be mounted because the file system with its layers takes nothing new. Space comes back, so the same
/// start works later.
fn full_disk(layer: &Path, errno: i32) -> Option<Fault> {
    let disk = rustix::fs::statvfs(layer).ok()?;
    let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    let has_no_files = disk.f_files > 0 && disk.f_favail < FEW_FILES;
    // The kernel says the same where there are too many mounts.
    if errno == ENOSPC && free_bytes >= LITTLE_SPACE && !has_no_files {
        return None;
    }
    if !matches!(errno, EROFS | ENOSPC | EDQUOT) {
        return None;
    }
    let is_read_only = disk.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY);
    let state = if is_read_only { " and is read-only" } else { "" };
    let files = if disk.f_files > 0 { format!(" and {} files", disk.f_favail) } else { String::new() };
    let message = format!(
        "the workspace cannot take changes: the file system with its layers ({}) has {} KiB{files} free{state}",
        layer.display(),
        free_bytes >> 10
    );
    let hint = if is_read_only { "mount it writable, then try again" } else { "free some space there, then try again" };
    Some(Fault::new(ErrorKind::Unavailable, message).hint(hint).retry(Retry::Later).phase(Phase::Start))
}

/// Says at which step the setup failed.
pub(crate) fn step_failed(steps: &Steps, report: &Report) -> Fault {
    let error = std::io::Error::from_raw_os_error(report.errno);
    let Some(op) = steps.ops.get(report.step as usize) else {
        return Fault::internal(format!("setup step {}: {error}", report.step)).phase(Phase::Start);
    };
    if matches!(op, Op::AwaitPlaces) {
        let message = format!("the process that makes the guest's places ended during setup: {error}");
        return Fault::internal(message).phase(Phase::Start);
    }
    let said = op.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let step = format!("setup step {} ({said}): {error}", report.step + 1);
    if matches!(report.errno, ENOMEM | EMFILE | ENFILE)
        && let Some(fault) = driver::exhausted(&step, report.errno)
    {
        return fault;
    }
    if matches!(op, Op::Overlay { attr, .. } if !attr.has(Attr::READ_ONLY))
        && let Some(fault) = steps.top_layer.as_deref().and_then(|layer| full_disk(layer, report.errno))
    {
        return fault;
    }
    if matches!(op, Op::PrivateMounts | Op::Identity { .. } | Op::Proc { .. } | Op::Tmpfs { .. }) {
        return driver::blocked(&CallError { call: op.name(), errno: report.errno });
    }
    let hint = match op {
        Op::Overlay { attr, .. } if !attr.has(Attr::READ_ONLY) => driver::INSTEAD,
        _ => driver::ASK_DOCTOR,
    };
    Fault::new(ErrorKind::UnsupportedHost, step).hint(hint).phase(Phase::Start)
}
