//! The resident of a live sandbox: a guest planned as for a run in it, but without a command; and the planning of commands in it.

use super::inside::{self, Inside};
use super::layer::LockedWorkspace;
use super::phases::Timer;
use super::place::ChangeDestination;
use super::{GuestServices, RunPlan, RunRefused, RunRequest, Stdio, sandboxed};
use crate::Node;
use crate::events::EventFile;
use crate::network::{Brokered, RulesHandle, Shape};
use crate::publish;
use crate::questions::Questions;
use crate::request;
use crate::roster::Roster;
use crate::secrets::Secrets;
use crate::watch::WatchOptions;
use api::SecretValue;
use enclosure::{Groundwork, PlannedCommand, Residence, Streams};
use policy::Resolved;
use state::sandbox::Sandbox;
use state::{Caller, bounds};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use store::Kept;
use terms::{Enforcement, EnforcementLevel, ErrorKind, Fault, Limits, Outcome, Phase, PolicyStamp, RunId};

/// A planned resident.
pub(crate) struct ResidentPlan {
    plan: RunPlan,
    pub premises: ResidentContext,
}

/// Rules and context that all commands in a live sandbox share.
pub(crate) struct ResidentContext {
    pub sandbox: Kept<Sandbox>,
    /// Watch mode of all its commands; fixed when it was planned.
    watch: WatchOptions,
    resolved: Resolved,
    inside: Inside,
    limits: Limits,
    stamp: PolicyStamp,
    enforcement: Enforcement,
    /// Table of questions to a person; `None` where no rule could ask.
    pub questions: Option<Questions>,
    /// The sandbox is a spare of a pool: its secrets are not read before it is claimed.
    pub ready: bool,
    /// The guest was planned as a spare: limits on memory and processes can be set and removed at any time.
    adjustable: bool,
    secrets: Secrets,
    /// Published ports.
    published: Vec<String>,
    /// Network features that the guest was planned with, and the handle that replaces the rules.
    shape: Shape,
    rules_handle: Option<RulesHandle>,
    /// File of its network events.
    events: Option<Rc<RefCell<EventFile>>>,
    /// Running commands.
    pub roster: Roster,
}

impl ResidentPlan {
    pub fn new(node: &Node, caller: &Caller, sandbox: &str, ground: Groundwork) -> Result<ResidentPlan, RunRefused> {
        let timer = Timer::begin(Phase::Admission, caller.trace_parent.as_deref());
        let stdio = Stdio { capture: true, ..Stdio::default() };
        let request =
            RunRequest { place: ChangeDestination::Sandbox(sandbox.to_owned()), stdio, ..RunRequest::default() };
        let (mut request, effective, spot, kept) =
            sandboxed::take_up(node, &request, sandbox, caller, sandboxed::Stopped::Taken)?;
        let ready = is_spare(node, &kept.id, caller)?;
        (request.secrets, request.events) = (kept.record.secrets.clone(), true);
        // The owner who claims it may have limits that the pool has not: the control group for them must exist.
        let adjustable = ready && bounds::holds_memory_and_processes();
        if adjustable {
            request.limits = adjusted(request.limits);
        }
        let mut plan = RunPlan::build(&request, caller, effective, spot, None, timer, ground)?;
        let unplanned = || Fault::internal("a resident without surroundings for its commands");
        let inside = plan.inside.take().ok_or_else(unplanned)?;
        // Rules that ask may be set later.
        let questions = (plan.has_broker() || plan.asks_locally()).then(|| Questions::new(plan.patience));
        questions.iter().for_each(|questions| plan.ask_in(questions.clone()));
        let spec = plan.guest.spec();
        let missing = spec.enforced.missing.clone();
        let level = if missing.is_empty() { EnforcementLevel::Full } else { EnforcementLevel::Partial };
        let ask_timeout_ms = Some(plan.patience.as_millis() as u64);
        let premises = ResidentContext {
            watch: WatchOptions { report_reads: request.report_reads, ask_timeout_ms },
            resolved: spec.policy.clone(),
            inside,
            limits: spec.limits,
            stamp: PolicyStamp {
                digest: plan.policy.digest(),
                revision: kept.record.revision,
                ..PolicyStamp::default()
            },
            enforcement: Enforcement { level, missing },
            questions,
            ready,
            adjustable,
            secrets: Secrets::default(),
            published: Vec::new(),
            shape: Shape::of(&spec.policy)?,
            rules_handle: None,
            events: None,
            roster: Roster::default(),
            sandbox: kept,
        };
        Ok(ResidentPlan { plan, premises })
    }

