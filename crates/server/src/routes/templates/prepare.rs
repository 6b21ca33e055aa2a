//! A template that is prepared by a command: in a sandbox that is made for it, named when the command has ended well, and removed in
//! any case. It goes on when its client is gone; a daemon that dies leaves a sandbox that expires.

use super::PolicyOf;
use crate::ask::Key;
use crate::refuse::Refusal;
use crate::running::Listener;
use crate::{Shared, Who};
use node::Caller;
use node::files::Target;
use node::keeper::begin;
use node::keeper::runs::Found;
use node::lifecycle::create::{Ask, make};
use node::lifecycle::keys::Once;
use node::lifecycle::remove;
use node::lifecycle::stop::Which;
use node::policies::Source;
use node::quota::More;
use node::snapshots::{self, Templated};
use node::state::State as Place;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Limits, Outcome, Phase};
use utoipa::ToSchema;

/// How long a preparation may take whose limits say nothing, and how long the sandbox of one is kept that nobody came back for.
const LONGEST: Duration = Duration::from_secs(3600);
/// How often it is looked whether that time is over.
const LOOK: Duration = Duration::from_secs(60);
/// Of what the command said last, so much is told when it failed.
const TOLD: usize = 2000;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TemplatePrepare)]
pub struct Prepare {
    /// Text for a shell; it must succeed, within an hour unless `limits.max_wall_ms` says less.
    command: String,
    /// The directory to prepare for, by its whole path; an empty one of its own where none is given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>)]
    dir: Option<PathBuf>,
    /// Of the command, and of sandboxes that begin from it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    policies: Vec<PolicyOf>,
    #[serde(default)]
    limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 0.01, maximum = 4096)]
    cpus: Option<f64>,
}

impl Prepare {
    pub async fn carry_out(
        self,
        shared: &Shared,
        who: &Who,
        name: String,
        once: Option<Once>,
    ) -> Result<Templated, Refusal> {
        let known = (name.clone(), once.clone());
        let earlier =
            move |caller: &Caller| snapshots::earlier_template(&Place::open(caller)?, &known.0, known.1.as_ref());
        if let Some(known) = shared.verb(who, earlier).await? {
            return Ok(known);
        }
        let command = self.command.clone();
        let ask = self.ask()?;
        let more = vec![More::Sandboxes(1), More::Snapshots(1), More::Templates(1)];
        let id = shared.making(who, more, &Key::default(), move |caller| make(&ask, caller)).await?.id;
        let work = prepared(shared.clone(), who.clone(), id, command, name, once);
        let broken = |e| Refusal::from(Fault::internal(format!("the preparation ended without an answer: {e}")));
        tokio::spawn(work).await.map_err(broken)?
    }

    fn ask(self) -> Result<Ask, Fault> {
        if let Some(dir) = self.dir.as_ref().filter(|dir| !dir.is_absolute()) {
            let fault = Fault::invalid(format!("dir {:?}: not a whole path", dir.display())).phase(Phase::Admission);
            return Err(fault.hint("give a path that begins with a slash, or none for an empty directory"));
        }
        Ok(Ask {
            own_base: self.dir.is_none(),
            dir: self.dir,
            policies: self.policies.into_iter().map(Source::from).collect(),
            limits: self.limits,
            cpus: self.cpus,
            ttl_ms: Some(LONGEST.as_millis() as u64),
            ..Ask::default()
        })
    }
}

async fn prepared(
    shared: Shared,
    who: Who,
    id: String,
    command: String,
    name: String,
    once: Option<Once>,
) -> Result<Templated, Refusal> {
    let made = match run(&shared, &who, &id, command.clone()).await {
        Ok(outcome) if outcome.success => {
            let sandbox = id.clone();
            let verb = move |caller: &Caller| {
                let state = Place::open(caller)?;
                snapshots::create_once(&state, caller, &name, Some(&sandbox), Some(&command), once.as_ref())
            };
            // Counted once more: others may have made some while the command ran.
            shared.making(&who, vec![More::Snapshots(1), More::Templates(1)], &Key::default(), verb).await
        }
        Ok(outcome) => Err(failed(&name, &outcome).into()),
        Err(refusal) => Err(refusal),
    };
    let which = Which { word: Some(id), version: None };
    // What is left expires.
    let _ = shared.verb(&who, move |caller| remove::remove(&which, Some(Duration::ZERO), caller)).await;
    made
}

/// Runs the command to its end; what it said is in the outcome.
async fn run(shared: &Shared, who: &Who, id: &str, command: String) -> Result<Outcome, Refusal> {
    let turn = shared.admission().run(&who.tenant).await?;
    let (word, ask) =
        (id.to_owned(), begin::Ask { shell: Some(Target::of(command.as_bytes())), ..begin::Ask::default() });
    let begun = shared.enlivening(who, id, move |caller| begin::begin(&ask, &word, None, caller)).await?;
    Listener::new(shared, who, begun.found.id.clone()).await?.hold(turn);
    let mut listener = Listener::new(shared, who, begun.found.id).await?;
    let (end, ending) = (Instant::now() + LONGEST, shared.ending());
    loop {
        if let Some(outcome) = listener.told(LOOK).await? {
            return Ok(outcome);
        }
        if Instant::now() > end || *ending.borrow() {
            listener.with(Found::kill).await?;
            let fault = Fault::new(ErrorKind::Unavailable, "the preparation took too long, or the daemon ends");
            return Err(fault
                .hint("ask again, with limits.max_wall_ms where it may hang")
                .phase(Phase::Execution)
                .into());
        }
    }
}

fn failed(name: &str, outcome: &Outcome) -> Fault {
    let text = |bytes: Option<Vec<u8>>| String::from_utf8_lossy(&bytes.unwrap_or_default()).trim_end().to_owned();
    let said = [text(outcome.stdout_bytes()), text(outcome.stderr_bytes())].join("\n");
    let from = said.char_indices().rev().nth(TOLD).map_or(0, |(at, _)| at);
    let message = format!(
        "the template {name:?} was not made: its command ended with status {}: {}",
        outcome.status(),
        said[from..].trim()
    );
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Execution);
    fault.hint("mend the command, its rules or its limits, and ask again")
}
