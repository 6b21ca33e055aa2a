//! Commands in live sandboxes: begun, read along, visited, waited for, signalled.

use super::Engine;
use super::make::make;
use super::there::{Again, There, if_older, time};
use crate::render;
use client::{Ask, Event, Heard, Stream, Visitor};
use node::files::Target;
use node::fresh;
use node::keeper::attach::{Left, Manner, Voice, attach, terminal};
use node::keeper::begin::{self, Shown, Size};
use node::keeper::exec;
use node::keeper::runs::{self, Found, Log};
use node::keeper::spool::{HEAD, Kind, Record};
use node::keeper::wire::Hidden;
use node::lifecycle::create;
use node::run;
use node::run::explained::Explained;
use serde::Deserialize;
use serde_json::json;
use server::wire::{ExplainRun, Signalled};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Outcome, Phase};

/// A piece of a log.
pub enum Piece {
    /// From here to there nothing is kept any more.
    Gap(u64, u64),
    Record(Record),
}

/// How long one waits for news before looking again.
const STEP: Duration = Duration::from_secs(60);

impl Engine {
    /// Hands out what a run said, and on request what it says, as long as `each` wants it.
    pub fn logs(&self, word: &str, from: u64, follow: bool, each: &mut dyn FnMut(Piece) -> bool) -> Result<(), Fault> {
        let caller = match self {
            Engine::Here(caller) => caller,
            Engine::There(there) => return there.logs(word, from, follow, each),
        };
        let mut log = Log::open(runs::find(word, caller)?, from, follow)?;
        loop {
            let page = match log.next(STEP)? {
                runs::Heard::Page(page) => page,
                runs::Heard::Nothing => continue,
                runs::Heard::Over => return Ok(()),
            };
            let gap = page.gap.map(|(from, to)| Piece::Gap(from, to));
            for piece in gap.into_iter().chain(page.records.into_iter().map(Piece::Record)) {
                if !each(piece) {
                    return Ok(());
                }
            }
        }
    }

    /// Is at a run that goes on; its id, and how it went.
    pub fn attach(&self, word: &str, from: Option<u64>, input: bool) -> Result<(String, Left), Fault> {
        let on_terminal = std::io::IsTerminal::is_terminal(&std::io::stdin());
        match self {
            Engine::Here(caller) => {
                let found = runs::find(word, caller)?;
                let at = found.show()?.at.ok_or_else(|| over(&found.id))?;
                let manner = Manner {
                    input: at.input && input,
                    terminal: at.terminal && on_terminal,
                    capture: false,
                    from: from.unwrap_or(at.offset),
                };
                let left = attach(&node::state::prepare(caller)?.0, &found.run.sandbox, &found.id, manner)?;
                Ok((found.id, left))
            }
            Engine::There(there) => {
                let shown = there.shown(word)?;
                let at = shown.at.ok_or_else(|| over(&shown.run))?;
                let manner = Manner {
                    input: at.input && input,
                    terminal: at.terminal && on_terminal,
                    capture: false,
                    from: from.unwrap_or(at.offset),
                };
                let left = there.visit(&shown.run, manner, false)?;
                Ok((shown.run, left))
            }
        }
    }

    /// Waits for the end of a run: its id, and how it ended if it did in time.
    pub fn wait(&self, word: &str, patience: Duration) -> Result<(String, Option<Outcome>), Fault> {
        match self {
            Engine::Here(caller) => {
                let found = runs::find(word, caller)?;
                let outcome = found.wait(patience)?;
                Ok((found.id, outcome))
            }
            Engine::There(there) => there.wait(word, patience),
        }
    }

    /// Sends a signal: the run's id, and false where it had ended.
    pub fn signal(&self, word: &str, signal: i32) -> Result<(String, bool), Fault> {
        match self {
            Engine::Here(caller) => {
                let found: Found = runs::find(word, caller)?;
                let sent = found.signal(signal)?;
                Ok((found.id, sent))
            }
            Engine::There(there) => {
                let told: Signalled = there.post(&["v1", "runs", word, "signal"], &json!({ "signal": signal }))?;
                Ok((told.run, told.changed))
            }
        }
    }
}

