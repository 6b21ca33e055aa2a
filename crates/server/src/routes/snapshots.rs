//! Snapshots, forks and restores, and the export and import of workspaces.

mod any;

use crate::answer::Answer;
use crate::extract::{Cursor, IdempotencyKey, IfMatch, Json, Paging, Path, Query};
use crate::refuse::Refusal;
use crate::{Principal, Shared, spooled, upload};
use api::{
    ImportQuery, PolicySource, Removed, SandboxFork, SandboxForked, SandboxImported, SandboxRestore, SandboxRestored,
    Scope, Snapshot, SnapshotList, SnapshotTake, SnapshotTaken,
};
use axum::extract::{Request, State};
use axum::response::Response;
use node::idempotency::KeyedRequest;
use node::policies::RequestedPolicy;
use node::portable::{self, ImportOptions};
use node::quota::AddedUsage;
use node::sandbox::Which;
use node::snapshots::{self, Bounds, ChangesSince};
use node::{Caller, Node};
use serde::{Deserialize, Serialize};
use terms::{Fault, PROTOCOL_VERSION, Phase};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const READ_SCOPES: [Scope; 2] = [Scope::Agent, Scope::Reviewer];
/// Highest value of `max_bytes` for an import.
const MAX_IMPORT_BYTES: u64 = 1 << 40;
/// Content type of an exported workspace.
const CONTENT_TYPE: &str = "application/zstd";

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list_snapshots, take_snapshot))
        .routes(routes!(show_snapshot, remove_snapshot))
        .routes(routes!(restore_sandbox))
        .routes(routes!(fork_sandbox))
        .routes(routes!(export_workspace))
        .routes(routes!(import_workspace))
        .routes(routes!(any::list_all))
        .routes(routes!(any::fork_any))
        .routes(routes!(any::export_any))
}

