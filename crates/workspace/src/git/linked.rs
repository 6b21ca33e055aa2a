//! Work trees whose `.git` is a file: a linked work tree or a submodule, whose git directory lies outside of the tree.
//! A workspace over one gets a git directory of its own in place of the file: copies of the small parts (HEAD, index,
//! references, settings), and the repository's objects, which are shown read-only, as its alternate. What git writes
//! inside so lands in the layer, and nothing of it on the host.

use super::locate::{Repository, by_file, identity, refused, unreadable};
use crate::dir::Dir;
use crate::layer::{Layer, Stack};
use api::FileKind;
use api::Rel;
use rustix::fs::{Mode, OFlags};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use terms::Fault;

/// The last file that is written into a git directory of a workspace's own; its time tells what a guest wrote later.
pub const SEED_MARK: &[u8] = b"cofferdam-seed";

/// Name of an empty file beside the `up` of a seeded layer, where no guest reaches it.
const SEEDED: &[u8] = b"git-seeded";

/// True if a workspace has got a git directory of its own by `Linked::seed`, whatever a guest made of it since.
pub fn is_seeded(stack: &Stack) -> bool {
    stack.layers.iter().any(|layer| layer.dir.meta_of(SEEDED).is_ok_and(|found| found.is_some()))
}

/// Marks a layer into which others were merged, if one of those was seeded.
pub fn carry_seed(layers: &[Layer], merged: &Layer) -> io::Result<()> {
    let seeded = layers.iter().any(|layer| layer.dir.meta_of(SEEDED).is_ok_and(|found| found.is_some()));
    if seeded { put(&merged.dir, SEEDED, b"") } else { Ok(()) }
}

/// A work tree with a checked `.git` file.
#[derive(Debug)]
pub struct Linked {
    repository: Repository,
}

/// Size bounds of copied files.
const LARGEST_INDEX: u64 = 1 << 30;
const LARGEST_SMALL: u64 = 1 << 20;

/// Files of the work tree's own git directory that are copied, by size bound. `index` may refer to shared ones.
const OWN: &[(&str, u64)] = &[
    ("HEAD", LARGEST_SMALL),
    ("index", LARGEST_INDEX),
    ("info/sparse-checkout", LARGEST_SMALL),
    ("ORIG_HEAD", LARGEST_SMALL),
    ("MERGE_HEAD", LARGEST_SMALL),
    ("MERGE_MSG", LARGEST_SMALL),
    ("MERGE_MODE", LARGEST_SMALL),
    ("CHERRY_PICK_HEAD", LARGEST_SMALL),
    ("REVERT_HEAD", LARGEST_SMALL),
];

/// Files of the common git directory that are copied.
const COMMON: &[(&str, u64)] =
    &[("shallow", LARGEST_SMALL), ("info/exclude", LARGEST_SMALL), ("info/attributes", LARGEST_SMALL)];

/// Shared parts of a split index.
const SHARED_INDEX: &[u8] = b"sharedindex.";
const MOST_NAMES: usize = 4096;

/// Ends each copy of a settings file: the git directory now lies in its work tree.
const HERE: &str = "\n[core]\n\tbare = false\n\tworktree = ..\n";

impl Linked {
    /// Checks the `.git` file of a directory; None if it has none. A file that leads to a git directory which is not the
    /// caller's, or does not lead back, is refused: its author would choose what is shown inside.
    pub fn find(base: &Path) -> Result<Option<Linked>, Fault> {
        let Ok(dir) = Dir::open(base) else { return Ok(None) };
        if !dir.meta_of(b".git").is_ok_and(|meta| meta.is_some_and(|meta| meta.kind == FileKind::File)) {
            return Ok(None);
        }
        let repository = by_file(&dir, base)?;
        let Repository { own_path, common_path, .. } = &repository;
        if own_path != common_path && own_path.parent() != Some(&common_path.join("worktrees")) {
            return Err(refused(own_path, &format!("is not in worktrees of {}", common_path.display())));
        }
        check_owners(&repository, &dir)?;
        if own_path == common_path {
            // A linked work tree is named by its git directory, a submodule by its settings.
            check_named_by_settings(&repository, &dir)?;
        }
        if repository.has_reftable()? {
            return Err(refused(common_path, "stores its references in a reftable, which is not copied"));
        }
        if repository.objects().as_os_str().as_bytes().contains(&b'\n') {
            return Err(refused(common_path, "has a newline in its path"));
        }
        Ok(Some(Linked { repository }))
    }

    /// Directory of the objects, which a git directory of a workspace's own refers to.
    pub fn objects(&self) -> PathBuf {
        self.repository.objects()
    }

    /// The git directory that holds everything git knows of the work tree.
    pub fn git_directory(&self) -> &Path {
        &self.repository.common_path
    }

    /// Writes a git directory in place of the `.git` file of a layer or copied tree. On failure there is none.
    pub fn seed(&self, layer: &Layer) -> Result<(), Fault> {
        let done = self.fill(&layer.up).and_then(|()| put(&layer.dir, SEEDED, b""));
        done.map_err(|e| {
            // The file of the base shows again, or there is no `.git` in a copy.
            let _ = crate::remove::tree(&layer.up, b".git");
            unreadable(&self.repository.own_path, &e)
        })
    }

