//! `cofferdam setup`.

use crate::connection;
use crate::render;
use clap::ArgMatches;
use host::setup::{SetupRequest, setup};
use std::io::Write;
use std::process::ExitCode;

pub fn main(m: &ArgMatches) -> ExitCode {
    let user = m.get_one::<String>("user").cloned().unwrap_or_default();
    let answer = connection::local(m, "setup").and_then(|_| setup(&SetupRequest { user, undo: m.get_flag("undo") }));
    let answer = match answer {
        Ok(answer) => answer,
        Err(fault) => return render::fault(&fault, false),
    };
    let mut out = crate::stdout::lock();
    let lines = answer.done.iter().chain(&answer.notes);
    // A note may contain a file to write; control characters are escaped line by line.
    for line in lines.flat_map(|text| text.lines()) {
        if writeln!(out, "{}", render::safe(line)).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}
