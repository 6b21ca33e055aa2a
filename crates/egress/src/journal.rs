//! What happened and was not taken yet: a bounded queue, and a descriptor that is readable while somebody should look.

use crate::event::Event;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// Past it events are counted and dropped: a guest that asks for much must not fill our memory.
const MAX_EVENTS: usize = 8192;

pub(crate) struct Journal {
    queue: Mutex<Queue>,
    wake: OwnedFd,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    dropped: u64,
}

impl Journal {
    pub fn new() -> std::io::Result<Journal> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Journal { queue: Mutex::default(), wake })
    }

    pub fn wake_handle(&self) -> std::io::Result<OwnedFd> {
        self.wake.try_clone()
    }

    pub fn push(&self, event: Event) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let first = queue.events.is_empty();
        match queue.events.len() < MAX_EVENTS {
            true => queue.events.push_back(event),
            false => queue.dropped += 1,
        }
        drop(queue);
        if first {
            self.ring();
        }
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
        let Queue { events, dropped } = std::mem::take(&mut *queue);
        (events.into(), dropped)
    }
}
