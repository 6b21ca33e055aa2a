//! Attacks by a guest or a caller: paths and links that lead out, swaps during a call, files that block, hostile names.

use crate::fixture::{CANARY, StopOnDrop, WorkspaceFixture, kind, rel};
use api::{FileEntry, FileKind, Rel};
use node::files::write::WriteOptions;
use node::files::{change, copy, list, read, search, tar, write};
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, RenameFlags};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use terms::ErrorKind;

/// Links of every kind, and their possible targets.
fn with_links() -> WorkspaceFixture {
    let fixture = WorkspaceFixture::new();
    fixture.put("in/file", "inside");
    let links = [
        ("up", "..".to_owned()),
        ("twin", "../ws-evil".into()),
        ("out", fixture.outside.to_str().unwrap().into()),
        ("canary", fixture.outside.join("canary").to_str().unwrap().into()),
        ("in/over", "../../ws-evil/canary".into()),
        ("loop", "loop".into()),
        ("proc", "/proc/self/root".into()),
        ("near", "in/file".into()),
        ("round", "in/../in/./file".into()),
        ("abs", fixture.ws.join("in/file").to_str().unwrap().into()),
        ("absdir", format!("{}//in/", fixture.ws.display())),
        ("chain", "absdir/../near".into()),
    ];
    for (name, target) in links {
        symlink(target, fixture.ws.join(name)).unwrap();
    }
    fixture.own_below(&fixture.ws);
    fixture
}

#[test]
fn links_are_followed_inside_and_never_out() {
    let fixture = with_links();
    for name in ["near", "round", "abs", "absdir/file", "chain", "in/file"] {
        assert_eq!(fixture.read(name).unwrap(), b"inside", "{name}");
    }
    for name in
        ["twin/canary", "out/canary", "canary", "in/over", "up/ws-evil/canary", "up/ws/in/file", "proc/etc/passwd"]
    {
        assert_eq!(kind(fixture.read(name)), ErrorKind::PolicyDenied, "{name}");
        assert_eq!(kind(fixture.write(name, b"!", WriteOptions::default())), ErrorKind::PolicyDenied, "{name}");
        let inside = WriteOptions { parents: true, append: true, ..WriteOptions::default() };
        assert_eq!(kind(fixture.write(name, b"!", inside)), ErrorKind::PolicyDenied, "{name}");
    }
    let root = fixture.root();
    assert_eq!(kind(fixture.read("loop")), ErrorKind::Conflict);
    assert_eq!(kind(list::list(&root, &rel("twin"), &list::ListOptions::default())), ErrorKind::PolicyDenied);
    assert_eq!(kind(change::mkdir(&root, &rel("out/new"), true, None)), ErrorKind::PolicyDenied);
    assert_eq!(kind(change::chmod(&root, &rel("canary"), 0o777)), ErrorKind::PolicyDenied);
    assert_eq!(kind(change::rename(&root, &rel("near"), &rel("out/near"), true)), ErrorKind::PolicyDenied);
    assert_eq!(kind(change::remove(&root, &rel("out/canary"), true)), ErrorKind::PolicyDenied);
    assert_eq!(
        kind(copy::copy(&root, &rel("out/canary"), &rel("c"), &copy::CopyOptions::default())),
        ErrorKind::PolicyDenied
    );
    assert_eq!(kind(tar::pack(&root, &rel("out"), &mut Vec::new(), &mut drop)), ErrorKind::PolicyDenied);
    assert_eq!(list::stat(&root, &rel("canary"), false).unwrap().kind, FileKind::Symlink, "the link itself is seen");
    assert_eq!(
        fixture.write("near", b"through", WriteOptions::default()).unwrap().path,
        rel("in/file"),
        "as the guest would"
    );
    assert_eq!(fixture.read("in/file").unwrap(), b"through");
    let everything = search::SearchOptions { content: Some(".".into()), ..search::SearchOptions::default() };
    let found = search::search(&root, &Rel::top(), &everything).unwrap();
    assert!(found.matches.iter().all(|m| m.path == rel("in/file")), "{found:?}");
    fixture.outside_is_untouched();
}

