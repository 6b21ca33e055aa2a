//! The queue of commands that are about to start. A start needs a processor and little else: with more concurrent starts than processors
//! none is done sooner, and an unlucky one waits behind all others at each of a dozen steps. So commands start in order of arrival, tenants
//! in turn, and a short command keeps its permit to its end. This is an order and no quota: a permit expires, so that a stuck start delays
//! the others only for a moment.

use super::fair::{FairSemaphore, Permit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Permits for each processor: while one command waits for the disk or its keeper, another uses the processor.
const PERMITS_PER_PROCESSOR: u64 = 2;
/// Lifetime of a permit whose command has not started yet.
const BEGINS_WITHIN: Duration = Duration::from_millis(200);
/// Lifetime of a permit after the start of its command: a short command ends within it.
const ENDS_WITHIN: Duration = Duration::from_millis(10);
/// Longest wait for a permit; then the command starts without one.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns the number of permits on this host.
pub fn max_starts() -> u64 {
    PERMITS_PER_PROCESSOR * std::thread::available_parallelism().map_or(1, |count| count.get() as u64)
}

/// Hands out permits to start a command.
pub struct StartQueue {
    fair: Arc<FairSemaphore>,
    /// Permits in use. The next waiter ends expired ones: without a waiter their lifetime does not matter.
    held: Mutex<Vec<Weak<HeldPermit>>>,
}

impl StartQueue {
    pub fn new(most: u64) -> StartQueue {
        StartQueue { fair: FairSemaphore::new(Some(most)), held: Mutex::default() }
    }

    /// Waits for a permit; none when the time is over or the queue is full.
    pub async fn acquire(&self, tenant: &str) -> Option<StartPermit> {
        let mut waits = std::pin::pin!(self.fair.acquire(tenant, None, PATIENCE));
        let permit = loop {
            tokio::select! {
                biased;
                permit = waits.as_mut() => break permit.ok()?,
                () = tokio::time::sleep_until(self.next_end()) => self.end_expired(),
            }
        };
        let held = HeldPermit { ends: Mutex::new(Instant::now() + BEGINS_WITHIN), permit: Mutex::new(Some(permit)) };
        let lease = Arc::new(held);
        let mut all = self.all();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&lease));
        Some(StartPermit(lease))
    }

    fn all(&self) -> MutexGuard<'_, Vec<Weak<HeldPermit>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time of the next check for expired permits. A command that starts meanwhile shortens its permit's lifetime.
    fn next_end(&self) -> Instant {
        let latest = Instant::now() + ENDS_WITHIN;
        self.all().iter().filter_map(|held| Some(held.upgrade()?.ends())).fold(latest, Instant::min)
    }

    fn end_expired(&self) {
        let now = Instant::now();
        let over: Vec<Arc<HeldPermit>> =
            self.all().iter().filter_map(Weak::upgrade).filter(|l| l.ends() <= now).collect();
        over.iter().for_each(|held| held.end());
    }
}

struct HeldPermit {
    ends: Mutex<Instant>,
    permit: Mutex<Option<Permit>>,
}

impl HeldPermit {
    fn ends(&self) -> Instant {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        // A released permit does not expire again.
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + PATIENCE;
        drop(self.permit.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// A permit to start a command, until it is dropped, or expires while another command waits.
pub struct StartPermit(Arc<HeldPermit>);

impl StartPermit {
    /// Notes that the command has started; from now on the permit lives for `ENDS_WITHIN`.
    pub fn begun(&self) {
        *self.0.ends.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + ENDS_WITHIN;
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// A stuck start, or a long command, does not delay the next one for ever.
    // promise 24
    #[tokio::test]
    async fn a_turn_ends_by_itself() {
        let queue = StartQueue::new(1);
        for (begun, within) in [(false, BEGINS_WITHIN), (true, ENDS_WITHIN)] {
            let stuck = queue.acquire("a").await.unwrap();
            let since = Instant::now();
            if begun {
                stuck.begun();
            }
            let next = queue.acquire("b").await.unwrap();
            assert!(since.elapsed() >= within, "{begun}: {:?}", since.elapsed());
            drop((stuck, next));
            assert_eq!(queue.fair.counts(), (0, 0));
        }
    }

    // promise 24
    #[tokio::test]
    async fn commands_begin_in_the_order_that_they_came() {
        let queue = Arc::new(StartQueue::new(1));
        let held = queue.acquire("a").await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waits = Vec::new();
        for number in 0..8 {
            let (asked, order) = (queue.clone(), order.clone());
            waits.push(tokio::spawn(async move {
                let _permit = asked.acquire("a").await.unwrap();
                order.lock().unwrap().push(number);
            }));
            while queue.fair.counts().1 <= number {
                tokio::task::yield_now().await;
            }
        }
        drop(held);
        for one in waits {
            one.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>(), "in the order that they came");
    }
}
