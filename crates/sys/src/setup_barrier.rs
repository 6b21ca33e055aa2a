//! Futex barrier between the setup helper, which makes a guest's places, and pid 1, which drops its privileges
//! meanwhile. It lies in memory that both see, and is waited on without the C library.

use crate::arena::{Arena, ArenaRef};
use crate::raw::kernel;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Timeout in seconds. A live process is quicker; a killed one never answers.
const PATIENCE: i64 = 60;

const OPEN: i32 = 0;
const DONE: i32 = 1;
const FAILED: i32 = 2;
/// The helper was killed.
const LOST: i32 = 3;

pub(crate) struct SetupBarrier {
    /// Pid 1 has executed the steps that every plan has.
    early: AtomicI32,
    /// The helper has executed its steps.
    places: AtomicI32,
    step: AtomicU32,
    errno: AtomicI32,
}

impl SetupBarrier {
    pub(crate) fn new(arena: &Arena) -> ArenaRef<SetupBarrier> {
        let open = || AtomicI32::new(OPEN);
        arena.place(SetupBarrier { early: open(), places: open(), step: AtomicU32::new(0), errno: AtomicI32::new(0) })
    }

    pub(crate) fn set_early(&self, done: bool) {
        publish(&self.early, if done { DONE } else { FAILED });
    }

    pub(crate) fn await_early(&self) -> Result<(), i32> {
        match wait_until_set(&self.early, || false)? {
            DONE => Ok(()),
            _ => Err(libc::ECANCELED),
        }
    }

    /// Records that all places are made, or the step that failed.
    pub(crate) fn set_places(&self, made: Result<(), (u32, i32)>) {
        if let Err((step, errno)) = made {
            self.step.store(step, Ordering::Relaxed);
            self.errno.store(errno, Ordering::Relaxed);
        }
        publish(&self.places, if made.is_ok() { DONE } else { FAILED });
    }

    /// Records on the helper's behalf that it was killed.
    pub(crate) fn set_places_lost(&self) {
        publish(&self.places, LOST);
    }

    /// Waits for the places; on failure returns the step and its error number, or no step if the helper was killed.
    /// `alone` returns true if no process is left that could answer.
    pub(crate) fn await_places(&self, alone: impl Fn() -> bool) -> Result<(), (Option<u32>, i32)> {
        match wait_until_set(&self.places, alone) {
            Ok(DONE) => Ok(()),
            Ok(LOST) => Err((None, libc::ECANCELED)),
            Ok(_) => Err((Some(self.step.load(Ordering::Relaxed)), self.errno.load(Ordering::Relaxed))),
            Err(errno) => Err((None, errno)),
        }
    }

    pub(crate) fn has_places(&self) -> bool {
        self.places.load(Ordering::Acquire) != OPEN
    }

    /// Waits for the places, at most 20 ms.
    pub(crate) fn wait_briefly(&self) {
        wait(&self.places, OPEN, Some(&libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 }));
    }
}

fn publish(word: &AtomicI32, value: i32) {
    word.store(value, Ordering::Release);
    wake(word);
}

fn wait_until_set(word: &AtomicI32, alone: impl Fn() -> bool) -> Result<i32, i32> {
    // SAFETY: a structure that outlives the calls; cannot fail otherwise.
    let now = || unsafe {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        kernel!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time).map(|_| time.tv_sec)
    };
    spin(word, OPEN);
    let mut until = None;
    loop {
        let value = word.load(Ordering::Acquire);
        if value != OPEN {
            return Ok(value);
        }
        let (time, end) = (now()?, *until.get_or_insert(now()? + PATIENCE));
        if time > end {
            return Err(libc::ETIMEDOUT);
        }
        if alone() {
            return Err(libc::ECANCELED);
        }
        wait(word, OPEN, Some(&libc::timespec { tv_sec: 1, tv_nsec: 0 }));
    }
}

/// Spins while a word has this value: a few microseconds are cheaper than a futex wait if the change is imminent.
pub(crate) fn spin(word: &AtomicI32, value: i32) {
    const SPINS: u32 = 400;
    for _ in 0..SPINS {
        if word.load(Ordering::Acquire) != value {
            return;
        }
        std::hint::spin_loop();
    }
}

/// Waits until a word is no longer `value`. Polls now and then, in case a wake-up was missed.
pub(crate) fn wait_past(word: &AtomicI32, value: i32) {
    while word.load(Ordering::Acquire) == value {
        wait(word, value, Some(&libc::timespec { tv_sec: 1, tv_nsec: 0 }));
    }
}

pub(crate) fn wait(word: &AtomicI32, value: i32, pause: Option<&libc::timespec>) {
    const FUTEX_WAIT: usize = 0;
    let pause = pause.map_or(0, |p| &raw const *p as usize);
    // SAFETY: the word and the pause outlive the call.
    let _ = unsafe { kernel!(SYS_futex, word.as_ptr(), FUTEX_WAIT, value, pause) };
}

pub(crate) fn wake(word: &AtomicI32) {
    const FUTEX_WAKE: usize = 1;
    // SAFETY: the word outlives the call.
    let _ = unsafe { kernel!(SYS_futex, word.as_ptr(), FUTEX_WAKE, i32::MAX) };
}
