//! Review over trees built by hand: what is found, how it is told, what is withheld, and that hostile trees cost no more than
//! they may.

mod changes;
mod world;
