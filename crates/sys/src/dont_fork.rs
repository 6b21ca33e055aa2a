//! Heap and stack ranges that are excluded from a fork (`MADV_DONTFORK`). The guest's pid 1 is a copy of this process
//! that executes lists in the arena, on a stack of its own. It needs neither our heap nor our stack; memory that it
//! does not have cannot leak from it, and the kernel has no pages of it to copy when one side writes.
//!
//! The exclusion is for one clone only: every other fork needs all memory, and calls `allow` first.

use crate::process;
use crate::raw::kernel;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Guard of the exclusion; dropping it includes the ranges again.
pub(crate) struct DontFork(());

/// Start and end of the excluded ranges; 0 where there is none.
static RANGES: [[AtomicUsize; 2]; 2] = [const { [const { AtomicUsize::new(0) }; 2] }; 2];

/// Bytes behind the thread pointer that stay included; more than the C library uses there.
const NEAR: usize = 4 << 10;
/// Depth in bytes, below the current frame, to which the stack can have been used.
const DEEP: usize = 1 << 20;
/// Bound on the length of a range; a longer one is not the heap or stack.
const FAR: usize = 1 << 30;

/// Excludes heap and stack from forks.
pub(crate) fn exclude() -> DontFork {
    // Only the main thread has the stack that the kernel made. The ids come from the kernel itself: the standard
    // library treats the C library's `gettid` as a symbol that may be missing, and in a statically linked program it
    // then is.
    // SAFETY: asks for two numbers.
    let first = unsafe { kernel!(SYS_gettid) == kernel!(SYS_getpid) };
    let ranges = [heap(), first.then(stack).flatten()];
    for ([start, end], range) in RANGES.iter().zip(ranges) {
        let range = range.unwrap_or_default();
        advise(&range, libc::MADV_DONTFORK);
        end.store(range.end, Ordering::Relaxed);
        start.store(range.start, Ordering::Release);
    }
    DontFork(())
}

/// Includes both ranges in forks again. A clone of pid 1 that is still to come then takes longer.
pub(crate) fn allow() {
    for [start, end] in &RANGES {
        let start = start.swap(0, Ordering::AcqRel);
        advise(&(start..end.load(Ordering::Relaxed)), libc::MADV_DOFORK);
    }
}

impl Drop for DontFork {
    fn drop(&mut self) {
        allow();
    }
}

/// Returns the heap without its beginning, where a statically linked C library keeps the main thread's data; the kernel
/// itself writes there after every interruption, also in the copy.
fn heap() -> Option<Range<usize>> {
    // SAFETY: neither changes anything.
    let (thread, end) = unsafe { (libc::pthread_self() as usize, libc::sbrk(0) as usize) };
    let start = thread.checked_add(NEAR)?.next_multiple_of(page());
    let end = end - end % page();
    (start < end && end - start < FAR).then_some(start..end)
}

/// Returns the stack from below the used part up to our arguments and environment, which pid 1 overwrites in its copy:
/// its process name is stored there.
fn stack() -> Option<Range<usize>> {
    let here = 0u8;
    let low = (&raw const here as usize).checked_sub(DEEP)?;
    let end = process::arguments().addr();
    let (start, end) = (low - low % page(), end - end % page());
    (start < end && end - start < FAR).then_some(start..end)
}

fn page() -> usize {
    // SAFETY: reads a list that the kernel left at our start.
    match unsafe { libc::getauxval(libc::AT_PAGESZ) } {
        0 => 4096,
        size => size as usize,
    }
}

/// Advises the kernel about a range, if there is one. A failure costs time only.
fn advise(range: &Range<usize>, advice: i32) {
    if range.start == 0 {
        return;
    }
    // SAFETY: the advice changes no byte and unmaps no page; it affects later forks only.
    unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), advice) };
}
