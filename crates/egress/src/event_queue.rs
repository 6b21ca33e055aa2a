//! Bounded queue of events, with an eventfd that is readable while the supervisor should take them.

use crate::event::{Event, EventStage};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use terms::Action;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Queue limit. Events beyond it are counted and dropped, so that a guest cannot fill the broker's memory.
const MAX_EVENTS: usize = 8192;
/// Queue length from which the reader is woken at once.
const WAKE_AT_EVENTS: usize = MAX_EVENTS / 4;
/// Batching delay for events that need no immediate action. Waking the supervisor's thread for each connection would
/// slow every connection down.
const BATCH_DELAY: Duration = Duration::from_millis(10);

pub(crate) struct EventQueue {
    queue: Mutex<Queue>,
    wake: OwnedFd,
    quiet: Notify,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    dropped: u64,
    /// True if the eventfd was written for the queued events.
    is_signalled: bool,
}

impl EventQueue {
    pub fn new() -> std::io::Result<EventQueue> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(EventQueue { queue: Mutex::default(), wake, quiet: Notify::new() })
    }

    pub fn wake_handle(&self) -> std::io::Result<OwnedFd> {
        self.wake.try_clone()
    }

    pub fn push(&self, event: Event) {
        let urgent = event.stage == EventStage::Refused || event.action != Action::Allow;
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        match queue.events.len() < MAX_EVENTS {
            true => queue.events.push_back(event),
            false => queue.dropped += 1,
        }
        let first = queue.events.len() == 1;
        let now = (urgent || queue.events.len() >= WAKE_AT_EVENTS) && !queue.is_signalled;
        queue.is_signalled |= now;
        drop(queue);
        match now {
            true => self.signal(),
            false if first => self.quiet.notify_one(),
            false => {}
        }
    }

    /// Writes the eventfd a batching delay after the first event that can wait. Runs for ever.
    pub async fn signal_batches(&self) {
        loop {
            self.quiet.notified().await;
            sleep(BATCH_DELAY).await;
            if self.is_due() {
                self.signal();
            }
        }
    }

    fn is_due(&self) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let due = !queue.events.is_empty() && !queue.is_signalled;
        queue.is_signalled |= due;
        due
    }

    /// Makes the eventfd readable.
    pub fn signal(&self) {
        // Fails only when the counter would overflow, and then the eventfd is readable as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Returns the events since the last call, and the number of dropped events.
    pub fn take(&self) -> (Vec<Event>, u64) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let Queue { events, dropped, .. } = std::mem::take(&mut *queue);
        (events.into(), dropped)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::event::Op;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn event() -> Event {
        Event {
            op: Op::Connect,
            stage: EventStage::Refused,
            action: terms::Action::Deny,
            rule: "defaults.net".to_owned(),
            revision: 1,
            proto: policy::Proto::Tcp,
            name: None,
            address: None,
            method: None,
            path: None,
            bytes_in: 0,
            bytes_out: 0,
            reason: None,
            hint: None,
            socket: None,
            actor: None,
            run: None,
        }
    }

    fn is_readable(queue: &EventQueue) -> bool {
        let wake = queue.wake_handle().unwrap();
        let mut fds = [PollFd::new(&wake, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn what_nobody_takes_is_counted_and_dropped() {
        let queue = EventQueue::new().unwrap();
        assert!(!is_readable(&queue));
        (0..MAX_EVENTS + 5).for_each(|_| queue.push(event()));
        assert!(is_readable(&queue));
        let (events, dropped) = queue.take();
        assert_eq!((events.len(), dropped), (MAX_EVENTS, 5));
        assert!(!is_readable(&queue));
        assert_eq!(queue.take(), (Vec::new(), 0));
        queue.push(event());
        assert!(is_readable(&queue));
    }

    #[test]
    fn news_that_can_wait_is_told_a_little_later() {
        let queue = EventQueue::new().unwrap();
        let opened = || Event { stage: EventStage::Opened, action: Action::Allow, ..event() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let waiting = async {
                for _ in 0..3 {
                    (0..5).for_each(|_| queue.push(opened()));
                    assert!(!is_readable(&queue));
                    sleep(BATCH_DELAY * 10).await;
                    assert!(is_readable(&queue));
                    assert_eq!(queue.take().0.len(), 5);
                }
                // An urgent event takes the waiting ones along, and no second wake-up follows.
                queue.push(opened());
                queue.push(event());
                assert!(is_readable(&queue));
                assert_eq!(queue.take().0.len(), 2);
                sleep(BATCH_DELAY * 10).await;
                assert!(!is_readable(&queue));
            };
            tokio::select! {
                () = queue.signal_batches() => {}
                () = waiting => {}
            }
        });
        (0..WAKE_AT_EVENTS).for_each(|_| queue.push(opened()));
        assert!(is_readable(&queue));
    }
}
