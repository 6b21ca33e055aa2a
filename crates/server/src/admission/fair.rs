//! A fair semaphore. Each tenant has a queue, and a free permit goes to the next tenant in round-robin order, so that a tenant with many
//! requests waits behind itself and not in front of others. Queues and waiting times are bounded.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Maximum number of waiting requests per tenant.
pub const MAX_WAITING: usize = 256;

/// A semaphore with a queue for each tenant.
pub struct FairSemaphore {
    /// Number of permits, for all tenants together.
    most: Option<u64>,
    sharing: Sharing,
    permits: Mutex<Permits>,
}

/// The share of permits that a tenant must leave to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// No share: permits are short, and the next free one goes to another tenant.
    Unlimited,
    /// As many as the tenant holds, plus a reserve for tenants without any: permits may be held for long.
    LeavesShare,
}

/// Fraction of long-held permits that is reserved for tenants without any.
const RESERVED_FRACTION: u64 = 8;

/// Decides whether a tenant with `own` of the `all` permits in use may have one more of `most`: it must leave as many to others as it has,
/// and the last ones to tenants without any.
pub fn has_share(most: u64, own: u64, all: u64) -> bool {
    let left = most.saturating_sub(all);
    left > 0 && (own == 0 || own < left && left > most / RESERVED_FRACTION)
}

#[derive(Default)]
struct Permits {
    tenants: BTreeMap<String, Tenant>,
    active: u64,
    /// The tenant that was served last; the search for the next one starts behind it.
    last: String,
}

#[derive(Default)]
struct Tenant {
    most: Option<u64>,
    active: u64,
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

impl Tenant {
    fn has_room(&self) -> bool {
        self.most.is_none_or(|most| self.active < most)
    }

    /// Removes waiters that have given up.
    fn remove_gone(&mut self) {
        self.waiting.retain(|waiting| !waiting.is_closed());
    }
}

/// A permit, released when this is dropped.
pub struct Permit {
    fair: Arc<FairSemaphore>,
    tenant: String,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.fair.end(&self.tenant);
    }
}

/// Permits that a client may hold for as long as it likes. A tenant never gets more than are left to all others: alone it gets half of
/// them, the second tenant a quarter, and so on; an eighth is reserved for tenants without any. So a new tenant finds a permit, whatever
/// the others take, unless there are very many tenants.
pub struct FairShares {
    fair: Arc<FairSemaphore>,
    patience: Duration,
}

impl FairShares {
    pub fn new(most: u64, patience: Duration) -> FairShares {
        FairShares {
            fair: Arc::new(FairSemaphore {
                most: Some(most),
                sharing: Sharing::LeavesShare,
                permits: Mutex::default(),
            }),
            patience,
        }
    }

    /// Waits for a permit; none when the time is over.
    pub async fn acquire(&self, tenant: &str) -> Option<Permit> {
        self.fair.acquire(tenant, None, self.patience).await.ok()
    }
}

/// The reason why no permit was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// The tenant's queue is full.
    Queue,
    /// The wait timed out at the tenant's limit, or at the node's.
    Tenant(u64),
    Node(u64),
}

impl FairSemaphore {
    pub fn new(most: Option<u64>) -> Arc<FairSemaphore> {
        Arc::new(FairSemaphore { most, sharing: Sharing::Unlimited, permits: Mutex::default() })
    }

