//! A small HTTP client and a daemon for tests: over its socket and over TCP, byte by byte where a test needs that. No
//! code is shared with the product, so that both cannot be wrong in the same way.

use super::patience::{PATIENCE, Until};
use super::{As, Place};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A daemon on the state of a place; it ends with the test.
pub struct Daemon {
    pub child: Child,
    pub socket: PathBuf,
    /// The port on 127.0.0.1, if it listens there.
    pub port: Option<u16>,
    pub told: Value,
    /// Token for an ordinary user's daemon: the socket authenticates its own user only, and tests run as root.
    own: Option<String>,
    _out: BufReader<ChildStdout>,
}

impl Daemon {
    /// Starts a daemon on its socket only.
    pub fn start(place: &Place) -> Daemon {
        Daemon::start_with(place, &[])
    }

    /// Starts a daemon that also listens on a free port of 127.0.0.1.
    pub fn start_tcp(place: &Place) -> Daemon {
        Daemon::start_with(place, &["--listen", "127.0.0.1:0"])
    }

    pub fn start_with(place: &Place, flags: &[&str]) -> Daemon {
        let mut command = place.cofferdam(["serve", "--json"]);
        command.args(flags).env("COFFERDAM_LOG_LEVEL", "warn");
        Daemon::spawn(place, command)
    }

    pub fn spawn(place: &Place, mut command: Command) -> Daemon {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        while !text.ends_with("\n}\n") {
            assert!(out.read_line(&mut text).unwrap() > 0, "the daemon must start: {text}");
        }
        let told: Value = serde_json::from_str(&text).unwrap();
        let port = told["listen"].as_str().and_then(|at| at.rsplit(':').next()?.parse().ok());
        let socket = told["socket"].as_str().map_or_else(|| place.state().join("cofferdam.sock"), PathBuf::from);
        let own = match place.who {
            As::Root => None,
            As::User => {
                let made = place.cofferdam(["token", "create", "test", "--scope", "operator"]).output().unwrap();
                Some(String::from_utf8(made.stdout).unwrap().trim().to_owned())
            }
        };
        Daemon { child, socket, port, told, own, _out: out }
    }

    /// Prepares a request as the daemon's own user, over the socket.
    pub fn ask(&self, method: &str, path: &str) -> Ask<'_> {
        Ask::new(self, method, path)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path).send()
    }

    pub fn post(&self, path: &str, body: Value) -> Answer {
        self.ask("POST", path).json(body).send()
    }

    /// Returns the first operator's token.
    pub fn operator_token(&self) -> String {
        let path = self.told["operator_token"].as_str().unwrap();
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }

    /// Creates a token over the socket.
    pub fn token(&self, ask: Value) -> String {
        let answer = self.post("/v1/tokens", ask);
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["token"].as_str().unwrap().to_owned()
    }

    pub fn unix(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    pub fn tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port.expect("it listens on TCP"))).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for the daemon's end; returns its exit status.
    pub fn ended(&mut self) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the daemon does not end");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request under construction.
#[derive(Clone)]
pub struct Ask<'a> {
    daemon: &'a Daemon,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    host: Option<String>,
    body: Vec<u8>,
    over_tcp: bool,
}

impl<'a> Ask<'a> {
    fn new(daemon: &'a Daemon, method: &str, path: &str) -> Ask<'a> {
        let (method, path) = (method.to_owned(), path.to_owned());
        Ask { daemon, method, path, headers: Vec::new(), host: None, body: Vec::new(), over_tcp: false }
    }

    pub fn header(mut self, name: &str, value: &str) -> Ask<'a> {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn host(mut self, host: &str) -> Ask<'a> {
        self.host = Some(host.into());
        self
    }

    pub fn bearer(self, token: &str) -> Ask<'a> {
        self.header("authorization", &format!("Bearer {token}"))
    }

    pub fn over_tcp(mut self) -> Ask<'a> {
        self.over_tcp = true;
        self
    }

    pub fn json(self, body: Value) -> Ask<'a> {
        self.body("application/json", body.to_string().as_bytes())
    }

    pub fn body(self, sort: &str, body: &[u8]) -> Ask<'a> {
        let mut ask = self.header("content-type", sort);
        ask.body = body.to_vec();
        ask
    }

    /// Sets a body without a content type, as some clients send it.
    pub fn bare(mut self, body: &[u8]) -> Ask<'a> {
        self.body = body.to_vec();
        self
    }

    fn head(&self) -> String {
        let own = match (self.over_tcp, self.daemon.port) {
            (true, Some(port)) => format!("localhost:{port}"),
            _ => "localhost".into(),
        };
        let host = self.host.as_ref().unwrap_or(&own);
        let mut head = format!("{} {} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n", self.method, self.path);
        let has_token = self.headers.iter().any(|(name, _)| name == "authorization");
        if let Some(own) = self.daemon.own.as_ref().filter(|_| !self.over_tcp && !has_token) {
            head += &format!("authorization: Bearer {own}\r\n");
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !self.body.is_empty() {
            head += &format!("content-length: {}\r\n", self.body.len());
        }
        head + "\r\n"
    }

    pub fn send(&self) -> Answer {
        let mut bytes = self.head().into_bytes();
        bytes.extend(&self.body);
        match self.over_tcp {
            true => exchange(self.daemon.tcp(), &bytes),
            false => exchange(self.daemon.unix(), &bytes),
        }
    }

    /// Sends the request and returns the response as a stream.
    pub fn open(&self) -> Open {
        let mut bytes = self.head().into_bytes();
        bytes.extend(&self.body);
        let stream: Box<dyn Read + Send> = match self.over_tcp {
            true => {
                let mut stream = self.daemon.tcp();
                stream.write_all(&bytes).unwrap();
                Box::new(stream)
            }
            false => {
                let mut stream = self.daemon.unix();
                stream.write_all(&bytes).unwrap();
                Box::new(stream)
            }
        };
        Open { stream: Until(stream, Instant::now()), text: Vec::new() }
    }
}

