//! What a run would do: told, and not done.

use crate::answer::{Answer, Document};
use crate::ask::{Json, Key};
use crate::refuse::Refusal;
use crate::routes::sandboxes::create_ask;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use client::wire::RunExplain;
use node::keeper::begin::RunCreate;
use node::run::explained::{Depth, Explained, Within, explain};
use terms::{Fault, Phase};

/// Splits a request into the sandbox and the command; exactly one of `sandbox` and `create` must be given.
fn divide(wish: RunExplain) -> Result<(Within, RunCreate), Fault> {
    let within = match (wish.sandbox, wish.create) {
        (Some(word), None) => Within::Sandbox(word),
        (None, Some(make)) => Within::Fresh(Box::new(create_ask(make, Key(None))?)),
        _ => {
            let fault = Fault::invalid("sandbox and create: both are given, or neither");
            return Err(fault.hint("name a sandbox, or say what would be made").phase(Phase::Admission));
        }
    };
    Ok((within, wish.run))
}

/// Tell what a run would do, and do nothing of it: its policy, where its secrets would come from, and the steps of its setup. Steps name
/// places of the host, and are told to the operator of the daemon alone; others get the rest.
#[utoipa::path(post, path = "/v1/runs/explain", tag = "runs", request_body = RunExplain,
    responses((status = 200, body = Document<Explained>),
        (status = 404, description = "There is no such thing.", body = Fault)))]
pub async fn explain_run(
    State(shared): State<Shared>,
    who: Who,
    Json(wish): Json<RunExplain>,
) -> Result<Answer<Explained>, Refusal> {
    who.needs(Scope::Agent)?;
    let (within, run) = divide(wish)?;
    let depth = if who.is_host_operator() { Depth::Steps } else { Depth::Rules };
    shared.answer(&who, move |node, caller| explain(node, caller, &within, &run, depth)).await
}
