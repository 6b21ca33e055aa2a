//! Commands that a client requests from a daemon: started once under an idempotency key, and listed with earlier runs.

use super::runs::{self, RunRef};
use crate::timeout;
use api::{InputBytes, PathText, RunCreate, RunStatus, RunStreams};
use runtime::Node;
use runtime::keeper::client::{ATTEMPTS, Keeper, sent_away};
use runtime::keeper::request_digest;
use runtime::keeper::watch::WatchOptions;
use runtime::keeper::wire::{self, Start, Started, WireText, trace_of, words_of};
use runtime::questions;
use sha2::Digest;
use sha2::Sha256;
use state::sandbox::{self, Run, Sandbox};
use state::{Caller, State};
use std::collections::BTreeMap;
use std::path::Path;
use store::Kept;
use terms::{Fault, Phase, check_amounts};

fn invalid(message: String, hint: &str) -> Fault {
    Fault::invalid(message).hint(hint).phase(Phase::Admission)
}

/// A word in a message: what was given, escaped, and no more than can be read.
fn given(word: &PathText) -> String {
    const SHOWN: usize = 100;
    match word {
        PathText::Text(text) => format!("{:?}", text.chars().take(SHOWN).collect::<String>()),
        PathText::Bytes { base64 } => format!("base64 {:?}", base64.chars().take(SHOWN).collect::<String>()),
    }
}

/// Returns all words that are handed to the command, each with the field that it is in.
fn words(request: &RunCreate) -> impl Iterator<Item = (&'static str, &PathText)> {
    let command = request.command.iter().map(|word| ("command", word));
    let shell = request.shell.iter().map(|word| ("shell", word));
    let env = request.env.values().map(|word| ("env", word));
    let variables = request.variables.iter().map(|word| ("variables", word));
    let workdir = request.workdir.iter().map(|word| ("workdir", word));
    let cwd = request.cwd.iter().map(|word| ("cwd", word));
    command.chain(shell).chain(env).chain(variables).chain(workdir).chain(cwd)
}

/// The parts of a request for a run that the verbs need.
pub(crate) trait RunCreateExt {
    fn check(&self) -> Result<(), Fault>;

    /// Returns the message that has a keeper start the command.
    fn start(&self, id: String, key: Option<&str>, caller: &Caller) -> Start;

    /// Returns all variables with their values, as `NAME=VALUE`.
    fn assignments(&self) -> Vec<WireText>;

    /// Returns how the command expects to be watched.
    fn watch(&self) -> WatchOptions;

    /// Returns a digest of the whole request, and behind it one of each field. Digests, because variables may be secrets; of what is known
    /// to be a secret there is not even that. Those of the fields tell what differs, and are too short to tell what a field holds.
    fn digest(&self) -> String;
}

