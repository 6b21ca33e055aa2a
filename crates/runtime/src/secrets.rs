//! Secrets that a guest uses and never sees. Inside, a variable of the secret's name holds a placeholder; the broker replaces it with the
//! value in outgoing requests.
//!
//! The guest's first process is a copy of ours, so no value may be in our memory when it is created. Sources are opened before, which
//! reports most mistakes in time, and read after. Explaining a run opens nothing and starts nothing.

mod brought;
pub mod kept;
mod login;

pub use brought::{RemoteSecret, brought, carry, told};
pub use brought::{check_recorded, refuse_brought};
pub(crate) use login::Login;

use egress::broker::SecretValue;
use state::{Caller, SecretSources};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use terms::{Fault, Phase};

/// Longest value; also the capacity of a pipe, so that a command never blocks on it.
pub const LONGEST: usize = 64 * 1024;
/// Deadline for a command, or the writer of a pipe, to deliver a secret.
const PATIENCE: Duration = Duration::from_secs(30);

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SecretSource {
    Env {
        variable: String,
        /// The caller has the variable, and it is not empty.
        is_set: bool,
    },
    File(PathBuf),
    Command(String),
    /// Kept in the state directory under a name; the file, once it was found.
    Kept {
        name: String,
        file: Option<PathBuf>,
    },
    /// Sent by a client with a command, once the guest runs.
    Brought,
    /// The token in a file of a login that is copied in.
    Login(Login, PathBuf),
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretSource::Env { variable, is_set: true } => write!(f, "the variable {variable}"),
            SecretSource::Env { variable, is_set: false } => write!(f, "the variable {variable}, which is not set"),
            SecretSource::File(path) => write!(f, "the file {}", path.display()),
            SecretSource::Command(command) => write!(f, "the output of the command {command:?}"),
            SecretSource::Kept { name, file: Some(_) } => write!(f, "the stored secret {name}"),
            SecretSource::Kept { name, file: None } => write!(f, "the secret {name}, which is not stored"),
            SecretSource::Brought => write!(f, "the client of each command"),
            SecretSource::Login(_, path) => write!(f, "the login in the file {}", path.display()),
        }
    }
}

/// A source that is opened and unread.
enum OpenedSource {
    Env(String),
    Open(File),
    Login(Login, File),
    /// No value yet; it comes with a command.
    Later,
}

/// A secret and the source of its value.
struct NamedSecret {
    name: String,
    placeholder: String,
    source: SecretSource,
    /// Set once the source was opened.
    held: Option<OpenedSource>,
}

/// Necessity of a secret's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requirement {
    /// A run without a value goes on without the secret.
    Optional,
    Required,
}

/// Returns the names of a policy's secrets. A name is optional if every entry says so.
pub fn needs<'a>(secrets: impl IntoIterator<Item = &'a policy::Secret>) -> BTreeMap<&'a str, Requirement> {
    let mut needs = BTreeMap::new();
    for secret in secrets {
        let need = if secret.optional { Requirement::Optional } else { Requirement::Required };
        let most = needs.entry(secret.name.as_str()).or_insert(need);
        *most = need.max(*most);
    }
    needs
}

/// The secrets of one run before their values are known.
#[derive(Default)]
pub struct Secrets {
    named: Vec<NamedSecret>,
    /// Names of optional secrets without a value; the guest has no placeholder for them.
    left_out: Vec<String>,
    cwd: PathBuf,
    /// Late read of variables; see `Caller::read_late`.
    read_late: Option<fn(&OsStr) -> Option<OsString>>,
}

impl Secrets {
    /// Determines the sources of the secrets that the policy names, without reading them. `words` are `NAME=env:VAR`, `NAME=file:PATH`,
    /// `NAME=cmd:COMMAND` or `NAME=store:NAME`; without a word, a secret is the caller's variable of its name, or else the one that is
    /// kept. An optional secret that is neither, and has no word, is left out.
    pub fn find(wanted: &BTreeMap<&str, Requirement>, words: &[String], caller: &Caller) -> Result<Secrets, Fault> {
        Secrets::find_beside(&[], wanted, words, caller)
    }

    /// Determines the sources of a policy's secrets. The token of a login that the policy copies in is a source, too.
    pub fn of_policy(policy: &policy::Policy, words: &[String], caller: &Caller) -> Result<Secrets, Fault> {
        let wanted = needs(policy.secrets.iter().map(|secret| &secret.rule));
        Secrets::find_beside(&policy.home_copy, &wanted, words, caller)
    }

