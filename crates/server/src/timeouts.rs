//! Times sandboxes out: looks at each when its time may be over. What is noted here only says when to look; the record of the sandbox
//! decides, so that a daemon that starts anew goes on where the last one ended.

use crate::{Principal, Shared};
use node::timeout;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use terms::clock::now_ms;
use tokio::sync::Notify;

/// Longest pause between looks: the clock may have been set.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Time after which a failed attempt is repeated.
const AGAIN_MS: u64 = 10_000;

/// Sandboxes to look at: the time, the tenant and the id of each.
#[derive(Default)]
pub struct Timeouts {
    due: Mutex<BTreeSet<(u64, String, String)>>,
    changed: Notify,
}

impl Timeouts {
    /// Notes a sandbox whose timeout was set just now.
    pub fn expect(&self, tenant: &str, sandbox: &str, timeout_ms: Option<u64>) {
        if let Some(ms) = timeout_ms {
            self.look_at(now_ms().saturating_add(ms), tenant, sandbox);
        }
    }

    fn look_at(&self, at_ms: u64, tenant: &str, sandbox: &str) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.insert((at_ms, tenant.to_owned(), sandbox.to_owned()));
        self.changed.notify_one();
    }

    /// Takes those whose time has come. Else returns the time to wait.
    fn take(&self) -> Result<Vec<(String, String)>, Duration> {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let now = now_ms();
        let later = due.split_off(&(now.saturating_add(1), String::new(), String::new()));
        let come = std::mem::replace(&mut *due, later);
        if !come.is_empty() {
            return Ok(come.into_iter().map(|(_, tenant, sandbox)| (tenant, sandbox)).collect());
        }
        let next = due.first().map(|(at, ..)| Duration::from_millis(at.saturating_sub(now)));
        Err(next.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE))
    }
}

/// Times sandboxes of all tenants out until the daemon shuts down.
pub async fn enforce(shared: Shared) {
    for tenant in shared.tenants() {
        match shared.verb(&daemon_of(tenant.clone()), timeout::all).await {
            Ok(all) => all.iter().for_each(|(sandbox, at_ms)| shared.timeouts().look_at(*at_ms, &tenant, sandbox)),
            Err(refusal) => tracing::warn!(tenant, reason = refusal.fault.message, "cannot list timeouts"),
        }
    }
    loop {
        match shared.timeouts().take() {
            Ok(come) => come.into_iter().for_each(|(tenant, sandbox)| {
                // A stop may wait for commands to end; others are not to wait for it.
                shared.tasks().spawn(time_out(shared.clone(), tenant, sandbox));
            }),
            Err(pause) => tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shared.timeouts().changed.notified() => {}
                () = shared.until_end() => return,
            },
        }
    }
}

async fn time_out(shared: Shared, tenant: String, sandbox: String) {
    let id = sandbox.clone();
    let looked = shared.verb(&daemon_of(tenant.clone()), move |node, caller| timeout::enforce(node, caller, &id)).await;
    let next = looked.unwrap_or_else(|refusal| {
        tracing::warn!(tenant, sandbox, reason = refusal.fault.message, "cannot time a sandbox out");
        Some(now_ms().saturating_add(AGAIN_MS))
    });
    if let Some(at_ms) = next {
        shared.timeouts().look_at(at_ms, &tenant, &sandbox);
    }
}

fn daemon_of(tenant: String) -> Principal {
    Principal { tenant, ..crate::shared::owner("daemon") }
}
