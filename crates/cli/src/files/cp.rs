//! `cofferdam cp`. Both sides are directories by handle, so that symbolic links of either side lead nowhere else;
//! directories are copied as a tar stream.

use crate::pipe::Pipe;
use crate::render::print_document;
use api::{FileEntry, FileKind, Rel};
use clap::ArgMatches;
use client::{Engine, SandboxPath};
use node::files::tar::{self, LeftOut};
use node::files::write::{self, WriteOptions};
use node::files::{self, Root};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, PipeReader, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terms::{ErrorKind, Fault, Phase};

/// An end of a copy.
enum CopyEnd {
    Sandbox(SandboxPath),
    Here(PathBuf),
    Stream,
}

impl CopyEnd {
    fn of(word: &OsStr, engine: &Engine) -> CopyEnd {
        match SandboxPath::of(word) {
            Some(place) => CopyEnd::Sandbox(place),
            None if word == "-" => CopyEnd::Stream,
            None => CopyEnd::Here(engine.caller().cwd.join(word)),
        }
    }
}

pub fn cp(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let word = |name: &str| m.get_one::<OsString>(name).cloned().unwrap_or_default();
    let as_tar = m.get_flag("tar");
    let (copied, left_out) = match (CopyEnd::of(&word("src"), engine), CopyEnd::of(&word("dst"), engine)) {
        (CopyEnd::Here(from), CopyEnd::Sandbox(to)) => put(&from, &to, engine)?,
        (CopyEnd::Sandbox(from), CopyEnd::Here(to)) => get(&from, &to, engine)?,
        (CopyEnd::Stream, CopyEnd::Sandbox(to)) => take(&to, as_tar, engine)?,
        (CopyEnd::Sandbox(from), CopyEnd::Stream) => {
            if json {
                return Err(mistake("both the file and JSON would go to standard output", "name a file"));
            }
            give(&from, as_tar, engine)?
        }
        (CopyEnd::Sandbox(_), CopyEnd::Sandbox(_)) => {
            return Err(mistake(
                "copying from one sandbox to another is not supported",
                "copy it to a directory here first",
            ));
        }
        _ => return Err(mistake("neither SRC nor DST is in a sandbox", "write SANDBOX:PATH for one of them")),
    };
    tell(&left_out);
    if json {
        return Ok(print_document(told(copied, &left_out)));
    }
    Ok(ExitCode::SUCCESS)
}

/// The copied entries, and special files that were left out, which is no failure.
type CopiedEntries = (Value, LeftOut);

/// Prints the special files that were left out.
fn tell(left_out: &LeftOut) {
    if left_out.count == 0 {
        return;
    }
    let named: Vec<String> = left_out.paths.iter().map(Rel::to_string).collect();
    let more = match left_out.count.saturating_sub(named.len() as u64) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = if left_out.count == 1 { "file was" } else { "files were" };
    let note = format!("{} special {what} left out: {}{more}", left_out.count, named.join(", "));
    crate::render::note(&format!("{note} (FIFOs, sockets and devices are not copied)"));
}

fn told(mut copied: Value, left_out: &LeftOut) -> Value {
    if let (Some(fields), true) = (copied.as_object_mut(), left_out.count > 0) {
        fields.insert("left_out".into(), json!(left_out));
    }
    copied
}

fn mistake(what: &str, hint: &str) -> Fault {
    Fault::invalid(format!("cp: {what}")).hint(hint).phase(Phase::Admission)
}

/// Opens a local directory as one side of a copy, with the caller's ids and rights.
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

/// Splits a local path into the directory above it and its name. Links on the way are followed, as the caller's own.
fn split(path: &Path) -> Result<(Root, Rel), Fault> {
    let name = path
        .file_name()
        .ok_or_else(|| mistake("the local path does not end in a name", "name the file or directory"))?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let root = here(above)?;
    let rel = root.path(name.as_bytes())?;
    Ok((root, rel))
}

