use super::*;
use crate::policy::effective;
use crate::resolve::resolve;

fn context() -> Context {
    Context { home: "/home/u".into(), workspace: "/home/u/w".into(), toolchains: Vec::new() }
}

fn seen(files: &[(&str, Perms)], made: &[&str], programs: &[&str]) -> Observed {
    Observed {
        files: files.iter().map(|(path, perms)| (PathBuf::from(path), *perms)).collect(),
        made: made.iter().map(PathBuf::from).collect(),
        programs: programs.iter().map(PathBuf::from).collect(),
        ..Observed::default()
    }
}

/// A rename across a mount boundary fails.
#[test]
fn places_between_which_names_move_are_one() {
    let make = Perms::of(&[Perm::MakeReg, Perm::WriteFile]);
    let files =
        [("/home/u/w", WRITE), ("/home/u/w/a/from", make), ("/home/u/w/a/to/new", make), ("/home/u/w/a/b", READ)];
    let mut seen = seen(&files, &["/home/u/w/a/to/new"], &[]);
    seen.moved = vec![("/home/u/w/a/from/x".into(), "/home/u/w/a/to/new/x".into())];
    assert_eq!(rules(&seen), ["$WORKSPACE write_file", "$WORKSPACE/a make_reg+refer", "$WORKSPACE/a/b read_file"]);
    seen.moved = vec![("/home/u/w/a/from/x".into(), "/home/u/x".into())];
    assert!(learn(&seen, &context(), "learned").notes.iter().any(|note| note.contains("names are moved between them")));
}

fn rules(seen: &Observed) -> Vec<String> {
    let document = learn(seen, &context(), "learned").document;
    let fs = document.fs.iter().map(|r| format!("{} {}", r.path, r.perms.names().join("+")));
    fs.chain(document.exec.iter().map(|r| format!("run {}", r.path))).collect()
}

const READ: Perms = Perms::of(&[Perm::ReadFile]);
const WRITE: Perms = Perms::of(&[Perm::WriteFile]);

#[test]
fn files_by_name_and_directories_when_many() {
    let seen = seen(
        &[
            ("/etc/hosts", READ),
            ("/etc/passwd", READ),
            ("/usr/lib/a.so", READ),
            ("/usr/lib/b.so", READ),
            ("/usr/lib/c.so", READ),
            ("/usr/lib/d.conf", WRITE),
            ("/home/u/w/a", READ.union(WRITE)),
            ("/usr/bin/tool", READ.union(Perms::of(&[Perm::Execute]))),
        ],
        &[],
        &["/usr/bin/tool"],
    );
    assert_eq!(
        rules(&seen),
        [
            "/etc/hosts read_file",
            "/etc/passwd read_file",
            "$WORKSPACE/a read_file+write_file",
            "/usr/lib read_file",
            "/usr/lib/d.conf write_file",
            "run /usr/bin/tool"
        ]
    );
}

#[test]
fn never_a_home_nor_credentials() {
    let many: Vec<String> = (0..5)
        .flat_map(|i| {
            [
                format!("/home/u/.f{i}"),
                format!("/home/x/f{i}"),
                format!("/etc/f{i}"),
                format!("/f{i}"),
                format!("/home/u/.config/f{i}"),
            ]
        })
        .collect();
    let files: Vec<(&str, Perms)> = many.iter().map(|p| (p.as_str(), READ)).collect();
    let learned = learn(&seen(&files, &[], &[]), &context(), "l").document;
    assert_eq!(learned.fs.len(), 25, "{}", learned.to_json());
    let resolved = resolve(&effective(&[learned]).unwrap(), &context()).unwrap();
    for path in ["/home/u/.ssh/id", "/home/u/.config/gh/hosts.yml", "/etc/shadow", "/home/x/.ssh/id", "/root/x"] {
        assert!(!resolved.fs(Path::new(path), Perm::ReadFile).allowed(), "{path}");
    }
}

#[test]
fn what_was_made_belongs_to_its_directory() {
    let make = Perms::of(&[Perm::MakeReg]);
    let seen = seen(
        &[("/home/u/w/out/x/y", WRITE), ("/home/u/w", make), ("/home/u/.cache.db", WRITE)],
        &["/home/u/w/out", "/home/u/w/out/x", "/home/u/w/out/x/y", "/home/u/.cache.db"],
        &[],
    );
    assert_eq!(rules(&seen), ["$WORKSPACE write_file+make_reg"]);
    let notes = learn(&seen, &context(), "l").notes;
    assert_eq!(notes, ["/home/u/.cache.db: it was made during the run, and a rule on /home/u would open too much"]);
}

