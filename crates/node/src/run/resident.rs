//! An enclosure that stands for a sandbox: made as for a run in it, but for no command; and what commands in it are made under.

use super::inside::{self, Inside};
use super::layer::Held;
use super::place::Place;
use super::view::View;
use super::{Ask, Beside, First, Learn, Refused, Stdio, lay_out, sandboxed};
use crate::events::EventFile;
use crate::keeper::watch::Watch;
use crate::keeper::wire;
use crate::network::{Brokered, Lever, Shape};
use crate::publish;
use crate::questions::Questions;
use crate::roster::Roster;
use crate::sandbox::Sandbox;
use crate::secrets::Secrets;
use crate::warm;
use crate::{Caller, bounds};
use enclosure::{Groundwork, Residence};
use policy::Resolved;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use store::Kept;
use terms::{Enforcement, ErrorKind, Fault, Level, Limits, Outcome, Phase, PolicyStamp, RunId};

/// Ready to stand.
pub(crate) struct Resident {
    ready: super::Ready,
    /// Held, though nothing is written to it.
    unused: Option<Held>,
    pub premises: Premises,
}

/// What every command in a standing enclosure is made under.
pub(crate) struct Premises {
    pub sandbox: Kept<Sandbox>,
    /// How all of its commands are watched, as it was built.
    watch: Watch,
    resolved: Resolved,
    view: View,
    inside: Inside,
    limits: Limits,
    stamp: PolicyStamp,
    enforcement: Enforcement,
    /// Where a person is asked; none where there is nothing that could be asked.
    pub questions: Option<Questions>,
    /// It stands ready: nobody has it, and its secrets are not looked at before somebody does.
    pub ready: bool,
    /// It was built to be taken over: limits on memory and processes can be put in force and taken away at any time.
    adjustable: bool,
    secrets: Secrets,
    /// Ports of the host that lead inside.
    published: Vec<String>,
    /// What its network was built for, and what puts other rules in force there.
    shape: Shape,
    lever: Option<Lever>,
    /// Where what happens on its network is written down.
    events: Option<Rc<RefCell<EventFile>>>,
    /// Commands that go on in it.
    pub roster: Roster,
}

/// One command, ready to be started.
pub(crate) struct Command {
    pub run_id: RunId,
    pub program: PathBuf,
    pub argv: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    /// Wall time and output, as they were asked for it alone.
    pub limits: Limits,
}

impl Resident {
    pub fn prepare(sandbox: &str, caller: &Caller, ground: Groundwork) -> Result<Resident, Refused> {
        let ask = Ask {
            command: Vec::new(),
            shell: None,
            policies: Vec::new(),
            flags: Vec::new(),
            limits: Limits::default(),
            cpus: None,
            env: Vec::new(),
            workdir: None,
            place: Place::Sandbox(sandbox.to_owned()),
            publish: Vec::new(),
            secrets: Vec::new(),
            events: false,
            stdio: Stdio { input: false, capture: true, terminal: false, all_to_stderr: false },
            report_reads: false,
            ask_timeout: None,
            learn: Learn::Nothing,
        };
        let (mut ask, under, kept) = sandboxed::take_up(&ask, sandbox, caller, sandboxed::Stopped::Taken)?;
        let ready = is_spare(&kept.id, caller)?;
        (ask.secrets, ask.events) = (kept.record.secrets.clone(), true);
        // Whoever takes it over may have limits that the pool has not: there must be what holds them.
        let adjustable = ready && bounds::holds_memory_and_processes();
        if adjustable {
            ask.limits = adjusted(ask.limits);
        }
        let laid = lay_out(&ask, caller, under, ground, None)?;
        let missing = laid.enforced.missing.clone();
        let level = if missing.is_empty() { Level::Full } else { Level::Partial };
        let limits = laid.limits;
        let (resolved, view) = (laid.resolved.clone(), laid.view.clone());
        let stamp =
            PolicyStamp { digest: laid.effective.digest(), revision: kept.record.revision, ..PolicyStamp::default() };
        let shape = Shape::of(&laid.resolved)?;
        let inside = Inside::clone(&laid.inside);
        let run_id = RunId::from_random(crate::fresh::random());
        let first =
            First { run_id, program: kept.record.base.clone(), argv: Vec::new(), env: Vec::new(), resident: true };
        let (mut built, unused) = laid.build(&ask, caller, first)?;
        // Rules that ask may come later.
        let questions = (built.network.is_some() || built.asks_locally).then(|| Questions::new(built.patience));
        questions.iter().for_each(|questions| built.ask_in(questions.clone()));
        let enforcement = Enforcement { level, missing };
        let watch = Watch { report_reads: ask.report_reads, ask_timeout_ms: Some(built.patience.as_millis() as u64) };
        let premises = Premises {
            sandbox: kept,
            watch,
            resolved,
            view,
            inside,
            limits,
            stamp,
            enforcement,
            questions,
            ready,
            adjustable,
            secrets: Secrets::default(),
            published: Vec::new(),
            shape,
            lever: None,
            events: None,
            roster: Roster::default(),
        };
        Ok(Resident { ready: built, unused, premises })
    }

