//! What a new sandbox must be: its name, its policy and the space that is left for it.

use super::Ask;
use crate::Caller;
use crate::policies;
use crate::sandbox::Service;
use crate::snapshots::Ground;
use enclosure::LocalHost;
use policy::Policy;
use std::path::Path;
use terms::{Fault, Phase};

const LONGEST_NAME: usize = 64;
/// What ids begin with.
const PREFIXES: [&str; 6] = ["bat", "lay", "run", "sbx", "snp", "tpl"];

/// The one rule for names of sandboxes, snapshots, templates, tokens and services: letters and digits of any script, `.`, `_` and
/// `-`, the first of them a letter or a digit, 64 bytes at most; and none that looks like an id. So a name can stand in an address, in a path and
/// on a command line as it is. Names that were given before there was this rule stay, and what bears them is had by its id.
pub fn check_name(name: &str) -> Result<(), Fault> {
    let refuse = |why: &str| {
        let fault = Fault::invalid(format!("name {name:?}: {why}")).phase(Phase::Admission);
        Err(fault
            .hint("use letters, digits, `.`, `_` and `-`, a letter or a digit first, at most 64 bytes, e.g. fix-login"))
    };
    match odd(name) {
        Some(why) => refuse(why),
        None => Ok(()),
    }
}

/// What is wrong with a name, if anything is.
fn odd(name: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
    match name.chars().next() {
        None => Some("empty"),
        _ if name.len() > LONGEST_NAME => Some("longer than 64 bytes"),
        _ if name.contains(' ') => Some("holds a space"),
        _ if !name.chars().all(plain) => Some("holds something else than letters, digits, `.`, `_` and `-`"),
        Some(first) if !first.is_alphanumeric() => Some("begins with neither a letter nor a digit"),
        _ if looks_like_id(name) => Some("looks like an id"),
        _ => None,
    }
}

fn looks_like_id(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('_')))
}

/// Whether something can be a name that is there: earlier versions let more be one.
pub fn may_be_name(text: &str) -> bool {
    let never = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':');
    (1..=LONGEST_NAME).contains(&text.len()) && !text.contains(never) && !looks_like_id(text)
}

/// Services of one sandbox.
const MOST_SERVICES: usize = 32;
const LONGEST_COMMAND: usize = 64 << 10;

/// Names that tell services apart, and commands that can be given to a shell.
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
            _ if odd(name).is_some() => {
                return refuse(format!("{name:?}: the name {}", odd(name).unwrap_or_default()));
            }
            _ if services[..at].iter().any(|other| other.name == *name) => {
                return refuse(format!("{name:?}: the name is given twice"));
            }
            _ if service.command.trim().is_empty() => return refuse(format!("{name:?}: no command")),
            _ if service.command.len() > LONGEST_COMMAND || service.command.contains('\0') => {
                return refuse(format!("{name:?}: the command is too long, or holds a zero byte"));
            }
            _ if service.env.keys().any(bad_variable) || service.env.values().any(|v| v.contains('\0')) => {
                return refuse(format!("{name:?}: a variable that cannot be set"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The policy that its commands get: the template's, then the named ones, then the flags; `default` where there is none of the
/// former two. With what a person should know of it. Who does not decide about policies has no more from a template than it gives.
pub fn policy_of(ask: &Ask, ground: Option<&Ground>, caller: &Caller) -> Result<(Policy, Vec<String>), Fault> {
    let Some(ground) = ground else {
        let effective = policies::effective(&ask.policies, &ask.flags, caller)?;
        return Ok((effective.policy, effective.notes));
    };
    let mut documents = vec![policies::parse_text(&ground.policy.to_string(), "template.json")?.document];
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
        let hint = "leave `policies` out, and it has what the template gives; an operator may give more";
        policies::within(&given, &policy, "the template does").map_err(|fault| fault.hint(hint))?;
    }
    Ok((policy, notes))
}

/// The same policy, and nothing in the directory can be changed.
pub fn unchanging(policy: &Policy) -> Result<Policy, Fault> {
    let rule = r#"{"version":1,"fs":{"rules":[{"action":"deny","path":"$WORKSPACE","perms":["write_file","remove_dir","remove_file","make_char","make_dir","make_reg","make_sock","make_fifo","make_block","make_sym","refer","truncate"]}]}}"#;
    let rule = policy::parse(rule, policy::Format::Json, "--read-only")?;
    Ok(policy::effective(&[policy.to_document("policy"), rule])?)
}

/// Whether runs could be made under the policy here: found now, not at the first command.
pub fn validate(policy: &Policy, ask: &Ask, caller: &Caller, base: &Path) -> Result<Vec<String>, Fault> {
    let mut policy = policy.clone();
    let around = policies::surroundings(&mut policy, caller, base, None);
    let resolved = policy::resolve(&policy, &around.context)?;
    policies::check_supported(&resolved, true)?;
    crate::run::check_readable(&resolved, base)?;
    let plan = resolved.plan(&LocalHost::default())?;
    if ask.read_only {
        crate::run::check_read_only(&resolved, &plan, base)?;
    }
    let limits = resolved.limits().tightest(ask.limits);
    if !resolved.degrade().any(|name| name.starts_with("max_")) {
        enclosure::check_limits(&limits, &plan, resolved.needs_network().is_some(), Some(base))?;
    }
    Ok(around.notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_told_from_ids_flags_and_one_another() {
        for good in
            ["fix", "fix-login_2", "2nd", "ÄÖ", "日本語の箱", "a.b", "v1..2", "sbxwork", "deadbeef", &"x".repeat(64)]
        {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "-f",
            ".",
            "..",
            ".hidden",
            "_x",
            "%2f",
            "a\u{301}\u{200d}b",
            "a\\b",
            "a b",
            "a\nb",
            "a/b",
            "a:b",
            "sbx_work",
            "sbx_0123456789",
            "a\u{202e}b",
            "a\u{200b}",
            &"x".repeat(65),
        ] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
