//! A daemon to look at: started on a state of its own, asked over its socket or over TCP, ended with the test.

use crate::support::{As, Place, unique};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything is waited for that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Daemon<'a> {
    place: &'a Place,
    child: Child,
    log: PathBuf,
    /// `ADDRESS:PORT`, where it listens on TCP.
    tcp: String,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<String> {
        let line = self.head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}:")))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

impl Daemon<'_> {
    pub fn start<'a>(place: &'a Place, args: &[&str], env: &[(&str, &str)]) -> Daemon<'a> {
        let log = place.file(format!("log-{}", unique()), "");
        let mut command = place.cofferdam(["serve", "--json", "--listen", "127.0.0.1:0"]);
        command.args(args).envs(env.iter().copied());
        let error = File::options().append(true).open(&log).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(error).spawn().unwrap();
        // It says that it answers, in one document.
        let mut said = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        while serde_json::from_str::<Value>(&said).is_err() {
            if out.read_line(&mut said).unwrap() == 0 {
                panic!("the daemon ended: {said} {}", fs::read_to_string(&log).unwrap());
            }
        }
        let said: Value = serde_json::from_str(&said).unwrap();
        let tcp = said["listen"].as_str().unwrap().trim_start_matches("http://").to_owned();
        Daemon { place, child, log, tcp }
    }

    /// Asks as the operator: over the socket, or with the operator's token where the socket is another user's.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        if self.place.who == As::Root {
            let stream = UnixStream::connect(self.place.state().join("cofferdam.sock")).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            return exchange(stream, "localhost", method, path, headers, body);
        }
        let token = fs::read_to_string(self.place.state().join("operator.token")).unwrap();
        let bearer = format!("Bearer {}", token.trim());
        let mut headers = headers.to_vec();
        if !headers.iter().any(|(name, _)| *name == "authorization") {
            headers.push(("authorization", &bearer));
        }
        exchange(self.connect(), &self.tcp, method, path, &headers, body)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    /// Asks over TCP, with a token or without.
    pub fn ask_tcp(&self, path: &str, token: Option<&str>) -> Answer {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
        exchange(self.connect(), &self.tcp, "GET", path, &headers, "")
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.tcp).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Everything that it wrote to stderr so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Ends it in order; what it wrote.
    pub fn end(mut self) -> String {
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
        assert!(self.child.wait().unwrap().success(), "{}", self.log());
        self.log()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn exchange(
    mut stream: impl Read + Write,
    host: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    if !body.is_empty() {
        text.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
    }
    text.push_str(&format!("\r\n{body}"));
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// A command in the background that no failing test leaves behind.
pub struct Running(pub Child);

impl Running {
    pub fn begin(mut command: Command) -> Running {
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

/// Looks again and again until there is what must come.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Where tools/test puts what tests need of Python.
pub fn python_path() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/python");
    assert!(path.exists(), "{} is not there; tools/test installs it", path.display());
    path
}
