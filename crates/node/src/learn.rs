//! Learn: runs a command under a wide policy, observes what it uses, and writes the smallest policy that allows it.

use egress::event::{Event, EventStage, Op};
use host::toolchains::SENSITIVE;
use policy::learn::{Destination, Learned, Observed as Seen, ObservedConnection};
use policy::{Action, Context, Document, FsRule, Perm, Perms, RulePath};
use runtime::policies::{self, Flag};
use runtime::run::{self, Learn, Observed, RunPlan, RunRefused, RunRequest};
use state::Caller;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::BufRead;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use terms::{Fault, Outcome, Phase};

pub struct LearnResult {
    pub learned: Learned,
    pub outcome: Outcome,
}

/// Observations of a lesson so far.
#[derive(Default)]
struct Observations {
    seen: Seen,
    looked: BTreeSet<PathBuf>,
    /// Targets of connection attempts that no broker observed.
    connects: BTreeSet<String>,
    /// Names that the command resolved.
    names: BTreeSet<String>,
}

/// Most places in a policy; a command that reaches more needs another policy.
const MOST_PLACES: usize = 1024;

/// Runs the command. It may read everything that the caller may read except credentials, write only where `writes` allows, and
/// reach only what `reaches` allows.
pub fn learn(
    mut request: RunRequest,
    writes: &[String],
    reaches: &[String],
    caller: &Caller,
) -> Result<LearnResult, RunRefused> {
    let public = reaches.iter().any(|r| r == "*");
    let mut documents = vec![wide(caller, public)?];
    let writes = writes.iter().map(|w| Flag::Write(Action::Allow, w.clone()));
    let reaches = reaches.iter().filter(|r| *r != "*").map(|r| Flag::Net(Action::Allow, r.clone()));
    documents.extend(policies::of_flags(&writes.chain(reaches).collect::<Vec<_>>(), caller)?);
    let effective = policy::effective(&documents).map_err(Fault::from)?;
    request.learn = if host::doctor::has_doors(&caller.env) { Learn::All } else { Learn::Files };
    let plan = RunPlan::under(&request, caller, effective.into(), run::begin())?;
    let book = RefCell::new(Observations::default());
    note_program(&mut book.borrow_mut().seen, plan.program());
    let own = sys::net::own_addresses();
    let observer = Box::new(|what: Observed<'_>| book.borrow_mut().note(what));
    let ear = Box::new(|event: &Event| book.borrow_mut().hear(event, &own));
    let outcome = run::run(plan, Some(observer), None, Some(ear))?;
    let Observations { mut seen, looked, connects, mut names } = book.into_inner();
    add_looked(&mut seen, looked, caller);
    add_left(&mut seen);
    let context = Context { home: caller.home.clone(), workspace: caller.cwd.clone(), toolchains: Vec::new() };
    let mut learned = policy::learn::learn(&seen, &context, "learned");
    names.retain(|name| !seen.reached.iter().any(|r| r.place.is_named(name)));
    learned.notes.extend(remarks(&seen, &names));
    if request.learn != Learn::All {
        learned.notes.extend(unwatched(&connects));
    }
    Ok(LearnResult { learned, outcome })
}

/// Notes on the network uses for which no rule was written.
fn remarks(seen: &Seen, names: &BTreeSet<String>) -> Vec<String> {
    let asked = |name: &String| format!("{name}: resolved but not connected to, so no rule was written");
    let mut notes: Vec<String> = names.iter().map(asked).collect();
    if seen.reached.iter().any(|r| !r.passed) {
        let why = "connections of the command were refused; allow them with --net, and learn again";
        notes.push(why.to_owned());
    }
    notes
}

/// Notes on the network uses of a lesson without a broker.
fn unwatched(connects: &BTreeSet<String>) -> Vec<String> {
    let tried = |target: &String| format!("{target}: the command tried to connect; no rule was written");
    let why = "network use of the command cannot be watched on this host (`cofferdam doctor` shows why)";
    connects.iter().map(tried).chain([why.to_owned()]).collect()
}

/// Builds a policy that allows to read and execute everything except the known places of credentials.
fn wide(caller: &Caller, public: bool) -> Result<Document, Fault> {
    let broken = || Fault::internal("cannot write the learning policy").phase(Phase::Planning);
    let mut document = Document::new("learning");
    let perms = Perms::READ.union(Perms::of(&[Perm::Execute]));
    let everything = RulePath::literal(Path::new("/")).ok_or_else(broken)?;
    document.fs.push(FsRule { action: Action::Allow, path: everything, perms });
    document.defaults.net = public.then_some(Action::Allow);
    for (name, _) in SENSITIVE {
        let path = caller.home.join(name);
        // Only existing paths: a rule about a missing one would need a watch on every file that is made.
        let hidden = path.symlink_metadata().is_ok().then(|| RulePath::literal(&path)).flatten();
        document.fs.extend(hidden.map(|path| FsRule { action: Action::Deny, path, perms: Perms::ALL }));
    }
    Ok(document)
}

impl Observations {
    fn note(&mut self, what: Observed<'_>) {
        match what {
            Observed::File { named, made, perm } => note_file(&mut self.seen, named, made, perm),
            Observed::Looked(path) => drop(self.looked.insert(path)),
            Observed::Moved { from, to } => {
                if self.seen.moved.len() < MOST_PLACES && !self.seen.moved.contains(&(from.clone(), to.clone())) {
                    self.seen.moved.push((from, to));
                }
            }
            Observed::Exec(path) => note_program(&mut self.seen, &path),
            Observed::Connect(target) => {
                if self.connects.len() < MOST_PLACES {
                    self.connects.insert(target);
                }
            }
            Observed::Socket { path, action, .. } => {
                self.reached(Destination::Socket(path), matches!(action, Action::Allow | Action::Warn));
            }
            Observed::Denied(_) | Observed::Asked { .. } => {}
        }
    }

    /// Records connections, each with the name that the command used. A refusal that a rule would not lift is not recorded.
    fn hear(&mut self, event: &Event, own: &[IpAddr]) {
        if let (Op::Resolve, Some(name)) = (event.op, &event.name) {
            if self.names.len() < MOST_PLACES {
                self.names.insert(name.clone());
            }
            return;
        }
        let passed = matches!(event.stage, EventStage::Opened | EventStage::Failed);
        let lacked = event.stage == EventStage::Refused && event.reason.is_none();
        let (Op::Connect, true, Some(address)) = (event.op, passed || lacked, event.address) else { return };
        let is_special = policy::is_special(address.ip()) || own.contains(&address.ip());
        let (host, proto) = (event.name.clone(), event.proto);
        self.reached(Destination::Net { proto, host, addr: address.ip(), is_special, port: address.port() }, passed);
    }

    fn reached(&mut self, place: Destination, passed: bool) {
        let reached = &mut self.seen.reached;
        match reached.iter().position(|r| r.place.is_same(&place)) {
            Some(known) => reached[known].passed |= passed,
            None if reached.len() < MOST_PLACES => reached.push(ObservedConnection { place, passed }),
            None => {}
        }
    }
}

/// Adds paths that were only looked up. Directories above used paths exist without a rule, and a lookup of the home directory
/// must not open all of it.
fn add_looked(seen: &mut Seen, looked: BTreeSet<PathBuf>, caller: &Caller) {
    let used: Vec<PathBuf> = seen.files.iter().map(|(p, _)| p.clone()).chain(seen.programs.iter().cloned()).collect();
    for path in looked {
        let is_dir = path.is_dir();
        let leads = || used.iter().chain([&caller.home, &caller.cwd]).any(|p| p.starts_with(&path));
        if is_dir && leads() {
            continue;
        }
        let perm = if is_dir { Perm::ReadDir } else { Perm::ReadFile };
        seen.files.push((path, Perms::of(&[perm])));
    }
}

/// Adds the files that the command made and left, which the next run may read. The rule names the directory: a rule for the file
/// would make it a mount, which cannot be replaced.
fn add_left(seen: &mut Seen) {
    let kind = |path: &PathBuf| path.symlink_metadata().map(|found| found.file_type());
    let left: Vec<(PathBuf, Perms)> = seen
        .made
        .iter()
        .filter_map(|path| match kind(path).ok()? {
            kind if kind.is_file() => Some((path.clone(), Perms::of(&[Perm::ReadFile]))),
            kind if kind.is_dir() => Some((path.clone(), Perms::of(&[Perm::ReadDir]))),
            _ => None,
        })
        .collect();
    seen.files.extend(left);
}

/// Records a use of a file. Creating and removing is a use of its directory.
fn note_file(seen: &mut Seen, named: PathBuf, made: bool, perm: Perm) {
    if made {
        seen.made.push(named.clone());
    }
    let of_directory = made || matches!(perm, Perm::RemoveDir | Perm::RemoveFile | Perm::Refer);
    let mut perms = Perms::of(&[perm]);
    if perm == Perm::MakeReg {
        // The next run may change the files that this one made.
        perms = perms.union(Perms::of(&[Perm::WriteFile, Perm::Truncate, Perm::RemoveFile]));
    }
    let at = if of_directory { named.parent().map(Path::to_path_buf).unwrap_or(named) } else { named };
    seen.files.push((at, perms));
}

/// Records a program and the interpreter of a script, which the kernel opens by itself.
fn note_program(seen: &mut Seen, path: &Path) {
    let mut at = path.to_path_buf();
    for _ in 0..4 {
        seen.programs.push(at.clone());
        match interpreter(&at) {
            Some(next) => at = next,
            None => return,
        }
    }
}

fn interpreter(script: &Path) -> Option<PathBuf> {
    let file = std::fs::File::open(script).ok()?;
    let mut line = Vec::new();
    std::io::BufReader::new(std::io::Read::take(file, 256)).read_until(b'\n', &mut line).ok()?;
    let text = std::str::from_utf8(line.strip_prefix(b"#!")?).ok()?;
    text.split_whitespace().next().map(PathBuf::from).filter(|p| p.is_absolute())
}
