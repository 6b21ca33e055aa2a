//! Parsers for `/etc/hosts` and `/etc/resolv.conf`.

use egress::hosts::Hosts;
use egress::resolv_conf::Resolv;
use std::net::IpAddr;

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|t| t.parse().unwrap()).collect()
}

#[test]
fn hosts() {
    let hosts = Hosts::parse(
        "# comment\n127.0.0.1\tlocalhost  Alias.Example.ORG # more\n::1 localhost\n127.0.0.1 localhost\r\n\
         fe80::1%eth0 link\n  192.0.2.1 indented\n#192.0.2.2 hidden\n192.0.2.3 # nothing\n\
         nonsense name\n192.0.2 short\n\
         192.0.2.4 bad/name -worse good 192.0.2.5\n1.2.3.4%eth0 zoned\n",
    );
    for (name, expected) in [
        ("localhost", &["127.0.0.1", "::1"][..]),
        ("LOCALHOST.", &["127.0.0.1", "::1"]),
        ("alias.example.org", &["127.0.0.1"]),
        ("link", &["fe80::1"]),
        ("indented", &["192.0.2.1"]),
        ("good", &["192.0.2.4"]),
        ("hidden", &[]),
        ("name", &[]),
        ("short", &[]),
        ("zoned", &[]),
        ("192.0.2.5", &[]),
        ("", &[]),
        ("bad/name", &[]),
    ] {
        assert_eq!(hosts.lookup(name), addresses(expected), "{name}");
    }
    let many: String = (0..100).map(|n| format!("192.0.2.{n} one\n")).collect();
    assert_eq!(Hosts::parse(&many).lookup("one").len(), 64);
    assert_eq!(Hosts::parse(""), Hosts::default());
}

#[test]
fn resolv() {
    for (case, text, servers, timeout, attempts) in [
        ("nothing", "", &["127.0.0.1"][..], 5, 2),
        ("one", "nameserver 192.0.2.53\n", &["192.0.2.53"], 5, 2),
        ("tabs and search", "search a b\nnameserver\t192.0.2.53\r\ndomain c\n", &["192.0.2.53"], 5, 2),
        ("a zone", "nameserver fe80::1%eth0\n", &["fe80::1"], 5, 2),
        ("comments", "#nameserver 192.0.2.1\n;nameserver 192.0.2.2\nnameserver ::1 # x", &["::1"], 5, 2),
        ("not at the start of the line", " nameserver 192.0.2.1\n", &["127.0.0.1"], 5, 2),
        ("no address", "nameserver\nnameserver x\nnameserver 192.0.2\n", &["127.0.0.1"], 5, 2),
        (
            "four",
            "nameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver 1.1.1.3\nnameserver 1.1.1.4",
            &["1.1.1.1", "1.1.1.2", "1.1.1.3"],
            5,
            2,
        ),
        ("options", "options rotate timeout:3 attempts:4 ndots:2", &["127.0.0.1"], 3, 4),
        ("options too large", "options timeout:31 attempts:99999999999999999999", &["127.0.0.1"], 30, 5),
        ("options too small", "options timeout:0 attempts:0", &["127.0.0.1"], 1, 1),
        ("options malformed", "options timeout:+3 attempts:x timeout: attempts", &["127.0.0.1"], 5, 2),
        ("two lines of options", "options timeout:3\noptions attempts:1", &["127.0.0.1"], 3, 1),
    ] {
        assert_eq!(Resolv::parse(text), Resolv { servers: addresses(servers), timeout, attempts }, "{case}");
    }
}
