//! Real work inside and outside: an interpreter's start, a compile, a look at a repository; and what single calls cost
//! that are allowed. All files are made in one
//! directory, which is removed at the end whatever happened.

use super::statistics::Samples;
use super::{Ask, Entry, Progress, find, measure, round};
use serde::Serialize;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use terms::{Fault, Phase};

/// Medians in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Work {
    pub name: &'static str,
    pub rounds: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inside_us: Option<f64>,
    /// Inside by outside, the median over the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

/// 2,000 files: 80 sources with 24 headers each, in 40 compiler calls. That is 200 processes and some 5,000 opens, about what
/// a project of that size asks for.
const UNITS: usize = 80;
const FILES_OF_A_UNIT: usize = 25;
const UNITS_OF_A_CALL: usize = 2;
const REPOSITORY_FILES: usize = 2000;

pub fn compare(ask: &Ask, progress: Progress<'_>) -> Result<Vec<Work>, Fault> {
    let place = Place::make(ask)?;
    let mut rows = Vec::new();
    let work = [python(ask, &place), compile(ask, &place), git_status(ask, &place), git_status_writable(ask, &place)];
    for task in work.into_iter().chain([reads(ask, &place), changes(ask, &place)]) {
        rows.extend(run(ask, task, progress)?);
    }
    Ok(rows)
}

/// Opens that only read: no announcement, but every wall.
fn reads(ask: &Ask, place: &Place) -> Task {
    let script = "import os\nfor i in range(50000): os.close(os.open('file', os.O_RDONLY))";
    single_calls(ask, place, Way { name: "reads-50000-times", flags: Vec::new() }, script)
}

/// A file made and removed again: two announced calls, one after the other.
fn changes(ask: &Ask, place: &Place) -> Task {
    let script =
        "import os\nfor i in range(5000): os.close(os.open('made', os.O_CREAT | os.O_WRONLY)); os.unlink('made')";
    let flags = vec!["--write".into(), place.root.join("changes-10000-times").into()];
    single_calls(ask, place, Way { name: "changes-10000-times", flags }, script)
}

fn single_calls(ask: &Ask, place: &Place, way: Way, script: &str) -> Task {
    let make = || {
        let program = interpreter(ask)?;
        let directory = place.dir(way.name)?;
        fs::write(directory.join("file"), "some bytes").map_err(|e| e.to_string())?;
        Ok(Job { words: vec![program.into(), "-c".into(), script.into()], directory })
    };
    Task { rounds: rounds(ask), job: make(), ways: vec![way] }
}

/// The system's own, because shims of others are programs by themselves.
fn interpreter(ask: &Ask) -> Result<PathBuf, String> {
    let system = PathBuf::from("/usr/bin/python3");
    let program = if system.exists() { Some(system) } else { find("python3", ask.path.as_deref()) };
    program.ok_or_else(|| "there is no python3".to_owned())
}

/// One piece of work and the ways in which it is done inside.
struct Task {
    rounds: u32,
    ways: Vec<Way>,
    /// What is done, or why it cannot be.
    job: Result<Job, String>,
}

/// A row of the table: its name, and the flags of its run.
struct Way {
    name: &'static str,
    flags: Vec<OsString>,
}

struct Job {
    words: Vec<OsString>,
    directory: PathBuf,
}

