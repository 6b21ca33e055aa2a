//! Files of sandboxes over HTTP and by the command line, live, not live and stopped: paths that must stay out of
//! reach, and a base that stays unchanged.

use crate::support::http::{Answer, Daemon, receive};
use crate::support::{As, Place};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

struct FilesFixture {
    place: Place,
    daemon: Daemon,
    id: String,
}

impl FilesFixture {
    fn new(who: As) -> FilesFixture {
        FilesFixture::with(who, json!({}))
    }

    fn with(who: As, more: Value) -> FilesFixture {
        let place = Place::new(who);
        for (path, text) in [("a.txt", "0123456789"), ("src/main.rs", "fn main() {}\n"), ("src/lib.rs", "// needle\n")]
        {
            place.file(place.project.join(path), text);
        }
        let daemon = Daemon::start(&place);
        let mut ask = json!({ "dir": place.project });
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let id = daemon.post("/v1/sandboxes", ask).assert_ok()["id"].as_str().unwrap().to_owned();
        FilesFixture { place, daemon, id }
    }

    fn url(&self, verb: &str, query: &str) -> String {
        format!("/v1/sandboxes/{}/files/{verb}?{query}", self.id)
    }

    fn get(&self, verb: &str, query: &str) -> Answer {
        self.daemon.get(&self.url(verb, query))
    }

    fn put(&self, query: &str, bytes: &[u8]) -> Answer {
        self.daemon.ask("PUT", &self.url("content", query)).body("application/octet-stream", bytes).send()
    }

    fn post(&self, verb: &str, ask: Value) -> Answer {
        self.daemon.post(&format!("/v1/sandboxes/{}/files/{verb}", self.id), ask)
    }

    fn exec(&self, script: &str) -> Output {
        self.place.cofferdam(["exec", &self.id, "--", "/bin/sh", "-ec", script]).output().unwrap()
    }

    /// Runs a script inside and returns its output.
    fn inside(&self, script: &str) -> String {
        let done = self.exec(script);
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    fn base_is_untouched(&self) {
        let base = &self.place.project;
        assert_eq!(fs::read_to_string(base.join("a.txt")).unwrap(), "0123456789");
        let mut names: Vec<_> = fs::read_dir(base).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a.txt", "src"], "nothing reached the base");
    }
}

/// Uploads over HTTP are what a command inside sees, and the other way round, as root and as an ordinary user.
// promise 20
#[test]
fn both_sides_see_the_same_files() {
    for who in [As::Root, As::User] {
        let fixture = FilesFixture::new(who);
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 % 251) as u8).collect();
        let made = fixture.put("path=deep/er/big.bin&parents=true&mode=640", &bytes);
        let entry = made.assert_ok();
        assert_eq!((entry["size"].as_u64(), entry["mode"].as_str()), (Some(3_000_000), Some("640")));
        assert_eq!(made.header("etag").unwrap().trim_matches('"'), entry["etag"].as_str().unwrap());
        let seen = fixture.inside("wc -c < deep/er/big.bin; stat -c '%u %a' deep/er/big.bin");
        let uid = fixture.inside("id -u");
        assert_eq!(
            seen,
            format!(
                "3000000
{} 640
",
                uid.trim()
            ),
            "the guest owns it"
        );
        assert_eq!(fixture.get("content", "path=deep/er/big.bin").body, bytes);
        fixture.inside("echo changed >> a.txt; mkdir made; echo inside > made/here");
        assert_eq!(fixture.get("content", "path=a.txt").text(), "0123456789changed\n");
        let base = fixture.place.project.to_str().unwrap().replace('/', "%2F");
        assert_eq!(
            fixture.get("content", &format!("path={base}%2Fmade%2Fhere")).text(),
            "inside\n",
            "by its name inside"
        );
        assert_eq!(fixture.put("path=a.txt&append=true", b"more").assert_ok()["size"], 22);
        assert_eq!(fixture.inside("cat a.txt"), "0123456789changed\nmore");
        assert_eq!(fixture.post("mkdir", json!({ "path": "d/e", "parents": true })).assert_ok()["kind"], "dir");
        assert_eq!(fixture.post("chmod", json!({ "path": "made/here", "mode": "600" })).assert_ok()["mode"], "600");
        assert_eq!(
            fixture.post("copy", json!({ "from": "made", "to": "d/copy", "recursive": true })).assert_ok()["files"],
            1
        );
        // A directory of the base cannot be renamed in a layer; the rename is done by copying.
        let moved = fixture.post("rename", json!({ "from": "src", "to": "lib" })).assert_ok();
        assert_eq!((moved["path"].as_str(), moved["kind"].as_str()), (Some("lib"), Some("dir")));
        assert_eq!(fixture.post("remove", json!({ "path": "made", "recursive": true })).assert_ok()["files"], 1);
        assert_eq!(fixture.inside("ls; cat lib/main.rs d/copy/here"), "a.txt\nd\ndeep\nlib\nfn main() {}\ninside\n");
        let found = fixture.get("search", "path=.&content=needle").assert_ok();
        assert_eq!(
            (found["matches"][0]["path"].as_str(), found["complete"].as_bool()),
            (Some("lib/lib.rs"), Some(true))
        );
        fixture.base_is_untouched();
    }
}

