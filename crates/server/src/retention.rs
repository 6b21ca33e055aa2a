//! Periodic collection of every tenant's expired records. Never removes a sandbox, nor a record that a user asked to keep: `gc` does that.

use crate::{Principal, Shared};
use node::gc::retention;

/// Collects at each interval until the daemon is shutting down.
pub async fn collect(shared: Shared) {
    let keep = *shared.keep();
    loop {
        tokio::select! {
            () = tokio::time::sleep(keep.interval) => {}
            () = shared.until_end() => return,
        }
        for tenant in shared.tenants() {
            let principal = Principal { tenant, ..crate::shared::owner("daemon") };
            if shared.is_ending() {
                return;
            }
            // The next interval tries again.
            if let Err(refusal) =
                shared.verb(&principal, move |node, caller| retention::tidy(node, caller, &keep)).await
            {
                let (tenant, reason) = (principal.tenant.as_str(), refusal.fault.message.as_str());
                tracing::warn!(tenant, reason, "cannot collect expired records");
            }
        }
    }
}
