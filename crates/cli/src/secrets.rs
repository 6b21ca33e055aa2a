//! `cofferdam secret`. A value comes from standard input or a file, never from the command line, where every user of the host
//! would see it.

use crate::connection;
use crate::render;
use crate::sandboxes::table::{Table, ago};
use api::SecretChanged;
use clap::ArgMatches;
use client::Engine;
use node::Caller;
use node::secrets::LONGEST;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::process::ExitCode;
use terms::{Fault, Phase};

pub fn main(_verb: &str, m: &ArgMatches) -> ExitCode {
    let inner = m.subcommand().map_or(m, |(_, m)| m);
    let json = inner.get_flag("json");
    let done = connection::open(inner).and_then(|engine| match m.subcommand() {
        Some(("set", m)) => engine.secret_set(name(m), value(m, engine.caller())?).map(|done| changed(&done, json)),
        Some(("rm", m)) => engine.secret_remove(name(m)).map(|done| changed(&done, json)),
        _ => ls(&engine, json),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => render::fault(&fault, json),
    }
}

fn name(m: &ArgMatches) -> &str {
    m.get_one::<String>("name").map_or("", String::as_str)
}

/// Reads a value, without the line feed that tools append.
fn value(m: &ArgMatches, caller: &Caller) -> Result<Vec<u8>, Fault> {
    let file = m.get_one::<OsString>("file").map(|file| caller.cwd.join(file));
    let mut input: Box<dyn Read> = match &file {
        Some(path) => {
            let opened = File::open(path);
            Box::new(
                opened
                    .map_err(|e| Fault::invalid(format!("--file {}: {e}", path.display())).phase(Phase::Admission))?,
            )
        }
        None => {
            if io::stdin().is_terminal() {
                render::note("type the value and end it with Ctrl-D; it shows on the screen");
            }
            Box::new(io::stdin().lock())
        }
    };
    // Allocated at full size: a growing buffer leaves copies of the secret behind.
    let mut value = Vec::with_capacity(LONGEST + 3);
    let read = input.by_ref().take(LONGEST as u64 + 3).read_to_end(&mut value);
    read.map_err(|e| Fault::invalid(format!("the value cannot be read: {e}")).phase(Phase::Admission))?;
    value.pop_if(|last| *last == b'\n');
    value.pop_if(|last| *last == b'\r');
    Ok(value)
}

fn changed(done: &SecretChanged, json: bool) {
    match json {
        true => render::print_json(done),
        false => render::say(&done.name),
    }
}

fn ls(engine: &Engine, json: bool) -> Result<(), Fault> {
    let found = engine.secret_list()?;
    if json {
        render::print_json(&found);
        return Ok(());
    }
    let now = terms::clock::now_ms();
    let mut table = Table::new(&["NAME", "SET"]);
    found.secrets.iter().for_each(|s| table.row(vec![s.name.clone(), ago(s.set_ms, now)]));
    table.print();
    Ok(())
}
