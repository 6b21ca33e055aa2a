//! Defaults and ceilings for the limits of sandboxes that come through the daemon: set for the node, for a tenant, for a token, or built in
//! for agents. A request that names no value gets the default; one that names more than the ceiling is refused. Values are never reduced to
//! fit. Callers with the whole host (`Reach::All`) are not bound.
//!
//! ```text
//!  default: token, else tenant, else node     ┐
//!  ceiling: the smallest of the three         ├─▶ a sandbox that names nothing gets the smaller of both
//!           built in, where none is set       ┘
//! ```

use crate::journal::note;
use crate::lock;
use crate::sandbox::{self, Sandbox};
use crate::{Caller, Reach, StatePool};
use api::{JournalStep, LimitAmounts, LimitBounds};
use enclosure::Cpus;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use store::Kept;
use terms::{ErrorKind, Fault, LimitKind, Limits, Phase, Retry, least};

/// Limits that can be bounded, in the order of `Amounts`.
pub const KINDS: [LimitKind; 10] = [
    LimitKind::WallMs,
    LimitKind::CpuMs,
    LimitKind::MemoryMb,
    LimitKind::OutputBytes,
    LimitKind::Processes,
    LimitKind::OpenFiles,
    LimitKind::DiskMb,
    LimitKind::Files,
    LimitKind::NetBytes,
    LimitKind::Cpus,
];

/// Processes and threads of one agent's sandbox, where nothing is set. Parallel builds and a browser need some hundreds; the threads of Go
/// and Java grow with the number of processors.
const BUILT_IN_PROCESSES: u64 = 1024;
const BUILT_IN_PROCESSES_PER_CPU: u64 = 64;
/// Divisor of the machine's memory for one agent's sandbox, where nothing is set.
const BUILT_IN_MEMORY_PART: f64 = 2.0;

/// Field name of a kind in requests and in the configuration.
pub fn field(kind: LimitKind) -> String {
    match kind {
        LimitKind::Cpus => "cpus".to_owned(),
        kind => format!("max_{}", kind.name()),
    }
}

/// Ceilings of agents' sandboxes on this machine where nothing is set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BuiltIn {
    /// Ceilings that this host can enforce.
    pub ceiling: LimitAmounts,
    /// Ceilings that it cannot, with the reason. They are not in force, and that is reported.
    pub unheld: BTreeMap<LimitKind, (f64, String)>,
}

impl BuiltIn {
    /// Probes the machine; creates and removes a control group to see which limits it can enforce.
    pub fn of_this_host() -> BuiltIn {
        let wanted = built_in_amounts();
        let mut built_in = BuiltIn::default();
        for kind in [LimitKind::MemoryMb, LimitKind::Processes] {
            let Some(amount) = wanted.amount(kind) else { continue };
            let mut limits = Limits::default();
            limits.set_amount(kind, amount);
            match enclosure::holds_limits(&limits, &Cpus(None)) {
                Ok(()) => {
                    let mut held = built_in.ceiling.limits();
                    held.set_amount(kind, amount);
                    built_in.ceiling = LimitAmounts::new(&held, None);
                }
                Err(fault) => drop(built_in.unheld.insert(kind, (amount, fault.message))),
            }
        }
        built_in
    }

    /// Describes the ceilings that are not enforced, for the operator.
    pub fn note(&self) -> Option<String> {
        if self.unheld.is_empty() {
            return None;
        }
        let fields: Vec<String> = self.unheld.keys().map(|kind| field(*kind)).collect();
        Some(format!(
            "sandboxes of agents' tokens have no built-in {}: this host cannot hold it; see `cofferdam doctor`",
            fields.join(" and ")
        ))
    }
}

fn built_in_amounts() -> LimitAmounts {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    let processes = BUILT_IN_PROCESSES.max(BUILT_IN_PROCESSES_PER_CPU * cpus);
    let meminfo = sys::host::kernel_file("/proc/meminfo").unwrap_or_default();
    let total =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
    let memory_mb = total.map(|kb: f64| (kb / 1024.0 / BUILT_IN_MEMORY_PART).floor().max(1.0));
    LimitAmounts { max_processes: Some(processes), max_memory_mb: memory_mb, ..LimitAmounts::default() }
}

/// Returns whether memory and processes can be limited here, so that both can also be changed while a sandbox is live. Probed once.
pub fn holds_memory_and_processes() -> bool {
    static HOLDS: OnceLock<bool> = OnceLock::new();
    *HOLDS.get_or_init(|| {
        let limits = Limits { max_memory_mb: Some(1024.0), max_processes: Some(1024), ..Limits::default() };
        enclosure::holds_limits(&limits, &Cpus(None)).is_ok()
    })
}

