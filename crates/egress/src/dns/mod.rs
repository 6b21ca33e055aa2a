//! DNS messages in both directions: queries of the guest with their replies, and queries to the host's resolvers with
//! their responses.
//!
//! Only addresses are returned. A guest learns no other record from a resolver, and the rules decide which names it may
//! resolve.

mod name;
mod query;
mod reply;
mod upstream;

use crate::byte_reader::ByteReader;

pub use query::{BadQuery, Query, parse_query};
pub use reply::{tcp_reply, udp_reply};
pub use upstream::{MAX_ADDRESSES, Response, ResponseError, build_query, parse_response};

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

/// Record type of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordType {
    A,
    Aaaa,
    Other(u16),
}

impl RecordType {
    pub fn number(self) -> u16 {
        match self {
            RecordType::A => TYPE_A,
            RecordType::Aaaa => TYPE_AAAA,
            RecordType::Other(number) => number,
        }
    }
}

impl From<u16> for RecordType {
    fn from(number: u16) -> RecordType {
        match number {
            TYPE_A => RecordType::A,
            TYPE_AAAA => RecordType::Aaaa,
            other => RecordType::Other(other),
        }
    }
}

/// DNS response code. `NoError` without records says that the name exists and has no record of the type.
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
    /// The twelve-bit code: the lower four bits are in the header, the upper eight in the EDNS record.
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

/// Message header.
struct Header {
    id: u16,
    flags: u16,
    questions: u16,
    answers: u16,
    authorities: u16,
    additionals: u16,
}

impl Header {
    fn read(bytes: &mut ByteReader) -> Option<Header> {
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

/// A resource record, its owner in lower case and its data at its position in the message.
struct Record<'a> {
    owner: name::Name,
    kind: u16,
    class: u16,
    ttl: u32,
    /// The TTL field as received: EDNS stores flags and code bits there.
    raw_ttl: u32,
    data: ByteReader<'a>,
    data_end: usize,
}

impl<'a> Record<'a> {
    fn read(bytes: &mut ByteReader<'a>) -> Option<Record<'a>> {
        let owner = name::read(bytes)?;
        let (kind, class, raw_ttl) = (bytes.u16()?, bytes.u16()?, bytes.u32()?);
        let len = bytes.u16()?;
        let data = *bytes;
        bytes.take(len.into())?;
        // RFC 2181 reads a TTL with its highest bit set as zero.
        let ttl = if raw_ttl > i32::MAX as u32 { 0 } else { raw_ttl };
        Some(Record { owner, kind, class, ttl, raw_ttl, data, data_end: bytes.at() })
    }
}
