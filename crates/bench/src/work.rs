//! Real work inside and outside: an interpreter's start, a compile, `git status`; and the cost of single allowed calls.
//! All files are made in one directory, which is removed in every case.

use super::statistics::Samples;
use super::{BenchConfig, Measurement, Progress, find, measure, round};
use serde::Serialize;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use terms::{Fault, Phase};

/// Result of one piece of work; medians in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Work {
    pub name: &'static str,
    pub rounds: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inside_us: Option<f64>,
    /// Ratio of inside to outside, the median over the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

/// 2,000 files: 80 sources with 24 headers each, in 40 compiler calls. That is 200 processes and some 5,000 opens,
/// typical of a project of that size.
const UNITS: usize = 80;
const FILES_OF_A_UNIT: usize = 25;
const UNITS_OF_A_CALL: usize = 2;
const REPOSITORY_FILES: usize = 2000;

pub fn compare(config: &BenchConfig, progress: Progress<'_>) -> Result<Vec<Work>, Fault> {
    let place = WorkDir::make(config)?;
    let mut rows = Vec::new();
    let work = [
        python(config, &place),
        compile(config, &place),
        git_status(config, &place),
        git_status_writable(config, &place),
    ];
    for task in work.into_iter().chain([reads(config, &place), changes(config, &place)]) {
        rows.extend(run(config, task, progress)?);
    }
    Ok(rows)
}

/// Read-only opens: no notification, but every other mechanism.
fn reads(config: &BenchConfig, place: &WorkDir) -> Task {
    let script = "import os\nfor i in range(50000): os.close(os.open('file', os.O_RDONLY))";
    single_calls(config, place, Variant { name: "reads-50000-times", flags: Vec::new() }, script)
}

/// A file made and removed again: two notified calls.
fn changes(config: &BenchConfig, place: &WorkDir) -> Task {
    let script =
        "import os\nfor i in range(5000): os.close(os.open('made', os.O_CREAT | os.O_WRONLY)); os.unlink('made')";
    let flags = vec!["--write".into(), place.root.join("changes-10000-times").into()];
    single_calls(config, place, Variant { name: "changes-10000-times", flags }, script)
}

fn single_calls(config: &BenchConfig, place: &WorkDir, variant: Variant, script: &str) -> Task {
    let make = || {
        let program = interpreter(config)?;
        let directory = place.dir(variant.name)?;
        fs::write(directory.join("file"), "some bytes").map_err(|e| e.to_string())?;
        Ok(TimedCommand { words: vec![program.into(), "-c".into(), script.into()], directory })
    };
    Task { rounds: rounds(config), job: make(), variants: vec![variant] }
}

/// Returns the system's Python, because shims are programs of their own.
fn interpreter(config: &BenchConfig) -> Result<PathBuf, String> {
    let system = PathBuf::from("/usr/bin/python3");
    let program = if system.exists() { Some(system) } else { find("python3", config.path.as_deref()) };
    program.ok_or_else(|| "there is no python3".to_owned())
}

/// A piece of work and its variants inside.
struct Task {
    rounds: u32,
    variants: Vec<Variant>,
    /// The job, or the reason why it cannot be done.
    job: Result<TimedCommand, String>,
}

/// A row of the table: its name, and the flags of its run.
struct Variant {
    name: &'static str,
    flags: Vec<OsString>,
}

struct TimedCommand {
    words: Vec<OsString>,
    directory: PathBuf,
}

