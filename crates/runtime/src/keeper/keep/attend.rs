//! Services: started with the sandbox, and restarted when they end without being asked to, with exponential backoff and a bound on
//! consecutive restarts.

use super::Keep;
use super::clerk::Task;
use crate::keeper::wire::{Start, WireText};
use crate::request;
use api::{Restart, Service, ServiceState, ServiceStatus};
use std::time::{Duration, Instant};
use terms::{Fault, Outcome};

/// First backoff; each one is twice the last.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);
/// Consecutive restarts after which a service is given up.
const MOST: u32 = 5;
/// Uptime that resets the count of consecutive ends.
const WELL: Duration = Duration::from_secs(30);

/// Time that a service may take from its start until it listens.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// A supervised service.
pub(super) struct SupervisedService {
    start: Start,
    restart: Restart,
    now: ServiceStatus,
    begun: Instant,
    /// Consecutive ends.
    in_a_row: u32,
    /// Time of the next restart.
    again: Option<Instant>,
}

impl Keep {
    pub(super) fn begin_services(&mut self, around: &[(WireText, WireText)], actor: &str) -> Result<(), Fault> {
        self.services = self.premises.sandbox.record.services.iter().map(|s| supervised(s, around, actor)).collect();
        for at in 0..self.services.len() {
            let run = self.begin_run(&self.services[at].start.clone())?;
            self.services[at].now.run = Some(run);
        }
        if !self.services.is_empty() {
            self.record_services(None);
        }
        Ok(())
    }

    /// Returns the time of the next restart. Frozen sandboxes restart nothing.
    pub(super) fn next_service(&self) -> Option<Instant> {
        let still = self.frozen.is_some() || self.ending.is_some() || self.failure.is_some();
        self.services.iter().filter(|_| !still).filter_map(|service| service.again).min()
    }

    /// Returns whether a service was started so recently that it may not listen yet.
    pub(super) fn is_waking(&self) -> bool {
        let first =
            |service: &&SupervisedService| service.now.restarts == 0 && service.now.state == ServiceState::Running;
        self.services.iter().filter(first).any(|service| service.begun.elapsed() < READY_WITHIN)
    }

    pub(super) fn restart_services(&mut self) {
        let Some(due) = self.next_service().filter(|at| Instant::now() >= *at) else { return };
        let Some(at) = self.services.iter().position(|service| service.again == Some(due)) else { return };
        self.services[at].again = None;
        match self.begin_run(&self.services[at].start.clone()) {
            Ok(run) => {
                let service = &mut self.services[at];
                (service.now.run, service.now.state, service.begun) =
                    (Some(run), ServiceState::Running, Instant::now());
                service.now.restarts += 1;
                self.record_services(None);
            }
            Err(fault) => self.service_failed(at, fault.message),
        }
    }

    /// Handles the end of a run that may be a service. `asked`: a client signalled or killed it.
    pub(super) fn service_ended(&mut self, run: &str, outcome: &Outcome, asked: bool) {
        let Some(at) = self.services.iter().position(|service| service.now.run.as_deref() == Some(run)) else { return };
        if self.ending.is_some() || self.failure.is_some() {
            return;
        }
        let service = &mut self.services[at];
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
        self.record_services(None);
    }

    fn service_failed(&mut self, at: usize, last: String) {
        let service = &mut self.services[at];
        if service.begun.elapsed() >= WELL {
            service.in_a_row = 0;
        }
        service.now.last = Some(last);
        if service.in_a_row >= MOST {
            service.now.state = ServiceState::Failed;
            let given_up = service.now.clone();
            return self.record_services(Some(given_up));
        }
        let pause = FIRST.saturating_mul(1 << service.in_a_row).min(LONGEST);
        service.in_a_row += 1;
        (service.again, service.now.state) = (Some(Instant::now() + pause), ServiceState::Waiting);
        self.record_services(None);
    }

    fn record_services(&self, given_up: Option<ServiceStatus>) {
        let all = self.services.iter().map(|service| service.now.clone()).collect();
        // When the clerk's queue is full, the next change is written instead.
        self.clerk.give(Task::Services(all, given_up));
    }
}

fn supervised(service: &Service, around: &[(WireText, WireText)], actor: &str) -> SupervisedService {
    let start = Start {
        shell: Some(WireText::of(&service.command)),
        env: service.env.iter().map(|(name, value)| WireText::of(format!("{name}={value}"))).collect(),
        around: around.to_vec(),
        trace_parent: request::trace_in(around),
        workdir: service.cwd.as_ref().map(WireText::of),
        actor: actor.to_owned(),
        service: Some(service.name.clone()),
        ..Start::default()
    };
    let (name, state) = (service.name.clone(), ServiceState::Running);
    let now = ServiceStatus { name, state, restarts: 0, run: None, last: None };
    SupervisedService { start, restart: service.restart, now, begun: Instant::now(), in_a_row: 0, again: None }
}
