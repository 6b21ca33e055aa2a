use super::*;
use policy::{Context, Format};

fn gate(rules: &str, rest: &str, secrets: Vec<SecretValue>, limit: Option<u64>) -> Gate {
    Gate::new(resolved(rules, rest), secrets, limit, 8).unwrap()
}

fn resolved(rules: &str, rest: &str) -> Resolved {
    let json = format!(r#"{{"version":1,"net":{{"rules":[{rules}]}}{rest}}}"#);
    let document = policy::parse(&json, Format::Json, "").unwrap_or_else(|e| panic!("{e}"));
    let ctx = Context { home: "/home/u".into(), workspace: "/w".into(), toolchains: Vec::new() };
    policy::resolve(&policy::effective(&[document]).unwrap(), &ctx).unwrap()
}

fn place(addr: &str, named: Option<&str>) -> Place {
    Place { addr: addr.parse().unwrap(), named: named.map(str::to_owned) }
}

fn pin(gate: &Gate, name: &str, addr: &str) {
    assert_eq!(gate.pin(name, vec![addr.parse().unwrap()]).len(), 1, "{name}");
}

/// A verdict as a word.
fn word(verdict: Verdict) -> String {
    match verdict {
        Verdict::Pass(ruling) => format!("pass {}", ruling.name.unwrap_or_default()),
        Verdict::Inspect(names) => format!("inspect {}", names.join(",")),
        Verdict::Refuse(ruling) => format!("refuse {}", ruling.rule),
    }
}

const RULES: &str = r#"{"action":"allow","host":"a.org"},
    {"action":"allow","host":"b.org","ports":"80"},
    {"action":"warn","host":"w.org"},
    {"action":"allow","host":"c.org"},{"action":"deny","host":"c.org","ports":"443"},
    {"action":"allow","host":"r.org","methods":["GET"]},
    {"action":"allow","cidr":"5.5.5.0/24"},{"action":"deny","host":"d.org"}"#;

#[test]
fn a_name_must_have_led_there() {
    let gate = gate(RULES, "", Vec::new(), None);
    let at = place("1.1.1.1:443", None);
    assert!(matches!(gate.arrive(&at), Arrival::Refuse(_)));
    assert_eq!(word(gate.named(&at, "a.org")), "refuse net.rules[0]");
    pin(&gate, "a.org", "1.1.1.1");
    assert!(matches!(gate.arrive(&at), Arrival::Dial(ruling) if ruling.name.as_deref() == Some("a.org")));
    assert_eq!(word(gate.named(&at, "a.org")), "pass a.org");
    assert_eq!(word(gate.named(&at, "w.org")), "refuse net.rules[2]");
    assert_eq!(word(gate.unnamed(&at, true)), "pass a.org");
}

#[test]
fn what_names_no_host_must_be_good_for_all_it_may_mean() {
    let gate = gate(RULES, "", Vec::new(), None);
    let at = place("1.1.1.1:443", None);
    pin(&gate, "a.org", "1.1.1.1");
    // A name that is only not allowed here is not in the way; one that is denied or read is.
    pin(&gate, "b.org", "1.1.1.1");
    assert_eq!(word(gate.unnamed(&at, false)), "pass a.org");
    pin(&gate, "r.org", "1.1.1.1");
    assert_eq!(word(gate.unnamed(&at, false)), "refuse defaults.net");
    assert_eq!(word(gate.named(&at, "r.org")), "inspect r.org");
    assert_eq!(word(gate.named(&at, "a.org")), "pass a.org");
    let other = place("2.2.2.2:443", None);
    pin(&gate, "a.org", "2.2.2.2");
    pin(&gate, "c.org", "2.2.2.2");
    assert_eq!(word(gate.unnamed(&other, true)), "refuse net.rules[4]");
    assert_eq!(word(gate.named(&other, "c.org")), "refuse net.rules[4]");
}

#[test]
fn the_strongest_of_what_may_be_meant_is_told() {
    let gate = gate(RULES, "", Vec::new(), None);
    pin(&gate, "w.org", "1.1.1.1");
    pin(&gate, "a.org", "1.1.1.1");
    let Arrival::Dial(ruling) = gate.arrive(&place("1.1.1.1:22", None)) else { panic!("it may be reached") };
    assert_eq!((ruling.action, ruling.name.as_deref()), (Action::Warn, Some("w.org")));
}

#[test]
fn places_that_are_only_read_are_not_called() {
    let gate = gate(RULES, "", Vec::new(), None);
    pin(&gate, "r.org", "1.1.1.1");
    let at = place("1.1.1.1:443", None);
    assert!(matches!(gate.arrive(&at), Arrival::Wait));
    assert_eq!(word(gate.named(&at, "r.org")), "inspect r.org");
    assert_eq!(word(gate.unnamed(&at, false)), "refuse defaults.net");
}

#[test]
fn an_allowed_address_goes_under_any_name_but_a_denied_one() {
    let gate = gate(RULES, "", Vec::new(), None);
    let at = place("5.5.5.5:443", None);
    assert!(gate.is_open(at.addr));
    assert_eq!(word(gate.named(&at, "whoever.org")), "pass whoever.org");
    assert_eq!(word(gate.named(&at, "d.org")), "refuse net.rules[7]");
    assert_eq!(word(gate.unnamed(&at, false)), "pass ");
}

#[test]
fn a_proxys_client_is_held_to_its_word() {
    let gate = gate(RULES, "", Vec::new(), None);
    pin(&gate, "a.org", "1.1.1.1");
    pin(&gate, "w.org", "1.1.1.1");
    let at = place("1.1.1.1:443", Some("a.org"));
    assert_eq!(word(gate.named(&at, "a.org")), "pass a.org");
    let Verdict::Refuse(ruling) = gate.named(&at, "w.org") else { panic!("it is another host") };
    assert_eq!(ruling.reason.as_deref(), Some("it asks for w.org on a connection made to a.org"));
}

#[test]
fn secrets_go_to_their_host_alone() {
    let secrets =
        r#","secrets":[{"name":"KEY","inject":{"host":"a.org","header":"authorization","format":"Bearer {}"}}]"#;
    let value = SecretValue { name: "KEY".to_owned(), placeholder: "stand-in".to_owned(), value: b"s3cret".to_vec() };
    let gate = gate(RULES, secrets, vec![value], None);
    let ask = |host| RequestAsk { host, addr: "1.1.1.1".parse().unwrap(), port: 443, method: "GET", path: "/" };
    let given = gate.injections(&ask("A.org"));
    assert_eq!(given.len(), 1);
    assert_eq!((given[0].header.as_str(), given[0].placeholder.as_str()), ("authorization", "stand-in"));
    assert_eq!((&given[0].value[..], &given[0].secret[..]), (&b"Bearer s3cret"[..], &b"s3cret"[..]));
    assert!(gate.injections(&ask("b.org")).is_empty());
    assert!(gate.request(&ask("a.org")).allowed());
    assert!(!gate.request(&ask("x.org")).allowed());
}

#[test]
fn exactly_at_the_limit_is_within_it() {
    let gate = gate(RULES, "", Vec::new(), Some(100));
    let watch = gate.watch();
    assert!(gate.spend(60, 40) && !gate.is_over() && !watch.has_changed().unwrap());
    assert!(!gate.spend(0, 1) && gate.is_over() && watch.has_changed().unwrap());
    assert_eq!(gate.spent(), 101);
    assert_eq!(gate.resolve("a.org").rule, "limits.max_net_bytes");
    assert!(matches!(gate.arrive(&place("5.5.5.5:443", None)), Arrival::Refuse(r) if r.rule == "limits.max_net_bytes"));
}

#[test]
fn new_rules_are_told_by_their_number() {
    let gate = gate(RULES, "", Vec::new(), None);
    assert_eq!((gate.revision(), gate.resolve("a.org").revision), (1, 1));
    let watch = gate.watch();
    assert_eq!(gate.replace(resolved("", "")), 2);
    assert!(watch.has_changed().unwrap());
    let ruling = gate.resolve("a.org");
    assert_eq!((ruling.revision, ruling.allowed()), (2, false));
}
