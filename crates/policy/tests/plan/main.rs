//! Plans: on hosts that people have, and on random ones.

mod agree;
mod hosts;
mod model;
