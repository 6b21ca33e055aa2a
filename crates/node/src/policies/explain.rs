//! `policy explain`: the rules that decide about a path, a program or a network target, and whether
//! changes at a path reach the host.

use api::{PolicyDecision, PolicyExplained, PolicyMatch};
use enclosure::LocalHost;
use policy::{Explanation, Format, Perm, Perms, Policy, Resolved};
use runtime::Node;
use runtime::policies::{Flag, RequestedPolicy, effective, find_program, surroundings};
use state::Caller;
use state::directory;
use state::reach::BaseFault;
use state::sandbox;
use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use terms::{Fault, PROTOCOL_VERSION, Phase};

/// The working directory that is assumed if none is known.
pub const NOWHERE: &str = "/nonexistent/workspace";

/// Resolution of paths. With `Host` the answer depends on links and file types, and so reveals them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathLookup {
    Host,
    /// Paths are normalized without reading the host.
    Words,
}

/// Explains the named sources and flags for a path, a program or a network target, on this host.
pub fn explain(
    what: &OsStr,
    sources: &[RequestedPolicy],
    flags: &[Flag],
    caller: &Caller,
) -> Result<PolicyExplained, Fault> {
    let policy = effective(sources, flags, caller)?.policy;
    explain_under(what, policy, &caller.cwd, PathLookup::Host, caller)
}

/// Explains policy sources to a caller with restricted reach, for commands that would run in a
/// directory.
pub fn explain_sources(
    what: &OsStr,
    sources: &[RequestedPolicy],
    dir: &Path,
    look: PathLookup,
    caller: &Caller,
) -> Result<PolicyExplained, Fault> {
    let policy = effective(sources, &[], caller)?.policy;
    if look == PathLookup::Words && dir != Path::new(NOWHERE) {
        // The tools found in the directory affect the answer, so the caller must be allowed to read it.
        caller.reach.base(dir).map_err(|fault| match fault {
            BaseFault::Refused(fault) => *fault,
            BaseFault::Missing(e) => Fault::invalid(format!("{}: {e}", dir.display())).phase(Phase::Admission),
        })?;
    }
    explain_under(what, policy, dir, look, &Caller { cwd: dir.to_owned(), ..caller.clone() })
}

/// Explains the policy of a sandbox.
pub fn explain_sandbox(
    node: &Node,
    caller: &Caller,
    what: &OsStr,
    word: &str,
    look: PathLookup,
) -> Result<PolicyExplained, Fault> {
    let state = node.states.open(caller)?;
    let kept = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
    let document = policy::parse(&kept.record.policy.to_string(), Format::Json, &kept.id)?;
    // Relative paths are resolved from the directory that the sandbox covers.
    let dir = directory::path_inside(&kept.record.base);
    let there = Caller { cwd: dir.to_owned(), ..caller.clone() };
    explain_under(what, policy::effective(&[document])?, dir, look, &there)
}

