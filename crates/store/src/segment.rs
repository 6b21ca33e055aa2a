//! Segments of the journal that were moved out of the database into files, so that the database does not grow without bound. A segment
//! is verified along its chain before it is cut off, and an entry that stays in the database seals it with its last number and hash:
//! no entry can be cut off without a seal, and no seal can be forged without all entries that follow it.
//!
//! ```text
//!  <state>/journal/000000000001-000000050000.jsonl     {"first":1,"before":HASH}, then one line for each entry
//! ```

use crate::backend::{ChainLink, EntryQuery, EntryRow, Transaction};
use crate::chain::{self, GENESIS, SEAL_STEP, SEAL_SUBJECT, SEAL_VERB, Segment};
use crate::fault;
use crate::files::sync_parent;
use crate::handle::Store;
use crate::journal::Entry;
use api::{JournalBroken, JournalStep};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, Phase};

/// Name of the directory in the state directory.
const DIR: &str = "journal";
/// Bound on the length of a line; the store writes no longer one.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// First line of a segment file.
#[derive(Serialize, Deserialize)]
struct Header {
    first: u64,
    before: String,
}

/// An entry as it stands in a segment file. Its body is the text that its hash covers.
#[derive(Serialize, Deserialize)]
#[serde(remote = "EntryRow")]
struct SegmentLine {
    seq: u64,
    at_ms: u64,
    verb: String,
    step: String,
    subject: String,
    actor: String,
    body: String,
    hash: String,
}

impl Store {
    /// Returns the directory of the segment files.
    pub fn segments(&self) -> PathBuf {
        self.dir.join(DIR)
    }

    /// Moves the entries up to number `last` out of the database. Returns none where there are none, or another process was faster;
    /// a journal that is not as it was written is left alone.
    pub fn archive(&self, last: u64, actor: &str, at_ms: u64) -> Result<Option<Segment>, Fault> {
        let dir = self.segments();
        let io = |e: io::Error| fault::io(&dir, &e);
        let anchors = self.head.entries();
        let Some(start) = self.read(|tx| start_of(tx.rows, last))? else { return Ok(None) };
        let name = dir.join(format!("{:012}-{last:012}.jsonl", start.seq + 1));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(io)?;
        let hash = match self.read(|tx| write_file(tx.rows, &start, last, &name, &anchors)) {
            Ok(hash) => hash,
            // The faster process has removed leftovers, this file among them; its own holds at least as much.
            Err(_) if self.read(|tx| start_of(tx.rows, last))?.as_ref() != Some(&start) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let segment = Segment { first: start.seq + 1, last, hash };
        let cut = self.write(|tx| {
            // The entries in the file are the ones to be deleted, unless another process has cut them meanwhile.
            if start_of(tx.rows, last)?.as_ref() != Some(&start) {
                return Ok(false);
            }
            let body = json!(segment);
            tx.note(&Entry { at_ms, verb: SEAL_VERB, step: JournalStep::Done, subject: SEAL_SUBJECT, actor, body })?;
            tx.rows.delete_entries(last)?;
            Ok(true)
        })?;
        if cut {
            remove_leftovers(&dir, &name, segment.first);
        }
        Ok(cut.then_some(segment))
    }

    /// Verifies the segment files that are here. Returns how many entries they hold, all as they were written; or the first
    /// defect.
    pub(crate) fn verify_segments(&self) -> Result<Result<u64, JournalBroken>, Fault> {
        let mut seals = self.read(|tx| chain::seals(tx.rows))?;
        let mut names: Vec<PathBuf> =
            std::fs::read_dir(self.segments()).into_iter().flatten().flatten().map(|e| e.path()).collect();
        names.retain(|name| name.extension().is_some_and(|end| end == "jsonl"));
        names.sort();
        let mut entries = 0;
        // Newest first: the seal of a segment stands in a later one, or in the database.
        for name in names.iter().rev() {
            match verify_file(name, &mut seals) {
                Ok(more) => entries += more,
                Err((seq, why)) => return Ok(Err(JournalBroken { seq, why: format!("{}: {why}", name.display()) })),
            }
        }
        Ok(Ok(entries))
    }
}

/// Returns the entry that the first one follows upon, if there is one to be cut off and one that stays behind `last`.
fn start_of(rows: &dyn Transaction, last: u64) -> Result<Option<ChainLink>, Fault> {
    let unsealed = |broken: JournalBroken| Fault::internal(format!("journal entry {}: {}", broken.seq, broken.why));
    let start = chain::start(rows)?.map_err(unsealed)?;
    let newest = rows.last_entry()?.map_or(0, |link| link.seq);
    Ok((start.seq < last && last < newest).then_some(start))
}

/// Writes entries to a segment file, along their chain; returns the hash of the last.
fn write_file(
    rows: &dyn Transaction,
    start: &ChainLink,
    last: u64,
    name: &Path,
    anchors: &BTreeMap<u64, String>,
) -> Result<String, Fault> {
    let part = name.with_extension("part");
    let io = |e: io::Error| fault::io(&part, &e);
    let _ = std::fs::remove_file(&part);
    let file = File::options().write(true).create_new(true).mode(0o600).open(&part).map_err(io)?;
    let mut out = BufWriter::new(file);
    put(&mut out, &Header { first: start.seq + 1, before: start.hash.clone() }).map_err(io)?;
    let mut at = start.clone();
    rows.entries(&EntryQuery { below: Some(last + 1), ..EntryQuery::default() }, &mut |row| {
        chain::check_next(&at, &row, anchors).map_err(|why| broken(at.seq + 1, &why))?;
        let row = row?;
        put_entry(&mut out, &row).map_err(io)?;
        at = ChainLink { seq: row.seq, hash: row.hash };
        Ok(ControlFlow::Continue(()))
    })?;
    if at.seq != last {
        return Err(broken(at.seq + 1, "it is missing"));
    }
    let file = out.into_inner().map_err(|e| io(e.into_error()))?;
    file.sync_all().map_err(io)?;
    std::fs::rename(&part, name).map_err(io)?;
    sync_parent(name);
    Ok(at.hash)
}

/// Removes files of a process that was killed before it deleted the entries: such a file begins where `done` does and is a prefix of it.
/// A file with any other content stays.
fn remove_leftovers(dir: &Path, done: &Path, first: u64) {
    let begins = format!("{first:012}-");
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, file) = (entry.path(), entry.file_name());
        if path == done || !file.to_string_lossy().starts_with(&begins) {
            continue;
        }
        let unfinished = path.extension().is_some_and(|end| end == "part");
        if unfinished || is_prefix(&path, done).unwrap_or(false) {
            let _ = std::fs::remove_file(&path); // no seal tells of it, so that it counts for nothing
        }
    }
}

