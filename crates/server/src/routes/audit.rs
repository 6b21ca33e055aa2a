//! The journal, entry by entry, and whether it is as it was written.

use crate::answer::Answer;
use crate::ask::Query;
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use node::audit::{self, Page, Step, Verified, Wanted};
use node::{Caller, Node};
use serde::{Deserialize, Serialize};
use terms::{Fault, PROTOCOL_VERSION, Phase};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Entries of an answer, where nobody says how many.
const USUAL: u32 = 100;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(read_journal)).routes(routes!(verify_journal))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wish {
    /// Most entries in the answer [100].
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
    /// Only entries after this number; `next` of the page before.
    after: Option<u64>,
    /// The last ones instead of the first; goes with `sandbox` alone.
    last: Option<bool>,
    /// Only of this sandbox, or of whatever else has the id.
    sandbox: Option<String>,
    verb: Option<String>,
    actor: Option<String>,
    step: Option<Step>,
}

/// Entries of the journal, oldest first.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", operation_id = "list", params(Wish),
    responses((status = 200, body = Page),
        (status = 404, description = "There is no such thing.", body = Fault)))]
async fn read_journal(
    State(shared): State<Shared>,
    who: Who,
    Query(wish): Query<Wish>,
) -> Result<Answer<Page>, Refusal> {
    who.needs(Scope::Reviewer)?;
    let Wish { limit, after, last, sandbox: subject, verb, actor, step } = wish;
    let most = limit.unwrap_or(USUAL);
    if last == Some(true) {
        if after.is_some() || verb.is_some() || actor.is_some() || step.is_some() {
            let fault = Fault::invalid("the query: last goes with sandbox and limit alone").phase(Phase::Admission);
            return Err(fault.hint("leave last out, or the others").into());
        }
        let verb = move |node: &Node, caller: &Caller| audit::last(node, caller, subject.as_deref(), most);
        return shared.answer_whole(&who, verb).await;
    }
    let wanted = Wanted { subject, verb, actor, step };
    let verb = move |node: &Node, caller: &Caller| audit::page(node, caller, after.unwrap_or(0), wanted, most);
    shared.answer_whole(&who, verb).await
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = JournalChecked)]
pub struct Checked {
    pub protocol_version: u32,
    /// Every entry is as it was written, and none is missing as far as is remembered outside.
    pub sound: bool,
    #[serde(flatten)]
    pub verified: Verified,
}

/// Goes along the whole chain.
#[utoipa::path(get, path = "/v1/audit/verify", tag = "audit", operation_id = "verify",
    responses((status = 200, body = Checked)))]
async fn verify_journal(State(shared): State<Shared>, who: Who) -> Result<Answer<Checked>, Refusal> {
    who.needs(Scope::Reviewer)?;
    let verified = shared.verb(&who, audit::verify).await?;
    Ok(Answer::whole(&Checked { protocol_version: PROTOCOL_VERSION, sound: verified.broken.is_none(), verified }))
}
