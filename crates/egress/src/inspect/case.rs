//! One request before the court, from the question to its end. Whatever becomes of it is told exactly so: refused; or
//! failed; or opened, and later closed or failed with the bytes that passed.

use super::Session;
use super::answer::Refusal;
use super::headers::{Headers, is_twin};
use super::secrets::{self, Needles};
use crate::court::{Injection, RequestAsk};
use crate::event::{Event, Op, Stage};
use policy::{Action, Decision, HostName, Proto};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use terms::ErrorKind;
use tokio::time::sleep;

/// How soon a request that moves no bytes feels other rules.
const LOOK: Duration = Duration::from_secs(1);
/// What is told of a path.
const MAX_TOLD: usize = 2048;

/// A request in the words of the policy.
pub(super) struct Asked {
    pub host: HostName,
    /// Where the request names one.
    pub port: Option<u16>,
    pub method: String,
    /// With its query; `*` for a request about the server itself.
    pub path: String,
}

/// A request that is let through.
pub(super) struct Case {
    session: Arc<Session>,
    host: String,
    method: String,
    path: String,
    action: Action,
    rule: String,
    revision: AtomicU64,
    pub injections: Vec<Injection>,
    pub needles: Option<Arc<Needles>>,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    open: AtomicBool,
    /// A person let it through.
    answered: bool,
}

impl Session {
    /// Judges a request. A refusal has been told when this returns.
    pub async fn judge(self: &Arc<Session>, asked: Asked, headers: &(dyn Headers + Sync)) -> Result<Case, Refusal> {
        let Asked { host, port, method, path } = asked;
        let revision = self.court.revision();
        let mut case = Case {
            session: self.clone(),
            host: host.to_string(),
            method,
            path,
            action: Action::Deny,
            rule: super::NO_RULE.to_owned(),
            revision: revision.into(),
            injections: Vec::new(),
            needles: None,
            bytes_in: 0.into(),
            bytes_out: 0.into(),
            open: false.into(),
            answered: false,
        };
        if !self.hosts.contains(&host) || port.is_some_and(|port| port != self.addr.port()) {
            return Err(case.refused(Refusal::misdirected(self.elsewhere(&host, port))));
        }
        let mut decision = self.court.request(&case.ask());
        if decision.action == Action::Ask {
            decision = self.court.settle(&case.ask(), decision).await;
            case.answered = decision.allowed();
            case.revision = self.court.revision().into();
        }
        case.action = decision.action;
        case.rule.clone_from(&decision.rule);
        if !decision.allowed() {
            return Err(case.refused(denial(&decision, &case)));
        }
        case.injections = self.court.injections(&case.ask());
        case.with_secrets(headers)
    }

    fn elsewhere(&self, host: &HostName, port: Option<u16>) -> String {
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let names: Vec<String> = self.hosts.iter().map(HostName::to_string).collect();
        format!(
            "the request is for {host}{port}, and the connection for {} at port {}",
            names.join(" or "),
            self.addr.port()
        )
    }

    /// Tells of something that never became a request that could be judged.
    pub fn refuse_unread(&self, op: Op, name: Option<String>, reason: &str) {
        self.court.tell(Event {
            op,
            stage: Stage::Refused,
            action: Action::Deny,
            rule: super::NO_RULE.to_owned(),
            revision: self.court.revision(),
            proto: Proto::Tcp,
            name,
            address: Some(self.addr),
            method: None,
            path: None,
            bytes_in: 0,
            bytes_out: 0,
            reason: Some(reason.to_owned()),
            hint: None,
            socket: None,
            actor: None,
            run: None,
        });
    }
}

fn denial(decision: &Decision, case: &Case) -> Refusal {
    Refusal {
        status: 403,
        kind: ErrorKind::PolicyDenied,
        rule: Some(decision.rule.clone()),
        message: format!("{} refuses {} {}{}", decision.rule, case.method, case.host, case.path),
        hint: decision.hint.clone(),
    }
}

impl Case {
    /// The requests that need a secret get it; a credential of the guest's own in its place is refused, for it could
    /// carry something out under another account.
    fn with_secrets(mut self, headers: &dyn Headers) -> Result<Case, Refusal> {
        if self.injections.is_empty() {
            return Ok(self);
        }
        let denied = |message: String| Refusal {
            status: 403,
            kind: ErrorKind::PolicyDenied,
            rule: Some(self.rule.clone()),
            message,
            hint: None,
        };
        match secrets::chosen(&self.injections, headers) {
            Err(header) => {
                let message = format!("the header {header} holds a credential of its own");
                Err(self.refused(denied(message).hint("leave it out, or put the placeholder of the secret there")))
            }
            // Anyone on the way could read it. An address that a rule had to name is taken to be near.
            Ok(_) if !self.session.is_secure() && !policy::is_special(self.session.addr.ip()) => {
                Err(self.refused(denied("a secret is not sent without TLS".to_owned()).hint("use https")))
            }
            Ok(_) => {
                self.needles = self.session.tls.spelled.needles(&self.injections);
                Ok(self)
            }
        }
    }