/// Tells whether a file is a prefix of another.
fn is_prefix(short: &Path, long: &Path) -> io::Result<bool> {
    let open = |path: &Path| {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        File::options().read(true).custom_flags(flags.bits() as i32).open(path).map(BufReader::new)
    };
    let (mut short, mut long) = (open(short)?, open(long)?);
    loop {
        let piece = short.fill_buf()?;
        if piece.is_empty() {
            return Ok(true);
        }
        let mut same = vec![0; piece.len()];
        if long.read_exact(&mut same).is_err() || same != piece {
            return Ok(false);
        }
        short.consume(same.len());
    }
}

fn put(out: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

fn put_entry(out: &mut impl Write, row: &EntryRow) -> io::Result<()> {
    let mut json = serde_json::Serializer::new(&mut *out);
    SegmentLine::serialize(row, &mut json)?;
    out.write_all(b"\n")
}

fn broken(seq: u64, why: &str) -> Fault {
    let message = format!("entry {seq} of the journal was changed: {why}; no entry was archived");
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Admission);
    fault.hint("see `cofferdam audit verify`, and restore a good copy")
}

/// Verifies one segment file: its own chain, and its end against the seals of later entries. Its own seals are added.
fn verify_file(name: &Path, seals: &mut BTreeMap<u64, String>) -> Result<u64, (u64, String)> {
    let mut lines = BufReader::new(File::open(name).map_err(|e| (0, e.to_string()))?);
    let header = next_line(&mut lines).map_err(|why| (0, why))?.ok_or_else(|| (0, "it is empty".to_owned()))?;
    let header: Header = serde_json::from_slice(&header).map_err(|e| (0, unreadable(&e)))?;
    let mut at = ChainLink { seq: header.first.saturating_sub(1), hash: header.before };
    if at.seq == 0 && at.hash != GENESIS {
        return Err((1, "it does not begin where the journal begins".into()));
    }
    let mut sealed = Vec::new();
    while let Some(line) = next_line(&mut lines).map_err(|why| (at.seq + 1, why))? {
        let row = SegmentLine::deserialize(&mut serde_json::Deserializer::from_slice(&line));
        let row = row.map_err(|e| (at.seq + 1, unreadable(&e)))?;
        if row.seq != at.seq + 1 || chain::hash(&at.hash, &row) != row.hash {
            return Err((at.seq + 1, "it is missing, or its hash does not match its content".into()));
        }
        sealed.extend(seal_in(&row));
        at = ChainLink { seq: row.seq, hash: row.hash };
    }
    match seals.get(&at.seq) {
        Some(known) if *known == at.hash => {}
        Some(_) => return Err((at.seq, "a later entry records another end".into())),
        // Without a seal it was written and never cut off, or its seal is in a segment that is elsewhere.
        None => return Ok(0),
    }
    seals.extend(sealed.into_iter().map(|segment| (segment.last, segment.hash)));
    Ok((at.seq + 1).saturating_sub(header.first))
}

fn seal_in(row: &EntryRow) -> Option<Segment> {
    let is_seal = row.subject == SEAL_SUBJECT && row.verb == SEAL_VERB && row.step == SEAL_STEP;
    is_seal.then(|| serde_json::from_str(&row.body).ok()).flatten()
}

fn next_line(lines: &mut impl BufRead) -> Result<Option<Vec<u8>>, String> {
    let mut line = Vec::new();
    match lines.take(MAX_LINE_BYTES).read_until(b'\n', &mut line).map_err(|e| e.to_string())? {
        0 => Ok(None),
        _ => Ok(Some(line)),
    }
}

fn unreadable(error: &serde_json::Error) -> String {
    format!("it cannot be read: {error}")
}
