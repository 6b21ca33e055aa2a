//! What a run would do: told, and not done.

use crate::answer::{Answer, Document};
use crate::ask::{Json, Key};
use crate::refuse::Refusal;
use crate::routes::sandboxes::Make;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use node::keeper::begin;
use node::run::explained::{Depth, Explained, Within, explain};
use serde::{Deserialize, Serialize};
use terms::{Fault, Phase};
use utoipa::ToSchema;

/// A command, and the sandbox that it would run in: one that there is, or one that would be made for it.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RunExplain)]
pub struct Wish {
    /// One that there is. Nothing may run in it meanwhile.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sandbox: Option<String>,
    /// One that would be made over a directory; instead of `sandbox`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub create: Option<Make>,
    pub run: begin::Ask,
}

impl Wish {
    fn divide(self) -> Result<(Within, begin::Ask), Fault> {
        let within = match (self.sandbox, self.create) {
            (Some(word), None) => Within::Sandbox(word),
            (None, Some(make)) => Within::Fresh(Box::new(make.ask(Key(None))?)),
            _ => {
                let fault = Fault::invalid("sandbox and create: both are given, or neither");
                return Err(fault.hint("name a sandbox, or say what would be made").phase(Phase::Admission));
            }
        };
        Ok((within, self.run))
    }
}

/// Tell what a run would do, and do nothing of it: its policy, where its secrets would come from, and the steps of its setup. Steps name
/// places of the host, and are told to the operator of the daemon alone; others get the rest.
#[utoipa::path(post, path = "/v1/runs/explain", tag = "runs", request_body = Wish,
    responses((status = 200, body = Document<Explained>),
        (status = 404, description = "There is no such thing.", body = Fault)))]
pub async fn explain_run(
    State(shared): State<Shared>,
    who: Who,
    Json(wish): Json<Wish>,
) -> Result<Answer<Explained>, Refusal> {
    who.needs(Scope::Agent)?;
    let (within, run) = wish.divide()?;
    let depth = if who.is_host_operator() { Depth::Steps } else { Depth::Rules };
    Ok(Answer::ok(shared.verb(&who, move |caller| explain(&within, &run, depth, caller)).await?))
}
