//! Code in contexts: runs it, as a stream of events or one document; and makes, lists, interrupts, restarts and removes contexts.

use crate::answer::Answer;
use crate::code_calls::{self, Begin, CallEvents};
use crate::extract::{Json, Path, SourceJson};
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::{
    CodeAnswer, CodeCheck, CodeChecked, CodeEvent, CodeGathered, CodeRequest, ContextCreate, ContextInterrupt,
    ContextInterrupted, ContextList, ContextRemoved, ContextStatus, Document, Scope,
};
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::HeaderMap;
use http::header::ACCEPT;
use node::code;
use node::{Caller, Node};
use serde::Deserialize;
use serde_json::json;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase, Retry};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Interval of keep-alive comments, without which proxies drop the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(run))
        .routes(routes!(list, create))
        .routes(routes!(remove))
        .routes(routes!(restart))
        .routes(routes!(interrupt))
        .routes(routes!(check))
        .routes(routes!(resume))
}

/// The name of a context in the path of a sandbox.
#[derive(Deserialize)]
struct Named {
    id: String,
    name: String,
}

/// Runs code in a context, which is made where it does not exist; the sandbox becomes live for it. With `Accept: text/event-stream` the
/// response is a stream of events `started`, `stdout`, `stderr`, `display`, `result`, `error` and `end`; else one document, for which
/// `max_output_bytes` is at most 64 MiB. A client that disconnects cancels the call. Another call in the same context waits for its turn.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/code", tag = "code", request_body = CodeRequest, params(("id" = String, Path)),
    responses((status = 200, content((Document<CodeAnswer> = "application/json"), (CodeEvent = "text/event-stream")))))]
async fn run(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    headers: HeaderMap,
    SourceJson(mut request): SourceJson<CodeRequest>,
) -> Result<Response, Refusal> {
    principal.require_scope(Scope::Agent)?;
    if !wants_stream(&headers) {
        let own = request.limits.max_output_bytes.unwrap_or(u64::MAX);
        request.limits.max_output_bytes = Some(own.min(CodeAnswer::MAX_OUTPUT_BYTES));
    }
    respond(&shared, &principal, id, Begin::New(Box::new(request)), &headers).await
}

/// Returns the rest of a call whose client is gone, for instance with its daemon: as a stream or a document, like the call itself. What was
/// read before is not repeated.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/contexts/{name}/resume", tag = "code",
    params(("id" = String, Path), ("name" = String, Path)),
    responses((status = 200, content((Document<CodeAnswer> = "application/json"), (CodeEvent = "text/event-stream")))))]
async fn resume(
    State(shared): State<Shared>,
    principal: Principal,
    Path(Named { id, name }): Path<Named>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    principal.require_scope(Scope::Agent)?;
    respond(&shared, &principal, id, Begin::Resume(name), &headers).await
}

fn wants_stream(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|kind| kind.trim().starts_with("text/event-stream"))
}

async fn respond(
    shared: &Shared,
    principal: &Principal,
    id: String,
    what: Begin,
    headers: &HeaderMap,
) -> Result<Response, Refusal> {
    let is_stream = wants_stream(headers);
    let events = code_calls::begin(shared, principal, id, what).await?;
    match is_stream {
        true => Ok(stream_of(shared.clone(), events)),
        false => gathered(events).await.map(IntoResponse::into_response),
    }
}

/// Gathers a call to one document.
async fn gathered(mut events: CallEvents) -> Result<Answer<CodeAnswer>, Refusal> {
    let mut gathered = CodeGathered::new(events.started.clone());
    let mut size = 0;
    while let Some(batch) = events.next().await {
        for event in batch {
            size += size_of(&event);
            if size > MAX_GATHERED_BYTES {
                return Err(too_much(&events));
            }
            if let Some(answer) = gathered.add(event) {
                return Ok(Answer::ok(answer));
            }
        }
    }
    Err(goes_on(&events).into())
}

/// Bound on a document that is gathered, whatever the limit on output lets through: a resumed call has the limits that it began with.
const MAX_GATHERED_BYTES: usize = 80 << 20;

/// Returns the approximate size of an event.
fn size_of(event: &CodeEvent) -> usize {
    match event {
        CodeEvent::Stdout(text) | CodeEvent::Stderr(text) => text.text.len(),
        CodeEvent::Display(bundle) | CodeEvent::Result(bundle) => {
            let value = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string().len(), str::len);
            let all = bundle.data.iter().chain(&bundle.metadata);
            all.map(|(name, content)| name.len() + value(content)).sum()
        }
        CodeEvent::Error(error) => error.traceback.len() + error.value.len(),
        CodeEvent::Started(_) | CodeEvent::End(_) => 0,
    }
}

fn too_much(events: &CallEvents) -> Refusal {
    let started = &events.started;
    let message = format!("the output of the call in the context {:?} does not fit one document", started.context);
    let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(terms::LimitKind::OutputBytes);
    let fault = fault.subject(&started.sandbox).phase(Phase::Execution);
    fault.hint("ask for text/event-stream, which has no bound").into()
}