    /// Variables whose values must be forgotten before it stands; see `Caller::forget`.
    pub fn secret_variables(&self) -> Vec<String> {
        self.ready.secret_variables()
    }

    /// Whether there is anything that could be told of its network.
    pub fn has_network(&self) -> bool {
        self.ready.network.is_some() || !self.premises.resolved.policy().net.is_empty()
    }

    /// Builds it and waits until it stands. The workspace is held as long as the last of the answer lives.
    pub fn stand(mut self, events: Option<EventFile>) -> Result<(Residence<'static>, Premises, Holding), Fault> {
        match &mut self.ready.network {
            Some(network) if self.premises.ready => self.premises.secrets = std::mem::take(&mut network.secrets),
            Some(network) => {
                self.premises.secrets = network.secrets.brought();
                network.secrets.open()?;
            }
            None => {}
        }
        let (roster, revision) = (self.premises.roster.clone(), self.premises.stamp.revision);
        if let Some(network) = &mut self.ready.network {
            (network.roster, network.revision) = (roster.clone(), revision);
        }
        let journal = events.map(|mut file| {
            file.of(&roster, revision);
            Rc::new(RefCell::new(file))
        });
        self.premises.events = journal.clone();
        let brokered = self.ready.network.map(|wanted| Brokered::new(wanted, journal.clone(), None));
        self.premises.lever = brokered.as_ref().map(Brokered::lever);
        let network = brokered.map(|brokered| Box::new(brokered) as Box<dyn enclosure::Network>);
        let asking = super::asking(self.ready.questions, None);
        let tracked = self.ready.tracked;
        let gauge = tracked.as_ref().and_then(super::Tracked::gauge);
        let observer = journal.map(|journal| super::journalled(None, journal));
        let beside = Beside { observer, network, publish: self.ready.publish, asking, gauge };
        let residence = self.ready.prepared.reside(beside)?;
        Ok((residence, self.premises, Holding { tracked, _unused: self.unused }))
    }
}

/// The workspace, held against all others until this is dropped.
pub(crate) struct Holding {
    tracked: Option<super::Tracked>,
    _unused: Option<Held>,
}

impl Holding {
    /// The layers that commands write to, if they write to any.
    pub fn stack(&self) -> Option<workspace::Stack> {
        self.tracked.as_ref()?.held.stack.try_clone().ok()
    }
}

impl Premises {
    /// From what was asked to a command that can be started.
    pub fn command(&self, start: &wire::Start) -> Result<Command, Fault> {
        check_limits(&start.limits, &self.sandbox.id)?;
        start.watch.check(&self.watch, &self.sandbox.id)?;
        let words = |what: &str, words: &[wire::Word]| -> Result<Vec<OsString>, Fault> {
            words.iter().map(|word| text(what, word)).collect()
        };
        let shell = start.shell.as_ref().map(|word| text("shell", word)).transpose()?;
        let argv = inside::argv(&words("command", &start.command)?, shell.as_deref())?;
        let mut around = Vec::with_capacity(start.around.len());
        for (name, value) in &start.around {
            around.push((text("around", name)?, text("around", value)?));
        }
        let run_id = match &start.run {
            Some(id) => RunId::parse(id).ok_or_else(|| bad("run", &format!("{id:?} is no id of a run")))?,
            None => RunId::from_random(crate::fresh::random()),
        };
        let env = inside::environment(&words("env", &start.env)?, &around, &self.resolved, &self.inside, &run_id)?;
        let base = &self.sandbox.record.base;
        let path = |what: &str, word: &Option<wire::Word>| -> Result<Option<PathBuf>, Fault> {
            word.as_ref().map(|word| text(what, word).map(PathBuf::from)).transpose()
        };
        let (workdir, cwd) = (path("workdir", &start.workdir)?, path("cwd", &start.cwd)?);
        let cwd = sandboxed::working_directory(workdir.as_deref(), base, cwd.as_deref().unwrap_or(Path::new("/")))?;
        let program =
            inside::find_program(&argv[0], &env, &cwd, &self.resolved, &self.view).map_err(|refused| *refused.fault)?;
        Ok(Command { run_id, program, argv, env, cwd, limits: start.limits })
    }

