//! State of one run: its streams, limits, deadline and outcome.

use super::clerk::Note;
use super::feeds::{Feed, Writers};
use crate::keeper::wire::RunSummary;
use crate::keeper_dir::spool::{self, RecordKind, SpoolWriter};
use enclosure::{CommandEnd, Ending, JobId};
use rustix::io::Errno;
use rustix::termios::{LocalModes, SpecialCodeIndex};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use terms::{
    Denial, Fault, Limit, LimitHit, LimitKind, Limits, OnOutputLimit, Outcome, Phase, RunId, Truncated, Usage,
};

/// End-of-file character where the terminal does not define one.
const END_OF_FILE: u8 = 4;
/// Read size of a stream.
pub(super) const CHUNK: usize = 64 << 10;
/// Bound on reads from a stream after the process tree has ended: more than a pipe holds can only come from a process outside the tree.
const LAST_CHUNKS: usize = 32;

pub(super) struct ActiveRun {
    pub job: JobId,
    pub run_id: RunId,
    pub note: Note,
    pub pid: i32,
    pub terminal: bool,
    pub spool: SpoolWriter,
    pub input: Option<OwnedFd>,
    /// Input pieces of clients, in order of arrival.
    pub feeds: VecDeque<Feed>,
    pub writers: Writers,
    /// For a terminal: the input so far ends within a line.
    mid_line: bool,
    pub output: Option<OwnedFd>,
    pub error: Option<OwnedFd>,
    /// Limits requested for this run, and the effective ones together with the sandbox's, which can change.
    requested: Limits,
    limits: Limits,
    used: u64,
    truncated: Truncated,
    /// Bytes within the limit that could not be written to the spool.
    unspooled: u64,
    begun: Instant,
    pub hit: Option<LimitHit>,
    pub cancelled_by: Option<i32>,
    pub stage: RunStage,
    /// The run has secrets of its own, which are dropped at its end.
    pub has_secrets: bool,
    /// An interpreter: the sandbox's limits on wall time and output hold for each call in it, not for its life.
    pub is_worker: bool,
    net_before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunStage {
    /// The record of the start is being written.
    Beginning,
    Running,
    /// The process tree has ended, and the record of the end is being written.
    Ending,
}

/// An output stream of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputStream {
    Output,
    Error,
}

impl ActiveRun {
    pub fn new(
        started: enclosure::Started,
        run_id: RunId,
        note: Note,
        spool: SpoolWriter,
        requested: Limits,
    ) -> ActiveRun {
        let terminal = started.error.is_none();
        ActiveRun {
            job: started.job,
            run_id,
            note,
            pid: started.pid,
            terminal,
            spool,
            input: started.input,
            feeds: VecDeque::new(),
            writers: Writers::default(),
            mid_line: false,
            output: Some(started.output),
            error: started.error,
            requested,
            limits: requested,
            used: 0,
            truncated: Truncated::default(),
            unspooled: 0,
            begun: Instant::now(),
            hit: None,
            cancelled_by: None,
            stage: RunStage::Beginning,
            has_secrets: false,
            is_worker: false,
            net_before: 0,
        }
    }

    /// Applies new limits of the sandbox, counted from the run's start; true when the output exceeds them already.
    pub fn revise(&mut self, sandbox: Limits) -> bool {
        self.limits = if self.is_worker { self.requested } else { sandbox.tightest(self.requested) };
        let over = self.limits.max_output_bytes.is_some_and(|most| self.used > most);
        self.stage != RunStage::Ending && over && self.exceed_output(self.used)
    }

    pub fn since_net(mut self, bytes: u64) -> ActiveRun {
        self.net_before = bytes;
        self
    }

    pub fn listed(&self) -> RunSummary {
        RunSummary {
            run: self.note.run.clone(),
            command: self.note.command.clone(),
            pid: self.pid,
            started_ms: self.note.started_ms,
            terminal: self.terminal,
            input: self.input.is_some(),
            service: self.note.service.clone(),
            offset: self.spool.next(),
            outcome: None,
        }
    }

    /// Reads one chunk of a stream; true when that exceeded the output limit.
    pub fn pull(&mut self, stream: OutputStream, buffer: &mut [u8]) -> bool {
        self.pull_once(stream, buffer) == PumpResult::OverLimit
    }

    fn pull_once(&mut self, stream: OutputStream, buffer: &mut [u8]) -> PumpResult {
        let source = match stream {
            OutputStream::Output => &mut self.output,
            OutputStream::Error => &mut self.error,
        };
        let Some(fd) = source else { return PumpResult::Nothing };
        let got = match rustix::io::read(&*fd, &mut *buffer) {
            Ok(n) => n,
            Err(Errno::AGAIN | Errno::INTR) => return PumpResult::Nothing,
            // A terminal whose last user has closed it returns EIO.
            Err(_) => 0,
        };
        if got == 0 {
            *source = None;
            return PumpResult::Nothing;
        }
        self.admit(stream, &buffer[..got])
    }

