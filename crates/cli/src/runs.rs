//! Commands in live sandboxes: exec through their keeper, and logs, attach, wait, kill.

use crate::tame::TerminalFilter;
use crate::{connection, quantity, render, surroundings};
use api::RunStreams;
use clap::ArgMatches;
use client::transport::{AttachEnd, OutputKind, RunOutput};
use client::{Engine, Remote, RunRecord};
use node::keeper::attach::{AttachOptions, AttachOutcome, OutputSink, attach, attach_owner, terminal};
use node::keeper::spool::{Record, RecordKind};
use node::keeper::wire::WireText;
use node::keeper::{self, exec, runs};
use node::run::RunRequest;
use node::{Caller, Node};
use serde_json::json;
use std::ffi::OsStr;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use terms::{ErrorKind, Fault, Outcome, PROTOCOL_VERSION, Phase, Retry};

pub fn main(verb: &str, m: &ArgMatches) -> ExitCode {
    let json = m.try_get_one::<bool>("json").ok().flatten().is_some_and(|json| *json);
    let done = connection::open(m).and_then(|engine| match verb {
        "logs" => logs(m, &engine, json),
        "attach" => attach_to(m, &engine),
        "wait" => wait(m, &engine, json),
        _ => kill(m, &engine, json),
    });
    done.unwrap_or_else(|fault| render::fault(&fault, json))
}

/// The hidden verb by which this program starts keepers: `keep SANDBOX [IDLE_MS]`.
pub fn keep(words: &[std::ffi::OsString]) -> ExitCode {
    keeper::stand_alone();
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let begin = keeper::Begin::of(&words);
    begin.modest();
    let ground = node::run::begin();
    let kept = match surroundings::caller() {
        Ok(mut caller) => {
            keeper::keep(&Node::for_command(), &begin, &mut caller, ground, |result| keeper::announce(&result))
        }
        Err(fault) => {
            keeper::announce(&Err(fault.clone()));
            Err(fault)
        }
    };
    code(kept)
}

fn code(done: Result<(), Fault>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => ExitCode::from(fault.status()),
    }
}

/// Runs a command through the keeper of a live sandbox; none where the sandbox is not live.
pub fn exec_live(
    node: &Node,
    caller: &Caller,
    request: &RunRequest,
    word: &str,
) -> Result<Option<AttachOutcome>, Fault> {
    let (state, sandbox, found) = exec::live(node, caller, word)?;
    let Some(mut keeper) = found else { return Ok(None) };
    let start = exec::start_message(request, caller, &sandbox)?;
    let run = keeper.start(start)?.run;
    stay_live(node, &LiveCommand { state, sandbox, run }, request).map(Some)
}

/// A command that a keeper has started.
pub struct LiveCommand {
    state: PathBuf,
    sandbox: String,
    pub run: String,
}

/// Has the keeper of a live sandbox start a command.
pub fn begin_live(node: &Node, caller: &Caller, request: &RunRequest, word: &str) -> Result<LiveCommand, Fault> {
    let (state, sandbox, found) = exec::live(node, caller, word)?;
    let mut keeper = found.ok_or_else(|| {
        let fault = Fault::new(ErrorKind::Conflict, format!("{sandbox} was stopped before its command began"));
        fault.subject(&sandbox).hint("run it again").phase(Phase::Start)
    })?;
    let start = exec::start_message(request, caller, &sandbox)?;
    let run = keeper.start(start)?.run;
    Ok(LiveCommand { state, sandbox, run })
}

/// Stays with a command until it ends, or until the detach keys are pressed.
pub fn stay_live(node: &Node, command: &LiveCommand, request: &RunRequest) -> Result<AttachOutcome, Fault> {
    let LiveCommand { state, sandbox, run } = command;
    let node::run::Stdio { input, terminal, capture, .. } = request.stdio;
    let left = attach_owner(node, state, sandbox, run, AttachOptions { input, terminal, capture, from: 0 })?;
    if let AttachOutcome::Detached = left {
        note_detached(run);
    }
    Ok(left)
}

/// Returns the run that a word means: a run, or the last command of the sandbox of that name, one that is running first.
fn of(m: &ArgMatches, engine: &Engine) -> Result<String, Fault> {
    let word = m.get_one::<String>("run").map(String::as_str).unwrap_or_default();
    if word.starts_with("run_") {
        return Ok(word.to_owned());
    }
    let named = |name: Option<&str>, id: &str| name == Some(word) || (word.starts_with("sbx_") && id.starts_with(word));
    let mut running = engine.running()?.into_iter().rev();
    if let Some(run) = running.find(|run| named(run.name.as_deref(), run.sandbox.as_deref().unwrap_or_default())) {
        return Ok(run.run);
    }
    let Some(row) = engine.list(false)?.into_iter().find(|row| named(row.name.as_deref(), &row.id)) else {
        return Ok(word.to_owned());
    };
    let last = engine.runs(Some(&row.id), false)?.into_iter().max_by_key(|run| run.started_ms);
    last.map(|run| run.run).ok_or_else(|| {
        let fault = Fault::new(ErrorKind::NotFound, format!("no command ran in {word}")).subject(word);
        fault.phase(Phase::Admission).hint("`cofferdam exec` runs one")
    })
}

