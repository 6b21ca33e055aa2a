//! Streams a tenant's journal as server-sent events. An event's id is its entry's number, so that a client resumes without loss after
//! either side restarts.

use crate::extract::{Query, single};
use crate::feed::JournalListener;
use crate::refuse::Refusal;
use crate::tasks::{Task, TaskKind};
use crate::{Principal, Shared};
use api::{JournalEntry, Scope};
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use http::{HeaderMap, HeaderName};
use node::audit::{JournalFilter, Tail};
use node::{Caller, Node};
use serde::Deserialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use terms::{Fault, Phase};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Entries per read, which is also the most that is buffered for a slow client.
const READ_SIZE: u32 = 256;
/// Interval of keep-alive comments, without which proxies drop the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(follow_events))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Begin after this event; `Last-Event-ID` takes precedence. Without either only new events are sent.
    from: Option<u64>,
    /// Only events of the sandbox, or other object, with this id.
    sandbox: Option<String>,
    /// Only events of this verb: `create`, `run`, `approve`, …
    verb: Option<String>,
}

/// Streams journal entries as server-sent events, each `event: entry` with its number as `id`. At most 100,000 past entries are replayed.
#[utoipa::path(get, path = "/v1/events", tag = "events", operation_id = "follow",
    params(EventsQuery, ("Last-Event-ID" = Option<u64>, Header, description = "The last event that was received")),
    responses((status = 200, content_type = "text/event-stream", body = JournalEntry),
        (status = 404, description = "Not found.", body = Fault)))]
async fn follow_events(
    State(shared): State<Shared>,
    principal: Principal,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    let from = last_seen(&headers)?.or(query.from);
    let task = shared.tasks().admit(TaskKind::EventStream, &principal.tenant)?;
    let wanted = JournalFilter { subject: query.sandbox, verb: query.verb, ..JournalFilter::default() };
    // Subscribed before the tail is opened, so that entries in between are sent.
    let listener =
        shared.feeds().listen(shared.node().clone(), &principal.tenant, shared.caller(&principal), shared.tasks());
    let tail =
        shared.verb(&principal, move |node: &Node, caller: &Caller| Tail::open(node, caller, from, wanted)).await?;
    let follower =
        JournalFollower { shared, principal, listener, tail: Some(tail), ready: VecDeque::new(), _task: task };
    let alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(follower.events()).keep_alive(alive).into_response())
}

fn last_seen(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let Some(text) = single(headers, &HeaderName::from_static("last-event-id"))? else { return Ok(None) };
    let refuse = || {
        let fault =
            Fault::invalid(format!("Last-Event-ID {text:?}: not the number of an event")).phase(Phase::Admission);
        fault.hint("send the id of the last event that was seen")
    };
    text.parse().map(Some).map_err(|_| refuse().into())
}

struct JournalFollower {
    shared: Shared,
    principal: Principal,
    listener: JournalListener,
    /// The journal's tail; none during a read, and after a failed one.
    tail: Option<Tail>,
    ready: VecDeque<JournalEntry>,
    _task: Task,
}

impl JournalFollower {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut this| async move {
            let event = this.next().await?;
            Some((Ok(event), this))
        })
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Some(event(&entry));
            }
            let tail = self.tail.take()?;
            let permit = self.listener.read_permit().await;
            let done = self.shared.blocking_for(&self.principal, move || read(tail)).await;
            drop(permit);
            match done {
                Ok((tail, entries)) => {
                    self.tail = Some(tail);
                    self.ready.extend(entries);
                }
                // The stream ends; the client resumes from its last event.
                Err(refusal) => return Some(lost_event(&refusal)),
            }
            if self.ready.is_empty() && self.listener.changed().await.is_err() {
                return None;
            }
        }
    }
}

fn read(mut tail: Tail) -> Result<(Tail, Vec<JournalEntry>), Fault> {
    let entries = tail.next(READ_SIZE)?;
    Ok((tail, entries))
}

fn event(entry: &JournalEntry) -> Event {
    let data = serde_json::to_string(entry).unwrap_or_default();
    Event::default().event("entry").id(entry.seq.to_string()).data(data)
}

fn lost_event(refusal: &Refusal) -> Event {
    let data = serde_json::to_string(&refusal.fault).unwrap_or_default();
    Event::default().event("lost").data(data)
}
