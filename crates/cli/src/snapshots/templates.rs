//! `cofferdam template`.

use super::text;
use crate::args::{self, Runs};
use crate::render;
use crate::render::{print_document, say};
use crate::run;
use crate::sandboxes::ask;
use crate::sandboxes::table::{Table, ago, bytes};
use api::{TemplateCreated, TemplateSummary};
use clap::ArgMatches;
use client::Engine;
use node::create::CreateSandbox;
use node::sandbox::Which;
use node::warm;
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};

pub fn main(verb: &str, m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    match verb {
        "create" => create(m, engine, json),
        "ls" => ls(engine, json),
        "inspect" => inspect(m, engine),
        "warm" => warm(m, engine, json),
        _ => rm(m, engine, json),
    }
}

fn create(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let name = text(m, "name").unwrap_or_default();
    let made = match text(m, "prepare") {
        Some(command) => prepared(m, engine, name, command)?,
        None => engine.template_create(name, text(m, "from"), None)?,
    };
    if json {
        render::print_json(&made);
    } else {
        say(&made.address);
    }
    Ok(ExitCode::SUCCESS)
}

/// Creates a sandbox, runs the command in it, and makes a template of the result. The sandbox is removed.
fn prepared(m: &ArgMatches, engine: &Engine, name: &str, command: &str) -> Result<TemplateCreated, Fault> {
    engine.refuse_other_template(name)?;
    let made = engine.create(&ask::prepare(m)?, &mut |_| {})?;
    made.notes.iter().for_each(|note| render::note(note));
    let mut words: Vec<OsString> = ["--sandbox", &made.id, "-c", command].map(OsString::from).into();
    words.extend(args::server::given(m));
    let templated = match run::main(Runs::Run, &words, None) == ExitCode::SUCCESS {
        true => engine.template_create(name, Some(&made.id), Some(command)),
        false => {
            let fault =
                Fault::new(ErrorKind::Conflict, format!("the template {name:?} was not created: its command failed"));
            Err(fault.hint("see its output above, and try again").phase(Phase::Execution))
        }
    };
    let which = Which { word: Some(made.id), version: None };
    if let Err(fault) = engine.remove(&which, Some(Duration::from_secs(10))) {
        render::note(&format!("the sandbox of the preparation stays: {}", fault.message));
    }
    templated
}

fn ls(engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let found = engine.templates()?;
    if json {
        let row = |t: &TemplateSummary| {
            json!({ "name": t.name, "address": t.address, "base": t.base, "prepared": t.prepared,
                    "bytes": t.bytes, "created_ms": t.created_ms, "warm": t.warm })
        };
        let rows: Vec<_> = found.iter().map(row).collect();
        return Ok(print_document(json!({ "templates": rows })));
    }
    let now = terms::clock::now_ms();
    let mut table = Table::new(&["NAME", "DIGEST", "SIZE", "MADE", "READY", "DIRECTORY"]);
    for t in &found {
        let digest: String =
            t.address.split('@').nth(1).unwrap_or_default().chars().take("sha256:".len() + 12).collect();
        let ready = t.warm.as_ref().map_or("-".to_owned(), |warm| format!("{}/{}", warm.ready, warm.keep));
        table.row(vec![
            t.name.clone(),
            digest,
            bytes(t.bytes),
            ago(t.created_ms, now),
            ready,
            t.base.display().to_string(),
        ]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}

fn inspect(m: &ArgMatches, engine: &Engine) -> Result<ExitCode, Fault> {
    Ok(print_document(engine.template(text(m, "template").unwrap_or_default())?))
}

fn warm(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let CreateSandbox { policies, flags, limits, cpus, .. } = ask::prepare(m)?;
    let keep = m.get_one::<u32>("keep").copied().unwrap_or_default();
    let template = text(m, "template").unwrap_or_default().to_owned();
    let languages = m.get_many::<String>("lang").into_iter().flatten().map(|word| crate::code::named_language(word));
    let languages = languages.collect::<Result<Vec<_>, Fault>>()?;
    let set = engine.template_warm(&warm::KeepSpares { template, keep, policies, flags, limits, cpus, languages })?;
    if json {
        render::print_json(&set);
        return Ok(ExitCode::SUCCESS);
    }
    set.notes.iter().for_each(|note| render::note(note));
    if keep > 0 && matches!(engine, Engine::Local(..)) {
        render::note("a daemon (`cofferdam serve`) creates and keeps spares; without one there are none");
    }
    say(&format!("{} {}/{}", set.address, set.warm.ready, set.warm.keep));
    Ok(ExitCode::SUCCESS)
}

fn rm(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let word = text(m, "template").unwrap_or_default();
    let gone = engine.template_remove(word)?;
    if json {
        render::print_json(&json!({ "protocol_version": PROTOCOL_VERSION, "removed": gone }));
    } else {
        say(&gone);
    }
    Ok(ExitCode::SUCCESS)
}
