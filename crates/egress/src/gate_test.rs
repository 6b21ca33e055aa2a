use super::*;
use crate::request_judge::{RequestInfo, RequestJudge};
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

fn remote(addr: &str, named: Option<&str>) -> Remote {
    Remote::at(addr.parse().unwrap(), named.map(str::to_owned))
}

fn pin(gate: &Gate, name: &str, addr: &str) {
    assert_eq!(gate.pin(name, vec![addr.parse().unwrap()]).len(), 1, "{name}");
}

/// Names a decision.
fn word(decision: StreamDecision) -> String {
    match decision {
        StreamDecision::Pass(ruling) => format!("pass {}", ruling.name.unwrap_or_default()),
        StreamDecision::Inspect(names) => format!("inspect {}", names.join(",")),
        StreamDecision::Refuse(ruling) => format!("refuse {}", ruling.rule),
        StreamDecision::Ask(subject, ruling) => format!("ask {} by {}", subject.target(), ruling.rule),
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
    let at = remote("1.1.1.1:443", None);
    assert!(matches!(gate.judge_connect(&at), ConnectDecision::Refuse(_)));
    assert_eq!(word(gate.judge_named(&at, "a.org")), "refuse net.rules[0]");
    pin(&gate, "a.org", "1.1.1.1");
    assert!(
        matches!(gate.judge_connect(&at), ConnectDecision::Dial(ruling) if ruling.name.as_deref() == Some("a.org"))
    );
    assert_eq!(word(gate.judge_named(&at, "a.org")), "pass a.org");
    assert_eq!(word(gate.judge_named(&at, "w.org")), "refuse net.rules[2]");
    assert_eq!(word(gate.judge_unnamed(&at, true)), "pass a.org");
}

#[test]
fn what_names_no_host_must_be_good_for_all_it_may_mean() {
    let gate = gate(RULES, "", Vec::new(), None);
    let at = remote("1.1.1.1:443", None);
    pin(&gate, "a.org", "1.1.1.1");
    // A name without a rule that allows it here does not matter; a denied or inspected one does.
    pin(&gate, "b.org", "1.1.1.1");
    assert_eq!(word(gate.judge_unnamed(&at, false)), "pass a.org");
    pin(&gate, "r.org", "1.1.1.1");
    assert_eq!(word(gate.judge_unnamed(&at, false)), "refuse defaults.net");
    assert_eq!(word(gate.judge_named(&at, "r.org")), "inspect r.org");
    assert_eq!(word(gate.judge_named(&at, "a.org")), "pass a.org");
    let other = remote("2.2.2.2:443", None);
    pin(&gate, "a.org", "2.2.2.2");
    pin(&gate, "c.org", "2.2.2.2");
    assert_eq!(word(gate.judge_unnamed(&other, true)), "refuse net.rules[4]");
    assert_eq!(word(gate.judge_named(&other, "c.org")), "refuse net.rules[4]");
}

#[test]
fn the_strongest_of_what_may_be_meant_is_told() {
    let gate = gate(RULES, "", Vec::new(), None);
    pin(&gate, "w.org", "1.1.1.1");
    pin(&gate, "a.org", "1.1.1.1");
    let ConnectDecision::Dial(ruling) = gate.judge_connect(&remote("1.1.1.1:22", None)) else {
        panic!("it may be reached")
    };
    assert_eq!((ruling.action, ruling.name.as_deref()), (Action::Warn, Some("w.org")));
}

#[test]
fn places_that_are_only_read_are_not_called() {
    let gate = gate(RULES, "", Vec::new(), None);
    pin(&gate, "r.org", "1.1.1.1");
    let at = remote("1.1.1.1:443", None);
    assert!(matches!(gate.judge_connect(&at), ConnectDecision::Wait));
    assert_eq!(word(gate.judge_named(&at, "r.org")), "inspect r.org");
    assert_eq!(word(gate.judge_unnamed(&at, false)), "refuse defaults.net");
}

#[test]
fn an_allowed_address_goes_under_any_name_but_a_denied_one() {
    let gate = gate(RULES, "", Vec::new(), None);
    let at = remote("5.5.5.5:443", None);
    assert!(gate.is_open(&at));
    assert_eq!(word(gate.judge_named(&at, "whoever.org")), "pass whoever.org");
    assert_eq!(word(gate.judge_named(&at, "d.org")), "refuse net.rules[7]");
    assert_eq!(word(gate.judge_unnamed(&at, false)), "pass ");
}

#[test]
fn a_proxys_client_is_held_to_its_word() {
    let gate = gate(RULES, "", Vec::new(), None);
    pin(&gate, "a.org", "1.1.1.1");
    pin(&gate, "w.org", "1.1.1.1");
    let at = remote("1.1.1.1:443", Some("a.org"));
    assert_eq!(word(gate.judge_named(&at, "a.org")), "pass a.org");
    let StreamDecision::Refuse(ruling) = gate.judge_named(&at, "w.org") else { panic!("it is another host") };
    assert_eq!(ruling.reason.as_deref(), Some("the client asks for w.org on a connection to a.org"));
}

#[test]
fn secrets_go_to_their_host_alone() {
    let secrets =
        r#","secrets":[{"name":"KEY","inject":{"host":"a.org","header":"authorization","format":"Bearer {}"}}]"#;
    let value = SecretValue { name: "KEY".to_owned(), placeholder: "stand-in".to_owned(), value: b"s3cret".to_vec() };
    let gate = gate(RULES, secrets, vec![value], None);
    let ask = |host| RequestInfo { host, addr: "1.1.1.1".parse().unwrap(), port: 443, method: "GET", path: "/" };
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
    assert!(gate.count_bytes(60, 40) && !gate.is_over_limit() && !watch.has_changed().unwrap());
    assert!(!gate.count_bytes(0, 1) && gate.is_over_limit() && watch.has_changed().unwrap());
    assert_eq!(gate.spent(), 101);
    assert_eq!(gate.judge_name("a.org").rule, "limits.max_net_bytes");
    assert!(
        matches!(gate.judge_connect(&remote("5.5.5.5:443", None)), ConnectDecision::Refuse(r) if r.rule == "limits.max_net_bytes")
    );
}

#[test]
fn new_rules_are_told_by_their_number() {
    let gate = gate(RULES, "", Vec::new(), None);
    assert_eq!((gate.revision(), gate.judge_name("a.org").revision), (1, 1));
    let watch = gate.watch();
    assert_eq!(gate.replace(resolved("", ""), |before| before + 1), 2);
    assert!(watch.has_changed().unwrap());
    let ruling = gate.judge_name("a.org");
    assert_eq!((ruling.revision, ruling.allowed()), (2, false));
}

mod asking {
    use super::*;
    use crate::approval::{AnswerCallback, OpenQuestion};
    use std::time::Duration;
    use terms::Actor;

    /// Answers of a person for the whole run; `ask` finds no person.
    #[derive(Default)]
    struct Given(Mutex<Vec<(AskedAccess, bool)>>);

    impl Given {
        fn answer(&self, subject: AskedAccess, allow: bool) {
            self.0.lock().unwrap().push((subject, allow));
        }
    }

    impl Approvals for Given {
        fn known(&self, subject: &AskedAccess, whole: bool) -> Option<bool> {
            let given = self.0.lock().unwrap();
            given.iter().find(|(given, _)| given.covers(subject, whole)).map(|(_, allow)| *allow)
        }

        fn ask(
            &self,
            _: &AskedAccess,
            _: &mut dyn FnMut() -> Option<Actor>,
            _: AnswerCallback,
        ) -> Result<OpenQuestion, String> {
            Err("nobody is there".to_owned())
        }

        fn patience(&self) -> Duration {
            Duration::from_secs(60)
        }
    }

    fn with_person(rules: &str) -> (Gate, Arc<Given>) {
        let given = Arc::new(Given::default());
        let around = RunContext { approvals: Some(given.clone()), ..RunContext::default() };
        (gate(rules, "", Vec::new(), None).with(around), given)
    }

    fn subject(arrival: ConnectDecision) -> AskedAccess {
        match arrival {
            ConnectDecision::Ask(subject, _) => subject,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_a_person_it_is_refused() {
        let gate = gate(r#"{"action":"ask","cidr":"1.1.1.0/24"}"#, "", Vec::new(), None);
        assert!(
            matches!(gate.judge_connect(&remote("1.1.1.1:80", None)), ConnectDecision::Refuse(r) if r.action == Action::Ask)
        );
        assert!(
            matches!(gate.judge_connect(&remote("1.1.2.1:80", None)), ConnectDecision::Refuse(r) if r.action == Action::Deny)
        );
    }

    #[test]
    fn an_answer_for_once_is_for_one_connection() {
        let (gate, _) = with_person(r#"{"action":"ask","cidr":"1.1.1.0/24"}"#);
        let mut at = remote("1.1.1.1:80", None);
        let asked = subject(gate.admit(&mut at));
        assert_eq!(asked.target(), "1.1.1.1:80");
        assert!(matches!(gate.admit(&mut remote("1.1.1.1:80", None)), ConnectDecision::Ask(..)));
        at.approved.add(asked);
        assert!(matches!(gate.judge_connect(&at), ConnectDecision::Dial(_)));
        // An approved address covers every host name used there.
        assert_eq!(word(gate.judge_named(&at, "a.org")), "pass a.org");
        assert_eq!(word(gate.judge_unnamed(&at, false)), "pass ");
    }

    #[test]
    fn an_answer_for_the_run_is_for_all_connections_there() {
        let (gate, given) = with_person(r#"{"action":"ask","cidr":"1.1.1.0/24"}"#);
        for (addr, allow) in [("1.1.1.1:80", true), ("1.1.1.2:80", false)] {
            given.answer(subject(gate.admit(&mut remote(addr, None))), allow);
        }
        assert!(matches!(gate.admit(&mut remote("1.1.1.1:80", None)), ConnectDecision::Dial(_)));
        assert!(
            matches!(gate.admit(&mut remote("1.1.1.2:80", None)), ConnectDecision::Refuse(r) if r.action == Action::Deny)
        );
        assert!(
            matches!(gate.admit(&mut remote("1.1.1.1:81", None)), ConnectDecision::Ask(..)),
            "another port is another subject"
        );
    }

    #[test]
    fn an_answer_about_a_name_is_not_about_its_neighbours() {
        let (gate, given) = with_person(r#"{"action":"ask","host":"*"}"#);
        assert!(gate.can_ask(&gate.judge_name("a.org")));
        given.answer(AskedAccess::resolve("net.rules[0]", "a.org"), true);
        assert!(gate.judge_name("a.org").allowed() && gate.can_ask(&gate.judge_name("b.org")));
        pin(&gate, "a.org", "1.1.1.1");
        let mut at = remote("1.1.1.1:443", None);
        assert!(matches!(gate.admit(&mut at), ConnectDecision::Dial(r) if r.name.as_deref() == Some("a.org")));
        assert_eq!(word(gate.judge_named(&at, "a.org")), "pass a.org");
        // No host is named, and the only name of the address was approved.
        assert_eq!(word(gate.judge_unnamed(&at, false)), "pass a.org");
        // Another name of the same address is not covered by the approval.
        assert_eq!(word(gate.judge_named(&at, "b.org")), "refuse net.rules[0]");
        pin(&gate, "b.org", "1.1.1.1");
        assert_eq!(word(gate.judge_named(&at, "b.org")), "ask b.org:443 by net.rules[0]");
        assert_eq!(word(gate.judge_unnamed(&at, false)), "refuse net.rules[0]");
    }
}
