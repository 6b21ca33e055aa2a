//! `run`, `exec` and `shell` with a daemon. A run creates a sandbox over the directory, runs in it, and keeps the sandbox under the same
//! conditions as a local run: if something was changed in it. The directory is one of the daemon's host.

use super::live::{is_detached, template};
use super::{RunEnd, config, continue_in, kept, request, tell_dropped, tells, to_continue};
use crate::agents;
use crate::args::Runs;
use crate::options::tell_left_out;
use crate::render;
use crate::runs::{OnReaderGone, attach_remote, note_detached};
use api::TerminalSize;
use clap::ArgMatches;
use client::{NetworkLog, Remote, SecretValues, unsupported_by_daemon};
use node::Caller;
use node::create;
use node::events::{DEFAULT_MAX, EventFile};
use node::keeper::attach::{AttachOptions, AttachOutcome, terminal};
use node::policies::{Flag, RequestedPolicy, secret_entry};
use node::run::{ChangeDestination, Keep, NewWorkspace, RunRequest, TTL_MS};
use node::sandbox::Which;
use node::secrets::{self, RemoteSecret};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use terms::{Changes, Fault, Outcome};

pub fn carry_out(verb: Runs, m: &ArgMatches, remote: &Remote, events: Option<EventFile>) -> Result<RunEnd, Fault> {
    let (mut asked, agent) = request(verb, m, &remote.caller)?;
    if let Some(wish) = to_continue(m, config(m, &remote.caller)?.as_ref()) {
        let found = remote.inspect(None).map(|found| (found.id, found.sandbox.name));
        continue_in(&mut asked, m, wish, found)?;
    }
    agent.into_iter().for_each(|agent| agents::settle(agent, m, &mut asked));
    if m.get_flag("explain") {
        return explain(remote, &asked);
    }
    let detach = is_detached(m);
    match &asked.place {
        ChangeDestination::Sandbox(word) => {
            let word = Some(word.as_str()).filter(|word| !word.is_empty());
            let asked = RunRequest {
                stdio: node::run::Stdio { input: asked.stdio.input && !detach, ..asked.stdio },
                ..asked.clone()
            };
            let run = remote.begin(&asked, word, SecretValues::new(), terminal_size(&asked))?;
            if detach {
                render::say(&run);
                return Ok(RunEnd::Left);
            }
            stay(m, remote, &asked, &run)
        }
        ChangeDestination::Fresh(fresh) => in_fresh(m, remote, &asked, fresh, events),
        // A sandbox is created all the same; nothing is written to it.
        ChangeDestination::ReadOnly => in_fresh(m, remote, &asked, &NewWorkspace::default(), events),
        ChangeDestination::Direct | ChangeDestination::Plain => Err(no_direct()),
    }
}

/// A fault for `--direct`. No request has a field for it, so no token could ask for it either.
fn no_direct() -> Fault {
    unsupported_by_daemon(
        "--direct",
        "a daemon changes a directory only by an approval",
        "leave --direct out and approve the changes with `cofferdam approve`, or run it on the daemon's host without --server",
    )
}

/// Explains what the run would do on the daemon's host, without running it.
fn explain(remote: &Remote, asked: &RunRequest) -> Result<RunEnd, Fault> {
    let (mut words, mut here) = (Vec::new(), BTreeMap::new());
    for word in &sources(asked, remote) {
        let (word, line) = secrets::told(word, &remote.caller)?;
        words.push(word);
        here.extend(line);
    }
    node::publish::check(&asked.publish)?;
    let mut told = match &asked.place {
        ChangeDestination::Sandbox(word) => remote.explain_in(asked, word)?,
        ChangeDestination::Fresh(fresh) => remote.explain(asked, &wanted(asked, fresh, words, None))?,
        ChangeDestination::ReadOnly => remote.explain(asked, &wanted(asked, &NewWorkspace::default(), words, None))?,
        ChangeDestination::Direct | ChangeDestination::Plain => return Err(no_direct()),
    };
    // Values come from this host, and the daemon does not know their source.
    for line in &mut told.secrets {
        if let Some(own) = line.split_once(':').and_then(|(name, _)| here.get(name)) {
            line.clone_from(own);
        }
    }
    super::explain(&told)?;
    Ok(RunEnd::Explained)
}

