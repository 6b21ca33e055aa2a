//! `cofferdam code` and `cofferdam context`: code in interpreters that keep their state.

mod interactive;
mod interrupt;
mod show;

use crate::sandboxes::table::{Table, ago};
use crate::{connection, render};
use api::{
    CodeEvent, CodeGathered, CodeOutcome, CodeRequest, CodeStarted, ContextCreate, ContextInterrupt, ContextState,
    ContextStatus, Language, PathText,
};
use clap::ArgMatches;
use client::Engine;
use node::create::CreateSandbox;
use show::Show;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use terms::{ErrorKind, Fault, Phase, quantity};

pub fn main(verb: &str, m: &ArgMatches) -> ExitCode {
    let inner = m.subcommand().map_or(m, |(_, m)| m);
    let json = inner.get_flag("json");
    let done = match verb {
        "code" => code(m, json),
        _ => connection::open(inner).and_then(|engine| context(m, inner, &engine, json)),
    };
    done.unwrap_or_else(|fault| render::fault(&fault, json))
}

/// Where the code comes from.
enum Source {
    Text(String),
    Terminal,
}

fn code(m: &ArgMatches, json: bool) -> Result<ExitCode, Fault> {
    let source = source(m)?;
    let request = request(m)?;
    let interrupts = interrupt::Interrupts::begin(m)?;
    let engine = connection::open(m)?;
    let word = sandbox(m, &engine)?;
    match source {
        Source::Terminal => interactive::session(&engine, &word, request, &interrupts),
        Source::Text(code) => {
            let request = CodeRequest { code, ..request };
            let outcome = match json {
                true => run_to_document(&engine, &word, &request, &interrupts)?,
                false => run(&engine, &word, &request, &interrupts)?,
            };
            Ok(ExitCode::from(outcome.status()))
        }
    }
}

/// Runs code and shows its events.
fn run(
    engine: &Engine,
    word: &str,
    request: &CodeRequest,
    interrupts: &interrupt::Interrupts,
) -> Result<CodeOutcome, Fault> {
    let (mut show, mut end) = (Show::default(), None);
    let done = interrupts.during(word, &context_of(request), || {
        engine.code(Some(word), request, &mut |event| match event {
            CodeEvent::End(outcome) => end = Some(outcome),
            event => show.event(event),
        })
    });
    show.flush();
    done?;
    let outcome = end.ok_or_else(no_end)?;
    show::outcome(&outcome);
    Ok(outcome)
}

fn run_to_document(
    engine: &Engine,
    word: &str,
    request: &CodeRequest,
    interrupts: &interrupt::Interrupts,
) -> Result<CodeOutcome, Fault> {
    let own = request.limits.max_output_bytes.unwrap_or(u64::MAX).min(api::CodeAnswer::MAX_OUTPUT_BYTES);
    let mut request = request.clone();
    request.limits.max_output_bytes = Some(own);
    let language = request.language.unwrap_or_default();
    let none = CodeStarted { sandbox: String::new(), context: String::new(), language, created: false };
    let (mut gathered, mut answer) = (CodeGathered::new(none), None);
    interrupts.during(word, &context_of(&request), || {
        engine.code(Some(word), &request, &mut |event| answer = gathered.add(event).or_else(|| answer.take()))
    })?;
    let answer = answer.ok_or_else(no_end)?;
    let outcome = answer.outcome.clone();
    render::print_document(answer);
    Ok(outcome)
}

fn no_end() -> Fault {
    Fault::internal("a call ended without an outcome").phase(Phase::Delivery)
}

fn context_of(request: &CodeRequest) -> String {
    request.context.clone().unwrap_or_else(|| request.language.unwrap_or_default().name().to_owned())
}

/// Reads the code; none where lines are to be typed.
fn source(m: &ArgMatches) -> Result<Source, Fault> {
    let invalid = |message: String| {
        let fault = Fault::invalid(message).phase(Phase::Admission);
        fault.hint("name a file of this host that can be read, or give the code with -e")
    };
    if m.get_flag("interactive") {
        return Ok(Source::Terminal);
    }
    if let Some(text) = m.get_one::<String>("text") {
        return Ok(Source::Text(text.clone()));
    }
    let file = m.get_one::<OsString>("file").filter(|file| *file != "-");
    let (bytes, name) = match file {
        Some(file) => {
            let read = std::fs::read(file).map_err(|e| invalid(format!("{}: {e}", Path::new(file).display())));
            (read?, Path::new(file).display().to_string())
        }
        None if m.get_one::<OsString>("file").is_none() && io::stdin().is_terminal() => return Ok(Source::Terminal),
        None => {
            let mut bytes = Vec::new();
            io::stdin().lock().read_to_end(&mut bytes).map_err(|e| invalid(format!("standard input: {e}")))?;
            (bytes, "standard input".to_owned())
        }
    };
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        invalid(format!("{name}: not UTF-8 at byte {at}")).hint("save the file as UTF-8")
    })?;
    Ok(Source::Text(text))
}

fn language(m: &ArgMatches) -> Result<Option<Language>, Fault> {
    let Some(word) = m.get_one::<String>("lang") else {
        let file = m.try_get_one::<OsString>("file").ok().flatten();
        let Some(end) = file.and_then(|file| Path::new(file).extension()) else { return Ok(None) };
        let unknown = || {
            let message =
                format!("{}: its name tells no language", file.map(Path::new).unwrap_or(Path::new("-")).display());
            Fault::invalid(message).phase(Phase::Admission).hint("give --lang python, javascript or bash")
        };
        return end.to_str().and_then(by_extension).map(Some).ok_or_else(unknown);
    };
    named_language(word).map(Some)
}

