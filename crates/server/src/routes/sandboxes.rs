//! Sandboxes: creates, lists, inspects, changes, starts, stops, removes and collects them.

use crate::answer::Answer;
use crate::extract::{Cursor, IdempotencyKey, IfMatch, Json, Paging, Path, Query};
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::{
    Document, DurationParam, GcReport, MetadataFilter, SandboxChange, SandboxChanged, SandboxCreate, SandboxCreated,
    SandboxDetails, SandboxList, SandboxRemoved, SandboxResumed, SandboxState, SandboxStateChanged, SandboxSummary,
    SandboxSuspend, SandboxSuspended, Scope, TopReport, WaitParam,
};
use axum::extract::State;
use node::change;
use node::change::Widening;
use node::create::{CreateSandbox, claim, make};
use node::gc::{collect, plan};
use node::keeper::suspend::{resume as wake, suspend as rest};
use node::list::{covering as covers, describe, inspect, list as list_all};
use node::policies::RequestedPolicy;
use node::quota::AddedUsage;
use node::remove;
use node::sandbox::Which;
use node::stop::{start as restart, start_live, stop as halt};
use node::top::UsageSampler;
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
struct ListSandboxesQuery {
    /// Maximum number of items [default: 100, at most 1000].
    limit: Option<u32>,
    /// `next` of the previous page.
    after: Option<String>,
    /// Only sandboxes with these labels, URL-encoded: `job%3D17%26team%3Dred` for `job=17&team=red`.
    #[serde(default)]
    metadata: MetadataFilter,
    /// Include warm sandboxes, and the remains of removed ones.
    #[serde(default)]
    removed: bool,
    /// Include the last command, the changes to review and the disk usage of each, as far as they can be
    /// computed in a few seconds.
    #[serde(default)]
    details: bool,
}

/// Lists sandboxes, the newest first.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", params(ListSandboxesQuery),
    responses((status = 200, body = Document<SandboxList>)))]
async fn list(
    State(shared): State<Shared>,
    principal: Principal,
    Query(query): Query<ListSandboxesQuery>,
) -> Result<Answer<SandboxList>, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    let mut rows = shared.verb(&principal, move |node, caller| list_all(node, caller, query.removed)).await?;
    rows.retain(|row| query.metadata.matches(&row.metadata));
    let key = |row: &SandboxSummary| Cursor::timed(row.created_ms, &row.id);
    rows.sort_by_cached_key(key);
    let page = Paging { limit: query.limit, after: query.after };
    let (mut sandboxes, next) = page.cut(rows, Cursor::Timed("sbx_"), key)?;
    if query.details {
        let described =
            move |node: &node::Node, caller: &node::Caller| describe(node, caller, &mut sandboxes).map(|()| sandboxes);
        sandboxes = shared.verb(&principal, described).await?;
    }
    Ok(Answer::ok(SandboxList { sandboxes, next }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CoveringQuery {
    /// The absolute path of the directory.
    #[param(value_type = String)]
    dir: PathBuf,
}

/// Returns the sandbox that covers a directory, or the nearest directory above it; of several the one used last.
#[utoipa::path(get, path = "/v1/covering", tag = "sandboxes", params(CoveringQuery),
    responses((status = 200, body = Document<SandboxSummary>), (status = 404, description = "Not found.", body = Fault)))]
async fn covering(
    State(shared): State<Shared>,
    principal: Principal,
    Query(query): Query<CoveringQuery>,
) -> Result<Answer<SandboxSummary>, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    shared.answer(&principal, move |node, caller| covers(node, caller, &query.dir)).await
}

/// Converts a request into what the verb takes; a directory must be given by its absolute path.
pub(super) fn create_request(create: SandboxCreate, key: IdempotencyKey) -> Result<CreateSandbox, Fault> {
    let relative = create.dir.as_ref().filter(|dir| !dir.is_absolute());
    if let Some(dir) = relative {
        let fault = Fault::invalid(format!("dir {:?}: not an absolute path", dir.display())).phase(Phase::Admission);
        return Err(fault.hint("give a path that begins with a slash, or none for an empty directory"));
    }
    Ok(CreateSandbox {
        own_base: create.dir.is_none(),
        dir: create.dir,
        name: create.name,
        reserve: create.reserve.into_iter().map(Into::into).collect(),
        sharing: create.sharing,
        template: create.template,
        policies: create.policies.into_iter().map(RequestedPolicy::from).collect(),
        flags: Vec::new(),
        limits: create.limits,
        cpus: create.cpus,
        ttl_ms: create.ttl_ms,
        idle_ms: create.idle_ms,
        metadata: create.metadata,
        env: create.env,
        timeout_ms: create.timeout_ms,
        on_timeout: create.on_timeout,
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

/// Creates a sandbox, or claims a warm one of the template.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = SandboxCreate,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeated request creates no second sandbox.")),
    responses((status = 201, body = Document<SandboxCreated>), (status = 200, description = "An earlier request under the same key created it.", body = Document<SandboxCreated>)))]
async fn create(
    State(shared): State<Shared>,
    principal: Principal,
    key: IdempotencyKey,
    Json(body): Json<SandboxCreate>,
) -> Result<Answer<SandboxCreated>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let made = create_sandbox(&shared, &principal, create_request(body, key.clone())?, &key).await?;
    let (version, existed) = (made.version, made.existed);
    Ok(Answer::made(made, existed).version(version))
}

