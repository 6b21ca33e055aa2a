//! `cofferdam run`, `exec` and `shell`.

mod live;
mod remote;

use crate::args::{self, Runs};
use crate::{agents, connection, options, prompt, quantity, render, runs, stdout, surroundings};
use api::{PendingChanges, RunExplained};
use clap::ArgMatches;
use client::Engine;
use node::Node;
use node::config::Config;
use node::events::{EventFile, LEAST_MAX};
use node::keeper::attach::AttachOutcome;
use node::output::Output;
use node::policies::{Agent, RequestedPolicy};
use node::run::hidden::{self, Words};
use node::run::{
    ChangeDestination, Groundwork, Keep, Learn, NewWorkspace, Observed, Observer, RunPlan, RunRefused, RunRequest,
    TTL_MS,
};
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use terms::{Changes, ErrorKind, Fault, Outcome, Phase, Verdict};

/// Carries out a run. `slip` is the first word, where it was taken for the command and may be a mistyped verb.
pub fn main(verb: Runs, words: &[OsString], slip: Option<&OsString>) -> ExitCode {
    // Started before parsing: nearly every call ends in a run, and another one only discards this. Where a daemon may
    // be named, no helper is started before that is known.
    let ground = (!args::server::may_be_meant(words)).then(node::run::begin);
    let command = verb.command();
    let words = if args::may_expand(words) { args::expand(words, &command) } else { words.to_vec() };
    let line = std::iter::once(OsString::from("cofferdam")).chain(words.iter().cloned());
    let matches = match command.try_get_matches_from(line) {
        Ok(matches) => matches,
        Err(error) => return render::usage_error(&error),
    };
    let json = matches.get_flag("json");
    let mut report = match OutcomeFiles::open(&matches) {
        Ok(report) => report,
        Err(fault) => return render::fault(&fault, json),
    };
    let events = match open_events(&matches) {
        Ok(events) => events,
        Err(fault) => return render::fault(&fault, json),
    };
    match carry_out(verb, &matches, ground, events) {
        Ok(RunEnd::Explained | RunEnd::Left) => ExitCode::SUCCESS,
        Ok(RunEnd::Ran(outcome)) => {
            if json {
                render::print_json(&*outcome);
            }
            match report.write(&*outcome).and_then(|()| stdout::arrived(&outcome)) {
                Ok(()) => ExitCode::from(outcome.status()),
                Err(fault) => render::fault(&fault, false),
            }
        }
        Err(mut refused) => {
            if refused.fault.error_kind == ErrorKind::NotFound
                && let Some(verb) = slip.and_then(|word| args::near_verb(word))
            {
                refused.fault.hint = Some(format!("did you mean the verb `cofferdam {verb}`?"));
            }
            if refused.fault.error_kind == ErrorKind::NotFound && is_tty_by_slip(&words, &matches) {
                refused.fault.hint = Some("-t gives the command a terminal; a time limit is e.g. -t 30s".to_owned());
            }
            if is_inside() && matches!(refused.fault.error_kind, ErrorKind::UnsupportedHost | ErrorKind::Unavailable) {
                let reason = std::mem::replace(&mut refused.fault.message, INSIDE.to_owned());
                refused.fault.hint = Some(format!("run the command without cofferdam; missing here: {reason}"));
            }
            let written = report.write(&refused.fault);
            let code = render::fault(&refused.fault, json);
            match written {
                Ok(()) => code,
                Err(fault) => render::fault(&fault, false),
            }
        }
    }
}

/// Returns whether a word that stands where `-t` takes a time was taken for the command.
fn is_tty_by_slip(words: &[OsString], m: &ArgMatches) -> bool {
    let command = args::all(m, "command").next();
    words.windows(2).any(|pair| pair[0] == "--tty" && Some(pair[1].as_os_str()) == command)
}

/// Message inside an enclosure, where the usual ones do not help.
const INSIDE: &str = "this is a sandbox already (COFFERDAM=1), and sandboxes cannot be nested";

