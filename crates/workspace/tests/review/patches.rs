//! `git apply` of our patch to the base gives the workspace's tree.

use crate::fixture::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Files and links of a tree with the properties git stores; git stores no directories.
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

/// Applies the patch to a copy of the base, and returns the copy.
fn apply(fixture: &StackFixture) -> std::path::PathBuf {
    let mut patch = Vec::new();
    workspace::patch::write(&mut patch, &fixture.stack(), &fixture.diff_all()).unwrap();
    let copy = fixture.top.join("applied");
    assert!(Command::new("cp").arg("-a").arg(fixture.base()).arg(&copy).status().unwrap().success());
    let has_parts = patch.windows(11).any(|w| w == b"diff --git ");
    if !has_parts {
        return copy;
    }
    let mut git = Command::new("git")
        .args(["apply", "--whitespace=nowarn", "-"])
        .current_dir(&copy)
        // Keeps git from using a repository above this directory.
        .env("GIT_DIR", fixture.top.join("none"))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut git.stdin.take().unwrap(), &patch).unwrap();
    let output = git.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}\n{}", String::from_utf8_lossy(&patch));
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

    // promise 13
    #[test]
    fn git_applies_our_patches(before in prop::collection::vec(made(), NAMES.len()), after in prop::collection::vec(made(), NAMES.len()), keep in prop::collection::vec(any::<bool>(), NAMES.len())) {
        let fixture = StackFixture::new();
        let want = fixture.top.join("want");
        fs::create_dir(&want).unwrap();
        for (n, name) in NAMES.iter().enumerate() {
            put(&fixture.base(), name, &before[n]);
            if keep[n] {
                put(&want, name, &before[n]);
                continue;
            }
            put(&want, name, &after[n]);
            match (&before[n], &after[n]) {
                (Made::Absent, Made::Absent) => {}
                (_, Made::Absent) => strike(&fixture.up(), name),
                (_, made) => put(&fixture.up(), name, made),
            }
        }
        prop_assert_eq!(tree(&apply(&fixture)), tree(&want));
    }
}

// promise 13
#[test]
fn renames_modes_types_and_binaries_apply() {
    let fixture = StackFixture::new();
    let long: String = (0..50).map(|n| format!("line {n}\n")).collect();
    write(&fixture.base(), "old/name", &long);
    write(&fixture.base(), "exact", "same bytes\n");
    write(&fixture.base(), "becomes-dir", "x\n");
    write(&fixture.base(), "was-dir/inner", "y\n");
    write(&fixture.base(), "big", vec![b'b'; 3 << 20]);
    write(&fixture.base(), "run", "#!/bin/sh\n");
    strike(&fixture.up(), "old/name");
    strike(&fixture.up(), "exact");
    write(&fixture.up(), "new/name", long.replace("line 7\n", "seven\n"));
    write(&fixture.up(), "moved here", "same bytes\n");
    write(&fixture.up(), "becomes-dir/inner", "z\n");
    write(&fixture.up(), "was-dir", "file\n");
    write(&fixture.up(), "big", vec![b'c'; 3 << 20]);
    write(&fixture.up(), "run", "#!/bin/sh\n");
    chmod(&fixture.up(), "run", 0o755);
    write(&fixture.up(), "bytes", (0..=255u8).cycle().take(200_000).collect::<Vec<_>>());
    let applied = tree(&apply(&fixture));
    let names: Vec<_> = applied.keys().map(String::as_str).collect();
    let want =
        ["\"becomes-dir/inner\"", "\"big\"", "\"bytes\"", "\"moved here\"", "\"new/name\"", "\"run\"", "\"was-dir\""];
    assert_eq!(names, want);
    assert_eq!(applied["\"big\""].1, vec![b'c'; 3 << 20]);
    assert_eq!(applied["\"bytes\""].1.len(), 200_000);
    assert_eq!(applied["\"run\""].0, "program");
    assert!(String::from_utf8_lossy(&applied["\"new/name\""].1).contains("seven"));
}