    /// Returns the variables whose values must be forgotten before `stand`; see `Caller::forget`.
    pub fn secret_variables(&self) -> Vec<String> {
        self.plan.secret_variables()
    }

    /// Returns whether there can be network events.
    pub fn has_network(&self) -> bool {
        self.plan.has_broker() || !self.premises.resolved.policy().net.is_empty()
    }

    /// Launches the guest and waits until it is set up. The workspace is locked as long as the `Holding` lives.
    pub fn stand(mut self, events: Option<EventFile>) -> Result<(Residence<'static>, ResidentContext, Holding), Fault> {
        match &mut self.plan.network {
            Some(network) if self.premises.ready => self.premises.secrets = std::mem::take(&mut network.secrets),
            Some(network) => {
                self.premises.secrets = network.secrets.brought();
                network.secrets.open()?;
            }
            None => {}
        }
        let (roster, revision) = (self.premises.roster.clone(), self.premises.stamp.revision);
        if let Some(network) = &mut self.plan.network {
            (network.roster, network.revision) = (roster.clone(), revision);
        }
        let journal = events.map(|mut file| {
            file.attribute_to(&roster, revision);
            Rc::new(RefCell::new(file))
        });
        self.premises.events = journal.clone();
        let brokered = self.plan.network.map(|wanted| Brokered::new(wanted, journal.clone(), None));
        self.premises.rules_handle = brokered.as_ref().map(Brokered::rules_handle);
        let network = brokered.map(|brokered| Box::new(brokered) as Box<dyn enclosure::Network>);
        let asking = super::asking(self.plan.questions, None);
        let tracked = self.plan.tracked;
        let gauge = tracked.as_ref().and_then(super::Tracked::gauge);
        let observer = journal.map(|journal| super::journalled(None, journal));
        let beside = GuestServices { observer, network, publish: self.plan.publish, asking, gauge, lasting: None };
        let residence = self.plan.guest.reside(beside)?;
        Ok((residence, self.premises, Holding { tracked, _unwritten: self.plan.unwritten }))
    }
}

/// The lock on a live sandbox's workspace.
pub(crate) struct Holding {
    tracked: Option<super::Tracked>,
    _unwritten: Option<LockedWorkspace>,
}

impl Holding {
    /// Returns the layers that commands write to, if they write to any.
    pub fn stack(&self) -> Option<workspace::Stack> {
        self.tracked.as_ref()?.held.stack.try_clone().ok()
    }
}

impl ResidentContext {
    /// Plans a command: checks it against the sandbox, and finds its program and environment.
    pub fn plan(&self, start: &request::Start) -> Result<(RunId, PlannedCommand), Fault> {
        check_limits(&start.limits, &self.sandbox.id)?;
        start.watch.check(&self.watch, &self.sandbox.id)?;
        let words = |what: &str, words: &[request::WireText]| -> Result<Vec<OsString>, Fault> {
            words.iter().map(|word| text(what, word)).collect()
        };
        let shell = start.shell.as_ref().map(|word| text("shell", word)).transpose()?;
        let argv = inside::argv(&words("command", &start.command)?, shell.as_deref())?;
        let mut around = Vec::with_capacity(start.around.len());
        for (name, value) in &start.around {
            around.push((text("around", name)?, text("around", value)?));
        }
        let run_id = match &start.run {
            Some(id) => RunId::parse(id).ok_or_else(|| bad("run", &format!("{id:?} is not a run id")))?,
            None => RunId::from_random(sys::random::id_bytes()),
        };
        let mut asked: Vec<OsString> = self.sandbox.record.variables().collect();
        asked.extend(words("env", &start.env)?);
        let env = self.inside.environment(&asked, &around, &self.resolved, &run_id)?;
        let base = state::directory::path_inside(&self.sandbox.record.base);
        let path = |what: &str, word: &Option<request::WireText>| -> Result<Option<PathBuf>, Fault> {
            word.as_ref().map(|word| text(what, word).map(PathBuf::from)).transpose()
        };
        let (workdir, cwd) = (path("workdir", &start.workdir)?, path("cwd", &start.cwd)?);
        let cwd = sandboxed::working_directory(workdir.as_deref(), base, cwd.as_deref().unwrap_or(Path::new("/")))?;
        let found = self.inside.find_program(&argv[0], &env, &cwd, &self.resolved);
        let program = found.map_err(|refused| *refused.fault)?;
        let streams = match start.terminal {
            Some((rows, columns)) => Streams::Terminal { rows, columns },
            None => Streams::Pipes { input: start.input || start.has_stdin },
        };
        Ok((run_id, PlannedCommand { program, argv, env, cwd, streams, inherit: Vec::new() }))
    }