fn is_inside() -> bool {
    std::env::var_os("COFFERDAM").is_some_and(|value| value == "1")
}

enum RunEnd {
    Ran(Box<Outcome>),
    Explained,
    /// The run continues in the background.
    Left,
}

/// Carries out a run here or at a daemon, and prints its notes: request, keeper of a live sandbox if there is one, plan, run. `ground`
/// is `None` where a daemon may be meant.
fn carry_out(
    verb: Runs,
    matches: &ArgMatches,
    ground: Option<Groundwork>,
    events: Option<EventFile>,
) -> Result<RunEnd, RunRefused> {
    let (node, mut caller) = match ground {
        // No daemon was named, so its settings are not read.
        Some(_) => (Node::for_command(), surroundings::caller()?),
        None => match connection::open(matches)? {
            Engine::Local(node, caller) => (node, caller),
            Engine::Remote(daemon) => {
                node::run::forgo();
                return remote::carry_out(verb, matches, &daemon, events).map_err(RunRefused::from);
            }
        },
    };
    let ground = ground.unwrap_or_else(node::run::begin);
    let (mut request, agent) = request(verb, matches, &caller)?;
    let config = config(matches, &caller)?;
    let wish = to_continue(matches, config.as_ref());
    let continues = wish.is_some();
    if let Some(wish) = wish {
        let found = node::list::covering(&node, &caller, &caller.cwd).map(|row| (row.id, row.name));
        continue_in(&mut request, matches, wish, found)?;
    }
    agent.into_iter().for_each(|agent| agents::settle(agent, matches, &mut request));
    if let ChangeDestination::Sandbox(word) = &request.place
        && let Some(done) = in_live(&node, &caller, matches, &request, word)?
    {
        return Ok(done);
    }
    if let Some(fresh) = live::fresh(matches, &request, config.as_ref()) {
        node::run::forgo();
        return live::carry_out(&node, &caller, matches, &request, &fresh).map_err(RunRefused::from);
    }
    let mut plan = RunPlan::new(&node, &caller, &request, ground)?;
    if matches.get_flag("explain") {
        explain(&plan.explained()?)?;
        return Ok(RunEnd::Explained);
    }
    let live = matches.get_flag("verbose");
    let told = tells(matches);
    if told {
        plan.warnings.iter().for_each(|n| render::note(n));
    } else {
        options::tell_left_out(matches, &plan.left_out);
    }
    if live {
        // Notes of a preset about paths that this host lacks are only for `--explain`.
        let of_preset = |n: &&String| node::policies::presets().any(|(name, _)| n.starts_with(&format!("{name}:")));
        plan.notes.iter().filter(|n| !of_preset(n)).for_each(|n| render::note(n));
    }
    if plan.asks() {
        answer_by_person(&mut plan, request.ask_timeout)?;
    }
    plan.secret_variables().iter().for_each(|name| caller.forget(name));
    let observer = live.then(|| tell_live(request.stdio.terminal));
    let words = Words::of(&plan);
    let outcome = node::run::run(plan, observer, events, None)?;
    tell_dropped(matches, &outcome);
    if told {
        render::summary(&outcome, live);
        if hidden::is_unexplained(&outcome, &request) {
            words.hidden(&request, &caller).iter().for_each(render::hidden);
        }
        if live && outcome.verdict == Verdict::Failed && !request.report_reads {
            render::note("no refusals were reported; --report-reads also reports refused reads");
        }
    }
    // A caller who names a sandbox knows where the changes are, and is reminded on a terminal only: many commands may follow one another.
    let is_news =
        matches!(request.place, ChangeDestination::Fresh(_)) || outcome.sandbox.is_none() || live || continues;
    let is_told = is_news || std::io::stderr().is_terminal();
    if is_told && !matches.get_flag("quiet") && !matches.get_flag("json") {
        let waiting = |id: &str| node::list::waiting(&node, &caller, id).ok().flatten();
        kept(&outcome, &request.place, waiting).iter().for_each(|line| render::note(line));
    }
    Ok(RunEnd::Ran(Box::new(outcome)))
}