/// True for `SRC/.`: the content of the directory, not the directory itself.
fn is_content(bytes: &[u8]) -> bool {
    bytes == b"." || bytes.ends_with(b"/.")
}

/// Returns the destination: below an existing directory under the source's name, else the path itself.
fn target(engine: &Engine, to: &SandboxPath, name: Option<&[u8]>) -> Result<Rel, Fault> {
    let path = engine.rel(to)?;
    let is_dir = match engine.files_stat(to, true) {
        Ok(found) => found.kind == FileKind::Dir,
        Err(fault) if fault.error_kind == ErrorKind::NotFound => to.path.ends_with(b"/"),
        Err(fault) => return Err(fault),
    };
    Ok(match (is_dir, name) {
        (true, Some(name)) => path.join(name),
        _ => path,
    })
}

fn put(from: &Path, to: &SandboxPath, engine: &Engine) -> Result<CopiedEntries, Fault> {
    let found = std::fs::metadata(from).map_err(|e| trouble(from, &e))?;
    let whole = is_content(from.as_os_str().as_bytes());
    let name = from.file_name().filter(|_| !whole).map(OsStr::as_bytes);
    let at = target(engine, to, name)?;
    let to = SandboxPath::at(&to.sandbox, &at);
    if found.is_dir() {
        let source = here(from)?;
        let mut left_out = LeftOut::default();
        let made = through(
            |out| tar::pack(&source, &Rel::top(), out, &mut |found| left_out = found).map(drop),
            |input| engine.files_unpack(&to, Box::new(input)),
        )?;
        return Ok((json!({ "path": at, "entries": made.entries, "bytes": made.bytes }), left_out));
    }
    let file = open_file(from)?;
    let mode = std::os::unix::fs::MetadataExt::mode(&found) & 0o777;
    written(&engine.files_write(&to, Some(mode), Box::new(file))?)
}

/// Opens a local file without blocking. A FIFO with a name is refused, because it may never get a writer. A pipe that the shell made
/// for `<(COMMAND)` has one.
fn open_file(path: &Path) -> Result<std::fs::File, Fault> {
    use rustix::fs::{FileType, Mode, OFlags};
    const PIPES: u64 = 0x5049_5045;
    let failed = |e: rustix::io::Errno| trouble(path, &e.into());
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let file = file.map_err(failed)?;
    let found = rustix::fs::fstat(&file).map_err(failed)?;
    let is_fifo = FileType::from_raw_mode(found.st_mode) == FileType::Fifo;
    if is_fifo && rustix::fs::fstatfs(&file).map_err(failed)?.f_type as u64 != PIPES {
        let message = format!("{}: a FIFO, which is not copied", path.display());
        let hint = "to copy what is written to it: `cat FIFO | cofferdam cp - SANDBOX:PATH`";
        return Err(Fault::new(ErrorKind::Conflict, message).hint(hint).phase(Phase::Admission));
    }
    rustix::fs::fcntl_setfl(&file, OFlags::empty()).map_err(failed)?;
    Ok(file.into())
}

fn written(made: &FileEntry) -> Result<CopiedEntries, Fault> {
    Ok((json!({ "path": &made.path, "entries": 1, "bytes": made.size }), LeftOut::default()))
}

