//! Commands that a document requests: started once under an idempotency key, and listed with those before them.

use super::runs::{self, Found};
use runtime::Node;
use runtime::keeper::client::{ATTEMPTS, Keeper, sent_away};
use runtime::keeper::request_digest;
use runtime::keeper::watch::Watch;
use runtime::keeper::wire::{Hidden, Start, Started, Word, words_of};
use runtime::questions;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use state::sandbox::{self, Run, Sandbox};
use state::{Caller, State};
use std::collections::BTreeMap;
use std::path::Path;
use store::Kept;
use terms::{Fault, Limits, Outcome, Phase, Verdict, check_amounts};
use utoipa::ToSchema;
use workspace::Target;

/// A command to be run. The sandbox becomes live for it where it is not.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunCreate {
    /// The command and its arguments; with `shell`, the arguments after the shell's text.
    pub command: Vec<Target>,
    /// Run this text with `sh -c`.
    pub shell: Option<Target>,
    /// Variables to set.
    pub env: BTreeMap<String, Target>,
    /// More of them, each `NAME=VALUE`: for names that are no text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<Target>,
    /// Values of secrets that the sandbox was made to be brought, by name. They hold as long as the command runs, and are kept nowhere.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, Hidden>,
    /// Where it starts, seen from the sandbox's directory.
    pub workdir: Option<Target>,
    /// Where whoever asks stands, by its whole path: without `workdir` it starts there, if that is in the sandbox's directory.
    pub cwd: Option<Target>,
    /// Those that one command of many can have: `max_wall_ms`, `max_output_bytes`, `on_output_limit`.
    pub limits: Limits,
    /// Somebody will write to its input; else it is empty.
    pub input: bool,
    /// A terminal of its own.
    pub terminal: Option<Size>,
    /// Refused reads are reported, too. All commands of a sandbox are watched alike: one that was made without this refuses it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub report_reads: bool,
    /// How long questions of the command wait for an answer: as long as the sandbox was made for, or it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000, maximum = 600_000)]
    pub ask_timeout_ms: Option<u64>,
}

/// Of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TerminalSize)]
pub struct Size {
    #[schema(minimum = 1)]
    pub rows: u16,
    #[schema(minimum = 1)]
    pub columns: u16,
}

/// One run, as far as it has come.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = RunShown)]
pub struct Shown {
    pub run: String,
    pub sandbox: String,
    pub command: Vec<String>,
    pub running: bool,
    pub started_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verdict: Option<Verdict>,
    /// The status that the command line would exit with.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u8>,
    /// The service that it is, by name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
    /// An earlier request under the same key started it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub existed: bool,
    /// How one can be at it; told of one run that goes on in a live sandbox.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub at: Option<At>,
    /// How it ended, where it was asked for and has.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub outcome: Option<Outcome>,
}

/// What a run can be given, and how far its log has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = RunAt)]
pub struct At {
    /// It takes input.
    pub input: bool,
    /// It has a terminal.
    pub terminal: bool,
    /// Where what it says next begins.
    pub offset: u64,
}

fn invalid(message: String, hint: &str) -> Fault {
    Fault::invalid(message).hint(hint).phase(Phase::Admission)
}

/// A word in a message: what was given, escaped, and no more than can be read.
fn given(word: &Target) -> String {
    const SHOWN: usize = 100;
    match word {
        Target::Text(text) => format!("{:?}", text.chars().take(SHOWN).collect::<String>()),
        Target::Bytes { base64 } => format!("base64 {:?}", base64.chars().take(SHOWN).collect::<String>()),
    }
}

