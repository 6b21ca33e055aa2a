//! Planning of a run: place, policy, program, environment, limits, network and workspace are decided. Starts no command.

use super::aside;
use super::home::HomePrograms;
use super::home_copy;
use super::inside::{self, Inside};
use super::layer::LockedWorkspace;
use super::mode;
use super::phases::Timer;
use super::place::{self, ChangeDestination, CommandLocation};
use super::record::Tracked;
use super::repository;
use super::request::{Learn, RunRequest};
use super::sandboxed;
use super::view::View;
use crate::Node;
use crate::network::{self, BrokerRequest, Purpose};
use crate::policies::{self, Effective};
use crate::publish;
use crate::questions::{PATIENCE, Person, Questions};
use enclosure::{Cpus, Driver, Enforced, Groundwork, GuestPlan, GuestSpec, OwnHome, Published};
use policy::{Host, Plan, Policy, Resolved};
use state::Caller;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use terms::{Denial, ErrorKind, Fault, Limits, Phase, PolicyStamp, RunId};

/// A planned run: everything is decided, and no command is started.
pub struct RunPlan {
    pub(super) guest: GuestPlan,
    /// Settings of an imported file that are not in force; also in `warnings`, which are not always shown.
    pub left_out: Vec<String>,
    /// Notes for the user, shown without being asked for.
    pub warnings: Vec<String>,
    /// Notes that explain the plan, for `--explain`.
    pub notes: Vec<String>,
    pub policy: Rc<Policy>,
    /// The directory that the command works on.
    pub(super) dir: PathBuf,
    pub(super) network: Option<BrokerRequest>,
    pub(super) publish: Vec<Published>,
    /// The workspace that takes the command's changes, with the record of the run.
    pub(super) tracked: Option<Tracked>,
    /// The workspace of a resident that writes nothing to it: locked all the same.
    pub(super) unwritten: Option<LockedWorkspace>,
    /// Context of commands that a resident will start.
    pub(super) inside: Option<Inside>,
    pub(super) timer: Timer,
    /// Timeout of a question to a person.
    pub(super) patience: Duration,
    pub(super) questions: Option<Questions>,
    /// Person at the terminal who answers questions, if there is one.
    pub(super) person: Option<Box<dyn Person>>,
}

/// End of a verb before or instead of a run: a fault, with the denial that caused it.
pub struct RunRefused {
    pub fault: Box<Fault>,
    pub denial: Option<Box<Denial>>,
}

impl From<Fault> for RunRefused {
    fn from(fault: Fault) -> RunRefused {
        RunRefused { fault: Box::new(fault), denial: None }
    }
}

impl RunPlan {
    /// Plans a run. `ground` comes from `begin`, which should be called as early as possible.
    pub fn new(node: &Node, caller: &Caller, request: &RunRequest, ground: Groundwork) -> Result<RunPlan, RunRefused> {
        crate::secrets::refuse_brought(&request.secrets)?;
        terms::check_amounts(&request.limits, request.cpus)?;
        if let ChangeDestination::Sandbox(word) = &request.place {
            return sandboxed::plan(node, request, word, caller, ground);
        }
        let effective = policies::effective(&request.policies, &request.flags, caller)?;
        RunPlan::under(request, caller, effective, ground)
    }

    /// Plans a run outside of sandboxes under a policy that is known already.
    pub fn under(
        request: &RunRequest,
        caller: &Caller,
        effective: Effective,
        ground: Groundwork,
    ) -> Result<RunPlan, RunRefused> {
        let timer = Timer::begin(Phase::Admission, caller.trace_parent.as_deref());
        let spot = place::choose(request, caller)?;
        let argv = inside::argv(&request.command, request.shell.as_deref())?;
        RunPlan::build(request, caller, effective, spot, Some(argv), timer, ground)
    }

