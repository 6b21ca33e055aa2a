//! Changes of files as server-sent events, as they happen. A slow reader slows nobody else: the kernel keeps a queue for each watch, and
//! says when it ran over.

use super::asked::{self, At};
use super::content::{Aside, Waits};
use super::may_read;
use crate::ask::Path;
use crate::readiness::Ready;
use crate::refuse::Refusal;
use crate::tasks::{Kind, Task};
use crate::{Shared, Who};
use axum::extract::State;
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use futures_util::Stream;
use node::files::watch::{self, Event, Watch};
use serde::Deserialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use terms::Fault;
use tokio::io::Interest;
use utoipa::IntoParams;

/// A watch is looked at this often, at least: whether its sandbox is still there.
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
    let task = shared.tasks().admit(Kind::FileWatch, &who.tenant)?;
    let waits = Waits::default();
    let interest = waits.interest();
    let begin = move |root, path| watch::watch(root, &path, rest.recursive, interest);
    let watch = super::reading(&shared, &who, id, path, begin).await?;
    let watcher = Watcher::new(watch, task, waits)?;
    Ok(Sse::new(watcher.events()).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

/// The stream of one watch. It waits for the kernel's queue without a thread; a thread takes each batch.
struct Watcher {
    /// A second handle on the kernel's queue, readable when there are events.
    queue: Ready<OwnedFd>,
    /// None while a batch is taken, and after the end.
    watch: Aside<(Watch, Task)>,
    batch: VecDeque<Sent>,
    /// The last batch was empty: the queue is waited for.
    is_drained: bool,
    _waits: Waits,
}

impl Watcher {
    fn new(watch: Watch, task: Task, waits: Waits) -> Result<Watcher, Fault> {
        let queue = watch.as_fd().try_clone_to_owned().and_then(|queue| Ready::new(queue, Interest::READABLE));
        let queue = queue.map_err(|e| Fault::internal(format!("a file watch cannot be waited for: {e}")))?;
        let batch = VecDeque::from([Sent::default().event("ready").data("{}")]);
        Ok(Watcher { queue, watch: Aside(Some((watch, task))), batch, is_drained: false, _waits: waits })
    }

    fn events(self) -> impl Stream<Item = Result<Sent, Infallible>> {
        futures_util::stream::unfold(self, |mut this| async move {
            let event = this.next().await?;
            Some((Ok(event), this))
        })
    }

    async fn next(&mut self) -> Option<Sent> {
        loop {
            if let Some(event) = self.batch.pop_front() {
                return Some(event);
            }
            if self.is_drained {
                // The tick finds out that the sandbox was stopped, which the queue does not tell.
                let _ = tokio::time::timeout(LOOK, self.queue.readable()).await;
            }
            if self.watch.0.as_ref()?.0.is_over() {
                return None;
            }
            let (mut watch, task) = self.watch.0.take()?;
            let step = tokio::task::spawn_blocking(move || watch.take().map(|events| (events, watch, task)));
            match step.await.ok()? {
                Ok((events, watch, task)) => {
                    self.is_drained = events.is_empty();
                    self.batch.extend(events.iter().map(event));
                    self.watch.0 = Some((watch, task));
                }
                Err(fault) => {
                    let text = serde_json::to_string(&fault).unwrap_or_default();
                    return Some(Sent::default().event("lost").data(text));
                }
            }
        }
    }
}

fn event(event: &Event) -> Sent {
    Sent::default().event("change").data(serde_json::to_string(event).unwrap_or_default())
}
