//! The steps of a run, found out by ourselves once more, beside ourselves: what plans a run keeps its lists for ever, which is well for
//! a process that encloses one guest, and not for a daemon. Whoever is sent says what it found, and ends.

use super::explained::Explained;
use super::place::{Fresh, Place};
use super::{Ask, Learn, Refused, Stdio, begin, prepare_under, sandboxed};
use crate::Caller;
use crate::keeper::begin as wish;
use crate::keeper::starting::hear;
use crate::keeper::wire::{self, Frame, Word};
use crate::policies::{self, Source};
use rustix::fs::MemfdFlags;
use rustix::pipe::PipeFlags;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio as Stream};
use terms::{ErrorKind, Fault, Limits, Phase, Retry};
use workspace::{Driver, Target};

/// The word that it is started with, in the place of a sandbox.
pub const WORD: &str = "--explain";

/// The longest errand, a policy and a command with its variables, and the most that is said of it.
const LONGEST: usize = 16 << 20;

/// A run to look into. Whoever sends it has seen to what the caller may have.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Errand {
    /// The id of the one that it would run in; else one would be made over the directory.
    pub sandbox: Option<String>,
    pub dir: PathBuf,
    pub read_only: bool,
    pub policies: Vec<Source>,
    pub limits: Limits,
    pub cpus: Option<f64>,
    pub driver: Option<Driver>,
    pub secrets: Vec<String>,
    pub report_reads: bool,
    pub run: wish::Ask,
}

/// Has it looked into; what was found.
pub(super) fn send(errand: &Errand, caller: &Caller) -> Result<Explained, Fault> {
    let asked = written(errand)?;
    let (said, says) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| trouble("pipe", &e))?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("cofferdam")
        .args(["keep", WORD])
        .env_clear()
        .envs(caller.env.iter().map(|(name, value)| (name, value)))
        .stdin(asked)
        .stdout(says)
        .stderr(Stream::null())
        .spawn()
        .map_err(|e| trouble("it cannot be started", &e))?;
    let heard = hear(File::from(said), LONGEST).map_err(|(what, why)| trouble(what, &why));
    // It has ended, or is of no more use.
    let _gone_already = child.kill();
    let _status_says_nothing_more = child.wait();
    wire::read_answer(&Frame { json: heard?, ..Frame::default() })
}

/// The errand, to be read from memory: nobody waits for whoever writes or reads it.
fn written(errand: &Errand) -> Result<File, Fault> {
    let text = serde_json::to_vec(errand).map_err(|e| Fault::internal(e.to_string()))?;
    if text.len() > LONGEST {
        let message = format!("a policy and a command of {} bytes; at most {LONGEST} can be explained", text.len());
        return Err(Fault::invalid(message).hint("run it, or explain it with less").phase(Phase::Admission));
    }
    let memory = rustix::fs::memfd_create("errand", MemfdFlags::CLOEXEC).map_err(|e| trouble("memory", &e))?;
    let mut memory = File::from(memory);
    memory.write_all(&text).and_then(|()| memory.rewind()).map_err(|e| trouble("memory", &e))?;
    Ok(memory)
}

fn trouble(what: &str, why: &dyn std::fmt::Display) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("who finds out the steps: {what}: {why}"));
    fault.retry(Retry::Later).hint("try again; `cofferdam doctor` shows what this host offers").phase(Phase::Planning)
}

/// What whoever is sent does: reads its errand, and says what it found.
pub fn run(caller: &Caller) -> Result<(), Fault> {
    let found = read().and_then(|errand| look_into(&errand, caller));
    let frame = match &found {
        Ok(explained) => wire::value(explained),
        Err(fault) => wire::refusal(fault),
    };
    let mut out = std::io::stdout();
    let _nobody_waits = out.write_all(&frame.json).and_then(|()| out.flush());
    found.map(drop)
}

fn read() -> Result<Errand, Fault> {
    let mut text = Vec::new();
    std::io::stdin().take(LONGEST as u64).read_to_end(&mut text).map_err(|e| Fault::internal(e.to_string()))?;
    serde_json::from_slice(&text).map_err(|e| Fault::internal(format!("an errand that cannot be read: {e}")))
}

fn look_into(errand: &Errand, caller: &Caller) -> Result<Explained, Fault> {
    let ask = errand.ask()?;
    let here = || errand.run.cwd.as_ref().and_then(path);
    let cwd = if errand.sandbox.is_some() { here().unwrap_or("/".into()) } else { errand.dir.clone() };
    let caller = Caller { cwd, ..caller.clone() };
    let ready = match &errand.sandbox {
        Some(id) => sandboxed::prepare_as_recorded(&ask, id, &caller, begin()),
        None => {
            let effective = policies::effective(&errand.policies, &[], &caller)?;
            prepare_under(&ask, &caller, effective, begin())
        }
    };
    ready.map_err(|refused: Refused| *refused.fault)?.explained()
}

impl Errand {
    fn ask(&self) -> Result<Ask, Fault> {
        let words = |words: &[Target]| -> Option<Vec<OsString>> { words.iter().map(text).collect() };
        let unread = || Fault::internal("an errand with a word that cannot be read");
        let run = &self.run;
        let env: Option<Vec<OsString>> = run.assignments().iter().map(Word::text).collect();
        let fresh = Fresh { dir: Some(self.dir.clone()), driver: self.driver, ..Fresh::default() };
        Ok(Ask {
            command: words(&run.command).ok_or_else(unread)?,
            shell: run.shell.as_ref().and_then(text),
            policies: Vec::new(),
            flags: Vec::new(),
            limits: self.limits,
            cpus: self.cpus,
            env: env.ok_or_else(unread)?,
            workdir: run.workdir.as_ref().and_then(path),
            place: match (&self.sandbox, self.read_only) {
                (Some(id), _) => Place::Sandbox(id.clone()),
                (None, true) => Place::ReadOnly,
                (None, false) => Place::Fresh(fresh),
            },
            publish: Vec::new(),
            secrets: self.secrets.clone(),
            events: true,
            stdio: Stdio { input: run.input, capture: false, terminal: run.terminal.is_some(), all_to_stderr: false },
            report_reads: self.report_reads,
            ask_timeout: None,
            learn: Learn::Nothing,
        })
    }
}

fn text(word: &Target) -> Option<OsString> {
    word.bytes().map(OsString::from_vec)
}

fn path(word: &Target) -> Option<PathBuf> {
    text(word).map(PathBuf::from)
}
