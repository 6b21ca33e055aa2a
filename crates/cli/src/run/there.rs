//! `run`, `exec` and `shell` with a daemon. A run makes a sandbox over the directory, runs in it, and leaves what a run leaves
//! here: the workspace where something was changed in it, and else nothing. The directory is one of the daemon's host.

use super::{Done, ask, kept};
use super::{tell_dropped, tell_left_out};
use crate::args::Runs;
use crate::engine::{Following, There, Values, follow_network, not_there, tell_left};
use crate::render;
use clap::ArgMatches;
use node::events::{DEFAULT_MAX, EventFile};
use node::keeper::attach::{Left, Manner};
use node::lifecycle::create;
use node::lifecycle::stop::Which;
use node::policies::Source;
use node::run::{Ask, Fresh, Keep, Place, TTL_MS};
use node::secrets::{self, Carried};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;
use terms::{Changes, Fault, Outcome};

pub fn carry_out(verb: Runs, m: &ArgMatches, there: &There, events: Option<EventFile>) -> Result<Done, Fault> {
    let asked = ask(verb, m, &there.caller)?;
    if m.get_flag("explain") {
        return explain(there, &asked);
    }
    let detach = m.try_get_one::<bool>("detach").ok().flatten().is_some_and(|detach| *detach);
    match &asked.place {
        Place::Sandbox(word) => {
            let word = Some(word.as_str()).filter(|word| !word.is_empty());
            let asked =
                Ask { stdio: node::run::Stdio { input: asked.stdio.input && !detach, ..asked.stdio }, ..asked.clone() };
            let run = there.begin(&asked, word, Values::new())?;
            if detach {
                render::say(&run);
                return Ok(Done::Left);
            }
            stay(m, there, &asked, &run)
        }
        Place::Fresh(fresh) => in_fresh(m, there, &asked, fresh, events),
        // There is a sandbox all the same, which nothing is written to.
        Place::ReadOnly => in_fresh(m, there, &asked, &Fresh::default(), events),
        Place::Direct | Place::Plain => Err(no_direct()),
    }
}

/// There is no field for it in any request, so that no token could ask for it either.
fn no_direct() -> Fault {
    not_there(
        "--direct",
        "a daemon changes a directory by an approval and by nothing else",
        "leave --direct out and `cofferdam approve` what was changed, or run it on the daemon's host without --server",
    )
}

