use super::*;
use crate::Marks;
use crate::dir::Dir;
use crate::item::{Item, ItemKind};
use crate::testing::{Scratch, picture};
use crate::walk::{self, At};
use api::PathText;
use std::collections::BTreeMap;
use std::io;
use tar::{EntryType, Header};
use terms::hex;

fn about() -> serde_json::Value {
    serde_json::json!({ "base": "/p" })
}

/// A layer with every kind of entry that a workspace can have.
fn full(scratch: &Scratch) -> Dir {
    scratch.file("up/a/one", b"1");
    scratch.file("up/a/run", b"#!/bin/sh\n");
    scratch.chmod("up/a/run", 0o755);
    scratch.file("up/empty", b"");
    scratch.strike("up/gone");
    scratch.opaque("up/only");
    scratch.file("up/only/inside", b"x");
    scratch.link("up/link", &"../somewhere/".repeat(20));
    scratch.file(&format!("up/{}/{}", "d".repeat(200), "f".repeat(200)), b"long");
    scratch.attribute("up/a/one", "user.colour", b"\xff\x00");
    scratch.attribute("up/a/one", "user.overlay.overlay.mine", b"1");
    std::fs::write(scratch.path.join("up").join(odd()), b"odd").unwrap();
    let up = scratch.mkdir("up");
    rustix::fs::mkfifoat(&up, "pipe", rustix::fs::Mode::from_raw_mode(0o640)).unwrap();
    scratch.chmod("up/only", 0o555);
    up
}

fn odd() -> &'static std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(b"new\nline \xff")
}

struct Items(Vec<Item>);

impl walk::Visitor for Items {
    fn enter(&mut self, at: &At<'_>) -> io::Result<()> {
        self.0.push(Item::of(at)?);
        Ok(())
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        self.enter(at)
    }

    fn leave(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn items(layers: &[&Dir]) -> Vec<Item> {
    walk::walk(layers, Marks::Mean, Items(Vec::new())).unwrap().0
}

fn exported(layers: &[&Dir]) -> Vec<u8> {
    let mut bytes = Vec::new();
    export(&layered(layers, None), about(), &|_| Ok(()), &mut bytes).unwrap();
    bytes
}

fn layered<'a>(layers: &[&'a Dir], base: Option<&'a Dir>) -> ExportSource<'a> {
    ExportSource { layers: layers.to_vec(), marks: Marks::Mean, base, origin: None }
}

fn taken(bytes: &[u8]) -> (Scratch, Result<Imported, Fault>) {
    let scratch = Scratch::new();
    let up = scratch.mkdir("up");
    let imported = import(bytes, &up, Marks::Mean, &Bounds::default());
    (scratch, imported)
}

#[test]
fn what_goes_out_comes_in_again() {
    let scratch = Scratch::new();
    let up = full(&scratch);
    let bytes = exported(&[&up]);
    let (other, imported) = taken(&bytes);
    let imported = imported.unwrap();
    assert_eq!(imported.about, about());
    assert_eq!(items(&[&up]), items(&[&other.mkdir("up")]));
    assert_eq!(picture(&scratch.path.join("up")), picture(&other.path.join("up")));
}

// promise 17
#[test]
fn the_same_workspace_makes_the_same_bytes() {
    let scratch = Scratch::new();
    let up = full(&scratch);
    let first = exported(&[&up]);
    assert_eq!(first, exported(&[&up]));
    let (other, imported) = taken(&first);
    imported.unwrap();
    assert_eq!(first, exported(&[&other.mkdir("up")]), "and so does what was made of it");
}

#[test]
fn layers_go_out_merged() {
    let scratch = Scratch::new();
    scratch.file("low/a", b"1");
    scratch.file("low/b", b"1");
    scratch.file("top/a", b"2");
    scratch.strike("top/b");
    let (low, top) = (scratch.mkdir("low"), scratch.mkdir("top"));
    let (other, imported) = taken(&exported(&[&low, &top]));
    imported.unwrap();
    assert_eq!(items(&[&low, &top]), items(&[&other.mkdir("up")]));
    assert_eq!(other.read("up/a"), b"2");
}

#[test]
fn other_tools_can_look_into_it() {
    let scratch = Scratch::new();
    let up = full(&scratch);
    let raw = zstd::decode_all(&exported(&[&up])[..]).unwrap();
    let mut archive = tar::Archive::new(&raw[..]);
    let names: Vec<Vec<u8>> = archive.entries().unwrap().map(|e| e.unwrap().path_bytes().into_owned()).collect();
    assert_eq!(names[0], b"manifest.json");
    assert!(names.contains(&b"files/a/one".to_vec()));
    assert!(names.contains(&format!("files/{}/{}", "d".repeat(200), "f".repeat(200)).into_bytes()));
}

/// A forged archive: chosen manifest and chosen entries.
struct Forge {
    items: Vec<Item>,
    entries: Vec<Forged>,
}

/// Name, kind, bytes and link target.
type Forged = (Vec<u8>, EntryType, Vec<u8>, Vec<u8>);

fn item(depth: u32, name: &[u8], kind: ItemKind, bytes: &[u8]) -> Item {
    use sha2::{Digest, Sha256};
    let digest = (kind == ItemKind::File).then(|| hex::encode(Sha256::digest(bytes)));
    let target = (kind == ItemKind::Symlink).then(|| PathText::of(bytes));
    let size = if kind == ItemKind::File { bytes.len() as u64 } else { 0 };
    let (mode, xattrs) = (if kind == ItemKind::Symlink { 0 } else { 0o644 }, BTreeMap::new());
    Item { depth, name: PathText::of(name), kind, mode, size, digest, target, xattrs, opaque: false, mtime: None }
}

impl Forge {
    fn new() -> Forge {
        Forge { items: Vec::new(), entries: Vec::new() }
    }

