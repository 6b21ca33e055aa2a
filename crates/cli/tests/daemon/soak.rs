//! The daemon under fire: clients ask at random over HTTP while the daemon, keepers, first processes and shepherds are killed at
//! random. What was answered stays true: every byte of the directory is explained by the journal, a repeated request gets its
//! answer again, a lost run says so, and in the end nothing is left. One short round, or a
//! hundred with `COFFERDAM_FULL=1`.

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

/// A round is short enough for all of its journal to be read at once.
const ROUND: Duration = Duration::from_secs(18);
/// On a machine that has much else to do it goes on for so long, until something of everything has happened.
const LONGEST: Duration = Duration::from_secs(60);
const CLIENTS: usize = 4;
/// What must have happened for it to be a soak.
const DONE: [&str; 6] = ["create", "exec", "diff", "approve", "put", "follow"];
const KILLED: [&str; 4] = ["daemon", "keeper", "first", "shepherd"];
/// Longer than anything takes that is not stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// What all who take part share.
struct World {
    place: Place,
    socket: PathBuf,
    token: Option<String>,
    heard: Mutex<Heard>,
    /// Held by clients for each request, and alone by whoever looks at everything.
    still: RwLock<()>,
    /// A length of sleep that nobody else sleeps.
    mark: String,
}

/// What those who took part know. Ids are only ever added: some of them are gone.
#[derive(Default)]
struct Heard {
    sandboxes: Vec<String>,
    snapshots: Vec<String>,
    /// With the sandbox whose changes landed.
    batches: Vec<(String, String)>,
    runs: Vec<String>,
    reviews: Reviews,
    /// Batches that were acknowledged.
    landed: BTreeSet<String>,
    /// How often each verb was done, refused and cut off.
    done: BTreeMap<&'static str, u32>,
    refused: BTreeMap<&'static str, u32>,
    cut: BTreeMap<&'static str, u32>,
    /// How often each sort of process was killed.
    killed: BTreeMap<&'static str, u32>,
    /// The last request of each client that had a key, by client.
    keyed: BTreeMap<usize, Keyed>,
    /// What must never be said.
    bad: Vec<String>,
}

/// A request under a key, and what it was answered with, if it was.
#[derive(Clone, Debug)]
struct Keyed {
    path: String,
    key: String,
    body: Value,
    answer: Option<Value>,
}

impl World {
    fn new(who: As) -> World {
        let place = Place::new(who);
        // A copy in the place, so that its processes are known by their file.
        std::fs::copy(binary(), place.root.join("cofferdam")).unwrap();
        let (socket, mark) = (place.state().join("cofferdam.sock"), format!("4321.{}", std::process::id()));
        let mut made = place.cofferdam(["token", "create", "test", "--scope", "operator"]);
        let made = made.output().unwrap();
        let token = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let token = (who == As::User).then_some(token);
        World { place, socket, token, heard: Mutex::default(), still: RwLock::new(()), mark }
    }

    fn daemon(&self) -> Daemon {
        let mut command = self.place.outside(self.place.root.join("cofferdam"));
        command.args(["serve", "--json"]).env("COFFERDAM_LOG_LEVEL", "error");
        Daemon::spawn(&self.place, command)
    }

    /// One request; none where it could not be sent, and no answer where it was cut off: half of one is none. Bytes of a file
    /// follow their head when they have been read, and a daemon is killed between the two.
    fn send(&self, method: &str, path: &str, key: Option<&str>, body: &Body) -> Option<Option<Answer>> {
        let mut stream = UnixStream::connect(&self.socket).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let key = key.map_or(String::new(), |key| format!("idempotency-key: {key}\r\n"));
        let _ = stream.write_all(&self.request(method, path, &key, body));
        Some(receive(&mut stream).filter(Answer::is_whole))
    }

    /// With `more` headers.
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

    /// Whether something of everything has happened.
    fn is_soaked(&self) -> bool {
        let heard = self.heard.lock().unwrap();
        DONE.iter().all(|verb| heard.done.contains_key(verb))
            && KILLED.iter().all(|whom| heard.killed.contains_key(whom))
    }

    fn bad(&self, what: String) {
        self.heard.lock().unwrap().bad.push(what);
    }
}

enum Body {
    None,
    Json(Value),
    Bytes(Vec<u8>),
}

#[test]
fn whatever_is_killed_what_was_answered_stays_true() {
    rounds(1, 100, soak);
}

fn soak(seed: u64) {
    let world = World::new(if seed.is_multiple_of(2) { As::User } else { As::Root });
    let first = furnish(&world.place);
    let mut killer = killer::Killer::new(&world, Dice::of(seed, CLIENTS));
    let begun = Instant::now();
    let goes_on = || begun.elapsed() < ROUND || begun.elapsed() < LONGEST && !world.is_soaked();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut client = client::Client::new(&world, Dice::of(seed, number), number);
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
    let heard = world.heard.lock().unwrap();
    println!("done {:?}\nrefused {:?}\ncut {:?}\nkilled {:?}", heard.done, heard.refused, heard.cut, heard.killed);
    assert!(heard.bad.is_empty(), "{:#?}", heard.bad);
    // The control: it was a soak.
    for verb in DONE {
        assert!(heard.done.get(verb).is_some_and(|n| *n > 0), "{verb} was never done: {:?}", heard.done);
    }
    for whom in KILLED {
        assert!(heard.killed.contains_key(whom), "no {whom} was killed: {:?}", heard.killed);
    }
    drop(heard);
    truth::sound(&world, first);
    truth::empty(&world, killer);
}

fn kill(pid: u32) {
    let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(std::process::Stdio::null()).status();
}
