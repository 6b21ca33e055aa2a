//! Snapshots of all sandboxes, also of those that are gone, and what is made of a snapshot or a sandbox by one word.

use super::{Fork, LOOKERS, Part, SORT, Snapshots, once, takes};
use crate::answer::made;
use crate::ask::{Cursor, Json, Key, Path, Query};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who, spooled};
use axum::extract::State;
use axum::response::Response;
use http::{HeaderName, HeaderValue, StatusCode};
use node::Caller;
use node::snapshots::{self, Forked};
use node::state::State as Place;
use terms::{Fault, PROTOCOL_VERSION};

/// Snapshots of all sandboxes, by id.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots", operation_id = "list_all", params(Part),
    responses((status = 200, body = Snapshots)))]
pub async fn list_all(
    State(shared): State<Shared>,
    who: Who,
    Query(part): Query<Part>,
) -> Result<axum::Json<Snapshots>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let mut all = shared.verb(&who, |caller| snapshots::list_all(&Place::open(caller)?, caller)).await?;
    all.sort_by(|a, b| a.id.cmp(&b.id));
    let (snapshots, next) = part.paging().cut(all, Cursor::Id("snp_"), |s| s.id.clone())?;
    Ok(axum::Json(Snapshots { protocol_version: PROTOCOL_VERSION, snapshots, next }))
}

/// Makes new sandboxes that begin at a snapshot, or where a sandbox is.
#[utoipa::path(post, path = "/v1/snapshots/{id}/fork", tag = "snapshots", operation_id = "fork_any",
    params(("id" = String, Path, description = "A snapshot or a sandbox, by id, its beginning, or name"), ("Idempotency-Key" = Option<String>, Header)),
    request_body = Fork, responses((status = 201, body = Forked),
        (status = 200, description = "An earlier request under the same key made it.", body = Forked)))]
pub async fn fork_any(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    key: Key,
    Json(wish): Json<Fork>,
) -> Result<(StatusCode, axum::Json<Forked>), Refusal> {
    who.needs(Scope::Agent)?;
    if wish.snapshot.is_some() {
        let fault = Fault::invalid("the body: snapshot: it stands in the path").phase(terms::Phase::Admission);
        return Err(fault.hint("leave it out").into());
    }
    let once = once(&shared, &who, key.clone(), "fork_any", &(&id, &wish))?;
    let more = wish.makes(takes(&shared, &who, &id).await?);
    let verb = move |caller: &Caller| {
        let state = Place::open(caller)?;
        snapshots::fork_once(&state, caller, Some(&id), wish.name.as_deref(), wish.count, once.as_ref())
    };
    let forked = shared.making(&who, more, &key, verb).await?;
    Ok((made(forked.existed), axum::Json(forked)))
}

/// The changes of a snapshot, or of a sandbox without a live run, as one file. The header `cofferdam-exported` tells what is in it.
#[utoipa::path(get, path = "/v1/snapshots/{id}/export", tag = "snapshots", operation_id = "export_any",
    params(("id" = String, Path, description = "A snapshot or a sandbox, by id, its beginning, or name")),
    responses((status = 200, content_type = "application/zstd", body = Vec<u8>),
        (status = 409, description = "It is not as the request supposes.", body = Fault)))]
pub async fn export_any(State(shared): State<Shared>, who: Who, Path(id): Path<String>) -> Result<Response, Refusal> {
    who.needs_any(&LOOKERS)?;
    let verb =
        move |caller: &Caller, out: &mut dyn std::io::Write| snapshots::export(&Place::open(caller)?, caller, &id, out);
    let (mut answer, written) = spooled::answer(&shared, &who, SORT, verb).await?;
    let told = serde_json::to_string(&written).map_err(|e| Fault::internal(e.to_string()))?;
    let told = HeaderValue::from_str(&told).map_err(|e| Fault::internal(e.to_string()))?;
    answer.headers_mut().insert(HeaderName::from_static("cofferdam-exported"), told);
    Ok(answer)
}
