//! DNS queries of guests, replies to them, and responses of resolvers, valid and malformed.

use crate::input::corpus;
use egress::dns::{
    Rcode, RecordType, Response, ResponseError, build_query, parse_query, parse_response, tcp_reply, udp_reply,
};
use std::net::IpAddr;

const NAME: &str = "www.example.org";

fn message(flags: u16, counts: [u16; 4], rest: &[&[u8]]) -> Vec<u8> {
    let numbers = [0x1234, flags].into_iter().chain(counts);
    numbers.flat_map(u16::to_be_bytes).chain(rest.concat()).collect()
}

fn wire(name: &str) -> Vec<u8> {
    let labels = name.split('.').filter(|l| !l.is_empty());
    labels.flat_map(|l| [&[l.len() as u8], l.as_bytes()].concat()).chain([0]).collect()
}

fn asked(name: &str, kind: u16) -> Vec<u8> {
    [wire(name), kind.to_be_bytes().to_vec(), vec![0, 1]].concat()
}

fn record(owner: &[u8], kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u16).to_be_bytes();
    [owner, &kind.to_be_bytes(), &[0, 1], &ttl.to_be_bytes(), &len, data].concat()
}

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn questions_of_real_clients() {
    for (file, name, kind, udp_size) in [
        ("query-glibc-1", "www.example.org", RecordType::A, Some(1200)),
        ("query-glibc-28", "www.example.org", RecordType::Aaaa, Some(1200)),
        ("query-glibc-ptr-12", "1.2.0.192.in-addr.arpa", RecordType::Other(12), Some(1200)),
        ("query-node-1", "api.example.org", RecordType::A, None),
        ("query-node-mx-15", "example.org", RecordType::Other(15), None),
        ("query-python-28", "pypi.example.org", RecordType::Aaaa, Some(1200)),
    ] {
        let question = parse_query(&corpus(&format!("dns/{file}"))).unwrap_or_else(|e| panic!("{file}: {e:?}"));
        assert_eq!(
            (question.name.as_str(), question.record_type, question.udp_size, question.is_host, question.recursion),
            (name, kind, udp_size, true, true),
            "{file}"
        );
    }
}

#[test]
fn names_that_no_host_has_are_reported() {
    for (labels, text) in [
        (wire(""), ""),
        (b"\x03a.b\x03org\0".to_vec(), "a\\.b.org"),
        (b"\x03a\0b\x03org\0".to_vec(), "a\\x00b.org"),
        (b"\x02\xc3\xa9\x03org\0".to_vec(), "\\xc3\\xa9.org"),
        (wire("-a.org"), "-a.org"),
        (wire("a b.org"), "a b.org"),
        (wire("127.0.0.1"), "127.0.0.1"),
        (wire("0x7f.1"), "0x7f.1"),
        (wire("*.org"), "*.org"),
    ] {
        let question = parse_query(&message(0x100, [1, 0, 0, 0], &[&labels, &[0, 1, 0, 1]])).unwrap();
        assert_eq!((question.name.as_str(), question.is_host), (text, false));
        let refused = udp_reply(&question, Rcode::Refused, &[addr("192.0.2.1")], 1);
        assert_eq!(refused[12..], [&labels[..], &[0, 1, 0, 1]].concat(), "the question comes back and nothing else");
        assert_eq!(refused[..4], [0x12, 0x34, 0x81, 0x85]);
    }
    let underscore = parse_query(&message(0, [1, 0, 0, 0], &[&asked("_sip._TCP.example.org", 33)])).unwrap();
    assert!(underscore.is_host && !underscore.recursion && underscore.name == "_sip._tcp.example.org");
}

