//! Snapshots of all sandboxes, also of those that are gone, and what is made of a snapshot or a sandbox by one word.

use super::{LOOKERS, Part, SORT, makes, once, takes};
use crate::answer::Answer;
use crate::ask::{Cursor, Json, Key, Path, Query};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who, spooled};
use axum::extract::State;
use axum::response::Response;
use client::wire::{SandboxFork, SnapshotList};
use http::{HeaderName, HeaderValue};
use node::portable;
use node::snapshots::{self, Forked};
use node::{Caller, Node};
use terms::{Fault, PROTOCOL_VERSION};

/// Snapshots of all sandboxes, by id.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots", operation_id = "list_all", params(Part),
    responses((status = 200, body = SnapshotList)))]
pub async fn list_all(
    State(shared): State<Shared>,
    who: Who,
    Query(part): Query<Part>,
) -> Result<Answer<SnapshotList>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let mut all = shared.verb(&who, snapshots::list_all).await?;
    all.sort_by(|a, b| a.id.cmp(&b.id));
    let (snapshots, next) = part.paging().cut(all, Cursor::Id("snp_"), |s| s.id.clone())?;
    Ok(Answer::whole(&SnapshotList { protocol_version: PROTOCOL_VERSION, snapshots, next }))
}

/// Makes new sandboxes that begin at a snapshot, or where a sandbox is.
#[utoipa::path(post, path = "/v1/snapshots/{id}/fork", tag = "snapshots", operation_id = "fork_any",
    params(("id" = String, Path, description = "A snapshot or a sandbox, by id, its beginning, or name"), ("Idempotency-Key" = Option<String>, Header)),
    request_body = SandboxFork, responses((status = 201, body = Forked),
        (status = 200, description = "An earlier request under the same key made it.", body = Forked)))]
pub async fn fork_any(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    key: Key,
    Json(wish): Json<SandboxFork>,
) -> Result<Answer<Forked>, Refusal> {
    who.needs(Scope::Agent)?;
    if wish.snapshot.is_some() {
        let fault = Fault::invalid("the body: snapshot: it stands in the path").phase(terms::Phase::Admission);
        return Err(fault.hint("leave it out").into());
    }
    let once = once(&shared, &who, key.clone(), "fork_any", &(&id, &wish))?;
    let more = makes(&wish, takes(&shared, &who, &id).await?);
    let verb = move |node: &Node, caller: &Caller| {
        snapshots::fork_once(node, caller, Some(&id), wish.name.as_deref(), wish.count, once.as_ref())
    };
    let forked = shared.making(&who, more, &key, verb).await?;
    Ok(Answer::whole(&forked).created_unless(forked.existed))
}

/// The changes of a snapshot, or of a sandbox without a live run, as one file. The header `cofferdam-exported` tells what is in it.
#[utoipa::path(get, path = "/v1/snapshots/{id}/export", tag = "snapshots", operation_id = "export_any",
    params(("id" = String, Path, description = "A snapshot or a sandbox, by id, its beginning, or name")),
    responses((status = 200, content_type = "application/zstd", body = Vec<u8>),
        (status = 409, description = "It is not as the request supposes.", body = Fault)))]
pub async fn export_any(State(shared): State<Shared>, who: Who, Path(id): Path<String>) -> Result<Response, Refusal> {
    who.needs_any(&LOOKERS)?;
    let verb =
        move |node: &Node, caller: &Caller, out: &mut dyn std::io::Write| portable::export(node, caller, &id, out);
    let (mut answer, written) = spooled::answer(&shared, &who, SORT, verb).await?;
    let told = serde_json::to_string(&written).map_err(|e| Fault::internal(e.to_string()))?;
    let told = HeaderValue::from_str(&told).map_err(|e| Fault::internal(e.to_string()))?;
    answer.headers_mut().insert(HeaderName::from_static("cofferdam-exported"), told);
    Ok(answer)
}
