//! Commits that were made inside, brought out of a workspace whose `.git` may be hostile. Its settings, hooks,
//! alternates, grafts and indexes are never read. Objects go through two quarantines, by the steps with which git takes
//! a push from a stranger:
//!
//! ```text
//! layers ─▶ loose files copied, packs by index-pack ─▶ in ─▶ rev-list, pack-objects ─▶ index-pack --strict ─▶ out ─▶ repository
//! ```
//!
//! `in` may hold objects under wrong names. `index-pack --strict` computes every name anew, checks each object and
//! that whatever it refers to is there, so `out` holds exactly the history of the commit that was asked for, or it is
//! refused.

use super::child::{Call, ScratchRepository, make_dir};
use super::locate::{Repository, refused, unreadable};
use super::refs::{Head, is_id, is_plain};
use super::settings::{GitEnvironment, GitSettings, Identity, no_identity};
use crate::dir::{Dir, is_absent};
use crate::layer::Stack;
use api::Rel;
use api::{CommitMadeInside, FileKind};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, Phase};

/// Path of a work tree with its new mode and blob; mode 0 for a deletion.
pub(super) type Changed = BTreeMap<Rel, (String, String)>;

/// The history of a commit from inside, checked and in quarantine.
pub struct Intake {
    pub(super) repository: Repository,
    pub(super) settings: GitSettings,
    pub(super) scratch: ScratchRepository,
    tip: String,
    /// Ids of the commits that no reference of the repository has, parents first.
    ids: Vec<String>,
    /// Path of the quarantine; the repository's objects where nothing is new.
    objects: PathBuf,
    notes: Vec<String>,
}

/// Result of a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    pub reference: String,
    pub commit: String,
    /// Former value of the reference.
    pub before: Option<String>,
    pub commits: Vec<CommitMadeInside>,
    pub notes: Vec<String>,
}

/// Bounds on what a workspace may bring: files of single objects, packs, and bytes of both.
const MOST_LOOSE: usize = 200_000;
const MOST_PACKS: usize = 64;
const MOST_BYTES: u64 = 2 << 30;
/// Largest allocation of git: an object may say any size.
const LARGEST_OBJECT: &str = "1g";
/// Commits that are listed, paths of each, and bytes of commit objects that are read.
const MOST_LISTED: usize = 200;
const MOST_PATHS: usize = 100;
const MOST_TEXT: u64 = 32 << 20;

const IN: &str = "in";
const OUT: &str = "out";
const MADE: &str = "made";

/// Namespace of references that a fetch may overwrite.
const OURS: &str = "refs/cofferdam/";

/// Checks the name of a reference for a fetch.
pub fn check_reference(name: &str) -> Result<(), Fault> {
    match is_plain(name) && name.split('/').count() >= 3 && name.len() <= 200 {
        true => Ok(()),
        false => {
            let fault = Fault::invalid(format!("--as {name:?} is not a reference name")).phase(Phase::Admission);
            Err(fault.hint("give a full name, for example refs/heads/from-agent"))
        }
    }
}

impl Intake {
    /// Brings the history of `tip`, a commit inside, into quarantine. `known` are commits that the repository has had.
    pub fn open(
        base: &Path,
        surroundings: &GitEnvironment<'_>,
        stack: &Stack,
        tip: &str,
        known: &[String],
    ) -> Result<Intake, Fault> {
        let repository = Repository::find(base)?.filter(|found| found.prefix.is_top()).ok_or_else(|| {
            let fault = Fault::invalid(format!("{} is not the top of a git repository", base.display()));
            fault.hint("commits can be fetched only if the workspace covers a whole repository").phase(Phase::Review)
        })?;
        if !is_id(tip) {
            return Err(refused(Path::new(".git"), "inside, HEAD does not name a commit"));
        }
        let settings = GitSettings::read(&repository, surroundings)?;
        let scratch =
            ScratchRepository::make(settings.program.clone(), &repository, settings.sha256, settings.carried.clone())?;
        let objects = repository.objects();
        let mut intake =
            Intake { repository, settings, scratch, tip: tip.to_owned(), ids: Vec::new(), objects, notes: Vec::new() };
        intake.take_in(stack, known)?;
        Ok(intake)
    }

