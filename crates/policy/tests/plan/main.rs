//! Plans, on typical hosts and on random ones.

mod agree;
mod hosts;
mod model;