pub fn named_language(word: &str) -> Result<Language, Fault> {
    let refuse = || {
        let fault = Fault::invalid(format!("--lang {word:?}: not a language")).phase(Phase::Admission);
        fault.hint("give python, javascript or bash")
    };
    Language::parse(word).ok_or_else(refuse)
}

fn by_extension(extension: &str) -> Option<Language> {
    match extension {
        "py" => Some(Language::Python),
        "js" | "mjs" | "cjs" => Some(Language::Javascript),
        "sh" | "bash" => Some(Language::Bash),
        _ => None,
    }
}

fn request(m: &ArgMatches) -> Result<CodeRequest, Fault> {
    let wrong = |flag: &str, why: String| {
        let fault = Fault::invalid(format!("--{flag} {why}")).phase(Phase::Admission);
        fault.hint("cofferdam code --help describes each option")
    };
    let time = |flag: &'static str| {
        let given = m.get_one::<String>(flag).map(|word| quantity::time(word).map_err(|why| wrong(flag, why)));
        given.transpose()
    };
    let no_queue = m.get_one::<String>("queue").is_some_and(|word| matches!(word.as_str(), "0" | "0s" | "0ms"));
    let size = m.get_one::<String>("output").map(|word| quantity::size(word).map_err(|why| wrong("max-output", why)));
    let limits =
        terms::Limits { max_wall_ms: time("timeout")?, max_output_bytes: size.transpose()?, ..Default::default() };
    Ok(CodeRequest {
        code: String::new(),
        context: m.get_one::<String>("context").cloned(),
        language: language(m)?,
        workdir: workdir(m),
        cwd: None,
        env: env(m)?,
        limits,
        queue_ms: if no_queue { Some(0) } else { time("queue")? },
    })
}

fn workdir(m: &ArgMatches) -> Option<PathText> {
    m.get_one::<OsString>("workdir").map(|dir| PathText::of(dir.as_bytes()))
}

fn env(m: &ArgMatches) -> Result<BTreeMap<String, String>, Fault> {
    let given = m.get_many::<String>("env").into_iter().flatten();
    let pair = |word: &String| match word.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => {
            let fault = Fault::invalid(format!("--env {word:?}: not NAME=VALUE")).phase(Phase::Admission);
            Err(fault.hint("write for example --env MODE=fast"))
        }
    };
    given.map(pair).collect()
}

/// Returns the sandbox that is named, or the last one of the current directory, which is made if there is none.
fn sandbox(m: &ArgMatches, engine: &Engine) -> Result<String, Fault> {
    if let Some(word) = m.get_one::<String>("sandbox") {
        return Ok(word.clone());
    }
    match engine.inspect(None) {
        Ok(found) => Ok(found.id),
        Err(fault) if fault.error_kind == ErrorKind::NotFound => {
            let made = engine.create(&CreateSandbox::default(), &mut |_| {})?;
            render::note(&format!("made the sandbox {} for this directory", made.id));
            Ok(made.id)
        }
        Err(fault) => Err(fault),
    }
}

fn context(m: &ArgMatches, inner: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let word = inner.get_one::<String>("sandbox").map(String::as_str);
    let name = || inner.get_one::<String>("name").map(String::as_str).unwrap_or_default();
    match m.subcommand_name() {
        Some("create") => {
            let given = inner.get_one::<String>("name").cloned();
            let language = language(inner)?.unwrap_or_default();
            let ask = ContextCreate { name: given, language, workdir: workdir(inner), cwd: None, env: env(inner)? };
            let made = engine.context_create(word, &ask)?;
            tell(json, &made, || format!("{}  {}", made.name, made.language.name()));
        }
        Some("restart") => {
            let restarted = engine.context_restart(word, name())?;
            tell(json, &restarted, || restarted.name.clone());
        }
        Some("interrupt") => {
            let grace = inner.get_one::<String>("grace").map(|word| {
                let wrong = |why| Fault::invalid(format!("--grace {why}")).phase(Phase::Admission);
                quantity::time(word).map_err(|why| wrong(why).hint("write for example --grace 2s"))
            });
            let ask = ContextInterrupt { grace_ms: grace.transpose()? };
            let done = engine.context_interrupt(word, name(), &ask)?;
            tell(json, &done, || match (done.interrupted, done.context_lost) {
                (false, _) => format!("{}: no call is under way", done.name),
                (true, false) => format!("{}: interrupted", done.name),
                (true, true) => {
                    format!("{}: did not answer; its interpreter was ended and its state is lost", done.name)
                }
            });
        }
        Some("rm") => {
            let removed = engine.context_remove(word, name())?;
            tell(json, &removed, || removed.name.clone());
        }
        _ => ls(&engine.contexts(word)?, json),
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(json: bool, document: &impl serde::Serialize, line: impl FnOnce() -> String) {
    match json {
        true => drop(render::print_document(document)),
        false => render::say(&line()),
    }
}

fn ls(contexts: &[ContextStatus], json: bool) {
    if json {
        render::print_document(serde_json::json!({ "contexts": contexts }));
        return;
    }
    let now = terms::clock::now_ms();
    let mut table = Table::new(&["CONTEXT", "LANGUAGE", "STATE", "CALLS", "USED", "DIRECTORY"]);
    for context in contexts {
        let state = match context.state {
            ContextState::Idle => "idle",
            ContextState::Busy => "busy",
            ContextState::Ended => "ended",
        };
        table.row(vec![
            context.name.clone(),
            context.language.name().into(),
            state.into(),
            context.calls.to_string(),
            ago(context.used_ms, now),
            context.cwd.clone(),
        ]);
    }
    table.print();
}
