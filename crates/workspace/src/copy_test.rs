use super::*;
use crate::testing::{Scratch, picture};
use std::os::unix::fs::MetadataExt;

fn quiet(_: &CopyTotals) {}

// promise 17
#[test]
fn a_copy_is_equal_in_all_that_is_kept() {
    let scratch = Scratch::new();
    let base = scratch.mkdir("base");
    scratch.file("base/a", b"alpha");
    scratch.file("base/tool", b"#!/bin/sh\n");
    scratch.chmod("base/tool", 0o755);
    scratch.file("base/dir/sub/b", b"beta");
    scratch.chmod("base/dir/sub", 0o555);
    scratch.link("base/link", "../outside");
    scratch.attribute("base/a", "user.colour", b"red");
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: 1_000_000_000, tv_nsec: 5 },
    };
    rustix::fs::utimensat(&base, "a", &times, AtFlags::empty()).unwrap();
    let up = scratch.mkdir("up");
    let copied = populate(&base, &up, Driver::Copy, &mut quiet).unwrap();
    assert_eq!((copied.files, copied.dirs, copied.links), (3, 2, 1));
    assert_eq!(picture(&scratch.path.join("base")), picture(&scratch.path.join("up")));
    let meta = scratch.path.join("up/a").metadata().unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_000_000_000, 5));
    let mut value = [0u8; 8];
    let length = rustix::fs::getxattr(scratch.path.join("up/a"), "user.colour", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"red");
}

