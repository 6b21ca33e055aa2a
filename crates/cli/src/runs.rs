//! Commands in live sandboxes: exec through their keeper, and logs, attach, wait, kill.

use crate::engine::{Engine, Piece, tell_left};
use crate::tame::Tame;
use crate::{quantity, render, surroundings};
use clap::ArgMatches;
use node::Caller;
use node::keeper::attach::{Left, Manner, attend};
use node::keeper::spool::{Kind, Record};
use node::keeper::wire::Word;
use node::keeper::{self, exec};
use node::run::{Ask, errand};
use serde_json::json;
use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;
use terms::{ErrorKind, Fault, Outcome, PROTOCOL_VERSION, Phase, Retry};

pub fn main(verb: &str, m: &ArgMatches) -> ExitCode {
    let json = m.try_get_one::<bool>("json").ok().flatten().is_some_and(|json| *json);
    let done = Engine::open(m).and_then(|engine| match verb {
        "logs" => logs(m, &engine, json),
        "attach" => be_at(m, &engine),
        "wait" => wait(m, &engine, json),
        _ => kill(m, &engine, json),
    });
    done.unwrap_or_else(|fault| render::fault(&fault, json))
}

/// The hidden verb, which is how we start ourselves beside ourselves: `keep SANDBOX [IDLE_MS]`, or `keep --explain` to find out the steps
/// of a run.
pub fn keep(words: &[std::ffi::OsString]) -> ExitCode {
    keeper::stand_alone();
    if words.first().is_some_and(|word| word == errand::WORD) {
        return code(surroundings::caller().and_then(|caller| errand::run(&caller)));
    }
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let begin = keeper::Begin::of(&words);
    begin.modest();
    let ground = node::run::begin();
    let kept = match surroundings::caller() {
        Ok(mut caller) => keeper::keep(&begin, &mut caller, ground, |result| keeper::announce(&result)),
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

/// Runs a command through the keeper of a live sandbox; none where it is not live. None inside: left while it runs.
pub fn exec_live(ask: &Ask, word: &str, caller: &Caller) -> Result<Option<Left>, Fault> {
    let (state, sandbox, found) = exec::live(word, caller)?;
    let Some(mut keeper) = found else { return Ok(None) };
    let start = exec::start_of(ask, caller, &sandbox)?;
    let run = keeper.start(start)?.run;
    let manner = Manner { input: ask.stdio.input, terminal: ask.stdio.terminal, capture: ask.stdio.capture, from: 0 };
    let left = attend(&state, &sandbox, &run, manner)?;
    if let Left::Detached = left {
        tell_left(&run);
    }
    Ok(Some(left))
}

fn of(m: &ArgMatches) -> &str {
    m.get_one::<String>("run").map(String::as_str).unwrap_or_default()
}

fn logs(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let from = m.get_one::<u64>("from").copied().unwrap_or(0);
    let mut shown = Shown::of(m.get_flag("raw"));
    // A reader that left early is no error of ours.
    engine.logs(of(m), from, m.get_flag("follow"), &mut |piece| match piece {
        Piece::Gap(from, to) if json => put(&json!({ "gap": { "from": from, "to": to } })).is_ok(),
        Piece::Gap(from, to) => {
            render::note(&format!("{} bytes of the log are no longer kept", to - from));
            true
        }
        Piece::Record(record) if json => put(&document(&record)).is_ok(),
        Piece::Record(record) => shown.put(&record).is_ok(),
    })?;
    // Whoever left does not miss it.
    let _ = shown.end();
    Ok(ExitCode::SUCCESS)
}

/// Where a log is printed: byte for byte, but tamed where a terminal shows it.
struct Shown {
    out: Option<Tame>,
    err: Option<Tame>,
}

impl Shown {
    fn of(raw: bool) -> Shown {
        let tame = |is_terminal: bool| (is_terminal && !raw).then(Tame::default);
        Shown { out: tame(std::io::stdout().is_terminal()), err: tame(std::io::stderr().is_terminal()) }
    }

    fn put(&mut self, record: &Record) -> std::io::Result<()> {
        match record.kind {
            Kind::Stdout | Kind::Terminal => write(&mut crate::stdout::lock(), self.out.as_mut(), &record.bytes),
            Kind::Stderr => write(&mut std::io::stderr(), self.err.as_mut(), &record.bytes),
            Kind::Dropped => {
                render::note(&format!("{} bytes of output were not kept", record.dropped().unwrap_or(0)));
                Ok(())
            }
            Kind::End => Ok(()),
        }
    }

    fn end(&mut self) -> std::io::Result<()> {
        let rest = |tame: &mut Option<Tame>| tame.as_mut().map(Tame::end).unwrap_or_default();
        write(&mut crate::stdout::lock(), None, rest(&mut self.out).as_bytes())?;
        write(&mut std::io::stderr(), None, rest(&mut self.err).as_bytes())
    }
}

fn write(to: &mut dyn Write, tame: Option<&mut Tame>, bytes: &[u8]) -> std::io::Result<()> {
    match tame {
        Some(tame) => to.write_all(tame.take(bytes).as_bytes())?,
        None => to.write_all(bytes)?,
    }
    to.flush()
}

/// One document, one line.
fn put(document: &serde_json::Value) -> std::io::Result<()> {
    let mut out = crate::stdout::lock();
    writeln!(out, "{}", render::json_line(document)).and_then(|()| out.flush())
}

fn document(record: &Record) -> serde_json::Value {
    let text = || Word::of(OsStr::from_bytes(&record.bytes));
    let (offset, at_ms) = (record.offset, record.at_ms);
    match record.kind {
        Kind::Stdout => json!({ "offset": offset, "at_ms": at_ms, "stream": "stdout", "data": text() }),
        Kind::Stderr => json!({ "offset": offset, "at_ms": at_ms, "stream": "stderr", "data": text() }),
        Kind::Terminal => json!({ "offset": offset, "at_ms": at_ms, "stream": "terminal", "data": text() }),
        Kind::Dropped => json!({ "offset": offset, "at_ms": at_ms, "dropped": record.dropped() }),
        Kind::End => {
            let outcome: Option<Outcome> = serde_json::from_slice(&record.bytes).ok();
            json!({ "offset": offset, "at_ms": at_ms, "outcome": outcome })
        }
    }
}

fn be_at(m: &ArgMatches, engine: &Engine) -> Result<ExitCode, Fault> {
    let from = m.get_one::<u64>("from").copied();
    match engine.attach(of(m), from, !m.get_flag("no-stdin"))? {
        (_, Left::Ended(outcome)) => {
            crate::stdout::arrived(&outcome)?;
            Ok(ExitCode::from(outcome.status()))
        }
        (run, Left::Detached) => {
            render::note(&format!("left {run}; it goes on"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn wait(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let time = m
        .get_one::<String>("timeout")
        .map(|time| quantity::time(time).map_err(|e| Fault::invalid(format!("--timeout {e}")).phase(Phase::Admission)));
    let time = time.transpose()?.map_or(Duration::MAX, Duration::from_millis);
    let (run, outcome) = engine.wait(of(m), time)?;
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
        let fault = Fault::invalid(format!("--signal {word:?}: there is none of that name"));
        fault.hint(format!("one of {}, or a number", names.join(", "))).phase(Phase::Admission)
    })
}
