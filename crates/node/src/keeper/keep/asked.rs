//! Those who ask: let in, heard, answered, let go.

use super::client::{Client, Owed};
use super::feeds::Feed;
use super::work::{Stage, Work};
use super::{Keep, MOST_CLIENTS, MOST_WAITING, has_ended, is_ours, unknown};
use crate::keeper::wire;
use crate::keeper::wire::{Ask, Frame, Hello, Pulled};
use crate::questions::Questions;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SocketFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};

impl Keep {
    pub(super) fn welcome(&mut self) {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = rustix::net::accept_with(&self.listener, flags) else { return };
            let mut client = Client::new(socket);
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

    pub(super) fn hear_client(&mut self, id: u64) {
        loop {
            let Some(client) = self.clients.get_mut(&id) else { return };
            match client.next() {
                Pulled::Frame(frame) => self.deal(id, frame),
                Pulled::Later => return,
                Pulled::Closed => return self.dismiss(id),
            }
            self.send_to(id);
        }
    }

    pub(super) fn dismiss(&mut self, id: u64) {
        if self.clients.remove(&id).is_some_and(|client| client.holds_files) {
            self.stirred = Instant::now();
        }
        self.works.values_mut().for_each(|work| work.feeds.retain(|feed| feed.client != id));
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
            self.dismiss(id);
        }
    }

