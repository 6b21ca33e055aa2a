use super::*;
use crate::document::{Format, parse};
use crate::policy::effective;
use crate::resolve::{Context, resolve};
use std::path::PathBuf;

fn policy(rules: &str, default: &str) -> Resolved {
    let json = format!(r#"{{"version":1,"defaults":{{"net":"{default}"}},"net":{{"rules":[{rules}]}}}}"#);
    let document = parse(&json, Format::Json, "").unwrap_or_else(|e| panic!("{e}"));
    let ctx = Context { home: "/home/u".into(), workspace: "/w".into(), toolchains: vec![PathBuf::from("/t")] };
    resolve(&effective(&[document]).unwrap(), &ctx).unwrap()
}

fn action(policy: &Resolved, host: Option<&str>, addr: Option<&str>, port: u16) -> Action {
    let addr = addr.map(|a| a.parse().unwrap());
    let ask = NetRequest { host, addr, ..NetRequest::tcp("", port) };
    policy.net(&ask).action
}

#[test]
fn names_and_ports() {
    let p = policy(
        r#"{"action":"allow","host":"*.example.org","ports":"443"},
           {"action":"deny","host":"bad.example.org"},
           {"action":"warn","host":"example.net","ports":"80,8000-8010"}"#,
        "deny",
    );
    assert_eq!(action(&p, Some("a.example.org"), None, 443), Action::Allow);
    assert_eq!(action(&p, Some("A.EXAMPLE.ORG."), None, 443), Action::Allow);
    assert_eq!(action(&p, Some("example.org"), None, 443), Action::Deny);
    assert_eq!(action(&p, Some("a.example.org"), None, 80), Action::Deny);
    assert_eq!(action(&p, Some("bad.example.org"), None, 443), Action::Deny);
    assert_eq!(action(&p, Some("example.net"), None, 8005), Action::Warn);
    assert_eq!(action(&p, Some("0x7f.1"), None, 443), Action::Deny);
}

#[test]
fn special_addresses_need_their_own_rule() {
    let open = policy(r#"{"action":"allow","cidr":"0.0.0.0/0"},{"action":"allow","host":"*"}"#, "allow");
    assert_eq!(action(&open, Some("example.org"), Some("93.184.216.34"), 443), Action::Allow);
    for addr in [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "::1",
        "::ffff:10.0.0.1",
        "fe80::1",
        "fd00::1",
        "64:ff9b::7f00:1",
        "2002:a00:1::",
        "224.0.0.1",
    ] {
        assert_eq!(action(&open, Some("example.org"), Some(addr), 443), Action::Deny, "{addr}");
        assert_eq!(action(&open, None, Some(addr), 443), Action::Deny, "{addr}");
    }
    let named = policy(
        r#"{"action":"allow","cidr":"10.1.0.0/16"},{"action":"allow","host":"127.0.0.1","ports":"8080"}"#,
        "deny",
    );
    assert_eq!(action(&named, None, Some("10.1.2.3"), 443), Action::Allow);
    assert_eq!(action(&named, Some("db.internal"), Some("10.1.2.3"), 443), Action::Allow);
    assert_eq!(action(&named, None, Some("10.2.2.3"), 443), Action::Deny);
    assert_eq!(action(&named, Some("127.0.0.1"), None, 8080), Action::Allow);
    assert_eq!(action(&named, Some("evil.example"), Some("127.0.0.1"), 8080), Action::Allow);
    assert_eq!(action(&named, Some("127.0.0.1"), None, 8081), Action::Deny);
}

#[test]
fn a_denied_range_holds_in_every_form() {
    let p = policy(r#"{"action":"deny","cidr":"1.2.3.0/24"},{"action":"allow","host":"**.example.org"}"#, "allow");
    assert_eq!(action(&p, Some("example.org"), Some("1.2.3.4"), 443), Action::Deny);
    assert_eq!(action(&p, Some("example.org"), Some("::ffff:1.2.3.4"), 443), Action::Deny);
    assert_eq!(action(&p, Some("example.org"), Some("64:ff9b::102:304"), 443), Action::Deny);
    assert_eq!(action(&p, Some("example.org"), Some("2002:102:304::1"), 443), Action::Deny);
    assert_eq!(action(&p, Some("example.org"), Some("1.2.4.4"), 443), Action::Allow);
}

#[test]
fn what_cannot_be_read_counts_against_the_request() {
    let p = policy(
        r#"{"action":"allow","host":"api.example.org","methods":["GET"],"paths":["/v1/*"]},
           {"action":"allow","host":"b.example.org"},
           {"action":"deny","host":"b.example.org","methods":["DELETE"]}"#,
        "deny",
    );
    let ask = |host, method, path| p.net(&NetRequest { method, path, ..NetRequest::tcp(host, 443) }).action;
    assert_eq!(ask("api.example.org", Some("GET"), Some("/v1/users?x=/..;")), Action::Allow);
    assert_eq!(ask("api.example.org", Some("GET"), Some("/v1/users/3")), Action::Deny);
    assert_eq!(ask("api.example.org", Some("POST"), Some("/v1/users")), Action::Deny);
    assert_eq!(ask("api.example.org", None, None), Action::Deny);
    let odd = ["/v1/..", "/v1/%2e%2e", "/v1/a%2fb", "/v1/a\\b", "/v1//a", "/v1/%zz", "v1/a", "/v1/%00"];
    for odd in odd.into_iter().chain(["/v1/..;", "/v1/..%3b", "/v1/a;b"]) {
        assert_eq!(ask("api.example.org", Some("GET"), Some(odd)), Action::Deny, "{odd}");
    }
    assert_eq!(ask("b.example.org", Some("GET"), Some("/")), Action::Allow);
    assert_eq!(ask("b.example.org", None, None), Action::Deny);
    assert!(p.inspects(&NetRequest::tcp("api.example.org", 443)));
    assert!(!p.inspects(&NetRequest::tcp("c.example.org", 443)));
}

#[test]
fn sockets() {
    let p = policy(
        r#"{"action":"allow","proto":"unix","path":"~/run/*.sock"},{"action":"deny","proto":"unix","path":"/home/u/run/x.sock"}"#,
        "allow",
    );
    let ask = |path: &str| p.net(&NetRequest::unix(Path::new(path))).action;
    assert_eq!(ask("/home/u/run/a.sock"), Action::Allow);
    assert_eq!(ask("/home/u/run/x.sock"), Action::Deny);
    assert_eq!(ask("/run/docker.sock"), Action::Deny);
    let alone = policy(r#"{"action":"allow","proto":"unix","path":"/run/x.sock"}"#, "deny");
    assert_eq!(alone.needs_network(), None);
}

#[test]
fn the_network_is_needed_only_when_something_may_use_it() {
    assert_eq!(policy("", "deny").needs_network(), None);
    assert_eq!(policy(r#"{"action":"deny","cidr":"0.0.0.0/0"}"#, "deny").needs_network(), None);
    assert_eq!(policy("", "allow").needs_network().as_deref(), Some("defaults.net"));
    assert_eq!(policy(r#"{"action":"ask","host":"a.b"}"#, "deny").needs_network().as_deref(), Some("net.rules[0]"));
}

/// A guest without network is refused at the name server; allowing that server would not help.
#[test]
fn who_asks_for_a_name_is_told_to_allow_the_host() {
    let addr = Some("10.0.0.53".parse().unwrap());
    let ask = NetRequest { host: None, addr, ..NetRequest::tcp("", 53) };
    let hint = policy("", "deny").net(&ask).hint.unwrap();
    assert!(hint.starts_with("a name was asked for") && hint.ends_with("or run with --net HOST"), "{hint}");
    // With a network, names are resolved, and the server is a target like any other.
    let open = policy(r#"{"action":"allow","host":"a.example.org"}"#, "deny").net(&ask).hint.unwrap();
    assert!(open.contains("10.0.0.53/32"), "{open}");
    let other = policy("", "deny").net(&NetRequest { port: 54, ..ask }).hint.unwrap();
    assert!(other.contains("10.0.0.53/32"), "{other}");
}

#[test]
fn addresses_have_a_flag_where_it_can_be_written() {
    let hint = |addr: &str| {
        let ask = NetRequest { host: None, addr: Some(addr.parse().unwrap()), ..NetRequest::tcp("", 80) };
        policy("", "deny").net(&ask).hint.unwrap()
    };
    assert!(hint("93.184.216.34").ends_with("or run with --net 93.184.216.34:80"));
    assert!(hint("2606:2800:220:1::1").ends_with("or run with --net [2606:2800:220:1::1]:80"));
    assert!(hint("10.1.2.3").ends_with("or run with --net 10.1.2.3:80"));
    assert!(hint("fd00::1").ends_with("or run with --net [fd00::1]:80"));
}

#[test]
fn hints_are_rules() {
    let p = policy("", "deny");
    let hint = p.net(&NetRequest::tcp("example.org", 443)).hint.unwrap();
    assert_eq!(
        hint,
        r#"add {"action":"allow","proto":"tcp","host":"example.org","ports":"443"} to net.rules, or run with --net example.org:443"#
    );
    let ask = NetRequest { addr: Some("127.0.0.1".parse().unwrap()), ..NetRequest::tcp("localhost", 5432) };
    let hint = p.net(&ask).hint.unwrap();
    assert_eq!(
        hint,
        r#"127.0.0.1 is a special address, which only a rule that names it covers: add {"action":"allow","cidr":"127.0.0.1/32","ports":"5432"} to net.rules, or run with --net 127.0.0.1:5432"#
    );
}

#[test]
fn names_that_may_be_asked_for() {
    let p = policy(
        r#"{"action":"allow","host":"*.example.org","ports":"443","methods":["GET"]},
           {"action":"warn","proto":"udp","host":"time.example.net","ports":"123"},
           {"action":"deny","host":"bad.example.org"},
           {"action":"deny","host":"half.example.org","ports":"80"},
           {"action":"ask","host":"ask.example.org"},
           {"action":"allow","cidr":"10.0.0.0/8"}"#,
        "deny",
    );
    for (name, action, rule) in [
        ("a.example.org", Action::Allow, "net.rules[0]"),
        ("A.Example.ORG.", Action::Allow, "net.rules[0]"),
        ("half.example.org", Action::Allow, "net.rules[0]"),
        ("time.example.net", Action::Warn, "net.rules[1]"),
        ("bad.example.org", Action::Deny, "net.rules[2]"),
        ("ask.example.org", Action::Ask, "net.rules[4]"),
        ("example.org", Action::Deny, "defaults.net"),
        ("db.internal", Action::Deny, "defaults.net"),
        ("10.0.0.1", Action::Deny, "defaults.net"),
        ("a b", Action::Deny, "defaults.net"),
    ] {
        let decision = p.resolves(name);
        assert_eq!((decision.action, decision.rule.as_str()), (action, rule), "{name}");
    }
    let hint = p.resolves("other.net").hint.unwrap();
    assert_eq!(hint, r#"add {"action":"allow","host":"other.net"} to net.rules, or run with --net other.net"#);
    let open = policy(r#"{"action":"deny","host":"**.bad.org"},{"action":"allow","host":"db"}"#, "allow");
    for (name, action) in [
        ("example.org", Action::Allow),
        ("x.bad.org", Action::Deny),
        ("bad.org", Action::Deny),
        ("db", Action::Allow),
        ("web", Action::Deny),
        ("metadata.google.internal", Action::Deny),
        ("printer.local", Action::Deny),
    ] {
        assert_eq!(open.resolves(name).action, action, "{name}");
    }
    assert_eq!(policy(r#"{"action":"deny","host":"*"}"#, "allow").resolves("example.org").action, Action::Deny);
}

#[test]
fn where_names_may_lead() {
    let p = policy(
        r#"{"action":"allow","host":"*.example.org"},{"action":"allow","cidr":"10.1.0.0/16","ports":"5432"},
           {"action":"deny","cidr":"1.2.3.0/24"},{"action":"deny","cidr":"1.2.4.0/24","ports":"80"}"#,
        "deny",
    );
    for (addr, leads) in [
        ("93.184.216.34", true),
        ("10.1.2.3", true),
        ("10.2.2.3", false),
        ("127.0.0.1", false),
        ("169.254.169.254", false),
        ("::ffff:169.254.169.254", false),
        ("64:ff9b::7f00:1", false),
        ("192.0.0.53", false),
        ("1.2.3.4", false),
        ("2002:102:304::1", false),
        ("1.2.4.4", true),
    ] {
        assert_eq!(p.leads_to("a.example.org", addr.parse().unwrap()), leads, "{addr}");
    }
}

#[test]
fn datagrams_need_a_rule_that_says_so() {
    let p = policy(
        r#"{"action":"allow","host":"web.example.org"},{"action":"allow","proto":"udp","host":"ntp.example.org","ports":"123"},
           {"action":"deny","proto":"udp","cidr":"1.2.3.0/24"}"#,
        "allow",
    );
    let ask = |host, addr: &str, port| {
        let addr = Some(addr.parse().unwrap());
        p.datagrams(&NetRequest { proto: Proto::Udp, addr, ..NetRequest::tcp(host, port) })
    };
    assert_eq!(ask("ntp.example.org", "93.184.216.34", 123).action, Action::Allow);
    assert_eq!(ask("ntp.example.org", "93.184.216.34", 124).action, Action::Deny);
    assert_eq!(ask("ntp.example.org", "1.2.3.4", 123).action, Action::Deny);
    assert_eq!(ask("ntp.example.org", "127.0.0.1", 123).action, Action::Deny);
    let web = ask("web.example.org", "93.184.216.34", 443);
    assert_eq!((web.action, web.rule.as_str()), (Action::Deny, "defaults.net"));
    assert_eq!(
        web.hint.unwrap(),
        r#"add {"action":"allow","proto":"udp","host":"web.example.org","ports":"443"} to net.rules"#
    );
}

#[test]
fn echo_requests_need_a_rule_that_says_so() {
    let p = policy(
        r#"{"action":"allow","host":"web.example.org"},{"action":"allow","proto":"icmp","host":"ping.example.org"},
           {"action":"allow","proto":"icmp","cidr":"10.0.0.0/8"},
           {"action":"deny","cidr":"1.2.3.0/24"},{"action":"deny","host":"ping.example.org","ports":"443"}"#,
        "allow",
    );
    let ask =
        |host, addr: &str| p.datagrams(&NetRequest { addr: Some(addr.parse().unwrap()), ..NetRequest::icmp(host) });
    assert_eq!(ask("ping.example.org", "93.184.216.34").action, Action::Allow);
    assert_eq!(ask("10.0.0.1", "10.0.0.1").action, Action::Allow);
    // A denial of the whole target counts; a denial of one port does not.
    assert_eq!(ask("ping.example.org", "1.2.3.4").action, Action::Deny);
    for (host, addr, hint) in [
        (
            "web.example.org",
            "93.184.216.34",
            r#"add {"action":"allow","proto":"icmp","host":"web.example.org"} to net.rules, or run with --net icmp:web.example.org"#,
        ),
        (
            "ping.example.org",
            "169.254.169.254",
            r#"169.254.169.254 is a special address, which only a rule that names it covers: add {"action":"allow","proto":"icmp","cidr":"169.254.169.254/32"} to net.rules, or run with --net icmp:169.254.169.254"#,
        ),
    ] {
        let web = ask(host, addr);
        assert_eq!((web.action, web.rule.as_str()), (Action::Deny, "defaults.net"));
        assert_eq!(web.hint.unwrap(), hint);
    }
    // No other connection is permitted.
    let tcp = NetRequest { addr: Some("10.0.0.1".parse().unwrap()), ..NetRequest::tcp("10.0.0.1", 443) };
    assert_eq!(p.net(&tcp).action, Action::Deny);
    assert_eq!(p.sends_echoes(), Some("net.rules[1]"));
    assert_eq!(policy(r#"{"action":"deny","proto":"icmp","host":"a.b"}"#, "allow").sends_echoes(), None);
}

#[test]
fn who_is_asked_about_the_world_is_not_asked_about_special_places() {
    let p = policy(r#"{"action":"ask","host":"*"},{"action":"ask","cidr":"10.1.0.0/16"}"#, "deny");
    let ask = |addr: &str| {
        p.net(&NetRequest { addr: Some(addr.parse().unwrap()), host: None, ..NetRequest::tcp("", 443) }).action
    };
    assert_eq!(ask("93.184.216.34"), Action::Ask);
    assert_eq!(ask("10.1.2.3"), Action::Ask);
    for special in ["169.254.169.254", "127.0.0.1", "10.2.0.1", "::1"] {
        assert_eq!(ask(special), Action::Deny, "{special}");
    }
    assert!(p.leads_to("a.org", "10.1.2.3".parse().unwrap()) && !p.leads_to("a.org", "10.2.0.1".parse().unwrap()));
}

#[test]
fn a_name_that_only_a_person_could_open_asks() {
    let p = policy(
        r#"{"action":"ask","host":"a.org","ports":"443"},{"action":"allow","host":"b.org","ports":"80"},
           {"action":"ask","host":"b.org","ports":"443"},{"action":"ask","host":"d.org"},{"action":"deny","host":"d.org"}"#,
        "deny",
    );
    for (name, action) in
        [("a.org", Action::Ask), ("b.org", Action::Allow), ("c.org", Action::Deny), ("d.org", Action::Deny)]
    {
        assert_eq!(p.resolves(name).action, action, "{name}");
    }
    let datagrams = |proto| p.datagrams(&NetRequest { proto, ..NetRequest::tcp("a.org", 443) }).action;
    assert_eq!(datagrams(Proto::Udp), Action::Deny, "a rule about a web server does not mean datagrams");
    let p = policy(r#"{"action":"ask","proto":"udp","host":"a.org"}"#, "deny");
    assert_eq!(p.datagrams(&NetRequest { proto: Proto::Udp, ..NetRequest::tcp("a.org", 53) }).action, Action::Ask);
}