/// Tells what the run would do there, and does nothing of it.
fn explain(there: &There, asked: &Ask) -> Result<Done, Fault> {
    let (mut words, mut here) = (Vec::new(), BTreeMap::new());
    for word in &asked.secrets {
        let (word, line) = secrets::told(word, &there.caller)?;
        words.push(word);
        here.extend(line);
    }
    node::publish::check(&asked.publish)?;
    let mut told = match &asked.place {
        Place::Sandbox(word) => there.explain_in(asked, word)?,
        Place::Fresh(fresh) => there.explain(asked, &wanted(asked, fresh, words, None))?,
        Place::ReadOnly => there.explain(asked, &wanted(asked, &Fresh::default(), words, None))?,
        Place::Direct | Place::Plain => return Err(no_direct()),
    };
    // What would be brought comes from here, and the daemon does not know from where.
    for line in &mut told.secrets {
        if let Some(own) = line.split_once(':').and_then(|(name, _)| here.get(name)) {
            line.clone_from(own);
        }
    }
    super::explain(&told)?;
    Ok(Done::Explained)
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

/// What the files of another tool say that is not in force.
fn left_out(sources: &[Source]) -> Result<Vec<String>, Fault> {
    let files = sources.iter().filter(|source| matches!(source, Source::File(_)));
    let lists = files.map(|source| node::policies::load(source).map(|loaded| loaded.left_out));
    Ok(lists.collect::<Result<Vec<_>, _>>()?.concat())
}

fn in_fresh(
    m: &ArgMatches,
    there: &There,
    asked: &Ask,
    fresh: &Fresh,
    events: Option<EventFile>,
) -> Result<Done, Fault> {
    let (secrets, values) = carried(asked, there)?;
    let made = there.create(&wanted(asked, fresh, secrets, events.as_ref().map(|_| DEFAULT_MAX)))?;
    if std::io::stderr().is_terminal() || m.get_flag("verbose") {
        made.notes.iter().for_each(|note| render::note(note));
    } else {
        tell_left_out(m, &left_out(&asked.policies)?);
    }
    // Rules and limits are the sandbox's now.
    let bare = Ask {
        policies: Vec::<Source>::new(),
        flags: Vec::new(),
        limits: Default::default(),
        cpus: None,
        publish: Vec::new(),
        secrets: Vec::new(),
        events: false,
        ..asked.clone()
    };
    let which = Which { word: Some(made.id.clone()), version: None };
    let published = there.publish(&which, &asked.publish);
    let begun = published.and_then(|()| there.begin(&bare, Some(&made.id), values));
    let begun = begun.and_then(|run| {
        let following = events.map(|file| follow_network(there, &made.id, file)).transpose()?;
        Ok((run, following))
    });
    let (run, following) = match begun {
        Ok(begun) => begun,
        Err(fault) => {
            // Nothing ran in it; what of this fails too is the daemon's to collect.
            let _ = there.remove(&which, Some(Duration::ZERO));
            return Err(fault);
        }
    };
    match stay(m, there, asked, &run)? {
        Done::Ran(outcome) => Ok(Done::Ran(Box::new(settle(m, there, *outcome, &which, asked, following)))),
        left => Ok(left),
    }
}

/// The sandbox that a run is made in.
fn wanted(asked: &Ask, fresh: &Fresh, secrets: Vec<String>, events_max: Option<u64>) -> create::Ask {
    create::Ask {
        read_only: asked.place == Place::ReadOnly,
        secrets,
        events_max,
        report_reads: asked.report_reads,
        ask_timeout_ms: asked.ask_timeout.map(|time| time.as_millis() as u64),
        dir: fresh.dir.clone(),
        name: fresh.name.clone(),
        policies: asked.policies.clone(),
        flags: asked.flags.clone(),
        limits: asked.limits,
        cpus: asked.cpus,
        ttl_ms: Some(fresh.ttl_ms.unwrap_or(TTL_MS)),
        driver: fresh.driver,
        ..create::Ask::default()
    }
}

/// Where the daemon finds secrets, and the values that go with the command. They go the way that our token goes.
fn carried(asked: &Ask, there: &There) -> Result<(Vec<String>, Values), Fault> {
    let (mut words, mut values) = (Vec::new(), Values::new());
    for word in &asked.secrets {
        match secrets::carry(word, &there.caller)? {
            Carried::Kept(word) => words.push(word),
            Carried::Value(name, value) => {
                words.push(secrets::brought(&name));
                values.insert(name, value);
            }
        }
    }
    Ok((words, values))
}

/// What a run here ends with: nothing of it goes on, its changes are counted, and its workspace stays if there are any.
fn settle(
    m: &ArgMatches,
    there: &There,
    mut outcome: Outcome,
    which: &Which,
    asked: &Ask,
    following: Option<Following>,
) -> Outcome {
    outcome.sandbox = which.word.clone();
    match settled(there, which, &asked.place, following) {
        Ok((changes, stays, (dropped, reason))) => {
            outcome.changes = changes;
            outcome.sandbox.take_if(|_| !stays);
            (outcome.events_dropped, outcome.events_reason) = (dropped, reason);
            tell_dropped(m, &outcome);
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

/// What was changed, whether the sandbox stays, and how many events are not written down.
type Settled = (Changes, bool, (u64, Option<String>));

fn settled(there: &There, which: &Which, place: &Place, following: Option<Following>) -> Result<Settled, Fault> {
    there.stop(which, Duration::ZERO)?;
    let events = following.map(Following::finish).unwrap_or_default();
    let changes = there.changes(which)?;
    let keep = match place {
        Place::Fresh(fresh) => fresh.keep,
        Place::ReadOnly => Keep::Never,
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
    Ok((changes, stays, events))
}