    fn find_beside(
        copies: &[policy::Labelled<policy::RulePath>],
        wanted: &BTreeMap<&str, Requirement>,
        words: &[String],
        caller: &Caller,
    ) -> Result<Secrets, Fault> {
        let only_kept = caller.secret_sources == SecretSources::KeptOnly;
        let mut sources = BTreeMap::new();
        for word in words {
            let (name, source) = read_word(word)?;
            if only_kept && !matches!(source, SecretSource::Kept { .. } | SecretSource::Brought) {
                return Err(kept_only(name));
            }
            if !wanted.contains_key(name) {
                let known: Vec<&str> = wanted.keys().copied().collect();
                return Err(Fault::invalid(format!(
                    "--secret {name}: no policy of this run has a secret of that name"
                ))
                .hint(if known.is_empty() { "leave it out".into() } else { format!("secrets: {}", known.join(", ")) })
                .phase(Phase::Admission));
            }
            sources.insert(name, source);
        }
        let is_set = |variable: &str| caller.var(variable).is_some_and(|v| !v.is_empty());
        let login = |name: &str| Login::source(name, copies, caller).filter(|_| !only_kept);
        let (mut named, mut left_out) = (Vec::new(), Vec::new());
        for (name, need) in wanted {
            let own = (*name).to_owned();
            let source = match sources.remove(name) {
                Some(SecretSource::Env { variable, .. }) => SecretSource::Env { is_set: is_set(&variable), variable },
                Some(SecretSource::File(path)) => SecretSource::File(caller.cwd.join(path)),
                Some(SecretSource::Kept { name, .. }) => SecretSource::Kept { file: kept::find(caller, &name), name },
                Some(source) => source,
                None if !only_kept && is_set(name) => SecretSource::Env { variable: own, is_set: true },
                None => match (kept::find(caller, name), login(name)) {
                    (None, Some((login, path))) => SecretSource::Login(login, path),
                    (None, None) if *need == Requirement::Optional => {
                        left_out.push(own);
                        continue;
                    }
                    (None, None) if !only_kept => SecretSource::Env { variable: own, is_set: false },
                    (file, _) => SecretSource::Kept { name: own, file },
                },
            };
            named.push(NamedSecret { name: (*name).to_owned(), placeholder: placeholder(name)?, source, held: None });
        }
        Ok(Secrets { named, left_out, cwd: caller.cwd.clone(), read_late: Some(caller.read_late) })
    }

    /// Describes the source of each secret.
    pub fn explain(&self) -> Vec<String> {
        let named = self.named.iter().map(|s| format!("{}: {}", s.name, s.source));
        let left_out = self.left_out.iter().map(|name| format!("{name}: left out, it is neither set nor stored"));
        named.chain(left_out).collect()
    }

    /// Returns a note where the policy has optional secrets and no secret has a value.
    pub fn note_left_out(&self) -> Option<String> {
        let names = Some(self.left_out.join(", ")).filter(|names| !names.is_empty() && self.named.is_empty())?;
        Some(format!("no secret has a value; the command runs without: {names}"))
    }

    /// Returns whether all values come from kept secrets, which are the same for every caller. One that was left out may be kept later.
    pub fn are_kept(&self) -> bool {
        self.left_out.is_empty() && self.named.iter().all(|secret| matches!(secret.source, SecretSource::Kept { .. }))
    }

    /// Returns the secrets kept under these names now, with the same placeholders: for a spare, which was started before its owner was
    /// known.
    pub fn now_kept(&self, caller: &Caller) -> Secrets {
        let now = |secret: &NamedSecret| NamedSecret {
            name: secret.name.clone(),
            placeholder: secret.placeholder.clone(),
            source: SecretSource::Kept { name: secret.name.clone(), file: kept::find(caller, &secret.name) },
            held: None,
        };
        self.with(self.named.iter().map(now).collect())
    }

    fn with(&self, named: Vec<NamedSecret>) -> Secrets {
        Secrets { named, left_out: self.left_out.clone(), cwd: self.cwd.clone(), read_late: self.read_late }
    }

    /// Returns an unopened copy; empty where no secret comes with a command.
    pub fn brought(&self) -> Secrets {
        if !self.named.iter().any(|secret| secret.source == SecretSource::Brought) {
            return Secrets::default();
        }
        let again = |secret: &NamedSecret| NamedSecret {
            name: secret.name.clone(),
            placeholder: secret.placeholder.clone(),
            source: secret.source.clone(),
            held: None,
        };
        self.with(self.named.iter().map(again).collect())
    }

