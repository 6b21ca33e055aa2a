//! Explains a run without starting it: its policy, its notes, where its secrets would come from, and the steps of its setup.
//! Looks up no secret and keeps nothing: the plan and the layer that it is made over are dropped with the answer.
//!
//! A daemon plans in its own process. It starts no helper for that, keeps no contents of programs, and gives up after a while.

use crate::create;
use crate::keeper::begin::RunCreateExt;
use api::{PathText, RunCreate, RunExplained};
use runtime::Node;
use runtime::policies;
use runtime::request::WireText;
use runtime::run::{ChangeDestination, NewWorkspace, RunPlan, RunRefused, RunRequest, Stdio, record, sandboxed};
use runtime::secrets::{self, Secrets};
use runtime::watch::WatchOptions;
use state::sandbox::{self, Sandbox};
use state::{Caller, bounds};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;
use store::Kept;
use terms::{Fault, Phase};

/// Most time that a daemon spends on the plan.
const PLANNING: Duration = Duration::from_secs(60);
/// Longest list of steps in a daemon's response, in bytes.
const LONGEST: usize = 16 << 20;

/// Detail of an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The rules, as a sandbox's description has them.
    Rules,
    /// Also every step of the setup, for the operator of the host.
    Steps,
}

/// The sandbox of the run.
#[derive(Clone, Debug)]
pub enum RunTarget {
    /// A sandbox that would be made for it.
    Fresh(Box<create::CreateSandbox>),
    /// An existing sandbox.
    Sandbox(String),
}

/// Explains a run that a client requests from a daemon.
pub fn explain(
    node: &Node,
    caller: &Caller,
    within: &RunTarget,
    run: &RunCreate,
    depth: Depth,
) -> Result<RunExplained, Fault> {
    run.check()?;
    if !run.secrets.is_empty() {
        let fault = Fault::invalid("run.secrets: explaining a run uses no secret values");
        return Err(fault
            .hint("leave the values out; `create.secrets` names the secrets of the run")
            .phase(Phase::Admission));
    }
    let (from_record, request, cwd) = match within {
        RunTarget::Fresh(ask) => in_fresh(node, caller, ask, run)?,
        RunTarget::Sandbox(word) => in_sandbox(node, caller, word, run)?,
    };
    if depth == Depth::Rules {
        return Ok(from_record);
    }
    let mut whole = plan(node, caller, &request, cwd)?;
    let more: Vec<String> = whole.notes.iter().filter(|note| !from_record.notes.contains(note)).cloned().collect();
    whole.notes = from_record.notes.into_iter().chain(more).collect();
    Ok(whole)
}

/// Returns the rules of a run in a sandbox that would be made for it, the request to plan, and the directory from which it is made.
fn in_fresh(
    node: &Node,
    caller: &Caller,
    ask: &create::CreateSandbox,
    run: &RunCreate,
) -> Result<(RunExplained, RunRequest, PathBuf), Fault> {
    bounds::check_command(&run.limits, caller)?;
    if ask.dir.is_none() || ask.template.is_some() {
        let fault = Fault::invalid("create: only a run over a directory can be explained before there is a sandbox");
        let hint = "give `create.dir` and no template; or make the sandbox, and name it as `sandbox`";
        return Err(fault.hint(hint).phase(Phase::Admission));
    }
    let (sandbox, notes) = create::outline(node, ask, caller)?;
    let fresh = NewWorkspace { dir: Some(sandbox.base.clone()), driver: ask.driver, ..NewWorkspace::default() };
    let request = RunRequest {
        place: if ask.read_only { ChangeDestination::ReadOnly } else { ChangeDestination::Fresh(fresh) },
        policies: ask.policies.clone(),
        limits: sandbox.limits.tightest(run.limits),
        cpus: sandbox.cpus,
        secrets: sandbox.secrets.clone(),
        report_reads: sandbox.report_reads,
        ..command(run)?
    };
    run.watch().check(&WatchOptions::as_made(&sandbox), "the sandbox of this run")?;
    let cwd = sandbox.base.clone();
    Ok((from_record(sandbox, notes, caller)?, request, cwd))
}

