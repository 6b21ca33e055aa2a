//! What a new sandbox must be: its name, its policy and the space that is left for it.

use super::Ask;
use crate::Caller;
use crate::policies;
use crate::snapshots::Ground;
use crate::state::State;
use enclosure::LocalHost;
use policy::Policy;
use std::path::Path;
use terms::{ErrorKind, Fault, LimitKind, Phase};

/// What must stay free on the disk that holds the layers: so many bytes, and one part in so many.
const LEAST_FREE: u64 = 64 << 20;
const LEAST_PART: u64 = 100;
/// And so many files must fit on it.
const LEAST_INODES: u64 = 1024;
const LONGEST_NAME: usize = 64;

/// A name must be told from an id, from a flag and from other names by eye.
pub fn check_name(name: &str) -> Result<(), Fault> {
    let refuse = |why: &str| {
        let fault = Fault::invalid(format!("--name {name:?}: {why}")).phase(Phase::Admission);
        Err(fault.hint("use letters, digits, `.`, `_` and `-`, e.g. fix-login"))
    };
    let looks_like_id = name.split_once('_').is_some_and(|(prefix, rest)| {
        prefix.len() == 3 && rest.len() >= 8 && rest.bytes().all(|b| b.is_ascii_hexdigit())
    });
    match name {
        "" => refuse("empty"),
        _ if name.len() > LONGEST_NAME => refuse("longer than 64 bytes"),
        _ if name.starts_with('-') => refuse("begins with a dash"),
        _ if name.chars().any(|c| workspace::name::is_invisible(c) || c.is_whitespace()) => {
            refuse("holds a character that cannot be seen")
        }
        _ if name.contains('/') => refuse("holds a slash"),
        _ if looks_like_id => refuse("looks like an id"),
        _ => Ok(()),
    }
}

/// The policy that its commands get: the template's, then the named ones, then the flags; `default` where there is none of the
/// former two. With what a person should know of it.
pub fn policy_of(ask: &Ask, ground: Option<&Ground>, caller: &Caller) -> Result<(Policy, Vec<String>), Fault> {
    let Some(ground) = ground else { return policies::effective(&ask.policies, &ask.flags, caller) };
    let mut documents = vec![policies::parse_text(&ground.policy.to_string(), "template.json")?.document];
    let mut notes = Vec::new();
    for source in &ask.policies {
        let loaded = policies::load(source)?;
        notes.extend(loaded.notes);
        documents.push(loaded.document);
    }
    documents.extend(policies::of_flags(&ask.flags, caller)?);
    Ok((policy::effective(&documents)?, notes))
}

/// Whether runs could be made under the policy here: found now, not at the first command.
pub fn validate(policy: &Policy, ask: &Ask, caller: &Caller, base: &Path) -> Result<Vec<String>, Fault> {
    let mut policy = policy.clone();
    let around = policies::surroundings(&mut policy, caller, base, None);
    let resolved = policy::resolve(&policy, &around.context)?;
    policies::check_supported(&resolved, true)?;
    let plan = resolved.plan(&LocalHost::default())?;
    let limits = resolved.limits().tightest(ask.limits);
    if !resolved.degrade().any(|name| name.starts_with("max_")) {
        enclosure::check_limits(&limits, &plan, resolved.needs_network().is_some(), Some(base))?;
    }
    Ok(around.notes)
}

/// The disk that holds the layers must keep some space, for what is there already and for everybody else.
pub fn check_space(state: &State) -> Result<(), Fault> {
    let now =
        rustix::fs::fstatvfs(&state.dir).map_err(|e| Fault::internal(format!("{}: {e}", state.path.display())))?;
    let (free, all) = (now.f_bavail.saturating_mul(now.f_frsize), now.f_blocks.saturating_mul(now.f_frsize));
    let inodes = now.f_files == 0 || now.f_favail >= LEAST_INODES;
    if free >= LEAST_FREE && free >= all / LEAST_PART && inodes {
        return Ok(());
    }
    let what = if inodes { format!("{} MiB free", free >> 20) } else { "hardly an inode free".to_owned() };
    let message = format!("{}: its file system has {what}", state.path.display());
    let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(LimitKind::DiskMb).phase(Phase::Admission);
    Err(fault.hint("free some with `cofferdam gc` or `cofferdam rm`, or set COFFERDAM_STATE to another place"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_told_from_ids_flags_and_one_another() {
        for good in ["fix", "fix-login_2", "ÄÖ", "a.b", "sbx_work", "deadbeef", &"x".repeat(64)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "-f", "a b", "a\nb", "a/b", "sbx_0123456789", "a\u{202e}b", "a\u{200b}", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
