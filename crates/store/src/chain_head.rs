//! `journal.head`: the head of the journal's hash chain, remembered outside the database. Each line is the number and the hash of
//! an entry that was committed, so that a journal that lost its end, or was replaced, is noticed.
//!
//! Lines are added when the commit is on the disk and may be missing when a crash came between: the head may lag, and never leads.

use crate::backend::ChainLink;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Size beyond which the file is replaced by one with its last lines.
const MAX_BYTES: u64 = 64 << 10;
const LINES_KEPT: usize = 64;

/// Stands in the place of the hash of entry 0.
const BEGINNING: &str = "beginning";

const O_NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;

/// The file `journal.head` of a state directory.
#[derive(Clone, Debug)]
pub struct ChainHead {
    path: PathBuf,
}

impl ChainHead {
    pub fn of(dir: &Path) -> ChainHead {
        ChainHead { path: dir.join("journal.head") }
    }

    /// Creates the file for a journal with `last` as its last entry, unless it exists.
    pub fn create(&self, last: Option<&ChainLink>) -> io::Result<()> {
        if self.path.exists() {
            return Ok(());
        }
        self.replace(&line(last.map_or((0, BEGINNING), |link| (link.seq, &link.hash))))
    }

    /// Adds an entry that is on the disk already; a failure here only makes the head lag.
    pub fn advance(&self, link: &ChainLink) {
        let file = OpenOptions::new().append(true).custom_flags(O_NOFOLLOW).open(&self.path);
        let Ok(mut file) = file else { return };
        let _ = file.write_all(line((link.seq, &link.hash)).as_bytes());
        if file.metadata().is_ok_and(|meta| meta.len() > MAX_BYTES) {
            let kept = self.entries();
            let kept = kept.iter().skip(kept.len().saturating_sub(LINES_KEPT));
            let text: String = kept.map(|(seq, hash)| line((*seq, hash))).collect();
            let _ = self.replace(&text);
        }
    }

    /// Returns all remembered entries; lines that a crash cut are skipped. After a power failure a file system may keep the length
    /// of the file and show zeros in the place of the last lines.
    pub fn entries(&self) -> BTreeMap<u64, String> {
        let mut text = Vec::new();
        let file = File::open(&self.path).map(|file| file.take(4 * MAX_BYTES));
        if file.and_then(|mut file| file.read_to_end(&mut text)).is_err() {
            return BTreeMap::new();
        }
        let text = String::from_utf8_lossy(&text);
        text.split(['\n', '\0']).filter_map(parse).collect()
    }

    /// Returns the number of the last remembered entry; 0 where there is none.
    pub fn last_seq(&self) -> u64 {
        self.entries().into_keys().next_back().unwrap_or(0)
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let part = self.path.with_extension("head.part");
        let _ = std::fs::remove_file(&part);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&part, &self.path)
    }
}

/// Formats a line, newline first: the line before may have been cut by a crash.
fn line((seq, hash): (u64, &str)) -> String {
    format!("\n{seq} {hash}")
}

fn parse(line: &str) -> Option<(u64, String)> {
    let (seq, hash) = line.split_once(' ')?;
    let whole = hash == BEGINNING || hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    whole.then_some((seq.parse().ok()?, hash.to_owned()))
}
