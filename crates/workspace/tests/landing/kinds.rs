//! Every kind of change lands as shown; excluded ones do not land.

use crate::batch::{hunks, paths, shape};
use crate::fixture::*;
use api::{Diff, Rel};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use terms::ErrorKind;
use workspace::select::Selection;

fn read(fixture: &StackFixture, path: &str) -> String {
    fs::read_to_string(fixture.base().join(path)).unwrap()
}

fn mode(fixture: &StackFixture, path: &str) -> u32 {
    fs::symlink_metadata(fixture.base().join(path)).unwrap().permissions().mode() & 0o7777
}

// promise 14
#[test]
fn every_kind_of_change_lands_as_shown() {
    let mut w = StackFixture::new();
    let (base, up) = (w.base(), w.up());
    for path in ["changed", "gone", "mode", "dir/inner", "old-name", "was-file", "was-dir/a/b", "deep/er/x"] {
        write(&base, path, format!("of the base: {path}\n").repeat(4));
    }
    link(&base, "link", "changed");
    write(&base, "stays", "untouched");
    write(&up, "changed", "of the guest\n");
    strike(&up, "gone");
    write(&up, "mode", "of the base: mode\n".repeat(4));
    chmod(&up, "mode", 0o755);
    strike(&up, "old-name");
    write(&up, "new-name", "of the base: old-name\n".repeat(4));
    write(&up, "was-file/now/dir", "x");
    write(&up, "was-dir", "now a file");
    strike(&up, "deep");
    link(&up, "link", "stays");
    write(&up, "fresh/a/b/c", "deep and new");
    fs::create_dir(up.join("empty")).unwrap();
    chmod(&up, "empty", 0o750);
    write(&up, "tagged", "x");
    set_xattr(&up, "tagged", "user.colour", b"green");
    let shown = w.diff();
    w.approve(&Selection::all()).unwrap();

    assert_eq!(read(&w, "changed"), "of the guest\n");
    assert!(!base.join("gone").exists() && !base.join("old-name").exists() && !base.join("deep").exists());
    assert_eq!(mode(&w, "mode"), 0o755);
    assert_eq!(read(&w, "new-name"), "of the base: old-name\n".repeat(4));
    assert_eq!(read(&w, "was-file/now/dir"), "x");
    assert_eq!(read(&w, "was-dir"), "now a file");
    assert_eq!(fs::read_link(base.join("link")).unwrap().to_str(), Some("stays"));
    assert_eq!(read(&w, "fresh/a/b/c"), "deep and new");
    assert_eq!(mode(&w, "empty"), 0o750);
    let mut value = [0u8; 16];
    let length = rustix::fs::getxattr(base.join("tagged"), "user.colour", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"green");
    assert_eq!(read(&w, "stays"), "untouched");
    assert_eq!(w.pending(), Vec::<String>::new(), "all of {:?} landed", summary(&shown));
    let names: Vec<_> = fs::read_dir(&base).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with(".cofferdam")), "{names:?}");
    assert_eq!(
        shape(&up).keys().filter(|k| !k.is_empty()).count(),
        0,
        "the layer is empty again: {:?}",
        shape(&up).keys()
    );
}

#[test]
fn directory_bits_land_and_the_directory_keeps_its_files() {
    let mut w = StackFixture::new();
    let (base, up) = (w.base(), w.up());
    write(&base, "d/inside", "x");
    fs::create_dir(up.join("d")).unwrap();
    chmod(&up, "d", 0o700);
    assert_eq!(w.pending(), ["mode d"]);
    w.approve(&Selection::all()).unwrap();
    assert_eq!(mode(&w, "d"), 0o700);
    assert_eq!(read(&w, "d/inside"), "x");
    assert_eq!(w.pending(), Vec::<String>::new());
}

