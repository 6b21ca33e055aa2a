//! Prepares a template by a command: in a sandbox created for it, which becomes the template when the command succeeds, and is removed in
//! any case. The preparation continues when its client leaves; a daemon that dies leaves a sandbox that expires.

use crate::extract::IdempotencyKey;
use crate::refuse::Refusal;
use crate::run_listener::Listener;
use crate::{Principal, Shared};
use api::{PathText, RunCreate, TemplateCreated, TemplatePrepare};
use node::create::{CreateSandbox, make};
use node::idempotency::KeyedRequest;
use node::keeper::begin;
use node::keeper::runs::RunRef;
use node::policies::RequestedPolicy;
use node::quota::AddedUsage;
use node::remove;
use node::sandbox::Which;
use node::templates;
use node::{Caller, Node};
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Outcome, Phase};

/// Default time limit of a preparation, and lifetime of its sandbox if the daemon dies.
const LONGEST: Duration = Duration::from_secs(3600);
/// Interval of checks for the time limit and for the shutdown.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Bytes of the command's last output in the fault of a failed preparation.
const MAX_QUOTED: usize = 2000;

/// Runs the command in a sandbox of its own and makes the template of it.
pub async fn prepare_template(
    prepare: TemplatePrepare,
    shared: &Shared,
    principal: &Principal,
    name: String,
    once: Option<KeyedRequest>,
) -> Result<TemplateCreated, Refusal> {
    let known = (name.clone(), once.clone());
    let earlier =
        move |node: &Node, caller: &Caller| templates::earlier_template(node, caller, &known.0, known.1.as_ref());
    if let Some(known) = shared.verb(principal, earlier).await? {
        return Ok(known);
    }
    let command = prepare.command.clone();
    let request = create_request(prepare)?;
    let more = vec![AddedUsage::Sandboxes(1), AddedUsage::Snapshots(1), AddedUsage::Templates(1)];
    let id = shared
        .create_within_quota(principal, more, &IdempotencyKey::default(), move |node, caller| {
            make(node, caller, &request)
        })
        .await?
        .id;
    let work = prepared(shared.clone(), principal.clone(), id, command, name, once);
    let broken = |e| Refusal::from(Fault::internal(format!("the preparation ended without a result: {e}")));
    shared.tasks().spawn_to_end(work).await.map_err(broken)?
}

fn create_request(prepare: TemplatePrepare) -> Result<CreateSandbox, Fault> {
    if let Some(dir) = prepare.dir.as_ref().filter(|dir| !dir.is_absolute()) {
        let fault = Fault::invalid(format!("dir {:?}: not an absolute path", dir.display())).phase(Phase::Admission);
        return Err(fault.hint("give a path that begins with a slash, or none for an empty directory"));
    }
    Ok(CreateSandbox {
        own_base: prepare.dir.is_none(),
        dir: prepare.dir,
        policies: prepare.policies.into_iter().map(RequestedPolicy::from).collect(),
        limits: prepare.limits,
        cpus: prepare.cpus,
        ttl_ms: Some(LONGEST.as_millis() as u64),
        ..CreateSandbox::default()
    })
}

async fn prepared(
    shared: Shared,
    principal: Principal,
    id: String,
    command: String,
    name: String,
    once: Option<KeyedRequest>,
) -> Result<TemplateCreated, Refusal> {
    let made = match run(&shared, &principal, &id, command.clone()).await {
        Ok(outcome) if outcome.success => {
            let sandbox = id.clone();
            let verb = move |node: &Node, caller: &Caller| {
                templates::create_once(node, caller, &name, Some(&sandbox), Some(&command), once.as_ref())
            };
            // Checked again: other requests may have used the quota while the command ran.
            shared
                .create_within_quota(
                    &principal,
                    vec![AddedUsage::Snapshots(1), AddedUsage::Templates(1)],
                    &IdempotencyKey::default(),
                    verb,
                )
                .await
        }
        Ok(outcome) => Err(failed(&name, &outcome).into()),
        Err(refusal) => Err(refusal),
    };
    let which = Which { word: Some(id), version: None };
    // On failure the sandbox expires.
    let _ =
        shared.verb(&principal, move |node, caller| remove::remove(node, caller, &which, Some(Duration::ZERO))).await;
    made
}

/// Runs the command to its end; the outcome has its output.
async fn run(shared: &Shared, principal: &Principal, id: &str, command: String) -> Result<Outcome, Refusal> {
    let permit = shared.admission().run(&principal.tenant).await?;
    let (word, request) =
        (id.to_owned(), RunCreate { shell: Some(PathText::of(command.as_bytes())), ..RunCreate::default() });
    let begun =
        shared.make_live(principal, id, move |node, caller| begin::begin(node, caller, &request, &word, None)).await?;
    Listener::new(shared, principal, begun.found.id.clone()).await?.hold_permit(permit);
    let mut listener = Listener::new(shared, principal, begun.found.id).await?;
    let end = Instant::now() + LONGEST;
    loop {
        if let Some(outcome) = listener.outcome_with_output(CHECK_INTERVAL).await? {
            return Ok(outcome);
        }
        if Instant::now() > end || shared.is_ending() {
            listener.with(RunRef::kill).await?;
            let fault = Fault::new(
                ErrorKind::Unavailable,
                "the preparation took longer than an hour, or the daemon is shutting down",
            );
            return Err(fault
                .hint("try again, with limits.max_wall_ms if the command may hang")
                .phase(Phase::Execution)
                .into());
        }
    }
}

fn failed(name: &str, outcome: &Outcome) -> Fault {
    let text = |bytes: Option<Vec<u8>>| String::from_utf8_lossy(&bytes.unwrap_or_default()).trim_end().to_owned();
    let said = [text(outcome.stdout_bytes()), text(outcome.stderr_bytes())].join("\n");
    let from = said.char_indices().rev().nth(MAX_QUOTED).map_or(0, |(at, _)| at);
    let message = format!(
        "the template {name:?} was not created: its command ended with status {}: {}",
        outcome.status(),
        said[from..].trim()
    );
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Execution);
    fault.hint("fix the command, its policy or its limits, and try again")
}