/// Returns whether notes about the run are printed to stderr: also into a pipe, where a script or an agent reads them; but not beside a
/// document that has all of it.
fn tells(m: &ArgMatches) -> bool {
    m.get_flag("verbose") || (!m.get_flag("quiet") && (!m.get_flag("json") || std::io::stderr().is_terminal()))
}

/// Returns the configuration, for the verb that has settings in it.
fn config(m: &ArgMatches, caller: &node::Caller) -> Result<Option<Config>, Fault> {
    let is_run = m.try_contains_id("fresh").is_ok();
    is_run.then(|| Config::load(None, &[], caller)).transpose()
}

/// Returns the wish to go on in a sandbox; `None` where the run begins anew.
fn to_continue(m: &ArgMatches, config: Option<&Config>) -> Option<ContinueRequest> {
    if let Some(name) = m.try_get_one::<String>("continue").ok().flatten() {
        return Some(ContinueRequest::Flag(name.clone()));
    }
    let chosen = |flag: &&str| m.value_source(flag) == Some(clap::parser::ValueSource::CommandLine);
    let config = config.filter(|_| !m.get_flag("fresh") && !args::PLACES.iter().any(chosen))?;
    config.run_continues().then_some(ContinueRequest::Configured)
}

/// The wish to go on in a sandbox.
enum ContinueRequest {
    /// By the flag, with the name of the sandbox; empty for the last one of the directory.
    Flag(String),
    /// By the configuration, where there is a sandbox.
    Configured,
}

/// Makes a request one for the sandbox to go on in. `found` is the last one of the directory.
fn continue_in(
    request: &mut RunRequest,
    m: &ArgMatches,
    wish: ContinueRequest,
    found: Result<(String, Option<String>), Fault>,
) -> Result<(), Fault> {
    let (id, name) = match (wish, found) {
        (ContinueRequest::Flag(name), _) if !name.is_empty() => {
            request.place = ChangeDestination::Sandbox(name);
            return Ok(());
        }
        (ContinueRequest::Configured, Err(fault)) if fault.error_kind == ErrorKind::NotFound => return Ok(()),
        (ContinueRequest::Flag(_), Err(fault)) if fault.error_kind == ErrorKind::NotFound => {
            return Err(fault.hint("start with a run without --continue: its changes are kept as a sandbox"));
        }
        (_, found) => found?,
    };
    if tells(m) {
        render::note(&format!("continuing in {}", name.unwrap_or_else(|| short(&id).to_owned())));
    }
    request.place = ChangeDestination::Sandbox(id);
    Ok(())
}

fn tell_dropped(m: &ArgMatches, outcome: &Outcome) {
    if outcome.events_dropped > 0 && !m.get_flag("quiet") {
        let (count, why) = (outcome.events_dropped, outcome.events_reason.as_deref().unwrap_or("unknown"));
        render::note(&format!("{count} events are not in the journal: {why}"));
    }
}

/// Runs a command through the keeper, where its sandbox is live or it is detached; `None` in other cases.
fn in_live(
    node: &Node,
    caller: &node::Caller,
    m: &ArgMatches,
    request: &RunRequest,
    word: &str,
) -> Result<Option<RunEnd>, Fault> {
    if live::is_detached(m) {
        let run = node::keeper::exec::detached(node, caller, request, word)?;
        // A reader that left early is no error of ours.
        let _ = writeln!(stdout::lock(), "{run}");
        return Ok(Some(RunEnd::Left));
    }
    if m.get_flag("explain") {
        return Ok(None);
    }
    Ok(match runs::exec_live(node, caller, request, word)? {
        None => None,
        Some(AttachOutcome::Detached) => Some(RunEnd::Left),
        Some(AttachOutcome::Ended(outcome)) => {
            if tells(m) {
                // The keeper reports refusals with the outcome, so none has been shown yet.
                render::summary(&outcome, false);
                tell_hidden(node, caller, &outcome, request, word);
            }
            Some(RunEnd::Ran(outcome))
        }
    })
}

