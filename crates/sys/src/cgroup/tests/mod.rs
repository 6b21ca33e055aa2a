//! `fake` trees stand for hosts that this machine is not; `live` uses the real hierarchies of this machine.

pub mod fake;
mod live;