    /// Returns the limits of the sandbox, as they are now.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Puts other network rules and limits in force, all of them or none.
    pub fn revise(&mut self, revision: &request::Revision, residence: &mut Residence<'_>) -> Result<(), Fault> {
        let id = self.sandbox.id.clone();
        let document = policy::parse(&revision.policy.to_string(), policy::Format::Json, &id).map_err(Fault::from)?;
        let effective = policy::effective(&[document]).map_err(Fault::from)?;
        // Rules about paths are not changed.
        let context = policy::Context { home: "/".into(), workspace: "/".into(), toolchains: Vec::new() };
        let resolved = policy::resolve(&effective, &context).map_err(Fault::from)?;
        if let Some(what) = self.shape.lacks(&Shape::of(&resolved)?) {
            return Err(self.must_stop(&format!("was started without {what}")));
        }
        self.put_limits(resolved.limits().tightest(revision.limits), revision.cpus, residence)?;
        if let Some(handle) = self.rules_handle.as_ref().and_then(|rules_handle| rules_handle.borrow().clone()) {
            handle.replace(resolved.on_host(sys::net::own_addresses()), revision.revision);
        }
        self.stamp = PolicyStamp { digest: effective.digest(), revision: revision.revision, ..PolicyStamp::default() };
        self.events.iter().for_each(|events| events.borrow_mut().attribute_to(&self.roster, revision.revision));
        Ok(())
    }

    /// Puts other limits in force for the whole sandbox, all of them or none.
    fn put_limits(&mut self, limits: Limits, cpus: Option<f64>, residence: &mut Residence<'_>) -> Result<(), Fault> {
        let limits = if self.adjustable { adjusted(limits) } else { limits };
        let (now, cpus_now) = (self.limits, self.sandbox.record.cpus);
        if fixed(&limits) != fixed(&now) {
            let what = "only its limits on memory, processes, wall time, output and processors can be changed";
            return Err(self.must_stop(what));
        }
        let group = |limits: &Limits, cpus| (limits.max_memory_mb, limits.max_processes, cpus);
        let taken_away = (limits.max_memory_mb.is_none() && now.max_memory_mb.is_some())
            || (limits.max_processes.is_none() && now.max_processes.is_some())
            || (cpus.is_none() && cpus_now.is_some());
        if taken_away {
            return Err(self.must_stop("an existing limit can be changed, but not removed"));
        }
        let changes_group = group(&limits, cpus) != group(&now, cpus_now);
        if changes_group && !residence.change_limits(&limits, &enclosure::Cpus(cpus))? {
            return Err(self.must_stop("was started without support for this limit"));
        }
        (self.limits, self.sandbox.record.cpus) = (limits, cpus);
        Ok(())
    }

    /// Returns the fault for a change that a live sandbox cannot take.
    fn must_stop(&self, what: &str) -> Fault {
        let id = &self.sandbox.id;
        let fault = Fault::new(ErrorKind::Conflict, format!("{id} is live, and {what}")).subject(id);
        fault.phase(Phase::Execution).hint("stop the sandbox, change it, and start it again")
    }

