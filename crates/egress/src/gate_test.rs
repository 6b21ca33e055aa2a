use super::*;
use crate::court::{Court, RequestAsk};
use policy::{Context, Format};

fn gate(rules: &str, rest: &str, secrets: Vec<SecretValue>, limit: Option<u64>) -> Gate {
    Gate::new((resolved(rules, rest), 1), secrets, limit, 8).unwrap()
}

fn resolved(rules: &str, rest: &str) -> Resolved {
    let json = format!(r#"{{"version":1,"net":{{"rules":[{rules}]}}{rest}}}"#);
    let document = policy::parse(&json, Format::Json, "").unwrap_or_else(|e| panic!("{e}"));
    let ctx = Context { home: "/home/u".into(), workspace: "/w".into(), toolchains: Vec::new() };
    policy::resolve(&policy::effective(&[document]).unwrap(), &ctx).unwrap()
}

fn place(addr: &str, named: Option<&str>) -> Place {
    Place::at(addr.parse().unwrap(), named.map(str::to_owned))
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
        Verdict::Ask(matter, ruling) => format!("ask {} by {}", matter.target(), ruling.rule),
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
    assert!(gate.is_open(&at));
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
    assert_eq!(gate.replace(resolved("", ""), |before| before + 1), 2);
    assert!(watch.has_changed().unwrap());
    let ruling = gate.resolve("a.org");
    assert_eq!((ruling.revision, ruling.allowed()), (2, false));
}

mod asking {
    use super::*;
    use crate::asks::{MOST_OPEN, NotOpen, Remember};
    use std::time::Duration;

    fn with_person(rules: &str) -> (Gate, Arc<Questions>) {
        let asks = Questions::new(Duration::from_secs(60));
        let around = Around { asks: Some(asks.clone()), ..Around::default() };
        (gate(rules, "", Vec::new(), None).with(around), asks)
    }

    fn matter(arrival: Arrival) -> Matter {
        match arrival {
            Arrival::Ask(matter, _) => matter,
            other => panic!("{other:?}"),
        }
    }

    /// Answers what `matter` waits for.
    fn answer(asks: &Arc<Questions>, matter: &Matter, allow: bool, remember: Remember) {
        let pending = asks.ask(matter, || None).ok().unwrap();
        let id = asks.open().last().unwrap().id;
        let question = asks.answer(id, allow, remember).unwrap();
        assert_eq!((question.target, question.rule), (matter.target(), matter.rule.clone()));
        assert_eq!(asks.answer(id, true, remember), Err(NotOpen), "nobody answers twice");
        drop(pending);
    }

    #[test]
    fn without_a_person_it_is_refused() {
        let gate = gate(r#"{"action":"ask","cidr":"1.1.1.0/24"}"#, "", Vec::new(), None);
        assert!(matches!(gate.arrive(&place("1.1.1.1:80", None)), Arrival::Refuse(r) if r.action == Action::Ask));
        assert!(matches!(gate.arrive(&place("1.1.2.1:80", None)), Arrival::Refuse(r) if r.action == Action::Deny));
    }

    #[test]
    fn an_answer_for_once_is_for_one_connection() {
        let (gate, asks) = with_person(r#"{"action":"ask","cidr":"1.1.1.0/24"}"#);
        let mut at = place("1.1.1.1:80", None);
        let asked = matter(gate.admit(&mut at));
        assert_eq!(asked.target(), "1.1.1.1:80");
        answer(&asks, &asked, true, Remember::Once);
        assert!(matches!(gate.admit(&mut place("1.1.1.1:80", None)), Arrival::Ask(..)));
        at.leave.add(asked);
        assert!(matches!(gate.arrive(&at), Arrival::Dial(_)));
        // Whatever name is said at an address that was asked about, it is the one that was let through.
        assert_eq!(word(gate.named(&at, "a.org")), "pass a.org");
        assert_eq!(word(gate.unnamed(&at, false)), "pass ");
    }

    #[test]
    fn an_answer_for_the_run_is_for_all_connections_there() {
        let (gate, asks) = with_person(r#"{"action":"ask","cidr":"1.1.1.0/24"}"#);
        for (addr, allow) in [("1.1.1.1:80", true), ("1.1.1.2:80", false)] {
            answer(&asks, &matter(gate.admit(&mut place(addr, None))), allow, Remember::Run);
        }
        assert!(matches!(gate.admit(&mut place("1.1.1.1:80", None)), Arrival::Dial(_)));
        assert!(matches!(gate.admit(&mut place("1.1.1.2:80", None)), Arrival::Refuse(r) if r.action == Action::Deny));
        assert!(
            matches!(gate.admit(&mut place("1.1.1.1:81", None)), Arrival::Ask(..)),
            "another port is another matter"
        );
    }

    #[test]
    fn an_answer_about_a_name_is_not_about_its_neighbours() {
        let (gate, asks) = with_person(r#"{"action":"ask","host":"*"}"#);
        assert!(gate.can_ask(&gate.resolve("a.org")));
        answer(&asks, &name_matter("net.rules[0]", "a.org"), true, Remember::Once);
        assert!(gate.resolve("a.org").allowed() && gate.can_ask(&gate.resolve("b.org")));
        pin(&gate, "a.org", "1.1.1.1");
        let mut at = place("1.1.1.1:443", None);
        assert!(matches!(gate.admit(&mut at), Arrival::Dial(r) if r.name.as_deref() == Some("a.org")));
        assert_eq!(word(gate.named(&at, "a.org")), "pass a.org");
        // Nothing names a host, and the one name that led there was let through.
        assert_eq!(word(gate.unnamed(&at, false)), "pass a.org");
        // A name that nobody asked for, at the same address, is not let through with it.
        assert_eq!(word(gate.named(&at, "b.org")), "refuse net.rules[0]");
        pin(&gate, "b.org", "1.1.1.1");
        assert_eq!(word(gate.named(&at, "b.org")), "ask b.org:443 by net.rules[0]");
        assert_eq!(word(gate.unnamed(&at, false)), "refuse net.rules[0]");
    }

    #[test]
    fn questions_are_bounded_and_shared() {
        let (gate, asks) = with_person(r#"{"action":"ask","cidr":"1.1.1.0/24"}"#);
        let at = |host| matter(gate.admit(&mut place(&format!("1.1.1.{host}:80"), None)));
        let mut held: Vec<_> = (0..MOST_OPEN).map(|host| asks.ask(&at(host), || None).ok().unwrap()).collect();
        assert!(asks.ask(&at(200), || None).err().unwrap().contains("open already"));
        let again = asks.ask(&at(0), || None).ok().unwrap();
        assert!(again.fresh.is_none() && held[0].fresh.is_some());
        // One that is no longer waited for is no longer open.
        drop(held.remove(1));
        assert_eq!(asks.open().len(), MOST_OPEN - 1);
        drop(held.remove(0));
        assert_eq!(asks.open().len(), MOST_OPEN - 1, "somebody else waits for the same");
        drop(again);
        assert_eq!(asks.open().len(), MOST_OPEN - 2);
    }
}
