//! Writes a diff as a patch for `git apply`. Changes that git does not track (directories, attributes, permissions
//! other than the executable bit) are noted in lines between the parts, which git skips.

use crate::entry;
use crate::layer::Stack;
use crate::text;
use crate::view::file_below;
use api::{Change, ChangeBody, ChangeClass, ChangeKind, ChangeSide, Diff, FileDiff, FileKind, Hunk, LineKind, Rel};
use sha1::Digest;
use std::io::{self, Read, Write};
use terms::{ErrorKind, Fault, Phase, Retry};

/// Largest file that is written as a binary patch; git's own limit is far above, those of terminals and mail are
/// below.
const LARGEST_BINARY: u64 = 64 << 20;

/// Writes the patch. A file that changed since the diff is a conflict: the patch would differ from what was shown.
pub fn write(out: &mut impl Write, stack: &Stack, diff: &Diff) -> Result<(), Fault> {
    for file in &diff.files {
        one(out, stack, file).map_err(|e| fault(&file.change.path, e))?;
    }
    Ok(())
}

fn fault(path: &Rel, error: io::Error) -> Fault {
    let fault = match error.kind() {
        io::ErrorKind::ResourceBusy => Fault::new(ErrorKind::Conflict, format!("{path}: changed while it was read"))
            .hint("stop what runs in the sandbox, or try again")
            .retry(Retry::Now),
        _ => Fault::new(ErrorKind::Unavailable, format!("{path}: {error}")),
    };
    fault.phase(Phase::Execution)
}

fn one(out: &mut impl Write, stack: &Stack, file: &FileDiff) -> io::Result<()> {
    let Change { path, kind, class, before, after, .. } = &file.change;
    if let ChangeClass::Never { why } = class {
        return skipped(out, path, why);
    }
    if [before, after].into_iter().flatten().all(|entry| git_mode(entry).is_none()) {
        return skipped(out, path, "a directory");
    }
    // Git has no notation for a change of type: one part deletes, another adds.
    if *kind == ChangeKind::Type {
        if let Some(gone) = before.as_ref().filter(|e| git_mode(e).is_some()) {
            FilePatch { stack, path, from: path, before: Some(gone), after: None }.whole(out)?;
        }
        return match after.as_ref().filter(|e| git_mode(e).is_some()) {
            Some(new) => FilePatch { stack, path, from: path, before: None, after: Some(new) }.whole(out),
            None => Ok(()),
        };
    }
    let from = kind.from().unwrap_or(path);
    let part = FilePatch { stack, path, from, before: before.as_ref(), after: after.as_ref() };
    match &file.body {
        ChangeBody::Text(hunks) => {
            part.header(out)?;
            part.names(out)?;
            hunks.iter().try_for_each(|hunk| write_hunk(out, hunk))
        }
        ChangeBody::None if part.is_link() && part.differs() => part.whole(out),
        ChangeBody::None if part.is_untracked() => skipped(out, path, "only properties that git does not record"),
        ChangeBody::None => part.header(out),
        ChangeBody::Whole => part.whole(out),
    }
}

fn skipped(out: &mut impl Write, path: &Rel, why: &str) -> io::Result<()> {
    writeln!(out, "cofferdam: {path} is not in this patch: {why}")
}

/// Part of a patch for one file, from `from` to `path`.
struct FilePatch<'a> {
    stack: &'a Stack,
    path: &'a Rel,
    from: &'a Rel,
    before: Option<&'a ChangeSide>,
    after: Option<&'a ChangeSide>,
}

impl FilePatch<'_> {
    fn is_link(&self) -> bool {
        [self.before, self.after].into_iter().flatten().any(|e| e.kind == FileKind::Symlink)
    }

    fn differs(&self) -> bool {
        self.before.map(|e| &e.digest) != self.after.map(|e| &e.digest)
    }

    /// True for a change that git does not track.
    fn is_untracked(&self) -> bool {
        let modes = self.before.and_then(git_mode) == self.after.and_then(git_mode);
        self.before.is_some() && self.after.is_some() && modes && self.from == self.path
    }

    fn header(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "diff --git {} {}", quoted("a/", self.from), quoted("b/", self.path))?;
        match (self.before.and_then(git_mode), self.after.and_then(git_mode)) {
            (None, Some(mode)) => writeln!(out, "new file mode {mode}")?,
            (Some(mode), None) => writeln!(out, "deleted file mode {mode}")?,
            (Some(old), Some(new)) if old != new => writeln!(out, "old mode {old}\nnew mode {new}")?,
            _ => {}
        }
        if self.from != self.path {
            writeln!(out, "rename from {}\nrename to {}", quoted("", self.from), quoted("", self.path))?;
        }
        Ok(())
    }

    fn names(&self, out: &mut impl Write) -> io::Result<()> {
        let name = |there: bool, name: String| match there {
            // A tab ends a name with spaces, so that no reader takes the rest of the line for part of it.
            true if name.contains(' ') && !name.starts_with('"') => format!("{name}\t"),
            true => name,
            false => "/dev/null".to_owned(),
        };
        writeln!(out, "--- {}", name(self.before.is_some(), quoted("a/", self.from)))?;
        writeln!(out, "+++ {}", name(self.after.is_some(), quoted("b/", self.path)))
    }

    /// Writes the file with its bytes on both sides.
    fn whole(&self, out: &mut impl Write) -> io::Result<()> {
        let size = |side: Option<&ChangeSide>| side.map_or(0, |entry| entry.size);
        if size(self.before) > LARGEST_BINARY || size(self.after) > LARGEST_BINARY {
            return skipped(out, self.path, "too large for a patch");
        }
        let (old, new) =
            (self.bytes(self.before, self.from, PatchSide::Base)?, self.bytes(self.after, self.path, PatchSide::View)?);
        self.header(out)?;
        if old == new {
            return Ok(());
        }
        if let (true, Some(old), Some(new)) = (self.is_link(), text::as_text(&old), text::as_text(&new)) {
            self.names(out)?;
            return text::hunks(self.path, old, new).iter().try_for_each(|hunk| write_hunk(out, hunk));
        }
        let blob = |there: bool, bytes: &[u8]| if there { blob_id(bytes) } else { "0".repeat(40) };
        writeln!(out, "index {}..{}", blob(self.before.is_some(), &old), blob(self.after.is_some(), &new))?;
        writeln!(out, "GIT binary patch")?;
        literal(out, &new)?;
        literal(out, &old)
    }

    fn bytes(&self, entry: Option<&ChangeSide>, at: &Rel, side: PatchSide) -> io::Result<Vec<u8>> {
        let Some(entry) = entry else { return Ok(Vec::new()) };
        if let Some(target) = &entry.target {
            return target.bytes().ok_or_else(|| io::ErrorKind::InvalidData.into());
        }
        let file = match side {
            PatchSide::Base => file_below(&self.stack.base, at)?,
            PatchSide::View => self.stack.file(at)?,
        };
        let mut bytes = Vec::new();
        file.take(LARGEST_BINARY + 1).read_to_end(&mut bytes)?;
        match entry.digest.as_ref() == Some(&entry::digest(&bytes)) {
            true => Ok(bytes),
            false => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }
}

