//! Sandboxes: made, listed, looked at, changed, started, stopped, removed, collected.

use crate::answer::{Answer, Document};
use crate::ask::{Cursor, IfMatch, Json, Key, Paging, Path, Query, Time, Wait};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use client::wire::{SandboxCreate, SandboxList, SandboxSuspend, Swept};
use node::admission::Standing;
use node::change::{self, Changed};
use node::create::{Ask, Created, claim, make};
use node::gc::{collect, plan};
use node::keeper::suspend::{Resumed, Suspended, resume as wake, suspend as rest};
use node::list::{Row, Whole, covering as covers, inspect, list as list_all};
use node::policies::Source;
use node::quota::More;
use node::remove::{self, Removed};
use node::sandbox::Which;
use node::stop::{Moved, start as restart, start_live, stop as halt};
use node::top::{Look, Top};
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;
use terms::{Fault, Phase};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(covering))
        .routes(routes!(get, patch, delete))
        .routes(routes!(start))
        .routes(routes!(stop))
        .routes(routes!(suspend))
        .routes(routes!(resume))
        .routes(routes!(gc_plan, gc))
        .routes(routes!(top))
}

fn which(id: String, version: IfMatch) -> Which {
    Which { word: Some(id), version: version.0 }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// At most so many [default: 100, at most 1000].
    limit: Option<u32>,
    /// Behind the part that `next` of an earlier answer ended.
    after: Option<String>,
    /// Also those that stand ready for templates, and what is left of those that were removed.
    #[serde(default)]
    removed: bool,
}

/// List sandboxes, the newest first.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", params(ListQuery),
    responses((status = 200, body = Document<SandboxList>)))]
async fn list(
    State(shared): State<Shared>,
    who: Who,
    Query(query): Query<ListQuery>,
) -> Result<Answer<SandboxList>, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    let mut rows = shared.verb(&who, move |node, caller| list_all(node, caller, query.removed)).await?;
    let key = |row: &Row| Cursor::timed(row.created_ms, &row.id);
    rows.sort_by_cached_key(key);
    let page = Paging { limit: query.limit, after: query.after };
    let (sandboxes, next) = page.cut(rows, Cursor::Timed("sbx_"), key)?;
    Ok(Answer::ok(SandboxList { sandboxes, next }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CoveringQuery {
    /// The directory, by its whole path.
    #[param(value_type = String)]
    dir: PathBuf,
}

/// The sandbox that covers a directory, or the nearest one above it; of several the one used last.
#[utoipa::path(get, path = "/v1/covering", tag = "sandboxes", params(CoveringQuery),
    responses((status = 200, body = Document<Row>), (status = 404, description = "There is no such thing.", body = Fault)))]
async fn covering(
    State(shared): State<Shared>,
    who: Who,
    Query(query): Query<CoveringQuery>,
) -> Result<Answer<Row>, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    shared.answer(&who, move |node, caller| covers(node, caller, &query.dir)).await
}

/// Converts a request into what the verb takes; a directory must be given by its absolute path.
pub(super) fn create_ask(create: SandboxCreate, key: Key) -> Result<Ask, Fault> {
    let relative = create.dir.as_ref().filter(|dir| !dir.is_absolute());
    if let Some(dir) = relative {
        let fault = Fault::invalid(format!("dir {:?}: not a whole path", dir.display())).phase(Phase::Admission);
        return Err(fault.hint("give a path that begins with a slash, or none for an empty directory"));
    }
    Ok(Ask {
        own_base: create.dir.is_none(),
        dir: create.dir,
        name: create.name,
        reserve: create.reserve.into_iter().map(Into::into).collect(),
        sharing: create.sharing,
        template: create.template,
        policies: create.policies.into_iter().map(Source::from).collect(),
        flags: Vec::new(),
        limits: create.limits,
        cpus: create.cpus,
        ttl_ms: create.ttl_ms,
        idle_ms: create.idle_ms,
        key: key.0,
        driver: create.driver,
        services: create.services,
        read_only: create.read_only,
        secrets: create.secrets,
        events_max: create.events_max,
        report_reads: create.report_reads,
        ask_timeout_ms: create.ask_timeout_ms,
    })
}

