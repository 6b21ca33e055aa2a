//! An arena for the texts and lists of one guest's setup. Its memory is a shared mapping: a first process that was cloned
//! before its steps were known reads them where they are written. The arena and everything in it is unmapped once the last
//! reference is dropped; a process that was cloned meanwhile keeps its own mapping.
//!
//! Values that do not fit are allocated on the heap; a list there can only be read by a process that is cloned after
//! the list was made.

use crate::CallError;
use std::alloc::{self, Layout};
use std::ffi::CStr;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Address space of one arena in bytes; only the pages in use cost memory.
const SIZE: usize = 8 << 20;
/// Alignment of every allocation in an arena.
const ALIGN: usize = 16;

/// A handle on an arena; clones share it.
#[derive(Clone, Debug)]
pub struct Arena(Arc<Chunk>);

/// A reference into an arena, which keeps the arena alive, or a reference to a static of the program.
pub struct ArenaRef<T: ?Sized> {
    at: NonNull<T>,
    owner: Option<Arc<Chunk>>,
}

/// A NUL-terminated path or string for the kernel.
pub type Text = ArenaRef<CStr>;

impl Default for Arena {
    fn default() -> Arena {
        Arena::new()
    }
}

impl Arena {
    /// Maps an arena. Where the kernel refuses the mapping, every allocation goes to the heap.
    pub fn new() -> Arena {
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Arena(Arc::new(Chunk::mapped(SIZE, libc::PROT_READ | libc::PROT_WRITE, kind).unwrap_or_else(Chunk::empty)))
    }

    /// Returns true if a process that is cloned from now on sees later writes, because the mapping is shared.
    pub(crate) fn is_shared(&self) -> bool {
        self.0.size > 0
    }

    /// Copies plain values into the arena.
    pub fn list<T: Copy>(&self, values: &[T]) -> ArenaRef<[T]> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let (at, owner) = self.take(size_of_val(values));
        let at = at.cast::<T>();
        // SAFETY: fresh memory of that size, aligned for `T`, to which there is no other reference.
        unsafe { at.copy_from_nonoverlapping(NonNull::from(values).cast(), values.len()) };
        ArenaRef { at: NonNull::slice_from_raw_parts(at, values.len()), owner: Some(owner) }
    }

    /// Returns `len` zeros that take address space but no memory. They stand in for contents of which only the length
    /// is known.
    pub fn zeros(len: usize) -> Result<ArenaRef<[u8]>, CallError> {
        // The kernel reserves no memory for a mapping that cannot be written.
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let chunk = Chunk::mapped(len.max(1), libc::PROT_READ, kind).ok_or_else(|| CallError::last("mmap"))?;
        let at = NonNull::slice_from_raw_parts(chunk.base, len);
        Ok(ArenaRef { at, owner: Some(Arc::new(chunk)) })
    }

    /// Stores a path or string for the kernel. Callers have already refused NUL.
    pub fn text(&self, bytes: impl AsRef<[u8]>) -> Text {
        let bytes = bytes.as_ref();
        assert!(!bytes.contains(&0), "paths with NUL are refused at the door");
        let (at, owner) = self.take(bytes.len() + 1);
        // SAFETY: fresh room of that size, filled with the bytes and the end that makes them a C string.
        let text = unsafe {
            at.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
            at.add(bytes.len()).write(0);
            CStr::from_ptr(at.as_ptr().cast_const().cast())
        };
        ArenaRef { at: NonNull::from(text), owner: Some(owner) }
    }

    /// Stores one value that several processes change; its type must be safe for that, such as an atomic.
    pub(crate) fn place<T: Sync>(&self, value: T) -> ArenaRef<T> {
        const { assert!(align_of::<T>() <= ALIGN && !std::mem::needs_drop::<T>()) };
        let (at, owner) = self.take(size_of::<T>());
        // SAFETY: fresh room of that size, aligned for `T`.
        unsafe { at.cast::<T>().write(value) };
        ArenaRef { at: at.cast(), owner: Some(owner) }
    }

    /// Copies values bitwise into the shared mapping; `None` if they do not fit. The copies are never dropped.
    ///
    /// Everything that the values own or refer to must live in this arena or be static.
    pub(crate) unsafe fn copy_bits<T>(&self, values: &[T]) -> Option<&[T]> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let at = self.0.take(size_of_val(values))?.cast::<T>();
        // SAFETY: as in `list`; the caller answers for what the values refer to.
        unsafe {
            at.copy_from_nonoverlapping(NonNull::from(values).cast(), values.len());
            Some(NonNull::slice_from_raw_parts(at, values.len()).as_ref())
        }
    }

    /// Allocates `len` bytes, aligned to `ALIGN`.
    fn take(&self, len: usize) -> (NonNull<u8>, Arc<Chunk>) {
        match self.0.take(len) {
            Some(at) => (at, Arc::clone(&self.0)),
            None => {
                let own = Chunk::heap(len);
                (own.base, Arc::new(own))
            }
        }
    }
}