#[test]
fn paths_that_are_none_are_refused() {
    let fixture = WorkspaceFixture::new();
    fixture.put("f", "x");
    let root = fixture.root();
    let twin = fixture.outside.join("canary");
    for bad in ["", "..", "../ws-evil/canary", "a/../../x", "/", "/etc/passwd", "a\0b", twin.to_str().unwrap()] {
        assert_eq!(kind(root.path(bad.as_bytes())), ErrorKind::InvalidRequest, "{bad:?}");
    }
    assert_eq!(kind(root.path(&vec![b'a'; 65_537])), ErrorKind::InvalidRequest);
    assert_eq!(kind(fixture.read(&"n".repeat(256))), ErrorKind::InvalidRequest, "longer than a name can be");
    let slashed = format!("{}/", fixture.ws.display());
    for (good, want) in [(".", ""), ("./f", "f"), ("f//", "f"), (fixture.ws.to_str().unwrap(), ""), (&slashed, "")] {
        assert_eq!(root.path(good.as_bytes()).unwrap(), rel(want), "{good:?}");
    }
}

fn part() -> impl Strategy<Value = String> {
    let known =
        "..|.||ws|ws-evil|canary|in|file|up|twin|out|over|loop|abs|absdir|chain|proc|self|root|etc|passwd|near|x";
    prop_oneof![
        8 => proptest::sample::select(known.split('|').collect::<Vec<_>>()).prop_map(str::to_owned),
        1 => "[a-z\\\\%\n]{1,4}".prop_map(|s| s),
    ]
}

#[test]
fn no_path_reads_or_writes_what_is_outside() {
    let fixture = with_links();
    let mut inside = 0;
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(1000));
    let shape = (any::<bool>(), any::<bool>(), proptest::collection::vec(part(), 1..7));
    let seen = std::cell::RefCell::new(&mut inside);
    runner
        .run(&shape, |(absolute, own, parts)| {
            let path = match (absolute, own) {
                (false, _) => parts.join("/"),
                (true, true) => format!("{}/{}", fixture.ws.display(), parts.join("/")),
                (true, false) => format!("{}/{}", fixture.top.display(), parts.join("/")),
            };
            if let Ok(found) = fixture.read(&path) {
                prop_assert!(found != CANARY.as_bytes() && !found.starts_with(b"root:"), "{path:?}");
                **seen.borrow_mut() += 1;
            }
            let fresh = WriteOptions { parents: true, ..WriteOptions::default() };
            let _ = fixture.root().path(format!("{path}/made").as_bytes()).map(|at| {
                let _ = write::write(fixture.root(), &at, fresh, &mut &b"x"[..]);
            });
            Ok(())
        })
        .unwrap();
    assert!(inside > 3, "some paths do lead to a file: {inside}");
    fixture.outside_is_untouched();
    let beside: Vec<_> = fs::read_dir(&fixture.top).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(beside.len(), 2, "{beside:?}");
}

/// While a directory and a link to the outside are swapped all the time, no file outside is read or written.
#[test]
fn swaps_in_mid_way_lead_nowhere() {
    let fixture = WorkspaceFixture::new();
    fixture.put("d/canary", "inside");
    symlink(&fixture.outside, fixture.ws.join("l")).unwrap();
    fixture.put("f", "inside");
    symlink(fixture.outside.join("canary"), fixture.ws.join("fl")).unwrap();
    fixture.own_below(&fixture.ws);
    let stop = AtomicBool::new(false);
    let (mut reads, mut writes, mut refused) = (0u32, 0u32, 0u32);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            let at = |name: &str| fixture.ws.join(name);
            while !stop.load(Ordering::Relaxed) {
                let _ = rustix::fs::renameat_with(CWD, at("d"), CWD, at("l"), RenameFlags::EXCHANGE);
                let _ = rustix::fs::renameat_with(CWD, at("f"), CWD, at("fl"), RenameFlags::EXCHANGE);
            }
        });
        let root = fixture.root();
        for round in 0..20_000 {
            let path = rel(if round % 2 == 0 { "d/canary" } else { "f" });
            if round % 20 < 19 {
                match read::open(&root, &path).map(|mut reading| reading.piece()) {
                    Ok(piece) => {
                        let piece = piece.unwrap().unwrap();
                        assert!(piece == b"inside" || piece == b"written", "{piece:?} was read in round {round}");
                        reads += 1;
                    }
                    Err(_) => refused += 1,
                }
                continue;
            }
            match write::write(fixture.root(), &path, WriteOptions::default(), &mut &b"written"[..]) {
                Ok(_) => writes += 1,
                Err(_) => refused += 1,
            }
        }
    });
    assert!(reads > 200 && writes > 20, "what is inside is reached: {reads} reads, {writes} writes");
    assert!(refused > 20, "and the swaps did happen: {refused}");
    fixture.outside_is_untouched();
}

