//! Turns for what only so much of may go on at a time. Each tenant has a queue of its own, and a free place goes to the next
//! tenant in turn: whoever asks for much waits behind himself and not in front of others. Queues are bounded, and so is waiting.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Requests of one tenant that wait.
pub const MOST_WAITING: usize = 256;

/// Hands out turns.
pub struct Fair {
    /// At a time, over all tenants.
    most: Option<u64>,
    sharing: Sharing,
    turns: Mutex<Turns>,
}

/// What a tenant leaves to others of what only so much of may go on at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// Nothing: turns end soon, and the next free one is another's.
    Nothing,
    /// As much as it has, and to those who have nothing yet always some: turns may last.
    AsMuch,
}

/// Of turns that may last, one part in so many is for tenants that have none.
const FIRST_TURNS: u64 = 8;

/// Decides whether a tenant that has `own` of `all` taken places may have one more of `most`: it leaves as many to the others as it
/// has, and the last ones to tenants that have none.
pub fn has_share(most: u64, own: u64, all: u64) -> bool {
    let left = most.saturating_sub(all);
    left > 0 && (own == 0 || own < left && left > most / FIRST_TURNS)
}

#[derive(Default)]
struct Turns {
    tenants: BTreeMap<String, Tenant>,
    going: u64,
    /// Who was served last; the next in order comes next.
    last: String,
}

#[derive(Default)]
struct Tenant {
    most: Option<u64>,
    going: u64,
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

impl Tenant {
    fn has_room(&self) -> bool {
        self.most.is_none_or(|most| self.going < most)
    }

    /// Takes those from the queue who have given up.
    fn forget_gone(&mut self) {
        self.waiting.retain(|waiting| !waiting.is_closed());
    }
}

/// A place that is held until this is dropped.
pub struct Turn {
    fair: Arc<Fair>,
    tenant: String,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.fair.end(&self.tenant);
    }
}

/// Turns that may last for as long as a client likes. Nobody takes one more than is left to all others: alone, a tenant has half of
/// them, the second a quarter, and so on; and an eighth is for those who have none. So there is one for whoever comes, however greedy
/// those are who came before, as long as there are not very many of them.
pub struct Shares {
    fair: Arc<Fair>,
    patience: Duration,
}

impl Shares {
    pub fn new(most: u64, patience: Duration) -> Shares {
        Shares {
            fair: Arc::new(Fair { most: Some(most), sharing: Sharing::AsMuch, turns: Mutex::default() }),
            patience,
        }
    }

    /// None when it was not this tenant's turn in time.
    pub async fn turn(&self, tenant: &str) -> Option<Turn> {
        self.fair.turn(tenant, None, self.patience).await.ok()
    }
}

/// Why there was no turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// Its own queue is full.
    Queue,
    /// It was not its turn in time: because of the tenant's own bound, or because of the node's.
    Tenant(u64),
    Node(u64),
}

impl Fair {
    pub fn new(most: Option<u64>) -> Arc<Fair> {
        Arc::new(Fair { most, sharing: Sharing::Nothing, turns: Mutex::default() })
    }

