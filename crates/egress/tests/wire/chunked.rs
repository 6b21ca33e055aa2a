//! Chunked bodies: decoded alike in any segmentation, and refused where ambiguous.

use crate::input::dechunk;
use egress::chunked::{Chunked, DecodeStep, LAST_CHUNK, chunk_head};

#[test]
fn good_bodies() {
    for (input, body, left) in [
        ("0\r\n\r\n", "", 0),
        ("5\r\nhello\r\n0\r\n\r\n", "hello", 0),
        ("5\r\nhello\r\n6\r\n, you!\r\n00\r\n\r\n", "hello, you!", 0),
        ("A\r\n0123456789\r\n0\r\n\r\nGET / HTTP/1.1", "0123456789", 14),
        ("000000000000001\r\nx\r\n0\r\n\r\n", "x", 0),
        ("1;a=b;c=\"d e\"\r\nx\r\n0;last\r\n\r\n", "x", 0),
        ("1\r\nx\r\n0\r\nX-Sum: 9\r\nY:\r\n\r\n", "x", 0),
        ("2\r\n\r\n\r\n0\r\n\r\n", "\r\n", 0),
    ] {
        for step in [1, 2, 3, 5, input.len()] {
            let (read, end, used, _) = dechunk(input.as_bytes(), step);
            assert_eq!(
                (read.as_slice(), end, used),
                (body.as_bytes(), DecodeStep::End(0), input.len() - left),
                "{input:?}"
            );
        }
        for len in 0..input.len() - left {
            assert_eq!(dechunk(&input.as_bytes()[..len], 4).1, DecodeStep::NeedMore, "{input:?} cut at {len}");
        }
    }
}

#[test]
fn bad_bodies() {
    let long_extension = format!("1;{}\r\nx\r\n", "e".repeat(257));
    let many_extensions = format!("1;{}\r\nx\r\n", "e".repeat(250)).repeat(70);
    let long_trailer = format!("0\r\nX: {}\r\n\r\n", "y".repeat(9000));
    let many_trailers = format!("0\r\n{}\r\n", "X: y\r\n".repeat(65));
    for (case, input) in [
        ("no size", "\r\n"),
        ("no size before an extension", ";a\r\n"),
        ("a minus", "-1\r\n"),
        ("a plus", "+1\r\n"),
        ("0x", "0x1\r\n"),
        ("an underscore", "1_0\r\n"),
        ("a space before the size", " 1\r\n"),
        ("a space after the size", "1 \r\n"),
        ("a tab after the size", "1\t;a\r\n"),
        ("sixteen digits", "0000000000000001\r\nx\r\n"),
        ("a size past 64 bits", "fffffffffffffffff\r\n"),
        ("a bare line feed after the size", "1\nx"),
        ("a bare carriage return after the size", "1\rx"),
        ("a bare line feed in an extension", "1;a\nx"),
        ("a bare carriage return in an extension", "1;a\rb\r\n"),
        ("NUL in an extension", "1;\0\r\n"),
        ("an extension that is not ASCII", "1;\u{e9}\r\n"),
        ("a chunk longer than its size", "1\r\nxy\r\n"),
        ("a bare line feed after a chunk", "1\r\nx\n0\r\n\r\n"),
        ("a bare carriage return after a chunk", "1\r\nx\r0\r\n\r\n"),
        ("a folded trailer", "0\r\nX: y\r\n z\r\n\r\n"),
        ("a blank before the colon of a trailer", "0\r\nX : y\r\n\r\n"),
        ("a trailer without a colon", "0\r\nX\r\n\r\n"),
        ("a bare line feed in a trailer", "0\r\nX: y\n\r\n"),
        ("a bare carriage return in a trailer", "0\r\nX: y\rz\r\n\r\n"),
        ("NUL in a trailer", "0\r\nX: \0\r\n\r\n"),
        ("a length as a trailer", "0\r\nContent-Length: 5\r\n\r\n"),
        ("a coding as a trailer", "0\r\nTRANSFER-encoding: chunked\r\n\r\n"),
        ("a host as a trailer", "0\r\nHost: a\r\n\r\n"),
        ("a long extension", &long_extension),
        ("many extensions", &many_extensions),
        ("long trailers", &long_trailer),
        ("many trailers", &many_trailers),
    ] {
        let (_, whole, _, _) = dechunk(input.as_bytes(), input.len());
        assert!(matches!(whole, DecodeStep::Bad(_)), "{case}: {whole:?}");
        assert_eq!(dechunk(input.as_bytes(), 1).1, whole, "{case}");
    }
}

#[test]
fn the_end_stays_the_end() {
    let mut ended = Chunked::new();
    assert_eq!(ended.next(b"0\r\n\r\nmore"), DecodeStep::End(5));
    assert_eq!(ended.next(b"more"), DecodeStep::End(0));
    let mut failed = Chunked::new();
    assert_eq!(failed.next(b"x"), failed.next(b"0\r\n\r\n"));
}

#[test]
fn what_is_written_is_read_back() {
    let parts: [&[u8]; 4] = [b"a", &[0; 300], b"\r\n0\r\n\r\n", &[b'x'; 70_000]];
    let mut wire = Vec::new();
    for part in parts {
        wire.extend(chunk_head(part.len()));
        wire.extend(part);
        wire.extend(b"\r\n");
    }
    wire.extend(LAST_CHUNK);
    for step in [1, 7, 4096, wire.len()] {
        let (body, end, used, _) = dechunk(&wire, step);
        assert_eq!((body, end, used), (parts.concat(), DecodeStep::End(0), wire.len()));
    }
}
