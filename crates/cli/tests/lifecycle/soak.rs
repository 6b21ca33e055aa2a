//! Many at once over one directory, and none of them safe: several processes create, write, review, take back, snapshot, fork and
//! remove at random, and are killed at random. In the end every byte of the directory is explained by the journal, and nothing
//! else is left. One round, or as many as fit with `COFFERDAM_SOAK_SECONDS=600`.

use crate::support::left::{census, mounts, orphaned_groups, soon};
use crate::support::{As, Place, binary, to_the_end};
use crate::words::{Verbs, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const PATHS: [&str; 6] = ["a", "b", "c", "d/a", "d/b", "n/a"];
/// Of these the directory has some to begin with.
const FIRST: [&str; 4] = ["a", "b", "d/a", "d/stays"];
const AT_ONCE: usize = 3;

/// Digests by path; none where nothing is.
type Contents = BTreeMap<String, Option<String>>;

/// Before and after.
type Sides = (Option<String>, Option<String>);

/// What those who took part know. Ids are only ever added: some of them are gone.
#[derive(Default)]
struct Heard {
    sandboxes: Vec<String>,
    snapshots: Vec<String>,
    batches: Vec<String>,
    /// What each diff that somebody was about to approve says: both sides of every path.
    diffs: BTreeMap<String, BTreeMap<String, Sides>>,
    /// Batches that were acknowledged.
    landed: BTreeSet<String>,
    /// How often each verb was done, refused and killed.
    done: BTreeMap<&'static str, u32>,
    refused: BTreeMap<&'static str, u32>,
    killed: BTreeMap<&'static str, u32>,
    /// What must never be said.
    bad: Vec<String>,
}

/// Numbers that look like chance, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        // Mostly one of the last.
        let last = from.len().min(4);
        let far = if self.roll(4) == 0 { from.len() } else { last };
        (!from.is_empty()).then(|| from[from.len() - 1 - self.roll(far)].clone())
    }
}

struct Worker<'a> {
    place: &'a Place,
    heard: &'a Mutex<Heard>,
    dice: Dice,
    number: usize,
    count: usize,
}