impl RunCreate {
    /// Returns all words that are handed to the command, each with the field that it is in.
    fn words(&self) -> impl Iterator<Item = (&'static str, &Target)> {
        let command = self.command.iter().map(|word| ("command", word));
        let shell = self.shell.iter().map(|word| ("shell", word));
        let env = self.env.values().map(|word| ("env", word));
        let variables = self.variables.iter().map(|word| ("variables", word));
        let workdir = self.workdir.iter().map(|word| ("workdir", word));
        let cwd = self.cwd.iter().map(|word| ("cwd", word));
        command.chain(shell).chain(env).chain(variables).chain(workdir).chain(cwd)
    }

    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.command.is_empty() && self.shell.is_none() {
            return Err(invalid(
                "command: there is none".into(),
                "give `command` as a list of words, or `shell` as a text",
            ));
        }
        for (field, word) in self.words() {
            let Some(bytes) = word.bytes() else {
                return Err(invalid(
                    format!("{field}: {} is not spelled as it should be", given(word)),
                    "text is given as text, and only what is none as base64",
                ));
            };
            if bytes.contains(&0) {
                let hint = "no argument, variable or path can hold one";
                return Err(invalid(format!("{field}: {} holds a zero byte", given(word)), hint));
            }
        }
        let is_variable = |word: &&Target| word.bytes().is_some_and(|b| b.iter().position(|b| *b == b'=') > Some(0));
        if let Some(word) = self.variables.iter().find(|word| !is_variable(word)) {
            return Err(invalid(format!("variables: {} has no name before a `=`", given(word)), "give NAME=VALUE"));
        }
        if let Some(name) = self.env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(invalid(format!("env: {name:?} is no name of a variable"), "leave out `=` and zero bytes"));
        }
        if self.terminal.is_some_and(|size| size.rows == 0 || size.columns == 0) {
            return Err(invalid("terminal: no rows or no columns".into(), "give at least 1 of each, e.g. 24 and 80"));
        }
        check_amounts(&self.limits, None)?;
        self.ask_timeout_ms.map_or(Ok(()), |ms| questions::patience("ask_timeout_ms", ms).map(drop))
    }

    /// Returns the message that has a keeper start the command.
    fn start(&self, id: String, key: Option<&str>, caller: &Caller) -> Start {
        Start {
            command: self.command.iter().map(Word::spelled).collect(),
            shell: self.shell.as_ref().map(Word::spelled),
            env: self.assignments(),
            around: words_of(caller),
            cwd: self.cwd.as_ref().map(Word::spelled),
            workdir: self.workdir.as_ref().map(Word::spelled),
            limits: self.limits,
            input: self.input || self.terminal.is_some(),
            terminal: self.terminal.map(|size| (size.rows, size.columns)),
            actor: caller.user.clone(),
            service: None,
            request: key.map(|_| self.digest()),
            run: Some(id),
            secrets: self.secrets.clone(),
            waits: true,
            watch: self.watch(),
        }
    }

    /// Returns all variables with their values, as `NAME=VALUE`.
    pub(crate) fn assignments(&self) -> Vec<Word> {
        self.env.iter().map(set).chain(self.variables.iter().map(Word::spelled)).collect()
    }

    /// Returns how the command expects to be watched.
    pub(crate) fn watch(&self) -> Watch {
        Watch { report_reads: self.report_reads, ask_timeout_ms: self.ask_timeout_ms }
    }

    /// Returns a digest of the whole request, and behind it one of each field. Digests, because variables may be secrets; of what is known
    /// to be a secret there is not even that. Those of the fields tell what differs, and are too short to tell what a field holds.
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

/// A variable with its value, byte for byte.
fn set((name, value): (&String, &Target)) -> Word {
    let bytes = [name.as_bytes(), b"=", &value.bytes().unwrap_or_default()].concat();
    Word::spelled(&Target::of(&bytes))
}

/// The id of the run that a key stands for: the same key is the same run, whoever of several daemons and keepers is asked.
fn id_of(sandbox: &str, key: &str) -> String {
    let digest = Sha256::digest(format!("run under a key\0{sandbox}\0{key}").as_bytes());
    let mut random = [0; 16];
    random.copy_from_slice(&digest[..16]);
    terms::id("run", random)
}

/// A command that was started, or had been under the same key.
#[derive(Debug)]
pub struct Begun {
    pub existed: bool,
    pub found: Found,
    /// Who tells of its end; nobody where it was there before.
    pub keeper: Option<Waits>,
}

