//! Runs: commands in sandboxes, begun, listed, waited for, read along, spoken to and ended.

mod attach;
mod explain;
mod output;

use crate::admission::StartTurn;
use crate::answer::{Answer, Document};
use crate::ask::{Cursor, Json, Key, Paging, Path, Query, Wait, broken_body};
use crate::refuse::Refusal;
use crate::running::{Input, Listener, PIECE};
use crate::tasks::{Kind, Task};
use crate::{Scope, Shared, Who};
use axum::body::Body;
use axum::extract::State;
use bytes::Bytes;
use client::wire::{RunSignalled, RunningList};
use futures_util::StreamExt;
use node::keeper::begin::{self, Begun, RunCreate, Shown, Size};
use node::keeper::runs::Found;
use node::keeper::wire::By;
use node::list::runs as live_runs;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use terms::{Fault, Phase};
use tokio::sync::oneshot;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list_of, create))
        .routes(routes!(list))
        .routes(routes!(going))
        .routes(routes!(explain::explain_run))
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
struct ListQuery {
    /// At most so many [default: 100, at most 1000].
    limit: Option<u32>,
    /// Behind the part that `next` of an earlier answer ended.
    after: Option<String>,
    /// Only those that go on.
    #[serde(default)]
    running: bool,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = RunList)]
struct List {
    runs: Vec<Shown>,
    /// What `after` must be for the next part; none where this was the last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    next: Option<String>,
}

fn part(query: ListQuery, all: Vec<Shown>) -> Result<Answer<List>, Refusal> {
    let page = Paging { limit: query.limit, after: query.after };
    let (runs, next) = page.cut(all, Cursor::Timed("run_"), |run| Cursor::timed(run.started_ms, &run.run))?;
    Ok(Answer::ok(List { runs, next }))
}

/// List the runs of a sandbox, the newest first.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/runs", tag = "runs", params(("id" = String, Path), ListQuery),
    responses((status = 200, body = Document<List>)))]
async fn list_of(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<List>, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    let running = query.running;
    part(query, shared.verb(&who, move |node, caller| begin::list(node, caller, Some(&id), running)).await?)
}

/// List the runs of all sandboxes, the newest first.
#[utoipa::path(get, path = "/v1/runs", tag = "runs", params(ListQuery), responses((status = 200, body = Document<List>)))]
async fn list(State(shared): State<Shared>, who: Who, Query(query): Query<ListQuery>) -> Result<Answer<List>, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    let running = query.running;
    part(query, shared.verb(&who, move |node, caller| begin::list(node, caller, None, running)).await?)
}

/// List what runs now, also what was begun without the daemon; the oldest first.
#[utoipa::path(get, path = "/v1/running", tag = "runs", responses((status = 200, body = Document<RunningList>)))]
async fn going(State(shared): State<Shared>, who: Who) -> Result<Answer<RunningList>, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    shared.answer(&who, |node, caller| live_runs(node, caller).map(|runs| RunningList { runs })).await
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WaitQuery {
    /// Hold the answer back until the run has ended, at most so long; up to `10m`, and more is refused; then it has the outcome with what the run said.
    wait: Option<Wait>,
}

/// Run a command. The sandbox becomes live for it, and many can run at once.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/runs", tag = "runs", request_body = RunCreate,
    params(("id" = String, Path), WaitQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "Sent again, the request starts no second one.")),
    responses((status = 201, body = Document<Shown>),
        (status = 200, description = "An earlier request under the same key started it.", body = Document<Shown>)))]
async fn create(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    Query(query): Query<WaitQuery>,
    key: Key,
    Json(ask): Json<RunCreate>,
) -> Result<Answer<Shown>, Refusal> {
    who.needs(Scope::Agent)?;
    let _task = held_back(&shared, &who, query.wait)?;
    if let Some(key) = key.0.clone() {
        // A run that was begun before needs no room.
        let (ask, word) = (ask.clone(), id.clone());
        let earlier = move |node: &node::Node, caller: &node::Caller| begin::earlier(node, caller, &ask, &word, &key);
        if let Some(found) = shared.verb(&who, earlier).await? {
            let shown = show(&mut Listener::of(&shared, &who, found), query.wait).await?;
            return Ok(Answer::made(Shown { existed: true, ..shown }, true));
        }
    }
    let turn = shared.admission().run(&who.tenant).await?;
    // Held to the end of this, or for as long as a turn lasts.
    let start = shared.admission().begin(&who.tenant).await;
    let word = id.clone();
    let begin =
        move |node: &node::Node, caller: &node::Caller| begin::begin(node, caller, &ask, &word, key.0.as_deref());
    let Begun { existed, found, keeper } = shared.enlivening(&who, &id, begin).await?;
    start.iter().for_each(StartTurn::begun);
    let mut listener = Listener::of(&shared, &who, found);
    let waiting = keeper.map(|keeper| listener.again().stay(keeper, turn));
    let shown = match (waiting, query.wait) {
        (Some(waiting), Some(Wait(time))) => {
            let begun = Instant::now();
            match within(time, waiting, &shared).await {
                Some(ended) => listener.ended(ended).await?,
                // It was not told in time, or by nobody: then the records tell it.
                None => show(&mut listener, Some(Wait(time.saturating_sub(begun.elapsed())))).await?,
            }
        }
        _ => show(&mut listener, query.wait).await?,
    };
    Ok(Answer::made(Shown { existed, ..shown }, existed))
}

