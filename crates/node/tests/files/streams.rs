//! Tar streams out of a workspace and into it, with every known attack on them.

use crate::fixture::{CANARY, WorkspaceFixture, kind, rel};
use api::{FilesUnpacked, Rel};
use node::files::{Root, WriteAllowance, list, tar};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};
use terms::{ErrorKind, Fault};

fn pack(fixture: &WorkspaceFixture, path: &str) -> Vec<u8> {
    let mut out = Vec::new();
    tar::pack(&fixture.root(), &rel(path), &mut out, &mut drop).unwrap();
    out
}

fn unpack(root: &Root, path: &str, bytes: &[u8]) -> Result<FilesUnpacked, Fault> {
    tar::unpack(root, &rel(path), &mut &bytes[..])
}

/// A tar stream written by Python.
fn python(code: &str) -> Vec<u8> {
    let code = format!(
        "import tarfile,io,sys\nt=tarfile.open(fileobj=sys.stdout.buffer,mode='w|')\n\
        def add(name,data=b'x',**k):\n i=tarfile.TarInfo(name)\n i.size=len(data) if 'type' not in k else 0\n\
        \x20for a,b in k.items(): setattr(i,a,b)\n t.addfile(i,io.BytesIO(data))\n{code}\nt.close()"
    );
    let done = Command::new("python3").args(["-c", &code]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

#[test]
fn a_tree_goes_out_and_in_again_the_same() {
    let fixture = WorkspaceFixture::new();
    fixture.put("d/sub/file", "text");
    fixture.put(&format!("d/{}/{}", "long".repeat(40), "name".repeat(50)), "far");
    fs::set_permissions(fixture.ws.join("d/sub/file"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("/nowhere", fixture.ws.join("d/link")).unwrap();
    fs::write(fixture.ws.join("d/empty"), "").unwrap();
    fixture.own_below(&fixture.ws);
    let bytes = pack(&fixture, "d");
    assert_eq!(bytes, pack(&fixture, "d"), "the same tree gives the same bytes");
    let made = unpack(&fixture.root(), "copy/of", &bytes).unwrap();
    assert_eq!((made.entries, made.bytes, made.stripped), (6, 7, 0));
    assert_eq!(pack(&fixture, "copy/of").len(), bytes.len());
    assert_eq!(fixture.read("copy/of/sub/file").unwrap(), b"text");
    let found = list::stat(&fixture.root(), &rel("copy/of/sub/file"), true).unwrap();
    assert_eq!(found.mode, 0o750);
    assert_eq!(fs::metadata(fixture.ws.join("copy/of/sub/file")).unwrap().uid(), fixture.owner.0);
    assert_eq!(found.modified_ms / 1000, fs::metadata(fixture.ws.join("d/sub/file")).unwrap().mtime());
    // GNU tar reads the stream, too.
    let mut child = Command::new("tar").args(["-t"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let listing = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(listing.lines().count(), 6, "{listing}");
    let one = pack(&fixture, "d/sub/file");
    unpack(&fixture.root(), "single", &one).unwrap();
    assert_eq!(fixture.read("single/file").unwrap(), b"text");
}

/// On the host a stream creates files, directories and links, and opens no existing file.
#[test]
fn nothing_special_comes_to_the_host() {
    let fixture = WorkspaceFixture::new();
    let root = fixture.root();
    fixture.put("there/mine", "mine");
    fs::set_permissions(fixture.ws.join("there"), fs::Permissions::from_mode(0o700)).unwrap();
    fixture.own_below(&fixture.ws);
    let stream = python(
        "add('f',b'new',mode=0o6755)\nadd('there/',type=tarfile.DIRTYPE,mode=0o777)\nadd('new/',type=tarfile.DIRTYPE,mode=0o2755)\n\
        add('p',type=tarfile.FIFOTYPE,mode=0o600)\nadd('c',type=tarfile.CHRTYPE)\nadd('there/b',type=tarfile.BLKTYPE)\n\
        add('s',type=tarfile.SYMTYPE,linkname='/etc/passwd')\nadd('hard',type=tarfile.LNKTYPE,linkname='f')\nadd('last',b'x')",
    );
    let (made, left_out) = tar::unpack_here(&root, &mut &stream[..]).unwrap();
    assert_eq!((made.entries, made.stripped), (6, 2), "{left_out:?}");
    assert_eq!((left_out.count, left_out.paths), (3, vec![rel("p"), rel("c"), rel("there/b")]));
    let names =
        |dir: &str| fs::read_dir(fixture.ws.join(dir)).unwrap().flatten().map(|e| e.file_name()).collect::<Vec<_>>();
    assert!(["p", "c"].iter().all(|name| !names(".").contains(&(*name).into())), "{:?}", names("."));
    assert_eq!(names("there"), ["mine"]);
    let bits = |name: &str| fs::symlink_metadata(fixture.ws.join(name)).unwrap().mode() & 0o7777;
    assert_eq!((bits("there"), bits("new"), bits("f")), (0o700, 0o755, 0o755));
    assert_eq!(fs::read(fixture.ws.join("last")).unwrap(), b"x", "what comes after them is there");
    for out in [
        "add('h',type=tarfile.LNKTYPE,linkname='/etc/passwd')",
        "add('s/x')",
        "add('h',type=tarfile.LNKTYPE,linkname='s')",
    ] {
        let refused = tar::unpack_here(&root, &mut &python(out)[..]);
        assert_eq!(kind(refused), ErrorKind::InvalidRequest, "{out}");
    }
}

#[test]
fn what_other_programs_write_is_taken() {
    let fixture = WorkspaceFixture::new();
    let root = fixture.root();
    fixture.put("f", "old");
    let stream = python(
        "add('f',b'new',mode=0o600)\nadd('./a/b/',type=tarfile.DIRTYPE,mode=0o755)\nadd('n/'+'\\u00e9'*120,b'pax')\n\
        add('suid',b'x',mode=0o4755)\nadd('hard',type=tarfile.LNKTYPE,linkname='f')\nadd('p',type=tarfile.FIFOTYPE,mode=0o600)\n\
        add('s',type=tarfile.SYMTYPE,linkname='../'*50+'etc/passwd')",
    );
    let made = unpack(&root, ".", &stream).unwrap();
    assert_eq!((made.entries, made.stripped), (7, 1));
    assert_eq!(fixture.read("f").unwrap(), b"new", "replaced");
    assert_eq!(fixture.read("hard").unwrap(), b"new");
    assert_eq!(fixture.read(&format!("n/{}", "\u{e9}".repeat(120))).unwrap(), b"pax");
    assert_eq!(list::stat(&root, &rel("suid"), true).unwrap().mode, 0o755);
    assert_eq!(kind(fixture.read("s")), ErrorKind::PolicyDenied, "a link is only a link");
}

#[test]
fn every_trick_of_a_stream_is_refused() {
    let fixture = WorkspaceFixture::new();
    fixture.put("kept/f", "kept");
    symlink(&fixture.outside, fixture.ws.join("out")).unwrap();
    fixture.own_below(&fixture.ws);
    let tricks = [
        ("up", "add('../ws-evil/x')"),
        ("up in the middle", "add('a/../../ws-evil/x')"),
        ("absolute", "add('/tmp/cofferdam-never')"),
        ("over a link that is there", "add('out/x')"),
        ("over a link of its own", "add('l',type=tarfile.SYMTYPE,linkname='../ws-evil')\nadd('l/x')"),
        ("a link in place of a directory", "add('kept',type=tarfile.SYMTYPE,linkname='../ws-evil')\nadd('kept/f')"),
        ("hard link up", "add('h',type=tarfile.LNKTYPE,linkname='../ws-evil/canary')"),
        ("hard link to an absolute name", "add('h',type=tarfile.LNKTYPE,linkname='/etc/passwd')"),
        ("hard link over a link", "add('h',type=tarfile.LNKTYPE,linkname='out/canary')"),
        (
            "hard link to a link",
            "add('l2',type=tarfile.SYMTYPE,linkname='/etc/passwd')\nadd('h',type=tarfile.LNKTYPE,linkname='l2')",
        ),
        ("device", "add('dev',type=tarfile.CHRTYPE,devmajor=1,devminor=3)"),
        ("block device", "add('dev',type=tarfile.BLKTYPE,devmajor=7,devminor=0)"),
        ("a file over a directory", "add('kept')"),
        ("a directory over a file", "add('kept/f',type=tarfile.DIRTYPE)"),
        ("a name too long", "add('n'*300)"),
    ];
    for (trick, code) in tricks {
        let fault = unpack(&fixture.root(), ".", &python(code)).unwrap_err();
        assert_eq!(fault.error_kind, ErrorKind::InvalidRequest, "{trick}: {fault}");
    }
    fixture.outside_is_untouched();
    assert_eq!(fixture.read("kept/f").unwrap(), b"kept");
    assert!(!fixture.ws.join("h").exists() && !fixture.ws.join("dev").exists());
    unpack(&fixture.root(), ".", &python("add('kept/f',b'fine')")).unwrap();
    assert_eq!(fixture.read("kept/f").unwrap(), b"fine", "the control");
    let canary = fs::read_to_string(fixture.outside.join("canary")).unwrap();
    assert_eq!(canary, CANARY);
}

#[test]
fn streams_end_at_their_bounds_and_not_before() {
    let fixture = WorkspaceFixture::new();
    let stream = python("for n in range(5): add(f'f{n}',b'x'*100)");
    let with = |bytes, files| fixture.root().with_room(WriteAllowance { bytes: Some(bytes), files: Some(files) });
    assert_eq!(unpack(&with(500, 5), "exact", &stream).unwrap().entries, 5);
    assert_eq!(kind(unpack(&with(499, 5), "bytes", &stream)), ErrorKind::LimitExceeded);
    assert_eq!(kind(unpack(&with(500, 4), "files", &stream)), ErrorKind::LimitExceeded);
    assert_eq!(fs::read_dir(fixture.ws.join("files")).unwrap().count(), 4, "up to the bound");
    // A header with an absurd size is refused before the data is read.
    let huge = python(
        "i=tarfile.TarInfo('big')\ni.size=1<<60\nsys.stdout.buffer.write(i.tobuf(tarfile.GNU_FORMAT))\nsys.stdout.flush()\nimport os\nos._exit(0)",
    );
    assert_eq!(kind(unpack(&fixture.root(), "huge", &huge)), ErrorKind::LimitExceeded);
    for cut in [100, 700, 1000, 1500] {
        let fault = unpack(&fixture.root(), "cut", &stream[..cut]).unwrap_err();
        assert_eq!(fault.error_kind, ErrorKind::InvalidRequest, "cut at {cut}: {fault}");
    }
    assert_eq!(kind(unpack(&fixture.root(), "noise", &[b'?'; 2048])), ErrorKind::InvalidRequest);
    assert_eq!(unpack(&fixture.root(), "none", &[0; 1024]).unwrap().entries, 0);
    assert_eq!(list::list(&fixture.root(), &Rel::top(), &list::ListOptions::default()).unwrap().next, None);
}