    /// Returns all values, with these added; a fault for a name that does not come with a command.
    pub fn bring(&self, values: &BTreeMap<String, api::SecretValue>) -> Result<Vec<SecretValue>, Fault> {
        let mut again = self.brought();
        let waits = |name: &String| self.named.iter().find(|s| s.name == *name && s.source == SecretSource::Brought);
        let mut all = Vec::new();
        for (name, value) in values {
            let secret = waits(name).ok_or_else(|| not_brought(name))?;
            let value = value.bytes().ok_or_else(|| fault(name, "its value is not in canonical form"))?;
            check(name, &value)?;
            all.push(SecretValue { name: name.clone(), placeholder: secret.placeholder.clone(), value });
        }
        again.open()?;
        all.extend(again.read()?);
        Ok(all)
    }

    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// Opens files and runs commands, leaving the values unread. Must precede the guest's first process.
    pub fn open(&mut self) -> Result<(), Fault> {
        for secret in &mut self.named {
            secret.held = Some(open_source(&secret.name, &secret.source, &self.cwd)?);
        }
        Ok(())
    }

    /// Returns the placeholders that the guest has instead, by variable.
    pub fn placeholders(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named.iter().map(|s| (s.name.as_str(), s.placeholder.as_str()))
    }

    /// Returns the caller's variables that hold a value, which must neither be passed nor be in memory when the guest is created.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.named.iter().filter_map(|s| match &s.source {
            SecretSource::Env { variable, .. } => Some(variable.as_str()),
            SecretSource::File(_)
            | SecretSource::Command(_)
            | SecretSource::Kept { .. }
            | SecretSource::Brought
            | SecretSource::Login(..) => None,
        })
    }

    /// Reads the values. Must follow the creation of the guest's first process.
    pub fn read(self) -> Result<Vec<SecretValue>, Fault> {
        let Some(read_late) = self.read_late.filter(|_| !self.named.is_empty()) else { return Ok(Vec::new()) };
        // From here on our memory must not end up in a core dump or a debugger.
        let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
        let there = self.named.into_iter().filter(|secret| !matches!(secret.held, Some(OpenedSource::Later)));
        let values = there.map(|NamedSecret { name, placeholder, held, .. }| {
            let value = match held.ok_or_else(|| fault(&name, "its source was not opened"))? {
                OpenedSource::Later => Vec::new(),
                OpenedSource::Env(variable) => {
                    read_late(OsStr::new(&variable)).map(OsString::into_vec).unwrap_or_default()
                }
                OpenedSource::Open(source) => read_open(&name, source)?,
                OpenedSource::Login(login, file) => login.token(file)?,
            };
            check(&name, &value)?;
            Ok(SecretValue { name, placeholder, value })
        });
        values.collect()
    }
}

fn fault(name: &str, why: impl std::fmt::Display) -> Fault {
    Fault::invalid(format!("secret {name}: {why}")).phase(Phase::Preparation)
}

/// Checks a value. It goes into a header, where a line break would end it.
fn check(name: &str, value: &[u8]) -> Result<(), Fault> {
    let why = match value {
        [] => "its value is empty".to_owned(),
        value if value.len() > LONGEST => format!("longer than {LONGEST} bytes"),
        value if value.iter().any(|b| b.is_ascii_control()) => "its value contains a control character".to_owned(),
        _ => return Ok(()),
    };
    Err(fault(name, why).hint(format!("it must be one line of 1 to {LONGEST} bytes")))
}

fn not_brought(name: &str) -> Fault {
    fault(name, "the sandbox was created without a secret of that name").hint("name it when the sandbox is created")
}

fn kept_only(name: &str) -> Fault {
    let fault = Fault::invalid(format!("secret {name}: only stored secrets are given to runs here"));
    fault
        .hint(format!("store it with PUT /v1/secrets/{name}, or name a stored one with store:NAME"))
        .phase(Phase::Admission)
}

fn read_word(word: &str) -> Result<(&str, SecretSource), Fault> {
    // The typed text may be the secret itself, so it is never repeated.
    let refuse = |why: &str| {
        Fault::invalid(format!("--secret: {why}"))
            .hint("write NAME=env:VARIABLE, NAME=file:PATH, NAME=cmd:COMMAND or NAME=store:NAME; a value on the command line is visible to every user of the host")
            .phase(Phase::Admission)
    };
    let (name, source) = word.split_once('=').ok_or_else(|| refuse("no '=' after the name"))?;
    let source = match source.split_once(':') {
        Some((_, "")) => return Err(refuse("nothing after the colon")),
        Some(("env", variable)) => SecretSource::Env { variable: variable.into(), is_set: false },
        Some(("file", path)) => SecretSource::File(path.into()),
        Some(("cmd", command)) => SecretSource::Command(command.into()),
        Some(("brought", "run")) => SecretSource::Brought,
        Some(("store", name)) => SecretSource::Kept { name: name.into(), file: None },
        _ => return Err(refuse("a literal value is not accepted")),
    };
    Ok((name, source))
}

