//! Review over HTTP: shows the changes of a sandbox and lands them. An approval names the digest of the diff that was reviewed.

use super::files::{NoQuery, WithPath};
use crate::answer::Answer;
use crate::extract::{IfMatch, Json, Path};
use crate::raw_query::RawQuery;
use crate::refuse::Refusal;
use crate::{Principal, Shared, spooled};
use api::{
    BatchUndo, CommitRequest, Conflicts, Provenance, Receipt, Rel, Scope, SeenBy, WorkspaceApprove, WorkspaceDiff,
    WorkspacePruned, WorkspaceRebase, WorkspaceRebased, WorkspaceReject, WorkspaceRejected, WorkspaceShown,
    WorkspaceUndo,
};
use axum::extract::State;
use axum::response::Response;
use http::HeaderValue;
use http::header::HeaderName;
use node::review::approve::ReviewedDiff;
use node::review::diff::{DiffPage, DiffReader, MOST_FILES};
use node::review::{ReviewScope, approve, commit, conflicts, diff, provenance, prune, rebase, reject, undo};
use node::sandbox::Which;
use node::{Caller, Node};
use std::os::unix::ffi::OsStringExt;
use terms::{Fault, PROTOCOL_VERSION, Phase};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Scopes that may read changes.
const READ_SCOPES: [Scope; 2] = [Scope::Agent, Scope::Reviewer];

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(show_diff))
        .routes(routes!(show_patch))
        .routes(routes!(show_conflicts))
        .routes(routes!(show_provenance))
        .routes(routes!(approve_changes))
        .routes(routes!(reject_changes))
        .routes(routes!(undo_batch))
        .routes(routes!(undo_any))
        .routes(routes!(was_shown))
        .routes(routes!(show_provenance_of))
        .routes(routes!(rebase_onto_base))
        .routes(routes!(prune_artefacts))
}

fn which_sandbox(id: String, IfMatch(version): IfMatch) -> Which {
    Which { word: Some(id), version }
}

/// Returns the changes file by file, with classes, hunks, omitted files, and a digest over all of it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/workspace/diff", tag = "workspace", operation_id = "diff",
    params(
        ("id" = String, Path, description = "The id, a unique prefix of it, or the name"),
        ("path" = Option<Vec<String>>, Query, style = Form, explode,
            description = "Only changes at or below this path; may be repeated. Bytes that are not UTF-8 are percent-encoded"),
        ("all" = Option<bool>, Query, description = "Include omitted files: build artefacts, caches, ignored files"),
        ("lines" = Option<bool>, Query, description = "Include the lines of each hunk [default: true]; else only its id and position"),
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 10000, description = "Maximum number of files [default: 1000]"),
        ("after" = Option<String>, Query, description = "`next` of the previous page"),
        ("shown" = Option<bool>, Query, description = "Records that a reviewer shows the whole diff to a person, who may then approve the state seen `last`"),
    ),
    responses((status = 200, body = WorkspaceDiff),
        (status = 409, description = "A conflict with the current state.", body = Fault)))]
async fn show_diff(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    mut query: RawQuery,
) -> Result<Answer<WorkspaceDiff>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let (paths, everything) = (query.paths("path")?, query.optional("all")?.unwrap_or(false));
    let (files, after) = (query.optional("limit")?.unwrap_or(USUAL_FILES), query.optional("after")?);
    let page = DiffPage { files, after, lines: query.optional("lines")?.unwrap_or(true) };
    let reader = match query.optional("shown")?.unwrap_or(false) {
        true => {
            principal.require_scope(Scope::Reviewer)?;
            DiffReader::Person
        }
        false => DiffReader::Program,
    };
    query.deny_rest()?;
    let of = ReviewScope::Sandbox { which: which_sandbox(id, IfMatch(None)), paths };
    let request = diff::ReadDiff { of, everything, reader, page: Some(page) };
    shared.answer_whole(&principal, move |node, caller| diff::diff(node, caller, &request)).await
}

