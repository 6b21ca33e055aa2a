//! `git apply` makes of the base and our patch what the workspace is.

use crate::world::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Files and links of a tree with what git keeps of them; directories are none of git's.
fn tree(dir: &Path) -> BTreeMap<String, (String, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let name = format!("{:?}", path.strip_prefix(dir).unwrap());
            if meta.is_dir() {
                todo.push(path);
            } else if meta.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                found.insert(name, ("link".into(), target.into_os_string().into_encoded_bytes()));
            } else {
                let kind = if meta.permissions().mode() & 0o100 != 0 { "program" } else { "file" };
                found.insert(name, (kind.into(), fs::read(&path).unwrap()));
            }
        }
    }
    found
}

/// Applies the patch of a world to a copy of its base, which is the answer.
fn apply(world: &World) -> std::path::PathBuf {
    let mut patch = Vec::new();
    workspace::patch::write(&mut patch, &world.stack(), &world.diff_all()).unwrap();
    let copy = world.top.join("applied");
    assert!(Command::new("cp").arg("-a").arg(world.base()).arg(&copy).status().unwrap().success());
    let has_parts = patch.windows(11).any(|w| w == b"diff --git ");
    if !has_parts {
        return copy;
    }
    let mut git = Command::new("git")
        .args(["apply", "--whitespace=nowarn", "-"])
        .current_dir(&copy)
        // Not part of a repository that may be above.
        .env("GIT_DIR", world.top.join("none"))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut git.stdin.take().unwrap(), &patch).unwrap();
    let output = git.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&patch));
    copy
}

#[derive(Clone, Debug)]
enum Made {
    Absent,
    File(Vec<u8>, bool),
    Link(String),
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (prop::collection::vec("[abc]{0,2}", 0..30), any::<bool>())
            .prop_map(|(lines, ends)| (lines.join("\n") + if ends { "\n" } else { "" }).into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..300),
        1 => Just(Vec::new()),
    ]
}

fn made() -> impl Strategy<Value = Made> {
    prop_oneof![
        2 => Just(Made::Absent),
        6 => (text(), prop::bool::weighted(0.2)).prop_map(|(t, x)| Made::File(t, x)),
        1 => "[a-c/]{1,5}".prop_map(Made::Link),
    ]
}

const NAMES: [&str; 9] =
    ["plain", "with space", "dir/x", "dir/sub/y", "quo\"te", "back\\slash", "new\nline", "caf\u{e9}", "tab\there"];

fn put(dir: &Path, name: &str, made: &Made) {
    match made {
        Made::Absent => {}
        Made::File(bytes, program) => {
            write(dir, name, bytes);
            chmod(dir, name, if *program { 0o755 } else { 0o644 });
        }
        Made::Link(target) => link(dir, name, target),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn git_applies_our_patches(before in prop::collection::vec(made(), NAMES.len()), after in prop::collection::vec(made(), NAMES.len()), keep in prop::collection::vec(any::<bool>(), NAMES.len())) {
        let world = World::new();
        let want = world.top.join("want");
        fs::create_dir(&want).unwrap();
        for (n, name) in NAMES.iter().enumerate() {
            put(&world.base(), name, &before[n]);
            if keep[n] {
                put(&want, name, &before[n]);
                continue;
            }
            put(&want, name, &after[n]);
            match (&before[n], &after[n]) {
                (Made::Absent, Made::Absent) => {}
                (_, Made::Absent) => strike(&world.up(), name),
                (_, made) => put(&world.up(), name, made),
            }
        }
        prop_assert_eq!(tree(&apply(&world)), tree(&want));
    }
}

#[test]
fn renames_modes_types_and_binaries_apply() {
    let world = World::new();
    let long: String = (0..50).map(|n| format!("line {n}\n")).collect();
    write(&world.base(), "old/name", &long);
    write(&world.base(), "exact", "same bytes\n");
    write(&world.base(), "becomes-dir", "x\n");
    write(&world.base(), "was-dir/inner", "y\n");
    write(&world.base(), "big", vec![b'b'; 3 << 20]);
    write(&world.base(), "run", "#!/bin/sh\n");
    strike(&world.up(), "old/name");
    strike(&world.up(), "exact");
    write(&world.up(), "new/name", long.replace("line 7\n", "seven\n"));
    write(&world.up(), "moved here", "same bytes\n");
    write(&world.up(), "becomes-dir/inner", "z\n");
    write(&world.up(), "was-dir", "file\n");
    write(&world.up(), "big", vec![b'c'; 3 << 20]);
    write(&world.up(), "run", "#!/bin/sh\n");
    chmod(&world.up(), "run", 0o755);
    write(&world.up(), "bytes", (0..=255u8).cycle().take(200_000).collect::<Vec<_>>());
    let applied = tree(&apply(&world));
    let names: Vec<_> = applied.keys().map(String::as_str).collect();
    let want =
        ["\"becomes-dir/inner\"", "\"big\"", "\"bytes\"", "\"moved here\"", "\"new/name\"", "\"run\"", "\"was-dir\""];
    assert_eq!(names, want);
    assert_eq!(applied["\"big\""].1, vec![b'c'; 3 << 20]);
    assert_eq!(applied["\"bytes\""].1.len(), 200_000);
    assert_eq!(applied["\"run\""].0, "program");
    assert!(String::from_utf8_lossy(&applied["\"new/name\""].1).contains("seven"));
}