fn logs(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let from = m.get_one::<u64>("from").copied().unwrap_or(0);
    let mut shown = LogPrinter::of(m.get_flag("raw"));
    // A reader that left early is no error of ours.
    engine.logs(&of(m, engine)?, from, m.get_flag("follow"), &mut |piece| match piece {
        RunRecord::Gap(from, to) if json => put(&json!({ "gap": { "from": from, "to": to } })).is_ok(),
        RunRecord::Gap(from, to) => {
            render::note(&format!("{} bytes of the log are no longer kept", to - from));
            true
        }
        RunRecord::Record(record) if json => put(&document(&record)).is_ok(),
        RunRecord::Record(record) => shown.put(&record).is_ok(),
    })?;
    // Without a reader the reset sequence is not needed.
    let _ = shown.end();
    Ok(ExitCode::SUCCESS)
}

/// Prints a log: unchanged into a pipe, with control sequences escaped on a terminal.
struct LogPrinter {
    out: Option<TerminalFilter>,
    err: Option<TerminalFilter>,
}

impl LogPrinter {
    fn of(raw: bool) -> LogPrinter {
        let tame = |is_terminal: bool| (is_terminal && !raw).then(TerminalFilter::default);
        LogPrinter { out: tame(std::io::stdout().is_terminal()), err: tame(std::io::stderr().is_terminal()) }
    }

    fn put(&mut self, record: &Record) -> std::io::Result<()> {
        match record.kind {
            RecordKind::Stdout | RecordKind::Terminal => {
                write(&mut crate::stdout::lock(), self.out.as_mut(), &record.bytes)
            }
            RecordKind::Stderr => write(&mut std::io::stderr(), self.err.as_mut(), &record.bytes),
            RecordKind::Dropped => {
                render::note(&format!("{} bytes of output were not kept", record.dropped().unwrap_or(0)));
                Ok(())
            }
            RecordKind::End => Ok(()),
        }
    }

    fn end(&mut self) -> std::io::Result<()> {
        let rest = |tame: &mut Option<TerminalFilter>| tame.as_mut().map(TerminalFilter::end).unwrap_or_default();
        write(&mut crate::stdout::lock(), None, rest(&mut self.out).as_bytes())?;
        write(&mut std::io::stderr(), None, rest(&mut self.err).as_bytes())
    }
}

fn write(to: &mut dyn Write, tame: Option<&mut TerminalFilter>, bytes: &[u8]) -> std::io::Result<()> {
    match tame {
        Some(tame) => to.write_all(tame.take(bytes).as_bytes())?,
        None => to.write_all(bytes)?,
    }
    to.flush()
}

/// Prints a document on one line.
fn put(document: &serde_json::Value) -> std::io::Result<()> {
    let mut out = crate::stdout::lock();
    writeln!(out, "{}", render::json_line(document)).and_then(|()| out.flush())
}

fn document(record: &Record) -> serde_json::Value {
    let text = || WireText::of(OsStr::from_bytes(&record.bytes));
    let (offset, at_ms) = (record.offset, record.at_ms);
    match record.kind {
        RecordKind::Stdout => json!({ "offset": offset, "at_ms": at_ms, "stream": "stdout", "data": text() }),
        RecordKind::Stderr => json!({ "offset": offset, "at_ms": at_ms, "stream": "stderr", "data": text() }),
        RecordKind::Terminal => json!({ "offset": offset, "at_ms": at_ms, "stream": "terminal", "data": text() }),
        RecordKind::Dropped => json!({ "offset": offset, "at_ms": at_ms, "dropped": record.dropped() }),
        RecordKind::End => {
            let outcome: Option<Outcome> = serde_json::from_slice(&record.bytes).ok();
            json!({ "offset": offset, "at_ms": at_ms, "outcome": outcome })
        }
    }
}

