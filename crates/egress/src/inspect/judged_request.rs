//! A request that the judge allowed, from the decision to its end. Each outcome is reported exactly once: refused; or
//! failed; or opened, and later closed or failed with the byte counts.

use super::Session;
use super::headers::{Headers, is_lookalike};
use super::refusal::RequestRefusal;
use super::secrets::{self, Needles};
use crate::event::{Event, EventStage, Op};
use crate::request_judge::{Injection, RequestInfo};
use policy::{Action, Decision, HostName, Proto};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use terms::ErrorKind;
use tokio::time::sleep;

/// Interval at which a request without traffic checks for changed rules.
const RULES_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Limit on characters of a path in an event.
const MAX_REPORTED_PATH: usize = 2048;

/// A request with canonical host and raw path, to be judged.
pub(super) struct NormalizedRequest {
    pub host: HostName,
    /// Port, if the request names one.
    pub port: Option<u16>,
    pub method: String,
    /// Path with its query; `*` for a request about the server itself.
    pub path: String,
}

/// An allowed request.
pub(super) struct JudgedRequest {
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
    /// True if a person approved it.
    answered: bool,
}

impl Session {
    /// Judges a request. On return a refusal has been reported.
    pub async fn judge(
        self: &Arc<Session>,
        normalized: NormalizedRequest,
        headers: &(dyn Headers + Sync),
    ) -> Result<JudgedRequest, RequestRefusal> {
        let NormalizedRequest { host, port, method, path } = normalized;
        let revision = self.judge.revision();
        let mut judged = JudgedRequest {
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
            return Err(judged.refused(RequestRefusal::misdirected(self.misdirection(&host, port))));
        }
        let mut decision = self.judge.request(&judged.ask());
        if decision.action == Action::Ask {
            decision = self.judge.await_approval(&judged.ask(), decision).await;
            judged.answered = decision.allowed();
            judged.revision = self.judge.revision().into();
        }
        judged.action = decision.action;
        judged.rule.clone_from(&decision.rule);
        if !decision.allowed() {
            return Err(judged.refused(denial(&decision, &judged)));
        }
        judged.injections = self.judge.injections(&judged.ask());
        judged.with_secrets(headers)
    }

    fn misdirection(&self, host: &HostName, port: Option<u16>) -> String {
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let names: Vec<String> = self.hosts.iter().map(HostName::to_string).collect();
        format!(
            "the request is for {host}{port}, and the connection for {} at port {}",
            names.join(" or "),
            self.addr.port()
        )
    }

