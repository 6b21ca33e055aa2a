//! What a run would do, told and not done: its policy, what a person should know of it, where its secrets would come from, and the
//! steps of its setup. Nothing is started, no secret is looked up and nothing is kept.
//!
//! For a caller from afar the rules are found out here, as for a sandbox that is made; the steps by ourselves once more (`errand`).

use super::Ready;
use super::errand::{self, Errand};
use super::record;
use crate::Caller;
use crate::bounds;
use crate::keeper::begin;
use crate::keeper::watch::Watch;
use crate::lifecycle::create;
use crate::sandbox::{self, Sandbox};
use crate::secrets::Secrets;
use crate::state::State;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use store::Kept;
use terms::{Fault, Phase};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = RunExplained)]
pub struct Explained {
    /// The whole policy that the command would run under.
    #[schema(value_type = Object)]
    pub policy: serde_json::Value,
    pub notes: Vec<String>,
    /// Where each secret would come from.
    pub secrets: Vec<String>,
    /// The steps of the setup, in order. They name places of the host: none where whoever asks does not have it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub setup: Option<Vec<String>>,
}

impl Ready {
    pub fn explained(&self) -> Result<Explained, Fault> {
        Ok(Explained {
            policy: serde_json::from_str(&self.policy.to_json()).map_err(|e| Fault::internal(e.to_string()))?,
            notes: self.warnings.iter().chain(&self.notes).cloned().collect(),
            secrets: self.secrets(),
            setup: Some(self.prepared.explain()),
        })
    }
}

/// How much is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// What whoever makes a sandbox and looks at it is told.
    Rules,
    /// And every step, for who has the host.
    Steps,
}

/// Where the command would run.
#[derive(Clone, Debug)]
pub enum Within {
    /// In a sandbox that would be made for it.
    Fresh(Box<create::Ask>),
    /// In one that there is.
    Sandbox(String),
}

/// What a run that somebody asks for from afar would do.
pub fn explain(within: &Within, run: &begin::Ask, depth: Depth, caller: &Caller) -> Result<Explained, Fault> {
    run.check()?;
    if !run.secrets.is_empty() {
        let fault = Fault::invalid("run.secrets: no value is looked at to explain a run");
        return Err(fault
            .hint("leave the values out; `create.secrets` says that they would be brought")
            .phase(Phase::Admission));
    }
    let (told, errand) = match within {
        Within::Fresh(ask) => in_fresh(ask, run, caller)?,
        Within::Sandbox(word) => in_sandbox(word, run, caller)?,
    };
    if depth == Depth::Rules {
        return Ok(told);
    }
    let mut whole = errand::send(&errand, caller)?;
    let more: Vec<String> = whole.notes.iter().filter(|note| !told.notes.contains(note)).cloned().collect();
    whole.notes = told.notes.into_iter().chain(more).collect();
    Ok(whole)
}

fn in_fresh(ask: &create::Ask, run: &begin::Ask, caller: &Caller) -> Result<(Explained, Errand), Fault> {
    bounds::check_command(&run.limits, caller)?;
    if ask.dir.is_none() || ask.template.is_some() {
        let fault = Fault::invalid("create: only a run over a directory can be explained before there is a sandbox");
        let hint = "give `create.dir` and no template; or make the sandbox, and name it as `sandbox`";
        return Err(fault.hint(hint).phase(Phase::Admission));
    }
    let (sandbox, notes) = create::outline(ask, caller)?;
    let errand = Errand {
        sandbox: None,
        dir: sandbox.base.clone(),
        read_only: ask.read_only,
        policies: ask.policies.clone(),
        limits: sandbox.limits.tightest(run.limits),
        cpus: sandbox.cpus,
        driver: ask.driver,
        secrets: sandbox.secrets.clone(),
        report_reads: sandbox.report_reads,
        run: run.clone(),
    };
    run.watch().check(&Watch::as_made(&sandbox), "the sandbox of this run")?;
    Ok((told(sandbox, notes, caller)?, errand))
}

fn in_sandbox(word: &str, run: &begin::Ask, caller: &Caller) -> Result<(Explained, Errand), Fault> {
    bounds::check_command(&run.limits, caller)?;
    let state = State::lend(caller)?;
    let found: Kept<Sandbox> = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
    record::check_active(&found)?;
    run.watch().check(&Watch::as_made(&found.record), &found.id)?;
    let errand = Errand {
        sandbox: Some(found.id),
        dir: found.record.base.clone(),
        limits: run.limits,
        secrets: found.record.secrets.clone(),
        run: run.clone(),
        ..Errand::default()
    };
    Ok((told(found.record, Vec::new(), caller)?, errand))
}

/// What the record of a sandbox says of its commands.
fn told(sandbox: Sandbox, notes: Vec<String>, caller: &Caller) -> Result<Explained, Fault> {
    let document = policy::parse(&sandbox.policy.to_string(), policy::Format::Json, "policy").map_err(Fault::from)?;
    let named: BTreeSet<&str> = document.secrets.iter().map(|secret| secret.name.as_str()).collect();
    let secrets = Secrets::find(&named, &sandbox.secrets, caller)?.explain();
    Ok(Explained { policy: sandbox.policy, notes, secrets, setup: None })
}
