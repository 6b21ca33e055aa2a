//! Runs: commands in sandboxes. Starts, lists, awaits, follows, feeds and ends them.

mod attach;
mod explain;
mod once;
mod output;

use crate::admission::StartPermit;
use crate::answer::Answer;
use crate::extract::{Cursor, IdempotencyKey, Json, Paging, Path, Query, broken_body};
use crate::refuse::Refusal;
use crate::run_listener::{Input, Listener, PIECE};
use crate::tasks::{Task, TaskKind};
use crate::{Principal, Shared};
use api::{
    Document, LiveRunList, RunCreate, RunInputTaken, RunList, RunRemoved, RunSignal, RunSignalled, RunStatus, Scope,
    TerminalSize, WaitParam,
};
use axum::body::Body;
use axum::extract::State;
use bytes::Bytes;
use futures_util::StreamExt;
use node::keeper::begin::{self, StartedRun};
use node::keeper::runs::RunRef;
use node::keeper::wire::InputWriter;
use node::list::runs as live_runs;
use serde::Deserialize;
use std::time::{Duration, Instant};
use terms::{Fault, Phase};
use tokio::sync::oneshot;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list_of, create))
        .routes(routes!(list))
        .routes(routes!(going))
        .routes(routes!(explain::explain_run))
        .routes(routes!(once::once))
        .routes(routes!(get, remove))
        .routes(routes!(signal))
        .routes(routes!(kill))
        .routes(routes!(input))
        .routes(routes!(resize))
        .routes(routes!(output::output))
        .routes(routes!(attach::attach))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListRunsQuery {
    /// Maximum number of items [default: 100, at most 1000].
    limit: Option<u32>,
    /// `next` of the previous page.
    after: Option<String>,
    /// Only runs that have not ended.
    #[serde(default)]
    running: bool,
}

fn list_page(query: ListRunsQuery, all: Vec<RunStatus>) -> Result<Answer<RunList>, Refusal> {
    let page = Paging { limit: query.limit, after: query.after };
    let (runs, next) = page.cut(all, Cursor::Timed("run_"), |run| Cursor::timed(run.started_ms, &run.run))?;
    Ok(Answer::ok(RunList { runs, next }))
}

/// Lists the runs of a sandbox, the newest first.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/runs", tag = "runs", params(("id" = String, Path), ListRunsQuery),
    responses((status = 200, body = Document<RunList>)))]
async fn list_of(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Query(query): Query<ListRunsQuery>,
) -> Result<Answer<RunList>, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    let running = query.running;
    list_page(query, shared.verb(&principal, move |node, caller| begin::list(node, caller, Some(&id), running)).await?)
}

/// Lists the runs of all sandboxes, the newest first.
#[utoipa::path(get, path = "/v1/runs", tag = "runs", params(ListRunsQuery), responses((status = 200, body = Document<RunList>)))]
async fn list(
    State(shared): State<Shared>,
    principal: Principal,
    Query(query): Query<ListRunsQuery>,
) -> Result<Answer<RunList>, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    let running = query.running;
    list_page(query, shared.verb(&principal, move |node, caller| begin::list(node, caller, None, running)).await?)
}

/// Lists running commands, also those started without the daemon; the oldest first.
#[utoipa::path(get, path = "/v1/running", tag = "runs", responses((status = 200, body = Document<LiveRunList>)))]
async fn going(State(shared): State<Shared>, principal: Principal) -> Result<Answer<LiveRunList>, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    shared.answer(&principal, |node, caller| live_runs(node, caller).map(|runs| LiveRunList { runs })).await
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WaitQuery {
    /// Wait until the run has ended, at most for this time (up to `10m`).
    wait: Option<WaitParam>,
}

/// Starts a command. The sandbox becomes live for it; many commands can run at once.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/runs", tag = "runs", request_body = RunCreate,
    params(("id" = String, Path), WaitQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "A repeated request starts no second run.")),
    responses((status = 201, body = Document<RunStatus>),
        (status = 200, description = "An earlier request under the same key started it.", body = Document<RunStatus>)))]
async fn create(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Query(query): Query<WaitQuery>,
    key: IdempotencyKey,
    Json(request): Json<RunCreate>,
) -> Result<Answer<RunStatus>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let shown = run_in(&shared, &principal, id, request, query.wait, key).await?;
    let existed = shown.existed;
    Ok(Answer::made(shown, existed))
}

