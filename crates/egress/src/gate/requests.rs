//! The gate as the inspector of requests sees it: judges each, hands out secrets, hears what happened, counts bytes.

use super::asked::request_matter;
use super::{Gate, ask};
use crate::asks::Leave;
use crate::court::{Court, Injection, RequestAsk, Settling};
use crate::event::{Event, Socket};
use policy::{Decision, NetAsk, Proto};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

impl Court for Gate {
    fn request(&self, asked: &RequestAsk<'_>) -> Decision {
        let place = SocketAddr::new(asked.addr, asked.port);
        let host = Some(asked.host);
        let ask = NetAsk { method: Some(asked.method), path: Some(asked.path), ..ask(Proto::Tcp, host, place) };
        let rules = self.rules();
        let decision = rules.policy.net(&ask);
        let matter = request_matter(&decision.rule, asked);
        self.lift(&rules, decision, &matter, &Leave::default()).0
    }

    fn settle<'a>(&'a self, asked: &'a RequestAsk<'a>, decision: Decision) -> Settling<'a> {
        Box::pin(self.settle_request(asked, decision, None))
    }

    fn injections(&self, ask: &RequestAsk<'_>) -> Vec<Injection> {
        let Ok(host) = policy::HostName::parse(ask.host) else {
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

    /// Whoever is told of a refusal wants to know whose it is. The guest learns of it only after this, so its socket is
    /// still there to be found.
    fn tell(&self, mut event: Event) {
        if let (true, Some(socket)) = (event.is_notable(), event.socket) {
            let mut around = self.around.lock().unwrap_or_else(PoisonError::into_inner);
            event.actor = around.who.as_mut().and_then(|who| who(socket));
        }
        self.journal.push(event);
    }

    fn spend(&self, bytes_in: u64, bytes_out: u64) -> bool {
        let bytes = bytes_in.saturating_add(bytes_out);
        let total = self.spent.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let within = self.limit.is_none_or(|limit| total <= limit);
        if !within && self.state.send_if_modified(|state| !std::mem::replace(&mut state.over, true)) {
            self.journal.ring();
        }
        within
    }
}

/// The gate for the requests of one connection, which knows where they come from.
pub(crate) struct FromGuest {
    gate: Arc<Gate>,
    socket: Option<Socket>,
    run: Option<Arc<str>>,
}

impl FromGuest {
    pub fn new(gate: &Arc<Gate>, socket: Option<Socket>) -> FromGuest {
        FromGuest { gate: gate.clone(), socket, run: gate.run_of(socket) }
    }
}

impl Court for FromGuest {
    fn request(&self, ask: &RequestAsk<'_>) -> Decision {
        self.gate.request(ask)
    }

    fn settle<'a>(&'a self, asked: &'a RequestAsk<'a>, decision: Decision) -> Settling<'a> {
        Box::pin(self.gate.settle_request(asked, decision, self.socket))
    }

    fn injections(&self, ask: &RequestAsk<'_>) -> Vec<Injection> {
        self.gate.injections(ask)
    }

    fn revision(&self) -> u64 {
        self.gate.revision()
    }

    fn tell(&self, event: Event) {
        self.gate.tell(Event { socket: self.socket, run: self.run.clone(), ..event });
    }

    fn spend(&self, bytes_in: u64, bytes_out: u64) -> bool {
        self.gate.spend(bytes_in, bytes_out)
    }
}

/// The format with the secret in place of `{}`.
fn filled(format: &str, secret: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = format.split("{}").map(str::as_bytes).collect();
    parts.join(secret)
}
