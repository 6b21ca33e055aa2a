//! DNS messages, in both directions: what a guest asks and is told, what the resolvers of the host are asked and tell.
//!
//! Only addresses are told. A guest learns nothing else from a resolver, and the broker alone says which names it may
//! ask for.

mod name;
mod query;
mod reply;
mod upstream;

use crate::bytes::Bytes;

pub use query::{BadQuery, Question, parse_query};
pub use reply::{answer, answer_on_stream};
pub use upstream::{Answer, AnswerError, MAX_ADDRESSES, parse_answer, query};

const HEADER: usize = 12;
const CLASS_IN: u16 = 1;
const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_AAAA: u16 = 28;
const TYPE_OPT: u16 = 41;

const FLAG_RESPONSE: u16 = 0x8000;
const FLAG_TRUNCATED: u16 = 0x0200;
const FLAG_RECURSION_DESIRED: u16 = 0x0100;
const FLAG_RECURSION_AVAILABLE: u16 = 0x0080;
const FLAG_CHECKING_DISABLED: u16 = 0x0010;

/// What is asked about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    A,
    Aaaa,
    Other(u16),
}

impl Kind {
    pub fn number(self) -> u16 {
        match self {
            Kind::A => TYPE_A,
            Kind::Aaaa => TYPE_AAAA,
            Kind::Other(number) => number,
        }
    }
}

impl From<u16> for Kind {
    fn from(number: u16) -> Kind {
        match number {
            TYPE_A => Kind::A,
            TYPE_AAAA => Kind::Aaaa,
            other => Kind::Other(other),
        }
    }
}

/// How a question ended. `NoError` without records says that the name exists and has none of the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rcode {
    NoError,
    FormErr,
    ServFail,
    NxDomain,
    NotImp,
    Refused,
    Other(u16),
}

impl Rcode {
    /// Twelve bits: the lower four stand in the header, the others in the EDNS record.
    pub fn number(self) -> u16 {
        match self {
            Rcode::NoError => 0,
            Rcode::FormErr => 1,
            Rcode::ServFail => 2,
            Rcode::NxDomain => 3,
            Rcode::NotImp => 4,
            Rcode::Refused => 5,
            Rcode::Other(number) => number & 0xfff,
        }
    }
}

impl From<u16> for Rcode {
    fn from(number: u16) -> Rcode {
        match number {
            0 => Rcode::NoError,
            1 => Rcode::FormErr,
            2 => Rcode::ServFail,
            3 => Rcode::NxDomain,
            4 => Rcode::NotImp,
            5 => Rcode::Refused,
            other => Rcode::Other(other & 0xfff),
        }
    }
}

/// The six numbers that every message starts with.
struct Header {
    id: u16,
    flags: u16,
    questions: u16,
    answers: u16,
    authorities: u16,
    additionals: u16,
}

impl Header {
    fn read(bytes: &mut Bytes) -> Option<Header> {
        Some(Header {
            id: bytes.u16()?,
            flags: bytes.u16()?,
            questions: bytes.u16()?,
            answers: bytes.u16()?,
            authorities: bytes.u16()?,
            additionals: bytes.u16()?,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        for number in [self.id, self.flags, self.questions, self.answers, self.authorities, self.additionals] {
            out.extend(number.to_be_bytes());
        }
    }

    fn opcode(&self) -> u16 {
        self.flags >> 11 & 0xf
    }
}

/// A resource record, its owner in lower case and its data where it stands in the message.
struct Record<'a> {
    owner: name::Name,
    kind: u16,
    class: u16,
    ttl: u32,
    /// The four bytes of the time as they came: EDNS keeps other things there.
    raw_ttl: u32,
    data: Bytes<'a>,
    data_end: usize,
}

impl<'a> Record<'a> {
    fn read(bytes: &mut Bytes<'a>) -> Option<Record<'a>> {
        let owner = name::read(bytes)?;
        let (kind, class, raw_ttl) = (bytes.u16()?, bytes.u16()?, bytes.u32()?);
        let len = bytes.u16()?;
        let data = *bytes;
        bytes.take(len.into())?;
        // A time with its highest bit set is no time at all: RFC 2181 reads it as zero.
        let ttl = if raw_ttl > i32::MAX as u32 { 0 } else { raw_ttl };
        Some(Record { owner, kind, class, ttl, raw_ttl, data, data_end: bytes.at() })
    }
}
