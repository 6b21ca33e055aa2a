//! Code in contexts: interpreters of a sandbox that keep their state. A call speaks to its worker over a channel of its own; the keeper
//! starts and ends workers and knows which call has which context.

mod call;

pub use call::{CodeCall, error_text};

use crate::keeper::wire::{OpenContext, WireText, words_of};
use api::{
    CodeCheck, CodeChecked, CodeRequest, ContextCreate, ContextInterrupt, ContextInterrupted, ContextRemoved,
    ContextStatus,
};
use runtime::Node;
use runtime::keeper::client::{ATTEMPTS, Keeper, sent_away};
use state::Caller;
use state::sandbox::{self, Sandbox};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use store::Kept;
use terms::{ErrorKind, Fault, Phase};

/// Time that a call waits for another one in its context, unless told otherwise.
const QUEUED: Duration = Duration::from_secs(30);
/// Time that an interpreter has to answer an interruption, unless told otherwise.
const GRACE: Duration = Duration::from_millis(100);
const MOST_GRACE_MS: u64 = 60_000;
/// Interval at which an interrupted context is looked at.
const PAUSE: Duration = Duration::from_millis(2);

/// Lists the contexts of a sandbox. One that is not live has none.
pub fn contexts(node: &Node, caller: &Caller, word: &str) -> Result<Vec<ContextStatus>, Fault> {
    match live(node, caller, word)? {
        Some(mut keeper) => keeper.contexts(),
        None => Ok(Vec::new()),
    }
}

/// Makes a context, and starts its interpreter. The sandbox becomes live for it.
pub fn create_context(
    node: &Node,
    caller: &Caller,
    word: &str,
    request: &ContextCreate,
) -> Result<ContextStatus, Fault> {
    let ask = OpenContext {
        name: request.name.clone(),
        language: Some(request.language),
        workdir: request.workdir.as_ref().map(WireText::spelled),
        ..open_context(caller, &request.env)?
    };
    with_keeper(node, caller, word, |mut keeper| keeper.create_context(&ask))
}

