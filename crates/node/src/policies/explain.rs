//! `policy explain`: what holds for a path, a program or a place on the network, and what becomes of what is written there.

use enclosure::LocalHost;
use policy::{Explanation, Format, Perm, Perms, Policy, Resolved};
use runtime::Node;
use runtime::policies::{Flag, Source, effective, find_program, surroundings};
use serde::{Deserialize, Serialize};
use state::Caller;
use state::reach::BaseFault;
use state::sandbox;
use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use terms::{Fault, PROTOCOL_VERSION, Phase};
use utoipa::ToSchema;

/// Decisions about one subject; operations with the same answer share one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = PolicyExplained)]
pub struct Explained {
    pub protocol_version: u32,
    pub subject: String,
    pub decisions: Vec<Decided>,
    /// Where changes at a path go: to the workspace, or to the host at once.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub changes: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = PolicyDecision)]
pub struct Decided {
    /// `read_file` and the other permissions, `execute`, or `connect`.
    pub operations: Vec<String>,
    /// `allow`, `warn`, `ask` or `deny`.
    pub action: String,
    /// The rule that decided, or `defaults.fs` and the like.
    pub rule: String,
    /// How to allow it, when it is not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
    /// Every rule that matched, in the order of the policy.
    pub matches: Vec<Matching>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = PolicyMatch)]
pub struct Matching {
    pub rule: String,
    pub action: String,
    /// The rule as the document has it.
    pub text: String,
}

/// Where commands work of which nobody said where.
pub const NOWHERE: &str = "/nonexistent/workspace";

/// Whether the host is looked at: where links lead, and what is a file or a socket. That tells of the host's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Host,
    /// Paths are taken at their word.
    Words,
}

/// What the named sources and flags say about a path, a program or a place on the network, on this host.
pub fn explain(what: &OsStr, sources: &[Source], flags: &[Flag], caller: &Caller) -> Result<Explained, Fault> {
    let policy = effective(sources, flags, caller)?.policy;
    explain_under(what, policy, &caller.cwd, Look::Host, caller)
}

/// What the named sources say to a caller who may not have everything, for commands that would work in a directory.
pub fn explain_sources(
    what: &OsStr,
    sources: &[Source],
    dir: &Path,
    look: Look,
    caller: &Caller,
) -> Result<Explained, Fault> {
    let policy = effective(sources, &[], caller)?.policy;
    if look == Look::Words && dir != Path::new(NOWHERE) {
        // What is found there decides about tools, so that it must be the caller's to know.
        caller.reach.base(dir).map_err(|fault| match fault {
            BaseFault::Refused(fault) => *fault,
            BaseFault::Missing(e) => Fault::invalid(format!("{}: {e}", dir.display())).phase(Phase::Admission),
        })?;
    }
    explain_under(what, policy, dir, look, &Caller { cwd: dir.to_owned(), ..caller.clone() })
}

/// What the policy of a sandbox says.
pub fn explain_sandbox(node: &Node, caller: &Caller, what: &OsStr, word: &str, look: Look) -> Result<Explained, Fault> {
    let state = node.states.open(caller)?;
    let kept = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
    let document = policy::parse(&kept.record.policy.to_string(), Format::Json, &kept.id)?;
    // Paths in it are seen from the directory that it covers.
    let there = Caller { cwd: kept.record.base.clone(), ..caller.clone() };
    explain_under(what, policy::effective(&[document])?, &kept.record.base, look, &there)
}

/// What a policy says about something, for commands that work in a directory.
fn explain_under(
    what: &OsStr,
    mut policy: Policy,
    workspace: &Path,
    look: Look,
    caller: &Caller,
) -> Result<Explained, Fault> {
    let around = surroundings(&mut policy, caller, workspace, None);
    let resolved = policy::resolve(&policy, &around.context)?;
    // Followed, a rule leads where links of the host lead, and an allowance of what is not there falls away: both would be told.
    let resolved = if look == Look::Host { resolved.follow(&LocalHost::default())? } else { resolved };
    let text = what.to_string_lossy();
    if text.is_empty() {
        return Err(Fault::invalid("nothing to explain")
            .hint("name a path, a host or a command")
            .phase(Phase::Admission));
    }
    let real = |path: &Path| if look == Look::Host { real(path) } else { plain(path) };
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(told(policy::explain_net(&resolved, &policy::NetRequest::unix(&real(&expand(path, caller))))));
    }
    if let Some(host) = text.strip_prefix("icmp:") {
        let ask = policy::NetRequest { addr: host.parse().ok(), ..policy::NetRequest::icmp(host) };
        return Ok(told(policy::explain_net(&resolved, &ask)));
    }
    let is_file = look == Look::Host && caller.cwd.join(what).symlink_metadata().is_ok();
    if text.contains('/') || text.starts_with('~') || is_file {
        let path = real(&expand(&text, caller));
        let mut about = policy::explain_fs(&resolved, &path);
        if look == Look::Host && path.metadata().is_ok_and(|m| m.file_type().is_socket()) {
            about.rows.extend(policy::explain_net(&resolved, &policy::NetRequest::unix(&path)).rows);
        }
        return Ok(Explained { changes: changes(&resolved, &path, &real(workspace)), ..told(about) });
    }
    let program = find_program(&text, caller);
    if program.starts_with('/') {
        return Ok(told(policy::explain_exec(&resolved, &real(Path::new(&program)))));
    }
    let (host, port) = policy::split_ports(&text);
    let port = port.map(|port| {
        let fault =
            || Fault::invalid(format!("{text}: {port:?} is no port")).hint(format!("name one, such as {host}:443"));
        port.parse().ok().filter(|port| *port != 0).ok_or_else(fault)
    });
    let port = port.transpose()?.unwrap_or(443);
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let ask = policy::NetRequest { addr: address.parse().ok(), ..policy::NetRequest::tcp(host, port) };
    Ok(told(policy::explain_net(&resolved, &ask)))
}