    fn fill(&self, up: &Dir) -> io::Result<()> {
        let Repository { own, common, .. } = &self.repository;
        crate::remove::tree(up, b".git")?;
        let git = make(up, b".git")?;
        for name in ["info", "objects", "refs"] {
            make(&git, name.as_bytes())?;
        }
        for name in ["objects/info", "objects/pack", "refs/heads", "refs/tags"] {
            make_path(&git, &Rel::parse(name.as_bytes()).unwrap_or_default())?;
        }
        for (from, list) in [(common, COMMON), (own, OWN)] {
            for (name, most) in list {
                copy(from, name.as_bytes(), &git, *most)?;
            }
        }
        let mut shared = Vec::new();
        own.each_name(MOST_NAMES, |name| shared.extend(name.starts_with(SHARED_INDEX).then(|| name.to_vec())))?;
        for name in shared {
            copy(own, &name, &git, LARGEST_INDEX)?;
        }
        self.copy_settings(&git)?;
        self.copy_references(&git)?;
        let alternate = [self.repository.objects().as_os_str().as_bytes(), b"\n"].concat();
        put(&git, b"objects/info/alternates", &alternate)?;
        put(&git, SEED_MARK, b"git directory of this workspace only\n")
    }

    fn copy_settings(&self, git: &Dir) -> io::Result<()> {
        let Repository { own, common, .. } = &self.repository;
        for (from, name) in [(common, b"config".as_slice()), (own, b"config.worktree")] {
            if let Some(mut text) = super::locate::bounded(from, &Rel::top().join(name), LARGEST_SMALL)? {
                text.extend_from_slice(HERE.as_bytes());
                put(git, name, &text)?;
            }
        }
        Ok(())
    }

    fn copy_references(&self, git: &Dir) -> io::Result<()> {
        let references = self.repository.references()?;
        let mut packed = String::new();
        for (name, id) in &references.ids {
            let _ = writeln!(packed, "{id} {name}");
        }
        put(git, b"packed-refs", packed.as_bytes())?;
        for (name, to) in &references.symbolic {
            if super::refs::is_plain(name)
                && let Some((parent, _)) = Rel::parse(name.as_bytes()).as_ref().and_then(Rel::split)
            {
                make_path(git, &parent)?;
                put(git, name.as_bytes(), format!("ref: {to}\n").as_bytes())?;
            }
        }
        Ok(())
    }
}

impl Repository {
    pub(super) fn objects(&self) -> PathBuf {
        self.common_path.join("objects")
    }
}

/// Checks that tree, git directories and objects belong to one user: the caller, or for root the tree's owner.
fn check_owners(repository: &Repository, tree: &Dir) -> Result<(), Fault> {
    let Repository { own, own_path, common, common_path, .. } = repository;
    let me = rustix::process::geteuid();
    let of = |dir: &Dir, at: &Rel, path: &Path| -> Result<u32, Fault> {
        let found = dir.meta(at).map_err(|e| unreadable(path, &e))?.filter(|meta| meta.kind == FileKind::Dir);
        found.map(|meta| meta.uid).ok_or_else(|| refused(path, "is not a git directory"))
    };
    let (top, objects) = (Rel::top(), Rel::top().join(b"objects"));
    let tree = of(tree, &top, &repository.top)?;
    let due = if me.is_root() { tree } else { me.as_raw() };
    let owners = [tree, of(own, &top, own_path)?, of(common, &top, common_path)?, of(common, &objects, common_path)?];
    match owners.iter().all(|owner| *owner == due) {
        true => Ok(()),
        false => Err(refused(own_path, "belongs to another user")),
    }
}

/// Checks that the settings of a submodule name this directory as its work tree. They are read without git, which cannot
/// be started while a run is planned; a value in quotes is not understood, and so refused.
fn check_named_by_settings(repository: &Repository, tree: &Dir) -> Result<(), Fault> {
    let Repository { own, own_path, .. } = repository;
    let text = super::locate::bounded(own, &Rel::top().join(b"config"), LARGEST_SMALL);
    let text = text.map_err(|e| unreadable(own_path, &e))?.unwrap_or_default();
    let named = core_worktree(&text).map(|path| own_path.join(std::ffi::OsStr::from_bytes(path)));
    let named = named.and_then(|path| Dir::open(&path).ok()).and_then(|dir| identity(&dir));
    match named.is_some() && named == identity(tree) {
        true => Ok(()),
        false => Err(refused(own_path, "its settings do not name this directory as its work tree")),
    }
}

/// The last plain value of `core.worktree`.
fn core_worktree(text: &[u8]) -> Option<&[u8]> {
    let (mut in_core, mut found) = (false, None);
    for line in text.split(|b| *b == b'\n').map(<[u8]>::trim_ascii) {
        if line.starts_with(b"[") {
            in_core = line.eq_ignore_ascii_case(b"[core]");
            continue;
        }
        let Some(at) = line.iter().position(|b| *b == b'=').filter(|_| in_core) else { continue };
        let (key, value) = (line[..at].trim_ascii(), line[at + 1..].trim_ascii());
        if key.eq_ignore_ascii_case(b"worktree") {
            found = Some(value);
        }
    }
    found.filter(|value| !value.is_empty() && !value.iter().any(|b| b"\"\\#;".contains(b)))
}