impl RunCreateExt for RunCreate {
    fn check(&self) -> Result<(), Fault> {
        if self.command.is_empty() && self.shell.is_none() {
            return Err(invalid(
                "command: missing".into(),
                "give `command` as a list of strings, or `shell` as a string",
            ));
        }
        for (field, word) in words(self) {
            let Some(bytes) = word.bytes() else {
                return Err(invalid(
                    format!("{field}: {} is not in canonical form", given(word)),
                    "send UTF-8 text as a string, and other bytes as base64",
                ));
            };
            if bytes.contains(&0) {
                let hint = "arguments, variables and paths cannot contain one";
                return Err(invalid(format!("{field}: {} contains a zero byte", given(word)), hint));
            }
        }
        let is_variable = |word: &&PathText| word.bytes().is_some_and(|b| b.iter().position(|b| *b == b'=') > Some(0));
        if let Some(word) = self.variables.iter().find(|word| !is_variable(word)) {
            return Err(invalid(format!("variables: {} has no name before a `=`", given(word)), "give NAME=VALUE"));
        }
        if let Some(name) = self.env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(invalid(format!("env: {name:?} is not a valid variable name"), "leave out `=` and zero bytes"));
        }
        if self.terminal.is_some_and(|size| size.rows == 0 || size.columns == 0) {
            return Err(invalid("terminal: no rows or no columns".into(), "give at least 1 of each, e.g. 24 and 80"));
        }
        if let Some(stdin) = &self.stdin {
            let bytes = stdin.bytes().unwrap_or_default().len();
            if bytes > wire::MOST {
                let message = format!("stdin: {bytes} bytes; {} at most", wire::MOST);
                return Err(invalid(message, "start it with `input`, and send the rest to POST /v1/runs/{run}/input"));
            }
        }
        check_amounts(&self.limits, None)?;
        self.ask_timeout_ms.map_or(Ok(()), |ms| questions::patience("ask_timeout_ms", ms).map(drop))
    }

    fn start(&self, id: String, key: Option<&str>, caller: &Caller) -> Start {
        Start {
            command: self.command.iter().map(WireText::spelled).collect(),
            shell: self.shell.as_ref().map(WireText::spelled),
            env: self.assignments(),
            around: words_of(caller),
            cwd: self.cwd.as_ref().map(WireText::spelled),
            workdir: self.workdir.as_ref().map(WireText::spelled),
            limits: self.limits,
            input: self.input || self.terminal.is_some(),
            has_stdin: self.stdin.is_some(),
            stdin: self.stdin.as_ref().and_then(InputBytes::bytes).unwrap_or_default(),
            terminal: self.terminal.map(|size| (size.rows, size.columns)),
            actor: caller.user.clone(),
            service: None,
            request: key.map(|_| self.digest()),
            run: Some(id),
            secrets: self.secrets.clone(),
            waits: true,
            watch: self.watch(),
            trace_parent: trace_of(caller),
        }
    }

    fn assignments(&self) -> Vec<WireText> {
        self.env.iter().map(set).chain(self.variables.iter().map(WireText::spelled)).collect()
    }

    fn watch(&self) -> WatchOptions {
        WatchOptions { report_reads: self.report_reads, ask_timeout_ms: self.ask_timeout_ms }
    }

    fn digest(&self) -> String {
        const SHORT: usize = 4;
        let bare = RunCreate { secrets: BTreeMap::new(), ..self.clone() };
        let digest = |text: &[u8]| terms::hex::encode(Sha256::digest(text));
        let mut all = digest(&serde_json::to_vec(&bare).unwrap_or_default());
        let fields = serde_json::to_value(&bare).ok().and_then(|bare| bare.as_object().cloned()).unwrap_or_default();
        for (name, value) in fields {
            all.push_str(&format!(" {name}={}", &digest(value.to_string().as_bytes())[..SHORT]));
        }
        all
    }
}

/// Returns a variable with its value, byte for byte.
fn set((name, value): (&String, &PathText)) -> WireText {
    let bytes = [name.as_bytes(), b"=", &value.bytes().unwrap_or_default()].concat();
    WireText::spelled(&PathText::of(&bytes))
}

/// Returns the run id for a key: the same key is the same run at every daemon and keeper.
fn id_of(sandbox: &str, key: &str) -> String {
    let digest = Sha256::digest(format!("run under a key\0{sandbox}\0{key}").as_bytes());
    let mut random = [0; 16];
    random.copy_from_slice(&digest[..16]);
    terms::id("run", random)
}

/// A command that was started, now or by an earlier request under the same key.
#[derive(Debug)]
pub struct StartedRun {
    pub existed: bool,
    pub found: RunRef,
    /// The keeper that reports the end; none if the run existed already.
    pub keeper: Option<RunKeeper>,
}

/// A keeper whose run continues.
#[derive(Debug)]
pub enum RunKeeper {
    /// Reports the end without a request.
    Notifies(Keeper),
    /// An older version, which has to be asked.
    Polled(Keeper),
}

/// Refuses a request that cannot be a command, whatever sandbox it is for.
pub fn check(request: &RunCreate) -> Result<(), Fault> {
    request.check()
}

