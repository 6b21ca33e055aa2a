//! How a residence comes to stand, and how a command in it begins.

use super::{Job, Memory, Residence, Running, Slot, Start, Started, Streams, again, fallen, watch};
use crate::driver::{self, Driver};
use crate::flock::Flock;
use crate::ground::Pipes;
use crate::launch::{Beside, Prepared, internal};
use crate::limits;
use crate::standing::{Standing, exec_failed, step_failed, vanished};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use sys::job::{self, At, Errand, Fate, Heard, Line, MOST_BYTES, MOST_JOBS, Trouble};
use sys::process;
use sys::spawn::{Command, Message, Report};
use terms::{ErrorKind, Fault, LimitHit, Phase, Retry};

/// How long a start may take, of an enclosure or of a command in it.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a command may take to begin. Whoever is inside may hold it up, and everybody waits with it.
const START: Duration = Duration::from_secs(10);
/// How long a command that begins is waited for until its program runs.
const HELD_UP: Duration = Duration::from_secs(5);

impl Prepared {
    /// Builds the enclosure and waits until it stands. The request's command is not started. Wants `Request::resident`.
    pub fn reside<'a>(mut self, beside: Beside<'a>) -> Result<Residence<'a>, Fault> {
        if !self.request.resident {
            return Err(Fault::internal("this run was prepared for one command").phase(Phase::Start));
        }
        if self.request.enforced.driver != Driver::Namespaces {
            let message = "a sandbox that stays needs namespaces, which are not to be had here";
            let hint = "run where user namespaces are allowed (`cofferdam doctor`), or use `cofferdam run`";
            return Err(Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Start));
        }
        let mut command = Command::none();
        command.start_mark = self.steps.watch.start_mark.unwrap_or_default();
        let mut raised = self.raise(command, beside.publish.len())?;
        let janitor = raised.janitor.take();
        let guest = Standing::new(self.request, self.steps, raised, beside);
        let mut residence = Residence {
            guest,
            janitor,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|_| driver::lacks("epoll_create1"))?,
            jobs: BTreeMap::new(),
            last: 0,
            umask: process::umask(),
            told: Vec::new(),
            look_at: None,
            limited: false,
            memory: Memory::default(),
            still: None,
            held: Vec::new(),
            peak: 0,
            fell: false,
        };
        residence.stand()?;
        Ok(residence)
    }
}

