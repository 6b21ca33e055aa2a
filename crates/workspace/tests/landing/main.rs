//! What lands: chosen changes of a workspace come out in the base as they were shown, or the base stays as it was.

mod batch;
mod cutoff;
mod kinds;
mod races;
mod rejecting;
mod undoing;
#[path = "../review/world.rs"]
#[allow(dead_code)]
mod world;
