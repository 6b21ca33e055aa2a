//! Questions to the resolvers of the host, and their answers. An answer comes from the network: whoever guesses the
//! number and the port may send one, so all that is not about the question is passed over.

use super::name::{self, Name};
use super::{
    CLASS_IN, FLAG_RECURSION_DESIRED, FLAG_RESPONSE, FLAG_TRUNCATED, Header, Kind, Rcode, Record, TYPE_CNAME, TYPE_OPT,
    query as asked, reply,
};
use crate::bytes::Bytes;
use std::net::{IpAddr, Ipv6Addr};

pub const MAX_ADDRESSES: usize = 64;
/// A datagram of this size passes every link that IPv6 runs on.
const UDP_SIZE: u16 = 1232;
const MAX_RECORDS: usize = 1024;
const MAX_ALIASES: usize = 16;

/// What a resolver said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Of the asked kind, each once, at most `MAX_ADDRESSES`.
    pub addresses: Vec<IpAddr>,
    /// For how long the addresses hold, in seconds; 0 when there are none.
    pub ttl: u32,
    pub rcode: Rcode,
    /// The answer did not fit a datagram: nothing of it was read, and it has to be asked for on a stream.
    pub truncated: bool,
}

/// Why a message is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerError {
    /// Not an answer to this question: the true one may still come.
    NotOurs(&'static str),
    /// An answer to this question that cannot be read.
    Bad(&'static str),
}

/// A question with recursion wanted and EDNS. `None` when the name is no host name.
pub fn query(id: u16, name: &str, kind: Kind) -> Option<Vec<u8>> {
    let name = Name::of_host(name)?;
    let mut out = Vec::new();
    let header = Header { id, flags: FLAG_RECURSION_DESIRED, questions: 1, answers: 0, authorities: 0, additionals: 1 };
    header.write(&mut out);
    out.extend(name.wire());
    out.extend(kind.number().to_be_bytes());
    out.extend(CLASS_IN.to_be_bytes());
    out.extend(reply::edns_record(UDP_SIZE, Rcode::NoError));
    Some(out)
}

/// Reads the answer to `query(id, name, kind)`.
pub fn parse_answer(message: &[u8], id: u16, name: &str, kind: Kind) -> Result<Answer, AnswerError> {
    let mut bytes = Bytes::new(message);
    let header = Header::read(&mut bytes).ok_or(AnswerError::NotOurs("it is shorter than a header"))?;
    let name = Name::of_host(name).ok_or(AnswerError::NotOurs("no such question can be asked"))?;
    check_is_ours(&header, &mut bytes, id, &name, kind)?;
    let low = header.flags & 0xf;
    if header.flags & FLAG_TRUNCATED != 0 {
        // What was cut off may be half of a set, and half of a set is as good as none.
        return Ok(Answer { addresses: Vec::new(), ttl: 0, rcode: low.into(), truncated: true });
    }
    let records = Records::read(&header, &mut bytes, kind)?;
    let rcode = Rcode::from(low | records.rcode_high << 4);
    let (addresses, ttl) = match rcode {
        Rcode::NoError => records.addresses_of(name)?,
        _ => (Vec::new(), 0),
    };
    Ok(Answer { addresses, ttl, rcode, truncated: false })
}

fn check_is_ours(header: &Header, bytes: &mut Bytes, id: u16, name: &Name, kind: Kind) -> Result<(), AnswerError> {
    let not_ours = |reason| Err(AnswerError::NotOurs(reason));
    if header.id != id {
        return not_ours("it has another number");
    }
    if header.flags & FLAG_RESPONSE == 0 || header.opcode() != 0 {
        return not_ours("it is no response to a query");
    }
    if header.questions != 1 || asked::question(bytes) != Some((name.clone(), kind.number(), CLASS_IN)) {
        return not_ours("it answers another question");
    }
    Ok(())
}

/// What an answer holds that matters: aliases, addresses of the asked kind, the upper bits of the outcome.
#[derive(Default)]
struct Records {
    aliases: Vec<(Name, Name, u32)>,
    addresses: Vec<(Name, IpAddr, u32)>,
    rcode_high: u16,
}

impl Records {
    fn read(header: &Header, bytes: &mut Bytes, kind: Kind) -> Result<Records, AnswerError> {
        let others = usize::from(header.authorities) + usize::from(header.additionals);
        if usize::from(header.answers) + others > MAX_RECORDS {
            return Err(AnswerError::Bad("it holds too many records"));
        }
        let cut = AnswerError::Bad("a record is cut short or malformed");
        let mut records = Records::default();
        for _ in 0..header.answers {
            let record = Record::read(bytes).ok_or(cut)?;
            records.keep(record, kind).ok_or(AnswerError::Bad("the data of a record has the wrong length"))?;
        }
        for _ in 0..others {
            let record = Record::read(bytes).ok_or(cut)?;
            if record.kind == TYPE_OPT && record.owner.is_root() {
                records.rcode_high = (record.raw_ttl >> 24) as u16;
            }
        }
        Ok(records)
    }

    fn keep(&mut self, record: Record, kind: Kind) -> Option<()> {
        let mut data = record.data;
        if record.class != CLASS_IN {
            return Some(());
        }
        if record.kind == TYPE_CNAME {
            self.aliases.push((record.owner, name::read(&mut data)?, record.ttl));
        } else if record.kind == kind.number() && kind == Kind::A {
            self.addresses.push((record.owner, IpAddr::from(data.array::<4>()?), record.ttl));
        } else if record.kind == kind.number() && kind == Kind::Aaaa {
            self.addresses.push((record.owner, Ipv6Addr::from(data.array::<16>()?).into(), record.ttl));
        } else {
            return Some(());
        }
        (data.at() == record.data_end).then_some(())
    }

    /// The addresses of the name at the end of the aliases, and how long all that led there holds. An address of any
    /// other name was not asked for, whoever put it there.
    fn addresses_of(self, mut name: Name) -> Result<(Vec<IpAddr>, u32), AnswerError> {
        let mut ttl = u32::MAX;
        let mut hops = 0;
        while let Some((_, target, held)) = self.aliases.iter().find(|(owner, _, _)| *owner == name) {
            hops += 1;
            if hops > MAX_ALIASES {
                return Err(AnswerError::Bad("its aliases are in a loop or too many"));
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
