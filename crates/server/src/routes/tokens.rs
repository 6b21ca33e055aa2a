//! Tokens: creates, lists and revokes them. For operators only.

use crate::answer::Answer;
use crate::extract::{Cursor, IdempotencyKey, Json, Paging, Path, Query};
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::{Document, Scope, TokenCreate, TokenCreated, TokenList, TokenRevoked};
use axum::extract::State;
use node::tokens;
use serde::Deserialize;
use terms::{ErrorKind, Fault, Phase};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(revoke))
}

/// Refuses clients other than the daemon's own operator: tokens belong to the whole daemon, and no tenant may create one for another.
fn require_operator(principal: &Principal) -> Result<(), Refusal> {
    principal.require_scope(Scope::Operator)?;
    if principal.is_host_operator() {
        return Ok(());
    }
    let fault =
        Fault::new(ErrorKind::PolicyDenied, "only the daemon's own operator may manage tokens").phase(Phase::Admission);
    Err(fault.hint("ask the operator of this daemon").into())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListTokensQuery {
    /// Maximum number of items [default: 100, at most 1000].
    limit: Option<u32>,
    /// `next` of the previous page.
    after: Option<String>,
}

/// Lists all tokens, without their secrets; the newest first.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", params(ListTokensQuery),
    responses((status = 200, body = Document<TokenList>)))]
async fn list(
    State(shared): State<Shared>,
    principal: Principal,
    Query(query): Query<ListTokensQuery>,
) -> Result<Answer<TokenList>, Refusal> {
    require_operator(&principal)?;
    let all = shared.verb(&principal, tokens::list).await?;
    let page = Paging { limit: query.limit, after: query.after };
    let (tokens, next) = page.cut(all, Cursor::Timed("tok_"), |token| Cursor::timed(token.created_ms, &token.id))?;
    Ok(Answer::ok(TokenList { tokens, next }))
}

/// Creates a token. Its secret is in the response and cannot be read again.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = TokenCreate,
    responses((status = 201, body = Document<TokenCreated>)))]
async fn create(
    State(shared): State<Shared>,
    principal: Principal,
    key: IdempotencyKey,
    Json(request): Json<TokenCreate>,
) -> Result<Answer<TokenCreated>, Refusal> {
    require_operator(&principal)?;
    if key.0.is_some() {
        let fault =
            Fault::invalid("Idempotency-Key: not supported here, because a token's secret is returned only once");
        return Err(fault
            .hint("leave the key out; revoke a token whose response was lost")
            .phase(Phase::Admission)
            .into());
    }
    let minted = shared.verb(&principal, move |node, caller| tokens::create(node, caller, &request)).await?;
    Ok(Answer::made(minted, false))
}

/// Revokes a token; streams that were opened with it close at once.
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "tokens", params(("id" = String, Path)),
    responses((status = 200, body = Document<TokenRevoked>)))]
async fn revoke(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Answer<TokenRevoked>, Refusal> {
    require_operator(&principal)?;
    let revoked = shared.verb(&principal, move |node, caller| tokens::revoke(node, caller, &id)).await?;
    shared.credentials().close_revoked().await;
    Ok(Answer::ok(revoked))
}
