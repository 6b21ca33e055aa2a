//! Soak test over one directory: several processes create, write, review, undo, snapshot, fork and remove at random,
//! and are killed at random. In the end every byte of the directory is explained by the journal, and nothing else is
//! left. One round, or a hundred with `COFFERDAM_FULL=1`.

use crate::support::dice::{Dice, rounds};
use crate::support::left::{census, mounts, orphaned_groups, soon};
use crate::support::replay::{Contents, PATHS, Reviews, contents, furnish};
use crate::support::{As, Place, binary, to_the_end};
use crate::words::{Verbs, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const AT_ONCE: usize = 3;

/// Results that the workers recorded. Ids are only ever added: some of them are gone.
#[derive(Default)]
struct SoakRecord {
    sandboxes: Vec<String>,
    snapshots: Vec<String>,
    batches: Vec<String>,
    /// Diffs that a worker was about to approve.
    diffs: Reviews,
    /// Acknowledged batches.
    landed: BTreeSet<String>,
    /// Number of verbs carried out, refused and killed.
    done: BTreeMap<&'static str, u32>,
    refused: BTreeMap<&'static str, u32>,
    killed: BTreeMap<&'static str, u32>,
    /// Violations.
    violations: Vec<String>,
}

struct Worker<'a> {
    place: &'a Place,
    record: &'a Mutex<SoakRecord>,
    dice: Dice,
    seed: u64,
    number: usize,
    count: usize,
    /// Number of verbs so far.
    step: usize,
}

