//! Collection of old records of every tenant, from time to time. Never collects a sandbox, nor anything that was asked to be kept: that
//! is for `gc`.

use crate::{Shared, Who};
use node::gc::retention;

/// Looks again and again until the daemon ends.
pub async fn tidy(shared: Shared) {
    let keep = *shared.keep();
    loop {
        tokio::select! {
            () = tokio::time::sleep(keep.interval) => {}
            () = shared.until_end() => return,
        }
        for tenant in shared.tenants() {
            let who = Who { tenant, ..crate::shared::owner("daemon") };
            if shared.is_ending() {
                return;
            }
            // The next look tries again.
            if let Err(refusal) = shared.verb(&who, move |node, caller| retention::tidy(node, caller, &keep)).await {
                let (tenant, reason) = (who.tenant.as_str(), refusal.fault.message.as_str());
                tracing::warn!(tenant, reason, "what is past was not collected");
            }
        }
    }
}
