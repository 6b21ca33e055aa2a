//! Learn: run a command under a wide policy, watch what it uses, and write the smallest policy that allows just that.

use crate::run::{self, Ask, Observed, Refused};
use crate::toolchains::SENSITIVE;
use crate::{Caller, policies};
use policy::learn::{Learned, Observed as Seen};
use policy::{Action, Context, Document, FsRule, Perm, Perms, RulePath};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use terms::{Fault, Outcome, Phase};

pub struct Lesson {
    pub learned: Learned,
    pub outcome: Outcome,
}

/// Runs the command, which may read all that the caller may read but credentials, and write only where `writes` says.
pub fn learn(mut ask: Ask, writes: &[String], caller: &Caller) -> Result<Lesson, Refused> {
    ask.learn = true;
    let mut documents = vec![wide(caller)?];
    let flags: Vec<_> = writes.iter().map(|w| policies::Flag::Write(Action::Allow, w.clone())).collect();
    documents.extend(policies::of_flags(&flags, caller)?);
    let effective = policy::effective(&documents).map_err(Fault::from)?;
    let ready = run::prepare_under(&ask, caller, effective, Vec::new(), run::begin())?;
    let seen = RefCell::new(Seen::default());
    let connects = RefCell::new(Vec::new());
    let looked = RefCell::new(BTreeSet::new());
    note_program(&mut seen.borrow_mut(), &ready.program);
    let observer = Box::new(|what: Observed<'_>| note(&seen, &looked, &connects, what));
    let outcome = run::run(ready, Some(observer), None)?;
    let mut seen = seen.into_inner();
    add_looked(&mut seen, looked.into_inner(), caller);
    let context = Context { home: caller.home.clone(), workspace: caller.cwd.clone(), toolchains: Vec::new() };
    let mut learned = policy::learn::learn(&seen, &context, "learned");
    let mut connects = connects.into_inner();
    connects.sort();
    connects.dedup();
    for target in connects {
        learned.notes.push(format!("{target}: the command tried to connect; no rule was written for it"));
    }
    Ok(Lesson { learned, outcome })
}

/// Everything may be read and run, but what is known to hold credentials.
fn wide(caller: &Caller) -> Result<Document, Fault> {
    let broken = || Fault::internal("the learning policy cannot be written").phase(Phase::Planning);
    let mut document = Document::new("learning");
    let perms = Perms::READ.union(Perms::of(&[Perm::Execute]));
    let everything = RulePath::literal(Path::new("/")).ok_or_else(broken)?;
    document.fs.push(FsRule { action: Action::Allow, path: everything, perms });
    for (name, _) in SENSITIVE {
        let path = caller.home.join(name);
        // Only what is there: a rule about what is not would need watching every file that is made.
        let hidden = path.symlink_metadata().is_ok().then(|| RulePath::literal(&path)).flatten();
        document.fs.extend(hidden.map(|path| FsRule { action: Action::Deny, path, perms: Perms::ALL }));
    }
    Ok(document)
}

fn note(
    seen: &RefCell<Seen>,
    looked: &RefCell<BTreeSet<PathBuf>>,
    connects: &RefCell<Vec<String>>,
    what: Observed<'_>,
) {
    let mut seen = seen.borrow_mut();
    match what {
        Observed::File { named, made, perm } => note_file(&mut seen, named, made, perm),
        Observed::Looked(path) => drop(looked.borrow_mut().insert(path)),
        Observed::Exec(path) => note_program(&mut seen, &path),
        Observed::Connect(target) => connects.borrow_mut().push(target),
        Observed::Denied(_) => {}
    }
}

/// What was only looked at must be there too. Directories on the way to something else are, without a rule; and the
/// home directory is never opened up because somebody asked whether it exists.
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

/// Making and removing is a use of the directory.
fn note_file(seen: &mut Seen, named: PathBuf, made: bool, perm: Perm) {
    if made {
        seen.made.push(named.clone());
    }
    let of_directory = made || matches!(perm, Perm::RemoveDir | Perm::RemoveFile | Perm::Refer);
    let mut perms = Perms::of(&[perm]);
    if perm == Perm::MakeReg {
        // The next run meets what this one made.
        perms = perms.union(Perms::of(&[Perm::WriteFile, Perm::Truncate, Perm::RemoveFile]));
    }
    let at = if of_directory { named.parent().map(Path::to_path_buf).unwrap_or(named) } else { named };
    seen.files.push((at, perms));
}

/// A script brings its interpreter, which the kernel opens by itself.
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
