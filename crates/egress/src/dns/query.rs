//! The question of a guest.

use super::name::{self, Name};
use super::{
    CLASS_IN, FLAG_CHECKING_DISABLED, FLAG_RECURSION_DESIRED, FLAG_RESPONSE, HEADER, Header, Kind, Rcode, Record,
    TYPE_OPT, reply,
};
use crate::bytes::Bytes;

/// More than any client adds to a question: EDNS and a signature.
const MAX_ADDITIONALS: u16 = 8;

/// A question that can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub id: u16,
    /// Lower case, without the final dot; empty for the root. Bytes that no host name holds are escaped.
    pub name: String,
    /// Whether `name` is a name that a host can have. Nothing else may be asked of a resolver.
    pub is_host: bool,
    pub kind: Kind,
    pub recursion: bool,
    /// The size of a datagram that the client takes, when it says one.
    pub udp_size: Option<u16>,
    /// What of the client's flags comes back with the answer.
    pub(super) flags: u16,
    /// The question as it was spelled: clients compare it, some of them with the case of letters.
    pub(super) echo: Vec<u8>,
}

/// Why a question cannot be answered, and the message that says so to the client, if it should be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadQuery {
    pub reason: &'static str,
    pub reply: Option<Vec<u8>>,
}

/// Reads one question. Bytes past the message are ignored, as resolvers do.
pub fn parse_query(message: &[u8]) -> Result<Question, BadQuery> {
    let mut bytes = Bytes::new(message);
    let Some(header) = Header::read(&mut bytes) else {
        return Err(BadQuery { reason: "it is shorter than a header", reply: None });
    };
    if header.flags & FLAG_RESPONSE != 0 {
        // Telling a responder that it is wrong would be the start of an endless exchange.
        return Err(BadQuery { reason: "it is a response", reply: None });
    }
    read(&header, &mut bytes).map_err(|(reason, rcode)| {
        let reply = reply::without_question(header.id, kept(header.flags) | header.opcode() << 11, rcode);
        BadQuery { reason, reply: Some(reply) }
    })
}

fn kept(flags: u16) -> u16 {
    flags & (FLAG_RECURSION_DESIRED | FLAG_CHECKING_DISABLED)
}

fn read(header: &Header, bytes: &mut Bytes) -> Result<Question, (&'static str, Rcode)> {
    let malformed = |reason| (reason, Rcode::FormErr);
    if header.opcode() != 0 {
        return Err(("it is no plain query", Rcode::NotImp));
    }
    if header.questions != 1 {
        return Err(malformed("it does not hold exactly one question"));
    }
    if header.answers != 0 || header.authorities != 0 || header.additionals > MAX_ADDITIONALS {
        return Err(malformed("it holds records that no query has"));
    }
    let (name, kind, class) = question(bytes).ok_or(malformed("the question is cut short or malformed"))?;
    let echo = bytes.whole().get(HEADER..bytes.at()).unwrap_or_default().to_vec();
    if class != CLASS_IN {
        return Err(("the class is not IN", Rcode::Refused));
    }
    let udp_size = udp_size(header, bytes)?;
    Ok(Question {
        id: header.id,
        is_host: name.is_host(),
        name: name.text(),
        kind: kind.into(),
        recursion: header.flags & FLAG_RECURSION_DESIRED != 0,
        udp_size,
        flags: kept(header.flags),
        echo,
    })
}

pub(super) fn question(bytes: &mut Bytes) -> Option<(Name, u16, u16)> {
    Some((name::read_plain(bytes)?, bytes.u16()?, bytes.u16()?))
}

/// What the EDNS record says, if there is one.
fn udp_size(header: &Header, bytes: &mut Bytes) -> Result<Option<u16>, (&'static str, Rcode)> {
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