#[test]
fn parts_and_versions_of_a_file() {
    let fixture = FilesFixture::new(As::Root);
    let at = fixture.url("content", "path=a.txt");
    let ask = |name: &str, value: &str| fixture.daemon.ask("GET", &at).header(name, value).send();
    let whole = fixture.daemon.get(&at);
    assert_eq!((whole.status, whole.header("content-type")), (200, Some("application/octet-stream")));
    assert_eq!((whole.header("content-length"), whole.header("accept-ranges")), (Some("10"), Some("bytes")));
    let part = ask("range", "bytes=2-4");
    assert_eq!((part.status, part.text().as_str(), part.header("content-range")), (206, "234", Some("bytes 2-4/10")));
    assert_eq!(ask("range", "bytes=-3").text(), "789");
    assert_eq!(ask("range", "bytes=0-1,4-5").status, 200, "several ranges are answered with all");
    let past = ask("range", "bytes=10-");
    past.assert_fault(416, "invalid_request");
    assert_eq!(past.header("content-range"), Some("bytes */10"));
    ask("range", "bytes=x").assert_fault(400, "invalid_request");
    let tag = whole.header("etag").unwrap().to_owned();
    let resumed = |had: &str| {
        let part = fixture.daemon.ask("GET", &at).header("range", "bytes=2-4").header("if-range", had).send();
        (part.status, part.text())
    };
    assert_eq!(resumed(&tag), (206, "234".into()), "a part of what the caller has the rest of");
    for other in ["\"another\"", &format!("W/{tag}"), "Wed, 21 Oct 2015 07:28:00 GMT"] {
        assert_eq!(resumed(other), (200, "0123456789".into()), "{other}: parts of two versions would make neither");
    }
    assert_eq!(ask("if-range", &tag).status, 200, "without a range it says nothing");
    let known = ask("if-none-match", &tag);
    assert_eq!((known.status, known.body.len()), (304, 0));
    let ranged = fixture.daemon.ask("HEAD", &at).header("range", "bytes=2-4").send();
    assert_eq!((ranged.status, ranged.header("content-length")), (200, Some("10")), "a range is one of what is sent");
    let head = fixture.daemon.ask("HEAD", &at).send();
    assert_eq!((head.status, head.header("content-length")), (200, Some("10")));
    let put = |name: &str, value: &str, text: &[u8]| {
        fixture.daemon.ask("PUT", &at).header(name, value).body("application/octet-stream", text).send()
    };
    put("if-none-match", "*", b"new").assert_fault(409, "conflict");
    let second = put("if-match", &tag, b"second");
    assert_eq!(second.assert_ok()["size"], 6);
    put("if-match", &tag, b"third").assert_fault(409, "conflict");
    fixture.inside("printf guest > a.txt");
    put("if-match", second.header("etag").unwrap(), b"third").assert_fault(409, "conflict");
    put("if-match", "*", b"third").assert_ok();
    assert_eq!(fixture.daemon.get(&at).text(), "third");
    assert_eq!(resumed(&tag), (200, "third".into()), "the file is another by now");
    fixture.daemon.ask("PUT", &at).body("text/plain", b"x").send().assert_fault(415, "invalid_request");
    fixture.daemon.ask("PUT", &at).send().assert_ok();
    assert_eq!(fixture.daemon.get(&at).body, b"", "no body is an empty file");
    fixture.base_is_untouched();
}

