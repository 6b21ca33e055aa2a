//! Starts a keeper by re-executing this binary as `cofferdam keep`. The parent waits until the keeper reports that it is ready, or its
//! fault, and reaps it if it exits first.

use super::client::wait_for;
use super::wire::{self, Frame};
use crate::Node;
use crate::request::TRACE_PARENT;
use rustix::pipe::PipeFlags;
use state::{Caller, SecretSources};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Phase, Retry};

/// Deadline for an enclosure to be built.
pub(super) const START_DEADLINE: Duration = Duration::from_secs(60);

/// Purpose of a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeeperPurpose {
    Commands,
    Files,
}

/// Starts a keeper and waits until it is ready or reports a fault.
pub(super) fn start(
    node: &Node,
    caller: &Caller,
    state: &Path,
    sandbox: &str,
    wanted: KeeperPurpose,
) -> Result<(), Fault> {
    let trouble = |what: &str, e: &dyn std::fmt::Display| {
        let fault = Fault::new(ErrorKind::Unavailable, format!("a keeper for {sandbox}: {what}: {e}"));
        fault
            .subject(sandbox)
            .retry(Retry::Later)
            .hint("`cofferdam doctor` shows what this host offers")
            .phase(Phase::Start)
    };
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| trouble("pipe", &e))?;
    let child = Command::new("/proc/self/exe")
        .arg0("cofferdam")
        .args(["keep", sandbox])
        .args((wanted == KeeperPurpose::Files).then_some(super::FOR_FILES))
        .args((caller.secret_sources == SecretSources::KeptOnly).then_some(super::KEPT_SECRETS))
        .args(node.keepers.descriptors().map(|count| format!("{}{count}", super::DESCRIPTORS)))
        .env_clear()
        .envs(caller.env.iter().filter(|(name, _)| name != TRACE_PARENT).map(|(name, value)| (name, value)))
        .envs(caller.trace_parent.iter().map(|value| (TRACE_PARENT, value)))
        .env("COFFERDAM_STATE", state)
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| trouble("cannot be started", &e))?;
    node.keepers.adopt(child);
    let json = read_report(std::fs::File::from(reader), wire::MOST).map_err(|(what, why)| trouble(what, &why))?;
    wire::read_answer(&Frame { json, ..Frame::default() })
}

/// Reads the report of a started child to its end, at most `most` bytes; the error is the subject and the cause.
pub fn read_report(mut pipe: std::fs::File, most: usize) -> Result<Vec<u8>, (&'static str, String)> {
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    let end = Instant::now() + START_DEADLINE;
    loop {
        if !wait_for(pipe.as_fd(), end) {
            return Err(("it is not ready yet", "it takes too long".to_owned()));
        }
        match pipe.read(&mut piece) {
            Ok(0) if text.is_empty() => return Err(("it ended", "without a report".to_owned())),
            Ok(0) => return Ok(text),
            Ok(n) if text.len() + n <= most => text.extend_from_slice(&piece[..n]),
            Ok(_) => return Err(("its message is too long", text.len().to_string())),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(("pipe", e.to_string())),
        }
    }
}
