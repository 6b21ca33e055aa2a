//! Files of a sandbox: read, written, listed, moved, packed, watched and searched. Bytes are streamed both ways; no file is ever
//! held in memory.

mod archive;
mod asked;
mod content;
mod watch;

pub(super) use self::asked::At;
pub(super) use self::content::Nothing;
use self::content::{Aside, Waits};
use crate::answer::{Answer, Document};
use crate::ask::{Json, Path};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use node::files::change::{self, Moved, Removed};
use node::files::copy::{self, Copied};
use node::files::list::{self, Listing};
use node::files::search::{self, Found};
use node::files::{self, Entry, Purpose, Rel, Root, Target};
use node::{Caller, Node};
use serde::{Deserialize, Serialize};
use serde_json::json;
use terms::octal::Mode;
use terms::{Fault, Phase};
use utoipa::{IntoParams, ToSchema};
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

/// Bytes of a guest are saved by a browser, and never shown: no name that the guest chose stands there either.
const SAVED: http::HeaderValue = http::HeaderValue::from_static("attachment");

/// Who may read files.
fn may_read(who: &Who) -> Result<(), Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])
}

/// Reads something of a sandbox's files.
async fn reading<T, F>(shared: &Shared, who: &Who, id: String, path: Vec<u8>, verb: F) -> Result<T, Refusal>
where
    T: Send + 'static,
    F: FnOnce(Root, Rel) -> Result<T, Fault> + Send + 'static,
{
    let mut held = rooted(shared, who, &id, Purpose::Reading).await?;
    let Some(root) = held.0.take() else { return Err(Fault::internal("files that nobody has").into()) };
    shared.verb(who, move |_, _| root.path(&path).and_then(|path| verb(root, path))).await
}

/// The files of a sandbox. Where a process must be started for them, there must be room for one more.
async fn rooted(shared: &Shared, who: &Who, id: &str, purpose: Purpose) -> Result<Aside<Root>, Refusal> {
    let word = id.to_owned();
    let standing = shared.verb(who, move |node, caller| files::open_standing(node, caller, &word, purpose)).await?;
    if let Some(root) = standing {
        return Ok(Aside(Some(root)));
    }
    let word = id.to_owned();
    let started = shared.enlivening(who, id, move |node, caller| files::open(node, caller, &word, purpose)).await?;
    Ok(Aside(Some(started)))
}

/// Changes something, and writes down who did.
async fn changing<T, F>(shared: &Shared, who: &Who, id: String, verb: &'static str, act: F) -> Result<T, Refusal>
where
    T: Send + 'static,
    F: FnOnce(&Root) -> Result<(T, serde_json::Value), Fault> + Send + 'static,
{
    let mut held = rooted(shared, who, &id, Purpose::Writing).await?;
    let Some(root) = held.0.take() else { return Err(Fault::internal("files that nobody has").into()) };
    let work = move |node: &Node, caller: &Caller| {
        let (answer, body) = act(&root)?;
        files::note(node, caller, root.sandbox().unwrap_or(&id), verb, body)?;
        Ok(answer)
    };
    shared.verb(who, work).await
}

/// A name in a document, as bytes.
fn bytes_of(field: &str, name: &Target) -> Result<Vec<u8>, Fault> {
    let bad = || Fault::invalid(format!("{field}: not base64 of a name that is no text")).phase(Phase::Admission);
    name.bytes().ok_or_else(|| bad().hint("write a name that is text as a string"))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StatQuery {
    /// What a link at the end leads to, instead of the link [default: true].
    follow: Option<bool>,
}

/// Look at one file.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/stat", tag = "files",
    params(("id" = String, Path), asked::PathQuery, StatQuery), responses((status = 200, body = Document<Entry>)))]
async fn stat(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    At { path, rest }: At<StatQuery>,
) -> Result<Answer<Entry>, Refusal> {
    may_read(&who)?;
    let follow = rest.follow.unwrap_or(true);
    Ok(Answer::ok(reading(&shared, &who, id, path, move |root, path| list::stat(&root, &path, follow)).await?))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// 1 is what is in the directory; more goes into those below [default: 1, at most 1000].
    depth: Option<u32>,
    /// At most so many [default: 1000, at most 10000].
    limit: Option<u32>,
    /// Behind the part that `next` of an earlier answer ended.
    after: Option<String>,
}

/// List what is in a directory, in the order of the bytes of names.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/list", tag = "files",
    params(("id" = String, Path), asked::PathQuery, ListQuery), responses((status = 200, body = Document<Listing>),
    (status = 409, description = "It is no directory.", body = Fault)))]
async fn ls(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    At { path, rest }: At<ListQuery>,
) -> Result<Answer<Listing>, Refusal> {
    may_read(&who)?;
    let ask = list::Ask {
        depth: rest.depth.map_or(1, |n| n as usize),
        limit: rest.limit.map_or(list::PAGE, |n| n as usize),
        after: rest.after,
    };
    Ok(Answer::ok(reading(&shared, &who, id, path, move |root, path| list::list(&root, &path, &ask)).await?))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchQuery {
    /// What must be in a line: a regular expression, which takes time that grows with the files and not with the pattern.
    content: Option<String>,
    /// The content is a text as it stands.
    #[serde(default)]
    fixed: bool,
    /// Capital and small letters are the same.
    #[serde(default)]
    ignore_case: bool,
    /// At most so many matches [default: 1000, at most 10000].
    limit: Option<u32>,
}

/// Search files by name and by content. An answer that is not `complete` says which bound ended it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/search", tag = "files",
    params(("id" = String, Path), asked::PathQuery,
        ("glob" = Option<Vec<String>>, Query, style = Form, explode, description = "A pattern of names; may be given several times. Without a slash it is about the last name, with one about the path below `path`."),
        SearchQuery), responses((status = 200, body = Document<Found>),
    (status = 409, description = "It is no directory.", body = Fault)))]
