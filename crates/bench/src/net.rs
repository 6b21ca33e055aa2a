//! Network benchmark: the same curl against the same server, outside, through our broker, through our broker where it
//! reads every request, and through the proxy of srt. curl measures the time itself, so that start-up does not count.
//! The server is a part of this process and speaks plain HTTP on 127.0.0.1.

mod held;
mod srt;
mod upstream;

use super::statistics::Samples;
use super::work::WorkDir;
use super::{BenchConfig, Progress, Quantiles, Shuffle, find, load, round};
use serde::Serialize;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};
use upstream::Upstream;

pub use held::HeldConnections;

pub const NATIVE: &str = "native";
pub const RELAYED: &str = "cofferdam";
pub const INSPECTED: &str = "cofferdam-inspected";
pub const SRT: &str = "srt";
/// srt with a CONNECT tunnel, which its proxy does not inspect.
pub const SRT_TUNNEL: &str = "srt-tunnel";

/// Fresh connections of one contender in one round.
const CONNECTIONS: usize = 200;
/// Bounds on rounds, which take seconds each; so many are enough for a median.
const MOST_ROUNDS: u32 = 20;
const MOST_BULK_ROUNDS: u32 = 10;
/// curl's timeout of one transfer, in seconds.
const PATIENCE: &str = "300";

#[derive(Clone, Debug, Serialize)]
pub struct NetReport {
    pub protocol_version: u32,
    pub kernel: String,
    pub cpus: usize,
    /// Load average over the last minute at the start; far above 0 the figures are noisy.
    pub load: f64,
    pub rounds: u32,
    pub connections_a_round: usize,
    pub bulk_rounds: u32,
    pub bulk_bytes: u64,
    pub contenders: Vec<NetContender>,
    pub ratios: Vec<NetRatio>,
    pub held: Vec<HeldConnections>,
}