#[test]
fn bad_questions() {
    let long_label = [&[64u8][..], &[b'a'; 64], &[0, 0, 1, 0, 1]].concat();
    let long_name = [[&[63u8][..], &[b'a'; 63]].concat().repeat(4), vec![0, 0, 1, 0, 1]].concat();
    let edns = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
    let owned_edns = record(&wire("a"), 41, 0, &[]);
    let question = asked(NAME, 1);
    for (case, bytes, rcode) in [
        ("empty", vec![], None),
        ("short header", vec![0; 11], None),
        ("a response", message(0x8180, [1, 0, 0, 0], &[&question]), None),
        ("a notification", message(0x2000, [1, 0, 0, 0], &[&question]), Some(4)),
        ("no question", message(0x100, [0; 4], &[]), Some(1)),
        ("two questions", message(0x100, [2, 0, 0, 0], &[&question, &question]), Some(1)),
        ("an answer in it", message(0x100, [1, 1, 0, 0], &[&question, &record(&[0], 1, 0, &[1; 4])]), Some(1)),
        ("too many additionals", message(0x100, [1, 0, 0, 9], &[&question, &edns.repeat(9)]), Some(1)),
        ("question missing", message(0x100, [1, 0, 0, 0], &[]), Some(1)),
        ("question cut short", message(0x100, [1, 0, 0, 0], &[&question[..question.len() - 1]]), Some(1)),
        ("name cut short", message(0x100, [1, 0, 0, 0], &[b"\x09abc"]), Some(1)),
        ("compressed name", message(0x100, [1, 0, 0, 0], &[b"\xc0\x0c\0\x01\0\x01"]), Some(1)),
        ("long label", message(0x100, [1, 0, 0, 0], &[&long_label]), Some(1)),
        ("long name", message(0x100, [1, 0, 0, 0], &[&long_name]), Some(1)),
        ("reserved label", message(0x100, [1, 0, 0, 0], &[b"\x80abc\0\0\x01\0\x01"]), Some(1)),
        ("class CH", message(0x100, [1, 0, 0, 0], &[&wire(NAME), &[0, 1, 0, 3]]), Some(5)),
        ("two EDNS", message(0x100, [1, 0, 0, 2], &[&question, &edns, &edns]), Some(1)),
        ("EDNS with an owner", message(0x100, [1, 0, 0, 1], &[&question, &owned_edns]), Some(1)),
        ("EDNS cut short", message(0x100, [1, 0, 0, 1], &[&question, &edns[..10]]), Some(1)),
    ] {
        let bad = parse_query(&bytes).expect_err(case);
        assert_eq!(bad.reply.as_ref().map(|r| r[3] & 0xf), rcode, "{case}: {}", bad.reason);
        assert!(bad.reply.is_none_or(|r| r.len() == 12 && r[..2] == [0x12, 0x34] && r[2] & 0x80 != 0), "{case}");
    }
}

#[test]
fn bytes_past_a_question_are_ignored() {
    let plain = message(0x100, [1, 0, 0, 0], &[&asked(NAME, 1)]);
    let more = [&plain[..], b"garbage"].concat();
    assert_eq!(parse_query(&more), parse_query(&plain));
}

#[test]
fn the_longest_name_is_taken() {
    let labels = [[&[63u8][..], &[b'a'; 63]].concat().repeat(3), [&[61u8][..], &[b'a'; 61], &[0]].concat()].concat();
    assert_eq!(labels.len(), 255);
    let question = parse_query(&message(0x100, [1, 0, 0, 0], &[&labels, &[0, 1, 0, 1]])).unwrap();
    assert!(question.is_host && question.name.len() == 253);
    assert!(parse_query(&build_query(1, &question.name, RecordType::A).unwrap()).is_ok());
}

#[test]
fn what_is_asked_is_read_back() {
    for (name, kind) in
        [(NAME, RecordType::A), ("A.b-c._d.Org.", RecordType::Aaaa), ("localhost", RecordType::Other(65))]
    {
        let question = parse_query(&build_query(77, name, kind).unwrap()).unwrap();
        let spelled = name.trim_end_matches('.').to_ascii_lowercase();
        assert_eq!((question.id, question.name, question.record_type), (77, spelled, kind));
        assert_eq!((question.udp_size, question.recursion, question.is_host), (Some(1232), true, true));
    }
    for name in ["", ".", "a..b", "192.0.2.1", "::1", "a b", "é", &"a".repeat(64), &"a.".repeat(127)] {
        let taken = build_query(1, name, RecordType::A);
        assert_eq!(taken.is_some(), name.len() == 254, "{name:?}");
    }
}