// promise 14
#[test]
fn only_what_was_chosen_lands_and_the_rest_keeps_its_bytes() {
    let mut w = StackFixture::new();
    let (base, up) = (w.base(), w.up());
    for path in ["src/a.rs", "src/b.rs", "docs/x.md"] {
        write(&base, path, "old\n");
        write(&up, path, "new\n");
    }
    write(&up, "src/deep/c.rs", "new\n");
    w.approve(&paths(&["src/*.rs"])).unwrap();
    assert_eq!((read(&w, "src/a.rs"), read(&w, "docs/x.md")), ("new\n".into(), "old\n".into()));
    assert!(!base.join("src/deep").exists(), "a star stops at a slash");
    assert_eq!(w.pending(), ["modified docs/x.md", "added src/deep/c.rs"]);
    assert_eq!(fs::read_to_string(up.join("docs/x.md")).unwrap(), "new\n");
    w.approve(&paths(&["src"])).unwrap();
    assert_eq!(read(&w, "src/deep/c.rs"), "new\n");
    for (wish, kind) in [
        (paths(&["nowhere"]), ErrorKind::NotFound),
        (paths(&["nowhere/*"]), ErrorKind::NotFound),
        (paths(&["docs/["]), ErrorKind::InvalidRequest),
        (hunks(&["ffffffffff"]), ErrorKind::NotFound),
    ] {
        assert_eq!(w.approve(&wish).unwrap_err().error_kind, kind, "{wish:?}");
    }
}

/// Thirty lines, some of them changed.
fn lines(changed: &[usize]) -> String {
    (0..30)
        .map(|n| if changed.contains(&n) { format!("line {n} of the guest\n") } else { format!("line {n}\n") })
        .collect()
}

// promise 14
#[test]
fn a_hunk_lands_alone_and_the_others_keep_their_ids() {
    let mut w = StackFixture::new();
    let (base, up) = (w.base(), w.up());
    write(&base, "f", lines(&[]));
    chmod(&base, "f", 0o640);
    write(&up, "f", lines(&[2, 15, 28]));
    chmod(&up, "f", 0o755);
    let ids = hunk_ids(file(&w.diff(), "f"));
    assert_eq!(ids.len(), 3);
    w.approve(&hunks(&[&ids[1]])).unwrap();
    assert_eq!(read(&w, "f"), lines(&[15]));
    assert_eq!(mode(&w, "f"), 0o640, "bits were not asked for");
    assert_eq!(fs::read_to_string(up.join("f")).unwrap(), lines(&[2, 15, 28]), "the workspace keeps its bytes");
    assert_eq!(hunk_ids(file(&w.diff(), "f")), [ids[0].clone(), ids[2].clone()]);
    w.approve(&hunks(&[&ids[0], &ids[2][..6]])).unwrap();
    assert_eq!(read(&w, "f"), lines(&[2, 15, 28]));
    assert_eq!(w.pending(), ["mode f"]);
}

#[test]
fn hunks_of_files_that_came_went_or_moved() {
    let mut w = StackFixture::new();
    let (base, up) = (w.base(), w.up());
    write(&base, "gone", "a\nb\n");
    strike(&up, "gone");
    write(&up, "came", "c\nno newline at the end");
    write(&base, "from", lines(&[]));
    strike(&up, "from");
    write(&up, "to", lines(&[1, 28]));
    let diff = w.diff();
    assert_eq!(summary(&diff), ["added came", "deleted gone", "renamed from -> to"]);
    let id = |path: &str, n: usize| hunk_ids(file(&diff, path))[n].clone();
    w.approve(&hunks(&[&id("came", 0), &id("gone", 0), &id("to", 0)])).unwrap();
    assert_eq!(read(&w, "came"), "c\nno newline at the end");
    assert!(!base.join("gone").exists() && !base.join("from").exists());
    assert_eq!(read(&w, "to"), lines(&[1]));
    assert_eq!(w.pending(), ["modified to"]);
}

