//! Input that is not exactly a policy is refused, with the position and the fix.

use policy::{Format, effective, parse};
use terms::{ErrorKind, Fault};

fn refused(text: &str) -> String {
    match parse(text, Format::Json, "policy.json") {
        Err(error) => {
            assert!(error.line > 0 && error.column > 0, "{error} has no place");
            error.to_string()
        }
        Ok(document) => panic!("{text}\nwas taken as\n{}", document.to_json()),
    }
}

/// A document with one rule or section in it.
fn with(body: &str) -> String {
    format!("{{\"version\": 1,\n{body}}}")
}

#[test]
fn messages_people_will_meet() {
    let text = r#"{
  "version": 1,
  "fs": {"rules": [
    {"action": "allow", "path": "/usr", "perms": ["read_file"]},
    {"action": "deny", "path": "a/b"}
  ]}
}"#;
    assert_eq!(
        refused(text),
        "policy.json:5:32: fs.rules[1].path: \"a/b\" is relative; use an absolute path, ~/…, $HOME/… or $WORKSPACE/…"
    );
    assert_eq!(
        refused(r#"{"version": 1, "extend": ["default"]}"#),
        "policy.json:1:16: extend: unknown key; did you mean \"extends\"?"
    );
    assert_eq!(
        refused("{\"version\": 1,\n \"limits\": {\"max_wall_ms\": 1, \"max_wall_ms\": 2}}"),
        "policy.json:2:43: limits: duplicate key \"max_wall_ms\""
    );
    assert_eq!(
        refused(&with(r#""fs": {"rules": [{"action": "allow", "path": "/a", "perms": ["read"]}]}"#)),
        "policy.json:2:62: fs.rules[0].perms[0]: unknown permission \"read\"; use one of read_file, read_dir, execute, \
         write_file, truncate, make_dir, make_reg, make_sym, make_sock, make_fifo, make_char, make_block, remove_file, \
         remove_dir, refer, ioctl_dev, make_*, remove_*"
    );
    assert_eq!(
        refused(&with(r#""net": {"rules": [{"action": "allow", "host": "example.org:443"}]}"#)),
        "policy.json:2:47: net.rules[0].host: \"example.org:443\" contains a port; write \"host\": \"example.org\" and \"ports\": \"443\""
    );
    assert_eq!(
        refused(&with(r#""net": {"rules": [{"action": "allow", "host": "https://example.org:8443/v1"}]}"#)),
        "policy.json:2:47: net.rules[0].host: \"https://example.org:8443/v1\" is a URL, where a host is expected; \
         write \"host\": \"example.org\", with \"ports\" and \"paths\" beside it"
    );
    assert_eq!(refused("{\"version\": 1,}"), "policy.json:1:15: trailing comma");
    assert_eq!(refused("{}"), "policy.json:1:1: the key \"version\" is missing");
}

#[test]
fn a_refusal_becomes_a_fault() {
    let error = parse("{\"version\": 2}", Format::Json, "p.json").unwrap_err();
    let fault = Fault::from(error);
    assert_eq!(fault.error_kind, ErrorKind::InvalidRequest);
    assert_eq!(fault.message, "p.json:1:13: version: version 2 is not known");
    assert_eq!(fault.hint.as_deref(), Some("this program reads version 1"));
}

#[test]
fn toml_has_the_same_checks_and_places() {
    let check = |text: &str, message: &str| {
        let error = parse(text, Format::Toml, "p.toml").unwrap_err();
        assert_eq!(error.to_string(), message);
    };
    check(
        "version = 1\n\n[[fs.rules]]\naction = \"allow\"\npath = \"/a\"\nperms = [\"read_file\"]\n\n[[fs.rules]]\naction = \"deny\"\npath = \"b\"\n",
        "p.toml:10:8: fs.rules[1].path: \"b\" is relative; use an absolute path, ~/…, $HOME/… or $WORKSPACE/…",
    );
    check("version = 1\nlimit = {}\n", "p.toml:2:1: limit: unknown key; did you mean \"limits\"?");
    check("version = 1\nversion = 1\n", "p.toml:2:1: duplicate key");
    check("version = 1\n[env.set]\nA = \"1\"\nA = \"2\"\n", "p.toml:4:1: duplicate key");
    check("version = 1979-05-27\n", "p.toml:1:11: version: expected the number 1, found a date");
    check(
        "version = 1\n[limits]\nmax_memory_mb = inf\n",
        "p.toml:3:17: limits.max_memory_mb: inf is out of range; it is more than 0 and at most 1000000000",
    );
    check(
        "version = 1\n[limits]\nmax_disk_mb = nan\n",
        "p.toml:3:15: limits.max_disk_mb: NaN is out of range; it is more than 0 and at most 1000000000",
    );
}

/// Mistakes of every kind, as the body of a document and a part of the message.
const MISTAKES: [(&str, &str); 100] = [
    // Shape of the document.
    (r#""fs": null"#, "fs: expected an object, found null"),
    (r#""fs": []"#, "fs: expected an object, found a list"),
    (r#""fs": {"rules": {}}"#, "fs.rules: expected a list, found an object"),
    (r#""fs": {"rules": ["x"]}"#, "fs.rules[0]: expected an object, found a string"),
    (r#""fs": {"rule": []}"#, "fs.rule: unknown key; did you mean \"rules\"?"),
    (r#""filesystem": {}"#, "filesystem: unknown key; known keys: version, extends"),
    (r#""fs": {}, "fs": {}"#, "duplicate key \"fs\""),
    (r#""version": 1"#, "duplicate key \"version\""),
    (r#""extends": "default""#, "extends: expected a list, found a string"),
    (r#""extends": [1]"#, "extends[0]: expected a string, found a number; write \"1\" in quotes"),
    (r#""extends": [""]"#, "extends[0]: the string is empty"),
    (r#""extends": ["a", "a"]"#, "extends[1]: \"a\" is already in the list"),
    (r#""extends": ["a\u0000"]"#, "extends[0]: \"a\\0\" contains the character '\\0'"),
    // Defaults.
    (r#""defaults": {"fs": "maybe"}"#, "defaults.fs: unknown value \"maybe\"; use one of allow, deny, warn, ask"),
    (r#""defaults": {"fs": "Allow"}"#, "defaults.fs: unknown value \"Allow\"; did you mean \"allow\"?"),
    (
        r#""defaults": {"net": "ask"}"#,
        "defaults.net: \"ask\" is not a default; use \"deny\", and rules that ask about single paths, hosts or programs",
    ),
    (
        r#""defaults": {"exec": "ask"}"#,
        "defaults.exec: \"ask\" is not a default; use \"deny\", and rules that ask about single paths, hosts or programs",
    ),
    (r#""defaults": {"exec": true}"#, "defaults.exec: expected a string, found a boolean"),
    // File rules.
    (r#""fs": {"rules": [{"path": "/a"}]}"#, "fs.rules[0]: the key \"action\" is missing"),
    (r#""fs": {"rules": [{"action": "deny"}]}"#, "fs.rules[0]: the key \"path\" is missing"),
    (r#""fs": {"rules": [{"action": "allow", "path": "/a"}]}"#, "fs.rules[0]: an allow rule needs \"perms\""),
    (r#""fs": {"rules": [{"action": "warn", "path": "/a"}]}"#, "fs.rules[0]: a warn rule needs \"perms\""),
    (r#""fs": {"rules": [{"action": "allow", "path": "/a", "perms": []}]}"#, "fs.rules[0].perms: the list is empty"),
    (r#""fs": {"rules": [{"action": "deny", "path": "/a", "perms": []}]}"#, "fs.rules[0].perms: the list is empty"),
    (
        r#""fs": {"rules": [{"action": "deny", "path": "/a", "perms": ["write_file", "write_file"]}]}"#,
        "fs.rules[0].perms[1]: \"write_file\" is already in the list",
    ),
    (r#""fs": {"rules": [{"action": "deny", "path": "/a", "perms": ["write_fil"]}]}"#, "did you mean \"write_file\"?"),
    (
        r#""fs": {"rules": [{"action": "deny", "path": "/a", "perms": "write_file"}]}"#,
        "fs.rules[0].perms: expected a list, found a string",
    ),
    (r#""fs": {"rules": [{"action": "deny", "path": ""}]}"#, "fs.rules[0].path: the string is empty"),
    (
        r#""fs": {"rules": [{"action": "deny", "path": "/a/../b"}]}"#,
        "fs.rules[0].path: \"/a/../b\" holds a \"..\" component",
    ),
    (r#""fs": {"rules": [{"action": "deny", "path": "/a/."}]}"#, "fs.rules[0].path: \"/a/.\" holds a \".\" component"),
    (
        r#""fs": {"rules": [{"action": "deny", "path": "/a//b"}]}"#,
        "fs.rules[0].path: \"/a//b\" holds an empty component",
    ),
    (
        r#""fs": {"rules": [{"action": "deny", "path": "/a\u0000"}]}"#,
        "fs.rules[0].path: \"/a\\0\" contains the character '\\0'",
    ),
    (
        r#""fs": {"rules": [{"action": "deny", "path": "$PWD/a"}]}"#,
        "\"$PWD\" is not a variable of the policy; there are $HOME, $WORKSPACE and $TOOLCHAINS",
    ),
    (
        r#""fs": {"rules": [{"action": "deny", "path": "/proc/self/fd/7"}]}"#,
        "\"/proc/self/fd/7\" is a different file in every process",
    ),
    (r#""fs": {"rules": [{"action": "deny", "path": "/a[b"}]}"#, "\"[\" without \"]\""),
    (
        r#""fs": {"rules": [{"action": "deny", "path": "/a", "mode": "ro"}]}"#,
        "fs.rules[0].mode: unknown key; known keys: action, path, perms",
    ),
    (r#""fs": {"rules": [{"action": "deny", "path": "/a", "action": "allow"}]}"#, "duplicate key \"action\""),
    // Network rules.
    (r#""net": {"rules": [{"action": "allow"}]}"#, "net.rules[0]: the rule names no host, range or socket"),
    (
        r#""net": {"rules": [{"action": "allow", "host": "a.b", "cidr": "10.0.0.0/8"}]}"#,
        "net.rules[0]: the rule names more than one of host, range and socket",
    ),
    (r#""net": {"rules": [{"action": "allow", "path": "/run/x"}]}"#, "net.rules[0].path: \"path\" is for sockets"),
    (
        r#""net": {"rules": [{"action": "allow", "proto": "unix", "host": "a.b"}]}"#,
        "net.rules[0]: a rule for unix sockets names only a \"path\"",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "proto": "unix", "path": "x"}]}"#,
        "net.rules[0].path: \"x\" is relative",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "proto": "unix", "path": "/x", "ports": "1"}]}"#,
        "net.rules[0].ports: a unix socket has no ports",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "proto": "sctp", "host": "a.b"}]}"#,
        "net.rules[0].proto: unknown value \"sctp\"; use one of tcp, udp, icmp, unix",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "proto": "icmp", "host": "a.b", "ports": "7"}]}"#,
        "net.rules[0].ports: an echo request has no ports",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "proto": "icmp", "host": "a.b", "paths": ["/"]}]}"#,
        "net.rules[0].paths: \"paths\" needs \"proto\": \"tcp\"",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "proto": "icmp", "path": "/x"}]}"#,
        "net.rules[0].path: \"path\" is for sockets",
    ),
    (r#""net": {"rules": [{"action": "allow", "host": ""}]}"#, "net.rules[0].host: the string is empty"),
    (
        r#""net": {"rules": [{"action": "allow", "host": "exämple.org"}]}"#,
        "net.rules[0].host: \"exämple.org\" is not ASCII",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "host": "0x7f.1"}]}"#,
        "net.rules[0].host: \"0x7f.1\" is an address in an unusual notation",
    ),
    (r#""net": {"rules": [{"action": "allow", "host": "2130706433"}]}"#, "is an address in an unusual notation"),
    (r#""net": {"rules": [{"action": "allow", "host": "a.*.b"}]}"#, "has a wildcard inside a name"),
    (r#""net": {"rules": [{"action": "allow", "host": "https://a.b"}]}"#, "net.rules[0].host: \"https://a.b\""),
    (
        r#""net": {"rules": [{"action": "deny", "cidr": "10.0.0.0"}]}"#,
        "net.rules[0].cidr: \"10.0.0.0\" has no prefix length; write \"10.0.0.0/32\"",
    ),
    (
        r#""net": {"rules": [{"action": "deny", "cidr": "10.0.0.1/8"}]}"#,
        "net.rules[0].cidr: \"10.0.0.1/8\" has bits set past the prefix; write \"10.0.0.0/8\" for the range or \"10.0.0.1/32\" for the address",
    ),
    (
        r#""net": {"rules": [{"action": "deny", "cidr": "10.0.0.0/33"}]}"#,
        "net.rules[0].cidr: \"10.0.0.0/33\" has a bad prefix length",
    ),
    (
        r#""net": {"rules": [{"action": "deny", "cidr": "ten/8"}]}"#,
        "net.rules[0].cidr: \"ten/8\" is not a range of addresses",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "host": "a.b", "ports": 443}]}"#,
        "net.rules[0].ports: expected a string, found a number; write \"443\" in quotes",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "host": "a.b", "ports": ""}]}"#,
        "net.rules[0].ports: the string is empty",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "host": "a.b", "ports": "0"}]}"#,
        "net.rules[0].ports: \"0\" is not a port or a range of ports",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "host": "a.b", "ports": "90-80"}]}"#,
        "\"90-80\" is not a port or a range of ports",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "host": "a.b", "ports": "65536"}]}"#,
        "\"65536\" is not a port or a range of ports",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "host": "a.b", "methods": ["get"]}]}"#,
        "net.rules[0].methods[0]: \"get\" is not an HTTP method; write it in capitals, such as \"GET\"",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "host": "a.b", "methods": ["GET", "GET"]}]}"#,
        "net.rules[0].methods[1]: it is already in the list",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "host": "a.b", "proto": "udp", "methods": ["GET"]}]}"#,
        "net.rules[0].methods: \"methods\" needs \"proto\": \"tcp\"",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "host": "a.b", "opaque": "yes"}]}"#,
        "net.rules[0].opaque: expected true or false, found a string",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "host": "a.b", "opaque": true, "methods": ["GET"]}]}"#,
        "net.rules[0].opaque: \"opaque\" switches inspection off, which \"methods\" and \"paths\" need",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "cidr": "10.0.0.0/8", "opaque": true}]}"#,
        "net.rules[0].opaque: a rule about addresses considers only address and port already; leave \"opaque\" out",
    ),
    (
        r#""net": {"rules": [{"action": "deny", "host": "a.b", "opaque": true}]}"#,
        "net.rules[0].opaque: a rule that denies covers all traffic already; leave \"opaque\" out",
    ),
    (
        r#""net": {"rules": [{"action": "allow", "host": "a.b", "paths": ["v1"]}]}"#,
        "net.rules[0].paths[0]: \"v1\" does not start with \"/\"",
    ),
    (r#""net": {"rules": [{"action": "allow", "host": "a.b", "paths": ["/%2e"]}]}"#, "contains the character '%'"),
    (r#""net": {"rules": [{"action": "allow", "host": "a.b", "paths": ["/a/../b"]}]}"#, "holds a \"..\" component"),
    // Programs and system calls.
    (r#""exec": {"rules": [{"action": "allow", "path": "ls"}]}"#, "exec.rules[0].path: \"ls\" is relative"),
    (
        r#""exec": {"rules": [{"action": "allow", "path": "/bin/ls", "sha256": "abc"}]}"#,
        "exec.rules[0].sha256: \"abc\" is not a SHA-256 digest",
    ),
    (
        r#""exec": {"rules": [{"action": "deny", "path": "/bin/ls", "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}]}"#,
        "exec.rules[0].sha256: \"sha256\" does not go with \"deny\"",
    ),
    (r#""syscalls": {"deny": ["Ptrace!"]}"#, "syscalls.deny[0]: \"Ptrace!\" is not the name of a system call"),
    (r#""syscalls": {"deny": ["ptrace", "ptrace"]}"#, "syscalls.deny[1]: \"ptrace\" is already in the list"),
    (r#""syscalls": {"allow": []}"#, "syscalls.allow: unknown key"),
    // Environment, secrets, audit.
    (r#""env": {"pass": ["A=b"]}"#, "env.pass[0]: \"A=b\" contains the character '='"),
    (r#""env": {"pass": ["A", "A"]}"#, "env.pass[1]: \"A\" is already in the list"),
    (r#""env": {"pass": ["*A"]}"#, "env.pass[0]: \"*A\" has a wildcard that is not its last character"),
    (r#""env": {"set": {"A": "1", "A": "2"}}"#, "duplicate key \"A\""),
    (r#""env": {"set": {"A=": "1"}}"#, "contains the character '='"),
    (r#""env": {"set": {"": "1"}}"#, "the name of the variable is empty"),
    (r#""env": {"set": {"A": 1}}"#, "env.set.A: expected a string, found a number; write \"1\" in quotes"),
    (r#""env": {"set": {"A": "\u0000"}}"#, "env.set.A: the value contains a NUL character"),
    (r#""env": {"set": {"COFFERDAM": "0"}}"#, "env.set.COFFERDAM: \"COFFERDAM\" is set by the product"),
    (r#""secrets": [{"name": "K"}]"#, "secrets[0]: the key \"inject\" is missing"),
    (
        r#""secrets": [{"name": "K", "inject": {"host": "*.a.b", "header": "x"}}]"#,
        "secrets[0].inject.host: \"*.a.b\" contains the character '*'",
    ),
    (
        r#""secrets": [{"name": "K", "inject": {"host": "a.b", "header": "x y"}}]"#,
        "secrets[0].inject.header: \"x y\" is not the name of a header",
    ),
    (
        r#""secrets": [{"name": "K", "inject": {"host": "a.b", "header": "x", "format": "Bearer"}}]"#,
        "secrets[0].inject.format: \"Bearer\" must contain \"{}\" once",
    ),
    (r#""audit": {"events": ["fs"]}"#, "audit.events[0]: unknown value \"fs\""),
    // Limits, capabilities, degrade.
    (r#""limits": {"max_wall_ms": 0}"#, "limits.max_wall_ms: 0 is out of range"),
    (r#""limits": {"max_wall_ms": -1}"#, "limits.max_wall_ms: -1 is out of range"),
    (r#""limits": {"max_wall_ms": 1.5}"#, "limits.max_wall_ms: 1.5 is not a whole number"),
    (r#""limits": {"max_memory_mb": 0}"#, "limits.max_memory_mb: 0 is out of range"),
    (r#""limits": {"max_memory_mb": 1e300}"#, "limits.max_memory_mb: "),
    (r#""limits": {"max_memory": 1}"#, "limits.max_memory: unknown key"),
    (r#""capabilities": {"a b": {"allow": true}}"#, "\"a b\" is not the name of a capability"),
    (r#""degrade": ["namespace"]"#, "degrade[0]: unknown value \"namespace\"; did you mean \"namespaces\"?"),
];

// promise 10
#[test]
fn every_mistake_is_named() {
    for (body, part) in MISTAKES {
        let message = refused(&with(body));
        assert!(message.contains(part), "{body}\n  says: {message}\n  not: {part}");
        assert!(message.starts_with("policy.json:2:"), "{body}\n  is placed wrongly: {message}");
    }
}

#[test]
fn bounds() {
    let large = format!("{{\"version\": 1, \"extends\": [\"{}\"]}}", "a".repeat(1 << 20));
    assert_eq!(
        parse(&large, Format::Json, "p").unwrap_err().to_string(),
        format!("p: the document has {} bytes; at most 1048576 are read", large.len())
    );
    let rule = r#"{"action":"deny","path":"/a"}"#;
    let many = format!("{{\"version\":1,\"fs\":{{\"rules\":[{}]}}}}", vec![rule; 10_001].join(","));
    assert!(refused(&many).contains("10001 rules; at most 10000 are read"));
    assert!(refused(&"[".repeat(1000)).contains("nested deeper than 16 levels"));
    let dots = format!("{} = 1", vec!["a"; 100_000].join("."));
    assert!(parse(&dots, Format::Toml, "p").unwrap_err().to_string().contains("recursion limit"));
    let brackets = format!("a = {}", "[".repeat(100_000));
    assert!(parse(&brackets, Format::Toml, "p").is_err());
    let tables = format!("a = {}1{}", "{b=".repeat(100_000), "}".repeat(100_000));
    assert!(parse(&tables, Format::Toml, "p").is_err());
    let path = format!("/{}", vec!["a"; 121].join("/"));
    assert!(
        refused(&with(&format!(r#""fs": {{"rules": [{{"action":"deny","path":"{path}"}}]}}"#)))
            .contains("more than 120 components")
    );
}

#[test]
fn empty_means_nothing() {
    let text = r#"{"version": 1, "extends": [], "fs": {"rules": []}, "net": {}, "env": {"pass": []}, "degrade": [],
                   "syscalls": {}, "audit": {"events": []}, "secrets": [], "limits": {}, "capabilities": {}}"#;
    let policy = effective(&[parse(text, Format::Json, "p").unwrap()]).unwrap();
    assert!(!policy::env::passes(&policy.env, "PATH"));
    assert!(policy.fs.is_empty() && policy.net.is_empty());
    assert_eq!(policy.default_fs(), policy::Action::Deny);
    assert_eq!(policy.default_net(), policy::Action::Deny);
    assert_eq!(policy.degrade.unwrap().len(), 0);
}

#[test]
fn unknown_presets() {
    let document = parse(r#"{"version": 1, "extends": ["workspace-writ"]}"#, Format::Json, "p.json").unwrap();
    assert_eq!(
        effective(&[document]).unwrap_err().to_string(),
        "p.json: extends[0]: unknown preset \"workspace-writ\"; did you mean \"workspace-write\"?"
    );
}
