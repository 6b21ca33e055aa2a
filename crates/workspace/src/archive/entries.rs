//! Reader of the entries of an untrusted tar file, one at a time: resolves long names, refuses unsafe entries with the
//! reason, and reads into memory only names and extended headers, which are bounded.

use super::LONGEST_PATH;
use std::io::{self, Read};
use tar::{Archive, EntryType};
use terms::{ErrorKind, Fault};

/// Entry kinds that a reader accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptedKinds {
    /// Only kinds that `export` writes.
    OwnOnly,
    /// Kinds that other tar programs write as well: extended headers, hard links and FIFOs.
    Others,
    /// As `Others`, and devices, for a reader that creates none of them.
    Anything,
}

/// The largest extended header that is read.
const LARGEST_EXTENDED: u64 = 1 << 20;

/// Entry of the tar file with its long names resolved.
pub(super) struct TarEntry<'a, R: Read> {
    pub name: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: EntryType,
    pub size: u64,
    pub entry: tar::Entry<'a, R>,
}

pub(super) struct EntryReader<'a, R: Read> {
    entries: tar::Entries<'a, R>,
    takes: AcceptedKinds,
}

/// Names and size from GNU long-name entries and pax headers, which apply to the entry that follows.
#[derive(Default)]
struct PendingHeaders {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

impl<'a, R: Read> EntryReader<'a, R> {
    pub fn of(archive: &'a mut Archive<R>, takes: AcceptedKinds) -> Result<EntryReader<'a, R>, Fault> {
        Ok(EntryReader { entries: archive.entries().map_err(|e| unreadable(&e))?.raw(true), takes })
    }

    pub fn next(&mut self) -> Result<Option<TarEntry<'a, R>>, Fault> {
        let mut pending = PendingHeaders::default();
        for entry in self.entries.by_ref() {
            let mut entry = entry.map_err(|e| unreadable(&e))?;
            let kind = entry.header().entry_type();
            let size = entry.header().entry_size().map_err(|e| unreadable(&e))?;
            match (kind, self.takes) {
                (EntryType::GNULongName, _) => put_once(&mut pending.name, long_name(&mut entry, size)?)?,
                (EntryType::GNULongLink, _) => put_once(&mut pending.link, long_name(&mut entry, size)?)?,
                (EntryType::XHeader, AcceptedKinds::Others | AcceptedKinds::Anything) => {
                    pending.extend(&extended(&mut entry, size)?)?
                }
                // Global pax header; it cannot hold names of single files.
                (EntryType::XGlobalHeader, AcceptedKinds::Others | AcceptedKinds::Anything) => {
                    drop(extended(&mut entry, size)?)
                }
                _ => return pending.of(entry, kind, size, self.takes).map(Some),
            }
        }
        Ok(None)
    }
}

impl PendingHeaders {
    fn extend(&mut self, text: &[u8]) -> Result<(), Fault> {
        for (key, value) in records(text)? {
            match key {
                b"path" => put_once(&mut self.name, value.to_vec())?,
                b"linkpath" => put_once(&mut self.link, value.to_vec())?,
                b"size" => {
                    let size = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    self.size =
                        Some(size.ok_or_else(|| refused("an extended header has a size that is not a number"))?);
                }
                key if key.starts_with(b"GNU.sparse.") => return Err(refused("a sparse file; pack it without holes")),
                _ => {}
            }
        }
        Ok(())
    }

    fn of<R: Read>(
        self,
        entry: tar::Entry<'_, R>,
        kind: EntryType,
        size: u64,
        takes: AcceptedKinds,
    ) -> Result<TarEntry<'_, R>, Fault> {
        let header = entry.header();
        let name = self.name.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = self.link.unwrap_or_else(|| header.link_name_bytes().map(|l| l.into_owned()).unwrap_or_default());
        check_entry(&name, kind, takes)?;
        if self.size.is_some_and(|told| told != size) {
            return Err(refused(&format!("{}: its two headers give different sizes", shown(&name))));
        }
        Ok(TarEntry { name, link, kind, size, entry })
    }
}