fn placeholder(name: &str) -> Result<String, Fault> {
    if let Some(login) = Login::of_secret(name) {
        return Ok(login.placeholder());
    }
    let mut bytes = [0u8; 16];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    if got != Ok(bytes.len()) {
        return Err(Fault::internal("the kernel gives no random bytes").phase(Phase::Preparation));
    }
    Ok(format!("cofferdam-secret-{name}-{}", terms::hex::encode(bytes)))
}

fn open_source(name: &str, source: &SecretSource, cwd: &Path) -> Result<OpenedSource, Fault> {
    match source {
        SecretSource::Env { variable, is_set: true } => Ok(OpenedSource::Env(variable.clone())),
        SecretSource::Env { variable, is_set: false } => {
            let hint = format!(
                "set {variable}, store it with `cofferdam secret set {name}`, or name a source: --secret {name}=env:VARIABLE|file:PATH|cmd:COMMAND|store:NAME"
            );
            Err(fault(name, format!("the variable {variable} is not set")).hint(hint))
        }
        SecretSource::File(path) => {
            // A pipe without a writer must not block the open.
            let options = rustix::fs::OFlags::NONBLOCK.bits() as i32;
            let file = File::options().read(true).custom_flags(options).open(path);
            let file = file.map_err(|e| fault(name, format!("{}: {e}", path.display())))?;
            if file.metadata().is_ok_and(|m| m.is_dir()) {
                return Err(fault(name, format!("{}: is a directory", path.display())));
            }
            Ok(OpenedSource::Open(file))
        }
        SecretSource::Login(login, path) => {
            let file = File::open(path).map_err(|e| fault(name, format!("{}: {e}", path.display())))?;
            Ok(OpenedSource::Login(*login, file))
        }
        SecretSource::Command(command) => run(name, command, cwd).map(OpenedSource::Open),
        SecretSource::Brought => Ok(OpenedSource::Later),
        SecretSource::Kept { name: kept, file: None } => {
            let hint = format!("store it with `cofferdam secret set {kept}`, or PUT /v1/secrets/{kept}");
            Err(fault(name, format!("no secret {kept} is stored")).hint(hint))
        }
        SecretSource::Kept { file: Some(path), .. } => {
            let options = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
            let file = File::options().read(true).custom_flags(options).open(path);
            file.map(OpenedSource::Open).map_err(|e| fault(name, format!("cannot read its file: {e}")))
        }
    }
}

/// Runs a command to its end; its output stays in the pipe, in the kernel's memory and not in ours.
fn run(name: &str, command: &str, cwd: &Path) -> Result<File, Fault> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .current_dir(cwd)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| fault(name, format!("its command cannot be started: {e}")))?;
    let out = child.stdout.take().ok_or_else(|| fault(name, "its command has no output"))?;
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                let why = format!("its command did not end within {} s, or printed too much", PATIENCE.as_secs());
                return Err(fault(name, why));
            }
        }
    };
    match status.success() {
        true => Ok(File::from(OwnedFd::from(out))),
        false => Err(fault(name, format!("its command failed: {status}"))),
    }
}