/// Returns the size of the caller's terminal for a command that gets one.
fn terminal_size(asked: &RunRequest) -> Option<TerminalSize> {
    asked
        .stdio
        .terminal
        .then(|| terminal::size(rustix::stdio::stdin()))
        .map(|(rows, columns)| TerminalSize { rows, columns })
}

/// Attaches to a run until it ends, and shows it like a local one.
fn stay(m: &ArgMatches, remote: &Remote, asked: &RunRequest, run: &str) -> Result<RunEnd, Fault> {
    let node::run::Stdio { input, terminal, capture, .. } = asked.stdio;
    match attach_remote(remote, run, AttachOptions { input, terminal, capture, from: 0 }, OnReaderGone::Signal)? {
        AttachOutcome::Detached => {
            note_detached(run);
            Ok(RunEnd::Left)
        }
        AttachOutcome::Ended(outcome) => {
            if tells(m) {
                render::summary(&outcome, false);
            }
            Ok(RunEnd::Ran(outcome))
        }
    }
}

/// Returns settings of another tool's files that are not in force.
fn left_out(sources: &[RequestedPolicy]) -> Result<Vec<String>, Fault> {
    let files = sources.iter().filter(|source| matches!(source, RequestedPolicy::File(_)));
    let lists = files.map(|source| node::policies::load(source).map(|loaded| loaded.left_out));
    Ok(lists.collect::<Result<Vec<_>, _>>()?.concat())
}

fn in_fresh(
    m: &ArgMatches,
    remote: &Remote,
    asked: &RunRequest,
    fresh: &NewWorkspace,
    events: Option<EventFile>,
) -> Result<RunEnd, Fault> {
    let (secrets, values) = carried(&sources(asked, remote), &remote.caller)?;
    let events_max = events.as_ref().map(|_| DEFAULT_MAX);
    let create = create::CreateSandbox { template: template(m), ..wanted(asked, fresh, secrets, events_max) };
    let made = remote.create(&create)?;
    if tells(m) {
        made.notes.iter().for_each(|note| render::note(note));
    } else {
        tell_left_out(m, &left_out(&asked.policies)?);
    }
    let mut bare = bare(asked);
    bare.stdio.input &= !is_detached(m);
    bare.stdio.terminal &= !is_detached(m);
    let which = Which { word: Some(made.id.clone()), version: None };
    let published = remote.publish(&which, &asked.publish);
    let begun = published.and_then(|()| remote.begin(&bare, Some(&made.id), values, terminal_size(&bare)));
    let begun = begun.and_then(|run| {
        let network_log = events.map(|file| NetworkLog::start(remote, &made.id, file)).transpose()?;
        Ok((run, network_log))
    });
    let (run, network_log) = match begun {
        Ok(begun) => begun,
        Err(fault) => {
            // No command ran in it. If the removal fails, garbage collection of the daemon removes it.
            let _ = remote.remove(&which, Some(Duration::ZERO));
            return Err(fault);
        }
    };
    if is_detached(m) {
        render::say(&run);
        return Ok(RunEnd::Left);
    }
    match stay(m, remote, asked, &run)? {
        RunEnd::Ran(outcome) => Ok(RunEnd::Ran(Box::new(settle(m, remote, *outcome, &which, asked, network_log)))),
        left => Ok(left),
    }
}

/// Returns the request for the command of a run whose sandbox exists: rules and limits belong to the sandbox, so the command has none.
pub(super) fn bare(asked: &RunRequest) -> RunRequest {
    RunRequest {
        policies: Vec::<RequestedPolicy>::new(),
        flags: Vec::new(),
        limits: Default::default(),
        cpus: None,
        publish: Vec::new(),
        secrets: Vec::new(),
        events: false,
        ..asked.clone()
    }
}

/// Returns the request for a run's sandbox.
pub(super) fn wanted(
    asked: &RunRequest,
    fresh: &NewWorkspace,
    secrets: Vec<String>,
    events_max: Option<u64>,
) -> create::CreateSandbox {
    create::CreateSandbox {
        read_only: asked.place == ChangeDestination::ReadOnly,
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
        ..create::CreateSandbox::default()
    }
}

