//! Admission: request rates, and quotas of sandboxes, snapshots, templates, live sandboxes with their memory and processors, disk, and
//! concurrent runs, for each tenant and for the whole node. A request above a quota is refused with the quota's name and a Retry-After;
//! a request that has to wait is queued behind its own tenant's, never behind another's.

mod fair;
mod rate;
mod start_queue;

pub use fair::{FairSemaphore, FairShares, Permit, has_share};
pub use start_queue::StartPermit;

use crate::extract::IdempotencyKey;
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::DEFAULT_TENANT;
use fair::Busy;
use node::config::Quota;
use node::idempotency;
use node::quota::{self, AddedUsage, Usage};
use node::{Caller, Node, bounds};
use rate::Rate;
use start_queue::StartQueue;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};

/// Longest wait for a permit.
const PATIENCE: Duration = Duration::from_secs(15);
/// Lifetime of a measured layer size. Walking layers is slow, and a quota need not be exact: `max_disk_mb` is the hard limit.
const MEASURED: Duration = Duration::from_secs(30);
/// Retry-After where the time cannot be computed.
const LATER: Duration = Duration::from_secs(5);
/// Maximum number of tenants that are added up for the node.
const MAX_TENANTS: usize = 4096;
/// Key of the node's own bucket; no tenant has this name.
const NODE: &str = "";

/// The configured quotas.
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
    runs: Arc<FairSemaphore>,
    starts: StartQueue,
    /// Serializes counting and creating: two requests that count at the same time could exceed the quota together.
    taking: Arc<FairSemaphore>,
    disk: Mutex<BTreeMap<String, (Instant, u64)>>,
    /// Bytes of spooled bodies by tenant, in either direction.
    spooled: Arc<Mutex<BTreeMap<String, u64>>>,
}

/// Bytes of one spooled body, counted until this is dropped.
pub struct Spooled {
    all: Arc<Mutex<BTreeMap<String, u64>>>,
    tenant: String,
    bytes: u64,
    own: Quota,
    node: Quota,
}

impl Spooled {
    /// Counts more bytes. Refused where the tenant's bodies together would exceed the quota of its layers.
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
        let (runs, taking) = (FairSemaphore::new(quotas.node.runs), FairSemaphore::new(Some(1)));
        let starts = StartQueue::new(start_queue::max_starts());
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

    /// Counts a request against the rates of its tenant and of the node.
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

    /// Waits for a permit to run a command; held as long as the command runs.
    pub async fn run(&self, tenant: &str) -> Result<Permit, Refusal> {
        let most = self.quotas.of(tenant).runs;
        if most == Some(0) {
            return Err(exceeded(LimitKind::Runs, format!("{} may not run commands", tenant_of(tenant)), LATER));
        }
        self.runs.acquire(tenant, most, PATIENCE).await.map_err(|busy| {
            let message = match busy {
                Busy::Tenant(most) => format!("{} may run {most} commands at a time", tenant_of(tenant)),
                Busy::Node(most) => format!("{} runs {most} commands at a time", node_itself()),
                Busy::Queue => format!("{} requests of {} wait already", fair::MAX_WAITING, tenant_of(tenant)),
            };
            exceeded(LimitKind::Runs, message, Duration::from_secs(1))
        })
    }

    /// Returns a counter for a body that is spooled to the disk.
    pub fn spool(&self, tenant: &str) -> Spooled {
        let (own, node) = (self.quotas.of(tenant), self.quotas.node);
        Spooled { all: self.spooled.clone(), tenant: tenant.to_owned(), bytes: 0, own, node }
    }

    /// Waits for a permit to start a command, which expires soon. None where the queue is full: the command then starts without a permit.
    pub async fn begin(&self, tenant: &str) -> Option<StartPermit> {
        self.starts.acquire(tenant).await
    }

    /// Returns a permit for a run that was started before this daemon.
    pub fn adopt(&self, tenant: &str) -> Permit {
        self.runs.adopt(tenant)
    }

    /// Returns the number of running commands, and of requests that wait for a permit to run one.
    pub fn counts(&self) -> (u64, usize) {
        self.runs.counts()
    }
}

