//! Run one command in an enclosure: from what was asked to how it ended.

mod aside;
pub mod errand;
pub mod explained;
pub mod hidden;
mod inside;
pub mod layer;
mod mode;
mod phases;
mod place;
mod record;
mod resident;
mod sandboxed;
mod survey;
mod tally;
mod view;

use self::inside::Inside;
use self::layer::Held;
pub(crate) use self::mode::{check_read_only, check_readable};
pub(crate) use self::phases::Timer;
pub use self::phases::{Phases, Timed};
use self::place::Spot;
pub use self::place::{Fresh, Keep, Place};
use self::record::Tracked;
pub(crate) use self::record::{Written, is_stopped};
pub(crate) use self::resident::{Command, Holding, Premises, Resident};
pub(crate) use self::tally::{Tally, uncounted};
use self::view::View;
use crate::Caller;
use crate::events::EventFile;
use crate::network::{self, Brokered, Ear, Planned, Purpose, Wanted};
use crate::policies::{self, Flag, Source};
use crate::publish;
use crate::questions::{Asked, PATIENCE, Person, Questions};
use crate::roster::Roster;
pub use crate::sandbox::TTL_MS;
use enclosure::{Beside, Cpus, Driver, Enforced, Prepared, Published, Request};
pub use enclosure::{Groundwork, Observed, Observer, Stdio, begin, forgo};
use policy::Resolved;
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};
use terms::{Denial, ErrorKind, Fault, Limits, Outcome, Phase, PolicyStamp, RunId};

#[derive(Clone, Debug)]
pub struct Ask {
    /// The command and its arguments; or, with `shell`, the arguments after the shell string.
    pub command: Vec<OsString>,
    /// Run this text with `sh -c`.
    pub shell: Option<OsString>,
    pub policies: Vec<Source>,
    pub flags: Vec<Flag>,
    pub limits: Limits,
    pub cpus: Option<f64>,
    /// `NAME` passes the caller's value, `NAME=VALUE` sets one.
    pub env: Vec<OsString>,
    /// Where the command starts, seen from the directory that it works in.
    pub workdir: Option<PathBuf>,
    pub place: Place,
    /// Ports of the guest on the host, each `[ADDRESS:]HOST:GUEST`.
    pub publish: Vec<String>,
    /// Where secrets come from, each `NAME=env:VAR|file:PATH|cmd:COMMAND`.
    pub secrets: Vec<String>,
    /// Network events will be written down.
    pub events: bool,
    pub stdio: Stdio,
    pub report_reads: bool,
    /// How long what asks waits for an answer; the usual time where none is given.
    pub ask_timeout: Option<Duration>,
    pub learn: Learn,
}

/// How much a run is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learn {
    /// The observer is told of what is refused.
    Nothing,
    /// And of all files, programs and sockets that are used.
    Files,
    /// And of all that is tried on the network; names that may not be asked for lead nowhere and can be connected to.
    All,
}

/// A run that is ready to start, and what a person should know first.
pub struct Ready {
    pub prepared: Prepared,
    /// The program that will be started, by the name it was found under.
    pub program: PathBuf,
    /// Settings of another tool's file that are not in force, also in `warnings`: they are told whoever reads along.
    pub left_out: Vec<String>,
    /// What a person should know without asking.
    pub warnings: Vec<String>,
    /// What explains the plan to those who ask.
    pub notes: Vec<String>,
    pub policy: Rc<policy::Policy>,
    /// The one that its events bear.
    run: String,
    /// The directory that it works on, and the one that it starts in.
    spot: (PathBuf, PathBuf),
    network: Option<Wanted>,
    publish: Vec<Published>,
    tracked: Option<Tracked>,
    timer: Timer,
    /// Rules about files or sockets ask somebody; for how long, where, and who is at the terminal.
    asks_locally: bool,
    patience: Duration,
    questions: Option<Questions>,
    person: Option<Box<dyn Person>>,
}

impl Ready {
    /// Whether rules ask somebody.
    pub fn asks(&self) -> bool {
        self.asks_locally || self.network.as_ref().is_some_and(|network| network.asks)
    }

    /// Has what asks wait for answers in this table. Without, it is refused.
    pub fn ask_in(&mut self, questions: Questions) {
        self.questions = Some(questions.clone());
        self.network.iter_mut().for_each(|network| network.questions = Some(questions.clone()));
    }

