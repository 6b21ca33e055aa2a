//! Memory of ours that a copy of this process does not get. The guest's first process is such a copy: it walks lists that
//! lie in the arena, on a stack that was made for it. It needs neither our heap nor our own stack; what it does not have
//! nobody can get out of it. And the kernel has none of their pages to copy when one of us changes them.
//!
//! Withheld for one birth only: a copy that is made for anything else needs all, and takes it back first.

use crate::process;
use crate::raw::kernel;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// While this is there, copies do without.
pub(crate) struct Withheld(());

/// Where what is withheld begins and ends; 0 where there is nothing.
static RANGES: [[AtomicUsize; 2]; 2] = [const { [const { AtomicUsize::new(0) }; 2] }; 2];

/// More than the C library keeps behind a thread's pointer.
const NEAR: usize = 4 << 10;
/// How far below our frame the stack can have been used.
const DEEP: usize = 1 << 20;
/// What ends further from where it begins is not what we take it for.
const FAR: usize = 1 << 30;

pub(crate) fn withhold() -> Withheld {
    // The stack that the kernel made is that of the first thread. Asked of the kernel itself: the standard library knows the C
    // library's `gettid` as one that may be missing, and in a program that is linked as a whole it then is.
    // SAFETY: asks for two numbers.
    let first = unsafe { kernel!(SYS_gettid) == kernel!(SYS_getpid) };
    let ranges = [heap(), first.then(stack).flatten()];
    for ([start, end], range) in RANGES.iter().zip(ranges) {
        let range = range.unwrap_or_default();
        advise(&range, libc::MADV_DONTFORK);
        end.store(range.end, Ordering::Relaxed);
        start.store(range.start, Ordering::Release);
    }
    Withheld(())
}

/// From here on copies get all. For whoever makes one while a birth may be due, which then takes longer.
pub(crate) fn give_back() {
    for [start, end] in &RANGES {
        let start = start.swap(0, Ordering::AcqRel);
        advise(&(start..end.load(Ordering::Relaxed)), libc::MADV_DOFORK);
    }
}

impl Drop for Withheld {
    fn drop(&mut self) {
        give_back();
    }
}

/// All but its beginning, where a statically linked C library keeps what belongs to the first thread; the kernel itself writes
/// there whenever it has interrupted us, in the copy, too.
fn heap() -> Option<Range<usize>> {
    // SAFETY: neither changes anything.
    let (thread, end) = unsafe { (libc::pthread_self() as usize, libc::sbrk(0) as usize) };
    let start = thread.checked_add(NEAR)?.next_multiple_of(page());
    let end = end - end % page();
    (start < end && end - start < FAR).then_some(start..end)
}

/// From below what is in use to our arguments and variables, which the first process blanks in its copy: by them it has its
/// name.
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

/// Where there is nothing, nothing is withheld, and what cannot be withheld costs time alone.
fn advise(range: &Range<usize>, advice: i32) {
    if range.start == 0 {
        return;
    }
    // SAFETY: the advice changes no byte and unmaps nothing; it says what later copies get.
    unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), advice) };
}
