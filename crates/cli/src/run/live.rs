//! `run --live`: a run whose sandbox is live from its first moment. The command belongs to the sandbox's keeper and not to this process, so
//! `exec`, `logs` and `attach` of other terminals reach it, and it survives this one.

use super::remote::{bare, carried, wanted};
use super::{RunEnd, kept, tell_dropped, tells};
use crate::{render, runs};
use api::{PublishChange, SandboxChange};
use clap::ArgMatches;
use client::SecretValues;
use node::config::Config;
use node::create::CreateSandbox;
use node::keeper::attach::AttachOutcome;
use node::run::hidden::{self, Words};
use node::run::{ChangeDestination, Keep, NewWorkspace, RunRequest};
use node::sandbox::Which;
use node::secrets::brought;
use node::{Caller, Node};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;
use terms::{Fault, Outcome};

/// Creates the sandbox, has its keeper run the command, and stays until the command ends or the detach keys are pressed.
pub fn carry_out(
    node: &Node,
    caller: &Caller,
    m: &ArgMatches,
    request: &RunRequest,
    fresh: &NewWorkspace,
) -> Result<RunEnd, Fault> {
    let (secrets, values) = carried(&request.secrets, caller)?;
    let secrets: Vec<String> =
        secrets.into_iter().filter(|word| !values.keys().any(|name| *word == brought(name))).collect();
    let caller = &with_values(caller, values)?;
    let create = CreateSandbox { template: template(m), ..wanted(request, fresh, secrets, None) };
    let made = node::create::create(node, caller, &create)?;
    if tells(m) {
        made.notes.iter().for_each(|note| render::note(note));
    }
    let which = Which { word: Some(made.id.clone()), version: None };
    let mut asked = bare(request);
    asked.stdio.input &= !is_detached(m);
    asked.stdio.terminal &= !is_detached(m);
    let begun = publish(node, caller, &which, request)
        .and_then(|()| node::stop::start_live(node, caller, &which))
        .and_then(|_| runs::begin_live(node, caller, &asked, &made.id));
    let command = match begun {
        Ok(command) => command,
        Err(fault) => {
            // No command ran in it. If the removal fails, `gc` removes it when it expires.
            let _ = node::remove::remove(node, caller, &which, Some(Duration::ZERO));
            return Err(fault);
        }
    };
    if is_detached(m) {
        render::say(&command.run);
        return Ok(RunEnd::Left);
    }
    match runs::stay_live(node, &command, request)? {
        AttachOutcome::Detached => Ok(RunEnd::Left),
        AttachOutcome::Ended(mut outcome) => {
            tell_dropped(m, &outcome);
            if tells(m) {
                render::summary(&outcome, false);
                if hidden::is_unexplained(&outcome, request)
                    && let Ok(words) = Words::in_sandbox(node, caller, &made.id, request)
                {
                    words.hidden(request, caller).iter().for_each(render::hidden);
                }
            }
            settle(node, caller, &which, fresh, &mut outcome);
            if outcome.sandbox.is_some() && !m.get_flag("quiet") && !m.get_flag("json") {
                let waiting = |id: &str| node::list::waiting(node, caller, id).ok().flatten();
                kept(&outcome, &request.place, waiting).iter().for_each(|line| render::note(line));
            }
            Ok(RunEnd::Ran(outcome))
        }
    }
}

/// Returns the caller with the values of secrets as variables of their names, which the keeper inherits and no guest gets. Later commands
/// find secrets as they do in any sandbox.
fn with_values(caller: &Caller, values: SecretValues) -> Result<Caller, Fault> {
    let mut caller = caller.clone();
    for (name, value) in values {
        let value =
            value.bytes().ok_or_else(|| Fault::internal(format!("the value of the secret {name} cannot be read")))?;
        caller.env.retain(|(known, _)| *known != *name);
        caller.env.push((name.into(), OsString::from_vec(value)));
    }
    Ok(caller)
}

fn publish(node: &Node, caller: &Caller, which: &Which, request: &RunRequest) -> Result<(), Fault> {
    if request.publish.is_empty() {
        return Ok(());
    }
    let publish = Some(PublishChange { add: request.publish.clone(), remove: Vec::new() });
    let ask = SandboxChange { publish, ..SandboxChange::default() };
    node::change::change(node, caller, which, &ask, node::change::Widening::Allowed).map(drop)
}

/// Ends a run like one without a keeper: other commands of the sandbox end with it, and the sandbox is kept under the same conditions.
fn settle(node: &Node, caller: &Caller, which: &Which, fresh: &NewWorkspace, outcome: &mut Outcome) {
    outcome.sandbox = which.word.clone();
    match settled(node, caller, which, fresh, outcome) {
        Ok(stays) => drop(outcome.sandbox.take_if(|_| !stays)),
        // The command has its outcome, and its changes are safe.
        Err(fault) => {
            outcome.message.get_or_insert(format!("the sandbox of the run is not settled: {}", fault.message));
            render::note(outcome.message.as_deref().unwrap_or_default());
        }
    }
}

fn settled(
    node: &Node,
    caller: &Caller,
    which: &Which,
    fresh: &NewWorkspace,
    outcome: &Outcome,
) -> Result<bool, Fault> {
    let stopped = node::stop::stop(node, caller, which, Duration::ZERO)?;
    for ended in &stopped.ended {
        render::note(&format!("ended {}, which ran beside it", ended.run));
    }
    let terms::Changes { added, modified, deleted } = outcome.changes;
    // A command beside it may have changed something after the last count.
    let is_changed = || {
        let waiting = node::list::waiting(node, caller, &stopped.id)?;
        Ok::<bool, Fault>(waiting.is_none_or(|pending| pending.changes + pending.withheld > 0))
    };
    let stays = match fresh.keep {
        Keep::Never => false,
        Keep::Always => true,
        Keep::Changed => added + modified + deleted > 0 || is_changed()?,
    };
    match stays {
        true => node::stop::start(node, caller, which).map(drop)?,
        false => node::remove::remove(node, caller, which, Some(Duration::ZERO)).map(drop)?,
    }
    Ok(stays)
}

/// Returns the fresh workspace of a run that is to be live, by a flag or by the configuration.
pub fn fresh(m: &ArgMatches, request: &RunRequest, config: Option<&Config>) -> Option<NewWorkspace> {
    let is_explained = m.get_flag("explain");
    let is_flagged = m.try_get_one::<bool>("live").ok().flatten().is_some_and(|live| *live);
    let is_asked = is_flagged || is_detached(m) || template(m).is_some();
    let is_configured = || !request.events && config.is_some_and(Config::run_is_live);
    match &request.place {
        ChangeDestination::Fresh(fresh) if !is_explained && (is_asked || is_configured()) => Some(fresh.clone()),
        _ => None,
    }
}

/// Returns the template that a run begins with.
pub fn template(m: &ArgMatches) -> Option<String> {
    m.try_get_one::<String>("template").ok().flatten().cloned()
}

/// Returns whether the command is left running in the background.
pub fn is_detached(m: &ArgMatches) -> bool {
    m.try_get_one::<bool>("detach").ok().flatten().is_some_and(|detach| *detach)
}
