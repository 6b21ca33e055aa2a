//! A call of code in a context: what its worker says becomes events, and its limits hold. It never waits for the code: a caller steps it, and
//! waits for its descriptors and its deadline when a step gave nothing.
//!
//! ```text
//!            limit met, cancelled              no answer within the grace
//!   running ──────────────────────▶ ending ──────────────────────────────▶ over, context lost
//!      │ END                           │ END                                   ▲
//!      └──────────────▶ over ◀─────────┘           worker gone, protocol broken┘
//! ```

use super::{opening, with_keeper};
use crate::code::QUEUED;
use api::{
    CodeCheck, CodeChecked, CodeError, CodeEvent, CodeOutcome, CodeRequest, CodeStarted, CodeText, CodeUsage, Language,
};
use runtime::Node;
use runtime::keeper::client::Keeper;
use runtime::keeper::spool::RecordKind;
use runtime::keeper::wire::{ContextClosed, ContextOpened, OpenContext};
use rustix::event::{PollFd, PollFlags, poll};
use state::Caller;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use terms::{
    ErrorKind, Fault, Limit, LimitKind, Limits, Outcome, PROTOCOL_VERSION, Phase, Retry, Verdict, check_amounts,
};
use worker::{Broken, Channel, EndStatus, Event, Received};

/// Bound on the source text of a call.
const LONGEST_CODE: usize = 8 << 20;
/// Time that code has to end at a limit, or when its client left, before its interpreter is ended. On a busy machine an interpreter may
/// not run for a while, and what it keeps is worth more than this time.
const END_GRACE: Duration = Duration::from_secs(2);
/// Time that an earlier call without a client has to end when it is interrupted for a later one.
const DISPLACED_GRACE: Duration = Duration::from_secs(1);
/// Time that the end of an interpreter which is gone may take to be recorded.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Time between the end of a channel and that of its interpreter, where nothing is wrong.
const CLOSING: Duration = Duration::from_millis(500);
/// Time that an interpreter has to judge code, which it does between two calls.
const CHECK_TIME: Duration = Duration::from_secs(10);
/// Bound on the errors of an interpreter that did not start.
const LONGEST_REASON: usize = 2048;
const LONGEST_SPOOLED: usize = 64 << 10;

/// A call that is under way or over.
pub struct CodeCall {
    link: Link,
    started: CodeStarted,
    /// `Started` was returned.
    announced: bool,
    limits: Limits,
    /// Begin of the code, or of the wait for an earlier call.
    begun: Instant,
    /// Execution has begun, so that the wall limit counts.
    counts: bool,
    output: u64,
    execution_count: u64,
    failed: bool,
    /// An earlier call whose client is gone was interrupted, and has until then to end.
    displaced_until: Option<Instant>,
    stage: Stage,
}

/// The context that a call has, and the channel to its worker.
struct Link {
    keeper: Keeper,
    channel: Channel,
    name: String,
    run: String,
    request: u32,
    /// Request of an earlier call whose client is gone: what it still says is dropped.
    unfinished: Option<u32>,
    /// The interpreter was heard of.
    is_ready: bool,
}

enum Stage {
    Running,
    Ending { reason: Reason, kill_at: Instant },
    Over,
}

/// Why a call is ended by its caller.
#[derive(Clone, Copy)]
enum Reason {
    Cancelled,
    Limit(LimitKind),
}

impl CodeCall {
    /// Begins a call in a context, which is made where it does not exist; the sandbox becomes live for it.
    pub fn begin(node: &Node, caller: &Caller, word: &str, request: &CodeRequest) -> Result<CodeCall, Fault> {
        check_request(request)?;
        state::bounds::check_command(&request.limits, caller)?;
        let ask = opening(caller, request)?;
        let (mut link, opened) = Link::open(node, caller, word, &ask)?;
        if let Some(unfinished) = link.unfinished {
            link.channel.resume(unfinished);
        }
        link.channel.execute(link.request, &request.code).map_err(|broken| link.no_channel(&broken))?;
        Ok(CodeCall::new(link, opened, request.limits))
    }

