//! The task that refills pools of warm sandboxes, one sandbox at a time. It pauses while memory is short or a quota is full, and backs off
//! after each failure.

use crate::{Principal, Shared};
use node::warm::{self, MissingSpares};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Interval between checks: programs other than the daemon may take warm sandboxes, too.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest and longest back-off after failures.
const MIN_BACKOFF: Duration = Duration::from_secs(2);
const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// Failed pools by tenant and pool: failures in a row, and the time of the next attempt.
type Failed = BTreeMap<(String, String), (u32, Instant)>;

/// Keeps the pools of all tenants filled, with at most `most` warm sandboxes in all.
pub async fn fill_pools(shared: Shared, most: u64) {
    let mut failed = Failed::new();
    while !shared.is_ending() {
        fill_once(&shared, most, &mut failed).await;
        tokio::select! {
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
            () = shared.taken().notified() => {}
            () = shared.until_end() => return,
        }
    }
}

async fn fill_once(shared: &Shared, most: u64, failed: &mut Failed) {
    let (mut missing, mut existing) = (Vec::new(), 0);
    for principal in tenants_with_pools(shared).await {
        match shared.verb(&principal, warm::sweep).await {
            Ok((of_one, count)) => {
                missing.extend(of_one.into_iter().map(|lack| (principal.clone(), lack)));
                existing += count;
            }
            Err(refusal) => log_failure(&principal.tenant, "", &refusal.fault.message),
        }
    }
    failed.retain(|(tenant, pool), _| {
        missing.iter().any(|(principal, lack)| principal.tenant == *tenant && lack.pool == *pool)
    });
    missing.retain(|(principal, lack)| {
        let known = failed.get(&(principal.tenant.clone(), lack.pool.clone()));
        known.is_none_or(|(_, again)| Instant::now() >= *again)
    });
    // Round-robin, so that a large pool does not keep a small one empty.
    while !missing.is_empty() {
        let mut next = Vec::new();
        for (principal, lack) in std::mem::take(&mut missing) {
            if shared.is_ending() {
                return;
            }
            match create_one(shared, &principal, &lack, most.saturating_sub(existing)).await {
                Ok(()) => {
                    existing += 1;
                    failed.remove(&(principal.tenant.clone(), lack.pool.clone()));
                    if lack.count > 1 {
                        next.push((principal, MissingSpares { count: lack.count - 1, ..lack }));
                    }
                }
                Err(why) => {
                    log_failure(&principal.tenant, &lack.template, &why);
                    let times = failed.entry((principal.tenant, lack.pool)).or_insert((0, Instant::now()));
                    let pause = MIN_BACKOFF.saturating_mul(1 << times.0.min(16)).min(MAX_BACKOFF);
                    *times = (times.0 + 1, Instant::now() + pause);
                }
            }
        }
        missing = next;
    }
}

/// Returns the tenants that may have pools.
async fn tenants_with_pools(shared: &Shared) -> Vec<Principal> {
    let of = shared.clone();
    let look = move || {
        let tenants = of.tenants().into_iter().filter(|tenant| warm::marked(&of.state_of(tenant)));
        tenants.map(|tenant| Principal { tenant, ..crate::shared::owner("daemon") }).collect()
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

/// Makes one warm sandbox. The reason of a failure is also stored with the pool.
async fn create_one(shared: &Shared, principal: &Principal, lack: &MissingSpares, room: u64) -> Result<(), String> {
    let full = || "this node has as many warm sandboxes as warm.max allows".to_owned();
    let obstacle = if room == 0 { Some(full()) } else { warm::memory_shortage() };
    let made = match obstacle {
        Some(why) => Err(why),
        None => {
            let pool = lack.pool.clone();
            let made = shared
                .create_warm(principal, lack.each, move |node, caller| warm::make_spare(node, caller, &pool))
                .await;
            made.map_err(|refusal| refusal.fault.message)
        }
    };
    if let Err(why) = &made {
        let (pool, why) = (lack.pool.clone(), why.clone());
        // The reason is in the log as well.
        let _ = shared.verb(principal, move |node, caller| warm::set_trouble(node, caller, &pool, &why)).await;
    }
    made
}

fn log_failure(tenant: &str, template: &str, reason: &str) {
    tracing::warn!(tenant, template, reason, "cannot create a warm sandbox");
}
