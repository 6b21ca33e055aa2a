//! Sources of policies: presets by name, files in our own or an imported format, flags.

pub mod secret_entry;

use crate::own_home::with_own_home;
use enclosure::LocalHost;
pub use policy::agents::{AGENTS, Agent, agent_of_command};
use policy::{
    Action, Base, Change, Context, Effect, ExecRule, Format, FsRule, NetRule, NetTarget, Perm, Perms, Policy, Proto,
    RulePath,
};
pub use policy::{Document, nearest, split_targets};
use state::Caller;
pub use state::policy_source::{Flag, RequestedPolicy};
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, Phase};

/// Largest policy file that is read.
const LARGEST: u64 = 1 << 20;

/// A policy document, with the importer's notes.
pub struct Loaded {
    pub document: Document,
    /// Notes for the reader; settings that were left out come first.
    pub notes: Vec<String>,
    /// Settings without an equivalent here, one line for each key.
    pub left_out: Vec<String>,
}

impl Loaded {
    fn ours(document: Document) -> Loaded {
        Loaded { document, notes: Vec::new(), left_out: Vec::new() }
    }
}

/// The policy of a run, with the notes of its sources.
pub struct Effective {
    pub policy: Policy,
    pub notes: Vec<String>,
    pub left_out: Vec<String>,
}

impl From<Policy> for Effective {
    fn from(policy: Policy) -> Effective {
        Effective { policy, notes: Vec::new(), left_out: Vec::new() }
    }
}

/// Loads a source, and checks it against the caller's grants.
pub fn load_for(source: &RequestedPolicy, caller: &Caller) -> Result<Loaded, Fault> {
    caller.reach.check_source(source)?;
    let loaded = load(source)?;
    caller.reach.check_document(source, &loaded.document)?;
    Ok(loaded)
}

pub fn load(source: &RequestedPolicy) -> Result<Loaded, Fault> {
    match source {
        RequestedPolicy::Preset(name) => {
            let document = policy::preset_document(name).ok_or_else(|| unknown_preset(name))?;
            Ok(Loaded::ours(document))
        }
        RequestedPolicy::File(path) => read(path),
        RequestedPolicy::Text(text) => parse_text(text, "request.json"),
    }
}

fn unknown_preset(name: &str) -> Fault {
    let known: Vec<_> = policy::PRESETS.iter().map(|(name, _)| *name).collect();
    // Container users expect -p to publish ports.
    let is_port =
        name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(|c| c.is_ascii_digit() || ".:".contains(c));
    let hint = match is_port {
        true => "a port is published as [ADDRESS:]HOST:GUEST, such as -p 8080:80".to_owned(),
        false => format!("presets: {}", known.join(", ")),
    };
    Fault::invalid(format!("{name:?} is neither a preset nor a file")).hint(hint).phase(Phase::Admission)
}

/// Reads a file in our format, or in one we import.
pub fn read(path: &Path) -> Result<Loaded, Fault> {
    parse_text(&read_text(path)?, &path.display().to_string())
}

/// Parses a text in our format, or in one we import.
pub fn parse_text(text: &str, name: &str) -> Result<Loaded, Fault> {
    match policy::import::detect(text) {
        Some(kind) => import(text, name, kind, None),
        None => Ok(Loaded::ours(policy::parse(text, Format::of_name(name), name)?)),
    }
}

pub fn read_text(path: &Path) -> Result<String, Fault> {
    let refuse = |why: String| Fault::invalid(format!("{}: {why}", path.display())).phase(Phase::Admission);
    let file = std::fs::File::open(path).map_err(|e| refuse(e.to_string()))?;
    let mut bytes = Vec::new();
    // A device or a pipe has no size beforehand.
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|e| refuse(e.to_string()))?;
    if bytes.len() as u64 > LARGEST {
        return Err(refuse(format!("it is longer than {LARGEST} bytes, the maximum for a policy")));
    }
    String::from_utf8(bytes).map_err(|e| refuse(format!("not UTF-8 at byte {}", e.utf8_error().valid_up_to())))
}

