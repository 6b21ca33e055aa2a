//! Parts of the journal that were moved out of the database into files of their own, so that the database does not grow for ever.
//! A part is read along its chain before it is cut off, and an entry that stays behind says how far it went and what its last hash is:
//! nothing can be cut off without that entry, and that entry cannot be made without all that follow it.
//!
//! ```text
//!  <state>/journal/000000000001-000000050000.jsonl     {"first":1,"before":HASH}, then one line for each entry
//! ```

use crate::journal::{BEGINNING, Entry, QUERY, Raw, Step, chained, follow, row, start};
use crate::{Broken, Store, fault, inner};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, Phase};

/// What the entry that tells of a part is about, and what it is called.
pub const SUBJECT: &str = "journal";
const VERB: &str = "archive";
const DIR: &str = "journal";
/// No entry is longer; what is longer is no line of ours.
const LONGEST_LINE: u64 = 64 << 20;

/// A part that was cut off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub first: u64,
    pub last: u64,
    /// Of its last entry.
    pub hash: String,
}

#[derive(Serialize, Deserialize)]
struct Head {
    first: u64,
    before: String,
}

/// An entry as it stands in a part. Its body is the text that its hash covers.
#[derive(Serialize, Deserialize)]
struct Line {
    seq: i64,
    at_ms: i64,
    verb: String,
    step: String,
    subject: String,
    actor: String,
    body: String,
    hash: String,
}

impl Line {
    fn of((seq, at_ms, [verb, step, subject, actor, body], hash): Raw) -> Line {
        Line { seq, at_ms, verb, step, subject, actor, body, hash }
    }

    fn is_chained(&self, before: &str) -> bool {
        let texts = [&self.verb, &self.step, &self.subject, &self.actor, &self.body].map(String::as_str);
        chained(before, self.seq, self.at_ms, texts) == self.hash
    }

    fn seal(&self) -> Option<Part> {
        let ours = self.subject == SUBJECT && self.verb == VERB && self.step == Step::Done.name();
        ours.then(|| serde_json::from_str(&self.body).ok()).flatten()
    }
}

/// Where the database's journal begins: the number and the hash of the last entry before it. The reason where nobody can say.
pub(crate) fn beginning(db: &Connection) -> Result<Result<(u64, String), Broken>, Fault> {
    let first: Option<i64> = db.query_row("SELECT min(seq) FROM journal", [], |row| row.get(0)).map_err(inner)?;
    let before = first.map_or(0, |first| first.saturating_sub(1).max(0) as u64);
    if before == 0 {
        return Ok(Ok((0, BEGINNING.to_owned())));
    }
    let seal = seals(db)?.remove(&before);
    Ok(seal.map(|hash| (before, hash)).ok_or_else(|| Broken { seq: 1, why: "it is missing".into() }))
}

/// Ends of parts that entries in the database tell of, with their hashes.
fn seals(db: &Connection) -> Result<BTreeMap<u64, String>, Fault> {
    let query = "SELECT body FROM journal WHERE subject = ?1 AND verb = ?2 AND step = ?3";
    let mut statement = db.prepare(query).map_err(inner)?;
    let named = [SUBJECT, VERB, Step::Done.name()];
    let rows = statement.query_map(named, |row| row.get::<_, String>(0)).map_err(inner)?;
    let mut seals = BTreeMap::new();
    for body in rows {
        if let Ok(part) = serde_json::from_str::<Part>(&body.map_err(inner)?) {
            seals.insert(part.last, part.hash);
        }
    }
    Ok(seals)
}

impl Store {
    /// The directory that parts are in.
    pub fn parts(&self) -> PathBuf {
        self.path.with_file_name(DIR)
    }

    /// Moves the entries up to number `last` out of the database. None where there are none, or somebody else was quicker; a journal
    /// that is not as it was written stays as it is.
    pub fn archive(&self, last: u64, actor: &str, at_ms: u64) -> Result<Option<Part>, Fault> {
        let parts = self.parts();
        let io = |e: io::Error| fault::around(&parts, &e);
        let anchors = self.head.entries();
        let Some(begin) = self.read(|tx| begin_of(tx.db, last))? else { return Ok(None) };
        let name = parts.join(format!("{:012}-{last:012}.jsonl", begin.0 + 1));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&parts).map_err(io)?;
        let hash = match self.read(|tx| copy(tx.db, &begin, last, &name, &anchors)) {
            Ok(hash) => hash,
            // Whoever was quicker has tidied up behind himself, and what we were writing was no more than what he wrote.
            Err(_) if self.read(|tx| begin_of(tx.db, last))?.as_ref() != Some(&begin) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let part = Part { first: begin.0 + 1, last, hash };
        let cut = self.write(|tx| {
            // What was read is what goes: another may have cut it meanwhile.
            if begin_of(tx.db, last)?.as_ref() != Some(&begin) {
                return Ok(false);
            }
            let body = json!(part);
            tx.note(&Entry { at_ms, verb: VERB, step: Step::Done, subject: SUBJECT, actor, body })?;
            tx.db.execute("DELETE FROM journal WHERE seq <= ?1", [last as i64]).map_err(inner)?;
            Ok(true)
        })?;
        if cut {
            tidy(&parts, &name, part.first);
        }
        Ok(cut.then_some(part))
    }

