//! A minimal HTTP client for measurements: one keep-alive connection, one document per request and response.

use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};

/// Timeout; longer than any request that is not stuck.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bound on a response in bytes.
const MOST: usize = 4 << 20;
const MOST_HEAD_LINES: usize = 100;

pub struct BenchClient {
    line: BufReader<UnixStream>,
}

impl BenchClient {
    pub fn connect(socket: &Path) -> Result<BenchClient, Fault> {
        let line = UnixStream::connect(socket).and_then(|line| line.set_read_timeout(Some(PATIENCE)).map(|()| line));
        let line = line.map_err(|e| lost(&format!("its socket: {e}")))?;
        Ok(BenchClient { line: BufReader::new(line) })
    }

    /// Sends a request and returns the document of a successful response.
    pub fn ask(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Fault> {
        let (status, text) = self.exchange(method, path, body).map_err(|e| lost(&format!("{method} {path}: {e}")))?;
        let document: Value = serde_json::from_slice(&text).map_err(|e| lost(&format!("{method} {path}: {e}")))?;
        match status {
            200..=299 => Ok(document),
            _ => Err(lost(&format!("{method} {path}: {status}: {}", document["message"].as_str().unwrap_or_default()))),
        }
    }

    fn exchange(&mut self, method: &str, path: &str, body: Option<&Value>) -> io::Result<(u16, Vec<u8>)> {
        let body = body.map(Value::to_string);
        let sort = if body.is_some() { "Content-Type: application/json\r\n" } else { "" };
        let body = body.unwrap_or_default();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{sort}Content-Length: {length}\r\n\r\n{body}");
        self.line.get_mut().write_all(head.as_bytes())?;
        let first = self.head_line()?;
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        let mut length = 0;
        for _ in 0..MOST_HEAD_LINES {
            let line = self.head_line()?;
            if line.is_empty() {
                let mut text = vec![0; length];
                self.line.read_exact(&mut text)?;
                return Ok((status, text));
            }
            let (name, value) = line.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok().filter(|n| *n <= MOST).ok_or(io::ErrorKind::InvalidData)?;
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    fn head_line(&mut self) -> io::Result<String> {
        const LONGEST: u64 = 8192;
        let mut line = String::new();
        match (&mut self.line).take(LONGEST).read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

pub fn lost(why: &str) -> Fault {
    Fault::new(ErrorKind::Unavailable, format!("the daemon that is measured: {why}")).phase(Phase::Execution)
}
