//! Review over hand-built trees: detection, presentation, withheld files, and bounded cost on hostile trees.

mod changes;
mod classes;
mod excluded;
mod fixture;
mod hostile;
mod patches;
mod views;
