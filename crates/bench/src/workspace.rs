//! Workspace benchmark against the usual alternatives: a git worktree, a copy, an overlay by hand. Every step is done
//! by all of them in the same round, on the same tree, and the tree exists in two sizes, to show what grows with it. No
//! tree is removed before all is measured, and most files of a tree are empty: on some disks removing a file with data
//! takes milliseconds (ext4 mounted with `discard`), and some file systems scan recently freed inodes for each new file
//! (ext4 without a journal). A contender must not pay for the removals of the previous one.

use super::statistics::{Quantiles, Samples};
use super::work::WorkDir;
use super::{BenchConfig, Progress, find, round};
use node::snapshots;
use node::{Caller, Node};
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};

/// Result of the workspace benchmark; times in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct WorkspaceReport {
    pub protocol_version: u32,
    pub kernel: String,
    pub cpus: usize,
    pub rounds: u32,
    /// Number of files of the small and of the large tree.
    pub files: [u32; 2],
    pub rows: Vec<WorkspaceRow>,
    pub ratios: Vec<WorkspaceRatio>,
}

#[derive(Clone, Debug, Serialize)]
pub struct WorkspaceRow {
    pub step: &'static str,
    pub who: &'static str,
    /// Number of files of the tree.
    pub files: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us: Option<Quantiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct WorkspaceRatio {
    pub name: String,
    pub p50: f64,
}

const CHANGED: u32 = 100;
const LANDED: u32 = 1000;
const FORKS: u32 = 100;
/// Snapshots and forks per round that are timed without a process: they are short, and a single one may hit a busy
/// disk.
const VERBS: u32 = 5;
const FILES_OF_A_DIRECTORY: u32 = 100;
/// Runs per round: they are short, and compared with the other contenders at the same time.
const RUNS: u32 = 20;
/// Rounds in which whole trees are copied and many files are replaced; they take long, and vary little.
const SLOW_ROUNDS: u32 = 2;
/// Number of files with data: all that are changed, and as many again.
const FILLED: u32 = 2 * LANDED;

const US: &str = "cofferdam";
const PLAIN: &str = "plain run";
const GIT: &str = "git worktree";
const COPY: &str = "cp -a";
const OVERLAY: &str = "overlay by hand";
const BARE: &str = "bare";
/// The same enclosure and notifications, without a layer.
const SEALED: &str = "sealed without a layer";

const RUN: &str = "run in a fresh workspace";
const CREATE: &str = "create and first command";
const DIFF: &str = "diff of 100 changes";
const SNAPSHOT: &str = "snapshot";
const SNAPSHOT_VERB: &str = "snapshot, without a process";
const FORK_VERB: &str = "fork, without a process";
const NOTHING: &str = "--version";
const FORK: &str = "fork, each of 100";
const APPROVE: &str = "approve 1,000 files";
const READ: &str = "read 4 KiB 20,000 times";
const WRITE: &str = "write 4 KiB 20,000 times";
const READ_LARGE: &str = "read 128 KiB 2,000 times";
const WRITE_LARGE: &str = "write 128 KiB 2,000 times";

pub fn workspace(config: &BenchConfig, files: u32, progress: Progress<'_>) -> Result<WorkspaceReport, Fault> {
    let place = WorkDir::make(config)?;
    let sizes = [(files / 100).max(LANDED), files.max(LANDED)];
    let rounds = (config.rounds / 20).clamp(3, 10);
    let mut table = SampleTable::default();
    let mut testbeds = Vec::new();
    for size in BTreeSet::from(sizes) {
        progress(&format!("{size} files, the tree is made"), 0, rounds);
        testbeds.push((size, Testbed::make(config, &place.root, size)?));
    }
    // Alternating, so that slow phases of the machine affect both trees.
    for at in 0..rounds {
        for (size, testbed) in &testbeds {
            let mut say = |step: &str| progress(&format!("{size} files, {step}"), at + 1, rounds);
            testbed.round(*size, at < SLOW_ROUNDS, &mut table, &mut say)?;
        }
    }
    progress("the trees are removed", rounds, rounds);
    drop(place);
    let ratios = table.ratios(sizes);
    Ok(WorkspaceReport {
        protocol_version: PROTOCOL_VERSION,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        rounds,
        files: sizes,
        rows: table.rows(),
        ratios,
    })
}

/// Samples by step, contender and size, in order of first appearance.
#[derive(Default)]
struct SampleTable(Vec<(&'static str, &'static str, u32, Result<Samples, String>)>);

impl SampleTable {
    fn add(&mut self, step: &'static str, who: &'static str, files: u32, took: Result<Duration, String>) {
        let at = self.0.iter().position(|(s, w, f, _)| (*s, *w, *f) == (step, who, files));
        let at = at.unwrap_or_else(|| {
            self.0.push((step, who, files, Ok(Samples::default())));
            self.0.len() - 1
        });
        match (&mut self.0[at].3, took) {
            (Ok(samples), Ok(took)) => samples.add(took),
            (kept, Err(why)) => *kept = Err(why),
            (Err(_), Ok(_)) => {}
        }
    }

