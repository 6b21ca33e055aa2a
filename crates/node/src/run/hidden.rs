//! Words of a command that name something of the host which does not show inside. A command that fails without a word about
//! it is the case for which this is looked up: afterwards, for the caller alone. It is a guess by names and no denial; nothing is opened.

use super::inside;
use super::sandboxed::{self, working_directory};
use super::{Ask, Ready};
use crate::state::{self, State};
use crate::{Caller, policies, sandbox};
use enclosure::LocalHost;
use policy::{Action, Host, Kind, Perm, Plan, Policy, Resolved};
use rustix::fs::Access;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use terms::{Fault, Outcome, Verdict};

/// As many are told; whoever reads them needs the first, not all.
const MOST_TOLD: usize = 4;
/// As many paths in its words are looked at.
const MOST_PATHS: usize = 512;
/// What every guest has of its own, whatever rules say.
const OWN: [&str; 2] = ["/proc", "/dev"];

/// Something that the command was named and could not see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// Its real path, links followed.
    pub path: PathBuf,
    /// The rule that hides it.
    pub rule: String,
    /// How to have it shown.
    pub hint: Option<String>,
}

/// What must be known of a run to tell, when it is over, what of its command's words was hidden.
pub struct Words {
    policy: Rc<Policy>,
    dir: PathBuf,
    cwd: PathBuf,
}

impl Words {
    /// Those of a run that is ready.
    pub fn of(ready: &Ready) -> Words {
        let (dir, cwd) = ready.spot.clone();
        Words { policy: Rc::clone(&ready.policy), dir, cwd }
    }

    /// Those of a command in a sandbox that is live.
    pub fn in_sandbox(word: &str, ask: &Ask, caller: &Caller) -> Result<Words, Fault> {
        let state = State::open(caller)?;
        let kept = state.store.read(|tx| sandbox::find(tx, sandboxed::named(word), caller))?;
        let mut documents = vec![sandboxed::document(&kept.id, &kept.record)?];
        documents.extend(policies::of_flags(&ask.flags, caller)?);
        let cwd = working_directory(ask.workdir.as_deref(), &kept.record.base, &caller.cwd)?;
        Ok(Words { policy: Rc::new(policy::effective(&documents)?), dir: kept.record.base, cwd })
    }

    /// What they name that is there outside and not inside. What cannot be found out is not told.
    pub fn hidden(&self, ask: &Ask, caller: &Caller) -> Vec<Hidden> {
        let host = LocalHost::default();
        let argv = inside::argv(&ask.command, ask.shell.as_deref()).unwrap_or_default();
        let named = self.named(&argv, caller, &host);
        if named.is_empty() {
            return Vec::new();
        }
        let (Ok((resolved, plan)), Ok(ours)) = (self.plan(&argv[0], &host, caller), state::places(caller)) else {
            return Vec::new();
        };
        let named = named.into_iter().filter(|(path, _)| !ours.iter().any(|place| path.starts_with(place)));
        named.filter_map(|(path, kind)| judge(&resolved, &plan, path, kind)).take(MOST_TOLD).collect()
    }

    /// The rules and the plan once more, as the run had them.
    fn plan(&self, program: &OsStr, host: &LocalHost, caller: &Caller) -> Result<(Resolved, Plan), Fault> {
        let mut policy = Policy::clone(&self.policy);
        let around = policies::surroundings(&mut policy, caller, &self.dir, Some(program));
        let resolved = policy::resolve(&policy, &around.context)?.follow(host)?;
        let plan = resolved.plan(host)?;
        Ok((resolved, plan))
    }

    /// Files and directories of the host that the caller may read, each by its real path and once.
    fn named(&self, argv: &[OsString], caller: &Caller, host: &LocalHost) -> Vec<(PathBuf, Kind)> {
        let mut named: Vec<(PathBuf, Kind)> = Vec::new();
        let paths = argv.iter().skip(1).flat_map(|word| paths_in(word, &caller.home));
        for path in paths.take(MOST_PATHS) {
            let Some(found) = host.look(&self.cwd.join(path)) else { continue };
            let own = OWN.iter().any(|own| found.real.starts_with(own));
            let plain = matches!(found.kind, Kind::File | Kind::Dir);
            let new = !named.iter().any(|(path, _)| *path == found.real);
            if new && plain && !own && rustix::fs::access(&found.real, Access::READ_OK).is_ok() {
                named.push((found.real, found.kind));
            }
        }
        named
    }
}

/// Whether how a run ended leaves it open what was in its way.
pub fn is_unexplained(outcome: &Outcome, ask: &Ask) -> bool {
    outcome.verdict == Verdict::Failed && outcome.denials.is_empty() && !ask.report_reads
}

/// What a word may name: itself, what stands behind its first `=`, as in `--config=FILE`, and where it is the text of a script, the
/// paths that are written out in it.
fn paths_in(word: &OsStr, home: &Path) -> Vec<PathBuf> {
    let bytes = word.as_bytes();
    let value = bytes.iter().position(|b| *b == b'=').map(|at| &bytes[at + 1..]);
    let script = if bytes.iter().any(u8::is_ascii_whitespace) { bytes } else { b"" };
    let pieces = script.split(|b| b.is_ascii_whitespace() || ENDS.contains(b)).filter(|piece| is_written_out(piece));
    let texts = std::iter::once(bytes).chain(value).chain(pieces).filter(|text| !text.is_empty());
    texts.map(|text| path_of(text, home)).collect()
}

/// Where a word of a shell's text ends.
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

/// A directory that leads to something shown is there itself.
fn judge(resolved: &Resolved, plan: &Plan, path: PathBuf, kind: Kind) -> Option<Hidden> {
    let perm = if kind == Kind::Dir { Perm::ReadDir } else { Perm::ReadFile };
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