/// Default number of files in a page.
const USUAL_FILES: usize = if MOST_FILES < 1000 { MOST_FILES } else { 1000 };

/// Returns the changes as a patch for `git apply`. The header `cofferdam-digest` has the digest of the diff.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/workspace/patch", tag = "workspace", operation_id = "patch",
    params(
        ("id" = String, Path, description = "The id, a unique prefix of it, or the name"),
        ("path" = Option<Vec<String>>, Query, style = Form, explode, description = "Only changes at or below this path"),
        ("all" = Option<bool>, Query, description = "Include omitted files"),
    ),
    responses((status = 200, content_type = "text/x-diff", body = String),
        (status = 409, description = "A conflict with the current state.", body = Fault)))]
async fn show_patch(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    mut query: RawQuery,
) -> Result<Response, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let (paths, everything) = (query.paths("path")?, query.optional("all")?.unwrap_or(false));
    query.deny_rest()?;
    let of = ReviewScope::Sandbox { which: which_sandbox(id, IfMatch(None)), paths };
    let request = diff::ReadDiff { of, everything, reader: DiffReader::Program, page: None };
    let patch = shared.verb(&principal, move |node, caller| diff::patch(node, caller, &request)).await?;
    let digest = HeaderValue::from_str(patch.digest()).map_err(|e| Fault::internal(e.to_string()))?;
    let (mut response, ()) =
        spooled::respond(&shared, &principal, "text/x-diff", move |_, _, mut out| patch.write(&mut out)).await?;
    response.headers_mut().insert(HeaderName::from_static("cofferdam-digest"), digest);
    Ok(response)
}

/// Lists files that several sandboxes changed, or this sandbox and its base.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/workspace/conflicts", tag = "workspace", operation_id = "conflicts",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name")),
    responses((status = 200, body = Conflicts),
        (status = 409, description = "A conflict with the current state.", body = Fault)))]
async fn show_conflicts(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Answer<Conflicts>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let request = conflicts::FindConflicts { sandbox: Some(id) };
    shared.answer_whole(&principal, move |node, caller| conflicts::conflicts(node, caller, &request)).await
}

/// Lists the approvals that changed a path of the sandbox's directory; without a path, those of the whole directory.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/workspace/provenance", tag = "workspace", operation_id = "provenance",
    params(
        ("id" = String, Path, description = "The id, a unique prefix of it, or the name"),
        ("path" = Option<String>, Query, description = "Path relative to the top of the workspace; the file may be deleted"),
    ),
    responses((status = 200, body = Provenance)))]
async fn show_provenance(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    mut query: RawQuery,
) -> Result<Answer<Provenance>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let mut paths = query.paths("path")?;
    query.deny_rest()?;
    let path = paths.pop().unwrap_or_default();
    if !paths.is_empty() {
        return Err(Fault::invalid("the query: path is given twice")
            .hint("give one path")
            .phase(Phase::Admission)
            .into());
    }
    let which = which_sandbox(id, IfMatch(None));
    shared.answer_whole(&principal, move |node, caller| provenance::of_sandbox(node, caller, &which, &path)).await
}

fn seen(by: SeenBy, digest: Option<String>) -> Result<ReviewedDiff, Fault> {
    let invalid = |why: &str| Fault::invalid(format!("the body: {why}")).phase(Phase::Admission);
    match (by, digest) {
        (SeenBy::Digest, Some(digest)) => Ok(ReviewedDiff::Digest(digest)),
        (SeenBy::Last, None) => Ok(ReviewedDiff::Last),
        (SeenBy::Unseen, None) => Ok(ReviewedDiff::Unseen),
        (SeenBy::Digest, None) => {
            Err(invalid("missing field `digest`").hint("give the digest of the diff that was reviewed"))
        }
        (_, Some(_)) => Err(invalid("digest and seen are both given").hint("give one of them")),
    }
}

/// Maximum number of paths and hunks in a request.
const MAX_SELECTED: usize = 10_000;