    fn rows(self) -> Vec<WorkspaceRow> {
        let row = |(step, who, files, samples): (_, _, _, Result<Samples, String>)| match samples {
            Ok(samples) => WorkspaceRow { step, who, files, us: samples.quantiles(), absent: None },
            Err(why) => WorkspaceRow { step, who, files, us: None, absent: Some(why) },
        };
        self.0.into_iter().map(row).collect()
    }

    fn samples(&self, step: &str, who: &str, files: u32) -> Option<&Samples> {
        self.0.iter().find(|(s, w, f, _)| *s == step && *w == who && *f == files)?.3.as_ref().ok()
    }

    fn ratios(&self, [small, large]: [u32; 2]) -> Vec<WorkspaceRatio> {
        let mut found: Vec<WorkspaceRatio> = Vec::new();
        let mut say = |name: String, ours: Option<&Samples>, theirs: Option<&Samples>| {
            let ratio = ours.zip(theirs).and_then(|(ours, theirs)| ours.median_ratio(theirs));
            found.extend(ratio.map(|p50| WorkspaceRatio { name, p50: round(p50) }));
        };
        for (step, who) in [
            (RUN, US),
            (RUN, PLAIN),
            (CREATE, US),
            (DIFF, US),
            (SNAPSHOT, US),
            (SNAPSHOT_VERB, US),
            (FORK, US),
            (APPROVE, US),
        ] {
            let name = format!("{step}, {who}: {large} files / {small} files");
            say(name, self.samples(step, who, large), self.samples(step, who, small));
        }
        for (step, _, files, _) in self.0.iter().filter(|(_, who, ..)| *who == US) {
            for other in [PLAIN, GIT, COPY, OVERLAY, BARE, SEALED] {
                let name = format!("{step}, {files} files: {US} / {other}");
                say(name, self.samples(step, US, *files), self.samples(step, other, *files));
            }
        }
        found
    }
}

/// A tree that is a git repository, with a state directory beside it.
struct Testbed {
    exe: PathBuf,
    git: Option<PathBuf>,
    unshare: Option<PathBuf>,
    tree: PathBuf,
    /// Directory for copies and worktrees.
    beside: PathBuf,
    state: PathBuf,
    /// Number of trees put aside.
    aside: AtomicU32,
}

impl Testbed {
    fn make(config: &BenchConfig, root: &Path, size: u32) -> Result<Testbed, Fault> {
        let beside = root.join(format!("of-{size}"));
        let (tree, state) = (beside.join("tree"), beside.join("state"));
        let git = find("git", config.path.as_deref());
        let made = || -> Result<(), String> {
            fs::create_dir_all(&tree).map_err(|e| e.to_string())?;
            (0..size).try_for_each(|i| write_file(&tree, i, "before")).map_err(|e| e.to_string())?;
            git.as_ref().map_or(Ok(()), |git| repository(git, &tree, size))
        };
        made().map_err(|why| failed("the tree", &why))?;
        let unshare = find("unshare", config.path.as_deref());
        // /proc/self/exe names another program in each process.
        let exe = fs::canonicalize(&config.exe).unwrap_or_else(|_| config.exe.clone());
        Ok(Testbed { exe, git, unshare, tree, beside, state, aside: AtomicU32::new(0) })
    }

