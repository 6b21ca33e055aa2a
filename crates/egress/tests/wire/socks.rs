//! SOCKS5 clients, real and hostile.

use crate::input::corpus;
use egress::socks::{SocksHandshake, SocksStep, Status, reply};

/// Runs a whole handshake with `size` bytes at a time. Returns the bytes sent, the last step, and the bytes consumed.
fn converse(input: &[u8], size: usize) -> (Vec<u8>, SocksStep, usize) {
    let mut socks = SocksHandshake::new();
    let (mut sent, mut used, mut have) = (Vec::new(), 0, 0);
    loop {
        match socks.step(&input[used..have]) {
            SocksStep::NeedMore if have == input.len() => return (sent, SocksStep::NeedMore, used),
            SocksStep::NeedMore => have = (have + size).min(input.len()),
            SocksStep::Reply { bytes, consumed } => {
                assert!(consumed > 0 && consumed <= have - used);
                sent.extend(bytes);
                used += consumed;
            }
            SocksStep::Connect { host, port, consumed } => {
                return (sent, SocksStep::Connect { host, port, consumed: 0 }, used + consumed);
            }
            bad => return (sent, bad, used),
        }
    }
}

fn target(step: &SocksStep) -> Option<String> {
    match step {
        SocksStep::Connect { host, port, .. } => Some(format!("{host}:{port}")),
        _ => None,
    }
}

#[test]
fn real_clients() {
    for (file, place, sent) in [
        ("curl-domain", "example.org:80", &[5, 0][..]),
        ("curl-v4", "192.0.2.7:80", &[5, 0]),
        ("curl-v6", "[2001:db8::7]:80", &[5, 0]),
        ("password", "example.org:80", &[5, 2, 1, 0]),
    ] {
        let bytes = corpus(&format!("socks/{file}"));
        for size in [1, 2, 7, bytes.len()] {
            let (said, end, used) = converse(&bytes, size);
            assert_eq!((target(&end).as_deref(), said.as_slice(), used), (Some(place), sent, bytes.len()), "{file}");
        }
    }
}

#[test]
fn what_follows_is_for_the_other_end() {
    let bytes = [&b"\x05\x01\0\x05\x01\0\x03\x0bExample.org\x01\xbb"[..], b"\x16\x03\x01"].concat();
    let (_, end, used) = converse(&bytes, bytes.len());
    assert_eq!((target(&end).as_deref(), &bytes[used..]), (Some("example.org:443"), &b"\x16\x03\x01"[..]));
}

#[test]
fn one_spelling_for_every_address() {
    for (request, place) in [
        (&b"\x05\x01\0\x04\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01\0\x50"[..], "10.0.0.1:80"),
        (b"\x05\x01\0\x03\x0810.0.0.1\0\x50", "10.0.0.1:80"),
        (b"\x05\x01\0\x03\x03::1\0\x50", "[::1]:80"),
        (b"\x05\x01\0\x03\x06A.oRg.\0\x50", "a.org:80"),
    ] {
        let (_, end, _) = converse(&[b"\x05\x01\0", request].concat(), 3);
        assert_eq!(target(&end).as_deref(), Some(place));
    }
}

#[test]
fn bad_clients() {
    let greeted = |request: &[u8]| [b"\x05\x01\0", request].concat();
    let failed = |status| reply(status, None);
    for (case, bytes, answered) in [
        ("SOCKS4", b"\x04\x01\0\x50\x7f\0\0\x01\0".to_vec(), vec![0, 0x5b, 0, 0, 0, 0, 0, 0]),
        ("SOCKS4a of curl", corpus("socks/curl-socks4a"), vec![0, 0x5b, 0, 0, 0, 0, 0, 0]),
        ("HTTP", b"GET / HTTP/1.1\r\n".to_vec(), vec![]),
        ("no method", b"\x05\0".to_vec(), vec![5, 0xff]),
        ("only GSSAPI", b"\x05\x01\x01".to_vec(), vec![5, 0xff]),
        ("password of another form", b"\x05\x01\x02\x05\x01u\x01p".to_vec(), vec![1, 1]),
        ("request of another version", greeted(b"\x04\x01"), failed(Status::Failed)),
        ("BIND", greeted(b"\x05\x02\0\x01\0\0\0\0\0\0"), failed(Status::CommandNotSupported)),
        ("UDP ASSOCIATE", greeted(b"\x05\x03\0\x01\0\0\0\0\0\0"), failed(Status::CommandNotSupported)),
        ("an unknown command", greeted(b"\x05\xf0"), failed(Status::CommandNotSupported)),
        ("the reserved byte", greeted(b"\x05\x01\x01"), failed(Status::Failed)),
        ("an unknown type", greeted(b"\x05\x01\0\x02"), failed(Status::AddressNotSupported)),
        ("port zero", greeted(b"\x05\x01\0\x01\x01\x02\x03\x04\0\0"), failed(Status::Failed)),
        ("an empty name", greeted(b"\x05\x01\0\x03\0\0\x50"), failed(Status::Failed)),
        ("NUL in the name", greeted(b"\x05\x01\0\x03\x03a\0b\0\x50"), failed(Status::Failed)),
        ("a name that is not UTF-8", greeted(b"\x05\x01\0\x03\x01\xff\0\x50"), failed(Status::Failed)),
        ("an address in an unusual notation", greeted(b"\x05\x01\0\x03\x05127.1\0\x50"), failed(Status::Failed)),
        ("a port in the name", greeted(b"\x05\x01\0\x03\x04a:80\0\x50"), failed(Status::Failed)),
    ] {
        for size in [1, bytes.len()] {
            let (_, end, _) = converse(&bytes, size);
            assert!(matches!(&end, SocksStep::Bad { reply, .. } if *reply == answered), "{case}: {end:?}");
        }
    }
}

#[test]
fn half_a_message_is_waited_for() {
    let bytes = corpus("socks/password");
    for len in 0..bytes.len() {
        assert_eq!(converse(&bytes[..len], 4).1, SocksStep::NeedMore, "{len} bytes");
    }
}

#[test]
fn nothing_comes_after_the_end() {
    let mut socks = SocksHandshake::new();
    assert!(matches!(socks.step(b"x"), SocksStep::Bad { .. }));
    assert!(matches!(socks.step(b"\x05\x01\0"), SocksStep::Bad { reply, .. } if reply.is_empty()));
}

#[test]
fn replies() {
    assert_eq!(reply(Status::NotAllowed, None), [5, 2, 0, 1, 0, 0, 0, 0, 0, 0]);
    let v4 = reply(Status::Succeeded, Some("192.0.2.1:258".parse().unwrap()));
    assert_eq!(v4, [5, 0, 0, 1, 192, 0, 2, 1, 1, 2]);
    let v6 = reply(Status::Succeeded, Some("[::1]:1".parse().unwrap()));
    assert_eq!(v6, [&[5, 0, 0, 4][..], &[0; 15], &[1, 0, 1]].concat());
}
