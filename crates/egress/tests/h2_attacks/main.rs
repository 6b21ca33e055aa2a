//! HTTP/2 through the inspector when either side is hostile. An attack must end or be held, in bounded memory, and
//! whoever behaves is served meanwhile and afterwards, as the control of each attack shows.
//!
//! One attack runs at a time: what the process needs at most is read while nothing else runs in it.

mod frames;
mod guest;
mod requests;
mod server;

#[allow(dead_code, reason = "the tests of the inspector use more of it")]
#[path = "../inspect/servers.rs"]
mod servers;
#[allow(dead_code, reason = "the tests of the inspector use more of it")]
#[path = "../inspect/world.rs"]
mod world;
