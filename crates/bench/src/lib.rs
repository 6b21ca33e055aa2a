//! Benchmarks, side by side: every contender is started by the same few lines, in rounds that run each of them once in
//! shuffled order, so that load and leftovers of one affect all alike.

mod code;
mod daemon;
mod net;
mod soak;
mod statistics;
mod work;
mod workspace;

use serde::Serialize;
use statistics::Samples;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};

pub use code::{CallRow, CodeAmount, CodeReport, MemoryRow, OutputRow, WriteRow, code};
pub use daemon::{Amount, Count, DaemonReport, Growth, Idle, LoadRow, Weight, daemon};
pub use net::{HeldConnections, NetContender, NetRatio, NetReport, net};
pub use soak::{Census, SoakReport, soak};
pub use statistics::Quantiles;
pub use work::Work;
pub use workspace::{WorkspaceRatio, WorkspaceReport, WorkspaceRow, workspace};

#[derive(Clone, Debug)]
pub struct BenchConfig {
    pub rounds: u32,
    /// Also compare real work inside and outside.
    pub work: bool,
    /// Our own binary.
    pub exe: PathBuf,
    /// PATH for programs.
    pub path: Option<OsString>,
    /// Paths that a run shows; the other contenders get the same.
    pub shown: Vec<PathBuf>,
    /// Directories below which work files may be made; the first suitable one is used.
    pub cwd: PathBuf,
    pub home: PathBuf,
}

/// Result of the start benchmark; times in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct StartReport {
    pub protocol_version: u32,
    pub kernel: String,
    pub cpus: usize,
    /// Load average over the last minute at the start; far above 0 the figures are noisy.
    pub load: f64,
    pub rounds: u32,
    pub warmup: u32,
    pub contenders: Vec<Contender>,
    pub ratios: Vec<Ratio>,
    /// Time of our binary alone: the median of `--version` less that of the bare command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_start_us: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<Work>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Contender {
    pub name: &'static str,
    pub command: Vec<String>,
    /// Absent if it could not take part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us: Option<Quantiles>,
    /// The reason why it could not take part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

/// Ratios of medians and of 95th percentiles.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    pub name: String,
    pub p50: f64,
    pub p95: f64,
}

/// Progress callback: the step, rounds done and rounds in total.
pub type Progress<'a> = &'a mut dyn FnMut(&str, u32, u32);

/// Returns the number of warm-up rounds: a few, none where a round takes long and few are run. Each contender was tried
/// out before.
fn warmup(rounds: u32) -> u32 {
    (rounds / 6).min(5)
}

pub const BARE: &str = "bare";
pub const BUBBLEWRAP: &str = "bwrap";
pub const LIMITED: &str = "cofferdam";
pub const UNLIMITED: &str = "cofferdam-no-limits";
/// The binary alone: started and ended without a guest.
pub const VERSION: &str = "cofferdam-version";

pub fn bench(config: &BenchConfig, progress: Progress<'_>) -> Result<StartReport, Fault> {
    let load = load();
    let mut entries = entries(config)?;
    for entry in &mut entries {
        entry.try_out();
    }
    measure(&mut entries, config.rounds, "start-up", progress)?;
    let contenders: Vec<Contender> = entries.into_iter().map(Measurement::finish).collect();
    let (ratios, own_start_us) = (ratios(&contenders), own_start(&contenders));
    let work = if config.work { work::compare(config, progress)? } else { Vec::new() };
    Ok(StartReport {
        protocol_version: PROTOCOL_VERSION,
        kernel: kernel(),
        cpus: cpus(),
        load,
        rounds: config.rounds,
        warmup: warmup(config.rounds),
        contenders,
        ratios,
        own_start_us,
        work,
    })
}

fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0)
}

/// A contender under measurement.
struct Measurement {
    name: &'static str,
    words: Vec<OsString>,
    directory: Option<PathBuf>,
    samples: Samples,
    absent: Option<String>,
}

