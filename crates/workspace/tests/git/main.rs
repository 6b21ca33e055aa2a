//! Git beside review: commits of landed files, in hostile and ordinary repositories of every shape, and merges.

mod commit;
mod fixture;
mod hostile;
mod merge;
mod old;
mod submodules;
