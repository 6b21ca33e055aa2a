//! Protocol detection on whole inputs and byte by byte.

use super::*;

fn is_open(first: &FirstBytes) -> bool {
    matches!(first, FirstBytes::NeedMore | FirstBytes::Undecided { .. })
}

fn of(bytes: &[u8]) -> FirstBytes {
    let whole = Detector::default().read(bytes);
    // Byte by byte the result is the same, or comes sooner.
    let mut detector = Detector::default();
    let grown = (0..=bytes.len()).map(|len| detector.read(&bytes[..len]));
    let grown = grown.into_iter().find(|first| !is_open(first)).unwrap_or(FirstBytes::NeedMore);
    let same = is_open(&whole) && is_open(&grown) || std::mem::discriminant(&whole) == std::mem::discriminant(&grown);
    assert!(same, "{}: {whole:?}, {grown:?}", bytes.escape_ascii());
    whole
}

const OTHER_SITE: &str = "Host: other.example.org\r\n\r\n";

#[test]
fn requests_are_read() {
    assert_eq!(of(b"GET / HTTP/1.1\r\nHost: Example.org:80\r\n\r\n"), FirstBytes::Http("example.org".into()));
    assert_eq!(of(b"GET http://a.b/ HTTP/1.1\r\nHost: a.b\r\n\r\n"), FirstBytes::Http("a.b".into()));
    assert_eq!(
        of(b"M-SEARCH * HTTP/1.1\r\nHost: a\r\n\r\n"),
        FirstBytes::Bad("the HTTP request cannot be read: the target * goes only with OPTIONS".into())
    );
    assert_eq!(of(b"F!OO / HTTP/1.1\r\nHost: a\r\n\r\n"), FirstBytes::Http("a".into()));
    assert_eq!(of(HTTP2_PREFACE), FirstBytes::Http2);
    for held in [
        "",
        "GET /",
        "GET / HTTP/1.1\r\n",
        "GET http://a.b/",
        "CONNECT a",
        "PRI * HTTP/2.0\r\n",
        "GET /\r\n",
        "\x16\x03",
    ] {
        assert_eq!(of(held.as_bytes()), FirstBytes::NeedMore, "{held:?}");
    }
}

/// Ambiguous lines that some server takes for a request.
#[test]
fn requests_that_servers_take_and_we_cannot_read_are_refused() {
    let before = [
        "\r\n",
        "\n",
        "\r",
        " ",
        "\t",
        "\r\n\r\n\n",
        " \r\n",
        "\t\n ",
        "\0",
        "\0\0\n",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x7f",
        "\x01\x02",
    ];
    for junk in before {
        let text = format!("{junk}GET / HTTP/1.1\r\n{OTHER_SITE}");
        assert!(matches!(of(text.as_bytes()), FirstBytes::Bad(_)), "{text:?}: {:?}", of(text.as_bytes()));
    }
    for junk in [
        &b"\xef\xbb\xbf"[..],
        b"\xa0",
        b"\x85",
        b"\xef\xbb\xbf\r\n",
        b"\0\0\0\x08\x04\xd2\x16\x2f ",
        b"*1 ",
        b"{\"a\": 1} ",
        b"\x05\x01\0",
    ] {
        let text = [junk, b"GET / HTTP/1.1\r\n", OTHER_SITE.as_bytes()].concat();
        assert!(matches!(of(&text), FirstBytes::Bad(_)), "{}", text.escape_ascii());
    }
    for line in [
        "GET  / HTTP/1.1\r\n",
        "get / HTTP/1.1\r\n",
        "GET / http/1.1\r\n",
        "GET / HTTP/1.1\n",
        "GET\t/ HTTP/1.1\r\n",
        "GET\x0b/\x0cHTTP/1.1\r\n",
        "GET x HTTP/1.1\r\n",
        "GET/ HTTP/1.1\r\n",
        "GET / HTTP/2.0\r\n",
        "0x1 / HTTP/1.1\r\n",
        "@ / HTTP/1.1\r\n",
        "GET x\rGET / HTTP/1.1\r\n",
        "EHLO x\0 / HTTP/1.1\r\n",
        "GET / x HTTP/1.1\r\n",
        "\r\nPRI * HTTP/2.0\r\n",
        "PRI * HTTP/2.0\n",
        "PRI  * HTTP/2.0\r\n",
        "PRI / HTTP/2.0\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 80\r\nGET / HTTP/1.1\r\n",
        "PROXY UNKNOWN\r\n",
        "\r\n\r\n\0\r\nQUIT\n\x21",
    ] {
        let text = format!("{line}{OTHER_SITE}");
        assert!(matches!(of(text.as_bytes()), FirstBytes::Bad(_)), "{line:?}: {:?}", of(text.as_bytes()));
    }
    // Without a version there is no head to wait for; these are held, and no byte passes.
    for line in [
        "GET /\r\n",
        "get /x\n",
        "GET\t/\n",
        " GET /\n",
        "\nGET /\n",
        "GET\0/\n",
        "POST http://a.b/\r\n",
        "CONNECT a.b:80\n",
    ] {
        let first = of(line.as_bytes());
        assert!(matches!(first, FirstBytes::Bad(_) | FirstBytes::NeedMore), "{line:?}: {first:?}");
    }
}