    /// Takes over a call whose client is gone. Its own limits are gone with that client; the sandbox's hold.
    pub fn resume(node: &Node, caller: &Caller, word: &str, context: &str) -> Result<CodeCall, Fault> {
        let named = OpenContext {
            name: Some(context.to_owned()),
            resume: true,
            ..super::open_context(caller, &Default::default())?
        };
        let mut keeper = super::with_context(node, caller, word, context)?;
        let Some((opened, ends)) = keeper.open_context(&named)? else { return Err(super::no_context(word, context)) };
        let mut link = Link::over(keeper, &opened, ends)?;
        link.unfinished = None;
        link.channel.resume(link.request);
        Ok(CodeCall::new(link, opened, Limits::default()))
    }

    fn new(link: Link, opened: ContextOpened, limits: Limits) -> CodeCall {
        let ContextOpened { name, language, created, limits: of_sandbox, calls, .. } = opened;
        let started = CodeStarted { sandbox: link.keeper.sandbox.clone(), context: name, language, created };
        let counts = link.unfinished.is_none();
        CodeCall {
            link,
            started,
            announced: false,
            limits: of_sandbox.tightest(limits),
            begun: Instant::now(),
            counts,
            output: 0,
            execution_count: calls + 1,
            failed: false,
            displaced_until: None,
            stage: Stage::Running,
        }
    }

    pub fn started(&self) -> &CodeStarted {
        &self.started
    }

