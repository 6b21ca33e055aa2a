//! HTTP/1.x heads: those of real clients and servers, and every ambiguous form.

use crate::input::{corpus, dechunk, one_by_one};
use egress::chunked::DecodeStep;
use egress::http1::{
    BodyFraming, Connection, Head, HeadScan, HeaderFields, MAX_HEAD, RequestHead, RequestTarget, Response, Version,
    read_request, read_response, resume_request, write_request, write_response,
};

fn request(bytes: &[u8]) -> RequestHead {
    match read_request(bytes) {
        Head::Done(request) => request,
        other => panic!("{other:?} for {}", bytes.escape_ascii()),
    }
}

fn response(bytes: &[u8], method: &str) -> Response {
    match read_response(bytes, method) {
        Head::Done(response) => response,
        other => panic!("{other:?} for {}", bytes.escape_ascii()),
    }
}

#[test]
fn requests_of_real_clients() {
    let upgrade = Connection::Upgrade("websocket".to_owned());
    let (keep, close) = (Connection::KeepAlive, Connection::Close);
    for (file, method, target, host, body, connection) in [
        ("curl", "GET", "/a/b?c=d", "example.org", BodyFraming::None, keep.clone()),
        ("curl-post", "POST", "/post", "example.org", BodyFraming::Length(7), keep.clone()),
        ("curl-chunked", "POST", "/post", "example.org", BodyFraming::Chunked, keep.clone()),
        ("curl-proxy", "GET", "http://example.org/a?b", "example.org", BodyFraming::None, keep.clone()),
        ("curl-connect", "CONNECT", "example.org:443", "example.org", BodyFraming::None, keep.clone()),
        ("curl-http10", "GET", "/", "127.0.0.1", BodyFraming::None, close.clone()),
        ("curl-head", "HEAD", "/", "127.0.0.1", BodyFraming::None, keep.clone()),
        ("curl-options", "OPTIONS", "*", "127.0.0.1", BodyFraming::None, keep.clone()),
        ("curl-websocket", "GET", "/ws", "127.0.0.1", BodyFraming::None, upgrade),
        ("openssl-connect", "CONNECT", "example.org:443", "example.org", BodyFraming::None, close.clone()),
        ("wget-proxy", "GET", "http://example.org/x", "example.org", BodyFraming::None, keep.clone()),
        ("python-chunked", "PUT", "/a%20b", "[2001:db8::1]", BodyFraming::Chunked, keep.clone()),
        ("python-connect", "CONNECT", "example.org:443", "example.org", BodyFraming::None, close),
        ("node", "POST", "/x", "127.0.0.1", BodyFraming::Length(7), keep.clone()),
        ("git", "GET", "/a.git/info/refs?service=git-upload-pack", "127.0.0.1", BodyFraming::None, keep),
    ] {
        let bytes = corpus(&format!("http/request-{file}"));
        let read = request(&bytes);
        assert_eq!(
            (read.method.as_str(), read.target.to_string().as_str(), read.host.to_string().as_str()),
            (method, target, host),
            "{file}"
        );
        assert_eq!((read.body, read.connection), (body, connection), "{file}");
        assert!(bytes[..read.consumed].ends_with(b"\r\n\r\n"), "{file}");
        if read.body == BodyFraming::Chunked {
            let (_, end, used, _) = dechunk(&bytes[read.consumed..], 3);
            assert_eq!((end, used), (DecodeStep::End(0), bytes.len() - read.consumed), "{file}");
        }
    }
}

