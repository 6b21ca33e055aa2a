//! What a run says, as server-sent events. An event's id is the offset behind it, so that who was cut off goes on where it was.

use crate::ask::{Path, Query, single};
use crate::refuse::Refusal;
use crate::running::{Listener, Log, Told};
use crate::tasks::{self, Task};
use crate::{Scope, Shared, Who};
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use futures_util::stream;
use http::{HeaderMap, HeaderName};
use node::keeper::spool::{HEAD, Kind, Page, Record};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use terms::{Fault, Phase};
use utoipa::{IntoParams, ToSchema};

/// A line that says nothing is sent so often, or those in between take the connection for dead.
const QUIET: Duration = Duration::from_secs(15);
const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OutputQuery {
    /// From this offset on, which an event's id told; `Last-Event-ID` goes before it. From the beginning where neither is given.
    from: Option<u64>,
    /// How `data` is written; `auto` is text where the bytes are UTF-8.
    #[serde(default)]
    encoding: Encoding,
    /// Go on as it says more, until it has ended [default: true].
    follow: Option<bool>,
}

#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OutputEncoding)]
pub enum Encoding {
    #[default]
    Auto,
    Base64,
}

/// The data of `stdout`, `stderr` and `terminal`.
#[derive(Serialize, ToSchema)]
#[schema(as = Output)]
pub struct Said {
    /// Where it begins in all that the run said.
    offset: u64,
    at_ms: u64,
    /// `text` or `base64`.
    encoding: &'static str,
    data: String,
}

/// Follow what a run says: events `stdout`, `stderr`, `terminal`; `dropped` and `gap` where bytes are not kept; `end` with the outcome,
/// once nothing of the run is left; `lost` when this stream cannot go on although the run may.
#[utoipa::path(get, path = "/v1/runs/{run}/output", tag = "runs",
    params(("run" = String, Path), OutputQuery, ("Last-Event-ID" = Option<u64>, Header, description = "The last event that was seen")),
    responses((status = 200, content_type = "text/event-stream", body = Said)))]
pub async fn output(
    State(shared): State<Shared>,
    who: Who,
    Path(run): Path<String>,
    Query(query): Query<OutputQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    let from = last_seen(&headers)?.or(query.from).unwrap_or(0);
    let task = shared.tasks().admit(tasks::Kind::RunStream, &who.tenant)?;
    let listener = Listener::new(&shared, &who, run).await?;
    let log = Log::open(listener, from).await?;
    let follows = query.follow.unwrap_or(true);
    let follower = Follower { log: Some(log), ready: VecDeque::new(), encoding: query.encoding, follows, _task: task };
    let events = stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok::<_, Infallible>(event), follower))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(QUIET)).into_response())
}

fn last_seen(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let Some(text) = single(headers, &HeaderName::from_static("last-event-id"))? else { return Ok(None) };
    let refuse = || {
        let fault = Fault::invalid(format!("Last-Event-ID {text:?}: no offset")).phase(Phase::Admission);
        fault.hint("send the id of the last event that was seen")
    };
    text.parse().map(Some).map_err(|_| refuse().into())
}

struct Follower {
    /// None when all was told.
    log: Option<Log>,
    ready: VecDeque<Event>,
    encoding: Encoding,
    follows: bool,
    _task: Task,
}

impl Follower {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let log = self.log.as_mut()?;
            let next = if self.follows { log.next().await } else { log.there().await };
            match next {
                Ok(Some(Told::Page(page))) => self.ready.extend(events(page, self.encoding)),
                Ok(Some(Told::End(outcome))) => {
                    self.log = None;
                    return Some(Event::default().event("end").data(json!(outcome).to_string()));
                }
                Ok(None) => return None,
                Err(refusal) => {
                    self.log = None;
                    return Some(Event::default().event("lost").data(json!(refusal.fault).to_string()));
                }
            }
        }
    }
}

fn events(page: Page, encoding: Encoding) -> impl Iterator<Item = Event> {
    let gap = page.gap.map(|(from, to)| {
        Event::default().event("gap").id(to.to_string()).data(json!({"from": from, "to": to}).to_string())
    });
    gap.into_iter().chain(page.records.into_iter().map(move |record| event(record, encoding)))
}

fn event(record: Record, encoding: Encoding) -> Event {
    let next = record.offset + (HEAD + record.bytes.len()) as u64;
    let (name, data) = match record.kind {
        Kind::Stdout => ("stdout", said(record, encoding)),
        Kind::Stderr => ("stderr", said(record, encoding)),
        Kind::Terminal => ("terminal", said(record, encoding)),
        Kind::Dropped => {
            ("dropped", json!({"offset": record.offset, "bytes": record.dropped(), "at_ms": record.at_ms}).to_string())
        }
        // As it was written when the last of its processes was gone.
        Kind::End => ("end", String::from_utf8_lossy(&record.bytes).replace(['\r', '\n'], " ")),
    };
    Event::default().event(name).id(next.to_string()).data(data)
}

fn said(record: Record, encoding: Encoding) -> String {
    let Record { offset, at_ms, bytes, .. } = record;
    let (encoding, data) = match (encoding, String::from_utf8(bytes)) {
        (Encoding::Auto, Ok(text)) => ("text", text),
        (_, Ok(text)) => ("base64", BASE64.encode(text)),
        (_, Err(e)) => ("base64", BASE64.encode(e.as_bytes())),
    };
    serde_json::to_string(&Said { offset, at_ms, encoding, data }).unwrap_or_default()
}