    /// True once the last event was returned.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Returns when the call has to be stepped in any case.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Running if !self.counts => self.displaced_until.or_else(|| self.patience_ends()),
            Stage::Running => self.wall_deadline(),
            Stage::Ending { kill_at, .. } => Some(*kill_at),
            Stage::Over => None,
        }
    }

    fn wall_deadline(&self) -> Option<Instant> {
        self.begun.checked_add(Duration::from_millis(self.limits.max_wall_ms?))
    }

    /// Returns when an earlier call, whose client is gone, is interrupted for this one.
    fn patience_ends(&self) -> Option<Instant> {
        let wall = self.limits.max_wall_ms.map_or(QUEUED, Duration::from_millis);
        self.begun.checked_add(wall.min(QUEUED))
    }

    /// Returns descriptors that become readable when there is more.
    pub fn wakes(&self) -> Vec<BorrowedFd<'_>> {
        self.link.channel.wakes()
    }

    /// Interrupts the code; the call ends soon, with its context or without it.
    pub fn cancel(&mut self) {
        self.interrupt(Reason::Cancelled);
    }

    fn interrupt(&mut self, reason: Reason) {
        if matches!(self.stage, Stage::Running) {
            // A keeper that is gone has taken the worker with it, which the next step finds.
            let _ = self.link.keeper.interrupt_context(&self.link.name);
            self.stage = Stage::Ending { reason, kill_at: Instant::now() + END_GRACE };
        }
    }

    /// Returns the events since the last step; the last one is `End`.
    pub fn step(&mut self) -> Vec<CodeEvent> {
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.announced, true) {
            events.push(CodeEvent::Started(self.started.clone()));
        }
        if self.is_over() {
            return events;
        }
        match self.link.channel.step() {
            Ok(received) => received.into_iter().for_each(|received| self.take(received, &mut events)),
            Err(broken) => self.lose(&broken, &mut events),
        }
        self.check_pending();
        self.check_time(&mut events);
        events
    }

    /// Looks at the deadlines, after what has come: an end in time counts.
    fn check_time(&mut self, events: &mut Vec<CodeEvent>) {
        let now = Instant::now();
        match self.stage {
            Stage::Running if !self.counts => self.displace(now, events),
            Stage::Running if self.wall_deadline().is_some_and(|at| now >= at) => {
                self.interrupt(Reason::Limit(LimitKind::WallMs));
            }
            Stage::Ending { reason, kill_at } if now >= kill_at => {
                // False where the interpreter has ended already: its state is lost as well.
                let _ = self.link.keeper.restart_context(&self.link.name, Some(self.link.request));
                let outcome = CodeOutcome { context_lost: true, ..self.ended_for(reason) };
                self.finish(outcome, events);
            }
            _ => {}
        }
    }

    /// Interrupts an earlier call that has no reader any more and goes on for too long.
    fn displace(&mut self, now: Instant, events: &mut Vec<CodeEvent>) {
        match self.displaced_until {
            None if self.patience_ends().is_some_and(|at| now >= at) => {
                let _ = self.link.keeper.interrupt_context(&self.link.name); // the next step finds a keeper that is gone
                self.displaced_until = Some(now + DISPLACED_GRACE);
            }
            Some(until) if now >= until => {
                let _ = self.link.keeper.restart_context(&self.link.name, Some(self.link.request)); // the same
                let message = "an earlier call, whose client is gone, did not let go of the interpreter";
                let outcome = CodeOutcome { message: Some(message.into()), ..self.outcome(Verdict::Lost) };
                self.finish(CodeOutcome { context_lost: true, ..outcome }, events);
            }
            _ => {}
        }
    }

    /// A value that is still coming counts, too: it must not gather past the limit.
    fn check_pending(&mut self) {
        let coming = self.link.channel.pending() as u64;
        if self.limits.max_output_bytes.is_some_and(|most| self.output.saturating_add(coming) > most) {
            self.interrupt(Reason::Limit(LimitKind::OutputBytes));
        }
    }

    fn take(&mut self, received: Received, events: &mut Vec<CodeEvent>) {
        let Received { request, event, size } = received;
        if self.is_over() || self.is_earlier(request, &event) {
            return;
        }
        let is_ours = request == self.link.request;
        match event {
            Event::Ready { .. } => self.link.is_ready = true,
            Event::Stdout(bytes) => events.extend(self.output(bytes).map(CodeEvent::Stdout)),
            Event::Stderr(bytes) => events.extend(self.output(bytes).map(CodeEvent::Stderr)),
            // Values and ends of an earlier request come late, if at all, and belong to nothing any more.
            _ if !is_ours => {}
            Event::Display(bundle) if self.fits(size) => events.push(CodeEvent::Display(bundle)),
            Event::Result(bundle) if self.fits(size) => events.push(CodeEvent::Result(bundle)),
            Event::Error(error) => {
                self.failed = true;
                if self.fits(size) {
                    events.push(CodeEvent::Error(error));
                }
            }
            Event::End { status, execution_count } => {
                self.execution_count = execution_count.max(self.execution_count);
                self.end(status, events);
            }
            Event::Display(_) | Event::Result(_) | Event::Checked(_) => {}
        }
    }

    /// True for what belongs to a call whose client is gone; its end begins ours.
    fn is_earlier(&mut self, request: u32, event: &Event) -> bool {
        let Some(earlier) = self.link.unfinished else { return false };
        if request == earlier || (request == 0 && !matches!(event, Event::Ready { .. })) {
            if matches!(event, Event::End { .. }) {
                self.earlier_ended();
            }
            return true;
        }
        if request == self.link.request {
            // It had not begun: its code never came whole.
            self.earlier_ended();
        }
        false
    }

    fn earlier_ended(&mut self) {
        self.link.unfinished = None;
        (self.counts, self.begun) = (true, Instant::now());
    }

    /// Counts output; what is over the limit is dropped, and ends the call.
    fn output(&mut self, mut bytes: Vec<u8>) -> Option<CodeText> {
        self.link.is_ready = true;
        if matches!(self.stage, Stage::Ending { reason: Reason::Limit(LimitKind::OutputBytes), .. }) {
            return None;
        }
        let left = self.limits.max_output_bytes.map_or(u64::MAX, |most| most.saturating_sub(self.output));
        if bytes.len() as u64 > left {
            bytes.truncate(left as usize);
            self.interrupt(Reason::Limit(LimitKind::OutputBytes));
        }
        self.output += bytes.len() as u64;
        (!bytes.is_empty()).then(|| CodeText::of(bytes))
    }

    /// Counts a value, which is shown whole or not at all.
    fn fits(&mut self, size: u64) -> bool {
        let fits = self.limits.max_output_bytes.is_none_or(|most| self.output.saturating_add(size) <= most);
        match fits {
            true => self.output += size,
            false => self.interrupt(Reason::Limit(LimitKind::OutputBytes)),
        }
        fits
    }

    fn end(&mut self, status: EndStatus, events: &mut Vec<CodeEvent>) {
        let outcome = match (&self.stage, status) {
            (Stage::Ending { reason, .. }, _) => self.ended_for(*reason),
            (_, EndStatus::Interrupted) => self.ended_for(Reason::Cancelled),
            (_, EndStatus::Ok) if !self.failed => self.outcome(Verdict::Ok),
            _ => self.outcome(Verdict::Failed),
        };
        self.finish(outcome, events);
    }

    fn outcome(&self, verdict: Verdict) -> CodeOutcome {
        let wall_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        CodeOutcome {
            protocol_version: PROTOCOL_VERSION,
            success: verdict == Verdict::Ok,
            verdict,
            context_lost: false,
            error_kind: None,
            limit_kind: None,
            phase: None,
            limit: None,
            used: None,
            message: None,
            execution_count: self.execution_count,
            usage: CodeUsage { wall_ms, output_bytes: self.output },
            denials: Vec::new(),
        }
    }

    fn ended_for(&self, reason: Reason) -> CodeOutcome {
        let Reason::Limit(kind) = reason else {
            return CodeOutcome {
                message: Some("the call was interrupted".into()),
                ..self.outcome(Verdict::Cancelled)
            };
        };
        let outcome = self.outcome(Verdict::LimitExceeded);
        let (limit, used) = match kind {
            LimitKind::WallMs => (self.limits.max_wall_ms, outcome.usage.wall_ms),
            _ => (self.limits.max_output_bytes, self.output),
        };
        let limit = limit.unwrap_or_default();
        CodeOutcome {
            error_kind: Some(ErrorKind::LimitExceeded),
            limit_kind: Some(kind),
            phase: Some(Phase::Execution),
            limit: Some(Limit::Count(limit)),
            used: Some(Limit::Count(used.max(limit))),
            message: Some(format!("the call met its limit: max_{} is {limit}", kind.name())),
            ..outcome
        }
    }

    /// Ends a call whose worker is gone, or broke the protocol and is ended.
    fn lose(&mut self, broken: &Broken, events: &mut Vec<CodeEvent>) {
        let outcome = match broken {
            Broken::Rule(_) => {
                let _ = self.link.keeper.restart_context(&self.link.name, Some(self.link.request)); // gone already where this fails
                CodeOutcome { message: Some(broken.to_string()), ..self.outcome(Verdict::Lost) }
            }
            Broken::Gone => self.gone(),
        };
        self.finish(CodeOutcome { context_lost: true, ..outcome }, events);
    }

    /// Says how an interpreter ended, as its run's outcome does.
    fn gone(&mut self) -> CodeOutcome {
        if let Stage::Ending { reason, .. } = self.stage {
            return self.ended_for(reason);
        }
        let mut ended = self.link.outcome_within(CLOSING);
        if ended.is_none() {
            // It lives without its channel, and must not go on unseen.
            if matches!(self.link.keeper.restart_context(&self.link.name, Some(self.link.request)), Ok(true)) {
                let message = Some("the interpreter closed its channel, and was ended".into());
                return CodeOutcome { message, ..self.outcome(Verdict::Lost) };
            }
            ended = self.link.outcome_within(LAST_WORDS);
        }
        let Some(ended) = ended else {
            let message = Some("the interpreter is gone, and its sandbox with it".into());
            return CodeOutcome { message, ..self.outcome(Verdict::Lost) };
        };
        let Outcome { verdict, limit_kind, phase, limit, used, error_kind, .. } = ended.clone();
        if verdict == Verdict::LimitExceeded {
            let message = ended.message;
            return CodeOutcome { error_kind, limit_kind, phase, limit, used, message, ..self.outcome(verdict) };
        }
        if verdict == Verdict::Cancelled {
            let message = Some("the context was restarted or removed during the call".into());
            return CodeOutcome { message, ..self.outcome(Verdict::Cancelled) };
        }
        let how = ended.exit.as_ref().map_or_else(|| "ended".to_owned(), how_it_ended);
        let reason = self.link.last_errors(&ended);
        let was_killed = matches!(ended.exit, Some(terms::Exit::Signal { .. }));
        let message = match self.link.is_ready || was_killed || reason.is_empty() {
            true => format!("the interpreter {how} during the call"),
            false => format!("the interpreter did not start: {reason}"),
        };
        CodeOutcome { message: Some(message), ..self.outcome(Verdict::Lost) }
    }

    fn finish(&mut self, mut outcome: CodeOutcome, events: &mut Vec<CodeEvent>) {
        self.stage = Stage::Over;
        // A keeper that is gone knows nothing more of the call; what the worker said holds.
        let closed = self.link.keeper.close_context(&self.link.name, true).unwrap_or_default();
        let ContextClosed { interrupted, denials } = closed;
        if interrupted && self.displaced_until.is_none() && outcome.verdict == Verdict::Failed {
            outcome = CodeOutcome { message: Some("the call was interrupted".into()), ..outcome };
            outcome.verdict = Verdict::Cancelled;
        }
        if outcome.verdict == Verdict::Failed && denials.iter().any(terms::Denial::is_refusal) {
            outcome.verdict = Verdict::Denied;
        }
        outcome.denials = denials;
        events.push(CodeEvent::End(outcome));
    }

    /// Gives the connection back for other requests, once the call is over.
    pub fn rest(self, node: &Node) {
        if self.is_over() {
            node.keepers.rest(self.link.keeper);
        }
    }

    /// Waits until there is something to do, or until `most` has passed.
    pub fn wait(&self, most: Option<Duration>) {
        let until = self.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let time = [until, most].into_iter().flatten().min();
        let time = time.map(|time| sys::deadline::time_left(Instant::now() + time));
        let wakes = self.wakes();
        let mut polled: Vec<PollFd<'_>> = wakes.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut polled, time.as_ref()); // an interruption ends the wait early, which costs one step
    }
}

