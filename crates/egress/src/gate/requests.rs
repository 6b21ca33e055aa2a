//! The gate as judge of inspected requests: decisions, secrets, events and byte counts.

use super::approvals::request_subject;
use super::{Gate, ask};
use crate::approval::ApprovedSubjects;
use crate::event::{Event, GuestSocket};
use crate::request_judge::{Injection, PendingDecision, RequestInfo, RequestJudge};
use policy::{Decision, NetRequest, Proto};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

impl RequestJudge for Gate {
    fn request(&self, request: &RequestInfo<'_>) -> Decision {
        let remote = SocketAddr::new(request.addr, request.port);
        let host = Some(request.host);
        let ask =
            NetRequest { method: Some(request.method), path: Some(request.path), ..ask(Proto::Tcp, host, remote) };
        let rules = self.rules();
        let decision = rules.policy.net(&ask);
        let subject = request_subject(&decision.rule, request);
        self.apply_approvals(&rules, decision, &subject, &ApprovedSubjects::default()).0
    }

    fn await_approval<'a>(&'a self, request: &'a RequestInfo<'a>, decision: Decision) -> PendingDecision<'a> {
        Box::pin(self.await_request_approval(request, decision, None))
    }

    fn injections(&self, request: &RequestInfo<'_>) -> Vec<Injection> {
        let Ok(host) = policy::HostName::parse(request.host) else {
            return Vec::new();
        };
        let rules = self.rules();
        let wanted = rules.policy.policy().secrets.iter().map(|s| &s.rule).filter(|secret| secret.host == host);
        let secrets = self.secrets.read().unwrap_or_else(PoisonError::into_inner);
        let valued = wanted.filter_map(|secret| {
            let value = secrets.iter().find(|value| value.name == secret.name)?;
            Some(Injection {
                header: secret.header.clone(),
                placeholder: value.placeholder.clone(),
                value: filled(&secret.format, &value.value).into(),
                secret: value.value.as_slice().into(),
            })
        });
        valued.collect()
    }

    fn revision(&self) -> u64 {
        self.rules().revision
    }

    /// Looks up the process before the event of a refusal or warning is queued. The guest has no answer yet at this
    /// point, so its socket still exists.
    fn record(&self, mut event: Event) {
        if let (true, Some(socket)) = (event.is_notable(), event.socket) {
            let mut run_context = self.run_context.lock().unwrap_or_else(PoisonError::into_inner);
            event.actor = run_context.process_lookup.as_mut().and_then(|lookup| lookup(socket));
        }
        self.events.push(event);
    }

    fn count_bytes(&self, bytes_in: u64, bytes_out: u64) -> bool {
        let bytes = bytes_in.saturating_add(bytes_out);
        let total = self.spent.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let within = self.limit.is_none_or(|limit| total <= limit);
        if !within && self.state.send_if_modified(|state| !std::mem::replace(&mut state.is_over_limit, true)) {
            self.events.signal();
        }
        within
    }
}

/// Judge for the requests of one guest connection: adds the connection's socket and run to events.
pub(crate) struct ConnectionJudge {
    gate: Arc<Gate>,
    socket: Option<GuestSocket>,
    run: Option<Arc<str>>,
}

impl ConnectionJudge {
    pub fn new(gate: &Arc<Gate>, socket: Option<GuestSocket>) -> ConnectionJudge {
        ConnectionJudge { gate: gate.clone(), socket, run: gate.run_of(socket) }
    }
}

impl RequestJudge for ConnectionJudge {
    fn request(&self, request: &RequestInfo<'_>) -> Decision {
        self.gate.request(request)
    }

    fn await_approval<'a>(&'a self, request: &'a RequestInfo<'a>, decision: Decision) -> PendingDecision<'a> {
        Box::pin(self.gate.await_request_approval(request, decision, self.socket))
    }

    fn injections(&self, request: &RequestInfo<'_>) -> Vec<Injection> {
        self.gate.injections(request)
    }

    fn revision(&self) -> u64 {
        self.gate.revision()
    }

    fn record(&self, event: Event) {
        self.gate.record(Event { socket: self.socket, run: self.run.clone(), ..event });
    }

    fn count_bytes(&self, bytes_in: u64, bytes_out: u64) -> bool {
        self.gate.count_bytes(bytes_in, bytes_out)
    }
}

/// Replaces `{}` in the format by the secret.
fn filled(format: &str, secret: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = format.split("{}").map(str::as_bytes).collect();
    parts.join(secret)
}