    fn item(mut self, depth: u32, name: &[u8], kind: ItemKind, bytes: &[u8]) -> Forge {
        self.items.push(item(depth, name, kind, bytes));
        self
    }

    fn entry(mut self, name: &[u8], kind: EntryType, bytes: &[u8]) -> Forge {
        let (data, link) = if kind == EntryType::Regular { (bytes, &b""[..]) } else { (&b""[..], bytes) };
        self.entries.push((name.to_vec(), kind, data.to_vec(), link.to_vec()));
        self
    }

    /// Adds a change and its entry, as `export` writes them.
    fn file(self, name: &[u8], bytes: &[u8]) -> Forge {
        let full = [b"files/", name].concat();
        self.item(0, name, ItemKind::File, bytes).entry(&full, EntryType::Regular, bytes)
    }

    fn tar(&self) -> Vec<u8> {
        let digest = Manifest::digest(&about(), &self.items).unwrap();
        let manifest = Manifest { format: FORMAT, about: about(), digest, entries: self.items.clone() };
        let told = serde_json::to_vec(&manifest).unwrap();
        let mut tar = tar::Builder::new(Vec::new());
        let first = [(b"manifest.json".to_vec(), EntryType::Regular, told, Vec::new())];
        for (name, kind, data, link) in first.iter().chain(&self.entries) {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(data.len() as u64);
            header.set_mode(0o644);
            header.as_old_mut().name[..name.len()].copy_from_slice(name);
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
            header.set_cksum();
            tar.append(&header, &data[..]).unwrap();
        }
        tar.into_inner().unwrap()
    }

