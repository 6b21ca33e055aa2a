//! Questions to a person: awaiting the answer, and the effect of answers on decisions.

use super::ruling::{ApprovalOutcome, Candidate, ConnectDecision, QuestionContext, Remote, Ruling};
use super::{Gate, GateState, Rules};
use crate::approval::{Access, ApprovedSubjects, AskedAccess};
use crate::event::{EventStage, GuestSocket};
use crate::request_judge::{RequestInfo, RequestJudge};
use policy::{Decision, Proto};
use std::net::SocketAddr;
use std::sync::PoisonError;
use terms::Action;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout_at;

impl Gate {
    /// Returns true if the ruling can become a question to a person.
    pub fn can_ask(&self, ruling: &Ruling) -> bool {
        ruling.action == Action::Ask && self.approvals.is_some()
    }

    /// Holds an operation until a person answers, the deadline passes, or the rules change.
    pub async fn await_approval(
        &self,
        subject: &AskedAccess,
        ruling: &Ruling,
        context: QuestionContext<'_>,
    ) -> ApprovalOutcome {
        let Some(approvals) = &self.approvals else { return ApprovalOutcome::Refused(ruling.clone()) };
        let mut state = self.watch();
        let mut find_process = || {
            let mut run_context = self.run_context.lock().unwrap_or_else(PoisonError::into_inner);
            run_context.process_lookup.as_mut().zip(context.socket).and_then(|(lookup, socket)| lookup(socket))
        };
        let refused = |reason: String| {
            // The usual hint says that no person can be asked, which is wrong here.
            ApprovalOutcome::Refused(Ruling { reason: Some(reason), hint: None, ..ruling.clone() })
        };
        let (send, answer) = oneshot::channel();
        // Fails if the waiting task was dropped; then the answer has no receiver.
        let reply = Box::new(move |allow| {
            let _ = send.send(allow);
        });
        let mut question = match approvals.ask(subject, &mut find_process, reply) {
            Ok(question) => question,
            Err(reason) => return refused(reason),
        };
        if question.is_new {
            let mut event = ruling.event(subject.op(), EventStage::Asked, context.proto, context.address);
            (event.hint, event.socket, event.actor) = (None, context.socket, question.actor.take());
            event.run = self.run_of(context.socket);
            (event.method, event.path) = context.request.map(|(m, p)| (m.to_owned(), p.to_owned())).unzip();
            self.events.push(event);
        }
        let answer = tokio::select! {
            answer = timeout_at(question.deadline.into(), answer) => match answer {
                Ok(Ok(allow)) => Some(allow),
                Ok(Err(_)) | Err(_) => {
                    question.waiter.expire();
                    None
                }
            },
            changed = state.changed() => match changed {
                Ok(()) => return ApprovalOutcome::Changed,
                Err(_) => None,
            },
        };
        match answer {
            Some(true) => ApprovalOutcome::Approved,
            Some(false) => refused("the person who was asked refused it".to_owned()),
            None => refused(format!("no answer within {} s", approvals.patience().as_secs_f64())),
        }
    }

    /// Judges a new connection, and awaits a person's answer if the rule says `ask`.
    pub async fn admit_with_approval(&self, remote: &mut Remote, socket: Option<GuestSocket>) -> ConnectDecision {
        let mut decision = self.admit(remote);
        while let ConnectDecision::Ask(subject, ruling) = decision {
            match self.await_approval(&subject, &ruling, QuestionContext::connection(remote, socket)).await {
                ApprovalOutcome::Approved => remote.approved.add(subject),
                ApprovalOutcome::Refused(ruling) => return ConnectDecision::Refuse(ruling),
                ApprovalOutcome::Changed => {}
            }
            decision = self.judge_connect(remote);
        }
        decision
    }

    /// Waits until a change of the rules or the byte limit forbids connections to `remote`.
    pub async fn until_forbidden(&self, remote: &Remote, state: &mut watch::Receiver<GateState>) -> Ruling {
        loop {
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            if let Some(ruling) = self.judge_connect(remote).refusal() {
                return ruling;
            }
        }
    }

    /// Applies earlier answers to a decision of `ask`. The flag is true if an approval turned it into `allow`.
    pub(super) fn apply_approvals(
        &self,
        rules: &Rules,
        decision: Decision,
        subject: &AskedAccess,
        approved: &ApprovedSubjects,
    ) -> (Decision, bool) {
        if decision.action != Action::Ask {
            return (decision, false);
        }
        let whole = rules.is_whole(&subject.rule);
        let known = || self.approvals.as_ref().and_then(|approvals| approvals.known(subject, whole));
        match approved.covers(subject, whole).then_some(true).or_else(known) {
            None => (decision, false),
            Some(true) => (Decision { action: Action::Allow, hint: None, ..decision }, true),
            Some(false) => {
                let hint = Some("the person who was asked refused it".to_owned());
                (Decision { action: Action::Deny, hint, ..decision }, false)
            }
        }
    }

    /// Asks a person about a request, again after each change of the rules.
    pub(super) async fn await_request_approval(
        &self,
        request: &RequestInfo<'_>,
        decision: Decision,
        socket: Option<GuestSocket>,
    ) -> Decision {
        let mut decision = decision;
        while decision.action == Action::Ask && self.approvals.is_some() {
            let subject = request_subject(&decision.rule, request);
            let ruling = Ruling::of(decision.clone(), Some(request.host), self.rules().revision);
            let address = Some(SocketAddr::new(request.addr, request.port));
            let context =
                QuestionContext { proto: Proto::Tcp, address, socket, request: Some((request.method, request.path)) };
            match self.await_approval(&subject, &ruling, context).await {
                ApprovalOutcome::Approved => decision = Decision { action: Action::Allow, hint: None, ..decision },
                ApprovalOutcome::Refused(ruling) => return Decision { hint: ruling.reason, ..decision },
                ApprovalOutcome::Changed => decision = self.request(request),
            }
        }
        decision
    }
}

/// Extends the approval of a name to the address that it resolved to, under the same rule only, so that one connection
/// needs one answer. The address itself is not approved: other names with the same address still need an answer.
pub(super) fn extend_approval_to_address(candidates: &mut Vec<Candidate>) {
    let Some(bare) = candidates.pop_if(|c| c.name.is_none()) else { return };
    let named = candidates.iter().any(|c| c.is_approved && c.decision.rule == bare.decision.rule);
    candidates.push(match named && bare.decision.action == Action::Ask {
        false => bare,
        true => {
            let decision = Decision { action: Action::Allow, hint: None, ..bare.decision };
            Candidate { decision, unanswered: None, ..bare }
        }
    });
}

pub(super) fn request_subject(rule: &str, request: &RequestInfo<'_>) -> AskedAccess {
    let at = SocketAddr::new(request.addr.to_canonical(), request.port);
    let (host, method, path) = (request.host.to_owned(), request.method.to_owned(), request.path.to_owned());
    AskedAccess { rule: rule.to_owned(), access: Access::Request { host, at, method, path } }
}