/// Imports a file that must be in an imported format.
pub fn import_file(path: &Path, profile: Option<&str>) -> Result<Loaded, Fault> {
    let text = read_text(path)?;
    let kind = policy::import::detect(&text).ok_or_else(|| {
        Fault::invalid(format!("{}: neither srt settings JSON nor codex permissions TOML", path.display()))
            .hint("srt has \"network\" or \"filesystem\" at the top; codex has [permissions.NAME]")
            .phase(Phase::Admission)
    })?;
    import(&text, &path.display().to_string(), kind, profile)
}

fn import(
    text: &str,
    name: &str,
    kind: policy::import::SettingsFormat,
    profile: Option<&str>,
) -> Result<Loaded, Fault> {
    let imported = match kind {
        policy::import::SettingsFormat::Srt => policy::import::srt(text, name)?,
        policy::import::SettingsFormat::Codex => policy::import::codex(text, name, profile)?,
    };
    let notes = imported.left_out.iter().chain(&imported.notes).cloned().collect();
    Ok(Loaded { document: imported.document, notes, left_out: imported.left_out })
}

/// Builds a document for each flag, so that the flag itself is the rule's label.
pub fn of_flags(flags: &[Flag], caller: &Caller) -> Result<Vec<Document>, Fault> {
    caller.reach.check_flags(flags)?;
    flags.iter().map(|flag| of_flag(flag, caller)).collect()
}

fn of_flag(flag: &Flag, caller: &Caller) -> Result<Document, Fault> {
    let name = flag_name(flag);
    check_no_pattern(&name, flag, caller)?;
    let mut document = Document::new(&name);
    let execute = Perms::of(&[Perm::Execute]);
    match flag {
        Flag::Read(action, path) => {
            let perms = if *action == Action::Deny { Perms::ALL } else { Perms::READ.union(execute) };
            document.fs.push(FsRule { action: *action, path: rule_path(&name, path, caller)?, perms });
        }
        Flag::Write(Action::Deny, path) => {
            document.fs.push(FsRule {
                action: Action::Deny,
                path: rule_path(&name, path, caller)?,
                perms: Perms::CHANGES,
            });
        }
        Flag::Write(action, path) => {
            let perms = Perms::READ.union(Perms::WRITE).union(execute);
            document.fs.push(FsRule { action: *action, path: rule_path(&name, path, caller)?, perms });
        }
        Flag::Exec(action, path) => {
            let path = rule_path(&name, &find_program(path, caller), caller)?;
            if *action != Action::Deny {
                let perms = Perms::of(&[Perm::ReadFile, Perm::Execute]);
                document.fs.push(FsRule { action: *action, path: path.clone(), perms });
            }
            document.exec.push(ExecRule { action: *action, path, sha256: None });
        }
        Flag::Net(action, host) => document.net.push(net_rule(&name, *action, host, caller)?),
        Flag::Secret(text) => document.secrets.push(secret_entry::parse(text)?),
        Flag::CopyIn(path) => document.home_copy.push(copied_path(&name, path, caller)?),
    }
    Ok(document)
}

/// Refuses a relative path that looks like a pattern: it is taken literally, so it would deny nothing without any message.
fn check_no_pattern(name: &str, flag: &Flag, caller: &Caller) -> Result<(), Fault> {
    let (action, text) = match flag {
        Flag::Read(action, text) | Flag::Write(action, text) | Flag::Exec(action, text) => (*action, text.as_str()),
        Flag::Net(action, text) => match text.strip_prefix("unix:") {
            Some(path) => (*action, path),
            None => return Ok(()),
        },
        Flag::Secret(_) | Flag::CopyIn(_) => return Ok(()),
    };
    let is_meant = action == Action::Allow || text.starts_with(['/', '~', '$']) || !text.contains(['*', '?', '[']);
    if is_meant || caller.cwd.join(text).symlink_metadata().is_ok() {
        return Ok(());
    }
    let fault = Fault::invalid(format!("{name} {text:?}: a relative path is no pattern, and there is no such file"));
    let rest = text.trim_start_matches("./");
    let hint = format!(
        "a pattern begins with /, ~ or $WORKSPACE, here and in a policy file: '$WORKSPACE/{rest}', or '$WORKSPACE/**/{rest}' at any depth"
    );
    Err(fault.hint(hint).phase(Phase::Admission))
}

