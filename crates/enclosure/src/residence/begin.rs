//! Starting a residence, and starting commands in it.

use super::{
    EpollSlot, OomKills, PlannedCommand, Residence, Running, Started, Streams, enclosure_gone, retryable, watch,
};
use crate::driver::{self, Driver};
use crate::faults::{exec_failed, internal, step_failed, vanished};
use crate::flock::{Flock, JobId};
use crate::groundwork::Pipes;
use crate::limits;
use crate::plan::GuestPlan;
use crate::spec::GuestServices;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use sys::job::{self, ExecStatus, JobControl, JobError, JobEvent, JobSpec, MOST_BYTES, MOST_JOBS, StartStage};
use sys::process;
use sys::spawn::{Command, Message, Report};
use terms::{ErrorKind, Fault, LimitHit, Phase, Retry};

/// Deadline for the setup of an enclosure.
const PATIENCE: Duration = Duration::from_secs(30);
/// Deadline for the start of a command. A process inside may delay it, and the keeper serves no other request
/// meanwhile.
const START: Duration = Duration::from_secs(10);
/// Time to wait for a starting command's exec.
const HELD_UP: Duration = Duration::from_secs(5);

impl GuestPlan {
    /// Launches the guest and waits until it is set up. The spec's command is not started, and
    /// `GuestSpec::resident` must be set.
    pub fn reside<'a>(self, beside: GuestServices<'a>) -> Result<Residence<'a>, Fault> {
        if !self.spec.resident {
            return Err(Fault::internal("this run was prepared for one command").phase(Phase::Start));
        }
        if self.spec.enforced.driver != Driver::Namespaces {
            let message = "a live sandbox needs namespaces, which this host does not allow";
            let hint = "run where user namespaces are allowed (`cofferdam doctor`), or use `cofferdam run`";
            return Err(Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Start));
        }
        let mut command = Command::none(&self.ground.arena);
        command.start_mark = self.steps.watch.start_mark.unwrap_or_default();
        let mut residence = Residence {
            guest: self.launch(command, beside)?,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|_| driver::lacks("epoll_create1"))?,
            jobs: BTreeMap::new(),
            last_job: 0,
            umask: process::umask(),
            events: Vec::new(),
            next_check: None,
            limited: false,
            memory: OomKills::default(),
            frozen: None,
            pending_signals: Vec::new(),
            memory_peak: 0,
            is_gone: false,
            home: None,
        };
        residence.await_setup()?;
        Ok(residence)
    }
}

/// Opens the sandbox's own home, before any command can move it.
fn open_home(root: &OwnedFd, home: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(root, home.strip_prefix("/").ok()?, flags, Mode::empty(), how).ok()
}

