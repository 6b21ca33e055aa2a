//! Random bytes for ids, from the kernel.

/// Returns sixteen random bytes for an id.
pub fn id_bytes() -> [u8; 16] {
    let mut bytes = [0u8; 16];
    // SAFETY: the kernel writes at most the length of the array into it.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        // Only a kernel that is still booting returns none; ids must be unique, not secret.
        bytes[..4].copy_from_slice(&std::process::id().to_ne_bytes());
    }
    bytes
}
