//! Copies of files of the host's home, which a policy or `--copy-in` names, in the home of a new sandbox. The host's files
//! are read once, when the sandbox is made, and never written.

use crate::secrets::Login;
use api::{Driver, Rel};
use host::toolchains;
use policy::{Labelled, Policy, RulePath};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use state::{Caller, Reach};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, LimitKind, Phase};
use workspace::bring::{Allowance, BringError, HomeCopyTotals, bring};
use workspace::{Dir, HomePart, Layer};

/// Bound on all copies of one sandbox.
const MOST: Allowance = Allowance { entries: 50_000, bytes: 512 << 20 };

/// Flag whose paths must exist.
const FLAG: &str = "--copy-in";

/// Refuses `--copy-in` where no copy could be made; returns notes about paths of policies.
pub fn without_home(policy: &Policy, why: &str) -> Result<Vec<String>, Fault> {
    match policy.home_copy.iter().find(|path| path.label == FLAG) {
        Some(path) => {
            let message = format!("{FLAG} {}: {why}", path.rule);
            let hint =
                "leave it out, or let changes go to a workspace (`cofferdam run` without --read-only and --direct)";
            Err(Fault::invalid(message).hint(hint).phase(Phase::Planning))
        }
        None => Ok(policy
            .home_copy
            .iter()
            .map(|path| format!("{}: {} is not copied: {why}", path.label, path.rule))
            .collect()),
    }
}

/// Copies the paths that `policy` names into the home of a new layer, except for those under labels that are `known`
/// already. Returns notes.
pub fn copy_in(
    policy: &Policy,
    known: impl Fn(&str) -> bool,
    (layer, driver): (&Layer, Driver),
    caller: &Caller,
) -> Result<Vec<String>, Fault> {
    let wanted: Vec<&Labelled<RulePath>> = policy.home_copy.iter().filter(|path| !known(&path.label)).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    if caller.reach != Reach::All {
        return without_home(policy, "this credential may not read the home of the daemon's user");
    }
    let mut paths: Vec<(PathBuf, &Labelled<RulePath>)> = Vec::new();
    for path in wanted {
        let below =
            path.rule.below_home().ok_or_else(|| Fault::internal(format!("{} is not a path to copy", path.rule)))?;
        if !paths.iter().any(|(known, _)| *known == below) {
            paths.push((below, path));
        }
    }
    let unmade = |e: io::Error| {
        let fault = Fault::new(ErrorKind::Unavailable, format!("the home in layer {}: {e}", layer.id));
        fault.hint("check space and permissions of the state directory").phase(Phase::Preparation)
    };
    let into = layer.make_home(HomePart::Brought).map_err(unmade)?;
    let home = Dir::open_canonical(&caller.home).map_err(|e| {
        let message = format!("the home, {}, cannot be read: {e}", caller.home.display());
        Fault::invalid(message).hint("set HOME to a directory that you may read").phase(Phase::Preparation)
    })?;
    let (mut allowance, mut notes) = (MOST, Vec::new());
    let named: Vec<PathBuf> = paths.iter().map(|(below, _)| below.clone()).collect();
    for (below, path) in &paths {
        let is_sensitive = toolchains::lies_in_sensitive(below);
        let leaves_out = |at: &Path| {
            let hides = toolchains::is_credential_file(at) || (!is_sensitive && toolchains::lies_in_sensitive(at));
            hides && !named.iter().any(|named| named == at)
        };
        let rel = rel(below)?;
        if let Some(login) = Login::at(below, policy, caller)
            && let Some(text) = read_login(login, &home, &rel, path)?
        {
            write_login(&into, &rel, &text).map_err(unmade)?;
            notes.push(format!("{}: {} is copied with a placeholder for its token", path.label, path.rule));
            continue;
        }
        let mut brought = HomeCopyTotals::default();
        let found = bring(&home, &rel, &into, &leaves_out, (&mut allowance, &mut brought));
        match found.map_err(|e| failed(path, &e))? {
            true => notes.extend(notes_on(path, &brought)),
            false if path.label == FLAG => {
                let message = format!("{FLAG} {}: no such file or directory", path.rule);
                let hint = "name a file or directory of the home that exists";
                return Err(Fault::invalid(message).hint(hint).phase(Phase::Preparation));
            }
            // A preset names all that some version of an agent has.
            false if policy::PRESETS.iter().any(|(preset, _)| path.label.starts_with(&format!("{preset}:"))) => {}
            false => notes.push(format!("{}: {} does not exist, so nothing is copied", path.label, path.rule)),
        }
    }
    if driver != Driver::Overlay {
        // A copying driver has no parts: the home is one directory.
        let whole = layer.make_home(HomePart::Changes).map_err(unmade)?;
        let (mut plenty, mut again) = (Allowance { entries: u64::MAX, bytes: u64::MAX }, HomeCopyTotals::default());
        for (below, path) in &paths {
            bring(&into, &rel(below)?, &whole, &|_| false, (&mut plenty, &mut again)).map_err(|e| failed(path, &e))?;
        }
    }
    Ok(notes)
}

/// Returns the copy of a login's file, if the file exists.
fn read_login(login: Login, home: &Dir, rel: &Rel, path: &Labelled<RulePath>) -> Result<Option<Vec<u8>>, Fault> {
    match home.file(rel) {
        Ok(file) => login.copy(file).map(Some),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(failed(path, &BringError { path: rel.clone(), error })),
    }
}

fn write_login(into: &Dir, rel: &Rel, text: &[u8]) -> io::Result<()> {
    let (above, _) = rel.split().ok_or(io::ErrorKind::InvalidInput)?;
    let mut dir = into.try_clone()?;
    for name in above.parts() {
        match rustix::fs::mkdirat(&dir, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => dir = dir.dir(&Rel::top().join(name))?,
            Err(e) => return Err(e.into()),
        }
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    File::from(into.open_at(rel, flags, Mode::RUSR | Mode::WUSR)?).write_all(text)
}

fn rel(below: &Path) -> Result<Rel, Fault> {
    Rel::parse(below.as_os_str().as_bytes()).ok_or_else(|| Fault::internal(format!("{}: no name", below.display())))
}

fn notes_on(path: &Labelled<RulePath>, brought: &HomeCopyTotals) -> Vec<String> {
    let (label, rule) = (&path.label, &path.rule);
    let mut notes = Vec::new();
    if let Some(first) = brought.left_out.first() {
        let count = brought.left_out.len();
        notes.push(format!(
            "{label}: {rule} is copied without {count} of its entries, which hold credentials or private data: ~/{first}; \
             name such a path itself to copy it"
        ));
    }
    if brought.skipped > 0 {
        let count = brought.skipped;
        notes.push(format!("{label}: {count} entries of {rule} are not copied: special files, or not readable"));
    }
    notes
}

fn failed(path: &Labelled<RulePath>, error: &BringError) -> Fault {
    let (label, rule, at) = (&path.label, &path.rule, &error.path);
    if error.error.kind() == io::ErrorKind::QuotaExceeded {
        let message = format!(
            "{label} {rule}: more than {} entries or {} MiB would be copied, with ~/{at}",
            MOST.entries,
            MOST.bytes >> 20
        );
        let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(LimitKind::DiskMb).phase(Phase::Preparation);
        return fault.hint("name the files that are needed; --read shows a directory without a copy");
    }
    let message = format!("{label} {rule}: ~/{at} cannot be copied: {}", error.error);
    let hint = "links are copied and not followed: name the directory that a link leads to";
    Fault::invalid(message).hint(hint).phase(Phase::Preparation)
}
