//! Harms a command at one system call after another: kills it there, or makes the call fail. What must hold afterwards is for
//! the test to say. A walk tries a fixed number of calls, spread over the whole life of the command, and another part of
//! them with each seed; `COFFERDAM_FULL=1` tries every call.

use super::{Place, binary, sample, to_the_end};
use std::fs;
use std::process::{Command, Output};

/// What happens to the command at a call.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// `kill -9`, to the process that makes the call.
    Kill,
    /// The call is not made and gives this error, by name: `EIO`, `ENOSPC`.
    Error(&'static str),
}

/// One walk: the harm, the calls it is done at (in strace's words: `all`, `%file,%desc`), and how many of them a run tries.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    pub harm: Harm,
    pub calls: &'static str,
    pub points: usize,
}

/// Where a command was harmed.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The number of the call, from 1.
    pub call: usize,
    /// How many such calls the unharmed command makes.
    pub of: usize,
}

/// How far a walk came.
#[derive(Clone, Copy, Debug)]
pub struct Walked {
    pub calls: usize,
    pub tried: usize,
}

impl Walk {
    /// `fresh` makes a world and the words of the command; it is called once for the count and once per point. `check` looks at
    /// the world afterwards, with what the harmed command printed.
    pub fn go<W>(
        &self,
        place: &Place,
        mut fresh: impl FnMut() -> (W, Vec<String>),
        mut check: impl FnMut(W, Point, &Output),
    ) -> Walked {
        let (_, words) = fresh();
        let life = self.life(place, &words);
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

    /// strace counts each kind of call for itself.
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

    /// The calls that the unharmed command makes, each with how many of its kind came up to it; it must succeed.
    fn life(&self, place: &Place, words: &[String]) -> Vec<(String, usize)> {
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
        // Before that the command is not ours yet.
        numbered.filter(|(name, _)| name != "execve").collect()
    }
}
