//! Many connections open at once through the broker, twice, and what memory the supervisor has meanwhile: what the
//! first thousand took must do for the second.

use super::super::work::Place;
use super::super::{Ask, Progress};
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

/// What one curl holds; it takes 300 at most.
const OF_ONE: usize = 250;
const CURLS: usize = 4;
const MANY: usize = OF_ONE * CURLS;
/// One connection before and after, so that a supervisor at rest is seen that has done the same.
const BATCHES: [usize; 4] = [1, MANY, MANY, 1];
/// Descriptors of this process beside the connections.
const OTHERS: u64 = 200;

/// Somewhat less than its clients have.
const PATIENCE: Duration = Duration::from_secs(100);
/// Connections that are there may still be taken up, and memory that was given back is counted a little later: figures count once they
/// have been the same so often, this long apart.
const SETTLE: Duration = Duration::from_millis(150);
const SAME: u32 = 3;
const SETTLED: Duration = Duration::from_secs(15);
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// The same batches of connections, held by clients inside. `$1` is curl, `$2` the place, `$3` what each client holds.
const CLIENTS: &str = r#"
hold() { "$curl" -q -sS -m 120 --noproxy '*' -o /dev/null -Z --parallel-immediate --parallel-max 300 "$url?[1-$1]"; }
many() { hold "$each" & hold "$each" & hold "$each" & hold "$each" & wait; }
curl=$1 url=$2 each=$3
hold 1; many; many; hold 1
"#;

/// Resident memory of the supervisor in kilobytes.
#[derive(Clone, Debug, Serialize)]
pub struct Held {
    pub name: &'static str,
    pub connections: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident_kb: Option<Resident>,
    /// Why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Resident {
    pub before: u64,
    pub with_first: u64,
    pub with_second: u64,
    pub after: u64,
}

pub fn measure(ask: &Ask, place: &Place, curl: &Path, progress: Progress<'_>) -> Result<Vec<Held>, Fault> {
    let fault = |e: std::io::Error| Fault::internal(format!("held connections: {e}")).phase(Phase::Preparation);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(fault)?;
    listener.set_nonblocking(true).map_err(fault)?;
    let port = listener.local_addr().map_err(fault)?.port();
    let kinds = [(RELAYED, relayed(&[port])), (INSPECTED, inspected(place, &[port])?)];
    let mut rows = Vec::with_capacity(kinds.len());
    for (at, (name, flags)) in (1..).zip(kinds) {
        let measured = want_descriptors().and_then(|()| {
            let mut words = ours(ask, &flags);
            words.extend(["/bin/sh", "-c", CLIENTS, "sh"].map(OsString::from));
            words.extend([curl.into(), format!("http://127.0.0.1:{port}/").into(), OF_ONE.to_string().into()]);
            run(&words, &place.root, &listener)
        });
        let (resident_kb, absent) = match measured {
            Ok(resident) => (Some(resident), None),
            Err(why) => (None, Some(why)),
        };
        rows.push(Held { name, connections: MANY, resident_kb, absent });
        progress("held connections", at, 2);
    }
    Ok(rows)
}

/// Every connection is a descriptor of this process, too.
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
    // When all went well, it ends by itself.
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
        let streams = collect(child, listener, count)?;
        *seen = settled(child.id()).ok_or("its memory cannot be read")?;
        streams.into_iter().for_each(release);
    }
    Ok(seen)
}

fn collect(child: &mut Child, listener: &TcpListener, count: usize) -> Result<Vec<TcpStream>, String> {
    let deadline = Instant::now() + PATIENCE;
    let mut streams = Vec::with_capacity(count);
    while streams.len() < count {
        match listener.accept() {
            Ok((stream, _)) => streams.push(stream),
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
    Ok(streams)
}

/// Answers. What was asked is read first: an end with unread bytes would be a reset. A client that does not hear it tells.
fn release(mut stream: TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write_all(ANSWER).and_then(|()| stream.shutdown(Shutdown::Write));
}

/// What it has once it takes no more; or what it has then, if it never rests.
fn settled(pid: u32) -> Option<u64> {
    let (end, mut last, mut same) = (Instant::now() + SETTLED, resident(pid)?, 0);
    while same < SAME && Instant::now() < end {
        sleep(SETTLE);
        let now = resident(pid)?;
        // A page more or less is no news.
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