impl Link {
    fn open(node: &Node, caller: &Caller, word: &str, ask: &OpenContext) -> Result<(Link, ContextOpened), Fault> {
        with_keeper(node, caller, word, |mut keeper| {
            let Some((opened, ends)) = keeper.open_context(ask)? else { return Ok(None) };
            let link = Link::over(keeper, &opened, ends)?;
            Ok(Some((link, opened)))
        })
    }

    fn over(keeper: Keeper, opened: &ContextOpened, ends: Vec<std::os::fd::OwnedFd>) -> Result<Link, Fault> {
        let ContextOpened { name, run, request, unfinished, language, calls, .. } = opened;
        let channel = Channel::open(*language, ends);
        let mut keeper = keeper;
        let channel = channel.map_err(|broken| {
            let _ = keeper.restart_context(name, Some(*request)); // its rings cannot be used by anyone
            broken_channel(&keeper.sandbox, &broken)
        })?;
        Ok(Link {
            keeper,
            channel,
            name: name.clone(),
            run: run.clone(),
            request: *request,
            unfinished: *unfinished,
            // A shell says nothing of itself.
            is_ready: *calls > 0 || *language == Language::Bash,
        })
    }

    fn no_channel(&mut self, broken: &Broken) -> Fault {
        let _ = self.keeper.restart_context(&self.name, Some(self.request)); // the next call starts it anew
        broken_channel(&self.keeper.sandbox, broken)
    }

