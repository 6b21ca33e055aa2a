//! What happened and was not taken yet: a bounded queue, and a descriptor that is readable while somebody should look.

use crate::event::{Event, Stage};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use terms::Action;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Past it events are counted and dropped: a guest that asks for much must not fill our memory.
const MAX_EVENTS: usize = 8192;
/// With so many, whoever takes them is woken at once.
const MANY_EVENTS: usize = MAX_EVENTS / 4;
/// How long news that nobody must act upon may wait for more: to wake another thread for each connection would make
/// every connection slower.
const GATHER: Duration = Duration::from_millis(10);

pub(crate) struct Journal {
    queue: Mutex<Queue>,
    wake: OwnedFd,
    quiet: Notify,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    dropped: u64,
    /// Somebody was told to look at these.
    rung: bool,
}

impl Journal {
    pub fn new() -> std::io::Result<Journal> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Journal { queue: Mutex::default(), wake, quiet: Notify::new() })
    }

    pub fn wake_handle(&self) -> std::io::Result<OwnedFd> {
        self.wake.try_clone()
    }

    pub fn push(&self, event: Event) {
        let urgent = event.stage == Stage::Refused || event.action != Action::Allow;
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        match queue.events.len() < MAX_EVENTS {
            true => queue.events.push_back(event),
            false => queue.dropped += 1,
        }
        let first = queue.events.len() == 1;
        let now = (urgent || queue.events.len() >= MANY_EVENTS) && !queue.rung;
        queue.rung |= now;
        drop(queue);
        match now {
            true => self.ring(),
            false if first => self.quiet.notify_one(),
            false => {}
        }
    }

    /// Makes the descriptor readable a little after something happened that can wait.
    pub async fn tend(&self) {
        loop {
            self.quiet.notified().await;
            sleep(GATHER).await;
            if self.is_due() {
                self.ring();
            }
        }
    }

    fn is_due(&self) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let due = !queue.events.is_empty() && !queue.rung;
        queue.rung |= due;
        due
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) {
        // It cannot fail but by having been rung some 2^64 times, and then it is readable as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Everything since the last call, and how many were dropped.
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
            stage: Stage::Refused,
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

    fn is_readable(journal: &Journal) -> bool {
        let wake = journal.wake_handle().unwrap();
        let mut fds = [PollFd::new(&wake, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn what_nobody_takes_is_counted_and_dropped() {
        let journal = Journal::new().unwrap();
        assert!(!is_readable(&journal));
        (0..MAX_EVENTS + 5).for_each(|_| journal.push(event()));
        assert!(is_readable(&journal));
        let (events, dropped) = journal.take();
        assert_eq!((events.len(), dropped), (MAX_EVENTS, 5));
        assert!(!is_readable(&journal));
        assert_eq!(journal.take(), (Vec::new(), 0));
        journal.push(event());
        assert!(is_readable(&journal));
    }

    #[test]
    fn news_that_can_wait_is_told_a_little_later() {
        let journal = Journal::new().unwrap();
        let opened = || Event { stage: Stage::Opened, action: Action::Allow, ..event() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let waiting = async {
                for _ in 0..3 {
                    (0..5).for_each(|_| journal.push(opened()));
                    assert!(!is_readable(&journal));
                    sleep(GATHER * 10).await;
                    assert!(is_readable(&journal));
                    assert_eq!(journal.take().0.len(), 5);
                }
                // Whatever must be acted upon takes along what waits, and nobody is woken for nothing afterwards.
                journal.push(opened());
                journal.push(event());
                assert!(is_readable(&journal));
                assert_eq!(journal.take().0.len(), 2);
                sleep(GATHER * 10).await;
                assert!(!is_readable(&journal));
            };
            tokio::select! {
                () = journal.tend() => {}
                () = waiting => {}
            }
        });
        (0..MANY_EVENTS).for_each(|_| journal.push(opened()));
        assert!(is_readable(&journal));
    }
}
