//! Settings of other tools, carried over.

use policy::import::{self, Imported, SettingsFormat};
use policy::{Context, Format, NetRequest, Perm, Resolved, effective, parse, resolve};
use std::path::{Path, PathBuf};

const SRT: &str = include_str!("../corpus/srt/readme.json");
const CODEX: &str = include_str!("../corpus/codex/profile.toml");

fn resolved(imported: &Imported) -> Resolved {
    let ctx = Context { home: "/home/u".into(), workspace: "/w".into(), toolchains: vec![PathBuf::from("/t")] };
    resolve(&effective(std::slice::from_ref(&imported.document)).unwrap(), &ctx).unwrap()
}

fn can(policy: &Resolved, path: &str, perm: Perm) -> bool {
    policy.fs(Path::new(path), perm).allowed()
}

fn reach(policy: &Resolved, host: &str, port: u16) -> bool {
    policy.net(&NetRequest::tcp(host, port)).allowed()
}

#[test]
fn srt_settings() {
    let imported = import::srt(SRT, "srt.json").unwrap();
    let policy = resolved(&imported);
    assert!(can(&policy, "/usr/bin/ls", Perm::ReadFile));
    assert!(can(&policy, "/w/src/a", Perm::WriteFile));
    assert!(!can(&policy, "/w/.env", Perm::WriteFile));
    assert!(can(&policy, "/w/.env", Perm::ReadFile));
    assert!(!can(&policy, "/w/keys/x.pem", Perm::WriteFile));
    assert!(can(&policy, "/home/u/proj/x", Perm::ReadFile));
    assert!(!can(&policy, "/home/u/.ssh/id", Perm::ReadFile));
    assert!(!can(&policy, "/home/u/other", Perm::ReadFile));
    assert!(reach(&policy, "x.github.com", 443));
    assert!(reach(&policy, "api.github.com", 443));
    assert!(!reach(&policy, "malicious.com", 443));
    assert!(!reach(&policy, "github.com", 22), "a denied port holds for every host");
    assert!(!reach(&policy, "example.org", 443));
    let local = NetRequest { addr: Some("127.0.0.1".parse().unwrap()), ..NetRequest::tcp("localhost", 8080) };
    assert!(policy.net(&local).allowed());
    assert!(policy.net(&NetRequest::unix(Path::new("/var/run/docker.sock"))).allowed());
    for part in [
        "ignoreViolations",
        "enableWeakerNetworkIsolation",
        "allowAppleEvents",
        "~ is opened again for ~/proj",
        "srt lets every file be read",
    ] {
        assert!(imported.notes.iter().any(|n| n.contains(part)), "no note about {part}: {:#?}", imported.notes);
    }
}

