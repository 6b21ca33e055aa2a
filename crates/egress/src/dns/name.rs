//! Domain names in messages, normalised to lower case without compression, so that comparing names is comparing bytes.
//! Bytes that no host name contains are kept and never look like a dot.

use super::HEADER;
use crate::byte_reader::ByteReader;
use policy::HostName;

const MAX: usize = 255;
const MAX_LABEL: usize = 63;
/// Limit on compression pointers: a name has no more labels than this, and a longer chain would only cost time.
const MAX_POINTERS: usize = 127;

/// Length-prefixed labels with the empty label at the end; at most 255 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name(Vec<u8>);

impl Name {
    /// Encodes a host name. Returns `None` for an address, an empty text, or an invalid character.
    pub fn of_host(text: &str) -> Option<Name> {
        let Ok(HostName::Name(text)) = HostName::parse(text) else {
            return None;
        };
        let mut wire = Vec::with_capacity(text.len() + 2);
        for label in text.split('.') {
            wire.push(u8::try_from(label.len()).ok().filter(|len| usize::from(*len) <= MAX_LABEL)?);
            wire.extend(label.bytes());
        }
        wire.push(0);
        (wire.len() <= MAX).then_some(Name(wire))
    }

    pub fn wire(&self) -> &[u8] {
        &self.0
    }

    /// Returns true for the root name, which has no labels.
    pub fn is_root(&self) -> bool {
        self.0 == [0]
    }

    fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut bytes = ByteReader::new(&self.0);
        std::iter::from_fn(move || bytes.u8_prefixed().filter(|label| !label.is_empty()))
    }

    /// Formats the name with dots between labels. Ambiguous bytes are escaped.
    pub fn text(&self) -> String {
        let labels = self.labels().map(|label| label.escape_ascii().to_string().replace('.', "\\."));
        labels.collect::<Vec<_>>().join(".")
    }

    /// Returns true if the text is a valid host name. Escapes contain a backslash, so they never are.
    pub fn is_host(&self) -> bool {
        matches!(HostName::parse(&self.text()), Ok(HostName::Name(name)) if name == self.text())
    }
}

/// Reads a name that may end in a compression pointer.
pub(super) fn read(bytes: &mut ByteReader) -> Option<Name> {
    let mut wire = Vec::new();
    let mut here = *bytes;
    // Each pointer must lead before everything read so far: offsets only decrease, so the walk ends.
    let mut floor = here.at();
    let mut after = None;
    for _ in 0..=MAX_POINTERS {
        let Some(target) = labels(&mut here, &mut wire)? else {
            *bytes = after.unwrap_or(here);
            return Some(Name(wire));
        };
        after.get_or_insert(here);
        if target < HEADER || target >= floor {
            return None;
        }
        floor = target;
        here = ByteReader::from(bytes.whole(), target);
    }
    None
}

/// Reads an uncompressed name, as in a question.
pub(super) fn read_plain(bytes: &mut ByteReader) -> Option<Name> {
    let mut wire = Vec::new();
    match labels(bytes, &mut wire)? {
        None => Some(Name(wire)),
        Some(_) => None,
    }
}

/// Reads labels up to the empty one (`None`) or up to a pointer, and then returns its target.
fn labels(bytes: &mut ByteReader, wire: &mut Vec<u8>) -> Option<Option<usize>> {
    loop {
        let len = bytes.u8()?;
        match len >> 6 {
            0b00 => {}
            0b11 => return Some(Some(usize::from(len & 0x3f) << 8 | usize::from(bytes.u8()?))),
            _ => return None,
        }
        let label = bytes.take(len.into())?;
        wire.push(len);
        wire.extend(label.iter().map(u8::to_ascii_lowercase));
        if wire.len() > MAX {
            return None;
        }
        if len == 0 {
            return Some(None);
        }
    }
}
