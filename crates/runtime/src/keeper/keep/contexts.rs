//! Contexts: interpreters that keep their state between calls. A worker is a run of the sandbox; a client that opens its context is handed
//! the supervisor's ends of its channel and speaks to it without the keeper, which never reads what a worker writes.
//!
//! ```text
//!            open (a client)                    close, or client gone
//!   idle ───────────────────────▶ leased ──────────────────────────────▶ idle, or unfinished: a call goes on that has no reader
//!    ▲                              │ worker ends, restart                │ open
//!    └────────── open ─────────── ended ◀─────────────────────────────────┘
//! ```

use super::client::OwedReply;
use super::{KILL, Keep};
use crate::keeper::wire::{self, ContextClosed, ContextOpened, ContextSignalled, Frame, OpenContext, Start, WireText};
use crate::request;
use api::{CodeTraffic, ContextRemoved, ContextState, ContextStatus, Language};
use enclosure::JobId;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use terms::{Denial, ErrorKind, Fault, LimitKind, Phase, Retry};
use worker::{Ends, Hello, Launch};

/// Bound on contexts of one sandbox.
const MOST_CONTEXTS: usize = 32;
/// Time after the last call when a context ends, where nothing else keeps the sandbox live.
const UNUSED: Duration = Duration::from_secs(30 * 60);
/// Bound on the time that a call waits for another one.
const MOST_QUEUED: Duration = Duration::from_secs(600);
const LONGEST_NAME: usize = 64;
const INTERRUPT: i32 = 2;

/// What a worker is started with beside a command's streams.
pub(super) struct WorkerStart {
    pub inherit: Vec<OwnedFd>,
    /// The command as listings show it.
    pub shown: Vec<String>,
}

/// A context and its worker.
pub(super) struct HeldContext {
    language: Language,
    run: String,
    job: JobId,
    /// Supervisor's ends of the worker's channel; empty once the worker has ended.
    ends: Vec<OwnedFd>,
    cwd: String,
    /// The request that made it, to start the worker anew with.
    ask: OpenContext,
    created_ms: u64,
    used_ms: u64,
    used: Instant,
    calls: u64,
    restarts: u64,
    next_request: u32,
    /// The client whose call is under way.
    lease: Option<u64>,
    /// Request id of a call whose client left before it read the end, and when that was.
    unfinished: Option<(u32, Instant)>,
    interrupted: bool,
    /// Refusals of the worker before the call.
    denials_before: Vec<Denial>,
}

impl HeldContext {
    fn has_ended(&self) -> bool {
        self.ends.is_empty()
    }

    fn state(&self) -> ContextState {
        match () {
            () if self.lease.is_some() => ContextState::Busy,
            () if self.has_ended() => ContextState::Ended,
            () if self.unfinished.is_some() => ContextState::Busy,
            () => ContextState::Idle,
        }
    }

    /// Ends the channel for all that have a copy of it: a client's call finds that its worker is gone.
    fn hang_up(&mut self) {
        worker::hang_up(&self.ends);
        self.ends.clear();
        self.unfinished = None;
    }

    fn touch(&mut self) {
        (self.used_ms, self.used) = (terms::clock::now_ms(), Instant::now());
    }
}

impl Keep {
    /// Opens a context for a client's call, or queues the client.
    pub(super) fn open_context(&mut self, client: u64, ask: &OpenContext) -> Result<Option<Frame>, Fault> {
        let name = context_name(ask)?;
        if let Some(held) = self.contexts.get(&name) {
            check_language(&name, held, ask)?;
            if held.lease.is_some() {
                let queue = Duration::from_millis(ask.queue_ms).min(MOST_QUEUED);
                if queue.is_zero() {
                    return Err(self.context_busy(&name));
                }
                self.owe(client, OwedReply::Context { ask: Box::new(ask.clone()), until: Instant::now() + queue });
                return Ok(None);
            }
        }
        if ask.resume && self.contexts.get(&name).is_none_or(|held| held.unfinished.is_none()) {
            let fault = Fault::new(ErrorKind::Conflict, format!("no call is under way in the context {name:?}"));
            return Err(fault.phase(Phase::Admission).hint("a call is resumed only where its client is gone"));
        }
        let created = self.ready_context(&name, ask)?;
        self.thaw()?;
        let limits = self.premises.limits();
        let Some(held) = self.contexts.get_mut(&name) else { return Err(no_context(&name)) };
        let copies = held.ends.iter().map(OwnedFd::try_clone).collect::<Result<Vec<_>, _>>();
        let copies = copies.map_err(|e| Fault::internal(format!("a worker's channel: {e}")).phase(Phase::Start))?;
        let unfinished = held.unfinished.take().map(|(request, _)| request);
        (held.lease, held.interrupted) = (Some(client), false);
        if !ask.resume {
            held.next_request = held.next_request.wrapping_add(1).max(1);
        }
        held.touch();
        held.denials_before = self.residence.denials(held.job);
        let opened = ContextOpened {
            name,
            language: held.language,
            run: held.run.clone(),
            created,
            request: held.next_request,
            calls: held.calls,
            unfinished,
            limits,
        };
        Ok(Some(copies.into_iter().fold(wire::value(&opened), Frame::and)))
    }

