//! `cofferdam agents`, and the choice of a preset by the name of a command.

use crate::args::Runs;
use crate::sandboxes::table::Table;
use crate::{connection, policy, render};
use clap::ArgMatches;
use node::policies::{self, Document, RequestedPolicy};
use node::policies::{AGENTS, Agent, agent_of_command};
use node::run::{ChangeDestination, RunRequest};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use terms::{Action, Fault, Phase};

/// Carries out the verb `agents`.
pub fn main(m: &ArgMatches) -> ExitCode {
    connection::note_local(m, if m.subcommand_name().is_some() { "agents show" } else { "agents" });
    let json = m.get_flag("json");
    let done = match m.subcommand() {
        Some(("show", m)) => show(m),
        _ => list(json),
    };
    done.map_or_else(|fault| render::fault(&fault, json), |()| ExitCode::SUCCESS)
}

/// Returns the agent whose preset applies to a run: the command has its name, and no policy is given.
pub fn chosen(verb: Runs, m: &ArgMatches, policies: &[RequestedPolicy]) -> Option<&'static Agent> {
    let is_open = verb == Runs::Run && policies.is_empty() && !m.get_flag("no-preset") && !m.contains_id("sandbox");
    let command = crate::args::all(m, "command").next().filter(|_| is_open)?;
    agent_of_command(Path::new(command).file_name().and_then(OsStr::to_str)?)
}

/// Gives a run what the agent needs: its preset, and words in its command.
pub fn apply(agent: &Agent, request: &mut RunRequest) {
    request.policies.push(RequestedPolicy::Preset(agent.name.to_owned()));
    let is_decided = request.command.iter().skip(1).any(|word| {
        let word = word.to_string_lossy();
        agent.unless.iter().any(|start| word.starts_with(start))
    });
    if !is_decided && !request.command.is_empty() {
        request.command.splice(1..1, agent.adds.iter().map(OsString::from));
    }
}

/// Tells what was applied, once it is known where the command runs. A sandbox has a policy of its own, and takes no preset.
pub fn settle(agent: &Agent, m: &ArgMatches, request: &mut RunRequest) {
    let is_in_sandbox = matches!(request.place, ChangeDestination::Sandbox(_));
    if is_in_sandbox {
        request.policies.clear();
    }
    if m.get_flag("quiet") {
        return;
    }
    let words: Vec<String> = request.command.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let is_added = !agent.adds.is_empty()
        && words.iter().zip(agent.adds).filter(|(word, add)| word == *add).count() == agent.adds.len();
    let says_same = words.iter().any(|word| agent.same.iter().any(|part| word.contains(part)));
    let more = match is_added {
        true => added(agent),
        false => agent.note.map(String::from).filter(|_| !says_same),
    };
    let preset = format!("preset {}, by the command's name (see `cofferdam agents`; --no-preset: none)", agent.name);
    let told: Vec<String> = [Some(preset).filter(|_| !is_in_sandbox), more].into_iter().flatten().collect();
    if !told.is_empty() {
        render::note(&told.join("; "));
    }
}

/// Describes the words that `run` adds to an agent's command.
fn added(agent: &Agent) -> Option<String> {
    let note = agent.note.filter(|_| !agent.adds.is_empty())?;
    Some(format!("{} gets `{}`: {note}", agent.name, agent.adds.join(" ")))
}

fn show(m: &ArgMatches) -> Result<(), Fault> {
    let name = m.get_one::<String>("name").map_or("", String::as_str);
    let agent = AGENTS.iter().find(|agent| agent.name == name || agent.commands.contains(&name)).ok_or_else(|| {
        let known: Vec<&str> = AGENTS.iter().map(|agent| agent.name).collect();
        let fault = Fault::invalid(format!("no preset exists for an agent {name:?}")).phase(Phase::Admission);
        fault.hint(format!("agents: {}", known.join(", ")))
    })?;
    policy::print_document(&document(agent)?, m.get_flag("toml"));
    Ok(())
}

fn document(agent: &Agent) -> Result<Document, Fault> {
    Ok(policies::load(&RequestedPolicy::Preset(agent.name.to_owned()))?.document)
}

/// Grants of an agent's preset beyond those of `default`.
struct Grants {
    hosts: Vec<String>,
    /// Hosts that are refused without being shown.
    refused: Vec<String>,
    secrets: Vec<String>,
    copies: Vec<String>,
}

impl Grants {
    fn of(document: &Document) -> Grants {
        let hosts = |action: Action| {
            let rules = document.net.iter().filter(|rule| rule.action == action);
            rules.map(|rule| rule.to.to_string()).collect()
        };
        let mut secrets: Vec<String> = Vec::new();
        for secret in &document.secrets {
            if !secrets.contains(&secret.name) {
                secrets.push(secret.name.clone());
            }
        }
        let copies = document.home_copy.iter().map(ToString::to_string).collect();
        Grants { hosts: hosts(Action::Allow), refused: hosts(Action::Deny), secrets, copies }
    }
}

fn list(json: bool) -> Result<(), Fault> {
    let all = AGENTS.iter().map(|agent| Ok((agent, document(agent)?))).collect::<Result<Vec<_>, Fault>>()?;
    if json {
        let agents: Vec<Value> = all.iter().map(|(agent, document)| entry(agent, document)).collect();
        render::print_document(json!({ "agents": agents }));
        return Ok(());
    }
    let mut table = Table::new(&["AGENT", "HOSTS", "KEYS", "COPIES", "LOGIN"]);
    for (agent, document) in &all {
        let Grants { hosts, secrets, copies, .. } = Grants::of(document);
        // A row for each host, key and copy: in one row they would not fit a terminal.
        for i in 0..hosts.len().max(secrets.len()).max(copies.len()).max(1) {
            let cell = |list: &[String]| list.get(i).cloned().unwrap_or_default();
            let first = |text: &str| if i == 0 { text.to_owned() } else { String::new() };
            let login = first(agent.login.unwrap_or_default());
            table.row(vec![first(agent.name), cell(&hosts), cell(&secrets), cell(&copies), login]);
        }
    }
    table.print();
    all.iter().filter_map(|(agent, _)| added(agent)).for_each(|added| render::say(&added));
    Ok(())
}

fn entry(agent: &Agent, document: &Document) -> Value {
    let Grants { hosts, refused, secrets, copies } = Grants::of(document);
    let env = document.env.as_ref().map(|env| &env.set);
    json!({
        "name": agent.name,
        "commands": agent.commands,
        "hosts": hosts,
        "quietly_refused": refused,
        "secrets": secrets,
        "copies": copies,
        "env": env,
        "login": agent.login,
        "login_secret": agent.login_secret,
        "adds": agent.adds,
        "note": agent.note,
    })
}
