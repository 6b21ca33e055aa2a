//! Trees built to harm the reviewer: no call blocks, no link is followed, and time and memory stay bounded.

use crate::fixture::*;
use api::{ChangeBody, ChangeFlag, Diff, LineKind, Rel};
use rustix::fs::{CWD, FileType, Mode};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use workspace::Dir;
use workspace::diff::{Options, diff};

// promise 13, 14
#[test]
fn fifos_sockets_and_devices_are_told_and_never_opened() {
    let w = StackFixture::new();
    rustix::fs::mknodat(CWD, w.up().join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    rustix::fs::mknodat(CWD, w.up().join("sock"), FileType::Socket, Mode::from_raw_mode(0o644), 0).unwrap();
    write(&w.base(), "was-file", "x\n");
    rustix::fs::mknodat(CWD, w.up().join("was-file"), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    write(&w.up(), "plain", "control\n");
    let diff = w.diff();
    assert_eq!(summary(&diff), ["added pipe", "added plain", "added sock", "type was-file"]);
    for path in ["pipe", "sock", "was-file"] {
        assert!(why_never(file(&diff, path)).is_some(), "{path}");
    }
    assert!(why_never(file(&diff, "plain")).is_none());
}

// promise 13
#[test]
fn forged_marks_of_overlayfs_are_refused() {
    for (name, value) in [("redirect", "/etc"), ("metacopy", ""), ("whiteout", "y")] {
        let w = StackFixture::new();
        write(&w.up(), "f", "x");
        set_xattr(&w.up(), "f", &format!("user.overlay.{name}"), value.as_bytes());
        let fault = diff(&w.stack(), &w.anchors, &Options::default()).unwrap_err();
        assert!(fault.message.contains("tampered") && fault.message.contains(name), "{}", fault.message);
    }
    let w = StackFixture::new();
    fs::create_dir(w.up().join("d")).unwrap();
    set_xattr(&w.up(), "d", "user.overlay.opaque", b"x");
    assert!(diff(&w.stack(), &w.anchors, &Options::default()).is_err());
    let w = StackFixture::new();
    write(&w.up(), "f", "x");
    set_xattr(&w.up(), "f", "user.overlay.overlay.redirect", b"/etc");
    assert_eq!(summary(&w.diff()), ["added f"], "control: what a guest sets is escaped by the kernel");
}

// promise 13
#[test]
fn no_link_is_followed() {
    let w = StackFixture::new();
    let outside = w.top.join("outside");
    write(&outside, "secret", "canary\n");
    write(&w.base(), "docs/x", "x\n");
    link(&w.up(), "docs", outside.to_str().unwrap());
    link(&w.up(), "loop", "loop");
    let diff = w.diff();
    assert_eq!(summary(&diff), ["type docs", "deleted docs/x", "added loop"]);
    assert!(!serde_json::to_string(&diff).unwrap().contains("canary"));
    assert!(w.stack().file(&rel("docs/secret")).is_err());
    assert!(w.stack().meta(&rel("docs/secret")).unwrap().is_none());
}

// promise 13
#[test]
fn names_of_any_bytes_survive() {
    let w = StackFixture::new();
    let names: [&[u8]; 6] = [b"new\nline", b"\x1b[31mred", b"bad\xff\xfeutf8", b"-dash", b"sp ace", &[b'n'; 255]];
    for name in names {
        fs::write(w.up().join(std::ffi::OsStr::from_bytes(name)), "x").unwrap();
    }
    let diff = w.diff();
    let json = serde_json::to_string(&diff).unwrap();
    let back: Diff = serde_json::from_str(&json).unwrap();
    assert_eq!(back, diff);
    let mut found: Vec<Vec<u8>> = back.files.iter().map(|f| f.change.path.as_bytes().to_vec()).collect();
    found.sort();
    let mut want: Vec<Vec<u8>> = names.iter().map(|n| n.to_vec()).collect();
    want.sort();
    assert_eq!(found, want);
    assert!(summary(&diff).iter().all(|line| !line.contains(['\n', '\x1b'])));
}

/// Peak memory of this process, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

// promise 13
#[test]
fn bombs_cost_bounded_time_and_memory() {
    let w = StackFixture::new();
    // A line of a gigabyte; a sparse file of eight tebibytes; texts whose comparison would take forever.
    File::create(w.up().join("line")).unwrap().set_len(1 << 30).unwrap();
    File::create(w.up().join("sparse")).unwrap().set_len((1 << 43) - 4096).unwrap();
    let shuffled = |lines: u32, seed: u64| -> String {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 60) as u8
        };
        (0..lines).map(|_| format!("{}\n", (b'a' + next()) as char)).collect()
    };
    write(&w.base(), "shuffled", shuffled(90_000, 1));
    write(&w.up(), "shuffled", shuffled(90_000, 2));
    write(&w.base(), "few", shuffled(1_900, 1));
    write(&w.up(), "few", shuffled(1_900, 2));
    write(&w.base(), "many", shuffled(500_000, 1));
    write(&w.up(), "many", shuffled(500_000, 2));
    let every = |n: usize| -> String {
        (0..60_000).map(|i| if i % n == 0 { format!("x{i}\n") } else { format!("{i}\n") }).collect()
    };
    write(&w.base(), "hunks", every(70_000));
    write(&w.up(), "hunks", every(8));
    write(&w.up(), "long", "x".repeat(100_000));
    let before = peak();
    let began = busy();
    let diff = w.diff();
    let (took, grown) = (busy() - began, peak().saturating_sub(before));
    println!("took {took:?}, {} MiB", grown >> 20);
    assert!(took.as_secs() < 60, "{took:?}");
    assert!(grown < 600 << 20, "{} MiB", grown >> 20);
    assert_eq!(file(&diff, "line").body, ChangeBody::Whole);
    assert_eq!(why_never(file(&diff, "sparse")), Some("too large to be reviewed"));
    assert_eq!(file(&diff, "long").body, ChangeBody::Whole);
    assert_eq!(file(&diff, "long").change.flags, [ChangeFlag::Large]);
    assert!(matches!(file(&diff, "hunks").body, ChangeBody::Text(_) | ChangeBody::Whole));
}