    /// Makes a context without a call.
    pub(super) fn create_context(&mut self, ask: &OpenContext) -> Result<ContextStatus, Fault> {
        let name = context_name(ask)?;
        if let Some(held) = self.contexts.get(&name) {
            let message = format!("there is a context {name:?} in {} already", held.language.name());
            let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Admission);
            return Err(fault.hint("give another name, or remove it first"));
        }
        self.ready_context(&name, ask)?;
        self.contexts.get(&name).map(|held| self.context_status(&name, held)).ok_or_else(|| no_context(&name))
    }

    /// Notes contexts to make once the claim is answered: their interpreters start while its client prepares the first call.
    pub(super) fn plan_contexts(&mut self, languages: &[Language], around: &[(WireText, WireText)], actor: &str) {
        let ask = |language: &Language| OpenContext {
            language: Some(*language),
            around: around.to_vec(),
            actor: actor.to_owned(),
            ..OpenContext::default()
        };
        self.ahead = languages.iter().map(ask).collect();
    }

    fn make_planned_contexts(&mut self) {
        for ask in std::mem::take(&mut self.ahead) {
            let _ = self.create_context(&ask); // the first call makes it, or says why it cannot
        }
    }

    /// Starts the worker of a context that does not exist or has ended. True if the context was made.
    fn ready_context(&mut self, name: &str, ask: &OpenContext) -> Result<bool, Fault> {
        let restarted = match self.contexts.get(name) {
            Some(held) if !held.has_ended() => return Ok(false),
            Some(held) => Some(held.ask.clone()),
            None if self.contexts.len() >= MOST_CONTEXTS => return Err(self.too_many_contexts()),
            None => None,
        };
        let created = restarted.is_none();
        let ask = restarted.unwrap_or_else(|| ask.clone());
        let language = match self.contexts.get(name) {
            Some(held) => held.language,
            None => ask.language.unwrap_or_default(),
        };
        let started = self.start_worker(name, language, &ask)?;
        match self.contexts.get_mut(name) {
            Some(held) => {
                (held.run, held.job, held.ends) = (started.run, started.job, started.ends);
                (held.restarts, held.unfinished) = (held.restarts + 1, None);
                held.denials_before.clear();
            }
            None => {
                self.contexts.insert(name.to_owned(), started);
            }
        }
        Ok(created)
    }

    fn start_worker(&mut self, name: &str, language: Language, ask: &OpenContext) -> Result<HeldContext, Fault> {
        let launch = Launch::of(language);
        let no_channel = |e: std::io::Error| {
            let fault = Fault::new(ErrorKind::Unavailable, format!("the channel of a worker: {e}"));
            fault.phase(Phase::Preparation).retry(Retry::Later).hint("try again when memory and descriptors are free")
        };
        let Ends { supervisor, worker } = launch.ends().map_err(no_channel)?;
        let variables = launch.env.iter().map(|(name, value)| WireText::of(format!("{name}={value}")));
        let start = Start {
            run: Some(terms::id("run", sys::random::id_bytes())),
            command: launch.argv.iter().map(WireText::of).collect(),
            env: ask.env.iter().cloned().chain(variables).collect(),
            around: ask.around.clone(),
            trace_parent: request::trace_in(&ask.around),
            cwd: ask.cwd.clone(),
            workdir: ask.workdir.clone(),
            actor: ask.actor.clone(),
            ..Start::default()
        };
        let cwd = self.premises.plan(&start)?.1.cwd.to_string_lossy().into_owned();
        launch
            .greet(&supervisor, &Hello { language, cwd: cwd.clone(), env: Default::default() })
            .map_err(no_channel)?;
        let shown = vec![launch.argv[0].clone(), format!("(context {name})")];
        let run = self.begin_run_with(&start, Some(WorkerStart { inherit: worker, shown }))?;
        let job = self.active_run(&run)?.job;
        let now = terms::clock::now_ms();
        Ok(HeldContext {
            language,
            run,
            job,
            ends: supervisor,
            cwd,
            ask: ask.clone(),
            created_ms: now,
            used_ms: now,
            used: Instant::now(),
            calls: 0,
            restarts: 0,
            next_request: 0,
            lease: None,
            unfinished: None,
            interrupted: false,
            denials_before: Vec::new(),
        })
    }

    /// Ends the call of a client, and gives the context to the next one.
    pub(super) fn close_context(&mut self, client: u64, name: &str, finished: bool) -> Result<ContextClosed, Fault> {
        // A context that was removed meanwhile has nothing to tell.
        let Some(held) = self.contexts.get_mut(name).filter(|held| held.lease == Some(client)) else {
            return Ok(ContextClosed::default());
        };
        held.lease = None;
        held.calls += 1;
        held.touch();
        if !finished && !held.has_ended() {
            held.unfinished = Some((held.next_request, Instant::now()));
        }
        let before = std::mem::take(&mut held.denials_before);
        let denials = since(&before, self.residence.denials(held.job));
        let closed = ContextClosed { interrupted: held.interrupted, denials };
        self.serve_queue(name);
        Ok(closed)
    }

    /// Frees the contexts of a client that left. Its calls go on without a reader.
    pub(super) fn abandon_contexts(&mut self, client: u64) {
        let left: Vec<String> =
            self.contexts.iter().filter(|(_, held)| held.lease == Some(client)).map(|(name, _)| name.clone()).collect();
        for name in left {
            let _ = self.close_context(client, &name, false);
        }
    }

    /// Opens a free context for the client that has waited longest.
    fn serve_queue(&mut self, name: &str) {
        let waiting = self.clients.iter().find_map(|(id, client)| match &client.owed {
            OwedReply::Context { ask, .. } if context_name(ask).is_ok_and(|wanted| wanted == name) => {
                Some((*id, ask.clone()))
            }
            _ => None,
        });
        let Some((client, ask)) = waiting else { return };
        match self.open_context(client, &ask) {
            Ok(Some(frame)) => self.answer(client, frame),
            Ok(None) => {}
            Err(fault) => self.answer(client, wire::refusal(&fault)),
        }
    }

    pub(super) fn list_contexts(&self) -> Vec<ContextStatus> {
        self.contexts.iter().map(|(name, held)| self.context_status(name, held)).collect()
    }

    /// Sums the figures of all contexts. Those of an interpreter that ended are gone with its rings.
    pub(super) fn code_traffic(&self) -> CodeTraffic {
        let mut sum = CodeTraffic { contexts: self.contexts.len() as u64, ..CodeTraffic::default() };
        for held in self.contexts.values() {
            sum.busy += u64::from(held.state() == ContextState::Busy);
            let Some(rings) = worker::figures(held.language, &held.ends) else { continue };
            for ring in [rings.to_worker, rings.from_worker] {
                // The guest writes these figures: their sum may be anything, and must not overflow.
                sum.queued_bytes = sum.queued_bytes.saturating_add(ring.queued_bytes);
                sum.bytes = sum.bytes.saturating_add(ring.bytes);
                sum.messages = sum.messages.saturating_add(ring.frames);
            }
        }
        sum
    }

    fn context_status(&self, name: &str, held: &HeldContext) -> ContextStatus {
        ContextStatus {
            name: name.to_owned(),
            sandbox: self.premises.sandbox.id.clone(),
            language: held.language,
            run: held.run.clone(),
            state: held.state(),
            cwd: held.cwd.clone(),
            created_ms: held.created_ms,
            used_ms: held.used_ms,
            calls: held.calls,
            restarts: held.restarts,
            rings: worker::figures(held.language, &held.ends),
        }
    }

    /// Sends SIGINT to a worker in which a call is under way.
    pub(super) fn interrupt_context(&mut self, name: &str) -> Result<ContextSignalled, Fault> {
        let held = self.contexts.get_mut(name).ok_or_else(|| no_context(name))?;
        if held.state() != ContextState::Busy || held.has_ended() {
            return Ok(ContextSignalled::default());
        }
        held.interrupted = true;
        let (job, request) = (held.job, held.next_request);
        self.thaw()?;
        self.residence.signal(job, INTERRUPT);
        if let Some(held) = self.contexts.get(name) {
            worker::interrupted(held.language, &held.ends, request);
        }
        Ok(ContextSignalled { request: Some(request) })
    }

    pub(super) fn context_call(&self, name: &str) -> Result<ContextSignalled, Fault> {
        let held = self.contexts.get(name).ok_or_else(|| no_context(name))?;
        let is_busy = held.state() == ContextState::Busy && !held.has_ended();
        Ok(ContextSignalled { request: is_busy.then_some(held.next_request) })
    }

    /// Ends a worker; the next call starts it anew. False where the given call is not under way any more.
    pub(super) fn restart_context(&mut self, name: &str, request: Option<u32>) -> Result<bool, Fault> {
        let held = self.contexts.get_mut(name).ok_or_else(|| no_context(name))?;
        let other = request.is_some_and(|request| request != held.next_request || held.state() != ContextState::Busy);
        if other || held.has_ended() {
            return Ok(false);
        }
        held.hang_up();
        let run = held.run.clone();
        self.end_worker(&run)?;
        Ok(true)
    }

    pub(super) fn remove_context(&mut self, name: &str) -> Result<ContextRemoved, Fault> {
        let mut held = self.contexts.remove(name).ok_or_else(|| no_context(name))?;
        let was_busy = held.state() == ContextState::Busy;
        if !held.has_ended() {
            held.hang_up();
            self.end_worker(&held.run)?;
        }
        self.serve_queue(name);
        Ok(ContextRemoved { sandbox: self.premises.sandbox.id.clone(), name: name.to_owned(), was_busy })
    }

    fn end_worker(&mut self, run: &str) -> Result<(), Fault> {
        let Ok(active) = self.active_run(run) else { return Ok(()) };
        active.cancelled_by = Some(KILL);
        let job = active.job;
        self.thaw()?;
        self.residence.end(job);
        Ok(())
    }

    /// Notes that a run has ended, which may have been a worker.
    pub(super) fn context_ended(&mut self, run: &str) {
        if let Some(held) = self.contexts.values_mut().find(|held| held.run == run) {
            held.hang_up();
        }
    }

    /// Tells all workers that their supervisor is gone: idle ones end by themselves, a shell among them, which ignores SIGTERM.
    pub(super) fn hang_up_contexts(&mut self) {
        self.contexts.values_mut().for_each(HeldContext::hang_up);
    }

    /// Returns when the next context has to be looked at.
    pub(super) fn next_context_check(&self) -> Option<Instant> {
        let wall = self.premises.limits().max_wall_ms.map(Duration::from_millis);
        let due = |held: &HeldContext| match held.unfinished {
            Some((_, since)) => wall.and_then(|wall| since.checked_add(wall)),
            None if self.keep_alive || held.lease.is_some() => None,
            None => held.used.checked_add(UNUSED),
        };
        let ahead = (!self.ahead.is_empty()).then(Instant::now);
        self.contexts.values().filter_map(due).chain(ahead).min()
    }

    /// Refuses clients that waited too long, ends calls that have no reader at the wall limit, and contexts that are not used.
    pub(super) fn check_contexts(&mut self, now: Instant) {
        let late: Vec<(u64, String)> = self
            .clients
            .iter()
            .filter_map(|(id, client)| match &client.owed {
                OwedReply::Context { ask, until } if now >= *until => {
                    Some((*id, context_name(ask).unwrap_or_default()))
                }
                _ => None,
            })
            .collect();
        for (client, name) in late {
            self.answer(client, wire::refusal(&self.context_busy(&name)));
        }
        self.make_planned_contexts();
        if self.frozen.is_some() || self.next_context_check().is_none_or(|at| now < at) {
            return;
        }
        let wall = self.premises.limits().max_wall_ms.map(Duration::from_millis);
        let names: Vec<String> = self.contexts.keys().cloned().collect();
        for name in names {
            let Some(held) = self.contexts.get(&name) else { continue };
            let over = held.unfinished.is_some_and(|(_, since)| wall.is_some_and(|wall| now >= since + wall));
            let unused = held.lease.is_none() && held.unfinished.is_none() && !self.keep_alive;
            if over {
                let _ = self.restart_context(&name, None); // ended by the next look where it cannot be thawed now
            } else if unused && now >= held.used + UNUSED {
                let _ = self.remove_context(&name); // the same
            }
        }
    }

    fn context_busy(&self, name: &str) -> Fault {
        let id = &self.premises.sandbox.id;
        let fault = Fault::new(ErrorKind::Conflict, format!("another call is under way in the context {name:?}"));
        let hint = "wait for it, interrupt it, or use another context";
        fault.subject(id).phase(Phase::Admission).retry(Retry::Later).hint(hint)
    }

    fn too_many_contexts(&self) -> Fault {
        let id = &self.premises.sandbox.id;
        let fault = Fault::new(ErrorKind::LimitExceeded, format!("{id} has {MOST_CONTEXTS} contexts, and no more fit"));
        let fault = fault.limit(LimitKind::Runs).subject(id).phase(Phase::Admission);
        fault.hint("remove one first")
    }
}

