//! Streams the recorded network events of a sandbox. An event's id is the number of the next line.

use crate::extract::{Path, Query};
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::Scope;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use node::keeper::journal::{self, JournalPage, JournalPosition};
use serde::Deserialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Poll interval of a growing file.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of keep-alive comments, without which proxies drop the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(follow_network))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct NetworkQuery {
    /// Begin at this line: the id of an earlier event [default: 0].
    #[serde(default)]
    from: u64,
    /// Wait for new lines as long as the sandbox is live.
    #[serde(default)]
    follow: bool,
}

/// Streams a sandbox's network events as server-sent events, each `event: line` with the number of the next line as `id`, and `event: end`
/// when the sandbox is not live and all lines were sent. Lines that are no longer kept are counted in one line (`net.lost`). A line names
/// its run and the revision of the rules that decided.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/network/events", tag = "sandboxes", operation_id = "network",
    params(("id" = String, Path), NetworkQuery), responses((status = 200, content_type = "text/event-stream", body = String)))]
async fn follow_network(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Query(query): Query<NetworkQuery>,
) -> Result<Response, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    let mut follower = NetworkFollower {
        shared,
        principal,
        id,
        spot: JournalPosition::before(query.from),
        ready: VecDeque::new(),
        is_over: false,
    };
    // Read before the stream starts, so that a failure is a refusal.
    let page = follower.page().await?;
    follower.take(page, query.follow);
    let events = stream::unfold(follower, move |mut follower| async move {
        let event = follower.next(query.follow).await?;
        Some((Ok::<_, Infallible>(event), follower))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

struct NetworkFollower {
    shared: Shared,
    principal: Principal,
    id: String,
    spot: JournalPosition,
    ready: VecDeque<Event>,
    is_over: bool,
}

impl NetworkFollower {
    async fn page(&self) -> Result<JournalPage, Refusal> {
        let (id, spot) = (self.id.clone(), self.spot.clone());
        self.shared.verb(&self.principal, move |node, caller| journal::read(node, caller, &id, spot)).await
    }

    fn take(&mut self, page: JournalPage, follows: bool) {
        let is_last = page.over || (!follows && !page.more);
        self.spot = page.spot;
        for (behind, line) in page.lines {
            self.ready.push_back(Event::default().event("line").id(behind.to_string()).data(line));
        }
        if is_last {
            self.is_over = true;
            self.ready.push_back(Event::default().event("end").data("{}"));
        }
    }

    async fn next(&mut self, follows: bool) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.is_over {
                return None;
            }
            match self.page().await {
                Ok(page) => {
                    let waits = !page.more && page.lines.is_empty();
                    self.take(page, follows);
                    if waits && !self.is_over {
                        tokio::time::sleep(POLL_INTERVAL).await;
                    }
                }
                Err(refusal) => {
                    self.is_over = true;
                    let data = serde_json::to_string(&refusal.fault).unwrap_or_default();
                    return Some(Event::default().event("lost").data(data));
                }
            }
        }
    }
}