fn make(at: &Dir, name: &[u8]) -> io::Result<Dir> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => at.dir(&Rel::top().join(name)),
        Err(e) => Err(e.into()),
    }
}

fn make_path(at: &Dir, path: &Rel) -> io::Result<()> {
    let mut here = at.try_clone()?;
    for part in path.parts() {
        here = make(&here, part)?;
    }
    Ok(())
}

fn put(at: &Dir, path: &[u8], bytes: &[u8]) -> io::Result<()> {
    let path = Rel::parse(path).ok_or(io::ErrorKind::InvalidInput)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    File::from(at.open_at(&path, flags, Mode::from_raw_mode(0o644))?).write_all(bytes)
}

/// Copies a file of the same name, if there is one.
fn copy(from: &Dir, name: &[u8], to: &Dir, most: u64) -> io::Result<()> {
    let path = Rel::parse(name).ok_or(io::ErrorKind::InvalidInput)?;
    match super::locate::bounded(from, &path, most)? {
        Some(bytes) => put(to, name, &bytes),
        None => Ok(()),
    }
}

/// Top of the repository around a directory, if a workspace may cover it instead: on the same file system, with a git
/// directory of the same owner as the directory. None at the top itself, and outside of repositories.
pub fn top_around(dir: &Path) -> Option<PathBuf> {
    let repository = Repository::find(dir).ok().flatten().filter(|found| !found.prefix.is_top())?;
    let owner = |path: &Path| Dir::open(path).ok()?.meta(&Rel::top()).ok()?.map(|meta| meta.uid);
    let me = rustix::process::geteuid();
    let here = owner(dir)?;
    if !me.is_root() && here != me.as_raw() {
        return None;
    }
    // Every directory between, or its owner could have put the repository there.
    let mut between = dir.ancestors().take_while(|above| above.starts_with(&repository.top));
    (repository.owner.0 == here && between.all(|above| owner(above) == Some(here))).then_some(repository.top)
}

/// HEAD as a guest sees it in the `.git` of its workspace; None without a git directory there. The files are the guest's
/// own: they are read with bounds, and name nothing that is opened.
pub fn head_inside(stack: &Stack) -> Result<Option<super::Head>, Fault> {
    use super::refs::{Head, LARGEST_PACKED, MOST_STEPS, RefValue, is_plain};
    let git = Rel::top().join(b".git");
    let inside = Path::new(".git");
    let fail = |e: io::Error| unreadable(inside, &e);
    let is_dir = |at: &Rel| stack.meta(at).map(|found| found.is_some_and(|found| found.meta.kind == FileKind::Dir));
    if !is_dir(&git).map_err(fail)? {
        return Ok(None);
    }
    if is_dir(&git.join(b"reftable")).map_err(fail)? {
        return Err(refused(inside, "inside, references are stored in a reftable, which cofferdam does not read"));
    }
    let read = |name: &str, most: u64| -> io::Result<Option<Vec<u8>>> {
        let path = [b".git/", name.as_bytes()].concat();
        let path = Rel::parse(&path).ok_or(io::ErrorKind::InvalidData)?;
        if stack.meta(&path)?.is_none_or(|found| found.meta.kind != FileKind::File) {
            return Ok(None);
        }
        super::locate::bounded_file(stack.file(&path)?, &path, most).map(Some)
    };
    let mut name = "HEAD".to_owned();
    for _ in 0..=MOST_STEPS {
        let value = read(&name, LARGEST_SMALL).map_err(fail)?.and_then(|text| RefValue::parse(&text));
        match value {
            Some(RefValue::Commit(commit)) if name == "HEAD" => return Ok(Some(Head::Detached { commit })),
            Some(RefValue::Commit(commit)) => return Ok(Some(Head::Branch { name, commit: Some(commit) })),
            Some(RefValue::Symbolic(next)) if is_plain(&next) => name = next,
            None if name != "HEAD" => {
                let packed = read("packed-refs", LARGEST_PACKED).map_err(fail)?.unwrap_or_default();
                let lines = packed.split(|b| *b == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
                let mut found = lines.filter_map(|line| line.split_once(' ')).filter(|(_, at)| *at == name);
                let commit = found.next().map(|(id, _)| id.to_owned()).filter(|id| super::refs::is_id(id));
                return Ok(Some(Head::Branch { name, commit }));
            }
            _ => break,
        }
    }
    Err(refused(inside, "inside, HEAD names neither a branch nor a commit"))
}

/// HEAD of the repository that a directory is the top of; None elsewhere, and where it cannot be determined.
pub fn head_of_top(base: &Path) -> Option<super::Head> {
    let repository = Repository::find(base).ok().flatten().filter(|found| found.prefix.is_top())?;
    repository.head().ok()
}