/// Measures the work outside and in every variant inside, once a round.
fn run(config: &BenchConfig, task: Task, progress: Progress<'_>) -> Result<Vec<Work>, Fault> {
    let Task { rounds, variants, job } = task;
    let none = |name, why| Work { name, rounds, outside_us: None, inside_us: None, ratio: None, absent: Some(why) };
    let all = |why: &str| variants.iter().map(|variant| none(variant.name, why.to_owned())).collect();
    let TimedCommand { words, directory } = match job {
        Ok(job) => job,
        Err(why) => return Ok(all(&why)),
    };
    let enclosed = variants.iter().map(|variant| {
        let ours = [config.exe.clone().into(), "run".into(), "--read-only".into()]
            .into_iter()
            .chain(variant.flags.iter().cloned());
        Measurement::new(variant.name, ours.chain(["--".into()]).chain(words.iter().cloned()).collect())
    });
    let mut entries: Vec<Measurement> =
        [Measurement::new("outside", words.clone())].into_iter().chain(enclosed).collect();
    for entry in &mut entries {
        entry.directory = Some(directory.clone());
        entry.try_out();
    }
    if let Some(why) = &entries[0].absent {
        return Ok(all(&format!("outside: {why}")));
    }
    measure(&mut entries, rounds, variants[0].name, progress)?;
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

/// Returns the number of rounds; work takes longer than a start, and needs fewer.
fn rounds(config: &BenchConfig) -> u32 {
    (config.rounds / 10).clamp(2, 15)
}

/// Repeats the command in one shell: the start of the enclosure is measured elsewhere.
fn repeated(times: u32, words: &[OsString]) -> Vec<OsString> {
    let script = format!("i=0; while [ $i -lt {times} ]; do \"$@\" >/dev/null || exit 1; i=$((i + 1)); done");
    ["/bin/sh", "-c", &script, "sh"].iter().map(OsString::from).chain(words.iter().cloned()).collect()
}

fn python(config: &BenchConfig, place: &WorkDir) -> Task {
    let job = interpreter(config).map(|program| TimedCommand {
        words: repeated(40, &[program.into(), "-c".into(), "pass".into()]),
        directory: place.root.clone(),
    });
    Task { rounds: rounds(config), variants: vec![Variant { name: "python-start-40-times", flags: Vec::new() }], job }
}

fn compile(config: &BenchConfig, place: &WorkDir) -> Task {
    let directory = place.root.join("compile");
    let make = || {
        let cc = find("cc", config.path.as_deref()).ok_or("there is no cc")?;
        let xargs = find("xargs", config.path.as_deref()).ok_or("there is no xargs")?;
        place.dir("compile")?;
        (0..UNITS).try_for_each(|unit| write_unit(&directory, unit)).map_err(|e| e.to_string())?;
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let script = format!("printf '%s\\n' *.c | \"$0\" -P {jobs} -n {UNITS_OF_A_CALL} \"$1\" -c");
        let words = vec!["/bin/sh".into(), "-c".into(), script.into(), xargs.into(), cc.into()];
        Ok(TimedCommand { words, directory: directory.clone() })
    };
    let job = make();
    let write = || vec!["--write".into(), directory.clone().into()];
    let reporting = write().into_iter().chain(["--report-reads".into()]).collect();
    let variants = vec![
        Variant { name: "compile-2000-files", flags: write() },
        Variant { name: "the-same-report-reads", flags: reporting },
    ];
    // A round takes seconds; a few are enough for a median.
    Task { rounds: rounds(config).min(5), variants, job }
}

/// Writes a source file and the headers that only it includes.
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

fn git_status(config: &BenchConfig, place: &WorkDir) -> Task {
    let variants = vec![Variant { name: "git-status-60-times", flags: Vec::new() }];
    Task { rounds: rounds(config), variants, job: repository(config, place, "repository") }
}

/// Builds `git status` on a writable repository of its own: as root, git inside records other owners than git outside,
/// and each then re-reads every file.
fn git_status_writable(config: &BenchConfig, place: &WorkDir) -> Task {
    let job = repository(config, place, "writable");
    let flags = vec!["--write".into(), place.root.join("writable").into()];
    Task { rounds: rounds(config), variants: vec![Variant { name: "the-same-writable", flags }], job }
}

fn repository(config: &BenchConfig, place: &WorkDir, name: &str) -> Result<TimedCommand, String> {
    let git = find("git", config.path.as_deref()).ok_or("there is no git")?;
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
    // Git re-reads files as old as the index ("racy git"): wait for the next second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    Ok(TimedCommand { words: repeated(60, &[git.into(), "status".into(), "--porcelain".into()]), directory })
}

/// A directory for work files, removed when this is dropped, and soon after the process ends in any other way.
pub struct WorkDir {
    pub root: PathBuf,
    /// Shell that waits for our end and removes leftovers; `None` if there is no shell.
    sweeper: Option<Child>,
}

/// Script of the sweeper, which reads from our pipe: a line means that the directory was removed, an end without a line
/// that it is left, because this process was killed or failed. Its children may still work there for some time, and
/// overlay work directories are not readable even for their owner. The script's working directory is the directory
/// itself: another directory that gets its name meanwhile is not touched.
const SWEEPER: &str = "read -r line && exit; n=0
while [ $n -lt 300 ]; do
  rm -rf ./* ./.[!.]* || chmod -R u+rwx .
  rmdir \"$1\" && exit
  n=$((n + 1)); sleep 0.2
done";

impl WorkDir {
    /// Makes the directory below the current one, else below home, else below /var/tmp; not in /tmp, which is private
    /// inside.
    pub fn make(config: &BenchConfig) -> Result<WorkDir, Fault> {
        let mut refused = "none is of use".to_owned();
        let private = |dir: &&Path| dir.starts_with("/tmp") || dir.starts_with("/var/tmp");
        let own = [config.cwd.as_path(), config.home.as_path()].into_iter().filter(|dir| !private(dir));
        for parent in own.chain([Path::new("/var/tmp")]) {
            let root = parent.join(format!("cofferdam-bench-{}", std::process::id()));
            match fs::create_dir(&root) {
                Ok(()) => return Ok(WorkDir { sweeper: sweeper(&root), root }),
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

/// Starts the sweeper in a process group of its own: signals of a terminal to ours do not reach it.
fn sweeper(root: &Path) -> Option<Child> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", SWEEPER, "sh"]).arg(root).current_dir(root).process_group(0);
    shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let removed = fs::remove_dir_all(&self.root).is_ok();
        let Some(mut sweeper) = self.sweeper.take() else { return };
        if let Some(mut told) = sweeper.stdin.take().filter(|_| removed) {
            let _ = told.write_all(b"done\n");
        }
        let _ = sweeper.wait();
    }
}
