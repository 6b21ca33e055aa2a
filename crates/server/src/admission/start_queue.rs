//! The queue of commands that are about to start. A start needs a processor and little else: with more starts at once than processors
//! none is done sooner, and an unlucky one waits behind all others at each of a dozen steps. So commands start in the order of their
//! arrival, tenants in turn, and a short command has its turn to its end. This is an order and no quota: a turn ends by itself, so that
//! a stuck start holds up the others only for a moment.

use super::fair::{Fair, Turn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Turns for each processor: while one command waits for the disk or for its keeper, another has the processor.
const FOR_EACH_PROCESSOR: u64 = 2;
/// Length of a turn of a command that has not started yet.
const BEGINS_WITHIN: Duration = Duration::from_millis(200);
/// Length of a turn of a command that has started: a short one ends within it.
const ENDS_WITHIN: Duration = Duration::from_millis(10);
/// Longest wait for a turn; then the command starts without one.
const PATIENCE: Duration = Duration::from_secs(2);

/// Number of turns on this host.
pub fn at_a_time() -> u64 {
    FOR_EACH_PROCESSOR * std::thread::available_parallelism().map_or(1, |count| count.get() as u64)
}

/// Hands out turns to start a command.
pub struct StartQueue {
    fair: Arc<Fair>,
    /// Turns that are held now. They are ended by the next waiter: while none waits, their length does not matter.
    held: Mutex<Vec<Weak<HeldTurn>>>,
}

impl StartQueue {
    pub fn new(most: u64) -> StartQueue {
        StartQueue { fair: Fair::new(Some(most)), held: Mutex::default() }
    }

    /// Waits for a turn; none when it did not come in time, or the queue is full.
    pub async fn turn(&self, tenant: &str) -> Option<StartTurn> {
        let mut waits = std::pin::pin!(self.fair.turn(tenant, None, PATIENCE));
        let turn = loop {
            tokio::select! {
                biased;
                turn = waits.as_mut() => break turn.ok()?,
                () = tokio::time::sleep_until(self.next_end()) => self.end_expired(),
            }
        };
        let held = HeldTurn { ends: Mutex::new(Instant::now() + BEGINS_WITHIN), turn: Mutex::new(Some(turn)) };
        let lease = Arc::new(held);
        let mut all = self.all();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&lease));
        Some(StartTurn(lease))
    }

    fn all(&self) -> MutexGuard<'_, Vec<Weak<HeldTurn>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next time to look for expired turns. A command that starts meanwhile ends its turn sooner than it says now.
    fn next_end(&self) -> Instant {
        let latest = Instant::now() + ENDS_WITHIN;
        self.all().iter().filter_map(|held| Some(held.upgrade()?.ends())).fold(latest, Instant::min)
    }

    fn end_expired(&self) {
        let now = Instant::now();
        let over: Vec<Arc<HeldTurn>> =
            self.all().iter().filter_map(Weak::upgrade).filter(|l| l.ends() <= now).collect();
        over.iter().for_each(|held| held.end());
    }
}

struct HeldTurn {
    ends: Mutex<Instant>,
    turn: Mutex<Option<Turn>>,
}

impl HeldTurn {
    fn ends(&self) -> Instant {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        // An ended turn does not expire again.
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + PATIENCE;
        drop(self.turn.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// A turn to start a command, until it is dropped, or expires while another command waits.
pub struct StartTurn(Arc<HeldTurn>);

impl StartTurn {
    /// Notes that the command has started; the turn lasts a short command's length from now.
    pub fn begun(&self) {
        *self.0.ends.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + ENDS_WITHIN;
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// A start that is stuck, or a command that goes on, does not hold up the next for ever.
    // promise 24
    #[tokio::test]
    async fn a_turn_ends_by_itself() {
        let queue = StartQueue::new(1);
        for (begun, within) in [(false, BEGINS_WITHIN), (true, ENDS_WITHIN)] {
            let stuck = queue.turn("a").await.unwrap();
            let since = Instant::now();
            if begun {
                stuck.begun();
            }
            let next = queue.turn("b").await.unwrap();
            assert!(since.elapsed() >= within, "{begun}: {:?}", since.elapsed());
            drop((stuck, next));
            assert_eq!(queue.fair.figures(), (0, 0));
        }
    }

    // promise 24
    #[tokio::test]
    async fn commands_begin_in_the_order_that_they_came() {
        let queue = Arc::new(StartQueue::new(1));
        let held = queue.turn("a").await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waits = Vec::new();
        for number in 0..8 {
            let (asked, order) = (queue.clone(), order.clone());
            waits.push(tokio::spawn(async move {
                let _turn = asked.turn("a").await.unwrap();
                order.lock().unwrap().push(number);
            }));
            while queue.fair.figures().1 <= number {
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