fn flag_name(flag: &Flag) -> String {
    let (action, what) = match flag {
        Flag::Read(a, _) => (a, "read"),
        Flag::Write(a, _) => (a, "write"),
        Flag::Exec(a, _) => (a, "exec"),
        Flag::Net(a, _) => (a, "net"),
        Flag::Secret(_) => return "--secret".to_owned(),
        Flag::CopyIn(_) => return "--copy-in".to_owned(),
    };
    match action {
        Action::Deny => format!("--deny-{what}"),
        _ => format!("--{what}"),
    }
}

/// Resolves a program as a shell would, for `--exec git`.
pub fn find_program(word: &str, caller: &Caller) -> String {
    if word.contains('/') || word.starts_with(['~', '$']) {
        return word.into();
    }
    let path = caller.var("PATH").unwrap_or_default();
    let found = std::env::split_paths(path).map(|dir| dir.join(word)).find(|p| p.is_file());
    found.and_then(|p| p.to_str().map(String::from)).unwrap_or_else(|| word.into())
}

/// Parses a path as typed; relative paths start at the current directory.
fn rule_path(flag: &str, text: &str, caller: &Caller) -> Result<RulePath, Fault> {
    let refuse = |why: String| Fault::invalid(format!("{flag} {text:?}: {why}")).phase(Phase::Admission);
    if text.is_empty() {
        return Err(refuse("empty; name a path".into()));
    }
    if text.starts_with(['/', '~', '$']) {
        return RulePath::parse(text).map_err(|r| with_hint(refuse(r.message), r.hint));
    }
    let mut whole = caller.cwd.clone();
    for part in Path::new(text).components() {
        match part {
            std::path::Component::Normal(name) => whole.push(name),
            std::path::Component::ParentDir => {
                whole.pop();
            }
            _ => {}
        }
    }
    RulePath::literal(&whole).ok_or_else(|| refuse("cannot be written as a rule".into()))
}

/// Parses a path that is copied into the home, as typed: a plain path below the home.
fn copied_path(flag: &str, text: &str, caller: &Caller) -> Result<RulePath, Fault> {
    let typed = match text.strip_prefix("~/") {
        Some(below) => caller.home.join(below),
        None => caller.cwd.join(text),
    };
    let mut plain = PathBuf::new();
    for part in typed.components() {
        match part {
            std::path::Component::ParentDir => drop(plain.pop()),
            std::path::Component::CurDir => {}
            part => plain.push(part),
        }
    }
    let below = plain.strip_prefix(&caller.home).ok().filter(|below| !below.as_os_str().is_empty());
    let path = below.and_then(|below| RulePath::literal(&Path::new("/").join(below)));
    let path = path.and_then(|path| RulePath::parse(&format!("~{path}")).ok());
    path.ok_or_else(|| {
        let message = format!("{flag} {text:?}: not a path below the home directory, {}", caller.home.display());
        let hint = "name a file or directory such as ~/.config/tool; --read shows other paths of the host";
        Fault::invalid(message).hint(hint).phase(Phase::Admission)
    })
}