#[test]
fn answers_are_read_back() {
    let records: Vec<IpAddr> = ["192.0.2.1", "2001:db8::1", "192.0.2.2"].map(addr).to_vec();
    for (kind, rcode, expected) in [
        (RecordType::A, Rcode::NoError, &["192.0.2.1", "192.0.2.2"][..]),
        (RecordType::Aaaa, Rcode::NoError, &["2001:db8::1"]),
        (RecordType::Other(15), Rcode::NoError, &[]),
        (RecordType::A, Rcode::NxDomain, &[]),
        (RecordType::A, Rcode::Refused, &[]),
        (RecordType::A, Rcode::ServFail, &[]),
        (RecordType::A, Rcode::Other(0x123), &[]),
    ] {
        let question = parse_query(&build_query(9, NAME, kind).unwrap()).unwrap();
        for bytes in [udp_reply(&question, rcode, &records, 60), tcp_reply(&question, rcode, &records, 60)] {
            let addresses: Vec<IpAddr> = expected.iter().map(|a| addr(a)).collect();
            let ttl = if addresses.is_empty() { 0 } else { 60 };
            let wanted = Response { addresses, ttl, rcode, truncated: false };
            assert_eq!(parse_response(&bytes, 9, NAME, kind), Ok(wanted));
        }
    }
}

#[test]
fn answers_fit_the_datagram() {
    let many: Vec<IpAddr> = (0..400u16).map(|n| IpAddr::from([192, 0, (n >> 8) as u8, n as u8])).collect();
    let plain = message(0x110, [1, 0, 0, 0], &[&asked("WWW.example.org", 1)]);
    for (udp_size, most) in [(None, 512), (Some(100u16), 512), (Some(1232), 1232), (Some(65535), 4096)] {
        let mut question = parse_query(&plain).unwrap();
        question.udp_size = udp_size;
        let bytes = udp_reply(&question, Rcode::NoError, &many, u32::MAX);
        assert!(bytes.len() <= most && bytes.len() > most - 16, "{} of {most}", bytes.len());
        assert_eq!(bytes[2] & 2, 2, "it says that it is truncated");
        assert_eq!(bytes[3] & 0x10, 0x10, "checking disabled comes back");
        assert_eq!(&bytes[12..29], b"\x03WWW\x07example\x03org\0", "the spelling of the client comes back");
        assert!(parse_response(&bytes, 0x1234, NAME, RecordType::A).unwrap().truncated);
        let whole = tcp_reply(&question, Rcode::NoError, &many, 1);
        let read = parse_response(&whole, 0x1234, NAME, RecordType::A).unwrap();
        assert_eq!((read.addresses.len(), read.truncated), (64, false));
    }
}

#[test]
fn answers_of_resolvers() {
    let none = |rcode| Response { addresses: vec![], ttl: 0, rcode, truncated: false };
    let some = |addresses: &[&str], ttl| Response {
        addresses: addresses.iter().map(|a| addr(a)).collect(),
        ttl,
        rcode: Rcode::NoError,
        truncated: false,
    };
    for (file, kind, expected) in [
        ("answer-a", RecordType::A, some(&["192.0.2.1", "192.0.2.2"], 200)),
        ("answer-aaaa", RecordType::Aaaa, some(&["2001:db8::1"], 300)),
        ("answer-cname", RecordType::A, some(&["198.51.100.9"], 20)),
        ("answer-nodata", RecordType::Aaaa, none(Rcode::NoError)),
        ("answer-nxdomain", RecordType::A, none(Rcode::NxDomain)),
        ("answer-servfail", RecordType::A, none(Rcode::ServFail)),
        ("answer-poison", RecordType::A, some(&["192.0.2.1"], 300)),
        ("answer-truncated", RecordType::A, Response { truncated: true, ..none(Rcode::NoError) }),
    ] {
        assert_eq!(parse_response(&corpus(&format!("dns/{file}")), 0x1234, NAME, kind), Ok(expected), "{file}");
    }
}

#[test]
fn aliases_are_followed_in_any_order() {
    let (here, there) = (wire("WWW.EXAMPLE.org"), wire("there.example.net"));
    let alias = record(&here, 5, 100, &there);
    let place = record(&wire("There.Example.NET"), 1, 50, &[192, 0, 2, 9]);
    let stray = record(&wire("elsewhere.example.net"), 1, 5, &[203, 0, 113, 9]);
    let other_class = [&here[..], &[0, 1, 0, 3, 0, 0, 0, 1, 0, 4, 9, 9, 9, 9]].concat();
    let bytes = message(0x8180, [1, 4, 0, 0], &[&asked(NAME, 1), &stray, &place, &other_class, &alias]);
    let read = parse_response(&bytes, 0x1234, NAME, RecordType::A).unwrap();
    assert_eq!((read.addresses, read.ttl), (vec![addr("192.0.2.9")], 50));
}

