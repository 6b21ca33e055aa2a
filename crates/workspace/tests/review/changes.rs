//! Every kind of change is detected and classified.

use crate::fixture::*;
use api::{ChangeBody, ChangeFlag, ChangeKind, Driver, LineKind, PathText};
use std::fs;
use workspace::diff::with_hunks;

#[test]
fn nothing_changed_is_an_empty_diff() {
    let w = StackFixture::new();
    write(&w.base(), "a/b", "x\n");
    // Copied up and written back: a file with the same content and mode is no change, whatever its mtime.
    write(&w.up(), "a/b", "x\n");
    let diff = w.diff();
    assert_eq!(summary(&diff), Vec::<String>::new());
    assert_eq!(diff.digest, StackFixture::new().diff().digest);
}

// promise 13
#[test]
fn additions_edits_and_deletions_are_told() {
    let w = StackFixture::new();
    write(&w.base(), "edit", "one\ntwo\n");
    write(&w.base(), "gone", "bye\n");
    write(&w.base(), "tree/a", "a\n");
    write(&w.base(), "tree/deep/b", "b\n");
    write(&w.up(), "edit", "one\n2\n");
    write(&w.up(), "new/file", "hello\n");
    fs::create_dir_all(w.up().join("empty")).unwrap();
    strike(&w.up(), "gone");
    strike(&w.up(), "tree");
    let want = [
        "modified edit",
        "added empty",
        "deleted gone",
        "added new/file",
        "deleted tree",
        "deleted tree/a",
        "deleted tree/deep",
        "deleted tree/deep/b",
    ];
    let diff = w.diff();
    assert_eq!(summary(&diff), want);
    let ChangeBody::Text(hunks) = &file(&diff, "edit").body else { panic!("text") };
    let lines: Vec<_> = hunks[0].lines.iter().map(|l| (l.kind, l.text.as_str())).collect();
    assert_eq!(lines, [(LineKind::Context, "one\n"), (LineKind::Removed, "two\n"), (LineKind::Added, "2\n")]);
}

// promise 13
#[test]
fn modes_links_types_and_attributes_are_told() {
    let w = StackFixture::new();
    for name in ["mode", "attr", "to-link", "to-dir"] {
        write(&w.base(), name, "same\n");
        chmod(&w.base(), name, 0o644);
    }
    write(&w.base(), "to-file/in", "x\n");
    link(&w.base(), "link", "old");
    write(&w.base(), "d/x", "x");
    chmod(&w.base(), "d", 0o755);
    for name in ["mode", "attr"] {
        write(&w.up(), name, "same\n");
        chmod(&w.up(), name, 0o644);
    }
    chmod(&w.up(), "mode", 0o755);
    set_xattr(&w.up(), "attr", "user.note", b"hi");
    set_xattr(&w.up(), "attr", "user.overlay.overlay.mine", b"1");
    set_xattr(&w.up(), "attr", "user.overlay.origin", b"kernel");
    link(&w.up(), "to-link", "mode");
    write(&w.up(), "to-dir/in", "y\n");
    write(&w.up(), "to-file", "file now\n");
    link(&w.up(), "link", "new");
    fs::create_dir(w.up().join("d")).unwrap();
    chmod(&w.up(), "d", 0o700);
    let diff = w.diff();
    let want = [
        "xattr attr",
        "mode d",
        "modified link",
        "mode mode",
        "type to-dir",
        "added to-dir/in",
        "type to-file",
        "deleted to-file/in",
        "type to-link",
    ];
    assert_eq!(summary(&diff), want);
    let attributes = &file(&diff, "attr").change.after.as_ref().unwrap().xattrs;
    let want = [("user.note", "6869"), ("user.overlay.mine", "31")];
    assert!(attributes.iter().map(|(n, v)| (n.as_str(), v.as_str())).eq(want), "{attributes:?}");
    let target = file(&diff, "link").change.after.as_ref().unwrap().target.clone();
    assert_eq!(target, Some(PathText::Text("new".into())));
}