/// Checks the selection. The sandbox is looked up before a fault is returned, so that an unknown sandbox gives 404 first.
fn check_chosen(
    node: &Node,
    caller: &Caller,
    of: &ReviewScope,
    exact: &[Rel],
    hunks: usize,
    other: bool,
) -> Result<(), Fault> {
    let paths: &[Rel] = if let ReviewScope::Sandbox { paths, .. } = of { paths } else { &[] };
    let count = paths.len() + exact.len() + hunks;
    // An empty path would select all changes, and a program may send one by mistake.
    let unnamed = [("paths", paths), ("exact", exact)].into_iter().find(|(_, some)| some.iter().any(Rel::is_top));
    let fault = match count {
        _ if unnamed.is_some() => {
            let field = unnamed.map_or("paths", |(field, _)| field);
            Fault::invalid(format!("the body: {field}: an empty path"))
                .hint("name each path; `all` selects all changes")
        }
        0 if !other => Fault::invalid("no changes are selected").hint("give `all`, `paths`, `exact` or `hunks`"),
        count if count > MAX_SELECTED => Fault::invalid(format!("{count} paths and hunks are selected"))
            .hint(format!("at most {MAX_SELECTED} in one request")),
        _ => return Ok(()),
    };
    of.is_there(node, caller)?;
    Err(fault.phase(Phase::Admission))
}

/// Approves selected changes and lands them in the base, exactly as reviewed or not at all. Agents may not approve.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/workspace/approve", tag = "workspace", operation_id = "approve",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name"),
        ("If-Match" = Option<String>, Header, description = "Only if the sandbox still has this version")),
    request_body = WorkspaceApprove, responses((status = 200, body = Receipt)))]
async fn approve_changes(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    version: IfMatch,
    Json(request): Json<WorkspaceApprove>,
) -> Result<Answer<Receipt>, Refusal> {
    principal.require_scope(Scope::Reviewer)?;
    let WorkspaceApprove { digest, seen: by, all, paths, exact, hunks, runs_on_host, commit } = request;
    let request = approve::ApproveChanges {
        of: ReviewScope::Sandbox { which: which_sandbox(id, version), paths },
        everything: all,
        exact,
        hunks,
        runs_on_host,
        seen: seen(by, digest)?,
        commit: commit.map(|CommitRequest { message, author }| commit::CommitOptions { message, author }),
    };
    let verb = move |node: &Node, caller: &Caller| {
        check_chosen(node, caller, &request.of, &request.exact, request.hunks.len(), all || runs_on_host)?;
        approve::approve(node, caller, &request)
    };
    shared.answer_whole(&principal, verb).await
}

/// Rejects selected changes. They cannot be restored.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/workspace/reject", tag = "workspace", operation_id = "reject",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name"),
        ("If-Match" = Option<String>, Header, description = "Only if the sandbox still has this version")),
    request_body = WorkspaceReject, responses((status = 200, body = WorkspaceRejected)))]
async fn reject_changes(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    version: IfMatch,
    Json(request): Json<WorkspaceReject>,
) -> Result<Answer<WorkspaceRejected>, Refusal> {
    principal.require_scope(Scope::Reviewer)?;
    let WorkspaceReject { digest, all, paths, hunks } = request;
    let of = ReviewScope::Sandbox { which: which_sandbox(id, version), paths };
    let request = reject::RejectChanges { of, hunks, everything: all, digest: Some(digest) };
    let verb = move |node: &Node, caller: &Caller| {
        check_chosen(node, caller, &request.of, &[], request.hunks.len(), all)?;
        reject::reject(node, caller, &request)
    };
    shared.answer_whole(&principal, verb).await
}

/// Reverts an approval of a sandbox. By its batch, also after the sandbox was removed.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/workspace/undo", tag = "workspace", operation_id = "undo",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name"),
        ("If-Match" = Option<String>, Header, description = "Only if the sandbox still has this version")),
    request_body = WorkspaceUndo, responses((status = 200, body = Receipt)))]
