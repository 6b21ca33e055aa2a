//! Code in contexts, through the binary and over HTTP: three languages that keep their state, results, limits, interruptions, hostile code,
//! and what is left after a kill.
use testkit as support;

mod calls;
mod contexts;
mod fixture;
mod guests;
mod hostile;
mod http;
mod killed;
mod limits;
mod results;
mod session;

/// The same tests with a daemon that carries out the verbs.
#[test]
fn the_same_with_a_daemon() {
    support::served::again(25, &["calls::", "contexts::", "limits::", "results::", "hostile::", "guests::"], &[]);
}
