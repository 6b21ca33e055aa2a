//! How many commands begin at a time. A command that begins needs a processor and little else: with more of them at once than there are
//! processors nobody is done sooner, and whoever is unlucky waits behind all others at each of a dozen steps. So they begin in the order
//! that they came, each tenant in its turn, and a short one has its turn to its end. This is a pace and no quota: a turn ends by itself,
//! so that nobody who is stuck holds anybody up for long.

use super::fair::{Fair, Turn};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Turns for each processor: while one command waits for the disk or for its keeper, another has the processor.
const FOR_EACH_PROCESSOR: u64 = 2;
/// How long one may take to begin before the next goes on beside it.
const BEGINS_WITHIN: Duration = Duration::from_millis(200);
/// How long one that has begun is taken for a short one.
const ENDS_WITHIN: Duration = Duration::from_millis(10);
/// Nobody waits longer than this for a turn that only keeps the order.
const PATIENCE: Duration = Duration::from_secs(2);

/// Turns for as many as this host has use for.
pub fn at_a_time() -> u64 {
    FOR_EACH_PROCESSOR * std::thread::available_parallelism().map_or(1, |count| count.get() as u64)
}

pub struct Beginnings(Arc<Fair>);

impl Beginnings {
    pub fn new(most: u64) -> Beginnings {
        Beginnings(Fair::new(Some(most)))
    }

    /// None when it was not its turn in time, or too many wait.
    pub async fn turn(&self, tenant: &str) -> Option<Lease> {
        let turn = self.0.turn(tenant, None, PATIENCE).await.ok()?;
        let lease = Lease(Arc::new(Mutex::new(Some(turn))));
        lease.ends_within(BEGINS_WITHIN);
        Some(lease)
    }
}

/// A turn until this is dropped, or its time is over.
pub struct Lease(Arc<Mutex<Option<Turn>>>);

impl Lease {
    /// What it was taken for has begun: it holds for a short one to its end.
    pub fn begun(&self) {
        self.ends_within(ENDS_WITHIN);
    }

    fn ends_within(&self, time: Duration) {
        let turn = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            let turn = turn.upgrade();
            drop(turn.and_then(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner).take()));
        });
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use tokio::time::Instant;

    /// Who is stuck, or has begun and goes on, holds nobody up for ever.
    #[tokio::test]
    async fn a_turn_ends_by_itself() {
        let beginnings = Beginnings::new(1);
        for (begun, within) in [(false, BEGINS_WITHIN), (true, ENDS_WITHIN)] {
            let stuck = beginnings.turn("a").await.unwrap();
            let since = Instant::now();
            if begun {
                stuck.begun();
            }
            let next = beginnings.turn("b").await.unwrap();
            assert!(since.elapsed() >= within, "{begun}: {:?}", since.elapsed());
            drop((stuck, next));
            assert_eq!(beginnings.0.figures(), (0, 0));
        }
    }

    #[tokio::test]
    async fn commands_begin_in_the_order_that_they_came() {
        let beginnings = Arc::new(Beginnings::new(1));
        let held = beginnings.turn("a").await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waits = Vec::new();
        for number in 0..8 {
            let (asked, order) = (beginnings.clone(), order.clone());
            waits.push(tokio::spawn(async move {
                let _turn = asked.turn("a").await.unwrap();
                order.lock().unwrap().push(number);
            }));
            while beginnings.0.figures().1 <= number {
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
