//! Sandboxes: made, listed, looked at, changed, started, stopped, removed, collected.

use crate::answer::{Answer, Document};
use crate::ask::{Cursor, IfMatch, Json, Key, Paging, Path, Query, Time, Wait};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use node::keeper::suspend::{Resumed, Suspended, resume as wake, suspend as rest};
use node::lifecycle::admission::Standing;
use node::lifecycle::change::{self, Changed};
use node::lifecycle::create::{Ask, Created, claim, make};
use node::lifecycle::gc::{Collected, collect, plan};
use node::lifecycle::list::{Row, Whole, covering as covers, inspect, list as list_all};
use node::lifecycle::remove::{self, Removed};
use node::lifecycle::stop::{Moved, Which, start as restart, start_live, stop as halt};
use node::policies::Source;
use node::quota::More;
use node::sandbox::{Driver, Service, Sharing, Tier};
use node::top::{Look, Top};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use terms::{Fault, Limits, Phase};
use utoipa::{IntoParams, ToSchema};
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

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = SandboxList)]
pub struct List {
    pub sandboxes: Vec<Row>,
    /// What `after` must be for the next part; none where this was the last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
}

/// List sandboxes, the newest first.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", params(ListQuery),
    responses((status = 200, body = Document<List>)))]
async fn list(State(shared): State<Shared>, who: Who, Query(query): Query<ListQuery>) -> Result<Answer<List>, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    let mut rows = shared.verb(&who, move |caller| list_all(caller, query.removed)).await?;
    let key = |row: &Row| Cursor::timed(row.created_ms, &row.id);
    rows.sort_by_cached_key(key);
    let page = Paging { limit: query.limit, after: query.after };
    let (sandboxes, next) = page.cut(rows, Cursor::Timed("sbx_"), key)?;
    Ok(Answer::ok(List { sandboxes, next }))
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
    Ok(Answer::ok(shared.verb(&who, move |caller| covers(&query.dir, caller)).await?))
}

/// What a new sandbox shall be.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = SandboxCreate)]
pub struct Make {
    /// The directory to cover, by its whole path; an empty one of its own where none is given.
    #[schema(value_type = Option<String>)]
    pub dir: Option<PathBuf>,
    pub name: Option<String>,
    /// A template to begin from.
    pub template: Option<String>,
    /// Built-in policies by name, or whole documents; several are merged, and `default` is meant where there are none.
    pub policies: Vec<PolicyOf>,
    pub limits: Limits,
    #[schema(minimum = 0.01, maximum = 4096)]
    pub cpus: Option<f64>,
    /// May be collected after so long.
    pub ttl_ms: Option<u64>,
    /// May be collected when unused for so long.
    pub idle_ms: Option<u64>,
    /// Paths below the directory that no other sandbox may reserve meanwhile.
    pub reserve: Vec<String>,
    pub sharing: Sharing,
    /// How changes are kept apart; the best that works where none is given.
    pub driver: Option<Driver>,
    /// Commands that run as long as it is live.
    #[serde(default)]
    pub services: Vec<Service>,
    /// Nothing in the directory can be changed.
    pub read_only: bool,
    /// Where secrets of the policies come from that are not kept under their own name: `NAME=store:OTHER`, if an operator says so, or
    /// `NAME=brought:run` with the runs themselves.
    pub secrets: Vec<String>,
    /// What happens on its network is written down in so many bytes at most [64 MiB]; `network/events` tells it.
    pub events_max: Option<u64>,
    /// Refused reads of its commands are reported, too; every open then waits for the keeper.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub report_reads: bool,
    /// How long its questions wait for an answer [60000].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000, maximum = 600_000)]
    pub ask_timeout_ms: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PolicyOf {
    Name(String),
    #[schema(value_type = Object)]
    Document(serde_json::Map<String, serde_json::Value>),
}

impl From<PolicyOf> for Source {
    fn from(policy: PolicyOf) -> Source {
        match policy {
            PolicyOf::Name(name) => Source::Preset(name),
            PolicyOf::Document(document) => Source::Text(serde_json::Value::Object(document).to_string()),
        }
    }
}

impl Make {
    pub(super) fn ask(self, key: Key) -> Result<Ask, Fault> {
        let relative = self.dir.as_ref().filter(|dir| !dir.is_absolute());
        if let Some(dir) = relative {
            let fault = Fault::invalid(format!("dir {:?}: not a whole path", dir.display())).phase(Phase::Admission);
            return Err(fault.hint("give a path that begins with a slash, or none for an empty directory"));
        }
        Ok(Ask {
            own_base: self.dir.is_none(),
            dir: self.dir,
            name: self.name,
            reserve: self.reserve.into_iter().map(Into::into).collect(),
            sharing: self.sharing,
            template: self.template,
            policies: self.policies.into_iter().map(Source::from).collect(),
            flags: Vec::new(),
            limits: self.limits,
            cpus: self.cpus,
            ttl_ms: self.ttl_ms,
            idle_ms: self.idle_ms,
            key: key.0,
            driver: self.driver,
            services: self.services,
            read_only: self.read_only,
            secrets: self.secrets,
            events_max: self.events_max,
            report_reads: self.report_reads,
            ask_timeout_ms: self.ask_timeout_ms,
        })
    }
}

/// Make a sandbox, or have one that stands ready for the template.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = Make,
    params(("Idempotency-Key" = Option<String>, Header, description = "Sent again, the request makes no second one.")),
    responses((status = 201, body = Document<Created>), (status = 200, description = "An earlier request under the same key made it.", body = Document<Created>)))]
