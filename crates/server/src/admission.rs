//! Who may have more: requests in a minute, sandboxes, snapshots and templates, live sandboxes with their memory and processors, disk, runs at a time; for
//! each tenant and for the whole node. What is over a quota is refused with its name and when to ask again, and what has to wait
//! for its turn waits behind its own tenant's, never behind another's.

mod fair;
mod rate;
mod start_queue;

pub use fair::{Fair, Shares, Turn, has_share};
pub use start_queue::StartTurn;

use crate::ask::Key;
use crate::refuse::Refusal;
use crate::{Shared, Who};
use fair::Busy;
use node::config::Quota;
use node::idempotency;
use node::quota::{self, More, Used};
use node::tokens::DEFAULT_TENANT;
use node::{Caller, Node, bounds};
use rate::Rate;
use start_queue::StartQueue;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};

/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a measure of what layers take is good for. Walking them is slow, and a quota is no wall: `max_disk_mb` is.
const MEASURED: Duration = Duration::from_secs(30);
/// When to ask again where nobody can know.
const LATER: Duration = Duration::from_secs(5);
/// Directories of tenants that are looked into for what the node has.
const MOST_TENANTS: usize = 4096;
/// The node's own bucket; no tenant has such a name.
const NODE: &str = "";

/// The quotas that were set.
#[derive(Clone, Debug, Default)]
pub struct Quotas {
    pub node: Quota,
    pub tenants: BTreeMap<String, Quota>,
}

impl Quotas {
    fn of(&self, tenant: &str) -> Quota {
        self.tenants.get(tenant).copied().unwrap_or_default()
    }
}

pub struct Admission {
    quotas: Quotas,
    rate: Rate,
    runs: Arc<Fair>,
    starts: StartQueue,
    /// One at a time counts and takes: what two count at once they would both take.
    taking: Arc<Fair>,
    disk: Mutex<BTreeMap<String, (Instant, u64)>>,
    /// Bytes of bodies that lie on the disk on their way out or in.
    spooled: Arc<Mutex<BTreeMap<String, u64>>>,
}

/// Bytes of one body on the disk. They are counted until this is dropped.
pub struct Spooled {
    all: Arc<Mutex<BTreeMap<String, u64>>>,
    tenant: String,
    bytes: u64,
    own: Quota,
    node: Quota,
}

impl Spooled {
    /// So many more; refused where the tenant's bodies together would take more than its layers may.
    pub fn grow(&mut self, bytes: u64) -> Result<(), Fault> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.get(&self.tenant).copied().unwrap_or_default() + bytes;
        quota::check_spooled(&tenant_of(&self.tenant), &self.own, own)?;
        quota::check_spooled(&node_itself(), &self.node, all.values().sum::<u64>() + bytes)?;
        all.insert(self.tenant.clone(), own);
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Spooled {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sum) = all.get_mut(&self.tenant) {
            *sum = sum.saturating_sub(self.bytes);
        }
        all.retain(|_, sum| *sum > 0);
    }
}

impl Admission {
    pub fn new(quotas: Quotas) -> Admission {
        let (runs, taking) = (Fair::new(quotas.node.runs), Fair::new(Some(1)));
        let starts = StartQueue::new(start_queue::at_a_time());
        Admission {
            quotas,
            rate: Rate::default(),
            runs,
            starts,
            taking,
            disk: Mutex::default(),
            spooled: Arc::default(),
        }
    }

    /// One more request.
    pub fn request(&self, tenant: &str) -> Result<(), Refusal> {
        let now = Instant::now();
        let own = self.quotas.of(tenant).requests_per_minute;
        for (whose, bucket, most) in
            [(tenant_of(tenant), tenant, own), (node_itself(), NODE, self.quotas.node.requests_per_minute)]
        {
            let Some(most) = most else { continue };
            if let Err(wait) = self.rate.take(bucket, most, now) {
                let message = format!("{whose} may send {most} requests in a minute");
                return Err(exceeded(LimitKind::RequestsPerMinute, message, wait));
            }
        }
        Ok(())
    }