/// Outside and every way inside are done once a round.
fn run(ask: &Ask, task: Task, progress: Progress<'_>) -> Result<Vec<Work>, Fault> {
    let Task { rounds, ways, job } = task;
    let none = |name, why| Work { name, rounds, outside_us: None, inside_us: None, ratio: None, absent: Some(why) };
    let all = |why: &str| ways.iter().map(|way| none(way.name, why.to_owned())).collect();
    let Job { words, directory } = match job {
        Ok(job) => job,
        Err(why) => return Ok(all(&why)),
    };
    let enclosed = ways.iter().map(|way| {
        let ours =
            [ask.exe.clone().into(), "run".into(), "--read-only".into()].into_iter().chain(way.flags.iter().cloned());
        Entry::new(way.name, ours.chain(["--".into()]).chain(words.iter().cloned()).collect())
    });
    let mut entries: Vec<Entry> = [Entry::new("outside", words.clone())].into_iter().chain(enclosed).collect();
    for entry in &mut entries {
        entry.directory = Some(directory.clone());
        entry.try_out();
    }
    if let Some(why) = &entries[0].absent {
        return Ok(all(&format!("outside: {why}")));
    }
    measure(&mut entries, rounds, ways[0].name, progress)?;
    let outside = entries.remove(0).samples;
    let rows = entries.into_iter().map(|inside| {
        if let Some(why) = inside.absent {
            return none(inside.name, format!("inside: {why}"));
        }
        let median = |samples: &Samples| samples.clone().quantiles().map(|q| q.p50);
        Work {
            name: inside.name,
            rounds,
            outside_us: median(&outside),
            inside_us: median(&inside.samples),
            ratio: inside.samples.median_ratio(&outside).map(round),
            absent: None,
        }
    });
    Ok(rows.collect())
}

/// Work takes longer than a start, and needs fewer rounds.
fn rounds(ask: &Ask) -> u32 {
    (ask.rounds / 10).clamp(2, 15)
}

/// The command so many times in one shell: the start of the enclosure is measured elsewhere, the work in it here.
fn repeated(times: u32, words: &[OsString]) -> Vec<OsString> {
    let script = format!("i=0; while [ $i -lt {times} ]; do \"$@\" >/dev/null || exit 1; i=$((i + 1)); done");
    ["/bin/sh", "-c", &script, "sh"].iter().map(OsString::from).chain(words.iter().cloned()).collect()
}

fn python(ask: &Ask, place: &Place) -> Task {
    let job = interpreter(ask).map(|program| Job {
        words: repeated(40, &[program.into(), "-c".into(), "pass".into()]),
        directory: place.root.clone(),
    });
    Task { rounds: rounds(ask), ways: vec![Way { name: "python-start-40-times", flags: Vec::new() }], job }
}

fn compile(ask: &Ask, place: &Place) -> Task {
    let directory = place.root.join("compile");
    let make = || {
        let cc = find("cc", ask.path.as_deref()).ok_or("there is no cc")?;
        let xargs = find("xargs", ask.path.as_deref()).ok_or("there is no xargs")?;
        place.dir("compile")?;
        (0..UNITS).try_for_each(|unit| write_unit(&directory, unit)).map_err(|e| e.to_string())?;
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let script = format!("printf '%s\\n' *.c | \"$0\" -P {jobs} -n {UNITS_OF_A_CALL} \"$1\" -c");
        let words = vec!["/bin/sh".into(), "-c".into(), script.into(), xargs.into(), cc.into()];
        Ok(Job { words, directory: directory.clone() })
    };
    let job = make();
    let write = || vec!["--write".into(), directory.clone().into()];
    let reporting = write().into_iter().chain(["--report-reads".into()]).collect();
    let ways = vec![
        Way { name: "compile-2000-files", flags: write() },
        Way { name: "the-same-report-reads", flags: reporting },
    ];
    // Seconds each: a few are enough for a median.
    Task { rounds: rounds(ask).min(5), ways, job }
}

/// A source file and the headers that only it includes.
fn write_unit(directory: &Path, unit: usize) -> std::io::Result<()> {
    let mut source = String::from("#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n");
    for part in 1..FILES_OF_A_UNIT {
        let name = format!("u{unit:02}_{part:02}.h");
        let text = format!(
            "static inline int part_{part}(int n)\n{{\n\tint sum = {unit};\n\tfor (int k = 0; k < n; k++)\n\t\tsum += k * {part} % 7;\n\
             \treturn sum;\n}}\n"
        );
        fs::write(directory.join(&name), text)?;
        source.push_str(&format!("#include \"{name}\"\n"));
    }
    let calls: Vec<String> = (1..FILES_OF_A_UNIT).map(|part| format!("part_{part}(n)")).collect();
    source.push_str(&format!("int work_{unit}(int n) {{ return {}; }}\n", calls.join(" + ")));
    fs::write(directory.join(format!("u{unit:02}.c")), source)
}