    fn take_in(&mut self, stack: &Stack, known: &[String]) -> Result<(), Fault> {
        let fail = |e: io::Error| unreadable(&self.scratch.path, &e);
        let entry = self.quarantine(IN).map_err(fail)?;
        let packs = self.gather(stack, &entry)?;
        let within = self.scratch.path.join(IN);
        for (name, pack) in packs {
            let args = ["index-pack", "--stdin", &format!("--max-input-size={MOST_BYTES}")].map(OsString::from);
            if let Err(fault) = self.git_of(&within, &args, Vec::new(), Some(pack), &[]) {
                // Whether anything is missing without it shows below.
                self.notes.push(format!("inside, git does not accept the pack {name}: {}", fault.message));
            }
        }
        let kind =
            self.git(&within, &["cat-file", "-t", &self.tip], Vec::new()).map_err(|fault| self.unusable(fault))?;
        if kind.trim_ascii() != b"commit" {
            return Err(refused(Path::new(".git"), "inside, HEAD does not name a commit"));
        }
        let range = self.range(known)?;
        let listed =
            |args: &[&str], stdin: Vec<u8>| self.git(&within, args, stdin).map_err(|fault| self.unusable(fault));
        let wanted =
            listed(&["rev-list", "--objects", "--no-object-names", "--ignore-missing", "--stdin"], range.clone())?;
        let ids = listed(&["rev-list", "--topo-order", "--reverse", "--ignore-missing", "--stdin"], range)?;
        let ids = lines_of_ids(&ids)?;
        if ids.is_empty() {
            // `--ignore-missing` passes over a tip that is no true object: it must be the repository's own.
            return self.check_tip(&self.objects);
        }
        self.repack(&within, wanted)?;
        self.ids = ids;
        self.objects = self.scratch.path.join(OUT);
        Ok(())
    }

    /// Packs exactly these objects, and takes the pack as one from a stranger.
    fn repack(&self, within: &Path, wanted: Vec<u8>) -> Result<(), Fault> {
        let fail = |e: io::Error| unreadable(&self.scratch.path, &e);
        let prefix = self.scratch.path.join(MADE);
        let args = ["pack-objects", "-q", "--threads=1"].map(OsString::from);
        let args: Vec<OsString> = args.into_iter().chain([prefix.into_os_string()]).collect();
        let hash = self.git_of(within, &args, wanted, None, &[]).map_err(|fault| self.unusable(fault))?;
        let hash = super::commit::id_in(&hash)?;
        self.quarantine(OUT).map_err(fail)?;
        let pack = self.own_dir().and_then(|own| own.file(&Rel::top().join(format!("{MADE}-{hash}.pack").as_bytes())));
        let out = self.scratch.path.join(OUT);
        let args = ["index-pack", "--stdin", "--strict", &format!("--max-input-size={MOST_BYTES}")].map(OsString::from);
        self.git_of(&out, &args, Vec::new(), Some(pack.map_err(fail)?), &[]).map_err(|fault| self.unusable(fault))?;
        self.check_tip(&out)
    }

    /// Checks that the tip is a commit among these objects. The whole of it is read, so that its name is compared.
    fn check_tip(&self, objects: &Path) -> Result<(), Fault> {
        let read = self.git(objects, &["cat-file", "commit", &self.tip], Vec::new());
        read.map(drop).map_err(|fault| self.unusable(fault))
    }

    fn own_dir(&self) -> io::Result<Dir> {
        self.scratch.parent.dir(&Rel::top().join(self.scratch.name.as_bytes()))
    }