#[derive(Clone, Debug, Serialize)]
pub struct NetContender {
    pub name: &'static str,
    /// The command for small responses.
    pub command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Time from the start of a fresh connection to the first byte of its response, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte_us: Option<Quantiles>,
    /// Median throughput of one large response, in millions of bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bulk_mb_s: Option<f64>,
    /// Transfers that failed, or were not made over one fresh connection; their times do not count.
    pub failed: usize,
    /// The reason why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

/// Ratios of medians.
#[derive(Clone, Debug, Serialize)]
pub struct NetRatio {
    pub name: String,
    /// Ratio of times: below 1 is faster.
    pub first_byte: f64,
    /// Difference in microseconds.
    pub first_byte_more_us: f64,
    /// Ratio of throughput: above 1 is faster.
    pub bulk: f64,
}

pub fn net(config: &BenchConfig, bulk_mib: u64, progress: Progress<'_>) -> Result<NetReport, Fault> {
    let load = load();
    let (rounds, bulk_rounds) = (config.rounds.min(MOST_ROUNDS), config.rounds.min(MOST_BULK_ROUNDS));
    let bulk_bytes = bulk_mib.saturating_mul(1024 * 1024);
    let curl = find("curl", config.path.as_deref()).ok_or_else(|| unsupported("there is no curl on PATH"))?;
    let place = WorkDir::make(config)?;
    let upstream = Upstream::start().map_err(|e| unsupported(&format!("no server can listen on 127.0.0.1: {e}")))?;
    let mut lanes = lanes(config, &place, upstream.port(), &curl)?;
    let small =
        Transfer { url: upstream.url(&format!("/small?[1-{CONNECTIONS}]")), transfers: CONNECTIONS, says: FIRST_BYTE };
    let bulk = Transfer { url: upstream.url(&format!("/bulk/{bulk_bytes}")), transfers: 1, says: TOTAL };
    lanes.iter_mut().for_each(|lane| lane.try_out(&small));
    measure(&mut lanes, &small, rounds, "connections", progress);
    measure(&mut lanes, &bulk, bulk_rounds, "bulk", progress);
    let contenders: Vec<NetContender> = lanes.into_iter().map(|lane| lane.finish(&small, bulk_bytes)).collect();
    let held = held::measure(config, &place, &curl, progress)?;
    Ok(NetReport {
        protocol_version: PROTOCOL_VERSION,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        load,
        rounds,
        connections_a_round: CONNECTIONS,
        bulk_rounds,
        bulk_bytes,
        ratios: ratios(&contenders),
        contenders,
        held,
    })
}

fn unsupported(message: &str) -> Fault {
    Fault::new(ErrorKind::UnsupportedHost, message).phase(Phase::Preparation)
}

/// A transfer of curl, and the time that it reports.
struct Transfer {
    url: String,
    transfers: usize,
    says: &'static str,
}

const FIRST_BYTE: &str = "%{http_code} %{num_connects} %{time_starttransfer}\\n";
const TOTAL: &str = "%{http_code} %{num_connects} %{time_total}\\n";

/// A route to the server.
struct Route {
    name: &'static str,
    /// Command prefix; empty outside.
    before: Vec<OsString>,
    /// The rest of the command is one text for a shell.
    shell: bool,
    curl: Vec<String>,
    directory: PathBuf,
    version: Option<String>,
    samples: [Samples; 2],
    failed: usize,
    absent: Option<String>,
}

fn lanes(config: &BenchConfig, place: &WorkDir, port: u16, curl: &Path) -> Result<Vec<Route>, Fault> {
    let curl = curl.to_string_lossy();
    // The caller's curl settings are ignored, and every response closes its connection.
    let words = |more: &[&str]| {
        let words = [&curl, "-q", "-sS", "-m", PATIENCE, "-H", "Connection: close", "-o", "/dev/null"];
        words.iter().chain(more).map(|word| (*word).to_owned()).collect::<Vec<String>>()
    };
    let lane = |name, before: Vec<OsString>, more: &[&str]| Route {
        name,
        before,
        shell: false,
        curl: words(more),
        directory: place.root.clone(),
        version: None,
        samples: Default::default(),
        failed: 0,
        absent: None,
    };
    let direct = ["--noproxy", "*"];
    let mut lanes = vec![
        lane(NATIVE, Vec::new(), &direct),
        lane(RELAYED, ours(config, &relayed(&[port])), &direct),
        lane(INSPECTED, ours(config, &inspected(place, &[port])?), &direct),
    ];
    // srt's list of exceptions contains 127.0.0.1; an empty one sends curl to the proxy for that, too.
    let proxied: [(_, &[&str]); 2] = [(SRT, &["--noproxy", ""]), (SRT_TUNNEL, &["--noproxy", "", "--proxytunnel"])];
    let installed = srt::install(config, &place.root);
    for (name, more) in proxied {
        let lane = lane(name, Vec::new(), more);
        lanes.push(match &installed {
            Ok(srt) => Route { before: srt.words(), shell: true, version: Some(srt.version.clone()), ..lane },
            Err(why) => Route { absent: Some(why.clone()), ..lane },
        });
    }
    Ok(lanes)
}

fn ours(config: &BenchConfig, flags: &[OsString]) -> Vec<OsString> {
    let words = [config.exe.clone().into(), "run".into(), "--read-only".into()].into_iter();
    words.chain(flags.iter().cloned()).chain(["--".into()]).collect()
}

/// Returns flags that permit connections to these ports of the host by address.
fn relayed(ports: &[u16]) -> Vec<OsString> {
    ports.iter().flat_map(|port| ["--net".into(), format!("127.0.0.1:{port}").into()]).collect()
}

/// Returns flags under which every request to these ports is read.
fn inspected(place: &WorkDir, ports: &[u16]) -> Result<Vec<OsString>, Fault> {
    let rule = |port: &u16| serde_json::json!({"action": "allow", "cidr": "127.0.0.1/32", "ports": port.to_string(), "methods": ["GET"]});
    let rules: Vec<_> = ports.iter().map(rule).collect();
    let policy = serde_json::json!({"version": 1, "extends": ["default"], "net": {"rules": rules}});
    let path = place.root.join("inspected.json");
    fs::write(&path, policy.to_string())
        .map_err(|e| Fault::internal(format!("{}: {e}", path.display())).phase(Phase::Preparation))?;
    Ok(vec!["-p".into(), path.into()])
}

impl Route {
    fn words(&self, job: &Transfer) -> Vec<OsString> {
        let curl = self.curl.iter().map(String::as_str).chain(["-w", job.says, &job.url]);
        let mut words = self.before.clone();
        match self.shell {
            true => words.push(curl.map(quoted).collect::<Vec<_>>().join(" ").into()),
            false => words.extend(curl.map(OsString::from)),
        }
        words
    }

