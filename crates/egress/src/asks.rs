//! Questions to a person. What a rule says `ask` of waits until somebody answers, or until nobody did for too long;
//! meanwhile nothing of it leaves. The table is bounded, and so is what one guest may ask in all: nobody is to be worn
//! down into saying yes.

use crate::event::Op;
use policy::Proto;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use terms::Actor;
use tokio::sync::oneshot;

/// Open at a time.
pub const MOST_OPEN: usize = 16;
/// Asked in all by one guest; those beyond are refused.
pub const MOST_ASKED: u64 = 256;
/// Connections that wait for the answer to one question.
const MOST_WAITING: usize = 256;
/// How long an answer about a name, or about datagrams, holds when it was given for once: programs ask for a name more
/// than once, and connect after that.
pub const ONCE: Duration = Duration::from_secs(30);

/// How long an answer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remember {
    /// For what waits now.
    Once,
    /// As long as the guest's network stands.
    Run,
}

/// What somebody is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub id: u64,
    pub op: &'static str,
    /// `host:port`, a name, or a method with a URL that has no query.
    pub target: String,
    pub rule: String,
    /// Who wants it, where that was found.
    pub actor: Option<Actor>,
    /// In milliseconds since 1970.
    pub asked_ms: u64,
    pub deadline_ms: u64,
}

/// Why a question cannot be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotOpen;

/// The questions of one guest.
pub struct Questions {
    patience: Duration,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    open: BTreeMap<u64, Open>,
    asked: u64,
    answers: BTreeMap<Matter, Kept>,
}

struct Open {
    matter: Matter,
    question: Question,
    until: Instant,
    waiting: BTreeMap<u64, oneshot::Sender<bool>>,
}

/// An answer that holds for others, too.
struct Kept {
    allow: bool,
    until: Option<Instant>,
}

/// What a question is about, as far as answers are told apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Matter {
    pub rule: String,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    Name(String),
    Connect { proto: &'static str, host: Option<String>, at: SocketAddr },
    Request { host: String, at: SocketAddr, method: String, path: String },
}

impl Matter {
    pub fn connect(rule: &str, proto: Proto, host: Option<&str>, at: SocketAddr) -> Matter {
        let what = What::Connect { proto: proto.name(), host: host.map(str::to_owned), at };
        Matter { rule: rule.to_owned(), what }
    }

    pub fn op(&self) -> Op {
        match self.what {
            What::Name(_) => Op::Resolve,
            What::Connect { .. } => Op::Connect,
            What::Request { .. } => Op::Request,
        }
    }

    /// As a person reads it.
    pub fn target(&self) -> String {
        match &self.what {
            What::Name(name) => name.clone(),
            What::Connect { proto, host, at } if *proto == Proto::Icmp.name() => {
                format!("icmp:{}", host.clone().unwrap_or_else(|| at.ip().to_string()))
            }
            What::Connect { host: Some(host), at, .. } => format!("{host}:{}", at.port()),
            What::Connect { host: None, at, .. } => at.to_string(),
            What::Request { host, at, method, path } => {
                let path = path.split(['?', '#']).next().unwrap_or(path);
                format!("{method} {host}:{}{path}", at.port())
            }
        }
    }

    /// Whether an answer to this one is an answer to `other`, too. An answer about a name is one about connections in that
    /// name by the same rule, and one about an address about whatever is said there; `whole` says that the rule makes no
    /// difference between requests.
    fn covers(&self, other: &Matter, whole: bool) -> bool {
        if self == other {
            return true;
        }
        if self.rule != other.rule {
            return false;
        }
        match (&self.what, &other.what) {
            (What::Name(name), What::Connect { host: Some(host), .. }) => name == host,
            (What::Name(name), What::Request { host, .. }) => whole && name == host,
            (What::Connect { proto: a, host: None, at }, What::Connect { proto: b, at: there, .. }) => {
                a == b && at == there
            }
            (What::Connect { host, at, .. }, What::Request { host: named, at: there, .. }) => {
                whole && at == there && host.as_ref().is_none_or(|host| host == named)
            }
            _ => false,
        }
    }

    /// Whether an answer for once must hold a little longer than for what waits.
    fn lingers(&self) -> bool {
        match &self.what {
            What::Name(_) => true,
            What::Connect { proto, .. } => *proto != Proto::Tcp.name(),
            What::Request { .. } => false,
        }
    }
}

/// What one flow was let through with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leave(Vec<Matter>);

impl Leave {
    pub fn add(&mut self, matter: Matter) {
        if !self.0.contains(&matter) {
            self.0.push(matter);
        }
    }

    pub fn covers(&self, matter: &Matter, whole: bool) -> bool {
        self.0.iter().any(|given| given.covers(matter, whole))
    }
}

/// How waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Allow,
    Deny,
    Nobody,
}