/// A streaming response.
pub struct Open {
    stream: Until<Box<dyn Read + Send>>,
    pub text: Vec<u8>,
}

impl Open {
    /// Reads until the text has arrived; false if the stream ends before, or on timeout.
    pub fn until(&mut self, text: &str) -> bool {
        self.stream.1 = Instant::now() + PATIENCE;
        while !String::from_utf8_lossy(&self.text).contains(text) {
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return false,
                Ok(n) => self.text.extend(&buffer[..n]),
            }
        }
        true
    }

    /// Reads to the end.
    pub fn rest(&mut self) -> String {
        self.stream.1 = Instant::now() + PATIENCE;
        let _ = self.stream.read_to_end(&mut self.text);
        String::from_utf8_lossy(&self.text).into_owned()
    }
}

#[derive(Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {}", self.status, self.headers, self.text())
    }
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns true if the body has the announced length. A killed daemon leaves a head, and a part of a body.
    pub fn is_whole(&self) -> bool {
        self.header("content-length").is_none_or(|length| length.parse() == Ok(self.body.len()))
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {} {}", self.status, self.text()))
    }

    /// Asserts a fault document with this status and kind.
    #[track_caller]
    pub fn assert_fault(&self, status: u16, kind: &str) -> Value {
        let fault = self.json();
        assert_eq!((self.status, fault["error_kind"].as_str()), (status, Some(kind)), "{fault:#}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert_eq!(fault["success"], false);
        assert_eq!(fault["request_id"].as_str(), self.header("x-request-id"), "{fault:#}");
        assert!(fault["message"].as_str().is_some_and(|m| !m.is_empty()), "{fault:#}");
        // A missing command needs no hint.
        let is_not_there = fault["phase"] == "start" && kind == "not_found";
        assert!(fault["hint"].is_string() || is_not_there, "{fault:#}");
        fault
    }

    #[track_caller]
    pub fn assert_ok(&self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.text());
        self.json()
    }
}

/// Sends bytes and reads one response.
pub fn exchange(mut stream: impl Read + Write, bytes: &[u8]) -> Answer {
    // A server that refuses early need not read the whole request.
    let _ = stream.write_all(bytes);
    receive(&mut stream).expect("an answer")
}

/// Reads one response; `None` if the connection was closed without one.
pub fn receive(stream: &mut impl Read) -> Option<Answer> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let find = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
    let mut body = Vec::new();
    // Event streams have no end; `Ask::open` reads them.
    if find("content-type").is_some_and(|sort| sort == "text/event-stream") {
        return Some(Answer { status, headers, body });
    }
    if let Some(length) = find("content-length").and_then(|n| n.parse::<u64>().ok()) {
        stream.take(length).read_to_end(&mut body).ok()?;
    } else if find("transfer-encoding").is_some_and(|coding| coding == "chunked") {
        body = chunks(stream)?;
    } else if status >= 200 && status != 204 {
        stream.read_to_end(&mut body).ok()?;
    }
    Some(Answer { status, headers, body })
}

fn chunks(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            if stream.read(&mut byte).ok()? == 0 {
                return None;
            }
            line.push(byte[0]);
        }
        let size = u64::from_str_radix(String::from_utf8(line).ok()?.trim(), 16).ok()?;
        let before = body.len();
        stream.take(size + 2).read_to_end(&mut body).ok()?;
        body.truncate(before + size as usize);
        if size == 0 {
            return Some(body);
        }
    }
}

/// Python client of a daemon over its socket, with the standard library only: `ask` returns the status and the
/// document. At every exit of a script, its sandboxes are stopped and its daemon has ended before the test examines
/// their leftovers, which stay.
const SPEAKS: &str = r#"
import atexit, http.client, json, os, socket, subprocess, sys, time
cofferdam, state = os.environ["COFFERDAM"], os.environ["COFFERDAM_STATE"]
daemon = subprocess.Popen([cofferdam, "serve", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
def leave():
    listed = subprocess.run([cofferdam, "ls", "--json"], capture_output=True, timeout=180)
    for sandbox in json.loads(listed.stdout)["sandboxes"]:
        subprocess.run([cofferdam, "stop", "-t", "0", sandbox["id"]], capture_output=True, timeout=180)
    daemon.terminate()
    daemon.wait(180)
atexit.register(leave)
path = os.path.join(state, "cofferdam.sock")
class Line(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
def ask(method, at, body=None, token=None):
    line = Line("localhost")
    headers = {"content-type": "application/json"} if body is not None else {}
    if token: headers["authorization"] = "Bearer " + token
    line.request(method, at, json.dumps(body) if body is not None else None, headers)
    answer = line.getresponse()
    return answer.status, json.loads(answer.read())
def until(what, holds):
    deadline = time.monotonic() + 180
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
def is_up():
    try:
        return ask("GET", "/v1/health/live")[0] == 200
    except OSError:
        return False
until("the daemon answers", is_up)
"#;

/// Runs a script in a world in which a daemon was started: `cofferdam`, `daemon` and `ask` are defined. Returns its
/// output.
pub fn with_daemon(world: &super::world::World, script: &str) -> String {
    let mut command = world.command("/usr/bin/python3", &["-c", &format!("{SPEAKS}{script}")]);
    let output = command.env("COFFERDAM", super::binary()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    out.into_owned()
}