    /// Plans a run at a location. Without `argv` the plan is for a resident, which starts commands later. The order is: rules, mechanisms of
    /// this host, mounts, limits, network, environment and program, workspace, home; last the steps of the enclosure.
    pub(super) fn build(
        request: &RunRequest,
        caller: &Caller,
        Effective { policy: mut effective, notes: mut warnings, left_out }: Effective,
        mut spot: CommandLocation,
        argv: Option<Vec<OsString>>,
        mut timer: Timer,
        mut ground: Groundwork,
    ) -> Result<RunPlan, RunRefused> {
        timer.enter(Phase::Planning);
        if spot.private {
            policies::drop_workspace(&mut effective);
            let dir = spot.dir.display();
            warnings.push(format!(
                "{dir} belongs to the guest inside and shows nothing of the host; -w {dir} works on the host's"
            ));
        }
        let program = argv.as_ref().map(|argv| argv[0].as_os_str());
        let around = policies::surroundings(&mut effective, caller, &spot.dir, program);
        warnings.extend(around.notes);
        let resolved = policy::resolve(&effective, &around.context).map_err(Fault::from)?;
        policies::check_supported(&resolved, request.events)?;
        let degrade: Vec<String> = resolved.degrade().map(String::from).collect();
        let mut enforced = enclosure::choose(&degrade)?;
        check_driver(enforced.driver, request, &resolved)?;
        // With secrets, the caller's values must be wiped before the first process is created, which is a copy of this one.
        if effective.secrets.is_empty() && enforced.driver == Driver::Namespaces {
            ground.release();
        }
        warnings.append(&mut spot.notes);
        let (resolved, untold) = repository::show(resolved, &spot, &request.place, caller);
        warnings.extend(untold);
        let resolved = match enforced.driver {
            Driver::Namespaces => match &spot.home {
                Some(home) => resolved.with_own_home(home),
                None => crate::own_home::with_own_home(resolved, caller, &spot.dir),
            },
            Driver::Landlock => resolved,
        };
        let held = spot.held.take();
        let view = held.as_ref().map_or(Ok(View::default()), LockedWorkspace::view)?;
        let counts_bytes = resolved.needs_network().is_some() || !request.publish.is_empty();
        let (resolved, mut plan, layered) = aside::settle(resolved, request, &spot, &view, caller)?;
        if layered && enforced.driver != Driver::Namespaces {
            return Err(mode::no_namespaces().into());
        }
        let resolved = resolved.follow(&view).map_err(Fault::from)?;
        let limits = settle_limits(request, &resolved, &degrade, counts_bytes, &mut enforced);
        enclosure::check_limits(&limits, &plan, counts_bytes, layered.then_some(spot.dir.as_path()))?;
        let purpose = if request.learn == Learn::All { Purpose::Watching } else { Purpose::Rules };
        let namespaces = enforced.driver == Driver::Namespaces;
        let network = network::plan(&resolved, &request.secrets, caller, purpose, namespaces)?;
        warnings.extend(network.secrets.note_left_out());
        let own_home = plan.private.home().map(Path::to_path_buf);
        // A home that is a link leads to the sandbox's own.
        let links = own_home.as_ref().filter(|home| **home != caller.home).and_then(|_| view.look(&caller.home));
        plan.links.extend(links.into_iter().flat_map(|found| found.links));
        let programs = HomePrograms::of(&plan, held.as_ref().filter(|_| layered))?;
        let places = spot.home.as_ref().and(own_home.as_deref());
        let places = places.map(|home| home_variables(home, caller, &around.installations)).unwrap_or_default();
        let inside = Inside::new(around.env_names, places, &network, view, programs);
        let run_id = RunId::from_random(sys::random::id_bytes());
        let resident = argv.is_none();
        let (program, argv, env) = match argv {
            Some(argv) => {
                let env = inside.environment(&request.env, &caller.env, &resolved, &run_id)?;
                (inside.find_program(&argv[0], &env, &spot.cwd, &resolved)?, argv, env)
            }
            None => (spot.dir.clone(), Vec::new(), Vec::new()),
        };
        let (typed, notes) = divide_notes(&plan);
        warnings.extend(typed);
        let publish = publish::listen(&request.publish)?;
        let (net_plan, network) = network.divide(&resolved, limits.max_net_bytes);
        let is_new = held.is_none();
        let (tracked, unwritten) = match layered {
            true => {
                let tracked = mode::track(request, caller, held, &spot, (&run_id, &effective, &argv), limits)?;
                warnings.extend(tracked.held.note.clone());
                (Some(tracked), None)
            }
            false => (None, held),
        };
        if is_new {
            warnings.extend(match (&tracked, own_home.is_some()) {
                (Some(tracked), true) => tracked.held.copy_in(&effective, caller)?,
                (_, false) => home_copy::without_home(&effective, "the home inside is the host's")?,
                (None, true) => home_copy::without_home(&effective, "this run keeps no home")?,
            });
        }
        let home = match &tracked {
            Some(tracked) => tracked.held.own_home(&plan, counts_bytes)?,
            None => OwnHome::Scratch,
        };
        let policy = Rc::new(effective);
        let spec = GuestSpec {
            run_id,
            deny_calls: resolved.syscalls_deny().iter().cloned().collect(),
            policy: resolved,
            plan,
            stamp: stamp(Rc::clone(&policy), left_out.clone()),
            enforced,
            program,
            argv,
            env,
            cwd: spot.cwd,
            home: own_home.clone().unwrap_or_else(|| caller.home.clone()),
            toolchains: around.installations,
            user: caller.user.clone(),
            limits,
            cpus: Cpus(request.cpus),
            stdio: request.stdio,
            watch_reads: request.report_reads || request.learn != Learn::Nothing,
            watch_looks: request.learn != Learn::Nothing,
            resident,
            network: net_plan,
            workspace: tracked.as_ref().map(|tracked| tracked.held.workspace(inside.view())),
            own_home: home,
        };
        if let (OwnHome::Tree(_), Some(tracked), Some(at)) = (&spec.own_home, &tracked, spec.plan.private.home()) {
            tracked.held.furnish_home(at, &enclosure::home_points(&spec))?;
        }
        timer.enter(Phase::Preparation);
        let guest = match GuestPlan::new(spec, ground) {
            Ok(guest) => guest,
            Err(fault) => {
                tracked.into_iter().for_each(|tracked| tracked.fail(&fault));
                return Err(fault.into());
            }
        };
        Ok(RunPlan {
            guest,
            left_out,
            warnings,
            notes,
            policy,
            dir: spot.dir,
            network,
            publish,
            tracked,
            unwritten: unwritten.filter(|_| resident),
            inside: resident.then_some(inside),
            timer,
            patience: request.ask_timeout.unwrap_or(PATIENCE),
            questions: None,
            person: None,
        })
    }

