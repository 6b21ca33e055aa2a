//! File verbs with their conditions and bounds.

use crate::fixture::{StopOnDrop, WorkspaceFixture, all_of, kind, rel};
use api::{FileKind, FileMovedHow, Rel};
use node::files::read::Span;
use node::files::write::{WriteCondition, WriteOptions};
use node::files::{WriteAllowance, change, copy, list, read, write};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use terms::{ErrorKind, LimitKind};

#[test]
fn a_file_is_written_read_and_appended_to() {
    let fixture = WorkspaceFixture::new();
    let bytes: Vec<u8> = (0..700_000u32).map(|n| (n % 251) as u8).collect();
    let made = fixture.write("a/b/file", &bytes, WriteOptions { parents: true, ..WriteOptions::default() }).unwrap();
    assert_eq!((made.size, made.mode, made.kind), (700_000, 0o644, FileKind::File));
    assert_eq!(fixture.read("a/b/file").unwrap(), bytes);
    let absolute = fixture.ws.join("a//b/./file");
    assert_eq!(fixture.read(absolute.to_str().unwrap()).unwrap(), bytes, "by the name it has inside");
    fixture.write("a/b/file", b"tail", WriteOptions { append: true, ..WriteOptions::default() }).unwrap();
    fixture.write("log", b"first", WriteOptions { append: true, ..WriteOptions::default() }).unwrap();
    assert_eq!(fixture.read("a/b/file").unwrap(), [&bytes[..], b"tail"].concat());
    assert_eq!(fixture.read("log").unwrap(), b"first");
    let owner = |name: &str| fs::metadata(fixture.ws.join(name)).unwrap().uid();
    assert_eq!([owner("a"), owner("a/b/file"), owner("log")], [fixture.owner.0; 3], "the guest owns what is made");
    assert_eq!(kind(fixture.read("none")), ErrorKind::NotFound);
    assert_eq!(kind(fixture.write("no/parents", b"", WriteOptions::default())), ErrorKind::NotFound);
    assert_eq!(kind(fixture.read("a")), ErrorKind::Conflict, "a directory is not read");
    let left: Vec<_> = fs::read_dir(&fixture.ws).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".cofferdam")), "no draft is left: {left:?}");
}

#[test]
fn parts_of_a_file_are_read() {
    let fixture = WorkspaceFixture::new();
    fixture.put("ten", "0123456789");
    let part = |span| {
        let mut reading = read::open(&fixture.root(), &rel("ten")).unwrap();
        reading.narrow(span).map(|()| String::from_utf8(all_of(reading).unwrap()).unwrap())
    };
    assert_eq!(part(Span::From { first: 0, last: Some(0) }).unwrap(), "0");
    assert_eq!(part(Span::From { first: 3, last: None }).unwrap(), "3456789");
    assert_eq!(part(Span::From { first: 8, last: Some(u64::MAX) }).unwrap(), "89");
    assert_eq!(part(Span::Last(4)).unwrap(), "6789");
    assert_eq!(part(Span::Last(99)).unwrap(), "0123456789");
    assert_eq!(kind(part(Span::From { first: 10, last: None })), ErrorKind::InvalidRequest);
    assert_eq!(kind(part(Span::Last(0))), ErrorKind::InvalidRequest);
    let mut reading = read::open(&fixture.root(), &rel("ten")).unwrap();
    fs::write(fixture.ws.join("ten"), "0").unwrap();
    assert_eq!(reading.piece().unwrap().unwrap(), b"0");
    assert_eq!(kind(reading.piece()), ErrorKind::Conflict, "what became shorter is not read as if it were whole");
}

#[test]
fn conditions_decide_whether_it_is_written() {
    let fixture = WorkspaceFixture::new();
    let when = |when| WriteOptions { when, ..WriteOptions::default() };
    assert_eq!(kind(fixture.write("f", b"1", when(WriteCondition::Present))), ErrorKind::Conflict);
    let first = fixture.write("f", b"1", when(WriteCondition::Absent)).unwrap();
    assert_eq!(kind(fixture.write("f", b"2", when(WriteCondition::Absent))), ErrorKind::Conflict);
    let tag = first.etag.unwrap();
    assert_eq!(
        list::stat(&fixture.root(), &rel("f"), true).unwrap().etag.as_ref(),
        Some(&tag),
        "told alike everywhere"
    );
    let second = fixture.write("f", b"2", when(WriteCondition::Matches(vec!["other".into(), tag.clone()]))).unwrap();
    assert_eq!(kind(fixture.write("f", b"3", when(WriteCondition::Matches(vec![tag])))), ErrorKind::Conflict);
    assert_eq!(fixture.read("f").unwrap(), b"2");
    fs::write(fixture.ws.join("f"), "guest").unwrap();
    assert_eq!(
        kind(fixture.write("f", b"3", when(WriteCondition::Matches(vec![second.etag.unwrap()])))),
        ErrorKind::Conflict
    );
    // Of concurrent writers with the same etag, one succeeds.
    let tag = list::stat(&fixture.root(), &rel("f"), true).unwrap().etag.unwrap();
    let through: usize = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..8)
            .map(|n| {
                let (fixture, tag) = (&fixture, tag.clone());
                scope.spawn(move || {
                    fixture.write(
                        "f",
                        &[b'0' + n],
                        WriteOptions { when: WriteCondition::Matches(vec![tag]), ..WriteOptions::default() },
                    )
                })
            })
            .collect();
        tries.into_iter().filter(|_| true).map(|t| usize::from(t.join().unwrap().is_ok())).sum()
    });
    assert_eq!(through, 1);
}