impl Residence<'_> {
    fn stand(&mut self) -> Result<(), Fault> {
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
        self.guest.judge.flock = Some(Flock::new(self.guest.spawned.pid, root.as_ref().and_then(copy)));
        if let Some(root) = root {
            self.guest.judge.look_from(root);
        }
        let input = epoll::EventFlags::IN;
        watch(&self.epoll, self.guest.spawned.control(), Slot::Control, input)?;
        if let Some(listener) = &self.guest.listener {
            watch(&self.epoll, listener, Slot::Listener, input)?;
        }
        let network = self.guest.network.as_ref().and_then(|network| network.wake());
        let publisher = self.guest.publisher.as_ref().map(|publisher| publisher.wake());
        for wake in [network, publisher].into_iter().flatten().chain(self.guest.asked_wakes()) {
            watch(&self.epoll, wake, Slot::Network, input)?;
        }
        for event in &self.guest.meter.events {
            let flags = epoll::EventFlags::from_bits_retain(event.poll_mask() as u16 as u32);
            watch(&self.epoll, event, Slot::Event, flags)?;
        }
        Ok(())
    }

    fn fell_in_setup(&self) -> Fault {
        match self.guest.meter.exceeded() {
            Some(LimitHit { kind, .. }) => {
                let message = format!("the limit max_{} is too small for the enclosure itself", kind.name());
                let hint = format!("make the sandbox with more, or leave max_{} out", kind.name());
                Fault::new(ErrorKind::LimitExceeded, message).limit(kind).hint(hint).phase(Phase::Start)
            }
            None => vanished(),
        }
    }

    /// Starts a command; waits until it runs.
    pub fn start(&mut self, start: Start) -> Result<Started, Fault> {
        self.check(&start)?;
        let guest = self.guest.steps.guest;
        let pipes = match start.streams {
            Streams::Pipes { .. } => Some(Pipes::new(&guest)?),
            Streams::Terminal { .. } => None,
        };
        if self.jobs.is_empty() {
            self.begin_anew();
        }
        self.last += 1;
        let job = Job(self.last);
        // The first process is counted besides.
        self.guest.meter.admit_ours(2 + self.jobs.len() as u64);
        self.guest.judge.flock.iter_mut().for_each(|flock| flock.add(job));
        (self.guest.judge.starting, self.guest.judge.held_up) = (Some(start.program.clone()), None);
        let begun = self.ask(&start, pipes.as_ref()).and_then(|line| self.await_start(job, line, &start.program));
        self.guest.judge.starting = None;
        let watched = begun.and_then(|(pid, running)| {
            let started = self.streams(job, pid, &start, pipes, &running);
            let watched = started.and_then(|started| {
                watch(&self.epoll, &running.line, Slot::Job(job), epoll::EventFlags::IN).map(|()| started)
            });
            // A command that nobody could watch must not run on.
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
        self.look_at = self.guest.meter.next_look();
        Ok(started)
    }

    fn check(&mut self, start: &Start) -> Result<(), Fault> {
        let refuse = |kind, message: String| Fault::new(kind, message).phase(Phase::Admission);
        if self.fell {
            return Err(fallen(Phase::Admission));
        }
        if self.still.is_some() {
            let fault = refuse(ErrorKind::Conflict, "the enclosure stands still".into());
            return Err(fault.hint("resume it first"));
        }
        if self.jobs.len() >= MOST_JOBS {
            let fault = refuse(ErrorKind::LimitExceeded, format!("{MOST_JOBS} commands run in this enclosure already"));
            return Err(fault.retry(Retry::Later).hint("wait until one has ended"));
        }
        let texts = start.argv.iter().chain(start.env.iter().flat_map(|(name, value)| [name, value]));
        let mut texts =
            texts.map(|text| text.as_bytes()).chain([&start.program, &start.cwd].map(|p| p.as_os_str().as_bytes()));
        if texts.any(|text| text.contains(&0)) {
            return Err(
                Fault::invalid("a command, its arguments and variables hold no zero bytes").phase(Phase::Admission)
            );
        }
        for (what, path) in [("program", &start.program), ("cwd", &start.cwd)] {
            if !path.is_absolute() {
                let message = format!("{what}: {} is no absolute path", path.display());
                return Err(Fault::invalid(message).phase(Phase::Admission));
            }
        }
        match self.guest.judge.forbids(&start.program) {
            Some(decision) => {
                let message = format!("{}: {} does not let it be executed", start.program.display(), decision.rule);
                let fault = refuse(ErrorKind::PolicyDenied, message).exit(126);
                Err(decision.hint.map_or(fault.clone(), |hint| fault.hint(hint)))
            }
            None => Ok(()),
        }
    }

    /// Nothing runs: what was counted up to here belongs to nobody who comes.
    fn begin_anew(&mut self) {
        self.limited = false;
        self.guest.judge.descriptors_met = false;
        self.guest.judge.room_met = None;
        self.guest.meter.start_anew();
        self.memory = Memory { kills: self.guest.meter.memory_kills(), ..Memory::default() };
    }

    fn ask(&self, start: &Start, pipes: Option<&Pipes>) -> Result<Line, Fault> {
        let streams = match (start.streams, pipes) {
            (Streams::Terminal { rows, columns }, _) => job::Streams::Terminal { rows, columns },
            (_, Some(pipes)) => job::Streams::Pipes(pipes.theirs()),
            (_, None) => return Err(Fault::internal("there are no pipes")),
        };
        let env = start.env.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
        let errand = Errand {
            path: start.program.as_os_str().as_bytes(),
            argv: start.argv.iter().map(|text| text.as_bytes()).collect(),
            env: env.collect(),
            cwd: start.cwd.as_os_str().as_bytes(),
            streams,
            umask: self.umask,
            open_files: self.guest.request.limits.max_open_files.map(limits::open_files),
            start_mark: self.guest.steps.watch.start_mark.unwrap_or_default(),
        };
        self.guest.spawned.start(&errand).map_err(|trouble| match trouble {
            Trouble::TooLong(size) => {
                let message =
                    format!("the command takes {size} bytes with its arguments and variables; {MOST_BYTES} at most");
                Fault::invalid(message).hint("put what is long into a file").phase(Phase::Admission)
            }
            Trouble::Call(error) => again(format!("the command cannot be handed over: {error}"), Phase::Start),
        })
    }

    /// Hears what becomes of the start, and answers calls meanwhile: the one who starts may have to ask.
    fn await_start(&mut self, job: Job, line: Line, program: &Path) -> Result<(i32, Running), Fault> {
        let mut shepherd = None;
        let heard = self.hear_start(job, &line, program, &mut shepherd);
        match (heard, shepherd) {
            (Ok(Begun { pid, fate, terminal, over }), Some(shepherd)) => {
                let (end_by, ending, out_of_memory) = (None, false, false);
                Ok((pid, Running { line, shepherd, terminal, _fate: fate, over, end_by, ending, out_of_memory }))
            }
            (Err(fault), Some(shepherd)) => Err(ended(shepherd.as_fd(), fault)),
            (Err(fault), None) => Err(fault),
            (Ok(_), None) => Err(Fault::internal("a start without an end")),
        }
    }

    /// Until there is a shepherd, and the command has begun.
    fn hear_start(
        &mut self,
        job: Job,
        line: &Line,
        program: &Path,
        shepherd: &mut Option<OwnedFd>,
    ) -> Result<Begun, Fault> {
        let until = Instant::now() + START;
        let (mut begun, mut over): (Option<Begun>, _) = (None, None);
        loop {
            if let Some(begun) = begun.take_if(|_| shepherd.is_some()) {
                return Ok(Begun { over, ..begun });
            }
            if !self.wait_for(line.as_fd(), until, None) {
                return Err(again("the command did not start in time", Phase::Start));
            }
            match line.hear().map_err(|e| internal(Phase::Start, e))? {
                Heard::Born(fd) => {
                    self.guest.judge.flock.iter_mut().for_each(|flock| flock.tended(job, fd.as_fd()));
                    *shepherd = Some(fd);
                }
                Heard::Begins { pid, fate, terminal } => {
                    // Somebody inside may hold it up, or a person be asked about it; then it began nevertheless.
                    let known = self.wait_for(fate.as_fd(), Instant::now() + HELD_UP, Some(job));
                    if let Some((at, errno)) = known.then(|| fate.learn()).flatten() {
                        return Err(not_started(program, at, errno));
                    }
                    begun = Some(Begun { pid, fate: (!known).then_some(fate), terminal, over: None });
                }
                Heard::NotStarted { at, errno } => return Err(not_started(program, at, errno)),
                heard @ Heard::Ended { .. } => over = Some(heard),
                heard @ Heard::Lost { .. } if begun.is_some() => over = Some(heard),
                Heard::Lost { .. } => {
                    return Err(again("the command was killed from inside before it began", Phase::Start));
                }
                Heard::Closed => return Err(fallen(Phase::Start)),
            }
        }
    }

    /// Waits until the line tells something. False when it is too late, or nobody is left to tell, or this job's start waits for
    /// a person.
    fn wait_for(&mut self, line: BorrowedFd<'_>, until: Instant, job: Option<Job>) -> bool {
        loop {
            if job.is_some() && self.guest.judge.held_up == job {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = vec![PollFd::from_borrowed_fd(line, PollFlags::IN)];
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
                // Calls without end are no reason to wait longer.
                Ok(_) if Instant::now() >= until => return false,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Our ends.
    fn streams(
        &self,
        job: Job,
        pid: i32,
        start: &Start,
        pipes: Option<Pipes>,
        running: &Running,
    ) -> Result<Started, Fault> {
        let lost = || Fault::internal("the command's streams did not arrive").phase(Phase::Start);
        let shepherd = self.guest.judge.flock.as_ref().and_then(|flock| flock.shepherd(job));
        if let (Streams::Pipes { input }, Some(pipes)) = (start.streams, pipes) {
            let ours = pipes.keep_ours();
            let output = ours.output.ok_or_else(lost)?;
            return Ok(Started { job, pid, shepherd, input: ours.input.filter(|_| input), output, error: ours.error });
        }
        let master = running.terminal.as_ref().ok_or_else(lost)?;
        let _ = rustix::fs::fcntl_setfl(master, rustix::fs::OFlags::NONBLOCK);
        let copy = || master.try_clone().map_err(|e| Fault::internal(e.to_string()).phase(Phase::Start));
        Ok(Started { job, pid, shepherd, input: Some(copy()?), output: copy()?, error: None })
    }
}

/// A command that begins.
struct Begun {
    pid: i32,
    /// Where it tells why its program does not run, when that was not known yet.
    fate: Option<Fate>,
    terminal: Option<OwnedFd>,
    /// Its end, if that was told already.
    over: Option<Heard>,
}

/// Whether there is something to read in time.
fn ready(fd: &OwnedFd, until: Option<Instant>) -> bool {
    loop {
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            found => return found.is_ok_and(|count| count > 0),
        }
    }
}

fn not_started(program: &Path, at: At, errno: i32) -> Fault {
    match at {
        At::Directory => {
            let error = std::io::Error::from_raw_os_error(errno);
            Fault::new(ErrorKind::NotFound, format!("the working directory cannot be entered inside: {error}"))
                .exit(127)
                .phase(Phase::Start)
        }
        At::Exec => exec_failed(program, &Report { errno, ..Report::default() }),
        At::Setup => exec_failed(program, &Report { step: 1, errno, ..Report::default() }),
    }
}

/// Ends a command, with all that came of it, that could not be started as it should: when its shepherd goes, the first process
/// ends the rest.
fn ended(shepherd: BorrowedFd<'_>, fault: Fault) -> Fault {
    let _may_have_ended: bool = process::signal(shepherd, crate::standing::SIGKILL);
    fault
}
