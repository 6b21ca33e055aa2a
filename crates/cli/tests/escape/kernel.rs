//! Attacks on the kernel boundary: processes, privileges, system calls, devices, mounts and the seccomp listener.
//! Canaries, process lists and hashes on the host decide; a probe's own output never does.

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
