//! Decisions and plans are two readings of one policy: for every path of a random host and every permission they must
//! agree. Policies that no plan can express are counted, so that the test cannot run empty.

use crate::model::{Thing, World};
use policy::{
    Action, Context, Cover, ExecPlan, Format, Host as _, HostFileType, Perm, Perms, Plan, Resolved, effective, parse,
    resolve,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;
use std::path::{Path, PathBuf};

const HOME: &str = "/b";

fn context(workspace: &str) -> Context {
    Context { home: PathBuf::from(HOME), workspace: PathBuf::from(workspace), toolchains: vec![PathBuf::from("/c/a")] }
}

fn resolved(json: &str, workspace: &str) -> Resolved {
    let document = parse(json, Format::Json, "p").unwrap_or_else(|e| panic!("{e}\n{json}"));
    resolve(&effective(&[document]).unwrap(), &context(workspace)).unwrap()
}

fn granted(plan: &Plan, path: &Path) -> Perms {
    let grants = plan.grants.iter().filter(|g| g.covers(path));
    let all = grants.fold(Perms::NONE, |all, g| all.union(g.perms));
    let masks = plan.masks.iter().filter(|m| path.starts_with(&m.path));
    masks.fold(all, |all, m| all.minus(taken(m.cover)))
}

fn taken(cover: Cover) -> Perms {
    let execute = Perms::of(&[Perm::Execute]);
    match cover {
        Cover::Hide => Perms::ALL,
        Cover::ReadOnly => Perms::CHANGES,
        Cover::NoExec => execute,
        Cover::ReadOnlyNoExec => Perms::CHANGES.union(execute),
    }
}

fn runs(plan: &Plan, path: &Path) -> bool {
    starts(plan, path) == Action::Allow
}

/// Computes what mounts and landlock would permit, as set up from the plan: a mount over another counts, and landlock
/// adds up.
fn starts(plan: &Plan, path: &Path) -> Action {
    let mut above = plan.exec.programs().iter().filter(|p| path.starts_with(&p.path));
    let (named, asked) = match &plan.exec {
        ExecPlan::AllowBut(_) => (above.clone().all(|p| p.asked), above.next().is_some()),
        ExecPlan::Only { loaders, .. } => {
            let loader = loaders.iter().any(|l| l == path);
            (loader || above.clone().next().is_some(), above.next_back().is_some_and(|p| p.asked))
        }
    };
    match (named && granted(plan, path).contains(Perm::Execute), asked) {
        (false, _) => Action::Deny,
        (true, true) => Action::Ask,
        (true, false) => Action::Allow,
    }
}

/// Checks that a denied path that does not exist cannot be made.
fn check_guards(world: &World, plan: &Plan, followed: &Resolved, json: &str) -> Result<(), TestCaseError> {
    let dirs: Vec<&Path> = world.reals().filter(|(_, kind)| *kind == HostFileType::Dir).map(|(path, _)| path).collect();
    for dir in dirs {
        let here = granted(plan, dir);
        for path in ["a", "b", "c"].map(|name| dir.join(name)) {
            let new = world.look(&path).is_none() && world.things().all(|known| known != path);
            if !new || here.and(Perms::MAKING).is_empty() {
                continue;
            }
            let denied =
                Perms::FILE.iter().any(|p| p != Perm::Execute && here.contains(p) && !followed.fs(&path, p).allowed());
            let refused = runs(plan, &path) && !followed.exec(&path).allowed();
            let guarded = plan.guards.iter().any(|g| g.covers(&path));
            prop_assert!(guarded || !(denied || refused), "{} is not guarded\n{}\n{:#?}", path.display(), json, plan);
        }
    }
    Ok(())
}

/// Compares the two for every path; also checks the invariants of `Plan`.
fn check(world: &World, json: &str, workspace: &str, own_home: bool) -> Result<Option<Plan>, TestCaseError> {
    let resolved = resolved(json, workspace);
    let resolved = if own_home { resolved.with_own_home(Path::new(HOME)) } else { resolved };
    let Ok(plan) = resolved.plan(world) else {
        return Ok(None);
    };
    let followed = resolved.follow(world).expect("a plan was made");
    for (path, kind) in world.reals() {
        let meaning = if kind == HostFileType::Dir { Perms::ALL } else { Perms::FILE };
        let planned = granted(&plan, path).and(meaning);
        for perm in meaning.iter().filter(|p| *p != Perm::Execute) {
            let decided = followed.fs(path, perm).allowed();
            prop_assert_eq!(
                decided,
                planned.contains(perm),
                "{} at {}\n{}\n{:#?}",
                perm.name(),
                path.display(),
                json,
                plan
            );
        }
        if kind == HostFileType::File {
            let decided = followed.exec(path);
            prop_assert_eq!(decided.allowed(), runs(&plan, path), "exec {}\n{}\n{:#?}", path.display(), json, plan);
            let starts = starts(&plan, path);
            // An ask rule denies permissions that cannot be asked for, a digest may differ, and a link may have been
            // planted.
            let asks = decided.action == Action::Ask;
            let planted = plan.notes.iter().any(|note| note.contains("it is not followed"));
            prop_assert!(starts != Action::Ask || asks, "asks about {}\n{}\n{:#?}", path.display(), json, plan);
            let plain =
                asks && !planted && !json.contains("sha256") && decided.matches.iter().all(|m| !m.rule.contains(":fs"));
            prop_assert!(!plain || starts == Action::Ask, "cannot ask {}\n{}\n{:#?}", path.display(), json, plan);
        }
    }
    shape(&plan)?;
    check_guards(world, &plan, &followed, json)?;
    Ok(Some(plan))
}

fn shape(plan: &Plan) -> Result<(), TestCaseError> {
    prop_assert!(plan.grants.is_sorted_by(|a, b| a.path < b.path), "{:#?}", plan.grants);
    for grant in &plan.grants {
        let above = plan.grants.iter().filter(|g| g.covers(&grant.path) && g.path != grant.path);
        let inherited = above.fold(Perms::NONE, |all, g| all.union(g.perms));
        prop_assert_eq!(inherited.minus(grant.perms), Perms::NONE, "a nested grant lost permissions");
        prop_assert!(grant.perms != inherited, "a grant adds nothing: {:?}", grant);
    }
    prop_assert!(plan.masks.is_sorted_by(|a, b| a.path < b.path));
    for link in &plan.links {
        let seen = plan.grants.iter().any(|g| g.kind == HostFileType::Dir && g.covers(&link.at));
        prop_assert!(!seen, "{:?} is inside a grant", link);
    }
    Ok(())
}

fn path_text() -> impl Strategy<Value = String> {
    (top(), prop::collection::vec("[abc]", 1..4)).prop_map(|(top, names)| format!("{top}/{}", names.join("/")))
}

/// Places entries in the private directories of a sandbox, too.
fn top() -> impl Strategy<Value = &'static str> {
    prop_oneof![12 => Just(""), 2 => Just("/tmp"), 1 => Just("/var/tmp")]
}