fn get(from: &SandboxPath, to: &Path, engine: &Engine) -> Result<CopiedEntries, Fault> {
    let path = engine.rel(from)?;
    let found = engine.files_stat(from, true)?;
    let name = path.split().filter(|_| !is_content(&from.path)).map(|(_, name)| name.to_vec());
    let at = match (to.is_dir(), &name) {
        (true, Some(name)) => to.join(OsString::from_vec(name.clone())),
        _ => to.to_owned(),
    };
    if found.kind == FileKind::Dir {
        std::fs::create_dir_all(&at).map_err(|e| trouble(&at, &e))?;
        let target = here(&at)?;
        let mut left_out = LeftOut::default();
        let (made, refused) = through(
            |out| engine.files_pack(from, out).map(|found| left_out = found),
            |mut input| {
                let made = tar::unpack_here(&target, &mut input)?;
                // Reads the padding at the end, or the packer would get a broken pipe.
                let _ = io::copy(&mut input, &mut io::sink());
                Ok(made)
            },
        )?;
        // Only a daemon that is older, or that lies, sends special files.
        left_out.extend(refused);
        return Ok((json!({ "entries": made.entries, "bytes": made.bytes }), left_out));
    }
    let (target, rel) = split(&at)?;
    let ask = WriteOptions { mode: Some(found.mode & 0o777), ..WriteOptions::default() };
    let made = through(|out| engine.files_read(from, out), |mut input| write::write(target, &rel, ask, &mut input))?;
    Ok((json!({ "entries": 1, "bytes": made.size }), LeftOut::default()))
}

/// Copies standard input into a sandbox, as a file or as a tar stream.
fn take(to: &SandboxPath, as_tar: bool, engine: &Engine) -> Result<CopiedEntries, Fault> {
    if !as_tar {
        return written(&engine.files_write(to, None, Box::new(io::stdin()))?);
    }
    let made = engine.files_unpack(to, Box::new(io::stdin()))?;
    let copied = json!({ "path": engine.rel(to)?, "entries": made.entries, "bytes": made.bytes });
    Ok((copied, LeftOut::default()))
}

/// Copies to standard output: a file's bytes, or a directory as a tar stream.
fn give(from: &SandboxPath, as_tar: bool, engine: &Engine) -> Result<CopiedEntries, Fault> {
    let is_dir = engine.files_stat(from, true)?.kind == FileKind::Dir;
    if io::stdout().is_terminal() {
        return Err(mistake("a tar stream is not written to a terminal", "`cofferdam files cat` shows a file"));
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut left_out = LeftOut::default();
    if as_tar || is_dir {
        left_out = engine.files_pack(from, &mut out)?;
    } else {
        engine.files_read(from, &mut out)?;
    }
    out.flush().map_err(|e| trouble(Path::new("-"), &e))?;
    Ok((Value::Null, left_out))
}

/// Copies through a pipe: `give` writes on a thread while `take` reads. The fault that is the cause of the other is returned.
fn through<T>(
    give: impl FnOnce(&mut dyn Write) -> Result<(), Fault> + Send,
    take: impl FnOnce(Joined) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let (reader, writer) = io::pipe().map_err(|e| Fault::internal(format!("a pipe: {e}")))?;
    let failed = Arc::new(AtomicBool::new(false));
    let joined = Joined { pipe: reader, failed: failed.clone() };
    std::thread::scope(|scope| {
        let giver = scope.spawn(move || {
            let mut out = io::BufWriter::with_capacity(64 << 10, Pipe::new(writer));
            let given = give(&mut out).and_then(|()| out.flush().map_err(|e| trouble(Path::new("-"), &e)));
            // Set before the pipe is closed: end of file alone would pass for the end of the data.
            failed.store(given.is_err(), Ordering::SeqCst);
            given.map_err(|fault| (fault, out.get_ref().is_broken()))
        });
        let made = take(joined);
        let given = giver
            .join()
            .unwrap_or_else(|_| Err((Fault::internal("cp: the thread that reads the source panicked"), false)));
        match (given, made) {
            (Err((fault, _)), Ok(_)) => Err(fault),
            // A broken pipe is the effect of the other side's fault.
            (Err((fault, false)), Err(_)) => Err(fault),
            (_, made) => made,
        }
    })
}

/// The reading end of a pipe whose writer may fail: end of file is then an error, not the end of the data.
struct Joined {
    pipe: PipeReader,
    failed: Arc<AtomicBool>,
}

impl Read for Joined {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.pipe.read(buffer)? {
            0 if self.failed.load(Ordering::SeqCst) => Err(io::Error::other("the source broke off")),
            count => Ok(count),
        }
    }
}
