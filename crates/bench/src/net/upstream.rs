//! The HTTP server that all contenders connect to: `/small`, and `/bulk/N` with N bytes. A few
//! threads, each with one connection at a time.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of threads; no contender opens as many connections at once.
const THREADS: usize = 8;
const LONGEST_HEAD: usize = 16 * 1024;
const CHUNK: usize = 256 * 1024;
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Upstream {
    at: SocketAddr,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Upstream {
    pub fn start() -> Result<Upstream, Error> {
        let listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
        let at = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut upstream = Upstream { at, stop: stop.clone(), threads: Vec::with_capacity(THREADS) };
        for _ in 0..THREADS {
            let (listener, stop) = (listener.clone(), stop.clone());
            upstream.threads.push(std::thread::Builder::new().spawn(move || work(&listener, &stop))?);
        }
        Ok(upstream)
    }

    pub fn port(&self) -> u16 {
        self.at.port()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Each thread may be blocked in accept; one connection wakes it.
        let calls: Vec<_> = self.threads.iter().map(|_| TcpStream::connect(self.at)).collect();
        drop(calls);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(listener: &TcpListener, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        // A failed connection is reported by its client.
        let _ = listener.accept().and_then(|(stream, _)| serve(stream));
    }
}

fn serve(mut stream: TcpStream) -> Result<(), Error> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut bytes = Vec::new();
    while let Some(head) = read_head(&mut stream, &mut bytes)? {
        let closes = head.lines().any(|line| line.eq_ignore_ascii_case("connection: close"));
        answer(&mut stream, &head)?;
        if closes {
            break;
        }
    }
    stream.shutdown(Shutdown::Write)
}

/// Reads the next request head; the bytes after it stay in `bytes`.
fn read_head(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<Option<String>, Error> {
    let mut buffer = [0; 4096];
    loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = bytes.drain(..at + 4).collect::<Vec<u8>>();
            return Ok(Some(String::from_utf8_lossy(&head).into_owned()));
        }
        let len = stream.read(&mut buffer)?;
        if len == 0 || bytes.len() > LONGEST_HEAD {
            return Ok(None);
        }
        bytes.extend(&buffer[..len]);
    }
}

fn answer(stream: &mut TcpStream, head: &str) -> Result<(), Error> {
    let path = head.split(' ').nth(1).unwrap_or_default();
    if path.starts_with("/small") {
        return stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n");
    }
    let length: Option<u64> = path.strip_prefix("/bulk/").and_then(|n| n.parse().ok());
    let mut left = length.ok_or(ErrorKind::InvalidData)?;
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n")?;
    let chunk = vec![b'x'; CHUNK];
    while left > 0 {
        let len = CHUNK.min(usize::try_from(left).unwrap_or(CHUNK));
        stream.write_all(&chunk[..len])?;
        left -= len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(at: SocketAddr, path: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(at).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        got
    }

    #[test]
    fn it_answers_what_it_is_asked_and_ends() {
        let upstream = Upstream::start().unwrap();
        assert!(ask(upstream.at, "/small?7").ends_with(b"\r\n\r\nok\n"));
        let bulk = ask(upstream.at, "/bulk/1000000");
        assert_eq!(bulk.iter().filter(|b| **b == b'x').count(), 1_000_000);
        assert!(ask(upstream.at, "/other").is_empty());
        let at = upstream.at;
        drop(upstream);
        assert!(TcpStream::connect(at).is_err());
    }
}
