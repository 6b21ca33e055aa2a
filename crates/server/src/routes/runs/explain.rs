//! Explains a run without starting it.

use crate::answer::Answer;
use crate::extract::{IdempotencyKey, Json};
use crate::refuse::Refusal;
use crate::routes::sandboxes::create_request;
use crate::{Principal, Shared};
use api::{Document, RunCreate, RunExplain, RunExplained, Scope};
use axum::extract::State;
use node::run::explained::{Depth, RunTarget, explain};
use terms::{Fault, Phase};

/// Splits a request into the sandbox and the command; exactly one of `sandbox` and `create` must be given.
fn split(request: RunExplain) -> Result<(RunTarget, RunCreate), Fault> {
    let within = match (request.sandbox, request.create) {
        (Some(word), None) => RunTarget::Sandbox(word),
        (None, Some(make)) => RunTarget::Fresh(Box::new(create_request(make, IdempotencyKey(None))?)),
        _ => {
            let fault = Fault::invalid("sandbox and create: both are given, or neither");
            return Err(fault.hint("give the sandbox, or the one to be created").phase(Phase::Admission));
        }
    };
    Ok((within, request.run))
}

/// Explains what a run would do, without starting it: its policy, the sources of its secrets, and the steps of its setup. The steps contain
/// paths of the host and are shown to the operator of the daemon only.
#[utoipa::path(post, path = "/v1/runs/explain", tag = "runs", request_body = RunExplain,
    responses((status = 200, body = Document<RunExplained>),
        (status = 404, description = "Not found.", body = Fault)))]
pub async fn explain_run(
    State(shared): State<Shared>,
    principal: Principal,
    Json(request): Json<RunExplain>,
) -> Result<Answer<RunExplained>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let (within, run) = split(request)?;
    let depth = if principal.is_host_operator() { Depth::Steps } else { Depth::Rules };
    shared.answer(&principal, move |node, caller| explain(node, caller, &within, &run, depth)).await
}