impl Shared {
    /// Carries out a verb that creates sandboxes, snapshots or templates, with or without an idempotency key, within the quotas.
    pub async fn create_within_quota<T, F>(
        &self,
        principal: &Principal,
        more: Vec<AddedUsage>,
        key: &IdempotencyKey,
        verb: F,
    ) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Node, &Caller) -> Result<T, Fault> + Send + 'static,
    {
        let (own, node) = (self.admission().quotas.of(&principal.tenant), self.admission().quotas.node);
        let counts = more.iter().any(|more| is_counted(&own, *more) || is_counted(&node, *more));
        let measures = own.disk_bytes.or(node.disk_bytes).is_some();
        // Under a known key nothing is created: the earlier result is returned, or a different request is refused.
        let known = match key.0.clone().filter(|_| counts || measures) {
            Some(key) => {
                self.verb(principal, move |node, caller| idempotency::is_known(&node.states, caller, &key)).await?
            }
            None => false,
        };
        if known || !counts && !measures {
            return self.verb(principal, verb).await;
        }
        let _permit = self.creation_permit(&principal.tenant).await?;
        if measures {
            self.check_disk(principal).await?;
        }
        let checks: Vec<_> = more.into_iter().map(|more| (more, self.quota_check(principal))).collect();
        self.verb(principal, move |node, caller| {
            checks.into_iter().try_for_each(|(more, check)| check(&|_, _| Ok(Some(more))))?;
            verb(node, caller)
        })
        .await
    }

    /// Carries out a verb that makes a sandbox live, within the quotas. A sandbox that is live already is not counted again.
    pub async fn make_live<T, F>(&self, principal: &Principal, sandbox: &str, verb: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Node, &Caller) -> Result<T, Fault> + Send + 'static,
    {
        let sandbox = sandbox.to_owned();
        let live = AddedUsage::Live { memory_mb: None, cpus: None };
        let quotas = &self.admission().quotas;
        if !is_counted(&quotas.of(&principal.tenant), live) && !is_counted(&quotas.node, live) {
            let held = move |node: &Node, caller: &Caller| {
                bounds::hold(&node.states, caller, &sandbox)?;
                verb(node, caller)
            };
            return self.verb(principal, held).await;
        }
        let _permit = self.creation_permit(&principal.tenant).await?;
        let checks = self.quota_check(principal);
        self.verb(principal, move |node, caller| {
            // The sandbox counts with the limits that it is about to have.
            bounds::hold(&node.states, caller, &sandbox)?;
            checks(&|node, own| quota::by_starting(node, own, &sandbox))?;
            verb(node, caller)
        })
        .await
    }

    /// Carries out a verb that creates a warm sandbox, which is live, within the quotas.
    pub async fn create_warm<T, F>(&self, principal: &Principal, each: AddedUsage, verb: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Node, &Caller) -> Result<T, Fault> + Send + 'static,
    {
        let _permit = self.creation_permit(&principal.tenant).await?;
        self.check_disk(principal).await?;
        let (made, live) = (self.quota_check(principal), self.quota_check(principal));
        self.verb(principal, move |node, caller| {
            made(&|_, _| Ok(Some(AddedUsage::Sandboxes(1))))?;
            live(&|_, _| Ok(Some(each)))?;
            verb(node, caller)
        })
        .await
    }

    async fn creation_permit(&self, tenant: &str) -> Result<Permit, Refusal> {
        let permit = self.admission().taking.acquire(tenant, Some(1), PATIENCE).await;
        permit.map_err(|_| {
            let message =
                format!("waited {} s behind other requests that create or start something", PATIENCE.as_secs());
            exceeded(LimitKind::Waiting, message, Duration::from_secs(1))
        })
    }

    /// Returns the quota check, which blocks and runs on a thread of the pool.
    fn quota_check(&self, principal: &Principal) -> impl FnOnce(&ComputeUsage<'_>) -> Result<(), Fault> + Send + use<> {
        let (shared, principal) = (self.clone(), principal.clone());
        move |wanted| {
            let own = shared.caller(&principal);
            let Some(more) = wanted(shared.node(), &own)? else { return Ok(()) };
            let quotas = &shared.admission().quotas;
            quota::check(
                &tenant_of(&principal.tenant),
                &quotas.of(&principal.tenant),
                &quota::used(shared.node(), &own)?,
                more,
            )?;
            if is_counted(&quotas.node, more) {
                let mut used = Usage::default();
                for tenant in shared.tenants() {
                    used += quota::used(shared.node(), &shared.caller(&Principal { tenant, ..principal.clone() }))?;
                }
                quota::check(&node_itself(), &quotas.node, &used, more)?;
            }
            Ok(())
        }
    }

    /// Returns all tenants that have a state directory.
    pub fn tenants(&self) -> Vec<String> {
        let dirs = std::fs::read_dir(self.state().join("tenants")).into_iter().flatten().flatten();
        let names = dirs.filter_map(|dir| dir.file_name().into_string().ok()).take(MAX_TENANTS);
        std::iter::once(DEFAULT_TENANT.to_owned()).chain(names).collect()
    }

    async fn check_disk(&self, principal: &Principal) -> Result<(), Refusal> {
        let (shared, of) = (self.clone(), principal.clone());
        self.blocking_for(principal, move || {
            let quotas = &shared.admission().quotas;
            let own = shared.layer_bytes(&of)?;
            quota::check_disk(&tenant_of(&of.tenant), &quotas.of(&of.tenant), own)?;
            if quotas.node.disk_bytes.is_none() {
                return Ok(());
            }
            let mut all = 0;
            for tenant in shared.tenants() {
                all += shared.layer_bytes(&Principal { tenant, ..of.clone() })?;
            }
            quota::check_disk(&node_itself(), &quotas.node, all)
        })
        .await
    }

    /// Returns the size of a tenant's layers, at most `MEASURED` old.
    fn layer_bytes(&self, principal: &Principal) -> Result<u64, Fault> {
        let known = || self.admission().disk.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bytes)) = known().get(&principal.tenant).filter(|(at, _)| at.elapsed() < MEASURED) {
            return Ok(*bytes);
        }
        let bytes = quota::disk_bytes(self.node(), &self.caller(principal))?;
        let mut known = known();
        known.retain(|_, (at, _)| at.elapsed() < MEASURED);
        known.insert(principal.tenant.clone(), (Instant::now(), bytes));
        Ok(bytes)
    }
}

/// Computes the addition from the tenant's records.
type ComputeUsage<'a> = dyn Fn(&Node, &Caller) -> Result<Option<AddedUsage>, Fault> + 'a;

/// Returns true if the quota limits this kind of addition.
fn is_counted(quota: &Quota, more: AddedUsage) -> bool {
    match more {
        AddedUsage::Sandboxes(_) => quota.sandboxes.is_some(),
        AddedUsage::Snapshots(_) => quota.snapshots.is_some(),
        AddedUsage::Templates(_) => quota.templates.is_some(),
        AddedUsage::Live { .. } => {
            quota.live_sandboxes.is_some() || quota.memory_bytes.is_some() || quota.cpus.is_some()
        }
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
    Refusal::from(fault.hint("send the request again after the time in Retry-After")).after(after)
}