#[test]
fn what_blocks_is_listed_and_never_opened() {
    let fixture = WorkspaceFixture::new();
    let at = |name: &str| fixture.ws.join(name);
    rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    let mut special = vec!["fifo", "socket"];
    if fixture.is_root()
        && rustix::fs::mknodat(CWD, at("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), 0x103).is_ok()
    {
        special.push("null");
    }
    fixture.own_below(&fixture.ws);
    fixture.put("file", "needle");
    let began = Instant::now();
    for name in &special {
        assert_eq!(kind(fixture.read(name)), ErrorKind::Conflict, "{name}");
        for append in [true, false] {
            assert_eq!(
                kind(fixture.write(name, b"x", WriteOptions { append, ..WriteOptions::default() })),
                ErrorKind::Conflict,
                "{name}"
            );
        }
        assert_eq!(
            kind(copy::copy(&fixture.root(), &rel(name), &rel("c"), &copy::CopyOptions::default())),
            ErrorKind::Conflict
        );
        assert_ne!(list::stat(&fixture.root(), &rel(name), true).unwrap().kind, FileKind::File);
    }
    let all = search::SearchOptions { content: Some("needle".into()), ..search::SearchOptions::default() };
    assert_eq!(search::search(&fixture.root(), &Rel::top(), &all).unwrap().matches.len(), 1);
    let mut left_out = tar::LeftOut::default();
    let packed = tar::pack(&fixture.root(), &Rel::top(), &mut Vec::new(), &mut |found| left_out = found).unwrap();
    assert_eq!((packed.entries, left_out.count), (1, special.len() as u64), "what is special is counted");
    assert!(special.iter().all(|name| left_out.paths.contains(&rel(name))), "and named: {left_out:?}");
    for name in &special {
        let named = tar::pack(&fixture.root(), &rel(name), &mut Vec::new(), &mut drop);
        assert_eq!(kind(named), ErrorKind::Conflict, "{name}");
    }
    assert!(began.elapsed() < Duration::from_secs(180), "no open blocked on a FIFO");
    assert_eq!(fixture.read("file").unwrap(), b"needle");
    assert_eq!(change::remove(&fixture.root(), &rel("fifo"), false).unwrap().files, 1);
}

/// A lease makes an open wait for up to a minute.
#[test]
fn a_lease_holds_nobody_up() {
    let fixture = WorkspaceFixture::new();
    fixture.put("leased", "x");
    fixture.put("free", "x");
    let holder = "import fcntl,os,signal,sys\nsignal.signal(signal.SIGIO,lambda *a:None)\nf=os.open(sys.argv[1],os.O_RDWR)\n\
                  fcntl.fcntl(f,fcntl.F_SETLEASE,fcntl.F_WRLCK)\nprint('held',flush=True)\nsys.stdin.read()";
    let mut child = std::process::Command::new("python3")
        .args(["-c", holder, fixture.ws.join("leased").to_str().unwrap()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line, "held\n");
    let began = Instant::now();
    let fault = fixture.read("leased").unwrap_err();
    assert_eq!((fault.error_kind, fault.retry), (ErrorKind::Conflict, terms::Retry::Later));
    assert!(began.elapsed() < Duration::from_secs(180));
    assert_eq!(fixture.read("free").unwrap(), b"x");
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(fixture.read("leased").unwrap(), b"x");
}

#[test]
fn another_name_of_a_file_keeps_what_it_had() {
    let fixture = WorkspaceFixture::new();
    fixture.put("a", "shared");
    fs::hard_link(fixture.ws.join("a"), fixture.top.join("elsewhere")).unwrap();
    assert_eq!(list::stat(&fixture.root(), &rel("a"), true).unwrap().links, 2, "told");
    fixture.write("a", b"new", WriteOptions::default()).unwrap();
    assert_eq!(fs::read(fixture.top.join("elsewhere")).unwrap(), b"shared");
    assert_eq!(fixture.read("a").unwrap(), b"new");
    fs::remove_file(fixture.top.join("elsewhere")).unwrap();
}

#[test]
fn hostile_names_go_through_every_verb_byte_for_byte() {
    let fixture = WorkspaceFixture::new();
    let mut longest = vec![b'n'; 255];
    longest[254] = 0xff;
    let names: [&[u8]; 14] = [
        b"new\nline",
        b"\x1b[31mred",
        b"bad\xff\xfeutf8",
        &longest,
        b"-rf",
        b"--help",
        "caf\u{e9}".as_bytes(),
        "cafe\u{301}".as_bytes(),
        b"Case",
        b"case",
        "\u{202e}txt.exe".as_bytes(),
        b"...",
        b"back\\slash",
        b"%2e%2e",
    ];
    let root = fixture.root();
    for name in names {
        let path = root.path(name).unwrap();
        let made = write::write(fixture.root(), &path, WriteOptions::default(), &mut &name[..]).unwrap();
        let json = serde_json::to_string(&made).unwrap();
        let back: FileEntry = serde_json::from_str(&json).unwrap();
        assert_eq!(back.path.as_bytes(), name, "nothing is lost in {json}");
    }
    let on_disk: std::collections::BTreeSet<Vec<u8>> =
        fs::read_dir(&fixture.ws).unwrap().map(|e| e.unwrap().file_name().as_bytes().to_vec()).collect();
    assert_eq!(on_disk, names.iter().map(|n| n.to_vec()).collect());
    let listed =
        list::list(&root, &Rel::top(), &list::ListOptions { limit: 3, ..list::ListOptions::default() }).unwrap();
    let next =
        list::list(&root, &Rel::top(), &list::ListOptions { after: listed.next, ..list::ListOptions::default() })
            .unwrap();
    let listed_paths: Vec<Vec<u8>> =
        listed.entries.iter().chain(&next.entries).map(|e| e.path.as_bytes().to_vec()).collect();
    assert_eq!(listed_paths, on_disk.iter().cloned().collect::<Vec<_>>(), "cursors are as exact as names");
    for name in names {
        let (path, to) = (root.path(name).unwrap(), rel("moved"));
        change::rename(&root, &path, &to, false).unwrap();
        change::rename(&root, &to, &path, false).unwrap();
        assert_eq!(crate::fixture::all_of(read::open(&root, &path).unwrap()).unwrap(), name);
        change::remove(&root, &path, false).unwrap();
    }
    assert_eq!(fs::read_dir(&fixture.ws).unwrap().count(), 0);
}

/// Under a root daemon the guest's permissions decide, and new files belong to the guest.
#[test]
fn nobody_gets_more_than_the_guest_may() {
    let fixture = WorkspaceFixture::new();
    fixture.put("mine", "x");
    fs::write(fixture.ws.join("shut"), CANARY).unwrap();
    fs::set_permissions(fixture.ws.join("shut"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::create_dir(fixture.ws.join("dir")).unwrap();
    fs::set_permissions(fixture.ws.join("dir"), fs::Permissions::from_mode(0o000)).unwrap();
    assert_eq!(kind(fixture.read("shut")), ErrorKind::PolicyDenied);
    assert_eq!(kind(fixture.write("dir/x", b"", WriteOptions::default())), ErrorKind::PolicyDenied);
    let listing =
        list::list(&fixture.root(), &Rel::top(), &list::ListOptions { depth: 3, ..list::ListOptions::default() })
            .unwrap();
    assert_eq!((listing.entries.len(), listing.shut), (3, 1), "it is there, and that it is shut is told");
    assert_eq!(fixture.read("mine").unwrap(), b"x");
    fixture.write("made", b"x", WriteOptions::default()).unwrap();
    assert_eq!(fs::metadata(fixture.ws.join("made")).unwrap().uid(), fixture.owner.0);
    let me = fs::metadata("/proc/self").unwrap().uid();
    fs::write(fixture.top.join("own"), "x").unwrap();
    assert_eq!(fs::metadata(fixture.top.join("own")).unwrap().uid(), me, "and this thread is itself again");
    fs::set_permissions(fixture.ws.join("dir"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn depth_beyond_any_path_is_no_trouble() {
    let fixture = WorkspaceFixture::new();
    let root = fixture.root();
    let deep = vec!["deep"; 1500].join("/");
    change::mkdir(&root, &rel(&deep), true, None).unwrap();
    write::write(fixture.root(), &rel(&format!("{deep}/f")), WriteOptions::default(), &mut &b"x"[..]).unwrap();
    assert_eq!(fixture.read(&format!("{deep}/f")).unwrap(), b"x");
    let found = search::search(
        &root,
        &Rel::top(),
        &search::SearchOptions { globs: vec!["f".into()], ..search::SearchOptions::default() },
    );
    assert_eq!(found.unwrap().matches[0].path.parts().count(), 1501);
    assert_eq!(change::remove(&root, &rel("deep"), true).unwrap().dirs, 1500);
}