// promise 13
#[test]
fn opaque_directories_hide_the_base() {
    let w = StackFixture::new();
    write(&w.base(), "d/old", "old\n");
    write(&w.base(), "d/same", "same\n");
    write(&w.base(), "d/sub/x", "x\n");
    opaque(&w.up(), "d");
    write(&w.up(), "d/same", "same\n");
    write(&w.up(), "d/new", "new\n");
    let want = ["added d/new", "deleted d/old", "deleted d/sub", "deleted d/sub/x"];
    assert_eq!(summary(&w.diff()), want);
    let names: Vec<_> = w.stack().names(&rel("d")).unwrap().into_keys().collect();
    assert_eq!(names, [b"new".to_vec(), b"same".to_vec()]);
}

// promise 13
#[test]
fn the_topmost_layer_wins() {
    let mut w = StackFixture::new();
    write(&w.base(), "a", "base\n");
    write(&w.base(), "b", "base\n");
    write(&w.base(), "c", "base\n");
    write(&w.base(), "dir/x", "base\n");
    write(&w.up(), "a", "first\n");
    write(&w.up(), "b", "first\n");
    strike(&w.up(), "c");
    strike(&w.up(), "dir");
    w.push_layer();
    write(&w.up(), "a", "second\n");
    strike(&w.up(), "b");
    write(&w.up(), "c", "again\n");
    opaque(&w.up(), "dir");
    write(&w.up(), "dir/y", "y\n");
    let diff = w.diff();
    assert_eq!(summary(&diff), ["modified a", "deleted b", "modified c", "deleted dir/x", "added dir/y"]);
    let read = |path: &str| std::io::read_to_string(w.stack().file(&rel(path)).unwrap()).unwrap();
    assert_eq!((read("a").as_str(), read("c").as_str()), ("second\n", "again\n"));
    assert!(w.stack().meta(&rel("b")).unwrap().is_none() && w.stack().meta(&rel("dir/x")).unwrap().is_none());
}

#[test]
fn a_copied_tree_is_compared_with_its_base() {
    let mut w = StackFixture::new();
    w.driver = Driver::Copy;
    for (name, text) in [("same", "x\n"), ("edit", "1\n"), ("gone", "y\n"), ("d/deep", "z\n")] {
        write(&w.base(), name, text);
    }
    let copied = std::process::Command::new("cp").arg("-a").arg(w.base().join(".")).arg(w.up()).status().unwrap();
    assert!(copied.success());
    write(&w.up(), "edit", "2\n");
    fs::remove_file(w.up().join("gone")).unwrap();
    write(&w.up(), "d/new", "n\n");
    assert_eq!(summary(&w.diff()), ["added d/new", "modified edit", "deleted gone"]);
}

// promise 13
#[test]
fn moved_files_are_told_as_moved() {
    let w = StackFixture::new();
    let text: String = (0..100).map(|n| format!("line {n}\n")).collect();
    write(&w.base(), "a/exact", &text);
    write(&w.base(), "a/similar", format!("{text}more\n"));
    write(&w.base(), "a/other", "entirely different\n");
    strike(&w.up(), "a");
    write(&w.up(), "b/exact", &text);
    write(&w.up(), "b/similar", format!("{text}edited\n"));
    write(&w.up(), "b/unlike", "nothing in common\n");
    let diff = w.diff();
    let want = [
        "deleted a",
        "deleted a/other",
        "renamed a/exact -> b/exact",
        "renamed a/similar -> b/similar",
        "added b/unlike",
    ];
    assert_eq!(summary(&diff), want);
    assert_eq!(file(&diff, "b/exact").body, ChangeBody::None);
    assert_eq!(hunk_ids(file(&diff, "b/similar")).len(), 1);
}