    /// Counts output and spools it up to the limit, to the byte.
    fn admit(&mut self, stream: OutputStream, bytes: &[u8]) -> PumpResult {
        let got = bytes.len() as u64;
        let left = self.limits.max_output_bytes.map(|most| most.saturating_sub(self.used));
        let kept = left.map_or(got, |left| left.min(got));
        self.used += kept;
        let kind = match (self.terminal, stream) {
            (true, _) => RecordKind::Terminal,
            (false, OutputStream::Output) => RecordKind::Stdout,
            (false, OutputStream::Error) => RecordKind::Stderr,
        };
        if kept > 0 && self.spool.append(kind, terms::clock::now_ms(), &bytes[..kept as usize]).is_err() {
            self.unspooled += kept;
        }
        let over = got - kept;
        match stream {
            OutputStream::Output => self.truncated.stdout += over,
            OutputStream::Error => self.truncated.stderr += over,
        }
        match over > 0 && self.exceed_output(self.used + 1) {
            true => PumpResult::OverLimit,
            false => PumpResult::Some,
        }
    }

    /// Handles an exceeded output limit; returns whether the run is ended by it.
    fn exceed_output(&mut self, used: u64) -> bool {
        let ends = self.limits.on_output_limit != Some(OnOutputLimit::Truncate) && self.hit.is_none();
        if ends {
            self.hit = Some(LimitHit {
                kind: LimitKind::OutputBytes,
                phase: Phase::Execution,
                limit: Limit::Count(self.limits.max_output_bytes.unwrap_or(0)),
                used: Limit::Count(used),
            });
        }
        ends
    }

    /// Writes queued pieces to the input. Returns the clients to answer, each with a fault or with the offset taken of its stream.
    pub fn feed(&mut self) -> Vec<(u64, Result<Option<u64>, Fault>)> {
        let mut done = Vec::new();
        while let (Some(input), Some(feed)) = (&self.input, self.feeds.front_mut()) {
            if let Err(fault) = feed.begin(&mut self.writers, &self.note.run) {
                done.push((feed.client, Err(fault)));
                self.feeds.pop_front();
                continue;
            }
            if feed.at < feed.bytes.len() {
                match rustix::io::write(input, &feed.bytes[feed.at..]) {
                    Ok(n) => {
                        feed.at += n;
                        self.mid_line = feed.bytes[..feed.at].last().is_some_and(|last| !ends_line(*last));
                        self.writers.took(feed.by.as_ref(), n as u64);
                        continue;
                    }
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => return done,
                    Err(_) => {
                        self.input = None;
                        break;
                    }
                }
            }
            let (client, taken) = (feed.client, self.writers.taken(feed.by.as_ref()));
            if feed.eof {
                self.writers.close(feed.by.as_ref());
                if self.terminal {
                    // On a terminal the end of file is a character that does not count as the writer's.
                    (feed.bytes, feed.by) = (typed_end(input, self.mid_line), None);
                    (feed.at, feed.eof) = (0, false);
                    continue;
                }
                self.input = None;
            }
            self.feeds.pop_front();
            done.push((client, Ok(taken)));
        }
        if self.input.is_none() {
            let refused = self.feeds.drain(..).map(|feed| (feed.client, Err(unread(&self.note.run))));
            done.extend(refused.collect::<Vec<_>>());
        }
        done
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.limits.max_wall_ms.and_then(|ms| self.begun.checked_add(Duration::from_millis(ms)))
    }

    /// Checks the wall-time limit; true when it is exceeded.
    pub fn check_wall_limit(&mut self, now: Instant) -> bool {
        let over = self.stage != RunStage::Ending && self.hit.is_none() && self.deadline().is_some_and(|at| now >= at);
        if over {
            let limit = self.limits.max_wall_ms.unwrap_or(0);
            let used = (self.begun.elapsed().as_millis() as u64).max(limit + 1);
            self.hit = Some(LimitHit {
                kind: LimitKind::WallMs,
                phase: Phase::Execution,
                limit: Limit::Count(limit),
                used: Limit::Count(used),
            });
        }
        over
    }

    /// Excludes the time that the run was frozen.
    pub fn exclude_frozen(&mut self, time: Duration) {
        self.begun += time;
    }

