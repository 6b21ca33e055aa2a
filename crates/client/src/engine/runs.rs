//! Commands in live sandboxes: start, logs, attach, wait, signal.

use super::Engine;
use super::remote::{Reconnect, Remote, is_disconnect, milliseconds};
use super::sandbox_create::sandbox_create;
use crate::transport::{
    AttachEnd, AttachOptions, Request, RunOutput, ServerSentEvent, StreamControl, backwards, decode_base64,
};
use api::{
    Capability, PathText, RunCreate, RunExplain, RunExplained, RunSignalled, RunStatus, SecretValue, TerminalSize,
};
use node::create;
use node::keeper::exec;
use node::keeper::runs::{self, RunLog, RunRef};
use node::keeper::spool::{HEAD, Record, RecordKind};
use node::run::RunRequest;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Outcome, Phase};

/// A record of a run's log.
pub enum RunRecord {
    /// Offsets between which nothing is kept any more.
    Gap(u64, u64),
    Record(Record),
}

/// Time that one request waits for news.
const STEP: Duration = Duration::from_secs(60);

impl Engine {
    /// Reports the log of a run from an offset on, with `follow` as it grows, until `each` returns false.
    pub fn logs(
        &self,
        word: &str,
        from: u64,
        follow: bool,
        each: &mut dyn FnMut(RunRecord) -> bool,
    ) -> Result<(), Fault> {
        let (node, caller) = match self {
            Engine::Local(node, caller) => (node, caller),
            Engine::Remote(remote) => return remote.logs(word, from, follow, each),
        };
        let mut log = RunLog::open(runs::find(node, caller, word)?, from, follow)?;
        loop {
            let page = match log.next(node, STEP)? {
                runs::LogRead::Page(page) => page,
                runs::LogRead::Nothing => continue,
                runs::LogRead::Over => return Ok(()),
            };
            let gap = page.gap.map(|(from, to)| RunRecord::Gap(from, to));
            for record in gap.into_iter().chain(page.records.into_iter().map(RunRecord::Record)) {
                if !each(record) {
                    return Ok(());
                }
            }
        }
    }

    /// Waits for the end of a run. Returns its id, and the outcome if it ended in time.
    pub fn wait(&self, word: &str, patience: Duration) -> Result<(String, Option<Outcome>), Fault> {
        match self {
            Engine::Local(node, caller) => {
                let found = runs::find(node, caller, word)?;
                let outcome = found.wait(node, patience)?;
                Ok((found.id, outcome))
            }
            Engine::Remote(remote) => remote.wait(word, patience),
        }
    }

    /// Sends a signal. Returns the id of the run, and false where it had ended.
    pub fn signal(&self, word: &str, signal: i32) -> Result<(String, bool), Fault> {
        match self {
            Engine::Local(node, caller) => {
                let found: RunRef = runs::find(node, caller, word)?;
                let sent = found.signal(node, signal)?;
                Ok((found.id, sent))
            }
            Engine::Remote(remote) => {
                let told: RunSignalled = remote.post(&["v1", "runs", word, "signal"], &json!({ "signal": signal }))?;
                Ok((told.run, told.changed))
            }
        }
    }
}

/// Values of secrets by name, for one command.
pub type SecretValues = BTreeMap<String, SecretValue>;

/// Encodes a word for a document, byte for byte.
fn encoded(word: &OsStr) -> PathText {
    PathText::of(word.as_bytes())
}

/// Refuses options that only a whole sandbox can have.
fn check_single(ask: &RunRequest) -> Result<(), Fault> {
    let Some(what) = exec::unsupported_option(ask) else { return Ok(()) };
    let message =
        format!("over a daemon, commands run in live sandboxes, and {what} cannot be given for a single command");
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Admission);
    Err(fault.hint("give it to the sandbox as a whole, with `cofferdam create` or `cofferdam run`"))
}

impl Remote {
    pub fn shown(&self, word: &str) -> Result<RunStatus, Fault> {
        self.get(&["v1", "runs", word])
    }

    /// Starts a command, on a terminal where a size is given. Returns the id of the run. A request whose response is lost is repeated
    /// under its idempotency key, and starts no second command.
    pub fn begin(
        &self,
        ask: &RunRequest,
        word: Option<&str>,
        secrets: SecretValues,
        terminal: Option<TerminalSize>,
    ) -> Result<String, Fault> {
        check_single(ask)?;
        self.check_options(ask)?;
        let word = self.word(word)?;
        let key = terms::id("key", node::random::id_bytes());
        let document = RunCreate { secrets, terminal, ..self.command(ask)? };
        let start = || {
            let request = Request::post(&["v1", "sandboxes", &word, "runs"]).header("idempotency-key", &key)?;
            self.client.document::<RunStatus>(request.document(&document)?)
        };
        let (first, mut reconnect) = (start(), Reconnect::new(&self.client));
        // A daemon that is not there at all is not waited for.
        let mut started = match first {
            Err(fault) if fault.phase == Some(Phase::Admission) => return Err(fault),
            first => first,
        };
        while started.as_ref().is_err_and(is_disconnect) && reconnect.wait() {
            started = start();
        }
        started.map(|shown| shown.run)
    }

