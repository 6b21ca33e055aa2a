//! Where those who set up one guest meet: the helper, who makes its places, and its first process, which seals itself
//! meanwhile. Lies in memory that both see, and is waited on without the C library.

use crate::arena;
use crate::raw::kernel;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// How long one may keep the other waiting. Who is alive is quicker; who was killed says nothing.
const PATIENCE: i64 = 60;

const OPEN: i32 = 0;
const DONE: i32 = 1;
const FAILED: i32 = 2;
/// Whoever should have spoken is gone.
const LOST: i32 = 3;

pub(crate) struct Meeting {
    /// The first process walked the steps that every plan has.
    early: AtomicI32,
    /// The helper walked its steps.
    places: AtomicI32,
    step: AtomicU32,
    errno: AtomicI32,
}

impl Meeting {
    pub(crate) fn new() -> &'static Meeting {
        let open = || AtomicI32::new(OPEN);
        arena::place(Meeting { early: open(), places: open(), step: AtomicU32::new(0), errno: AtomicI32::new(0) })
    }

    pub(crate) fn early_is(&self, done: bool) {
        tell(&self.early, if done { DONE } else { FAILED });
    }

    pub(crate) fn await_early(&self) -> Result<(), i32> {
        match expect(&self.early, || false)? {
            DONE => Ok(()),
            _ => Err(libc::ECANCELED),
        }
    }

    /// Says that all places are made, or which step failed.
    pub(crate) fn places_are(&self, made: Result<(), (u32, i32)>) {
        if let Err((step, errno)) = made {
            self.step.store(step, Ordering::Relaxed);
            self.errno.store(errno, Ordering::Relaxed);
        }
        tell(&self.places, if made.is_ok() { DONE } else { FAILED });
    }

    /// Says in the helper's place that it was killed: nobody else will.
    pub(crate) fn places_are_lost(&self) {
        tell(&self.places, LOST);
    }

    /// Waits for the places; the step that failed and its error number, or none where the helper did not say. `alone` tells
    /// that nobody is left who could.
    pub(crate) fn await_places(&self, alone: impl Fn() -> bool) -> Result<(), (Option<u32>, i32)> {
        match expect(&self.places, alone) {
            Ok(DONE) => Ok(()),
            Ok(LOST) => Err((None, libc::ECANCELED)),
            Ok(_) => Err((Some(self.step.load(Ordering::Relaxed)), self.errno.load(Ordering::Relaxed))),
            Err(errno) => Err((None, errno)),
        }
    }

    pub(crate) fn has_places(&self) -> bool {
        self.places.load(Ordering::Acquire) != OPEN
    }

    /// Waits for the places for a moment.
    pub(crate) fn rest(&self) {
        wait(&self.places, OPEN, Some(&libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 }));
    }
}

fn tell(word: &AtomicI32, value: i32) {
    word.store(value, Ordering::Release);
    wake(word);
}

fn expect(word: &AtomicI32, alone: impl Fn() -> bool) -> Result<i32, i32> {
    // SAFETY: a structure that outlives the calls; cannot fail otherwise.
    let now = || unsafe {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        kernel!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time).map(|_| time.tv_sec)
    };
    look(word, OPEN);
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

/// Looks for a while whether a word changes: a few microseconds of it are cheaper than a sleep where the answer is about
/// to come.
pub(crate) fn look(word: &AtomicI32, value: i32) {
    const SPINS: u32 = 400;
    for _ in 0..SPINS {
        if word.load(Ordering::Acquire) != value {
            return;
        }
        std::hint::spin_loop();
    }
}

/// Waits until a word is no longer `value`. Looks up now and then, in case nobody could be woken.
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