/// Notes words of a command that were hidden in a live sandbox; none where it is gone meanwhile.
fn tell_hidden(node: &Node, caller: &node::Caller, outcome: &Outcome, request: &RunRequest, word: &str) {
    if hidden::is_unexplained(outcome, request)
        && let Ok(words) = Words::in_sandbox(node, caller, word, request)
    {
        words.hidden(request, caller).iter().for_each(render::hidden);
    }
}

/// Lets the person at the terminal answer what rules ask. Without a terminal such operations are refused, and a timeout
/// for answers is an error.
fn answer_by_person(plan: &mut RunPlan, patience: Option<Duration>) -> Result<(), Fault> {
    let terminal = prompt::Terminal::open().filter(|_| std::io::stderr().is_terminal());
    match (terminal, patience) {
        (Some(terminal), _) => {
            plan.ask_person(Box::new(terminal));
            Ok(())
        }
        (None, None) => Ok(()),
        (None, Some(_)) => Err(bad("ask-timeout", "needs a terminal to ask on, and there is none")
            .hint("leave it out: operations that would ask are refused")),
    }
}

/// Returns the note on changes to review. `waiting` counts them as `diff` does, if it can.
fn kept(
    outcome: &Outcome,
    place: &ChangeDestination,
    waiting: impl FnOnce(&str) -> Option<PendingChanges>,
) -> Option<String> {
    let Some(sandbox) = outcome.sandbox.as_deref() else { return unrecorded(outcome, place) };
    let Changes { added, modified, deleted } = outcome.changes;
    let all = added + modified + deleted;
    let is_new = matches!(place, ChangeDestination::Fresh(_));
    // Changes in frozen layers are not counted here, so there is no note for an existing sandbox.
    if all == 0 && !is_new {
        return None;
    }
    let (changes, withheld) = match Some(all).filter(|all| *all > 0).and_then(|_| waiting(sandbox)) {
        Some(pending) => (pending.changes, pending.withheld),
        None => (all, 0),
    };
    let count = |n: u64, what: &str| if n == 1 { format!("1 file {what}") } else { format!("{n} files {what}") };
    let mut files = match (changes, withheld) {
        (0, 0) => "nothing to review".to_owned(),
        (0, _) => count(withheld, "changed, all withheld from review"),
        (_, 0) => count(changes, "changed"),
        _ => format!("{}, {withheld} withheld", count(changes, "changed")),
    };
    let name = match place {
        ChangeDestination::Fresh(fresh) => fresh.name.as_deref(),
        ChangeDestination::Sandbox(word) if !word.starts_with(ID_PREFIX) && !word.is_empty() => Some(word.as_str()),
        _ => None,
    };
    let is_named = name.is_some();
    let name = name.unwrap_or_else(|| short(sandbox));
    files.push_str(&format!(" in {name}"));
    if let ChangeDestination::Fresh(fresh) = place {
        files.push_str(&format!(" (kept {})", quantity::spell(fresh.ttl_ms.unwrap_or(TTL_MS))));
    }
    Some(match is_named {
        true => format!("{files}: cofferdam diff {name} | approve {name} | rm {name} | run --continue={name}"),
        false => format!("{files}: cofferdam diff | approve | rm {name} | run --continue"),
    })
}

const ID_PREFIX: &str = "sbx_";

/// Returns a prefix of an id that is unique in practice.
fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

/// Returns a note on changes that should be in a named sandbox, and are in none.
fn unrecorded(outcome: &Outcome, place: &ChangeDestination) -> Option<String> {
    let wanted = match place {
        ChangeDestination::Fresh(fresh) => fresh.keep != Keep::Never,
        ChangeDestination::Sandbox(_) => true,
        ChangeDestination::Plain | ChangeDestination::ReadOnly | ChangeDestination::Direct => false,
    };
    let Changes { added, modified, deleted } = outcome.changes;
    outcome.message.clone().filter(|_| wanted && added + modified + deleted > 0)
}

