//! Names as they stand in a message. Read into one form (lower case, no compression), so that comparing two names is
//! comparing bytes; bytes that no host name holds stay what they are and never look like a dot.

use super::HEADER;
use crate::bytes::Bytes;
use policy::HostName;

const MAX: usize = 255;
const MAX_LABEL: usize = 63;
/// A name has no more labels than this, so it needs no more pointers; a chain of them would only cost time.
const MAX_POINTERS: usize = 127;

/// Labels with their lengths before them, and the empty label at the end; at most 255 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name(Vec<u8>);

impl Name {
    /// A host name in wire form. `None` for what is no name: an address, an empty text, an odd character.
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

    /// Whether it is the name of everything: no labels.
    pub fn is_root(&self) -> bool {
        self.0 == [0]
    }

    fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut bytes = Bytes::new(&self.0);
        std::iter::from_fn(move || bytes.short_run().filter(|label| !label.is_empty()))
    }

    /// The text with dots between labels. A byte that would be taken for something else is escaped.
    pub fn text(&self) -> String {
        let labels = self.labels().map(|label| label.escape_ascii().to_string().replace('.', "\\."));
        labels.collect::<Vec<_>>().join(".")
    }

    /// Whether the text is a name that a host can have. Escapes hold a backslash, so they never are.
    pub fn is_host(&self) -> bool {
        matches!(HostName::parse(&self.text()), Ok(HostName::Name(name)) if name == self.text())
    }
}

/// Reads a name that may end in a pointer to an earlier one.
pub(super) fn read(bytes: &mut Bytes) -> Option<Name> {
    let mut wire = Vec::new();
    let mut here = *bytes;
    // Each pointer must lead before everything read so far: the places only fall, so the walk ends.
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
        here = Bytes::from(bytes.whole(), target);
    }
    None
}

/// Reads a name that is written out in full, as in a question.
pub(super) fn read_plain(bytes: &mut Bytes) -> Option<Name> {
    let mut wire = Vec::new();
    match labels(bytes, &mut wire)? {
        None => Some(Name(wire)),
        Some(_) => None,
    }
}

/// Labels up to the empty one, or up to a pointer: then where it points.
fn labels(bytes: &mut Bytes, wire: &mut Vec<u8>) -> Option<Option<usize>> {
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