fn workspace() -> impl Strategy<Value = &'static str> {
    prop_oneof![3 => Just("/a"), 2 => Just("/tmp/a"), 1 => Just("/var/tmp/a/b")]
}

fn world() -> impl Strategy<Value = World> {
    let file = (path_text(), 1u8..3).prop_map(|(path, byte)| (path, Thing::File(byte)));
    let dir = path_text().prop_map(|path| (path, Thing::Dir));
    let socket = path_text().prop_map(|path| (path, Thing::Socket));
    let link = (path_text(), prop_oneof![path_text(), Just("../b".to_owned()), Just("c".to_owned())])
        .prop_map(|(path, target)| (path, Thing::Link(PathBuf::from(target))));
    let thing = prop_oneof![4 => file, 3 => dir, 1 => socket, 2 => link];
    (
        prop::collection::vec(thing, 1..14),
        prop::option::weighted(0.4, prop_oneof![path_text(), Just("/lib/ld".to_owned())]),
    )
        .prop_map(|(things, loader)| {
            let mut world = World::new().files(&["/usr/lib/ld"]).links(&[("/lib", "usr/lib")]);
            things.into_iter().for_each(|(path, thing)| world.put(&path, thing));
            world.loader = loader.map(PathBuf::from);
            world
        })
}