    /// Goes along the parts that are here. How many entries they hold, all as they were written; or the first that is not.
    pub(crate) fn verify_parts(&self) -> Result<Result<u64, Broken>, Fault> {
        let mut seals = self.read(|tx| seals(tx.db))?;
        let mut names: Vec<PathBuf> =
            std::fs::read_dir(self.parts()).into_iter().flatten().flatten().map(|e| e.path()).collect();
        names.retain(|name| name.extension().is_some_and(|end| end == "jsonl"));
        names.sort();
        let mut entries = 0;
        // The last first: what tells of the end of a part stands in a later one, or in the database.
        for name in names.iter().rev() {
            match verify_part(name, &mut seals) {
                Ok(more) => entries += more,
                Err((seq, why)) => return Ok(Err(Broken { seq, why: format!("{}: {why}", name.display()) })),
            }
        }
        Ok(Ok(entries))
    }
}

/// What the first entry follows upon, where there is one to be cut off and something stays behind it.
fn begin_of(db: &Connection, last: u64) -> Result<Option<(u64, String)>, Fault> {
    let (before, hash) = start(db)?;
    let newest: i64 = db.query_row("SELECT coalesce(max(seq), 0) FROM journal", [], |row| row.get(0)).map_err(inner)?;
    Ok((before < last && last < newest as u64).then_some((before, hash)))
}

/// Writes entries to a file of their own, along their chain; the hash of the last.
fn copy(
    db: &Connection,
    begin: &(u64, String),
    last: u64,
    name: &Path,
    anchors: &BTreeMap<u64, String>,
) -> Result<String, Fault> {
    let part = name.with_extension("part");
    let io = |e: io::Error| fault::around(&part, &e);
    let _ = std::fs::remove_file(&part);
    let file = File::options().write(true).create_new(true).mode(0o600).open(&part).map_err(io)?;
    let mut out = BufWriter::new(file);
    put(&mut out, &Head { first: begin.0 + 1, before: begin.1.clone() }).map_err(io)?;
    let mut statement = db.prepare(&format!("{QUERY} WHERE seq <= ?1 ORDER BY seq")).map_err(inner)?;
    let mut rows = statement.query([last as i64]).map_err(inner)?;
    let (mut at, mut hash) = begin.clone();
    while let Some(next) = rows.next().map_err(inner)? {
        hash = follow(&hash, at + 1, next, anchors).map_err(|why| broken(at + 1, &why))?;
        at += 1;
        put(&mut out, &Line::of(row(next).map_err(inner)?)).map_err(io)?;
    }
    if at != last {
        return Err(broken(at + 1, "it is missing"));
    }
    let file = out.into_inner().map_err(|e| io(e.into_error()))?;
    file.sync_all().map_err(io)?;
    std::fs::rename(&part, name).map_err(io)?;
    crate::backup::sync_above(name);
    Ok(hash)
}

/// Takes away what one left who was killed before his part was cut off: it begins where this one does, and holds nothing that this
/// one does not. A part that says anything else stays, whoever wrote it.
fn tidy(parts: &Path, done: &Path, first: u64) {
    let begins = format!("{first:012}-");
    for entry in std::fs::read_dir(parts).into_iter().flatten().flatten() {
        let (path, file) = (entry.path(), entry.file_name());
        if path == done || !file.to_string_lossy().starts_with(&begins) {
            continue;
        }
        let unfinished = path.extension().is_some_and(|end| end == "part");
        if unfinished || is_beginning(&path, done).unwrap_or(false) {
            let _it_is_no_part_of_the_journal = std::fs::remove_file(&path);
        }
    }
}

/// Whether a file is the beginning of another, byte for byte.
fn is_beginning(short: &Path, long: &Path) -> io::Result<bool> {
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

fn broken(seq: u64, why: &str) -> Fault {
    let message = format!("entry {seq} of the journal is not as it was written: {why}; nothing of it is archived");
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Admission);
    fault.hint("see `cofferdam audit verify`, and bring back a copy that is sound")
}

/// Goes along one part: its own chain, and its end as later entries tell it. What it tells of earlier parts is added.
fn verify_part(name: &Path, seals: &mut BTreeMap<u64, String>) -> Result<u64, (u64, String)> {
    let mut lines = BufReader::new(File::open(name).map_err(|e| (0, e.to_string()))?);
    let head: Head = next(&mut lines).map_err(|why| (0, why))?.ok_or_else(|| (0, "it is empty".to_owned()))?;
    let (mut last, mut hash) = (head.first.saturating_sub(1), head.before);
    if last == 0 && hash != BEGINNING {
        return Err((1, "it does not begin where the journal does".into()));
    }
    let mut told = Vec::new();
    while let Some(line) = next::<Line>(&mut lines).map_err(|why| (last + 1, why))? {
        if line.seq != last as i64 + 1 || !line.is_chained(&hash) {
            return Err((last + 1, "it is missing, or its hash does not cover what it says".into()));
        }
        told.extend(line.seal());
        (last, hash) = (last + 1, line.hash);
    }
    match seals.get(&last) {
        Some(known) if *known == hash => {}
        Some(_) => return Err((last, "a later entry tells of another end".into())),
        // Cut off and never told of, or told of in a part that is elsewhere: nobody here can say.
        None => return Ok(0),
    }
    seals.extend(told.into_iter().map(|part| (part.last, part.hash)));
    Ok((last + 1).saturating_sub(head.first))
}

fn next<T: serde::de::DeserializeOwned>(lines: &mut impl BufRead) -> Result<Option<T>, String> {
    let mut line = Vec::new();
    match lines.take(LONGEST_LINE).read_until(b'\n', &mut line).map_err(|e| e.to_string())? {
        0 => Ok(None),
        _ => serde_json::from_slice(&line).map(Some).map_err(|e| format!("it cannot be read: {e}")),
    }
}
