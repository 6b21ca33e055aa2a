//! Keepers: one small process for each live sandbox, which holds its enclosure, runs commands in it, keeps what they say, and can be
//! asked over a socket. Whoever asks may come and go.

pub mod spool;
