//! `run`, `exec` and `shell` with a daemon. A run makes a sandbox over the directory, runs in it, and leaves what a run leaves
//! here: the workspace where something was changed in it, and else nothing. The directory is one of the daemon's host.

use super::{Done, ask, kept};
use crate::args::Runs;
use crate::engine::{There, not_there, tell_left};
use crate::render;
use clap::ArgMatches;
use node::keeper::attach::{Left, Manner};
use node::lifecycle::create;
use node::lifecycle::stop::Which;
use node::policies::Source;
use node::run::{Ask, Fresh, Keep, Place, TTL_MS};
use std::io::{IsTerminal, Write};
use std::time::Duration;
use terms::{Changes, Fault, Outcome};

pub fn carry_out(verb: Runs, m: &ArgMatches, there: &There) -> Result<Done, Fault> {
    let asked = ask(verb, m, &there.caller)?;
    refuse(m, &asked)?;
    let detach = m.try_get_one::<bool>("detach").ok().flatten().is_some_and(|detach| *detach);
    match &asked.place {
        Place::Sandbox(word) => {
            let word = Some(word.as_str()).filter(|word| !word.is_empty());
            let asked =
                Ask { stdio: node::run::Stdio { input: asked.stdio.input && !detach, ..asked.stdio }, ..asked.clone() };
            let run = there.begin(&asked, word)?;
            if detach {
                // A reader that left early is no error of ours.
                let _ = writeln!(std::io::stdout(), "{run}");
                return Ok(Done::Left);
            }
            stay(m, there, &asked, &run)
        }
        Place::Fresh(fresh) => in_fresh(m, there, &asked, fresh),
        Place::Plain | Place::ReadOnly | Place::Direct => Err(not_there(
            "a run without a workspace",
            "leave --read-only and --direct out, or run it on the daemon's host",
        )),
    }
}

/// What only a process here could do.
fn refuse(m: &ArgMatches, asked: &Ask) -> Result<(), Fault> {
    let given = [
        (m.get_flag("explain"), "--explain", "`cofferdam policy explain` tells what a policy decides"),
        (asked.events, "--events", "`cofferdam events -f` tells what happens to sandboxes"),
        (asked.report_reads, "--report-reads", "leave it out"),
        (!asked.publish.is_empty(), "--publish", "a port of a live sandbox is reached through the daemon's own"),
        (!asked.secrets.is_empty(), "--secret", "keep it with the daemon: `cofferdam secret set`"),
        (m.get_one::<String>("ask-timeout").is_some(), "--ask-timeout", "leave it out: questions wait with the daemon"),
    ];
    match given.into_iter().find(|(given, ..)| *given) {
        Some((_, what, hint)) => Err(not_there(what, hint)),
        None => Ok(()),
    }
}

/// Is at a run until its end, and shows it as one of ours.
fn stay(m: &ArgMatches, there: &There, asked: &Ask, run: &str) -> Result<Done, Fault> {
    let node::run::Stdio { input, terminal, capture, .. } = asked.stdio;
    match there.visit(run, Manner { input, terminal, capture, from: 0 }, true)? {
        Left::Detached => {
            tell_left(run);
            Ok(Done::Left)
        }
        Left::Ended(outcome) => {
            let told = std::io::stderr().is_terminal() && !m.get_flag("quiet");
            if told || m.get_flag("verbose") {
                render::summary(&outcome, false);
            }
            Ok(Done::Ran(outcome))
        }
    }
}

fn in_fresh(m: &ArgMatches, there: &There, asked: &Ask, fresh: &Fresh) -> Result<Done, Fault> {
    let made = there.create(&create::Ask {
        dir: fresh.dir.clone(),
        name: fresh.name.clone(),
        policies: asked.policies.clone(),
        flags: asked.flags.clone(),
        limits: asked.limits,
        cpus: asked.cpus,
        ttl_ms: Some(fresh.ttl_ms.unwrap_or(TTL_MS)),
        driver: fresh.driver,
        ..create::Ask::default()
    })?;
    if std::io::stderr().is_terminal() || m.get_flag("verbose") {
        made.notes.iter().for_each(|note| render::note(note));
    }
    // Rules and limits are the sandbox's now.
    let bare = Ask {
        policies: Vec::<Source>::new(),
        flags: Vec::new(),
        limits: Default::default(),
        cpus: None,
        ..asked.clone()
    };
    let which = Which { word: Some(made.id.clone()), version: None };
    let run = match there.begin(&bare, Some(&made.id)) {
        Ok(run) => run,
        Err(fault) => {
            // Nothing ran in it; what of this fails too is the daemon's to collect.
            let _ = there.remove(&which, Some(Duration::ZERO));
            return Err(fault);
        }
    };
    match stay(m, there, asked, &run)? {
        Done::Ran(outcome) => Ok(Done::Ran(Box::new(settle(m, there, *outcome, &which, asked)))),
        left => Ok(left),
    }
}

/// What a run here ends with: nothing of it goes on, its changes are counted, and its workspace stays if there are any.
fn settle(m: &ArgMatches, there: &There, mut outcome: Outcome, which: &Which, asked: &Ask) -> Outcome {
    outcome.sandbox = which.word.clone();
    match settled(there, which, &asked.place) {
        Ok((changes, stays)) => {
            outcome.changes = changes;
            outcome.sandbox.take_if(|_| !stays);
        }
        // The outcome is the command's, and what it changed is safe; what is not known is what there is of it.
        Err(fault) => {
            outcome.message.get_or_insert(format!("the sandbox of the run is not settled: {}", fault.message));
            render::note(outcome.message.as_deref().unwrap_or_default());
        }
    }
    if outcome.sandbox.is_some() && !m.get_flag("quiet") && !m.get_flag("json") {
        kept(&outcome, &asked.place).iter().for_each(|line| render::note(line));
    }
    outcome
}

/// What was changed, and whether the sandbox stays.
fn settled(there: &There, which: &Which, place: &Place) -> Result<(Changes, bool), Fault> {
    there.stop(which, Duration::ZERO)?;
    let changes = there.changes(which)?;
    let keep = match place {
        Place::Fresh(fresh) => fresh.keep,
        _ => Keep::Always,
    };
    let stays = match keep {
        Keep::Never => false,
        Keep::Always => true,
        Keep::Changed => changes.added + changes.modified + changes.deleted > 0,
    };
    match stays {
        true => there.start(which, false).map(drop)?,
        false => there.remove(which, Some(Duration::ZERO)).map(drop)?,
    }
    Ok((changes, stays))
}