/// Starts a command in a sandbox, and waits for its end where a time is given.
async fn run_in(
    shared: &Shared,
    principal: &Principal,
    id: String,
    request: RunCreate,
    wait: Option<WaitParam>,
    key: IdempotencyKey,
) -> Result<RunStatus, Refusal> {
    let _task = admit_wait(shared, principal, wait)?;
    if let Some(key) = key.0.clone() {
        // A run that was started before needs no permit.
        let (request, word) = (request.clone(), id.clone());
        let earlier =
            move |node: &node::Node, caller: &node::Caller| begin::earlier(node, caller, &request, &word, &key);
        if let Some(found) = shared.verb(principal, earlier).await? {
            let shown = show(&mut Listener::of(shared, principal, found), wait).await?;
            return Ok(RunStatus { existed: true, ..shown });
        }
    }
    let permit = shared.admission().run(&principal.tenant).await?;
    // Held to the end of this request, or until the permit expires.
    let start = shared.admission().begin(&principal.tenant).await;
    let word = id.clone();
    let begin =
        move |node: &node::Node, caller: &node::Caller| begin::begin(node, caller, &request, &word, key.0.as_deref());
    let StartedRun { existed, found, keeper } = shared.make_live(principal, &id, begin).await?;
    start.iter().for_each(StartPermit::begun);
    let mut listener = Listener::of(shared, principal, found);
    let waiting = keeper.map(|keeper| listener.another().watch_end(keeper, permit));
    let shown = match (waiting, wait) {
        (Some(waiting), Some(WaitParam(time))) => {
            let begun = Instant::now();
            match in_time(time, waiting, shared).await {
                Some(ended) => listener.ended(ended).await?,
                // The end was not reported in time, or the keeper is gone: read it from the records.
                None => show(&mut listener, Some(WaitParam(time.saturating_sub(begun.elapsed())))).await?,
            }
        }
        _ => show(&mut listener, wait).await?,
    };
    Ok(RunStatus { existed, ..shown })
}

/// Admits a request that waits.
fn admit_wait(shared: &Shared, principal: &Principal, wait: Option<WaitParam>) -> Result<Option<Task>, Refusal> {
    wait.map(|_| shared.tasks().admit(TaskKind::Wait, &principal.tenant)).transpose()
}

/// Waits for a value; none when the time is over or the daemon is shutting down.
async fn in_time<T>(time: Duration, waiting: oneshot::Receiver<T>, shared: &Shared) -> Option<T> {
    tokio::select! {
        come = tokio::time::timeout(time, waiting) => come.ok()?.ok(),
        () = shared.until_end() => None,
    }
}

async fn show(listener: &mut Listener, wait: Option<WaitParam>) -> Result<RunStatus, Refusal> {
    let outcome = listener.outcome_with_output(wait.map_or(Duration::ZERO, |time| time.0)).await?;
    let mut shown = listener.with(RunRef::show).await?;
    shown.running &= outcome.is_none();
    if outcome.is_none() {
        shown.tail = listener.tail().await?;
    }
    shown.outcome = outcome;
    Ok(shown)
}

/// Returns a run: once it has ended, with its outcome and output; before, with the last part of its output.
#[utoipa::path(get, path = "/v1/runs/{run}", tag = "runs", params(("run" = String, Path), WaitQuery),
    responses((status = 200, body = Document<RunStatus>)))]
async fn get(
    State(shared): State<Shared>,
    principal: Principal,
    Path(run): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Answer<RunStatus>, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    let _task = admit_wait(&shared, &principal, query.wait)?;
    let mut listener = Listener::new(&shared, &principal, run).await?;
    Ok(Answer::ok(show(&mut listener, query.wait).await?))
}

/// Kills a run that has not ended, and deletes its output. Its record stays.
#[utoipa::path(delete, path = "/v1/runs/{run}", tag = "runs", params(("run" = String, Path)),
    responses((status = 200, body = Document<RunRemoved>)))]
async fn remove(
    State(shared): State<Shared>,
    principal: Principal,
    Path(run): Path<String>,
) -> Result<Answer<RunRemoved>, Refusal> {
    const PATIENCE: Duration = Duration::from_secs(20);
    principal.require_scope(Scope::Agent)?;
    let mut listener = Listener::new(&shared, &principal, run).await?;
    let killed = listener.with(RunRef::kill).await?;
    listener.end(PATIENCE).await?;
    let forgotten = listener.with(|found, _| found.forget()).await?;
    Ok(Answer::ok(RunRemoved { run: listener.found.id, killed, forgotten }))
}

/// Sends a signal to a run's command and its process group. Wakes a frozen sandbox.
#[utoipa::path(post, path = "/v1/runs/{run}/signal", tag = "runs", params(("run" = String, Path)),
    request_body = RunSignal, responses((status = 200, body = Document<RunSignalled>)))]
async fn signal(
    State(shared): State<Shared>,
    principal: Principal,
    Path(run): Path<String>,
    Json(request): Json<RunSignal>,
) -> Result<Answer<RunSignalled>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let listener = Listener::new(&shared, &principal, run).await?;
    let changed = send_signal(&listener, request.signal).await?;
    Ok(Answer::ok(RunSignalled { run: listener.found.id, changed }))
}