    /// Makes an object directory that has the repository's as its alternate.
    fn quarantine(&self, name: &str) -> io::Result<Dir> {
        let (own, owner) = (self.own_dir()?, self.scratch.owner);
        make_dir(&own, name.as_bytes(), owner)?;
        let objects = own.dir(&Rel::top().join(name.as_bytes()))?;
        make_dir(&objects, b"pack", owner)?;
        make_dir(&objects, b"info", owner)?;
        let alternate = self.repository.objects();
        if alternate.as_os_str().as_bytes().contains(&b'\n') {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "its path has a newline"));
        }
        let text = [alternate.as_os_str().as_bytes(), b"\n"].concat();
        write(&objects, &Rel::top().join(b"info").join(b"alternates"), &mut &text[..], owner)?;
        Ok(objects)
    }

    /// Copies single objects of the layers, and opens their packs. What the repository has under the same name is not
    /// taken again; links and special files are passed over.
    fn gather(&self, stack: &Stack, into: &Dir) -> Result<Vec<(String, File)>, Fault> {
        let fail = |e: io::Error| unreadable(Path::new(".git/objects"), &e);
        let (mut packs, mut loose, mut bytes) = (Vec::new(), 0usize, 0u64);
        let mut account = |size: u64, loose: usize, packs: usize| {
            bytes = bytes.saturating_add(size);
            match bytes > MOST_BYTES || loose > MOST_LOOSE || packs > MOST_PACKS {
                true => Err(too_much()),
                false => Ok(()),
            }
        };
        for layer in &stack.layers {
            let at = Rel::parse(b".git/objects").unwrap_or_default();
            let Ok(objects) = layer.up.dir(&at) else { continue };
            let known = |path: &Rel| {
                let path = super::paths::below(&Rel::top().join(b"objects"), path);
                self.repository.common.meta(&path).is_ok_and(|meta| meta.is_some_and(|m| m.kind == FileKind::File))
            };
            for first in names(&objects, MOST_LOOSE).map_err(fail)? {
                if first.len() != 2 || !is_hex(&first) {
                    continue;
                }
                let Ok(dir) = objects.dir(&Rel::top().join(&first)) else { continue };
                for rest in names(&dir, MOST_LOOSE).map_err(fail)? {
                    let path = Rel::top().join(&first).join(&rest);
                    if !matches!(rest.len(), 38 | 62) || !is_hex(&rest) || known(&path) {
                        continue;
                    }
                    let Ok(file) = dir.file(&Rel::top().join(&rest)) else { continue };
                    loose += 1;
                    account(file.metadata().map_err(fail)?.len(), loose, packs.len())?;
                    self.copy_object(file, into, &first, &rest).map_err(fail)?;
                }
            }
            let Ok(dir) = objects.dir(&Rel::top().join(b"pack")) else { continue };
            for name in names(&dir, 16 * MOST_PACKS).map_err(fail)? {
                let path = Rel::top().join(b"pack").join(&name);
                if !name.starts_with(b"pack-") || !name.ends_with(b".pack") || known(&path) {
                    continue;
                }
                let Ok(file) = dir.file(&Rel::top().join(&name)) else { continue };
                account(file.metadata().map_err(fail)?.len(), loose, packs.len() + 1)?;
                packs.push((String::from_utf8_lossy(&name).into_owned(), file));
            }
        }
        Ok(packs)
    }

    fn copy_object(&self, file: File, into: &Dir, first: &[u8], rest: &[u8]) -> io::Result<()> {
        match make_dir(into, first, self.scratch.owner) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let path = Rel::top().join(first).join(rest);
        match write(into, &path, &mut file.take(MOST_BYTES), self.scratch.owner) {
            // A lower layer has it already.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done,
        }
    }

    /// Input of `rev-list`: the tip, without whatever the repository has.
    fn range(&self, known: &[String]) -> Result<Vec<u8>, Fault> {
        let mut text = format!("{}\n", self.tip);
        let mut without = |id: &str| text.push_str(&format!("^{id}\n"));
        match self.settings.reftable {
            true => {
                let listed =
                    self.scratch.git(&["for-each-ref", "--format=%(objectname)"].map(OsStr::new), Call::default())?;
                lines_of_ids(&listed)?.iter().for_each(|id| without(id));
            }
            false => {
                let fail = |e: io::Error| unreadable(&self.repository.common_path, &e);
                // Of earlier fetches more may be wanted than what is new since.
                let refs = self.repository.references().map_err(fail)?.ids;
                refs.iter().filter(|(name, _)| !name.starts_with(OURS)).for_each(|(_, id)| without(id));
            }
        }
        self.head()?.commit().into_iter().for_each(&mut without);
        known.iter().filter(|id| is_id(id)).for_each(|id| without(id));
        Ok(text.into_bytes())
    }

    pub(super) fn head(&self) -> Result<Head, Fault> {
        if self.settings.reftable { self.scratch.head() } else { self.repository.head() }
    }

    fn git(&self, objects: &Path, args: &[&str], input: Vec<u8>) -> Result<Vec<u8>, Fault> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        self.git_of(objects, &args, input, None, &[])
    }

    /// Runs git on the objects of a quarantine.
    fn git_of(
        &self,
        objects: &Path,
        args: &[OsString],
        input: Vec<u8>,
        file: Option<File>,
        fine: &[i32],
    ) -> Result<Vec<u8>, Fault> {
        let mut env = vec![
            ("GIT_OBJECT_DIRECTORY", objects.as_os_str().to_owned()),
            ("GIT_ALLOC_LIMIT", OsString::from(LARGEST_OBJECT)),
        ];
        if let Ok(Some(_)) = self.repository.common.meta_of(b"shallow") {
            env.push(("GIT_SHALLOW_FILE", self.repository.common_path.join("shallow").into_os_string()));
        }
        let args: Vec<&OsStr> = args.iter().map(OsString::as_os_str).collect();
        self.scratch.git(&args, Call { env, input, file, fine, ..Call::default() })
    }

    /// Runs a query on the checked objects.
    pub(super) fn ask(&self, args: &[&str], input: Vec<u8>) -> Result<Vec<u8>, Fault> {
        self.git(&self.objects, args, input)
    }

    pub(super) fn ask_or(&self, args: &[&str], fine: &[i32]) -> Result<Vec<u8>, Fault> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        self.git_of(&self.objects, &args, Vec::new(), None, fine)
    }

    fn unusable(&self, fault: Fault) -> Fault {
        let mut message = format!("the commits made inside cannot be fetched: {}", fault.message);
        self.notes.iter().take(1).for_each(|note| message.push_str(&format!(" ({note})")));
        let hint = "the repository inside is damaged or lacks objects; `git fsck` inside shows what, and `cofferdam approve` takes the files";
        Fault::new(ErrorKind::Conflict, message).hint(hint).phase(Phase::Review)
    }

    pub fn tip(&self) -> &str {
        &self.tip
    }

    /// Number of commits that the repository does not have.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// The commits that the repository does not have, parents first; the last ones where there are many.
    pub fn commits(&self) -> Result<Vec<CommitMadeInside>, Fault> {
        let from = self.ids.len().saturating_sub(MOST_LISTED);
        self.describe(&self.ids[from..])
    }

    pub(super) fn describe(&self, ids: &[String]) -> Result<Vec<CommitMadeInside>, Fault> {
        let texts = self.texts(ids)?;
        let changes = self.changes(ids)?;
        let one = |id: &String| {
            let text = CommitText::parse(texts.get(id).map_or(&[][..], Vec::as_slice));
            let empty = Changed::new();
            let changed = changes.get(id).unwrap_or(&empty);
            CommitMadeInside {
                commit: id.clone(),
                parents: text.parents,
                author: text.author.who,
                subject: String::from_utf8_lossy(text.message.split(|b| *b == b'\n').next().unwrap_or_default()).into(),
                paths: changed.keys().take(MOST_PATHS).cloned().collect(),
                paths_more: changed.len().saturating_sub(MOST_PATHS) as u64,
            }
        };
        Ok(ids.iter().map(one).collect())
    }

    /// The bytes of commit objects.
    pub(super) fn texts(&self, ids: &[String]) -> Result<BTreeMap<String, Vec<u8>>, Fault> {
        let input = ids.iter().flat_map(|id| id.bytes().chain([b'\n'])).collect();
        let args: Vec<&OsStr> = ["cat-file", "--batch"].map(OsStr::new).to_vec();
        let env = vec![("GIT_OBJECT_DIRECTORY", self.objects.as_os_str().to_owned())];
        let said = self.scratch.git(&args, Call { env, input, most: MOST_TEXT, ..Call::default() })?;
        let (mut rest, mut found) = (&said[..], BTreeMap::new());
        let odd = || Fault::internal("git cat-file gave unexpected output");
        while !rest.is_empty() {
            let end = rest.iter().position(|b| *b == b'\n').ok_or_else(odd)?;
            let head = std::str::from_utf8(&rest[..end]).map_err(|_| odd())?;
            let [id, "commit", size] = head.split(' ').collect::<Vec<_>>()[..] else { return Err(odd()) };
            let size: usize = size.parse().map_err(|_| odd())?;
            let text = rest.get(end + 1..end + 1 + size).ok_or_else(odd)?;
            found.insert(id.to_owned(), text.to_vec());
            rest = rest.get(end + 2 + size..).ok_or_else(odd)?;
        }
        Ok(found)
    }

    /// Changes of each commit against its first parent.
    pub(super) fn changes(&self, ids: &[String]) -> Result<BTreeMap<String, Changed>, Fault> {
        let input = ids.iter().flat_map(|id| id.bytes().chain([b'\n'])).collect();
        let args = ["diff-tree", "--stdin", "-r", "-z", "--root", "--raw", "--no-abbrev", "--no-renames"];
        let args = [&args[..], &["--diff-merges=first-parent", "--ignore-submodules=none"]].concat();
        let said = self.ask(&args, input)?;
        let mut found: BTreeMap<String, Changed> = BTreeMap::new();
        let (mut current, mut fields) = (None, said.split(|b| *b == 0).filter(|field| !field.is_empty()));
        while let Some(field) = fields.next() {
            match field.strip_prefix(b":") {
                None => current = Some(String::from_utf8_lossy(field).into_owned()),
                Some(_) => {
                    let (path, change) = raw_entry(field, fields.next())?;
                    let commit = current.clone().ok_or_else(unknown_answer)?;
                    found.entry(commit).or_default().insert(path, change);
                }
            }
        }
        Ok(found)
    }

    /// Differences between two commits.
    pub(super) fn between(&self, from: &str, to: &str) -> Result<Changed, Fault> {
        let args =
            ["diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--ignore-submodules=none", from, to];
        let said = self.ask(&args, Vec::new())?;
        let (mut found, mut fields) = (Changed::new(), said.split(|b| *b == 0).filter(|field| !field.is_empty()));
        while let Some(field) = fields.next() {
            let (path, change) = raw_entry(field, fields.next())?;
            found.insert(path, change);
        }
        Ok(found)
    }

    /// Moves the checked objects into the repository, where nothing refers to them yet.
    pub(super) fn keep(&self) -> Result<(), Fault> {
        if self.ids.is_empty() {
            return Ok(());
        }
        let fail = |e: io::Error| {
            let fault = Fault::new(ErrorKind::Unavailable, format!("{}: {e}", self.repository.objects().display()));
            fault.phase(Phase::Application)
        };
        let moved = || -> io::Result<()> {
            let from = self.own_dir()?.dir(&Rel::parse(b"out/pack").unwrap_or_default())?;
            let to =
                self.repository.make_dirs(&self.repository.common, &Rel::parse(b"objects/pack").unwrap_or_default())?;
            let mut files = names(&from, MOST_PACKS)?;
            // An index is what makes the others count.
            files.sort_by_key(|name| name.ends_with(b".idx"));
            for name in files {
                rustix::fs::renameat(&from, name.as_slice(), &to, name.as_slice())?;
            }
            Ok(rustix::fs::fsync(&to)?)
        };
        moved().map_err(fail)?;
        self.check_tip(&self.repository.objects())
    }

    /// Puts the commit under a reference of the repository; work tree, index and branches stay as they are.
    pub fn fetch(mut self, reference: &str, actor: &str) -> Result<Fetched, Fault> {
        check_reference(reference)?;
        let head = self.head()?;
        if matches!(&head, Head::Branch { name, .. } if name == reference) {
            return Err(taken(reference, "is checked out"));
        }
        let before = match self.settings.reftable {
            true => {
                let args = ["rev-parse", "-q", "--verify", reference].map(OsStr::new);
                let said = self.scratch.git(&args, Call { fine: &[1], ..Call::default() })?;
                Some(String::from_utf8_lossy(&said).trim().to_owned()).filter(|id| is_id(id))
            }
            false => self.repository.value_of(reference).map_err(|e| unreadable(&self.repository.common_path, &e))?,
        };
        if before.as_ref().is_some_and(|before| *before != self.tip) && !reference.starts_with(OURS) {
            return Err(taken(reference, "exists already"));
        }
        let commits = self.commits()?;
        self.keep()?;
        // Objects are found where they were moved to.
        self.objects = self.repository.objects();
        if before.as_deref() != Some(self.tip.as_str()) {
            self.point(reference, before.as_deref(), actor)?;
        }
        let notes = std::mem::take(&mut self.notes);
        Ok(Fetched { reference: reference.to_owned(), commit: self.tip.clone(), before, commits, notes })
    }

    fn point(&self, reference: &str, before: Option<&str>, actor: &str) -> Result<(), Fault> {
        let identity = self.settings.reviewer.clone().or_else(|| Identity::new(actor, "cofferdam@invalid"));
        let identity = identity.ok_or_else(no_identity)?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        if self.settings.reftable {
            let Identity { name, email } = identity;
            let env = vec![("GIT_COMMITTER_NAME", name.into()), ("GIT_COMMITTER_EMAIL", email.into())];
            let nothing = "0".repeat(self.tip.len());
            let args =
                ["update-ref", "--no-deref", "-m", "cofferdam fetch", reference, &self.tip, before.unwrap_or(&nothing)];
            return self.scratch.git(&args.map(OsStr::new), Call { env, ..Call::default() }).map(drop);
        }
        let line = format!("{} <{}> {now} +0000\tcofferdam fetch", identity.name, identity.email);
        self.repository.set(reference, before, &self.tip, &line)
    }
}