// promise 13, 14
#[test]
fn what_runs_on_the_host_lands_only_when_it_is_named() {
    let mut w = StackFixture::new();
    let (base, up) = (w.base(), w.up());
    write(&up, "ordinary", "x");
    write(&up, "ci/../Makefile", "all:\n\tevil\n");
    write(&up, ".envrc", "evil");
    w.approve(&Selection::all()).unwrap();
    assert!(base.join("ordinary").exists(), "control: ordinary files land");
    assert!(!base.join("Makefile").exists() && !base.join(".envrc").exists());
    w.approve(&paths(&["*"])).map(drop).unwrap_or_default();
    assert!(!base.join("Makefile").exists(), "a pattern names nothing");
    w.approve(&paths(&["Makefile"])).unwrap();
    assert!(base.join("Makefile").exists() && !base.join(".envrc").exists());
    w.approve(&Selection { runs_on_host: true, ..Selection::default() }).unwrap();
    assert!(base.join(".envrc").exists(), "the class was asked for");
}

/// The old path of a renamed file does not select it; the new path decides its class.
// promise 14
#[test]
fn a_move_is_named_by_where_it_leads() {
    let mut w = StackFixture::new();
    let (base, up) = (w.base(), w.up());
    for (old, new) in [("notes.txt", ".envrc"), ("plain.txt", "other.txt")] {
        write(&base, old, format!("the text of {old}\n"));
        write(&up, new, format!("the text of {old}\n"));
        strike(&up, old);
    }
    w.approve(&paths(&["notes.txt"])).map(drop).unwrap_or_default();
    assert!(base.join("notes.txt").exists() && !base.join(".envrc").exists(), "what runs was not named");
    w.approve(&paths(&["plain.txt"])).unwrap();
    assert!(base.join("other.txt").exists() && !base.join("plain.txt").exists(), "control: an ordinary move is");
    w.approve(&paths(&[".envrc"])).unwrap();
    assert!(base.join(".envrc").exists(), "control: named by where it leads");
}

