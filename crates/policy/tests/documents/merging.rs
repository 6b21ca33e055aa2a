//! Properties of documents and of merging.

use policy::{Action, Context, Document, Format, NetRequest, Perm, Policy, Resolved, effective, merge, parse, resolve};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn json_string() -> impl Strategy<Value = String> {
    "[a-zA-Z ]{0,6}|é{0,2}|\\PC{0,4}"
}

fn fs_rule() -> impl Strategy<Value = String> {
    let path = prop_oneof![
        "(/[ab]{1,2}){1,3}",
        "~(/[ab*?]{1,3}){0,2}",
        Just("$WORKSPACE/**/x".to_owned()),
        Just("/a[!b-d]".to_owned()),
    ];
    let perms = prop::sample::subsequence(
        vec!["read_file", "read_dir", "execute", "write_file", "make_*", "remove_*", "refer", "truncate", "ioctl_dev"],
        1..5,
    );
    (prop::sample::select(vec!["allow", "deny", "warn", "ask"]), path, perms).prop_filter_map(
        "a path",
        |(a, p, perms)| {
            p.split('/')
                .all(|part| part == "**" || !part.contains("**"))
                .then(|| format!(r#"{{"action":"{a}","path":"{p}","perms":{perms:?}}}"#))
        },
    )
}

fn net_rule() -> impl Strategy<Value = String> {
    let to = prop_oneof![
        "\"host\":\"[ab]{1,3}\\.org\"",
        "\"host\":\"\\*\\*?\\.[ab]{1,3}\\.org\"",
        Just("\"host\":\"*\"".to_owned()),
        (0u8..255, 8u8..=32).prop_map(|(a, p)| format!("\"cidr\":\"{}\"", policy::Cidr::new([a, 2, 3, 4].into(), p))),
        Just("\"cidr\":\"fd00::/8\"".to_owned()),
        Just("\"proto\":\"unix\",\"path\":\"~/s.sock\"".to_owned()),
    ];
    let ports =
        prop::option::of((1u16..100, 100u16..200).prop_map(|(a, b)| format!(",\"ports\":\"{a},{b}-{}\"", b + 5)));
    let http = prop::option::of(Just(r#","methods":["GET","PUT"],"paths":["/v1/*","/a/**"]"#));
    (prop::sample::select(vec!["allow", "deny", "warn", "ask"]), to, ports, http).prop_map(|(a, to, ports, http)| {
        let ip = !to.contains("unix");
        let ports = ports.filter(|_| ip).unwrap_or_default();
        format!(r#"{{"action":"{a}",{to}{ports}{}}}"#, http.filter(|_| ip).unwrap_or_default())
    })
}

fn exec_rule() -> impl Strategy<Value = String> {
    ("(/[ab]{1,2}){1,3}", prop::option::of("[0-9a-f]{64}"), any::<bool>()).prop_map(|(path, sha, deny)| {
        match (sha, deny) {
            (_, true) => format!(r#"{{"action":"deny","path":"{path}"}}"#),
            (Some(sha), _) => format!(r#"{{"action":"allow","path":"{path}","sha256":"{sha}"}}"#),
            (None, _) => format!(r#"{{"action":"warn","path":"{path}"}}"#),
        }
    })
}

fn rest() -> impl Strategy<Value = String> {
    let limits = (prop::option::of(1u64..5000), prop::option::of(1u64..4_000_000), any::<bool>()).prop_map(
        |(wall, mem, end)| {
            let mut parts = vec![format!(r#""on_output_limit":"{}""#, if end { "end" } else { "truncate" })];
            parts.extend(wall.map(|n| format!(r#""max_wall_ms":{n}"#)));
            parts.extend(mem.map(|n| format!(r#""max_memory_mb":{}"#, n as f64 / 1000.0)));
            format!(r#""limits":{{{}}}"#, parts.join(","))
        },
    );
    let env =
        (prop::option::of(prop::sample::subsequence(vec!["A", "B", "L*", "LC_*", "LC_ALL"], 0..5)), json_string())
            .prop_map(|(pass, value)| {
                let value = serde_text(&value);
                match pass {
                    Some(pass) => format!(r#""env":{{"pass":{pass:?},"set":{{"X":{value}}}}}"#),
                    None => format!(r#""env":{{"set":{{"X":{value}}}}}"#),
                }
            });
    let capabilities = (any::<bool>(), prop::option::of(1u64..9)).prop_map(|(allow, budget)| match budget {
        Some(n) => {
            format!(r#""capabilities":{{"net.fetch":{{"allow":{allow},"budget":{n}}}}}"#)
        }
        None => format!(r#""capabilities":{{"net.fetch":{{"allow":{allow}}}}}"#),
    });
    let degrade = prop::sample::subsequence(vec!["namespaces", "landlock.scope", "max_memory_mb"], 0..3)
        .prop_map(|names| format!(r#""degrade":{names:?}"#));
    let fixed = prop::sample::subsequence(
        vec![
            r#""syscalls":{"deny":["ptrace","bpf"]}"#,
            r#""audit":{"events":["exec","net"]}"#,
            r#""secrets":[{"name":"K","inject":{"host":"api.a.org","header":"X-Key","format":"Bearer {}"}}]"#,
            r#""defaults":{"fs":"allow","net":"deny"}"#,
        ],
        0..4,
    );
    (prop::option::of(limits), prop::option::of(env), prop::option::of(capabilities), prop::option::of(degrade), fixed)
        .prop_map(|(a, b, c, d, fixed)| {
            let all = [a, b, c, d].into_iter().flatten().chain(fixed.into_iter().map(str::to_owned));
            all.map(|part| format!(",{part}")).collect()
        })
}

/// Formats a JSON string; Rust's escapes differ from JSON's.
fn serde_text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars().filter(|c| !c.is_control()) {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn document() -> impl Strategy<Value = Document> {
    let rules = (
        prop::collection::vec(fs_rule(), 0..4),
        prop::collection::vec(net_rule(), 0..4),
        prop::collection::vec(exec_rule(), 0..3),
    );
    (rules, rest()).prop_map(|((fs, net, exec), rest)| {
        let json = format!(
            r#"{{"version":1,"fs":{{"rules":[{}]}},"net":{{"rules":[{}]}},"exec":{{"rules":[{}]}}{rest}}}"#,
            fs.join(","),
            net.join(","),
            exec.join(",")
        );
        parse(&json, Format::Json, "p").unwrap_or_else(|e| panic!("{e}\n{json}"))
    })
}

fn resolved(policy: &Policy) -> Resolved {
    let ctx = Context { home: PathBuf::from("/a"), workspace: PathBuf::from("/b"), toolchains: Vec::new() };
    resolve(policy, &ctx).unwrap()
}

/// Returns true if a rule, not a default, refuses the operation.
fn refused_by_rule(decision: &policy::Decision) -> bool {
    matches!(decision.action, Action::Deny | Action::Ask) && !decision.rule.starts_with("defaults.")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_printed_reads_back(document in document()) {
        let json = parse(&document.to_json(), Format::Json, "p");
        prop_assert_eq!(json.as_ref(), Ok(&document), "{}", document.to_json());
        let toml = parse(&document.to_toml(), Format::Toml, "p");
        prop_assert_eq!(toml.as_ref(), Ok(&document), "{}", document.to_toml());
        let policy = effective(std::slice::from_ref(&document)).unwrap();
        let again = effective(&[parse(&policy.to_json(), Format::Json, "q").unwrap()]).unwrap();
        prop_assert_eq!(again.digest(), policy.digest());
    }

    // promise 10
    #[test]
    fn grouping_does_not_matter(a in document(), b in document(), c in document()) {
        let [a, b, c] = [&a, &b, &c].map(|d| effective(std::slice::from_ref(d)).unwrap());
        let left = merge(merge(a.clone(), b.clone()), c.clone());
        let right = merge(a.clone(), merge(b, c));
        prop_assert_eq!(&left, &right);
        prop_assert_eq!(&merge(Policy::default(), a.clone()), &a);
        prop_assert_eq!(&merge(a.clone(), Policy::default()), &a);
    }

    // promise 10
    #[test]
    fn merging_never_widens(a in document(), b in document()) {
        let [a, b] = [&a, &b].map(|d| effective(std::slice::from_ref(d)).unwrap());
        let both = merge(a.clone(), b.clone());
        for one in [&a, &b] {
            prop_assert!(both.defaults.fs >= one.defaults.fs && both.defaults.net >= one.defaults.net);
            prop_assert!(both.limits == both.limits.tightest(one.limits));
            prop_assert!(both.syscalls_deny.is_superset(&one.syscalls_deny));
            if let (Some(all), Some(one)) = (&both.degrade, &one.degrade) {
                prop_assert!(all.is_subset(one));
            }
            if one.env.pass.is_some() {
                for name in ["A", "B", "L", "LX", "LC_ALL", "LC_X", "PATH"] {
                    prop_assert!(!policy::env::passes(&both.env, name) || policy::env::passes(&one.env, name), "{}", name);
                }
            }
            for (name, capability) in &one.capabilities {
                prop_assert!(capability.allow || !both.capabilities[name].allow);
            }
        }
        let (one, both) = (resolved(&a), resolved(&both));
        for path in ["/a", "/a/b", "/a/a/ab", "/b/x", "/ab/b/a", "/b/a/x"].map(Path::new) {
            for perm in Perm::ALL {
                prop_assert!(!refused_by_rule(&one.fs(path, perm)) || !both.fs(path, perm).allowed());
            }
            prop_assert!(!refused_by_rule(&one.exec(path)) || !both.exec(path).allowed());
        }
        for host in ["a.org", "b.a.org", "ab.org", "1.2.3.4"] {
            let ask = NetRequest::tcp(host, 100);
            prop_assert!(!refused_by_rule(&one.net(&ask)) || !both.net(&ask).allowed());
        }
    }

    #[test]
    fn the_digest_is_of_the_meaning(document in document(), swap in any::<prop::sample::Index>()) {
        let policy = effective(std::slice::from_ref(&document)).unwrap();
        let mut other = document.clone();
        other.source = "elsewhere".to_owned();
        if !other.fs.is_empty() {
            let at = swap.index(other.fs.len());
            other.fs.rotate_left(at);
            other.fs.push(other.fs[0].clone());
        }
        prop_assert_eq!(effective(&[other]).unwrap().digest(), policy.digest());
        let mut more = document;
        more.syscalls_deny.push("reboot".to_owned());
        prop_assert_ne!(effective(&[more]).unwrap().digest(), policy.digest());
    }
}

#[test]
fn labels_say_where_a_rule_came_from() {
    let json =
        r#"{"version":1,"extends":["default","workspace-write"],"fs":{"rules":[{"action":"deny","path":"/x"}]}}"#;
    let file = parse(json, Format::Json, "policy.json").unwrap();
    let flag = parse(
        r#"{"version":1,"extends":["default"],"fs":{"rules":[{"action":"allow","path":"/y","perms":["read_file"]}]}}"#,
        Format::Json,
        "--read",
    )
    .unwrap();
    let policy = effective(&[file, flag]).unwrap();
    let labels: Vec<&str> = policy.fs.iter().map(|r| r.label.as_str()).collect();
    assert_eq!(labels.iter().filter(|l| l.starts_with("default:")).count(), 12);
    assert_eq!(labels[12..], ["workspace-write:fs.rules[0]", "policy.json:fs.rules[0]", "--read"]);
}

#[test]
fn presets_compose() {
    let with = |names: &str| {
        let json = format!(r#"{{"version":1,"extends":[{names}]}}"#);
        resolved(&effective(&[parse(&json, Format::Json, "p").unwrap()]).unwrap())
    };
    let net = |r: &Resolved| r.net(&NetRequest::tcp("example.org", 443)).allowed();
    assert!(!net(&with(r#""default""#)));
    assert!(net(&with(r#""default","networked""#)));
    assert!(net(&with(r#""networked","workspace-write""#)));
    assert!(!net(&with(r#""networked","no-network""#)));
    assert!(!net(&with(r#""networked","strict""#)));
    let install = with(r#""package-install""#);
    assert!(install.net(&NetRequest::tcp("static.crates.io", 443)).allowed());
    assert!(!net(&install));
    assert!(!with(r#""package-install","no-network""#).net(&NetRequest::tcp("crates.io", 443)).allowed());

    let write = |r: &Resolved| r.fs(Path::new("/b/x"), Perm::WriteFile).allowed();
    assert!(write(&with(r#""workspace-write""#)));
    assert!(!write(&with(r#""default""#)));
    assert!(!write(&with(r#""workspace-write","read-only""#)));
    let strict = with(r#""strict""#);
    assert!(!strict.fs(Path::new("/usr/bin/ls"), Perm::ReadFile).allowed());
    assert!(!with(r#""default","strict""#).exec(Path::new("/usr/bin/ls")).allowed());
    assert!(with(r#""default""#).exec(Path::new("/usr/bin/ls")).allowed());
    assert!(!with(r#""default""#).fs(Path::new("/a/.ssh/id"), Perm::ReadFile).allowed());
}

#[test]
fn hints_name_the_rule_and_the_flag() {
    let policy = resolved(&effective(&[parse(r#"{"version":1}"#, Format::Json, "p").unwrap()]).unwrap());
    let decision = policy.fs(Path::new("/etc/passwd"), Perm::ReadFile);
    assert_eq!(decision.rule, "defaults.fs");
    assert_eq!(
        decision.hint.unwrap(),
        r#"add {"action":"allow","path":"/etc/passwd","perms":["read_file","read_dir"]} to fs.rules, or run with --read /etc/passwd"#
    );
    let hint = policy.fs(Path::new("/etc/passwd"), Perm::WriteFile).hint.unwrap();
    assert!(hint.ends_with("or run with --write /etc/passwd"), "{hint}");
}