    /// Refuses options that the daemon does not know.
    fn check_options(&self, ask: &RunRequest) -> Result<(), Fault> {
        if ask.report_reads {
            self.require(Capability::ReportReads, "--report-reads")?;
        }
        if ask.ask_timeout.is_some() {
            self.require(Capability::AskTimeout, "--ask-timeout")?;
        }
        Ok(())
    }

    /// Explains a command in an existing sandbox.
    pub fn explain_in(&self, ask: &RunRequest, word: &str) -> Result<RunExplained, Fault> {
        check_single(ask)?;
        let sandbox = self.word(Some(word).filter(|word| !word.is_empty()))?;
        self.explained(&RunExplain { sandbox: Some(sandbox), create: None, run: self.command(ask)? })
    }

    /// Explains a command in a sandbox that would be created for it, and would have its rules and limits.
    pub fn explain(&self, ask: &RunRequest, wanted: &create::CreateSandbox) -> Result<RunExplained, Fault> {
        let (create, notes) = sandbox_create(wanted, self)?;
        let command = RunRequest { limits: Default::default(), ..ask.clone() };
        let mut explained =
            self.explained(&RunExplain { sandbox: None, create: Some(create), run: self.command(&command)? })?;
        explained.notes.splice(0..0, notes);
        Ok(explained)
    }

    fn explained(&self, request: &RunExplain) -> Result<RunExplained, Fault> {
        self.require(Capability::ExplainRun, "--explain")?;
        self.post(&["v1", "runs", "explain"], request)
    }

    fn command(&self, ask: &RunRequest) -> Result<RunCreate, Fault> {
        Ok(RunCreate {
            command: ask.command.iter().map(|word| encoded(word)).collect(),
            shell: ask.shell.as_ref().map(|shell| encoded(shell)),
            variables: self.variables(&ask.env)?,
            workdir: ask.workdir.as_ref().map(|dir| encoded(dir.as_os_str())),
            cwd: Some(encoded(self.caller.cwd.as_os_str())),
            limits: ask.limits,
            input: ask.stdio.input,
            report_reads: ask.report_reads,
            ask_timeout_ms: ask.ask_timeout.map(|time| time.as_millis() as u64),
            ..RunCreate::default()
        })
    }

    /// Returns environment variables: `NAME` takes its value from the caller's, `NAME=VALUE` has its own.
    fn variables(&self, asked: &[OsString]) -> Result<Vec<PathText>, Fault> {
        let mut all = Vec::new();
        for item in asked {
            let bytes = item.as_encoded_bytes();
            match bytes.iter().position(|byte| *byte == b'=') {
                Some(0) => {
                    return Err(Fault::invalid(format!("--env {item:?}: no name before '='")).phase(Phase::Admission));
                }
                Some(_) => all.push(encoded(item)),
                None => {
                    let value = self.caller.env.iter().find(|(name, _)| name == item).map(|(_, value)| value);
                    all.extend(value.map(|value| PathText::of(&[bytes, b"=", value.as_encoded_bytes()].concat())));
                }
            }
        }
        Ok(all)
    }

    /// Attaches to a run until it ends or the detach keys are pressed; `input` is sent to the command.
    pub fn attach(
        &self,
        run: &str,
        input: Option<Box<dyn Read + Send>>,
        terminal: bool,
        from: u64,
        output: &mut dyn RunOutput,
    ) -> Result<AttachEnd, Fault> {
        self.client.attach(run, AttachOptions { input, terminal, from, writer: node::random::id_bytes() }, output)
    }

    fn wait(&self, word: &str, patience: Duration) -> Result<(String, Option<Outcome>), Fault> {
        let end = Instant::now().checked_add(patience);
        let (mut reconnect, mut reached) = (Reconnect::new(&self.client), false);
        loop {
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            let (step, asked) = (left.min(STEP), Instant::now());
            let request = Request::get(&["v1", "runs", word]).query("wait", milliseconds(step));
            let answer = self.client.document::<RunStatus>(request);
            // A daemon that is not there at all is not waited for.
            reached |= !answer.as_ref().is_err_and(|fault| fault.phase == Some(Phase::Admission));
            let shown = match answer {
                Err(fault) if reached && is_disconnect(&fault) && reconnect.wait() => continue,
                answer => answer?,
            };
            if shown.outcome.is_some() {
                // Without its output, which is for `logs`.
                let bare = self.shown(&shown.run)?;
                return Ok((bare.run, bare.outcome));
            }
            if left.is_zero() {
                return Ok((shown.run, None));
            }
            // A daemon that shuts down answers early; one that always does so never waits.
            match asked.elapsed() < step / 2 {
                true if !reconnect.wait() => return Err(never_waits(&shown.run)),
                true => {}
                false => reconnect.reset(),
            }
        }
    }