/// Query parameters of a paged list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Maximum number of items [default: 100].
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next` of the previous page.
    after: Option<String>,
}

impl PageQuery {
    pub(super) fn paging(self) -> Paging {
        Paging { limit: self.limit, after: self.after }
    }
}

/// Lists the snapshots of a sandbox, by id.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/snapshots", tag = "snapshots", operation_id = "list",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name"), PageQuery),
    responses((status = 200, body = SnapshotList)))]
async fn list_snapshots(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Query(page): Query<PageQuery>,
) -> Result<Answer<SnapshotList>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let mut all = shared.verb(&principal, move |node, caller| snapshots::list_of(node, caller, &id)).await?;
    all.sort_by(|a, b| a.id.cmp(&b.id));
    let (snapshots, next) = page.paging().cut(all, Cursor::Id("snp_"), |s| s.id.clone())?;
    Ok(Answer::whole(&SnapshotList { protocol_version: PROTOCOL_VERSION, snapshots, next }))
}

/// Takes a snapshot of a sandbox. Running commands are frozen meanwhile.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/snapshots", tag = "snapshots", operation_id = "take",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name"),
        ("Idempotency-Key" = Option<String>, Header), ("If-Match" = Option<String>, Header)),
    request_body = SnapshotTake, responses((status = 201, body = SnapshotTaken),
        (status = 200, description = "An earlier request under the same key created it.", body = SnapshotTaken)))]
async fn take_snapshot(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    version: IfMatch,
    key: IdempotencyKey,
    Json(request): Json<SnapshotTake>,
) -> Result<Answer<SnapshotTaken>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let once = once(&shared, &principal, key.clone(), "snapshot", &(&id, &request))?;
    let which = Which { word: Some(id), version: version.0 };
    let verb = move |node: &Node, caller: &Caller| {
        let take = if request.sync { snapshots::take_to_disk } else { snapshots::take_once };
        take(node, caller, &which, request.name.as_deref(), once.as_ref())
    };
    let taken = shared.create_within_quota(&principal, vec![AddedUsage::Snapshots(1)], &key, verb).await?;
    if taken.layers > snapshots::DEEP {
        let (tasks, sandbox) = (shared.tasks().clone(), taken.sandbox.clone());
        // After the response. A failure does no harm: the next snapshot tries again.
        tasks.spawn_to_end(async move {
            let verb = move |node: &Node, caller: &Caller| snapshots::squash(node, caller, &sandbox).map(drop);
            let _ = shared.verb(&principal, verb).await;
        });
    }
    Ok(Answer::whole(&taken).created_unless(taken.existed))
}

/// Returns true if the word names no snapshot, so that a snapshot of the sandbox it names is taken.
pub(super) async fn needs_snapshot(shared: &Shared, principal: &Principal, word: &str) -> Result<bool, Refusal> {
    let word = word.to_owned();
    let known = move |node: &Node, caller: &Caller| Ok(!snapshots::is_snapshot(node, caller, &word)?);
    shared.verb(principal, known).await
}

/// Builds the idempotency record of a request, if it has a key.
pub(super) fn once(
    shared: &Shared,
    principal: &Principal,
    IdempotencyKey(key): IdempotencyKey,
    verb: &str,
    asked: &impl Serialize,
) -> Result<Option<KeyedRequest>, Refusal> {
    Ok(key.map(|key| KeyedRequest::new(&key, verb, asked, &shared.caller(principal))).transpose()?)
}

/// Returns a snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{id}", tag = "snapshots", operation_id = "get",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name")),
    responses((status = 200, body = Snapshot)))]
async fn show_snapshot(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Answer<Snapshot>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let verb = move |node: &Node, caller: &Caller| snapshots::describe(node, caller, &id);
    let snapshot = shared.verb(&principal, verb).await?;
    Ok(Answer::whole(&Snapshot { protocol_version: PROTOCOL_VERSION, snapshot }))
}

/// Deletes a snapshot, and the layers that no other one uses.
#[utoipa::path(delete, path = "/v1/snapshots/{id}", tag = "snapshots", operation_id = "delete",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name")),
    responses((status = 200, body = Removed)))]
async fn remove_snapshot(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Answer<Removed>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let removed = shared.verb(&principal, move |node, caller| snapshots::remove(node, caller, &id)).await?;
    Ok(Answer::whole(&Removed { protocol_version: PROTOCOL_VERSION, removed }))
}

/// Restores a sandbox to a snapshot.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/restore", tag = "snapshots", operation_id = "restore",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name"), ("If-Match" = Option<String>, Header)),
    request_body = SandboxRestore, responses((status = 200, body = SandboxRestored)))]
async fn restore_sandbox(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    IfMatch(version): IfMatch,
    Json(request): Json<SandboxRestore>,
) -> Result<Answer<SandboxRestored>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let which = Which { word: Some(id), version };
    let since = if request.discard { ChangesSince::Discard } else { ChangesSince::Keep };
    let verb = move |node: &Node, caller: &Caller| snapshots::restore(node, caller, &request.snapshot, &which, since);
    let restored = match since {
        // Later changes are kept as a snapshot, which counts.
        ChangesSince::Keep => {
            shared
                .create_within_quota(&principal, vec![AddedUsage::Snapshots(1)], &IdempotencyKey::default(), verb)
                .await?
        }
        ChangesSince::Discard => shared.verb(&principal, verb).await?,
    };
    Ok(Answer::whole(&restored))
}

/// Returns the records that a fork adds; forking a sandbox takes a snapshot first.
fn additions(fork: &SandboxFork, needs_snapshot: bool) -> Vec<AddedUsage> {
    let mut more = vec![AddedUsage::Sandboxes(fork.count.into())];
    more.extend(needs_snapshot.then_some(AddedUsage::Snapshots(1)));
    more
}

/// Forks a sandbox: creates new sandboxes with its current content, or that of one of its snapshots.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/fork", tag = "snapshots", operation_id = "fork",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name"), ("Idempotency-Key" = Option<String>, Header)),
    request_body = SandboxFork, responses((status = 201, body = SandboxForked),
        (status = 200, description = "An earlier request under the same key created it.", body = SandboxForked)))]
async fn fork_sandbox(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    key: IdempotencyKey,
    Json(request): Json<SandboxFork>,
) -> Result<Answer<SandboxForked>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let once = once(&shared, &principal, key.clone(), "fork", &(&id, &request))?;
    let more = additions(&request, request.snapshot.is_none());
    let verb = move |node: &Node, caller: &Caller| {
        let word = snapshots::of_sandbox(node, caller, &id, request.snapshot.as_deref())?;
        snapshots::fork_once(node, caller, Some(&word), request.name.as_deref(), request.count, once.as_ref())
    };
    let forked = shared.create_within_quota(&principal, more, &key, verb).await?;
    Ok(Answer::whole(&forked).created_unless(forked.existed))
}

/// Exports the changes of a sandbox without a running command, or of one of its snapshots, as one file.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/export", tag = "snapshots", operation_id = "export",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name"), Export),
    responses((status = 200, content_type = "application/zstd", body = Vec<u8>),
        (status = 409, description = "A conflict with the current state.", body = Fault)))]
async fn export_workspace(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Query(query): Query<Export>,
) -> Result<Response, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let verb = move |node: &Node, caller: &Caller, out: &mut dyn std::io::Write| {
        let word = snapshots::of_sandbox(node, caller, &id, query.snapshot.as_deref())?;
        portable::export(node, caller, &word, out).map(drop)
    };
    Ok(spooled::respond(&shared, &principal, CONTENT_TYPE, verb).await?.0)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Export {
    /// A snapshot of the sandbox to export.
    snapshot: Option<String>,
}

fn sources(query: &ImportQuery) -> Result<Vec<RequestedPolicy>, Fault> {
    let names =
        query.policy.iter().flat_map(|names| names.split(',')).map(|name| RequestedPolicy::Preset(name.to_owned()));
    let documents = query.documents.as_deref().unwrap_or("[]");
    let documents: Vec<PolicySource> = serde_json::from_str(documents).map_err(|e| {
        let fault = Fault::invalid(format!("the query: documents: {e}")).phase(Phase::Admission);
        fault.hint("give a JSON list of policies")
    })?;
    Ok(names.chain(documents.into_iter().map(RequestedPolicy::from)).collect())
}

/// Imports an exported file as a new sandbox. The file is untrusted: it is unpacked into a layer and nowhere else.
#[utoipa::path(post, path = "/v1/import", tag = "snapshots", operation_id = "import", params(ImportQuery, ("Idempotency-Key" = Option<String>, Header)),
    request_body(content((Vec<u8> = "application/zstd"), (Vec<u8> = "application/octet-stream"))),
    responses((status = 201, body = SandboxImported),
        (status = 200, description = "An earlier request under the same key created it.", body = SandboxImported),
        (status = 404, description = "Not found.", body = Fault)))]
async fn import_workspace(
    State(shared): State<Shared>,
    principal: Principal,
    Query(query): Query<ImportQuery>,
    key: IdempotencyKey,
    request: Request,
) -> Result<Answer<SandboxImported>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    if let Some(dir) = query.dir.as_ref().filter(|dir| !dir.is_absolute()) {
        let fault = Fault::invalid(format!("dir {:?}: not an absolute path", dir.display())).phase(Phase::Admission);
        return Err(fault.hint("give one that begins with a slash, or none for an empty directory").into());
    }
    let once = once(&shared, &principal, key.clone(), "import", &query)?;
    let permit = shared.archive_permit(&principal).await?;
    let (file, spooled) = upload::receive(&shared, &principal, request.into_body()).await?;
    let verb = move |node: &Node, caller: &Caller| {
        // Held while the file is read, also when the client is gone.
        let _counted = (permit, spooled);
        let policies = sources(&query)?;
        let bounds = match query.max_bytes {
            Some(bytes) => Bounds { bytes: bytes.min(MAX_IMPORT_BYTES), ratio: None, ..Bounds::default() },
            None => Bounds::default(),
        };
        let (name, dir, driver) = (query.name.as_deref(), query.dir.as_deref(), query.driver);
        let onto = ImportOptions { dir, name, policies, flags: Vec::new(), bounds, driver, once };
        portable::import(node, caller, onto, &mut std::io::BufReader::new(file))
    };
    let imported = shared.create_within_quota(&principal, vec![AddedUsage::Sandboxes(1)], &key, verb).await?;
    Ok(Answer::whole(&imported).created_unless(imported.existed))
}