/// Paths that the guest made unreadable are refused by full path before the first byte: a stream that has begun can
/// only break off.
#[test]
fn what_may_not_be_read_is_refused_by_name() {
    for who in [As::Root, As::User] {
        let fixture = FilesFixture::new(who);
        fixture.inside(
            "mkdir -p t/deep; echo ok > t/good; head -c 1000000 /dev/zero > t/big; echo needle > t/secret; chmod 0 t/secret",
        );
        let refused = |at: &str, named: &str| {
            let answer = fixture.get("archive", &format!("path={at}"));
            let fault = answer.assert_fault(403, "policy_denied");
            assert_eq!(fault["message"], format!("{named}: cannot pack it: no permission to read it"));
            assert_eq!((&fault["retry"], answer.header("retry-after")), (&json!("never"), None), "{fault}");
        };
        for at in ["t", ".", "t/secret"] {
            refused(at, "t/secret");
        }
        fixture.get("content", "path=t/secret").assert_fault(403, "policy_denied");
        let found = fixture.get("search", "path=t&content=needle").assert_ok();
        assert_eq!(
            found["skipped"],
            json!([{ "path": "t/secret", "why": "t/secret: cannot read it: the guest has no permission either" }])
        );
        fixture.post("chmod", json!({ "path": "t/secret", "mode": "600" })).assert_ok();
        let whole = fixture.get("archive", "path=t");
        assert_eq!((whole.status, whole.body.len() > 1_000_000), (200, true), "the control");
        fixture.inside("chmod 0 t/deep");
        refused("t", "t/deep");
        fixture.get("archive", "path=t/deep").assert_fault(403, "policy_denied");
        fixture.inside("chmod 700 t/deep");
        assert_eq!(fixture.get("archive", "path=t").status, 200, "the control");
    }
}

