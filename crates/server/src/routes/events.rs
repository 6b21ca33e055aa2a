//! Events: the journal of a tenant as it grows. An event's id is its entry's number, so that nothing is lost over a restart of
//! either side.

use crate::ask::{Query, single};
use crate::feed::Ear;
use crate::refuse::Refusal;
use crate::tasks::{Kind, Task};
use crate::{Scope, Shared, Who};
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use http::{HeaderMap, HeaderName};
use node::audit::{Noted, Tail, Wanted};
use node::{Caller, Node};
use serde::Deserialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use terms::{Fault, Phase};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// How many entries are read at once; no more are held for a client that reads slowly.
const AT_ONCE: u32 = 256;
/// A line that says nothing is sent so often, or those in between take the connection for dead.
const QUIET: Duration = Duration::from_secs(15);

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(follow_events))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wish {
    /// Begin after this event; `Last-Event-ID` goes before it. From now on where neither is given.
    from: Option<u64>,
    /// Only of this sandbox, or of whatever else has the id.
    sandbox: Option<String>,
    /// Only of this verb: `create`, `run`, `approve`, …
    verb: Option<String>,
}

/// Entries of the journal as server-sent events, each `event: entry` with its number as `id`. No more than 100,000 are told again.
#[utoipa::path(get, path = "/v1/events", tag = "events", operation_id = "follow",
    params(Wish, ("Last-Event-ID" = Option<u64>, Header, description = "The last event that was seen")),
    responses((status = 200, content_type = "text/event-stream", body = Noted),
        (status = 404, description = "There is no such thing.", body = Fault)))]
async fn follow_events(
    State(shared): State<Shared>,
    who: Who,
    Query(wish): Query<Wish>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    let from = last_seen(&headers)?.or(wish.from);
    let task = shared.tasks().admit(Kind::EventStream, &who.tenant)?;
    let wanted = Wanted { subject: wish.sandbox, verb: wish.verb, ..Wanted::default() };
    // Before the tail is opened: what comes in between is told.
    let ear = shared.feeds().listen(shared.node().clone(), &who.tenant, shared.caller(&who), shared.tasks());
    let tail = shared.verb(&who, move |node: &Node, caller: &Caller| Tail::open(node, caller, from, wanted)).await?;
    let follower = Follower { shared, who, ear, tail: Some(tail), ready: VecDeque::new(), _task: task };
    let alive = KeepAlive::new().interval(QUIET);
    Ok(Sse::new(follower.events()).keep_alive(alive).into_response())
}

fn last_seen(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let Some(text) = single(headers, &HeaderName::from_static("last-event-id"))? else { return Ok(None) };
    let refuse = || {
        let fault = Fault::invalid(format!("Last-Event-ID {text:?}: no number of an event")).phase(Phase::Admission);
        fault.hint("send the id of the last event that was seen")
    };
    text.parse().map(Some).map_err(|_| refuse().into())
}

struct Follower {
    shared: Shared,
    who: Who,
    ear: Ear,
    /// None while it is being read, and after it failed.
    tail: Option<Tail>,
    ready: VecDeque<Noted>,
    _task: Task,
}

impl Follower {
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
            let turn = self.ear.turn_to_read().await;
            let done = self.shared.blocking_for(&self.who, move || read(tail)).await;
            drop(turn);
            match done {
                Ok((tail, entries)) => {
                    self.tail = Some(tail);
                    self.ready.extend(entries);
                }
                // The stream is lost; the client asks again from where it was.
                Err(refusal) => return Some(lost(&refusal)),
            }
            if self.ready.is_empty() && self.ear.grown().await.is_err() {
                return None;
            }
        }
    }
}

fn read(mut tail: Tail) -> Result<(Tail, Vec<Noted>), Fault> {
    let entries = tail.next(AT_ONCE)?;
    Ok((tail, entries))
}

fn event(entry: &Noted) -> Event {
    let data = serde_json::to_string(entry).unwrap_or_default();
    Event::default().event("entry").id(entry.seq.to_string()).data(data)
}

fn lost(refusal: &Refusal) -> Event {
    let data = serde_json::to_string(&refusal.fault).unwrap_or_default();
    Event::default().event("lost").data(data)
}
