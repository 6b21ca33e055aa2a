//! Changes of files as server-sent events, as they happen. Who reads slowly slows nobody: the kernel keeps a queue for each, and
//! says when it ran over.

use super::asked::{self, At};
use super::content::Waits;
use super::may_read;
use crate::admission::Turn;
use crate::ask::Path;
use crate::refuse::Refusal;
use crate::{Shared, Who};
use axum::extract::State;
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use futures_util::Stream;
use http::StatusCode;
use node::files::watch::{self, Event, Watch};
use serde::Deserialize;
use std::convert::Infallible;
use std::time::Duration;
use terms::{Fault, LimitKind};
use tokio::sync::mpsc;
use utoipa::IntoParams;

/// Events that wait for a client; the rest waits in the kernel's queue.
const WAITING: usize = 64;
/// Whether the sandbox and the client are still there is looked at this often, at least.
const LOOK: Duration = Duration::from_secs(1);

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
    let turn = shared.watches().turn(&who.tenant).await.ok_or_else(|| {
        let message = "too many watches are open";
        Refusal::limit(StatusCode::TOO_MANY_REQUESTS, LimitKind::Waiting, message, "close one")
    })?;
    let waits = Waits::default();
    let interest = waits.interest();
    let begin = move |root, path| watch::watch(root, &path, rest.recursive, interest);
    let watch = super::reading(&shared, &who, id, path, begin).await?;
    let (sender, receiver) = mpsc::channel(WAITING);
    let _ = sender.try_send(Sent::default().event("ready").data("{}"));
    // Not one of the runtime's: it may wait for days.
    let started = std::thread::Builder::new().name("watch".into()).spawn(move || feed(watch, &sender, turn));
    started.map_err(|e| Fault::internal(format!("a watch that nobody can wait for: {e}")))?;
    let stream = futures_util::stream::unfold((receiver, waits), |(mut receiver, waits)| async move {
        Some((Ok(receiver.recv().await?), (receiver, waits)))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

/// Hands on what happens until it is over, or nobody listens.
fn feed(mut watch: Watch, to: &mpsc::Sender<Sent>, _turn: Turn) {
    while !watch.is_over() && !to.is_closed() {
        watch.wait(LOOK);
        let told: Vec<Sent> = match watch.take() {
            Ok(events) => events.iter().map(event).collect(),
            Err(fault) => {
                let text = serde_json::to_string(&fault).unwrap_or_default();
                let _ = to.blocking_send(Sent::default().event("lost").data(text));
                return;
            }
        };
        if told.into_iter().any(|event| to.blocking_send(event).is_err()) {
            return;
        }
    }
}

fn event(event: &Event) -> Sent {
    Sent::default().event("change").data(serde_json::to_string(event).unwrap_or_default())
}
