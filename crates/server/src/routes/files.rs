//! Files of a sandbox: reads, writes, lists, moves, packs, watches and searches them. Content is streamed in both directions; a file is
//! never held in memory.

mod archive;
mod content;
mod query;
mod watch;

pub(super) use self::content::NoQuery;
use self::content::{CancelOnDrop, DropInBackground};
pub(super) use self::query::WithPath;
use crate::answer::Answer;
use crate::extract::{Json, Path};
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::{
    Document, FileEntry, FileListing, FileMoved, FilesChmod, FilesCopied, FilesCopy, FilesMkdir, FilesRemove,
    FilesRemoved, FilesRename, PathText, Rel, Scope, SearchResult,
};
use axum::extract::State;
use node::files::change;
use node::files::copy;
use node::files::list;
use node::files::search;
use node::files::{self, FileAccess, Root};
use node::{Caller, Node};
use serde::Deserialize;
use serde_json::json;
use terms::{Fault, Phase};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(content::get, content::put))
        .routes(routes!(archive::get, archive::put))
        .routes(routes!(watch::watch))
        .routes(routes!(stat))
        .routes(routes!(ls))
        .routes(routes!(find))
        .routes(routes!(mkdir))
        .routes(routes!(rename))
        .routes(routes!(remove))
        .routes(routes!(chmod))
        .routes(routes!(duplicate))
}

/// Content-Disposition of a guest's bytes, so that a browser saves them and never renders them; without a name chosen by the guest.
const ATTACHMENT: http::HeaderValue = http::HeaderValue::from_static("attachment");

/// Refuses a client that may not read files.
fn may_read(principal: &Principal) -> Result<(), Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])
}

/// Runs an operation that reads a sandbox's files.
async fn read_files<T, F>(
    shared: &Shared,
    principal: &Principal,
    id: String,
    path: Vec<u8>,
    verb: F,
) -> Result<T, Refusal>
where
    T: Send + 'static,
    F: FnOnce(Root, Rel) -> Result<T, Fault> + Send + 'static,
{
    let mut held = open_root(shared, principal, &id, FileAccess::Reading, &path).await?;
    let Some(root) = held.0.take() else { return Err(Fault::internal("the files of the sandbox are not open").into()) };
    shared.verb(principal, move |_, _| root.path(&path).and_then(|path| verb(root, path))).await
}

/// Opens the files of a sandbox. Where that starts a process, the quotas of live sandboxes apply.
async fn open_root(
    shared: &Shared,
    principal: &Principal,
    id: &str,
    purpose: FileAccess,
    path: &[u8],
) -> Result<DropInBackground<Root>, Refusal> {
    let (word, at) = (id.to_owned(), path.to_owned());
    let standing =
        shared.verb(principal, move |node, caller| files::open_standing(node, caller, &word, purpose, &at)).await?;
    if let Some(root) = standing {
        return Ok(DropInBackground(Some(root)));
    }
    let (word, at) = (id.to_owned(), path.to_owned());
    let started =
        shared.make_live(principal, id, move |node, caller| files::open(node, caller, &word, purpose, &at)).await?;
    Ok(DropInBackground(Some(started)))
}

/// Runs an operation that changes a sandbox's files, and records it in the journal.
async fn change_files<T, F>(
    shared: &Shared,
    principal: &Principal,
    (id, path): (String, &[u8]),
    verb: &'static str,
    act: F,
) -> Result<T, Refusal>
where
    T: Send + 'static,
    F: FnOnce(&Root) -> Result<(T, serde_json::Value), Fault> + Send + 'static,
{
    let mut held = open_root(shared, principal, &id, FileAccess::Writing, path).await?;
    let Some(root) = held.0.take() else { return Err(Fault::internal("the files of the sandbox are not open").into()) };
    let work = move |node: &Node, caller: &Caller| {
        let (answer, body) = act(&root)?;
        files::note(node, caller, root.sandbox().unwrap_or(&id), verb, body)?;
        Ok(answer)
    };
    shared.verb(principal, work).await
}

