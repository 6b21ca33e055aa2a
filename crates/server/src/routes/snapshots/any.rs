//! Snapshots of all sandboxes, also of removed ones; forks and exports by one word that names a snapshot or a sandbox.

use super::{CONTENT_TYPE, PageQuery, READ_SCOPES, additions, needs_snapshot, once};
use crate::answer::Answer;
use crate::extract::{Cursor, IdempotencyKey, Json, Path, Query};
use crate::refuse::Refusal;
use crate::{Principal, Shared, spooled};
use api::{SandboxFork, SandboxForked, Scope, SnapshotList};
use axum::extract::State;
use axum::response::Response;
use http::{HeaderName, HeaderValue};
use node::portable;
use node::snapshots;
use node::{Caller, Node};
use terms::{Fault, PROTOCOL_VERSION};

/// Lists the snapshots of all sandboxes, by id.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots", operation_id = "list_all", params(PageQuery),
    responses((status = 200, body = SnapshotList)))]
pub async fn list_all(
    State(shared): State<Shared>,
    principal: Principal,
    Query(page): Query<PageQuery>,
) -> Result<Answer<SnapshotList>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let mut all = shared.verb(&principal, snapshots::list_all).await?;
    all.sort_by(|a, b| a.id.cmp(&b.id));
    let (snapshots, next) = page.paging().cut(all, Cursor::Id("snp_"), |s| s.id.clone())?;
    Ok(Answer::whole(&SnapshotList { protocol_version: PROTOCOL_VERSION, snapshots, next }))
}

/// Forks a snapshot or a sandbox: creates new sandboxes with its content.
#[utoipa::path(post, path = "/v1/snapshots/{id}/fork", tag = "snapshots", operation_id = "fork_any",
    params(("id" = String, Path, description = "A snapshot or a sandbox: its id, a unique prefix of it, or its name"), ("Idempotency-Key" = Option<String>, Header)),
    request_body = SandboxFork, responses((status = 201, body = SandboxForked),
        (status = 200, description = "An earlier request under the same key created it.", body = SandboxForked)))]
pub async fn fork_any(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    key: IdempotencyKey,
    Json(request): Json<SandboxFork>,
) -> Result<Answer<SandboxForked>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    if request.snapshot.is_some() {
        let fault = Fault::invalid("the body: snapshot: the path names it already").phase(terms::Phase::Admission);
        return Err(fault.hint("leave it out").into());
    }
    let once = once(&shared, &principal, key.clone(), "fork_any", &(&id, &request))?;
    let more = additions(&request, needs_snapshot(&shared, &principal, &id).await?);
    let verb = move |node: &Node, caller: &Caller| {
        snapshots::fork_once(node, caller, Some(&id), request.name.as_deref(), request.count, once.as_ref())
    };
    let forked = shared.create_within_quota(&principal, more, &key, verb).await?;
    Ok(Answer::whole(&forked).created_unless(forked.existed))
}

/// Exports the changes of a snapshot, or of a sandbox without a running command, as one file. The header `cofferdam-exported` describes it.
#[utoipa::path(get, path = "/v1/snapshots/{id}/export", tag = "snapshots", operation_id = "export_any",
    params(("id" = String, Path, description = "A snapshot or a sandbox: its id, a unique prefix of it, or its name")),
    responses((status = 200, content_type = "application/zstd", body = Vec<u8>),
        (status = 409, description = "A conflict with the current state.", body = Fault)))]
pub async fn export_any(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let verb =
        move |node: &Node, caller: &Caller, out: &mut dyn std::io::Write| portable::export(node, caller, &id, out);
    let (mut response, written) = spooled::respond(&shared, &principal, CONTENT_TYPE, verb).await?;
    let told = serde_json::to_string(&written).map_err(|e| Fault::internal(e.to_string()))?;
    let told = HeaderValue::from_str(&told).map_err(|e| Fault::internal(e.to_string()))?;
    response.headers_mut().insert(HeaderName::from_static("cofferdam-exported"), told);
    Ok(response)
}