/// Make a sandbox, or have one that stands ready for the template.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = SandboxCreate,
    params(("Idempotency-Key" = Option<String>, Header, description = "Sent again, the request makes no second one.")),
    responses((status = 201, body = Document<Created>), (status = 200, description = "An earlier request under the same key made it.", body = Document<Created>)))]
async fn create(
    State(shared): State<Shared>,
    who: Who,
    key: Key,
    Json(body): Json<SandboxCreate>,
) -> Result<Answer<Created>, Refusal> {
    who.needs(Scope::Agent)?;
    let ask = create_ask(body, key.clone())?;
    // What stands ready is counted already.
    let wanted = ask.clone();
    let claimed = match ask.template.is_some() {
        true => shared.verb(&who, move |node, caller| claim(node, caller, &wanted)).await?,
        false => None,
    };
    let made = match claimed {
        Some(claimed) => {
            shared.taken().notify_one();
            claimed
        }
        None => {
            shared.making(&who, vec![More::Sandboxes(1)], &key, move |node, caller| make(node, caller, &ask)).await?
        }
    };
    let (version, existed) = (made.version, made.existed);
    Ok(Answer::made(made, existed).version(version))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LookQuery {
    /// Hold the answer back until no command runs in it, at most so long; up to `10m`, and more is refused.
    wait: Option<Wait>,
}

/// Look at one sandbox. Its id stands in the path; a name, or the beginning of an id that no other has, will do.
#[utoipa::path(get, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path), LookQuery),
    responses((status = 200, body = Document<Whole>)))]
async fn get(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    Query(query): Query<LookQuery>,
) -> Result<Answer<Whole>, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    let time = query.wait.map_or(Duration::ZERO, |wait| wait.0);
    let is_quiet = |whole: &Whole| !matches!(whole.standing, Standing::Running | Standing::Stopping | Standing::Silent);
    let whole = shared.wait(&who, time, move |node, caller| inspect(node, caller, Some(&id)), is_quiet).await?;
    let version = whole.version;
    Ok(Answer::ok(whole).version(version))
}

/// Change a sandbox's name, how long it is kept, its network rules, its limits or the ports of the host that lead inside.
#[utoipa::path(patch, path = "/v1/sandboxes/{id}", tag = "sandboxes", request_body = change::Ask,
    params(("id" = String, Path), ("If-Match" = Option<String>, Header, description = "The version that is meant.")),
    responses((status = 200, body = Document<Changed>)))]
async fn patch(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    version: IfMatch,
    Json(mut ask): Json<change::Ask>,
) -> Result<Answer<Changed>, Refusal> {
    who.needs(Scope::Agent)?;
    ask.may_widen = who.scopes.contains(&Scope::Operator);
    let which = which(id, version);
    let changed = shared.verb(&who, move |node, caller| change::change(node, caller, &which, &ask)).await?;
    let version = changed.version;
    Ok(Answer::ok(changed).version(version))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemoveQuery {
    /// End what runs in it first.
    #[serde(default)]
    force: bool,
    /// How long a command may take to end before it is killed [default: 10s].
    timeout: Option<Time>,
}

/// Remove a sandbox and all it changed that was not approved.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", tag = "sandboxes",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header, description = "The version that is meant."), RemoveQuery),
    responses((status = 200, body = Document<Removed>)))]
async fn delete(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    version: IfMatch,
    Query(query): Query<RemoveQuery>,
) -> Result<Answer<Removed>, Refusal> {
    who.needs(Scope::Agent)?;
    let (which, patience) = (which(id, version), patience(query.timeout)?);
    let force = query.force.then_some(patience);
    shared.answer(&who, move |node, caller| remove::remove(node, caller, &which, force)).await
}

/// How long a command may take to end once it was asked to.
fn patience(given: Option<Time>) -> Result<Duration, Refusal> {
    const USUAL: Duration = Duration::from_secs(10);
    const LONGEST: Duration = Duration::from_secs(300);
    match given.map(|time| time.0) {
        Some(time) if time > LONGEST => {
            let fault = Fault::invalid("the query: timeout: longer than 5m").hint("ask for at most 5m");
            Err(fault.phase(Phase::Admission).into())
        }
        time => Ok(time.unwrap_or(USUAL)),
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StartQuery {
    /// It is live from now on until it is stopped, with its services; else it becomes live for commands and rests between them.
    #[serde(default)]
    live: bool,
}

/// Let commands be run in it again.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/start", tag = "sandboxes",
    params(("id" = String, Path), StartQuery, ("If-Match" = Option<String>, Header, description = "The version that is meant.")),
    responses((status = 200, body = Document<Moved>)))]
