//! Landing: selected changes of a workspace reach the base as shown, or the base stays unchanged.

mod batch;
mod cutoff;
#[path = "../review/fixture.rs"]
#[allow(dead_code)]
mod fixture;
mod kinds;
mod races;
mod rejecting;
mod undoing;
