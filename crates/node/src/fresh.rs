//! What is new each time: random numbers for ids, and the time.

use std::time::{SystemTime, UNIX_EPOCH};

pub fn random() -> [u8; 16] {
    let mut bytes = [0u8; 16];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    if got != Ok(16) {
        // Only a kernel that is still booting has none; ids must be unique, not secret.
        bytes[..4].copy_from_slice(&std::process::id().to_ne_bytes());
    }
    bytes
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
