//! Names: resolution, pins, and the effect of both on connections to an address.

use crate::guest::*;
use crate::world::{Case, SERVER, Seen, World, echo};
use egress::dns::{Rcode, RecordType};
use egress::event::{EventStage, Op};
use terms::Action;

pub const CASES: &[Case] = &[
    Case::new("only_names_of_rules_are_asked_for", only_allowed, stage_two_names, check_only_allowed),
    Case::new("an_open_network_asks_for_public_names", open_network, stage_open, check_open),
    Case::new("addresses_are_reached_in_the_name_that_led_there", pinned, stage_two_names, check_pinned),
    Case::new("a_name_that_turns_private_leads_nowhere", rebound, stage_rebinding, check_rebound),
    Case::new("special_addresses_are_left_out_of_answers", special, stage_special, |_| {}),
    Case::new("names_come_over_streams_and_from_any_address", streams, stage_two_names, |_| {}),
    Case::new("a_truncated_answer_is_asked_for_on_a_stream", truncated, stage_truncated, |_| {}),
    Case::new("a_silent_resolver_is_a_failure", silent, stage_silent, check_silent),
    Case::new("names_of_the_hosts_file_need_no_resolver", hosts, stage_hosts, check_hosts),
];

fn stage_two_names(world: &mut World) {
    world.rules = r#"{"action":"allow","host":"a.example.org","ports":"7"},
        {"action":"deny","host":"bad.example.org"},{"action":"warn","host":"*.warn.org","ports":"7"}"#
        .to_owned();
    world.name("a.example.org", &[SERVER, "93.184.216.35", "2606:2800:220:1::1"]);
    world.name("x.warn.org", &["93.184.216.36"]);
    world.name("other.org", &[SERVER]);
    world.name("bad.example.org", &[SERVER]);
    for at in ["93.184.216.34:7", "93.184.216.35:7", "93.184.216.36:7", "93.184.216.34:8", "[2606:2800:220:1::1]:7"] {
        world.serve(at, echo);
    }
}