#[test]
fn responses_of_real_servers() {
    for (file, status, body, connection) in [
        ("python-204", 204, BodyFraming::None, Connection::KeepAlive),
        ("python-chunk", 200, BodyFraming::Chunked, Connection::KeepAlive),
        ("python-close", 200, BodyFraming::UntilClose, Connection::Close),
        ("python-length", 200, BodyFraming::Length(2), Connection::KeepAlive),
        ("node-early", 102, BodyFraming::None, Connection::KeepAlive),
        ("node-trailer", 200, BodyFraming::Chunked, Connection::KeepAlive),
        ("node-304", 304, BodyFraming::None, Connection::KeepAlive),
        ("node-plain", 200, BodyFraming::Length(4), Connection::KeepAlive),
        ("node-101", 101, BodyFraming::None, Connection::Upgrade("websocket".to_owned())),
    ] {
        let bytes = corpus(&format!("http/response-{file}"));
        let read = response(&bytes, "GET");
        assert_eq!((read.status, read.body, read.connection), (status, body, connection), "{file}");
    }
    let bytes = corpus("http/response-node-trailer");
    let read = response(&bytes, "GET");
    let (body, end, _, trailers) = dechunk(&bytes[read.consumed..], 1);
    assert_eq!((body.as_slice(), end, trailers.get("x-sum")), (&b"abc"[..], DecodeStep::End(0), Some(&b"9"[..])));
}

#[test]
fn split_up_it_says_the_same() {
    for file in ["request-curl", "request-node", "request-curl-connect", "request-git"] {
        let bytes = corpus(&format!("http/{file}"));
        let whole = read_request(&bytes);
        let len = request(&bytes).consumed;
        assert_eq!(one_by_one(&bytes, read_request, |h| *h == Head::NeedMore), (whole.clone(), len), "{file}");
        let mut seen = HeadScan::default();
        for end in 0..len {
            assert_eq!(resume_request(&bytes[..end], &mut seen), Head::NeedMore, "{file}");
        }
        assert_eq!(resume_request(&bytes, &mut seen), whole, "{file}");
    }
}

const HEADLESS: &str = "GET / HTTP/1.1\r\n";

/// Returns the status with which the fields are refused, after a valid request line and Host.
fn fields_refused(fields: &str) -> Option<u16> {
    refused(format!("POST / HTTP/1.1\r\nHost: a.org\r\n{fields}\r\n\r\n").as_bytes())
}

fn refused(bytes: &[u8]) -> Option<u16> {
    let whole = read_request(bytes);
    let (first, _) = one_by_one(bytes, read_request, |h| *h == Head::NeedMore);
    assert_eq!(first, whole, "{}", bytes.escape_ascii());
    match whole {
        Head::Bad { status, .. } => Some(status),
        Head::NeedMore => panic!("undecided: {}", bytes.escape_ascii()),
        Head::Done(_) => None,
    }
}

