//! Review over HTTP: what changed in a sandbox, and what of it lands. Who approves says by its digest what was seen.

use super::files::{At, Nothing};
use crate::answer::Answer;
use crate::ask::{IfMatch, Json, Path};
use crate::refuse::Refusal;
use crate::words::Words;
use crate::{Scope, Shared, Who, spooled};
use axum::extract::State;
use axum::response::Response;
use client::wire::{BatchUndo, CommitWish, SeenBy, WorkspaceApprove, WorkspaceRebase, WorkspaceReject, WorkspaceShown};
use http::HeaderValue;
use http::header::HeaderName;
use node::review::approve::Seen;
use node::review::diff::{MOST_FILES, Page, Reader};
use node::review::{self, Of, Receipt, Rel, approve, commit, conflicts, diff, provenance, prune, rebase, reject, undo};
use node::sandbox::Which;
use node::{Caller, Node};
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStringExt;
use terms::{Fault, PROTOCOL_VERSION, Phase};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Whoever works in a sandbox or reviews it may look.
const LOOKERS: [Scope; 2] = [Scope::Agent, Scope::Reviewer];

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

fn one(id: String, IfMatch(version): IfMatch) -> Which {
    Which { word: Some(id), version }
}

/// What changed, file by file, with classes, hunks, what is withheld, and a digest over all of it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/workspace/diff", tag = "workspace", operation_id = "diff",
    params(
        ("id" = String, Path, description = "By id, its beginning, or name"),
        ("path" = Option<Vec<String>>, Query, style = Form, explode,
            description = "Only what is at or below it; may be given several times. Bytes that are no UTF-8 are written %XX"),
        ("all" = Option<bool>, Query, description = "Also what is withheld: build artefacts, caches, ignored files"),
        ("lines" = Option<bool>, Query, description = "With the lines of each hunk [true]; else its id and place"),
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 10000, description = "Most files in the answer [1000]"),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
        ("shown" = Option<bool>, Query, description = "A reviewer shows it to a person, who may then approve what was `last` seen; of the whole of it"),
    ),
    responses((status = 200, body = diff::Answer),
        (status = 409, description = "It is not as the request supposes.", body = Fault)))]
async fn show_diff(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    mut words: Words,
) -> Result<Answer<diff::Answer>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let (paths, everything) = (words.paths("path")?, words.one("all")?.unwrap_or(false));
    let (files, after) = (words.one("limit")?.unwrap_or(USUAL_FILES), words.one("after")?);
    let page = Page { files, after, lines: words.one("lines")?.unwrap_or(true) };
    let reader = match words.one("shown")?.unwrap_or(false) {
        true => {
            who.needs(Scope::Reviewer)?;
            Reader::Person
        }
        false => Reader::Program,
    };
    words.end()?;
    let of = Of::Sandbox { which: one(id, IfMatch(None)), paths };
    let ask = diff::Ask { of, everything, reader, page: Some(page) };
    shared.answer_whole(&who, move |node, caller| diff::diff(node, caller, &ask)).await
}

/// Files of a page, where nobody says how many.
const USUAL_FILES: usize = if MOST_FILES < 1000 { MOST_FILES } else { 1000 };

/// The same as a patch that `git apply` takes, byte for byte. The header `cofferdam-digest` tells what it is a patch of.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/workspace/patch", tag = "workspace", operation_id = "patch",
    params(
        ("id" = String, Path, description = "By id, its beginning, or name"),
        ("path" = Option<Vec<String>>, Query, style = Form, explode, description = "Only what is at or below it"),
        ("all" = Option<bool>, Query, description = "Also what is withheld"),
    ),
    responses((status = 200, content_type = "text/x-diff", body = String),
        (status = 409, description = "It is not as the request supposes.", body = Fault)))]
async fn show_patch(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    mut words: Words,
) -> Result<Response, Refusal> {
    who.needs_any(&LOOKERS)?;
    let (paths, everything) = (words.paths("path")?, words.one("all")?.unwrap_or(false));
    words.end()?;
    let of = Of::Sandbox { which: one(id, IfMatch(None)), paths };
    let ask = diff::Ask { of, everything, reader: Reader::Program, page: None };
    let answer = shared.verb(&who, move |node, caller| diff::diff(node, caller, &ask)).await?;
    let digest = HeaderValue::from_str(&answer.diff.digest).map_err(|e| Fault::internal(e.to_string()))?;
    let (mut answer, ()) =
        spooled::answer(&shared, &who, "text/x-diff", move |_, _, mut out| answer.patch(&mut out)).await?;
    answer.headers_mut().insert(HeaderName::from_static("cofferdam-digest"), digest);
    Ok(answer)
}

/// Files that several sandboxes changed, or this one and its base.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/workspace/conflicts", tag = "workspace", operation_id = "conflicts",
    params(("id" = String, Path, description = "By id, its beginning, or name")),
    responses((status = 200, body = conflicts::Answer),
        (status = 409, description = "It is not as the request supposes.", body = Fault)))]
