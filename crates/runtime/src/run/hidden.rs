//! Arguments of a command that name host paths which are not visible inside. Looked up after a command failed without a denial, for the
//! caller alone. A guess by names and not a denial; no file is opened.

use super::inside;
use super::sandboxed::{self, working_directory};
use super::{RunPlan, RunRequest};
use crate::Node;
use crate::policies;
use enclosure::LocalHost;
use policy::{Action, Host, HostFileType, Perm, Plan, Policy, Resolved};
use rustix::fs::Access;
use state::{Caller, sandbox};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use terms::{Fault, Outcome, Verdict};

/// Bound on reported paths; the reader needs the first, not all.
const MOST_TOLD: usize = 4;
/// Bound on paths in the arguments that are looked up.
const MOST_PATHS: usize = 512;
/// Paths that every guest has of its own, whatever the rules.
const OWN: [&str; 2] = ["/proc", "/dev"];

/// A path that the command was given and could not see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// Real path, links followed.
    pub path: PathBuf,
    /// Rule that hides it.
    pub rule: String,
    /// Advice on how to make it visible.
    pub hint: Option<String>,
}

/// Facts of a run that are needed to look up hidden paths after its end.
pub struct Words {
    policy: Rc<Policy>,
    dir: PathBuf,
    cwd: PathBuf,
}

impl Words {
    /// Takes the facts of a planned run.
    pub fn of(plan: &RunPlan) -> Words {
        Words { policy: Rc::clone(&plan.policy), dir: plan.dir.clone(), cwd: plan.guest.spec().cwd.clone() }
    }

    /// Takes the facts of a command in a live sandbox.
    pub fn in_sandbox(node: &Node, caller: &Caller, word: &str, request: &RunRequest) -> Result<Words, Fault> {
        let state = node.states.open(caller)?;
        let kept = state.store.read(|tx| sandbox::find(tx, sandboxed::named(word), caller))?;
        let mut documents = vec![sandboxed::document(&kept.id, &kept.record)?];
        documents.extend(policies::of_flags(&request.flags, caller)?);
        let dir = state::directory::path_inside(&kept.record.base).to_path_buf();
        let cwd = working_directory(request.workdir.as_deref(), &dir, &caller.cwd)?;
        Ok(Words { policy: Rc::new(policy::effective(&documents)?), dir, cwd })
    }

    /// Returns the paths in the arguments that exist on the host and not inside. Paths that cannot be checked are left out.
    pub fn hidden(&self, request: &RunRequest, caller: &Caller) -> Vec<Hidden> {
        let host = LocalHost::default();
        let argv = inside::argv(&request.command, request.shell.as_deref()).unwrap_or_default();
        let named = self.named(&argv, caller, &host);
        if named.is_empty() {
            return Vec::new();
        }
        let (Ok((resolved, plan)), Ok(ours)) = (self.plan(&argv[0], &host, caller), state::directory::places(caller))
        else {
            return Vec::new();
        };
        let named = named.into_iter().filter(|(path, _)| !ours.iter().any(|place| path.starts_with(place)));
        named.filter_map(|(path, kind)| judge(&resolved, &plan, path, kind)).take(MOST_TOLD).collect()
    }

    /// Repeats the plan of the run.
    fn plan(&self, program: &OsStr, host: &LocalHost, caller: &Caller) -> Result<(Resolved, Plan), Fault> {
        let mut policy = Policy::clone(&self.policy);
        let around = policies::surroundings(&mut policy, caller, &self.dir, Some(program));
        let resolved = policy::resolve(&policy, &around.context)?;
        let resolved = crate::own_home::with_own_home(resolved, caller, &self.dir).follow(host)?;
        let plan = resolved.plan(host)?;
        Ok((resolved, plan))
    }

    /// Lists files and directories of the host that the caller may read, each by its real path and once.
    fn named(&self, argv: &[OsString], caller: &Caller, host: &LocalHost) -> Vec<(PathBuf, HostFileType)> {
        let mut named: Vec<(PathBuf, HostFileType)> = Vec::new();
        let paths = argv.iter().skip(1).flat_map(|word| paths_in(word, &caller.home));
        for path in paths.take(MOST_PATHS) {
            let Some(found) = host.look(&self.cwd.join(path)) else { continue };
            let own = OWN.iter().any(|own| found.real.starts_with(own));
            let plain = matches!(found.kind, HostFileType::File | HostFileType::Dir);
            let new = !named.iter().any(|(path, _)| *path == found.real);
            if new && plain && !own && rustix::fs::access(&found.real, Access::READ_OK).is_ok() {
                named.push((found.real, found.kind));
            }
        }
        named
    }
}

/// Returns whether the outcome leaves open why the run failed.
pub fn is_unexplained(outcome: &Outcome, request: &RunRequest) -> bool {
    outcome.verdict == Verdict::Failed && outcome.denials.is_empty() && !request.report_reads
}

/// Lists the paths that a word may name: the word itself, the value behind its first `=`, as in `--config=FILE`, and for the text of a
/// script, the paths that are written out in it.
fn paths_in(word: &OsStr, home: &Path) -> Vec<PathBuf> {
    let bytes = word.as_bytes();
    let value = bytes.iter().position(|b| *b == b'=').map(|at| &bytes[at + 1..]);
    let script = if bytes.iter().any(u8::is_ascii_whitespace) { bytes } else { b"" };
    let pieces = script.split(|b| b.is_ascii_whitespace() || ENDS.contains(b)).filter(|piece| is_written_out(piece));
    let texts = std::iter::once(bytes).chain(value).chain(pieces).filter(|text| !text.is_empty());
    texts.map(|text| path_of(text, home)).collect()
}

/// Characters that end a word in shell text.
const ENDS: &[u8] = b"'\"`;|&<>()=";

fn is_written_out(piece: &[u8]) -> bool {
    [&b"/"[..], b"./", b"../", b"~/"].iter().any(|start| piece.starts_with(start))
}

fn path_of(text: &[u8], home: &Path) -> PathBuf {
    match text.strip_prefix(b"~/") {
        Some(rest) => home.join(OsStr::from_bytes(rest)),
        None => PathBuf::from(OsStr::from_bytes(text)),
    }
}

/// Returns a path that a rule hides. A directory that leads to a granted path exists inside.
fn judge(resolved: &Resolved, plan: &Plan, path: PathBuf, kind: HostFileType) -> Option<Hidden> {
    let perm = if kind == HostFileType::Dir { Perm::ReadDir } else { Perm::ReadFile };
    let decision = resolved.fs(&path, perm);
    let leads = plan.grants.iter().any(|grant| grant.path.starts_with(&path));
    let hides = decision.action == Action::Deny && !leads;
    hides.then_some(Hidden { path, rule: decision.rule, hint: decision.hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_itself_its_value_and_what_a_script_says() {
        let check = |word: &str, expected: &[&str]| {
            let found = paths_in(OsStr::new(word), Path::new("/home/u"));
            let found: Vec<_> = found.iter().map(|path| path.to_str().unwrap()).collect();
            assert_eq!(found, expected, "{word}");
        };
        check("/etc/passwd", &["/etc/passwd"]);
        check("--config=/etc/a=b", &["--config=/etc/a=b", "/etc/a=b"]);
        check("--config=", &["--config="]);
        check("", &[]);
        check(
            "cat ~/.ssh/id | tee '/tmp/x y'>../z",
            &["cat ~/.ssh/id | tee '/tmp/x y'>../z", "/home/u/.ssh/id", "/tmp/x", "../z"],
        );
    }
}