async fn create(
    State(shared): State<Shared>,
    who: Who,
    key: Key,
    Json(body): Json<Make>,
) -> Result<Answer<Created>, Refusal> {
    who.needs(Scope::Agent)?;
    let ask = body.ask(key.clone())?;
    // What stands ready is counted already.
    let wanted = ask.clone();
    let claimed = match ask.template.is_some() {
        true => shared.verb(&who, move |caller| claim(&wanted, caller)).await?,
        false => None,
    };
    let made = match claimed {
        Some(claimed) => {
            shared.taken().notify_one();
            claimed
        }
        None => shared.making(&who, vec![More::Sandboxes(1)], &key, move |caller| make(&ask, caller)).await?,
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
    let whole = shared.wait(&who, time, move |caller| inspect(Some(&id), caller), is_quiet).await?;
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
    let changed = shared.verb(&who, move |caller| change::change(&which, &ask, caller)).await?;
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
    Ok(Answer::ok(shared.verb(&who, move |caller| remove::remove(&which, force, caller)).await?))
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
        true => shared.enlivening(&who, &id, move |caller| start_live(&which, caller)).await?,
        false => shared.verb(&who, move |caller| restart(&which, caller)).await?,
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
    let moved = shared.verb(&who, move |caller| halt(&which, patience, caller)).await?;
    let version = moved.version;
    Ok(Answer::ok(moved).version(version))
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SandboxSuspend)]
pub struct SuspendAsk {
    /// How far; what is reached the answer says.
    #[serde(default = "frozen")]
    pub tier: Tier,
    /// How long commands may take to end where they must, in milliseconds [default: 10000].
    pub grace_ms: Option<u64>,
}

fn frozen() -> Tier {
    Tier::Frozen
}

/// Let everything in it stand still, or end it in order and keep what starts it again. The answer says which was reached.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/suspend", tag = "sandboxes", request_body = SuspendAsk,
    params(("id" = String, Path), ("If-Match" = Option<String>, Header, description = "The version that is meant.")),
    responses((status = 200, body = Document<Suspended>)))]
async fn suspend(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    version: IfMatch,
    Json(ask): Json<SuspendAsk>,
) -> Result<Answer<Suspended>, Refusal> {
    who.needs(Scope::Agent)?;
    let (which, grace) = (which(id, version), patience(ask.grace_ms.map(|ms| Time(Duration::from_millis(ms))))?);
    let suspended = shared.verb(&who, move |caller| rest(&which, ask.tier, grace, caller)).await?;
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
    let resumed = shared.enlivening(&who, &id, move |caller| wake(&which, caller)).await?;
    let version = resumed.version;
    Ok(Answer::ok(resumed).version(version))
}

/// What each sandbox uses now, the one with the most memory first.
#[utoipa::path(get, path = "/v1/top", tag = "sandboxes", responses((status = 200, body = Document<Look>)))]
async fn top(State(shared): State<Shared>, who: Who) -> Result<Answer<Look>, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    Ok(Answer::ok(shared.verb(&who, |caller| Top::default().look(caller)).await?))
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct Swept {
    pub dry_run: bool,
    #[serde(flatten)]
    pub collected: Collected,
}

/// What a collection would take away, without taking it.
#[utoipa::path(get, path = "/v1/gc", tag = "sandboxes", responses((status = 200, body = Document<Swept>)))]
async fn gc_plan(State(shared): State<Shared>, who: Who) -> Result<Answer<Swept>, Refusal> {
    who.needs(Scope::Operator)?;
    let keep = *shared.keep();
    Ok(Answer::ok(Swept { dry_run: true, collected: shared.verb(&who, move |caller| plan(caller, &keep)).await? }))
}

/// Take away what has expired, what crashes have left, and records of what is long past.
#[utoipa::path(post, path = "/v1/gc", tag = "sandboxes", responses((status = 200, body = Document<Swept>)))]
async fn gc(State(shared): State<Shared>, who: Who) -> Result<Answer<Swept>, Refusal> {
    who.needs(Scope::Operator)?;
    let keep = *shared.keep();
    Ok(Answer::ok(Swept { dry_run: false, collected: shared.verb(&who, move |caller| collect(caller, &keep)).await? }))
}