/// A keeper whose run goes on.
#[derive(Debug)]
pub enum Waits {
    /// It will tell of the end without being asked.
    Told(Keeper),
    /// One of an older version, to be asked.
    Ask(Keeper),
}

/// Starts a command in a sandbox; under a key once.
pub fn begin(node: &Node, caller: &Caller, request: &RunCreate, word: &str, key: Option<&str>) -> Result<Begun, Fault> {
    request.check()?;
    state::bounds::check_command(&request.limits, caller)?;
    let state = node.states.lend(caller)?;
    let Kept { id, record, .. } = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
    // Before it becomes live for nothing; its keeper asks again, which knows how it was built.
    request.watch().check(&Watch::as_made(&record), &id)?;
    let run = key.map(|key| id_of(&id, key));
    if let Some(run) = &run
        && let Some(known) = begun_before(&state, request, run)?
    {
        let found = Found::new(known.id, known.record, state.path.clone());
        return Ok(Begun { existed: true, found, keeper: None });
    }
    let path = state.path.clone();
    // Others can have it while this one waits.
    drop(state);
    // It has its id before anybody is asked: what is asked twice is begun once.
    let run = run.unwrap_or_else(|| terms::id("run", sys::random::id_bytes()));
    let (keeper, started) = start_in(node, &path, &id, &request.start(run, key, caller), caller)?;
    let Started { run, existed, command, started_ms, waits, .. } = started;
    if existed {
        // Without a key it was this very request that began it, and did not hear so.
        return Ok(Begun { existed: key.is_some(), found: runs::find(node, caller, &run)?, keeper: None });
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
    let keeper = if waits { Waits::Told(keeper) } else { Waits::Ask(keeper) };
    Ok(Begun { existed, found: Found::new(run, record, path), keeper: Some(keeper) })
}

/// Has a command started by the keeper that was asked last, or by whoever keeps the sandbox now.
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
            // It left meanwhile.
            Ok(None) => {}
            Err(fault) => return Err(fault),
        }
    }
    for _ in 0..ATTEMPTS {
        let (mut keeper, hello) = Keeper::ensure_told(node, caller, state, sandbox)?;
        if start.input || start.terminal.is_some() {
            keeper.check_counts(&hello)?;
        }
        // Whoever needs the workspace alone sends an idle keeper away, also one that somebody is about to ask.
        if let Some(started) = keeper.start_if_there(start)? {
            return Ok((keeper, started));
        }
    }
    Err(sent_away(sandbox))
}

/// What an earlier request under the same key started.
pub fn earlier(
    node: &Node,
    caller: &Caller,
    request: &RunCreate,
    word: &str,
    key: &str,
) -> Result<Option<Found>, Fault> {
    request.check()?;
    let state = node.states.lend(caller)?;
    let id = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?.id;
    let known = begun_before(&state, request, &id_of(&id, key))?;
    Ok(known.map(|known| Found::new(known.id, known.record, state.path.clone())))
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

/// Runs of a sandbox, or of all; those that go on, or also those that have ended. The newest first.
pub fn list(node: &Node, caller: &Caller, word: Option<&str>, running: bool) -> Result<Vec<Shown>, Fault> {
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

/// A run that has ended, but for how.
pub fn ended(found: &Found) -> Shown {
    told(found.id.clone(), found.run.clone(), false)
}

/// A run as its record has it.
pub fn shown(run: String, record: Run) -> Shown {
    let running = state::process::handle(&record).is_some();
    told(run, record, running)
}

fn told(run: String, record: Run, running: bool) -> Shown {
    let Run { sandbox, command, started_ms, ended_ms, verdict, status, service, .. } = record;
    Shown {
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
        outcome: None,
    }
}

impl Found {
    /// The run as it is now.
    pub fn show(&self, node: &Node) -> Result<Shown, Fault> {
        let mut shown = shown(self.id.clone(), self.now()?);
        if shown.running {
            let listed = self.glance(node).and_then(|mut keeper| keeper.list().ok()).into_iter().flatten();
            let listed = listed.into_iter().find(|listed| listed.run == self.id);
            shown.at = listed.map(|l| At { input: l.input, terminal: l.terminal, offset: l.offset });
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