async fn find(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    asked::Globbed { path, globs, rest }: asked::Globbed<SearchQuery>,
) -> Result<Answer<Found>, Refusal> {
    may_read(&who)?;
    let turn = shared.search_turn(&who).await?;
    let waits = Waits::default();
    let ask = search::Ask {
        globs,
        content: rest.content,
        fixed: rest.fixed,
        ignore_case: rest.ignore_case,
        limit: rest.limit.map_or(search::MATCHES, |n| n as usize),
        patience: search::PATIENCE,
        interest: waits.interest(),
    };
    let verb = move |root, path| {
        // As long as it takes, whoever waits for it.
        let _turn = turn;
        search::search(&root, &path, &ask)
    };
    Ok(Answer::ok(reading(&shared, &who, id, path, verb).await?))
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FilesMkdir)]
struct Mkdir {
    path: Target,
    /// Also those above it; one that is there already is fine then.
    #[serde(default)]
    parents: bool,
    /// Permission bits in octal, as text [default: "755"].
    mode: Option<Mode>,
}

/// Make a directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/mkdir", tag = "files", request_body = Mkdir,
    params(("id" = String, Path)), responses((status = 200, body = Document<Entry>)))]
async fn mkdir(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    Json(ask): Json<Mkdir>,
) -> Result<Answer<Entry>, Refusal> {
    who.needs(Scope::Agent)?;
    let act = move |root: &Root| {
        let path = root.path(&bytes_of("path", &ask.path)?)?;
        let made = change::mkdir(root, &path, ask.parents, ask.mode.map(|mode| mode.0))?;
        let body = json!({ "path": &made.path });
        Ok((made, body))
    };
    Ok(Answer::ok(changing(&shared, &who, id, "files.mkdir", act).await?))
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FilesRename)]
struct Rename {
    from: Target,
    to: Target,
    /// What stands at the new name is replaced.
    #[serde(default)]
    replace: bool,
}

/// Give a file or directory another name. A link is moved, not what it leads to.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/rename", tag = "files", request_body = Rename,
    params(("id" = String, Path)), responses((status = 200, body = Document<Moved>)))]
async fn rename(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    Json(ask): Json<Rename>,
) -> Result<Answer<Moved>, Refusal> {
    who.needs(Scope::Agent)?;
    let act = move |root: &Root| {
        let (from, to) = (root.path(&bytes_of("from", &ask.from)?)?, root.path(&bytes_of("to", &ask.to)?)?);
        let moved = change::rename(root, &from, &to, ask.replace)?;
        Ok((moved, json!({ "from": from, "to": to })))
    };
    Ok(Answer::ok(changing(&shared, &who, id, "files.rename", act).await?))
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FilesRemove)]
struct Remove {
    path: Target,
    /// A directory with all that is in it.
    #[serde(default)]
    recursive: bool,
}

/// Remove a file, a link, or a directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/remove", tag = "files", request_body = Remove,
    params(("id" = String, Path)), responses((status = 200, body = Document<Removed>)))]
async fn remove(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    Json(ask): Json<Remove>,
) -> Result<Answer<Removed>, Refusal> {
    who.needs(Scope::Agent)?;
    let act = move |root: &Root| {
        let path = root.path(&bytes_of("path", &ask.path)?)?;
        let removed = change::remove(root, &path, ask.recursive)?;
        Ok((removed, json!({ "path": path, "files": removed.files, "dirs": removed.dirs })))
    };
    Ok(Answer::ok(changing(&shared, &who, id, "files.remove", act).await?))
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FilesChmod)]
struct Chmod {
    path: Target,
    /// Permission bits in octal, as text, without set-user-id and set-group-id.
    mode: Mode,
}

/// Set permission bits, of what a link leads to and not of the link.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/chmod", tag = "files", request_body = Chmod,
    params(("id" = String, Path)), responses((status = 200, body = Document<Entry>)))]
async fn chmod(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    Json(ask): Json<Chmod>,
) -> Result<Answer<Entry>, Refusal> {
    who.needs(Scope::Agent)?;
    let act = move |root: &Root| {
        let path = root.path(&bytes_of("path", &ask.path)?)?;
        let entry = change::chmod(root, &path, ask.mode.0)?;
        Ok((entry, json!({ "path": path, "mode": ask.mode })))
    };
    Ok(Answer::ok(changing(&shared, &who, id, "files.chmod", act).await?))
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FilesCopy)]
struct Copy {
    from: Target,
    to: Target,
    /// A directory with all that is in it.
    #[serde(default)]
    recursive: bool,
    /// A file that stands there already is replaced; a directory never.
    #[serde(default)]
    replace: bool,
}

/// Copy a file or a directory inside the workspace.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/copy", tag = "files", request_body = Copy, operation_id = "copy",
    params(("id" = String, Path)), responses((status = 200, body = Document<Copied>)))]
async fn duplicate(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    Json(ask): Json<Copy>,
) -> Result<Answer<Copied>, Refusal> {
    who.needs(Scope::Agent)?;
    let act = move |root: &Root| {
        let (from, to) = (root.path(&bytes_of("from", &ask.from)?)?, root.path(&bytes_of("to", &ask.to)?)?);
        let how = copy::Ask { recursive: ask.recursive, replace: ask.replace };
        let copied = copy::copy(root, &from, &to, &how)?;
        let body = json!({ "from": from, "to": to, "files": copied.files, "bytes": copied.bytes });
        Ok((copied, body))
    };
    Ok(Answer::ok(changing(&shared, &who, id, "files.copy", act).await?))
}
