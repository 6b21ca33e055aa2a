//! Undo restores the base byte for byte, and the change is pending in the workspace again.

use crate::batch::{hunks, paths, shape, tree};
use crate::fixture::*;
use std::fs;
use terms::ErrorKind;
use workspace::select::Selection;

/// A base with every kind of entry, and a layer that changes most of them.
pub fn motley() -> StackFixture {
    let w = StackFixture::new();
    let (base, up) = (w.base(), w.up());
    for path in ["changed", "gone", "moved", "was-file", "was-dir/a/b", "was-dir/c", "dead/d/e", "dead/f", "stays/x"] {
        write(&base, path, format!("of the base: {path}\n").repeat(3));
    }
    chmod(&base, "changed", 0o4750);
    chmod(&base, "dead/d", 0o711);
    link(&base, "link", "changed");
    link(&base, "dead/link", "nowhere");
    set_xattr(&base, "changed", "user.note", b"of the base");
    write(&up, "changed", "of the guest\n");
    strike(&up, "gone");
    strike(&up, "moved");
    write(&up, "stays/moved", "of the base: moved\n".repeat(3));
    write(&up, "was-file/now/dir", "x");
    write(&up, "was-dir", "now a file");
    strike(&up, "dead");
    link(&up, "link", "stays");
    write(&up, "fresh/a/b/c", "deep and new");
    fs::create_dir(up.join("empty")).unwrap();
    w
}

// promise 15
#[test]
fn undo_restores_every_byte_bit_and_time() {
    let mut w = motley();
    let (before, wanted) = (tree(&w.base()), w.pending());
    let batch = w.approve(&Selection::all()).unwrap();
    assert_ne!(tree(&w.base()), before);
    assert_eq!(w.pending(), Vec::<String>::new());
    let undone = w.undo(&batch).unwrap();
    assert_eq!(tree(&w.base()), before);
    let mut value = [0u8; 32];
    let length = rustix::fs::getxattr(w.base().join("changed"), "user.note", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"of the base");
    assert_eq!(w.pending(), wanted, "the changes wait again");
    // A second round, forwards and back.
    let after = w.approve(&Selection::all()).unwrap();
    assert_eq!(w.pending(), Vec::<String>::new());
    w.undo(&after).unwrap();
    assert_eq!(tree(&w.base()), before);
    assert_ne!(undone, after);
}

#[test]
fn undo_of_an_undo_lands_again() {
    let mut w = motley();
    let first = w.approve(&Selection::all()).unwrap();
    let after = tree(&w.base());
    let second = w.undo(&first).unwrap();
    w.undo(&second).unwrap();
    assert_eq!(shape(&w.base()), after.into_iter().map(|(k, v)| (k, strip(v))).collect());
}

fn strip(what: String) -> String {
    if what.starts_with("file") { what.rsplit_once(' ').unwrap().0.to_owned() } else { what }
}

// promise 15
#[test]
fn undo_is_all_or_nothing_when_the_base_moved() {
    let mut w = motley();
    let batch = w.approve(&Selection::all()).unwrap();
    fs::write(w.base().join("changed"), "by the user, later").unwrap();
    let now = tree(&w.base());
    let fault = w.undo(&batch).unwrap_err();
    assert_eq!(fault.error_kind, ErrorKind::Conflict);
    assert!(fault.message.contains("changed"), "{fault}");
    assert_eq!(tree(&w.base()), now, "nothing was undone");
    assert_eq!(w.pending(), Vec::<String>::new());
}

#[test]
fn undo_forgives_a_touch_and_files_of_others_in_new_directories() {
    let mut w = motley();
    let batch = w.approve(&Selection::all()).unwrap();
    // The same content and mode with another inode and mtime.
    let text = fs::read(w.base().join("changed")).unwrap();
    fs::write(w.base().join("copy"), text).unwrap();
    fs::set_permissions(w.base().join("copy"), fs::metadata(w.base().join("changed")).unwrap().permissions()).unwrap();
    fs::rename(w.base().join("copy"), w.base().join("changed")).unwrap();
    write(&w.base(), "fresh/a/cache", "of the user");
    w.undo(&batch).unwrap();
    assert_eq!(fs::read_to_string(w.base().join("fresh/a/cache")).unwrap(), "of the user");
    assert!(!w.base().join("fresh/a/b").exists());
    assert_eq!(fs::read_to_string(w.base().join("changed")).unwrap(), "of the base: changed\n".repeat(3));
}

#[test]
fn undo_of_a_hunk_and_of_an_older_batch() {
    let mut w = StackFixture::new();
    let text = |changed: &[usize]| -> String {
        (0..30).map(|n| if changed.contains(&n) { format!("LINE {n}\n") } else { format!("line {n}\n") }).collect()
    };
    write(&w.base(), "f", text(&[]));
    write(&w.base(), "g", "old\n");
    write(&w.up(), "f", text(&[3, 25]));
    write(&w.up(), "g", "new\n");
    let ids = hunk_ids(file(&w.diff(), "f"));
    let first = w.approve(&hunks(&[&ids[1]])).unwrap();
    let second = w.approve(&paths(&["g"])).unwrap();
    w.undo(&first).unwrap();
    assert_eq!(fs::read_to_string(w.base().join("f")).unwrap(), text(&[]));
    assert_eq!(fs::read_to_string(w.base().join("g")).unwrap(), "new\n");
    assert_eq!(hunk_ids(file(&w.diff(), "f")), ids);
    w.undo(&second).unwrap();
    assert_eq!(w.pending(), ["modified f", "modified g"]);
}

#[test]
fn what_frozen_layers_hold_lands_and_comes_back() {
    let mut w = motley();
    let wanted = w.pending();
    let before = tree(&w.base());
    w.push_layer();
    write(&w.up(), "changed", "of the guest, later\n");
    let batch = w.approve(&Selection::all()).unwrap();
    assert_eq!(w.pending(), Vec::<String>::new());
    w.undo(&batch).unwrap();
    assert_eq!(tree(&w.base()), before);
    assert_eq!(w.pending(), wanted);
}

/// After the landing the directory was moved, and a link to it stands in its place.
// promise 14
#[test]
fn undo_goes_through_no_link_that_came_later() {
    let mut w = StackFixture::new();
    let (base, up, outside) = (w.base(), w.up(), w.top.join("outside"));
    write(&base, "dir/file", "old\n");
    write(&up, "dir/file", "new\n");
    write(&up, "dir/fresh", "new\n");
    let batch = w.approve(&Selection::all()).unwrap();
    fs::rename(base.join("dir"), &outside).unwrap();
    link(&base, "dir", "../outside");
    let fault = w.undo(&batch).unwrap_err();
    assert_eq!(fault.error_kind, ErrorKind::Conflict, "{fault}");
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "new\n");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 2, "nothing came or went there");
    fs::remove_file(base.join("dir")).unwrap();
    fs::rename(&outside, base.join("dir")).unwrap();
    w.undo(&batch).unwrap();
    assert_eq!(fs::read_to_string(base.join("dir/file")).unwrap(), "old\n", "control");
    assert!(!base.join("dir/fresh").exists(), "control");
}