/// Returns an observer that prints refusals as they happen.
fn tell_live<'a>(raw_terminal: bool) -> Observer<'a> {
    Box::new(move |seen| match seen {
        Observed::Denied(denial) if raw_terminal => render::print_denial_live(denial),
        Observed::Denied(denial) => render::print_denial(denial),
        _ => {}
    })
}

/// Prints what a run would do, with control characters made visible.
fn explain(told: &RunExplained) -> Result<(), Fault> {
    let mut out = stdout::lock();
    let mut say = |text: &str| text.lines().all(|line| writeln!(out, "{}", render::safe(line)).is_ok());
    let policy = node::policies::parse_text(&told.policy.to_string(), "policy.json").map_err(|fault| {
        let message = format!("the policy from the daemon cannot be read: {}", fault.message);
        let fault = Fault::new(ErrorKind::ProviderFailed, message).phase(Phase::Delivery);
        fault.hint("check that --server names a daemon of the same version")
    })?;
    say("# policy");
    say(&policy.document.to_json());
    let setup = told.setup.as_deref().unwrap_or_default();
    for (head, lines) in [("# notes", &told.notes[..]), ("# secrets", &told.secrets), ("# setup", setup)] {
        if !lines.is_empty() {
            say(&format!("\n{head}"));
            let _ = lines.iter().all(|line| say(line)); // A reader that left early is no error.
        }
    }
    if told.setup.is_none() {
        render::note("the setup steps name paths of the daemon's host and are shown to its operator only");
    }
    Ok(())
}

/// Returns the request of a command line, and the agent whose preset is in it because the command has its name.
fn request(verb: Runs, m: &ArgMatches, caller: &node::Caller) -> Result<(RunRequest, Option<&'static Agent>), Fault> {
    let (ports, words): (Vec<&OsStr>, Vec<&OsStr>) =
        args::all(m, "policy").partition(|word| word.to_str().is_some_and(node::publish::is_port));
    let mut policies: Vec<RequestedPolicy> = words.into_iter().map(RequestedPolicy::of).collect();
    policies.extend(args::all(m, "settings").map(|f| RequestedPolicy::File(PathBuf::from(f))));
    let command = match verb {
        Runs::Shell => vec![caller.var("SHELL").filter(|s| !s.is_empty()).unwrap_or(OsStr::new("/bin/sh")).to_owned()],
        _ => args::all(m, "command").map(OsStr::to_owned).collect(),
    };
    let agent = agents::chosen(verb, m, &policies);
    let mut request = RunRequest {
        command,
        shell: m.try_get_one::<OsString>("shell").ok().flatten().cloned(),
        policies,
        flags: options::flags(m),
        limits: options::limits(m)?,
        cpus: value(m, "cpus").map(|v| quantity::cpus(v).map_err(|e| bad("cpus", &e))).transpose()?,
        env: args::all(m, "env").map(OsStr::to_owned).collect(),
        workdir: m.get_one::<OsString>("workdir").map(PathBuf::from),
        place: place(verb, m)?,
        publish: texts(m, "publish").chain(ports.iter().filter_map(|p| p.to_str()).map(String::from)).collect(),
        secrets: options::secret_sources(m),
        events: m.contains_id("events"),
        stdio: stdio(m),
        report_reads: m.get_flag("report-reads"),
        ask_timeout: options::ask_timeout(m)?,
        learn: Learn::Nothing,
    };
    agent.into_iter().for_each(|agent| agents::apply(agent, &mut request));
    Ok((request, agent))
}