fn only_allowed() {
    assert_eq!(
        resolve("a.example.org"),
        [SERVER.parse::<std::net::IpAddr>().unwrap(), "93.184.216.35".parse().unwrap()]
    );
    assert_eq!(ask("A.EXAMPLE.org", RecordType::Aaaa).addresses.len(), 1);
    for name in
        ["other.org", "bad.example.org", "secret-data.other.org", "sub.a.example.org", "org", "4.3.2.1.in-addr.arpa"]
    {
        for kind in [RecordType::A, RecordType::Aaaa, RecordType::Other(16)] {
            assert_eq!(ask(name, kind).rcode, Rcode::NxDomain, "{name}");
        }
    }
    let text = ask("a.example.org", RecordType::Other(16));
    assert_eq!((text.rcode, text.addresses.len()), (Rcode::NoError, 0));
    assert_eq!(ask("localhost", RecordType::A).addresses, ["127.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
}

fn check_only_allowed(seen: &Seen) {
    assert_eq!(seen.questions, ["a.example.org", "a.example.org"]);
    let opened = seen.all(Op::Resolve, EventStage::Opened);
    assert_eq!((opened.len(), opened[0].name.as_deref()), (2, Some("a.example.org")));
    assert_eq!((opened[0].rule.as_str(), opened[0].action, opened[0].revision), ("net.rules[0]", Action::Allow, 1));
    let refused = seen.all(Op::Resolve, EventStage::Refused);
    let bad = refused.iter().find(|e| e.name.as_deref() == Some("bad.example.org")).unwrap();
    assert_eq!((bad.rule.as_str(), bad.action), ("net.rules[1]", Action::Deny));
    let other = refused.iter().find(|e| e.name.as_deref() == Some("other.org")).unwrap();
    assert_eq!(other.rule, "defaults.net");
    assert_eq!(
        other.hint.as_deref(),
        Some(r#"add {"action":"allow","host":"other.org"} to net.rules, or run with --net other.org"#)
    );
}

fn stage_open(world: &mut World) {
    world.default = "allow";
    world.rules = r#"{"action":"deny","host":"**.bad.org"}"#.to_owned();
    world.name("any.org", &[SERVER]);
    world.name("bad.org", &[SERVER]);
    world.serve("93.184.216.34:443", echo);
    world.serve("10.0.0.1:443", echo);
}

fn open_network() {
    assert_eq!(resolve("any.org").len(), 1);
    assert_eq!(ask("x.bad.org", RecordType::A).rcode, Rcode::NxDomain);
    assert_eq!(ask("metadata.google.internal", RecordType::A).rcode, Rcode::NxDomain);
    // Addresses are allowed without a name, but not under a denied name; special addresses are refused.
    reaches("93.184.216.34:443");
    echoes(&mut connect("93.184.216.34:443"), &hello(Some("any.org")));
    echoes(&mut connect("93.184.216.34:443"), &hello(Some("never-resolved.org")));
    is_reset("93.184.216.34:443", &hello(Some("www.bad.org")));
    is_reset("93.184.216.34:443", b"GET / HTTP/1.1\r\nHost: bad.org\r\n\r\n");
    is_reset("10.0.0.1:443", b"\x01");
    is_reset("169.254.169.254:80", b"\x01");
}

fn check_open(seen: &Seen) {
    assert_eq!(seen.questions, ["any.org"]);
    let refused = seen.all(Op::Connect, EventStage::Refused);
    let names: Vec<_> = refused.iter().filter_map(|e| e.name.as_deref()).collect();
    assert_eq!(names, ["www.bad.org", "bad.org"]);
    assert!(refused.iter().any(|e| e.hint.as_ref().is_some_and(|h| h.contains("10.0.0.1/32"))));
}

fn pinned() {
    // Before the name was resolved, its address is refused.
    is_reset("93.184.216.34:7", b"\x01");
    resolve("a.example.org");
    reaches("93.184.216.34:7");
    reaches("93.184.216.35:7");
    // Another port, and an address that no name resolved to.
    is_reset("93.184.216.34:8", b"\x01");
    is_reset("93.184.216.36:7", b"\x01");
    resolve("x.warn.org");
    reaches("93.184.216.36:7");
    ask("a.example.org", RecordType::Aaaa);
    reaches("[2606:2800:220:1::1]:7");
}

fn check_pinned(seen: &Seen) {
    let opened = seen.all(Op::Connect, EventStage::Opened);
    let told: Vec<_> = opened.iter().map(|e| (e.name.as_deref().unwrap(), e.action)).collect();
    let (a, warn) = (("a.example.org", Action::Allow), ("x.warn.org", Action::Warn));
    assert_eq!(told, [a, a, warn, a]);
    assert_eq!(opened[0].address, Some("93.184.216.34:7".parse().unwrap()));
    let closed = seen.all(Op::Connect, EventStage::Closed);
    assert_eq!(closed.len(), 4);
    assert!(closed.iter().all(|e| (e.bytes_in, e.bytes_out) == (6, 6)), "{closed:#?}");
    let refused = seen.all(Op::Connect, EventStage::Refused);
    assert_eq!(refused.len(), 3);
    let hint = refused[1].hint.as_deref().unwrap();
    assert_eq!(
        hint,
        r#"add {"action":"allow","proto":"tcp","host":"a.example.org","ports":"8"} to net.rules, or run with --net a.example.org:8"#
    );
}

fn stage_rebinding(world: &mut World) {
    world.rules = r#"{"action":"allow","host":"a.example.org"}"#.to_owned();
    world.name("a.example.org", &[SERVER]);
    world.name("a.example.org", &["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.0.0.53", "64:ff9b::a00:1"]);
    world.serve("93.184.216.34:7", echo);
    world.serve("10.0.0.1:7", echo);
}

fn rebound() {
    assert_eq!(resolve("a.example.org").len(), 1);
    reaches("93.184.216.34:7");
    let second = ask("a.example.org", RecordType::A);
    assert_eq!((second.rcode, second.addresses.len()), (Rcode::NoError, 0));
    is_reset("10.0.0.1:7", b"\x01");
    // The earlier address stays pinned to the name.
    reaches("93.184.216.34:7");
}

fn check_rebound(seen: &Seen) {
    let refused = seen.one(Op::Resolve, EventStage::Refused);
    let reason = refused.reason.as_deref().unwrap_or_default();
    let names_it = reason.starts_with("a.example.org leads only to ") && reason.contains("10.0.0.1");
    assert!(names_it && reason.ends_with("which no rule names"), "{reason}");
}

fn stage_special(world: &mut World) {
    world.rules =
        r#"{"action":"allow","host":"**.example.org"},{"action":"allow","cidr":"10.1.0.0/16","ports":"7"}"#.to_owned();
    world
        .name("mixed.example.org", &["10.0.0.1", SERVER, "10.1.0.1", "fd00::1", "2002:a00:1::1", "2606:2800:220:1::1"]);
    world.serve("10.1.0.1:7", echo);
    world.serve("10.1.0.1:8", echo);
}

fn special() {
    let v4: Vec<String> = resolve("mixed.example.org").iter().map(ToString::to_string).collect();
    assert_eq!(v4, [SERVER, "10.1.0.1"]);
    let v6: Vec<String> =
        ask("mixed.example.org", RecordType::Aaaa).addresses.iter().map(ToString::to_string).collect();
    assert_eq!(v6, ["2606:2800:220:1::1"]);
    reaches("10.1.0.1:7");
    is_reset("10.1.0.1:8", b"\x01");
}

fn streams() {
    assert_eq!(ask_on_stream("a.example.org", RecordType::A).addresses.len(), 2);
    assert_eq!(ask_on_stream("other.org", RecordType::A).rcode, Rcode::NxDomain);
    assert_eq!(ask_at("8.8.8.8:53", "a.example.org", RecordType::A).addresses.len(), 2);
}

fn stage_truncated(world: &mut World) {
    stage_two_names(world);
    world.truncate = true;
}

fn truncated() {
    assert_eq!(resolve("a.example.org").len(), 2);
}

fn stage_silent(world: &mut World) {
    stage_two_names(world);
    world.silent_resolver = true;
}

fn silent() {
    assert_eq!(ask("a.example.org", RecordType::A).rcode, Rcode::ServFail);
}

fn check_silent(seen: &Seen) {
    assert_eq!(seen.questions.len(), 2, "as often as configured");
    assert_eq!(seen.one(Op::Resolve, EventStage::Failed).reason.as_deref(), Some("the resolver does not answer"));
}

fn stage_hosts(world: &mut World) {
    world.rules = r#"{"action":"allow","host":"*.lan"}"#.to_owned();
    world.hosts = "93.184.216.34 box.lan\n10.0.0.1 private.lan\n93.184.216.34 other.org\n";
    world.serve("93.184.216.34:7", echo);
}

fn hosts() {
    assert_eq!(resolve("box.lan").len(), 1);
    assert_eq!(resolve("private.lan").len(), 0);
    assert_eq!(ask("other.org", RecordType::A).rcode, Rcode::NxDomain);
    reaches("93.184.216.34:7");
}

fn check_hosts(seen: &Seen) {
    assert!(seen.questions.is_empty());
}
