//! What rests between two requests, connections to keepers and open states, is closed a moment after the last of them.

use node::keeper::resting;
use node::state;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(400);

static SWEEPING: AtomicBool = AtomicBool::new(false);

/// Something was left to rest: it is looked after until nothing is.
pub fn sweep_soon() {
    if SWEEPING.swap(true, Ordering::AcqRel) {
        return;
    }
    tokio::spawn(async {
        loop {
            tokio::time::sleep(PAUSE).await;
            // Said before it is looked: whoever comes in between begins anew.
            SWEEPING.store(false, Ordering::Release);
            if resting::sweep() + state::sweep() == 0 || SWEEPING.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    });
}