/// Values of secrets by name, for one command.
pub type Values = BTreeMap<String, Hidden>;

/// Byte for byte, as documents carry it.
fn spelled(word: &OsStr) -> Target {
    Target::of(word.as_bytes())
}

/// A daemon that does not know how commands can be watched.
pub fn if_unwatched(fault: Fault) -> Fault {
    let fault = if_older(fault, "unknown field `report_reads`", "--report-reads");
    if_older(fault, "unknown field `ask_timeout_ms`", "--ask-timeout")
}

/// Refuses what one command of many cannot have.
fn check_single(ask: &run::Ask) -> Result<(), Fault> {
    let Some(what) = exec::too_much(ask) else { return Ok(()) };
    let message = format!("over a daemon commands run in live sandboxes, and {what} cannot be given to one command");
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Admission);
    Err(fault.hint("give it to the sandbox as a whole, with `cofferdam create` or `cofferdam run`"))
}

fn over(run: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{run} does not go on in a live sandbox"));
    fault.subject(run).phase(Phase::Admission).hint("`cofferdam logs` shows what it said")
}

impl There {
    pub fn shown(&self, word: &str) -> Result<Shown, Fault> {
        self.get(&["v1", "runs", word])
    }

    /// Begins a command; the run's id. A request whose answer is lost is repeated under its key, and begins no second one.
    pub fn begin(&self, ask: &run::Ask, word: Option<&str>, secrets: Values) -> Result<String, Fault> {
        check_single(ask)?;
        let word = self.word(word)?;
        let key = terms::id("key", fresh::random());
        let document = begin::Ask { secrets, ..self.command(ask)? };
        let request = || {
            let ask = Ask::post(&["v1", "sandboxes", &word, "runs"]).header("idempotency-key", &key)?;
            self.client.document::<Shown>(ask.document(&document)?)
        };
        let (first, mut again) = (request(), Again::new(&self.client));
        // A daemon that is not there at all is not waited for.
        let mut answer = match first {
            Err(fault) if fault.phase == Some(Phase::Admission) => return Err(if_unwatched(fault)),
            first => first,
        };
        while answer.as_ref().is_err_and(is_lost) && again.look() {
            answer = request();
        }
        answer.map(|shown| shown.run).map_err(if_unwatched)
    }

    /// What a command would do in a sandbox.
    pub fn explain_in(&self, ask: &run::Ask, word: &str) -> Result<Explained, Fault> {
        check_single(ask)?;
        let sandbox = self.word(Some(word).filter(|word| !word.is_empty()))?;
        self.explained(&ExplainRun { sandbox: Some(sandbox), create: None, run: self.command(ask)? })
    }

    /// The same in a sandbox that would be made for it: then rules and limits are the sandbox's.
    pub fn explain(&self, ask: &run::Ask, wanted: &create::Ask) -> Result<Explained, Fault> {
        let (create, notes) = make(wanted, self)?;
        let command = run::Ask { limits: Default::default(), ..ask.clone() };
        let mut told =
            self.explained(&ExplainRun { sandbox: None, create: Some(create), run: self.command(&command)? })?;
        told.notes.splice(0..0, notes);
        Ok(told)
    }

    fn explained(&self, wish: &ExplainRun) -> Result<Explained, Fault> {
        let told = self.post(&["v1", "runs", "explain"], wish);
        told.map_err(|fault| if_older(fault, "/v1/runs/explain does not take POST", "--explain"))
    }

    fn command(&self, ask: &run::Ask) -> Result<begin::Ask, Fault> {
        Ok(begin::Ask {
            command: ask.command.iter().map(|word| spelled(word)).collect(),
            shell: ask.shell.as_ref().map(|shell| spelled(shell)),
            variables: self.variables(&ask.env)?,
            workdir: ask.workdir.as_ref().map(|dir| spelled(dir.as_os_str())),
            cwd: Some(spelled(self.caller.cwd.as_os_str())),
            limits: ask.limits,
            input: ask.stdio.input,
            terminal: ask
                .stdio
                .terminal
                .then(|| terminal::size(rustix::stdio::stdin()))
                .map(|(rows, columns)| Size { rows, columns }),
            report_reads: ask.report_reads,
            ask_timeout_ms: ask.ask_timeout.map(|time| time.as_millis() as u64),
            ..begin::Ask::default()
        })
    }