/// Returns the bytes of a file name in a document.
fn bytes_of(field: &str, name: &PathText) -> Result<Vec<u8>, Fault> {
    let bad = || Fault::invalid(format!("{field}: not the base64 encoding of a name")).phase(Phase::Admission);
    name.bytes().ok_or_else(|| bad().hint("send a name that is text as a string"))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StatQuery {
    /// Follow a symbolic link at the end of the path [default: true].
    follow: Option<bool>,
}

/// Returns the metadata of a file.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/stat", tag = "files",
    params(("id" = String, Path), query::PathQuery, StatQuery), responses((status = 200, body = Document<FileEntry>)))]
async fn stat(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    WithPath { path, rest }: WithPath<StatQuery>,
) -> Result<Answer<FileEntry>, Refusal> {
    may_read(&principal)?;
    let follow = rest.follow.unwrap_or(true);
    Ok(Answer::ok(read_files(&shared, &principal, id, path, move |root, path| list::stat(&root, &path, follow)).await?))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListFilesQuery {
    /// Levels of directories to list; 1 is the directory itself [default: 1, at most 1000].
    depth: Option<u32>,
    /// Maximum number of entries [default: 1000, at most 10000].
    limit: Option<u32>,
    /// `next` of the previous page.
    after: Option<String>,
}

/// Lists a directory, in byte order of the names.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/list", tag = "files",
    params(("id" = String, Path), query::PathQuery, ListFilesQuery), responses((status = 200, body = Document<FileListing>),
    (status = 409, description = "Not a directory.", body = Fault)))]
async fn ls(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    WithPath { path, rest }: WithPath<ListFilesQuery>,
) -> Result<Answer<FileListing>, Refusal> {
    may_read(&principal)?;
    let request = list::ListOptions {
        depth: rest.depth.map_or(1, |n| n as usize),
        limit: rest.limit.map_or(list::PAGE, |n| n as usize),
        after: rest.after,
    };
    Ok(Answer::ok(
        read_files(&shared, &principal, id, path, move |root, path| list::list(&root, &path, &request)).await?,
    ))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchQuery {
    /// A regular expression that a line must match. Matching takes time linear in the size of the files.
    content: Option<String>,
    /// `content` is a literal text.
    #[serde(default)]
    fixed: bool,
    /// Ignore case in `content`.
    #[serde(default)]
    ignore_case: bool,
    /// Maximum number of matches [default: 1000, at most 10000].
    limit: Option<u32>,
}

/// Searches files by name and content. A response that is not `complete` says which limit ended the search.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/search", tag = "files",
    params(("id" = String, Path), query::PathQuery,
        ("glob" = Option<Vec<String>>, Query, style = Form, explode, description = "A glob; may be repeated. Without a slash it matches file names, with a slash paths below `path`."),
        SearchQuery), responses((status = 200, body = Document<SearchResult>),
    (status = 409, description = "Not a directory.", body = Fault)))]
async fn find(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    query::WithGlobs { path, globs, rest }: query::WithGlobs<SearchQuery>,
) -> Result<Answer<SearchResult>, Refusal> {
    may_read(&principal)?;
    let permit = shared.search_permit(&principal).await?;
    let cancel = CancelOnDrop::default();
    let request = search::SearchOptions {
        globs,
        content: rest.content,
        fixed: rest.fixed,
        ignore_case: rest.ignore_case,
        limit: rest.limit.map_or(search::MATCHES, |n| n as usize),
        patience: search::PATIENCE,
        interest: cancel.interest(),
    };
    let verb = move |root, path| {
        // Held until the search has ended, also when the client is gone.
        let _permit = permit;
        search::search(&root, &path, &request)
    };
    Ok(Answer::ok(read_files(&shared, &principal, id, path, verb).await?))
}

