//! How many commands begin at a time. A command that begins needs a processor and little else: with more of them at once than there are
//! processors nobody is done sooner, and whoever is unlucky waits behind all others at each of a dozen steps. So they begin in the order
//! that they came, each tenant in its turn, and a short one has its turn to its end. This is a pace and no quota: a turn ends by itself,
//! so that nobody who is stuck holds anybody up for long.

use super::fair::{Fair, Turn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::Instant;

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

pub struct Beginnings {
    fair: Arc<Fair>,
    /// Turns that are had now. Whoever waits for one looks after them: while nobody does, it matters to nobody how long they last.
    leased: Mutex<Vec<Weak<Leased>>>,
}

impl Beginnings {
    pub fn new(most: u64) -> Beginnings {
        Beginnings { fair: Fair::new(Some(most)), leased: Mutex::default() }
    }

    /// None when it was not its turn in time, or too many wait.
    pub async fn turn(&self, tenant: &str) -> Option<Lease> {
        let mut waits = std::pin::pin!(self.fair.turn(tenant, None, PATIENCE));
        let turn = loop {
            tokio::select! {
                biased;
                turn = waits.as_mut() => break turn.ok()?,
                () = tokio::time::sleep_until(self.next_end()) => self.end_those_that_are_over(),
            }
        };
        let leased = Leased { ends: Mutex::new(Instant::now() + BEGINS_WITHIN), turn: Mutex::new(Some(turn)) };
        let lease = Arc::new(leased);
        let mut all = self.all();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&lease));
        Some(Lease(lease))
    }

    fn all(&self) -> MutexGuard<'_, Vec<Weak<Leased>>> {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When to look next: one that begins meanwhile ends sooner than it says now.
    fn next_end(&self) -> Instant {
        let latest = Instant::now() + ENDS_WITHIN;
        self.all().iter().filter_map(|leased| Some(leased.upgrade()?.ends())).fold(latest, Instant::min)
    }

    fn end_those_that_are_over(&self) {
        let now = Instant::now();
        let over: Vec<Arc<Leased>> = self.all().iter().filter_map(Weak::upgrade).filter(|l| l.ends() <= now).collect();
        over.iter().for_each(|leased| leased.end());
    }
}

struct Leased {
    ends: Mutex<Instant>,
    turn: Mutex<Option<Turn>>,
}

impl Leased {
    fn ends(&self) -> Instant {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        // What has ended is not looked after again.
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + PATIENCE;
        drop(self.turn.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// A turn until this is dropped, or its time is over and somebody waits.
pub struct Lease(Arc<Leased>);

impl Lease {
    /// What it was taken for has begun: it holds for a short one to its end.
    pub fn begun(&self) {
        *self.0.ends.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + ENDS_WITHIN;
    }
}

#[cfg(test)]
mod test {
    use super::*;

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
            assert_eq!(beginnings.fair.figures(), (0, 0));
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
            while beginnings.fair.figures().1 <= number {
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