/// Returns the rules of a run in an existing sandbox, the request to plan, and its directory.
fn in_sandbox(
    node: &Node,
    caller: &Caller,
    word: &str,
    run: &RunCreate,
) -> Result<(RunExplained, RunRequest, PathBuf), Fault> {
    bounds::check_command(&run.limits, caller)?;
    let state = node.states.lend(caller)?;
    let found: Kept<Sandbox> = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
    record::check_active(&found)?;
    run.watch().check(&WatchOptions::as_made(&found.record), &found.id)?;
    let request = RunRequest {
        place: ChangeDestination::Sandbox(found.id),
        limits: run.limits,
        secrets: found.record.secrets.clone(),
        ..command(run)?
    };
    let cwd = run.cwd.as_ref().and_then(path).unwrap_or("/".into());
    Ok((from_record(found.record, Vec::new(), caller)?, request, cwd))
}

/// Returns the record of a sandbox as an explanation of its commands.
fn from_record(sandbox: Sandbox, notes: Vec<String>, caller: &Caller) -> Result<RunExplained, Fault> {
    let document = policy::parse(&sandbox.policy.to_string(), policy::Format::Json, "policy").map_err(Fault::from)?;
    let secrets = Secrets::find(&secrets::needs(&document.secrets), &sandbox.secrets, caller)?.explain();
    Ok(RunExplained { policy: sandbox.policy, notes, secrets, setup: None })
}

/// Plans the run as the keeper of its sandbox would, and explains the plan.
fn plan(node: &Node, caller: &Caller, request: &RunRequest, cwd: PathBuf) -> Result<RunExplained, Fault> {
    let caller = as_of_keeper(caller, cwd);
    let ground = enclosure::begin_explained(PLANNING);
    let plan = match &request.place {
        ChangeDestination::Sandbox(id) => sandboxed::plan_as_recorded(node, request, id, &caller, ground),
        _ => {
            let effective = policies::effective(&request.policies, &[], &caller)?;
            RunPlan::under(request, &caller, effective, ground)
        }
    };
    let explained = plan.map_err(|refused: RunRefused| *refused.fault)?.explained()?;
    match explained.setup.iter().flatten().map(String::len).sum::<usize>() {
        len if len > LONGEST => {
            let message = format!("the steps of this run are {len} bytes; at most {LONGEST} can be explained");
            Err(Fault::invalid(message).hint("explain it with fewer rules").phase(Phase::Planning))
        }
        _ => Ok(explained),
    }
}

/// Returns a request that has a document's command.
fn command(run: &RunCreate) -> Result<RunRequest, Fault> {
    let unread = || Fault::internal("a command with a word that cannot be read");
    let command: Option<Vec<OsString>> = run.command.iter().map(text).collect();
    let env: Option<Vec<OsString>> = run.assignments().iter().map(WireText::text).collect();
    Ok(RunRequest {
        command: command.ok_or_else(unread)?,
        shell: run.shell.as_ref().and_then(text),
        env: env.ok_or_else(unread)?,
        workdir: run.workdir.as_ref().and_then(path),
        events: true,
        stdio: Stdio { input: run.input, terminal: run.terminal.is_some(), ..Stdio::default() },
        ..RunRequest::default()
    })
}

/// Returns the caller with the environment of a keeper that it starts: the caller's variables, and its user name from them.
fn as_of_keeper(caller: &Caller, cwd: PathBuf) -> Caller {
    let user = caller.var("USER").or_else(|| caller.var("LOGNAME")).and_then(|user| user.to_str());
    Caller { cwd, user: user.unwrap_or("user").to_owned(), ..caller.clone() }
}

fn text(word: &PathText) -> Option<OsString> {
    word.bytes().map(OsString::from_vec)
}

fn path(word: &PathText) -> Option<PathBuf> {
    text(word).map(PathBuf::from)
}
