//! Run one command in an enclosure: from what was asked to how it ended.

use crate::Caller;
use crate::events::EventFile;
use crate::network::{self, Brokered, Ear, Planned, Purpose, Wanted};
use crate::policies::{self, Flag, Source};
use crate::publish;
use enclosure::{Beside, Cpus, Driver, LocalHost, Prepared, Published, Request, TRUST_VARIABLES};
pub use enclosure::{Groundwork, Observed, Observer, Stdio, begin};
use policy::{Action, Resolved};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use terms::{Denial, ErrorKind, Fault, Limits, Outcome, Phase, PolicyStamp, RunId};

#[derive(Clone, Debug)]
pub struct Ask {
    /// The command and its arguments; or, with `shell`, the arguments after the shell string.
    pub command: Vec<OsString>,
    /// Run this text with `sh -c`.
    pub shell: Option<OsString>,
    pub policies: Vec<Source>,
    pub flags: Vec<Flag>,
    pub limits: Limits,
    pub cpus: Option<f64>,
    /// `NAME` passes the caller's value, `NAME=VALUE` sets one.
    pub env: Vec<OsString>,
    pub workdir: Option<PathBuf>,
    /// Ports of the guest on the host, each `[ADDRESS:]HOST:GUEST`.
    pub publish: Vec<String>,
    /// Where secrets come from, each `NAME=env:VAR|file:PATH|cmd:COMMAND`.
    pub secrets: Vec<String>,
    /// Network events will be written down.
    pub events: bool,
    pub stdio: Stdio,
    pub report_reads: bool,
    pub learn: Learn,
}

/// How much a run is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learn {
    /// The observer is told of what is refused.
    Nothing,
    /// And of all files, programs and sockets that are used.
    Files,
    /// And of all that is tried on the network; names that may not be asked for lead nowhere and can be connected to.
    All,
}

/// A run that is ready to start, and what a person should know first.
pub struct Ready {
    pub prepared: Prepared,
    /// The program that will be started, by the name it was found under.
    pub program: PathBuf,
    /// What a person should know without asking.
    pub warnings: Vec<String>,
    /// What explains the plan to those who ask.
    pub notes: Vec<String>,
    pub policy: Rc<policy::Policy>,
    network: Option<Wanted>,
    publish: Vec<Published>,
}

impl Ready {
    /// The caller's variables whose values must be forgotten before the run; see `Caller::forget`.
    pub fn secret_variables(&self) -> Vec<String> {
        let secrets = self.network.iter().flat_map(|n| n.secrets.variables());
        secrets.map(String::from).collect()
    }

    /// Where each secret would come from. None of them is looked at.
    pub fn secrets(&self) -> Vec<String> {
        self.network.iter().flat_map(|n| n.secrets.explain()).collect()
    }
}

/// How a verb ended before or instead of a run: a fault, with the refusal that caused it.
pub struct Refused {
    pub fault: Box<Fault>,
    pub denial: Option<Box<Denial>>,
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Refused {
        Refused { fault: Box::new(fault), denial: None }
    }
}

/// From what was asked to a run that can start. `ground` comes from `begin`, called as early as can be.
pub fn prepare(ask: &Ask, caller: &Caller, ground: Groundwork) -> Result<Ready, Refused> {
    let (effective, notes) = policies::effective(&ask.policies, &ask.flags, caller)?;
    prepare_under(ask, caller, effective, notes, ground)
}