impl Worker<'_> {
    /// The program itself is a copy in the place, so that its processes are known by their file.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.place.outside(self.place.root.join("cofferdam"));
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Carries a verb out, or kills it on the way. The document, if it was done.
    fn go(&mut self, verb: &'static str, words: &[&str]) -> Option<Value> {
        let (head, tail) = words.split_at(2.min(words.len()));
        let words = [head, &["--json"], tail].concat();
        let output =
            if self.dice.roll(6) == 0 { self.kill(&words) } else { to_the_end(&mut self.command(&words), b"") };
        let mut heard = self.heard.lock().unwrap();
        if output.status.code().is_none() {
            *heard.killed.entry(verb).or_default() += 1;
            return None;
        }
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        // Conflicts are an answer of a rebase that was done.
        if output.status.success() || said["conflicts"].is_u64() {
            *heard.done.entry(verb).or_default() += 1;
            return Some(said);
        }
        *heard.refused.entry(verb).or_default() += 1;
        let kind = said["error_kind"].as_str().or(said["verdict"].as_str()).unwrap_or("no fault");
        // Somebody may have stopped the command.
        if !["conflict", "not_found", "unavailable", "cancelled"].contains(&kind) {
            let told = format!("{words:?}: {kind}: {said} {}", text(&output.stderr));
            heard.bad.push(told);
        }
        None
    }

    fn kill(&mut self, words: &[&str]) -> Output {
        let mut child = self.command(words).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(self.dice.roll(120_000) as u64));
        let _ = child.kill();
        child.wait_with_output().unwrap()
    }

    fn one(&mut self) -> Option<()> {
        let (sandboxes, snapshots, batches) = {
            let heard = self.heard.lock().unwrap();
            (heard.sandboxes.clone(), heard.snapshots.clone(), heard.batches.clone())
        };
        let sandbox = self.dice.pick(&sandboxes);
        let id = |said: &Value| said["id"].as_str().unwrap_or_default().to_owned();
        match self.dice.roll(26) {
            0 | 1 => {
                let said = self.go("create", &["create"])?;
                self.heard.lock().unwrap().sandboxes.push(id(&said));
            }
            2..=8 => self.write(&sandbox?)?,
            9..=11 => self.approve(&sandbox?)?,
            12..=14 => {
                let sandbox = sandbox?;
                self.write(&sandbox)?;
                self.approve(&sandbox)?;
            }
            15 => drop(self.go("reject", &["reject", &sandbox?, "--all"])?),
            16 | 17 => {
                let batch = self.dice.pick(&batches)?;
                let said = self.go("undo", &["undo", &batch])?;
                self.acknowledged(&said);
            }
            18 => {
                let said = self.go("snapshot", &["snapshot", &sandbox?])?;
                self.heard.lock().unwrap().snapshots.push(id(&said));
            }
            19 => {
                let from = self.dice.pick(&snapshots).or(sandbox)?;
                let said = self.go("fork", &["fork", &from])?;
                let made = said["sandboxes"].as_array().into_iter().flatten().map(id);
                self.heard.lock().unwrap().sandboxes.extend(made);
            }
            20 => {
                let snapshot = self.dice.pick(&snapshots)?;
                self.go("restore", &["restore", &snapshot])?;
            }
            21 => drop(self.go("gc", &["gc"])?),
            22 | 23 => drop(self.go("rebase", &["rebase", &sandbox?])?),
            24 if sandboxes.len() > 3 => drop(self.go("rm", &["rm", &sandbox?])?),
            _ => {
                let verb = if self.dice.roll(2) == 0 { "stop" } else { "start" };
                self.go(verb, &[verb, &sandbox?])?;
            }
        }
        Some(())
    }

    /// A command in the sandbox writes something that nobody else writes, or removes a file.
    fn write(&mut self, sandbox: &str) -> Option<()> {
        let path = PATHS[self.dice.roll(PATHS.len())];
        self.count += 1;
        let script = match self.dice.roll(4) {
            0 => format!("rm -f {path}"),
            _ => format!("mkdir -p d n; echo {} {} > {path}", self.number, self.count),
        };
        self.go("exec", &["exec", sandbox, "--", "/bin/sh", "-c", &script]).map(drop)
    }

    fn approve(&mut self, sandbox: &str) -> Option<()> {
        let shown = self.go("diff", &["diff", sandbox])?;
        let digest = shown["digest"].as_str().unwrap().to_owned();
        let side = |file: &Value, side: &str| file[side]["digest"].as_str().map(str::to_owned);
        let mut contents = BTreeMap::new();
        let mut paths = Vec::new();
        for file in shown["files"].as_array().into_iter().flatten() {
            let path = file["path"].as_str().unwrap().to_owned();
            paths.push(path.clone());
            match file["kind"]["renamed"]["from"].as_str() {
                Some(from) => {
                    contents.insert(from.to_owned(), (side(file, "before"), None));
                    contents.insert(path, (None, side(file, "after")));
                }
                None => drop(contents.insert(path, (side(file, "before"), side(file, "after")))),
            }
        }
        self.heard.lock().unwrap().diffs.insert(digest.clone(), contents);
        let one = self.dice.pick(&paths).filter(|_| self.dice.roll(2) == 0);
        let mut words = vec!["approve", sandbox];
        words.extend(one.as_deref());
        let said = self.go("approve", &[&words[..], &["--digest", &digest]].concat())?;
        self.acknowledged(&said);
        Some(())
    }

    fn acknowledged(&self, said: &Value) {
        let mut heard = self.heard.lock().unwrap();
        let batch = said["batch"].as_str().unwrap().to_owned();
        heard.landed.insert(batch.clone());
        heard.batches.push(batch);
    }
}

fn digest_of(path: &std::path::Path) -> Option<String> {
    let output = Command::new("sha256sum").arg("--").arg(path).output().unwrap();
    output.status.success().then(|| text(&output.stdout).split(' ').next().unwrap().to_owned())
}

fn contents(place: &Place) -> Contents {
    PATHS.iter().map(|path| ((*path).to_owned(), digest_of(&place.project.join(path)))).collect()
}

/// What the journal says happened to the directory, from how it was; and the batches it tells of.
fn replayed(place: &Place, heard: &Heard, mut now: Contents) -> (Contents, BTreeSet<String>) {
    let told = place.json(&["provenance", "."]);
    assert_eq!(told["more"], false, "all of it");
    let mut paths: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for batch in told["batches"].as_array().unwrap() {
        let own = batch["paths"].as_array().unwrap().iter().map(|path| path.as_str().unwrap().to_owned());
        // Directories come and go with what is in them.
        let own = own.filter(|path| PATHS.contains(&path.as_str())).collect();
        paths.insert(batch["batch"].as_str().unwrap().to_owned(), own);
    }
    let mut before: BTreeMap<String, Contents> = BTreeMap::new();
    for entry in journal(place) {
        let is_landing = ["approve", "undo"].contains(&entry["verb"].as_str().unwrap()) && entry["step"] == "done";
        if !is_landing {
            continue;
        }
        let body = &entry["body"];
        let (id, digest) = (body["batch"].as_str().unwrap().to_owned(), body["digest"].as_str().unwrap());
        let touched = paths.get(&id).cloned().unwrap_or_default();
        before.insert(id.clone(), touched.iter().map(|path| (path.clone(), now[path].clone())).collect());
        for path in touched {
            let after = match body["undoes"].as_str() {
                Some(undone) => before[undone][&path].clone(),
                None => {
                    let (was, after) = heard.diffs[digest].get(&path).cloned().unwrap_or_default();
                    assert_eq!(was, now[&path], "{id} landed on what was reviewed: {path}");
                    after
                }
            };
            now.insert(path, after);
        }
    }
    (now, before.into_keys().collect())
}