// promise 14
#[test]
fn what_never_lands_is_refused_by_name_and_left_otherwise() {
    let mut w = StackFixture::new();
    let (base, up) = (w.base(), w.up());
    rustix::fs::mknodat(rustix::fs::CWD, up.join("pipe"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    write(&up, "file", "x");
    w.approve(&Selection::all()).unwrap();
    assert!(base.join("file").exists() && !base.join("pipe").exists());
    let fault = w.approve(&paths(&["pipe"])).unwrap_err();
    assert_eq!(fault.error_kind, ErrorKind::PolicyDenied, "{fault}");
}

// promise 14
#[test]
fn special_bits_and_capabilities_do_not_land() {
    let mut w = StackFixture::new();
    let (base, up) = (w.base(), w.up());
    for (path, bits) in [("suid", 0o4755), ("sgid", 0o2755), ("sticky", 0o1755), ("plain", 0o755)] {
        write(&up, path, "x");
        chmod(&up, path, bits);
    }
    write(&base, "had", "x");
    chmod(&base, "had", 0o4755);
    write(&up, "had", "attacker's");
    chmod(&up, "had", 0o4755);
    if rustix::process::geteuid().is_root() {
        let value = [1, 0, 0, 2, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        write(&up, "capable", "x");
        set_xattr(&up, "capable", "security.capability", &value);
    }
    set_xattr(&up, "plain", "user.overlay.overlay.opaque", b"y");
    set_xattr(&up, "plain", "user.kept", b"y");
    w.approve(&Selection::all()).unwrap();
    for path in ["suid", "sgid", "sticky", "plain", "had"] {
        assert_eq!(mode(&w, path), 0o755, "{path}");
    }
    let names = |path: &str| {
        let mut buffer = [0u8; 512];
        let length = rustix::fs::listxattr(base.join(path), &mut buffer[..]).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    assert_eq!(names("plain"), "user.kept\0", "control: attributes of the user's land");
    if rustix::process::geteuid().is_root() {
        assert_eq!(names("capable"), "");
    }
}

// promise 14
#[test]
fn a_link_in_the_base_is_never_written_through() {
    let mut w = StackFixture::new();
    let (base, up) = (w.base(), w.up());
    let outside = w.top.join("outside");
    fs::create_dir(&outside).unwrap();
    link(&base, "docs", "../outside");
    fs::create_dir(base.join("real")).unwrap();
    write(&up, "docs/x", "escape");
    write(&up, "real/x", "stay");
    let diff = w.diff();
    let only = diff.files.iter().filter(|f| f.change.path == rel("docs/x") || f.change.path == rel("real/x"));
    let only = Diff { files: only.cloned().collect(), ..diff.clone() };
    let fault = w.approve_seen(&only, &paths(&["docs/x"])).unwrap_err();
    assert_eq!(fault.error_kind, ErrorKind::Conflict);
    assert!(fault.message.contains("../outside"), "{fault}");
    assert!(fs::read_dir(&outside).unwrap().next().is_none());
    w.approve_seen(&only, &paths(&["real/x"])).unwrap();
    assert_eq!(read(&w, "real/x"), "stay", "control: a directory is written to");
    // Approved as a whole, the link becomes the directory that was shown.
    w.approve(&Selection::all()).unwrap();
    assert!(fs::symlink_metadata(base.join("docs")).unwrap().is_dir());
    assert!(fs::read_dir(&outside).unwrap().next().is_none());
}

// promise 14
#[test]
fn hard_links_of_the_base_keep_their_bytes() {
    let mut w = StackFixture::new();
    let (base, up) = (w.base(), w.up());
    write(&base, "a", "old");
    fs::hard_link(base.join("a"), w.top.join("elsewhere")).unwrap();
    write(&up, "a", "new");
    w.approve(&Selection::all()).unwrap();
    assert_eq!(read(&w, "a"), "new");
    assert_eq!(fs::read_to_string(w.top.join("elsewhere")).unwrap(), "old");
    assert_eq!(fs::metadata(base.join("a")).unwrap().nlink(), 1);
}

#[test]
fn a_directory_does_not_go_while_something_in_it_stays() {
    let mut w = StackFixture::new();
    let (base, up) = (w.base(), w.up());
    write(&base, "d/known", "x");
    strike(&up, "d");
    let seen = w.diff();
    write(&base, "d/came-later", "precious");
    let fault = w.approve_seen(&seen, &Selection::all()).unwrap_err();
    assert_eq!(fault.error_kind, ErrorKind::Conflict);
    assert!(fault.message.contains("d/came-later"), "{fault}");
    assert_eq!((read(&w, "d/known"), read(&w, "d/came-later")), ("x".into(), "precious".into()));
}

// promise 13
#[test]
fn names_of_any_bytes_and_paths_of_any_length_land() {
    use std::os::unix::ffi::OsStrExt;
    let mut w = StackFixture::new();
    let up = w.up();
    for name in [&b"new\nline"[..], b"\xff\xfe", b"-rf", b"\x1b[31m", b"*", "\u{202e}".as_bytes(), &[b'n'; 255]] {
        fs::write(up.join(std::ffi::OsStr::from_bytes(name)), "x").unwrap();
    }
    w.approve(&Selection::all()).unwrap();
    assert_eq!(fs::read_dir(w.base()).unwrap().count(), 7);
    assert_eq!(w.pending(), Vec::<String>::new());
}

// promise 13
#[test]
fn deeper_than_a_path_can_say() {
    let mut w = StackFixture::new();
    let depth = 60;
    let mut dir = workspace::Dir::open(&w.up()).unwrap();
    let part = vec![b'd'; 200];
    for _ in 0..depth {
        rustix::fs::mkdirat(&dir, &part[..], rustix::fs::Mode::RWXU).unwrap();
        dir = dir.dir(&Rel::top().join(&part)).unwrap();
    }
    rustix::fs::symlinkat("target", &dir, "bottom").unwrap();
    let batch = w.approve(&Selection::all()).unwrap();
    assert_eq!(w.pending(), Vec::<String>::new());
    let mut dir = workspace::Dir::open(&w.base()).unwrap();
    for _ in 0..depth {
        dir = dir.dir(&Rel::top().join(&part)).unwrap();
    }
    assert_eq!(dir.link_target(b"bottom").unwrap(), b"target");
    w.undo(&batch).unwrap();
    assert_eq!(fs::read_dir(w.base()).unwrap().count(), 0);
}