    /// The same, and somebody at the terminal answers.
    pub fn ask_person(&mut self, person: Box<dyn Person>) {
        self.ask_in(Questions::new(self.patience));
        self.person = Some(person);
    }

    /// The caller's variables whose values must be forgotten before the run; see `Caller::forget`.
    pub fn secret_variables(&self) -> Vec<String> {
        let secrets = self.network.iter().flat_map(|n| n.secrets.variables());
        secrets.map(String::from).collect()
    }

    /// Where each secret would come from. None of them is looked at.
    pub fn secrets(&self) -> Vec<String> {
        self.network.iter().flat_map(|n| n.secrets.explain()).collect()
    }
}

/// How a verb ended before or instead of a run: a fault, with the refusal that caused it.
pub struct Refused {
    pub fault: Box<Fault>,
    pub denial: Option<Box<Denial>>,
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Refused {
        Refused { fault: Box::new(fault), denial: None }
    }
}

/// From what was asked to a run that can start. `ground` comes from `begin`, called as early as can be.
pub fn prepare(ask: &Ask, caller: &Caller, ground: Groundwork) -> Result<Ready, Refused> {
    crate::secrets::refuse_brought(&ask.secrets)?;
    terms::check_amounts(&ask.limits, ask.cpus)?;
    if let Place::Sandbox(word) = &ask.place {
        return sandboxed::prepare(ask, word, caller, ground);
    }
    let effective = policies::effective(&ask.policies, &ask.flags, caller)?;
    prepare_under(ask, caller, effective, ground)
}

/// The same under a policy that is already at hand.
pub(crate) fn prepare_under(
    ask: &Ask,
    caller: &Caller,
    effective: policies::Effective,
    ground: Groundwork,
) -> Result<Ready, Refused> {
    let timer = Timer::begin(Phase::Admission, caller.var("TRACEPARENT"));
    let spot = place::choose(ask, caller)?;
    let policies::Effective { policy: effective, notes: warnings, left_out } = effective;
    arrange(ask, caller, Under { effective, spot, held: None, warnings, left_out, timer }, ground)
}

/// Under what a run is made: its policy, where it works, and the workspace that it found there.
struct Under {
    effective: policy::Policy,
    spot: Spot,
    held: Option<Held>,
    warnings: Vec<String>,
    left_out: Vec<String>,
    timer: Timer,
}

fn arrange(ask: &Ask, caller: &Caller, under: Under, ground: Groundwork) -> Result<Ready, Refused> {
    let argv = inside::argv(&ask.command, ask.shell.as_deref())?;
    let laid = lay_out(ask, caller, under, ground, Some(&argv[0]))?;
    let run_id = RunId::from_random(crate::fresh::random());
    let env = inside::environment(&ask.env, &caller.env, &laid.resolved, &laid.inside, &run_id)?;
    let program = inside::find_program(&argv[0], &env, &laid.spot.cwd, &laid.resolved, &laid.view)?;
    laid.build(ask, caller, First { run_id, program, argv, env, resident: false }).map(|(ready, _)| ready)
}

/// Everything about an enclosure but the command in it.
struct Laid {
    ground: Groundwork,
    effective: policy::Policy,
    resolved: Resolved,
    plan: policy::Plan,
    layered: bool,
    enforced: Enforced,
    limits: Limits,
    spot: Spot,
    held: Option<Held>,
    view: View,
    installations: Vec<PathBuf>,
    inside: Inside,
    network: Planned,
    warnings: Vec<String>,
    left_out: Vec<String>,
    timer: Timer,
}

/// The command that an enclosure is built for; one that stands is built for none.
struct First {
    run_id: RunId,
    program: PathBuf,
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    resident: bool,
}