/// Admits a request whose answer is held back.
fn held_back(shared: &Shared, who: &Who, wait: Option<Wait>) -> Result<Option<Task>, Refusal> {
    wait.map(|_| shared.tasks().admit(Kind::Wait, &who.tenant)).transpose()
}

/// What comes in time, while the daemon stays.
async fn within<T>(time: Duration, waiting: oneshot::Receiver<T>, shared: &Shared) -> Option<T> {
    tokio::select! {
        come = tokio::time::timeout(time, waiting) => come.ok()?.ok(),
        () = shared.until_end() => None,
    }
}

async fn show(listener: &mut Listener, wait: Option<Wait>) -> Result<Shown, Refusal> {
    let outcome = match wait {
        Some(time) => listener.told(time.0).await?,
        None => listener.with(Found::outcome).await?,
    };
    let mut shown = listener.with(Found::show).await?;
    shown.running &= outcome.is_none();
    shown.outcome = outcome;
    Ok(shown)
}

/// Look at a run. Once it has ended, the answer has its outcome; with `wait` also what it said.
#[utoipa::path(get, path = "/v1/runs/{run}", tag = "runs", params(("run" = String, Path), WaitQuery),
    responses((status = 200, body = Document<Shown>)))]
async fn get(
    State(shared): State<Shared>,
    who: Who,
    Path(run): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Answer<Shown>, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    let _task = held_back(&shared, &who, query.wait)?;
    let mut listener = Listener::new(&shared, &who, run).await?;
    Ok(Answer::ok(show(&mut listener, query.wait).await?))
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = RunRemoved)]
struct Removed {
    run: String,
    /// It went on, and was ended.
    killed: bool,
    /// Something that it said was kept, and is no more.
    forgotten: bool,
}

/// End a run at once, if it goes on, and forget what it said. That it was stays in the records.
#[utoipa::path(delete, path = "/v1/runs/{run}", tag = "runs", params(("run" = String, Path)),
    responses((status = 200, body = Document<Removed>)))]
async fn remove(State(shared): State<Shared>, who: Who, Path(run): Path<String>) -> Result<Answer<Removed>, Refusal> {
    const PATIENCE: Duration = Duration::from_secs(20);
    who.needs(Scope::Agent)?;
    let mut listener = Listener::new(&shared, &who, run).await?;
    let killed = listener.with(Found::kill).await?;
    listener.end(PATIENCE).await?;
    let forgotten = listener.with(|found, _| found.forget()).await?;
    Ok(Answer::ok(Removed { run: listener.found.id, killed, forgotten }))
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RunSignal)]
struct SignalAsk {
    /// Its number: 15 asks to end, 2 interrupts.
    #[schema(minimum = 1, maximum = 64)]
    signal: i32,
}

/// Send a signal to a run's command and its process group. Wakes a frozen sandbox.
#[utoipa::path(post, path = "/v1/runs/{run}/signal", tag = "runs", params(("run" = String, Path)),
    request_body = SignalAsk, responses((status = 200, body = Document<RunSignalled>)))]
async fn signal(
    State(shared): State<Shared>,
    who: Who,
    Path(run): Path<String>,
    Json(ask): Json<SignalAsk>,
) -> Result<Answer<RunSignalled>, Refusal> {
    who.needs(Scope::Agent)?;
    let listener = Listener::new(&shared, &who, run).await?;
    let changed = send(&listener, ask.signal).await?;
    Ok(Answer::ok(RunSignalled { run: listener.found.id, changed }))
}

async fn send(listener: &Listener, signal: i32) -> Result<bool, Refusal> {
    if !(1..=64).contains(&signal) {
        let fault = Fault::invalid(format!("signal {signal}: there is none")).hint("give 1 to 64; 15 asks to end");
        return Err(fault.phase(Phase::Admission).into());
    }
    listener.with(move |found, node| found.signal(node, signal)).await
}

