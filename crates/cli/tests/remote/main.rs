//! The command line as a client of a daemon: every verb, input and output of runs, and hostile daemons.
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
