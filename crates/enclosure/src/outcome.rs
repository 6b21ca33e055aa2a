//! The outcome of a run: exit status from the last report, the limit that was exceeded, and the refusals.

use crate::relay::Sink;
use crate::running::SIGKILL;
use crate::supervise::Supervisor;
use rustix::io::Errno;
use terms::{Enforcement, EnforcementLevel, ErrorKind, Exit, Limit, LimitHit, LimitKind, Outcome, Phase, Verdict};

impl Supervisor<'_> {
    pub(crate) fn outcome(mut self) -> Outcome {
        // Pid 1 reports after all other processes are reaped, and exits a little later: the cgroup figures are final by
        // then. Without its report they are not.
        if self.ended.is_none() {
            self.guest.reap();
        }
        let missing = self.guest.spec.enforced.missing.clone();
        let level = if missing.is_empty() { EnforcementLevel::Full } else { EnforcementLevel::Partial };
        let enforcement = Enforcement { level, missing };
        let mut outcome = Outcome::new(self.guest.spec.run_id.clone(), self.stamp.clone(), enforcement);
        if let Some(publisher) = &mut self.guest.publisher {
            publisher.close();
        }
        if let Some(asking) = &mut self.guest.judge.asking {
            asking.close();
        }
        self.guest.judge.hear_waiters();
        if let Some(network) = &mut self.guest.network {
            network.close().into_iter().for_each(|report| self.guest.judge.tell(report));
        }
        self.guest.meter.close_accounts();
        if self.hit.is_none() {
            // A limit that was exceeded between two checks still counts.
            self.hit = self
                .guest
                .meter
                .exceeded()
                .filter(|hit| hit.kind != LimitKind::WallMs)
                .or_else(|| self.guest.net_hit());
        }
        self.account(&mut outcome);
        self.judge_end(&mut outcome);
        let (denials, dropped, notes) = std::mem::take(&mut self.guest.judge.denials).into_parts();
        (outcome.denials, outcome.denials_dropped, outcome.notes) = (denials, dropped, notes);
        self.guest.reap();
        self.guest.meter.close();
        outcome
    }

    fn account(&self, outcome: &mut Outcome) {
        let report = self.ended.unwrap_or_default();
        outcome.usage = self.guest.meter.usage(report.cpu_us, report.max_rss_kb);
        outcome.usage.output_bytes = self.allowance.used;
        outcome.usage.net_bytes = self.guest.net_bytes();
        outcome.truncated = terms::Truncated { stdout: self.output.dropped(), stderr: self.error.dropped() };
        outcome.output_lost = self.lost();
        // Captured streams come in pairs.
        if let (Sink::Keep(output), Sink::Keep(error)) = (&self.output.sink, &self.error.sink) {
            outcome.set_output(output.bytes().to_vec(), error.bytes().to_vec());
        }
    }

    /// Returns why output was lost although its reader was still there.
    fn lost(&self) -> Option<String> {
        let streams = [("standard output", &self.output), ("standard error", &self.error)];
        let told = |name: &str, why: Errno| format!("{name}: {}", std::io::Error::from(why));
        streams.into_iter().find_map(|(name, outlet)| outlet.lost.map(|why| told(name, why)))
    }

    fn judge_end(&self, outcome: &mut Outcome) {
        let ending = Ending {
            status: self.ended.map(|report| report.status),
            hit: self.hit,
            cancelled_by: self.cancelled_by,
            refused: self.guest.judge.denials.any_refused(),
            overfull: self.guest.meter.is_overfull(),
        };
        ending.pronounce(outcome);
    }
}

/// Inputs to the verdict on a command.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ending {
    /// Wait status as `waitpid` gives it; `None` when pid 1 was gone before it could report.
    pub status: Option<i32>,
    pub hit: Option<LimitHit>,
    /// The signal with which the caller asked for cancellation.
    pub cancelled_by: Option<i32>,
    /// At least one operation was refused.
    pub refused: bool,
    /// The file system of the workspace is nearly full, whatever the limit.
    pub overfull: bool,
}

impl Ending {
    /// Sets exit, verdict and message of the outcome.
    pub fn pronounce(&self, outcome: &mut Outcome) {
        outcome.exit = match (&self.hit, self.status) {
            (_, Some(status)) => Some(exit_of(status)),
            (Some(_), None) => Some(Exit::Signal { signal: SIGKILL, name: signal_name(SIGKILL) }),
            (None, None) => None,
        };
        outcome.success = self.hit.is_none() && outcome.exit == Some(Exit::Code { code: 0 });
        outcome.verdict = match (&self.hit, &outcome.exit) {
            (Some(_), _) => Verdict::LimitExceeded,
            (None, None) if self.cancelled_by.is_some() => Verdict::Cancelled,
            (None, None) => Verdict::Lost,
            _ if outcome.success => Verdict::Ok,
            (None, Some(Exit::Signal { signal, .. })) if Some(*signal) == self.cancelled_by => Verdict::Cancelled,
            _ if self.refused => Verdict::Denied,
            _ => Verdict::Failed,
        };
        if let Some(hit) = self.hit {
            outcome.error_kind = Some(ErrorKind::LimitExceeded);
            outcome.limit_kind = Some(hit.kind);
            outcome.phase = Some(hit.phase);
            outcome.limit = Some(hit.limit);
            outcome.used = Some(hit.used);
            outcome.message = Some(match hit.kind {
                LimitKind::DiskMb if self.overfull => {
                    "the file system that holds the workspace is nearly full".to_owned()
                }
                LimitKind::TotalDiskMb | LimitKind::TotalFiles => {
                    format!("all workspaces together met limits.{} = {}", hit.kind.name(), amount(hit))
                }
                _ => format!("the run met its limit of max_{} = {}", hit.kind.name(), amount(hit)),
            });
        } else if outcome.verdict == Verdict::Denied {
            outcome.error_kind = Some(ErrorKind::PolicyDenied);
            outcome.phase = Some(Phase::Execution);
            outcome.message = Some("the command failed and at least one operation was refused".into());
        } else if outcome.verdict == Verdict::Lost {
            outcome.message = Some("the guest's first process was killed from outside".into());
        }
    }
}

fn amount(hit: LimitHit) -> String {
    match hit.limit {
        Limit::Count(n) => n.to_string(),
        Limit::Megabytes(mb) => mb.to_string(),
    }
}

fn exit_of(status: i32) -> Exit {
    match status & 0x7f {
        0 => Exit::Code { code: (status >> 8) & 0xff },
        signal => Exit::Signal { signal, name: signal_name(signal) },
    }
}

fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::try_from(signal - 1).ok().and_then(|i| NAMES.get(i)) {
        Some(name) => format!("SIG{name}"),
        None => format!("SIG{signal}"),
    }
}
