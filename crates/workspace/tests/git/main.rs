//! Git beside review: commits of what landed, in repositories that mean harm and in ordinary ones of every shape, and merges.

mod commit;
mod hostile;
mod merge;
mod old;
mod place;
mod submodules;