    /// Puts the secrets in. Nothing else of the request may be changed after that.
    pub fn inject(&self, headers: &mut dyn Headers) -> Result<(), Refusal> {
        if self.injections.is_empty() {
            return Ok(());
        }
        secrets::ask_plainly(headers);
        let chosen = secrets::chosen(&self.injections, headers).unwrap_or_default();
        match chosen.iter().all(|i| headers.set(&i.header, &i.value)) {
            true => Ok(()),
            false => {
                Err(Refusal::unavailable("a secret cannot stand in a header: it holds a control character".into()))
            }
        }
    }

    /// Why an answer cannot be passed on, because nobody could mask a secret in it.
    pub fn hides(&self, status: u16, headers: &dyn Headers) -> Option<&'static str> {
        self.needles.as_ref().and_then(|_| secrets::hidden(status, headers))
    }

    /// Takes secrets out of the head or the trailers of an answer.
    pub fn mask(&self, headers: &mut dyn Headers) {
        if let Some(needles) = &self.needles {
            headers.rewrite(&|value| needles.masked(value));
        }
    }

    /// Some servers read trailers as if they were headers; one that a secret goes into must not come a second time.
    pub fn clean_trailers(&self, trailers: &mut dyn Headers) {
        let named: Vec<String> = trailers.names().iter().map(|name| (*name).to_owned()).collect();
        for Injection { header, .. } in &self.injections {
            let same = named.iter().filter(|name| name.eq_ignore_ascii_case(header) || is_twin(name, header));
            same.for_each(|name| trailers.remove(name));
        }
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    fn ask(&self) -> RequestAsk<'_> {
        let addr = self.session.addr;
        RequestAsk { host: &self.host, addr: addr.ip(), port: addr.port(), method: &self.method, path: &self.path }
    }

    pub fn opened(&self) {
        self.open.store(true, Relaxed);
        self.tell(Stage::Opened, None, None);
    }

    /// Counts bytes to the guest and from it. `Err` when the rules have changed and refuse the request now.
    pub fn passes(&self, bytes_in: usize, bytes_out: usize) -> Result<(), &'static str> {
        self.bytes_in.fetch_add(bytes_in as u64, Relaxed);
        self.bytes_out.fetch_add(bytes_out as u64, Relaxed);
        self.still_allowed()
    }

    fn still_allowed(&self) -> Result<(), &'static str> {
        let now = self.session.court.revision();
        if self.revision.swap(now, Relaxed) == now {
            return Ok(());
        }
        let decision = self.session.court.request(&self.ask());
        let still_asks = self.answered && decision.action == Action::Ask && decision.rule == self.rule;
        if still_asks || decision.allowed() {
            return Ok(());
        }
        Err("the rules have changed and refuse it")
    }

    /// Returns, with the reason, when the request must be cut: nothing moved for too long, or the rules have changed.
    pub async fn overdue(&self) -> &'static str {
        let idle = self.session.tls.settings.idle;
        let (mut seen, mut quiet) = (0, Duration::ZERO);
        loop {
            let step = LOOK.min(idle);
            sleep(step).await;
            if let Err(reason) = self.still_allowed() {
                return reason;
            }
            let passed = self.bytes_in.load(Relaxed) + self.bytes_out.load(Relaxed);
            quiet = if passed == seen { quiet + step } else { Duration::ZERO };
            seen = passed;
            if quiet >= idle {
                return "nothing passed for too long";
            }
        }
    }

    fn refused(&self, refusal: Refusal) -> Refusal {
        self.tell(Stage::Refused, Some(refusal.message.clone()), refusal.hint.clone());
        refusal
    }

    /// The server could not be used.
    pub fn failed(&self, reason: &str) {
        self.open.store(false, Relaxed);
        self.tell(Stage::Failed, Some(reason.to_owned()), None);
    }

    fn tell(&self, stage: Stage, reason: Option<String>, hint: Option<String>) {
        // A refusal for another reason than a rule is still a refusal.
        let action = if stage == Stage::Refused && self.action < Action::Ask { Action::Deny } else { self.action };
        self.session.court.tell(Event {
            op: Op::Request,
            stage,
            action,
            rule: self.rule.clone(),
            revision: self.revision.load(Relaxed),
            proto: Proto::Tcp,
            name: Some(self.host.clone()),
            address: Some(self.session.addr),
            method: Some(self.method.clone()),
            path: Some(self.path.chars().take(MAX_TOLD).collect()),
            bytes_in: self.bytes_in.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
            reason,
            hint,
            socket: None,
            actor: None,
            run: None,
        });
    }
}

impl Drop for Case {
    /// A request that was opened is closed, even when its connection is dropped under it.
    fn drop(&mut self) {
        if self.open.load(Relaxed) {
            self.tell(Stage::Closed, None, None);
        }
    }
}