/// Interrupts the call that is under way in a context. An interpreter that does not answer in time is ended; the next call starts it anew.
pub fn interrupt(
    node: &Node,
    caller: &Caller,
    word: &str,
    name: &str,
    request: &ContextInterrupt,
) -> Result<ContextInterrupted, Fault> {
    if let Some(grace) = request.grace_ms.filter(|grace| *grace > MOST_GRACE_MS) {
        let fault = Fault::invalid(format!("grace_ms: {grace} is more than {MOST_GRACE_MS}")).phase(Phase::Admission);
        return Err(fault.hint("give at most a minute, or interrupt again"));
    }
    let mut keeper = live(node, caller, word)?.ok_or_else(|| no_context(word, name))?;
    let until = Instant::now() + request.grace_ms.map_or(GRACE, Duration::from_millis);
    let sandbox = keeper.sandbox.clone();
    let answer = |interrupted, context_lost| {
        let (sandbox, name) = (sandbox.clone(), name.to_owned());
        ContextInterrupted { sandbox, name, interrupted, context_lost }
    };
    let Some(call) = keeper.interrupt_context(name)? else { return Ok(answer(false, false)) };
    loop {
        let under_way = keeper.context_call(name)? == Some(call);
        if !under_way || Instant::now() >= until {
            let lost = under_way && keeper.restart_context(name, Some(call))?;
            return Ok(answer(true, lost));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Ends the interpreter of a context; the next call starts it anew.
pub fn restart(node: &Node, caller: &Caller, word: &str, name: &str) -> Result<ContextStatus, Fault> {
    let mut keeper = live(node, caller, word)?.ok_or_else(|| no_context(word, name))?;
    keeper.restart_context(name, None)?;
    keeper.contexts()?.into_iter().find(|status| status.name == name).ok_or_else(|| no_context(word, name))
}

/// Ends a context.
pub fn remove_context(node: &Node, caller: &Caller, word: &str, name: &str) -> Result<ContextRemoved, Fault> {
    live(node, caller, word)?.ok_or_else(|| no_context(word, name))?.remove_context(name)
}

/// Asks an interpreter whether this is a whole input, or whether lines follow.
pub fn check(node: &Node, caller: &Caller, word: &str, name: &str, request: &CodeCheck) -> Result<CodeChecked, Fault> {
    call::check(node, caller, word, name, request)
}

/// Returns the keeper of a live sandbox; none where it is not live.
fn live(node: &Node, caller: &Caller, word: &str) -> Result<Option<Keeper>, Fault> {
    let (state, found) = named(node, word, caller)?;
    match node.keepers.take(&state, &found.id) {
        Some(keeper) => Ok(Some(keeper)),
        None => Keeper::heard(node, &state, &found.id),
    }
}

/// Returns the keeper of a live sandbox that has this context.
fn with_context(node: &Node, caller: &Caller, word: &str, name: &str) -> Result<Keeper, Fault> {
    let mut keeper = live(node, caller, word)?.ok_or_else(|| no_context(word, name))?;
    keeper.check_contexts()?;
    match keeper.contexts()?.iter().any(|status| status.name == name) {
        true => Ok(keeper),
        false => Err(no_context(word, name)),
    }
}

fn named(node: &Node, word: &str, caller: &Caller) -> Result<(PathBuf, Kept<Sandbox>), Fault> {
    let state = node.states.lend(caller)?;
    let found = state.store.read(|tx| sandbox::find(tx, Some(word).filter(|word| !word.is_empty()), caller))?;
    Ok((state.path.clone(), found))
}

/// Asks the keeper of a sandbox, which is started where none lives, until one takes the request: `None` means that it ended meanwhile.
fn with_keeper<T>(
    node: &Node,
    caller: &Caller,
    word: &str,
    mut ask: impl FnMut(Keeper) -> Result<Option<T>, Fault>,
) -> Result<T, Fault> {
    let (state, found) = named(node, word, caller)?;
    for _ in 0..ATTEMPTS {
        let keeper = match node.keepers.take(&state, &found.id) {
            Some(keeper) => keeper,
            None => Keeper::ensure(node, caller, &state, &found.id)?,
        };
        keeper.check_contexts()?;
        if let Some(done) = ask(keeper)? {
            return Ok(done);
        }
    }
    Err(sent_away(&found.id))
}

/// Begins the message that opens a context for a caller.
fn open_context(caller: &Caller, env: &BTreeMap<String, String>) -> Result<OpenContext, Fault> {
    if let Some(name) = env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
        let fault = Fault::invalid(format!("env: {name:?} is not a name of a variable")).phase(Phase::Admission);
        return Err(fault.hint("a name has no `=` and no zero byte, and is not empty"));
    }
    Ok(OpenContext {
        env: env.iter().map(|(name, value)| WireText::of(format!("{name}={value}"))).collect(),
        around: words_of(caller),
        cwd: Some(WireText::of(&caller.cwd)),
        actor: caller.user.clone(),
        ..OpenContext::default()
    })
}

fn opening(caller: &Caller, request: &CodeRequest) -> Result<OpenContext, Fault> {
    Ok(OpenContext {
        name: request.context.clone(),
        language: request.language,
        workdir: request.workdir.as_ref().map(WireText::spelled),
        queue_ms: request.queue_ms.unwrap_or(QUEUED.as_millis() as u64),
        ..open_context(caller, &request.env)?
    })
}

fn no_context(sandbox: &str, name: &str) -> Fault {
    let fault = Fault::new(ErrorKind::NotFound, format!("no context {name:?} in {sandbox}")).subject(sandbox);
    fault.phase(Phase::Admission).hint("`cofferdam context ls` lists those that there are; a call makes one")
}
