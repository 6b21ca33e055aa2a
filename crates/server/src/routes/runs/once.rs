//! One request for a command in a sandbox of its own: creates the sandbox, runs the command to its end, and removes the sandbox.

use super::run_in;
use crate::answer::Answer;
use crate::extract::{IdempotencyKey, Json};
use crate::refuse::Refusal;
use crate::routes::sandboxes::{create_request, create_sandbox};
use crate::{Principal, Shared};
use api::{Document, OnTimeout, RunCreate, RunOnce, RunOnceEnded, Scope, WaitParam};
use axum::extract::State;
use node::remove::remove;
use node::sandbox::Which;
use node::{Caller, Node};
use std::time::Duration;
use terms::{ErrorKind, Fault, Limits, Phase, Retry};

/// Time that the start and the end of a sandbox may take beside the command.
const MARGIN: Duration = Duration::from_secs(60);

/// Runs a command in a sandbox that is made for it, waits for its end, and removes the sandbox with its changes unless `keep` is set. A
/// client that disconnects cancels the command. Under an `Idempotency-Key` the command runs at most once; where the sandbox is removed, a
/// later request under that key is a conflict.
#[utoipa::path(post, path = "/v1/run", tag = "runs", request_body = RunOnce,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeated request starts no second run.")),
    responses((status = 200, description = "The command ended; `outcome` says how.", body = Document<RunOnceEnded>)))]
pub(super) async fn once(
    State(shared): State<Shared>,
    principal: Principal,
    key: IdempotencyKey,
    Json(request): Json<RunOnce>,
) -> Result<Answer<RunOnceEnded>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let keep = request.keep;
    let (create, run) = parts(request)?;
    // Refused before a sandbox is made in vain.
    node::keeper::begin::check(&run)?;
    let made = create_sandbox(&shared, &principal, create_request(create, key.clone())?, &key).await?;
    let sandbox = (!keep).then(|| made.id.clone());
    let mut removal =
        Removal { shared: shared.clone(), principal: principal.clone(), sandbox, is_first: !made.existed };
    let wait = WaitParam(Duration::from_millis(RunOnce::MAX_WALL_MS) + MARGIN);
    let shown = run_in(&shared, &principal, made.id.clone(), run, Some(wait), key).await;
    let removed = removal.now().await;
    let shown = shown?;
    // A request that an earlier one under the same key made the sandbox for finds it removed, or removes what a crash left.
    if !made.existed {
        removed?;
    }
    let Some(outcome) = shown.outcome else { return Err(not_ended(&shown.run).into()) };
    let status = outcome.status();
    Ok(Answer::ok(RunOnceEnded { run: shown.run, sandbox: made.id, kept: keep, status, outcome }))
}

/// Splits a request into the sandbox to create and the command to run in it. The limits hold for both; of one command the keeper holds
/// only those of time and output.
fn parts(request: RunOnce) -> Result<(api::SandboxCreate, RunCreate), Fault> {
    let RunOnce { command, shell, stdin, env, workdir, mut limits, secrets, mut sandbox, keep } = request;
    let wall_ms = limits.max_wall_ms.unwrap_or(RunOnce::MAX_WALL_MS);
    if wall_ms > RunOnce::MAX_WALL_MS {
        let message = format!(
            "limits.max_wall_ms: {wall_ms} is more than {}, the longest time of one request",
            RunOnce::MAX_WALL_MS
        );
        let hint = "give less; or create a sandbox, start the command there, and follow it";
        return Err(Fault::invalid(message).hint(hint).phase(Phase::Admission));
    }
    limits.max_wall_ms = Some(wall_ms);
    let own = Limits {
        max_wall_ms: limits.max_wall_ms,
        max_output_bytes: limits.max_output_bytes,
        on_output_limit: limits.on_output_limit,
        ..Limits::default()
    };
    if !keep {
        // A daemon that is killed before it removes the sandbox leaves that to the next one.
        sandbox.timeout_ms = Some(RunOnce::MAX_WALL_MS + 2 * MARGIN.as_millis() as u64);
        sandbox.on_timeout = OnTimeout::Remove;
    }
    sandbox.limits =
        sandbox.limits.tightest(Limits { max_wall_ms: None, max_output_bytes: None, on_output_limit: None, ..limits });
    let run = RunCreate { command, shell, stdin, env, workdir, limits: own, secrets, ..RunCreate::default() };
    Ok((sandbox, run))
}

fn not_ended(run: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("the daemon is shutting down; {run} has no outcome yet"));
    fault.subject(run).retry(Retry::Later).hint("send the request again").phase(Phase::Execution)
}

/// Removes a sandbox with what runs in it: at the end of the request, or when its client is gone.
struct Removal {
    shared: Shared,
    principal: Principal,
    sandbox: Option<String>,
    /// No earlier request under the same key may still wait for the command.
    is_first: bool,
}

impl Removal {
    async fn now(&mut self) -> Result<(), Refusal> {
        match self.start() {
            Some(removing) => removing.await.map_err(|_| Fault::internal("the sandbox was not removed"))?,
            None => Ok(()),
        }
    }

    /// Starts the removal, which continues when the client leaves and when the daemon shuts down.
    fn start(&mut self) -> Option<tokio::task::JoinHandle<Result<(), Refusal>>> {
        let word = self.sandbox.take()?;
        let (shared, principal) = (self.shared.clone(), self.principal.clone());
        Some(self.shared.tasks().spawn_to_end(async move {
            let which = Which { word: Some(word), version: None };
            let remove = move |node: &Node, caller: &Caller| remove(node, caller, &which, Some(Duration::ZERO));
            shared.verb(&principal, remove).await.map(drop)
        }))
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        if self.is_first {
            drop(self.start());
        }
    }
}