/// The same under a policy that is already at hand.
pub(crate) fn prepare_under(
    ask: &Ask,
    caller: &Caller,
    mut effective: policy::Policy,
    mut warnings: Vec<String>,
    mut ground: Groundwork,
) -> Result<Ready, Refused> {
    // Whoever has secrets must forget them before the first process is made, which is a copy of us.
    if effective.secrets.is_empty() {
        ground.settle();
    }
    let cwd = working_directory(ask, caller)?;
    let argv = argv(ask)?;
    let around = policies::surroundings(&mut effective, caller, &cwd, Some(&argv[0]));
    warnings.extend(around.notes);
    let resolved = policy::resolve(&effective, &around.context).map_err(Fault::from)?;
    policies::check_supported(&resolved, ask.events)?;
    let degrade: Vec<String> = resolved.degrade().map(String::from).collect();
    let mut enforced = enclosure::choose(&degrade)?;
    check_driver(enforced.driver, ask, &resolved)?;
    let counted = resolved.needs_network().is_some() || !ask.publish.is_empty();
    let host = LocalHost::default();
    let plan = resolved.plan(&host).map_err(Fault::from)?;
    let resolved = resolved.follow(&host).map_err(Fault::from)?;
    let mut limits = resolved.limits().tightest(ask.limits);
    if degrade.iter().any(|name| name.starts_with("max_")) {
        let (kept, missing) = enclosure::give_up_limits(limits, &Cpus(ask.cpus), &degrade, counted);
        limits = kept;
        enforced.missing.extend(missing);
    }
    enclosure::check_limits(&limits, &plan, counted)?;
    let notes = plan.notes.clone();
    let run_id = RunId::from_random(crate::fresh::random());
    let purpose = if ask.learn == Learn::All { Purpose::Watching } else { Purpose::Rules };
    let network = network::plan(&resolved, &ask.secrets, caller, purpose)?;
    let with = Inside { tools: &around.env_names, run_id: &run_id, network: &network };
    let env = environment(ask, caller, &resolved, &with)?;
    let program = find_program(&argv[0], &env, &cwd, &resolved)?;
    let publish = publish::listen(&ask.publish)?;
    let (net_plan, wanted) = network.divide(&resolved, limits.max_net_bytes);
    let effective = Rc::new(effective);
    let stamped = Rc::clone(&effective);
    let request = Request {
        run_id,
        deny_calls: resolved.syscalls_deny().iter().cloned().collect(),
        policy: resolved,
        plan,
        stamp: Box::new(move || PolicyStamp { digest: stamped.digest(), revision: 1 }),
        enforced,
        program,
        argv,
        env,
        cwd,
        home: caller.home.clone(),
        toolchains: around.installations,
        user: caller.user.clone(),
        limits,
        cpus: Cpus(ask.cpus),
        stdio: ask.stdio,
        watch_reads: ask.report_reads || ask.learn != Learn::Nothing,
        watch_looks: ask.learn != Learn::Nothing,
        network: net_plan,
        workspace: None,
    };
    let program = request.program.clone();
    let prepared = enclosure::prepare(request, ground)?;
    Ok(Ready { prepared, program, warnings, notes, policy: effective, network: wanted, publish })
}

/// What only namespaces can give is refused where there are none.
fn check_driver(driver: Driver, ask: &Ask, resolved: &Resolved) -> Result<(), Fault> {
    if driver == Driver::Namespaces {
        return Ok(());
    }
    let what = match (resolved.needs_network(), resolved.reaches_socket(), ask.publish.first()) {
        (Some(rule), _, _) => format!("{rule} asks for the network"),
        (_, Some(rule), _) => format!("{rule} asks for a socket of the host"),
        (_, _, Some(port)) => format!("--publish {port} asks for a port of the guest"),
        (None, None, None) => return Ok(()),
    };
    let message = format!("{what}, which needs namespaces");
    let hint = "leave it out, or run where user namespaces are allowed (`cofferdam doctor`)";
    Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning))
}

/// A descriptor of the caller's, by number, to write the verdict to.
pub fn status_descriptor(fd: u32) -> Result<std::fs::File, String> {
    sys::process::inherited_for_writing(fd).map(std::fs::File::from).map_err(|e| e.to_string())
}

/// Runs it to its end; network events go to `events`.
pub fn run(ready: Ready, observer: Option<Observer<'_>>, events: Option<EventFile>) -> Result<Outcome, Fault> {
    run_heard(ready, observer, events, None)
}