impl Residence<'_> {
    fn await_setup(&mut self) -> Result<(), Fault> {
        if !ready(self.guest.spawned.control(), Some(Instant::now() + PATIENCE)) {
            return Err(Fault::internal("the guest did not set itself up in time").phase(Phase::Start));
        }
        let handles = match self.guest.spawned.receive().map_err(|e| internal(Phase::Start, e))? {
            Some((report, handles)) if report.message == Message::Ready => handles,
            Some((report, _)) if report.message == Message::StepFailed => {
                return Err(step_failed(&self.guest.steps, &report));
            }
            _ => return Err(self.fell_in_setup()),
        };
        self.guest.open(handles)?;
        let copy = |fd: &OwnedFd| fd.try_clone().ok();
        let root = self.guest.places.root.take();
        self.home = root.as_ref().zip(self.guest.steps.home.as_deref()).and_then(|(root, home)| open_home(root, home));
        self.guest.judge.flock = Some(Flock::new(self.guest.spawned.pid, root.as_ref().and_then(copy)));
        if let Some(root) = root {
            self.guest.judge.look_from(root);
        }
        let input = epoll::EventFlags::IN;
        watch(&self.epoll, self.guest.spawned.control(), EpollSlot::Control, input)?;
        if let Some(listener) = &self.guest.listener {
            watch(&self.epoll, listener, EpollSlot::Listener, input)?;
        }
        let network = self.guest.network.as_ref().and_then(|network| network.wake());
        let publisher = self.guest.publisher.as_ref().map(|publisher| publisher.wake());
        for wake in [network, publisher].into_iter().flatten().chain(self.guest.asked_wakes()) {
            watch(&self.epoll, wake, EpollSlot::Network, input)?;
        }
        for event in &self.guest.meter.events {
            let flags = epoll::EventFlags::from_bits_retain(event.poll_mask() as u16 as u32);
            watch(&self.epoll, event, EpollSlot::Event, flags)?;
        }
        Ok(())
    }

    fn fell_in_setup(&self) -> Fault {
        match self.guest.meter.exceeded() {
            Some(LimitHit { kind, .. }) => {
                let message = format!("the limit max_{} is too small for the enclosure itself", kind.name());
                let hint = format!("create the sandbox with a higher limit, or leave max_{} out", kind.name());
                Fault::new(ErrorKind::LimitExceeded, message).limit(kind).hint(hint).phase(Phase::Start)
            }
            None => vanished(),
        }
    }

    /// Starts a command; waits until it runs.
    pub fn start(&mut self, command: PlannedCommand) -> Result<Started, Fault> {
        self.check(&command)?;
        let guest = self.guest.steps.guest;
        let pipes = match command.streams {
            Streams::Pipes { .. } => Some(Pipes::new(&guest)?),
            Streams::Terminal { .. } => None,
        };
        if self.jobs.is_empty() {
            self.begin_anew();
        }
        self.last_job += 1;
        let job = JobId(self.last_job);
        // One for the new shepherd and one for the first process.
        self.guest.meter.admit_ours(2 + self.jobs.len() as u64);
        self.guest.judge.flock.iter_mut().for_each(|flock| flock.add(job));
        (self.guest.judge.starting, self.guest.judge.awaiting_answer) = (Some(command.program.clone()), None);
        let begun =
            self.hand_over(&command, pipes.as_ref()).and_then(|control| self.await_start(job, control, &command));
        self.guest.judge.starting = None;
        let watched = begun.and_then(|(pid, running)| {
            let started = self.streams(job, pid, &command, pipes, &running);
            let watched = started.and_then(|started| {
                watch(&self.epoll, &running.control, EpollSlot::Job(job), epoll::EventFlags::IN).map(|()| started)
            });
            // A command that cannot be watched must not keep running.
            watched.map_err(|fault| ended(running.shepherd.as_fd(), fault)).map(|started| (started, running))
        });
        let (started, running) = match watched {
            Ok(watched) => watched,
            Err(fault) => {
                self.guest.judge.flock.iter_mut().for_each(|flock| drop(flock.remove(job)));
                self.guest.meter.admit_ours(1 + self.jobs.len() as u64);
                return Err(fault);
            }
        };
        if self.jobs.is_empty() {
            self.guest.meter.look_at_space();
        }
        self.jobs.insert(job, running);
        self.next_check = self.guest.meter.next_look();
        Ok(started)
    }

    fn check(&mut self, command: &PlannedCommand) -> Result<(), Fault> {
        let refuse = |kind, message: String| Fault::new(kind, message).phase(Phase::Admission);
        if self.is_gone {
            return Err(enclosure_gone(Phase::Admission));
        }
        if self.frozen.is_some() {
            let fault = refuse(ErrorKind::Conflict, "the enclosure is frozen".into());
            return Err(fault.hint("resume it first"));
        }
        if self.jobs.len() >= MOST_JOBS {
            let fault = refuse(ErrorKind::LimitExceeded, format!("{MOST_JOBS} commands run in this enclosure already"));
            return Err(fault.retry(Retry::Later).hint("wait until one has ended"));
        }
        let texts = command.argv.iter().chain(command.env.iter().flat_map(|(name, value)| [name, value]));
        let mut texts =
            texts.map(|text| text.as_bytes()).chain([&command.program, &command.cwd].map(|p| p.as_os_str().as_bytes()));
        if texts.any(|text| text.contains(&0)) {
            return Err(Fault::invalid("a command, its arguments and variables cannot contain zero bytes")
                .phase(Phase::Admission));
        }
        for (what, path) in [("program", &command.program), ("cwd", &command.cwd)] {
            if !path.is_absolute() {
                let message = format!("{what}: {} is not an absolute path", path.display());
                return Err(Fault::invalid(message).phase(Phase::Admission));
            }
        }
        match self.guest.judge.forbids(&command.program) {
            Some(decision) => {
                let message = format!("{}: {} denies executing it", command.program.display(), decision.rule);
                let fault = refuse(ErrorKind::PolicyDenied, message).exit(126);
                Err(decision.hint.map_or(fault.clone(), |hint| fault.hint(hint)))
            }
            None => Ok(()),
        }
    }

    /// Resets the accounts while no command runs, so that earlier use is not charged to later commands.
    fn begin_anew(&mut self) {
        self.limited = false;
        self.guest.judge.descriptors_met = false;
        self.guest.judge.scratch_hit = None;
        self.guest.meter.start_anew();
        self.memory = OomKills { kills: self.guest.meter.memory_kills(), ..OomKills::default() };
    }

    /// Sends a command to the guest's first process.
    fn hand_over(&self, command: &PlannedCommand, pipes: Option<&Pipes>) -> Result<JobControl, Fault> {
        let streams = match (command.streams, pipes) {
            (Streams::Terminal { rows, columns }, _) => job::Streams::Terminal { rows, columns },
            (_, Some(pipes)) => job::Streams::Pipes(pipes.command_ends()),
            (_, None) => return Err(Fault::internal("cannot create pipes")),
        };
        let env = command.env.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
        let spec = JobSpec {
            path: command.program.as_os_str().as_bytes(),
            argv: command.argv.iter().map(|text| text.as_bytes()).collect(),
            env: env.collect(),
            cwd: command.cwd.as_os_str().as_bytes(),
            streams,
            inherit: command.inherit.iter().map(AsFd::as_fd).collect(),
            umask: self.umask,
            open_files: self.guest.spec.limits.max_open_files.map(limits::open_files),
            start_mark: self.guest.steps.watch.start_mark.unwrap_or_default(),
        };
        self.guest.spawned.start(&spec).map_err(|trouble| match trouble {
            JobError::TooLong(size) => {
                let message =
                    format!("the command takes {size} bytes with its arguments and variables; {MOST_BYTES} at most");
                Fault::invalid(message).hint("put long values into a file").phase(Phase::Admission)
            }
            JobError::Call(error) => {
                retryable(format!("the command cannot be sent to the guest: {error}"), Phase::Start)
            }
        })
    }

    /// Waits until the command has started, and answers notifications meanwhile: the start itself may need an answer.
    fn await_start(
        &mut self,
        job: JobId,
        control: JobControl,
        command: &PlannedCommand,
    ) -> Result<(i32, Running), Fault> {
        let mut shepherd = None;
        let heard = self.hear_start(job, &control, command, &mut shepherd);
        match (heard, shepherd) {
            (Ok(ReportedStart { pid, fate, terminal, early_end }), Some(shepherd)) => {
                let (end_by, ending, out_of_memory) = (None, false, false);
                Ok((
                    pid,
                    Running {
                        control,
                        shepherd,
                        terminal,
                        _exec_status: fate,
                        early_end,
                        end_by,
                        ending,
                        out_of_memory,
                    },
                ))
            }
            (Err(fault), Some(shepherd)) => Err(ended(shepherd.as_fd(), fault)),
            (Err(fault), None) => Err(fault),
            (Ok(_), None) => Err(Fault::internal("a start without an end")),
        }
    }

    /// Takes events until the shepherd is known and the command has begun.
    fn hear_start(
        &mut self,
        job: JobId,
        control: &JobControl,
        command: &PlannedCommand,
        shepherd: &mut Option<OwnedFd>,
    ) -> Result<ReportedStart, Fault> {
        let until = Instant::now() + START;
        let (mut begun, mut early_end): (Option<ReportedStart>, _) = (None, None);
        loop {
            if let Some(begun) = begun.take_if(|_| shepherd.is_some()) {
                return Ok(ReportedStart { early_end, ..begun });
            }
            if !self.wait_for(control.as_fd(), until, None) {
                return Err(retryable("the command did not start in time", Phase::Start));
            }
            match control.next_event().map_err(|e| internal(Phase::Start, e))? {
                JobEvent::Born(fd) => {
                    self.guest.judge.flock.iter_mut().for_each(|flock| flock.set_shepherd(job, fd.as_fd()));
                    *shepherd = Some(fd);
                }
                JobEvent::Begins { pid, fate, terminal } => {
                    // A process inside may delay the exec, or a person be asked about it; the command counts as started
                    // nevertheless.
                    let known = self.wait_for(fate.as_fd(), Instant::now() + HELD_UP, Some(job));
                    if let Some((at, errno)) = known.then(|| fate.read_failure()).flatten() {
                        return Err(not_started(command, at, errno));
                    }
                    begun = Some(ReportedStart { pid, fate: (!known).then_some(fate), terminal, early_end: None });
                }
                JobEvent::NotStarted { at, errno } => return Err(not_started(command, at, errno)),
                heard @ JobEvent::Ended { .. } => early_end = Some(heard),
                heard @ JobEvent::Lost { .. } if begun.is_some() => early_end = Some(heard),
                JobEvent::Lost { .. } => {
                    return Err(retryable("the command was killed from inside before it began", Phase::Start));
                }
                JobEvent::Closed => return Err(enclosure_gone(Phase::Start)),
            }
        }
    }

    /// Waits until `fd` is readable. False at the deadline, when the peer is gone, or when this job's start waits for
    /// a person's answer.
    fn wait_for(&mut self, fd: BorrowedFd<'_>, until: Instant, job: Option<JobId>) -> bool {
        loop {
            if job.is_some() && self.guest.judge.awaiting_answer == job {
                return false;
            }
            let timeout = sys::deadline::time_left(until);
            let mut fds = vec![PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            fds.extend(self.guest.listener.as_ref().map(|listener| PollFd::new(listener, PollFlags::IN)));
            let polled = poll(&mut fds, Some(&timeout));
            let told = !fds[0].revents().is_empty();
            let asks = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
            if asks {
                self.hear_calls();
            }
            match polled {
                _ if told => return true,
                Ok(0) => return false,
                // An endless stream of notifications does not extend the deadline.
                Ok(_) if Instant::now() >= until => return false,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Returns the supervisor's ends of a command's streams.
    fn streams(
        &self,
        job: JobId,
        pid: i32,
        command: &PlannedCommand,
        pipes: Option<Pipes>,
        running: &Running,
    ) -> Result<Started, Fault> {
        let lost = || Fault::internal("the command's streams did not arrive").phase(Phase::Start);
        let shepherd = self.guest.judge.flock.as_ref().and_then(|flock| flock.shepherd(job));
        if let (Streams::Pipes { input }, Some(pipes)) = (command.streams, pipes) {
            let ours = pipes.supervisor_ends(input);
            let output = ours.output.ok_or_else(lost)?;
            return Ok(Started { job, pid, shepherd, input: ours.input, output, error: ours.error });
        }
        let master = running.terminal.as_ref().ok_or_else(lost)?;
        let _ = rustix::fs::fcntl_setfl(master, rustix::fs::OFlags::NONBLOCK);
        let copy = || master.try_clone().map_err(|e| Fault::internal(e.to_string()).phase(Phase::Start));
        Ok(Started { job, pid, shepherd, input: Some(copy()?), output: copy()?, error: None })
    }
}

/// A command whose start was reported.
struct ReportedStart {
    pid: i32,
    /// Reports an exec failure that is still unknown.
    fate: Option<ExecStatus>,
    terminal: Option<OwnedFd>,
    /// The end, if it was reported already.
    early_end: Option<JobEvent>,
}

/// Waits until a descriptor is readable; false at the deadline.
fn ready(fd: &OwnedFd, until: Option<Instant>) -> bool {
    loop {
        let left = until.map(sys::deadline::time_left);
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            found => return found.is_ok_and(|count| count > 0),
        }
    }
}

fn not_started(command: &PlannedCommand, at: StartStage, errno: i32) -> Fault {
    let program = &command.program;
    match at {
        StartStage::Directory => {
            let error = std::io::Error::from_raw_os_error(errno);
            let cwd = command.cwd.display();
            Fault::new(ErrorKind::NotFound, format!("the working directory {cwd} cannot be entered inside: {error}"))
                .exit(127)
                .phase(Phase::Start)
                .hint("name one that exists in the sandbox, or make it first")
        }
        StartStage::Exec => exec_failed(program, &Report { errno, ..Report::default() }),
        StartStage::Setup => exec_failed(program, &Report { step: 1, errno, ..Report::default() }),
    }
}

/// Kills a command whose start failed halfway: when its shepherd is gone, the first process kills its descendants.
fn ended(shepherd: BorrowedFd<'_>, fault: Fault) -> Fault {
    let _ = process::signal(shepherd, crate::running::SIGKILL); // False when it has ended already.
    fault
}
