//! ICMP echo requests: rules for them, `policy explain`, and the rate limit.

use crate::network::{rules, world};
use crate::support::world::{PUBLIC, World};
use crate::support::{As, Place, either, to_the_end};
use serde_json::json;

/// Sends an echo request to each host, through both socket types, and prints whether the reply carries the payload.
const PING: &str = r#"
import os, select, socket, struct, sys
def ping(host, size=56, bound=20):
    six = ":" in host
    family, protocol = (socket.AF_INET6, socket.IPPROTO_ICMPV6) if six else (socket.AF_INET, socket.IPPROTO_ICMP)
    s = socket.socket(family, socket.SOCK_DGRAM, protocol)
    payload = os.urandom(size)
    got = []
    for sequence in (1, 2, 65535):
        s.sendto(struct.pack(">BBHHH", 128 if six else 8, 0, 0, 0, sequence) + payload, (host, 0))
        if not select.select([s], [], [], bound)[0]: return "nothing"
        answer, place = s.recvfrom(65536)
        kind, code, _, own, number = struct.unpack(">BBHHH", answer[:8])
        if (kind, code, number, answer[8:], place[0]) != (129 if six else 0, 0, sequence, payload, host): return "something else"
        if own != s.getsockname()[1]: return "another's"
    return "answered"
"#;

/// A network whose users may send echo requests, with an address that answers none.
fn echoing(who: As) -> World {
    let range = "echo '0 2147483647' > /proc/sys/net/ipv4/ping_group_range\necho 1 > /proc/sys/net/ipv6/ip_nonlocal_bind\n\
         ip -6 route add local 2a0b:5::5 dev lo";
    world(who).before(range).host(PUBLIC, "echo.test")
}

// promise 7
#[test]
fn echo_requests_need_a_rule_that_says_so() {
    for who in either() {
        let world = echoing(who);
        let ask = |text: &str| format!("{PING}\n{text}");
        let flags = ["--net", "icmp:echo.test", "--net", "icmp:2a0b:5::5", "--net", "good.test"];
        let run = world.python(
            &flags,
            &ask("address = socket.gethostbyname('echo.test')\n\
                 print(ping(address), ping(address, 0), ping(address, 20000), ping('2a0b:5::5'), ping('127.0.0.1'), ping('::1'))\n\
                 print(ping('10.9.8.7', bound=1), ping('2a0b:6::6', bound=1), ping('5.5.7.7', bound=1))"),
        );
        run.assert_ok();
        assert_eq!(
            run.stdout(),
            "answered answered answered answered answered answered\nnothing nothing nothing\n",
            "{}",
            run.story()
        );
        for refused in ["icmp:10.9.8.7", "icmp:2a0b:6::6", "icmp:5.5.7.7"] {
            run.assert_denied("net.connect", refused);
        }
        assert!(run.outcome["usage"]["net_bytes"].as_u64().unwrap() > 3 * 2 * 20000, "{}", run.story());
        // Rules for TCP and UDP hosts do not cover echo requests; without an icmp rule the socket cannot be created.
        for flags in [&["--net", "echo.test"][..], &["-p", "default", "-p", "networked"]] {
            let run = world.python(
                flags,
                &ask("socket.gethostbyname('echo.test')\ntry: ping('5.5.5.5')\nexcept PermissionError as e: print(e)"),
            );
            assert_eq!(run.assert_ok().stdout(), "[Errno 13] Permission denied\n", "{}", run.story());
        }
        // A deny rule for an address also covers echo requests.
        let allow = json!({"action": "allow", "proto": "icmp", "cidr": "5.5.0.0/16"});
        for (list, printed) in
            [(json!([allow]), "answered\n"), (json!([allow, {"action": "deny", "cidr": "5.5.5.5/32"}]), "nothing\n")]
        {
            let run = world.python(&["-p", &rules(&world, list)], &ask("print(ping('5.5.5.5', bound=1))"));
            assert_eq!(run.assert_ok().stdout(), printed, "{}", run.story());
        }
    }
}

#[test]
fn echo_requests_are_explained_and_written_right() {
    let place = Place::new(As::User);
    let policy = |flag: &str, what: &str| {
        let output = to_the_end(&mut place.cofferdam(["policy", "explain", what, "--net", flag]), b"");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let allowed = policy("icmp:echo.test", "icmp:echo.test");
    assert!(allowed.starts_with("icmp echo.test\n  allow connect  (--net)"), "{allowed}");
    let denied = policy("echo.test", "icmp:echo.test");
    assert!(
        denied.contains("deny") && denied.contains(r#"{"action":"allow","proto":"icmp","host":"echo.test"}"#),
        "{denied}"
    );
    assert!(policy("icmp:echo.test", "echo.test:80").contains("deny"));
    assert!(policy("icmp:echo.test:7", "icmp:echo.test").contains("an echo request has no ports"));
}

// promise 7
#[test]
fn a_host_that_allows_no_echo_requests_is_named() {
    for who in either() {
        let run = world(who)
            .before("echo '1 0' > /proc/sys/net/ipv4/ping_group_range")
            .python(&["--net", "icmp:good.test"], "");
        assert_eq!(run.outcome["error_kind"], "unsupported_policy", "{}", run.story());
        assert!(run.stderr().contains("net.ipv4.ping_group_range"), "{}", run.story());
    }
}

// promise 7
#[test]
fn a_flood_of_echo_requests_is_slowed_down() {
    const FLOOD: &str = r#"
import time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
s.setblocking(False)
sent, heard, began = 0, 0, time.monotonic()
while sent < 3000:
    try:
        s.sendto(struct.pack(">BBHHH", 8, 0, 0, 0, sent % 65536) + b"x" * 56, ("5.5.5.5", 0))
        sent += 1
        while True:
            s.recv(100)
            heard += 1
    except BlockingIOError: pass
took = time.monotonic() - began
assert 0 < heard <= 101 + took * 100, (sent, heard, took)
time.sleep(1)
print(ping("5.5.5.5"))
"#;
    for who in either() {
        let run = echoing(who).python(&["--net", "icmp:5.5.5.5"], &format!("{PING}\n{FLOOD}"));
        assert_eq!(run.assert_ok().stdout(), "answered\n", "{}", run.story());
    }
}
