//! Changes that the table in `runs.rs` does not name and that a tool may still run or obey, recognised by kind instead
//! of name: executable machine code, and hidden names that the base does not have.
//!
//! Classed as running on the reviewer's machine are those that agents seldom have a reason to add: machine code, which
//! cannot be reviewed, and new hidden directories and top-level hidden files, where tools look for settings. Scripts and
//! executable bits only get flags: `scripts/release.sh` is everyday work, and a class that includes everyday work is
//! approved unread.

use crate::class::{Bytes, folded_part};
use crate::dir::Dir;
use crate::exclude;
use crate::scan::Pair;
use api::{ChangeSide, FileKind, Rel};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Hidden directories that are served or shown and never obeyed.
const HARMLESS_DIRS: &[&str] = &[".well-known"];

/// Hidden files that only list names, keep a directory in place, or describe formatting.
const HARMLESS_FILES: &[&str] = &[
    ".editorconfig",
    ".mailmap",
    ".nojekyll",
    ".gitmessage",
    ".git-blame-ignore-revs",
    ".browserslistrc",
    ".clang-format",
];
const HARMLESS_ENDINGS: &[&str] = &["ignore", "keep", ".example", ".sample", ".template"];

/// Returns the reason to class a change as running on the reviewer's machine although no rule names it.
pub fn held(pair: &Pair, bytes: Bytes<'_>, base: &BaseDirs<'_>) -> Option<&'static str> {
    let after = pair.after.as_ref()?;
    if is_new_machine_code(pair, after, bytes) {
        return Some("executable that is not text");
    }
    if hidden_dirs(&pair.path, after).any(|dir| !base.has(&dir)) {
        return Some("new hidden directory, which tools may obey");
    }
    (is_new_here(pair, after) && is_hidden_at_top(&pair.path) && after.kind != FileKind::Dir)
        .then_some("new hidden file at the top, which tools may obey")
}

/// True if a component of the path is hidden, so that a tool may look there for settings.
pub fn is_hidden(pair: &Pair) -> bool {
    let Some(after) = &pair.after else { return false };
    let own = || pair.path.split().is_some_and(|(_, name)| is_hidden_file(name));
    hidden_dirs(&pair.path, after).next().is_some() || (after.kind != FileKind::Dir && own())
}

fn is_new_here(pair: &Pair, after: &ChangeSide) -> bool {
    pair.from.is_some() || pair.before.as_ref().is_none_or(|before| before.kind != after.kind)
}

fn is_hidden_at_top(path: &Rel) -> bool {
    path.split().is_some_and(|(dir, name)| dir.is_top() && is_hidden_file(name))
}

fn is_hidden_file(name: &[u8]) -> bool {
    let folded = folded_part(name);
    let harmless = HARMLESS_FILES.contains(&&*folded) || HARMLESS_ENDINGS.iter().any(|end| folded.ends_with(end));
    (name.starts_with(b".") || folded.starts_with('.')) && !harmless
}

/// Bound on the components that are examined: no real project is deeper, and each lookup costs its length.
const DEEPEST: usize = 128;

/// Hidden directories of a path, itself included if it is one. Contents of build artefacts belong to the tool that
/// made them and are skipped.
fn hidden_dirs<'a>(path: &'a Rel, after: &ChangeSide) -> impl Iterator<Item = Rel> + use<'a> {
    let is_dir = after.kind == FileKind::Dir;
    let dirs = path.parts().count().saturating_sub(usize::from(!is_dir)).min(DEEPEST);
    let is_artefact = |name: &[u8]| exclude::artefact(name, true, false, |_| false).is_some();
    let mut at = Rel::top();
    path.parts().take(dirs).take_while(move |name| !is_artefact(name)).filter_map(move |name| {
        at = at.join(name);
        let folded = folded_part(name);
        let is_hidden = (name.starts_with(b".") || folded.starts_with('.')) && !HARMLESS_DIRS.contains(&&*folded);
        is_hidden.then(|| at.clone())
    })
}

/// True for an executable file that is not text and was different before. A file too large to be read counts.
fn is_new_machine_code(pair: &Pair, after: &ChangeSide, bytes: Bytes<'_>) -> bool {
    if !is_executable(after) {
        return false;
    }
    let same = |before: &ChangeSide| is_executable(before) && before.digest.is_some() && before.digest == after.digest;
    if pair.before.as_ref().is_some_and(same) {
        return false;
    }
    match bytes {
        Bytes::Known { after, .. } => after.is_some_and(is_machine_code),
        Bytes::Unknown => true,
    }
}

pub fn is_executable(entry: &ChangeSide) -> bool {
    entry.kind == FileKind::File && entry.mode & 0o111 != 0
}

/// Magic numbers: ELF, PE, Mach-O in its byte orders and as a fat file (and Java classes, which share that number),
/// WebAssembly; and scripts with binary data behind their text. Not just any binary: on some file systems every
/// picture has the execute bit.
fn is_machine_code(bytes: &[u8]) -> bool {
    const MARKS: &[&[u8]] = &[
        b"\x7fELF",
        b"MZ",
        b"\xfe\xed\xfa\xce",
        b"\xfe\xed\xfa\xcf",
        b"\xce\xfa\xed\xfe",
        b"\xcf\xfa\xed\xfe",
        b"\xca\xfe\xba\xbe",
        b"\0asm",
    ];
    let is_binary = crate::text::as_text(bytes).is_none();
    is_binary && (bytes.starts_with(b"#!") || MARKS.iter().any(|mark| bytes.starts_with(mark)))
}

/// Cached lookups of directories in the base.
pub struct BaseDirs<'a> {
    base: &'a Dir,
    known: RefCell<BTreeMap<Rel, bool>>,
}

impl<'a> BaseDirs<'a> {
    pub fn of(base: &'a Dir) -> BaseDirs<'a> {
        BaseDirs { base, known: RefCell::default() }
    }

    /// True if the base has the directory; one that cannot be looked up counts as missing.
    fn has(&self, path: &Rel) -> bool {
        if let Some(known) = self.known.borrow().get(path) {
            return *known;
        }
        let found = self.base.meta(path).ok().flatten().is_some_and(|meta| meta.kind == FileKind::Dir);
        self.known.borrow_mut().insert(path.clone(), found);
        found
    }
}
