//! What whoever keeps the daemon running relies on: configuration, copies, checks, units, logs, metrics and traces.

mod collector;
mod config;
mod copies;
mod daemon;
mod top;
mod units;
mod watched;

use testkit as support;
