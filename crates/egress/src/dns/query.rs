//! Parser for DNS queries of the guest.

use super::name::{self, Name};
use super::{
    CLASS_IN, FLAG_CHECKING_DISABLED, FLAG_RECURSION_DESIRED, FLAG_RESPONSE, HEADER, Header, Rcode, Record, RecordType,
    TYPE_OPT, reply,
};
use crate::byte_reader::ByteReader;

/// Limit on additional records, more than clients send: EDNS and a signature.
const MAX_ADDITIONALS: u16 = 8;

/// A valid query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    pub id: u16,
    /// Lower case, without the final dot; empty for the root. Bytes that no host name contains are escaped.
    pub name: String,
    /// True if `name` is a valid host name. Only host names are sent to a resolver.
    pub is_host: bool,
    pub record_type: RecordType,
    pub recursion: bool,
    /// Datagram size that the client announces with EDNS.
    pub udp_size: Option<u16>,
    /// Flags of the query that the reply repeats.
    pub(super) flags: u16,
    /// Question section as received: clients compare it, some of them case-sensitively (0x20 encoding).
    pub(super) echo: Vec<u8>,
}

/// A malformed query: the reason, and the error reply if one should be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadQuery {
    pub reason: &'static str,
    pub reply: Option<Vec<u8>>,
}

/// Parses one query. Bytes after the message are ignored, as resolvers do.
pub fn parse_query(message: &[u8]) -> Result<Query, BadQuery> {
    let mut bytes = ByteReader::new(message);
    let Some(header) = Header::read(&mut bytes) else {
        return Err(BadQuery { reason: "the message is shorter than a DNS header", reply: None });
    };
    if header.flags & FLAG_RESPONSE != 0 {
        // Replying to a response could start an endless exchange of errors.
        return Err(BadQuery { reason: "the message is a response", reply: None });
    }
    read(&header, &mut bytes).map_err(|(reason, rcode)| {
        let reply = reply::without_question(header.id, kept(header.flags) | header.opcode() << 11, rcode);
        BadQuery { reason, reply: Some(reply) }
    })
}

fn kept(flags: u16) -> u16 {
    flags & (FLAG_RECURSION_DESIRED | FLAG_CHECKING_DISABLED)
}

fn read(header: &Header, bytes: &mut ByteReader) -> Result<Query, (&'static str, Rcode)> {
    let malformed = |reason| (reason, Rcode::FormErr);
    if header.opcode() != 0 {
        return Err(("the opcode is not QUERY", Rcode::NotImp));
    }
    if header.questions != 1 {
        return Err(malformed("the message does not have exactly one question"));
    }
    if header.answers != 0 || header.authorities != 0 || header.additionals > MAX_ADDITIONALS {
        return Err(malformed("the message has records that no query has"));
    }
    let (name, kind, class) = question(bytes).ok_or(malformed("the question is cut short or malformed"))?;
    let echo = bytes.whole().get(HEADER..bytes.at()).unwrap_or_default().to_vec();
    if class != CLASS_IN {
        return Err(("the class is not IN", Rcode::Refused));
    }
    let udp_size = udp_size(header, bytes)?;
    Ok(Query {
        id: header.id,
        is_host: name.is_host(),
        name: name.text(),
        record_type: kind.into(),
        recursion: header.flags & FLAG_RECURSION_DESIRED != 0,
        udp_size,
        flags: kept(header.flags),
        echo,
    })
}

pub(super) fn question(bytes: &mut ByteReader) -> Option<(Name, u16, u16)> {
    Some((name::read_plain(bytes)?, bytes.u16()?, bytes.u16()?))
}

/// Returns the datagram size of the EDNS record, if there is one.
fn udp_size(header: &Header, bytes: &mut ByteReader) -> Result<Option<u16>, (&'static str, Rcode)> {
    let mut size = None;
    for _ in 0..header.additionals {
        let record = Record::read(bytes).ok_or(("a record is cut short or malformed", Rcode::FormErr))?;
        if record.kind != TYPE_OPT {
            continue;
        }
        if !record.owner.is_root() || size.is_some() {
            return Err(("the EDNS record is malformed or there are two", Rcode::FormErr));
        }
        size = Some(record.class);
    }
    Ok(size)
}