    fn outcome_within(&mut self, time: Duration) -> Option<Outcome> {
        self.keeper.wait(&self.run, time).ok().and_then(|waited| waited.outcome)
    }

    /// Returns the end of what an interpreter wrote to its standard error.
    fn last_errors(&self, ended: &Outcome) -> String {
        let text = ended.stderr.as_deref().map(str::to_owned).unwrap_or_else(|| self.spooled_errors());
        let text = text.trim();
        let begin = text.len().saturating_sub(LONGEST_REASON);
        let begin = (begin..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(begin);
        text[begin..].to_owned()
    }

    /// Reads what the interpreter wrote before it spoke the protocol.
    fn spooled_errors(&self) -> String {
        let page = self.keeper.output(&self.run).ok().and_then(|mut log| log.read(0, LONGEST_SPOOLED).ok());
        let records = page.map(|page| page.records).unwrap_or_default().into_iter();
        let errors = records.filter(|record| record.kind == RecordKind::Stderr).flat_map(|record| record.bytes);
        String::from_utf8_lossy(&errors.collect::<Vec<u8>>()).into_owned()
    }
}

fn broken_channel(sandbox: &str, broken: &Broken) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, broken.to_string()).subject(sandbox).phase(Phase::Start);
    fault.retry(Retry::Now).hint("try again: the context is started anew, without its globals")
}