/// What becomes of changes at a path. In a workspace everything that can be read can be changed, unless a rule denies it.
fn changes(resolved: &Resolved, path: &Path, workspace: &Path) -> Option<String> {
    let all = || Perm::ALL.into_iter().filter(|perm| Perms::CHANGES.contains(*perm));
    let denied = |perm: Perm| resolved.fs(path, perm).matches.iter().any(|m| m.action == policy::Action::Deny);
    let readable = [Perm::ReadDir, Perm::ReadFile].into_iter().all(|perm| resolved.fs(workspace, perm).allowed());
    if path.starts_with(workspace) && readable {
        let layered = "changes go to the workspace, and reach the host when somebody approves them; with --direct at once, \
                       as far as these rules allow them";
        return Some(if all().all(denied) { "nothing can be changed here" } else { layered }.to_owned());
    }
    if all().any(|perm| resolved.fs(path, perm).allowed()) {
        return Some("changes reach the host at once: it is outside the workspace".to_owned());
    }
    let readable = [Perm::ReadDir, Perm::ReadFile].into_iter().any(|perm| resolved.fs(path, perm).allowed());
    policy::private_place(path).filter(|_| !readable).map(|own| {
        let own = own.display();
        format!(
            "{own} is the sandbox's own inside: empty at first, writable, gone afterwards; a rule that names {own} or a path \
             below it shows the host's"
        )
    })
}

fn told(explanation: Explanation) -> Explained {
    let decided = |row: policy::Row| Decided {
        operations: row.operations.iter().map(|name| (*name).to_owned()).collect(),
        action: row.decision.action.name().to_owned(),
        rule: row.decision.rule,
        hint: row.decision.hint,
        matches: row.decision.matches.into_iter().map(matching).collect(),
    };
    let decisions = explanation.rows.into_iter().map(decided).collect();
    Explained { protocol_version: PROTOCOL_VERSION, subject: explanation.subject, decisions, changes: None }
}

fn matching(found: policy::Matched) -> Matching {
    Matching { rule: found.rule, action: found.action.name().to_owned(), text: found.text }
}

impl Explained {
    pub fn to_text(&self) -> String {
        let mut out = format!("{}\n", self.subject);
        for Decided { operations, action, rule, hint, matches } in &self.decisions {
            out.push_str(&format!("  {action:5} {}  ({rule})\n", operations.join(", ")));
            for m in matches {
                out.push_str(&format!("        {}: {}\n", m.rule, m.text));
            }
            if let Some(hint) = hint {
                out.push_str(&format!("        to allow it: {hint}\n"));
            }
        }
        if let Some(changes) = &self.changes {
            out.push_str(&format!("  {changes}\n"));
        }
        out
    }
}

fn expand(text: &str, caller: &Caller) -> PathBuf {
    match text.strip_prefix('~') {
        Some(rest) => caller.home.join(rest.trim_start_matches('/')),
        None => caller.cwd.join(text),
    }
}

/// The real path as far as it exists.
fn real(path: &Path) -> PathBuf {
    if let Ok(real) = std::fs::canonicalize(path) {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path.to_path_buf(),
    }
}

/// The same by words alone.
fn plain(path: &Path) -> PathBuf {
    let mut whole = PathBuf::from("/");
    for component in path.components() {
        match component {
            std::path::Component::Normal(part) => whole.push(part),
            std::path::Component::ParentDir => drop(whole.pop()),
            _ => {}
        }
    }
    whole
}