    fn round(&self, size: u32, slow: bool, table: &mut SampleTable, say: &mut dyn FnMut(&str)) -> Result<(), Fault> {
        say(RUN);
        for _ in 0..RUNS {
            table.add(RUN, PLAIN, size, self.timed(&self.tree, &["run", "--read-only", "--", "/bin/true"]));
            table.add(RUN, US, size, self.timed(&self.tree, &["run", "--", "/bin/true"]));
            table.add(NOTHING, US, size, self.timed(&self.tree, &["--version"]));
        }
        say(CREATE);
        let (id, took) = self.create()?;
        table.add(CREATE, US, size, Ok(took));
        table.add(CREATE, OVERLAY, size, self.overlay());
        if slow {
            say("git worktree add");
            table.add(CREATE, GIT, size, self.git_create());
            say("cp -a");
            let copied = self.copy();
            table.add(CREATE, COPY, size, copied.clone());
            table.add(FORK, COPY, size, copied);
        }
        say(DIFF);
        self.change(&id, CHANGED)?;
        table.add(DIFF, US, size, self.timed(&self.tree, &["diff", &id, "--stat"]));
        if slow {
            table.add(DIFF, GIT, size, self.git_diff());
        }
        say(SNAPSHOT);
        table.add(SNAPSHOT, US, size, self.timed(&self.tree, &["snapshot", &id]));
        for _ in 0..VERBS {
            // A single layer each time: a fork reads all of them.
            let other = self.must(&["create", "."])?.trim().to_owned();
            self.change(&other, CHANGED)?;
            table.add(SNAPSHOT_VERB, US, size, self.snapshot_verb(&other));
            table.add(FORK_VERB, US, size, self.fork_verb(&other));
        }
        let forks = self.timed(&self.tree, &["fork", &id, "--count", &FORKS.to_string()]);
        table.add(FORK, US, size, forks.map(|all| all / FORKS));
        say(READ);
        self.blocks(&id, size, table)?;
        if slow {
            say(APPROVE);
            self.change(&id, LANDED)?;
            table.add(APPROVE, US, size, self.approve(&id));
            table.add(APPROVE, COPY, size, self.copy_files());
        }
        say("sandboxes are removed");
        self.tidy()
    }

    /// Measures the verb as a daemon calls it: in a running process, with an open state.
    fn snapshot_verb(&self, id: &str) -> Result<Duration, String> {
        let (caller, said) = (self.caller(), |fault: Fault| fault.message);
        let node = Node::for_daemon();
        drop(node.states.lend(&caller).map_err(said)?);
        let started = Instant::now();
        snapshots::take(&node, &caller, Some(id), None).map_err(said)?;
        Ok(started.elapsed())
    }

    /// Measures one fork of a sandbox that is unchanged since its last snapshot.
    fn fork_verb(&self, id: &str) -> Result<Duration, String> {
        let (caller, said) = (self.caller(), |fault: Fault| fault.message);
        let node = Node::for_daemon();
        drop(node.states.lend(&caller).map_err(said)?);
        let started = Instant::now();
        snapshots::fork(&node, &caller, Some(id), None, 1).map_err(said)?;
        Ok(started.elapsed())
    }

    fn caller(&self) -> Caller {
        let (cwd, home) = (self.tree.clone(), self.beside.clone());
        Caller::new(cwd, home, "bench".to_owned(), Vec::new(), |_| None).in_state(&self.state)
    }

    /// Puts a tree aside; all of them are removed after the measurement.
    fn put_aside(&self, name: &str) -> Result<(), String> {
        let to = format!("aside-{}", self.aside.fetch_add(1, Ordering::Relaxed));
        fs::rename(self.beside.join(name), self.beside.join(to)).map_err(|e| e.to_string())
    }

    fn timed(&self, directory: &Path, words: &[&str]) -> Result<Duration, String> {
        let started = Instant::now();
        self.call(directory, words)?;
        Ok(started.elapsed())
    }

    fn call(&self, directory: &Path, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.exe);
        command.args(words).current_dir(directory).env("COFFERDAM_STATE", &self.state);
        output(&mut command)
    }

    fn must(&self, words: &[&str]) -> Result<String, Fault> {
        self.call(&self.tree, words).map_err(|why| failed(&words.join(" "), &why))
    }

    fn create(&self) -> Result<(String, Duration), Fault> {
        let started = Instant::now();
        let id = self.must(&["create", "."])?.trim().to_owned();
        self.must(&["exec", &id, "--", "/bin/true"])?;
        Ok((id, started.elapsed()))
    }

