//! What happens on a sandbox's network, as it is written down, line by line. An event's id is the number of the
//! line behind it.

use crate::ask::{Path, Query};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use node::keeper::journal::{self, Page, Spot};
use serde::Deserialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// How often a file is looked at that grows.
const PAUSE: Duration = Duration::from_millis(100);
/// A line that says nothing is sent so often, or those in between take the connection for dead.
const QUIET: Duration = Duration::from_secs(15);

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(follow_network))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Wish {
    /// Begin at this line, which an earlier event had as its id [0].
    #[serde(default)]
    from: u64,
    /// Wait for more as long as the sandbox is live.
    #[serde(default)]
    follow: bool,
}

/// What happens on a sandbox's network: server-sent events, each `event: line` with the number of the next line as `id`, and `event: end` when
/// the sandbox is not live and all was told. Lines that are no longer kept are counted in one that says so (`net.lost`). A line says which run it was, and by which revision of the rules it was judged.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/network/events", tag = "sandboxes", operation_id = "network",
    params(("id" = String, Path), Wish), responses((status = 200, content_type = "text/event-stream", body = String)))]
async fn follow_network(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    Query(wish): Query<Wish>,
) -> Result<Response, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    let mut follower =
        Follower { shared, who, id, spot: Spot::before(wish.from), ready: VecDeque::new(), is_over: false };
    // What cannot be read at all is refused before anything is told.
    let page = follower.page().await?;
    follower.take(page, wish.follow);
    let events = stream::unfold(follower, move |mut follower| async move {
        let event = follower.next(wish.follow).await?;
        Some((Ok::<_, Infallible>(event), follower))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(QUIET)).into_response())
}

struct Follower {
    shared: Shared,
    who: Who,
    id: String,
    spot: Spot,
    ready: VecDeque<Event>,
    is_over: bool,
}

impl Follower {
    async fn page(&self) -> Result<Page, Refusal> {
        let (id, spot) = (self.id.clone(), self.spot.clone());
        self.shared.verb(&self.who, move |node, caller| journal::read(node, caller, &id, spot)).await
    }

    fn take(&mut self, page: Page, follows: bool) {
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
                        tokio::time::sleep(PAUSE).await;
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
