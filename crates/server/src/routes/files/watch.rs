//! Streams file changes as server-sent events. A slow reader delays no other: the kernel has a queue for each watch, and reports its
//! overflow.

use super::content::{CancelOnDrop, DropInBackground};
use super::may_read;
use super::query::{self, WithPath};
use crate::extract::Path;
use crate::readiness::Ready;
use crate::refuse::Refusal;
use crate::tasks::{Task, TaskKind};
use crate::{Principal, Shared};
use api::FileEvent;
use axum::extract::State;
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use futures_util::Stream;
use node::files::watch::{self, InotifyWatch};
use serde::Deserialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use terms::Fault;
use tokio::io::Interest;
use utoipa::IntoParams;

/// Interval of checks that the sandbox still exists.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WatchQuery {
    /// Watch all directories below, too.
    #[serde(default)]
    recursive: bool,
}

/// Watches a directory: streams one event for each change from now on. `event: ready` comes first; `event: lost` says that the sandbox was
/// stopped or its keeper died. The sandbox stays live while it is watched.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/watch", tag = "files",
    params(("id" = String, Path), query::PathQuery, WatchQuery),
    responses((status = 200, description = "Server-sent events with a FileEvent each.", body = FileEvent, content_type = "text/event-stream"),
        (status = 409, description = "Not a directory.", body = Fault)))]
pub async fn watch(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    WithPath { path, rest }: WithPath<WatchQuery>,
) -> Result<Sse<impl Stream<Item = Result<Sent, Infallible>>>, Refusal> {
    may_read(&principal)?;
    let task = shared.tasks().admit(TaskKind::FileWatch, &principal.tenant)?;
    let cancel = CancelOnDrop::default();
    let interest = cancel.interest();
    let begin = move |root, path| watch::watch(root, &path, rest.recursive, interest);
    let watch = super::read_files(&shared, &principal, id, path, begin).await?;
    let watcher = Watcher::new(watch, task, cancel)?;
    Ok(Sse::new(watcher.events()).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

/// The stream of one watch. Waiting for the kernel's queue takes no thread; reading a batch does.
struct Watcher {
    /// A second handle on the kernel's queue, readable when there are events.
    queue: Ready<OwnedFd>,
    /// The watch; none while a batch is read, and after the end.
    watch: DropInBackground<(InotifyWatch, Task)>,
    batch: VecDeque<Sent>,
    /// The last batch was empty, so that the next read waits for the queue.
    is_drained: bool,
    _cancel: CancelOnDrop,
}

impl Watcher {
    fn new(watch: InotifyWatch, task: Task, cancel: CancelOnDrop) -> Result<Watcher, Fault> {
        let queue = watch.as_fd().try_clone_to_owned().and_then(|queue| Ready::new(queue, Interest::READABLE));
        let queue = queue.map_err(|e| Fault::internal(format!("cannot poll a file watch: {e}")))?;
        let batch = VecDeque::from([Sent::default().event("ready").data("{}")]);
        Ok(Watcher { queue, watch: DropInBackground(Some((watch, task))), batch, is_drained: false, _cancel: cancel })
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
                // The timeout detects a stopped sandbox, which the queue does not report.
                let _ = tokio::time::timeout(CHECK_INTERVAL, self.queue.readable()).await;
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

fn event(event: &FileEvent) -> Sent {
    Sent::default().event("change").data(serde_json::to_string(event).unwrap_or_default())
}