fn git_status(ask: &Ask, place: &Place) -> Task {
    let ways = vec![Way { name: "git-status-60-times", flags: Vec::new() }];
    Task { rounds: rounds(ask), ways, job: repository(ask, place, "repository") }
}

/// Measured apart: as root, git inside notes other owners than git outside does, and each then looks again at every file.
fn git_status_writable(ask: &Ask, place: &Place) -> Task {
    let job = repository(ask, place, "writable");
    let flags = vec!["--write".into(), place.root.join("writable").into()];
    Task { rounds: rounds(ask), ways: vec![Way { name: "the-same-writable", flags }], job }
}

fn repository(ask: &Ask, place: &Place, name: &str) -> Result<Job, String> {
    let git = find("git", ask.path.as_deref()).ok_or("there is no git")?;
    let directory = place.dir(name)?;
    for i in 0..REPOSITORY_FILES {
        let parent = directory.join(format!("d{:02}", i / 50));
        fs::create_dir_all(&parent).map_err(|e| e.to_string())?;
        fs::write(parent.join(format!("f{i:04}.txt")), format!("{i}\n")).map_err(|e| e.to_string())?;
    }
    for words in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "files"]] {
        let mut command = Command::new(&git);
        command.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "commit.gpgsign=false"]);
        command.args(words).current_dir(&directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if !command.status().is_ok_and(|s| s.success()) {
            return Err(format!("git {} failed", words[0]));
        }
    }
    // Files as old as the index are read again until a later look notes them: let that second pass.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    Ok(Job { words: repeated(60, &[git.into(), "status".into(), "--porcelain".into()]), directory })
}

/// A directory for work files, gone when this is dropped, and soon gone when the process ends in any other way.
pub struct Place {
    pub root: PathBuf,
    /// Waits for our end, to remove what is left of the place; none where there is no shell.
    sweeper: Option<Child>,
}

/// It reads from us: a line says that all is well, an end without one that there is something left, because we were killed, however, or
/// could not. Those whom we started may be at work there for some time, and layers have directories of the kernel's that not even their
/// owner may look into. It stands in the place itself: whatever gets the place's name meanwhile is not touched.
const SWEEPER: &str = "read -r line && exit; n=0
while [ $n -lt 300 ]; do
  rm -rf ./* ./.[!.]* || chmod -R u+rwx .
  rmdir \"$1\" && exit
  n=$((n + 1)); sleep 0.2
done";

impl Place {
    /// Below the current directory, else below home, else below /var/tmp; not in /tmp, which is private inside.
    pub fn make(ask: &Ask) -> Result<Place, Fault> {
        let mut refused = "none is of use".to_owned();
        let private = |dir: &&Path| dir.starts_with("/tmp") || dir.starts_with("/var/tmp");
        let own = [ask.cwd.as_path(), ask.home.as_path()].into_iter().filter(|dir| !private(dir));
        for parent in own.chain([Path::new("/var/tmp")]) {
            let root = parent.join(format!("cofferdam-bench-{}", std::process::id()));
            match fs::create_dir(&root) {
                Ok(()) => return Ok(Place { sweeper: sweeper(&root), root }),
                Err(e) => refused = format!("{}: {e}", root.display()),
            }
        }
        let message = format!("no place for work files: {refused}");
        Err(Fault::invalid(message).hint("run it in a directory of your own").phase(Phase::Preparation))
    }

    fn dir(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.root.join(name);
        fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }
}

/// In a group of its own: what a terminal sends to ours does not reach it.
fn sweeper(root: &Path) -> Option<Child> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", SWEEPER, "sh"]).arg(root).current_dir(root).process_group(0);
    shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

impl Drop for Place {
    fn drop(&mut self) {
        let removed = fs::remove_dir_all(&self.root).is_ok();
        let Some(mut sweeper) = self.sweeper.take() else { return };
        if let Some(mut told) = sweeper.stdin.take().filter(|_| removed) {
            let _ = told.write_all(b"done\n");
        }
        let _ = sweeper.wait();
    }
}
