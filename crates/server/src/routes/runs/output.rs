//! Streams a run's output as server-sent events. An event's id is the offset of the next one, so that a client can resume.

use crate::extract::{Path, Query, single};
use crate::refuse::Refusal;
use crate::run_listener::{Listener, LogItem, RunLog};
use crate::tasks::{self, Task};
use crate::{Principal, Shared};
use api::{OutputEncodingParam, RunOutput, Scope};
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::response::sse::{Event, KeepAlive, Sse};
use base64::Engine;
use futures_util::stream;
use http::{HeaderMap, HeaderName};
use node::keeper::spool::{HEAD, Record, RecordKind, SpoolPage};
use serde::Deserialize;
use serde_json::json;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use terms::{Fault, Phase};
use utoipa::IntoParams;

/// Interval of keep-alive comments, without which proxies drop the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OutputQuery {
    /// Begin at this offset, the id of an earlier event; `Last-Event-ID` takes precedence. Without either the stream begins at the start.
    from: Option<u64>,
    /// Encoding of `data`; `auto` is text where the bytes are UTF-8.
    #[serde(default)]
    encoding: OutputEncodingParam,
    /// Wait for new output until the run has ended [default: true].
    follow: Option<bool>,
}

/// Streams a run's output: events `stdout`, `stderr`, `terminal`; `dropped` and `gap` where bytes are not kept; `end` with the outcome,
/// once no process of the run is left; `lost` when this stream cannot continue although the run may.
#[utoipa::path(get, path = "/v1/runs/{run}/output", tag = "runs",
    params(("run" = String, Path), OutputQuery, ("Last-Event-ID" = Option<u64>, Header, description = "The last event that was received")),
    responses((status = 200, content_type = "text/event-stream", body = RunOutput)))]
pub async fn output(
    State(shared): State<Shared>,
    principal: Principal,
    Path(run): Path<String>,
    Query(query): Query<OutputQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    let from = last_seen(&headers)?.or(query.from).unwrap_or(0);
    let task = shared.tasks().admit(tasks::TaskKind::RunStream, &principal.tenant)?;
    let listener = Listener::new(&shared, &principal, run).await?;
    let log = RunLog::open(listener, from).await?;
    let follows = query.follow.unwrap_or(true);
    let follower =
        OutputFollower { log: Some(log), ready: VecDeque::new(), encoding: query.encoding, follows, _task: task };
    let events = stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok::<_, Infallible>(event), follower))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

fn last_seen(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let Some(text) = single(headers, &HeaderName::from_static("last-event-id"))? else { return Ok(None) };
    let refuse = || {
        let fault = Fault::invalid(format!("Last-Event-ID {text:?}: not an offset")).phase(Phase::Admission);
        fault.hint("send the id of the last event that was seen")
    };
    text.parse().map(Some).map_err(|_| refuse().into())
}

struct OutputFollower {
    /// The log; none at the end of the stream.
    log: Option<RunLog>,
    ready: VecDeque<Event>,
    encoding: OutputEncodingParam,
    follows: bool,
    _task: Task,
}

impl OutputFollower {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let log = self.log.as_mut()?;
            let next = if self.follows { log.next().await } else { log.next_available().await };
            match next {
                Ok(Some(LogItem::Page(page))) => self.ready.extend(events(page, self.encoding)),
                Ok(Some(LogItem::End(outcome))) => {
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

fn events(page: SpoolPage, encoding: OutputEncodingParam) -> impl Iterator<Item = Event> {
    let gap = page.gap.map(|(from, to)| {
        Event::default().event("gap").id(to.to_string()).data(json!({"from": from, "to": to}).to_string())
    });
    gap.into_iter().chain(page.records.into_iter().map(move |record| event(record, encoding)))
}

fn event(record: Record, encoding: OutputEncodingParam) -> Event {
    let next = record.offset + (HEAD + record.bytes.len()) as u64;
    let (name, data) = match record.kind {
        RecordKind::Stdout => ("stdout", output_data(record, encoding)),
        RecordKind::Stderr => ("stderr", output_data(record, encoding)),
        RecordKind::Terminal => ("terminal", output_data(record, encoding)),
        RecordKind::Dropped => {
            ("dropped", json!({"offset": record.offset, "bytes": record.dropped(), "at_ms": record.at_ms}).to_string())
        }
        // The outcome, as written when the last process of the run had ended.
        RecordKind::End => ("end", String::from_utf8_lossy(&record.bytes).replace(['\r', '\n'], " ")),
    };
    Event::default().event(name).id(next.to_string()).data(data)
}

fn output_data(record: Record, encoding: OutputEncodingParam) -> String {
    let Record { offset, at_ms, bytes, .. } = record;
    let (encoding, data) = match (encoding, String::from_utf8(bytes)) {
        (OutputEncodingParam::Auto, Ok(text)) => ("text", text),
        (_, Ok(text)) => ("base64", BASE64.encode(text)),
        (_, Err(e)) => ("base64", BASE64.encode(e.as_bytes())),
    };
    serde_json::to_string(&RunOutput { offset, at_ms, encoding, data }).unwrap_or_default()
}
