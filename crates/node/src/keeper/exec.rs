//! Commands in live sandboxes for callers on this machine: a run's request becomes the message that has the keeper start it.

use api::Lifecycle;
use runtime::Node;
use runtime::keeper::client::Keeper;
use runtime::keeper::wire::{Start, WireText, trace_of, words_of};
use runtime::run::{Learn, RunRequest};
use state::Caller;
use state::sandbox::{self, Sandbox};
use std::path::{Path, PathBuf};
use store::Kept;
use terms::{ErrorKind, Fault, Phase};

/// Returns the state directory, the id of the sandbox and its keeper, if one lives. A sandbox that is to be live, or is
/// suspended, gets a keeper.
pub fn live(node: &Node, caller: &Caller, word: &str) -> Result<(PathBuf, String, Option<Keeper>), Fault> {
    let (state, found) = named(node, word, caller)?;
    let Sandbox { stays, suspended, state: lifecycle, .. } = found.record;
    let wanted = lifecycle == Lifecycle::Active && (stays || suspended.is_some());
    let keeper = match wanted {
        true => Some(Keeper::ensure(node, caller, &state, &found.id)?),
        // A keeper that is about to end does not answer; one that has answered stays for a while.
        false => Keeper::heard(node, &state, &found.id)?,
    };
    Ok((state, found.id, keeper))
}

fn named(node: &Node, word: &str, caller: &Caller) -> Result<(PathBuf, Kept<Sandbox>), Fault> {
    let state = node.states.open(caller)?;
    let found = state.store.read(|tx| sandbox::find(tx, Some(word).filter(|word| !word.is_empty()), caller))?;
    Ok((state.path.clone(), found))
}

/// Returns the message that has a keeper start a command; a conflict if the request needs an enclosure of its own.
pub fn start_message(request: &RunRequest, caller: &Caller, sandbox: &str) -> Result<Start, Fault> {
    check(request, sandbox)?;
    let words = |words: &[std::ffi::OsString]| words.iter().map(WireText::of).collect();
    Ok(Start {
        run: None,
        command: words(&request.command),
        shell: request.shell.as_ref().map(WireText::of),
        env: words(&request.env),
        around: words_of(caller),
        cwd: Some(WireText::of(&caller.cwd)),
        workdir: request.workdir.as_ref().map(WireText::of),
        limits: request.limits,
        input: request.stdio.input,
        has_stdin: false,
        stdin: Vec::new(),
        terminal: request.stdio.terminal.then(|| enclosure::terminal::size(rustix::stdio::stdin())),
        actor: caller.user.clone(),
        service: None,
        request: None,
        secrets: Default::default(),
        waits: false,
        watch: request.watch(),
        trace_parent: trace_of(caller),
    })
}

/// Returns the option of the request that needs an enclosure of its own, if any.
pub fn unsupported_option(request: &RunRequest) -> Option<&'static str> {
    let given = [
        (!request.flags.is_empty(), "a rule"),
        (!request.policies.is_empty(), "a policy"),
        (request.cpus.is_some(), "--cpus"),
        (!request.publish.is_empty(), "--publish"),
        (!request.secrets.is_empty(), "--secret"),
        (request.events, "--events"),
        (request.learn != Learn::Nothing, "learning"),
    ];
    given.into_iter().find(|(given, _)| *given).map(|(_, what)| what)
}

fn check(request: &RunRequest, sandbox: &str) -> Result<(), Fault> {
    match unsupported_option(request) {
        None => Ok(()),
        Some(what) => {
            let message = format!(
                "{sandbox} is live: its enclosure exists already, so {what} cannot be given for a single command"
            );
            let hint = format!("leave it out, or `cofferdam stop {sandbox}` first and run the command by itself");
            Err(Fault::new(ErrorKind::Conflict, message).hint(hint).subject(sandbox).phase(Phase::Admission))
        }
    }
}

/// Starts a command in the background and returns its id. The sandbox becomes live if it is not.
pub fn detached(node: &Node, caller: &Caller, request: &RunRequest, word: &str) -> Result<String, Fault> {
    let (state, found) = named(node, word, caller)?;
    let start = Start { input: false, ..start_message(request, caller, &found.id)? };
    Ok(Keeper::ensure(node, caller, &state, &found.id)?.start(start)?.run)
}

/// Returns the directory in which the output of a run is kept.
pub fn output_of(state: &Path, sandbox: &str, run: &str) -> PathBuf {
    runtime::keeper::place::KeeperDir::of(state, sandbox).run(run)
}