#[test]
fn a_reader_sees_the_old_or_the_new_and_nothing_between() {
    let fixture = WorkspaceFixture::new();
    let versions = [vec![b'a'; 300_000], vec![b'b'; 500_000]];
    fixture.write("f", &versions[0], WriteOptions::default()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _stop = StopOnDrop(&stop);
            for n in 0..100 {
                fixture.write("f", &versions[n % 2], WriteOptions::default()).unwrap();
            }
        });
        let mut seen = [0, 0];
        while !stop.load(Ordering::Relaxed) {
            let found = fs::read(fixture.ws.join("f")).unwrap();
            let which = versions.iter().position(|v| *v == found).expect("one of the two, whole");
            seen[which] += 1;
        }
        assert!(seen[0] + seen[1] > 0);
    });
}

#[test]
fn bits_are_kept_or_set_but_none_that_acts_as_the_owner() {
    let fixture = WorkspaceFixture::new();
    fixture.write("run", b"#!/bin/sh\n", WriteOptions { mode: Some(0o755), ..WriteOptions::default() }).unwrap();
    assert_eq!(fixture.write("run", b"#!/bin/true\n", WriteOptions::default()).unwrap().mode, 0o755, "as it was");
    assert_eq!(change::chmod(&fixture.root(), &rel("run"), 0o600).unwrap().mode, 0o600);
    fs::set_permissions(fixture.ws.join("run"), fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(list::stat(&fixture.root(), &rel("run"), true).unwrap().mode, 0o4755, "shown as it is");
    assert_eq!(fixture.write("run", b"x", WriteOptions::default()).unwrap().mode, 0o755, "and taken off what is new");
    for mode in [0o4755, 0o2755, 0o10000] {
        assert_eq!(kind(change::chmod(&fixture.root(), &rel("run"), mode)), ErrorKind::InvalidRequest);
        let ask = WriteOptions { mode: Some(mode), ..WriteOptions::default() };
        assert_eq!(kind(fixture.write("run", b"y", ask)), ErrorKind::InvalidRequest);
    }
    assert_eq!(fixture.read("run").unwrap(), b"x");
}

#[test]
fn directories_are_made_and_names_changed() {
    let fixture = WorkspaceFixture::new();
    let root = fixture.root();
    assert_eq!(kind(change::mkdir(&root, &rel("a/b"), false, None)), ErrorKind::NotFound);
    change::mkdir(&root, &rel("a/b"), true, Some(0o700)).unwrap();
    assert_eq!(change::mkdir(&root, &rel("a/b"), true, None).unwrap().mode, 0o700, "there already");
    assert_eq!(kind(change::mkdir(&root, &rel("a/b"), false, None)), ErrorKind::Conflict);
    fixture.put("a/f", "f");
    fixture.put("g", "g");
    assert_eq!(kind(change::mkdir(&root, &rel("g/x"), true, None)), ErrorKind::NotFound, "a file is no directory");
    assert_eq!(kind(change::rename(&root, &rel("a/f"), &rel("g"), false)), ErrorKind::Conflict);
    assert_eq!(fixture.read("g").unwrap(), b"g", "nothing was replaced unasked");
    let moved = change::rename(&root, &rel("a/f"), &rel("g"), true).unwrap();
    assert_eq!((moved.how, moved.entry.path), (FileMovedHow::Renamed, rel("g")));
    assert_eq!(fixture.read("g").unwrap(), b"f");
    assert_eq!(kind(change::rename(&root, &rel("a"), &rel("a/b/c"), false)), ErrorKind::InvalidRequest);
    assert_eq!(kind(change::rename(&root, &rel("none"), &rel("n"), false)), ErrorKind::NotFound);
    assert_eq!(kind(change::rename(&root, &Rel::top(), &rel("n"), false)), ErrorKind::InvalidRequest);
}

#[test]
fn what_is_removed_is_what_was_named() {
    let fixture = WorkspaceFixture::new();
    let root = fixture.root();
    fixture.put("d/e/f", "x");
    fixture.put("kept/f", "x");
    symlink("../kept", fixture.ws.join("d/link")).unwrap();
    symlink("kept", fixture.ws.join("link")).unwrap();
    assert_eq!(kind(change::remove(&root, &rel("d"), false)), ErrorKind::Conflict, "not empty");
    let gone = change::remove(&root, &rel("d"), true).unwrap();
    assert_eq!((gone.files, gone.dirs), (2, 2));
    assert_eq!(change::remove(&root, &rel("link"), true).unwrap().files, 1, "the link, not what it leads to");
    assert_eq!(fixture.read("kept/f").unwrap(), b"x");
    assert_eq!(kind(change::remove(&root, &rel("d"), true)), ErrorKind::NotFound);
    assert_eq!(kind(change::remove(&root, &Rel::top(), true)), ErrorKind::InvalidRequest);
}

#[test]
fn trees_are_copied() {
    let fixture = WorkspaceFixture::new();
    let root = fixture.root();
    fixture.put("d/e/f", "text");
    fs::set_permissions(fixture.ws.join("d/e/f"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("/etc/passwd", fixture.ws.join("d/out")).unwrap();
    fixture.own_below(&fixture.ws);
    let deep = copy::CopyOptions { recursive: true, replace: false };
    assert_eq!(kind(copy::copy(&root, &rel("d"), &rel("c"), &copy::CopyOptions::default())), ErrorKind::Conflict);
    let copied = copy::copy(&root, &rel("d"), &rel("c"), &deep).unwrap();
    assert_eq!((copied.files, copied.dirs, copied.links, copied.left_out.len()), (1, 2, 1, 0));
    assert_eq!(fixture.read("c/e/f").unwrap(), b"text");
    assert_eq!(list::stat(&root, &rel("c/e/f"), true).unwrap().mode, 0o640);
    assert_eq!(fs::read_link(fixture.ws.join("c/out")).unwrap().to_str(), Some("/etc/passwd"));
    assert_eq!(fs::metadata(fixture.ws.join("c/e/f")).unwrap().uid(), fixture.owner.0);
    assert_eq!(kind(copy::copy(&root, &rel("d"), &rel("c"), &deep)), ErrorKind::Conflict, "there already");
    assert_eq!(kind(copy::copy(&root, &rel("d"), &rel("d/x"), &deep)), ErrorKind::InvalidRequest);
    copy::copy(&root, &rel("d/e/f"), &rel("g"), &copy::CopyOptions::default()).unwrap();
    assert_eq!(kind(copy::copy(&root, &rel("d/e/f"), &rel("g"), &copy::CopyOptions::default())), ErrorKind::Conflict);
    copy::copy(&root, &rel("d/e/f"), &rel("g"), &copy::CopyOptions { replace: true, ..deep }).unwrap();
    let tight = fixture.root().with_room(WriteAllowance { bytes: Some(1), files: None });
    assert_eq!(kind(copy::copy(&tight, &rel("d"), &rel("t"), &deep)), ErrorKind::LimitExceeded);
    assert!(!fixture.ws.join("t").exists(), "not begun");
}

#[test]
fn what_may_be_written_is_bounded_and_exactly_the_bound_fits() {
    let fixture = WorkspaceFixture::new();
    let root = || fixture.root().with_room(WriteAllowance { bytes: Some(10), files: Some(0) });
    fixture.put("f", "old");
    let put = |text: &[u8]| write::write(root(), &rel("f"), WriteOptions::default(), &mut &text[..]);
    put(b"0123456789").unwrap();
    let fault = put(b"0123456789a").unwrap_err();
    assert_eq!((fault.error_kind, fault.limit_kind), (ErrorKind::LimitExceeded, Some(LimitKind::DiskMb)));
    assert_eq!(fixture.read("f").unwrap(), b"0123456789", "as it was");
    let fault = write::write(root(), &rel("new"), WriteOptions::default(), &mut &b""[..]).unwrap_err();
    assert_eq!((fault.error_kind, fault.limit_kind), (ErrorKind::LimitExceeded, Some(LimitKind::Files)));
    assert_eq!(kind(change::mkdir(&root(), &rel("d"), false, None)), ErrorKind::LimitExceeded);
    assert_eq!(fs::read_dir(&fixture.ws).unwrap().count(), 1, "nothing is left of it");
}

/// A draft that is dropped or fails leaves no file.
#[test]
fn an_upload_that_breaks_off_leaves_what_was_there() {
    let fixture = WorkspaceFixture::new();
    fixture.put("f", "old");
    let mut draft = write::Draft::begin(fixture.root(), &rel("f"), WriteOptions::default()).unwrap();
    draft.push(b"half of").unwrap();
    assert_eq!(fs::read_dir(&fixture.ws).unwrap().count(), 1, "what is not whole has no name");
    drop(draft);
    assert_eq!(fs::read_dir(&fixture.ws).unwrap().count(), 1);
    assert_eq!(fixture.read("f").unwrap(), b"old");
}