    fn packed(&self) -> Vec<u8> {
        zstd::encode_all(&self.tar()[..], 3).unwrap()
    }
}

fn refusal(bytes: &[u8]) -> String {
    let (_scratch, imported) = taken(bytes);
    imported.unwrap_err().message
}

// promise 17
#[test]
fn every_trick_is_refused_with_its_reason() {
    use EntryType as E;
    use ItemKind as K;
    let outside = Scratch::new();
    outside.file("canary", b"untouched");
    let link = outside.path.as_os_str().as_encoded_bytes().to_vec();
    let control = Forge::new().file(b"plain", b"1");
    taken(&control.packed()).1.expect("what an honest maker writes is taken");
    let forged = [
        ("absolute", Forge::new().item(0, b"x", K::File, b"1").entry(b"/etc/x", E::Regular, b"1"), "absolute name"),
        ("up", Forge::new().item(0, b"x", K::File, b"1").entry(b"files/../x", E::Regular, b"1"), "leads out"),
        ("up in the manifest", Forge::new().item(0, b"..", K::Dir, b""), "an invalid name"),
        ("slash in the manifest", Forge::new().item(0, b"a/b", K::File, b"1"), "an invalid name"),
        ("empty name", Forge::new().item(0, b"", K::File, b"1"), "an invalid name"),
        (
            "link, then a file below it",
            Forge::new().item(0, b"l", K::Symlink, &link).entry(b"files/l", E::Symlink, &link).item(
                1,
                b"canary",
                K::File,
                b"1",
            ),
            "below a path that is not a directory",
        ),
        (
            "link, then a file of the same name",
            Forge::new()
                .item(0, b"l", K::Symlink, &link)
                .entry(b"files/l", E::Symlink, &link)
                .item(0, b"l", K::File, b"1")
                .entry(b"files/l", E::Regular, b"1"),
            "appears twice",
        ),
        ("hard link", Forge::new().item(0, b"h", K::File, b"").entry(b"files/h", E::Link, b"/etc/passwd"), "hard link"),
        ("device", Forge::new().item(0, b"d", K::File, b"").entry(b"files/d", E::Char, b""), "a device"),
        ("block device", Forge::new().item(0, b"d", K::File, b"").entry(b"files/d", E::Block, b""), "a device"),
        ("fifo entry", Forge::new().item(0, b"f", K::Fifo, b"").entry(b"files/f", E::Fifo, b""), "unsupported type"),
        ("twice", Forge::new().file(b"a", b"1").file(b"a", b"2"), "appears twice"),
        ("out of order", Forge::new().file(b"b", b"1").file(b"a", b"2"), "appears twice or out of order"),
        (
            "not in the manifest",
            Forge::new().file(b"a", b"1").entry(b"files/b", E::Regular, b""),
            "not in the manifest",
        ),
        ("missing", Forge::new().file(b"a", b"1").item(0, b"b", K::File, b"1"), "before the entry b"),
        ("other name", Forge::new().item(0, b"a", K::File, b"1").entry(b"files/z", E::Regular, b"1"), "appears where"),
        ("other bytes", Forge::new().item(0, b"a", K::File, b"1").entry(b"files/a", E::Regular, b"2"), "digest"),
        (
            "other size",
            Forge::new().item(0, b"a", K::File, b"1").entry(b"files/a", E::Regular, b"12"),
            "match the manifest",
        ),
        (
            "other kind",
            Forge::new().item(0, b"a", K::File, b"").entry(b"files/a", E::Symlink, b"/etc"),
            "match the manifest",
        ),
        ("pax header", Forge::new().entry(b"files/a", E::XHeader, b""), "unsupported type"),
        ("sparse", Forge::new().entry(b"files/a", E::GNUSparse, b""), "unsupported type"),
        ("deeper than its directory", Forge::new().item(3, b"a", K::File, b""), "not a directory"),
    ];
    for (trick, forge, why) in forged {
        let message = refusal(&forge.packed());
        assert!(message.contains(why), "{trick}: {message}");
    }
    assert_eq!(outside.read("canary"), b"untouched");
    assert_eq!(outside.dir.names().unwrap().len(), 1);
}

// promise 17
#[test]
fn what_is_cut_short_damaged_or_goes_on_is_refused() {
    let scratch = Scratch::new();
    let up = full(&scratch);
    let good = exported(&[&up]);
    for cut in [0, 1, 10, good.len() / 2, good.len() - 1] {
        refusal(&good[..cut]);
    }
    assert!(refusal(&[&good[..], b"more"].concat()).contains("data after its end"));
    assert!(refusal(&[&good[..], &good[..]].concat()).contains("data after its end"));
    for at in (0..good.len()).step_by(7) {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        let (other, imported) = taken(&bad);
        // Some bits of the compressed form do not affect the contents.
        let same = imported.is_ok() && items(&[&up]) == items(&[&other.mkdir("up")]);
        assert!(imported.is_err() || same, "a changed byte at {at} went unnoticed");
    }
    assert!(refusal(b"not packed at all").contains("damaged"));
    let mut tar = Forge::new().file(b"a", b"1").tar();
    tar.extend_from_slice(&[1; 512]);
    assert!(refusal(&zstd::encode_all(&tar[..], 3).unwrap()).contains("data after its last entry"));
    let empty = zstd::encode_all(&[0u8; 1024][..], 3).unwrap();
    assert!(refusal(&empty).contains("begin with manifest.json"));
}

#[test]
fn a_manifest_that_is_not_what_its_digest_says_is_refused() {
    let scratch = Scratch::new();
    let up = full(&scratch);
    let tar = zstd::decode_all(&exported(&[&up])[..]).unwrap();
    let text = String::from_utf8_lossy(&tar).into_owned();
    let at = text.find("\"/p\"").unwrap();
    let mut other = tar.clone();
    other[at + 2] = b'q';
    assert!(refusal(&zstd::encode_all(&other[..], 3).unwrap()).contains("does not match its own digest"));
}

// promise 17
#[test]
fn bombs_end_before_they_cost_anything() {
    let sizes = Bounds { bytes: 1 << 20, ..Bounds::default() };
    let scratch = Scratch::new();
    let up = scratch.mkdir("up");
    let large = Forge::new().file(b"zeros", &vec![0u8; 2 << 20]);
    let fault = import(&large.packed()[..], &up, Marks::Mean, &sizes).unwrap_err();
    assert_eq!((fault.error_kind, fault.limit_kind), (ErrorKind::LimitExceeded, Some(LimitKind::DiskMb)));
    assert!(up.names().unwrap().is_empty(), "refused before it was unpacked");
    // An entry far larger than the manifest says is not read to its end.
    let bomb =
        Forge::new().item(0, b"a", ItemKind::File, b"1").entry(b"files/a", EntryType::Regular, &vec![0; 8 << 20]);
    assert!(refusal(&bomb.packed()).contains("does not match the manifest"));
    // Beyond the harmless size the ratio is the bound, and consent to the size lifts it.
    let huge = Forge::new().file(b"zeros", &vec![0u8; 4 << 20]).packed();
    let wary = Bounds { harmless: 1 << 20, ..Bounds::default() };
    let fault = import(&huge[..], &scratch.mkdir("wary"), Marks::Mean, &wary).unwrap_err();
    assert!(fault.message.contains("compression ratio"), "{}", fault.message);
    let agreed = Bounds { ratio: None, ..wary };
    import(&huge[..], &scratch.mkdir("agreed"), Marks::Mean, &agreed).unwrap();
}

/// A manifest with `about` only.
fn telling(about: &str) -> Vec<u8> {
    let digest = serde_json::from_str(about).map(|about| Manifest::digest(&about, &[]).unwrap()).unwrap_or_default();
    let told = format!(r#"{{"format":{FORMAT},"about":{about},"digest":"{digest}","entries":[]}}"#);
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(told.len() as u64);
    tar.append_data(&mut header, "manifest.json", told.as_bytes()).unwrap();
    zstd::encode_all(&tar.into_inner().unwrap()[..], 3).unwrap()
}

#[test]
fn what_a_file_says_of_itself_is_bounded_before_it_is_understood() {
    let text = |length: usize| format!("\"{}\"", "a".repeat(length));
    taken(&telling(&text(LONGEST_ABOUT - 2))).1.expect("the control: what is short enough");
    let fault = taken(&telling(&text(LONGEST_ABOUT - 1))).1.unwrap_err();
    assert_eq!(fault.error_kind, ErrorKind::InvalidRequest);
    assert!(fault.message.contains("longer than 1048576 bytes"), "{}", fault.message);
    let lists = format!("[{}[]]", "[],".repeat(8 << 20));
    let fault = taken(&telling(&lists)).1.unwrap_err();
    assert_eq!(fault.error_kind, ErrorKind::InvalidRequest);
    assert!(fault.message.contains("compression ratio"), "{}", fault.message);
}

#[test]
fn manifests_of_many_changes_are_no_bombs() {
    let items = (0..MOST_ENTRIES).map(|i| item(0, format!("{i:08}").as_bytes(), ItemKind::Gone, b"")).collect();
    let forge = Forge { items, entries: Vec::new() };
    let scratch = Scratch::new();
    let up = scratch.mkdir("up");
    import(&forge.packed()[..], &up, Marks::Plain, &Bounds::default()).unwrap();
}

#[test]
fn more_changes_than_are_taken_are_refused_while_they_are_read() {
    let mut items: Vec<Item> = Vec::with_capacity(MOST_ENTRIES + 1);
    for i in 0..=MOST_ENTRIES {
        items.push(item(0, format!("{i:08}").as_bytes(), ItemKind::Gone, b""));
    }
    let forge = Forge { items, entries: Vec::new() };
    assert!(refusal(&forge.packed()).contains("more than 500000 changes"));
}

// promise 17
#[test]
fn any_workspace_survives_the_way_out_and_in() {
    use proptest::prelude::*;
    let name = prop_oneof![Just("a"), Just("b"), Just("c.txt"), Just("ü")];
    let path = proptest::collection::vec(name, 1..4).prop_map(|parts| parts.join("/"));
    let what = prop_oneof![proptest::collection::vec(any::<u8>(), 0..200).prop_map(Some), Just(None),];
    let tree = proptest::collection::vec((path, what, 0u32..8), 0..12);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(64));
    runner
        .run(&tree, |tree| {
            let scratch = Scratch::new();
            let up = scratch.mkdir("up");
            for (path, what, bits) in tree {
                let at = format!("up/{path}");
                let free = scratch.path.join(&at).symlink_metadata().is_err();
                let parent = scratch.path.join(&at);
                let way =
                    parent.parent().unwrap().ancestors().all(|p| p.symlink_metadata().map_or(true, |m| m.is_dir()));
                if !free || !way {
                    continue;
                }
                match (what, bits) {
                    (Some(bytes), _) => scratch.file(&at, &bytes),
                    (None, 0..3) => scratch.strike(&at),
                    (None, 3..5) => scratch.opaque(&at),
                    (None, _) => {
                        std::fs::create_dir_all(parent.parent().unwrap()).unwrap();
                        scratch.link(&at, "../x");
                    }
                }
            }
            let bytes = exported(&[&up]);
            let (other, imported) = taken(&bytes);
            imported.unwrap();
            prop_assert_eq!(items(&[&up]), items(&[&other.mkdir("up")]));
            Ok(())
        })
        .unwrap();
}