/// Configured bounds, and the built-in ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configured {
    pub node: LimitBounds,
    pub tenants: BTreeMap<String, LimitBounds>,
    pub built_in: BuiltIn,
}

/// The credential whose bounds are computed.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    pub tenant: &'a str,
    pub token: &'a LimitBounds,
    /// An agent, which decides nothing itself, so that the built-in ceilings apply.
    pub is_agent: bool,
    /// The tenant is the daemon's own, whose operator has the host and is not bound.
    pub shares_with_host: bool,
}

/// An amount, and the level that set it.
#[derive(Clone, Debug, PartialEq)]
struct Bound {
    amount: f64,
    set_for: String,
}

/// Bounds for the sandboxes of one credential.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    default: BTreeMap<LimitKind, Bound>,
    ceiling: BTreeMap<LimitKind, Bound>,
    /// Note for every sandbox that is made.
    note: Option<String>,
    /// Bounds of sandboxes without an owning token: those of an operator of the tenant. `None` where they are the host operator's.
    of_operators: Option<Box<Bounds>>,
}

impl Configured {
    pub fn bounds(&self, holder: Holder<'_>) -> Bounds {
        let operators = Holder { token: &LimitBounds::default(), is_agent: false, ..holder };
        let of_operators = (!holder.shares_with_host).then(|| Box::new(self.bounds_of(operators)));
        Bounds { of_operators, ..self.bounds_of(holder) }
    }

    fn bounds_of(&self, holder: Holder<'_>) -> Bounds {
        let none = LimitBounds::default();
        let tenant = self.tenants.get(holder.tenant).unwrap_or(&none);
        let levels = [
            ("this token".to_owned(), holder.token),
            (format!("tenant {}", holder.tenant), tenant),
            ("this node".to_owned(), &self.node),
        ];
        let mut bounds = Bounds::default();
        for kind in KINDS {
            let of = |amounts: fn(&LimitBounds) -> &LimitAmounts| {
                let found = levels.iter().filter_map(move |(name, level)| Some((name, amounts(level).amount(kind)?)));
                found.map(|(name, amount)| Bound { amount, set_for: name.clone() })
            };
            let default = of(|level| &level.default).next();
            let set = of(|level| &level.ceiling).reduce(|a, b| if b.amount < a.amount { b } else { a });
            let built_in = self.built_in.ceiling.amount(kind).filter(|_| holder.is_agent);
            let ceiling = set.or_else(|| {
                // A configured default is available in any case.
                let amount = built_in?.max(default.as_ref().map_or(0.0, |default| default.amount));
                Some(Bound { amount, set_for: "agents' tokens (built in)".to_owned() })
            });
            default.into_iter().for_each(|default| drop(bounds.default.insert(kind, default)));
            ceiling.into_iter().for_each(|ceiling| drop(bounds.ceiling.insert(kind, ceiling)));
        }
        let is_unset = |kind: &LimitKind| !bounds.ceiling.contains_key(kind) && !bounds.default.contains_key(kind);
        let unheld = self.built_in.unheld.iter().filter(|(kind, _)| holder.is_agent && is_unset(kind));
        let unheld = BuiltIn { unheld: unheld.map(|(k, v)| (*k, v.clone())).collect(), ..BuiltIn::default() };
        bounds.note = unheld.note();
        bounds
    }
}

impl Bounds {
    /// Refuses amounts over a ceiling. Exactly at it succeeds.
    pub fn check(&self, limits: &Limits, cpus: Option<f64>) -> Result<(), Fault> {
        let asked = LimitAmounts::new(limits, cpus);
        for (kind, ceiling) in &self.ceiling {
            if let Some(amount) = asked.amount(*kind).filter(|amount| *amount > ceiling.amount) {
                return Err(over(*kind, amount, ceiling));
            }
        }
        Ok(())
    }

    /// Amount of a limit that a request does not name.
    fn unasked(&self, kind: LimitKind) -> Option<f64> {
        let of = |bounds: &BTreeMap<LimitKind, Bound>| bounds.get(&kind).map(|bound| bound.amount);
        least(of(&self.default), of(&self.ceiling))
    }

    /// Fills in unnamed limits, where `wanted` says so.
    fn fill(&self, limits: &mut Limits, cpus: &mut Option<f64>, wanted: impl Fn(LimitKind) -> bool) {
        for kind in KINDS.into_iter().filter(|kind| wanted(*kind)) {
            match (kind, self.unasked(kind)) {
                (LimitKind::Cpus, Some(amount)) => *cpus = cpus.or(Some(amount)),
                (kind, Some(amount)) if limits.amount(kind).is_none() => limits.set_amount(kind, amount),
                _ => {}
            }
        }
    }
}