    /// A turn to run a command, to be held as long as it runs.
    pub async fn run(&self, tenant: &str) -> Result<Turn, Refusal> {
        let most = self.quotas.of(tenant).runs;
        if most == Some(0) {
            return Err(exceeded(LimitKind::Runs, format!("{} may run nothing", tenant_of(tenant)), LATER));
        }
        self.runs.turn(tenant, most, PATIENCE).await.map_err(|busy| {
            let message = match busy {
                Busy::Tenant(most) => format!("{} may run {most} commands at a time", tenant_of(tenant)),
                Busy::Node(most) => format!("{} runs {most} commands at a time", node_itself()),
                Busy::Queue => format!("{} requests of {} wait already", fair::MOST_WAITING, tenant_of(tenant)),
            };
            exceeded(LimitKind::Runs, message, Duration::from_secs(1))
        })
    }

    /// A body that will lie on the disk for a while.
    pub fn spool(&self, tenant: &str) -> Spooled {
        let (own, node) = (self.quotas.of(tenant), self.quotas.node);
        Spooled { all: self.spooled.clone(), tenant: tenant.to_owned(), bytes: 0, own, node }
    }

    /// A turn to begin a command, which ends soon by itself. None where too many wait: then it goes without.
    pub async fn begin(&self, tenant: &str) -> Option<StartTurn> {
        self.starts.turn(tenant).await
    }

    /// A turn for a run that was begun before there was this daemon.
    pub fn adopt(&self, tenant: &str) -> Turn {
        self.runs.adopt(tenant)
    }

    /// Runs that go on, and requests that wait for a turn to run.
    pub fn figures(&self) -> (u64, usize) {
        self.runs.figures()
    }
}

impl Shared {
    /// Carries out a verb that makes sandboxes, snapshots or templates, under a key or not, if there may be so many more.
    pub async fn making<T, F>(&self, who: &Who, more: Vec<More>, key: &Key, verb: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Node, &Caller) -> Result<T, Fault> + Send + 'static,
    {
        let (own, node) = (self.admission().quotas.of(&who.tenant), self.admission().quotas.node);
        let counts = more.iter().any(|more| is_counted(&own, *more) || is_counted(&node, *more));
        let measures = own.disk_bytes.or(node.disk_bytes).is_some();
        // What an earlier request under the key made is answered with, or refused as another's: nothing is made.
        let known = match key.0.clone().filter(|_| counts || measures) {
            Some(key) => self.verb(who, move |node, caller| idempotency::is_known(&node.states, caller, &key)).await?,
            None => false,
        };
        if known || !counts && !measures {
            return self.verb(who, verb).await;
        }
        let _turn = self.turn_to_take(&who.tenant).await?;
        if measures {
            self.check_disk(who).await?;
        }
        let checks: Vec<_> = more.into_iter().map(|more| (more, self.counting(who))).collect();
        self.verb(who, move |node, caller| {
            checks.into_iter().try_for_each(|(more, check)| check(&|_, _| Ok(Some(more))))?;
            verb(node, caller)
        })
        .await
    }

    /// Carries out a verb that makes a sandbox live, if there may be one more. One that is live already needs nothing.
    pub async fn enlivening<T, F>(&self, who: &Who, sandbox: &str, verb: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Node, &Caller) -> Result<T, Fault> + Send + 'static,
    {
        let sandbox = sandbox.to_owned();
        let live = More::Live { memory_mb: None, cpus: None };
        let quotas = &self.admission().quotas;
        if !is_counted(&quotas.of(&who.tenant), live) && !is_counted(&quotas.node, live) {
            let held = move |node: &Node, caller: &Caller| {
                bounds::hold(&node.states, caller, &sandbox)?;
                verb(node, caller)
            };
            return self.verb(who, held).await;
        }
        let _turn = self.turn_to_take(&who.tenant).await?;
        let checks = self.counting(who);
        self.verb(who, move |node, caller| {
            // It counts with the limits that it is about to have.
            bounds::hold(&node.states, caller, &sandbox)?;
            checks(&|node, own| quota::by_starting(node, own, &sandbox))?;
            verb(node, caller)
        })
        .await
    }

    /// Carries out a verb that makes a sandbox that stands ready, which is live, if there may be one more.
    pub async fn readying<T, F>(&self, who: &Who, each: More, verb: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Node, &Caller) -> Result<T, Fault> + Send + 'static,
    {
        let _turn = self.turn_to_take(&who.tenant).await?;
        self.check_disk(who).await?;
        let (made, live) = (self.counting(who), self.counting(who));
        self.verb(who, move |node, caller| {
            made(&|_, _| Ok(Some(More::Sandboxes(1))))?;
            live(&|_, _| Ok(Some(each)))?;
            verb(node, caller)
        })
        .await
    }