// promise 14
#[test]
fn hunks_keep_their_ids_while_others_land() {
    let w = StackFixture::new();
    let text = |changed: &[usize]| -> String {
        let line = |n| if changed.contains(&n) { format!("new {n}\n") } else { format!("line {n}\n") };
        (0..60).map(line).collect()
    };
    write(&w.base(), "f", text(&[]));
    write(&w.up(), "f", text(&[5, 30, 50]));
    let before = hunk_ids(file(&w.diff(), "f"));
    assert_eq!(before.len(), 3);
    let landed = with_hunks(&rel("f"), text(&[]).as_bytes(), text(&[5, 30, 50]).as_bytes(), &[&before[1]]).unwrap();
    assert_eq!(String::from_utf8(landed.clone()).unwrap(), text(&[30]));
    write(&w.base(), "f", landed);
    assert_eq!(hunk_ids(file(&w.diff(), "f")), [before[0].clone(), before[2].clone()]);
    let unknown = with_hunks(&rel("f"), b"a\n", b"b\n", &["0123456789"]).unwrap_err();
    assert_eq!(unknown.error_kind, terms::ErrorKind::NotFound);
    assert!(unknown.message.contains("0123456789"));
}

// promise 13, 14
#[test]
fn bits_that_matter_are_flagged() {
    let w = StackFixture::new();
    write(&w.up(), "suid", "x");
    chmod(&w.up(), "suid", 0o4755);
    write(&w.up(), "hard", "h");
    fs::hard_link(w.up().join("hard"), w.up().join("hard2")).unwrap();
    write(&w.base(), "src/x", "x");
    write(&w.up(), "SRC/y", "y");
    write(&w.up(), "bidi", "a\u{202e}b\n");
    write(&w.up(), "alike", "if p\u{430}ssword() {\n");
    write(&w.up(), "foreign", "\u{43f}\u{430}\u{440}\u{43e}\u{43b}\u{44c} word\n");
    write(&w.up(), "end ", "x\n");
    write(&w.up(), "zero\u{200b}width", "z");
    link(&w.up(), "out", "../../etc/passwd");
    link(&w.up(), "in", "src/x");
    write(&w.up(), "bin", b"\x00\x01");
    write(&w.up(), "plain", "plain\n");
    let diff = w.diff();
    let flags = |path: &str| file(&diff, path).change.flags.clone();
    assert_eq!(flags("suid"), [ChangeFlag::SetId, ChangeFlag::Executable]);
    assert_eq!(flags("hard"), [ChangeFlag::HardLink]);
    assert_eq!(flags("SRC/y"), [ChangeFlag::Twin]);
    assert_eq!(flags("bidi"), [ChangeFlag::HiddenText]);
    assert_eq!((flags("alike"), flags("end ")), (vec![ChangeFlag::LookAlike], vec![ChangeFlag::HiddenName]));
    assert_eq!(flags("foreign"), [], "control: words in another script");
    assert_eq!(flags("zero\u{200b}width"), [ChangeFlag::HiddenName]);
    assert_eq!(flags("out"), [ChangeFlag::LinkOutside]);
    assert_eq!(flags("bin"), [ChangeFlag::Binary]);
    assert_eq!((flags("in"), flags("plain")), (vec![], vec![]));
}

// promise 14
#[test]
fn file_capabilities_are_flagged() {
    let w = StackFixture::new();
    write(&w.up(), "able", "x");
    write(&w.up(), "plain", "y");
    // Version 2: cap_net_raw, permitted and effective. Only root can set it.
    let mut value = [0u8; 20];
    value[..8].copy_from_slice(&[1, 0, 0, 2, 0, 0x20, 0, 0]);
    if !rustix::process::geteuid().is_root() {
        return;
    }
    set_xattr(&w.up(), "able", "security.capability", &value);
    let diff = w.diff();
    assert_eq!(file(&diff, "able").change.flags, [ChangeFlag::Capabilities]);
    assert_eq!(file(&diff, "plain").change.flags, []);
}

// promise 14
#[test]
fn what_the_base_changed_meanwhile_is_marked() {
    let w = StackFixture::new();
    write(&w.base(), "a", "1\n");
    write(&w.base(), "b", "1\n");
    write(&w.up(), "a", "2\n");
    let mut stack = w.stack();
    stack.since = (0, 0);
    let diff = workspace::diff::diff(&stack, &w.anchors, &Default::default()).unwrap();
    assert!(file(&diff, "a").change.drifted);
    assert!(!file(&w.diff(), "a").change.drifted, "control: nothing is newer than the end of time");
    assert_eq!(diff.files[0].change.kind, ChangeKind::Modified);
}