/// Reads a file, a pipe or a command's output, without the trailing line break.
fn read_open(name: &str, mut source: File) -> Result<Vec<u8>, Fault> {
    let deadline = Instant::now() + PATIENCE;
    // Allocated at full size: a growing buffer leaves copies of the value behind.
    let mut value = vec![0; LONGEST + 3];
    let mut len = 0;
    while len < value.len() {
        wait_for(&source, deadline).ok_or_else(|| fault(name, "its source is empty"))?;
        match source.read(&mut value[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(fault(name, e)),
        }
    }
    value.truncate(len);
    value.pop_if(|last| *last == b'\n');
    value.pop_if(|last| *last == b'\r');
    Ok(value)
}

/// Waits until the source is readable or at its end; `None` at the deadline.
fn wait_for(source: &File, deadline: Instant) -> Option<()> {
    let left = sys::deadline::time_left(deadline);
    let mut fds = [rustix::event::PollFd::new(source, rustix::event::PollFlags::IN)];
    match rustix::event::poll(&mut fds, Some(&left)) {
        Ok(0) => None,
        _ => Some(()),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn caller() -> Caller {
        let env = vec![("TOKEN".into(), "from the environment".into()), ("EMPTY".into(), "".into())];
        let read_late = |name: &OsStr| (name == "TOKEN").then(|| OsString::from("read late"));
        Caller::new("/".into(), "/h".into(), "u".into(), env, read_late)
    }

    fn find(words: &[&str]) -> Result<Secrets, Fault> {
        let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        Secrets::find(&BTreeMap::from([("TOKEN", Requirement::Required)]), &words, &caller())
    }

    fn value(words: &[&str]) -> Result<String, Fault> {
        let mut secrets = find(words)?;
        secrets.open()?;
        let values = secrets.read()?;
        Ok(String::from_utf8(values[0].value.clone()).unwrap())
    }

    #[test]
    fn a_daemons_clients_have_no_variables_files_or_commands_of_it() {
        let kept_only =
            Caller { secret_sources: SecretSources::KeptOnly, ..caller().in_state(Path::new("/nonexistent")) };
        let find = |words: &[&str], caller: &Caller| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            Secrets::find(&BTreeMap::from([("TOKEN", Requirement::Required)]), &words, caller)
        };
        for word in ["TOKEN=env:TOKEN", "TOKEN=file:/etc/hostname", "TOKEN=cmd:true"] {
            assert!(find(&[word], &caller()).is_ok(), "{word}: the control");
            assert!(find(&[word], &kept_only).is_err(), "{word}");
        }
        assert_eq!(find(&[], &caller()).unwrap().variables().collect::<Vec<_>>(), ["TOKEN"], "the control");
        let named = find(&[], &kept_only).map(|secrets| secrets.variables().count());
        assert!(matches!(named, Ok(0) | Err(_)), "a variable of its name is not taken: {named:?}");
    }

    #[test]
    fn values_are_read_late_from_their_source() {
        assert_eq!(value(&[]).unwrap(), "read late");
        assert_eq!(value(&["TOKEN=cmd:printf 'a b\\n'"]).unwrap(), "a b");
        let file = std::env::temp_dir().join(format!("cofferdam-secret-{}", std::process::id()));
        std::fs::write(&file, "from a file\r\n").unwrap();
        assert_eq!(value(&[&format!("TOKEN=file:{}", file.display())]).unwrap(), "from a file");
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn telling_where_they_come_from_looks_at_none() {
        let made = std::env::temp_dir().join(format!("cofferdam-explained-{}", std::process::id()));
        let command = format!("TOKEN=cmd:touch {}", made.display());
        for (words, told) in [
            (vec![], "TOKEN: the variable TOKEN"),
            (vec!["TOKEN=env:MISSING"], "TOKEN: the variable MISSING, which is not set"),
            (vec!["TOKEN=file:no/such"], "TOKEN: the file /no/such"),
            (vec![command.as_str()], "TOKEN: the output of the command"),
        ] {
            let said = find(&words).unwrap().explain();
            assert!(said.len() == 1 && said[0].starts_with(told), "{said:?}");
        }
        assert!(!made.exists());
    }

    #[test]
    fn the_guest_has_a_placeholder_of_its_own() {
        let (one, two) = (find(&[]).unwrap(), find(&[]).unwrap());
        let (name, first) = one.placeholders().next().unwrap();
        assert_eq!(name, "TOKEN");
        assert!(first.starts_with("cofferdam-secret-TOKEN-") && first.len() == 23 + 32, "{first}");
        assert_ne!(first, two.placeholders().next().unwrap().1);
        assert_eq!(one.variables().collect::<Vec<_>>(), ["TOKEN"]);
    }

    #[test]
    fn mistakes_are_told_and_the_value_is_not() {
        for words in [
            &["TOKEN=hunter2"][..],
            &["TOKEN"],
            &["TOKEN=env:"],
            &["TOKEN=env:EMPTY"],
            &["TOKEN=env:MISSING"],
            &["TOKEN=file:/no/such/file"],
            &["TOKEN=file:/"],
            &["TOKEN=cmd:exit 3"],
            &["TOKEN=cmd:true"],
            &["TOKEN=cmd:printf 'a\\nb'"],
            &["OTHER=env:TOKEN"],
        ] {
            let fault = value(words).unwrap_err();
            assert_eq!(fault.error_kind, terms::ErrorKind::InvalidRequest, "{words:?}");
            let said = format!("{} {}", fault.message, fault.hint.unwrap_or_default());
            assert!(!said.contains("hunter2"), "{said}");
        }
    }
}