    /// `NAME` is passed from here, `NAME=VALUE` is set.
    fn variables(&self, asked: &[OsString]) -> Result<Vec<Target>, Fault> {
        let mut all = Vec::new();
        for item in asked {
            let bytes = item.as_encoded_bytes();
            match bytes.iter().position(|byte| *byte == b'=') {
                Some(0) => {
                    return Err(Fault::invalid(format!("--env {item:?}: no name before '='")).phase(Phase::Admission));
                }
                Some(_) => all.push(spelled(item)),
                None => {
                    let value = self.caller.env.iter().find(|(name, _)| name == item).map(|(_, value)| value);
                    all.extend(value.map(|value| Target::of(&[bytes, b"=", value.as_encoded_bytes()].concat())));
                }
            }
        }
        Ok(all)
    }

    /// Stays with a run, as `attach` does with one of ours; `ends` where it is ours to end when nobody reads it.
    pub fn visit(&self, run: &str, manner: Manner, ends: bool) -> Result<Left, Fault> {
        let _raw = manner.terminal.then(terminal::Raw::on_stdin);
        let mut guest = Guest { voice: Voice::new(manner.capture), ends };
        let Manner { input, terminal, from, .. } = manner;
        match self.client.visit(run, client::Manner { input, terminal, from, writer: fresh::random() }, &mut guest)? {
            client::Left::Ended(outcome) => Ok(Left::Ended(Box::new(guest.voice.told(*outcome)))),
            client::Left::Detached => Ok(Left::Detached),
        }
    }

    fn wait(&self, word: &str, patience: Duration) -> Result<(String, Option<Outcome>), Fault> {
        let end = Instant::now().checked_add(patience);
        let (mut again, mut met) = (Again::new(&self.client), false);
        loop {
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            let (step, asked) = (left.min(STEP), Instant::now());
            let ask = Ask::get(&["v1", "runs", word]).query("wait", time(step));
            let answer = self.client.document::<Shown>(ask);
            // A daemon that is not there at all is not waited for.
            met |= !answer.as_ref().is_err_and(|fault| fault.phase == Some(Phase::Admission));
            let shown = match answer {
                Err(fault) if met && is_lost(&fault) && again.look() => continue,
                answer => answer?,
            };
            if shown.outcome.is_some() {
                // Without what it said, which `logs` tells.
                let bare = self.shown(&shown.run)?;
                return Ok((bare.run, bare.outcome));
            }
            if left.is_zero() {
                return Ok((shown.run, None));
            }
            // A daemon that ends answers before it was asked to; one that does nothing else never waits.
            match asked.elapsed() < step / 2 {
                true if !again.look() => return Err(hasty(&shown.run)),
                true => {}
                false => again.is_well(),
            }
        }
    }

    fn logs(&self, word: &str, from: u64, follow: bool, each: &mut dyn FnMut(Piece) -> bool) -> Result<(), Fault> {
        let run = self.shown(word)?.run;
        let (mut next, mut again) = (from, Again::new(&self.client));
        loop {
            let ask = Ask::get(&["v1", "runs", &run, "output"]).query("encoding", "base64");
            let ask = ask.query("from", next.to_string()).query("follow", if follow { "true" } else { "false" });
            let mut end = None;
            let heard = self.client.events(ask, &mut |event| {
                if event.name == "end" {
                    end = Some(event);
                    return Ok(Heard::Enough);
                }
                let Some(piece) = piece(&event)? else { return Ok(Heard::More) };
                next = event.id.filter(|id| *id > next).ok_or_else(|| client::backwards(&run))?;
                again.is_well();
                Ok(if each(piece) { Heard::More } else { Heard::Enough })
            });
            if let Some(event) = end {
                each(self.end_of(&run, event, next)?);
                return Ok(());
            }
            match heard {
                Ok(true) => return Ok(()),
                Ok(false) if !follow => return Ok(()),
                Err(fault) if !is_lost(&fault) => return Err(fault),
                _ if again.look() => {}
                _ => return Err(heard.err().unwrap_or_else(|| lost(&run))),
            }
        }
    }