/// Explains a policy for commands that work in a directory.
fn explain_under(
    what: &OsStr,
    mut policy: Policy,
    workspace: &Path,
    look: PathLookup,
    caller: &Caller,
) -> Result<PolicyExplained, Fault> {
    let around = surroundings(&mut policy, caller, workspace, None);
    let resolved = runtime::own_home::with_own_home(policy::resolve(&policy, &around.context)?, caller, workspace);
    // Following applies rules to the targets of the host's links, and drops allowances of missing
    // paths; both would reveal host files.
    let resolved = if look == PathLookup::Host { resolved.follow(&LocalHost::default())? } else { resolved };
    let text = what.to_string_lossy();
    if text.is_empty() {
        return Err(Fault::invalid("nothing to explain")
            .hint("name a path, a host or a command")
            .phase(Phase::Admission));
    }
    let real = |path: &Path| if look == PathLookup::Host { real(path) } else { plain(path) };
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(explained(policy::explain_net(&resolved, &policy::NetRequest::unix(&real(&expand(path, caller))))));
    }
    if let Some(host) = text.strip_prefix("icmp:") {
        let ask = policy::NetRequest { addr: host.parse().ok(), ..policy::NetRequest::icmp(host) };
        return Ok(explained(policy::explain_net(&resolved, &ask)));
    }
    let is_file = look == PathLookup::Host && caller.cwd.join(what).symlink_metadata().is_ok();
    if text.contains('/') || text.starts_with('~') || is_file {
        let path = real(&expand(&text, caller));
        let mut about = policy::explain_fs(&resolved, &path);
        if look == PathLookup::Host && path.metadata().is_ok_and(|m| m.file_type().is_socket()) {
            about.rows.extend(policy::explain_net(&resolved, &policy::NetRequest::unix(&path)).rows);
        }
        return Ok(PolicyExplained { changes: changes(&resolved, &path, &real(workspace)), ..explained(about) });
    }
    let program = find_program(&text, caller);
    if program.starts_with('/') {
        return Ok(explained(policy::explain_exec(&resolved, &real(Path::new(&program)))));
    }
    let (host, port) = policy::split_ports(&text);
    let port = port.map(|port| {
        let fault =
            || Fault::invalid(format!("{text}: {port:?} is not a port")).hint(format!("name one, such as {host}:443"));
        port.parse().ok().filter(|port| *port != 0).ok_or_else(fault)
    });
    let port = port.transpose()?.unwrap_or(443);
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let ask = policy::NetRequest { addr: address.parse().ok(), ..policy::NetRequest::tcp(host, port) };
    Ok(explained(policy::explain_net(&resolved, &ask)))
}

/// Describes where changes at a path go, and when they reach the host. In a workspace every
/// readable path can be changed, unless a rule denies it.
fn changes(resolved: &Resolved, path: &Path, workspace: &Path) -> Option<String> {
    let all = || Perm::ALL.into_iter().filter(|perm| Perms::CHANGES.contains(*perm));
    let denied = |perm: Perm| resolved.fs(path, perm).matches.iter().any(|m| m.action == policy::Action::Deny);
    let readable = [Perm::ReadDir, Perm::ReadFile].into_iter().all(|perm| resolved.fs(workspace, perm).allowed());
    if path.starts_with(workspace) && readable {
        let layered = "changes go to the workspace, and reach the host once they are approved; with --direct at once, \
                       as far as these rules allow them";
        return Some(if all().all(denied) { "nothing can be changed here" } else { layered }.to_owned());
    }
    if all().any(|perm| resolved.fs(path, perm).allowed()) {
        return Some("changes reach the host at once: it is outside the workspace".to_owned());
    }
    let readable = [Perm::ReadDir, Perm::ReadFile].into_iter().any(|perm| resolved.fs(path, perm).allowed());
    resolved.private().place_of(path).filter(|_| !readable).map(|own| {
        let is_home = resolved.private().is_in_home(own);
        let own = own.display();
        if is_home {
            return format!(
                "{own} belongs to the sandbox: writable, kept with the sandbox, never landed; a rule that names {own} or a path below it shows the host's"
            );
        }
        format!(
            "{own} belongs to the sandbox: empty at first, writable, removed at the end; a rule that names {own} or a path below it shows the host's"
        )
    })
}

fn explained(explanation: Explanation) -> PolicyExplained {
    let decided = |row: policy::Row| PolicyDecision {
        operations: row.operations.iter().map(|name| (*name).to_owned()).collect(),
        action: row.decision.action.name().to_owned(),
        rule: row.decision.rule,
        hint: row.decision.hint,
        matches: row.decision.matches.into_iter().map(matching).collect(),
    };
    let decisions = explanation.rows.into_iter().map(decided).collect();
    PolicyExplained { protocol_version: PROTOCOL_VERSION, subject: explanation.subject, decisions, changes: None }
}

fn matching(found: policy::Matched) -> PolicyMatch {
    PolicyMatch { rule: found.rule, action: found.action.name().to_owned(), text: found.text }
}

fn expand(text: &str, caller: &Caller) -> PathBuf {
    match text.strip_prefix('~') {
        Some(rest) => caller.home.join(rest.trim_start_matches('/')),
        None => caller.cwd.join(text),
    }
}

/// Resolves links as far as the path exists.
fn real(path: &Path) -> PathBuf {
    if let Ok(real) = std::fs::canonicalize(path) {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path.to_path_buf(),
    }
}

/// Normalizes a path without reading the host.
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