fn no_context(name: &str) -> Fault {
    let fault = Fault::new(ErrorKind::NotFound, format!("no context {name:?} in this sandbox"));
    fault.phase(Phase::Admission).hint("the list of contexts shows those that there are; a call makes one")
}

fn context_name(ask: &OpenContext) -> Result<String, Fault> {
    let Some(name) = &ask.name else { return Ok(ask.language.unwrap_or_default().name().to_owned()) };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !name.is_empty() && name.len() <= LONGEST_NAME && name.bytes().all(fits) && !name.starts_with('.') {
        return Ok(name.clone());
    }
    let fault = Fault::invalid(format!("context {name:?}: not a name of a context")).phase(Phase::Admission);
    Err(fault.hint(format!("use 1 to {LONGEST_NAME} letters, digits, '-', '_' and '.', and no '.' at the beginning")))
}

fn check_language(name: &str, held: &HeldContext, ask: &OpenContext) -> Result<(), Fault> {
    match ask.language {
        Some(wanted) if wanted != held.language => {
            let message = format!("the context {name:?} is in {}, not in {}", held.language.name(), wanted.name());
            let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Admission);
            Err(fault.hint("leave the language out, or use another context"))
        }
        _ => Ok(()),
    }
}

/// Returns the refusals that came to a list.
fn since(before: &[Denial], now: Vec<Denial>) -> Vec<Denial> {
    let same = |a: &Denial, b: &Denial| (&a.op, &a.target, &a.rule) == (&b.op, &b.target, &b.rule);
    let counted = now.into_iter().map(|denial| {
        let earlier = before.iter().find(|known| same(known, &denial)).map_or(0, |known| known.count);
        Denial { count: denial.count.saturating_sub(earlier), ..denial }
    });
    counted.filter(|denial| denial.count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_a_call_are_those_that_came_during_it() {
        let denial = |target: &str, count: u64| {
            let text = serde_json::json!({"op": "fs.write", "target": target, "rule": "defaults.fs", "action": "deny",
                "count": count, "pid": 1, "exe": ""});
            serde_json::from_value::<Denial>(text).unwrap()
        };
        let (a, b) = (denial("/a", 2), denial("/b", 1));
        assert_eq!(since(std::slice::from_ref(&a), vec![a.clone(), b.clone()]), std::slice::from_ref(&b));
        assert_eq!(since(std::slice::from_ref(&a), vec![denial("/a", 5)]), [denial("/a", 3)]);
        assert_eq!(since(&[], vec![a.clone(), b.clone()]), [a, b], "the control");
    }

    #[test]
    fn names_of_contexts() {
        let name = |text: &str| context_name(&OpenContext { name: Some(text.into()), ..OpenContext::default() });
        for good in ["a", "my-context_2.x", "python"] {
            assert_eq!(name(good).unwrap(), good);
        }
        for bad in ["", ".", "..", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert_eq!(name(bad).unwrap_err().error_kind, ErrorKind::InvalidRequest, "{bad:?}");
        }
        assert_eq!(context_name(&OpenContext::default()).unwrap(), "python");
    }
}