/// End a run's whole tree at once. Wakes a frozen sandbox.
#[utoipa::path(post, path = "/v1/runs/{run}/kill", tag = "runs", params(("run" = String, Path)),
    responses((status = 200, body = Document<RunSignalled>)))]
async fn kill(
    State(shared): State<Shared>,
    who: Who,
    Path(run): Path<String>,
) -> Result<Answer<RunSignalled>, Refusal> {
    who.needs(Scope::Agent)?;
    let listener = Listener::new(&shared, &who, run).await?;
    let changed = listener.with(Found::kill).await?;
    Ok(Answer::ok(RunSignalled { run: listener.found.id, changed }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct InputQuery {
    /// Nothing follows: the input is closed behind the body. On a terminal the end of file is typed.
    #[serde(default)]
    eof: bool,
    /// Who writes, by a name that no other writer has. With it and `offset`, a body whose answer was lost can be sent again: what was
    /// taken of it is not taken twice.
    writer: Option<String>,
    /// How many bytes this writer has sent before.
    offset: Option<u64>,
}

impl InputQuery {
    fn by(&self) -> Result<Option<By>, Refusal> {
        const LONGEST: usize = 64;
        let plain =
            |name: &String| !name.is_empty() && name.len() <= LONGEST && name.bytes().all(|b| b.is_ascii_graphic());
        match (&self.writer, self.offset) {
            (None, None) => Ok(None),
            (Some(writer), Some(offset)) if plain(writer) => Ok(Some(By { writer: writer.clone(), offset })),
            _ => {
                let fault = Fault::invalid("the query: writer and offset: one without the other, or no name");
                let hint = format!("give both, and as `writer` 1 to {LONGEST} letters and digits of your own");
                Err(fault.hint(hint).phase(Phase::Admission).into())
            }
        }
    }
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = RunInput)]
struct Taken {
    run: String,
    /// Bytes of the body that the command's side has.
    bytes: u64,
    /// Of all that this writer has sent, so much was taken.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    offset: Option<u64>,
    /// Its input is closed.
    eof: bool,
}

/// Write to a run's input. The body is passed on as it comes and as fast as it is taken. By offset, it can be sent again. Wakes a frozen
/// sandbox.
#[utoipa::path(post, path = "/v1/runs/{run}/input", tag = "runs", params(("run" = String, Path), InputQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Document<Taken>)))]
async fn input(
    State(shared): State<Shared>,
    who: Who,
    Path(run): Path<String>,
    Query(query): Query<InputQuery>,
    body: Body,
) -> Result<Answer<Taken>, Refusal> {
    who.needs(Scope::Agent)?;
    let mut by = query.by()?;
    let listener = Listener::new(&shared, &who, run).await?;
    let mut input = Input::open(&listener, by.is_some()).await?;
    let mut pieces = body.into_data_stream();
    let (mut bytes, mut offset) = (0, query.offset);
    while let Some(piece) = pieces.next().await {
        let piece: Bytes = piece.map_err(|e| broken_body(&e))?;
        for piece in piece.chunks(PIECE) {
            offset = input.give(piece.to_vec(), false, by.clone()).await?;
            bytes += piece.len() as u64;
            by.iter_mut().for_each(|by| by.offset = by.offset.saturating_add(piece.len() as u64));
        }
    }
    if query.eof {
        input.give(Vec::new(), true, by).await?;
    }
    Ok(Answer::ok(Taken { run: listener.found.id, bytes, offset, eof: query.eof }))
}

/// Tell a run's terminal its size. A conflict where it was started without one. Wakes a frozen sandbox.
#[utoipa::path(post, path = "/v1/runs/{run}/resize", tag = "runs", params(("run" = String, Path)),
    request_body = Size, responses((status = 200, body = Document<RunSignalled>)))]
async fn resize(
    State(shared): State<Shared>,
    who: Who,
    Path(run): Path<String>,
    Json(size): Json<Size>,
) -> Result<Answer<RunSignalled>, Refusal> {
    who.needs(Scope::Agent)?;
    let listener = Listener::new(&shared, &who, run).await?;
    let changed = fit(&listener, size).await?;
    Ok(Answer::ok(RunSignalled { run: listener.found.id, changed }))
}

async fn fit(listener: &Listener, size: Size) -> Result<bool, Refusal> {
    if size.rows == 0 || size.columns == 0 {
        let fault = Fault::invalid("no rows or no columns").hint("give at least 1 of each, e.g. 24 and 80");
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
