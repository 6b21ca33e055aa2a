//! What this machine has and lacks: the kernel's features (`doctor`), the caller's toolchains, and the one-time set-up of
//! control groups. It knows nothing of sandboxes, records or policies.

pub mod doctor;
pub mod setup;
pub mod toolchains;