async fn undo_batch(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    version: IfMatch,
    Json(request): Json<WorkspaceUndo>,
) -> Result<Answer<Receipt>, Refusal> {
    principal.require_scope(Scope::Reviewer)?;
    let which = which_sandbox(id, version);
    let verb = move |node: &Node, caller: &Caller| undo::undo_of(node, caller, &which, request.batch.as_deref());
    shared.answer_whole(&principal, verb).await
}

/// Reverts an approval, wherever it landed.
#[utoipa::path(post, path = "/v1/undo", tag = "workspace", operation_id = "undo_any",
    request_body = BatchUndo, responses((status = 200, body = Receipt),
        (status = 404, description = "Not found.", body = Fault)))]
async fn undo_any(
    State(shared): State<Shared>,
    principal: Principal,
    Json(request): Json<BatchUndo>,
) -> Result<Answer<Receipt>, Refusal> {
    principal.require_scope(Scope::Reviewer)?;
    shared.answer_whole(&principal, move |node, caller| undo::undo(node, caller, Some(&request.of))).await
}

/// Returns whether a person has been shown the whole diff of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/workspace/shown", tag = "workspace", operation_id = "shown",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name")),
    responses((status = 200, body = WorkspaceShown)))]
async fn was_shown(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Answer<WorkspaceShown>, Refusal> {
    principal.require_scope(Scope::Reviewer)?;
    let of = ReviewScope::sandbox(which_sandbox(id, IfMatch(None)));
    let shown = shared.verb(&principal, move |node, caller| approve::was_shown(node, caller, &of)).await?;
    Ok(Answer::whole(&WorkspaceShown { protocol_version: PROTOCOL_VERSION, shown }))
}

/// Lists the approvals that changed a path of the host.
#[utoipa::path(get, path = "/v1/provenance", tag = "workspace", operation_id = "provenance_of",
    params(("path" = String, Query, description = "Absolute path; the file may be deleted. Bytes that are not UTF-8 are percent-encoded")),
    responses((status = 200, body = Provenance),
        (status = 404, description = "Not found.", body = Fault)))]
async fn show_provenance_of(
    State(shared): State<Shared>,
    principal: Principal,
    WithPath { path, .. }: WithPath<NoQuery>,
) -> Result<Answer<Provenance>, Refusal> {
    principal.require_scope(Scope::Reviewer)?;
    if !path.starts_with(b"/") {
        let fault = Fault::invalid("the query: path: not an absolute path").phase(Phase::Admission);
        return Err(fault.hint("give one that begins with a slash").into());
    }
    let path = std::ffi::OsString::from_vec(path);
    shared.answer_whole(&principal, move |node, caller| provenance::provenance(node, caller, &path)).await
}

/// Rebases a sandbox onto the current content of its directory. The directory is not changed.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/workspace/rebase", tag = "workspace", operation_id = "rebase",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name"),
        ("If-Match" = Option<String>, Header, description = "Only if the sandbox still has this version")),
    request_body = WorkspaceRebase, responses((status = 200, body = WorkspaceRebased)))]
async fn rebase_onto_base(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    version: IfMatch,
    Json(request): Json<WorkspaceRebase>,
) -> Result<Answer<WorkspaceRebased>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let request = rebase::RebaseSandbox { which: which_sandbox(id, version), dry_run: request.dry_run };
    shared.answer_whole(&principal, move |node, caller| rebase::rebase(node, caller, &request)).await
}

/// Removes build artefacts, caches and ignored files from a sandbox. Changes up for review stay.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/workspace/prune", tag = "workspace", operation_id = "prune",
    params(("id" = String, Path, description = "The id, a unique prefix of it, or the name"),
        ("If-Match" = Option<String>, Header, description = "Only if the sandbox still has this version")),
    responses((status = 200, body = WorkspacePruned)))]
async fn prune_artefacts(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    version: IfMatch,
) -> Result<Answer<WorkspacePruned>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let which = which_sandbox(id, version);
    shared.answer_whole(&principal, move |node, caller| prune::prune(node, caller, &which)).await
}
