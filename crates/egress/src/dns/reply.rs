//! Answers to a guest.

use super::{
    CLASS_IN, FLAG_RECURSION_AVAILABLE, FLAG_RESPONSE, FLAG_TRUNCATED, HEADER, Header, Kind, Question, Rcode, TYPE_OPT,
};
use std::net::IpAddr;

/// What every client takes in a datagram, and the most that one gets however much it takes.
const MIN_UDP: u16 = 512;
const MAX_UDP: u16 = 4096;
/// The record of EDNS has no owner, no data, and this length.
const EDNS_LEN: usize = 11;
/// A pointer to the name in the question, which always stands at the same place.
const OWNER: [u8; 2] = [0xc0, HEADER as u8];

/// An answer that fits the datagram that the client takes. Addresses of the other family than asked for are left out;
/// those that do not fit are too, and then the answer says that it is truncated.
pub fn answer(question: &Question, rcode: Rcode, records: &[IpAddr], ttl: u32) -> Vec<u8> {
    let size = question.udp_size.unwrap_or(MIN_UDP).clamp(MIN_UDP, MAX_UDP);
    build(question, rcode, records, ttl, size.into())
}

/// The same for a client on a stream; the two bytes of length that go before it are the caller's.
pub fn answer_on_stream(question: &Question, rcode: Rcode, records: &[IpAddr], ttl: u32) -> Vec<u8> {
    build(question, rcode, records, ttl, u16::MAX.into())
}

/// What can be said about a message whose question cannot be given back.
pub(super) fn without_question(id: u16, flags: u16, rcode: Rcode) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER);
    let flags = FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE | flags | rcode.number() & 0xf;
    Header { id, flags, questions: 0, answers: 0, authorities: 0, additionals: 0 }.write(&mut out);
    out
}

fn build(question: &Question, rcode: Rcode, records: &[IpAddr], ttl: u32, size: usize) -> Vec<u8> {
    let edns = question.udp_size.is_some();
    let room = size.saturating_sub(HEADER + question.echo.len() + if edns { EDNS_LEN } else { 0 });
    let wanted = records.iter().filter(|_| rcode == Rcode::NoError).filter_map(|addr| data(question.kind, *addr));
    let mut body = Vec::new();
    let (mut answers, mut truncated) = (0, 0);
    for data in wanted {
        let record = record(question.kind, ttl, &data);
        if body.len() + record.len() > room {
            truncated = FLAG_TRUNCATED;
            break;
        }
        body.extend(record);
        answers += 1;
    }
    let flags = FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE | question.flags | truncated | rcode.number() & 0xf;
    let mut out = Vec::with_capacity(size.min(HEADER + question.echo.len() + body.len() + EDNS_LEN));
    Header { id: question.id, flags, questions: 1, answers, authorities: 0, additionals: edns.into() }.write(&mut out);
    out.extend(&question.echo);
    out.extend(body);
    if edns {
        out.extend(edns_record(MAX_UDP, rcode));
    }
    out
}

/// The data of a record of the kind asked for, if the address makes one.
fn data(kind: Kind, addr: IpAddr) -> Option<Vec<u8>> {
    match (kind, addr) {
        (Kind::A, IpAddr::V4(addr)) => Some(addr.octets().to_vec()),
        (Kind::Aaaa, IpAddr::V6(addr)) => Some(addr.octets().to_vec()),
        _ => None,
    }
}

fn record(kind: Kind, ttl: u32, data: &[u8]) -> Vec<u8> {
    let mut out = OWNER.to_vec();
    out.extend(kind.number().to_be_bytes());
    out.extend(CLASS_IN.to_be_bytes());
    out.extend(ttl.min(i32::MAX as u32).to_be_bytes());
    out.extend((data.len() as u16).to_be_bytes());
    out.extend(data);
    out
}

/// EDNS, version 0, without options: the size of a datagram and the upper bits of the outcome.
pub(super) fn edns_record(size: u16, rcode: Rcode) -> [u8; EDNS_LEN] {
    let ([kind_high, kind_low], [size_high, size_low]) = (TYPE_OPT.to_be_bytes(), size.to_be_bytes());
    [0, kind_high, kind_low, size_high, size_low, (rcode.number() >> 4) as u8, 0, 0, 0, 0, 0]
}
