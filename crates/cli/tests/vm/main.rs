//! On hosts that the building machine is not: control groups of version 2 alone, under a live systemd, on a new kernel and on one that
//! is too old for some walls. Each is a virtual machine that `tools/vm` builds and emulates; it is booted once for all its tests.
//!
//! An emulated machine is slow, so nothing here depends on how long anything takes.

mod daemon;
mod limits;
mod live;
mod machine;
mod old;
mod place;