/// Creates a sandbox within the quotas, and has its timeout watched; or claims a warm one.
pub(super) async fn create_sandbox(
    shared: &Shared,
    principal: &Principal,
    request: CreateSandbox,
    key: &IdempotencyKey,
) -> Result<SandboxCreated, Refusal> {
    let timeout_ms = request.timeout_ms;
    let made = make_or_claim(shared, principal, request, key).await?;
    shared.timeouts().expect(&principal.tenant, &made.id, timeout_ms);
    Ok(made)
}

async fn make_or_claim(
    shared: &Shared,
    principal: &Principal,
    request: CreateSandbox,
    key: &IdempotencyKey,
) -> Result<SandboxCreated, Refusal> {
    // A warm sandbox is counted already.
    let wanted = request.clone();
    let claimed = match request.template.is_some() {
        true => shared.verb(principal, move |node, caller| claim(node, caller, &wanted)).await?,
        false => None,
    };
    if let Some(claimed) = claimed {
        shared.taken().notify_one();
        return Ok(claimed);
    }
    let make = move |node: &node::Node, caller: &node::Caller| make(node, caller, &request);
    shared.create_within_quota(principal, vec![AddedUsage::Sandboxes(1)], key, make).await
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LookQuery {
    /// Wait until no command runs in the sandbox, at most for this time (up to `10m`).
    wait: Option<WaitParam>,
}

/// Returns a sandbox. The path may have its id, a unique prefix of it, or its name.
#[utoipa::path(get, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path), LookQuery),
    responses((status = 200, body = Document<SandboxDetails>)))]
async fn get(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Query(query): Query<LookQuery>,
) -> Result<Answer<SandboxDetails>, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    let time = query.wait.map_or(Duration::ZERO, |wait| wait.0);
    let is_quiet = |whole: &SandboxDetails| {
        !matches!(whole.standing, SandboxState::Running | SandboxState::Stopping | SandboxState::Silent)
    };
    let whole = shared.wait(&principal, time, move |node, caller| inspect(node, caller, Some(&id)), is_quiet).await?;
    let version = whole.version;
    Ok(Answer::ok(whole).version(version))
}

/// Changes a sandbox's name, labels, retention, timeout, network rules, limits or forwarded ports. `timeout_ms` counts from now on, so that
/// sending it again extends the time.
#[utoipa::path(patch, path = "/v1/sandboxes/{id}", tag = "sandboxes", request_body = SandboxChange,
    params(("id" = String, Path), ("If-Match" = Option<String>, Header, description = "The expected version.")),
    responses((status = 200, body = Document<SandboxChanged>)))]
async fn patch(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    version: IfMatch,
    Json(request): Json<SandboxChange>,
) -> Result<Answer<SandboxChanged>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let widening = match principal.scopes.contains(&Scope::Operator) {
        true => Widening::Allowed,
        false => Widening::Refused,
    };
    let (which, timeout_ms) = (which(id, version), request.timeout_ms.flatten());
    let changed =
        shared.verb(&principal, move |node, caller| change::change(node, caller, &which, &request, widening)).await?;
    shared.timeouts().expect(&principal.tenant, &changed.id, timeout_ms);
    let version = changed.version;
    Ok(Answer::ok(changed).version(version))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemoveQuery {
    /// End running commands first.
    #[serde(default)]
    force: bool,
    /// Time for a command to end before it is killed [default: 10s].
    timeout: Option<DurationParam>,
}

/// Removes a sandbox with all changes that were not approved.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", tag = "sandboxes",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header, description = "The expected version."), RemoveQuery),
    responses((status = 200, body = Document<SandboxRemoved>)))]
async fn delete(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    version: IfMatch,
    Query(query): Query<RemoveQuery>,
) -> Result<Answer<SandboxRemoved>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let (which, patience) = (which(id, version), patience(query.timeout)?);
    let force = query.force.then_some(patience);
    shared.answer(&principal, move |node, caller| remove::remove(node, caller, &which, force)).await
}