/// One that waits for an answer. Dropped, it waits no longer, and a question that nobody waits for is closed.
pub(crate) struct Pending {
    questions: Arc<Questions>,
    id: u64,
    number: u64,
    until: Instant,
    answer: oneshot::Receiver<bool>,
    /// The question, when it was asked now and not before.
    pub fresh: Option<Question>,
}

impl Pending {
    pub async fn wait(&mut self) -> Answer {
        match tokio::time::timeout_at(self.until.into(), &mut self.answer).await {
            Ok(Ok(true)) => Answer::Allow,
            Ok(Ok(false)) => Answer::Deny,
            Ok(Err(_)) | Err(_) => {
                self.questions.unanswered(self.id);
                Answer::Nobody
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut table = self.questions.table();
        let Some(open) = table.open.get_mut(&self.id) else { return };
        open.waiting.remove(&self.number);
        if open.waiting.is_empty() {
            table.open.remove(&self.id);
        }
    }
}

impl Questions {
    /// Who is not answered within `patience` is refused.
    pub fn new(patience: Duration) -> Arc<Questions> {
        Arc::new(Questions { patience, table: Mutex::default() })
    }

    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Those that wait for an answer, the oldest first.
    pub fn open(&self) -> Vec<Question> {
        let now = Instant::now();
        self.table().open.values().filter(|open| open.until > now).map(|open| open.question.clone()).collect()
    }

    /// Answers a question; what was asked.
    pub fn answer(&self, id: u64, allow: bool, remember: Remember) -> Result<Question, NotOpen> {
        let mut table = self.table();
        let open = table.open.remove(&id).filter(|open| open.until > Instant::now()).ok_or(NotOpen)?;
        let until = match remember {
            Remember::Run => Some(None),
            Remember::Once if open.matter.lingers() => Some(Some(Instant::now() + ONCE)),
            Remember::Once => None,
        };
        if let Some(until) = until {
            table.answers.insert(open.matter, Kept { allow, until });
        }
        drop(table);
        for waiting in open.waiting.into_values() {
            // Who has given up meanwhile does not hear it.
            let _ = waiting.send(allow);
        }
        Ok(open.question)
    }

    /// What was answered before, and still holds.
    pub(crate) fn known(&self, matter: &Matter, whole: bool) -> Option<bool> {
        let now = Instant::now();
        let mut table = self.table();
        table.answers.retain(|_, kept| kept.until.is_none_or(|until| until > now));
        let mut found = table.answers.iter().filter(|(given, _)| given.covers(matter, whole)).map(|(_, kept)| kept);
        // Of two answers a refusal counts.
        found.clone().any(|kept| !kept.allow).then_some(false).or_else(|| found.next().map(|kept| kept.allow))
    }

    /// Asks, or joins those who wait for the same. `Err` says why nobody is asked.
    pub(crate) fn ask(
        self: &Arc<Questions>,
        matter: &Matter,
        actor: impl FnOnce() -> Option<Actor>,
    ) -> Result<Pending, String> {
        let (send, answer) = oneshot::channel();
        let now = Instant::now();
        let mut table = self.table();
        let known = table.open.iter().find(|(_, open)| open.matter == *matter && open.until > now).map(|(id, _)| *id);
        let (id, fresh) = match known {
            Some(id) => (id, None),
            None if table.open.len() >= MOST_OPEN => return Err(format!("{MOST_OPEN} questions are open already")),
            None if table.asked >= MOST_ASKED => return Err(format!("{MOST_ASKED} questions were asked already")),
            None => {
                table.asked += 1;
                let asked_ms = now_ms();
                let question = Question {
                    id: table.asked,
                    op: matter.op().name(),
                    target: matter.target(),
                    rule: matter.rule.clone(),
                    actor: actor(),
                    asked_ms,
                    deadline_ms: asked_ms.saturating_add(self.patience.as_millis() as u64),
                };
                let open = Open {
                    matter: matter.clone(),
                    question: question.clone(),
                    until: now + self.patience,
                    waiting: BTreeMap::new(),
                };
                table.open.insert(question.id, open);
                (question.id, Some(question))
            }
        };
        let Some(open) = table.open.get_mut(&id) else { return Err("the question is gone".to_owned()) };
        if open.waiting.len() >= MOST_WAITING {
            return Err(format!("{MOST_WAITING} wait for the same answer already"));
        }
        let number = open.waiting.last_key_value().map_or(0, |(last, _)| last + 1);
        open.waiting.insert(number, send);
        let until = open.until;
        drop(table);
        Ok(Pending { questions: self.clone(), id, number, until, answer, fresh })
    }

    /// Nobody answered in time. Who asks again for a name at once is not to make somebody be asked again at once.
    fn unanswered(&self, id: u64) {
        let mut table = self.table();
        if let Some(open) = table.open.remove(&id).filter(|open| open.matter.lingers()) {
            let until = Some(Instant::now() + ONCE);
            table.answers.insert(open.matter, Kept { allow: false, until });
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
