//! Queries to the host's resolvers, and parser for their responses. Any sender that guesses id and port can forge a
//! response, so records that do not answer the question are ignored.

use super::name::{self, Name};
use super::{
    CLASS_IN, FLAG_RECURSION_DESIRED, FLAG_RESPONSE, FLAG_TRUNCATED, Header, Rcode, Record, RecordType, TYPE_CNAME,
    TYPE_OPT, query as asked, reply,
};
use crate::byte_reader::ByteReader;
use std::net::{IpAddr, Ipv6Addr};

pub const MAX_ADDRESSES: usize = 64;
/// Advertised datagram size, which passes every IPv6 link without fragmentation.
const UDP_SIZE: u16 = 1232;
const MAX_RECORDS: usize = 1024;
const MAX_ALIASES: usize = 16;

/// Parsed response of a resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Unique addresses of the queried type, at most `MAX_ADDRESSES`.
    pub addresses: Vec<IpAddr>,
    /// Time to live of the addresses in seconds; 0 if there are none.
    pub ttl: u32,
    pub rcode: Rcode,
    /// The response was truncated: none of it was parsed, and the query has to be repeated over TCP.
    pub truncated: bool,
}

/// Reason for rejecting a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// Not a response to this query: the right one may still arrive.
    NotOurs(&'static str),
    /// A response to this query that is malformed.
    Bad(&'static str),
}

/// Builds a query with recursion desired and EDNS. Returns `None` if the name is no host name.
pub fn build_query(id: u16, name: &str, record_type: RecordType) -> Option<Vec<u8>> {
    let name = Name::of_host(name)?;
    let mut out = Vec::new();
    let header = Header { id, flags: FLAG_RECURSION_DESIRED, questions: 1, answers: 0, authorities: 0, additionals: 1 };
    header.write(&mut out);
    out.extend(name.wire());
    out.extend(record_type.number().to_be_bytes());
    out.extend(CLASS_IN.to_be_bytes());
    out.extend(reply::edns_record(UDP_SIZE, Rcode::NoError));
    Some(out)
}

/// Parses the response to `build_query(id, name, record_type)`.
pub fn parse_response(message: &[u8], id: u16, name: &str, record_type: RecordType) -> Result<Response, ResponseError> {
    let mut bytes = ByteReader::new(message);
    let header = Header::read(&mut bytes).ok_or(ResponseError::NotOurs("the message is shorter than a DNS header"))?;
    let name = Name::of_host(name).ok_or(ResponseError::NotOurs("no such question can be asked"))?;
    check_is_ours(&header, &mut bytes, id, &name, record_type)?;
    let low = header.flags & 0xf;
    if header.flags & FLAG_TRUNCATED != 0 {
        // A truncated answer may contain half of a record set, which is useless.
        return Ok(Response { addresses: Vec::new(), ttl: 0, rcode: low.into(), truncated: true });
    }
    let records = Records::read(&header, &mut bytes, record_type)?;
    let rcode = Rcode::from(low | records.rcode_high << 4);
    let (addresses, ttl) = match rcode {
        Rcode::NoError => records.addresses_of(name)?,
        _ => (Vec::new(), 0),
    };
    Ok(Response { addresses, ttl, rcode, truncated: false })
}

fn check_is_ours(
    header: &Header,
    bytes: &mut ByteReader,
    id: u16,
    name: &Name,
    record_type: RecordType,
) -> Result<(), ResponseError> {
    let not_ours = |reason| Err(ResponseError::NotOurs(reason));
    if header.id != id {
        return not_ours("the message has another id");
    }
    if header.flags & FLAG_RESPONSE == 0 || header.opcode() != 0 {
        return not_ours("the message is no response to a query");
    }
    if header.questions != 1 || asked::question(bytes) != Some((name.clone(), record_type.number(), CLASS_IN)) {
        return not_ours("the message answers another question");
    }
    Ok(())
}

/// Relevant records of a response: aliases, addresses of the queried type, upper bits of the response code.
#[derive(Default)]
struct Records {
    aliases: Vec<(Name, Name, u32)>,
    addresses: Vec<(Name, IpAddr, u32)>,
    rcode_high: u16,
}

impl Records {
    fn read(header: &Header, bytes: &mut ByteReader, record_type: RecordType) -> Result<Records, ResponseError> {
        let others = usize::from(header.authorities) + usize::from(header.additionals);
        if usize::from(header.answers) + others > MAX_RECORDS {
            return Err(ResponseError::Bad("the response has too many records"));
        }
        let cut = ResponseError::Bad("a record is cut short or malformed");
        let mut records = Records::default();
        for _ in 0..header.answers {
            let record = Record::read(bytes).ok_or(cut)?;
            records.keep(record, record_type).ok_or(ResponseError::Bad("the data of a record has the wrong length"))?;
        }
        for _ in 0..others {
            let record = Record::read(bytes).ok_or(cut)?;
            if record.kind == TYPE_OPT && record.owner.is_root() {
                records.rcode_high = (record.raw_ttl >> 24) as u16;
            }
        }
        Ok(records)
    }

    fn keep(&mut self, record: Record, record_type: RecordType) -> Option<()> {
        let mut data = record.data;
        if record.class != CLASS_IN {
            return Some(());
        }
        if record.kind == TYPE_CNAME {
            self.aliases.push((record.owner, name::read(&mut data)?, record.ttl));
        } else if record.kind == record_type.number() && record_type == RecordType::A {
            self.addresses.push((record.owner, IpAddr::from(data.array::<4>()?), record.ttl));
        } else if record.kind == record_type.number() && record_type == RecordType::Aaaa {
            self.addresses.push((record.owner, Ipv6Addr::from(data.array::<16>()?).into(), record.ttl));
        } else {
            return Some(());
        }
        (data.at() == record.data_end).then_some(())
    }

    /// Follows the CNAME chain and returns the addresses at its end, with the smallest TTL on the way. Addresses of
    /// other names may be forged and are ignored.
    fn addresses_of(self, mut name: Name) -> Result<(Vec<IpAddr>, u32), ResponseError> {
        let mut ttl = u32::MAX;
        let mut hops = 0;
        while let Some((_, target, held)) = self.aliases.iter().find(|(owner, _, _)| *owner == name) {
            hops += 1;
            if hops > MAX_ALIASES {
                return Err(ResponseError::Bad("the CNAME chain is a loop or too long"));
            }
            ttl = ttl.min(*held);
            name = target.clone();
        }
        let mut addresses = Vec::new();
        for (_, addr, held) in self.addresses.iter().filter(|(owner, _, _)| *owner == name) {
            if addresses.len() < MAX_ADDRESSES && !addresses.contains(addr) {
                addresses.push(*addr);
                ttl = ttl.min(*held);
            }
        }
        let ttl = if addresses.is_empty() { 0 } else { ttl };
        Ok((addresses, ttl))
    }
}
