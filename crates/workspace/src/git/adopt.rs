//! Commits made inside become commits of the branch that is checked out: as they are where the branch did not move, and
//! otherwise written again on top of it. Everything that can be refused is refused before files land.

use super::child::Call;
use super::commit::{Plan, Prepared, id_in, prepare};
use super::intake::{Changed, CommitText, Intake};
use super::locate::refused;
use super::settings::GitEnvironment;
use crate::layer::Stack;
use api::Rel;
use api::{CommitAuthor, CommitMadeInside, FileKind};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::Path;
use terms::{ErrorKind, Fault, Phase};

/// Commits that will be taken over.
pub struct Adoption {
    intake: Intake,
    prepared: Prepared,
    /// Ids inside, parents first.
    ids: Vec<String>,
    /// Changes of the commits taken together.
    changed: Changed,
    /// The branch moved since: they are written again on top of it.
    again: bool,
    notes: Vec<String>,
    /// The commit that the branch will be moved to, once its objects are written.
    to: Option<String>,
}

/// Commits that are taken over at once.
const MOST_COMMITS: usize = 500;
/// Size up to which files are compared with what was committed.
const LARGEST_COMPARED: u64 = 1 << 30;

impl Adoption {
    /// Checks that the commits can be taken over. `sandbox` is named where git's reflog names an actor.
    pub fn prepare(
        intake: Intake,
        base: &Path,
        surroundings: &GitEnvironment<'_>,
        sandbox: &str,
    ) -> Result<Adoption, Fault> {
        let head = intake.head()?;
        let tip = intake.tip().to_owned();
        let Some(onto) = head.commit().map(str::to_owned) else {
            return Err(refused(base, "its branch has no commit yet"));
        };
        let listed = intake.ask(&["rev-list", "--topo-order", "--reverse", &tip, &format!("^{onto}")], Vec::new())?;
        let ids: Vec<String> = String::from_utf8_lossy(&listed).lines().map(str::to_owned).collect();
        if ids.is_empty() || ids.len() > MOST_COMMITS {
            let message = match ids.len() {
                0 => "no commits were made inside beyond those of this branch".to_owned(),
                many => format!("{many} commits were made inside; at most {MOST_COMMITS} can be adopted at once"),
            };
            let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Review);
            return Err(fault.hint("`cofferdam diff` shows them; `cofferdam fetch` brings any number as a reference"));
        }
        let bases = intake.ask_or(&["merge-base", "--all", &onto, &tip], &[1])?;
        let bases = String::from_utf8_lossy(&bases).trim().to_owned();
        if bases.is_empty() || bases.contains('\n') {
            return Err(refused(base, "the commits made inside and its branch have no single commit in common"));
        }
        let changed = intake.between(&bases, &tip)?;
        let again = bases != onto;
        if let Some((path, _)) = changed.iter().find(|(_, (mode, _))| mode == "160000") {
            return Err(not_taken(&format!("{path} is a submodule, and the commits move it")));
        }
        let mut notes = Vec::new();
        if again {
            check_apart(&intake, &ids, &bases, &onto)?;
            notes.push(format!("{} moved meanwhile: the commits are rewritten on top of it", head.label()));
        }
        let paths: Vec<Rel> = changed.keys().cloned().collect();
        let words = Plan { message: "commits made inside", author: CommitAuthor::Reviewer, agent: "", sandbox };
        let prepared = prepare(base, surroundings, &words, &paths)?;
        if prepared.head != head || !prepared.inner.is_empty() {
            return Err(not_taken("the branch moved, or a submodule is in between"));
        }
        Ok(Adoption { intake, prepared, ids, changed, again, notes, to: None })
    }

    /// Paths that the commits change together.
    pub fn paths(&self) -> impl Iterator<Item = &Rel> {
        self.changed.keys()
    }

    /// Paths that some commit touches and that are as before at the end, if their names are those of files that run on a
    /// reviewer's machine.
    pub fn passing_that_run(&self) -> Result<BTreeSet<Rel>, Fault> {
        let all = self.intake.changes(&self.ids)?;
        let passing = all.into_values().flat_map(Changed::into_keys).filter(|path| !self.changed.contains_key(path));
        Ok(passing.filter(crate::class::is_obeyed).collect())
    }

    pub fn commits(&self) -> Result<Vec<CommitMadeInside>, Fault> {
        self.intake.describe(&self.ids)
    }

    /// Checks that the workspace holds at these paths what was committed: then what lands is what the commits say.
    pub fn check_committed(&self, stack: &Stack) -> Result<(), Fault> {
        let mut differ = Vec::new();
        for (path, (mode, blob)) in &self.changed {
            let same = self.is_as_committed(stack, path, mode, blob);
            let same =
                same.map_err(|e| Fault::new(ErrorKind::Unavailable, format!("{path}: {e}")).phase(Phase::Review))?;
            differ.extend((!same).then(|| path.to_string()));
        }
        if differ.is_empty() {
            return Ok(());
        }
        let named: Vec<&str> = differ.iter().take(5).map(String::as_str).collect();
        let message =
            format!("{} files are not in the workspace as they were committed: {}", differ.len(), named.join(", "));
        let hint = "commit inside what was changed since, or `cofferdam fetch` the commits and merge them with git";
        Err(Fault::new(ErrorKind::Conflict, message).hint(hint).phase(Phase::Review))
    }

    fn is_as_committed(&self, stack: &Stack, path: &Rel, mode: &str, blob: &str) -> io::Result<bool> {
        let found = stack.meta(path)?.map(|found| found.meta);
        let Some(meta) = found.filter(|meta| meta.kind != FileKind::Dir) else { return Ok(mode == "0") };
        let sha256 = self.prepared.settings.sha256;
        match (mode, meta.kind) {
            ("120000", FileKind::Symlink) => {
                let target = stack.link_target(path)?;
                Ok(hash(target.len() as u64, &mut &target[..], sha256)? == blob)
            }
            ("100644" | "100755", FileKind::File) if meta.size <= LARGEST_COMPARED => {
                let bits = self.prepared.settings.carried.iter().any(|setting| setting == "core.filemode=false");
                let as_mode = bits || (meta.mode & 0o100 != 0) == (mode == "100755");
                Ok(as_mode && hash(meta.size, &mut stack.file(path)?.take(meta.size), sha256)? == blob)
            }
            _ => Ok(false),
        }
    }

    /// Writes the objects, before the files land: nothing refers to them yet, and what can fail is tried first.
    pub fn write(&mut self) -> Result<(), Fault> {
        self.intake.keep()?;
        self.to = Some(if self.again { self.write_again()? } else { self.intake.tip().to_owned() });
        Ok(())
    }

    /// Moves the branch; the files have landed. Returns its new commit, its name, and notes.
    pub fn finish(mut self) -> Result<(String, String, Vec<String>), Fault> {
        let to = self.to.take().ok_or_else(|| Fault::internal("objects of the commits were not written"))?;
        let committer = &self.prepared.committer;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let who = format!("{} <{}> {now} +0000", committer.name, committer.email);
        self.prepared.move_head(&self.prepared.head, &to, &who, "cofferdam approve --commits")?;
        if let Err(fault) = self.prepared.put_into_index(&self.changed) {
            self.notes.push(format!("the index could not be updated ({}); run `git reset`", fault.message));
        }
        if let Some(before) = self.prepared.head.commit() {
            self.notes.push(format!("{} was at {before} before", self.prepared.head.label()));
        }
        Ok((to, self.prepared.head.label().to_owned(), self.notes))
    }

    /// Writes each commit again on top of the branch: its changes, author, time and message; the committer is the
    /// reviewer.
    fn write_again(&mut self) -> Result<String, Fault> {
        let (texts, changes) = (self.intake.texts(&self.ids)?, self.intake.changes(&self.ids)?);
        let mut onto = self.prepared.head.commit().unwrap_or_default().to_owned();
        self.prepared.run(&["read-tree", &onto], Vec::new())?;
        let mut dropped = 0;
        for id in &self.ids {
            let text = CommitText::parse(texts.get(id).map_or(&[][..], Vec::as_slice));
            dropped += usize::from(text.others);
            self.prepared.put_into_scratch(changes.get(id).unwrap_or(&Changed::new()))?;
            let tree = id_in(&self.prepared.run(&["write-tree"], Vec::new())?)?;
            let (name, email) = text.author.who.rsplit_once(" <").unwrap_or((&text.author.who, ""));
            let committer = &self.prepared.committer;
            let env = vec![
                ("GIT_AUTHOR_NAME", name.to_owned().into()),
                ("GIT_AUTHOR_EMAIL", email.trim_end_matches('>').to_owned().into()),
                ("GIT_AUTHOR_DATE", format!("@{}", text.author.when).into()),
                ("GIT_COMMITTER_NAME", committer.name.clone().into()),
                ("GIT_COMMITTER_EMAIL", committer.email.clone().into()),
            ];
            let args = ["commit-tree", &tree, "-p", &onto, "-F", "-"].map(OsStr::new);
            let call = Call { env, input: text.message, ..Call::default() };
            onto = id_in(&self.prepared.scratch.git(&args, call)?)?;
        }
        if dropped > 0 {
            self.notes.push(format!(
                "{dropped} of the commits had a signature or other headers, which are no longer valid and were dropped"
            ));
        }
        Ok(onto)
    }
}