/// Creates a directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/mkdir", tag = "files", request_body = FilesMkdir,
    params(("id" = String, Path)), responses((status = 200, body = Document<FileEntry>)))]
async fn mkdir(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Json(request): Json<FilesMkdir>,
) -> Result<Answer<FileEntry>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let at = bytes_of("path", &request.path)?;
    let act = move |root: &Root| {
        let path = root.path(&bytes_of("path", &request.path)?)?;
        let made = change::mkdir(root, &path, request.parents, request.mode.map(|mode| mode.0))?;
        let body = json!({ "path": &made.path });
        Ok((made, body))
    };
    Ok(Answer::ok(change_files(&shared, &principal, (id, &at), "files.mkdir", act).await?))
}

/// Renames or moves a file or directory. A symbolic link itself is moved, not its target.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/rename", tag = "files", request_body = FilesRename,
    params(("id" = String, Path)), responses((status = 200, body = Document<FileMoved>)))]
async fn rename(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Json(request): Json<FilesRename>,
) -> Result<Answer<FileMoved>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let at = bytes_of("from", &request.from)?;
    let act = move |root: &Root| {
        let (from, to) = (root.path(&bytes_of("from", &request.from)?)?, root.path(&bytes_of("to", &request.to)?)?);
        let moved = change::rename(root, &from, &to, request.replace)?;
        Ok((moved, json!({ "from": from, "to": to })))
    };
    Ok(Answer::ok(change_files(&shared, &principal, (id, &at), "files.rename", act).await?))
}

/// Removes a file, a symbolic link, or a directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/remove", tag = "files", request_body = FilesRemove,
    params(("id" = String, Path)), responses((status = 200, body = Document<FilesRemoved>)))]
async fn remove(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Json(request): Json<FilesRemove>,
) -> Result<Answer<FilesRemoved>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let at = bytes_of("path", &request.path)?;
    let act = move |root: &Root| {
        let path = root.path(&bytes_of("path", &request.path)?)?;
        let removed = change::remove(root, &path, request.recursive)?;
        Ok((removed, json!({ "path": path, "files": removed.files, "dirs": removed.dirs })))
    };
    Ok(Answer::ok(change_files(&shared, &principal, (id, &at), "files.remove", act).await?))
}

/// Sets permission bits. A symbolic link is followed.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/chmod", tag = "files", request_body = FilesChmod,
    params(("id" = String, Path)), responses((status = 200, body = Document<FileEntry>)))]
async fn chmod(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Json(request): Json<FilesChmod>,
) -> Result<Answer<FileEntry>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let at = bytes_of("path", &request.path)?;
    let act = move |root: &Root| {
        let path = root.path(&bytes_of("path", &request.path)?)?;
        let entry = change::chmod(root, &path, request.mode.0)?;
        Ok((entry, json!({ "path": path, "mode": request.mode })))
    };
    Ok(Answer::ok(change_files(&shared, &principal, (id, &at), "files.chmod", act).await?))
}

/// Copies a file or a directory inside the workspace.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/copy", tag = "files", request_body = FilesCopy, operation_id = "copy",
    params(("id" = String, Path)), responses((status = 200, body = Document<FilesCopied>)))]
async fn duplicate(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Json(request): Json<FilesCopy>,
) -> Result<Answer<FilesCopied>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let at = bytes_of("from", &request.from)?;
    let act = move |root: &Root| {
        let (from, to) = (root.path(&bytes_of("from", &request.from)?)?, root.path(&bytes_of("to", &request.to)?)?);
        let how = copy::CopyOptions { recursive: request.recursive, replace: request.replace };
        let copied = copy::copy(root, &from, &to, &how)?;
        let body = json!({ "from": from, "to": to, "files": copied.files, "bytes": copied.bytes });
        Ok((copied, body))
    };
    Ok(Answer::ok(change_files(&shared, &principal, (id, &at), "files.copy", act).await?))
}
