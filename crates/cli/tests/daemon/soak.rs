//! Soak test of the daemon: clients send random requests over HTTP while the daemon, keepers, first processes and
//! shepherds are killed at random. Acknowledged results stay true: every byte of the directory is explained by the
//! journal, a repeated request gets its response again, a lost run is reported as lost, and in the end nothing is
//! left. One short round, or a hundred with `COFFERDAM_FULL=1`.

mod client;
mod killer;
mod truth;

use crate::support::dice::{Dice, rounds};
use crate::support::http::{Answer, Daemon, receive};
use crate::support::replay::{Reviews, furnish};
use crate::support::{As, Place, binary};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

/// Short enough for the journal of a round to be read at once.
const ROUND: Duration = Duration::from_secs(10);
/// Longest duration on a busy host, until every operation has happened once.
const LONGEST: Duration = Duration::from_secs(300);
const CLIENTS: usize = 4;
/// Operations that must have happened at least once.
const DONE: [&str; 6] = ["create", "exec", "diff", "approve", "put", "follow"];
const KILLED: [&str; 4] = ["daemon", "keeper", "first", "shepherd"];
/// Upper bound for any step that is not stuck.
const PATIENCE: Duration = Duration::from_secs(180);

/// State shared by clients, killer and checks.
struct Soak {
    place: Place,
    socket: PathBuf,
    token: Option<String>,
    record: Mutex<SoakRecord>,
    /// Read lock: held by clients for each request. Write lock: held by checks of the whole state.
    quiesce: RwLock<()>,
    /// A sleep duration that identifies processes of this test.
    mark: String,
}

/// Results that clients and killer recorded. Ids are only ever added: some of them are gone.
#[derive(Default)]
struct SoakRecord {
    sandboxes: Vec<String>,
    snapshots: Vec<String>,
    /// With the sandbox whose changes landed.
    batches: Vec<(String, String)>,
    runs: Vec<String>,
    reviews: Reviews,
    /// Acknowledged batches.
    landed: BTreeSet<String>,
    /// Number of requests per verb: carried out, refused and cut off.
    done: BTreeMap<&'static str, u32>,
    refused: BTreeMap<&'static str, u32>,
    cut: BTreeMap<&'static str, u32>,
    /// Number of kills per kind of process.
    killed: BTreeMap<&'static str, u32>,
    /// The last keyed request of each client, by client.
    keyed: BTreeMap<usize, KeyedRequest>,
    /// Violations.
    violations: Vec<String>,
}

/// A request with an idempotency key, and its response if one arrived.
#[derive(Clone, Debug)]
struct KeyedRequest {
    path: String,
    key: String,
    body: Value,
    answer: Option<Value>,
}

impl Soak {
    fn new(who: As) -> Soak {
        let place = Place::new(who);
        // A copy of the binary in the test's directory, so that its processes are identified by their executable.
        crate::support::copy_program(binary(), place.root.join("cofferdam"));
        let (socket, mark) = (place.state().join("cofferdam.sock"), format!("4321.{}", std::process::id()));
        let mut made = place.cofferdam(["token", "create", "test", "--scope", "operator"]);
        let made = made.output().unwrap();
        let token = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let token = (who == As::User).then_some(token);
        Soak { place, socket, token, record: Mutex::default(), quiesce: RwLock::new(()), mark }
    }

    fn daemon(&self) -> Daemon {
        let mut command = self.place.outside(self.place.root.join("cofferdam"));
        command.args(["serve", "--json"]).env("COFFERDAM_LOG_LEVEL", "error");
        Daemon::spawn(&self.place, command)
    }

    /// Sends one request. The outer `None` means that it could not be sent, the inner that the connection was cut:
    /// half a response is none. Bytes of a file follow after the daemon has read their head, so that a kill can fall
    /// between the two.
    fn send(&self, method: &str, path: &str, key: Option<&str>, body: &Body) -> Option<Option<Answer>> {
        let mut stream = UnixStream::connect(&self.socket).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let key = key.map_or(String::new(), |key| format!("idempotency-key: {key}\r\n"));
        let _ = stream.write_all(&self.request(method, path, &key, body));
        Some(receive(&mut stream).filter(Answer::is_whole))
    }

    /// Request bytes, with `more` headers.
    fn request(&self, method: &str, path: &str, more: &str, body: &Body) -> Vec<u8> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}");
        if let Some(token) = &self.token {
            head += &format!("authorization: Bearer {token}\r\n");
        }
        let bytes = match body {
            Body::None => Vec::new(),
            Body::Json(value) => {
                head += "content-type: application/json\r\n";
                value.to_string().into_bytes()
            }
            Body::Bytes(bytes) => {
                head += "content-type: application/octet-stream\r\n";
                bytes.clone()
            }
        };
        head += &format!("content-length: {}\r\n\r\n", bytes.len());
        [head.into_bytes(), bytes].concat()
    }

    /// True once every operation and every kill has happened.
    fn is_soaked(&self) -> bool {
        let record = self.record.lock().unwrap();
        DONE.iter().all(|verb| record.done.contains_key(verb))
            && KILLED.iter().all(|whom| record.killed.contains_key(whom))
    }

    fn report_violation(&self, what: String) {
        self.record.lock().unwrap().violations.push(what);
    }
}

enum Body {
    None,
    Json(Value),
    Bytes(Vec<u8>),
}

// promise 25
#[test]
fn whatever_is_killed_what_was_answered_stays_true() {
    rounds(1, 100, soak);
}

fn soak(seed: u64) {
    let soak = Soak::new(if seed.is_multiple_of(2) { As::User } else { As::Root });
    let first = furnish(&soak.place);
    let mut killer = killer::Killer::new(&soak, Dice::of(seed, CLIENTS));
    let begun = Instant::now();
    let goes_on = || begun.elapsed() < ROUND || begun.elapsed() < LONGEST && !soak.is_soaked();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut client = client::Client::new(&soak, Dice::of(seed, number), number);
            let goes_on = &goes_on;
            scope.spawn(move || {
                while goes_on() {
                    client.one();
                }
            });
        }
        while goes_on() {
            killer.one();
        }
    });
    let record = soak.record.lock().unwrap();
    println!("done {:?}\nrefused {:?}\ncut {:?}\nkilled {:?}", record.done, record.refused, record.cut, record.killed);
    assert!(record.violations.is_empty(), "{:#?}", record.violations);
    // The control: every operation and every kill has happened.
    for verb in DONE {
        assert!(record.done.get(verb).is_some_and(|n| *n > 0), "{verb} was never done: {:?}", record.done);
    }
    for whom in KILLED {
        assert!(record.killed.contains_key(whom), "no {whom} was killed: {:?}", record.killed);
    }
    drop(record);
    truth::sound(&soak, first);
    truth::empty(&soak, killer);
}

fn kill(pid: u32) {
    let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(std::process::Stdio::null()).status();
}