#[test]
fn what_may_still_become_a_request_is_undecided() {
    for (word, is_text) in [
        ("G", true),
        ("GET", true),
        ("GET ", true),
        ("EHLO me", true),
        ("PRI * H", true),
        ("get http", true),
        ("user\0postgres", true),
        ("\r\n", false),
        ("\r\n\r\n\0\r\nQUI", false),
        (" ", false),
        ("\0\0\0\x08", false),
        ("\x01", false),
        ("*1", false),
    ] {
        let first = of(word.as_bytes());
        assert_eq!(first, FirstBytes::Undecided { is_text }, "{word:?}");
        assert_eq!(ended(word.as_bytes(), &first), FirstBytes::Other, "{word:?}");
    }
    for begun in ["GET /", "GET /\r\n", "GET http://a.b/", "CONNECT a", "\x16", "\x16\x03\x01"] {
        let first = of(begun.as_bytes());
        assert!(matches!(ended(begun.as_bytes(), &first), FirstBytes::Bad(_)), "{begun:?}");
    }
    assert_eq!(ended(b"", &of(b"")), FirstBytes::Other);
}

#[test]
fn other_protocols() {
    for other in [
        &b"SSH-2.0-OpenSSH_9.6p1 Debian-1\r\n"[..],
        b"EHLO example.org\r\n",
        b"USER bob\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"KEYS *\r\n",
        b"get key\r\n",
        b"CONNECT {\"verbose\":false}\r\n",
        b"CONNECT\naccept-version:1.2\n",
        b"0033git-upload-pack /project.git\0host=example.org\0\n",
        b"example.org\r\n",
        b"/\r\n",
        b"NICK x\r\n",
        b"\r\n\r\nlogin\r\n",
    ] {
        assert_eq!(of(other), FirstBytes::Other, "{}", other.escape_ascii());
    }
}

#[test]
fn long_lines_are_watched_to_their_end() {
    for fill in [b'x', 1, b' ', 0xd2] {
        for (end, refused) in [(&b" / HTTP/1.1\r\n"[..], true), (b"GET / HTTP/1.1\r\n", true), (b"y\r\n", false)] {
            let mut detector = Detector::default();
            let mut bytes = vec![fill; MAX_KEPT];
            for _ in 0..3 {
                assert!(matches!(detector.read(&bytes), FirstBytes::Undecided { .. }), "{fill}");
                detector.forget(&mut bytes);
                bytes.extend(vec![fill; MAX_KEPT]);
            }
            for byte in end {
                bytes.push(*byte);
                if !is_open(&detector.read(&bytes)) {
                    break;
                }
                detector.forget(&mut bytes);
            }
            assert_eq!(matches!(detector.read(&bytes), FirstBytes::Bad(_)), refused, "{fill}: {}", end.escape_ascii());
            assert!(refused || detector.read(&bytes) == FirstBytes::Other, "{fill}");
        }
    }
}

/// Detection is bounded: beyond what servers read, bytes without a line end are another protocol.
#[test]
fn lines_without_end_are_watched_for_a_while() {
    let after = |fill: u8, most: usize| {
        let (mut detector, mut bytes, mut total) = (Detector::default(), Vec::new(), 0);
        loop {
            bytes.extend(vec![fill; MAX_KEPT + 1]);
            total += MAX_KEPT + 1;
            match detector.read(&bytes) {
                FirstBytes::Undecided { .. } if total < most => detector.forget(&mut bytes),
                first => return (first, total),
            }
        }
    };
    for fill in [0, 1, 0xd2, b'{'] {
        let (first, total) = after(fill, 1 << 20);
        assert!(first == FirstBytes::Other && total < 128 * 1024, "{fill}: {first:?} after {total}");
    }
    assert!(matches!(after(b'\n', 1 << 20).0, FirstBytes::Bad(_)));
    assert!(matches!(after(b'x', 1 << 20).0, FirstBytes::Undecided { .. }));
    assert_eq!(after(b'x', 4 << 20).0, FirstBytes::Other);
}

#[test]
fn servers_are_known_by_their_first_bytes() {
    let speaks = |parts: &[&[u8]]| {
        let mut detector = ServerDetector::default();
        parts.iter().for_each(|part| detector.push(part));
        detector.protocol
    };
    for http in [
        &[&b"HTTP/1.1 200 OK\r\n"[..]][..],
        &[b"HT", b"TP/", b"1.0"],
        &[b"\0\0\x12\x04\0\0\0\0\0\0\x03"],
        &[b"\0\0\0\x04\0\0", b"\0\0\0"],
    ] {
        assert_eq!(speaks(http), ServerProtocol::Http);
    }
    for other in [
        &b"220 ready\r\n"[..],
        b"SSH-2.0-x\r\n",
        b"+PONG\r\n",
        b"N",
        b"HELLO",
        b"\x4a\0\0\0\x0a8.0.36\0",
        b"\x20\x02\0\0",
    ] {
        assert_eq!(speaks(&[other]), ServerProtocol::Other, "{}", other.escape_ascii());
    }
    assert_eq!(
        (speaks(&[b"H"]), speaks(&[b"\0\0"]), speaks(&[])),
        (ServerProtocol::Unknown, ServerProtocol::Unknown, ServerProtocol::Unknown)
    );
}