impl Worker<'_> {
    /// A copy of the binary in the test's directory, so that its processes are identified by their executable.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.place.outside(self.place.root.join("cofferdam"));
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Carries a verb out, or kills it on the way; returns the document if it succeeded.
    fn go(&mut self, verb: &'static str, words: &[&str]) -> Option<Value> {
        let (head, tail) = words.split_at(2.min(words.len()));
        let words = [head, &["--json"], tail].concat();
        self.step += 1;
        let output =
            if self.dice.roll(6) == 0 { self.kill(&words) } else { to_the_end(&mut self.command(&words), b"") };
        let mut record = self.record.lock().unwrap();
        if output.status.code().is_none() {
            *record.killed.entry(verb).or_default() += 1;
            return None;
        }
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        // A rebase with conflicts was carried out.
        if output.status.success() || said["conflicts"].is_u64() {
            *record.done.entry(verb).or_default() += 1;
            return Some(said);
        }
        *record.refused.entry(verb).or_default() += 1;
        let kind = said["error_kind"].as_str().or(said["verdict"].as_str()).unwrap_or("no fault");
        // Another worker may have stopped the command.
        if !["conflict", "not_found", "unavailable", "cancelled"].contains(&kind) {
            let at = format!("seed {}, worker {}, step {}", self.seed, self.number, self.step);
            let (code, error) = (output.status.code(), text(&output.stderr));
            record.violations.push(format!("{at}: {words:?}: exit {code:?}: {kind}: {said} {error}"));
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
            let record = self.record.lock().unwrap();
            (record.sandboxes.clone(), record.snapshots.clone(), record.batches.clone())
        };
        let sandbox = self.dice.pick(&sandboxes);
        let id = |said: &Value| said["id"].as_str().unwrap_or_default().to_owned();
        match self.dice.roll(26) {
            0 | 1 => {
                let said = self.go("create", &["create"])?;
                self.record.lock().unwrap().sandboxes.push(id(&said));
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
                self.record.lock().unwrap().snapshots.push(id(&said));
            }
            19 => {
                let from = self.dice.pick(&snapshots).or(sandbox)?;
                let said = self.go("fork", &["fork", &from])?;
                let made = said["sandboxes"].as_array().into_iter().flatten().map(id);
                self.record.lock().unwrap().sandboxes.extend(made);
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

    /// Writes a unique text by a command in the sandbox, or removes a file.
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
        let (digest, paths) = self.record.lock().unwrap().diffs.add(&shown);
        let one = self.dice.pick(&paths).filter(|_| self.dice.roll(2) == 0);
        let mut words = vec!["approve", sandbox];
        words.extend(one.as_deref());
        let said = self.go("approve", &[&words[..], &["--digest", &digest]].concat())?;
        self.acknowledged(&said);
        Some(())
    }

    fn acknowledged(&self, said: &Value) {
        let mut record = self.record.lock().unwrap();
        let batch = said["batch"].as_str().unwrap().to_owned();
        record.landed.insert(batch.clone());
        record.batches.push(batch);
    }
}

/// Short enough for the journal of a round to be read at once.
const ROUND: Duration = Duration::from_secs(10);
/// Longest duration on a busy host, until every verb has happened once.
const LONGEST: Duration = Duration::from_secs(300);
const DONE: [&str; 4] = ["create", "exec", "diff", "approve"];

#[test]
fn whatever_is_killed_the_journal_explains_what_is_left() {
    rounds(1, 100, soak);
}

fn soak(seed: u64) {
    let place = Place::new(As::User);
    crate::support::copy_program(binary(), place.root.join("cofferdam"));
    let (first, mounts_before, record) = (furnish(&place), mounts(&place), Mutex::new(SoakRecord::default()));
    let begun = Instant::now();
    let is_soaked = || {
        let record = record.lock().unwrap();
        DONE.iter().all(|verb| record.done.contains_key(verb)) && !record.killed.is_empty()
    };
    let goes_on = || begun.elapsed() < ROUND || begun.elapsed() < LONGEST && !is_soaked();
    std::thread::scope(|scope| {
        for number in 0..AT_ONCE {
            let dice = Dice::of(seed, number);
            let mut worker = Worker { place: &place, record: &record, dice, seed, number, count: 0, step: 0 };
            let goes_on = &goes_on;
            scope.spawn(move || {
                while goes_on() {
                    worker.one();
                }
            });
        }
    });
    let record = record.into_inner().unwrap();
    println!("done {:?}\nrefused {:?}\nkilled {:?}", record.done, record.refused, record.killed);
    assert!(record.violations.is_empty(), "{:#?}", record.violations);
    // The control: every verb and a kill have happened.
    for verb in DONE {
        assert!(record.done.get(verb).is_some_and(|n| *n > 0), "{verb} was never done: {:?}", record.done);
    }
    assert!(record.killed.values().sum::<u32>() > 0, "no verb was killed");
    sound(&place, &record, first);
    empty(&place, &mounts_before);
}

/// The journal is complete, contains everything acknowledged and nothing that was not requested, and explains the
/// directory.
fn sound(place: &Place, record: &SoakRecord, first: Contents) {
    // The next command recovers what was cut off.
    place.states();
    place.audit();
    let (explained, told) = record.diffs.replayed(place, first);
    assert_eq!(contents(place), explained, "the directory is what the journal explains");
    let missing: Vec<_> = record.landed.difference(&told).collect();
    assert!(missing.is_empty(), "acknowledged, and not in the journal: {missing:?}");
    let killed = ["approve", "undo"].iter().filter_map(|verb| record.killed.get(verb)).sum::<u32>();
    let unasked = told.difference(&record.landed).count();
    assert!(unasked <= killed as usize, "{unasked} landed without a word, and {killed} were killed");
}

/// After all sandboxes are removed, nothing is left of them: no process, mount, control group, layer or file in the
/// directory.
fn empty(place: &Place, mounts_before: &str) {
    // A first collection finds what was cut off, and a later one finds recent partial layers.
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
    assert!(soon(cleared), "{:?}", place.layers());
    assert_eq!(place.json(&["gc", "--dry-run"])["items"], Value::Array(Vec::new()));
    let all = Command::new("find").arg(&place.project).args(["-name", ".cofferdam*"]).output().unwrap();
    assert_eq!(text(&all.stdout), "", "nothing of a batch is left in the directory");
    let clean = || census(place.root.to_str().unwrap()).is_empty() && orphaned_groups().is_empty();
    assert!(soon(clean), "{:?} {:?}", census(place.root.to_str().unwrap()), orphaned_groups());
    assert_eq!(mounts(place), mounts_before);
    place.audit();
}