    /// The last record of a log, which a stream tells by the outcome alone.
    fn end_of(&self, run: &str, event: Event, at: u64) -> Result<Piece, Fault> {
        if let Err(e) = serde_json::from_str::<Outcome>(&event.data) {
            let fault = Fault::new(ErrorKind::ProviderFailed, format!("how {run} ended cannot be read: {e}"));
            let fault = fault.subject(run).phase(Phase::Delivery);
            return Err(fault.hint("see that --server names a daemon of the same version"));
        }
        let at_ms = self.shown(run)?.ended_ms.unwrap_or(0);
        let offset = event.id.map_or(at, |behind| behind.saturating_sub((HEAD + event.data.len()) as u64));
        Ok(Piece::Record(Record { offset, at_ms, kind: Kind::End, bytes: event.data.into_bytes() }))
    }
}

/// The connection was lost, and not the verb refused: a fault of the daemon's own says which request it answers.
fn is_lost(fault: &Fault) -> bool {
    fault.error_kind == ErrorKind::Unavailable && fault.request_id.is_none()
}

/// A daemon that answers again and again as if nobody had asked it to wait.
fn hasty(run: &str) -> Fault {
    let fault =
        Fault::new(ErrorKind::ProviderFailed, format!("the daemon says neither how {run} ended nor waits for its end"));
    let fault = fault.subject(run).phase(Phase::Delivery);
    fault.hint("see that --server names a daemon of the same version")
}

fn lost(run: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, "stream lost; the run may go on").subject(run);
    fault.phase(Phase::Delivery).hint(format!("`cofferdam logs {run}` when the daemon is back"))
}

#[derive(Deserialize)]
struct Said {
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

/// An event as the piece of the log that it tells; none where it tells of the stream itself.
fn piece(event: &Event) -> Result<Option<Piece>, Fault> {
    let unread = |e: String| Fault::new(ErrorKind::ProviderFailed, format!("a log cannot be read: {e}"));
    let json = |e: serde_json::Error| unread(e.to_string());
    let kind = match event.name.as_str() {
        "stdout" => Kind::Stdout,
        "stderr" => Kind::Stderr,
        "terminal" => Kind::Terminal,
        "gap" => {
            let Gap { from, to } = serde_json::from_str(&event.data).map_err(json)?;
            return Ok(Some(Piece::Gap(from, to)));
        }
        "dropped" => {
            let Dropped { offset, at_ms, bytes } = serde_json::from_str(&event.data).map_err(json)?;
            return Ok(Some(Piece::Record(Record::dropped_of(offset, at_ms, bytes))));
        }
        _ => return Ok(None),
    };
    let Said { offset, at_ms, data } = serde_json::from_str(&event.data).map_err(json)?;
    let bytes = client::decoded(&data).ok_or_else(|| unread("no base64".into()))?;
    Ok(Some(Piece::Record(Record { offset, at_ms, kind, bytes })))
}

/// Our side of a visit.
struct Guest {
    voice: Voice,
    /// The command ends when nobody reads what it says, as it would in a pipe.
    ends: bool,
}

impl Visitor for Guest {
    fn said(&mut self, stream: Stream, bytes: &[u8]) -> bool {
        self.voice.say(usize::from(stream == Stream::Stderr), bytes) || !self.ends
    }

    fn missed(&mut self, bytes: u64) {
        self.voice.missed(bytes);
    }

    fn size(&self) -> (u16, u16) {
        terminal::size(rustix::stdio::stdin())
    }
}

/// Says that a run was left.
pub fn tell_left(run: &str) {
    render::note(&format!("left {run}; it goes on (`cofferdam attach {run}`)"));
}