    /// Runs the transfers; returns the times that curl measured, and the number of missing ones. An error if there are
    /// none.
    fn fetch(&self, job: &Transfer) -> Result<(Vec<Duration>, usize), String> {
        let words = self.words(job);
        let mut command = Command::new(&words[0]);
        let output = command.args(&words[1..]).current_dir(&self.directory).stdin(Stdio::null()).output();
        let output = output.map_err(|e| e.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout);
        let times: Vec<Duration> = said.lines().filter_map(time).collect();
        if times.is_empty() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            let heard = complaint.lines().chain(said.lines()).next().unwrap_or("said nothing");
            return Err(format!("{}: {heard}", output.status));
        }
        let missing = job.transfers.saturating_sub(times.len());
        Ok((times, missing))
    }

    fn try_out(&mut self, job: &Transfer) {
        if self.absent.is_none() {
            self.absent = self.fetch(job).err();
        }
    }

    fn finish(self, small: &Transfer, bulk_bytes: u64) -> NetContender {
        let command = self.words(small).iter().map(|w| w.to_string_lossy().into_owned()).collect();
        let Route { name, version, samples: [first_byte, bulk], failed, absent, .. } = self;
        let measured = absent.is_none();
        // Bytes per microsecond are millions of bytes per second.
        let rate = |q: Quantiles| (bulk_bytes as f64 / q.p50.max(1.0) * 10.0).round() / 10.0;
        let first_byte_us = first_byte.quantiles().filter(|_| measured);
        let bulk_mb_s = bulk.quantiles().filter(|_| measured).map(rate);
        NetContender { name, command, version, first_byte_us, bulk_mb_s, failed, absent }
    }
}

/// Parses a line of curl's output: status, connections made, seconds. Only a response over one fresh connection can be
/// compared.
fn time(line: &str) -> Option<Duration> {
    let seconds: f64 = line.strip_prefix("200 1 ")?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Measures rounds of all lanes, each once a round in shuffled order; the first round does not count. A lane that fails
/// is left out from there on.
fn measure(lanes: &mut [Route], job: &Transfer, rounds: u32, what: &str, progress: Progress<'_>) {
    let slot = usize::from(job.says == TOTAL);
    let mut order: Vec<usize> = (0..lanes.len()).collect();
    let mut shuffle = Shuffle(0x2545_f491_4f6c_dd1d);
    for round in 0..=rounds {
        shuffle.apply(&mut order);
        for at in &order {
            let lane = &mut lanes[*at];
            if lane.absent.is_some() {
                continue;
            }
            match lane.fetch(job) {
                Ok((times, missing)) if round > 0 => {
                    times.into_iter().for_each(|took| lane.samples[slot].add(took));
                    lane.failed += missing;
                }
                Ok(_) => {}
                Err(why) => lane.absent = Some(format!("{what}: it worked at first, then failed: {why}")),
            }
        }
        progress(what, round, rounds);
    }
}

fn ratios(contenders: &[NetContender]) -> Vec<NetRatio> {
    let figures = |name: &str| {
        let contender = contenders.iter().find(|c| c.name == name)?;
        Some((contender.first_byte_us?.p50, contender.bulk_mb_s?)).filter(|(us, rate)| *us > 0.0 && *rate > 0.0)
    };
    let ratio = |(one, other): (&str, &str)| {
        let ((us, rate), (other_us, other_rate)) = (figures(one)?, figures(other)?);
        Some(NetRatio {
            name: format!("{one}/{other}"),
            first_byte: round(us / other_us),
            first_byte_more_us: ((us - other_us) * 10.0).round() / 10.0,
            bulk: round(rate / other_rate),
        })
    };
    let ours = [RELAYED, INSPECTED].into_iter();
    ours.flat_map(|one| [NATIVE, SRT, SRT_TUNNEL].map(|other| (one, other))).filter_map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_over_one_fresh_connection_counts() {
        assert_eq!(time("200 1 0.000250"), Some(Duration::from_micros(250)));
        for line in ["200 0 0.000250", "403 1 0.000250", "200 1 never", "200 1 -1", ""] {
            assert_eq!(time(line), None, "{line}");
        }
    }

    #[test]
    fn words_stay_words_in_a_shell() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn a_ratio_says_more_than_one_when_bytes_come_faster() {
        let contender = |name, p50, rate| NetContender {
            name,
            command: Vec::new(),
            version: None,
            first_byte_us: Some(Quantiles { p50, p95: p50, p99: p50 }),
            bulk_mb_s: Some(rate),
            failed: 0,
            absent: None,
        };
        let found = ratios(&[contender(NATIVE, 200.0, 1000.0), contender(RELAYED, 300.0, 900.0)]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].first_byte, found[0].first_byte_more_us, found[0].bulk), (1.5, 100.0, 0.9));
    }
}
