//! HTTP/2 through the inspector when either side is hostile. An attack must end or block, in bounded memory, and honest
//! peers are served meanwhile and afterwards, as the control of each attack shows.
//!
//! Attacks run one at a time, because the peak memory of the process is measured.

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
