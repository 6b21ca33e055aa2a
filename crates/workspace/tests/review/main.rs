//! Review over trees built by hand: what is found, how it is told, what is withheld, and that hostile trees cost no more than
//! they may.

mod changes;
mod classes;
mod excluded;
mod hostile;
mod patches;
mod views;
mod world;
