//! Snapshots, forks and restores, and workspaces as files that go out and come in.

mod any;

use crate::answer::Answer;
use crate::ask::{Cursor, IfMatch, Json, Key, Paging, Path, Query};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who, spooled, upload};
use axum::extract::{Request, State};
use axum::response::Response;
use client::wire::{PolicyOf, SandboxFork, SandboxRestore, SnapshotList, SnapshotTake};
use node::idempotency::Once;
use node::policies::Source;
use node::portable::{self, Imported, Onto};
use node::quota::More;
use node::sandbox::Driver;
use node::sandbox::Which;
use node::snapshots::{self, Bounds, Forked, Listed, Restored, Since, Taken};
use node::{Caller, Node};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use terms::{Fault, PROTOCOL_VERSION, Phase};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const LOOKERS: [Scope; 2] = [Scope::Agent, Scope::Reviewer];
/// Most that anybody may have come out of an imported file.
const LARGEST: u64 = 1 << 40;
/// What an exported workspace is called.
const SORT: &str = "application/zstd";

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

/// A list, part by part.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Part {
    /// Most in the answer [100].
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next` of the part before.
    after: Option<String>,
}

impl Part {
    pub(super) fn paging(self) -> Paging {
        Paging { limit: self.limit, after: self.after }
    }
}

/// Snapshots of a sandbox, by id.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/snapshots", tag = "snapshots", operation_id = "list",
    params(("id" = String, Path, description = "By id, its beginning, or name"), Part),
    responses((status = 200, body = SnapshotList)))]
async fn list_snapshots(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    Query(part): Query<Part>,
) -> Result<Answer<SnapshotList>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let mut all = shared.verb(&who, move |node, caller| snapshots::list_of(node, caller, &id)).await?;
    all.sort_by(|a, b| a.id.cmp(&b.id));
    let (snapshots, next) = part.paging().cut(all, Cursor::Id("snp_"), |s| s.id.clone())?;
    Ok(Answer::whole(&SnapshotList { protocol_version: PROTOCOL_VERSION, snapshots, next }))
}

/// Keeps a sandbox as it is now. A command that runs in it is held still meanwhile.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/snapshots", tag = "snapshots", operation_id = "take",
    params(("id" = String, Path, description = "By id, its beginning, or name"),
        ("Idempotency-Key" = Option<String>, Header), ("If-Match" = Option<String>, Header)),
    request_body = SnapshotTake, responses((status = 201, body = Taken),
        (status = 200, description = "An earlier request under the same key made it.", body = Taken)))]
async fn take_snapshot(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    version: IfMatch,
    key: Key,
    Json(wish): Json<SnapshotTake>,
) -> Result<Answer<Taken>, Refusal> {
    who.needs(Scope::Agent)?;
    let once = once(&shared, &who, key.clone(), "snapshot", &(&id, &wish))?;
    let which = Which { word: Some(id), version: version.0 };
    let verb = move |node: &Node, caller: &Caller| {
        let take = if wish.sync { snapshots::take_to_disk } else { snapshots::take_once };
        take(node, caller, &which, wish.name.as_deref(), once.as_ref())
    };
    let taken = shared.making(&who, vec![More::Snapshots(1)], &key, verb).await?;
    if taken.layers > snapshots::DEEP {
        let (tasks, sandbox) = (shared.tasks().clone(), taken.sandbox.clone());
        // After the answer. A failure hinders nothing: the next snapshot tries again.
        tasks.spawn_to_end(async move {
            let verb = move |node: &Node, caller: &Caller| snapshots::squash(node, caller, &sandbox).map(drop);
            let _ = shared.verb(&who, verb).await;
        });
    }
    Ok(Answer::whole(&taken).created_unless(taken.existed))
}

/// Whether a word means no snapshot, so that one is taken of the sandbox that it means.
pub(super) async fn takes(shared: &Shared, who: &Who, word: &str) -> Result<bool, Refusal> {
    let word = word.to_owned();
    let known = move |node: &Node, caller: &Caller| Ok(!snapshots::is_snapshot(node, caller, &word)?);
    shared.verb(who, known).await
}

/// What is asked for, under the key that it is asked with.
pub(super) fn once(
    shared: &Shared,
    who: &Who,
    Key(key): Key,
    verb: &str,
    asked: &impl Serialize,
) -> Result<Option<Once>, Refusal> {
    Ok(key.map(|key| Once::new(&key, verb, asked, &shared.caller(who))).transpose()?)
}

/// One snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{id}", tag = "snapshots", operation_id = "get",
    params(("id" = String, Path, description = "By id, its beginning, or name")),
    responses((status = 200, body = Snapshot)))]
async fn show_snapshot(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
) -> Result<Answer<Snapshot>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let verb = move |node: &Node, caller: &Caller| snapshots::describe(node, caller, &id);
    let snapshot = shared.verb(&who, verb).await?;
    Ok(Answer::whole(&Snapshot { protocol_version: PROTOCOL_VERSION, snapshot }))
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    pub protocol_version: u32,
    #[serde(flatten)]
    pub snapshot: Listed,
}

/// What is gone.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = RemovedByName)]
pub struct Removed {
    pub protocol_version: u32,
    pub removed: String,
}

/// Forgets a snapshot, and removes the layers that only it has.
#[utoipa::path(delete, path = "/v1/snapshots/{id}", tag = "snapshots", operation_id = "delete",
    params(("id" = String, Path, description = "By id, its beginning, or name")),
    responses((status = 200, body = Removed)))]
async fn remove_snapshot(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
) -> Result<Answer<Removed>, Refusal> {
    who.needs(Scope::Agent)?;
    let removed = shared.verb(&who, move |node, caller| snapshots::remove(node, caller, &id)).await?;
    Ok(Answer::whole(&Removed { protocol_version: PROTOCOL_VERSION, removed }))
}

/// Goes back to a snapshot.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/restore", tag = "snapshots", operation_id = "restore",
    params(("id" = String, Path, description = "By id, its beginning, or name"), ("If-Match" = Option<String>, Header)),
    request_body = SandboxRestore, responses((status = 200, body = Restored)))]
async fn restore_sandbox(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    IfMatch(version): IfMatch,
    Json(wish): Json<SandboxRestore>,
) -> Result<Answer<Restored>, Refusal> {
    who.needs(Scope::Agent)?;
    let which = Which { word: Some(id), version };
    let since = if wish.discard { Since::Discard } else { Since::Keep };
    let verb = move |node: &Node, caller: &Caller| snapshots::restore(node, caller, &wish.snapshot, &which, since);
    let restored = match since {
        // What changed since is kept as a snapshot.
        Since::Keep => shared.making(&who, vec![More::Snapshots(1)], &Key::default(), verb).await?,
        Since::Discard => shared.verb(&who, verb).await?,
    };
    Ok(Answer::whole(&restored))
}

/// Returns the records that a fork adds; forking a sandbox takes a snapshot first.
fn makes(fork: &SandboxFork, takes: bool) -> Vec<More> {
    let mut more = vec![More::Sandboxes(fork.count.into())];
    more.extend(takes.then_some(More::Snapshots(1)));
    more
}

/// Makes new sandboxes that begin where this one is, or was at a snapshot.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/fork", tag = "snapshots", operation_id = "fork",
    params(("id" = String, Path, description = "By id, its beginning, or name"), ("Idempotency-Key" = Option<String>, Header)),
    request_body = SandboxFork, responses((status = 201, body = Forked),
        (status = 200, description = "An earlier request under the same key made it.", body = Forked)))]
async fn fork_sandbox(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    key: Key,
    Json(wish): Json<SandboxFork>,
) -> Result<Answer<Forked>, Refusal> {
    who.needs(Scope::Agent)?;
    let once = once(&shared, &who, key.clone(), "fork", &(&id, &wish))?;
    let more = makes(&wish, wish.snapshot.is_none());
    let verb = move |node: &Node, caller: &Caller| {
        let word = snapshots::of_sandbox(node, caller, &id, wish.snapshot.as_deref())?;
        snapshots::fork_once(node, caller, Some(&word), wish.name.as_deref(), wish.count, once.as_ref())
    };
    let forked = shared.making(&who, more, &key, verb).await?;
    Ok(Answer::whole(&forked).created_unless(forked.existed))
}

/// The changes of a sandbox without a live run as one file; of a snapshot of it where one is named.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/export", tag = "snapshots", operation_id = "export",
    params(("id" = String, Path, description = "By id, its beginning, or name"), Export),
    responses((status = 200, content_type = "application/zstd", body = Vec<u8>),
        (status = 409, description = "It is not as the request supposes.", body = Fault)))]
async fn export_workspace(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    Query(wish): Query<Export>,
) -> Result<Response, Refusal> {
    who.needs_any(&LOOKERS)?;
    let verb = move |node: &Node, caller: &Caller, out: &mut dyn std::io::Write| {
        let word = snapshots::of_sandbox(node, caller, &id, wish.snapshot.as_deref())?;
        portable::export(node, caller, &word, out).map(drop)
    };
    Ok(spooled::answer(&shared, &who, SORT, verb).await?.0)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Export {
    /// A snapshot of the sandbox.
    snapshot: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Import {
    /// The directory that the sandbox covers, by its whole path; an empty one of its own where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub dir: Option<PathBuf>,
    /// A name for the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The built-in policies of its commands, with commas between [default]. What the file says of a policy is told and never obeyed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Policy documents beside them: a JSON list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<String>,
    /// Most bytes that may come out of the file, however small it is itself [default: 16 GiB].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1)]
    pub max_bytes: Option<u64>,
    /// How changes are kept apart from the directory; the best that works where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(inline)]
    pub driver: Option<Driver>,
}

fn sources(wish: &Import) -> Result<Vec<Source>, Fault> {
    let names = wish.policy.iter().flat_map(|names| names.split(',')).map(|name| Source::Preset(name.to_owned()));
    let documents = wish.documents.as_deref().unwrap_or("[]");
    let documents: Vec<PolicyOf> = serde_json::from_str(documents).map_err(|e| {
        let fault = Fault::invalid(format!("the query: documents: {e}")).phase(Phase::Admission);
        fault.hint("give a JSON list of policies")
    })?;
    Ok(names.chain(documents.into_iter().map(Source::from)).collect())
}

/// A new sandbox from a file that an export made. The file may be anybody's: it is unpacked into a layer and nowhere else.
#[utoipa::path(post, path = "/v1/import", tag = "snapshots", operation_id = "import", params(Import, ("Idempotency-Key" = Option<String>, Header)),
    request_body(content((Vec<u8> = "application/zstd"), (Vec<u8> = "application/octet-stream"))),
    responses((status = 201, body = Imported),
        (status = 200, description = "An earlier request under the same key made it.", body = Imported),
        (status = 404, description = "There is no such thing.", body = Fault)))]
async fn import_workspace(
    State(shared): State<Shared>,
    who: Who,
    Query(wish): Query<Import>,
    key: Key,
    request: Request,
) -> Result<Answer<Imported>, Refusal> {
    who.needs(Scope::Agent)?;
    if let Some(dir) = wish.dir.as_ref().filter(|dir| !dir.is_absolute()) {
        let fault = Fault::invalid(format!("dir {:?}: not a whole path", dir.display())).phase(Phase::Admission);
        return Err(fault.hint("give one that begins with a slash, or none for an empty directory").into());
    }
    let once = once(&shared, &who, key.clone(), "import", &wish)?;
    let turn = shared.archive_turn(&who).await?;
    let (file, spooled) = upload::receive(&shared, &who, request.into_body()).await?;
    let verb = move |node: &Node, caller: &Caller| {
        // As long as the file is read, whoever waits for it.
        let _counted = (turn, spooled);
        let policies = sources(&wish)?;
        let bounds = match wish.max_bytes {
            Some(bytes) => Bounds { bytes: bytes.min(LARGEST), ratio: None, ..Bounds::default() },
            None => Bounds::default(),
        };
        let (name, dir, driver) = (wish.name.as_deref(), wish.dir.as_deref(), wish.driver);
        let onto = Onto { dir, name, policies, flags: Vec::new(), bounds, driver, once };
        portable::import(node, caller, onto, &mut std::io::BufReader::new(file))
    };
    let imported = shared.making(&who, vec![More::Sandboxes(1)], &key, verb).await?;
    Ok(Answer::whole(&imported).created_unless(imported.existed))
}
