//! Tokens: made, listed, revoked. The operator's alone.

use crate::answer::{Answer, Document};
use crate::ask::{Cursor, Json, Key, Paging, Path, Query};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use client::wire::TokenList;
use node::tokens::{self, Ask, Minted, Revoked};
use serde::Deserialize;
use terms::{ErrorKind, Fault, Phase};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(revoke))
}

/// Tokens are of the whole daemon, so that no tenant can make one for another.
fn operator(who: &Who) -> Result<(), Refusal> {
    who.needs(Scope::Operator)?;
    if who.is_host_operator() {
        return Ok(());
    }
    let fault =
        Fault::new(ErrorKind::PolicyDenied, "tokens belong to the daemon's own operator").phase(Phase::Admission);
    Err(fault.hint("ask the operator of this daemon").into())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// At most so many [default: 100, at most 1000].
    limit: Option<u32>,
    /// Behind the part that `next` of an earlier answer ended.
    after: Option<String>,
}

/// List all tokens, without their secrets; the newest first.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", params(ListQuery),
    responses((status = 200, body = Document<TokenList>)))]
async fn list(
    State(shared): State<Shared>,
    who: Who,
    Query(query): Query<ListQuery>,
) -> Result<Answer<TokenList>, Refusal> {
    operator(&who)?;
    let all = shared.verb(&who, tokens::list).await?;
    let page = Paging { limit: query.limit, after: query.after };
    let (tokens, next) = page.cut(all, Cursor::Timed("tok_"), |token| Cursor::timed(token.created_ms, &token.id))?;
    Ok(Answer::ok(TokenList { tokens, next }))
}

/// Make a token. Its secret is in the answer and nowhere else.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = Ask,
    responses((status = 201, body = Document<Minted>)))]
async fn create(
    State(shared): State<Shared>,
    who: Who,
    key: Key,
    Json(ask): Json<Ask>,
) -> Result<Answer<Minted>, Refusal> {
    operator(&who)?;
    if key.0.is_some() {
        let fault = Fault::invalid("Idempotency-Key: a token's secret is told once and cannot be told again");
        return Err(fault
            .hint("leave the key out; revoke a token whose answer was lost")
            .phase(Phase::Admission)
            .into());
    }
    let minted = shared.verb(&who, move |node, caller| tokens::create(node, caller, &ask)).await?;
    Ok(Answer::made(minted, false))
}

/// Revoke a token; streams that were opened with it close at once.
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "tokens", params(("id" = String, Path)),
    responses((status = 200, body = Document<Revoked>)))]
async fn revoke(State(shared): State<Shared>, who: Who, Path(id): Path<String>) -> Result<Answer<Revoked>, Refusal> {
    operator(&who)?;
    let revoked = shared.verb(&who, move |node, caller| tokens::revoke(node, caller, &id)).await?;
    shared.credentials().look().await;
    Ok(Answer::ok(revoked))
}
