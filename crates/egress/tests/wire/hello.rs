//! ClientHello messages of real clients: parsed, split and corrupted.

use crate::input::{corpus, one_by_one};
use egress::hello::{ClientHello, Hello, MAX_HELLO, read};

fn client(bytes: &[u8]) -> ClientHello {
    match read(bytes) {
        Hello::Client(client) => client,
        other => panic!("{other:?}"),
    }
}

fn run16(data: &[u8]) -> Vec<u8> {
    [&(data.len() as u16).to_be_bytes(), data].concat()
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    [kind.to_be_bytes().to_vec(), run16(data)].concat()
}

fn sni(names: &[(u8, &[u8])]) -> Vec<u8> {
    let list: Vec<u8> = names.iter().flat_map(|(kind, name)| [vec![*kind], run16(name)].concat()).collect();
    extension(0, &run16(&list))
}

/// Builds a ClientHello up to its extensions.
fn body() -> Vec<u8> {
    [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 1], &[1, 0]].concat()
}

fn message(body: &[u8]) -> Vec<u8> {
    [&[1][..], &(body.len() as u32).to_be_bytes()[1..], body].concat()
}

fn records(message: &[u8], size: usize) -> Vec<u8> {
    message.chunks(size).flat_map(|part| [vec![22, 3, 1], run16(part)].concat()).collect()
}

fn hello(extensions: &[u8]) -> Vec<u8> {
    records(&message(&[body(), run16(extensions)].concat()), 16384)
}

#[test]
fn real_clients() {
    let tls13 = [0x304, 0x303];
    for (file, name, alpn, versions) in [
        ("python", Some("example.org"), &["h2", "http/1.1"][..], &tls13[..]),
        ("python-tls12", Some("api.example.org"), &[], &[0x303]),
        ("python-address", None, &[], &tls13),
        ("openssl", Some("example.org"), &["h2", "http/1.1"], &tls13),
        ("openssl-nosni", None, &[], &[0x303]),
        ("curl", Some("www.example.org"), &["h2", "http/1.1"], &tls13),
        ("node", Some("registry.example.org"), &["http/1.1"], &tls13),
        ("git", Some("git.example.org"), &["h2", "http/1.1"], &tls13),
    ] {
        let read = client(&corpus(&format!("hello/{file}")));
        assert_eq!(read.sni.as_deref(), name, "{file}");
        assert_eq!(read.alpn, alpn, "{file}");
        assert_eq!(&read.versions[..versions.len()], versions, "{file}");
        assert!(!read.ech, "{file}");
    }
}

#[test]
fn split_up_it_says_the_same() {
    for file in ["python", "openssl", "openssl-fragmented", "curl", "node"] {
        let whole = corpus(&format!("hello/{file}"));
        let expected = read(&whole);
        assert!(matches!(expected, Hello::Client(_)), "{file}");
        assert_eq!(one_by_one(&whole, read, |h| *h == Hello::NeedMore), (expected, whole.len()), "{file}");
    }
    let message = message(&[body(), run16(&sni(&[(0, b"example.org")]))].concat());
    let expected = read(&records(&message, 16384));
    assert!(message.len() < 256);
    for size in 1..message.len() {
        let split = records(&message, size);
        assert_eq!(read(&split), expected, "records of {size}");
        assert_eq!(read(&split[..split.len() - 1]), Hello::NeedMore);
        assert_eq!(read(&[&split[..], b"\x14\x03\x03\0\x01\x01"].concat()), expected, "what follows is not looked at");
    }
}

#[test]
fn not_tls() {
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x", b"\x80\x2e\x01\0\x02", b"\x16\x02", b"\x16\x03\x05", b"\0"]
    {
        assert_eq!(read(bytes), Hello::NotTls, "{bytes:?}");
    }
    for bytes in [&b""[..], b"\x16", b"\x16\x03", b"\x16\x03\x01\x40", b"\x16\x03\x01\x02\x00\x01"] {
        assert_eq!(read(bytes), Hello::NeedMore, "{bytes:?}");
    }
}