fn over(kind: LimitKind, asked: f64, ceiling: &Bound) -> Fault {
    let Bound { amount, set_for } = ceiling;
    let name = field(kind);
    let prefix = if kind == LimitKind::Cpus { "" } else { "limits." };
    let message = format!("{prefix}{name}: {asked} is over the ceiling of {amount} for {set_for}");
    let hint =
        format!("request at most {amount}, or leave it out; an operator of this node may raise limits.ceiling.{name}");
    let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(kind).phase(Phase::Admission);
    fault.retry(Retry::Never).hint(hint)
}

/// Returns the bounds of a caller; `None` for one with the whole host.
fn of(caller: &Caller) -> Option<&Bounds> {
    match &caller.reach {
        Reach::All => None,
        Reach::Only(grants) => Some(&grants.bounds),
    }
}

/// Returns the limits that a sandbox's policy sets.
fn of_policy(sandbox: &Sandbox) -> Limits {
    let limits = sandbox.policy.get("limits").cloned();
    limits.and_then(|limits| serde_json::from_value(limits).ok()).unwrap_or_default()
}

/// Returns whether `max_net_bytes` can be counted: without a network there is no traffic.
fn has_network(sandbox: &Sandbox) -> bool {
    let document = policy::parse(&sandbox.policy.to_string(), policy::Format::Json, "policy");
    let context = policy::Context { home: "/".into(), workspace: "/".into(), toolchains: Vec::new() };
    let resolved = document.ok().and_then(|document| policy::effective(&[document]).ok());
    let resolved = resolved.and_then(|effective| policy::resolve(&effective, &context).ok());
    // An unreadable policy is refused elsewhere.
    resolved.is_some_and(|resolved| resolved.needs_network().is_some())
}

/// Applies the caller's bounds to a new sandbox; returns a note for the user.
pub fn apply(sandbox: &mut Sandbox, caller: &Caller) -> Result<Option<String>, Fault> {
    of(caller).map_or(Ok(None), |bounds| put_under(bounds, sandbox))
}

fn put_under(bounds: &Bounds, sandbox: &mut Sandbox) -> Result<Option<String>, Fault> {
    let policy = of_policy(sandbox);
    bounds.check(&sandbox.limits.tightest(policy), sandbox.cpus)?;
    let counts_net = bounds.unasked(LimitKind::NetBytes).is_some() && has_network(sandbox);
    let wanted = |kind| policy.amount(kind).is_none() && (kind != LimitKind::NetBytes || counts_net);
    bounds.fill(&mut sandbox.limits, &mut sandbox.cpus, wanted);
    Ok(bounds.note.clone())
}

/// Fills in limits that replace those of a sandbox: a limit that it has and the request does not name gets the default again; none is added
/// that the enclosure was not built with.
pub fn fill_change(sandbox: &Sandbox, limits: &mut Limits, cpus: &mut Option<f64>, caller: &Caller) {
    let before = LimitAmounts::new(&sandbox.limits, sandbox.cpus);
    of(caller).into_iter().for_each(|bounds| bounds.fill(limits, cpus, |kind| before.amount(kind).is_some()));
}

/// Refuses replacing limits that are over a ceiling.
pub fn check_change(sandbox: &Sandbox, limits: &Limits, cpus: Option<f64>, caller: &Caller) -> Result<(), Fault> {
    of(caller).map_or(Ok(()), |bounds| bounds.check(&limits.tightest(of_policy(sandbox)), cpus))
}

/// Refuses limits of one command that are over a ceiling.
pub fn check_command(limits: &Limits, caller: &Caller) -> Result<(), Fault> {
    of(caller).map_or(Ok(()), |bounds| bounds.check(limits, None))
}