fn with_hint(fault: Fault, hint: Option<String>) -> Fault {
    match hint {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}

/// Parses `HOST[:PORTS]` where HOST may be a range of addresses, `opaque:HOST[:PORTS]`, `icmp:HOST`, or `unix:PATH`.
fn net_rule(flag: &str, action: Action, text: &str, caller: &Caller) -> Result<NetRule, Fault> {
    if let Some(path) = text.strip_prefix("unix:") {
        let to = NetTarget::Unix(rule_path(flag, path, caller)?);
        return Ok(NetRule {
            action,
            proto: Some(Proto::Unix),
            to,
            ports: None,
            methods: None,
            paths: None,
            opaque: false,
            quiet: false,
        });
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let host = rest.split('/').next().unwrap_or(rest);
        let port = if scheme == "http" && !host.contains(':') { ":80" } else { "" };
        let fault = Fault::invalid(format!("{flag} {text:?}: a URL, where a host is expected"));
        return Err(fault
            .hint(format!("write {flag} {host}{port}; methods and paths need a policy file"))
            .phase(Phase::Admission));
    }
    let (proto, opaque, place) = match text.split_once(':') {
        Some(("icmp", place)) => (Some(Proto::Icmp), false, place),
        Some(("opaque", place)) => (Some(Proto::Tcp), true, place),
        _ => (None, false, text),
    };
    let invalid = |message: &str| Fault::invalid(format!("{flag} {text:?}: {message}")).phase(Phase::Admission);
    let (to, ports) = policy::parse_target(place).map_err(|r| with_hint(invalid(&r.message), r.hint))?;
    if proto == Some(Proto::Icmp) && ports.is_some() {
        return Err(invalid("an echo request has no ports"));
    }
    if opaque && (action == Action::Deny || to.is_address()) {
        let why = match action {
            Action::Deny => "a denial covers all traffic already",
            _ => "rules for addresses consider only address and port already",
        };
        return Err(invalid(why).hint(format!("write {flag} {place}")));
    }
    Ok(NetRule { action, proto, to, ports, methods: None, paths: None, opaque, quiet: false })
}

/// Merges the policy of a run: the named sources (the `default` preset when there are none), then the flags.
pub fn effective(sources: &[RequestedPolicy], flags: &[Flag], caller: &Caller) -> Result<Effective, Fault> {
    let default = [RequestedPolicy::Preset("default".into())];
    let sources = if sources.is_empty() { &default } else { sources };
    let (mut documents, mut notes, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for source in sources {
        let loaded = load_for(source, caller)?;
        notes.extend(loaded.notes);
        left_out.extend(loaded.left_out);
        documents.push(loaded.document);
    }
    documents.extend(of_flags(flags, caller)?);
    Ok(Effective { policy: policy::effective(&documents)?, notes, left_out })
}

/// Refuses a policy that allows more than another. Rules are compared as text: an allowing rule must be there word for word.
pub fn within(most: &Policy, then: &Policy, why: &str) -> Result<(), Fault> {
    let diff = policy::diff(most, then);
    let Some(Change { place, text, .. }) = diff.changes.iter().find(|change| change.effect == Effect::More) else {
        return Ok(());
    };
    let message = format!("{place}: {text}: this would allow more than {why}");
    let hint = "keep rules that deny or ask, and repeat rules that allow word for word; an operator may allow more";
    Err(Fault::new(ErrorKind::PolicyDenied, message).hint(hint).phase(Phase::Admission))
}

/// Values of the policy's variables, and the additional needs of the caller's toolchains.
pub struct PolicyContext {
    pub context: Context,
    /// Installation directories of the caller's toolchains, whether or not the policy mentions them.
    pub installations: Vec<PathBuf>,
    pub env_names: Vec<String>,
    pub notes: Vec<String>,
}

/// Resolves the policy's variables, and drops a workspace that holds the home directory.
pub fn surroundings(policy: &mut Policy, caller: &Caller, workspace: &Path, command: Option<&OsStr>) -> PolicyContext {
    let mut notes = Vec::new();
    let too_wide = caller.home.starts_with(workspace);
    if too_wide && policy.fs.iter().any(|r| r.rule.path.base() == Base::Workspace) {
        drop_workspace(policy);
        let where_ = workspace.display();
        notes.push(format!(
            "{where_} holds the home directory and is not shown inside; name what is needed with --read"
        ));
    }
    let wants_tools = policy.fs.iter().any(|r| r.rule.path.base() == Base::Toolchains);
    // Where only listed programs may start, the directories with libraries of installed ones matter.
    let lists_programs = policy.default_exec() == Action::Deny;
    let found = (wants_tools || lists_programs).then(|| {
        let path = caller.var("PATH").unwrap_or_default();
        let var = |name: &str| caller.var(name).map(OsStr::to_owned);
        host::toolchains::discover(path, &caller.home, workspace, command, &var)
    });
    let (grants, env_names) = found.map(|t| (t.grants, t.env)).unwrap_or_default();
    let installations: Vec<PathBuf> = grants.into_iter().map(|g| g.path).collect();
    let toolchains = if wants_tools { installations.clone() } else { Vec::new() };
    let context = Context { home: caller.home.clone(), workspace: workspace.to_path_buf(), toolchains };
    PolicyContext { context, installations, env_names, notes }
}

/// Removes the rules about the workspace.
pub fn drop_workspace(policy: &mut Policy) {
    policy.fs.retain(|r| r.rule.path.base() != Base::Workspace);
}

/// Refuses features that a plain run does not support, by name. With `events` network events are recorded.
pub fn check_supported(resolved: &policy::Resolved, events: bool) -> Result<(), Fault> {
    let refuse = |message: String, hint: &str| {
        Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning))
    };
    resolved.loopback_places(sys::doors::MOST_LOOPBACK).map_err(unsupported)?;
    let denied: Vec<String> = resolved.syscalls_deny().iter().cloned().collect();
    enclosure::check_calls(&denied, false)?;
    if let Some((rule, perms)) = resolved.asks_too_much().filter(|_| !resolved.may_degrade("ask")) {
        let names = perms.names().join(", ");
        let hint = "ask for read_file, read_dir, write_file, truncate or make_reg; leave \"perms\" out to ask for these and deny the rest; or list \"ask\" under degrade, and what cannot be asked for is refused";
        return refuse(
            format!("{rule}: `ask` does not work for {names}: only opening a file can wait for an answer"),
            hint,
        );
    }
    if let Some(event) = resolved.audit_events().iter().find(|event| !events || *event != "net") {
        let hint = if event == "net" { "run with --events FILE, or leave audit out" } else { "leave audit out" };
        return refuse(format!("audit.events names {event:?}, and a plain run keeps no journal"), hint);
    }
    if let Some(name) = resolved.policy().capabilities.keys().next() {
        return refuse(format!("capabilities.{name:?} is for programs, not for commands"), "leave capabilities out");
    }
    Ok(())
}