    fn logs(&self, word: &str, from: u64, follow: bool, each: &mut dyn FnMut(RunRecord) -> bool) -> Result<(), Fault> {
        let run = self.shown(word)?.run;
        let (mut next, mut reconnect) = (from, Reconnect::new(&self.client));
        loop {
            let request = Request::get(&["v1", "runs", &run, "output"]).query("encoding", "base64");
            let request =
                request.query("from", next.to_string()).query("follow", if follow { "true" } else { "false" });
            let mut end = None;
            let done = self.client.events(request, &mut |event| {
                if event.name == "end" {
                    end = Some(event);
                    return Ok(StreamControl::Stop);
                }
                let Some(record) = record_of(&event)? else { return Ok(StreamControl::Continue) };
                next = event.id.filter(|id| *id > next).ok_or_else(|| backwards(&run))?;
                reconnect.reset();
                Ok(if each(record) { StreamControl::Continue } else { StreamControl::Stop })
            });
            if let Some(event) = end {
                each(self.end_of(&run, event, next)?);
                return Ok(());
            }
            match done {
                Ok(true) => return Ok(()),
                Ok(false) if !follow => return Ok(()),
                Err(fault) if !is_disconnect(&fault) => return Err(fault),
                _ if reconnect.wait() => {}
                _ => return Err(done.err().unwrap_or_else(|| stream_lost(&run))),
            }
        }
    }

    /// Returns the last record of a log, of which a stream sends the outcome alone.
    fn end_of(&self, run: &str, event: ServerSentEvent, at: u64) -> Result<RunRecord, Fault> {
        if let Err(e) = serde_json::from_str::<Outcome>(&event.data) {
            let fault = Fault::new(ErrorKind::ProviderFailed, format!("cannot read the outcome of {run}: {e}"));
            let fault = fault.subject(run).phase(Phase::Delivery);
            return Err(fault.hint("check that --server names a daemon of the same version"));
        }
        let at_ms = self.shown(run)?.ended_ms.unwrap_or(0);
        let offset = event.id.map_or(at, |behind| behind.saturating_sub((HEAD + event.data.len()) as u64));
        Ok(RunRecord::Record(Record { offset, at_ms, kind: RecordKind::End, bytes: event.data.into_bytes() }))
    }
}

/// A fault for a daemon that answers at once although it is asked to wait.
fn never_waits(run: &str) -> Fault {
    let fault = Fault::new(
        ErrorKind::ProviderFailed,
        format!("the daemon neither waits for the end of {run} nor gives its outcome"),
    );
    let fault = fault.subject(run).phase(Phase::Delivery);
    fault.hint("check that --server names a daemon of the same version")
}

fn stream_lost(run: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, "stream lost; the run may still be running").subject(run);
    fault.phase(Phase::Delivery).hint(format!("use `cofferdam logs {run}` when the daemon is back"))
}

#[derive(Deserialize)]
struct Output {
    offset: u64,
    at_ms: u64,
    data: String,
}

#[derive(Deserialize)]
struct Dropped {
    offset: u64,
    at_ms: u64,
    bytes: u64,
}

#[derive(Deserialize)]
struct Gap {
    from: u64,
    to: u64,
}

/// Returns the record of the log that an event carries; none where it is about the stream itself.
fn record_of(event: &ServerSentEvent) -> Result<Option<RunRecord>, Fault> {
    let unreadable = |e: String| {
        let message = format!("logs: the event {:?} cannot be read: {e}", event.name);
        Fault::new(ErrorKind::ProviderFailed, message).phase(Phase::Delivery)
    };
    let json = |e: serde_json::Error| unreadable(e.to_string());
    let kind = match event.name.as_str() {
        "stdout" => RecordKind::Stdout,
        "stderr" => RecordKind::Stderr,
        "terminal" => RecordKind::Terminal,
        "gap" => {
            let Gap { from, to } = serde_json::from_str(&event.data).map_err(json)?;
            return Ok(Some(RunRecord::Gap(from, to)));
        }
        "dropped" => {
            let Dropped { offset, at_ms, bytes } = serde_json::from_str(&event.data).map_err(json)?;
            return Ok(Some(RunRecord::Record(Record::dropped_of(offset, at_ms, bytes))));
        }
        _ => return Ok(None),
    };
    let Output { offset, at_ms, data } = serde_json::from_str(&event.data).map_err(json)?;
    let bytes = decode_base64(&data).ok_or_else(|| unreadable("its data is not base64".into()))?;
    Ok(Some(RunRecord::Record(Record { offset, at_ms, kind, bytes })))
}
