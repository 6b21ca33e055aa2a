//! A command in a live sandbox: from what `exec` asks to what its keeper is asked.

use super::client::Keeper;
use super::watch::Watch;
use super::wire::{Start, Word, words_of};
use crate::Caller;
use crate::run::{Ask, Learn};
use crate::sandbox::{self, Lifecycle, Sandbox};
use crate::state::State;
use std::path::{Path, PathBuf};
use store::Kept;
use terms::{ErrorKind, Fault, Phase};

/// The sandbox that is meant and its keeper, if one lives. One that is to be live, or is suspended, gets one.
pub fn live(word: &str, caller: &Caller) -> Result<(PathBuf, String, Option<Keeper>), Fault> {
    let (state, found) = named(word, caller)?;
    let Sandbox { stays, suspended, state: lifecycle, .. } = found.record;
    let wanted = lifecycle == Lifecycle::Active && (stays || suspended.is_some());
    let keeper = match wanted {
        true => Some(Keeper::ensure(&state, &found.id, caller)?),
        // One that is about to leave does not answer; one that has answered stays for a while.
        false => Keeper::heard(&state, &found.id)?,
    };
    Ok((state, found.id, keeper))
}

fn named(word: &str, caller: &Caller) -> Result<(PathBuf, Kept<Sandbox>), Fault> {
    let state = State::open(caller)?;
    let found = state.store.read(|tx| sandbox::find(tx, Some(word).filter(|word| !word.is_empty()), caller))?;
    Ok((state.path.clone(), found))
}

/// What the keeper is asked; a conflict where something is asked that one command of many cannot have.
pub fn start_of(ask: &Ask, caller: &Caller, sandbox: &str) -> Result<Start, Fault> {
    check(ask, sandbox)?;
    let words = |words: &[std::ffi::OsString]| words.iter().map(Word::of).collect();
    Ok(Start {
        run: None,
        command: words(&ask.command),
        shell: ask.shell.as_ref().map(Word::of),
        env: words(&ask.env),
        around: words_of(caller),
        cwd: Some(Word::of(&caller.cwd)),
        workdir: ask.workdir.as_ref().map(Word::of),
        limits: ask.limits,
        input: ask.stdio.input,
        terminal: ask.stdio.terminal.then(|| enclosure::terminal::size(rustix::stdio::stdin())),
        actor: caller.user.clone(),
        service: None,
        request: None,
        secrets: Default::default(),
        waits: false,
        watch: Watch::of(ask),
    })
}

/// What one command of many cannot have, if that was asked for.
pub fn too_much(ask: &Ask) -> Option<&'static str> {
    let given = [
        (!ask.flags.is_empty(), "a rule"),
        (!ask.policies.is_empty(), "a policy"),
        (ask.cpus.is_some(), "--cpus"),
        (!ask.publish.is_empty(), "--publish"),
        (!ask.secrets.is_empty(), "--secret"),
        (ask.events, "--events"),
        (ask.learn != Learn::Nothing, "learning"),
    ];
    given.into_iter().find(|(given, _)| *given).map(|(_, what)| what)
}

fn check(ask: &Ask, sandbox: &str) -> Result<(), Fault> {
    match too_much(ask) {
        None => Ok(()),
        Some(what) => {
            let message =
                format!("{sandbox} is live: its walls stand already, and {what} cannot be given to one command");
            let hint = format!("leave it out, or `cofferdam stop {sandbox}` first and run the command by itself");
            Err(Fault::new(ErrorKind::Conflict, message).hint(hint).subject(sandbox).phase(Phase::Admission))
        }
    }
}

/// Starts a command that nobody waits for; its id. The sandbox becomes live where it is not.
pub fn detached(ask: &Ask, word: &str, caller: &Caller) -> Result<String, Fault> {
    let (state, found) = named(word, caller)?;
    let start = Start { input: false, ..start_of(ask, caller, &found.id)? };
    Ok(Keeper::ensure(&state, &found.id, caller)?.start(start)?.run)
}

/// Where the output of a run is kept.
pub fn output_of(state: &Path, sandbox: &str, run: &str) -> PathBuf {
    super::place::Place::of(state, sandbox).run(run)
}