#[test]
fn what_is_not_our_answer_is_passed_over() {
    let good = corpus("dns/answer-a");
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    for (case, bytes, name, kind) in [
        ("short", good[..11].to_vec(), NAME, RecordType::A),
        ("another number", with(0, 0x99), NAME, RecordType::A),
        ("a query", with(2, 0x01), NAME, RecordType::A),
        ("another opcode", with(2, 0xa9), NAME, RecordType::A),
        ("no question", with(5, 0), NAME, RecordType::A),
        ("two questions", with(5, 2), NAME, RecordType::A),
        ("another name", good.clone(), "ww2.example.org", RecordType::A),
        ("another kind", good.clone(), NAME, RecordType::Aaaa),
        ("a name that cannot be asked", good.clone(), "a b", RecordType::A),
    ] {
        let error = parse_response(&bytes, 0x1234, name, kind).expect_err(case);
        assert!(matches!(error, ResponseError::NotOurs(_)), "{case}: {error:?}");
    }
}

#[test]
fn bad_answers() {
    let question = asked(NAME, 1);
    let one = |owner: &[u8], kind: u16, data: &[u8]| {
        message(0x8180, [1, 1, 0, 0], &[&question, &record(owner, kind, 1, data)])
    };
    let many_aliases: Vec<u8> = (0..20)
        .flat_map(|n| {
            let owner = if n == 0 { wire(NAME) } else { wire(&format!("a{n}.org")) };
            record(&owner, 5, 1, &wire(&format!("a{}.org", n + 1)))
        })
        .collect();
    let here = 12 + question.len() as u16;
    // Record data that is a chain of pointers, each to the one before it.
    let chain: Vec<u8> =
        (0..200u16).flat_map(|n| (0xc000 | if n == 0 { 12 } else { here + 9 + 2 * n }).to_be_bytes()).collect();
    let last = (0xc000 | (here + 11 + 2 * 199)).to_be_bytes();
    let chained = [record(&[0], 99, 1, &chain), record(&last, 1, 1, &[1; 4])].concat();
    let short =
        [record(&[0], 99, 1, &chain), record(&(0xc000 | (here + 11 + 2 * 9)).to_be_bytes(), 1, 1, &[1; 4])].concat();
    let taken = parse_response(&message(0x8180, [1, 2, 0, 0], &[&question, &short]), 0x1234, NAME, RecordType::A);
    assert_eq!(taken.map(|a| a.addresses), Ok(vec![addr("1.1.1.1")]), "a short chain is followed");
    for (case, bytes) in [
        ("address of three bytes", one(&[0xc0, 12], 1, &[1, 2, 3])),
        ("address of five bytes", one(&[0xc0, 12], 1, &[1, 2, 3, 4, 5])),
        ("pointer forward", one(&[0xc0, here as u8 + 4], 1, &[1, 2, 3, 4])),
        ("pointer to itself", corpus("dns/answer-pointer-loop")),
        ("pointer into the header", one(&[0xc0, 4], 1, &[1, 2, 3, 4])),
        ("pointer past the end", one(&[0xff, 0xff], 1, &[1, 2, 3, 4])),
        ("a long chain of pointers", message(0x8180, [1, 2, 0, 0], &[&question, &chained])),
        ("aliases in a loop", corpus("dns/answer-cname-loop")),
        ("too many aliases", message(0x8180, [1, 20, 0, 0], &[&question, &many_aliases])),
        ("alias with bytes after it", one(&[0xc0, 12], 5, b"\x01a\0x")),
        (
            "alias past its data",
            message(0x8180, [1, 1, 0, 0], &[&question, &[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 0, 0, 1, 1, 97, 0]]),
        ),
        ("record missing", message(0x8180, [1, 1, 0, 0], &[&question])),
        ("record cut short", message(0x8180, [1, 1, 0, 0], &[&question, &record(&[0], 1, 1, &[1; 4])[..12]])),
        ("additional missing", message(0x8180, [1, 0, 0, 1], &[&question])),
        ("too many records", message(0x8180, [1, 0xffff, 0xffff, 0xffff], &[&question])),
    ] {
        let error = parse_response(&bytes, 0x1234, NAME, RecordType::A).expect_err(case);
        assert!(matches!(error, ResponseError::Bad(_)), "{case}: {error:?}");
    }
}

#[test]
fn a_time_below_zero_is_none() {
    let bytes = message(0x8180, [1, 1, 0, 0], &[&asked(NAME, 1), &record(&[0xc0, 12], 1, u32::MAX, &[192, 0, 2, 1])]);
    assert_eq!(parse_response(&bytes, 0x1234, NAME, RecordType::A).unwrap().ttl, 0);
}