/// The fault of a request whose call goes on without it.
fn goes_on(events: &CallEvents) -> Fault {
    let started = &events.started;
    let message = format!("the daemon is shutting down; the call in the context {:?} goes on", started.context);
    let fault = Fault::new(ErrorKind::Unavailable, message).subject(&started.sandbox).phase(Phase::Close);
    fault.retry(Retry::Later).hint("POST …/resume of the context, when the daemon has restarted")
}

struct Stream {
    shared: Shared,
    /// The call; none at the end of the stream.
    events: Option<CallEvents>,
    ready: VecDeque<CodeEvent>,
}

fn stream_of(shared: Shared, events: CallEvents) -> Response {
    let stream = Stream { shared, events: Some(events), ready: VecDeque::new() };
    let events = stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

impl Stream {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                if matches!(event, CodeEvent::End(_)) {
                    self.events = None;
                }
                let data = event.data().unwrap_or_default();
                return Some(Event::default().event(event.name()).data(data));
            }
            let events = self.events.as_mut()?;
            match events.next().await {
                Some(batch) => self.ready.extend(batch),
                None => {
                    let fault = goes_on(events);
                    self.events = None;
                    if self.shared.is_ending() {
                        // The response ends with the event `closing`.
                        return std::future::pending().await;
                    }
                    return Some(Event::default().event("lost").data(json!(fault).to_string()));
                }
            }
        }
    }
}

/// Lists the contexts of a sandbox. One that is not live has none.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/contexts", tag = "code", params(("id" = String, Path)),
    responses((status = 200, body = Document<ContextList>)))]
async fn list(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Answer<ContextList>, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    let listed = move |node: &Node, caller: &Caller| Ok(ContextList { contexts: code::contexts(node, caller, &id)? });
    shared.answer(&principal, listed).await
}

/// Makes a context and starts its interpreter. The sandbox becomes live for it.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/contexts", tag = "code", request_body = ContextCreate,
    params(("id" = String, Path)), responses((status = 201, body = Document<ContextStatus>)))]
async fn create(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Json(request): Json<ContextCreate>,
) -> Result<Answer<ContextStatus>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let cwd = request.cwd.as_ref().map(code_calls::absolute).transpose()?;
    let start = shared.admission().begin(&principal.tenant).await;
    let word = id.clone();
    let create = move |node: &Node, caller: &Caller| {
        let caller = Caller { cwd: cwd.unwrap_or_else(|| caller.cwd.clone()), ..caller.clone() };
        code::create_context(node, &caller, &word, &request)
    };
    let made = shared.make_live(&principal, &id, create).await?;
    drop(start);
    Ok(Answer::made(made, false))
}

/// Ends a context with its interpreter, also during a call.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/contexts/{name}", tag = "code",
    params(("id" = String, Path), ("name" = String, Path)), responses((status = 200, body = Document<ContextRemoved>)))]
async fn remove(
    State(shared): State<Shared>,
    principal: Principal,
    Path(Named { id, name }): Path<Named>,
) -> Result<Answer<ContextRemoved>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    shared.answer(&principal, move |node, caller| code::remove_context(node, caller, &id, &name)).await
}

/// Ends the interpreter of a context: its globals are lost, and the next call starts it anew.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/contexts/{name}/restart", tag = "code",
    params(("id" = String, Path), ("name" = String, Path)), responses((status = 200, body = Document<ContextStatus>)))]
async fn restart(
    State(shared): State<Shared>,
    principal: Principal,
    Path(Named { id, name }): Path<Named>,
) -> Result<Answer<ContextStatus>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    shared.answer(&principal, move |node, caller| code::restart(node, caller, &id, &name)).await
}

/// Interrupts the call that is under way in a context. An interpreter that does not answer within `grace_ms` is ended, and its globals are
/// lost.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/contexts/{name}/interrupt", tag = "code", request_body = ContextInterrupt,
    params(("id" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = Document<ContextInterrupted>)))]
async fn interrupt(
    State(shared): State<Shared>,
    principal: Principal,
    Path(Named { id, name }): Path<Named>,
    Json(request): Json<ContextInterrupt>,
) -> Result<Answer<ContextInterrupted>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    shared.answer(&principal, move |node, caller| code::interrupt(node, caller, &id, &name, &request)).await
}

/// Says whether code is a whole input, or whether lines follow, as the interpreter judges it.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/contexts/{name}/check", tag = "code", request_body = CodeCheck,
    params(("id" = String, Path), ("name" = String, Path)), responses((status = 200, body = Document<CodeChecked>)))]
async fn check(
    State(shared): State<Shared>,
    principal: Principal,
    Path(Named { id, name }): Path<Named>,
    SourceJson(request): SourceJson<CodeCheck>,
) -> Result<Answer<CodeChecked>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    shared.answer(&principal, move |node, caller| code::check(node, caller, &id, &name, &request)).await
}