// promise 13
#[test]
fn a_deep_tree_past_the_longest_path_is_walked() {
    let w = StackFixture::new();
    let (depth, name) = (10_000, b"d".to_vec());
    let mut at = Dir::open(&w.up()).unwrap();
    let step = Rel::top().join(&name);
    for n in 0..depth {
        rustix::fs::mkdirat(&at, name.as_slice(), Mode::from_raw_mode(0o755)).unwrap();
        // Side branches make the walk return to parents.
        if n % 10 == 0 {
            rustix::fs::mkdirat(&at, "e", Mode::from_raw_mode(0o755)).unwrap();
        }
        at = at.dir(&step).unwrap();
    }
    rustix::fs::symlinkat("x", &at, "end").unwrap();
    let file = rustix::fs::openat(
        &at,
        "file",
        rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
        Mode::from_raw_mode(0o644),
    )
    .unwrap();
    rustix::io::write(&file, b"deep\n").unwrap();
    let began = busy();
    let diff = w.diff();
    assert!((busy() - began).as_secs() < 120, "{:?}", busy() - began);
    assert_eq!(diff.files.len(), 1000 + 2);
    let found = diff.files.iter().find(|f| f.change.path.as_bytes().ends_with(b"/file")).unwrap();
    assert_eq!(found.change.path.parts().count(), depth + 1);
    assert!(matches!(found.body, ChangeBody::Text(_)));
    // The standard library's recursive removal is not made for such depths.
    let status = std::process::Command::new("rm").arg("-rf").arg(w.up()).status().unwrap();
    assert!(status.success());
}

// promise 13
#[test]
fn too_many_entries_are_a_typed_fault() {
    let w = StackFixture::new();
    (0..20).for_each(|n| write(&w.up(), &format!("f{n}"), "x"));
    let mut options = Options::default();
    options.bounds.entries = 10;
    let fault = diff(&w.stack(), &w.anchors, &options).unwrap_err();
    assert_eq!(fault.error_kind, terms::ErrorKind::LimitExceeded);
    options.bounds.entries = 20;
    assert_eq!(diff(&w.stack(), &w.anchors, &options).unwrap().files.len(), 20, "control: exactly at the bound");
}