async fn show_conflicts(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
) -> Result<Answer<conflicts::Answer>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let ask = conflicts::Ask { sandbox: Some(id) };
    shared.answer_whole(&who, move |node, caller| conflicts::conflicts(node, caller, &ask)).await
}

/// Which approvals brought a path of the sandbox's directory to how it is; without one, all of it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/workspace/provenance", tag = "workspace", operation_id = "provenance",
    params(
        ("id" = String, Path, description = "By id, its beginning, or name"),
        ("path" = Option<String>, Query, description = "From the top of the workspace; it may be gone"),
    ),
    responses((status = 200, body = provenance::Answer)))]
async fn show_provenance(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    mut words: Words,
) -> Result<Answer<provenance::Answer>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let mut paths = words.paths("path")?;
    words.end()?;
    let path = paths.pop().unwrap_or_default();
    if !paths.is_empty() {
        return Err(Fault::invalid("the query: path is there twice")
            .hint("ask for one")
            .phase(Phase::Admission)
            .into());
    }
    let which = one(id, IfMatch(None));
    shared.answer_whole(&who, move |node, caller| provenance::of_sandbox(node, caller, &which, &path)).await
}

fn seen(by: SeenBy, digest: Option<String>) -> Result<Seen, Fault> {
    let invalid = |why: &str| Fault::invalid(format!("the body: {why}")).phase(Phase::Admission);
    match (by, digest) {
        (SeenBy::Digest, Some(digest)) => Ok(Seen::Digest(digest)),
        (SeenBy::Last, None) => Ok(Seen::Last),
        (SeenBy::Unseen, None) => Ok(Seen::Unseen),
        (SeenBy::Digest, None) => {
            Err(invalid("missing field `digest`").hint("give the digest of the diff that was reviewed"))
        }
        (_, Some(_)) => Err(invalid("digest and seen").hint("give one of them")),
    }
}

/// Most paths and hunks of one request.
const MOST_CHOSEN: usize = 10_000;

/// For a fault only after the sandbox was found: nobody is told of a request for what is not there that it was wrong.
fn check_chosen(node: &Node, caller: &Caller, of: &Of, exact: &[Rel], hunks: usize, other: bool) -> Result<(), Fault> {
    let paths: &[Rel] = if let Of::Sandbox { paths, .. } = of { paths } else { &[] };
    let count = paths.len() + exact.len() + hunks;
    // Every change is below the top: a name that somebody's program left empty would choose them all.
    let unnamed = [("paths", paths), ("exact", exact)].into_iter().find(|(_, some)| some.iter().any(Rel::is_top));
    let fault = match count {
        _ if unnamed.is_some() => {
            let field = unnamed.map_or("paths", |(field, _)| field);
            Fault::invalid(format!("the body: {field}: an empty path")).hint("name each; `all` chooses all changes")
        }
        0 if !other => Fault::invalid("nothing was chosen").hint("give `all`, `paths`, `exact` or `hunks`"),
        count if count > MOST_CHOSEN => {
            Fault::invalid(format!("{count} paths and hunks")).hint(format!("at most {MOST_CHOSEN} in one request"))
        }
        _ => return Ok(()),
    };
    of.is_there(node, caller)?;
    Err(fault.phase(Phase::Admission))
}

/// Lets chosen changes through to the base: what lands is what was reviewed, or nothing. No agent's credential can.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/workspace/approve", tag = "workspace", operation_id = "approve",
    params(("id" = String, Path, description = "By id, its beginning, or name"),
        ("If-Match" = Option<String>, Header, description = "Only if the sandbox still has this version")),
    request_body = WorkspaceApprove, responses((status = 200, body = Receipt)))]
async fn approve_changes(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    version: IfMatch,
    Json(wish): Json<WorkspaceApprove>,
) -> Result<Answer<Receipt>, Refusal> {
    who.needs(Scope::Reviewer)?;
    let WorkspaceApprove { digest, seen: by, all, paths, exact, hunks, runs_on_host, commit } = wish;
    let ask = approve::Ask {
        of: Of::Sandbox { which: one(id, version), paths },
        everything: all,
        exact,
        hunks,
        runs_on_host,
        seen: seen(by, digest)?,
        commit: commit.map(|CommitWish { message, author }| commit::Wish { message, author }),
    };
    let verb = move |node: &Node, caller: &Caller| {
        check_chosen(node, caller, &ask.of, &ask.exact, ask.hunks.len(), all || runs_on_host)?;
        approve::approve(node, caller, &ask)
    };
    shared.answer_whole(&who, verb).await
}

/// Throws chosen changes away. They cannot be brought back.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/workspace/reject", tag = "workspace", operation_id = "reject",
    params(("id" = String, Path, description = "By id, its beginning, or name"),
        ("If-Match" = Option<String>, Header, description = "Only if the sandbox still has this version")),
    request_body = WorkspaceReject, responses((status = 200, body = reject::Answer)))]
