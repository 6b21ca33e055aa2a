//! What a person is asked: how something waits for an answer, and what an answer lifts.

use super::ruling::{Asking, Candidate, Ruling, Settled};
use super::{Gate, Rules};
use crate::asks::{Answer, Leave, Matter, What};
use crate::court::{Court, RequestAsk};
use crate::event::{Socket, Stage};
use policy::{Decision, Proto};
use std::net::SocketAddr;
use std::sync::PoisonError;
use terms::Action;

impl Gate {
    /// Whether a person could be asked about it.
    pub fn can_ask(&self, ruling: &Ruling) -> bool {
        ruling.action == Action::Ask && self.asks.is_some()
    }

    /// Holds something until a person has answered, nobody did in time, or other rules came.
    pub async fn settle(&self, matter: &Matter, ruling: &Ruling, asking: Asking<'_>) -> Settled {
        let Some(asks) = &self.asks else { return Settled::Refused(ruling.clone()) };
        let mut state = self.watch();
        let who = || {
            let mut around = self.around.lock().unwrap_or_else(PoisonError::into_inner);
            around.who.as_mut().zip(asking.socket).and_then(|(who, socket)| who(socket))
        };
        let refused = |reason: String| {
            // That it asks is what the rule says; that nobody can answer would not be true here.
            Settled::Refused(Ruling { reason: Some(reason), hint: None, ..ruling.clone() })
        };
        let mut pending = match asks.ask(matter, who) {
            Ok(pending) => pending,
            Err(reason) => return refused(reason),
        };
        if let Some((question, op)) = pending.fresh.take().zip(matter.op()) {
            let mut event = ruling.event(op, Stage::Asked, asking.proto, asking.address);
            (event.hint, event.socket, event.actor) = (None, asking.socket, question.actor);
            event.run = self.run_of(asking.socket);
            (event.method, event.path) = asking.request.map(|(m, p)| (m.to_owned(), p.to_owned())).unzip();
            self.journal.push(event);
        }
        let answer = tokio::select! {
            answer = pending.wait() => answer,
            changed = state.changed() => match changed {
                Ok(()) => return Settled::Changed,
                Err(_) => Answer::Nobody,
            },
        };
        match answer {
            Answer::Allow => Settled::Allowed,
            Answer::Deny => refused("a person refused it".to_owned()),
            Answer::Nobody => refused(format!("nobody answered within {} s", asks.patience().as_secs_f64())),
        }
    }

    /// What holds once the answers are heard; and whether one of them lifted it.
    pub(super) fn lift(&self, rules: &Rules, decision: Decision, matter: &Matter, leave: &Leave) -> (Decision, bool) {
        if decision.action != Action::Ask {
            return (decision, false);
        }
        let whole = rules.is_whole(&matter.rule);
        let known = || self.asks.as_ref().and_then(|asks| asks.known(matter, whole));
        match leave.covers(matter, whole).then_some(true).or_else(known) {
            None => (decision, false),
            Some(true) => (Decision { action: Action::Allow, hint: None, ..decision }, true),
            Some(false) => {
                let hint = Some("a person refused it".to_owned());
                (Decision { action: Action::Deny, hint, ..decision }, false)
            }
        }
    }

    /// Asks a person about a request.
    pub(super) async fn settle_request(
        &self,
        asked: &RequestAsk<'_>,
        decision: Decision,
        socket: Option<Socket>,
    ) -> Decision {
        let mut decision = decision;
        while decision.action == Action::Ask && self.asks.is_some() {
            let matter = request_matter(&decision.rule, asked);
            let ruling = Ruling::of(decision.clone(), Some(asked.host), self.rules().revision);
            let address = Some(SocketAddr::new(asked.addr, asked.port));
            let asking = Asking { proto: Proto::Tcp, address, socket, request: Some((asked.method, asked.path)) };
            match self.settle(&matter, &ruling, asking).await {
                Settled::Allowed => decision = Decision { action: Action::Allow, hint: None, ..decision },
                Settled::Refused(ruling) => return Decision { hint: ruling.reason, ..decision },
                Settled::Changed => decision = self.request(asked),
            }
        }
        decision
    }
}

/// Where a person let a name through, the same rule does not ask again because of the address that the name led to. That
/// is no answer about the address: other names that have it, too, are asked about.
pub(super) fn lift_address(candidates: &mut Vec<Candidate>) {
    let Some(bare) = candidates.pop_if(|c| c.name.is_none()) else { return };
    let named = candidates.iter().any(|c| c.lifted && c.decision.rule == bare.decision.rule);
    candidates.push(match named && bare.decision.action == Action::Ask {
        false => bare,
        true => {
            let decision = Decision { action: Action::Allow, hint: None, ..bare.decision };
            Candidate { decision, open: None, ..bare }
        }
    });
}

pub(crate) fn name_matter(rule: &str, name: &str) -> Matter {
    Matter { rule: rule.to_owned(), what: What::Name(name.to_owned()) }
}

pub(super) fn request_matter(rule: &str, asked: &RequestAsk<'_>) -> Matter {
    let at = SocketAddr::new(asked.addr.to_canonical(), asked.port);
    let (host, method, path) = (asked.host.to_owned(), asked.method.to_owned(), asked.path.to_owned());
    Matter { rule: rule.to_owned(), what: What::Request { host, at, method, path } }
}
