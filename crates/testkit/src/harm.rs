//! Fault injection at one system call after another: kills the command there, or makes the call fail. The test checks
//! what must hold afterwards. A walk tries a fixed number of calls, spread over the whole life of the command, and
//! another sample of them with each seed; `COFFERDAM_FULL=1` tries every call.

use super::{Place, binary, sample, to_the_end};
use std::fs;
use std::process::{Command, Output};

/// The fault to inject at a call.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// `kill -9`, to the process that makes the call.
    Kill,
    /// The call is skipped and returns this error, by name: `EIO`, `ENOSPC`.
    Error(&'static str),
}

/// A walk: the fault, the calls at which it is injected (in strace's syntax: `all`, `%file,%desc`), and the number of
/// them that a run tries.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    pub harm: Harm,
    pub calls: &'static str,
    pub points: usize,
}

/// The call at which a fault was injected.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The number of the call, from 1.
    pub call: usize,
    /// Number of such calls of the unharmed command.
    pub of: usize,
}

/// Returns true if a harmed command panicked in code of the product. Before `main` the standard library panics if it
/// cannot map a stack for its signal handler; no code of the product has run then.
pub fn panicked(stderr: &str) -> bool {
    stderr.contains("panicked") && !stderr.contains("failed to allocate an alternative stack")
}

/// Result of a walk.
#[derive(Clone, Copy, Debug)]
pub struct Walked {
    pub calls: usize,
    pub tried: usize,
}

impl Walk {
    /// Runs the walk. `fresh` makes a world and the words of the command; it is called once for the count and once per
    /// point. `check` examines the world afterwards, with the output of the harmed command.
    pub fn go<W>(
        &self,
        place: &Place,
        mut fresh: impl FnMut() -> (W, Vec<String>),
        mut check: impl FnMut(W, Point, &Output),
    ) -> Walked {
        let (_, words) = fresh();
        let life = self.traced_calls(place, &words);
        let calls = life.len();
        assert!(calls > 20, "{words:?} makes {calls} calls");
        println!("{self:?}: COFFERDAM_TEST_SEED={}, {calls} calls", sample::seed());
        let mut tried = 0;
        for n in sample::indices(self.points, calls) {
            let (world, words) = fresh();
            let point = Point { call: n + 1, of: calls };
            let output = to_the_end(&mut self.traced(place, &words, &life[n]), b"");
            check(world, point, &output);
            tried += 1;
        }
        Walked { calls, tried }
    }

    /// Builds the strace command; strace counts each kind of call separately.
    fn traced(&self, place: &Place, words: &[String], (call, nth): &(String, usize)) -> Command {
        let what = match self.harm {
            Harm::Kill => "signal=KILL".to_owned(),
            Harm::Error(name) => format!("error={name}"),
        };
        let mut command = place.outside("/usr/bin/strace");
        command.args(["-o", "/dev/null", "-e", &format!("trace={}", self.calls)]);
        command.args(["-e", &format!("inject={call}:{what}:when={nth}")]);
        command.arg(binary()).args(words);
        command
    }

    /// Returns the calls that the unharmed command makes, each with its index among its kind; the command must succeed.
    fn traced_calls(&self, place: &Place, words: &[String]) -> Vec<(String, usize)> {
        let log = place.file(format!("calls-{}", super::unique()), "");
        let mut command = place.outside("/usr/bin/strace");
        command.arg("-o").arg(&log).args(["-e", &format!("trace={}", self.calls)]).arg(binary()).args(words);
        let output = to_the_end(&mut command, b"");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "control: {words:?} succeeds under strace: {told}");
        let mut counts = std::collections::BTreeMap::<String, usize>::new();
        let text = fs::read_to_string(&log).unwrap();
        let names = text.lines().filter(|line| !line.starts_with(['+', '-'])).filter_map(|line| line.split_once('('));
        let numbered = names.map(|(name, _)| {
            let count = counts.entry(name.to_owned()).or_default();
            *count += 1;
            (name.to_owned(), *count)
        });
        // Before execve the process is still strace's child.
        numbered.filter(|(name, _)| name != "execve").collect()
    }
}