    /// Those of the sandbox, as they are now.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Puts other network rules and limits in force, all of them or none.
    pub fn revise(&mut self, revision: &wire::Revision, residence: &mut Residence<'_>) -> Result<(), Fault> {
        let id = self.sandbox.id.clone();
        let document = policy::parse(&revision.policy.to_string(), policy::Format::Json, &id).map_err(Fault::from)?;
        let effective = policy::effective(&[document]).map_err(Fault::from)?;
        // Of paths nothing is changed.
        let context = policy::Context { home: "/".into(), workspace: "/".into(), toolchains: Vec::new() };
        let resolved = policy::resolve(&effective, &context).map_err(Fault::from)?;
        if let Some(what) = self.shape.lacks(&Shape::of(&resolved)?) {
            return Err(self.must_stop(&format!("was built without {what}")));
        }
        self.put_limits(resolved.limits().tightest(revision.limits), revision.cpus, residence)?;
        if let Some(handle) = self.lever.as_ref().and_then(|lever| lever.borrow().clone()) {
            handle.replace(resolved.on_host(sys::net::own_addresses()), revision.revision);
        }
        self.stamp = PolicyStamp { digest: effective.digest(), revision: revision.revision, ..PolicyStamp::default() };
        self.events.iter().for_each(|events| events.borrow_mut().of(&self.roster, revision.revision));
        Ok(())
    }

    /// Puts other limits in force for the whole sandbox, all of them or none.
    fn put_limits(&mut self, limits: Limits, cpus: Option<f64>, residence: &mut Residence<'_>) -> Result<(), Fault> {
        let limits = if self.adjustable { adjusted(limits) } else { limits };
        let (now, cpus_now) = (self.limits, self.sandbox.record.cpus);
        if fixed(&limits) != fixed(&now) {
            let what = "of its limits only memory, processes, wall time, output and processors can be changed";
            return Err(self.must_stop(what));
        }
        let group = |limits: &Limits, cpus| (limits.max_memory_mb, limits.max_processes, cpus);
        let taken_away = (limits.max_memory_mb.is_none() && now.max_memory_mb.is_some())
            || (limits.max_processes.is_none() && now.max_processes.is_some())
            || (cpus.is_none() && cpus_now.is_some());
        if taken_away {
            return Err(self.must_stop("a limit that holds can be changed, but not taken away"));
        }
        let changes_group = group(&limits, cpus) != group(&now, cpus_now);
        if changes_group && !residence.change_limits(&limits, &enclosure::Cpus(cpus))? {
            return Err(self.must_stop("was built without what holds this limit"));
        }
        (self.limits, self.sandbox.record.cpus) = (limits, cpus);
        Ok(())
    }

    /// What cannot be changed as long as it is live.
    fn must_stop(&self, what: &str) -> Fault {
        let id = &self.sandbox.id;
        let fault = Fault::new(ErrorKind::Conflict, format!("{id} is live, and {what}")).subject(id);
        fault.phase(Phase::Execution).hint("stop the sandbox, change it, and start it again")
    }

    /// Publishes these ports from now on, and no others; all of it or nothing.
    pub fn publish(&mut self, ports: Vec<String>, residence: &mut Residence<'_>) -> Result<(), Fault> {
        let (before, wanted) = (publish::read_all(&self.published)?, publish::read_all(&ports)?);
        let is_new = |port: &&publish::Asked| !before.iter().any(|known| known.at == port.at);
        let opened = wanted.iter().filter(is_new).map(|port| publish::open(*port)).collect::<Result<_, _>>()?;
        residence.publish(wanted.iter().map(|port| (port.at, port.inside)).collect(), opened)?;
        self.published = ports;
        Ok(())
    }