    /// Returns the program that will be started, by the name it was found under.
    pub fn program(&self) -> &Path {
        &self.guest.spec().program
    }

    /// Returns whether some rule asks a person.
    pub fn asks(&self) -> bool {
        self.asks_locally() || self.network.as_ref().is_some_and(|network| network.asks)
    }

    /// Returns whether the guest has a network, and a broker that judges what passes.
    pub(super) fn has_broker(&self) -> bool {
        self.network.as_ref().is_some_and(|network| !network.names_only)
    }

    /// Returns whether a rule about files, programs or sockets asks a person.
    pub(super) fn asks_locally(&self) -> bool {
        self.guest.spec().policy.asks_locally()
    }

    /// Attaches the table in which questions wait for answers. Without one, operations under `ask` rules are refused.
    pub fn ask_in(&mut self, questions: Questions) {
        self.questions = Some(questions.clone());
        self.network.iter_mut().for_each(|network| network.questions = Some(questions.clone()));
    }

    /// Lets a person at the terminal answer questions.
    pub fn ask_person(&mut self, person: Box<dyn Person>) {
        self.ask_in(Questions::new(self.patience));
        self.person = Some(person);
    }

    /// Returns the caller's variables whose values must be forgotten before the run; see `Caller::forget`.
    pub fn secret_variables(&self) -> Vec<String> {
        let secrets = self.network.iter().flat_map(|n| n.secrets.variables());
        secrets.map(String::from).collect()
    }

    /// Returns the source of each secret, without reading any.
    pub fn secrets(&self) -> Vec<String> {
        self.network.iter().flat_map(|n| n.secrets.explain()).collect()
    }
}

/// Returns the tightest of the policy's limits and the requested ones, without those that the policy may degrade where this host cannot
/// enforce them; these are added to the missing ones.
fn settle_limits(
    request: &RunRequest,
    resolved: &Resolved,
    degrade: &[String],
    counts_bytes: bool,
    enforced: &mut Enforced,
) -> Limits {
    let limits = resolved.limits().tightest(request.limits);
    if !degrade.iter().any(|name| name.starts_with("max_")) {
        return limits;
    }
    let (kept, missing) = enclosure::give_up_limits(limits, &Cpus(request.cpus), degrade, counts_bytes);
    enforced.missing.extend(missing);
    kept
}

/// Returns the variables for a home that is elsewhere than the caller's: HOME, and those by which toolchains below the caller's home
/// find their installation.
fn home_variables(home: &Path, caller: &Caller, installations: &[PathBuf]) -> Vec<(OsString, OsString)> {
    const TOOLS: [(&str, &str); 2] = [("RUSTUP_HOME", ".rustup"), ("PYENV_ROOT", ".pyenv")];
    let mut all = vec![("HOME".into(), home.into())];
    for (name, dir) in TOOLS {
        let dir = caller.home.join(dir);
        if caller.var(name).is_none() && installations.iter().any(|at| at.starts_with(&dir)) {
            all.push((name.into(), dir.into()));
        }
    }
    all
}

/// Splits a plan's notes into those about flags and the others. A typed path that does not exist deserves a warning; notes of a policy file
/// about other hosts are for `--explain`.
fn divide_notes(plan: &Plan) -> (Vec<String>, Vec<String>) {
    plan.notes.iter().cloned().partition(|note| note.starts_with("--"))
}

/// Returns a function that makes the policy's stamp, deferred because it computes a digest.
fn stamp(policy: Rc<Policy>, left_out: Vec<String>) -> Box<dyn Fn() -> PolicyStamp> {
    Box::new(move || PolicyStamp { digest: policy.digest(), revision: 1, left_out: left_out.clone() })
}

/// Refuses features that need namespaces where there are none.
fn check_driver(driver: Driver, request: &RunRequest, resolved: &Resolved) -> Result<(), Fault> {
    if driver == Driver::Namespaces {
        return Ok(());
    }
    let what = match (resolved.needs_network(), resolved.reaches_socket(), request.publish.first()) {
        (Some(rule), _, _) => format!("{rule} asks for the network"),
        (_, Some(rule), _) => format!("{rule} asks for a socket of the host"),
        (_, _, Some(port)) => format!("--publish {port} asks for a port of the guest"),
        (None, None, None) => return Ok(()),
    };
    let message = format!("{what}, which needs namespaces");
    let hint = "leave it out, or run where user namespaces are allowed (`cofferdam doctor`)";
    Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning))
}