/// Applies the caller's bounds to a sandbox before it becomes live for the caller: it may be older than the bounds. A live one stays as it
/// was built until it is stopped. A sandbox that an operator of the tenant made is held to the configured bounds, and one of the host's
/// operator to none.
pub fn hold(states: &StatePool, caller: &Caller, word: &str) -> Result<(), Fault> {
    let Some(bounds) = of(caller) else { return Ok(()) };
    let state = states.lend(caller)?;
    let kept: Kept<Sandbox> = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
    let bounds = match (&kept.record.owner, &bounds.of_operators) {
        (Some(_), _) => bounds,
        (None, Some(of_operators)) => of_operators,
        (None, None) => return Ok(()),
    };
    let is_same = |one: &Sandbox, other: &Sandbox| (one.limits, one.cpus) == (other.limits, other.cpus);
    let mut then = kept.record.clone();
    let applied = put_under(bounds, &mut then);
    if applied.is_ok() && is_same(&then, &kept.record) || lock::is_held(&state, &kept.record) {
        return Ok(());
    }
    applied.map_err(|fault| {
        let hint = "lower its limits (PATCH), or ask an operator of this node to raise the ceiling";
        fault.subject(&kept.id).hint(hint)
    })?;
    state.store.write(|tx| {
        let Some(mut now) = tx.get::<Sandbox>(&kept.id)? else { return Ok(()) };
        if now.version != kept.version {
            let fault = Fault::new(ErrorKind::Conflict, format!("{} was changed meanwhile", now.id));
            return Err(fault.subject(&now.id).retry(Retry::Now).hint("try again").phase(Phase::Admission));
        }
        (now.record.limits, now.record.cpus) = (then.limits, then.cpus);
        now.record.revision += 1;
        let body = json!({ "limits": then.limits, "cpus": then.cpus, "why": "defaults of limits" });
        note(tx, "change", JournalStep::Done, &now.id, caller, body)?;
        tx.change(now).map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(default: &[(LimitKind, f64)], ceiling: &[(LimitKind, f64)]) -> LimitBounds {
        let amounts = |pairs: &[(LimitKind, f64)]| {
            let mut limits = Limits::default();
            pairs.iter().for_each(|(kind, amount)| limits.set_amount(*kind, *amount));
            LimitAmounts::new(&limits, None)
        };
        LimitBounds { default: amounts(default), ceiling: amounts(ceiling) }
    }

    const PROCESSES: LimitKind = LimitKind::Processes;

    fn bounds(token: LimitBounds, tenant: LimitBounds, node: LimitBounds, is_agent: bool) -> Bounds {
        let built_in = BuiltIn { ceiling: level(&[], &[(PROCESSES, 1024.0)]).ceiling, unheld: BTreeMap::new() };
        let configured = Configured { node, tenants: [("blue".to_owned(), tenant)].into(), built_in };
        configured.bounds(Holder { tenant: "blue", token: &token, is_agent, shares_with_host: false })
    }

    #[test]
    fn the_nearest_default_and_the_smallest_ceiling_hold() {
        let none = LimitBounds::default();
        let default = |n| level(&[(PROCESSES, n)], &[]);
        let ceiling = |n| level(&[], &[(PROCESSES, n)]);
        let both = |d, c| level(&[(PROCESSES, d)], &[(PROCESSES, c)]);
        for (bounds, unasked, most) in [
            (bounds(none, none, none, true), Some(1024.0), Some(1024.0)),
            (bounds(none, none, none, false), None, None),
            (bounds(none, none, default(64.0), true), Some(64.0), Some(1024.0)),
            (bounds(none, none, default(5000.0), true), Some(5000.0), Some(5000.0)),
            (bounds(default(8.0), default(16.0), default(64.0), true), Some(8.0), Some(1024.0)),
            (bounds(none, default(16.0), default(64.0), false), Some(16.0), None),
            (bounds(none, none, ceiling(4096.0), true), Some(4096.0), Some(4096.0)),
            (bounds(ceiling(32.0), ceiling(16.0), ceiling(4096.0), true), Some(16.0), Some(16.0)),
            (bounds(default(100.0), none, ceiling(50.0), true), Some(50.0), Some(50.0)),
            (bounds(none, both(10.0, 20.0), none, true), Some(10.0), Some(20.0)),
        ] {
            assert_eq!(bounds.unasked(PROCESSES), unasked, "{bounds:?}");
            assert_eq!(bounds.ceiling.get(&PROCESSES).map(|bound| bound.amount), most, "{bounds:?}");
        }
    }

    #[test]
    fn what_is_over_a_ceiling_is_refused_and_never_cut() {
        let bounds = bounds(LimitBounds::default(), level(&[], &[(PROCESSES, 16.0)]), LimitBounds::default(), true);
        let asked = |n| Limits { max_processes: Some(n), ..Limits::default() };
        assert_eq!(bounds.check(&asked(16), None), Ok(()));
        let fault = bounds.check(&asked(17), None).unwrap_err();
        assert_eq!((fault.error_kind, fault.retry), (ErrorKind::LimitExceeded, Retry::Never));
        assert_eq!((fault.limit_kind, fault.phase), (Some(PROCESSES), Some(Phase::Admission)));
        assert_eq!(fault.message, "limits.max_processes: 17 is over the ceiling of 16 for tenant blue");
        let (mut limits, mut cpus) = (asked(3), None);
        bounds.fill(&mut limits, &mut cpus, |_| true);
        assert_eq!((limits, cpus), (asked(3), None));
    }

    #[test]
    fn amounts_that_bound_nothing_are_refused() {
        let fault = level(&[], &[(PROCESSES, 0.0)]).check().unwrap_err();
        assert_eq!(fault.message, "limits.ceiling.max_processes: 0 is out of range");
        assert_eq!(level(&[(PROCESSES, 1.0)], &[]).check(), Ok(()));
    }
}
