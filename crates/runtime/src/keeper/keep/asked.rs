//! Clients of a keeper: accepted, their requests carried out and answered, and dropped.

use super::client::{KeeperClient, OwedReply};
use super::feeds::Feed;
use super::work::{ActiveRun, RunStage};
use super::{Keep, MOST_CLIENTS, MOST_WAITING, has_ended, is_ours, unknown};
use crate::keeper::wire::{self, Frame, Hello, KeeperRequest, ReadResult};
use crate::questions::Questions;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SocketFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};

impl Keep {
    pub(super) fn accept_clients(&mut self) {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = rustix::net::accept_with(&self.listener, flags) else { return };
            let mut client = KeeperClient::new(socket);
            if !is_ours(client.line.as_fd()) {
                continue;
            }
            if self.clients.len() >= MOST_CLIENTS {
                client.answer(wire::refusal(&self.full(format!("{MOST_CLIENTS} connections are open already"))));
                let _ = client.line.push();
                continue;
            }
            self.next_client += 1;
            self.clients.insert(self.next_client, client);
        }
    }

    pub(super) fn read_requests(&mut self, id: u64) {
        loop {
            let Some(client) = self.clients.get_mut(&id) else { return };
            match client.next() {
                ReadResult::Frame(frame) => self.handle_request(id, frame),
                ReadResult::Later => return,
                ReadResult::Closed => return self.drop_client(id),
            }
            self.send_to(id);
        }
    }

    pub(super) fn drop_client(&mut self, id: u64) {
        if self.clients.remove(&id).is_some_and(|client| client.holds_files) {
            self.last_activity = Instant::now();
        }
        self.runs.values_mut().for_each(|active| active.feeds.retain(|feed| feed.client != id));
        self.abandon_contexts(id);
    }

    pub(super) fn answer(&mut self, id: u64, frame: Frame) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.answer(frame);
        }
    }

    pub(super) fn send(&mut self) {
        let waiting: Vec<u64> = self.clients.iter().filter(|(_, c)| c.line.waiting() > 0).map(|(id, _)| *id).collect();
        waiting.into_iter().for_each(|id| self.send_to(id));
    }

    pub(super) fn send_to(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.line.push().is_err() {
            self.drop_client(id);
        }
    }

    pub(super) fn handle_request(&mut self, id: u64, frame: Frame) {
        let Frame { json, payload, .. } = frame;
        let answer = match serde_json::from_slice::<KeeperRequest>(&json) {
            Ok(ask) => {
                // A command is not started when its client has already given up waiting.
                if matches!(ask, KeeperRequest::Start(_)) && self.has_left(id) {
                    return self.drop_client(id);
                }
                if !matches!(
                    ask,
                    KeeperRequest::Follow { .. }
                        | KeeperRequest::List
                        | KeeperRequest::Usage
                        | KeeperRequest::Questions
                        | KeeperRequest::Contexts
                ) {
                    self.last_activity = Instant::now();
                }
                self.carry_out(id, ask, payload)
            }
            Err(e) => Err(Fault::invalid(format!("the keeper cannot read this: {e}")).phase(Phase::Admission)),
        };
        match answer {
            Ok(Some(frame)) => self.answer(id, frame),
            Ok(None) => {}
            Err(fault) => self.answer(id, wire::refusal(&fault)),
        }
    }

    /// Returns whether a client has closed its end: it gave up while this keeper was stopped or stuck.
    fn has_left(&self, id: u64) -> bool {
        let Some(client) = self.clients.get(&id) else { return true };
        let (none, line) = (Timespec { tv_sec: 0, tv_nsec: 0 }, client.line.as_fd());
        let mut fds = [PollFd::from_borrowed_fd(line, PollFlags::empty())];
        // POLLHUP is reported without being requested.
        poll(&mut fds, Some(&none)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    /// Carries out a request. Returns the answer, or none where it comes later.
    pub(super) fn carry_out(&mut self, id: u64, ask: KeeperRequest, payload: Vec<u8>) -> Result<Option<Frame>, Fault> {
        self.check_claimed(&ask)?;
        self.check_room(&ask)?;
        Ok(Some(match ask {
            KeeperRequest::Hello => wire::value(&self.hello()),
            KeeperRequest::Start(start) => return self.start(id, &start, payload),
            KeeperRequest::Input { run, eof, by } => return self.input(id, &run, Feed::new(id, payload, eof, by)),
            KeeperRequest::Resize { run, rows, columns } => {
                let job = self.active_run(&run)?.job;
                self.thaw()?;
                let resized = self.residence.resize(job, rows, columns);
                wire::value(&resized.then_some(()).ok_or_else(|| no_terminal(&run))?)
            }
            KeeperRequest::Signal { run, signal } => wire::value(&self.signal(&run, signal)?),
            KeeperRequest::Kill { run } => wire::value(&self.kill(&run)?),
            KeeperRequest::List => self.list(),
            KeeperRequest::Wait { run, timeout_ms } => return self.wait_for(id, run, timeout_ms),
            KeeperRequest::Follow { runs } => return Ok(self.follow(id, runs)),
            KeeperRequest::Rise => wire::value(&self.leave_files_only()?),
            KeeperRequest::Freeze => {
                self.leave_files_only()?;
                wire::value(&self.freeze()?)
            }
            KeeperRequest::Thaw => wire::value(&self.thaw()?),
            KeeperRequest::Root { tmp, path } => {
                let frame = self.root(tmp, path.as_ref())?;
                if let Some(client) = self.clients.get_mut(&id) {
                    client.holds_files = true;
                }
                frame
            }
            KeeperRequest::Connect { port } => wire::value(&()).and(self.connect(port)?),
            KeeperRequest::Usage => wire::value(&self.used()),
            KeeperRequest::Revise(revision) => wire::value(&self.revise(&revision)?),
            KeeperRequest::Questions => {
                wire::value(&self.premises.questions.as_ref().map(Questions::open).unwrap_or_default())
            }
            KeeperRequest::Answer { number, answer, remember } => {
                let nobody_asks = || crate::questions::not_open(number);
                let questions = self.premises.questions.as_ref().ok_or_else(nobody_asks)?;
                wire::value(&questions.answer(number, answer, remember)?)
            }
            KeeperRequest::Publish { ports } => wire::value(&self.publish(ports)?),
            KeeperRequest::Claim { around, actor } => wire::value(&self.claim(&around, &actor)?),
            KeeperRequest::OpenContext(ask) => return self.open_context(id, &ask),
            KeeperRequest::CreateContext(ask) => wire::value(&self.create_context(&ask)?),
            KeeperRequest::CloseContext { name, finished } => wire::value(&self.close_context(id, &name, finished)?),
            KeeperRequest::Contexts => wire::value(&self.list_contexts()),
            KeeperRequest::InterruptContext { name } => wire::value(&self.interrupt_context(&name)?),
            KeeperRequest::ContextCall { name } => wire::value(&self.context_call(&name)?),
            KeeperRequest::RestartContext { name, request } => wire::value(&self.restart_context(&name, request)?),
            KeeperRequest::RemoveContext { name } => wire::value(&self.remove_context(&name)?),
            KeeperRequest::Stay => {
                self.leave_files_only()?;
                self.keep_alive = true;
                wire::value(&())
            }
            KeeperRequest::End { if_idle: true, .. } if !self.runs.is_empty() => return Err(self.busy()),
            KeeperRequest::End { if_idle: true, .. } if self.has_files_open(id) => return Err(self.in_use()),
            KeeperRequest::End { grace_ms, .. } => return Ok(self.end(id, Duration::from_millis(grace_ms))),
        }))
    }

    /// Limits clients that wait or hold files, so that short requests always find a connection.
    fn check_room(&self, ask: &KeeperRequest) -> Result<(), Fault> {
        let waits = matches!(
            ask,
            KeeperRequest::Input { .. } | KeeperRequest::Wait { timeout_ms: 1.., .. } | KeeperRequest::Follow { .. }
        ) || matches!(ask, KeeperRequest::OpenContext(_));
        let is_lasting = waits || matches!(ask, KeeperRequest::Root { .. });
        let lasts = |client: &&KeeperClient| client.holds_files || !matches!(client.owed, OwedReply::Nothing);
        if is_lasting && self.clients.values().filter(lasts).count() >= MOST_WAITING {
            return Err(self.full(format!("{MOST_WAITING} others wait for its runs, or work with its files")));
        }
        Ok(())
    }

    pub(super) fn full(&self, why: String) -> Fault {
        let id = &self.premises.sandbox.id;
        let fault = Fault::new(ErrorKind::LimitExceeded, format!("{id}: {why}")).limit(LimitKind::Connections);
        fault.subject(id).phase(Phase::Admission).retry(Retry::Later).hint("try again when some have disconnected")
    }

    pub(super) fn hello(&self) -> Hello {
        Hello {
            protocol: wire::PROTOCOL,
            version: self.card.version.clone(),
            sandbox: self.premises.sandbox.id.clone(),
            pid: self.card.pid,
            since_ms: self.card.since_ms,
            running: self.runs.len(),
            frozen: self.frozen.is_some(),
            stays: self.keep_alive,
            rests: self.files_only,
            counts_input: true,
            heeds_watch: true,
            takes_stdin: true,
            has_contexts: true,
        }
    }

    /// Connects to a port inside. Where a service that may soon listen there has just been started, the fault tells the client to retry at
    /// once.
    fn connect(&mut self, port: u16) -> Result<OwnedFd, Fault> {
        self.leave_files_only()?;
        if self.files_only {
            return Err(crate::run::is_stopped(&self.premises.sandbox.id));
        }
        self.thaw()?;
        self.residence.connect(port).map_err(|fault| match fault.error_kind {
            ErrorKind::Unavailable if self.is_waking() => fault.retry(Retry::Now),
            _ => fault,
        })
    }

    /// Applies new rules and limits, also to running commands.
    fn revise(&mut self, revision: &wire::Revision) -> Result<(), Fault> {
        self.premises.revise(revision, &mut self.residence)?;
        let limits = self.premises.limits();
        for active in self.runs.values_mut() {
            if active.revise(limits) {
                self.residence.end(active.job);
            }
        }
        Ok(())
    }

    /// Replaces the published ports. Returns whether they are open: a files-only keeper opens none.
    fn publish(&mut self, ports: Vec<String>) -> Result<bool, Fault> {
        if !self.files_only {
            self.premises.publish(ports, &mut self.residence)?;
        }
        Ok(!self.files_only)
    }

    pub(super) fn busy(&self) -> Fault {
        let id = &self.premises.sandbox.id;
        let run = self.runs.keys().next().cloned().unwrap_or_default();
        let fault = Fault::new(ErrorKind::Conflict, format!("{id} is busy: {run} is running in it"));
        fault.subject(id).phase(Phase::Admission).hint(format!("wait for it, or end it with `cofferdam stop {id}`"))
    }

    /// Returns whether another client holds a file handle.
    pub(super) fn has_files_open(&self, but: u64) -> bool {
        self.clients.iter().any(|(id, client)| *id != but && client.holds_files)
    }

    pub(super) fn in_use(&self) -> Fault {
        let id = &self.premises.sandbox.id;
        let fault = Fault::new(ErrorKind::Conflict, format!("{id} is busy: its files are being read or written"));
        let fault = fault.subject(id).phase(Phase::Admission).retry(Retry::Later);
        fault.hint(format!("wait for it, or end it with `cofferdam stop {id}`"))
    }

    pub(super) fn active_run(&mut self, run: &str) -> Result<&mut ActiveRun, Fault> {
        let has_ended_before = self.ended_runs.iter().any(|past| past.listed.run == run);
        match self.runs.get_mut(run) {
            Some(active) if active.stage != RunStage::Ending => Ok(active),
            Some(_) => Err(has_ended(run)),
            None if has_ended_before => Err(has_ended(run)),
            None => Err(unknown(run)),
        }
    }
}

fn no_terminal(run: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{run} has no terminal")).subject(run);
    fault.phase(Phase::Execution).hint("a command gets a terminal only when it is started")
}
