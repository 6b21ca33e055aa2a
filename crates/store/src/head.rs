//! `journal.head`: how far the journal went, remembered outside the database. Each line is the number and the hash of an entry
//! that was committed, so that a journal that lost its end, or was exchanged, is noticed.
//!
//! Lines are added when the commit is on the disk and may be missing when a crash came between: the head may lag, and never leads.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// When the file is longer, it is begun anew with its last lines.
const LONGEST: u64 = 64 << 10;
const LINES_KEPT: usize = 64;

/// Stands where the hash of entry 0 would, if there were one.
const BEGINNING: &str = "beginning";

#[derive(Clone, Debug)]
pub struct Head {
    path: PathBuf,
}

impl Head {
    pub fn of(dir: &Path) -> Head {
        Head { path: dir.join("journal.head") }
    }

    /// Makes the file for a journal that has `last` as its last entry, unless it is there.
    pub fn begin(&self, last: Option<(u64, String)>) -> io::Result<()> {
        if self.path.exists() {
            return Ok(());
        }
        self.replace(&line(last.as_ref().map_or((0, BEGINNING), |(seq, hash)| (*seq, hash))))
    }

    /// Remembers an entry. It is on the disk already, so that a failure here only makes the head lag.
    pub fn advance(&self, seq: u64, hash: &str) {
        let file = OpenOptions::new().append(true).custom_flags(libc_nofollow()).open(&self.path);
        let Ok(mut file) = file else { return };
        let _ = file.write_all(line((seq, hash)).as_bytes());
        if file.metadata().is_ok_and(|meta| meta.len() > LONGEST) {
            let kept = self.entries();
            let kept = kept.iter().skip(kept.len().saturating_sub(LINES_KEPT));
            let text: String = kept.map(|(seq, hash)| line((*seq, hash))).collect();
            let _ = self.replace(&text);
        }
    }

    /// Every entry that is remembered; lines that were cut by a crash are none. Where a power failure took what was added last, a
    /// file system may keep its length, and show zeros there.
    pub fn entries(&self) -> BTreeMap<u64, String> {
        let mut text = Vec::new();
        let file = File::open(&self.path).map(|file| file.take(4 * LONGEST));
        if file.and_then(|mut file| file.read_to_end(&mut text)).is_err() {
            return BTreeMap::new();
        }
        let text = String::from_utf8_lossy(&text);
        text.split(['\n', '\0']).filter_map(parse).collect()
    }

    /// The last entry that is remembered; 0 where there is none.
    pub fn furthest(&self) -> u64 {
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

/// Begins with a line's end: the line before may have been cut by a crash.
fn line((seq, hash): (u64, &str)) -> String {
    format!("\n{seq} {hash}")
}

fn parse(line: &str) -> Option<(u64, String)> {
    let (seq, hash) = line.split_once(' ')?;
    let whole = hash == BEGINNING || hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    whole.then_some((seq.parse().ok()?, hash.to_owned()))
}

fn libc_nofollow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits() as i32
}