impl Measurement {
    fn new(name: &'static str, words: Vec<OsString>) -> Measurement {
        Measurement { name, words, directory: None, samples: Samples::default(), absent: None }
    }

    fn absent(name: &'static str, why: &str) -> Measurement {
        Measurement { absent: Some(why.to_owned()), ..Measurement::new(name, Vec::new()) }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }

    /// Runs the command once with its errors captured; a contender that fails is left out, with the reason.
    fn try_out(&mut self) {
        if self.absent.is_some() {
            return;
        }
        self.absent = match self.command().stderr(Stdio::piped()).output() {
            Err(e) => Some(e.to_string()),
            Ok(output) if output.status.success() => None,
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                Some(format!("{}: {}", output.status, said.lines().next().unwrap_or("said nothing")))
            }
        };
    }

    fn finish(self) -> Contender {
        let us = if self.absent.is_none() { self.samples.quantiles() } else { None };
        let command = self.words.iter().map(|w| w.to_string_lossy().into_owned()).collect();
        Contender { name: self.name, command, us, absent: self.absent }
    }
}

/// Measures one run of any contender: spawn, wait, elapsed time.
fn time(command: &mut Command) -> std::io::Result<(Duration, ExitStatus)> {
    let started = Instant::now();
    let status = command.spawn()?.wait()?;
    Ok((started.elapsed(), status))
}

fn measure(entries: &mut [Measurement], rounds: u32, what: &str, progress: Progress<'_>) -> Result<(), Fault> {
    let mut running: Vec<(&mut Measurement, Command)> = entries
        .iter_mut()
        .filter(|e| e.absent.is_none())
        .map(|entry| {
            let command = entry.command();
            (entry, command)
        })
        .collect();
    let mut order: Vec<usize> = (0..running.len()).collect();
    let mut shuffle = Shuffle(0x9e37_79b9_7f4a_7c15);
    let warmup = warmup(rounds);
    for round in 0..warmup + rounds {
        shuffle.apply(&mut order);
        for at in &order {
            let (entry, command) = &mut running[*at];
            let (took, status) = time(command).map_err(|e| lost(entry.name, &e.to_string()))?;
            if !status.success() {
                return Err(lost(entry.name, &status.to_string()));
            }
            if round >= warmup {
                entry.samples.add(took);
            }
        }
        progress(what, round + 1, warmup + rounds);
    }
    Ok(())
}

fn lost(name: &str, why: &str) -> Fault {
    Fault::new(ErrorKind::Unavailable, format!("{name} worked at first, then failed: {why}")).phase(Phase::Execution)
}

/// A fixed sequence of shuffles: the same in every measurement, and no contender always follows the same other.
struct Shuffle(u64);

impl Shuffle {
    fn apply(&mut self, order: &mut [usize]) {
        for i in (1..order.len()).rev() {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            order.swap(i, (self.0 % (i as u64 + 1)) as usize);
        }
    }
}

/// Returns a command that does nothing.
fn nothing() -> Result<&'static str, Fault> {
    let nothing = ["/bin/true", "/usr/bin/true"].into_iter().find(|p| Path::new(p).exists());
    nothing.ok_or_else(|| Fault::new(ErrorKind::UnsupportedHost, "there is no /bin/true to start"))
}

fn entries(config: &BenchConfig) -> Result<Vec<Measurement>, Fault> {
    let nothing = nothing()?;
    let ours = |flags: &[&str]| {
        // The other contenders have no workspace, either.
        let words =
            [config.exe.as_os_str()].into_iter().map(OsString::from).chain(["run".into(), "--read-only".into()]);
        words.chain(flags.iter().map(OsString::from)).chain(["--".into(), nothing.into()]).collect()
    };
    let bubblewrap = match find("bwrap", config.path.as_deref()) {
        Some(path) => Measurement::new(BUBBLEWRAP, bubblewrap(&path, &config.shown, &config.cwd, nothing)),
        None => Measurement::absent(BUBBLEWRAP, "bwrap is not on PATH"),
    };
    Ok(vec![
        Measurement::new(BARE, vec![nothing.into()]),
        Measurement::new(VERSION, vec![config.exe.clone().into(), "--version".into()]),
        bubblewrap,
        Measurement::new(LIMITED, ours(&["-m", "256m", "--pids", "64", "-t", "60s"])),
        Measurement::new(UNLIMITED, ours(&[])),
    ])
}