#[test]
fn what_clients_may_say() {
    let grease = [sni(&[(0, b"A.Example.ORG.")]), extension(0x0a0a, &[]), extension(0x1a1a, &[0])].concat();
    assert_eq!(client(&hello(&grease)).sni.as_deref(), Some("a.example.org"));
    assert_eq!(
        client(&records(&message(&body()), 99)),
        ClientHello { versions: vec![0x303], ..ClientHello::default() }
    );
    let ech = client(&hello(&[sni(&[(0, b"public.example.org")]), extension(0xfe0d, &[0; 40])].concat()));
    assert!(ech.ech && ech.sni.as_deref() == Some("public.example.org"));
    assert!(client(&hello(&extension(0xffce, &[1]))).ech);
    let odd = client(&hello(&extension(16, &run16(b"\x02\x0a\x0a\x02h2"))));
    assert_eq!(odd.alpn, ["\\n\\n", "h2"]);
    assert_eq!(client(&hello(&extension(43, &[4, 0x0a, 0x0a, 3, 4]))).versions, [0x0a0a, 0x304]);
}

#[test]
fn bad_messages() {
    let named = |name: &[u8]| hello(&sni(&[(0, name)]));
    let with_body = |body: &[u8]| records(&message(body), 16384);
    let good = [body(), run16(&sni(&[(0, b"a.org")]))].concat();
    let mut big = records(&message(&vec![0; MAX_HELLO - 10]), 16384);
    big.truncate(MAX_HELLO);
    let cases = [
        ("two SNI extensions", hello(&sni(&[(0, b"a.org")]).repeat(2))),
        ("two extensions of another kind", hello(&extension(99, &[]).repeat(2))),
        ("two names", hello(&sni(&[(0, b"a.org"), (0, b"b.org")]))),
        ("two kinds of names", hello(&sni(&[(0, b"a.org"), (1, b"b")]))),
        ("a name of another kind", hello(&sni(&[(1, b"a.org")]))),
        ("no name", hello(&sni(&[]))),
        ("an empty SNI extension", hello(&extension(0, &[]))),
        ("bytes after the names", hello(&extension(0, &[run16(b"\0\0\x01a"), vec![0]].concat()))),
        ("a name cut short", hello(&extension(0, &run16(b"\0\0\x09a")))),
        ("an empty name", named(b"")),
        ("NUL in the name", named(b"a.org\0.b.org")),
        ("a name that is not ASCII", named("é.org".as_bytes())),
        ("a name that is not UTF-8", named(b"\xff.org")),
        ("an IPv4 address", named(b"192.0.2.1")),
        ("an IPv6 address", named(b"2001:db8::1")),
        ("an IPv6 address in brackets", named(b"[2001:db8::1]")),
        ("an address in an unusual notation", named(b"0x7f.1")),
        ("a port", named(b"a.org:443")),
        ("a wildcard", named(b"*.org")),
        ("a space", named(b"a.org ")),
        ("a long name", named(&[b'a'; 300])),
        ("an empty list of protocols", hello(&extension(16, &[0, 0]))),
        ("an empty protocol", hello(&extension(16, &[0, 1, 0]))),
        ("half a version", hello(&extension(43, &[3, 3, 4, 3]))),
        ("an extension cut short", hello(&[0, 99, 0, 9, 1])),
        ("extensions cut short", with_body(&[body(), vec![0, 9, 0]].concat())),
        ("bytes after the extensions", with_body(&[&good[..], &[0]].concat())),
        ("an empty body", with_body(&[])),
        ("a long session", with_body(&[&[3, 3][..], &[7; 32], &[33], &[0; 33], &[0, 2, 0x13, 1, 1, 0]].concat())),
        ("no cipher", with_body(&[&[3, 3][..], &[7; 32], &[0, 0, 0, 1, 0]].concat())),
        ("half a cipher", with_body(&[&[3, 3][..], &[7; 32], &[0, 0, 1, 1, 1, 0]].concat())),
        ("no compression", with_body(&[&[3, 3][..], &[7; 32], &[0, 0, 2, 1, 1, 0]].concat())),
        ("another message", records(&[2, 0, 0, 1, 0], 99)),
        ("an empty record", vec![22, 3, 1, 0, 0]),
        ("a long record", vec![22, 3, 1, 0x40, 1]),
        ("a long message", records(&[1, 1, 0, 0], 99)),
        ("an alert in between", [&records(&message(&good), 9)[..14], &[21, 3, 1, 0, 2, 1, 0]].concat()),
        ("no end in sight", big),
        ("too many records", records(&message(&[0; 300]), 1)),
    ];
    for (case, bytes) in cases {
        let (verdict, _) = one_by_one(&bytes, read, |h| *h == Hello::NeedMore);
        assert!(matches!(verdict, Hello::Bad(_)), "{case}: {verdict:?}");
        assert_eq!(read(&bytes), verdict, "{case}");
    }
}
