//! Memory of the supervisor with many connections open at once through the broker, twice: the second batch must reuse
//! the memory of the first.

use super::super::work::WorkDir;
use super::super::{BenchConfig, Progress};
use super::{INSPECTED, RELAYED, inspected, ours, relayed};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use terms::{Fault, Phase};

/// Connections per curl; its maximum is 300.
const OF_ONE: usize = 250;
const CURLS: usize = 4;
const MANY: usize = OF_ONE * CURLS;
/// Batches. One connection before and after, so that an idle supervisor is measured in the same state.
const BATCHES: [usize; 4] = [1, MANY, MANY, 1];
/// Descriptors of this process besides the connections.
const OTHERS: u64 = 200;

/// Timeout of one batch, longer than that of its clients.
const PATIENCE: Duration = Duration::from_secs(300);
/// Interval, number and deadline of equal readings: the broker may still accept connections, and freed memory is
/// counted a little later.
const SETTLE: Duration = Duration::from_millis(150);
const SAME: u32 = 3;
const SETTLED: Duration = Duration::from_secs(15);
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// Shell script that opens the batches of connections inside the sandbox. `$1` is curl, `$2` the
/// URL, `$3` the connections per client.
const CLIENTS: &str = r#"
hold() { "$curl" -q -sS -m 120 --noproxy '*' -o /dev/null -Z --parallel-immediate --parallel-max 300 "$url?[1-$1]"; }
many() { hold "$each" & hold "$each" & hold "$each" & hold "$each" & wait; }
curl=$1 url=$2 each=$3
hold 1; many; many; hold 1
"#;

/// Result for one kind of connections: relayed or inspected.
#[derive(Clone, Debug, Serialize)]
pub struct HeldConnections {
    pub name: &'static str,
    pub connections: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident_kb: Option<Resident>,
    /// The reason why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

/// Resident memory of the supervisor in kilobytes: with one connection, with each full batch, and
/// with one again.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Resident {
    pub before: u64,
    pub with_first: u64,
    pub with_second: u64,
    pub after: u64,
}

pub fn measure(
    config: &BenchConfig,
    place: &WorkDir,
    curl: &Path,
    progress: Progress<'_>,
) -> Result<Vec<HeldConnections>, Fault> {
    let fault = |e: std::io::Error| Fault::internal(format!("held connections: {e}")).phase(Phase::Preparation);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(fault)?;
    // Backlog for all connections at once: if the queue overflows, clients see connections that the kernel dropped.
    rustix::net::listen(&listener, MANY as i32).map_err(|e| fault(e.into()))?;
    listener.set_nonblocking(true).map_err(fault)?;
    let port = listener.local_addr().map_err(fault)?.port();
    let kinds = [(RELAYED, relayed(&[port])), (INSPECTED, inspected(place, &[port])?)];
    let mut rows = Vec::with_capacity(kinds.len());
    for (at, (name, flags)) in (1..).zip(kinds) {
        let measured = want_descriptors().and_then(|()| {
            let mut words = ours(config, &flags);
            words.extend(["/bin/sh", "-c", CLIENTS, "sh"].map(OsString::from));
            words.extend([curl.into(), format!("http://127.0.0.1:{port}/").into(), OF_ONE.to_string().into()]);
            run(&words, &place.root, &listener)
        });
        let (resident_kb, absent) = match measured {
            Ok(resident) => (Some(resident), None),
            Err(why) => (None, Some(why)),
        };
        rows.push(HeldConnections { name, connections: MANY, resident_kb, absent });
        progress("held connections", at, 2);
    }
    Ok(rows)
}

/// Raises the descriptor limit: every connection is a descriptor of this process, too.
fn want_descriptors() -> Result<(), String> {
    let wanted = MANY as u64 + OTHERS;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
        .map_err(|e| format!("{wanted} descriptors are needed: {e}"))
}

fn run(words: &[OsString], directory: &Path, listener: &TcpListener) -> Result<Resident, String> {
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| e.to_string())?;
    let measured = batches(&mut child, listener);
    // On success the child ends by itself.
    if measured.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|e| e.to_string())?;
    let [before, with_first, with_second, after] = measured?;
    if !status.success() {
        return Err(format!("its clients failed: {status}"));
    }
    Ok(Resident { before, with_first, with_second, after })
}

fn batches(child: &mut Child, listener: &TcpListener) -> Result<[u64; BATCHES.len()], String> {
    let mut seen = [0; BATCHES.len()];
    for (seen, count) in seen.iter_mut().zip(BATCHES) {
        let mut streams = Vec::with_capacity(count);
        // Repeated if some were closed meanwhile.
        *seen = loop {
            collect(child, listener, &mut streams, count)?;
            let now = settled(child.id()).ok_or("its memory cannot be read")?;
            streams.retain(is_open);
            if streams.len() == count {
                break now;
            }
        };
        streams.into_iter().for_each(release);
    }
    Ok(seen)
}

/// Accepts until `count` connections are open. On a busy machine a guest retries before it is answered; the broker then
/// drops its first connection, which does not count.
fn collect(
    child: &mut Child,
    listener: &TcpListener,
    streams: &mut Vec<TcpStream>,
    count: usize,
) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    while streams.len() < count {
        match listener.accept() {
            Ok((stream, _)) => {
                streams.push(stream);
                if streams.len() == count {
                    streams.retain(is_open);
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                let ended = child.try_wait().map_err(|e| e.to_string())?;
                if ended.is_some() || Instant::now() >= deadline {
                    return Err(format!("only {} of {count} connections came", streams.len()));
                }
                sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(())
}

/// Returns true if the other side has neither closed nor reset a connection.
fn is_open(stream: &TcpStream) -> bool {
    let looked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let blocking = stream.set_nonblocking(false).is_ok();
    blocking
        && match looked {
            Ok(count) => count > 0,
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
}

/// Sends the response. The request is read first: closing with unread bytes would be a reset. A client that misses the
/// response fails.
fn release(mut stream: TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write_all(ANSWER).and_then(|()| stream.shutdown(Shutdown::Write));
}

/// Returns the resident size once it is stable, or at the deadline.
fn settled(pid: u32) -> Option<u64> {
    let (end, mut last, mut same) = (Instant::now() + SETTLED, resident(pid)?, 0);
    while same < SAME && Instant::now() < end {
        sleep(SETTLE);
        let now = resident(pid)?;
        // A difference of a few pages counts as equal.
        same = if now.abs_diff(last) <= 16 { same + 1 } else { 0 };
        last = now;
    }
    Some(last)
}

fn resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_can_be_read() {
        assert!(resident(std::process::id()).is_some_and(|kb| kb > 100));
    }
}
