//! Operation of the daemon: configuration, backups, checks, units, logs, metrics and traces.

mod collector;
mod config;
mod copies;
mod daemon;
mod packages;
mod top;
mod units;
mod watched;

use testkit as support;