fn lay_out(
    ask: &Ask,
    caller: &Caller,
    under: Under,
    mut ground: Groundwork,
    word: Option<&OsStr>,
) -> Result<Laid, Refused> {
    let Under { mut effective, spot, held, mut warnings, left_out, mut timer } = under;
    timer.enter(Phase::Planning);
    if spot.private {
        policies::drop_workspace(&mut effective);
        let dir = spot.dir.display();
        warnings.push(format!(
            "{dir} is the guest's own inside, and nothing of the host's shows there; -w {dir} works on the host's"
        ));
    }
    let around = policies::surroundings(&mut effective, caller, &spot.dir, word);
    warnings.extend(around.notes);
    let resolved = policy::resolve(&effective, &around.context).map_err(Fault::from)?;
    policies::check_supported(&resolved, ask.events)?;
    let degrade: Vec<String> = resolved.degrade().map(String::from).collect();
    let mut enforced = enclosure::choose(&degrade)?;
    check_driver(enforced.driver, ask, &resolved)?;
    // Whoever has secrets must forget them before the first process is made, which is a copy of us.
    if effective.secrets.is_empty() && enforced.driver == Driver::Namespaces {
        ground.release();
    }
    let counted = resolved.needs_network().is_some() || !ask.publish.is_empty();
    let view = held.as_ref().map_or(Ok(View::default()), Held::view)?;
    let (resolved, plan, layered) = aside::settle(resolved, ask, &spot, &view, caller)?;
    if layered && enforced.driver != Driver::Namespaces {
        return Err(mode::no_namespaces().into());
    }
    let resolved = resolved.follow(&view).map_err(Fault::from)?;
    let mut limits = resolved.limits().tightest(ask.limits);
    if degrade.iter().any(|name| name.starts_with("max_")) {
        let (kept, missing) = enclosure::give_up_limits(limits, &Cpus(ask.cpus), &degrade, counted);
        limits = kept;
        enforced.missing.extend(missing);
    }
    enclosure::check_limits(&limits, &plan, counted, layered.then_some(spot.dir.as_path()))?;
    let purpose = if ask.learn == Learn::All { Purpose::Watching } else { Purpose::Rules };
    let network = network::plan(&resolved, &ask.secrets, caller, purpose)?;
    let inside = Inside::new(around.env_names, &network);
    let installations = around.installations;
    Ok(Laid {
        ground,
        effective,
        resolved,
        plan,
        layered,
        enforced,
        limits,
        spot,
        held,
        view,
        installations,
        inside,
        network,
        warnings,
        left_out,
        timer,
    })
}

impl Laid {
    /// The run, and the workspace where it is held and nothing is written to it.
    fn build(self, ask: &Ask, caller: &Caller, first: First) -> Result<(Ready, Option<Held>), Refused> {
        let Laid { ground, effective, resolved, plan, enforced, limits, spot, view, network, mut timer, .. } = self;
        let First { run_id, program, argv, env, resident } = first;
        // Whoever types a path that is not there wants to hear of it; what a file says of other hosts is for `--explain`.
        let (typed, notes) = plan.notes.iter().cloned().partition::<Vec<_>, _>(|note| note.starts_with("--"));
        let publish = publish::listen(&ask.publish)?;
        let asks_locally = resolved.asks_locally();
        let (net_plan, wanted) = network.divide(&resolved, limits.max_net_bytes);
        let (tracked, unused) = match self.layered {
            true => (Some(mode::track(ask, caller, self.held, &spot, (&run_id, &effective, &argv), limits)?), None),
            false => (None, self.held),
        };
        let effective = Rc::new(effective);
        let stamped = Rc::clone(&effective);
        let (left_out, told) = (self.left_out.clone(), self.left_out);
        let places = (spot.dir.clone(), spot.cwd.clone());
        let request = Request {
            run_id,
            deny_calls: resolved.syscalls_deny().iter().cloned().collect(),
            policy: resolved,
            plan,
            stamp: Box::new(move || PolicyStamp { digest: stamped.digest(), revision: 1, left_out: left_out.clone() }),
            enforced,
            program,
            argv,
            env,
            cwd: spot.cwd,
            home: caller.home.clone(),
            toolchains: self.installations,
            user: caller.user.clone(),
            limits,
            cpus: Cpus(ask.cpus),
            stdio: ask.stdio,
            watch_reads: ask.report_reads || ask.learn != Learn::Nothing,
            watch_looks: ask.learn != Learn::Nothing,
            resident,
            network: net_plan,
            workspace: tracked.as_ref().map(|t| t.held.workspace(&view)),
        };
        let program = request.program.clone();
        let run = request.run_id.as_str().to_owned();
        timer.enter(Phase::Preparation);
        let prepared = match enclosure::prepare(request, ground) {
            Ok(prepared) => prepared,
            Err(fault) => {
                tracked.into_iter().for_each(|t| t.fail(&fault));
                return Err(fault.into());
            }
        };
        let mut warnings = self.warnings;
        warnings.extend(typed);
        let ready = Ready {
            prepared,
            program,
            left_out: told,
            warnings,
            notes,
            policy: effective,
            run,
            spot: places,
            network: wanted,
            publish,
            tracked,
            asks_locally,
            patience: ask.ask_timeout.unwrap_or(PATIENCE),
            questions: None,
            person: None,
            timer,
        };
        Ok((ready, unused))
    }
}