// promise 17
#[test]
fn what_could_block_or_is_no_file_is_skipped_and_said() {
    let scratch = Scratch::new();
    let base = scratch.mkdir("base");
    scratch.file("base/control", b"x");
    rustix::fs::mkfifoat(&base, "pipe", Mode::from_raw_mode(0o600)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(scratch.path.join("base/sock")).unwrap();
    scratch.strike("base/device");
    let up = scratch.mkdir("up");
    let copied = populate(&base, &up, Driver::Copy, &mut quiet).unwrap();
    let names: Vec<String> = copied.skipped.iter().map(|(path, _)| path.to_string()).collect();
    assert_eq!(names, ["device", "pipe", "sock"]);
    assert_eq!(up.names().unwrap(), [b"control".to_vec()]);
}

#[test]
fn holes_stay_holes() {
    let scratch = Scratch::new();
    let base = scratch.mkdir("base");
    let file = File::create(scratch.path.join("base/sparse")).unwrap();
    file.set_len(1 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", (1 << 30) - 3).unwrap();
    let up = scratch.mkdir("up");
    populate(&base, &up, Driver::Copy, &mut quiet).unwrap();
    let meta = scratch.path.join("up/sparse").metadata().unwrap();
    assert_eq!(meta.len(), 1 << 30);
    assert!(meta.blocks() * 512 < 1 << 20, "{} blocks", meta.blocks());
    let mut end = [0u8; 3];
    let copy = File::open(scratch.path.join("up/sparse")).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&copy, &mut end, (1 << 30) - 3).unwrap();
    assert_eq!(&end, b"end");
}

#[test]
fn many_files_pass_through_few_descriptors_and_progress_is_told() {
    let scratch = Scratch::new();
    let base = scratch.mkdir("base");
    for i in 0..3_000 {
        scratch.file(&format!("base/d{}/{i}", i % 40), format!("{i}").as_bytes());
    }
    let up = scratch.mkdir("up");
    let mut last = CopyTotals::default();
    let copied = populate(&base, &up, Driver::Copy, &mut |now| last = now.clone()).unwrap();
    assert_eq!((copied.files, &last), (3_000, &copied));
    assert_eq!(picture(&scratch.path.join("base")), picture(&scratch.path.join("up")));
}

#[test]
fn merged_layers_hide_and_show_what_the_stack_did() {
    let scratch = Scratch::new();
    scratch.file("low/gone", b"1");
    scratch.file("low/kept", b"1");
    scratch.file("low/dir/old", b"1");
    scratch.file("low/was_file", b"1");
    scratch.file("low/merged/low", b"1");
    scratch.file("low/hidden/low", b"1");
    scratch.strike("top/gone");
    scratch.strike("top/of_base");
    scratch.file("top/dir/new", b"2");
    scratch.file("top/was_file/inside", b"2");
    scratch.file("top/merged/top", b"2");
    scratch.opaque("top/hidden");
    let (low, top, up) = (scratch.mkdir("low"), scratch.mkdir("top"), scratch.mkdir("up"));
    layers(&[&low, &top], &up).unwrap();
    let names: Vec<String> = picture(&scratch.path.join("up")).into_keys().collect();
    let expected = [
        "dir",
        "dir/new",
        "dir/old",
        "gone",
        "hidden",
        "kept",
        "merged",
        "merged/low",
        "merged/top",
        "of_base",
        "was_file",
        "was_file/inside",
    ];
    assert_eq!(names, expected);
    assert!(up.meta_of(b"gone").unwrap().unwrap().is_struck_out());
    assert!(up.meta_of(b"of_base").unwrap().unwrap().is_struck_out());
    let opaque = |name: &str| attributes::read(up.dir(&Scratch::rel(name)).unwrap(), Marks::Mean).unwrap().opaque;
    assert!(opaque("hidden") && opaque("was_file"));
    assert!(!opaque("merged") && !opaque("dir"));
}

// promise 13
#[test]
fn a_forged_mark_is_refused_by_name() {
    let scratch = Scratch::new();
    scratch.file("low/dir/file", b"1");
    scratch.attribute("low/dir", "user.overlay.redirect", b"/etc");
    let (low, up) = (scratch.mkdir("low"), scratch.mkdir("up"));
    let fault = layers(&[&low], &up).unwrap_err();
    assert!(fault.message.contains("dir") && fault.message.contains("redirect"), "{}", fault.message);
}

/// Merged view of a stack as a reader sees it.
fn seen(stack: &crate::Stack) -> std::collections::BTreeMap<String, String> {
    let mut found = std::collections::BTreeMap::new();
    let mut waiting = vec![Rel::top()];
    while let Some(dir) = waiting.pop() {
        for (name, meta) in stack.names(&dir).unwrap() {
            let path = dir.join(&name);
            let what = match meta.kind {
                FileKind::Dir => {
                    waiting.push(path.clone());
                    "dir".to_owned()
                }
                FileKind::File => io::read_to_string(stack.file(&path).unwrap()).unwrap(),
                other => format!("{other:?}"),
            };
            found.insert(path.to_string(), format!("{:o} {what}", meta.mode));
        }
    }
    found
}

#[test]
fn merged_layers_show_over_any_base_what_the_stack_showed() {
    use proptest::prelude::*;
    let part = prop_oneof![Just("a"), Just("b"), Just("c")];
    let path = proptest::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"));
    let layer = proptest::collection::vec((path, 0u32..6), 0..8);
    let stack = proptest::collection::vec(layer, 2..6);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(48));
    runner
        .run(&stack, |stack| {
            let scratch = Scratch::new();
            let layers = crate::Layers::open(&scratch.dir).unwrap();
            let base = scratch.mkdir("base");
            let mut ids = Vec::new();
            for (n, entries) in stack.iter().enumerate() {
                // The lowest layer is the base.
                let top = match n {
                    0 => "base".to_owned(),
                    _ => {
                        let (layer, _lock) = layers.make(&base, [n as u8; 16]).unwrap();
                        ids.push(layer.id.clone());
                        format!("layers/{}/up", layer.id)
                    }
                };
                for (path, kind) in entries {
                    let at = format!("{top}/{path}");
                    let whole = scratch.path.join(&at);
                    let way = whole.ancestors().skip(1).all(|p| p.symlink_metadata().map_or(true, |m| m.is_dir()));
                    if !way || whole.symlink_metadata().is_ok() {
                        continue;
                    }
                    match kind {
                        0 | 1 => scratch.file(&at, format!("{n} {path}").as_bytes()),
                        2 => drop(scratch.mkdir(&at)),
                        _ if n == 0 => scratch.file(&format!("{at}/x"), b"base"),
                        3 | 4 => scratch.strike(&at),
                        _ => scratch.opaque(&at),
                    }
                }
            }
            let open = |ids: &[String]| crate::Stack {
                base: base.try_clone().unwrap(),
                driver: Driver::Overlay,
                layers: ids.iter().map(|id| layers.get(id).unwrap()).collect(),
                since: (0, 0),
            };
            let (merged, _lock) = layers.make(&base, [99; 16]).unwrap();
            let ups: Vec<crate::Layer> = ids.iter().map(|id| layers.get(id).unwrap()).collect();
            super::layers(&ups.iter().map(|l| &l.up).collect::<Vec<_>>(), &merged.up).unwrap();
            prop_assert_eq!(seen(&open(&ids)), seen(&open(&[merged.id])));
            Ok(())
        })
        .unwrap();
}

// promise 13
#[test]
fn depth_beyond_any_path_is_copied_sealed_and_merged() {
    let scratch = Scratch::new();
    let layers = crate::Layers::open(&scratch.dir).unwrap();
    let (layer, _lock) = layers.make(&scratch.dir, [1; 16]).unwrap();
    let mut way = Descent::at(&layer.up).unwrap();
    for _ in 0..3_000 {
        rustix::fs::mkdirat(way.here(), "deep", Mode::from_raw_mode(0o700)).unwrap();
        way.enter(b"deep").unwrap();
    }
    rustix::fs::mkdirat(way.here(), "end", Mode::from_raw_mode(0)).unwrap();
    let sealed = crate::manifest::seal(&layer, Marks::Mean).unwrap();
    assert_eq!(sealed.entries, 3_001);
    let (copy, _lock) = layers.make(&scratch.dir, [2; 16]).unwrap();
    super::layers(&[&layer.up], &copy.up).unwrap();
    crate::manifest::verify(&copy, &sealed.digest, Marks::Mean).unwrap();
}