    async fn turn_to_take(&self, tenant: &str) -> Result<Turn, Refusal> {
        let turn = self.admission().taking.turn(tenant, Some(1), PATIENCE).await;
        turn.map_err(|_| {
            let message = "others are being served, and it was not this request's turn in time";
            exceeded(LimitKind::Waiting, message.to_owned(), Duration::from_secs(1))
        })
    }

    /// What counts, on a thread that may block, and refuses what is too much.
    fn counting(&self, who: &Who) -> impl FnOnce(&Wanted<'_>) -> Result<(), Fault> + Send + use<> {
        let (shared, who) = (self.clone(), who.clone());
        move |wanted| {
            let own = shared.caller(&who);
            let Some(more) = wanted(shared.node(), &own)? else { return Ok(()) };
            let quotas = &shared.admission().quotas;
            quota::check(&tenant_of(&who.tenant), &quotas.of(&who.tenant), &quota::used(shared.node(), &own)?, more)?;
            if is_counted(&quotas.node, more) {
                let mut used = Used::default();
                for tenant in shared.tenants() {
                    used += quota::used(shared.node(), &shared.caller(&Who { tenant, ..who.clone() }))?;
                }
                quota::check(&node_itself(), &quotas.node, &used, more)?;
            }
            Ok(())
        }
    }

    /// Every tenant that has anything.
    pub fn tenants(&self) -> Vec<String> {
        let dirs = std::fs::read_dir(self.state().join("tenants")).into_iter().flatten().flatten();
        let names = dirs.filter_map(|dir| dir.file_name().into_string().ok()).take(MOST_TENANTS);
        std::iter::once(DEFAULT_TENANT.to_owned()).chain(names).collect()
    }

    async fn check_disk(&self, who: &Who) -> Result<(), Refusal> {
        let (shared, of) = (self.clone(), who.clone());
        self.blocking_for(who, move || {
            let quotas = &shared.admission().quotas;
            let own = shared.layers_of(&of)?;
            quota::check_disk(&tenant_of(&of.tenant), &quotas.of(&of.tenant), own)?;
            if quotas.node.disk_bytes.is_none() {
                return Ok(());
            }
            let mut all = 0;
            for tenant in shared.tenants() {
                all += shared.layers_of(&Who { tenant, ..of.clone() })?;
            }
            quota::check_disk(&node_itself(), &quotas.node, all)
        })
        .await
    }

    /// What a tenant's layers take, as it was a little while ago.
    fn layers_of(&self, who: &Who) -> Result<u64, Fault> {
        let known = || self.admission().disk.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bytes)) = known().get(&who.tenant).filter(|(at, _)| at.elapsed() < MEASURED) {
            return Ok(*bytes);
        }
        let bytes = quota::disk_bytes(self.node(), &self.caller(who))?;
        let mut known = known();
        known.retain(|_, (at, _)| at.elapsed() < MEASURED);
        known.insert(who.tenant.clone(), (Instant::now(), bytes));
        Ok(bytes)
    }
}

/// What would be added, as the tenant's own records say it.
type Wanted<'a> = dyn Fn(&Node, &Caller) -> Result<Option<More>, Fault> + 'a;

/// Whether a quota bounds it at all.
fn is_counted(quota: &Quota, more: More) -> bool {
    match more {
        More::Sandboxes(_) => quota.sandboxes.is_some(),
        More::Snapshots(_) => quota.snapshots.is_some(),
        More::Templates(_) => quota.templates.is_some(),
        More::Live { .. } => quota.live_sandboxes.is_some() || quota.memory_bytes.is_some() || quota.cpus.is_some(),
    }
}

fn tenant_of(tenant: &str) -> String {
    format!("tenant {tenant}")
}

fn node_itself() -> String {
    "this node".to_owned()
}

fn exceeded(kind: LimitKind, message: String, after: Duration) -> Refusal {
    let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(kind).phase(Phase::Admission).retry(Retry::Later);
    Refusal::from(fault.hint("ask again after the time that Retry-After says")).after(after)
}
