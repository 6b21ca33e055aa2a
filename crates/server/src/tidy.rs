//! What the daemon collects by itself, now and then, of every tenant: records of what is long past. Never a sandbox, and never
//! anything that somebody asked to be kept: that is for `gc`.

use crate::{Shared, Who};
use node::lifecycle::past;

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
            if *shared.ending().borrow() {
                return;
            }
            // What hinders it now does not hinder the next look.
            if let Err(refusal) = shared.verb(&who, move |caller| past::tidy(caller, &keep)).await {
                let fields =
                    [("tenant", who.tenant.as_str().into()), ("reason", refusal.fault.message.as_str().into())];
                shared.lookout().log().warn("what is past was not collected", &fields);
            }
        }
    }
}