async fn send_signal(listener: &Listener, signal: i32) -> Result<bool, Refusal> {
    if !(1..=64).contains(&signal) {
        let fault =
            Fault::invalid(format!("signal {signal}: not a signal number")).hint("give 1 to 64, e.g. 15 for SIGTERM");
        return Err(fault.phase(Phase::Admission).into());
    }
    listener.with(move |found, node| found.signal(node, signal)).await
}

/// Kills a run's whole process tree. Wakes a frozen sandbox.
#[utoipa::path(post, path = "/v1/runs/{run}/kill", tag = "runs", params(("run" = String, Path)),
    responses((status = 200, body = Document<RunSignalled>)))]
async fn kill(
    State(shared): State<Shared>,
    principal: Principal,
    Path(run): Path<String>,
) -> Result<Answer<RunSignalled>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let listener = Listener::new(&shared, &principal, run).await?;
    let changed = listener.with(RunRef::kill).await?;
    Ok(Answer::ok(RunSignalled { run: listener.found.id, changed }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct InputQuery {
    /// Close the input after the body. On a terminal the end-of-file character is typed.
    #[serde(default)]
    eof: bool,
    /// A name of this writer that no other writer uses. With it and `offset`, a body whose response was lost can be sent again:
    /// bytes that were accepted before are not written twice.
    writer: Option<String>,
    /// The number of bytes that this writer has sent before.
    offset: Option<u64>,
}

impl InputQuery {
    fn by(&self) -> Result<Option<InputWriter>, Refusal> {
        const LONGEST: usize = 64;
        let plain =
            |name: &String| !name.is_empty() && name.len() <= LONGEST && name.bytes().all(|b| b.is_ascii_graphic());
        match (&self.writer, self.offset) {
            (None, None) => Ok(None),
            (Some(writer), Some(offset)) if plain(writer) => Ok(Some(InputWriter { writer: writer.clone(), offset })),
            _ => {
                let fault =
                    Fault::invalid("the query: writer and offset: one without the other, or an invalid writer name");
                let hint = format!("give both, and as `writer` 1 to {LONGEST} letters and digits of your own");
                Err(fault.hint(hint).phase(Phase::Admission).into())
            }
        }
    }
}

/// Writes to a run's input. The body is passed on as it arrives and as fast as the command reads it. With an offset it can be sent again.
/// Wakes a frozen sandbox.
#[utoipa::path(post, path = "/v1/runs/{run}/input", tag = "runs", params(("run" = String, Path), InputQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Document<RunInputTaken>)))]
async fn input(
    State(shared): State<Shared>,
    principal: Principal,
    Path(run): Path<String>,
    Query(query): Query<InputQuery>,
    body: Body,
) -> Result<Answer<RunInputTaken>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let mut by = query.by()?;
    let listener = Listener::new(&shared, &principal, run).await?;
    let mut input = Input::open(&listener, by.is_some()).await?;
    let mut pieces = body.into_data_stream();
    let (mut bytes, mut offset) = (0, query.offset);
    while let Some(piece) = pieces.next().await {
        let piece: Bytes = piece.map_err(|e| broken_body(&e))?;
        for piece in piece.chunks(PIECE) {
            offset = input.write(piece.to_vec(), false, by.clone()).await?;
            bytes += piece.len() as u64;
            by.iter_mut().for_each(|by| by.offset = by.offset.saturating_add(piece.len() as u64));
        }
    }
    if query.eof {
        input.write(Vec::new(), true, by).await?;
    }
    Ok(Answer::ok(RunInputTaken { run: listener.found.id, bytes, offset, eof: query.eof }))
}

/// Resizes a run's terminal. A conflict where the run has no terminal. Wakes a frozen sandbox.
#[utoipa::path(post, path = "/v1/runs/{run}/resize", tag = "runs", params(("run" = String, Path)),
    request_body = TerminalSize, responses((status = 200, body = Document<RunSignalled>)))]
async fn resize(
    State(shared): State<Shared>,
    principal: Principal,
    Path(run): Path<String>,
    Json(size): Json<TerminalSize>,
) -> Result<Answer<RunSignalled>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let listener = Listener::new(&shared, &principal, run).await?;
    let changed = resize_terminal(&listener, size).await?;
    Ok(Answer::ok(RunSignalled { run: listener.found.id, changed }))
}

async fn resize_terminal(listener: &Listener, size: TerminalSize) -> Result<bool, Refusal> {
    if size.rows == 0 || size.columns == 0 {
        let fault = Fault::invalid(format!("terminal size of {} rows and {} columns", size.rows, size.columns))
            .hint("give at least 1 of each, e.g. 24 and 80");
        return Err(fault.phase(Phase::Admission).into());
    }
    listener
        .with(move |found, node| {
            match found.heard(node)?.filter(|_| found.now().is_ok_and(|run| run.ended_ms.is_none())) {
                Some(mut keeper) => keeper.resize(&found.id, size.rows, size.columns).map(|()| true),
                None => Ok(false),
            }
        })
        .await
}
