//! Memory that the guest's first process sees as we do. It may be born before its steps are known; what they say is
//! therefore written where both look: one mapping, shared with whoever is cloned after it was made.
//!
//! Nothing here is given back: a process encloses one guest, or a few one after the other. What does not fit goes to
//! the heap instead, and then the first process must be made after the list, from a copy of the heap.

use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Address space, of which only what is used costs memory.
const SIZE: usize = 8 << 20;

static BASE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static USED: AtomicUsize = AtomicUsize::new(0);
static OVERFLOWED: AtomicBool = AtomicBool::new(false);

/// Makes the mapping. Without it everything goes to the heap.
pub fn open() -> bool {
    if !BASE.load(Ordering::Acquire).is_null() {
        return true;
    }
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping, wherever the kernel likes.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, access, kind, -1, 0) };
    if base == libc::MAP_FAILED {
        return false;
    }
    BASE.store(base.cast(), Ordering::Release);
    true
}

/// Whether all that was written so far is where a process can see it that was cloned after `open`.
pub(crate) fn holds_all() -> bool {
    !BASE.load(Ordering::Acquire).is_null() && !OVERFLOWED.load(Ordering::Acquire)
}

/// Room for `len` bytes, aligned for anything; `None` when there is none.
fn take(len: usize) -> Option<*mut u8> {
    const ALIGN: usize = 16;
    let base = BASE.load(Ordering::Acquire);
    let need = len.checked_next_multiple_of(ALIGN).filter(|need| *need <= SIZE && !base.is_null());
    let at = need.and_then(|need| {
        USED.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| Some(used + need).filter(|end| *end <= SIZE)).ok()
    });
    if at.is_none() {
        OVERFLOWED.store(true, Ordering::Release);
    }
    // SAFETY: inside the mapping, as the sum above was checked to be.
    at.map(|at| unsafe { base.add(at) })
}

/// A copy of plain values.
pub fn list<T: Copy>(values: &[T]) -> &'static [T] {
    const { assert!(align_of::<T>() <= 16) };
    match take(size_of_val(values)) {
        // SAFETY: fresh room of that size, aligned for `T`, written before it is read and never changed or given back.
        Some(at) => unsafe {
            let at = at.cast::<T>();
            at.copy_from_nonoverlapping(values.as_ptr(), values.len());
            std::slice::from_raw_parts(at, values.len())
        },
        None => Vec::leak(values.to_vec()),
    }
}

/// One value of any kind, for those who change it while others look: only what is made for that can be.
pub(crate) fn place<T: Sync>(value: T) -> &'static T {
    const { assert!(align_of::<T>() <= 16) };
    match take(size_of::<T>()) {
        // SAFETY: as above.
        Some(at) => unsafe {
            let at = at.cast::<T>();
            at.write(value);
            &*at
        },
        None => Box::leak(Box::new(value)),
    }
}

/// A path or string for the kernel. Callers have refused NUL long before.
pub fn text(bytes: impl AsRef<[u8]>) -> &'static CStr {
    let bytes = bytes.as_ref();
    assert!(!bytes.contains(&0), "paths with NUL are refused at the door");
    match take(bytes.len() + 1) {
        // SAFETY: fresh room of that size, filled with the bytes and the end that makes them a C string; never changed
        // or given back.
        Some(at) => unsafe {
            at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            at.add(bytes.len()).write(0);
            CStr::from_ptr(at.cast::<c_char>())
        },
        None => Box::leak(CString::new(bytes).unwrap_or_default().into_boxed_c_str()),
    }
}
