//! Plans for typical hosts.

use crate::model::{Thing, World};
use policy::{
    Context, Cover, ExecPlan, Format, Host, HostFileType, Perms, Plan, PlanError, ResolvedPath, effective, parse,
    preset_document, resolve,
};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault};

fn context() -> Context {
    Context {
        home: PathBuf::from("/home/u"),
        workspace: PathBuf::from("/home/u/w"),
        toolchains: vec![PathBuf::from("/home/u/.rustup"), PathBuf::from("/home/u/.pyenv")],
    }
}

fn try_plan(world: &World, json: &str) -> Result<Plan, PlanError> {
    let document = parse(json, Format::Json, "p").unwrap_or_else(|e| panic!("{e}"));
    resolve(&effective(&[document]).unwrap(), &context()).unwrap().plan(world)
}

fn plan(world: &World, json: &str) -> Plan {
    try_plan(world, json).unwrap_or_else(|e| panic!("{e}"))
}

fn fs(rules: &str) -> String {
    format!(r#"{{"version":1,"fs":{{"rules":[{rules}]}}}}"#)
}

const WRITE: &str = r#""perms":["read_file","read_dir","execute","write_file","truncate","make_*","remove_*","refer"]"#;
const CHANGES: &str = r#""perms":["write_file","truncate","make_*","remove_*","refer"]"#;

fn debian() -> World {
    World::new()
        .files(&["/usr/bin/sh", "/usr/lib/x86/ld.so", "/etc/passwd", "/home/u/w/src/main.rs", "/home/u/w/.env"])
        .files(&["/home/u/.ssh/id", "/home/u/.rustup/bin/cargo", "/home/u/w/sub/.env"])
        .links(&[("/bin", "usr/bin"), ("/lib", "usr/lib"), ("/lib64", "usr/lib"), ("/sbin", "/bin")])
}

fn text(plan: &Plan) -> String {
    let mut out = String::new();
    for g in &plan.grants {
        out.push_str(&format!("grant {} {} ({})\n", g.path.display(), g.perms.names().join("+"), g.rule));
    }
    for m in &plan.masks {
        out.push_str(&format!("{:?} {} ({})\n", m.cover, m.path.display(), m.rule));
    }
    for g in &plan.guards {
        out.push_str(&format!("guard {} ({})\n", g.pattern, g.rule));
    }
    for l in &plan.links {
        out.push_str(&format!("link {} -> {}\n", l.at.display(), l.target.display()));
    }
    out
}

#[test]
fn the_default_preset_on_a_merged_usr() {
    let document = preset_document("workspace-write").unwrap();
    let plan = resolve(&effective(&[document]).unwrap(), &context()).unwrap().plan(&debian()).unwrap();
    assert_eq!(
        text(&plan),
        "grant /etc read_file+read_dir+execute (default:fs.rules[7])\n\
         grant /home/u/.rustup read_file+read_dir+execute (default:fs.rules[10])\n\
         grant /home/u/w read_file+read_dir+execute+write_file+truncate+make_dir+make_reg+make_sym+make_sock+make_fifo+remove_*+refer (default:fs.rules[11])\n\
         grant /usr read_file+read_dir+execute (default:fs.rules[0])\n\
         link /bin -> usr/bin\n\
         link /lib -> usr/lib\n\
         link /lib64 -> usr/lib\n\
         link /sbin -> /bin\n"
    );
    assert_eq!(plan.exec, ExecPlan::AllowBut(Vec::new()));
    assert!(
        plan.notes
            .contains(&"default:fs.rules[10]: /home/u/.pyenv does not exist, so the rule has no effect".to_owned())
    );
}

#[test]
fn covers() {
    let deny =
        |rest: &str| fs(&format!(r#"{{"action":"allow","path":"$WORKSPACE",{WRITE}}},{{"action":"deny",{rest}}}"#));
    for (rest, cover) in [
        (r#""path":"$WORKSPACE/src""#.to_owned(), Cover::Hide),
        (format!(r#""path":"$WORKSPACE/src",{CHANGES}"#), Cover::ReadOnly),
        (r#""path":"$WORKSPACE/src","perms":["execute"]"#.to_owned(), Cover::NoExec),
        (format!(r#""path":"$WORKSPACE/src",{}"#, CHANGES.replace('[', "[\"execute\",")), Cover::ReadOnlyNoExec),
        (r#""path":"$WORKSPACE/src/main.rs","perms":["write_file","truncate"]"#.to_owned(), Cover::ReadOnly),
    ] {
        let plan = plan(&debian(), &deny(&rest));
        assert_eq!(plan.masks.len(), 1, "{rest}");
        assert_eq!(plan.masks[0].cover, cover, "{rest}");
        assert_eq!(plan.masks[0].rule, "p:fs.rules[1]");
    }
}

#[test]
fn what_no_cover_can_hold_is_refused() {
    let json = fs(&format!(
        r#"{{"action":"allow","path":"$WORKSPACE",{WRITE}}},{{"action":"deny","path":"$WORKSPACE/src","perms":["read_file"]}}"#
    ));
    let error = try_plan(&debian(), &json).unwrap_err();
    assert_eq!(error.rule, "p:fs.rules[1]");
    assert_eq!(
        error.message,
        "/home/u/w/src: denying read_file while read_dir, execute, write_file, truncate, make_*, remove_*, refer stay \
         allowed cannot be enforced inside a larger grant"
    );
    let fault = Fault::from(error);
    assert_eq!(fault.error_kind, ErrorKind::UnsupportedPolicy);
    assert!(fault.hint.unwrap().contains("write_file, truncate, refer, make_* and remove_* together"));
}

#[test]
fn a_grant_inside_a_cover_is_refused() {
    let json = fs(r#"{"action":"allow","path":"/usr","perms":["read_file","read_dir"]},
        {"action":"deny","path":"/usr/lib","perms":["read_file","read_dir"]},
        {"action":"allow","path":"/usr/lib/x86","perms":["execute"]}"#);
    let error = try_plan(&debian(), &json).unwrap_err();
    assert_eq!(error.message, "it covers /usr/lib, but p:fs.rules[2] allows execute at /usr/lib/x86 inside it");
}

#[test]
fn a_denial_at_or_above_a_grant_takes_from_it() {
    let json = fs(&format!(
        r#"{{"action":"allow","path":"$WORKSPACE",{WRITE}}},{{"action":"deny","path":"/home",{CHANGES}}},{{"action":"deny","path":"/usr"}},
           {{"action":"allow","path":"/usr/bin","perms":["read_file"]}}"#
    ));
    let plan = plan(&debian(), &json);
    assert_eq!(text(&plan), "grant /home/u/w read_file+read_dir+execute (p:fs.rules[0])\n");
    assert_eq!(plan.notes, ["p:fs.rules[3]: everything it allows at /usr/bin is denied"]);
}

#[test]
fn wildcards_cover_what_is_there_and_guard_the_rest() {
    let json =
        fs(&format!(r#"{{"action":"allow","path":"$WORKSPACE",{WRITE}}},{{"action":"deny","path":"/**/.env"}}"#));
    assert_eq!(
        text(&plan(&debian(), &json)),
        "grant /home/u/w read_file+read_dir+execute+write_file+truncate+make_*+remove_*+refer (p:fs.rules[0])\n\
         Hide /home/u/w/.env (p:fs.rules[1])\n\
         Hide /home/u/w/sub/.env (p:fs.rules[1])\n\
         guard /**/.env (p:fs.rules[1])\n"
    );
    let read_only = fs(
        r#"{"action":"allow","path":"$WORKSPACE","perms":["read_file","read_dir"]},{"action":"deny","path":"/**/.env"}"#,
    );
    assert!(plan(&debian(), &read_only).guards.is_empty());
}

#[test]
fn a_denied_path_that_is_not_there_is_guarded() {
    let json =
        fs(r#"{"action":"allow","path":"/bin","perms":["read_file","execute"]},{"action":"deny","path":"/bin/nc"},
        {"action":"deny","path":"/opt/x"}"#);
    assert_eq!(
        text(&plan(&debian(), &json)),
        "grant /usr/bin read_file+execute (p:fs.rules[0])\nguard /usr/bin/nc (p:fs.rules[1])\nlink /bin -> usr/bin\n"
    );
}

#[test]
fn covers_that_can_be_moved_away_are_known() {
    let world = debian().files(&["/home/u/w/.git/hooks/x", "/home/u/w/top"]);
    let json = fs(&format!(
        r#"{{"action":"allow","path":"$WORKSPACE",{WRITE}}},{{"action":"deny","path":"$WORKSPACE/.git/hooks"}},{{"action":"deny","path":"$WORKSPACE/top"}}"#
    ));
    let plan = plan(&world, &json);
    let movable: Vec<_> = plan.movable_masks().map(|m| m.path.display().to_string()).collect();
    assert_eq!(movable, ["/home/u/w/.git/hooks"]);
}

#[test]
fn everything_by_default() {
    let json = r#"{"version":1,"defaults":{"fs":"allow"},"fs":{"rules":[{"action":"deny","path":"~/.ssh"}]}}"#;
    let plan = plan(&debian(), json);
    assert_eq!(plan.grants.len(), 1);
    assert_eq!(plan.grants[0].path, PathBuf::from("/"));
    assert_eq!(plan.grants[0].kind, HostFileType::Dir);
    assert_eq!(plan.grants[0].perms, Perms::ORDINARY);
    assert_eq!(plan.masks[0].path, PathBuf::from("/home/u/.ssh"));
    assert!(plan.links.is_empty());
}

#[test]
fn only_named_programs() {
    let mut world = debian();
    world.put("/usr/bin/odd", Thing::File(9));
    world.loader = Some(PathBuf::from("/lib64/x86/ld.so"));
    let sha = "01".repeat(32);
    let json = format!(
        r#"{{"version":1,"extends":["default"],"defaults":{{"exec":"deny"}},"exec":{{"rules":[
            {{"action":"allow","path":"/bin/sh","sha256":"{sha}"}},
            {{"action":"allow","path":"/usr/bin/odd","sha256":"{sha}"}},
            {{"action":"allow","path":"~/.rustup/bin"}},
            {{"action":"deny","path":"~/.rustup/bin/cargo"}}]}}}}"#
    );
    let plan = plan(&world, &json);
    let ExecPlan::Only { programs, loaders } = &plan.exec else { panic!("{:?}", plan.exec) };
    let named: Vec<_> = programs.iter().map(|p| (p.path.to_str().unwrap(), p.sha256.is_some())).collect();
    assert_eq!(named, [("/home/u/.rustup/bin", false), ("/usr/bin/sh", true)]);
    assert_eq!(loaders, &[PathBuf::from("/usr/lib/x86/ld.so")]);
    assert_eq!(plan.masks[0].cover, Cover::NoExec);
    assert!(plan.notes.iter().any(|n| n.contains("/usr/bin/odd does not have the digest named")));
    let usr = plan.grants.iter().find(|g| g.path == std::path::Path::new("/usr")).unwrap();
    assert_eq!(usr.perms, Perms::READ);
}

#[test]
fn a_program_cannot_name_secrets_as_its_loader() {
    let mut world = debian();
    world.loader = Some(PathBuf::from("/home/u/.ssh/id"));
    let json =
        r#"{"version":1,"defaults":{"exec":"deny"},"exec":{"rules":[{"action":"allow","path":"$WORKSPACE/src"}]}}"#;
    let plan = plan(&world, json);
    assert!(!plan.grants.iter().any(|g| g.path.starts_with("/home/u/.ssh")), "{}", text(&plan));
    assert!(plan.notes[0].contains("names the loader /home/u/.ssh/id, which needs a rule of its own"));
}

#[test]
fn refused_programs() {
    let json = r#"{"version":1,"extends":["default"],"exec":{"rules":[{"action":"deny","path":"/bin/sh"},{"action":"deny","path":"/opt/no"}]}}"#;
    let plan = plan(&debian(), json);
    let ExecPlan::AllowBut(programs) = &plan.exec else { panic!("{:?}", plan.exec) };
    assert_eq!(programs.len(), 1);
    assert_eq!(programs[0].path, PathBuf::from("/usr/bin/sh"));
}

// promise 1
#[test]
fn a_planted_link_is_not_followed() {
    let world = debian().links(&[("/home/u/w/out", "/home/u/.ssh"), ("/home/u/w/in", "src")]);
    let json = fs(&format!(
        r#"{{"action":"allow","path":"$WORKSPACE",{WRITE}}},{{"action":"allow","path":"$WORKSPACE/out","perms":["read_file"]}},
           {{"action":"allow","path":"$WORKSPACE/in","perms":["ioctl_dev"]}}"#
    ));
    let plan = plan(&world, &json);
    let paths: Vec<_> = plan.grants.iter().map(|g| g.path.to_str().unwrap()).collect();
    assert_eq!(paths, ["/home/u/w", "/home/u/w/src"]);
    assert_eq!(
        plan.notes,
        [
            "p:fs.rules[1]: /home/u/w/out is a link to /home/u/.ssh in a place that runs may change, so it is not followed"
        ]
    );
}

#[test]
fn links_of_the_workspace_are_not_trusted_even_when_it_cannot_be_changed() {
    let world = debian().links(&[("/home/u/w/out", "/home/u/.ssh")]);
    let json = fs(r#"{"action":"allow","path":"$WORKSPACE/out","perms":["read_file"]}"#);
    assert!(plan(&world, &json).grants.is_empty());
    let named = fs(r#"{"action":"allow","path":"$WORKSPACE/out","perms":["read_file"]},
        {"action":"allow","path":"~/.ssh","perms":["read_file"]}"#);
    assert_eq!(plan(&world, &named).grants[0].rule, "p:fs.rules[1]");
}

#[test]
fn a_denied_link_denies_where_it_leads() {
    let world = debian().links(&[("/home/u/w/key", "src/main.rs")]);
    let json =
        fs(&format!(r#"{{"action":"allow","path":"$WORKSPACE",{WRITE}}},{{"action":"deny","path":"$WORKSPACE/key"}}"#));
    let plan = plan(&world, &json);
    assert_eq!(plan.masks[0].path, PathBuf::from("/home/u/w/src/main.rs"));
    assert_eq!(plan.guards[0].pattern, "/home/u/w/key");
}

#[test]
fn too_much_is_an_error_that_names_the_rule() {
    let mut world = World::new();
    for i in 0..10_100 {
        world.put(&format!("/d/f{i}"), Thing::File(1));
    }
    let error = try_plan(&world, &fs(r#"{"action":"allow","path":"/d/*","perms":["read_file"]}"#)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "p:fs.rules[0]: /d/*: more than 10000 paths match it; name the directory that holds them"
    );
}

/// A host with an infinite tree.
struct Endless(World);

impl Host for Endless {
    fn look(&self, path: &Path) -> Option<ResolvedPath> {
        match path.starts_with("/big") {
            true => Some(ResolvedPath { real: path.to_owned(), kind: HostFileType::Dir, links: Vec::new() }),
            false => self.0.look(path),
        }
    }

    fn list(&self, dir: &Path) -> Result<Vec<OsString>, String> {
        match dir.starts_with("/big") {
            true => Ok((0..50).map(|i| OsString::from(i.to_string())).collect()),
            false => self.0.list(dir),
        }
    }

    fn sha256(&self, file: &Path) -> Option<[u8; 32]> {
        self.0.sha256(file)
    }

    fn loader(&self, file: &Path) -> Option<PathBuf> {
        self.0.loader(file)
    }
}

#[test]
fn denials_are_looked_for_only_where_something_is_granted() {
    let world = debian().links(&[("/home/u/w/loop", "/big")]);
    let host = Endless(world.files(&["/big/x"]));
    let json =
        fs(&format!(r#"{{"action":"allow","path":"$WORKSPACE",{WRITE}}},{{"action":"deny","path":"/**/.env"}}"#));
    let policy =
        |json: &str| resolve(&effective(&[parse(json, Format::Json, "p").unwrap()]).unwrap(), &context()).unwrap();
    assert_eq!(policy(&json).plan(&host).unwrap().masks.len(), 2);
    let inside = fs(r#"{"action":"allow","path":"/big","perms":["read_file"]},{"action":"deny","path":"/**/.env"}"#);
    let error = policy(&inside).plan(&host).unwrap_err();
    assert_eq!(error.rule, "p:fs.rules[1]");
    assert!(error.message.contains("more than 200000 entries would have to be visited"), "{error}");
}

#[test]
fn a_grant_between_two_covers_keeps_both() {
    let world = debian().files(&["/home/u/w/a/b/c/d"]);
    let write = WRITE.replace("\"execute\",", "");
    let json = fs(&format!(
        r#"{{"action":"allow","path":"$WORKSPACE",{write}}},{{"action":"deny","path":"$WORKSPACE/a",{CHANGES}}},
           {{"action":"allow","path":"$WORKSPACE/a/b","perms":["execute"]}},{{"action":"deny","path":"$WORKSPACE/a/b/c",{CHANGES}}}"#
    ));
    let masks: Vec<PathBuf> = plan(&world, &json).masks.into_iter().map(|m| m.path).collect();
    assert_eq!(masks, [PathBuf::from("/home/u/w/a"), PathBuf::from("/home/u/w/a/b/c")]);
    let without = json.replace(r#""path":"$WORKSPACE/a/b","perms""#, r#""path":"/usr","perms""#);
    assert_eq!(plan(&world, &without).masks.len(), 1);
}

fn net(rules: &str) -> String {
    format!(
        r#"{{"version":1,"fs":{{"rules":[{{"action":"allow","path":"$WORKSPACE",{WRITE}}}]}},"net":{{"rules":[{rules}]}}}}"#
    )
}

fn unix(action: &str, path: &str) -> String {
    format!(r#"{{"action":"{action}","proto":"unix","path":"{path}"}}"#)
}

fn with_sockets() -> World {
    let mut world = debian().links(&[("/var/run", "/run"), ("/home/u/w/out.sock", "/run/a.sock")]);
    for path in ["/run/a.sock", "/run/b.sock", "/run/d/c.sock", "/home/u/w/db/x.sock"] {
        world.put(path, Thing::Socket);
    }
    world.files(&["/run/file", "/run/d/file"])
}

#[test]
fn sockets_that_rules_reach() {
    let world = with_sockets();
    for (rules, wanted, links) in [
        (unix("allow", "/run/a.sock"), "/run/a.sock", 0),
        (unix("warn", "/var/run/a.sock"), "/run/a.sock", 1),
        (unix("allow", "/run/*.sock"), "/run/a.sock /run/b.sock", 0),
        (unix("allow", "/run/**"), "/run/a.sock /run/b.sock /run/d/c.sock", 0),
        (format!("{},{}", unix("allow", "/run/**"), unix("deny", "/run/d")), "/run/a.sock /run/b.sock", 0),
        (format!("{},{}", unix("allow", "/run/*.sock"), unix("deny", "/var/run/a.sock")), "/run/b.sock", 0),
        (format!("{},{}", unix("allow", "/run/*"), unix("ask", "/run/**")), "/run/a.sock /run/b.sock /run/d/c.sock", 0),
        (unix("allow", "/run/file"), "", 0),
        (unix("allow", "/run/none"), "", 0),
        (unix("allow", "$WORKSPACE/*.sock"), "", 0),
    ] {
        let plan = plan(&world, &net(&rules));
        let found: Vec<_> = plan.sockets.iter().map(|s| s.path.to_str().unwrap()).collect();
        assert_eq!(found.join(" "), wanted, "{rules}");
        assert_eq!(plan.links.len(), links, "{rules}");
        assert_eq!(plan.grants.len(), 1, "{rules}");
        assert_eq!(plan.notes.is_empty(), !wanted.is_empty(), "{rules}: {:?}", plan.notes);
    }
}

#[test]
fn denied_sockets_in_writable_places_keep_their_names() {
    let world = with_sockets();
    for (path, kept) in
        [("$WORKSPACE/db/x.sock", "/home/u/w/db/x.sock"), ("$WORKSPACE/db/**", "/home/u/w/db"), ("/", ""), ("/run", "")]
    {
        let document = parse(&net(&unix("deny", path)), Format::Json, "p").unwrap();
        let resolved = resolve(&effective(&[document]).unwrap(), &context()).unwrap().follow(&world).unwrap();
        let found: Vec<_> = resolved.plan(&world).unwrap().kept.iter().map(|p| p.display().to_string()).collect();
        assert_eq!(found.join(" "), kept, "{path}");
        // Elsewhere in the grant the guest's own sockets are permitted.
        assert!(resolved.connects(Path::new("/home/u/w/own.sock")).allowed(), "{path}");
        assert_eq!(resolved.connects(Path::new("/home/u/w/db/x.sock")).allowed(), kept.is_empty(), "{path}");
        assert!(!resolved.connects(Path::new("/run/a.sock")).allowed(), "{path}");
    }
}

#[test]
fn so_many_sockets_and_no_more() {
    let mut world = debian();
    (0..300).for_each(|i| world.put(&format!("/run/{i}.sock"), Thing::Socket));
    let error = try_plan(&world, &net(&unix("allow", "/run"))).unwrap_err();
    assert!(error.message.contains("more than 256 sockets"), "{error}");
}

/// A path that is asked about is denied until it is approved; the plan lists it, and what is hidden below it.
#[test]
fn places_that_are_asked_about() {
    let world = debian().links(&[("/home/u/n", "/home/u/notes"), ("/home/u/w/planted", "/home/u/keys")]).files(&[
        "/home/u/notes/a",
        "/home/u/notes/secret/b",
        "/home/u/keys/k",
        "/home/u/w/.env",
    ]);
    let read = r#""perms":["read_file","read_dir"]"#;
    let rules = |rules: &str| {
        format!(r#"{{"version":1,"fs":{{"rules":[{{"action":"allow","path":"$WORKSPACE",{WRITE}}},{rules}]}}}}"#)
    };
    let json = rules(&format!(
        r#"{{"action":"ask","path":"~/n",{read}}},{{"action":"deny","path":"~/notes/secret"}},
           {{"action":"ask","path":"$WORKSPACE/.env"}},{{"action":"ask","path":"$WORKSPACE/planted",{read}}}"#
    ));
    let made = plan(&world, &json);
    let told: Vec<_> =
        made.asked.iter().map(|a| (a.path.to_str().unwrap(), a.reads, a.changes, a.hidden.len())).collect();
    assert_eq!(told, [("/home/u/notes", true, false, 1), ("/home/u/w/.env", true, true, 0)]);
    assert_eq!(made.grants.len(), 1, "nothing is granted");
    assert_eq!(made.masks.len(), 1, "inside a grant it is covered");
    assert!(made.links.iter().any(|link| link.at == Path::new("/home/u/n")), "{:?}", made.links);
    // A denial wins, and the number of paths is bounded.
    let denied = rules(&format!(r#"{{"action":"ask","path":"~/notes",{read}}},{{"action":"deny","path":"~/notes"}}"#));
    assert_eq!(plan(&world, &denied).asked, []);
    assert!(try_plan(&world, &rules(&format!(r#"{{"action":"ask","path":"/",{read}}}"#))).is_err());
    let many: Vec<String> = (0..17).map(|i| format!("/home/u/many/{i}/x")).collect();
    let world = debian().files(&many.iter().map(String::as_str).collect::<Vec<_>>());
    let error = try_plan(&world, &rules(&format!(r#"{{"action":"ask","path":"~/many/*",{read}}}"#))).unwrap_err();
    assert!(error.message.contains("more than 16 paths"), "{error}");
}

/// A plain name is whited out beforehand; a pattern cannot be, and a note says so.
#[test]
fn a_denied_pattern_says_what_it_holds_for() {
    let told = |denied: &str| {
        let json = fs(&format!(
            r#"{{"action":"allow","path":"$WORKSPACE","perms":["read_file","read_dir"]}},{{"action":"deny","path":"{denied}"}}"#
        ));
        plan(&debian(), &json).notes.iter().any(|note| note.contains("covers the existing files"))
    };
    assert!(told("$WORKSPACE/**/*.pem"));
    assert!(!told("$WORKSPACE/key.pem") && !told("/opt/*.pem"));
}

#[test]
fn programs_that_are_asked_about() {
    let world = debian().files(&["/opt/t/one", "/opt/t/deep/two", "/opt/other"]);
    let shown = r#"{"action":"allow","path":"/opt","perms":["read_file","read_dir","execute"]}"#;
    let planned = |exec: &str, rules: &str| {
        let json = format!(
            r#"{{"version":1,"defaults":{{"exec":"{exec}"}},"fs":{{"rules":[{shown}]}},"exec":{{"rules":[{rules}]}}}}"#
        );
        let plan = try_plan(&world, &json).unwrap();
        let told = |p: &policy::Program| format!("{}{}", p.path.display(), if p.asked { "?" } else { "" });
        plan.exec.programs().iter().map(told).collect::<Vec<_>>().join(" ")
    };
    for (rules, but, only) in [
        (r#"{"action":"ask","path":"/opt/t/one"}"#, "/opt/t/one?", "/opt/t/one?"),
        // Ask beats allow, whichever is more specific.
        (r#"{"action":"ask","path":"/opt/t"},{"action":"allow","path":"/opt/t/one"}"#, "/opt/t?", "/opt/t?"),
        (
            r#"{"action":"allow","path":"/opt/t"},{"action":"ask","path":"/opt/t/one"}"#,
            "/opt/t/one?",
            "/opt/t /opt/t/one?",
        ),
        // Deny beats both.
        (r#"{"action":"ask","path":"/opt/t"},{"action":"deny","path":"/opt/t/one"}"#, "/opt/t? /opt/t/one", "/opt/t?"),
        (r#"{"action":"deny","path":"/opt/t"},{"action":"ask","path":"/opt/t/one"}"#, "/opt/t /opt/t/one", ""),
        // A file with another digest is refused.
        (
            r#"{"action":"ask","path":"/opt/t/one","sha256":"0202020202020202020202020202020202020202020202020202020202020202"}"#,
            "/opt/t/one",
            "",
        ),
        (
            r#"{"action":"ask","path":"/opt/t/one","sha256":"0101010101010101010101010101010101010101010101010101010101010101"}"#,
            "/opt/t/one?",
            "/opt/t/one?",
        ),
        // A directory is listed once.
        (r#"{"action":"ask","path":"/opt/t"},{"action":"ask","path":"/opt/t/**"}"#, "/opt/t?", "/opt/t?"),
    ] {
        assert_eq!((planned("allow", rules), planned("deny", rules)), (but.to_owned(), only.to_owned()), "{rules}");
    }
}