#[test]
fn a_whole_tree_ends_as_one_rule_and_order_does_not_matter() {
    let mut paths: Vec<String> = Vec::new();
    for dir in ["a", "b", "c"] {
        paths.extend((0..4).map(|i| format!("/usr/share/x/{dir}/f{i}")));
    }
    let mut files: Vec<(&str, Perms)> = paths.iter().map(|p| (p.as_str(), READ)).collect();
    let one = rules(&seen(&files, &[], &[]));
    assert_eq!(one, ["/usr/share/x read_file"]);
    files.reverse();
    assert_eq!(rules(&seen(&files, &[], &[])), one);
}

#[test]
fn what_was_learned_allows_what_was_seen() {
    let files = [("/usr/lib/[x]/a*", READ), ("/var/x", WRITE), ("/home/u/.ssh/config", READ)];
    let learned = learn(&seen(&files, &[], &["/usr/bin/p"]), &context(), "l").document;
    let resolved = resolve(&effective(&[learned]).unwrap(), &context()).unwrap();
    for (path, perms) in files {
        assert!(perms.iter().all(|p| resolved.fs(Path::new(path), p).allowed()), "{path}");
    }
    assert!(resolved.exec(Path::new("/usr/bin/p")).allowed());
    assert!(!resolved.fs(Path::new("/usr/lib/x/ab"), Perm::ReadFile).allowed());
}

fn net(host: Option<&str>, addr: &str, port: u16) -> Destination {
    let addr: IpAddr = addr.parse().unwrap();
    let is_special = crate::cidr::is_special(addr);
    Destination::Net { proto: Proto::Tcp, host: host.map(str::to_owned), addr, is_special, port }
}

fn learned(reached: &[(Destination, bool)]) -> (Vec<String>, Vec<String>) {
    let reached =
        reached.iter().map(|(place, passed)| ObservedConnection { place: place.clone(), passed: *passed }).collect();
    let Learned { document, notes } = learn(&Observed { reached, ..Observed::default() }, &context(), "l");
    let rules = document.net.iter().map(|rule| crate::write::net_rule(rule).to_compact_json());
    (rules.collect(), notes)
}

#[test]
fn hosts_are_named_with_their_ports() {
    let udp = |port| match net(Some("time.example.org"), "198.18.0.1", port) {
        Destination::Net { host, addr, is_special, port, .. } => {
            Destination::Net { proto: Proto::Udp, host, addr, is_special, port }
        }
        other => other,
    };
    let (rules, notes) = learned(&[
        (net(Some("example.org"), "5.5.5.5", 443), true),
        (net(Some("example.org"), "198.18.0.1", 80), false),
        (net(None, "5.5.5.6", 8080), false),
        (udp(123), false),
        (udp(443), false),
        (Destination::Socket("/run/postgresql/s".into()), false),
    ]);
    assert_eq!(
        rules,
        [
            r#"{"action":"allow","host":"example.org","ports":"80,443"}"#,
            r#"{"action":"allow","cidr":"5.5.5.6/32","ports":"8080"}"#,
            r#"{"action":"allow","proto":"udp","host":"time.example.org","ports":"123"}"#,
            r#"{"action":"allow","proto":"unix","path":"/run/postgresql/s"}"#,
        ]
    );
    assert_eq!(notes.len(), 1, "{notes:?}");
}

#[test]
fn special_places_are_noted_unless_the_caller_let_them_through() {
    for place in [
        net(None, "169.254.169.254", 80),
        net(None, "10.1.2.3", 5432),
        net(Some("10.1.2.3"), "10.1.2.3", 5432),
        net(None, "::1", 80),
        net(Some("metadata.google.internal"), "198.18.0.1", 80),
        net(Some("printer"), "198.18.0.1", 80),
        Destination::Socket("/run/docker.sock".into()),
        Destination::Socket("/home/u/.gnupg/S.gpg-agent".into()),
    ] {
        let (rules, notes) = learned(&[(place.clone(), false)]);
        assert!(rules.is_empty() && notes.len() == 1, "{place:?}: {rules:?} {notes:?}");
        let (rules, notes) = learned(&[(place.clone(), true)]);
        let both = matches!(&place, Destination::Net { host: Some(host), .. } if host != "10.1.2.3");
        assert!(rules.len() == 1 + usize::from(both) && notes.is_empty(), "{place:?}: {rules:?} {notes:?}");
    }
    // A name that resolved to a private address, with the caller's consent, needs both rules.
    let (rules, _) = learned(&[(net(Some("db.example.org"), "10.1.2.3", 5432), true)]);
    assert_eq!(rules.len(), 2, "{rules:?}");
}

/// Regression: a connection to port 0 made the rule of its host cover all ports.
#[test]
fn a_port_that_no_rule_can_name_opens_no_others() {
    for passed in [true, false] {
        let host = Some("a.example.org");
        let (rules, notes) = learned(&[(net(host, "5.5.5.5", 443), true), (net(host, "5.5.5.5", 0), passed)]);
        assert_eq!(rules, [r#"{"action":"allow","host":"a.example.org","ports":"443"}"#]);
        assert!(notes.len() == 1 && notes[0].contains("a.example.org:0: it names no port"), "{notes:?}");
    }
}