fn put_once(place: &mut Option<Vec<u8>>, text: Vec<u8>) -> Result<(), Fault> {
    match place.replace(text).is_some() {
        true => Err(refused("an entry has two long names")),
        false => Ok(()),
    }
}

fn long_name<R: Read>(entry: &mut tar::Entry<'_, R>, size: u64) -> Result<Vec<u8>, Fault> {
    if size > LONGEST_PATH as u64 + 64 {
        return Err(refused("a name is too long"));
    }
    let mut text = Vec::new();
    entry.read_to_end(&mut text).map_err(|e| unreadable(&e))?;
    match text.pop() == Some(0) && !text.contains(&0) {
        true => Ok(text),
        false => Err(refused("a long name is malformed")),
    }
}

fn extended<R: Read>(entry: &mut tar::Entry<'_, R>, size: u64) -> Result<Vec<u8>, Fault> {
    if size > LARGEST_EXTENDED {
        return Err(refused("an extended header is too large"));
    }
    let mut text = Vec::new();
    entry.read_to_end(&mut text).map_err(|e| unreadable(&e))?;
    Ok(text)
}

/// A key and its value.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// Parses pax records of the form `LENGTH KEY=VALUE\n`; values may hold any bytes.
fn records(mut text: &[u8]) -> Result<Vec<Pair<'_>>, Fault> {
    let broken = || refused("an extended header is malformed");
    let mut found = Vec::new();
    while !text.is_empty() {
        let space = text.iter().position(|b| *b == b' ').ok_or_else(broken)?;
        let length = std::str::from_utf8(&text[..space]).ok().and_then(|n| n.parse::<usize>().ok());
        let length = length.filter(|length| *length > space + 1).ok_or_else(broken)?;
        let (line, rest) = text.split_at_checked(length).ok_or_else(broken)?;
        let line = line[space + 1..].strip_suffix(b"\n").ok_or_else(broken)?;
        let equals = line.iter().position(|b| *b == b'=').ok_or_else(broken)?;
        found.push((&line[..equals], &line[equals + 1..]));
        text = rest;
    }
    Ok(found)
}

/// Refuses absolute names, `..`, NUL bytes, overlong names and entry kinds that the reader does not accept.
fn check_entry(name: &[u8], kind: EntryType, takes: AcceptedKinds) -> Result<(), Fault> {
    let why = match kind {
        _ if name.starts_with(b"/") => "an absolute name",
        _ if name.split(|b| *b == b'/').any(|part| part == b"..") => "a name that leads out of the archive",
        _ if name.contains(&0) => "a name with a zero byte",
        _ if name.len() > LONGEST_PATH => "a name that is too long",
        EntryType::Regular | EntryType::Directory | EntryType::Symlink => return Ok(()),
        EntryType::Link | EntryType::Fifo | EntryType::Continuous if takes != AcceptedKinds::OwnOnly => return Ok(()),
        EntryType::Char | EntryType::Block if takes == AcceptedKinds::Anything => return Ok(()),
        EntryType::Link => "a hard link",
        EntryType::Char | EntryType::Block => "a device",
        EntryType::GNUSparse if takes != AcceptedKinds::OwnOnly => "a sparse file; pack it without holes",
        _ => "an entry of an unsupported type",
    };
    Err(refused(&format!("{}: {why}", shown(name))))
}

pub(super) fn refused(why: &str) -> Fault {
    let fault = Fault::invalid(format!("the file was refused: {why}"));
    fault.hint("nothing of it was kept; use a file that `cofferdam export` wrote")
}

pub(super) fn unreadable(error: &io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::FileTooLarge => {
            let fault = refused(&error.to_string());
            Fault { error_kind: ErrorKind::LimitExceeded, ..fault }
                .hint("nothing of it was kept; --max-size sets the limit on the unpacked size")
        }
        _ => refused(&format!("it is truncated or damaged: {error}")),
    }
}

pub(super) fn shown(name: &[u8]) -> String {
    let most = 200.min(name.len());
    name[..most].escape_ascii().to_string()
}