fn rule_path() -> impl Strategy<Value = String> {
    let wild =
        prop_oneof![5 => "[abc]", 1 => Just("*".to_owned()), 1 => Just("**".to_owned()), 1 => Just("[ab]".to_owned())];
    let path = (top(), prop::collection::vec(wild, 0..4)).prop_map(|(top, parts)| format!("{top}/{}", parts.join("/")));
    let path = path.prop_map(|path| if path.len() > 1 { path.trim_end_matches('/').to_owned() } else { path });
    let based = prop::collection::vec("[abc]", 0..2)
        .prop_map(|p| std::iter::once("$WORKSPACE".to_owned()).chain(p).collect::<Vec<_>>().join("/"));
    prop_oneof![6 => path, 1 => based, 1 => Just("~/a".to_owned()), 1 => Just("$TOOLCHAINS".to_owned())]
}

const CHANGES: &str = r#""write_file","truncate","make_*","remove_*","refer""#;

fn fs_rule() -> impl Strategy<Value = String> {
    let changes = CHANGES;
    let perms = prop_oneof![
        Just(r#""read_file","read_dir""#.to_owned()),
        Just(r#""read_file","read_dir","execute""#.to_owned()),
        Just(format!(r#""read_file","read_dir",{changes}"#)),
        Just(changes.to_owned()),
        Just(r#""execute""#.to_owned()),
        Just(r#""make_dir","ioctl_dev""#.to_owned()),
    ];
    let action = prop_oneof![5 => Just("allow"), 1 => Just("warn"), 3 => Just("deny"), 1 => Just("ask")];
    (action, rule_path(), prop::option::weighted(0.6, perms)).prop_map(move |(action, path, perms)| {
        let all = matches!(action, "deny" | "ask");
        let perms = match perms {
            None if all => String::new(),
            None => format!(r#","perms":["read_file","read_dir","execute",{changes}]"#),
            Some(perms) => format!(r#","perms":[{perms}]"#),
        };
        format!(r#"{{"action":"{action}","path":"{path}"{perms}}}"#)
    })
}

fn exec_rule() -> impl Strategy<Value = String> {
    let action = prop_oneof![3 => Just("allow"), 1 => Just("warn"), 2 => Just("ask"), 2 => Just("deny")];
    (action, rule_path(), prop::option::weighted(0.2, 1u8..3)).prop_map(|(action, path, byte)| {
        let sha =
            byte.filter(|_| action != "deny").map(|b| format!(r#","sha256":"{}""#, format!("{b:02x}").repeat(32)));
        format!(r#"{{"action":"{action}","path":"{path}"{}}}"#, sha.unwrap_or_default())
    })
}

/// Adds a wide allowance to half of the policies, which the other rules restrict.
fn document() -> impl Strategy<Value = String> {
    let default = || prop_oneof![3 => Just("deny"), 1 => Just("allow")];
    let wide = prop::option::of(prop_oneof![Just("/"), Just("/a"), Just("/b"), Just("/var"), Just("/tmp")]);
    let fs_rules = prop::collection::vec(fs_rule(), 0..6);
    let exec_rules = prop::collection::vec(exec_rule(), 0..4);
    (default(), default(), wide, fs_rules, exec_rules).prop_map(
        |(fs, exec, wide, mut fs_rules, exec_rules)| {
            fs_rules.extend(wide.map(|path| {
                format!(
                    r#"{{"action":"allow","path":"{path}","perms":["read_file","read_dir","execute",{CHANGES}]}}"#
                )
            }));
            format!(
                r#"{{"version":1,"defaults":{{"fs":"{fs}","exec":"{exec}"}},"fs":{{"rules":[{}]}},"exec":{{"rules":[{}]}}}}"#,
                fs_rules.join(","),
                exec_rules.join(",")
            )
        },
    )
}

// promise 10
#[test]
fn decisions_are_what_plans_enforce() {
    let cases = 800;
    // Counts of plans, and of plans with each of their parts.
    let seen = [const { Cell::new(0u32) }; 8];
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    runner
        .run(&(world(), document(), workspace(), any::<bool>()), |(world, json, workspace, own_home)| {
            if let Some(plan) = check(&world, &json, workspace, own_home)? {
                let in_private = plan.grants.iter().filter(|g| policy::private_place(&g.path).is_some()).count();
                let in_home = plan.grants.iter().filter(|g| plan.private.is_in_home(&g.path)).count();
                let parts = [
                    1,
                    in_private,
                    plan.grants.len(),
                    plan.masks.len(),
                    plan.guards.len(),
                    plan.links.len(),
                    plan.exec.asked().count(),
                    in_home,
                ];
                for (count, part) in seen.iter().zip(parts) {
                    count.set(count.get() + u32::from(part > 0));
                }
            }
            Ok(())
        })
        .unwrap();
    let seen = seen.map(Cell::into_inner);
    // Far below the usual counts, because cases are random.
    let least = [cases / 2, cases / 20, cases / 2, cases / 40, cases / 40, cases / 200, cases / 100, cases / 200];
    assert!(
        seen.iter().zip(least).all(|(n, least)| *n > least),
        "too few plans, grants in private directories, grants, masks, guards, links, programs that are asked about or grants in the home: {seen:?}"
    );
}

#[test]
fn without_links_no_host_is_needed_to_decide() {
    let world = World::new().files(&["/a/x", "/a/b/y", "/b/z", "/c/a/tool"]);
    let policy = resolved(
        r#"{"version":1,"fs":{"rules":[
            {"action":"allow","path":"$WORKSPACE","perms":["read_file","write_file"]},
            {"action":"deny","path":"/a/b"},
            {"action":"allow","path":"$TOOLCHAINS","perms":["read_file","execute"]}]}}"#,
        "/a",
    );
    let plan = policy.plan(&world).unwrap();
    for (path, _) in world.reals() {
        for perm in Perms::FILE.iter() {
            assert_eq!(policy.fs(path, perm).allowed(), granted(&plan, path).contains(perm), "{}", path.display());
        }
    }
}

/// Returns what one rule, or the default, opens below a private directory; decision and plan must agree.
#[test]
fn a_rule_from_above_ends_at_the_private_directories() {
    let world = World::new().files(&["/a/x", "/tmp/a/x", "/tmp/b/x", "/var/lib/x", "/var/tmp/b/x"]);
    let rule = |path: &str| format!(r#"{{"action":"allow","path":"{path}","perms":["read_file","read_dir"]}}"#);
    let check = |defaults: &str, paths: &[&str], workspace: &str, expected: &[&str]| {
        let rules: Vec<String> = paths.iter().map(|path| rule(path)).collect();
        let json =
            format!(r#"{{"version":1,"defaults":{{"fs":"{defaults}"}},"fs":{{"rules":[{}]}}}}"#, rules.join(","));
        let policy = resolved(&json, workspace);
        let plan = policy.plan(&world).unwrap();
        let followed = policy.follow(&world).unwrap();
        let open = |decides: &dyn Fn(&Path) -> bool| -> Vec<String> {
            let files = world.reals().filter(|(path, kind)| *kind == HostFileType::File && path.ends_with("x"));
            files.filter(|(path, _)| decides(path)).map(|(path, _)| path.display().to_string()).collect()
        };
        for seen in [
            open(&|path| granted(&plan, path).contains(Perm::ReadFile)),
            open(&|path| followed.fs(path, Perm::ReadFile).allowed()),
            open(&|path| policy.fs(path, Perm::ReadFile).allowed()),
        ] {
            assert_eq!(seen, expected, "{defaults} {paths:?} in {workspace}");
        }
    };
    check("deny", &["/"], "/a", &["/a/x", "/var/lib/x"]);
    check("allow", &[], "/a", &["/a/x", "/var/lib/x"]);
    check("deny", &["/**"], "/a", &["/a/x", "/var/lib/x"]);
    check("deny", &["/var"], "/a", &["/var/lib/x"]);
    // A rule that names the directory, or a path in it, applies there.
    check("deny", &["/", "/tmp"], "/a", &["/a/x", "/tmp/a/x", "/tmp/b/x", "/var/lib/x"]);
    check("allow", &["/tmp/b"], "/a", &["/a/x", "/tmp/b/x", "/var/lib/x"]);
    check("deny", &["/tmp/*"], "/a", &["/tmp/a/x", "/tmp/b/x"]);
    check("deny", &["/var/tmp/b", "/var"], "/a", &["/var/lib/x", "/var/tmp/b/x"]);
    // In the workspace rules from above apply at any location.
    check("deny", &["/"], "/tmp/a", &["/a/x", "/tmp/a/x", "/var/lib/x"]);
    check("allow", &[], "/tmp/a", &["/a/x", "/tmp/a/x", "/var/lib/x"]);
    check("deny", &["/var"], "/var/tmp/b", &["/var/lib/x", "/var/tmp/b/x"]);
    check("deny", &["/**/x"], "/tmp/a", &["/a/x", "/tmp/a/x", "/var/lib/x"]);
    // The directory itself is not taken for a workspace.
    check("deny", &["/"], "/tmp", &["/a/x", "/var/lib/x"]);
}

/// The sandbox's own home: a rule from above ends there, one that names a path in it applies, and one that names the home
/// means the host's.
#[test]
fn a_rule_from_above_ends_at_the_sandboxs_own_home() {
    let world = World::new().files(&["/a/x", "/b/x", "/b/c/x", "/b/w/x", "/c/x"]).links(&[("/l", "b")]);
    let check = |defaults: &str, paths: &[&str], workspace: &str, expected: &[&str], own: bool| {
        let rule = |path: &&str| format!(r#"{{"action":"allow","path":"{path}","perms":["read_file","read_dir"]}}"#);
        let rules: Vec<String> = paths.iter().map(rule).collect();
        let json =
            format!(r#"{{"version":1,"defaults":{{"fs":"{defaults}"}},"fs":{{"rules":[{}]}}}}"#, rules.join(","));
        let policy = resolved(&json, workspace).with_own_home(Path::new(HOME));
        let plan = policy.plan(&world).unwrap();
        let followed = policy.follow(&world).unwrap();
        let open = |decides: &dyn Fn(&Path) -> bool| -> Vec<String> {
            let files = world.reals().filter(|(path, kind)| *kind == HostFileType::File && path.ends_with("x"));
            files.filter(|(path, _)| decides(path)).map(|(path, _)| path.display().to_string()).collect()
        };
        for seen in [
            open(&|path| granted(&plan, path).contains(Perm::ReadFile)),
            open(&|path| followed.fs(path, Perm::ReadFile).allowed()),
        ] {
            assert_eq!(seen, expected, "{defaults} {paths:?} in {workspace}");
        }
        assert_eq!(plan.private.home().is_some(), own, "{defaults} {paths:?} in {workspace}");
        assert_eq!(plan.private, *followed.private());
    };
    check("deny", &["/"], "/a", &["/a/x", "/c/x"], true);
    check("allow", &[], "/a", &["/a/x", "/c/x"], true);
    check("deny", &["/**"], "/a", &["/a/x", "/c/x"], true);
    check("deny", &["~/c"], "/a", &["/b/c/x"], true);
    check("allow", &["/b/c"], "/a", &["/a/x", "/b/c/x", "/c/x"], true);
    check("deny", &["~/*/x"], "/a", &["/b/c/x", "/b/w/x"], true);
    for named in ["~", "/b", "/l"] {
        check("deny", &[named], "/a", &["/b/c/x", "/b/w/x", "/b/x"], false);
        check("deny", &["/", named], "/a", &["/a/x", "/b/c/x", "/b/w/x", "/b/x", "/c/x"], false);
    }
    // In the workspace rules from above apply.
    check("deny", &["/"], "/b/w", &["/a/x", "/b/w/x", "/c/x"], true);
    check("deny", &["$WORKSPACE"], "/b/w", &["/b/w/x"], true);
}

/// Below a writable home single permissions cannot be held: then the home is the host's.
#[test]
fn single_permissions_below_the_home_leave_the_hosts() {
    let world = World::new().files(&["/b/c/x", "/b/f"]);
    for (perms, path, own) in [
        (r#""read_file","read_dir""#, "~/c", true),
        (r#""read_file","write_file""#, "~/f", true),
        (r#""read_file","read_dir","write_file""#, "~/c", false),
        (r#""read_file""#, "~/c", false),
    ] {
        let json =
            format!(r#"{{"version":1,"fs":{{"rules":[{{"action":"allow","path":"{path}","perms":[{perms}]}}]}}}}"#);
        let plan = resolved(&json, "/a").with_own_home(Path::new(HOME)).plan(&world).unwrap();
        assert_eq!(plan.private.home().is_some(), own, "{json}");
        assert_eq!(plan.notes.iter().any(|note| note.contains("no home of its own")), !own, "{json}: {:?}", plan.notes);
    }
}