/// The fault of a failed rename names the path that is in the way.
#[test]
fn what_stands_in_the_way_of_a_rename_is_named() {
    let fixture = FilesFixture::new(As::Root);
    fixture.inside("mkdir empty full; echo x > full/x; echo f > f");
    let told = |from: &str, to: &str| {
        let fault = fixture.post("rename", json!({ "from": from, "to": to, "replace": true }));
        fault.assert_fault(409, "conflict")["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(told("f", "empty"), "empty: cannot put it there: it is a directory");
    assert_eq!(told("empty", "full"), "full: cannot put it there: the directory is not empty");
    assert_eq!(told("empty", "f"), "f: it is not a directory, and a directory cannot replace it");
    fixture.post("rename", json!({ "from": "f", "to": "full/x", "replace": true })).assert_ok();
    assert_eq!(fixture.inside("cat full/x"), "f\n", "the control");
}

/// A stopped sandbox can be read and written; no command runs meanwhile, and it stays stopped.
// promise 20
#[test]
fn stopped_sandboxes_have_files_too() {
    for who in [As::Root, As::User] {
        let fixture = FilesFixture::new(who);
        let at = format!("/v1/sandboxes/{}", fixture.id);
        fixture.put("path=before", b"x").assert_ok();
        fixture.daemon.ask("POST", &format!("{at}/stop")).send().assert_ok();
        assert_eq!(fixture.get("content", "path=a.txt").text(), "0123456789");
        fixture.put("path=new", b"from outside").assert_ok();
        let refused = fixture.exec("touch ran");
        assert!(!refused.status.success(), "a stopped sandbox runs nothing");
        assert_eq!(fixture.daemon.get(&at).assert_ok()["state"], "stopped");
        let names = fixture.get("list", "path=.").assert_ok();
        let names: Vec<_> = names["entries"].as_array().unwrap().iter().map(|e| e["path"].as_str().unwrap()).collect();
        assert_eq!(names, ["a.txt", "before", "new", "src"]);
        fixture.daemon.ask("POST", &format!("{at}/start")).send().assert_ok();
        assert_eq!(fixture.inside("cat new"), "from outside");
        fixture.base_is_untouched();
        fixture.daemon.ask("DELETE", &format!("{at}?force=true")).send().assert_ok();
        fixture.get("content", "path=a.txt").assert_fault(404, "not_found");
    }
}

/// Links that a guest plants lead nowhere, and file verbs give the guest nothing that its policy denies.
// promise 20
#[test]
fn nothing_outside_is_reached_through_a_sandbox() {
    let fixture = FilesFixture::new(As::Root);
    let secret = fixture.place.root.join("secret");
    fs::write(&secret, "what is outside").unwrap();
    fixture.inside(&format!(
        "ln -s {} out; ln -s / root; ln -s ../../.. up; ln -s src/main.rs in; ln -s $PWD/src abs; mkfifo pipe; ln a.txt hard; \
         mkdir shut; chmod 0 shut",
        secret.display()
    ));
    for path in ["out", "root/etc/passwd", "up/etc/passwd", "root/proc/self/environ"] {
        fixture.get("content", &format!("path={path}")).assert_fault(403, "policy_denied");
        fixture.put(&format!("path={path}"), b"!").assert_fault(403, "policy_denied");
    }
    for bad in [
        "path=",
        "path=..%2F..%2Fetc%2Fpasswd",
        "path=%2Fetc%2Fpasswd",
        "path=a%00b",
        "",
        "path=a&path=b",
        "path=a&x=1",
    ] {
        fixture.get("content", bad).assert_fault(400, "invalid_request");
    }
    assert_eq!(fixture.get("content", "path=in").text(), "fn main() {}\n", "links inside are followed");
    assert_eq!(
        fixture.get("content", "path=abs%2Fmain.rs").text(),
        "fn main() {}\n",
        "also those that name its own place"
    );
    let began = Instant::now();
    fixture.get("content", "path=pipe").assert_fault(409, "conflict");
    fixture.put("path=pipe", b"x").assert_fault(409, "conflict");
    assert!(began.elapsed() < Duration::from_secs(40), "a pipe does not block");
    assert_eq!(fixture.get("stat", "path=pipe").assert_ok()["kind"], "fifo");
    assert_eq!(fixture.get("stat", "path=out&follow=false").assert_ok()["kind"], "symlink");
    fixture.put("path=shut%2Fx", b"x").assert_fault(403, "policy_denied");
    fixture.post("chmod", json!({ "path": "a.txt", "mode": "4755" })).assert_fault(400, "invalid_request");
    fixture.put("path=hard&append=true", b"!").assert_ok();
    fixture.put("path=a.txt", b"replaced").assert_ok();
    assert_eq!(fixture.inside("cat hard"), "0123456789!", "another name keeps what it had");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "what is outside");
    fixture.base_is_untouched();
}

#[test]
fn names_come_through_byte_for_byte() {
    let fixture = FilesFixture::new(As::Root);
    let hostile = "path=bad%FF%0A%1B%5B31m-%2Bplus%20space";
    fixture.put(hostile, b"exact").assert_ok();
    assert_eq!(fixture.inside("cat \"$(printf 'bad\\377\\n\\033[31m-+plus space')\""), "exact");
    assert_eq!(fixture.get("content", "path=bad%ff%0a%1b[31m-%2Bplus+space").text(), "exact");
    let listed = fixture.get("list", "path=.").assert_ok();
    let name = listed["entries"].as_array().unwrap().iter().find(|e| e["path"].is_object()).unwrap()["path"].clone();
    let moved = fixture.post("rename", json!({ "from": name, "to": "plain" })).assert_ok();
    assert_eq!(moved["path"], "plain", "a name from a listing can be given back as it is");
    fixture.post("remove", json!({ "path": { "base64": "cGxhaW4=" } })).assert_fault(400, "invalid_request");
    fixture.post("remove", json!({ "path": "plain" })).assert_ok();
}

#[test]
fn archives_go_out_and_in() {
    let fixture = FilesFixture::new(As::User);
    let packed = fixture.get("archive", "path=src");
    assert_eq!((packed.status, packed.header("content-type")), (200, Some("application/x-tar")));
    let put = |query: &str, bytes: &[u8]| {
        fixture.daemon.ask("PUT", &fixture.url("archive", query)).body("application/x-tar", bytes).send()
    };
    assert_eq!(put("path=copy%2Fof", &packed.body).assert_ok()["entries"], 2);
    assert_eq!(fixture.inside("cat copy/of/main.rs"), "fn main() {}\n");
    assert_eq!(fixture.get("archive", "path=copy%2Fof").body, packed.body, "the same tree gives the same bytes");
    fixture.get("archive", "path=none").assert_fault(404, "not_found");
    let evil = tar(
        "import tarfile,io,sys\nt=tarfile.open(fileobj=sys.stdout.buffer,mode='w|')\ni=tarfile.TarInfo('../evil')\nt.addfile(i,io.BytesIO(b''))\nt.close()",
    );
    put("path=.", &evil).assert_fault(400, "invalid_request");
    put("path=.", &packed.body[..700]).assert_fault(400, "invalid_request");
    assert!(!fixture.place.project.join("../evil").exists());
    fixture.base_is_untouched();
}

fn tar(code: &str) -> Vec<u8> {
    Command::new("python3").args(["-c", code]).output().unwrap().stdout
}

/// Disk limits of the sandbox hold for uploads, and an upload that breaks off leaves nothing.
#[test]
fn uploads_end_at_the_sandboxs_limits() {
    let fixture = FilesFixture::with(As::Root, json!({ "limits": { "max_disk_mb": 1 } }));
    fixture.put("path=fits", &vec![b'x'; 900 << 10]).assert_ok();
    let fault = fixture.put("path=more", &vec![b'x'; 400 << 10]).assert_fault(413, "limit_exceeded");
    assert_eq!(fault["limit_kind"], "disk_mb");
    fixture.put("path=small", b"x").assert_ok();
    let mut stream = fixture.daemon.unix();
    let head = format!(
        "PUT {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\ncontent-length: 5000\r\n\r\nhalf",
        fixture.url("content", "path=half")
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    if let Some(answer) = receive(&mut stream) {
        answer.assert_fault(400, "invalid_request");
    }
    let end = Instant::now() + Duration::from_secs(180);
    while fixture.inside("ls -A") != "a.txt\nfits\nsmall\nsrc\n" {
        assert!(Instant::now() < end, "a draft is left: {}", fixture.inside("ls -A"));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn changes_are_told_as_they_happen() {
    let fixture = FilesFixture::new(As::Root);
    fixture.get("watch", "path=a.txt").assert_fault(409, "conflict");
    let mut open = fixture.daemon.ask("GET", &fixture.url("watch", "path=.&recursive=true")).open();
    assert!(open.until("event: ready"));
    fixture.inside("mkdir new; echo x > new/file; mv a.txt b.txt; rm new/file");
    assert!(open.until("\"removed\""), "{}", String::from_utf8_lossy(&open.text));
    let text = String::from_utf8_lossy(&open.text).into_owned();
    for want in [
        r#"{"what":"created","path":"new","is_dir":true}"#,
        r#""path":"new/file"}"#,
        r#"{"what":"renamed","path":"a.txt","to":"b.txt"}"#,
    ] {
        assert!(text.contains(want), "{want} in {text}");
    }
    fixture.daemon.ask("POST", &format!("/v1/sandboxes/{}/stop", fixture.id)).send().assert_ok();
    assert!(open.until("event: lost"), "{}", open.rest());
}

/// Scopes decide which file verbs a token may use, and tenants see their own files only.
#[test]
fn scopes_and_tenants_hold_for_files() {
    let fixture = FilesFixture::new(As::Root);
    let token = |name: &str, scope: &str, tenant: &str| {
        fixture.daemon.token(json!({ "name": name, "scopes": [scope], "tenant": tenant }))
    };
    let (reviewer, stranger) = (token("rita", "reviewer", "default"), token("eve", "agent", "other"));
    let ask = |token: &str, method: &str, query: &str| {
        let ask = fixture.daemon.ask(method, &fixture.url("content", query)).bearer(token);
        if method == "PUT" { ask.body("application/octet-stream", b"x").send() } else { ask.send() }
    };
    assert_eq!(ask(&reviewer, "GET", "path=a.txt").text(), "0123456789");
    ask(&reviewer, "PUT", "path=a.txt").assert_fault(403, "policy_denied");
    ask(&stranger, "GET", "path=a.txt").assert_fault(404, "not_found");
    ask(&stranger, "PUT", "path=a.txt").assert_fault(404, "not_found");
    fixture.put("path=w", b"x").assert_ok();
    let log = fixture.place.cofferdam(["audit", "log"]).output().unwrap();
    assert!(String::from_utf8_lossy(&log.stdout).contains("files.write"), "who wrote is in the journal");
}

fn cofferdam(fixture: &FilesFixture, args: &[&str], input: Option<&[u8]>) -> Output {
    let mut command = fixture.place.cofferdam(args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.unwrap_or_default().to_vec();
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let done = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    done
}

fn ok(done: Output) -> Vec<u8> {
    assert!(done.status.success(), "{done:?}");
    done.stdout
}

#[test]
fn the_command_line_copies_and_looks() {
    for who in [As::Root, As::User] {
        let fixture = FilesFixture::new(who);
        let at = |path: &str| format!("{}:{path}", fixture.id);
        let run = |args: &[&str]| cofferdam(&fixture, args, None);
        let here = fixture.place.root.join("here");
        fixture.place.dir(&here);
        fixture.place.file(here.join("tree/x/run.sh"), "#!/bin/sh\n");
        let path = |name: &str| here.join(name).to_str().unwrap().to_owned();
        ok(run(&["cp", &path("tree"), &at("in")]));
        ok(run(&["cp", &path("tree"), &at("in")]));
        assert_eq!(
            fixture.inside("cd in && find . -type f | sort"),
            "./tree/x/run.sh\n./x/run.sh\n",
            "into what is there"
        );
        ok(run(&["cp", &path("tree/."), &at(".")]));
        ok(cofferdam(&fixture, &["cp", "-", &at("from-pipe")], Some(b"piped")));
        assert_eq!(ok(run(&["cp", &at("from-pipe"), "-"])), b"piped");
        ok(run(&["cp", &at("from-pipe"), &path("")]));
        assert_eq!(fs::read(here.join("from-pipe")).unwrap(), b"piped");
        ok(run(&["cp", &at("in"), &path("out")]));
        assert_eq!(fs::read_to_string(here.join("out/tree/x/run.sh")).unwrap(), "#!/bin/sh\n");
        let stream = ok(run(&["cp", &at("in"), "-"]));
        ok(cofferdam(&fixture, &["cp", "--tar", "-", &at("again")], Some(&stream)));
        assert_eq!(fixture.inside("cat again/x/run.sh"), "#!/bin/sh\n");
        let listed = String::from_utf8(ok(run(&["files", "ls", &fixture.id]))).unwrap();
        assert!(listed.contains("from-pipe") && listed.contains("drwx"), "{listed}");
        ok(run(&["files", "mkdir", "-p", &at("m/n")]));
        ok(run(&["files", "mv", &at("from-pipe"), "m/n/moved"]));
        assert_eq!(ok(run(&["files", "cat", &at("m/n/moved")])), b"piped");
        let stat: Value = serde_json::from_slice(&ok(run(&["files", "stat", "--json", &at("m")]))).unwrap();
        assert_eq!(stat["kind"], "dir");
        let found =
            String::from_utf8(ok(run(&["files", "search", &fixture.id, "-e", "needle", "-g", "*.rs"]))).unwrap();
        assert_eq!(found, "src/lib.rs:1: // needle\n");
        assert_eq!(run(&["files", "search", &fixture.id, "-g", "*.none"]).status.code(), Some(1));
        assert_eq!(run(&["files", "rm", &at("m")]).status.code(), Some(125), "not empty");
        ok(run(&["files", "rm", "-r", &at("m")]));
        assert_eq!(run(&["files", "cat", &at("../x")]).status.code(), Some(2));
        assert_eq!(run(&["cp", &path("tree"), &path("other")]).status.code(), Some(2), "no sandbox is named");
        // Symbolic links are copied as links, and a link in the place of a target directory is not followed.
        fixture.inside("mkdir -p evil/sub; echo x > evil/sub/f; ln -s /etc evil/etc");
        let (target, outside) = (fixture.place.dir(here.join("target")), fixture.place.dir(here.join("outside")));
        std::os::unix::fs::symlink(&outside, target.join("sub")).unwrap();
        assert_eq!(run(&["cp", &at("evil/."), &path("target")]).status.code(), Some(2));
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        fs::remove_file(target.join("sub")).unwrap();
        ok(run(&["cp", &at("evil/."), &path("target")]));
        assert_eq!(fs::read_link(target.join("etc")).unwrap().to_str(), Some("/etc"));
        fixture.base_is_untouched();
    }
}

/// File verbs on a sandbox that is not live start no service and wake nothing; the keeper that they need counts toward
/// quotas.
// promise 20
#[test]
fn files_of_one_that_rests_start_and_wake_nothing() {
    for who in [As::Root, As::User] {
        let service = json!({"name": "tick", "command": "while :; do echo x >> ticks; sleep 0.05; done"});
        let fixture = FilesFixture::with(who, json!({"services": [service]}));
        let at = format!("/v1/sandboxes/{}", fixture.id);
        let reviewer = fixture.daemon.token(json!({"name": "r", "scopes": ["reviewer"]}));
        let look = |standing: &str| {
            let listed = fixture.daemon.ask("GET", &fixture.url("list", "path=.")).bearer(&reviewer).send().assert_ok();
            let whole = fixture.daemon.get(&at).assert_ok();
            assert_eq!(
                (&whole["standing"], &whole["live"]),
                (&json!(standing), &json!(standing == "frozen")),
                "{who:?}"
            );
            listed.to_string().contains("ticks")
        };
        assert!(!look("active"), "{who:?}: its service did not run");
        fixture.put("path=written", b"1").assert_ok();
        assert!(!look("active"), "{who:?}: nor by writing");
        assert_eq!(fixture.daemon.get(&format!("{at}/runs")).assert_ok()["runs"], json!([]));
        // The control: a command starts it, also right after a file verb.
        let seen =
            "i=0; while [ ! -e ticks ] && [ $i -lt 400 ]; do i=$((i+1)); sleep 0.05; done; cat written; ls ticks";
        let run =
            |script: &str| fixture.daemon.post(&format!("{at}/runs?wait=120s"), json!({"shell": script})).assert_ok();
        assert_eq!(run(seen)["outcome"]["stdout"], "1ticks\n", "{who:?}");
        for tier in ["frozen", "hibernated"] {
            fixture.daemon.post(&format!("{at}/suspend"), json!({"tier": tier})).assert_ok();
            let ticks = || fixture.get("stat", "path=ticks").assert_ok()["size"].as_u64().unwrap();
            let before = ticks();
            assert!(look(tier), "{who:?}: the control, it was there");
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(ticks(), before, "{who:?} {tier}: it goes on");
            look(tier);
            assert_eq!(run("echo awake")["outcome"]["stdout"], "awake\n");
            let begun = Instant::now();
            while ticks() == before {
                assert!(begun.elapsed() < Duration::from_secs(180), "{who:?} {tier}: it does not go on");
            }
        }
        fixture.daemon.ask("POST", &format!("{at}/stop")).send().assert_ok();
        look("stopped");
    }
}

/// Padding after the end of an uploaded archive is bounded.
#[test]
fn an_archive_has_an_end() {
    let fixture = FilesFixture::new(As::User);
    let put = |bytes: &[u8]| {
        fixture.daemon.ask("PUT", &fixture.url("archive", "path=.")).body("application/x-tar", bytes).send()
    };
    let tar = Command::new("tar")
        .args(["-C"])
        .arg(&fixture.place.project)
        .args(["-cf", "-", "a.txt"])
        .output()
        .unwrap()
        .stdout;
    put(&[&tar[..], &[0; 64 << 10]].concat()).assert_ok();
    let fault = put(&[&tar[..], &vec![0; 3 << 20]].concat()).assert_fault(400, "invalid_request");
    assert!(fault["message"].as_str().unwrap().contains("behind the archive"), "{fault}");
}