async fn start(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    version: IfMatch,
    Query(query): Query<StartQuery>,
) -> Result<Answer<Moved>, Refusal> {
    who.needs(Scope::Agent)?;
    let which = which(id.clone(), version);
    let moved = match query.live {
        true => shared.enlivening(&who, &id, move |node, caller| start_live(node, caller, &which)).await?,
        false => shared.verb(&who, move |node, caller| restart(node, caller, &which)).await?,
    };
    let version = moved.version;
    Ok(Answer::ok(moved).version(version))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StopQuery {
    /// How long a command may take to end before it is killed [default: 10s].
    timeout: Option<Time>,
}

/// End what runs in it, and let nothing be run until it is started again.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/stop", tag = "sandboxes",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header, description = "The version that is meant."), StopQuery),
    responses((status = 200, body = Document<Moved>)))]
async fn stop(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    version: IfMatch,
    Query(query): Query<StopQuery>,
) -> Result<Answer<Moved>, Refusal> {
    who.needs(Scope::Agent)?;
    let (which, patience) = (which(id, version), patience(query.timeout)?);
    let moved = shared.verb(&who, move |node, caller| halt(node, caller, &which, patience)).await?;
    let version = moved.version;
    Ok(Answer::ok(moved).version(version))
}

/// Let everything in it stand still, or end it in order and keep what starts it again. The answer says which was reached.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/suspend", tag = "sandboxes", request_body = SandboxSuspend,
    params(("id" = String, Path), ("If-Match" = Option<String>, Header, description = "The version that is meant.")),
    responses((status = 200, body = Document<Suspended>)))]
async fn suspend(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    version: IfMatch,
    Json(ask): Json<SandboxSuspend>,
) -> Result<Answer<Suspended>, Refusal> {
    who.needs(Scope::Agent)?;
    let (which, grace) = (which(id, version), patience(ask.grace_ms.map(|ms| Time(Duration::from_millis(ms))))?);
    let suspended = shared.verb(&who, move |node, caller| rest(node, caller, &which, ask.tier, grace)).await?;
    let version = suspended.version;
    Ok(Answer::ok(suspended).version(version))
}

/// Let it go on. A command, a file or a port that is asked for does the same.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/resume", tag = "sandboxes",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header, description = "The version that is meant.")),
    responses((status = 200, body = Document<Resumed>)))]
async fn resume(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    version: IfMatch,
) -> Result<Answer<Resumed>, Refusal> {
    who.needs(Scope::Agent)?;
    let which = which(id.clone(), version);
    let resumed = shared.enlivening(&who, &id, move |node, caller| wake(node, caller, &which)).await?;
    let version = resumed.version;
    Ok(Answer::ok(resumed).version(version))
}

/// What each sandbox uses now, the one with the most memory first.
#[utoipa::path(get, path = "/v1/top", tag = "sandboxes", responses((status = 200, body = Document<Look>)))]
async fn top(State(shared): State<Shared>, who: Who) -> Result<Answer<Look>, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    shared.answer(&who, |node, caller| Top::default().look(node, caller)).await
}

/// What a collection would take away, without taking it.
#[utoipa::path(get, path = "/v1/gc", tag = "sandboxes", responses((status = 200, body = Document<Swept>)))]
async fn gc_plan(State(shared): State<Shared>, who: Who) -> Result<Answer<Swept>, Refusal> {
    who.needs(Scope::Operator)?;
    let keep = *shared.keep();
    shared
        .answer(&who, move |node, caller| plan(node, caller, &keep).map(|collected| Swept { dry_run: true, collected }))
        .await
}

/// Take away what has expired, what crashes have left, and records of what is long past.
#[utoipa::path(post, path = "/v1/gc", tag = "sandboxes", responses((status = 200, body = Document<Swept>)))]
async fn gc(State(shared): State<Shared>, who: Who) -> Result<Answer<Swept>, Refusal> {
    who.needs(Scope::Operator)?;
    let keep = *shared.keep();
    shared
        .answer(&who, move |node, caller| {
            collect(node, caller, &keep).map(|collected| Swept { dry_run: false, collected })
        })
        .await
}