/// All of it, oldest first.
fn journal(place: &Place) -> Vec<Value> {
    let output = to_the_end(&mut place.cofferdam(["audit", "log", "--json", "-n", "10000"]), b"");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["entries"].as_array().unwrap().clone()
}

/// A round is short enough for all of its journal to be read at once.
const ROUND: Duration = Duration::from_secs(20);

#[test]
fn whatever_is_killed_the_journal_explains_what_is_left() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let whole = Duration::from_secs(number("COFFERDAM_SOAK_SECONDS").unwrap_or(1));
    let seed = number("COFFERDAM_SOAK_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let begun = Instant::now();
    for round in 0.. {
        println!("COFFERDAM_SOAK_SEED={} after {:?}", seed + round, begun.elapsed());
        soak(seed + round);
        if begun.elapsed() >= whole {
            break;
        }
    }
}

fn soak(seed: u64) {
    let place = Place::new(As::User);
    fs::copy(binary(), place.root.join("cofferdam")).unwrap();
    for path in FIRST {
        place.file(format!("home/project/{path}"), format!("first {path}\n"));
    }
    let (first, mounts_before, heard) = (contents(&place), mounts(), Mutex::new(Heard::default()));
    let end = Instant::now() + ROUND;
    std::thread::scope(|scope| {
        for number in 0..AT_ONCE {
            let dice = Dice((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((number as u64 + 1) << 32));
            let mut worker = Worker { place: &place, heard: &heard, dice, number, count: 0 };
            scope.spawn(move || {
                while Instant::now() < end {
                    worker.one();
                }
            });
        }
    });
    let heard = heard.into_inner().unwrap();
    println!("done {:?}\nrefused {:?}\nkilled {:?}", heard.done, heard.refused, heard.killed);
    assert!(heard.bad.is_empty(), "{:#?}", heard.bad);
    // The control: it was a soak.
    for verb in ["create", "exec", "diff", "approve"] {
        assert!(heard.done.get(verb).is_some_and(|n| *n > 0), "{verb} was never done: {:?}", heard.done);
    }
    assert!(heard.killed.values().sum::<u32>() > 0, "nobody was killed");
    sound(&place, &heard, first);
    empty(&place, &mounts_before);
}

/// The journal is whole, tells of all that was acknowledged and of nothing that nobody asked for, and explains the directory.
fn sound(place: &Place, heard: &Heard, first: Contents) {
    // The next command brings to an end what was cut off.
    place.states();
    place.audit();
    let (explained, told) = replayed(place, heard, first);
    assert_eq!(contents(place), explained, "the directory is what the journal explains");
    let missing: Vec<_> = heard.landed.difference(&told).collect();
    assert!(missing.is_empty(), "acknowledged, and not in the journal: {missing:?}");
    let killed = ["approve", "undo"].iter().filter_map(|verb| heard.killed.get(verb)).sum::<u32>();
    let unasked = told.difference(&heard.landed).count();
    assert!(unasked <= killed as usize, "{unasked} landed without a word, and {killed} were killed");
}

/// When all are removed, nothing is left of them: no process, no mount, no group, no layer, nothing in the directory.
fn empty(place: &Place, mounts_before: &str) {
    // What was cut off is found by one collection, and what was made in part a moment ago by a later one.
    let cleared = || {
        for (id, _) in place.states() {
            place.json(&["rm", &id]);
        }
        let shots = place.json(&["snapshot", "ls"]);
        for shot in shots["snapshots"].as_array().unwrap() {
            place.json(&["snapshot", "rm", shot["id"].as_str().unwrap()]);
        }
        let collected = place.json(&["gc"]);
        collected.get("failed").is_none() && place.layers().is_empty() && place.states().is_empty()
    };
    assert!(soon(Duration::from_secs(30), cleared), "{:?}", place.layers());
    assert_eq!(place.json(&["gc", "--dry-run"])["items"], Value::Array(Vec::new()));
    let all = Command::new("find").arg(&place.project).args(["-name", ".cofferdam*"]).output().unwrap();
    assert_eq!(text(&all.stdout), "", "nothing of a batch is left in the directory");
    let clean = || census(place.root.to_str().unwrap()).is_empty() && orphaned_groups().is_empty();
    assert!(soon(Duration::from_secs(10), clean), "{:?} {:?}", census(place.root.to_str().unwrap()), orphaned_groups());
    assert_eq!(mounts(), mounts_before);
    place.audit();
}