/// Parts of a commit object.
#[derive(Default)]
pub(super) struct CommitText {
    pub parents: Vec<String>,
    pub author: Signature,
    pub message: Vec<u8>,
    /// Headers beyond the usual ones, such as a signature or an encoding.
    pub others: bool,
}

/// Author of a commit, with the time as git writes it.
#[derive(Default)]
pub(super) struct Signature {
    /// `NAME <EMAIL>`.
    pub who: String,
    /// `SECONDS ZONE`.
    pub when: String,
}

impl CommitText {
    pub fn parse(text: &[u8]) -> CommitText {
        let end = text.windows(2).position(|two| two == b"\n\n").unwrap_or(text.len());
        let mut parsed =
            CommitText { message: text.get(end + 2..).unwrap_or_default().to_vec(), ..CommitText::default() };
        for line in text[..end].split(|b| *b == b'\n') {
            let line = String::from_utf8_lossy(line);
            match line.split_once(' ') {
                Some(("parent", id)) => parsed.parents.push(id.to_owned()),
                Some(("author", rest)) => {
                    let (who, when) = rest.rsplit_once("> ").unwrap_or((rest, ""));
                    let who = if who.len() < rest.len() { format!("{who}>") } else { who.to_owned() };
                    parsed.author = Signature { who, when: when.to_owned() };
                }
                Some(("tree" | "committer", _)) => {}
                _ => parsed.others = true,
            }
        }
        parsed
    }
}