impl<T: ?Sized> ArenaRef<T> {
    /// Returns true if a process that was cloned after `arena` was made can read the value.
    pub(crate) fn is_in(&self, arena: &Arena) -> bool {
        self.owner.as_ref().is_none_or(|owner| Arc::ptr_eq(owner, &arena.0))
    }
}

impl<T: ?Sized> Deref for ArenaRef<T> {
    type Target = T;

    // A cloned process that reads a list calls this too, so it touches neither the owner nor the heap with the owner's
    // count.
    fn deref(&self) -> &T {
        // SAFETY: written before the reference was made and never moved; its owner is alive, or it is part of the program.
        unsafe { self.at.as_ref() }
    }
}

impl<T: ?Sized> Clone for ArenaRef<T> {
    fn clone(&self) -> ArenaRef<T> {
        ArenaRef { at: self.at, owner: self.owner.clone() }
    }
}

impl<T: ?Sized> From<&'static T> for ArenaRef<T> {
    fn from(value: &'static T) -> ArenaRef<T> {
        ArenaRef { at: NonNull::from(value), owner: None }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for ArenaRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

// SAFETY: only shared references are given out, and the owner's reference count is atomic.
unsafe impl<T: ?Sized + Sync> Send for ArenaRef<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for ArenaRef<T> {}

/// A block of memory that is freed as a whole.
#[derive(Debug)]
struct Chunk {
    base: NonNull<u8>,
    size: usize,
    used: AtomicUsize,
    /// Layout of a heap allocation; `None` for a mapping.
    heap: Option<Layout>,
}

// SAFETY: the memory belongs to the chunk alone, and room in it is given out by an atomic counter.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn mapped(size: usize, access: i32, kind: i32) -> Option<Chunk> {
        // SAFETY: a new mapping, wherever the kernel likes.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size, access, kind, -1, 0) };
        let base = NonNull::new(base.cast::<u8>()).filter(|_| base != libc::MAP_FAILED)?;
        Some(Chunk { base, size, used: AtomicUsize::new(0), heap: None })
    }

    /// A chunk of size zero, in which no allocation fits.
    fn empty() -> Chunk {
        Chunk { base: NonNull::<u128>::dangling().cast(), size: 0, used: AtomicUsize::new(0), heap: None }
    }

    /// A chunk on the heap for one value, already given out.
    fn heap(len: usize) -> Chunk {
        let layout = Layout::from_size_align(len.max(1), ALIGN).expect("no text is as long as all memory");
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc::alloc_zeroed(layout) });
        let base = base.unwrap_or_else(|| alloc::handle_alloc_error(layout));
        Chunk { base, size: len, used: AtomicUsize::new(len), heap: Some(layout) }
    }

    fn take(&self, len: usize) -> Option<NonNull<u8>> {
        let need = len.checked_next_multiple_of(ALIGN).filter(|need| *need <= self.size)?;
        let fits = |used: usize| used.checked_add(need).filter(|end| *end <= self.size);
        let at = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok()?;
        // SAFETY: inside the chunk, as the sum above was checked to be.
        Some(unsafe { self.base.add(at) })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: mapped or allocated by the functions above with this size, and no reference to it is left.
        unsafe {
            match self.heap {
                Some(layout) => alloc::dealloc(self.base.as_ptr(), layout),
                None if self.size > 0 => drop(libc::munmap(self.base.as_ptr().cast(), self.size)),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_is_given_back_with_its_last_reference() {
        let arena = Arena::new();
        let chunk = Arc::downgrade(&arena.0);
        let text = arena.text("/some/path");
        drop(arena);
        let other = text.clone();
        drop(text);
        assert_eq!(&*other, c"/some/path");
        assert!(chunk.upgrade().is_some(), "one reference is left");
        drop(other);
        assert!(chunk.upgrade().is_none());
    }

    #[test]
    fn what_does_not_fit_lives_on_the_heap_and_is_told_apart() {
        let arena = Arena::new();
        let fits = arena.list(&[1u64, 2, 3]);
        let large = arena.list(&vec![7u8; SIZE + 1]);
        let later = arena.text("later");
        assert!(fits.is_in(&arena) && !large.is_in(&arena) && later.is_in(&arena));
        assert_eq!((&*fits, large.len(), large.last()), (&[1, 2, 3][..], SIZE + 1, Some(&7)));
        assert!(!Arena::new().text("other").is_in(&arena), "another arena's");
        assert!(Text::from(c"of the program").is_in(&arena));
    }

    #[test]
    fn an_arena_that_cannot_be_mapped_gives_memory_of_the_heap() {
        let arena = Arena(Arc::new(Chunk::empty()));
        let text = arena.text("x");
        assert!(!arena.is_shared() && !text.is_in(&arena));
        assert_eq!(&*text, c"x");
    }

    #[test]
    fn zeros_take_no_memory() {
        // More memory than a machine has.
        let zeros = Arena::zeros(1 << 40).unwrap();
        assert_eq!((zeros.len(), zeros.first(), zeros.last()), (1 << 40, Some(&0), Some(&0)));
    }
}
