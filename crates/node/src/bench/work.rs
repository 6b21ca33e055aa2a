//! Real work inside and outside: an interpreter's start, a compile, a look at a repository. All files are made in one
//! directory, which is removed at the end whatever happened.

use super::{Ask, Entry, Progress, find, measure, round};
use serde::Serialize;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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
    /// Inside by outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

const C_FILES: usize = 200;
const REPOSITORY_FILES: usize = 2000;

pub fn compare(ask: &Ask, progress: Progress<'_>) -> Result<Vec<Work>, Fault> {
    let place = Place::make(ask)?;
    let works = [python(ask, &place), compile(ask, &place), git_status(ask, &place)];
    works.into_iter().map(|(name, rounds, job)| run(ask, name, rounds, job, progress)).collect()
}

/// What is done, or why it cannot be.
type Job = Result<Task, String>;

struct Task {
    words: Vec<OsString>,
    directory: PathBuf,
    /// Run inside with `--write` on the directory.
    writes: bool,
}

fn run(ask: &Ask, name: &'static str, rounds: u32, job: Job, progress: Progress<'_>) -> Result<Work, Fault> {
    let none = |why: String| Work { name, rounds, outside_us: None, inside_us: None, ratio: None, absent: Some(why) };
    let task = match job {
        Ok(task) => task,
        Err(why) => return Ok(none(why)),
    };
    let mut enclosed: Vec<OsString> = vec![ask.exe.clone().into(), "run".into()];
    if task.writes {
        enclosed.extend(["--write".into(), task.directory.clone().into()]);
    }
    enclosed.push("--".into());
    enclosed.extend(task.words.iter().cloned());
    let mut entries = [Entry::new("outside", task.words), Entry::new("inside", enclosed)];
    for entry in &mut entries {
        entry.directory = Some(task.directory.clone());
        entry.try_out();
        if let Some(why) = &entry.absent {
            return Ok(none(format!("{}: {why}", entry.name)));
        }
    }
    measure(&mut entries, rounds, name, progress)?;
    let [outside, inside] = entries.map(|e| e.samples.quantiles().map(|q| q.p50));
    let ratio = outside.zip(inside).filter(|(o, _)| *o > 0.0).map(|(o, i)| round(i / o));
    Ok(Work { name, rounds, outside_us: outside, inside_us: inside, ratio, absent: None })
}

/// The command twenty times in one shell: the start of the enclosure is measured elsewhere, the work in it here.
fn repeated(words: &[OsString]) -> Vec<OsString> {
    let script = "i=0; while [ $i -lt 20 ]; do \"$@\" >/dev/null || exit 1; i=$((i + 1)); done";
    ["/bin/sh", "-c", script, "sh"].iter().map(OsString::from).chain(words.iter().cloned()).collect()
}

fn python(ask: &Ask, place: &Place) -> (&'static str, u32, Job) {
    let system = PathBuf::from("/usr/bin/python3");
    let program = if system.exists() { Some(system) } else { find("python3", ask.path.as_deref()) };
    let job = program.ok_or_else(|| "there is no python3".to_owned()).map(|program| Task {
        words: repeated(&[program.into(), "-c".into(), "pass".into()]),
        directory: place.root.clone(),
        writes: false,
    });
    ("python-start-20-times", ask.rounds.min(15), job)
}

fn compile(ask: &Ask, place: &Place) -> (&'static str, u32, Job) {
    let make = || {
        let cc = find("cc", ask.path.as_deref()).ok_or("there is no cc")?;
        let directory = place.dir("compile")?;
        for i in 0..C_FILES {
            let text = format!(
                "#include <stdio.h>\n#include <stdlib.h>\n\nint work_{i}(int n)\n{{\n\tint sum = {i};\n\tfor (int k = 0; k < n; k++)\n\
                 \t\tsum += k * {i} % 7;\n\tif (sum < 0)\n\t\tabort();\n\tprintf(\"%d\\n\", sum);\n\treturn sum;\n}}\n"
            );
            fs::write(directory.join(format!("f{i:03}.c")), text).map_err(|e| e.to_string())?;
        }
        let script = "for f in *.c; do \"$0\" -c \"$f\" -o \"${f%.c}.o\" || exit 1; done";
        Ok(Task { words: vec!["/bin/sh".into(), "-c".into(), script.into(), cc.into()], directory, writes: true })
    };
    // Seconds each: a few are enough for a median.
    ("compile-200-files", ask.rounds.min(3), make())
}

fn git_status(ask: &Ask, place: &Place) -> (&'static str, u32, Job) {
    let make = || {
        let git = find("git", ask.path.as_deref()).ok_or("there is no git")?;
        let directory = place.dir("repository")?;
        for i in 0..REPOSITORY_FILES {
            let parent = directory.join(format!("d{:02}", i / 50));
            fs::create_dir_all(&parent).map_err(|e| e.to_string())?;
            fs::write(parent.join(format!("f{i:04}.txt")), format!("{i}\n")).map_err(|e| e.to_string())?;
        }
        for words in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "files"]] {
            let mut command = Command::new(&git);
            command.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "commit.gpgsign=false"]);
            let status = command
                .args(words)
                .current_dir(&directory)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if !status.is_ok_and(|s| s.success()) {
                return Err(format!("git {} failed", words[0]));
            }
        }
        let words = repeated(&[git.into(), "status".into(), "--porcelain".into()]);
        Ok(Task { words, directory, writes: true })
    };
    ("git-status-20-times", ask.rounds.min(15), make())
}

/// A directory for work files, gone when this is dropped.
pub struct Place {
    pub root: PathBuf,
}

impl Place {
    /// Below the current directory, else below home, else below /var/tmp; not in /tmp, which is private inside.
    pub fn make(ask: &Ask) -> Result<Place, Fault> {
        let mut refused = "none is of use".to_owned();
        let private = |dir: &&Path| dir.starts_with("/tmp") || dir.starts_with("/var/tmp");
        let own = [ask.cwd.as_path(), ask.home.as_path()].into_iter().filter(|dir| !private(dir));
        for parent in own.chain([Path::new("/var/tmp")]) {
            let root = parent.join(format!("cofferdam-bench-{}", std::process::id()));
            match fs::create_dir(&root) {
                Ok(()) => return Ok(Place { root }),
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

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