/// The same, with somebody who hears of the network.
pub(crate) fn run_heard<'a>(
    mut ready: Ready,
    observer: Option<Observer<'a>>,
    events: Option<EventFile>,
    ear: Option<Ear<'a>>,
) -> Result<Outcome, Fault> {
    if let Some(network) = &mut ready.network {
        network.secrets.open()?;
    }
    let journal = events.map(|file| Rc::new(RefCell::new(file)));
    let brokered = ready.network.map(|wanted| Brokered::new(wanted, journal.clone(), ear));
    let network = brokered.map(|brokered| Box::new(brokered) as Box<dyn enclosure::Network + 'a>);
    let observer = match &journal {
        Some(journal) => Some(journalled(observer, journal.clone())),
        None => observer,
    };
    let ended = ready.prepared.run(Beside { observer, network, publish: ready.publish });
    let (dropped, reason) = journal.map(|journal| journal.borrow_mut().close()).unwrap_or_default();
    ended.map(|outcome| Outcome { events_dropped: dropped, events_reason: reason, ..outcome })
}

/// An observer that also writes down which sockets of the host were connected to: no broker stands before them.
fn journalled<'a>(mut observer: Option<Observer<'a>>, journal: Rc<RefCell<EventFile>>) -> Observer<'a> {
    Box::new(move |seen| {
        if let Observed::Socket { path, rule, action, actor } = &seen {
            journal.borrow_mut().socket(path, rule, *action, actor);
        }
        if let Some(observer) = &mut observer {
            observer(seen);
        }
    })
}

fn argv(ask: &Ask) -> Result<Vec<OsString>, Fault> {
    let argv = match &ask.shell {
        Some(text) => {
            let shell = ["sh", "-c"].into_iter().map(OsString::from).chain([text.clone()]);
            let name = if ask.command.is_empty() { None } else { Some(OsString::from("sh")) };
            shell.chain(name).chain(ask.command.iter().cloned()).collect()
        }
        None => ask.command.clone(),
    };
    if argv.is_empty() || argv[0].is_empty() {
        return Err(Fault::invalid("no command given").hint("cofferdam run -- COMMAND [ARG…]").phase(Phase::Admission));
    }
    Ok(argv)
}

fn working_directory(ask: &Ask, caller: &Caller) -> Result<PathBuf, Fault> {
    if ask.workdir.as_ref().is_some_and(|dir| dir.as_os_str().is_empty()) {
        return Err(Fault::invalid("--workdir is empty").hint("name a directory").phase(Phase::Admission));
    }
    let asked = match &ask.workdir {
        Some(dir) => caller.cwd.join(dir),
        None => caller.cwd.clone(),
    };
    let refuse =
        |why: String| Fault::invalid(format!("working directory {}: {why}", asked.display())).phase(Phase::Admission);
    let real = std::fs::canonicalize(&asked).map_err(|e| refuse(e.to_string()))?;
    if !real.is_dir() {
        return Err(refuse("not a directory".into()));
    }
    if ["/proc", "/dev", "/sys"].iter().any(|own| real.starts_with(own)) {
        return Err(refuse("belongs to the kernel, not to a project".into()));
    }
    Ok(real)
}

/// Variables that would lead programs past the doors, to a proxy that is not there inside.
const PROXIES: [&str; 6] = ["http_proxy", "https_proxy", "all_proxy", "no_proxy", "ftp_proxy", "rsync_proxy"];

/// What a guest's environment is made of beside the policy and the caller's own.
struct Inside<'a> {
    tools: &'a [String],
    run_id: &'a RunId,
    network: &'a Planned,
}

