//! `cofferdam cp`. Both sides are directories by handle, so that neither's links lead anywhere, and directories go from one to
//! the other as a tar stream.

use super::note;
use super::place::Place;
use crate::render::print_document;
use clap::ArgMatches;
use node::Caller;
use node::files::write::{self, Ask};
use node::files::{self, FileKind, Purpose, Rel, Root, list, read, tar};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, PipeReader, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use terms::{ErrorKind, Fault, Phase};

/// One end of a copy.
enum End {
    Sandbox(Place),
    Here(PathBuf),
    Stream,
}

impl End {
    fn of(word: &OsStr, caller: &Caller) -> End {
        match Place::of(word) {
            Some(place) => End::Sandbox(place),
            None if word == "-" => End::Stream,
            None => End::Here(caller.cwd.join(word)),
        }
    }
}

pub fn cp(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let word = |name: &str| m.get_one::<OsString>(name).cloned().unwrap_or_default();
    let as_tar = m.get_flag("tar");
    let copied = match (End::of(&word("src"), caller), End::of(&word("dst"), caller)) {
        (End::Here(from), End::Sandbox(to)) => put(&from, &to, caller)?,
        (End::Sandbox(from), End::Here(to)) => get(&from, &to, caller)?,
        (End::Stream, End::Sandbox(to)) => take(&to, as_tar, caller)?,
        (End::Sandbox(from), End::Stream) => {
            if json {
                return Err(mistake("both the file and JSON would go to standard output", "name a file"));
            }
            give(&from, as_tar, caller)?
        }
        (End::Sandbox(_), End::Sandbox(_)) => {
            return Err(mistake("from one sandbox to another", "copy it to a directory here first"));
        }
        _ => return Err(mistake("neither SRC nor DST is in a sandbox", "write SANDBOX:PATH for one of them")),
    };
    if json {
        return Ok(print_document(copied));
    }
    Ok(ExitCode::SUCCESS)
}

fn mistake(what: &str, hint: &str) -> Fault {
    Fault::invalid(format!("cp: {what}")).hint(hint).phase(Phase::Admission)
}

/// A directory here, as the one side of a copy: with our own ids and our own rights.
fn here(dir: &Path) -> Result<Root, Fault> {
    let opened = std::fs::File::open(dir).map_err(|e| trouble(dir, &e))?;
    Ok(Root::new(opened.into(), files::own_ids(), dir.to_owned()))
}

fn trouble(path: &Path, error: &io::Error) -> Fault {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::PolicyDenied,
        _ => ErrorKind::Unavailable,
    };
    Fault::new(kind, format!("{}: {error}", path.display())).hint("name a file or directory that you can use")
}

/// Where a path here is: the directory above it, and its name; links on the way are the caller's own.
fn split(path: &Path) -> Result<(Root, Rel), Fault> {
    let name =
        path.file_name().ok_or_else(|| mistake("the path here ends in no name", "name the file or directory"))?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let root = here(above)?;
    let rel = root.path(name.as_bytes())?;
    Ok((root, rel))
}

/// Whether `SRC/.` was written: what is in it, not it.
fn is_content(bytes: &[u8]) -> bool {
    bytes == b"." || bytes.ends_with(b"/.")
}

/// Where it goes: into a directory that is there under its own name, else to the very path.
fn target(root: &Root, to: &Rel, slash: bool, name: Option<&[u8]>) -> Result<Rel, Fault> {
    let is_dir = match list::stat(root, to, true) {
        Ok(found) => found.kind == FileKind::Dir,
        Err(fault) if fault.error_kind == ErrorKind::NotFound => slash,
        Err(fault) => return Err(fault),
    };
    Ok(match (is_dir, name) {
        (true, Some(name)) => to.join(name),
        _ => to.clone(),
    })
}

fn put(from: &Path, to: &Place, caller: &Caller) -> Result<Value, Fault> {
    let root = files::open(&to.sandbox, Purpose::Writing, caller)?;
    let (to_path, slash) = (root.path(&to.path)?, to.path.ends_with(b"/"));
    let found = std::fs::metadata(from).map_err(|e| trouble(from, &e))?;
    let whole = is_content(from.as_os_str().as_bytes());
    let name = from.file_name().filter(|_| !whole).map(OsStr::as_bytes);
    let at = target(&root, &to_path, slash, name)?;
    if found.is_dir() {
        let source = here(from)?;
        let made =
            through(|out| tar::pack(&source, &Rel::top(), out).map(drop), |input| tar::unpack(&root, &at, input))?;
        let body = json!({ "path": at, "entries": made.entries, "bytes": made.bytes });
        note(&root, caller, "files.unpack", body.clone())?;
        return Ok(body);
    }
    let mut file = std::fs::File::open(from).map_err(|e| trouble(from, &e))?;
    let mode = std::os::unix::fs::MetadataExt::mode(&found) & 0o777;
    write(root, &at, Some(mode), &mut file, caller)
}