/// Returns the sources of secrets: those that are given, and the caller's variables for the secrets of presets and of `NAME@HOST`, as in
/// a local run. The daemon has no variables of the caller.
fn sources(asked: &RunRequest, remote: &Remote) -> Vec<String> {
    let mut words = asked.secrets.clone();
    let presets = asked.policies.iter().filter_map(|source| match source {
        RequestedPolicy::Preset(_) => node::policies::load(source).ok(),
        RequestedPolicy::File(_) | RequestedPolicy::Text(_) => None,
    });
    let of_presets = presets.flat_map(|loaded| loaded.document.secrets).map(|secret| secret.name);
    let typed = asked.flags.iter().filter_map(|flag| match flag {
        Flag::Secret(word) => Some(secret_entry::name_of(word).to_owned()),
        _ => None,
    });
    for name in of_presets.chain(typed).collect::<BTreeSet<String>>() {
        let is_given = asked.secrets.iter().any(|word| word.split_once('=').is_some_and(|(given, _)| given == name));
        if !is_given && remote.caller.var(&name).is_some_and(|value| !value.is_empty()) {
            words.push(format!("{name}=env:{name}"));
        }
    }
    words
}

/// Returns the names of secrets that are kept where the sandbox is, and the values that are sent with the command, like the token.
pub(super) fn carried(sources: &[String], caller: &Caller) -> Result<(Vec<String>, SecretValues), Fault> {
    let (mut words, mut values) = (Vec::new(), SecretValues::new());
    for word in sources {
        match secrets::carry(word, caller)? {
            RemoteSecret::Kept(word) => words.push(word),
            RemoteSecret::Value(name, value) => {
                words.push(secrets::brought(&name));
                values.insert(name, value);
            }
        }
    }
    Ok((words, values))
}

/// Ends a run like a local one: the sandbox is stopped, its changes are counted, and it is kept if there are any.
fn settle(
    m: &ArgMatches,
    remote: &Remote,
    mut outcome: Outcome,
    which: &Which,
    asked: &RunRequest,
    network_log: Option<NetworkLog>,
) -> Outcome {
    outcome.sandbox = which.word.clone();
    match settled(remote, which, &asked.place, network_log) {
        Ok((changes, stays, (dropped, reason))) => {
            outcome.changes = changes;
            outcome.sandbox.take_if(|_| !stays);
            (outcome.events_dropped, outcome.events_reason) = (dropped, reason);
            tell_dropped(m, &outcome);
        }
        // The command has its outcome, and its changes are safe; only their number is unknown.
        Err(fault) => {
            outcome
                .message
                .get_or_insert(format!("the sandbox of the run could not be kept or removed: {}", fault.message));
            render::note(outcome.message.as_deref().unwrap_or_default());
        }
    }
    if outcome.sandbox.is_some() && !m.get_flag("quiet") && !m.get_flag("json") {
        let waiting = |id: &str| remote.inspect(Some(id)).ok().and_then(|whole| whole.pending);
        kept(&outcome, &asked.place, waiting).iter().for_each(|line| render::note(line));
    }
    outcome
}

/// Number of changes, whether the sandbox is kept, and the number of missing network events.
type Settled = (Changes, bool, (u64, Option<String>));

fn settled(
    remote: &Remote,
    which: &Which,
    place: &ChangeDestination,
    network_log: Option<NetworkLog>,
) -> Result<Settled, Fault> {
    remote.stop(which, Duration::ZERO)?;
    let events = network_log.map(NetworkLog::finish).unwrap_or_default();
    let changes = remote.changes(which)?;
    let keep = match place {
        ChangeDestination::Fresh(fresh) => fresh.keep,
        ChangeDestination::ReadOnly => Keep::Never,
        _ => Keep::Always,
    };
    let stays = match keep {
        Keep::Never => false,
        Keep::Always => true,
        Keep::Changed => changes.added + changes.modified + changes.deleted > 0,
    };
    match stays {
        true => remote.start(which, false).map(drop)?,
        false => remote.remove(which, Some(Duration::ZERO)).map(drop)?,
    }
    Ok((changes, stays, events))
}