    /// Reports input that did not become a request to be judged.
    pub fn refuse_unread(&self, op: Op, name: Option<String>, reason: &str) {
        self.judge.record(Event {
            op,
            stage: EventStage::Refused,
            action: Action::Deny,
            rule: super::NO_RULE.to_owned(),
            revision: self.judge.revision(),
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

fn denial(decision: &Decision, judged: &JudgedRequest) -> RequestRefusal {
    RequestRefusal {
        status: 403,
        kind: ErrorKind::PolicyDenied,
        rule: Some(decision.rule.clone()),
        message: format!("{} refuses {} {}{}", decision.rule, judged.method, judged.host, judged.path),
        hint: decision.hint.clone(),
    }
}

impl JudgedRequest {
    /// Selects the secrets to inject. A credential of the guest's own in the same header is refused, because it could
    /// carry data out under another account.
    fn with_secrets(mut self, headers: &dyn Headers) -> Result<JudgedRequest, RequestRefusal> {
        if self.injections.is_empty() {
            return Ok(self);
        }
        let denied = |message: String| RequestRefusal {
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
            // Without TLS anyone on the path could read the secret. A special address (loopback, private) must be named
            // by a rule, and is taken to be nearby.
            Ok(_) if !self.session.is_secure() && !policy::is_special(self.session.addr.ip()) => {
                Err(self.refused(denied("a secret is not sent without TLS".to_owned()).hint("use https")))
            }
            Ok(_) => {
                self.needles = self.session.tls.needle_cache.needles(&self.injections);
                Ok(self)
            }
        }
    }

    /// Injects the secrets. The request must not be changed afterwards.
    pub fn inject(&self, headers: &mut dyn Headers) -> Result<(), RequestRefusal> {
        if self.injections.is_empty() {
            return Ok(());
        }
        secrets::request_plain_response(headers);
        let chosen = secrets::chosen(&self.injections, headers).unwrap_or_default();
        match chosen.iter().all(|i| headers.set(&i.header, &i.value)) {
            true => Ok(()),
            false => Err(RequestRefusal::unavailable(
                "cannot set a header to a secret: the secret contains a control character".into(),
            )),
        }
    }

    /// Returns the reason for not forwarding a response in which a secret could not be masked.
    pub fn unsearchable_reason(&self, status: u16, headers: &dyn Headers) -> Option<&'static str> {
        self.needles.as_ref().and_then(|_| secrets::unsearchable_reason(status, headers))
    }

    /// Masks secrets in the head or the trailers of a response.
    pub fn mask(&self, headers: &mut dyn Headers) {
        if let Some(needles) = &self.needles {
            headers.rewrite(&|value| needles.masked(value));
        }
    }

    /// Removes trailers with the name of an injected header: some servers merge trailers into the headers.
    pub fn clean_trailers(&self, trailers: &mut dyn Headers) {
        let named: Vec<String> = trailers.names().iter().map(|name| (*name).to_owned()).collect();
        for Injection { header, .. } in &self.injections {
            let same = named.iter().filter(|name| name.eq_ignore_ascii_case(header) || is_lookalike(name, header));
            same.for_each(|name| trailers.remove(name));
        }
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    fn ask(&self) -> RequestInfo<'_> {
        let addr = self.session.addr;
        RequestInfo { host: &self.host, addr: addr.ip(), port: addr.port(), method: &self.method, path: &self.path }
    }

    pub fn opened(&self) {
        self.open.store(true, Relaxed);
        self.record(EventStage::Opened, None, None);
    }

    /// Counts bytes to the guest and from it. Fails if the rules have changed and refuse the request now.
    pub fn passes(&self, bytes_in: usize, bytes_out: usize) -> Result<(), &'static str> {
        self.bytes_in.fetch_add(bytes_in as u64, Relaxed);
        self.bytes_out.fetch_add(bytes_out as u64, Relaxed);
        self.still_allowed()
    }

    fn still_allowed(&self) -> Result<(), &'static str> {
        let now = self.session.judge.revision();
        if self.revision.swap(now, Relaxed) == now {
            return Ok(());
        }
        let decision = self.session.judge.request(&self.ask());
        let still_asks = self.answered && decision.action == Action::Ask && decision.rule == self.rule;
        if still_asks || decision.allowed() {
            return Ok(());
        }
        Err("the rules have changed and refuse the request")
    }

    /// Waits until the request must be aborted, and returns the reason: idle for too long, or refused by changed rules.
    pub async fn until_aborted(&self) -> &'static str {
        let idle = self.session.tls.settings.idle;
        let (mut seen, mut quiet) = (0, Duration::ZERO);
        loop {
            let step = RULES_CHECK_INTERVAL.min(idle);
            sleep(step).await;
            if let Err(reason) = self.still_allowed() {
                return reason;
            }
            let passed = self.bytes_in.load(Relaxed) + self.bytes_out.load(Relaxed);
            quiet = if passed == seen { quiet + step } else { Duration::ZERO };
            seen = passed;
            if quiet >= idle {
                return "no bytes passed for too long";
            }
        }
    }

    fn refused(&self, refusal: RequestRefusal) -> RequestRefusal {
        self.record(EventStage::Refused, Some(refusal.message.clone()), refusal.hint.clone());
        refusal
    }

    /// Reports that the server could not be used.
    pub fn failed(&self, reason: &str) {
        self.open.store(false, Relaxed);
        self.record(EventStage::Failed, Some(reason.to_owned()), None);
    }

    fn record(&self, stage: EventStage, reason: Option<String>, hint: Option<String>) {
        // A refusal without a rule behind it is still reported as `deny`.
        let action = if stage == EventStage::Refused && self.action < Action::Ask { Action::Deny } else { self.action };
        self.session.judge.record(Event {
            op: Op::Request,
            stage,
            action,
            rule: self.rule.clone(),
            revision: self.revision.load(Relaxed),
            proto: Proto::Tcp,
            name: Some(self.host.clone()),
            address: Some(self.session.addr),
            method: Some(self.method.clone()),
            path: Some(self.path.chars().take(MAX_REPORTED_PATH).collect()),
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

impl Drop for JudgedRequest {
    /// Reports the end of an opened request, even if its connection is dropped.
    fn drop(&mut self) {
        if self.open.load(Relaxed) {
            self.record(EventStage::Closed, None, None);
        }
    }
}