#[test]
fn bodies_that_two_readers_see_differently() {
    for (case, fields, status) in [
        ("both", "Content-Length: 5\r\nTransfer-Encoding: chunked", 400),
        ("both the other way round", "transfer-encoding: chunked\r\ncontent-length: 5", 400),
        ("two lengths", "Content-Length: 5\r\nContent-Length: 6", 400),
        ("the same length twice", "Content-Length: 5\r\ncontent-length: 5", 400),
        ("a list of lengths", "Content-Length: 5, 5", 400),
        ("a plus", "Content-Length: +5", 400),
        ("a minus", "Content-Length: -5", 400),
        ("a space inside", "Content-Length: 5 5", 400),
        ("hexadecimal", "Content-Length: 0x5", 400),
        ("hexadecimal digits", "Content-Length: a", 400),
        ("zeros before it", "Content-Length: 05", 400),
        ("a fraction", "Content-Length: 5.0", 400),
        ("an exponent", "Content-Length: 5e0", 400),
        ("an underscore", "Content-Length: 1_0", 400),
        ("no length", "Content-Length:", 400),
        ("a length in quotes", "Content-Length: \"5\"", 400),
        ("a length past 63 bits", "Content-Length: 9223372036854775808", 400),
        ("a length past everything", "Content-Length: 99999999999999999999999", 400),
        ("digits that are not ASCII", "Content-Length: \u{665}", 400),
        ("two codings", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
        ("a list of codings", "Transfer-Encoding: gzip, chunked", 501),
        ("chunked twice", "Transfer-Encoding: chunked, chunked", 501),
        ("chunked and a comma", "Transfer-Encoding: chunked,", 501),
        ("chunked in capitals", "Transfer-Encoding: Chunked", 501),
        ("something like chunked", "Transfer-Encoding: xchunked", 501),
        ("chunked in quotes", "Transfer-Encoding: \"chunked\"", 501),
        ("chunked with a parameter", "Transfer-Encoding: chunked;a=b", 501),
        ("identity", "Transfer-Encoding: identity", 501),
        ("no coding", "Transfer-Encoding:", 501),
        ("a coding after a tab inside", "Transfer-Encoding: chun\tked", 501),
        ("vertical tab", "Transfer-Encoding: \u{b}chunked", 400),
        ("an underscore in the name", "Transfer_Encoding: chunked", 400),
        ("an underscore in the other name", "Content_Length: 5", 400),
        ("Connection drops the length", "Content-Length: 5\r\nConnection: close, Content-Length", 400),
        ("Connection drops the coding", "Transfer-Encoding: chunked\r\nConnection: transfer-encoding", 400),
        ("Connection drops the host", "Connection: Host", 400),
    ] {
        assert_eq!(fields_refused(fields), Some(status), "{case}");
    }
    let old = b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(refused(old), Some(400), "chunks in HTTP/1.0");
    let connect = b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(refused(connect), Some(400), "CONNECT with a body");
    let blanks = format!("{HEADLESS}Host: a\r\nContent-Length: \t 5 \t\r\n\r\n");
    assert_eq!(request(blanks.as_bytes()).body, BodyFraming::Length(5), "blanks around a value are nothing");
}

#[test]
fn lines_that_two_readers_see_differently() {
    for (case, fields) in [
        ("a folded line", "X: a\r\n b"),
        ("a line folded with a tab", "X: a\r\n\tb"),
        ("a blank before the colon", "X : a"),
        ("a tab before the colon", "X\t: a"),
        ("a blank before the name", "X: a\r\n Y: b"),
        ("a blank in the name", "X Y: a"),
        ("an empty name", ": a"),
        ("no colon", "X"),
        ("a bare line feed", "X: a\nY: b"),
        ("a bare carriage return", "X: a\rY: b"),
        ("two carriage returns", "X: a\r\r\nY: b"),
        ("NUL in a value", "X: a\0b"),
        ("NUL in a name", "X\0: a"),
        ("escape in a value", "X: \u{1b}[1m"),
        ("delete in a value", "X: \u{7f}"),
        ("a name that is not ASCII", "\u{e9}: a"),
        ("a name in brackets", "(X): a"),
        ("a name in quotes", "\"X\": a"),
        ("a second Host", "Host: a.org"),
        ("a second Host in another case", "hOST: b.org"),
        ("a second Host further down", "X: y\r\nhost: a.org"),
    ] {
        assert_eq!(fields_refused(fields), Some(400), "{case}");
    }
    assert_eq!(refused(b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"), Some(400), "the first field is folded");
}

#[test]
fn first_lines() {
    for (case, line, status) in [
        ("HTTP/0.9", "GET /", 400),
        ("HTTP/2", "GET / HTTP/2", 400),
        ("HTTP/2.0", "PRI * HTTP/2.0", 505),
        ("HTTP/1.2", "GET / HTTP/1.2", 505),
        ("HTTP/0.9 spelled out", "GET / HTTP/0.9", 505),
        ("small letters", "GET / http/1.1", 400),
        ("a long version", "GET / HTTP/1.10", 400),
        ("another protocol", "GET / ICAP/1.0", 400),
        ("two spaces", "GET  / HTTP/1.1", 400),
        ("two spaces later", "GET /  HTTP/1.1", 400),
        ("a space at the end", "GET / HTTP/1.1 ", 400),
        ("a space at the start", " GET / HTTP/1.1", 400),
        ("a tab", "GET\t/ HTTP/1.1", 400),
        ("a tab in the target", "GET /\ta HTTP/1.1", 400),
        ("four words", "GET / a HTTP/1.1", 400),
        ("no method", " / HTTP/1.1", 400),
        ("a method that is no word", "GE(T / HTTP/1.1", 400),
        ("a method in small letters", "get / HTTP/1.1", 501),
        ("a long method", "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG / HTTP/1.1", 501),
        ("an empty target", "GET  HTTP/1.1", 400),
        ("a fragment", "GET /a#b HTTP/1.1", 400),
        ("a target that is not ASCII", "GET /\u{e9} HTTP/1.1", 400),
        ("a relative path", "GET a/b HTTP/1.1", 400),
        ("* with GET", "GET * HTTP/1.1", 400),
        ("an authority with GET", "GET a.org:80 HTTP/1.1", 400),
        ("a path with CONNECT", "CONNECT / HTTP/1.1", 400),
        ("a URL with CONNECT", "CONNECT http://a.org/ HTTP/1.1", 400),
        ("CONNECT without a port", "CONNECT a.org HTTP/1.1", 400),
        ("CONNECT to port zero", "CONNECT a.org:0 HTTP/1.1", 400),
        ("CONNECT with a user", "CONNECT u@a.org:80 HTTP/1.1", 400),
        ("CONNECT to another host", "CONNECT b.org:80 HTTP/1.1", 400),
        ("a user", "GET http://u@a.org/ HTTP/1.1", 400),
        ("a user and a password", "GET http://u:p@a.org/ HTTP/1.1", 400),
        ("a user behind a backslash", "GET http://a.org\\@b.org/ HTTP/1.1", 400),
        ("another scheme", "GET ftp://a.org/ HTTP/1.1", 400),
        ("no host", "GET http:///a HTTP/1.1", 400),
        ("another host", "GET http://b.org/ HTTP/1.1", 400),
        ("another port", "GET http://a.org:81/ HTTP/1.1", 400),
        ("another scheme than the port", "GET https://a.org:80/ HTTP/1.1", 400),
        ("an odd host", "GET http://127.1/ HTTP/1.1", 400),
        ("an empty port", "GET http://a.org:/ HTTP/1.1", 400),
    ] {
        let bytes = format!("{line}\r\nHost: a.org\r\n\r\n");
        assert_eq!(refused(bytes.as_bytes()), Some(status), "{case}");
    }
    for bytes in
        [&b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], b"\r\n\r\n", b"GET / HTTP/1.1\nHost: a\n\n", b"\x16\x03\x01"]
    {
        assert_eq!(refused(bytes), Some(400), "{}", bytes.escape_ascii());
    }
}

#[test]
fn hosts() {
    for (case, value) in [
        ("empty", ""),
        ("two", "a.org, b.org"),
        ("a user", "u@a.org"),
        ("a path", "a.org/"),
        ("a scheme", "http://a.org"),
        ("an odd port", "a.org:+80"),
        ("an empty port", "a.org:"),
        ("no brackets", "::1"),
        ("a zone", "[fe80::1%25eth0]"),
        ("not ASCII", "\u{e9}.org"),
        ("an odd address", "0x7f000001"),
    ] {
        let bytes = format!("{HEADLESS}Host: {value}\r\n\r\n");
        assert_eq!(refused(bytes.as_bytes()), Some(400), "{case}");
    }
    assert_eq!(refused(b"GET / HTTP/1.1\r\n\r\n"), Some(400), "no Host");
    assert_eq!(refused(b"GET / HTTP/1.0\r\n\r\n"), Some(400), "no Host in HTTP/1.0, and no other name");
    assert_eq!(refused(b"GET http://a.org/ HTTP/1.1\r\n\r\n"), Some(400), "no Host beside a URL");
    for (line, value, host, port) in [
        ("GET / HTTP/1.1", "A.Org.:8080", "a.org", Some(8080)),
        ("GET / HTTP/1.1", "a.org", "a.org", None),
        ("GET / HTTP/1.1", "[2001:DB8::1]:1", "[2001:db8::1]", Some(1)),
        ("GET http://A.org HTTP/1.1", "a.org", "a.org", Some(80)),
        ("GET HTTP://a.org:80/ HTTP/1.1", "a.org", "a.org", Some(80)),
        ("GET https://a.org/ HTTP/1.1", "a.org:443", "a.org", Some(443)),
        ("CONNECT a.org:443 HTTP/1.1", "a.org", "a.org", Some(443)),
        ("CONNECT a.org:444 HTTP/1.1", "a.org:444", "a.org", Some(444)),
    ] {
        let read = request(format!("{line}\r\nHost: {value}\r\n\r\n").as_bytes());
        assert_eq!((read.host.to_string().as_str(), read.port), (host, port), "{line} {value}");
    }
    let old = request(b"GET http://a.org/x HTTP/1.0\r\n\r\n");
    assert_eq!((old.host.to_string().as_str(), old.port, old.version), ("a.org", Some(80), Version::Http10));
}

#[test]
fn targets() {
    for (line, spelled, path) in [
        ("GET /a//b/../c?d=http://e HTTP/1.1", "/a//b/../c?d=http://e", Some("/a//b/../c?d=http://e")),
        ("GET http://a.org?q HTTP/1.1", "http://a.org/?q", Some("/?q")),
        ("GET http://A.ORG:80/x HTTP/1.1", "http://a.org/x", Some("/x")),
        ("OPTIONS * HTTP/1.1", "*", None),
        ("OPTIONS /x HTTP/1.1", "/x", Some("/x")),
        ("CONNECT a.org:80 HTTP/1.1", "a.org:80", None),
    ] {
        let read = request(format!("{line}\r\nHost: a.org\r\n\r\n").as_bytes());
        assert_eq!((read.target.to_string().as_str(), read.target.path()), (spelled, path), "{line}");
    }
    assert_eq!(request(b"GET // HTTP/1.1\r\nHost: a\r\n\r\n").target, RequestTarget::Origin("//".to_owned()));
}

#[test]
fn connections() {
    let upgrade = |p: &str| Connection::Upgrade(p.to_owned());
    for (version, fields, expected) in [
        ("1.1", "", Connection::KeepAlive),
        ("1.1", "Connection: close\r\n", Connection::Close),
        ("1.1", "Connection: x, CLOSE , y\r\n", Connection::Close),
        ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", Connection::Close),
        ("1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\n", upgrade("websocket")),
        ("1.1", "Connection: Upgrade\r\nUpgrade: h2c, x\r\nUpgrade: y\r\n", upgrade("h2c, x, y")),
        ("1.1", "Connection: Upgrade\r\n", Connection::KeepAlive),
        ("1.1", "Upgrade: websocket\r\n", Connection::KeepAlive),
        ("1.1", "Connection: Upgrade, close\r\nUpgrade: websocket\r\n", Connection::Close),
        ("1.0", "", Connection::Close),
        ("1.0", "Connection: Keep-Alive\r\n", Connection::KeepAlive),
        ("1.0", "Connection: Upgrade\r\nUpgrade: websocket\r\n", Connection::Close),
    ] {
        let read = request(format!("GET / HTTP/{version}\r\nHost: a\r\n{fields}\r\n").as_bytes());
        assert_eq!(read.connection, expected, "{version} {fields:?}");
    }
}

#[test]
fn bounds() {
    let with = |fields: usize| format!("{HEADLESS}Host: a\r\n{}\r\n", "X: y\r\n".repeat(fields - 1));
    assert_eq!(request(with(128).as_bytes()).fields.0.len(), 128);
    assert!(matches!(read_request(with(129).as_bytes()), Head::Bad { status: 431, .. }));
    let of_length = |len: usize| {
        let start = format!("{HEADLESS}Host: a\r\nX: ");
        format!("{start}{}\r\n\r\n", "y".repeat(len - start.len() - 4))
    };
    assert_eq!(request(of_length(MAX_HEAD).as_bytes()).consumed, MAX_HEAD);
    let long = of_length(MAX_HEAD + 1);
    assert!(matches!(read_request(long.as_bytes()), Head::Bad { status: 431, .. }));
    assert!(matches!(read_request(&long.as_bytes()[..MAX_HEAD]), Head::Bad { status: 431, .. }));
    assert_eq!(read_request(&long.as_bytes()[..MAX_HEAD - 1]), Head::NeedMore);
}

#[test]
fn response_bodies() {
    for (method, line, fields, body, connection) in [
        ("GET", "HTTP/1.1 200 OK", "", BodyFraming::UntilClose, Connection::Close),
        ("GET", "HTTP/1.1 200", "Content-Length: 0\r\n", BodyFraming::Length(0), Connection::KeepAlive),
        ("GET", "HTTP/1.1 200 ", "Transfer-Encoding: Chunked\r\n", BodyFraming::Chunked, Connection::KeepAlive),
        ("GET", "HTTP/1.0 200 OK", "Content-Length: 3\r\n", BodyFraming::Length(3), Connection::Close),
        ("GET", "HTTP/1.1 100 Continue", "", BodyFraming::None, Connection::KeepAlive),
        ("GET", "HTTP/1.1 204 None", "Content-Length: 0\r\n", BodyFraming::None, Connection::KeepAlive),
        ("GET", "HTTP/1.1 304 Same", "Content-Length: 9\r\n", BodyFraming::None, Connection::KeepAlive),
        ("HEAD", "HTTP/1.1 200 OK", "Content-Length: 9\r\n", BodyFraming::None, Connection::KeepAlive),
        ("HEAD", "HTTP/1.1 200 OK", "Transfer-Encoding: chunked\r\n", BodyFraming::None, Connection::KeepAlive),
        ("CONNECT", "HTTP/1.1 200 OK", "", BodyFraming::None, Connection::KeepAlive),
        ("CONNECT", "HTTP/1.1 403 No", "Content-Length: 9\r\n", BodyFraming::Length(9), Connection::KeepAlive),
        (
            "GET",
            "HTTP/1.1 200 OK",
            "Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n",
            BodyFraming::Length(1),
            Connection::KeepAlive,
        ),
        (
            "GET",
            "HTTP/1.1 999 \u{e9}",
            "Connection: close\r\nContent-Length: 1\r\n",
            BodyFraming::Length(1),
            Connection::Close,
        ),
    ] {
        let read = response(format!("{line}\r\n{fields}\r\n").as_bytes(), method);
        assert_eq!((read.body, read.connection), (body, connection), "{method} {line} {fields:?}");
    }
}

#[test]
fn bad_responses() {
    for (case, bytes) in [
        ("both", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n"),
        ("another coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"),
        ("chunks in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("204 with a body", "HTTP/1.1 204 OK\r\nContent-Length: 5\r\n\r\n"),
        ("100 with a body", "HTTP/1.1 100 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("101 without a protocol", "HTTP/1.1 101 OK\r\n\r\n"),
        ("a status of two digits", "HTTP/1.1 20 OK\r\n\r\n"),
        ("a status of four digits", "HTTP/1.1 2000 OK\r\n\r\n"),
        ("a status below 100", "HTTP/1.1 099 OK\r\n\r\n"),
        ("no status", "HTTP/1.1\r\n\r\n"),
        ("two spaces", "HTTP/1.1  200 OK\r\n\r\n"),
        ("another version", "HTTP/2.0 200 OK\r\n\r\n"),
        ("no version", "200 OK\r\n\r\n"),
        ("a bare line feed", "HTTP/1.1 200 OK\nX: y\n\n"),
        ("a folded line", "HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n"),
        ("NUL", "HTTP/1.1 200 O\0K\r\n\r\n"),
        ("a blank before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\n"),
    ] {
        let whole = read_response(bytes.as_bytes(), "GET");
        assert!(matches!(whole, Head::Bad { status: 502, .. }), "{case}: {whole:?}");
        let read = |b: &[u8]| read_response(b, "GET");
        assert_eq!(one_by_one(bytes.as_bytes(), read, |h| *h == Head::NeedMore).0, whole, "{case}");
    }
}

#[test]
fn what_is_written_is_read_back() {
    let mut fields = HeaderFields::default();
    fields.add("Host", "a.org");
    fields.add("X-Odd", b"\xe9 \t,\"".to_vec());
    fields.add("x-empty", "");
    let bytes = write_request("GET", "/a?b", &fields).unwrap();
    let read = request(&bytes);
    assert_eq!((read.method.as_str(), read.target.path(), read.consumed), ("GET", Some("/a?b"), bytes.len()));
    assert_eq!(read.fields, fields);
    let bytes = write_response(299, b"As \xe9", &fields).unwrap();
    let read = response(&bytes, "GET");
    assert_eq!((read.status, read.reason.as_slice(), &read.fields), (299, &b"As \xe9"[..], &fields));
    fields.remove("HOST");
    assert_eq!((fields.get("host"), fields.0.len()), (None, 2));
}

#[test]
fn what_would_be_read_differently_is_not_written() {
    let field = |name: &str, value: &[u8]| {
        let mut fields = HeaderFields::default();
        fields.add(name, value);
        fields
    };
    for fields in [
        field("X", b"a\r\nY: b"),
        field("X", b"a\nb"),
        field("X", b"a\0"),
        field("X", b" a"),
        field("X", b"a\t"),
        field("", b"a"),
        field("X:", b"a"),
        field("X ", b"a"),
        field("X\r\nY", b"a"),
    ] {
        assert!(write_request("GET", "/", &fields).is_err(), "{fields:?}");
        assert!(write_response(200, b"", &fields).is_err(), "{fields:?}");
    }
    let none = HeaderFields::default();
    for (method, target) in [("", "/"), ("G T", "/"), ("GET", ""), ("GET", "/ HTTP/1.1\r\n"), ("GET", "/\u{e9}")] {
        assert!(write_request(method, target, &none).is_err(), "{method} {target}");
    }
    assert!(write_response(99, b"", &none).is_err());
    assert!(write_response(1000, b"", &none).is_err());
    assert!(write_response(200, b"a\r\nb", &none).is_err());
}

/// Regression test: curl, when it uses a proxy connection for a second host, puts brackets around names and omits them
/// around addresses.
// promise 5
#[test]
fn a_proxy_goes_by_the_target() {
    use egress::http1::{HeadScan, resume_proxied};
    let proxied = |head: &str| resume_proxied(head.as_bytes(), &mut HeadScan::default());
    for (target, host, told) in [
        ("http://[2001:db8::1]:8080/", "2001:db8::1:8080", "[2001:db8::1]:8080"),
        ("http://a.example.org:82/", "[a.example.org]:82", "a.example.org:82"),
        ("http://[2001:db8::1]/", "[[2001:db8::1]]", "[2001:db8::1]"),
        ("http://a.example.org/", "a.example.org", "a.example.org"),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nA: b\r\n\r\n");
        let Head::Done(request) = proxied(&head) else { panic!("{head}: {:?}", proxied(&head)) };
        assert_eq!(request.fields.get("host"), Some(told.as_bytes()), "{head}");
        assert_eq!(request.fields.all("host").count(), 1);
        // Without a proxy the head is forwarded as it is, so it must not be ambiguous.
        let strict = matches!(read_request(head.as_bytes()), Head::Done(_));
        assert_eq!(strict, host == told, "{head}");
    }
    let connect = "CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: 2001:db8::1:443\r\n\r\n";
    assert!(matches!(proxied(connect), Head::Done(_)));
    for bad in [
        "GET http://a.example.org/ HTTP/1.1\r\nHost: b.example.org\r\n\r\n",
        "GET http://a.example.org/ HTTP/1.1\r\nHost: [a.example.org]\r\nHost: b.example.org\r\n\r\n",
        "GET http://a.example.org/ HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: [a.example.org]\r\n\r\n",
    ] {
        assert!(matches!(proxied(bad), Head::Bad { .. }), "{bad}");
    }
}