    pub(super) fn deal(&mut self, id: u64, frame: Frame) {
        let Frame { json, payload, .. } = frame;
        let answer = match serde_json::from_slice::<Ask>(&json) {
            Ok(ask) => {
                // A command whose asker gave up waiting is not begun behind its back.
                if matches!(ask, Ask::Start(_)) && self.has_left(id) {
                    return self.dismiss(id);
                }
                if !matches!(ask, Ask::Follow { .. } | Ask::List | Ask::Usage | Ask::Questions) {
                    self.stirred = Instant::now();
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

    /// Whether a client has closed its end. It asked and gave up: this keeper was stopped or stuck meanwhile.
    fn has_left(&self, id: u64) -> bool {
        let Some(client) = self.clients.get(&id) else { return true };
        let (none, line) = (Timespec { tv_sec: 0, tv_nsec: 0 }, client.line.as_fd());
        let mut fds = [PollFd::from_borrowed_fd(line, PollFlags::empty())];
        // Told without being asked for.
        poll(&mut fds, Some(&none)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    /// An answer, or none yet.
    pub(super) fn carry_out(&mut self, id: u64, ask: Ask, payload: Vec<u8>) -> Result<Option<Frame>, Fault> {
        self.check_claimed(&ask)?;
        self.check_room(&ask)?;
        Ok(Some(match ask {
            Ask::Hello => wire::value(&self.hello()),
            Ask::Start(start) => return self.start(id, &start),
            Ask::Input { run, eof, by } => return self.input(id, &run, Feed::new(id, payload, eof, by)),
            Ask::Resize { run, rows, columns } => {
                let job = self.work(&run)?.job;
                self.thaw()?;
                let resized = self.residence.resize(job, rows, columns);
                wire::value(&resized.then_some(()).ok_or_else(|| no_terminal(&run))?)
            }
            Ask::Signal { run, signal } => wire::value(&self.signal(&run, signal)?),
            Ask::Kill { run } => wire::value(&self.kill(&run)?),
            Ask::List => self.list(),
            Ask::Wait { run, timeout_ms } => return self.wait_for(id, run, timeout_ms),
            Ask::Follow { runs } => return Ok(self.follow(id, runs)),
            Ask::Rise => wire::value(&self.rise()?),
            Ask::Freeze => {
                self.rise()?;
                wire::value(&self.freeze()?)
            }
            Ask::Thaw => wire::value(&self.thaw()?),
            Ask::Root { tmp } => {
                let frame = self.root(tmp)?;
                if let Some(client) = self.clients.get_mut(&id) {
                    client.holds_files = true;
                }
                frame
            }
            Ask::Connect { port } => wire::value(&()).and(self.connect(port)?),
            Ask::Usage => wire::value(&self.used()),
            Ask::Revise(revision) => wire::value(&self.revise(&revision)?),
            Ask::Questions => wire::value(&self.premises.questions.as_ref().map(Questions::open).unwrap_or_default()),
            Ask::Answer { number, answer, remember } => {
                let nobody_asks = || crate::questions::not_open(number);
                let questions = self.premises.questions.as_ref().ok_or_else(nobody_asks)?;
                wire::value(&questions.answer(number, answer, remember)?)
            }
            Ask::Publish { ports } => wire::value(&self.publish(ports)?),
            Ask::Claim { around, actor } => wire::value(&self.claim(&around, &actor)?),
            Ask::Stay => {
                self.rise()?;
                self.stays = true;
                wire::value(&())
            }
            Ask::End { if_idle: true, .. } if !self.works.is_empty() => return Err(self.busy()),
            Ask::End { if_idle: true, .. } if self.has_files_open(id) => return Err(self.in_use()),
            Ask::End { grace_ms, .. } => return Ok(self.end(id, Duration::from_millis(grace_ms))),
        }))
    }

    /// Those who stay leave room for those who ask and go.
    fn check_room(&self, ask: &Ask) -> Result<(), Fault> {
        let waits = matches!(ask, Ask::Input { .. } | Ask::Wait { timeout_ms: 1.., .. } | Ask::Follow { .. });
        let stays = waits || matches!(ask, Ask::Root { .. });
        let staying = |client: &&Client| client.holds_files || !matches!(client.owed, Owed::Nothing);
        if stays && self.clients.values().filter(staying).count() >= MOST_WAITING {
            return Err(self.full(format!("{MOST_WAITING} others wait for its runs, or work with its files")));
        }
        Ok(())
    }

    pub(super) fn full(&self, why: String) -> Fault {
        let id = &self.premises.sandbox.id;
        let fault = Fault::new(ErrorKind::LimitExceeded, format!("{id}: {why}")).limit(LimitKind::Connections);
        fault.subject(id).phase(Phase::Admission).retry(Retry::Later).hint("try again when some have left")
    }

    pub(super) fn hello(&self) -> Hello {
        Hello {
            protocol: wire::PROTOCOL,
            version: self.card.version.clone(),
            sandbox: self.premises.sandbox.id.clone(),
            pid: self.card.pid,
            since_ms: self.card.since_ms,
            running: self.works.len(),
            frozen: self.frozen.is_some(),
            stays: self.stays,
            rests: self.rests,
            counts_input: true,
            heeds_watch: true,
        }
    }

    /// A stream to a port inside. Where a service has just begun that may soon listen there, who asks is told to ask again.
    fn connect(&mut self, port: u16) -> Result<OwnedFd, Fault> {
        self.rise()?;
        if self.rests {
            return Err(crate::run::is_stopped(&self.premises.sandbox.id));
        }
        self.thaw()?;
        self.residence.connect(port).map_err(|fault| match fault.error_kind {
            ErrorKind::Unavailable if self.is_waking() => fault.retry(Retry::Now),
            _ => fault,
        })
    }

    /// For what runs, too.
    fn revise(&mut self, revision: &wire::Revision) -> Result<(), Fault> {
        self.premises.revise(revision, &mut self.residence)?;
        let limits = self.premises.limits();
        for work in self.works.values_mut() {
            if work.revise(limits) {
                self.residence.end(work.job);
            }
        }
        Ok(())
    }

    /// Whether they are open now: one that stands for its files alone opens nothing.
    fn publish(&mut self, ports: Vec<String>) -> Result<bool, Fault> {
        if !self.rests {
            self.premises.publish(ports, &mut self.residence)?;
        }
        Ok(!self.rests)
    }

    pub(super) fn busy(&self) -> Fault {
        let id = &self.premises.sandbox.id;
        let run = self.works.keys().next().cloned().unwrap_or_default();
        let fault = Fault::new(ErrorKind::Conflict, format!("{id} is busy: {run} is running in it"));
        fault.subject(id).phase(Phase::Admission).hint(format!("wait for it, or end it with `cofferdam stop {id}`"))
    }

    /// Whether somebody else works with its files.
    pub(super) fn has_files_open(&self, but: u64) -> bool {
        self.clients.iter().any(|(id, client)| *id != but && client.holds_files)
    }

    pub(super) fn in_use(&self) -> Fault {
        let id = &self.premises.sandbox.id;
        let fault = Fault::new(ErrorKind::Conflict, format!("{id} is busy: its files are being read or written"));
        let fault = fault.subject(id).phase(Phase::Admission).retry(Retry::Later);
        fault.hint(format!("wait for it, or end it with `cofferdam stop {id}`"))
    }

    pub(super) fn work(&mut self, run: &str) -> Result<&mut Work, Fault> {
        let over = self.past.iter().any(|past| past.listed.run == run);
        match self.works.get_mut(run) {
            Some(work) if work.stage != Stage::Ending => Ok(work),
            Some(_) => Err(has_ended(run)),
            None if over => Err(has_ended(run)),
            None => Err(unknown(run)),
        }
    }
}

fn no_terminal(run: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{run} has no terminal")).subject(run);
    fault.phase(Phase::Execution).hint("a command is given one when it is started")
}
