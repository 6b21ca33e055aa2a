//! `cofferdam serve`.

use crate::{operations, render, surroundings};
use clap::ArgMatches;
use std::process::ExitCode;

pub fn main(_verb: &str, m: &ArgMatches) -> ExitCode {
    match surroundings::caller().and_then(|caller| {
        let state = node::state::prepare(&caller)?.0;
        let config = operations::load(m, &caller)?;
        let socket = config.serve()?.socket.unwrap_or_else(|| state.join("cofferdam.sock"));
        server::serve(server::Settings { socket, caller })
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => render::fault(&fault, false),
    }
}
