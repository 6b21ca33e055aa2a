//! Changes of files as server-sent events, as they happen. Who reads slowly slows nobody: the kernel keeps a queue for each, and
//! says when it ran over.

use super::asked::{self, At};
use super::content::{Aside, aside};
use super::may_read;
use crate::ask::Path;
use crate::refuse::Refusal;
use crate::{Shared, Who};
use axum::extract::State;
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use futures_util::Stream;
use node::files::watch::{self, Event, Watch};
use serde::Deserialize;
use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use terms::Fault;
use tokio::io::unix::AsyncFd;
use utoipa::IntoParams;

/// Whether the sandbox is still there is looked at this often, at least.
const LOOK: Duration = Duration::from_secs(2);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WatchQuery {
    /// Also all directories below.
    #[serde(default)]
    recursive: bool,
}

/// Watch a directory: one event for each change, from now on. `event: ready` comes first; `event: lost` says that the sandbox was
/// stopped or fell. As long as it is watched, the sandbox stays live.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/watch", tag = "files",
    params(("id" = String, Path), asked::PathQuery, WatchQuery),
    responses((status = 200, description = "Server-sent events with a FileEvent each.", body = Event, content_type = "text/event-stream"),
        (status = 409, description = "It is no directory.", body = Fault)))]
pub async fn watch(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    At { path, rest }: At<WatchQuery>,
) -> Result<Sse<impl Stream<Item = Result<Sent, Infallible>>>, Refusal> {
    may_read(&who)?;
    let begin = move |root, path| watch::watch(root, &path, rest.recursive);
    let watch = super::reading(&shared, &who, id, path, begin).await?;
    let broken = |e: std::io::Error| Refusal::from(Fault::internal(format!("a watch that cannot be waited for: {e}")));
    let ready = watch.as_fd().try_clone_to_owned().and_then(AsyncFd::register).map_err(broken)?;
    let feed = Feed { watch: Aside(Some(watch)), ready, told: vec![Sent::default().event("ready").data("{}")], shared };
    let stream = futures_util::stream::unfold(feed, |mut feed| async move { Some((Ok(feed.next().await?), feed)) });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

struct Feed {
    watch: Aside<Watch>,
    ready: AsyncFd<OwnedFd>,
    /// To be sent, last first.
    told: Vec<Sent>,
    shared: Shared,
}

impl Feed {
    async fn next(&mut self) -> Option<Sent> {
        let Feed { watch, ready, told, shared } = self;
        loop {
            if let Some(next) = told.pop() {
                return Some(next);
            }
            // It stays where it is while we wait: whoever leaves then lets go of it there.
            watch.0.as_ref()?;
            let waited = tokio::time::timeout(LOOK, ready.readable()).await;
            let mut held = watch.0.take()?;
            match shared.blocking(move || held.take().map(|events| (events, held))).await {
                Ok((events, held)) => {
                    // Only when all was taken is there something to wait for.
                    if let (true, Ok(Ok(mut ready))) = (events.is_empty(), waited) {
                        ready.clear_ready();
                    }
                    told.extend(events.iter().rev().map(event));
                    if held.is_over() {
                        aside(held);
                    } else {
                        watch.0 = Some(held);
                    }
                }
                Err(refusal) => {
                    let text = serde_json::to_string(&refusal.fault).unwrap_or_default();
                    told.push(Sent::default().event("lost").data(text));
                }
            }
        }
    }
}

fn event(event: &Event) -> Sent {
    Sent::default().event("change").data(serde_json::to_string(event).unwrap_or_default())
}
