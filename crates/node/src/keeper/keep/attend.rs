//! Services: started with the sandbox, and again when they end and nobody asked them to. Each time after a longer pause, and only so
//! often in a row.

use super::Keep;
use super::clerk::Task;
use crate::keeper::services::{ServiceNow, ServiceState};
use crate::keeper::wire::{Start, Word};
use crate::sandbox::{Restart, Service};
use std::time::{Duration, Instant};
use terms::{Fault, Outcome};

/// The first pause; each is twice the one before.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);
/// Starts in a row after which it is given up.
const MOST: u32 = 5;
/// What ran so long stood well, and its next end is the first.
const WELL: Duration = Duration::from_secs(30);

/// What a service may take from its beginning until it listens.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// A service that is looked after.
pub(super) struct Attended {
    start: Start,
    restart: Restart,
    now: ServiceNow,
    begun: Instant,
    /// Ends in a row.
    in_a_row: u32,
    /// When it is started again.
    again: Option<Instant>,
}

impl Keep {
    pub(super) fn begin_services(&mut self, around: &[(Word, Word)], actor: &str) -> Result<(), Fault> {
        self.attended = self.premises.sandbox.record.services.iter().map(|s| attended(s, around, actor)).collect();
        for at in 0..self.attended.len() {
            let run = self.begin_run(&self.attended[at].start.clone())?;
            self.attended[at].now.run = Some(run);
        }
        if !self.attended.is_empty() {
            self.tell_services(None);
        }
        Ok(())
    }

    /// When the next is to be started again. What stands still waits.
    pub(super) fn next_service(&self) -> Option<Instant> {
        let still = self.frozen.is_some() || self.ending.is_some() || self.fell.is_some();
        self.attended.iter().filter(|_| !still).filter_map(|service| service.again).min()
    }

    /// Whether a service of a sandbox that was just woken has not had the time to be ready.
    pub(super) fn is_waking(&self) -> bool {
        let first = |service: &&Attended| service.now.restarts == 0 && service.now.state == ServiceState::Running;
        self.attended.iter().filter(first).any(|service| service.begun.elapsed() < READY_WITHIN)
    }

    pub(super) fn look_after_services(&mut self) {
        let Some(due) = self.next_service().filter(|at| Instant::now() >= *at) else { return };
        let Some(at) = self.attended.iter().position(|service| service.again == Some(due)) else { return };
        self.attended[at].again = None;
        match self.begin_run(&self.attended[at].start.clone()) {
            Ok(run) => {
                let service = &mut self.attended[at];
                (service.now.run, service.now.state, service.begun) =
                    (Some(run), ServiceState::Running, Instant::now());
                service.now.restarts += 1;
                self.tell_services(None);
            }
            Err(fault) => self.service_failed(at, fault.message),
        }
    }

    /// A run has ended that may be a service. `asked`: somebody wanted it to.
    pub(super) fn service_ended(&mut self, run: &str, outcome: &Outcome, asked: bool) {
        let Some(at) = self.attended.iter().position(|service| service.now.run.as_deref() == Some(run)) else { return };
        if self.ending.is_some() || self.fell.is_some() {
            return;
        }
        let service = &mut self.attended[at];
        let last = match &outcome.message {
            Some(message) => message.clone(),
            None => format!("ended with status {}", outcome.status()),
        };
        let again = match service.restart {
            Restart::Always => !asked,
            Restart::OnFailure => !asked && !outcome.success,
            Restart::Never => false,
        };
        if again {
            return self.service_failed(at, last);
        }
        (service.now.state, service.now.last) = (ServiceState::Ended, Some(last));
        self.tell_services(None);
    }

    fn service_failed(&mut self, at: usize, last: String) {
        let service = &mut self.attended[at];
        if service.begun.elapsed() >= WELL {
            service.in_a_row = 0;
        }
        service.now.last = Some(last);
        if service.in_a_row >= MOST {
            service.now.state = ServiceState::Failed;
            let given_up = service.now.clone();
            return self.tell_services(Some(given_up));
        }
        let pause = FIRST.saturating_mul(1 << service.in_a_row).min(LONGEST);
        service.in_a_row += 1;
        (service.again, service.now.state) = (Some(Instant::now() + pause), ServiceState::Waiting);
        self.tell_services(None);
    }

    fn tell_services(&self, given_up: Option<ServiceNow>) {
        let all = self.attended.iter().map(|service| service.now.clone()).collect();
        // A clerk with too much to do is told with the next change.
        self.clerk.give(Task::Services(all, given_up));
    }
}

fn attended(service: &Service, around: &[(Word, Word)], actor: &str) -> Attended {
    let start = Start {
        shell: Some(Word::of(&service.command)),
        env: service.env.iter().map(|(name, value)| Word::of(format!("{name}={value}"))).collect(),
        around: around.to_vec(),
        workdir: service.cwd.as_ref().map(Word::of),
        actor: actor.to_owned(),
        service: Some(service.name.clone()),
        ..Start::default()
    };
    let (name, state) = (service.name.clone(), ServiceState::Running);
    let now = ServiceNow { name, state, restarts: 0, run: None, last: None };
    Attended { start, restart: service.restart, now, begun: Instant::now(), in_a_row: 0, again: None }
}