/// Returns the time for a command to end after it was asked to.
fn patience(given: Option<DurationParam>) -> Result<Duration, Refusal> {
    const USUAL: Duration = Duration::from_secs(10);
    const LONGEST: Duration = Duration::from_secs(300);
    match given.map(|time| time.0) {
        Some(time) if time > LONGEST => {
            let fault = Fault::invalid("the query: timeout: longer than 5m").hint("give at most 5m");
            Err(fault.phase(Phase::Admission).into())
        }
        time => Ok(time.unwrap_or(USUAL)),
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StartQuery {
    /// Keep the sandbox live, with its services, until it is stopped; else it becomes live for commands only.
    #[serde(default)]
    live: bool,
}

/// Starts a stopped sandbox, so that commands can run in it.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/start", tag = "sandboxes",
    params(("id" = String, Path), StartQuery, ("If-Match" = Option<String>, Header, description = "The expected version.")),
    responses((status = 200, body = Document<SandboxStateChanged>)))]
async fn start(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    version: IfMatch,
    Query(query): Query<StartQuery>,
) -> Result<Answer<SandboxStateChanged>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let which = which(id.clone(), version);
    let moved = match query.live {
        true => shared.make_live(&principal, &id, move |node, caller| start_live(node, caller, &which)).await?,
        false => shared.verb(&principal, move |node, caller| restart(node, caller, &which)).await?,
    };
    let version = moved.version;
    Ok(Answer::ok(moved).version(version))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StopQuery {
    /// Time for a command to end before it is killed [default: 10s].
    timeout: Option<DurationParam>,
}

/// Stops a sandbox: ends its commands, and refuses new ones until it is started again.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/stop", tag = "sandboxes",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header, description = "The expected version."), StopQuery),
    responses((status = 200, body = Document<SandboxStateChanged>)))]
async fn stop(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    version: IfMatch,
    Query(query): Query<StopQuery>,
) -> Result<Answer<SandboxStateChanged>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let (which, patience) = (which(id, version), patience(query.timeout)?);
    let moved = shared.verb(&principal, move |node, caller| halt(node, caller, &which, patience)).await?;
    let version = moved.version;
    Ok(Answer::ok(moved).version(version))
}

/// Suspends a sandbox: freezes its processes, or ends them in order and keeps what starts them again. The response
/// has the tier that was
/// reached.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/suspend", tag = "sandboxes", request_body = SandboxSuspend,
    params(("id" = String, Path), ("If-Match" = Option<String>, Header, description = "The expected version.")),
    responses((status = 200, body = Document<SandboxSuspended>)))]
async fn suspend(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    version: IfMatch,
    Json(request): Json<SandboxSuspend>,
) -> Result<Answer<SandboxSuspended>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let (which, grace) =
        (which(id, version), patience(request.grace_ms.map(|ms| DurationParam(Duration::from_millis(ms))))?);
    let suspended =
        shared.verb(&principal, move |node, caller| rest(node, caller, &which, request.tier, grace)).await?;
    let version = suspended.version;
    Ok(Answer::ok(suspended).version(version))
}

/// Resumes a suspended sandbox. A request for a command, a file or a port does the same.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/resume", tag = "sandboxes",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header, description = "The expected version.")),
    responses((status = 200, body = Document<SandboxResumed>)))]
async fn resume(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    version: IfMatch,
) -> Result<Answer<SandboxResumed>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let which = which(id.clone(), version);
    let resumed = shared.make_live(&principal, &id, move |node, caller| wake(node, caller, &which)).await?;
    let version = resumed.version;
    Ok(Answer::ok(resumed).version(version))
}

/// Lists the resource usage of each sandbox, the one with the most memory first.
#[utoipa::path(get, path = "/v1/top", tag = "sandboxes", responses((status = 200, body = Document<TopReport>)))]
async fn top(State(shared): State<Shared>, principal: Principal) -> Result<Answer<TopReport>, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    shared.answer(&principal, |node, caller| UsageSampler::default().look(node, caller)).await
}

/// Lists what a garbage collection would remove, without removing it.
#[utoipa::path(get, path = "/v1/gc", tag = "sandboxes", responses((status = 200, body = Document<GcReport>)))]
async fn gc_plan(State(shared): State<Shared>, principal: Principal) -> Result<Answer<GcReport>, Refusal> {
    principal.require_scope(Scope::Operator)?;
    let keep = *shared.keep();
    shared
        .answer(&principal, move |node, caller| {
            plan(node, caller, &keep).map(|collected| GcReport { dry_run: true, collected })
        })
        .await
}

/// Collects garbage: removes expired sandboxes, remains of crashes, and old records.
#[utoipa::path(post, path = "/v1/gc", tag = "sandboxes", responses((status = 200, body = Document<GcReport>)))]
async fn gc(State(shared): State<Shared>, principal: Principal) -> Result<Answer<GcReport>, Refusal> {
    principal.require_scope(Scope::Operator)?;
    let keep = *shared.keep();
    shared
        .answer(&principal, move |node, caller| {
            collect(node, caller, &keep).map(|collected| GcReport { dry_run: false, collected })
        })
        .await
}
