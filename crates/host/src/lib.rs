//! Capabilities of this machine: the kernel's features (`doctor`), the caller's toolchains, and the one-time set-up of
//! control groups. This crate knows nothing of sandboxes, records or policies.

pub mod doctor;
pub mod setup;
pub mod toolchains;
