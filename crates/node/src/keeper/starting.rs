//! How a keeper is started, where there is none: ourselves once more, beside ourselves. Whoever starts one waits until it says that it
//! stands or why it does not, and buries it when it ends first.

use super::client::wait_for;
use super::wire::{self, Frame};
use crate::Caller;
use rustix::pipe::PipeFlags;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};
use sys::host::{Bounded, bound};
use terms::{ErrorKind, Fault, Phase, Retry};

/// How long an enclosure may take to stand.
pub(super) const BIRTH: Duration = Duration::from_secs(60);

/// What a keeper is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Commands,
    Files,
}

/// The bound on open files that we were started with, where we raise our own.
static DESCRIPTORS: OnceLock<u64> = OnceLock::new();

/// Remembers it for keepers that we start: what we allow ourselves is not for guests.
pub fn remember_descriptors() {
    if let Some(now) = bound(Bounded::OpenFiles).current {
        let _first_word_counts = DESCRIPTORS.set(now);
    }
}

/// Keepers that we started; they outlive us, but while we live they are ours to bury.
static CHILDREN: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Takes note of those that have ended.
pub(super) fn bury_children() {
    if let Ok(mut children) = CHILDREN.lock() {
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

/// Starts a keeper and waits until it says that it stands, or why not.
pub(super) fn start(state: &Path, sandbox: &str, wanted: Wanted, caller: &Caller) -> Result<(), Fault> {
    let trouble = |what: &str, e: &dyn std::fmt::Display| {
        let fault = Fault::new(ErrorKind::Unavailable, format!("a keeper for {sandbox}: {what}: {e}"));
        fault
            .subject(sandbox)
            .retry(Retry::Later)
            .hint("`cofferdam doctor` shows what this host offers")
            .phase(Phase::Start)
    };
    let (said, says) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| trouble("pipe", &e))?;
    let child = Command::new("/proc/self/exe")
        .arg0("cofferdam")
        .args(["keep", sandbox])
        .args((wanted == Wanted::Files).then_some(super::FOR_FILES))
        .args(DESCRIPTORS.get().map(|count| format!("{}{count}", super::DESCRIPTORS)))
        .env_clear()
        .envs(caller.env.iter().map(|(name, value)| (name, value)))
        .env("COFFERDAM_STATE", state)
        .stdin(Stdio::null())
        .stdout(says)
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| trouble("cannot be started", &e))?;
    if let Ok(mut children) = CHILDREN.lock() {
        children.push(child);
    }
    let json = hear(std::fs::File::from(said), wire::MOST).map_err(|(what, why)| trouble(what, &why))?;
    wire::read_answer(&Frame { json, ..Frame::default() })
}

/// All that one says whom we started, to its end and at most so many bytes; or what is wrong with it, and why.
pub(crate) fn hear(mut said: std::fs::File, most: usize) -> Result<Vec<u8>, (&'static str, String)> {
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    let end = Instant::now() + BIRTH;
    loop {
        if !wait_for(said.as_fd(), end) {
            return Err(("it does not stand yet", "it takes too long".to_owned()));
        }
        match said.read(&mut piece) {
            Ok(0) if text.is_empty() => return Err(("it ended", "without a word".to_owned())),
            Ok(0) => return Ok(text),
            Ok(n) if text.len() + n <= most => text.extend_from_slice(&piece[..n]),
            Ok(_) => return Err(("it says too much", text.len().to_string())),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(("pipe", e.to_string())),
        }
    }
}