    /// Changes this many files, inside.
    fn change(&self, id: &str, files: u32) -> Result<(), Fault> {
        let names: Vec<String> = (0..files).map(name_of).collect();
        let script = format!("for f in {}; do echo after >> $f; done", names.join(" "));
        self.must(&["exec", id, "--", "/bin/sh", "-c", &script]).map(drop)
    }

    fn approve(&self, id: &str) -> Result<Duration, String> {
        let took = self.timed(&self.tree, &["approve", id, "--unseen"]);
        self.call(&self.tree, &["undo"]).and(took)
    }

    fn git_create(&self) -> Result<Duration, String> {
        let git = self.git.as_ref().ok_or("there is no git")?;
        let started = Instant::now();
        call(git, &["worktree", "add", "-q", "--detach", "../worktree"], &self.tree)?;
        call(Path::new("/bin/true"), &[], &self.beside.join("worktree"))?;
        Ok(started.elapsed())
    }

    fn git_diff(&self) -> Result<Duration, String> {
        let git = self.git.as_ref().ok_or("there is no git")?;
        let worktree = self.beside.join("worktree");
        (0..CHANGED).try_for_each(|i| write_file(&worktree, i, "after")).map_err(|e| e.to_string())?;
        let started = Instant::now();
        call(git, &["status", "--porcelain"], &worktree)?;
        call(git, &["diff", "--stat"], &worktree)?;
        let took = started.elapsed();
        self.put_aside("worktree")?;
        call(git, &["worktree", "prune"], &self.tree)?;
        Ok(took)
    }

    fn copy(&self) -> Result<Duration, String> {
        let started = Instant::now();
        call(Path::new("/bin/cp"), &["-a", "tree", "copy"], &self.beside)?;
        let took = started.elapsed();
        self.put_aside("copy")?;
        Ok(took)
    }

    /// Copies the files one by one under other names, syncs, and renames them: what a landing does, without its safety.
    fn copy_files(&self) -> Result<Duration, String> {
        let names: Vec<String> = (0..LANDED).map(name_of).collect();
        let script = format!(
            "for f in {}; do cp -a $f $f.new; done; sync -f .; for f in {}; do mv -f $f.new $f; done; sync -f .",
            names.join(" "),
            names.join(" ")
        );
        let started = Instant::now();
        call(Path::new("/bin/sh"), &["-c", &script], &self.tree)?;
        Ok(started.elapsed())
    }

    fn overlay(&self) -> Result<Duration, String> {
        let unshare = self.unshare.as_ref().ok_or("there is no unshare")?;
        (["up", "work"].iter())
            .try_for_each(|name| fs::create_dir(self.beside.join(name)).map_err(|e| e.to_string()))?;
        let script =
            "mount -t overlay -o lowerdir=tree,upperdir=up,workdir=work,userxattr none tree && cd tree && /bin/true";
        let started = Instant::now();
        let done = call(unshare, &["-Urm", "/bin/sh", "-c", script], &self.beside);
        let took = started.elapsed();
        // The kernel leaves an overlay work directory that is not readable even for its owner.
        call(Path::new("/bin/chmod"), &["-R", "u+rwx", "work"], &self.beside)?;
        for name in ["up", "work"] {
            fs::remove_dir_all(self.beside.join(name)).map_err(|e| e.to_string())?;
        }
        done.map(|_| took)
    }

    /// Measures a loop of reads and writes inside, on a file that is already in the layer; inside without a layer, to
    /// show the layer's share of the difference; and outside.
    fn blocks(&self, id: &str, size: u32, table: &mut SampleTable) -> Result<(), Fault> {
        let outside = |script: &str| call(Path::new(PYTHON), &["-c", script], &self.beside);
        let plain = self.beside.join("plain");
        fs::create_dir_all(&plain).map_err(|e| failed("a directory", &e.to_string()))?;
        let sealed = |script: &str| self.call(&plain, &["run", "--direct", "--write", ".", "--", PYTHON, "-c", script]);
        let small = [
            (READ, blocks("os.pread(f, len(b), 0)", 4096, 20_000)),
            (WRITE, blocks("os.pwrite(f, b, 0)", 4096, 20_000)),
        ];
        let large = [
            (READ_LARGE, blocks("os.pread(f, len(b), 0)", 131_072, 2000)),
            (WRITE_LARGE, blocks("os.pwrite(f, b, 0)", 131_072, 2000)),
        ];
        for (step, script) in small.into_iter().chain(large) {
            let inside = self.call(&self.tree, &["exec", id, "--", PYTHON, "-c", &script]);
            table.add(step, US, size, inside.and_then(|said| nanoseconds(&said)));
            table.add(step, SEALED, size, sealed(&script).and_then(|said| nanoseconds(&said)));
            table.add(step, BARE, size, outside(&script).and_then(|said| nanoseconds(&said)));
        }
        Ok(())
    }

