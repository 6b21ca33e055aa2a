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
    }
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