    /// The one that stood ready is somebody's: its secrets are what is kept now.
    pub fn claimed(
        &mut self,
        sandbox: Kept<Sandbox>,
        caller: &Caller,
        residence: &mut Residence<'_>,
    ) -> Result<(), Fault> {
        // Who takes it over may have other limits than the pool.
        if self.adjustable {
            self.put_limits(self.resolved.limits().tightest(sandbox.record.limits), sandbox.record.cpus, residence)?;
        }
        if !self.secrets.is_empty() {
            let mut secrets = self.secrets.now_kept(caller);
            secrets.open()?;
            let values = secrets.read()?;
            if let Some(handle) = self.lever.as_ref().and_then(|lever| lever.borrow().clone()) {
                handle.give(values);
            }
        }
        (self.sandbox, self.ready) = (sandbox, false);
        Ok(())
    }

    /// Values of secrets that are brought, in the place of those brought before; with none, they are forgotten.
    pub fn bring(&self, values: &BTreeMap<String, wire::Hidden>) -> Result<(), Fault> {
        let all = self.secrets.bring(values)?;
        if let Some(handle) = self.lever.as_ref().and_then(|lever| lever.borrow().clone()) {
            handle.give(all);
        }
        Ok(())
    }

    /// Nothing happens on its network any more.
    pub fn close_events(&self) {
        self.events.iter().for_each(|events| drop(events.borrow_mut().close()));
    }

    /// An outcome that says nothing yet of how it ended.
    pub fn outcome(&self, run_id: RunId) -> Outcome {
        let outcome = Outcome::new(run_id, self.stamp.clone(), self.enforcement.clone());
        Outcome { sandbox: Some(self.sandbox.id.clone()), ..outcome }
    }
}

fn is_spare(id: &str, caller: &Caller) -> Result<bool, Fault> {
    let state = crate::state::State::open(caller)?;
    state.store.read(|tx| Ok(warm::as_kept(tx, id)?.is_some()))
}

fn text(what: &str, word: &wire::Word) -> Result<OsString, Fault> {
    let text = word.text().ok_or_else(|| bad(what, "is not spelled as it should be"))?;
    match text.as_encoded_bytes().contains(&0) {
        true => Err(bad(what, "holds a zero byte")),
        false => Ok(text),
    }
}

fn bad(what: &str, why: &str) -> Fault {
    Fault::invalid(format!("{what} {why}")).phase(Phase::Admission)
}

/// Limits that bound nothing, in the place of those that are not set: what holds them can be given others later.
fn adjusted(limits: Limits) -> Limits {
    Limits {
        max_memory_mb: limits.max_memory_mb.or(Some(*terms::MEGABYTES.end())),
        max_processes: limits.max_processes.or(Some(MOST_PROCESSES)),
        ..limits
    }
}

/// More than any kernel can have.
const MOST_PROCESSES: u64 = 4_194_304;

/// Those that hold as they were when the enclosure was built.
fn fixed(limits: &Limits) -> Limits {
    Limits {
        max_wall_ms: None,
        max_output_bytes: None,
        on_output_limit: None,
        max_memory_mb: None,
        max_processes: None,
        ..*limits
    }
}

/// What holds for the whole enclosure cannot be given to one command of many.
fn check_limits(asked: &Limits, sandbox: &str) -> Result<(), Fault> {
    let own = Limits {
        max_wall_ms: asked.max_wall_ms,
        max_output_bytes: asked.max_output_bytes,
        on_output_limit: asked.on_output_limit,
        ..Limits::default()
    };
    match *asked == own {
        true => Ok(()),
        false => {
            let message =
                format!("{sandbox} is live: of limits, one command in it can have wall time and output alone");
            let hint = "give the others to `cofferdam create`, or stop the sandbox and run the command by itself";
            Err(Fault::new(ErrorKind::Conflict, message).hint(hint).subject(sandbox).phase(Phase::Admission))
        }
    }
}