pub fn presets() -> impl Iterator<Item = (&'static str, &'static str)> {
    policy::PRESETS.iter().copied()
}

/// Merges several sources into one document that extends nothing.
pub fn merged(sources: &[RequestedPolicy]) -> Result<Document, Fault> {
    Ok(of_sources(sources)?.to_document("merged"))
}

fn of_sources(sources: &[RequestedPolicy]) -> Result<Policy, Fault> {
    let documents = sources.iter().map(|s| load(s).map(|l| l.document)).collect::<Result<Vec<_>, _>>()?;
    Ok(policy::effective(&documents)?)
}

/// Result of checking a policy against this host.
pub struct Checked {
    pub digest: String,
    pub notes: Vec<String>,
}

pub fn check(document: &Document, caller: &Caller) -> Result<Checked, Fault> {
    let mut effective = policy::effective(std::slice::from_ref(document))?;
    let digest = effective.digest();
    let around = surroundings(&mut effective, caller, &caller.cwd, None);
    let mut notes = around.notes;
    let resolved = with_own_home(policy::resolve(&effective, &around.context)?, caller, &caller.cwd);
    check_supported(&resolved, false)?;
    let host = LocalHost::default();
    let plan = resolved.follow(&host)?.plan(&host)?;
    enclosure::check_limits(&resolved.limits(), &plan, resolved.needs_network().is_some(), None)?;
    notes.extend(plan.notes);
    Ok(Checked { digest, notes })
}

/// Returns the paths that a run under the default policy shows.
pub fn shown(caller: &Caller) -> Result<Vec<PathBuf>, Fault> {
    let mut effective = effective(&[], &[], caller)?.policy;
    let around = surroundings(&mut effective, caller, &caller.cwd, None);
    let resolved = with_own_home(policy::resolve(&effective, &around.context)?, caller, &caller.cwd);
    let plan = resolved.plan(&LocalHost::default())?;
    Ok(plan.grants.into_iter().map(|g| g.path).collect())
}

pub fn diff(old: &RequestedPolicy, new: &RequestedPolicy) -> Result<policy::Diff, Fault> {
    let one = |source: &RequestedPolicy| of_sources(std::slice::from_ref(source));
    Ok(policy::diff(&one(old)?, &one(new)?))
}

/// Builds the fault of a policy that this host cannot enforce.
pub(crate) fn unsupported(refusal: policy::PathRefusal) -> Fault {
    let fault = Fault::new(ErrorKind::UnsupportedPolicy, refusal.message).phase(Phase::Planning);
    refusal.hint.into_iter().fold(fault, Fault::hint)
}