/// What the policy passes and sets, what the toolchains need to find themselves, and what was asked for by flag.
fn environment(
    ask: &Ask,
    caller: &Caller,
    resolved: &Resolved,
    with: &Inside<'_>,
) -> Result<Vec<(OsString, OsString)>, Fault> {
    let mut inside: BTreeMap<OsString, OsString> = BTreeMap::new();
    let bare = resolved.env().pass.is_none();
    for (name, value) in &caller.env {
        let Some(text) = name.to_str() else { continue };
        let secret = with.network.secrets.variables().any(|s| s == text);
        if secret || PROXIES.iter().any(|proxy| text.eq_ignore_ascii_case(proxy)) {
            continue;
        }
        let tool = bare && with.tools.iter().any(|t| t == text);
        if tool || policy::env::passes(resolved.env(), text) {
            inside.insert(name.clone(), value.clone());
        }
    }
    if with.network.inspects() {
        inside.extend(TRUST_VARIABLES.iter().map(|(name, file)| (name.into(), file.into())));
    }
    for (name, value) in &resolved.env().set {
        inside.insert(name.into(), value.into());
    }
    for item in &ask.env {
        let (name, value) = env_item(item, caller)?;
        if let Some(value) = value.filter(|_| !with.network.secrets.variables().any(|s| name == s)) {
            inside.insert(name, value);
        }
    }
    inside.extend(with.network.secrets.placeholders().map(|(name, value)| (name.into(), value.into())));
    inside.insert("COFFERDAM".into(), "1".into());
    inside.insert("COFFERDAM_RUN_ID".into(), with.run_id.as_str().into());
    Ok(inside.into_iter().collect())
}

fn env_item(item: &OsStr, caller: &Caller) -> Result<(OsString, Option<OsString>), Fault> {
    let bytes = item.as_bytes();
    let (name, value) = match bytes.iter().position(|b| *b == b'=') {
        Some(at) => (&bytes[..at], Some(OsStr::from_bytes(&bytes[at + 1..]).to_owned())),
        None => (bytes, None),
    };
    if name.is_empty() {
        return Err(Fault::invalid(format!("--env {item:?}: no name before '='")).phase(Phase::Admission));
    }
    let name = OsStr::from_bytes(name).to_owned();
    let value = value.or_else(|| caller.env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone()));
    Ok((name, value))
}

/// Finds the program as a shell inside would, and tells "not there" from "not allowed".
fn find_program(
    name: &OsStr,
    env: &[(OsString, OsString)],
    cwd: &Path,
    resolved: &Resolved,
) -> Result<PathBuf, Refused> {
    let candidates: Vec<PathBuf> = if name.as_bytes().contains(&b'/') {
        vec![cwd.join(name)]
    } else {
        let path = env.iter().find(|(n, _)| n == "PATH").map(|(_, v)| v.as_os_str());
        let path = path.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
        std::env::split_paths(path).map(|dir| cwd.join(dir).join(name)).collect()
    };
    let mut refused = None;
    let mut found_plain = None;
    for candidate in candidates {
        let Ok(meta) = std::fs::metadata(&candidate) else { continue };
        if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
            found_plain.get_or_insert(candidate);
            continue;
        }
        match check_exec(&candidate, resolved) {
            None => return Ok(candidate),
            Some(denial) => refused = refused.or(Some(denial)),
        }
    }
    if let Some(denial) = refused {
        let message = format!("{}: refused by {}", denial.target, denial.rule);
        let fault = Fault::new(ErrorKind::PolicyDenied, message).phase(Phase::Start);
        let fault = denial.hint.iter().fold(fault, |fault, hint| fault.hint(hint.clone()));
        return Err(Refused { fault: Box::new(fault), denial: Some(Box::new(denial)) });
    }
    let shown = name.to_string_lossy();
    if let Some(path) = found_plain {
        let message = format!("{}: not an executable file", path.display());
        return Err(Fault::new(ErrorKind::InvalidRequest, message).exit(126).phase(Phase::Start).into());
    }
    let message = format!("{shown}: command not found");
    Err(Fault::new(ErrorKind::NotFound, message).exit(127).phase(Phase::Start).into())
}

fn check_exec(candidate: &Path, resolved: &Resolved) -> Option<Denial> {
    let real = std::fs::canonicalize(candidate).unwrap_or_else(|_| candidate.to_path_buf());
    // A project below /tmp is granted like any other; other programs there are not shown inside.
    let decision = resolved.exec(&real);
    match decision.action {
        Action::Allow | Action::Warn => None,
        action => Some(Denial {
            op: "exec".into(),
            target: real.to_string_lossy().into_owned(),
            rule: decision.rule,
            action,
            count: 1,
            pid: 0,
            exe: String::new(),
            hint: decision.hint,
        }),
    }
}