/// Returns the place where the command works, and what becomes of its changes.
fn place(verb: Runs, m: &ArgMatches) -> Result<ChangeDestination, Fault> {
    if verb != Runs::Run {
        return Ok(ChangeDestination::Sandbox(value(m, "sandbox").cloned().unwrap_or_default()));
    }
    if let Some(sandbox) = value(m, "sandbox") {
        if sandbox.is_empty() {
            return Err(bad("sandbox", "is empty; name one (`cofferdam ls`)"));
        }
        return Ok(ChangeDestination::Sandbox(sandbox.clone()));
    }
    if m.get_flag("read-only") {
        return Ok(ChangeDestination::ReadOnly);
    }
    if m.get_flag("direct") {
        return Ok(ChangeDestination::Direct);
    }
    let ttl_ms = value(m, "ttl").map(|v| quantity::time(v).map_err(|e| bad("ttl", &e))).transpose()?;
    let name = value(m, "name").cloned();
    let keep = match (m.get_flag("rm"), m.get_flag("keep") || name.is_some() || ttl_ms.is_some()) {
        (true, _) => Keep::Never,
        (_, true) => Keep::Always,
        _ => Keep::Changed,
    };
    let dir = m.get_one::<OsString>("workspace").map(PathBuf::from);
    Ok(ChangeDestination::Fresh(NewWorkspace { dir, keep, name, ttl_ms, driver: options::driver(m) }))
}

fn texts<'a>(m: &'a ArgMatches, name: &str) -> impl Iterator<Item = String> + 'a {
    m.try_get_many::<String>(name).ok().flatten().unwrap_or_default().cloned()
}

fn value<'a>(m: &'a ArgMatches, name: &str) -> Option<&'a String> {
    m.get_one::<String>(name)
}

fn bad(flag: &str, why: &str) -> Fault {
    Fault::invalid(format!("--{flag} {why}")).phase(Phase::Admission)
}

/// Gives the command a pty when the caller is on a terminal, and pipes otherwise.
fn stdio(m: &ArgMatches) -> node::run::Stdio {
    let capture = m.get_flag("json");
    let on_terminal =
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
    let terminal = !capture && !m.get_flag("no-tty") && !m.get_flag("no-stdin") && (m.get_flag("tty") || on_terminal);
    node::run::Stdio { input: !m.get_flag("no-stdin"), capture, terminal, all_to_stderr: false }
}

/// Opens the target of network events: a descriptor by its number, or a file. Before the run, like the report.
fn open_events(m: &ArgMatches) -> Result<Option<EventFile>, Fault> {
    let Some(name) = m.get_one::<OsString>("events") else { return Ok(None) };
    let shown = name.to_string_lossy();
    let file = match shown.parse::<u32>() {
        Ok(fd) => node::run::status_descriptor(fd),
        Err(_) => node::output::create(Path::new(name)),
    };
    let max = value(m, "events-max").map(|amount| match quantity::size(amount) {
        Ok(max) if max < LEAST_MAX => Err(bad("events-max", &format!("{amount:?}: must be at least {LEAST_MAX}"))),
        Ok(max) => Ok(max),
        Err(why) => Err(bad("events-max", &why)),
    });
    let max = max.transpose()?;
    file.map(|file| Some(EventFile::new(file, max))).map_err(|e| bad("events", &format!("{shown}: {e}")))
}

/// Files for the outcome. Opened before the run, so that a bad path fails early.
struct OutcomeFiles {
    targets: Vec<(String, Output)>,
}

impl OutcomeFiles {
    fn open(m: &ArgMatches) -> Result<OutcomeFiles, Fault> {
        let mut targets = Vec::new();
        if let Some(fd) = m.get_one::<u32>("status-fd") {
            let file = node::run::status_descriptor(*fd).map_err(|e| bad("status-fd", &format!("{fd}: {e}")))?;
            targets.push((format!("--status-fd {fd}"), file.into()));
        }
        if let Some(name) = m.get_one::<OsString>("status-file") {
            let shown = name.to_string_lossy();
            let file = Output::create(Path::new(name)).map_err(|e| bad("status-file", &format!("{shown}: {e}")))?;
            targets.push((format!("--status-file {shown}"), file));
        }
        Ok(OutcomeFiles { targets })
    }

    fn write(&mut self, document: &impl serde::Serialize) -> Result<(), Fault> {
        for (name, output) in &mut self.targets {
            let text = serde_json::to_string(document).map_err(|e| Fault::internal(e.to_string()))?;
            output
                .put(&format!("{text}\n"))
                .map_err(|e| Fault::internal(format!("{name}: {e}")).phase(Phase::Delivery))?;
        }
        Ok(())
    }
}