/// Starts a command in a sandbox, at most once under a key.
pub fn begin(
    node: &Node,
    caller: &Caller,
    request: &RunCreate,
    word: &str,
    key: Option<&str>,
) -> Result<StartedRun, Fault> {
    request.check()?;
    state::bounds::check_command(&request.limits, caller)?;
    let state = node.states.lend(caller)?;
    let kept = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
    let Kept { id, record, .. } = &kept;
    let id = id.clone();
    // Checked before the sandbox becomes live in vain; its keeper checks again, as it knows how the enclosure was built.
    request.watch().check(&WatchOptions::as_made(record), &id)?;
    let run = key.map(|key| id_of(&id, key));
    if let Some(run) = &run
        && let Some(known) = begun_before(&state, request, run)?
    {
        let found = RunRef::new(known.id, known.record, state.path.clone());
        return Ok(StartedRun { existed: true, found, keeper: None });
    }
    timeout::restart(&state, &kept)?;
    let path = state.path.clone();
    // Released for other requests while this one waits.
    drop(state);
    // The id is chosen before the first message to a keeper, so that a repeated message starts the command only once.
    let run = run.unwrap_or_else(|| terms::id("run", sys::random::id_bytes()));
    let (keeper, started) = start_in(node, &path, &id, &request.start(run, key, caller), caller)?;
    let Started { run, existed, command, started_ms, waits, .. } = started;
    if existed {
        // Without a key only this request can have started the run, and the response was lost.
        return Ok(StartedRun { existed: key.is_some(), found: runs::find(node, caller, &run)?, keeper: None });
    }
    let card = &keeper.card;
    let record = Run {
        sandbox: id,
        command,
        pid: card.pid,
        pid_start: card.pid_start,
        boot: card.boot.clone(),
        started_ms,
        ended_ms: None,
        verdict: None,
        status: None,
        service: None,
        request: key.map(|_| request.digest()),
    };
    let keeper = if waits { RunKeeper::Notifies(keeper) } else { RunKeeper::Polled(keeper) };
    Ok(StartedRun { existed, found: RunRef::new(run, record, path), keeper: Some(keeper) })
}

/// Starts a command at the keeper of the last attempt, or at the sandbox's current keeper.
fn start_in(
    node: &Node,
    state: &Path,
    sandbox: &str,
    start: &Start,
    caller: &Caller,
) -> Result<(Keeper, Started), Fault> {
    while let Some(mut keeper) = node.keepers.take(state, sandbox).filter(|keeper| keeper.is_known_to_do(start)) {
        match keeper.start_if_there(start) {
            Ok(Some(started)) => return Ok((keeper, started)),
            // The keeper ended meanwhile.
            Ok(None) => {}
            Err(fault) => return Err(fault),
        }
    }
    for _ in 0..ATTEMPTS {
        let (mut keeper, hello) = Keeper::ensure_told(node, caller, state, sandbox)?;
        if start.input || start.terminal.is_some() {
            keeper.check_counts(&hello)?;
        }
        // A verb that needs the workspace alone ends an idle keeper, even one that is about to get a request.
        if let Some(started) = keeper.start_if_there(start)? {
            return Ok((keeper, started));
        }
    }
    Err(sent_away(sandbox))
}

/// Returns the run that an earlier request under the same key started.
pub fn earlier(
    node: &Node,
    caller: &Caller,
    request: &RunCreate,
    word: &str,
    key: &str,
) -> Result<Option<RunRef>, Fault> {
    request.check()?;
    let state = node.states.lend(caller)?;
    let id = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?.id;
    let known = begun_before(&state, request, &id_of(&id, key))?;
    Ok(known.map(|known| RunRef::new(known.id, known.record, state.path.clone())))
}

fn begun_before(state: &State, request: &RunCreate, run: &str) -> Result<Option<Kept<Run>>, Fault> {
    match state.store.read(|tx| tx.get::<Run>(run))? {
        None => Ok(None),
        Some(known) => {
            let (before, now) = (known.record.request.as_deref(), request.digest());
            match request_digest::is_same(before, Some(&now)) {
                true => Ok(Some(known)),
                false => Err(request_digest::other_request(run, before, Some(&now))),
            }
        }
    }
}