/// Checks that the branch did not change what the commits change, and that there is no merge among them: then there is
/// only one way to write them again.
fn check_apart(intake: &Intake, ids: &[String], base: &str, onto: &str) -> Result<(), Fault> {
    let texts = intake.texts(ids)?;
    if texts.values().any(|text| CommitText::parse(text).parents.len() != 1) {
        return Err(not_taken("the branch moved, and the commits contain a merge"));
    }
    let theirs = intake.between(base, onto)?;
    let ours: BTreeSet<Rel> = intake.changes(ids)?.into_values().flat_map(Changed::into_keys).collect();
    let meets = |path: &&Rel| ours.iter().any(|our| our.is_at_or_below(path) || path.is_at_or_below(our));
    match theirs.keys().find(meets) {
        None => Ok(()),
        Some(path) => Err(not_taken(&format!("the branch moved, and both sides changed {path}"))),
    }
}

fn not_taken(why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("the commits cannot be adopted: {why}")).phase(Phase::Review);
    fault.hint("`cofferdam fetch` brings them as a reference, to be merged or rebased with git")
}

/// Name of a blob, as git computes it.
fn hash(size: u64, from: &mut dyn Read, sha256: bool) -> io::Result<String> {
    fn digest<D: sha1::Digest>(size: u64, from: &mut dyn Read) -> io::Result<String> {
        let mut hasher = D::new();
        hasher.update(format!("blob {size}\0"));
        let mut piece = vec![0u8; 128 << 10];
        loop {
            match from.read(&mut piece)? {
                0 => return Ok(terms::hex::encode(hasher.finalize())),
                count => hasher.update(&piece[..count]),
            }
        }
    }
    if sha256 { digest::<sha2::Sha256>(size, from) } else { digest::<sha1::Sha1>(size, from) }
}
