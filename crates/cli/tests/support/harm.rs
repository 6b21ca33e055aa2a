//! Harms a command at one system call after another: kills it there, or makes the call fail. What must hold afterwards is for
//! the test to say. The walk is a sample that covers the whole life of the command, unless `COFFERDAM_WALK=full` asks for
//! every call. It goes on where the one before it ended, so that runs in a row come to every call; `COFFERDAM_WALK_FROM` sets the place,
//! which each walk prints, so that a failure can be had again.

use super::{Place, binary, to_the_end};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// What happens to the command at a call.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// `kill -9`, to the process that makes the call.
    Kill,
    /// The call is not made and gives this error, by name: `EIO`, `ENOSPC`.
    Error(&'static str),
}

/// One walk: what is done, at which calls (in strace's words: `all`, `%file,%desc`), and how long it may take.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    pub harm: Harm,
    pub calls: &'static str,
    pub budget: Duration,
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
        let full = std::env::var("COFFERDAM_WALK").is_ok_and(|v| v == "full");
        let (mark, stride) = (self.mark(), stride(calls));
        let from = begins(&mark, calls);
        println!("{self:?}: COFFERDAM_WALK_FROM={from}");
        let end = Instant::now() + self.budget;
        let mut tried = 0;
        // In strides that meet every call once and leave no large gap at any time: an early end still covers the whole life.
        for n in (from..from + calls).map(|k| k * stride % calls) {
            if !full && Instant::now() > end {
                break;
            }
            let (world, words) = fresh();
            let point = Point { call: n + 1, of: calls };
            let output = to_the_end(&mut self.traced(place, &words, &life[n]), b"");
            check(world, point, &output);
            tried += 1;
        }
        println!("{self:?}: {tried} of {calls} points");
        // Not before all went well: what failed is tried again first.
        fs::write(mark, ((from + tried) % calls).to_string()).unwrap();
        Walked { calls, tried }
    }

    /// Where it is kept how far walks of this kind in this test have come.
    fn mark(&self) -> PathBuf {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("walks");
        fs::create_dir_all(&dir).unwrap();
        let (test, harm) = (std::thread::current(), self.harm);
        dir.join(format!("{} {harm:?}", test.name().unwrap_or("walk")).replace(['/', '"', '\\'], "_"))
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

/// The place in the order of strides that a walk begins at.
fn begins(mark: &Path, calls: usize) -> usize {
    let asked = std::env::var("COFFERDAM_WALK_FROM").ok();
    let known = asked.or_else(|| fs::read_to_string(mark).ok());
    known.and_then(|text| text.trim().parse::<usize>().ok()).unwrap_or(0) % calls
}

/// About the golden part of a number, and without a common divisor with it.
fn stride(calls: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (calls * 618 / 1000..).find(|n| gcd(*n, calls) == 1).unwrap()
}