/// What only namespaces can give is refused where there are none.
fn check_driver(driver: Driver, ask: &Ask, resolved: &Resolved) -> Result<(), Fault> {
    if driver == Driver::Namespaces {
        return Ok(());
    }
    let what = match (resolved.needs_network(), resolved.reaches_socket(), ask.publish.first()) {
        (Some(rule), _, _) => format!("{rule} asks for the network"),
        (_, Some(rule), _) => format!("{rule} asks for a socket of the host"),
        (_, _, Some(port)) => format!("--publish {port} asks for a port of the guest"),
        (None, None, None) => return Ok(()),
    };
    let message = format!("{what}, which needs namespaces");
    let hint = "leave it out, or run where user namespaces are allowed (`cofferdam doctor`)";
    Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning))
}

/// A descriptor of the caller's, by number, to write the verdict to.
pub fn status_descriptor(fd: u32) -> Result<std::fs::File, String> {
    sys::process::inherited_for_writing(fd).map(std::fs::File::from).map_err(|e| e.to_string())
}

/// Runs it to its end; network events go to `events`.
pub fn run(ready: Ready, observer: Option<Observer<'_>>, events: Option<EventFile>) -> Result<Outcome, Fault> {
    run_heard(ready, observer, events, None)
}

/// The same, with somebody who hears of the network.
pub(crate) fn run_heard<'a>(
    mut ready: Ready,
    observer: Option<Observer<'a>>,
    events: Option<EventFile>,
    ear: Option<Ear<'a>>,
) -> Result<Outcome, Fault> {
    ready.timer.enter(Phase::Start);
    if let Some(network) = &mut ready.network {
        network.secrets.open()?;
    }
    let roster = Roster::of(&ready.run);
    ready.network.iter_mut().for_each(|network| network.roster = roster.clone());
    let events = events.map(|mut file| {
        file.of(&roster, 1);
        file
    });
    let journal = events.map(|file| Rc::new(RefCell::new(file)));
    let brokered = ready.network.map(|wanted| Brokered::new(wanted, journal.clone(), ear));
    let network = brokered.map(|brokered| Box::new(brokered) as Box<dyn enclosure::Network + 'a>);
    let observer = match &journal {
        Some(journal) => Some(journalled(observer, journal.clone())),
        None => observer,
    };
    let asking = asking(ready.questions, ready.person);
    let (mut tracked, mut timer) = (ready.tracked, ready.timer);
    if let Some(tracked) = &tracked {
        tracked.begin()?;
    }
    let gauge = tracked.as_ref().and_then(Tracked::gauge);
    let ended = ready.prepared.run(Beside { observer, network, publish: ready.publish, asking, gauge });
    if let Ok(outcome) = &ended {
        let began = Instant::now().checked_sub(Duration::from_millis(outcome.usage.wall_ms));
        timer.enter_at(Phase::Execution, began.unwrap_or_else(Instant::now));
    }
    timer.enter(Phase::Close);
    tracked.iter_mut().for_each(|tracked| tracked.timer = Some(timer.clone()));
    let (dropped, reason) = journal.map(|journal| journal.borrow_mut().close()).unwrap_or_default();
    let ended = ended.map(|outcome| Outcome { events_dropped: dropped, events_reason: reason, ..outcome });
    match (ended, tracked) {
        (Ok(outcome), Some(tracked)) => Ok(tracked.end(outcome)),
        (Err(fault), Some(tracked)) => {
            tracked.fail(&fault);
            Err(fault)
        }
        (ended, None) => ended,
    }
}

fn asking(questions: Option<Questions>, person: Option<Box<dyn Person>>) -> Option<Box<dyn enclosure::Asking>> {
    questions.map(|questions| Box::new(Asked::new(questions, person)) as Box<dyn enclosure::Asking>)
}

/// An observer that also writes down what was asked, and which sockets of the host were connected to: no broker stands before them.
fn journalled<'a>(mut observer: Option<Observer<'a>>, journal: Rc<RefCell<EventFile>>) -> Observer<'a> {
    Box::new(move |seen| {
        match &seen {
            Observed::Socket { path, rule, action, actor } => journal.borrow_mut().socket(path, rule, *action, actor),
            Observed::Asked { op, target, rule, actor } => journal.borrow_mut().asked(op, target, rule, actor),
            _ => {}
        }
        if let Some(observer) = &mut observer {
            observer(seen);
        }
    })
}