/// Builds a bubblewrap command with the flags closest to our own enclosure, and the same paths; it has no landlock, no
/// seccomp filter and no limits of its own.
fn bubblewrap(program: &Path, shown: &[PathBuf], cwd: &Path, command: &str) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![program.into()];
    let mut add = |list: &[&str]| words.extend(list.iter().map(OsString::from));
    add(&["--unshare-all", "--die-with-parent", "--new-session"]);
    add(&["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
    for path in shown.iter().filter_map(|p| p.to_str()) {
        add(&["--ro-bind", path, path]);
    }
    if let Some(cwd) = cwd.to_str().filter(|_| shown.iter().any(|p| cwd.starts_with(p))) {
        add(&["--chdir", cwd]);
    }
    for name in ["bin", "sbin", "lib", "lib32", "lib64"] {
        let path = format!("/{name}");
        if let Ok(target) = std::fs::read_link(&path) {
            add(&["--symlink", &target.to_string_lossy(), &path]);
        }
    }
    add(&[command]);
    words
}

fn find(name: &str, path: Option<&std::ffi::OsStr>) -> Option<PathBuf> {
    let path = path.unwrap_or(std::ffi::OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    std::env::split_paths(path).map(|dir| dir.join(name)).find(|p| p.is_absolute() && p.is_file())
}

fn times(contenders: &[Contender], name: &str) -> Option<Quantiles> {
    contenders.iter().find(|c| c.name == name)?.us
}

fn ratios(contenders: &[Contender]) -> Vec<Ratio> {
    let pairs =
        [(LIMITED, BUBBLEWRAP), (LIMITED, BARE), (UNLIMITED, BUBBLEWRAP), (UNLIMITED, BARE), (BUBBLEWRAP, BARE)];
    let ratio = |(ours, theirs): (&str, &str)| {
        let name = format!("{ours}/{theirs}");
        let (ours, theirs) = (times(contenders, ours)?, times(contenders, theirs)?);
        let p50 = round(ours.p50 / theirs.p50);
        (theirs.p50 > 0.0).then(|| Ratio { name, p50, p95: round(ours.p95 / theirs.p95) })
    };
    pairs.into_iter().filter_map(ratio).collect()
}

fn own_start(contenders: &[Contender]) -> Option<f64> {
    let less = times(contenders, VERSION)?.p50 - times(contenders, BARE)?.p50;
    Some((less * 10.0).round() / 10.0)
}

/// Rounds to three decimals, more than the measurement can tell.
fn round(ratio: f64) -> f64 {
    (ratio * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_keeps_every_contender() {
        let mut order: Vec<usize> = (0..4).collect();
        let mut shuffle = Shuffle(7);
        let mut firsts = [0; 4];
        for _ in 0..1000 {
            shuffle.apply(&mut order);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3]);
            firsts[order[0]] += 1;
        }
        assert!(firsts.iter().all(|n| *n > 150), "{firsts:?}");
    }

    #[test]
    fn a_ratio_needs_both_sides() {
        let contender = |name, p50: f64| Contender {
            name,
            command: Vec::new(),
            us: Some(Quantiles { p50, p95: p50 + 500.0, p99: p50 + 500.0 }),
            absent: None,
        };
        let found = ratios(&[contender(BARE, 500.0), contender(LIMITED, 2000.0)]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].p50), ("cofferdam/bare", 4.0));
        assert_eq!(found[0].p95, 2.5);
        assert!(own_start(&[contender(BARE, 500.0)]).is_none());
        assert_eq!(own_start(&[contender(BARE, 500.0), contender(VERSION, 1200.0)]), Some(700.0));
    }
}