fn raw_entry(field: &[u8], path: Option<&[u8]>) -> Result<(Rel, (String, String)), Fault> {
    let head: Vec<&str> = std::str::from_utf8(field).unwrap_or_default().split(' ').collect();
    let (Some(path), [_, mode, _, blob, status]) = (path.and_then(Rel::parse), &head[..]) else {
        return Err(unknown_answer());
    };
    let mode = if *status == "D" { "0" } else { mode };
    Ok((path, (mode.to_owned(), (*blob).to_owned())))
}

fn unknown_answer() -> Fault {
    Fault::internal("git diff-tree gave unexpected output")
}

fn lines_of_ids(said: &[u8]) -> Result<Vec<String>, Fault> {
    let lines = said.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    let ids = lines.map(|line| Some(std::str::from_utf8(line).ok().filter(|id| is_id(id))?.to_owned()));
    ids.collect::<Option<_>>().ok_or_else(|| Fault::internal("git printed other text instead of ids"))
}

fn names(dir: &Dir, most: usize) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    match dir.each_name(most, |name| names.push(name.to_vec())) {
        Err(e) if is_absent(&e) => Ok(names),
        done => done.map(|()| names),
    }
}

fn is_hex(name: &[u8]) -> bool {
    name.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b))
}

fn write(at: &Dir, path: &Rel, from: &mut dyn Read, owner: (u32, u32)) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut file = File::from(at.open_at(path, flags, Mode::from_raw_mode(0o600))?);
    io::copy(from, &mut file)?;
    let (parent, name) = path.split().ok_or(io::ErrorKind::InvalidInput)?;
    super::refs::give(&at.dir(&parent)?, name, owner)
}

fn too_much() -> Fault {
    let message = format!(
        "inside, git has more than {MOST_LOOSE} single objects, {MOST_PACKS} packs or {} GiB of them that the repository lacks",
        MOST_BYTES >> 30
    );
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Review);
    fault.hint("`git gc` inside may help; or approve the files without the commits")
}

fn taken(reference: &str, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Conflict, format!("{reference} {why}")).phase(Phase::Review);
    fault.hint("give another name with --as, or leave --as out")
}
