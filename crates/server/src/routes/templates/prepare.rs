//! A template that is prepared by a command: in a sandbox that is made for it, named when the command has ended well, and removed in
//! any case. It goes on when its client is gone; a daemon that dies leaves a sandbox that expires.

use crate::ask::Key;
use crate::refuse::Refusal;
use crate::running::Listener;
use crate::{Shared, Who};
use client::wire::TemplatePrepare;
use node::create::{Ask, make};
use node::files::Target;
use node::idempotency::Once;
use node::keeper::begin::{self, RunCreate};
use node::keeper::runs::Found;
use node::policies::Source;
use node::quota::More;
use node::remove;
use node::sandbox::Which;
use node::templates::{self, Templated};
use node::{Caller, Node};
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Outcome, Phase};

/// How long a preparation may take whose limits say nothing, and how long the sandbox of one is kept that nobody came back for.
const LONGEST: Duration = Duration::from_secs(3600);
/// How often it is looked whether that time is over.
const LOOK: Duration = Duration::from_secs(60);
/// Of what the command said last, so much is told when it failed.
const TOLD: usize = 2000;

/// Runs the command in a sandbox of its own and makes the template of it.
pub async fn carry_out(
    prepare: TemplatePrepare,
    shared: &Shared,
    who: &Who,
    name: String,
    once: Option<Once>,
) -> Result<Templated, Refusal> {
    let known = (name.clone(), once.clone());
    let earlier =
        move |node: &Node, caller: &Caller| templates::earlier_template(node, caller, &known.0, known.1.as_ref());
    if let Some(known) = shared.verb(who, earlier).await? {
        return Ok(known);
    }
    let command = prepare.command.clone();
    let ask = create_ask(prepare)?;
    let more = vec![More::Sandboxes(1), More::Snapshots(1), More::Templates(1)];
    let id = shared.making(who, more, &Key::default(), move |node, caller| make(node, caller, &ask)).await?.id;
    let work = prepared(shared.clone(), who.clone(), id, command, name, once);
    let broken = |e| Refusal::from(Fault::internal(format!("the preparation ended without an answer: {e}")));
    shared.tasks().spawn_to_end(work).await.map_err(broken)?
}

fn create_ask(prepare: TemplatePrepare) -> Result<Ask, Fault> {
    if let Some(dir) = prepare.dir.as_ref().filter(|dir| !dir.is_absolute()) {
        let fault = Fault::invalid(format!("dir {:?}: not a whole path", dir.display())).phase(Phase::Admission);
        return Err(fault.hint("give a path that begins with a slash, or none for an empty directory"));
    }
    Ok(Ask {
        own_base: prepare.dir.is_none(),
        dir: prepare.dir,
        policies: prepare.policies.into_iter().map(Source::from).collect(),
        limits: prepare.limits,
        cpus: prepare.cpus,
        ttl_ms: Some(LONGEST.as_millis() as u64),
        ..Ask::default()
    })
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
            let verb = move |node: &Node, caller: &Caller| {
                templates::create_once(node, caller, &name, Some(&sandbox), Some(&command), once.as_ref())
            };
            // Counted once more: others may have made some while the command ran.
            shared.making(&who, vec![More::Snapshots(1), More::Templates(1)], &Key::default(), verb).await
        }
        Ok(outcome) => Err(failed(&name, &outcome).into()),
        Err(refusal) => Err(refusal),
    };
    let which = Which { word: Some(id), version: None };
    // What is left expires.
    let _ = shared.verb(&who, move |node, caller| remove::remove(node, caller, &which, Some(Duration::ZERO))).await;
    made
}

/// Runs the command to its end; what it said is in the outcome.
async fn run(shared: &Shared, who: &Who, id: &str, command: String) -> Result<Outcome, Refusal> {
    let turn = shared.admission().run(&who.tenant).await?;
    let (word, ask) =
        (id.to_owned(), RunCreate { shell: Some(Target::of(command.as_bytes())), ..RunCreate::default() });
    let begun = shared.enlivening(who, id, move |node, caller| begin::begin(node, caller, &ask, &word, None)).await?;
    Listener::new(shared, who, begun.found.id.clone()).await?.hold(turn);
    let mut listener = Listener::new(shared, who, begun.found.id).await?;
    let end = Instant::now() + LONGEST;
    loop {
        if let Some(outcome) = listener.told(LOOK).await? {
            return Ok(outcome);
        }
        if Instant::now() > end || shared.is_ending() {
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