fn how_it_ended(exit: &terms::Exit) -> String {
    match exit {
        terms::Exit::Code { code } => format!("exited with status {code}"),
        terms::Exit::Signal { name, .. } => format!("was ended by {name}"),
    }
}

fn check_request(request: &CodeRequest) -> Result<(), Fault> {
    let refuse = |message: String, hint: &str| Err(Fault::invalid(message).phase(Phase::Admission).hint(hint));
    if request.code.len() > LONGEST_CODE {
        let message = format!("code: {} bytes; at most {LONGEST_CODE} are allowed", request.code.len());
        return refuse(message, "put data into a file of the sandbox, and read it there");
    }
    if request.language == Some(Language::Bash) && request.code.contains('\0') {
        return refuse("code: a zero byte, which no shell can read".into(), "write it as $'\\0' to a program's input");
    }
    check_amounts(&request.limits, None)?;
    let kinds = LimitKind::ALL.iter().copied();
    let other = |kind: &LimitKind| !matches!(kind, LimitKind::WallMs | LimitKind::OutputBytes);
    match kinds.filter(other).find(|kind| request.limits.amount(*kind).is_some()) {
        None => Ok(()),
        Some(kind) => {
            let message = format!("limits.max_{}: not a limit of one call", kind.name());
            let fault = Fault::new(ErrorKind::UnsupportedLimit, message).limit(kind).phase(Phase::Admission);
            Err(fault.hint("set it for the sandbox, whose limits hold for its interpreters; a call has max_wall_ms and max_output_bytes"))
        }
    }
}

/// Has an interpreter judge code, between two calls.
pub fn check(node: &Node, caller: &Caller, word: &str, name: &str, request: &CodeCheck) -> Result<CodeChecked, Fault> {
    check_request(&CodeRequest { code: request.code.clone(), ..CodeRequest::default() })?;
    let ask = OpenContext { name: Some(name.to_owned()), ..super::open_context(caller, &Default::default())? };
    let mut keeper = super::with_context(node, caller, word, name)?;
    let Some((opened, ends)) = keeper.open_context(&ask)? else { return Err(super::no_context(word, name)) };
    let mut link = Link::over(keeper, &opened, ends)?;
    link.channel.check(link.request, &request.code).map_err(|broken| link.no_channel(&broken))?;
    let until = Instant::now() + CHECK_TIME;
    loop {
        let received = link.channel.step().map_err(|broken| link.no_channel(&broken))?;
        let judged = received.into_iter().find_map(|received| match received.event {
            Event::Checked(checked) if received.request == link.request => Some(checked),
            _ => None,
        });
        if let Some(checked) = judged {
            link.keeper.close_context(name, true)?;
            return Ok(checked);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let fault = Fault::new(ErrorKind::Unavailable, format!("the context {name:?} did not answer in time"));
            return Err(fault
                .subject(&link.keeper.sandbox)
                .phase(Phase::Execution)
                .retry(Retry::Later)
                .hint("interrupt or restart it"));
        }
        let wakes = link.channel.wakes();
        let mut polled: Vec<PollFd<'_>> = wakes.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut polled, Some(&sys::deadline::time_left(until))); // an interruption costs one step
    }
}

/// An error that an interpreter told, as text for a terminal.
pub fn error_text(error: &CodeError) -> String {
    match error.traceback.is_empty() {
        true => format!("{}: {}", error.name, error.value),
        false => error.traceback.clone(),
    }
}
