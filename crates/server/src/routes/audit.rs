//! The audit journal: its entries, and the verification of its hash chain.

use crate::answer::Answer;
use crate::extract::Query;
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::{JournalChecked, JournalPage, JournalStep, Scope};
use axum::extract::State;
use node::audit::{self, JournalFilter};
use node::{Caller, Node};
use serde::Deserialize;
use terms::{Fault, PROTOCOL_VERSION, Phase};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Default number of entries in a response.
const DEFAULT_LIMIT: u32 = 100;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(read_journal)).routes(routes!(verify_journal))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JournalQuery {
    /// Maximum number of entries [default: 100].
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
    /// Only entries after this number; `next` of the previous page.
    after: Option<u64>,
    /// The last entries instead of the first; can be combined with `sandbox` and `limit` only.
    last: Option<bool>,
    /// Only entries of the sandbox, or other object, with this id.
    sandbox: Option<String>,
    verb: Option<String>,
    actor: Option<String>,
    step: Option<JournalStep>,
}

/// Lists journal entries, the oldest first.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", operation_id = "list", params(JournalQuery),
    responses((status = 200, body = JournalPage),
        (status = 404, description = "Not found.", body = Fault)))]
async fn read_journal(
    State(shared): State<Shared>,
    principal: Principal,
    Query(query): Query<JournalQuery>,
) -> Result<Answer<JournalPage>, Refusal> {
    principal.require_scope(Scope::Reviewer)?;
    let JournalQuery { limit, after, last, sandbox: subject, verb, actor, step } = query;
    let most = limit.unwrap_or(DEFAULT_LIMIT);
    if last == Some(true) {
        if after.is_some() || verb.is_some() || actor.is_some() || step.is_some() {
            let fault =
                Fault::invalid("the query: last can be combined with sandbox and limit only").phase(Phase::Admission);
            return Err(fault.hint("leave last out, or the others").into());
        }
        let verb = move |node: &Node, caller: &Caller| audit::last(node, caller, subject.as_deref(), most);
        return shared.answer_whole(&principal, verb).await;
    }
    let wanted = JournalFilter { subject, verb, actor, step };
    let verb = move |node: &Node, caller: &Caller| audit::page(node, caller, after.unwrap_or(0), wanted, most);
    shared.answer_whole(&principal, verb).await
}

/// Verifies the journal's whole hash chain.
#[utoipa::path(get, path = "/v1/audit/verify", tag = "audit", operation_id = "verify",
    responses((status = 200, body = JournalChecked)))]
async fn verify_journal(State(shared): State<Shared>, principal: Principal) -> Result<Answer<JournalChecked>, Refusal> {
    principal.require_scope(Scope::Reviewer)?;
    let verified = shared.verb(&principal, audit::verify).await?;
    Ok(Answer::whole(&JournalChecked {
        protocol_version: PROTOCOL_VERSION,
        sound: verified.broken.is_none(),
        verified,
    }))
}