    /// Waits for a permit, for at most `patience`. `most` is the tenant's own limit.
    pub async fn acquire(
        self: &Arc<FairSemaphore>,
        tenant: &str,
        most: Option<u64>,
        patience: Duration,
    ) -> Result<Permit, Busy> {
        let waits = match self.enqueue(tenant, most)? {
            Ok(permit) => return Ok(permit),
            Err(waits) => waits,
        };
        match tokio::time::timeout(patience, waits).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(self.busy_reason(tenant)),
        }
    }

    /// Counts work that started before this process, beyond all limits.
    pub fn adopt(self: &Arc<FairSemaphore>, tenant: &str) -> Permit {
        let mut permits = self.permits();
        permits.active += 1;
        permits.tenants.entry(tenant.to_owned()).or_default().active += 1;
        Permit { fair: self.clone(), tenant: tenant.to_owned() }
    }

    /// Returns the number of permits in use, and of waiters.
    pub fn counts(&self) -> (u64, usize) {
        let permits = self.permits();
        (permits.active, permits.tenants.values().map(|tenant| tenant.waiting.len()).sum())
    }

    fn enqueue(
        self: &Arc<FairSemaphore>,
        tenant: &str,
        most: Option<u64>,
    ) -> Result<Result<Permit, oneshot::Receiver<Permit>>, Busy> {
        let mut permits = self.permits();
        let active = permits.active;
        let own = permits.tenants.entry(tenant.to_owned()).or_default();
        own.most = most;
        own.remove_gone();
        if own.waiting.is_empty() && self.may_acquire(own, active) {
            own.active += 1;
            permits.active += 1;
            permits.last = tenant.to_owned();
            return Ok(Ok(Permit { fair: self.clone(), tenant: tenant.to_owned() }));
        }
        if own.waiting.len() >= MAX_WAITING {
            return Err(Busy::Queue);
        }
        let (send, waits) = oneshot::channel();
        own.waiting.push_back(send);
        Ok(Err(waits))
    }

    fn busy_reason(&self, tenant: &str) -> Busy {
        let mut permits = self.permits();
        let own = permits.tenants.entry(tenant.to_owned()).or_default();
        own.remove_gone();
        let why = match own.most.filter(|most| own.active >= *most) {
            Some(most) => Busy::Tenant(most),
            None => Busy::Node(self.most.unwrap_or(0)),
        };
        permits.remove_idle(tenant);
        why
    }

    fn end(self: &Arc<FairSemaphore>, tenant: &str) {
        let mut permits = self.permits();
        permits.active = permits.active.saturating_sub(1);
        if let Some(own) = permits.tenants.get_mut(tenant) {
            own.active = own.active.saturating_sub(1);
        }
        permits.remove_idle(tenant);
        self.serve(permits);
    }

    /// Hands free permits to waiters.
    fn serve(self: &Arc<FairSemaphore>, mut permits: MutexGuard<'_, Permits>) {
        let mut given = Vec::new();
        while self.has_room(&permits) {
            let active = permits.active;
            let Some(tenant) = permits.next(|own| self.may_acquire(own, active)) else { break };
            permits.last.clone_from(&tenant);
            let Some(own) = permits.tenants.get_mut(&tenant) else { break };
            let Some(waiting) = own.waiting.pop_front() else { continue };
            own.active += 1;
            permits.active += 1;
            given.push((waiting, Permit { fair: self.clone(), tenant }));
        }
        drop(permits);
        // A waiter that has given up drops its permit, which then goes to the next.
        given.into_iter().for_each(|(waiting, permit)| drop(waiting.send(permit)));
    }

    fn has_room(&self, permits: &Permits) -> bool {
        self.most.is_none_or(|most| permits.active < most)
    }

    /// Returns true if the tenant may have one more permit.
    fn may_acquire(&self, own: &Tenant, active: u64) -> bool {
        let left = self.most.map_or(u64::MAX, |most| most.saturating_sub(active));
        let leaves_enough = match self.sharing {
            Sharing::Unlimited => true,
            Sharing::LeavesShare => self.most.is_none_or(|most| has_share(most, own.active, active)),
        };
        left > 0 && own.has_room() && leaves_enough
    }

    fn permits(&self) -> MutexGuard<'_, Permits> {
        self.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permits {
    /// Returns the next tenant after the one served last that waits and may have a permit.
    fn next(&mut self, may_acquire: impl Fn(&Tenant) -> bool) -> Option<String> {
        self.tenants.values_mut().for_each(Tenant::remove_gone);
        let may_acquire = |(_, tenant): &(&String, &Tenant)| !tenant.waiting.is_empty() && may_acquire(tenant);
        let behind = self.tenants.range::<str, _>((Excluded(self.last.as_str()), Unbounded)).find(may_acquire);
        behind.or_else(|| self.tenants.iter().find(may_acquire)).map(|(name, _)| name.clone())
    }

    /// Removes a tenant without permits and waiters.
    fn remove_idle(&mut self, tenant: &str) {
        if self.tenants.get(tenant).is_some_and(|own| own.active == 0 && own.waiting.is_empty()) {
            self.tenants.remove(tenant);
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(30);

    #[tokio::test]
    async fn one_tenant_does_not_starve_another() {
        let fair = FairSemaphore::new(Some(2));
        let order = Arc::new(Mutex::new(Vec::new()));
        let held = [fair.acquire("a", None, LONG).await.unwrap(), fair.acquire("a", None, LONG).await.unwrap()];
        let mut work = Vec::new();
        for (tenant, count) in [("a", 20), ("b", 3), ("c", 3)] {
            for _ in 0..count {
                let (fair, order) = (fair.clone(), order.clone());
                work.push(tokio::spawn(async move {
                    let permit = fair.acquire(tenant, None, LONG).await.unwrap();
                    order.lock().unwrap().push(tenant);
                    tokio::task::yield_now().await;
                    drop(permit);
                }));
            }
            // In this order: the first tenant's requests are all queued before the others arrive.
            while fair.counts().1 < work.len() {
                tokio::task::yield_now().await;
            }
        }
        drop(held);
        for one in work {
            one.await.unwrap();
        }
        let order = order.lock().unwrap().clone();
        let last_of = |tenant| order.iter().rposition(|served| *served == tenant).unwrap();
        assert!(last_of("b") < 10 && last_of("c") < 10, "{order:?}");
        assert_eq!((order.len(), fair.counts()), (26, (0, 0)));
        assert!(fair.permits().tenants.is_empty(), "nothing is kept of those who are gone");
    }

    #[tokio::test]
    async fn bounds_hold_and_say_whose_they_are() {
        let fair = FairSemaphore::new(Some(3));
        let one = fair.acquire("a", Some(1), SHORT).await.unwrap();
        assert_eq!(fair.acquire("a", Some(1), SHORT).await.err(), Some(Busy::Tenant(1)));
        let _others = [fair.acquire("b", None, SHORT).await.unwrap(), fair.adopt("b")];
        assert_eq!(fair.acquire("b", None, SHORT).await.err(), Some(Busy::Node(3)));
        drop(one);
        assert!(fair.acquire("a", Some(1), SHORT).await.is_ok());
    }

    #[tokio::test]
    async fn never_more_than_the_bound_and_nobody_is_forgotten() {
        let fair = FairSemaphore::new(Some(4));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut work = Vec::new();
        for number in 0..200usize {
            let (fair, now, most) = (fair.clone(), now.clone(), most.clone());
            work.push(tokio::spawn(async move {
                let tenant = ["a", "b", "c"][number % 3];
                // Some give up at once, whether or not a permit is on its way.
                let patience = if number % 7 == 0 { Duration::from_micros(50) } else { LONG };
                let Ok(permit) = fair.acquire(tenant, Some(2), patience).await else { return false };
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_micros(200)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                drop(permit);
                true
            }));
        }
        let mut done = 0;
        for one in work {
            done += usize::from(one.await.unwrap());
        }
        assert!(done >= 171 && most.load(Ordering::SeqCst) <= 4, "{done}");
        assert_eq!(fair.counts(), (0, 0));
    }

    /// Tenants that take all permits they can get leave some to those that come later; a released permit is available to all.
    // promise 24
    #[tokio::test]
    async fn who_takes_what_lasts_leaves_some_to_others() {
        let shares = FairShares::new(16, SHORT);
        let mut held = Vec::new();
        let mut have = Vec::new();
        for tenant in ["a", "b", "c", "d", "e", "f"] {
            let before = held.len();
            while let Some(permit) = shares.acquire(tenant).await {
                held.push(permit);
            }
            have.push(held.len() - before);
        }
        assert_eq!(have, [8, 4, 2, 1, 1, 0]);
        // The latecomer gets the first free permit, although the others wait as well.
        let late = shares.fair.clone();
        let greedy: Vec<_> = (0..10).map(|_| late.enqueue("a", None).unwrap()).collect();
        let waits = tokio::spawn(async move { late.acquire("f", None, LONG).await.is_ok() });
        while shares.fair.counts().1 < 11 {
            tokio::task::yield_now().await;
        }
        held.pop();
        assert!(waits.await.unwrap());
        assert!(greedy.iter().all(Result::is_err));
    }

    #[tokio::test]
    async fn a_queue_is_bounded() {
        let fair = FairSemaphore::new(Some(1));
        let _held = fair.acquire("a", None, SHORT).await.unwrap();
        let waits: Vec<_> = (0..MAX_WAITING).map(|_| fair.enqueue("a", None).unwrap()).collect();
        assert_eq!(fair.acquire("a", None, SHORT).await.err(), Some(Busy::Queue));
        assert!(fair.enqueue("b", None).is_ok(), "another's queue is his own");
        drop(waits);
        assert!(fair.enqueue("a", None).is_ok());
    }
}