// promise 13
#[test]
fn what_cannot_be_read_cannot_land() {
    let w = StackFixture::new();
    write(&w.base(), "both/x", "x");
    write(&w.up(), "closed", "secret\n");
    write(&w.up(), "dir/in", "x\n");
    write(&w.up(), "both/y", "y\n");
    write(&w.up(), "plain", "x\n");
    for path in ["closed", "dir", "both"] {
        chmod(&w.up(), path, 0o000);
    }
    // Root reads everything; an ordinary user does not.
    let stack = w.stack();
    let diff = as_user(&w, || diff(&stack, &w.anchors, &Options::default()).unwrap());
    assert_eq!(summary(&diff), ["mode both", "added closed", "added dir", "added plain"]);
    for path in ["closed", "dir", "both"] {
        assert_eq!(why_never(file(&diff, path)), Some("cannot be read"), "{path}");
    }
    assert!(why_never(file(&diff, "plain")).is_none());
    if rustix::process::geteuid().is_root() {
        assert!(w.diff().files.iter().all(|f| why_never(f).is_none()), "control: root reads all");
    }
}

// promise 13
#[test]
fn a_diff_can_be_made_while_the_guest_writes() {
    let w = StackFixture::new();
    write(&w.base(), "f", "0\n");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            let mut n = 0u32;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                fs::write(w.up().join("f"), format!("{n}\n").repeat(1 + n as usize % 50)).unwrap();
                fs::write(w.up().join("g"), "x").unwrap();
                let _ = fs::remove_file(w.up().join("g"));
            }
        });
        for _ in 0..1000 {
            let diff = w.diff();
            // The shown text is what the digest covers.
            for file in diff.files.iter().filter(|f| f.change.path == rel("f")) {
                let ChangeBody::Text(hunks) = &file.body else { continue };
                let added: String = hunks
                    .iter()
                    .flat_map(|h| &h.lines)
                    .filter(|l| l.kind != LineKind::Removed)
                    .map(|l| l.text.as_str())
                    .collect();
                assert_eq!(file.change.after.as_ref().unwrap().size, added.len() as u64);
            }
        }
    });
}

/// Ignore rules that are expensive to match stop applying once their budget is spent; files are then shown, not hidden.
// promise 13
#[test]
fn endless_rules_cost_bounded_time_and_hide_nothing() {
    let w = StackFixture::new();
    let rules: String = (0..4000).map(|n| format!("/a*{n}?[b-z]/**/x{n}*\n")).collect();
    // Few rules, each so long that it costs as much as many.
    let long: String = (0..100).map(|n| format!("/{}{n}\n", "*?[b-z]".repeat(1400))).collect();
    write(&w.base(), "0/.gitignore", format!("{long}*.log\n"));
    write(&w.up(), "0/x.log", "x\n");
    for dir in 1..100 {
        write(&w.base(), &format!("{dir}/.gitignore"), format!("{rules}*.log\n"));
        write(&w.up(), &format!("{dir}/x.log"), "x\n");
    }
    let start = busy();
    let diff = w.diff();
    assert!((busy() - start).as_secs() < 20, "{:?}", busy() - start);
    let (shown, held) = (diff.files.len() as u64, diff.withheld.iter().map(|w| w.files).sum::<u64>());
    assert_eq!(shown + held, 100, "every file is told one way or the other");
    assert!(shown > 50 && held > 0, "{shown} shown, {held} withheld");
}

/// Paths built from `..`, repeated, missing and linked components read no file of another tree.
// promise 14
#[test]
fn no_path_leads_out_of_its_tree() {
    let w = StackFixture::new();
    let twin = w.top.join("base-twin");
    write(&twin, "file", "canary");
    write(&w.base(), "a/file", "own");
    link(&w.base(), "out", "../base-twin");
    link(&w.base(), "a/up", "..");
    link(&w.base(), "abs", twin.to_str().unwrap());
    let parts =
        ["..", ".", "", "a", "out", "a/up", "abs", "base-twin", "file", "../base-twin", "a/../..", "...", "..\0"];
    let stack = w.stack();
    let mut read = 0;
    for number in 0..parts.len().pow(4) {
        let one = |place: u32| parts[number / parts.len().pow(place) % parts.len()];
        let path = [one(0), one(1), one(2), one(3)].join("/");
        for path in [path.clone(), format!("/{path}"), format!("{}/{path}", twin.display())] {
            let Some(rel) = Rel::parse(path.as_bytes()) else { continue };
            for file in [stack.file(&rel), stack.base.file(&rel)].into_iter().flatten() {
                assert_eq!(std::io::read_to_string(file).unwrap(), "own", "{path:?}");
                read += 1;
            }
        }
    }
    assert!(read > 0, "control: a file of the tree itself is read");
}