#[derive(Clone, Copy)]
enum PatchSide {
    Base,
    View,
}

/// Mode in git's notation, which keeps only the executable bit.
fn git_mode(entry: &ChangeSide) -> Option<&'static str> {
    match entry.kind {
        FileKind::File if entry.mode & 0o100 != 0 => Some("100755"),
        FileKind::File => Some("100644"),
        FileKind::Symlink => Some("120000"),
        _ => None,
    }
}

fn write_hunk(out: &mut impl Write, hunk: &Hunk) -> io::Result<()> {
    let span = |start: u64, lines: u64| if lines == 1 { format!("{start}") } else { format!("{start},{lines}") };
    let (old, new) = (span(hunk.old_start, hunk.old_lines), span(hunk.new_start, hunk.new_lines));
    writeln!(out, "@@ -{old} +{new} @@")?;
    for line in &hunk.lines {
        let sign = match line.kind {
            LineKind::Context => ' ',
            LineKind::Removed => '-',
            LineKind::Added => '+',
        };
        write!(out, "{sign}{}", line.text)?;
        if !line.text.ends_with('\n') {
            writeln!(out, "\n\\ No newline at end of file")?;
        }
    }
    Ok(())
}

/// Quotes a name like git if it has special characters.
fn quoted(prefix: &str, path: &Rel) -> String {
    let plain = |b: &u8| (0x20..0x7f).contains(b) && *b != b'"' && *b != b'\\';
    let bytes = path.as_bytes();
    if bytes.iter().all(plain) {
        return format!("{prefix}{}", String::from_utf8_lossy(bytes));
    }
    let mut text = format!("\"{prefix}");
    for byte in bytes {
        match byte {
            b'"' | b'\\' => text.extend(['\\', *byte as char]),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\r' => text.push_str("\\r"),
            byte if plain(byte) => text.push(*byte as char),
            byte => text.push_str(&format!("\\{byte:03o}")),
        }
    }
    text.push('"');
    text
}

fn blob_id(bytes: &[u8]) -> String {
    let hash = sha1::Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes);
    terms::hex::encode(hash.finalize())
}

/// Encodes bytes as in git's binary patches: a zlib stream, here of stored blocks, in base 85.
fn literal(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    writeln!(out, "literal {}", bytes.len())?;
    let mut stream = vec![0x78, 0x01];
    // Empty data is one empty block.
    let blocks: Vec<&[u8]> = if bytes.is_empty() { vec![bytes] } else { bytes.chunks(65_535).collect() };
    for (index, block) in blocks.iter().enumerate() {
        let length = block.len() as u16;
        stream.push(u8::from(index + 1 == blocks.len()));
        stream.extend(length.to_le_bytes());
        stream.extend((!length).to_le_bytes());
        stream.extend(*block);
    }
    stream.extend(adler32(bytes).to_be_bytes());
    for line in stream.chunks(52) {
        let length = line.len() as u8;
        // A to Z are 1 to 26, a to z are 27 to 52.
        let sign = if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 };
        writeln!(out, "{}{}", sign as char, base85(line))?;
    }
    writeln!(out)
}

fn adler32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1u32, 0u32);
    for chunk in bytes.chunks(5000) {
        for byte in chunk {
            a += u32::from(*byte);
            b += a;
        }
        (a, b) = (a % 65_521, b % 65_521);
    }
    (b << 16) | a
}

const DIGITS: &[u8; 85] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

fn base85(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 5 / 4 + 5);
    for group in bytes.chunks(4) {
        let mut word = [0u8; 4];
        word[..group.len()].copy_from_slice(group);
        let mut value = u32::from_be_bytes(word);
        let mut digits = [0u8; 5];
        for digit in digits.iter_mut().rev() {
            *digit = DIGITS[(value % 85) as usize];
            value /= 85;
        }
        text.extend(digits.iter().map(|d| *d as char));
    }
    text
}