    /// Closes the run: reads the rest of its output and fills in the outcome.
    pub fn close(
        &mut self,
        end: Option<&CommandEnd>,
        mut outcome: Outcome,
        net: u64,
        disk: u64,
        buffer: &mut [u8],
    ) -> Outcome {
        for stream in [OutputStream::Output, OutputStream::Error] {
            for _ in 0..LAST_CHUNKS {
                if self.pull_once(stream, buffer) == PumpResult::Nothing {
                    break;
                }
            }
        }
        (self.output, self.error, self.input) = (None, None, None);
        self.stage = RunStage::Ending;
        let hit = self.hit.or_else(|| end.and_then(|end| end.out_of_memory));
        let status = end.and_then(|end| end.status);
        let ending = Ending {
            status,
            hit,
            cancelled_by: self.cancelled_by,
            refused: end.is_some_and(|end| end.denials_dropped > 0 || end.denials.iter().any(Denial::is_refusal)),
            overfull: false,
        };
        ending.pronounce(&mut outcome);
        if let (Some(_), None, None, None) = (end, status, hit, self.cancelled_by) {
            outcome.message = Some("the process that watched over the command was killed from inside".into());
        }
        if self.unspooled > 0 {
            let said = format!("{} bytes of its output could not be written to disk", self.unspooled);
            outcome.output_lost = Some(said.clone());
            outcome.message.get_or_insert(said);
        }
        let (cpu_us, rss_kb) = end.map_or((0, 0), |end| (end.cpu_us, end.max_rss_kb));
        outcome.usage = Usage {
            wall_ms: self.begun.elapsed().as_millis() as u64,
            cpu_ms: cpu_us / 1000,
            memory_peak_bytes: rss_kb * 1024,
            output_bytes: self.used,
            disk_bytes: disk,
            net_bytes: net.saturating_sub(self.net_before),
            processes_peak: None,
        };
        outcome.truncated = self.truncated;
        if let Some(end) = end {
            (outcome.denials, outcome.denials_dropped) = (end.denials.clone(), end.denials_dropped);
            outcome.notes.clone_from(&end.notes);
        }
        outcome
    }

    /// Writes the last records of the log; returns the offset of the outcome, which must fit a record.
    pub fn finish(&mut self, outcome: &Outcome) -> Option<u64> {
        let dropped = self.truncated.stdout + self.truncated.stderr + self.unspooled;
        let now = terms::clock::now_ms();
        if dropped > 0 {
            let _ = self.spool.append(RecordKind::Dropped, now, &dropped.to_le_bytes());
        }
        self.spool.end(now, &serde_json::to_vec(outcome).ok()?).ok()
    }
}

/// Drops denials until the outcome fits a record and an answer: a guest chooses the names in them.
pub(super) fn truncate_denials(mut outcome: Outcome) -> Outcome {
    let is_too_long = |outcome: &Outcome| serde_json::to_vec(outcome).is_ok_and(|text| text.len() > spool::MOST);
    while !outcome.denials.is_empty() && is_too_long(&outcome) {
        let kept = outcome.denials.len() / 2;
        outcome.denials_dropped += outcome.denials.drain(kept..).count() as u64;
    }
    outcome
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PumpResult {
    Some,
    Nothing,
    OverLimit,
}

/// Returns the bytes that signal end of file on a terminal. In canonical mode VEOF flushes a partial line, and means end of file only at
/// the start of one; a program in raw mode interprets it as it likes.
fn typed_end(terminal: &OwnedFd, mid_line: bool) -> Vec<u8> {
    let now = rustix::termios::tcgetattr(terminal).ok();
    let by_lines = now.as_ref().is_none_or(|now| now.local_modes.contains(LocalModes::ICANON));
    let set = now.map(|now| now.special_codes[SpecialCodeIndex::VEOF]);
    let end = set.filter(|set| by_lines && *set != 0).unwrap_or(END_OF_FILE);
    vec![end; if by_lines && mid_line { 2 } else { 1 }]
}

/// Returns whether a typed character leaves the line empty: it ends the line or discards it.
fn ends_line(byte: u8) -> bool {
    const INTERRUPT: u8 = 3;
    const KILL: u8 = 21;
    const SUSPEND: u8 = 26;
    const QUIT: u8 = 28;
    matches!(byte, b'\n' | b'\r' | INTERRUPT | END_OF_FILE | KILL | SUSPEND | QUIT)
}

pub(super) fn unread(run: &str) -> Fault {
    let fault = Fault::new(terms::ErrorKind::Conflict, format!("{run} does not read its input (any more)"));
    fault
        .subject(run)
        .phase(Phase::Execution)
        .hint("input that it did not read is lost; `cofferdam logs` shows its output")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A guest chooses the names in its denials, and so the length of an outcome; waiting clients get one in any case.
    // promise 24
    #[test]
    fn refusals_with_endless_names_are_told_as_far_as_they_fit() {
        let stamp = terms::PolicyStamp::default();
        let enforcement = terms::Enforcement { level: terms::EnforcementLevel::Full, missing: Vec::new() };
        let id = RunId::parse(&format!("run_{}", "0".repeat(32))).unwrap();
        let mut outcome = Outcome::new(id, stamp, enforcement);
        let denial = |length: usize| {
            serde_json::from_value::<Denial>(
                json!({"op": "fs.write", "target": "\u{1}".repeat(length), "rule": "defaults.fs",
                "action": "deny", "count": 1, "pid": 1, "exe": ""}),
            )
        };
        outcome.denials = (0..256).map(|_| denial(10).unwrap()).collect();
        assert_eq!(truncate_denials(outcome.clone()), outcome, "the control");
        outcome.denials = (0..256).map(|_| denial(4000).unwrap()).collect();
        let told = truncate_denials(outcome);
        assert!(serde_json::to_vec(&told).unwrap().len() <= spool::MOST && !told.denials.is_empty());
        assert_eq!(told.denials.len() as u64 + told.denials_dropped, 256, "what is left out is counted");
    }
}
