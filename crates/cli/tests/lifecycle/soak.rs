//! Many at once over one directory, and none of them safe: several processes create, write, review, take back, snapshot, fork and
//! remove at random, and are killed at random. In the end every byte of the directory is explained by the journal, and nothing
//! else is left. One round, or a hundred with `COFFERDAM_FULL=1`.

use crate::support::dice::{Dice, rounds};
use crate::support::left::{census, mounts, orphaned_groups, soon};
use crate::support::replay::{Contents, PATHS, Reviews, contents, furnish};
use crate::support::{As, Place, binary, to_the_end};
use crate::words::{Verbs, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const AT_ONCE: usize = 3;

/// What those who took part know. Ids are only ever added: some of them are gone.
#[derive(Default)]
struct Heard {
    sandboxes: Vec<String>,
    snapshots: Vec<String>,
    batches: Vec<String>,
    /// Each diff that somebody was about to approve.
    diffs: Reviews,
    /// Batches that were acknowledged.
    landed: BTreeSet<String>,
    /// How often each verb was done, refused and killed.
    done: BTreeMap<&'static str, u32>,
    refused: BTreeMap<&'static str, u32>,
    killed: BTreeMap<&'static str, u32>,
    /// What must never be said.
    bad: Vec<String>,
}

struct Worker<'a> {
    place: &'a Place,
    heard: &'a Mutex<Heard>,
    dice: Dice,
    seed: u64,
    number: usize,
    count: usize,
    /// Verbs so far.
    step: usize,
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
        self.step += 1;
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
            let at = format!("seed {}, worker {}, step {}", self.seed, self.number, self.step);
            let (code, error) = (output.status.code(), text(&output.stderr));
            heard.bad.push(format!("{at}: {words:?}: exit {code:?}: {kind}: {said} {error}"));
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
        let (digest, paths) = self.heard.lock().unwrap().diffs.add(&shown);
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

/// A round is short enough for all of its journal to be read at once.
const ROUND: Duration = Duration::from_secs(20);
/// On a machine that has much else to do it goes on for so long, until something of everything has happened.
const LONGEST: Duration = Duration::from_secs(60);
const DONE: [&str; 4] = ["create", "exec", "diff", "approve"];

#[test]
fn whatever_is_killed_the_journal_explains_what_is_left() {
    rounds(1, 100, soak);
}

fn soak(seed: u64) {
    let place = Place::new(As::User);
    fs::copy(binary(), place.root.join("cofferdam")).unwrap();
    let (first, mounts_before, heard) = (furnish(&place), mounts(), Mutex::new(Heard::default()));
    let begun = Instant::now();
    let is_soaked = || {
        let heard = heard.lock().unwrap();
        DONE.iter().all(|verb| heard.done.contains_key(verb)) && !heard.killed.is_empty()
    };
    let goes_on = || begun.elapsed() < ROUND || begun.elapsed() < LONGEST && !is_soaked();
    std::thread::scope(|scope| {
        for number in 0..AT_ONCE {
            let dice = Dice::of(seed, number);
            let mut worker = Worker { place: &place, heard: &heard, dice, seed, number, count: 0, step: 0 };
            let goes_on = &goes_on;
            scope.spawn(move || {
                while goes_on() {
                    worker.one();
                }
            });
        }
    });
    let heard = heard.into_inner().unwrap();
    println!("done {:?}\nrefused {:?}\nkilled {:?}", heard.done, heard.refused, heard.killed);
    assert!(heard.bad.is_empty(), "{:#?}", heard.bad);
    // The control: it was a soak.
    for verb in DONE {
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
    let (explained, told) = heard.diffs.replayed(place, first);
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
