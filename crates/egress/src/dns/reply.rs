//! Builder for DNS replies to the guest.

use super::{
    CLASS_IN, FLAG_RECURSION_AVAILABLE, FLAG_RESPONSE, FLAG_TRUNCATED, HEADER, Header, Query, Rcode, RecordType,
    TYPE_OPT,
};
use std::net::IpAddr;

/// Datagram size that every client accepts, and the upper limit whatever a client announces.
const MIN_UDP: u16 = 512;
const MAX_UDP: u16 = 4096;
/// Length of an EDNS record without options.
const EDNS_LEN: usize = 11;
/// Compression pointer to the name in the question, whose offset is fixed.
const OWNER: [u8; 2] = [0xc0, HEADER as u8];

/// Builds a reply that fits into the client's datagram size. Addresses of the other family are left out; addresses that
/// do not fit are left out with the truncation flag set.
pub fn udp_reply(query: &Query, rcode: Rcode, records: &[IpAddr], ttl: u32) -> Vec<u8> {
    let size = query.udp_size.unwrap_or(MIN_UDP).clamp(MIN_UDP, MAX_UDP);
    build(query, rcode, records, ttl, size.into())
}

/// Builds a reply for TCP; the caller adds the two-byte length prefix.
pub fn tcp_reply(query: &Query, rcode: Rcode, records: &[IpAddr], ttl: u32) -> Vec<u8> {
    build(query, rcode, records, ttl, u16::MAX.into())
}

/// Builds an error reply to a message whose question cannot be repeated.
pub(super) fn without_question(id: u16, flags: u16, rcode: Rcode) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER);
    let flags = FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE | flags | rcode.number() & 0xf;
    Header { id, flags, questions: 0, answers: 0, authorities: 0, additionals: 0 }.write(&mut out);
    out
}

fn build(query: &Query, rcode: Rcode, records: &[IpAddr], ttl: u32, size: usize) -> Vec<u8> {
    let edns = query.udp_size.is_some();
    let room = size.saturating_sub(HEADER + query.echo.len() + if edns { EDNS_LEN } else { 0 });
    let wanted = records.iter().filter(|_| rcode == Rcode::NoError).filter_map(|addr| data(query.record_type, *addr));
    let mut body = Vec::new();
    let (mut answers, mut truncated) = (0, 0);
    for data in wanted {
        let record = record(query.record_type, ttl, &data);
        if body.len() + record.len() > room {
            truncated = FLAG_TRUNCATED;
            break;
        }
        body.extend(record);
        answers += 1;
    }
    let flags = FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE | query.flags | truncated | rcode.number() & 0xf;
    let mut out = Vec::with_capacity(size.min(HEADER + query.echo.len() + body.len() + EDNS_LEN));
    Header { id: query.id, flags, questions: 1, answers, authorities: 0, additionals: edns.into() }.write(&mut out);
    out.extend(&query.echo);
    out.extend(body);
    if edns {
        out.extend(edns_record(MAX_UDP, rcode));
    }
    out
}

/// Encodes the address as record data if it matches the type.
fn data(record_type: RecordType, addr: IpAddr) -> Option<Vec<u8>> {
    match (record_type, addr) {
        (RecordType::A, IpAddr::V4(addr)) => Some(addr.octets().to_vec()),
        (RecordType::Aaaa, IpAddr::V6(addr)) => Some(addr.octets().to_vec()),
        _ => None,
    }
}

fn record(record_type: RecordType, ttl: u32, data: &[u8]) -> Vec<u8> {
    let mut out = OWNER.to_vec();
    out.extend(record_type.number().to_be_bytes());
    out.extend(CLASS_IN.to_be_bytes());
    out.extend(ttl.min(i32::MAX as u32).to_be_bytes());
    out.extend((data.len() as u16).to_be_bytes());
    out.extend(data);
    out
}

/// Builds an EDNS record of version 0 without options: datagram size and upper bits of the response code.
pub(super) fn edns_record(size: u16, rcode: Rcode) -> [u8; EDNS_LEN] {
    let ([kind_high, kind_low], [size_high, size_low]) = (TYPE_OPT.to_be_bytes(), size.to_be_bytes());
    [0, kind_high, kind_low, size_high, size_low, (rcode.number() >> 4) as u8, 0, 0, 0, 0, 0]
}
