//! References in a reftable, a format that only git reads and writes: run in the scratch git directory, where a link
//! leads to the table and the repository's config is not visible.

use super::child::{Call, ScratchRepository};
use super::locate::{Repository, refused, unreadable};
use super::refs::{Head, is_id};
use api::FileKind;
use std::ffi::{OsStr, OsString};
use terms::{ErrorKind, Fault, Phase};

/// Major and minor version of git.
const FIRST_WITH_REFTABLES: (u32, u32) = (2, 45);

impl Repository {
    pub(super) fn has_reftable(&self) -> Result<bool, Fault> {
        let found = self.common.meta_of(b"reftable").map_err(|e| unreadable(&self.common_path, &e))?;
        if found.is_some_and(|found| found.kind != FileKind::Dir) {
            return Err(refused(&self.common_path, "its reftable is not a directory"));
        }
        if found.is_some() && self.own_path != self.common_path {
            let why = "is a linked work tree, and its repository stores references in a reftable";
            return Err(refused(&self.own_path, why));
        }
        Ok(found.is_some())
    }
}

impl ScratchRepository {
    /// Position of the work tree, from git.
    pub fn head(&self) -> Result<Head, Fault> {
        let branch = self.ask(&["symbolic-ref", "-q", "HEAD"])?;
        let commit = self.ask(&["rev-parse", "-q", "--verify", "HEAD^{commit}"])?.filter(|id| is_id(id));
        match (branch, commit) {
            (Some(name), commit) => Ok(Head::Branch { name, commit }),
            (None, Some(commit)) => Ok(Head::Detached { commit }),
            (None, None) => Err(refused(&self.path, "HEAD names neither a branch nor a commit")),
        }
    }

    /// Moves HEAD, or the branch it is on, by compare-and-swap against `seen`.
    pub fn advance(&self, seen: &Head, new: &str, env: Vec<(&str, OsString)>, why: &str) -> Result<(), Fault> {
        if self.head()? != *seen {
            let message = format!("{} is no longer at {}", seen.label(), seen.commit().unwrap_or("no commit"));
            let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Application);
            return Err(fault.hint(
                "another commit was made meanwhile; commit the landed changes with git, or run `cofferdam undo`",
            ));
        }
        let name = match seen {
            Head::Branch { name, .. } => name.as_str(),
            Head::Detached { .. } => "HEAD",
        };
        let nothing = "0".repeat(new.len());
        let old = seen.commit().unwrap_or(&nothing);
        let args = ["update-ref", "--no-deref", "--create-reflog", "-m", why, name, new, old].map(OsStr::new);
        self.git(&args, Call { env, ..Call::default() }).map(drop)
    }

    /// Runs a query; None if it exits with 1.
    fn ask(&self, args: &[&str]) -> Result<Option<String>, Fault> {
        let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        let said = self.git(&args, Call { fine: &[1], ..Call::default() });
        let said = said.map_err(|fault| if self.knows_reftables() { fault } else { too_old() })?;
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        Ok((!said.is_empty()).then_some(said))
    }

    /// Returns false if git says that it is older than the first version with reftables.
    fn knows_reftables(&self) -> bool {
        let said = self.git(&[OsStr::new("version")], Call::default()).unwrap_or_default();
        version(&said).is_none_or(|version| version >= FIRST_WITH_REFTABLES)
    }
}

/// Reads `git version 2.39.5`; some builds append words of their own.
fn version(said: &[u8]) -> Option<(u32, u32)> {
    let said = std::str::from_utf8(said).ok()?;
    let mut numbers = said.strip_prefix("git version ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.trim_end().parse().ok()?))
}

fn too_old() -> Fault {
    Fault::new(ErrorKind::UnsupportedHost, "this version of git does not support the reftable of the repository")
        .hint("install git 2.45 or later, or approve without --commit")
        .phase(Phase::Review)
}