fn attach_to(m: &ArgMatches, engine: &Engine) -> Result<ExitCode, Fault> {
    let (word, from, input) = (of(m, engine)?, m.get_one::<u64>("from").copied(), !m.get_flag("no-stdin"));
    let on_terminal = std::io::stdin().is_terminal();
    let manner = |at: RunStreams| AttachOptions {
        input: at.input && input,
        terminal: at.terminal && on_terminal,
        capture: false,
        from: from.unwrap_or(at.offset),
    };
    let (run, left) = match engine {
        Engine::Local(node, caller) => {
            let found = runs::find(node, caller, &word)?;
            let at = found.show(node)?.at.ok_or_else(|| match found.is_elsewhere() {
                true => runs::elsewhere(&found.id, &found.run.sandbox),
                false => not_attachable(&found.id),
            })?;
            let left = attach(node, &node::directory::prepare(caller)?.0, &found.run.sandbox, &found.id, manner(at))?;
            (found.id, left)
        }
        Engine::Remote(remote) => {
            let shown = remote.shown(&word)?;
            let at = shown.at.ok_or_else(|| not_attachable(&shown.run))?;
            let left = attach_remote(remote, &shown.run, manner(at), OnReaderGone::Continue)?;
            (shown.run, left)
        }
    };
    match (run, left) {
        (_, AttachOutcome::Ended(outcome)) => {
            crate::stdout::arrived(&outcome)?;
            Ok(ExitCode::from(outcome.status()))
        }
        (run, AttachOutcome::Detached) => {
            render::note(&format!("detached from {run}; it keeps running"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn not_attachable(run: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{run} is not running in a live sandbox"));
    fault.subject(run).phase(Phase::Admission).hint("`cofferdam logs` shows its output")
}

/// The treatment of a remote command whose output has no reader any more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OnReaderGone {
    /// Signals the command, as SIGPIPE would.
    Signal,
    Continue,
}

/// Attaches this process's input, output and terminal to a run of a daemon.
pub fn attach_remote(
    remote: &Remote,
    run: &str,
    manner: AttachOptions,
    on_reader_gone: OnReaderGone,
) -> Result<AttachOutcome, Fault> {
    let _raw = manner.terminal.then(terminal::Raw::on_stdin);
    let mut output = ProcessOutput { sink: OutputSink::new(manner.capture), on_reader_gone };
    let input = manner.input.then(|| Box::new(std::io::stdin()) as Box<dyn Read + Send>);
    match remote.attach(run, input, manner.terminal, manner.from, &mut output)? {
        AttachEnd::Ended(outcome) => Ok(AttachOutcome::Ended(Box::new(output.sink.fill(*outcome)))),
        AttachEnd::Detached => Ok(AttachOutcome::Detached),
    }
}

/// The output streams of this process.
struct ProcessOutput {
    sink: OutputSink,
    on_reader_gone: OnReaderGone,
}

impl RunOutput for ProcessOutput {
    fn write(&mut self, stream: OutputKind, bytes: &[u8]) -> bool {
        let is_read = self.sink.write(usize::from(stream == OutputKind::Stderr), bytes);
        is_read || self.on_reader_gone == OnReaderGone::Continue
    }

    fn gap(&mut self, bytes: u64) {
        self.sink.note_missed(bytes);
    }

    fn terminal_size(&self) -> (u16, u16) {
        terminal::size(rustix::stdio::stdin())
    }
}

/// Notes that a run was detached from.
pub fn note_detached(run: &str) {
    render::note(&format!("detached from {run}; it keeps running (`cofferdam attach {run}`)"));
}

fn wait(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let time = m
        .get_one::<String>("timeout")
        .map(|time| quantity::time(time).map_err(|e| Fault::invalid(format!("--timeout {e}")).phase(Phase::Admission)));
    let time = time.transpose()?.map_or(Duration::MAX, Duration::from_millis);
    let (run, outcome) = engine.wait(&of(m, engine)?, time)?;
    let outcome = outcome.ok_or_else(|| {
        let fault = Fault::new(ErrorKind::Unavailable, format!("{run} has not ended yet")).retry(Retry::Later);
        fault.subject(&run).hint("wait longer, or end it with `cofferdam kill`").phase(Phase::Execution)
    })?;
    if json {
        render::print_json(&outcome);
    }
    Ok(ExitCode::from(outcome.status()))
}

fn kill(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let signal = number(m.get_one::<String>("signal").map(String::as_str).unwrap_or("KILL"))?;
    let mut told = Vec::new();
    for word in m.get_many::<String>("run").unwrap_or_default() {
        let (run, sent) = engine.signal(word, signal)?;
        if !json && !sent {
            render::note(&format!("{run} has ended already"));
        }
        told.push(json!({ "run": run, "sent": sent }));
    }
    if json {
        render::print_json(&json!({ "protocol_version": PROTOCOL_VERSION, "signal": signal, "runs": told }));
    }
    Ok(ExitCode::SUCCESS)
}

/// The signals that people send, by name.
const SIGNALS: [(&str, i32); 14] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("WINCH", 28),
];

fn number(word: &str) -> Result<i32, Fault> {
    let upper = word.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    let named = SIGNALS.iter().find(|(name, _)| *name == bare).map(|(_, number)| *number);
    named.or_else(|| bare.parse().ok().filter(|n| (1..=64).contains(n))).ok_or_else(|| {
        let names: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
        let fault = Fault::invalid(format!("--signal {word:?}: not a signal name"));
        fault.hint(format!("one of {}, or a number", names.join(", "))).phase(Phase::Admission)
    })
}