    /// Replaces the published ports, all or nothing.
    pub fn publish(&mut self, ports: Vec<String>, residence: &mut Residence<'_>) -> Result<(), Fault> {
        let (before, wanted) = (publish::read_all(&self.published)?, publish::read_all(&ports)?);
        let is_new = |port: &&publish::PortForward| !before.iter().any(|known| known.at == port.at);
        let opened = wanted.iter().filter(is_new).map(|port| publish::open(*port)).collect::<Result<_, _>>()?;
        residence.publish(wanted.iter().map(|port| (port.at, port.inside)).collect(), opened)?;
        self.published = ports;
        Ok(())
    }

    /// Turns a spare into its owner's sandbox, with the secrets that are kept now.
    pub fn claimed(
        &mut self,
        sandbox: Kept<Sandbox>,
        caller: &Caller,
        residence: &mut Residence<'_>,
    ) -> Result<(), Fault> {
        // The owner may have other limits than the pool.
        if self.adjustable {
            self.put_limits(self.resolved.limits().tightest(sandbox.record.limits), sandbox.record.cpus, residence)?;
        }
        if !self.secrets.is_empty() {
            let mut secrets = self.secrets.now_kept(caller);
            secrets.open()?;
            let values = secrets.read()?;
            if let Some(handle) = self.rules_handle.as_ref().and_then(|rules_handle| rules_handle.borrow().clone()) {
                handle.replace_secrets(values);
            }
        }
        (self.sandbox, self.ready) = (sandbox, false);
        Ok(())
    }

    /// Replaces the secrets that commands brought along; an empty map drops them.
    pub fn bring(&self, values: &BTreeMap<String, SecretValue>) -> Result<(), Fault> {
        let all = self.secrets.bring(values)?;
        if let Some(handle) = self.rules_handle.as_ref().and_then(|rules_handle| rules_handle.borrow().clone()) {
            handle.replace_secrets(all);
        }
        Ok(())
    }

    /// Closes the file of network events.
    pub fn close_events(&self) {
        self.events.iter().for_each(|events| drop(events.borrow_mut().close()));
    }

    /// Returns an outcome without an end.
    pub fn outcome(&self, run_id: RunId) -> Outcome {
        let outcome = Outcome::new(run_id, self.stamp.clone(), self.enforcement.clone());
        Outcome { sandbox: Some(self.sandbox.id.clone()), ..outcome }
    }
}

fn is_spare(node: &Node, id: &str, caller: &Caller) -> Result<bool, Fault> {
    let state = node.states.open(caller)?;
    state.store.read(|tx| Ok(state::pool::as_kept(tx, id)?.is_some()))
}

fn text(what: &str, word: &request::WireText) -> Result<OsString, Fault> {
    let text = word.text().ok_or_else(|| bad(what, "is not in canonical form"))?;
    match text.as_encoded_bytes().contains(&0) {
        true => Err(bad(what, "contains a zero byte")),
        false => Ok(text),
    }
}

fn bad(what: &str, why: &str) -> Fault {
    Fault::invalid(format!("{what} {why}")).phase(Phase::Admission)
}

/// Sets unlimited values in place of limits that are not set, so that a control group exists which can be changed later.
fn adjusted(limits: Limits) -> Limits {
    Limits {
        max_memory_mb: limits.max_memory_mb.or(Some(*terms::MEGABYTES.end())),
        max_processes: limits.max_processes.or(Some(MOST_PROCESSES)),
        ..limits
    }
}

/// More than any kernel can have.
const MOST_PROCESSES: u64 = 4_194_304;

/// Limits that cannot change after the enclosure was built.
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

/// Refuses limits of a single command that can hold only for the whole enclosure.
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
                format!("{sandbox} is live: a single command in it can only have limits on wall time and output");
            let hint = "give the others to `cofferdam create`, or stop the sandbox and run the command by itself";
            Err(Fault::new(ErrorKind::Conflict, message).hint(hint).subject(sandbox).phase(Phase::Admission))
        }
    }
}
