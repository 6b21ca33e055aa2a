//! Attacks on the kernel's walls: processes, privileges, system calls, devices, mounts and the listener.
//! A probe's own word never decides: canaries, censuses and hashes of the host do.

#[path = "kernel_calls.rs"]
mod calls;
#[path = "kernel_files.rs"]
mod files;
#[path = "kernel_listener.rs"]
mod listener;
#[path = "kernel_privilege.rs"]
mod privilege;
#[path = "kernel_process.rs"]
mod process;
#[path = "kernel_terminal.rs"]
mod terminal;
#[path = "kernel_truth.rs"]
pub mod truth;