fn write(root: Root, at: &Rel, mode: Option<u32>, from: &mut dyn Read, caller: &Caller) -> Result<Value, Fault> {
    let sandbox = root.sandbox().unwrap_or_default().to_owned();
    let made = write::write(root, at, Ask { mode, ..Ask::default() }, from)?;
    let body = json!({ "path": &made.path, "entries": 1, "bytes": made.size });
    files::note(caller, &sandbox, "files.write", body.clone())?;
    Ok(body)
}

fn get(from: &Place, to: &Path, caller: &Caller) -> Result<Value, Fault> {
    let root = files::open(&from.sandbox, Purpose::Reading, caller)?;
    let path = root.path(&from.path)?;
    let found = list::stat(&root, &path, true)?;
    let name = path.split().filter(|_| !is_content(&from.path)).map(|(_, name)| name.to_vec());
    let at = match (to.is_dir(), &name) {
        (true, Some(name)) => to.join(OsString::from_vec(name.clone())),
        _ => to.to_owned(),
    };
    if found.kind == FileKind::Dir {
        std::fs::create_dir_all(&at).map_err(|e| trouble(&at, &e))?;
        let (target, top) = (here(&at)?, Rel::top());
        let made = through(|out| tar::pack(&root, &path, out).map(drop), |input| tar::unpack(&target, &top, input))?;
        return Ok(json!({ "entries": made.entries, "bytes": made.bytes }));
    }
    let mut reading = Source { reading: read::open(&root, &path)?, piece: Vec::new(), at: 0 };
    let (target, rel) = split(&at)?;
    let ask = Ask { mode: Some(found.mode & 0o777), ..Ask::default() };
    let made = write::write(target, &rel, ask, &mut reading)?;
    Ok(json!({ "entries": 1, "bytes": made.size }))
}

/// Standard input, as a file or as a tar stream.
fn take(to: &Place, as_tar: bool, caller: &Caller) -> Result<Value, Fault> {
    let root = files::open(&to.sandbox, Purpose::Writing, caller)?;
    let at = root.path(&to.path)?;
    let mut input = io::stdin().lock();
    if !as_tar {
        return write(root, &at, None, &mut input, caller);
    }
    let made = tar::unpack(&root, &at, &mut input)?;
    let body = json!({ "path": at, "entries": made.entries, "bytes": made.bytes });
    note(&root, caller, "files.unpack", body.clone())?;
    Ok(body)
}

/// To standard output: a file's bytes, a directory as a tar stream.
fn give(from: &Place, as_tar: bool, caller: &Caller) -> Result<Value, Fault> {
    let root = files::open(&from.sandbox, Purpose::Reading, caller)?;
    let path = root.path(&from.path)?;
    let is_dir = list::stat(&root, &path, true)?.kind == FileKind::Dir;
    if io::stdout().is_terminal() {
        return Err(mistake("this is not for a terminal", "`cofferdam files cat` shows a file"));
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    if as_tar || is_dir {
        let packed = tar::pack(&root, &path, &mut out)?;
        if packed.left_out > 0 {
            crate::render::note(&format!("{} sockets or devices were left out", packed.left_out));
        }
    } else {
        let mut reading = read::open(&root, &path)?;
        while let Some(piece) = reading.piece()? {
            out.write_all(&piece).map_err(|e| trouble(Path::new("-"), &e))?;
        }
    }
    out.flush().map_err(|e| trouble(Path::new("-"), &e))?;
    Ok(Value::Null)
}

/// One side packs while the other unpacks; the packer's trouble is the cause of the unpacker's.
fn through<T>(
    pack: impl FnOnce(&mut dyn Write) -> Result<(), Fault> + Send,
    unpack: impl FnOnce(&mut PipeReader) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let (mut reader, writer) = io::pipe().map_err(|e| Fault::internal(format!("a pipe: {e}")))?;
    std::thread::scope(|scope| {
        let packer = scope.spawn(move || pack(&mut io::BufWriter::with_capacity(64 << 10, writer)));
        let made = unpack(&mut reader).inspect(|_| {
            // The padding at the end; a packer must not find nobody there.
            let _ = io::copy(&mut reader, &mut io::sink());
        });
        drop(reader);
        let packed = packer.join().unwrap_or_else(|_| Err(Fault::internal("packing ended without an answer")));
        match (packed, made) {
            (Err(fault), Ok(_)) => Err(fault),
            // A pipe that broke says nothing that the other side does not say better.
            (Err(fault), Err(_)) if !fault.message.contains("Broken pipe") => Err(fault),
            (_, made) => made,
        }
    })
}

/// A file of the sandbox, to be read from.
struct Source {
    reading: read::Reading,
    piece: Vec<u8>,
    at: usize,
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() {
            let next = self.reading.piece().map_err(|fault| io::Error::other(fault.message))?;
            (self.piece, self.at) = (next.unwrap_or_default(), 0);
        }
        let count = buffer.len().min(self.piece.len() - self.at);
        buffer[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}