async fn reject_changes(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    version: IfMatch,
    Json(wish): Json<WorkspaceReject>,
) -> Result<Answer<reject::Answer>, Refusal> {
    who.needs(Scope::Reviewer)?;
    let WorkspaceReject { digest, all, paths, hunks } = wish;
    let of = Of::Sandbox { which: one(id, version), paths };
    let ask = reject::Ask { of, hunks, everything: all, digest: Some(digest) };
    let verb = move |node: &Node, caller: &Caller| {
        check_chosen(node, caller, &ask.of, &[], ask.hunks.len(), all)?;
        reject::reject(node, caller, &ask)
    };
    shared.answer_whole(&who, verb).await
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WorkspaceUndo)]
pub struct Undo {
    /// The batch to take back; the last one of the sandbox where none is named.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub batch: Option<String>,
}

/// Takes back what an approval let through. Works by the batch when the sandbox is gone.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/workspace/undo", tag = "workspace", operation_id = "undo",
    params(("id" = String, Path, description = "By id, its beginning, or name"),
        ("If-Match" = Option<String>, Header, description = "Only if the sandbox still has this version")),
    request_body = Undo, responses((status = 200, body = Receipt)))]
async fn undo_batch(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    version: IfMatch,
    Json(wish): Json<Undo>,
) -> Result<Answer<Receipt>, Refusal> {
    who.needs(Scope::Reviewer)?;
    let which = one(id, version);
    let verb = move |node: &Node, caller: &Caller| undo::undo_of(node, caller, &which, wish.batch.as_deref());
    shared.answer_whole(&who, verb).await
}

/// Takes back what an approval let through, wherever it landed.
#[utoipa::path(post, path = "/v1/undo", tag = "workspace", operation_id = "undo_any",
    request_body = BatchUndo, responses((status = 200, body = Receipt),
        (status = 404, description = "There is no such thing.", body = Fault)))]
async fn undo_any(
    State(shared): State<Shared>,
    who: Who,
    Json(wish): Json<BatchUndo>,
) -> Result<Answer<Receipt>, Refusal> {
    who.needs(Scope::Reviewer)?;
    shared.answer_whole(&who, move |node, caller| undo::undo(node, caller, Some(&wish.of))).await
}

/// Whether a person has been shown the whole diff of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/workspace/shown", tag = "workspace", operation_id = "shown",
    params(("id" = String, Path, description = "By id, its beginning, or name")),
    responses((status = 200, body = WorkspaceShown)))]
async fn was_shown(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
) -> Result<Answer<WorkspaceShown>, Refusal> {
    who.needs(Scope::Reviewer)?;
    let of = Of::sandbox(one(id, IfMatch(None)));
    let shown = shared.verb(&who, move |node, caller| approve::was_shown(node, caller, &of)).await?;
    Ok(Answer::whole(&WorkspaceShown { protocol_version: PROTOCOL_VERSION, shown }))
}

/// Which approvals brought a path of the host to how it is.
#[utoipa::path(get, path = "/v1/provenance", tag = "workspace", operation_id = "provenance_of",
    params(("path" = String, Query, description = "The whole path; it may be gone. Bytes that are no UTF-8 are written %XX")),
    responses((status = 200, body = provenance::Answer),
        (status = 404, description = "There is no such thing.", body = Fault)))]
async fn show_provenance_of(
    State(shared): State<Shared>,
    who: Who,
    At { path, .. }: At<Nothing>,
) -> Result<Answer<provenance::Answer>, Refusal> {
    who.needs(Scope::Reviewer)?;
    if !path.starts_with(b"/") {
        let fault = Fault::invalid("the query: path: not a whole path").phase(Phase::Admission);
        return Err(fault.hint("give one that begins with a slash").into());
    }
    let path = std::ffi::OsString::from_vec(path);
    shared.answer_whole(&who, move |node, caller| provenance::provenance(node, caller, &path)).await
}

/// Brings a sandbox onto its directory as it is now. Nothing is written to the directory itself.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/workspace/rebase", tag = "workspace", operation_id = "rebase",
    params(("id" = String, Path, description = "By id, its beginning, or name"),
        ("If-Match" = Option<String>, Header, description = "Only if the sandbox still has this version")),
    request_body = WorkspaceRebase, responses((status = 200, body = rebase::Answer)))]
async fn rebase_onto_base(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    version: IfMatch,
    Json(wish): Json<WorkspaceRebase>,
) -> Result<Answer<review::rebase::Answer>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let ask = rebase::Ask { which: one(id, version), dry_run: wish.dry_run };
    shared.answer_whole(&who, move |node, caller| rebase::rebase(node, caller, &ask)).await
}

/// Takes build artefacts, caches and ignored files out of a sandbox. What is up for review stays.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/workspace/prune", tag = "workspace", operation_id = "prune",
    params(("id" = String, Path, description = "By id, its beginning, or name"),
        ("If-Match" = Option<String>, Header, description = "Only if the sandbox still has this version")),
    responses((status = 200, body = prune::Answer)))]
async fn prune_artefacts(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    version: IfMatch,
) -> Result<Answer<prune::Answer>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let which = one(id, version);
    shared.answer_whole(&who, move |node, caller| prune::prune(node, caller, &which)).await
}