/// Lists runs of a sandbox, or of all; open ones, or also those that have ended. Newest first.
pub fn list(node: &Node, caller: &Caller, word: Option<&str>, running: bool) -> Result<Vec<RunStatus>, Fault> {
    let state = node.states.open(caller)?;
    let mut all = state.store.read(|tx| {
        let of = word.map(|word| sandbox::find(tx, Some(word), caller)).transpose()?.map(|kept: Kept<Sandbox>| kept.id);
        let mut found = match (&of, running) {
            (Some(id), false) => tx.list_in::<Run>(id)?,
            (None, false) => tx.list::<Run>()?,
            (of, true) => {
                let open = tx.list_open::<Run>()?.into_iter();
                open.filter(|run| of.as_ref().is_none_or(|id| run.record.sandbox == *id)).collect()
            }
        };
        caller.keep_own(tx, &mut found, |run| &run.record.sandbox)?;
        Ok(found)
    })?;
    all.sort_by(|a, b| b.record.started_ms.cmp(&a.record.started_ms).then_with(|| a.id.cmp(&b.id)));
    let shown = all.into_iter().map(|kept| shown(kept.id, kept.record));
    Ok(shown.filter(|shown| shown.running || !running).collect())
}

/// Describes a run that has ended, without its outcome.
pub fn ended(found: &RunRef) -> RunStatus {
    told(found.id.clone(), found.run.clone(), false)
}

/// Describes a run by its record.
pub fn shown(run: String, record: Run) -> RunStatus {
    let running = state::process::handle(&record).is_some();
    told(run, record, running)
}

fn told(run: String, record: Run, running: bool) -> RunStatus {
    let Run { sandbox, command, started_ms, ended_ms, verdict, status, service, .. } = record;
    RunStatus {
        run,
        sandbox,
        command,
        running,
        started_ms,
        ended_ms,
        verdict,
        status,
        service,
        existed: false,
        at: None,
        tail: None,
        outcome: None,
    }
}

impl RunRef {
    /// Describes the run as it is now.
    pub fn show(&self, node: &Node) -> Result<RunStatus, Fault> {
        let mut shown = shown(self.id.clone(), self.now()?);
        if shown.running {
            let listed = self.glance(node).and_then(|mut keeper| keeper.list().ok()).into_iter().flatten();
            let listed = listed.into_iter().find(|listed| listed.run == self.id);
            shown.at = listed.map(|l| RunStreams { input: l.input, terminal: l.terminal, offset: l.offset });
        }
        Ok(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_command_is_refused() {
        let ask = |text: &str| {
            serde_json::from_str::<RunCreate>(text).map_err(|e| e.to_string()).map(|request| request.check().is_ok())
        };
        for good in [
            r#"{"command":["true"]}"#,
            r#"{"shell":"echo $X","env":{"X":"1"}}"#,
            r#"{"command":["echo",{"base64":"/w=="}],"env":{"X":{"base64":"/w=="}},"variables":[{"base64":"/z14"}]}"#,
        ] {
            assert_eq!(ask(good), Ok(true), "{good}");
        }
        for bad in [
            "{}",
            r#"{"command":[]}"#,
            r#"{"command":["a\u0000b"]}"#,
            r#"{"command":["a"],"env":{"A=B":"1"}}"#,
            r#"{"command":["a"],"env":{"":"1"}}"#,
            r#"{"command":["a",{"base64":"YQ=="}]}"#,
            r#"{"command":["a",{"base64":"/wA="}]}"#,
            r#"{"command":["a"],"variables":["=x"]}"#,
            r#"{"command":["a"],"variables":["x"]}"#,
            r#"{"command":["a"],"terminal":{"rows":0,"columns":80}}"#,
        ] {
            assert_eq!(ask(bad), Ok(false), "{bad}");
        }
        assert!(ask(r#"{"command":["a"],"terminal":{"rows":1}}"#).is_err() && ask(r#"{"cmd":["a"]}"#).is_err());
    }

    #[test]
    fn a_key_is_one_run_of_one_sandbox() {
        assert_eq!(id_of("sbx_1", "k"), id_of("sbx_1", "k"));
        assert!(id_of("sbx_1", "k") != id_of("sbx_2", "k") && id_of("sbx_1", "k") != id_of("sbx_1", "l"));
    }
}
