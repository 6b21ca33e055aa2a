//! A run in a sandbox that exists: under the policy and the limits that it was made with. What is asked for can only take
//! away from them.

use super::phases::Timer;
use super::place::{Spot, real};
use super::{Ask, Ready, Refused, Under, arrange, layer, record};
use crate::Caller;
use crate::keeper::lost;
use crate::policies::{self, Flag};
use crate::sandbox::{self, Sandbox};
use crate::state::State;
use crate::warm;
use enclosure::Groundwork;
use policy::{Action, Document, Format};
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::Kept;
use terms::{Fault, Phase, least};

pub(super) fn prepare(ask: &Ask, word: &str, caller: &Caller, ground: Groundwork) -> Result<Ready, Refused> {
    let (ask, under, _) = take_up(ask, word, caller, Stopped::Refused)?;
    arrange(&ask, caller, under, ground)
}

/// The same for whoever brings nothing of their own: secrets come from where its record says.
pub(super) fn prepare_as_recorded(ask: &Ask, id: &str, caller: &Caller, ground: Groundwork) -> Result<Ready, Refused> {
    let (mut ask, under, kept) = take_up(ask, id, caller, Stopped::Refused)?;
    ask.secrets = kept.record.secrets;
    arrange(&ask, caller, under, ground)
}

/// Whether a sandbox that is stopped is taken up. Whoever does that starts no command in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    Refused,
    Taken,
}

/// The sandbox, held, and what a run in it is made under; its limits are in what is asked for then.
pub(super) fn take_up(
    ask: &Ask,
    word: &str,
    caller: &Caller,
    stopped: Stopped,
) -> Result<(Ask, Under, Kept<Sandbox>), Fault> {
    let timer = Timer::begin(Phase::Admission, caller.var("TRACEPARENT"));
    check_narrows(ask)?;
    let state = State::open(caller)?;
    let found = state.store.read(|tx| match (stopped, warm::as_kept(tx, word)?) {
        (Stopped::Taken, Some(spare)) => Ok(spare),
        _ => sandbox::find(tx, named(word), caller),
    })?;
    let check = |kept: &Kept<Sandbox>| if stopped == Stopped::Refused { record::check_active(kept) } else { Ok(()) };
    check(&found)?;
    let id = found.id.clone();
    let (held, kept) = layer::take(&state, found, caller)?.ok_or_else(|| record::busy(&state, &id))?;
    check(&kept)?;
    // Whoever had it and lost it is past.
    lost::settle_open(&state, &kept.id)?;
    lost::forget(&state.path, &kept.id);
    drop(state);
    let mut documents = vec![document(&kept.id, &kept.record)?];
    documents.extend(policies::of_flags(&ask.flags, caller)?);
    let effective = policy::effective(&documents).map_err(Fault::from)?;
    let mut ask = ask.clone();
    ask.limits = kept.record.limits.tightest(ask.limits);
    ask.cpus = least(kept.record.cpus, ask.cpus);
    ask.report_reads |= kept.record.report_reads;
    ask.ask_timeout = ask.ask_timeout.or(kept.record.ask_timeout_ms.map(Duration::from_millis));
    let cwd = working_directory(ask.workdir.as_deref(), &kept.record.base, &caller.cwd)?;
    let spot = Spot { dir: kept.record.base.clone(), cwd, layered: true, private: false };
    Ok((ask, Under { effective, spot, held: Some(held), warnings: Vec::new(), left_out: Vec::new(), timer }, kept))
}

/// Without a word the sandbox of the current directory is meant.
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

/// A call must not give what the sandbox was not given.
fn check_narrows(ask: &Ask) -> Result<(), Fault> {
    let widens = |flag: &Flag| match flag {
        Flag::Read(action, _) | Flag::Write(action, _) | Flag::Exec(action, _) | Flag::Net(action, _) => {
            *action != Action::Deny
        }
    };
    let what = match (ask.policies.is_empty(), ask.flags.iter().any(widens)) {
        (true, false) => return Ok(()),
        (false, _) => "a policy",
        (true, true) => "a rule that allows something",
    };
    let message = format!("{what} is given with a sandbox, which has its own; here rules can only deny");
    let hint = "leave it out, or make a sandbox that has it: `cofferdam create --policy …`";
    Err(Fault::invalid(message).hint(hint).phase(Phase::Admission))
}

/// Where the caller is, if that is in the sandbox's directory; else at its top.
pub(super) fn working_directory(workdir: Option<&Path>, base: &Path, cwd: &Path) -> Result<PathBuf, Fault> {
    match workdir {
        // It may be in the workspace alone; the command's first step tells if it is nowhere.
        Some(to) if base.join(to).starts_with(base) && !to.components().any(|c| c.as_os_str() == "..") => {
            Ok(base.join(to))
        }
        Some(to) => real(&base.join(to), "working directory"),
        None if cwd.starts_with(base) => Ok(cwd.to_path_buf()),
        None => Ok(base.to_path_buf()),
    }
}
