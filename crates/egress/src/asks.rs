//! Questions to a person. What a rule says `ask` of waits until somebody answers, or until nobody did for too long;
//! meanwhile nothing of it leaves. The table is bounded, and so is what one guest may ask in all: nobody is to be worn
//! down into saying yes.

use crate::event::Op;
use policy::Proto;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
/// The same for programs: a shell that may not start one looks for it under the next name in PATH, which often is another
/// name of the same.
pub const ONCE_FOR_PROGRAMS: Duration = Duration::from_secs(3);

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
    /// `host:port`, a name, a method with a URL that has no query, `unix:` with a path, or a path.
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
    /// Readable once something was asked, answered or given up.
    changed: Option<OwnedFd>,
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
    Connect {
        proto: &'static str,
        host: Option<String>,
        at: SocketAddr,
    },
    Request {
        host: String,
        at: SocketAddr,
        method: String,
        path: String,
    },
    /// Something of the host's own, which is no matter of the network's: a socket or a file.
    Local {
        op: &'static str,
        target: String,
    },
}

impl Matter {
    pub fn connect(rule: &str, proto: Proto, host: Option<&str>, at: SocketAddr) -> Matter {
        let what = What::Connect { proto: proto.name(), host: host.map(str::to_owned), at };
        Matter { rule: rule.to_owned(), what }
    }

    /// What it is on the network; what is none of the network's has no such name.
    pub fn op(&self) -> Option<Op> {
        match self.what {
            What::Name(_) => Some(Op::Resolve),
            What::Connect { .. } => Some(Op::Connect),
            What::Request { .. } => Some(Op::Request),
            What::Local { .. } => None,
        }
    }

    fn op_name(&self) -> &'static str {
        match self.what {
            What::Local { op, .. } => op,
            _ => self.op().map_or("", Op::name),
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
            What::Local { target, .. } => target.clone(),
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

    /// How much longer an answer for once must hold than for what waits.
    fn lingers(&self) -> Option<Duration> {
        match &self.what {
            What::Name(_) => Some(ONCE),
            What::Connect { proto, .. } => (*proto != Proto::Tcp.name()).then_some(ONCE),
            What::Local { op: "exec", .. } => Some(ONCE_FOR_PROGRAMS),
            What::Request { .. } | What::Local { .. } => None,
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
pub enum Answer {
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
            drop(table);
            self.questions.tell();
        }
    }
}

/// One that waits outside the network, and looks for its answer now and then.
pub struct Waiting(Pending);

impl Waiting {
    /// The question, when it was asked now and not before.
    pub fn fresh(&self) -> Option<&Question> {
        self.0.fresh.as_ref()
    }

    /// The answer, once there is one or there will be none.
    pub fn heard(&mut self) -> Option<Answer> {
        match self.0.answer.try_recv() {
            Ok(true) => Some(Answer::Allow),
            Ok(false) => Some(Answer::Deny),
            Err(oneshot::error::TryRecvError::Empty) if Instant::now() < self.0.until => None,
            Err(_) => {
                self.0.questions.unanswered(self.0.id);
                Some(Answer::Nobody)
            }
        }
    }
}

/// What came of asking.
pub enum Begun {
    /// It was answered before, and that still holds.
    Known(bool),
    Waits(Waiting),
}

impl Questions {
    /// Who is not answered within `patience` is refused.
    pub fn new(patience: Duration) -> Arc<Questions> {
        let changed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        Arc::new(Questions { patience, table: Mutex::default(), changed })
    }

    /// Readable once something was asked, answered or given up since the last `seen`.
    pub fn changed(&self) -> Option<BorrowedFd<'_>> {
        self.changed.as_ref().map(AsFd::as_fd)
    }

    pub fn seen(&self) {
        if let Some(changed) = &self.changed {
            // Nothing to read is nothing new.
            let _ = rustix::io::read(changed, &mut [0u8; 8]);
        }
    }

    fn tell(&self) {
        if let Some(changed) = &self.changed {
            // A counter that is full is readable, too.
            let _ = rustix::io::write(changed, &1u64.to_ne_bytes());
        }
    }

    /// Asks about something of the host's own. `Err` says why nobody is asked.
    pub fn ask_about(
        self: &Arc<Questions>,
        rule: &str,
        op: &'static str,
        target: &str,
        actor: Actor,
    ) -> Result<Begun, String> {
        let matter = Matter { rule: rule.to_owned(), what: What::Local { op, target: target.to_owned() } };
        match self.known(&matter, true) {
            Some(allow) => Ok(Begun::Known(allow)),
            None => self.ask(&matter, || Some(actor)).map(|pending| Begun::Waits(Waiting(pending))),
        }
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
            Remember::Once => open.matter.lingers().map(|time| Some(Instant::now() + time)),
        };
        if let Some(until) = until {
            table.answers.insert(open.matter, Kept { allow, until });
        }
        drop(table);
        self.tell();
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
                    op: matter.op_name(),
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
        if fresh.is_some() {
            self.tell();
        }
        Ok(Pending { questions: self.clone(), id, number, until, answer, fresh })
    }

    /// Nobody answered in time. Who asks again for a name at once is not to make somebody be asked again at once.
    fn unanswered(&self, id: u64) {
        let mut table = self.table();
        if let Some(open) = table.open.remove(&id)
            && let Some(time) = open.matter.lingers()
        {
            table.answers.insert(open.matter, Kept { allow: false, until: Some(Instant::now() + time) });
        }
        drop(table);
        self.tell();
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
