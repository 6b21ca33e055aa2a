//! A run in an existing sandbox: under its policy and limits, which the request can only narrow.

use super::phases::Timer;
use super::place::{CommandLocation, real};
use super::{RunPlan, RunRefused, RunRequest, inside, layer, record};
use crate::Node;
use crate::keeper_dir::lost;
use crate::policies::{self, Effective, Flag};
use enclosure::Groundwork;
use policy::{Action, Document, Format};
use state::Caller;
use state::directory::AGENT_HOME;
use state::sandbox::{self, Sandbox};
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::Kept;
use terms::{Fault, Phase, least};

/// Plans a run in a sandbox.
pub(super) fn plan(
    node: &Node,
    request: &RunRequest,
    word: &str,
    caller: &Caller,
    ground: Groundwork,
) -> Result<RunPlan, RunRefused> {
    let timer = Timer::begin(Phase::Admission, caller.trace_parent.as_deref());
    let (request, effective, spot, _) = take_up(node, request, word, caller, Stopped::Refused)?;
    let argv = inside::argv(&request.command, request.shell.as_deref())?;
    RunPlan::build(&request, caller, effective, spot, Some(argv), timer, ground)
}

/// Plans a run in a sandbox with secrets from the sources that its record names.
pub fn plan_as_recorded(
    node: &Node,
    request: &RunRequest,
    id: &str,
    caller: &Caller,
    ground: Groundwork,
) -> Result<RunPlan, RunRefused> {
    let timer = Timer::begin(Phase::Admission, caller.trace_parent.as_deref());
    let (mut request, effective, spot, kept) = take_up(node, request, id, caller, Stopped::Refused)?;
    request.secrets = kept.record.secrets;
    let argv = inside::argv(&request.command, request.shell.as_deref())?;
    RunPlan::build(&request, caller, effective, spot, Some(argv), timer, ground)
}

/// Treatment of a stopped sandbox. `Taken` is for callers that start no command in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    Refused,
    Taken,
}

/// Locks a sandbox. Returns the request with the sandbox's own limits in it, the policy, the place with the locked workspace, and the record.
pub(super) fn take_up(
    node: &Node,
    request: &RunRequest,
    word: &str,
    caller: &Caller,
    stopped: Stopped,
) -> Result<(RunRequest, Effective, CommandLocation, Kept<Sandbox>), Fault> {
    check_narrows(request)?;
    let state = node.states.open(caller)?;
    let found = state.store.read(|tx| match (stopped, state::pool::as_kept(tx, word)?) {
        (Stopped::Taken, Some(spare)) => Ok(spare),
        _ => sandbox::find(tx, named(word), caller),
    })?;
    let check = |kept: &Kept<Sandbox>| if stopped == Stopped::Refused { record::check_active(kept) } else { Ok(()) };
    check(&found)?;
    let id = found.id.clone();
    let (held, kept) = layer::take(&state, found, caller)?.ok_or_else(|| record::busy(&state, &id))?;
    check(&kept)?;
    // Runs of an earlier holder that died are recorded as lost.
    lost::settle_open(&state, &kept.id)?;
    lost::forget(&state.path, &kept.id);
    drop(state);
    let mut documents = vec![document(&kept.id, &kept.record)?];
    documents.extend(policies::of_flags(&request.flags, caller)?);
    let effective = policy::effective(&documents).map_err(Fault::from)?;
    let mut request = request.clone();
    request.env.splice(0..0, kept.record.variables());
    request.limits = kept.record.limits.tightest(request.limits);
    request.cpus = least(kept.record.cpus, request.cpus);
    request.report_reads |= kept.record.report_reads;
    request.ask_timeout = request.ask_timeout.or(kept.record.ask_timeout_ms.map(Duration::from_millis));
    let dir = held.inside().to_path_buf();
    let cwd = working_directory(request.workdir.as_deref(), &dir, &caller.cwd)?;
    let home = held.is_moved().then(|| PathBuf::from(AGENT_HOME));
    let spot = CommandLocation { dir, cwd, home, layered: true, private: false, notes: Vec::new(), held: Some(held) };
    Ok((request, effective.into(), spot, kept))
}

/// Returns the word that names a sandbox; none where the sandbox of the current directory is meant.
pub(super) fn named(word: &str) -> Option<&str> {
    Some(word).filter(|word| !word.is_empty())
}

pub(super) fn document(id: &str, recorded: &Sandbox) -> Result<Document, Fault> {
    let text = recorded.policy.to_string();
    policy::parse(&text, Format::Json, id).map_err(|e| {
        let fault = Fault::from(e);
        Fault::internal(format!("the policy of {id} cannot be read: {fault}")).subject(id)
    })
}

/// Refuses a request that would give a run more than the sandbox has.
fn check_narrows(request: &RunRequest) -> Result<(), Fault> {
    let widens = |flag: &Flag| match flag {
        Flag::Read(action, _) | Flag::Write(action, _) | Flag::Exec(action, _) | Flag::Net(action, _) => {
            *action != Action::Deny
        }
        Flag::Secret(_) | Flag::CopyIn(_) => true,
    };
    let what = match (request.policies.is_empty(), request.flags.iter().any(widens)) {
        (true, false) => return Ok(()),
        (false, _) => "a policy",
        (true, true) => "a rule that allows something",
    };
    let message = format!("{what} is given for a command in a sandbox; there, flags can only deny");
    let hint = "leave it out, or create a sandbox with it: `cofferdam create --policy …`";
    Err(Fault::invalid(message).hint(hint).phase(Phase::Admission))
}

/// Returns the caller's directory where it is inside the sandbox's; otherwise the sandbox's top.
pub(super) fn working_directory(workdir: Option<&Path>, base: &Path, cwd: &Path) -> Result<PathBuf, Fault> {
    match workdir {
        // The directory may exist in the workspace alone; a missing one is reported at the start of the command.
        Some(to) if base.join(to).starts_with(base) && !to.components().any(|c| c.as_os_str() == "..") => {
            Ok(base.join(to))
        }
        Some(to) => real(&base.join(to), "working directory"),
        None if cwd.starts_with(base) => Ok(cwd.to_path_buf()),
        None => Ok(base.to_path_buf()),
    }
}
