//! `cofferdam policy`: check, show, explain, import, learn, diff.

use crate::{args, connection, options, render};
use clap::ArgMatches;
use node::policies::{self, RequestedPolicy};
use node::run::{ChangeDestination, Learn, RunRequest, Stdio};
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use terms::{Fault, Limits};

pub fn main(matches: &ArgMatches) -> ExitCode {
    let json = matches.subcommand().is_some_and(|(_, m)| m.try_get_one::<bool>("json").ok().flatten() == Some(&true));
    if let Some((verb @ ("show" | "import" | "diff"), m)) = matches.subcommand() {
        connection::note_local(m, &format!("policy {verb}"));
    }
    let done = match matches.subcommand() {
        Some(("check", m)) => check(m),
        Some(("show", m)) => show(m),
        Some(("explain", m)) => explain(m),
        Some(("import", m)) => import(m),
        Some(("learn", m)) => learn(m),
        Some(("diff", m)) => diff(m),
        _ => Ok(ExitCode::from(2)),
    };
    done.unwrap_or_else(|fault| render::fault(&fault, json))
}

fn print(text: &str) {
    // A reader that left early is no error of ours.
    let _ = writeln!(crate::stdout::lock(), "{}", text.trim_end());
}

fn word<'a>(m: &'a ArgMatches, name: &str) -> &'a OsStr {
    m.get_one::<OsString>(name).map_or(OsStr::new(""), OsString::as_os_str)
}

/// Checks that a policy is well formed and can be enforced here, by planning as a run would.
fn check(m: &ArgMatches) -> Result<ExitCode, Fault> {
    let file = word(m, "file");
    let loaded = if file == "-" { from_stdin()? } else { policies::load(&RequestedPolicy::of(file))? };
    let (digest, more) = connection::open(m)?.policy_check(&loaded.document)?;
    let notes: Vec<&String> = loaded.notes.iter().chain(&more).collect();
    if m.get_flag("json") {
        render::print_json(&serde_json::json!({
            "protocol_version": terms::PROTOCOL_VERSION, "success": true, "digest": digest, "notes": notes,
        }));
    } else {
        print(&format!("ok: {} ({})", file.display(), render::safe(&digest)));
        notes.iter().for_each(|n| print(&format!("  note: {}", render::safe(n))));
    }
    Ok(ExitCode::SUCCESS)
}

fn from_stdin() -> Result<policies::Loaded, Fault> {
    let mut text = String::new();
    let read = std::io::stdin().take(1 << 20).read_to_string(&mut text);
    read.map_err(|e| Fault::invalid(format!("standard input: {e}")))?;
    policies::parse_text(&text, "-")
}

fn show(m: &ArgMatches) -> Result<ExitCode, Fault> {
    let names: Vec<&OsStr> = args::all(m, "name").collect();
    let toml = m.get_flag("toml");
    match names.as_slice() {
        [] => {
            let wide = policies::presets().map(|(name, _)| name.len()).max().unwrap_or(0);
            policies::presets().for_each(|(name, about)| print(&format!("{name:<wide$}  {about}")));
        }
        // A single source is printed as written, with its `extends`.
        [one] => print_document(&policies::load(&RequestedPolicy::of(one))?.document, toml),
        several => {
            let sources: Vec<RequestedPolicy> = several.iter().map(|n| RequestedPolicy::of(n)).collect();
            let document = policies::merged(&sources)?;
            print_document(&document, toml);
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub fn print_document(document: &policies::Document, toml: bool) {
    print(&if toml { document.to_toml() } else { document.to_json() });
}

fn explain(m: &ArgMatches) -> Result<ExitCode, Fault> {
    let sources: Vec<RequestedPolicy> = args::all(m, "policy").map(RequestedPolicy::of).collect();
    let explanation = connection::open(m)?.explain(word(m, "what"), &sources, &options::flags(m))?;
    if m.get_flag("json") {
        render::print_json(&explanation);
    } else {
        print(&render::safe_lines(&explanation.to_text()));
    }
    Ok(ExitCode::SUCCESS)
}

fn import(m: &ArgMatches) -> Result<ExitCode, Fault> {
    let file = Path::new(word(m, "file"));
    let profile = m.get_one::<String>("profile").map(String::as_str);
    let loaded = policies::import_file(file, profile)?;
    print_document(&loaded.document, m.get_flag("toml"));
    loaded.notes.iter().for_each(|n| render::note(n));
    Ok(ExitCode::SUCCESS)
}

fn learn(m: &ArgMatches) -> Result<ExitCode, Fault> {
    let caller = connection::local(m, "policy learn")?;
    let ask = RunRequest {
        command: m.get_many::<OsString>("command").unwrap_or_default().cloned().collect(),
        shell: None,
        policies: Vec::new(),
        flags: Vec::new(),
        limits: Limits::default(),
        cpus: None,
        env: Vec::new(),
        workdir: None,
        place: ChangeDestination::Plain,
        publish: Vec::new(),
        secrets: Vec::new(),
        events: false,
        // The policy goes to stdout, so the command's own output goes to stderr.
        stdio: Stdio {
            input: true,
            capture: false,
            terminal: false,
            all_to_stderr: m.get_one::<OsString>("output").is_none(),
        },
        report_reads: true,
        ask_timeout: None,
        learn: Learn::All,
    };
    let writes: Vec<String> = m.get_many::<String>("write").unwrap_or_default().cloned().collect();
    let reaches: Vec<String> =
        m.get_many::<String>("net").unwrap_or_default().flat_map(|list| node::policies::split_targets(list)).collect();
    let lesson = node::learn::learn(ask, &writes, &reaches, &caller).map_err(|refused| *refused.fault)?;
    let document = &lesson.learned.document;
    let text = if m.get_flag("toml") { document.to_toml() } else { document.to_json() };
    match m.get_one::<OsString>("output").map(PathBuf::from) {
        Some(file) => node::output::write(&file, &format!("{}\n", text.trim_end()))
            .map_err(|e| Fault::invalid(format!("--output {}: {e}", file.display())))?,
        None => print(&text),
    }
    lesson.learned.notes.iter().for_each(|n| render::note(n));
    if !lesson.outcome.success {
        render::note("the command failed while it was watched; the policy covers its operations until then");
        // Network refusals have become rules and notes already.
        let others = lesson.outcome.denials.iter().filter(|d| !d.op.starts_with("net."));
        others.for_each(render::print_denial);
    }
    Ok(ExitCode::from(lesson.outcome.status()))
}

/// Like `diff`: 0 when they allow the same, 1 when they differ.
fn diff(m: &ArgMatches) -> Result<ExitCode, Fault> {
    let diff = policies::diff(&RequestedPolicy::of(word(m, "old")), &RequestedPolicy::of(word(m, "new")))?;
    if m.get_flag("json") {
        print(&diff.to_json());
    } else if !diff.changes.is_empty() {
        print(&render::safe_lines(&diff.to_text()));
    }
    Ok(ExitCode::from(u8::from(!diff.changes.is_empty())))
}