    /// Removes all sandboxes of the round, or the next round would pay for them.
    fn tidy(&self) -> Result<(), Fault> {
        let said = self.must(&["ls", "--all", "--json"])?;
        let list: serde_json::Value = serde_json::from_str(&said).map_err(|e| failed("ls", &e.to_string()))?;
        let ids = list["sandboxes"].as_array().into_iter().flatten().filter_map(|s| s["id"].as_str());
        let words: Vec<&str> = ["rm", "-f"].into_iter().chain(ids).collect();
        self.must(&words)?;
        self.must(&["gc"]).map(drop)
    }
}

const PYTHON: &str = "/usr/bin/python3";
/// Git settings without background maintenance.
const QUIET: [&str; 4] = ["-c", "gc.auto=0", "-c", "maintenance.auto=false"];

/// Makes a repository of one commit, in one pack, like a clone.
fn repository(git: &Path, tree: &Path, size: u32) -> Result<(), String> {
    call(git, &["init", "-q"], tree)?;
    let mut import = Command::new(git);
    import.args(QUIET).args(["fast-import", "--quiet"]).current_dir(tree);
    import.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut import = import.spawn().map_err(|e| e.to_string())?;
    let told = import.stdin.take().map_or(Ok(()), |to| tell_files(to, size));
    let ended = import.wait().map_err(|e| e.to_string())?;
    told.map_err(|e| e.to_string())?;
    if !ended.success() {
        return Err(format!("git fast-import: {ended}"));
    }
    call(git, &[&QUIET[..], &["reset", "-q"]].concat(), tree).map(drop)
}

fn tell_files(to: impl Write, size: u32) -> std::io::Result<()> {
    let mut to = BufWriter::new(to);
    to.write_all(b"commit HEAD\ncommitter bench <bench@localhost> 0 +0000\ndata 6\nfiles\n\n")?;
    for i in 0..size {
        let text = text_of(i, "before");
        write!(to, "M 644 inline {}\ndata {}\n{text}\n", name_of(i), text.len())?;
    }
    to.flush()
}

/// Python script that repeats a call on one block of an existing file and times it: data in memory, so that only the
/// path to it is measured.
fn blocks(call: &str, size: u32, times: u32) -> String {
    format!(
        "import os, time
f = os.open('block', os.O_RDWR | os.O_CREAT)
b = b'x' * {size}
os.pwrite(f, b, 0)
t = time.monotonic_ns()
for i in range({times}): {call}
print(time.monotonic_ns() - t)"
    )
}

fn nanoseconds(said: &str) -> Result<Duration, String> {
    said.trim().parse().map(Duration::from_nanos).map_err(|_| format!("{said:?} is no time"))
}

fn name_of(i: u32) -> String {
    format!("d{:04}/f{i:06}.txt", i / FILES_OF_A_DIRECTORY)
}

fn write_file(tree: &Path, i: u32, text: &str) -> std::io::Result<()> {
    let path = tree.join(name_of(i));
    if i.is_multiple_of(FILES_OF_A_DIRECTORY) {
        fs::create_dir_all(path.parent().unwrap_or(tree))?;
    }
    fs::write(path, text_of(i, text))
}

fn text_of(i: u32, text: &str) -> String {
    if i < FILLED { format!("{i}\n{text}\n") } else { String::new() }
}

fn call(program: &Path, words: &[&str], directory: &Path) -> Result<String, String> {
    output(Command::new(program).args(words).current_dir(directory))
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let words: Vec<OsString> = command.get_args().take(3).map(OsStr::to_owned).collect();
            Err(format!("{words:?}: {}: {}", output.status, said.lines().last().unwrap_or("said nothing")))
        }
    }
}

fn failed(what: &str, why: &str) -> Fault {
    Fault::new(ErrorKind::Unavailable, format!("{what}: {why}")).phase(Phase::Execution)
}
