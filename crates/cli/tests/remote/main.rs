//! The command line as a client of a daemon: every verb of it, what goes to a run and comes back, and what a hostile daemon can do.
use testkit as support;

mod explain;
mod fake;
mod fuzz;
mod hostile;
mod policies;
mod runs;
mod table;
mod verbs;
mod watched;