#[test]
fn srt_notes_and_errors() {
    let odd = import::srt(include_str!("../corpus/srt/odd.json"), "s").unwrap();
    for part in [
        "\"bad host\" contains the character ' ': left out",
        "\"$TMPDIR\" is not a variable",
        "credentials.files[].extract: left out",
    ] {
        assert!(odd.notes.iter().any(|n| n.contains(part)), "no note about {part}: {:#?}", odd.notes);
    }
    assert_eq!(
        odd.left_out,
        [
            "network.tlsTerminate: not carried over; rules with \"methods\" or \"paths\" have requests read",
            "network.allowUnixSockets: not carried over; name each socket of the host that is needed",
            "credentials.files: mode \"mask\" is carried over as \"deny\"; \"secrets\" of a policy put values into requests, by host and header",
        ]
    );
    let policy = resolved(&odd);
    assert!(!can(&policy, "/home/u/.netrc", Perm::ReadFile) && !can(&policy, "/opt/key", Perm::ReadFile));
    let at = |addr: &str| {
        policy.net(&NetRequest { addr: Some(addr.parse().unwrap()), ..NetRequest::tcp("x.com", 443) }).allowed()
    };
    assert!(at("93.184.216.34") && !at("192.0.2.7") && !at("10.1.2.3"));
    for (text, message) in [
        (
            r#"{"network":{"deniedDomains":["a b"]}}"#,
            "s:1:30: network.deniedDomains[0]: \"a b\" contains the character ' '",
        ),
        (
            r#"{"filesystem":{"denyRead":["../x"]}}"#,
            "s:1:28: filesystem.denyRead[0]: \"../x\" holds a \"..\" component; write the path it leads to",
        ),
        (r#"{"filesystem":{"allowWrite":"."}}"#, "s:1:29: filesystem.allowWrite: expected a list, found a string"),
        (r#"{"filesystem":{},"filesystem":{}}"#, "s:1:29: duplicate key \"filesystem\""),
    ] {
        assert_eq!(import::srt(text, "s").unwrap_err().to_string(), message);
    }
    let only = import::srt(include_str!("../corpus/srt/only.json"), "s").unwrap();
    assert!(only.document.extends.is_empty());
    assert!(!can(&resolved(&only), "/etc/passwd", Perm::ReadFile));
    assert!(can(&resolved(&only), "/usr/lib/x", Perm::ReadFile));
}

#[test]
fn codex_profiles() {
    let imported = import::codex(CODEX, "config.toml", None).unwrap();
    let policy = resolved(&imported);
    assert!(can(&policy, "/usr/bin/ls", Perm::Execute));
    assert!(can(&policy, "/w/a", Perm::WriteFile));
    assert!(can(&policy, "/w/.git/config", Perm::ReadFile));
    assert!(!can(&policy, "/w/.git/config", Perm::WriteFile));
    assert!(!can(&policy, "/w/a/prod.env", Perm::ReadFile));
    assert!(can(&policy, "/data/git/x", Perm::ReadFile));
    assert!(!can(&policy, "/data/git/x", Perm::WriteFile));
    assert!(can(&policy, "/home/u/trees/x", Perm::WriteFile));
    assert!(!can(&policy, "/home/u/x", Perm::ReadFile));
    let ask = |host, method| policy.net(&NetRequest { method: Some(method), ..NetRequest::tcp(host, 443) }).allowed();
    assert!(ask("api.example.org", "GET"));
    assert!(!ask("api.example.org", "POST"));
    assert!(ask("example.com", "GET"));
    assert!(!ask("bad.example.com", "GET"));
    assert!(policy.net(&NetRequest::unix(Path::new("/run/x.sock"))).allowed());
    for part in
        ["model: left out; it is about the model", ":tmpdir", "glob_scan_max_depth", "proxy_url", "mode limited"]
    {
        assert!(imported.notes.iter().any(|n| n.contains(part)), "no note about {part}: {:#?}", imported.notes);
    }
}

/// Settings with one key changed: each contains a denial that would be lost.
#[test]
fn unknown_keys_are_refused_at_every_level() {
    const GOOD: &str = r#"{"network": {"deniedDomains": ["a.org"], "mitmProxy": {"socketPath": "/s"}},
        "filesystem": {"denyRead": ["~/.ssh"], "disabled": false},
        "credentials": {"files": [{"path": "/k", "mode": "deny"}], "envVars": [{"name": "K", "mode": "deny"}]}}"#;
    let good = import::srt(GOOD, "s").unwrap();
    assert!(!can(&resolved(&good), "/home/u/.ssh/id", Perm::ReadFile), "the control");
    assert_eq!(good.left_out.len(), 1, "{:?}", good.left_out);
    for (key, wrong, message) in [
        ("denyRead", "denyReed", "filesystem.denyReed: unknown key; did you mean \"denyRead\"?"),
        ("denyRead", "DenyRead", "filesystem.DenyRead: unknown key; did you mean \"denyRead\"?"),
        ("denyRead", "deny_read", "filesystem.deny_read: unknown key; did you mean \"denyRead\"?"),
        ("denyRead", "hide", "filesystem.hide: unknown key; known keys: allowRead, denyRead, "),
        ("disabled", "disable", "filesystem.disable: unknown key; did you mean \"disabled\"?"),
        ("deniedDomains", "denyedDomains", "network.denyedDomains: unknown key; did you mean \"deniedDomains\"?"),
        ("\"filesystem\"", "\"fileSystems\"", "fileSystems: unknown key; did you mean \"filesystem\"?"),
        ("credentials", "credential", "credential: unknown key; did you mean \"credentials\"?"),
        ("envVars", "envvars", "credentials.envvars: unknown key; did you mean \"envVars\"?"),
        ("\"path\"", "\"paths\"", "credentials.files[0].paths: unknown key; did you mean \"path\"?"),
        ("{\"path\": \"/k\", ", "{", "credentials.files[0]: the key \"path\" is missing"),
        ("\"K\"", "\"HOME\"", "credentials.envVars[0].name: HOME passes here"),
        (
            "{\"denyRead\": [\"~/.ssh\"], \"disabled\": false}",
            "[\"denyRead\"]",
            "filesystem: expected an object, found a list",
        ),
        ("[\"~/.ssh\"]", "{\"~/.ssh\": true}", "filesystem.denyRead: expected a list, found an object"),
        ("\"disabled\": false", "\"denyRead\": []", "duplicate key \"denyRead\""),
    ] {
        let text = GOOD.replacen(key, wrong, 1);
        assert_ne!(text, GOOD, "{key}");
        let error = import::srt(&text, "s").expect_err(&text).to_string();
        assert!(error.starts_with("s:") && error.contains(message), "{wrong}: {error}");
    }
}

#[test]
fn unknown_keys_of_codex_are_refused_at_every_level() {
    const GOOD: &str = "model = \"x\"\n[permissions.a]\ndescription = \"d\"\n[permissions.a.filesystem]\n\":root\" = \"read\"\n\"/k\" = \"none\"\n[permissions.a.network]\nenabled = true\nenable_socks5 = true\n[permissions.a.network.domains]\n\"b.org\" = \"deny\"\n";
    let good = resolved(&import::codex(GOOD, "c", None).unwrap());
    assert!(can(&good, "/etc/x", Perm::ReadFile) && !can(&good, "/k", Perm::ReadFile), "the control");
    for (key, wrong, message) in [
        ("model", "modle", "modle: unknown key; did you mean \"model\"?"),
        ("description", "describtion", "permissions.a.describtion: unknown key; did you mean \"description\"?"),
        ("a.filesystem", "a.file_system", "permissions.a.file_system: unknown key; did you mean \"filesystem\"?"),
        ("a.network]", "a.Network]", "permissions.a.Network: unknown key; did you mean \"network\"?"),
        ("enabled", "enabeld", "permissions.a.network.enabeld: unknown key; did you mean \"enabled\"?"),
        ("network.domains", "network.domain", "permissions.a.network.domain: unknown key; did you mean \"domains\"?"),
        ("\":root\" = \"read\"", "\":tmp\" = \"none\"", ":tmp is no special path that is known here"),
        ("\":root\" = \"read\"", "\":minimal\" = \"none\"", ":minimal cannot be denied here"),
        (
            "enable_socks5 = true",
            "mitm = {}",
            "permissions.a.network.mitm: settings about requests cannot be carried over",
        ),
        (
            "[permissions.a.network.domains]\n\"b.org\" = \"deny\"",
            "domains = [\"b.org\"]",
            "permissions.a.network.domains: expected an object, found a list",
        ),
        ("description = \"d\"", "description = \"d\"\ndescription = \"e\"", "duplicate key"),
    ] {
        let text = GOOD.replacen(key, wrong, 1);
        assert_ne!(text, GOOD, "{key}");
        let error = import::codex(&text, "c", None).expect_err(&text).to_string();
        assert!(error.starts_with("c:") && error.contains(message), "{wrong}: {error}");
    }
    let told = import::codex(&format!("sandbox_mode = \"read-only\"\napproval_policy = \"never\"\n{GOOD}"), "c", None)
        .unwrap();
    assert_eq!(told.left_out.len(), 2, "{:?}", told.left_out);
}

#[test]
fn codex_profiles_extend_each_other() {
    let imported = import::codex(include_str!("../corpus/codex/extends.toml"), "c", None).unwrap();
    let policy = resolved(&imported);
    assert!(can(&policy, "/etc/passwd", Perm::ReadFile));
    assert!(can(&policy, "/w/a", Perm::WriteFile));
    assert!(!can(&policy, "/w/.git/x", Perm::WriteFile));
    assert!(!can(&policy, "/opt/x/y", Perm::ReadFile), "a denial always wins");
    assert!(imported.notes.iter().any(|n| n.contains("/opt/x lies inside a path with \"none\"")));
    assert!(reach(&policy, "example.org", 443));
    for (text, profile, message) in [
        (include_str!("../corpus/codex/circle.toml"), Some("a"), "more than 8 profiles extend each other"),
        (CODEX, Some("other"), "no profile \"other\"; the file has workspace"),
        (include_str!("../corpus/codex/circle.toml"), None, "several permission profiles; choose one of a, b"),
        (
            "default_permissions = \":danger-full-access\"",
            None,
            "the built-in profile \":danger-full-access\" cannot be carried over",
        ),
        ("model = 1", None, "no [permissions.<name>] in the file"),
    ] {
        let error = import::codex(text, "c", profile).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn disabled_networks_stay_closed() {
    let text = "[permissions.a.network.domains]\n\"a.org\" = \"allow\"\n\"b.org\" = \"deny\"\n";
    let imported = import::codex(text, "c", None).unwrap();
    assert!(!reach(&resolved(&imported), "a.org", 443));
    assert!(imported.notes.iter().any(|n| n.contains("network.enabled is not true")));
}

#[test]
fn kinds_are_told_apart() {
    assert_eq!(import::detect(SRT), Some(SettingsFormat::Srt));
    assert_eq!(import::detect(CODEX), Some(SettingsFormat::Codex));
    assert_eq!(import::detect(include_str!("../corpus/policy/contract.json")), None);
    assert_eq!(import::detect(include_str!("../corpus/policy/wide.toml")), None);
    assert_eq!(import::detect("not a document"), None);
}

#[test]
fn imported_documents_are_documents() {
    for imported in [import::srt(SRT, "s").unwrap(), import::codex(CODEX, "s", None).unwrap()] {
        let text = imported.document.to_json();
        assert_eq!(parse(&text, Format::Json, "s").unwrap(), imported.document, "{text}");
    }
}
