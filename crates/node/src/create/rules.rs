//! Checks on a new sandbox: its name, its services, its policy and the free space.

use super::CreateSandbox;
use api::Service;
use enclosure::LocalHost;
use policy::Policy;
use runtime::policies;
use state::Caller;
use state::names;
use state::snapshot::Ground;
use std::path::Path;
use terms::{Fault, Phase};

/// Most services of one sandbox.
const MOST_SERVICES: usize = 32;
const LONGEST_COMMAND: usize = 64 << 10;

/// Checks that services have distinct names and commands that can be passed to a shell.
pub fn check_services(services: &[Service]) -> Result<(), Fault> {
    let refuse = |what: String| {
        let fault = Fault::invalid(format!("--service {what}")).phase(Phase::Admission);
        Err(fault.hint("give NAME=COMMAND, e.g. web='python3 -m http.server 8000'"))
    };
    if services.len() > MOST_SERVICES {
        return refuse(format!("is given {} times; at most {MOST_SERVICES} can run", services.len()));
    }
    for (at, service) in services.iter().enumerate() {
        let name = &service.name;
        let bad_variable = |n: &String| n.is_empty() || n.contains('=') || n.contains('\0');
        match service {
            _ if names::problem(name).is_some() => {
                return refuse(format!("{name:?}: the name {}", names::problem(name).unwrap_or_default()));
            }
            _ if services[..at].iter().any(|other| other.name == *name) => {
                return refuse(format!("{name:?}: the name is given twice"));
            }
            _ if service.command.trim().is_empty() => return refuse(format!("{name:?}: no command")),
            _ if service.command.len() > LONGEST_COMMAND || service.command.contains('\0') => {
                return refuse(format!("{name:?}: the command is too long, or contains a zero byte"));
            }
            _ if service.env.keys().any(bad_variable) || service.env.values().any(|v| v.contains('\0')) => {
                return refuse(format!("{name:?}: a variable that cannot be set"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Source of the rules of a template, the beginning of their labels.
pub const TEMPLATE: &str = "template.json";

/// Returns the policy of its commands: the template's, then the named ones, then the flags; `default` without any of the former
/// two. Also returns the notes for a person. A caller who does not decide about policies gets no more from a template than it
/// grants.
pub fn policy_of(
    ask: &CreateSandbox,
    ground: Option<&Ground>,
    caller: &Caller,
) -> Result<(Policy, Vec<String>), Fault> {
    let Some(ground) = ground else {
        let effective = policies::effective(&ask.policies, &ask.flags, caller)?;
        return Ok((effective.policy, effective.notes));
    };
    let mut documents = vec![policies::parse_text(&ground.policy.to_string(), TEMPLATE)?.document];
    let mut notes = Vec::new();
    for source in &ask.policies {
        let loaded = policies::load_for(source, caller)?;
        notes.extend(loaded.notes);
        documents.push(loaded.document);
    }
    documents.extend(policies::of_flags(&ask.flags, caller)?);
    let policy = policy::effective(&documents)?;
    if !caller.reach.decides() {
        let given = policy::effective(&documents[..1])?;
        let hint = "leave `policies` out to use the template's; an operator may allow more";
        policies::within(&given, &policy, "the template's policy").map_err(|fault| fault.hint(hint))?;
    }
    Ok((policy, notes))
}

/// Returns the policy with all changes in the directory denied.
pub fn unchanging(policy: &Policy) -> Result<Policy, Fault> {
    let rule = r#"{"version":1,"fs":{"rules":[{"action":"deny","path":"$WORKSPACE","perms":["write_file","remove_dir","remove_file","make_char","make_dir","make_reg","make_sock","make_fifo","make_block","make_sym","refer","truncate"]}]}}"#;
    let rule = policy::parse(rule, policy::Format::Json, "--read-only")?;
    Ok(policy::effective(&[policy.to_document("policy"), rule])?)
}

/// Checks that runs could be made under the policy on this host, now and not at the first command.
pub fn validate(policy: &Policy, ask: &CreateSandbox, caller: &Caller, base: &Path) -> Result<Vec<String>, Fault> {
    let mut policy = policy.clone();
    let around = policies::surroundings(&mut policy, caller, base, None);
    let resolved = runtime::own_home::with_own_home(policy::resolve(&policy, &around.context)?, caller, base);
    policies::check_supported(&resolved, true)?;
    runtime::run::check_readable(&resolved, base)?;
    let plan = resolved.plan(&LocalHost::default())?;
    if ask.read_only {
        runtime::run::check_read_only(&resolved, &plan, base)?;
    }
    let limits = resolved.limits().tightest(ask.limits);
    if !resolved.degrade().any(|name| name.starts_with("max_")) {
        enclosure::check_limits(&limits, &plan, resolved.needs_network().is_some(), Some(base))?;
    }
    Ok(around.notes)
}