    /// Waits for a turn, at most as long as `patience`. `most` is the tenant's own bound.
    pub async fn turn(self: &Arc<Fair>, tenant: &str, most: Option<u64>, patience: Duration) -> Result<Turn, Busy> {
        let waits = match self.ask(tenant, most)? {
            Ok(turn) => return Ok(turn),
            Err(waits) => waits,
        };
        match tokio::time::timeout(patience, waits).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(self.why(tenant)),
        }
    }

    /// A turn that somebody has already: what went on before there was this process.
    pub fn adopt(self: &Arc<Fair>, tenant: &str) -> Turn {
        let mut turns = self.turns();
        turns.going += 1;
        turns.tenants.entry(tenant.to_owned()).or_default().going += 1;
        Turn { fair: self.clone(), tenant: tenant.to_owned() }
    }

    /// How many go on, and how many wait.
    pub fn figures(&self) -> (u64, usize) {
        let turns = self.turns();
        (turns.going, turns.tenants.values().map(|tenant| tenant.waiting.len()).sum())
    }

    fn ask(self: &Arc<Fair>, tenant: &str, most: Option<u64>) -> Result<Result<Turn, oneshot::Receiver<Turn>>, Busy> {
        let mut turns = self.turns();
        let going = turns.going;
        let own = turns.tenants.entry(tenant.to_owned()).or_default();
        own.most = most;
        own.forget_gone();
        if own.waiting.is_empty() && self.may_go(own, going) {
            own.going += 1;
            turns.going += 1;
            turns.last = tenant.to_owned();
            return Ok(Ok(Turn { fair: self.clone(), tenant: tenant.to_owned() }));
        }
        if own.waiting.len() >= MOST_WAITING {
            return Err(Busy::Queue);
        }
        let (send, waits) = oneshot::channel();
        own.waiting.push_back(send);
        Ok(Err(waits))
    }

    fn why(&self, tenant: &str) -> Busy {
        let mut turns = self.turns();
        let own = turns.tenants.entry(tenant.to_owned()).or_default();
        own.forget_gone();
        let why = match own.most.filter(|most| own.going >= *most) {
            Some(most) => Busy::Tenant(most),
            None => Busy::Node(self.most.unwrap_or(0)),
        };
        turns.tidy(tenant);
        why
    }

    fn end(self: &Arc<Fair>, tenant: &str) {
        let mut turns = self.turns();
        turns.going = turns.going.saturating_sub(1);
        if let Some(own) = turns.tenants.get_mut(tenant) {
            own.going = own.going.saturating_sub(1);
        }
        turns.tidy(tenant);
        self.serve(turns);
    }

    /// Gives free places to those who wait.
    fn serve(self: &Arc<Fair>, mut turns: MutexGuard<'_, Turns>) {
        let mut given = Vec::new();
        while self.has_room(&turns) {
            let going = turns.going;
            let Some(tenant) = turns.next(|own| self.may_go(own, going)) else { break };
            turns.last.clone_from(&tenant);
            let Some(own) = turns.tenants.get_mut(&tenant) else { break };
            let Some(waiting) = own.waiting.pop_front() else { continue };
            own.going += 1;
            turns.going += 1;
            given.push((waiting, Turn { fair: self.clone(), tenant }));
        }
        drop(turns);
        // Who has given up meanwhile lets the turn go again, to the next.
        given.into_iter().for_each(|(waiting, turn)| drop(waiting.send(turn)));
    }

    fn has_room(&self, turns: &Turns) -> bool {
        self.most.is_none_or(|most| turns.going < most)
    }

    /// Whether a tenant may have one more while so many are taken.
    fn may_go(&self, own: &Tenant, going: u64) -> bool {
        let left = self.most.map_or(u64::MAX, |most| most.saturating_sub(going));
        let leaves_enough = match self.sharing {
            Sharing::Nothing => true,
            Sharing::AsMuch => self.most.is_none_or(|most| has_share(most, own.going, going)),
        };
        left > 0 && own.has_room() && leaves_enough
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turns {
    /// The next tenant, behind the one who was served last, that waits and may go.
    fn next(&mut self, may_go: impl Fn(&Tenant) -> bool) -> Option<String> {
        self.tenants.values_mut().for_each(Tenant::forget_gone);
        let may_go = |(_, tenant): &(&String, &Tenant)| !tenant.waiting.is_empty() && may_go(tenant);
        let behind = self.tenants.range::<str, _>((Excluded(self.last.as_str()), Unbounded)).find(may_go);
        behind.or_else(|| self.tenants.iter().find(may_go)).map(|(name, _)| name.clone())
    }

    /// Forgets a tenant of whom nothing goes on.
    fn tidy(&mut self, tenant: &str) {
        if self.tenants.get(tenant).is_some_and(|own| own.going == 0 && own.waiting.is_empty()) {
            self.tenants.remove(tenant);
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(30);

    #[tokio::test]
    async fn one_tenant_does_not_starve_another() {
        let fair = Fair::new(Some(2));
        let order = Arc::new(Mutex::new(Vec::new()));
        let held = [fair.turn("a", None, LONG).await.unwrap(), fair.turn("a", None, LONG).await.unwrap()];
        let mut work = Vec::new();
        for (tenant, count) in [("a", 20), ("b", 3), ("c", 3)] {
            for _ in 0..count {
                let (fair, order) = (fair.clone(), order.clone());
                work.push(tokio::spawn(async move {
                    let turn = fair.turn(tenant, None, LONG).await.unwrap();
                    order.lock().unwrap().push(tenant);
                    tokio::task::yield_now().await;
                    drop(turn);
                }));
            }
            // In this order: all that the first wants is asked for before the others come.
            while fair.figures().1 < work.len() {
                tokio::task::yield_now().await;
            }
        }
        drop(held);
        for one in work {
            one.await.unwrap();
        }
        let order = order.lock().unwrap().clone();
        let last_of = |tenant| order.iter().rposition(|served| *served == tenant).unwrap();
        assert!(last_of("b") < 10 && last_of("c") < 10, "{order:?}");
        assert_eq!((order.len(), fair.figures()), (26, (0, 0)));
        assert!(fair.turns().tenants.is_empty(), "nothing is kept of those who are gone");
    }

    #[tokio::test]
    async fn bounds_hold_and_say_whose_they_are() {
        let fair = Fair::new(Some(3));
        let one = fair.turn("a", Some(1), SHORT).await.unwrap();
        assert_eq!(fair.turn("a", Some(1), SHORT).await.err(), Some(Busy::Tenant(1)));
        let _others = [fair.turn("b", None, SHORT).await.unwrap(), fair.adopt("b")];
        assert_eq!(fair.turn("b", None, SHORT).await.err(), Some(Busy::Node(3)));
        drop(one);
        assert!(fair.turn("a", Some(1), SHORT).await.is_ok());
    }

    #[tokio::test]
    async fn never_more_than_the_bound_and_nobody_is_forgotten() {
        let fair = Fair::new(Some(4));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut work = Vec::new();
        for number in 0..200usize {
            let (fair, now, most) = (fair.clone(), now.clone(), most.clone());
            work.push(tokio::spawn(async move {
                let tenant = ["a", "b", "c"][number % 3];
                // Some give up at once, with a turn on its way to them or not.
                let patience = if number % 7 == 0 { Duration::from_micros(50) } else { LONG };
                let Ok(turn) = fair.turn(tenant, Some(2), patience).await else { return false };
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_micros(200)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                drop(turn);
                true
            }));
        }
        let mut done = 0;
        for one in work {
            done += usize::from(one.await.unwrap());
        }
        assert!(done >= 171 && most.load(Ordering::SeqCst) <= 4, "{done}");
        assert_eq!(fair.figures(), (0, 0));
    }

    /// Two who take all that they can get leave some to a third, and to more who come after him; what they give back is for all.
    // promise 24
    #[tokio::test]
    async fn who_takes_what_lasts_leaves_some_to_others() {
        let shares = Shares::new(16, SHORT);
        let mut held = Vec::new();
        let mut have = Vec::new();
        for tenant in ["a", "b", "c", "d", "e", "f"] {
            let before = held.len();
            while let Some(turn) = shares.turn(tenant).await {
                held.push(turn);
            }
            have.push(held.len() - before);
        }
        assert_eq!(have, [8, 4, 2, 1, 1, 0]);
        // The one who came too late has the first that is free, though the others wait as well.
        let late = shares.fair.clone();
        let greedy: Vec<_> = (0..10).map(|_| late.ask("a", None).unwrap()).collect();
        let waits = tokio::spawn(async move { late.turn("f", None, LONG).await.is_ok() });
        while shares.fair.figures().1 < 11 {
            tokio::task::yield_now().await;
        }
        held.pop();
        assert!(waits.await.unwrap());
        assert!(greedy.iter().all(Result::is_err));
    }

    #[tokio::test]
    async fn a_queue_is_bounded() {
        let fair = Fair::new(Some(1));
        let _held = fair.turn("a", None, SHORT).await.unwrap();
        let waits: Vec<_> = (0..MOST_WAITING).map(|_| fair.ask("a", None).unwrap()).collect();
        assert_eq!(fair.turn("a", None, SHORT).await.err(), Some(Busy::Queue));
        assert!(fair.ask("b", None).is_ok(), "another's queue is his own");
        drop(waits);
        assert!(fair.ask("a", None).is_ok());
    }
}
