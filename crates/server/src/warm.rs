//! The task that fills pools of warm sandboxes: it looks at what lacks and makes one at a time. It waits while memory is short, while a
//! quota is full, and longer after each failure.

use crate::{Shared, Who};
use node::warm::{self, Lack};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Pause between two looks: others than the daemon may take warm sandboxes, too.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after the first failure, and the longest.
const FIRST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(300);

/// Pools that could not be filled: how often in a row, and when they are tried again.
type Failed = BTreeMap<(String, String), (u32, Instant)>;

/// Keeps the pools of all tenants full, with at most so many in all.
pub async fn tend(shared: Shared, most: u64) {
    let mut failed = Failed::new();
    while !shared.is_ending() {
        turn(&shared, most, &mut failed).await;
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = shared.taken().notified() => {}
            () = shared.until_end() => return,
        }
    }
}

async fn turn(shared: &Shared, most: u64, failed: &mut Failed) {
    let (mut lacks, mut there) = (Vec::new(), 0);
    for who in marked(shared).await {
        match shared.verb(&who, warm::sweep).await {
            Ok((of_one, count)) => {
                lacks.extend(of_one.into_iter().map(|lack| (who.clone(), lack)));
                there += count;
            }
            Err(refusal) => tell(&who.tenant, "", &refusal.fault.message),
        }
    }
    failed.retain(|(tenant, pool), _| lacks.iter().any(|(who, lack)| who.tenant == *tenant && lack.pool == *pool));
    lacks.retain(|(who, lack)| {
        let known = failed.get(&(who.tenant.clone(), lack.pool.clone()));
        known.is_none_or(|(_, again)| Instant::now() >= *again)
    });
    // One for each in turn, so that a large pool does not keep a small one empty.
    while !lacks.is_empty() {
        let mut next = Vec::new();
        for (who, lack) in std::mem::take(&mut lacks) {
            if shared.is_ending() {
                return;
            }
            match one(shared, &who, &lack, most.saturating_sub(there)).await {
                Ok(()) => {
                    there += 1;
                    failed.remove(&(who.tenant.clone(), lack.pool.clone()));
                    if lack.count > 1 {
                        next.push((who, Lack { count: lack.count - 1, ..lack }));
                    }
                }
                Err(why) => {
                    tell(&who.tenant, &lack.template, &why);
                    let times = failed.entry((who.tenant, lack.pool)).or_insert((0, Instant::now()));
                    let pause = FIRST.saturating_mul(1 << times.0.min(16)).min(LONGEST);
                    *times = (times.0 + 1, Instant::now() + pause);
                }
            }
        }
        lacks = next;
    }
}

/// Tenants that may have pools.
async fn marked(shared: &Shared) -> Vec<Who> {
    let of = shared.clone();
    let look = move || {
        let tenants = of.tenants().into_iter().filter(|tenant| warm::marked(&of.state_of(tenant)));
        tenants.map(|tenant| Who { tenant, ..crate::shared::owner("daemon") }).collect()
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

/// Makes one, or says why not; then also where the pool is looked at.
async fn one(shared: &Shared, who: &Who, lack: &Lack, room: u64) -> Result<(), String> {
    let full = || "this node has as many that stand ready as it may (warm.max)".to_owned();
    let hindered = if room == 0 { Some(full()) } else { warm::pressure() };
    let made = match hindered {
        Some(why) => Err(why),
        None => {
            let pool = lack.pool.clone();
            let made = shared.readying(who, lack.each, move |node, caller| warm::make_one(node, caller, &pool)).await;
            made.map_err(|refusal| refusal.fault.message)
        }
    };
    if let Err(why) = &made {
        let (pool, why) = (lack.pool.clone(), why.clone());
        // The reason is in the log as well.
        let _ = shared.verb(who, move |node, caller| warm::hinder(node, caller, &pool, &why)).await;
    }
    made
}

fn tell(tenant: &str, template: &str, reason: &str) {
    tracing::warn!(tenant, template, reason, "what shall stand ready does not");
}
