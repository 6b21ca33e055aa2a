//! Files of sandboxes over HTTP and by the command line: live ones, those at rest, stopped ones; what must not be reached, and that
//! the base stays as it is.

use crate::support::http::{Answer, Daemon, receive};
use crate::support::{As, Place};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

struct World {
    place: Place,
    daemon: Daemon,
    id: String,
}

impl World {
    fn new(who: As) -> World {
        World::with(who, json!({}))
    }

    fn with(who: As, more: Value) -> World {
        let place = Place::new(who);
        for (path, text) in [("a.txt", "0123456789"), ("src/main.rs", "fn main() {}\n"), ("src/lib.rs", "// needle\n")]
        {
            place.file(place.project.join(path), text);
        }
        let daemon = Daemon::start(&place);
        let mut ask = json!({ "dir": place.project });
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let id = daemon.post("/v1/sandboxes", ask).assert_ok()["id"].as_str().unwrap().to_owned();
        World { place, daemon, id }
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

    /// What a command inside says.
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

/// As root and as an ordinary user: what goes in over HTTP is what a command inside sees, and the other way round.
#[test]
fn both_sides_see_the_same_files() {
    for who in [As::Root, As::User] {
        let world = World::new(who);
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 % 251) as u8).collect();
        let made = world.put("path=deep/er/big.bin&parents=true&mode=640", &bytes);
        let entry = made.assert_ok();
        assert_eq!((entry["size"].as_u64(), entry["mode"].as_str()), (Some(3_000_000), Some("640")));
        assert_eq!(made.header("etag").unwrap().trim_matches('"'), entry["etag"].as_str().unwrap());
        let seen = world.inside("wc -c < deep/er/big.bin; stat -c '%u %a' deep/er/big.bin");
        let uid = world.inside("id -u");
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
        assert_eq!(world.get("content", "path=deep/er/big.bin").body, bytes);
        world.inside("echo changed >> a.txt; mkdir made; echo inside > made/here");
        assert_eq!(world.get("content", "path=a.txt").text(), "0123456789changed\n");
        let base = world.place.project.to_str().unwrap().replace('/', "%2F");
        assert_eq!(
            world.get("content", &format!("path={base}%2Fmade%2Fhere")).text(),
            "inside\n",
            "by its name inside"
        );
        assert_eq!(world.put("path=a.txt&append=true", b"more").assert_ok()["size"], 22);
        assert_eq!(world.inside("cat a.txt"), "0123456789changed\nmore");
        assert_eq!(world.post("mkdir", json!({ "path": "d/e", "parents": true })).assert_ok()["kind"], "dir");
        assert_eq!(world.post("chmod", json!({ "path": "made/here", "mode": "600" })).assert_ok()["mode"], "600");
        assert_eq!(
            world.post("copy", json!({ "from": "made", "to": "d/copy", "recursive": true })).assert_ok()["files"],
            1
        );
        // A directory of the base cannot be renamed in a layer; it is moved all the same.
        let moved = world.post("rename", json!({ "from": "src", "to": "lib" })).assert_ok();
        assert_eq!((moved["path"].as_str(), moved["kind"].as_str()), (Some("lib"), Some("dir")));
        assert_eq!(world.post("remove", json!({ "path": "made", "recursive": true })).assert_ok()["files"], 1);
        assert_eq!(world.inside("ls; cat lib/main.rs d/copy/here"), "a.txt\nd\ndeep\nlib\nfn main() {}\ninside\n");
        let found = world.get("search", "path=.&content=needle").assert_ok();
        assert_eq!(
            (found["matches"][0]["path"].as_str(), found["complete"].as_bool()),
            (Some("lib/lib.rs"), Some(true))
        );
        world.base_is_untouched();
    }
}

#[test]
fn parts_and_versions_of_a_file() {
    let world = World::new(As::Root);
    let at = world.url("content", "path=a.txt");
    let ask = |name: &str, value: &str| world.daemon.ask("GET", &at).header(name, value).send();
    let whole = world.daemon.get(&at);
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
        let part = world.daemon.ask("GET", &at).header("range", "bytes=2-4").header("if-range", had).send();
        (part.status, part.text())
    };
    assert_eq!(resumed(&tag), (206, "234".into()), "a part of what the caller has the rest of");
    for other in ["\"another\"", &format!("W/{tag}"), "Wed, 21 Oct 2015 07:28:00 GMT"] {
        assert_eq!(resumed(other), (200, "0123456789".into()), "{other}: parts of two versions would make neither");
    }
    assert_eq!(ask("if-range", &tag).status, 200, "without a range it says nothing");
    let known = ask("if-none-match", &tag);
    assert_eq!((known.status, known.body.len()), (304, 0));
    let ranged = world.daemon.ask("HEAD", &at).header("range", "bytes=2-4").send();
    assert_eq!((ranged.status, ranged.header("content-length")), (200, Some("10")), "a range is one of what is sent");
    let head = world.daemon.ask("HEAD", &at).send();
    assert_eq!((head.status, head.header("content-length")), (200, Some("10")));
    let put = |name: &str, value: &str, text: &[u8]| {
        world.daemon.ask("PUT", &at).header(name, value).body("application/octet-stream", text).send()
    };
    put("if-none-match", "*", b"new").assert_fault(409, "conflict");
    let second = put("if-match", &tag, b"second");
    assert_eq!(second.assert_ok()["size"], 6);
    put("if-match", &tag, b"third").assert_fault(409, "conflict");
    world.inside("printf guest > a.txt");
    put("if-match", second.header("etag").unwrap(), b"third").assert_fault(409, "conflict");
    put("if-match", "*", b"third").assert_ok();
    assert_eq!(world.daemon.get(&at).text(), "third");
    assert_eq!(resumed(&tag), (200, "third".into()), "the file is another by now");
    world.daemon.ask("PUT", &at).body("text/plain", b"x").send().assert_fault(415, "invalid_request");
    world.daemon.ask("PUT", &at).send().assert_ok();
    assert_eq!(world.daemon.get(&at).body, b"", "no body is an empty file");
    world.base_is_untouched();
}

/// What the guest shut is named, by the whole path and before the first byte: a stream can only break off.
#[test]
fn what_may_not_be_read_is_refused_by_name() {
    for who in [As::Root, As::User] {
        let world = World::new(who);
        world.inside(
            "mkdir -p t/deep; echo ok > t/good; head -c 1000000 /dev/zero > t/big; echo needle > t/secret; chmod 0 t/secret",
        );
        let refused = |at: &str, named: &str| {
            let answer = world.get("archive", &format!("path={at}"));
            let fault = answer.assert_fault(403, "policy_denied");
            assert_eq!(fault["message"], format!("{named}: cannot pack it: it may not be read"));
            assert_eq!((&fault["retry"], answer.header("retry-after")), (&json!("never"), None), "{fault}");
        };
        for at in ["t", ".", "t/secret"] {
            refused(at, "t/secret");
        }
        world.get("content", "path=t/secret").assert_fault(403, "policy_denied");
        let found = world.get("search", "path=t&content=needle").assert_ok();
        assert_eq!(
            found["skipped"],
            json!([{ "path": "t/secret", "why": "t/secret: cannot read it: the guest itself may not" }])
        );
        world.post("chmod", json!({ "path": "t/secret", "mode": "600" })).assert_ok();
        let whole = world.get("archive", "path=t");
        assert_eq!((whole.status, whole.body.len() > 1_000_000), (200, true), "the control");
        world.inside("chmod 0 t/deep");
        refused("t", "t/deep");
        world.get("archive", "path=t/deep").assert_fault(403, "policy_denied");
        world.inside("chmod 700 t/deep");
        assert_eq!(world.get("archive", "path=t").status, 200, "the control");
    }
}

/// A name that cannot be taken is the one that is told.
#[test]
fn what_stands_in_the_way_of_a_rename_is_named() {
    let world = World::new(As::Root);
    world.inside("mkdir empty full; echo x > full/x; echo f > f");
    let told = |from: &str, to: &str| {
        let fault = world.post("rename", json!({ "from": from, "to": to, "replace": true }));
        fault.assert_fault(409, "conflict")["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(told("f", "empty"), "empty: cannot put it there: it is a directory");
    assert_eq!(told("empty", "full"), "full: cannot put it there: the directory is not empty");
    assert_eq!(told("empty", "f"), "f: it is no directory, and no directory can take its place");
    world.post("rename", json!({ "from": "f", "to": "full/x", "replace": true })).assert_ok();
    assert_eq!(world.inside("cat full/x"), "f\n", "the control");
}

/// A sandbox that is stopped can be read and written, runs nothing meanwhile, and is stopped afterwards.
#[test]
fn stopped_sandboxes_have_files_too() {
    for who in [As::Root, As::User] {
        let world = World::new(who);
        let at = format!("/v1/sandboxes/{}", world.id);
        world.put("path=before", b"x").assert_ok();
        world.daemon.ask("POST", &format!("{at}/stop")).send().assert_ok();
        assert_eq!(world.get("content", "path=a.txt").text(), "0123456789");
        world.put("path=new", b"from outside").assert_ok();
        let refused = world.exec("touch ran");
        assert!(!refused.status.success(), "a stopped sandbox runs nothing");
        assert_eq!(world.daemon.get(&at).assert_ok()["state"], "stopped");
        let names = world.get("list", "path=.").assert_ok();
        let names: Vec<_> = names["entries"].as_array().unwrap().iter().map(|e| e["path"].as_str().unwrap()).collect();
        assert_eq!(names, ["a.txt", "before", "new", "src"]);
        world.daemon.ask("POST", &format!("{at}/start")).send().assert_ok();
        assert_eq!(world.inside("cat new"), "from outside");
        world.base_is_untouched();
        world.daemon.ask("DELETE", &format!("{at}?force=true")).send().assert_ok();
        world.get("content", "path=a.txt").assert_fault(404, "not_found");
    }
}

/// What a guest put in the way leads nowhere, and what it may not it may not through us either.
#[test]
fn nothing_outside_is_reached_through_a_sandbox() {
    let world = World::new(As::Root);
    let secret = world.place.root.join("secret");
    fs::write(&secret, "what is outside").unwrap();
    world.inside(&format!(
        "ln -s {} out; ln -s / root; ln -s ../../.. up; ln -s src/main.rs in; ln -s $PWD/src abs; mkfifo pipe; ln a.txt hard; \
         mkdir shut; chmod 0 shut",
        secret.display()
    ));
    for path in ["out", "root/etc/passwd", "up/etc/passwd", "root/proc/self/environ"] {
        world.get("content", &format!("path={path}")).assert_fault(403, "policy_denied");
        world.put(&format!("path={path}"), b"!").assert_fault(403, "policy_denied");
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
        world.get("content", bad).assert_fault(400, "invalid_request");
    }
    assert_eq!(world.get("content", "path=in").text(), "fn main() {}\n", "links inside are followed");
    assert_eq!(
        world.get("content", "path=abs%2Fmain.rs").text(),
        "fn main() {}\n",
        "also those that name its own place"
    );
    let began = Instant::now();
    world.get("content", "path=pipe").assert_fault(409, "conflict");
    world.put("path=pipe", b"x").assert_fault(409, "conflict");
    assert!(began.elapsed() < Duration::from_secs(40), "nobody waits at a pipe");
    assert_eq!(world.get("stat", "path=pipe").assert_ok()["kind"], "fifo");
    assert_eq!(world.get("stat", "path=out&follow=false").assert_ok()["kind"], "symlink");
    world.put("path=shut%2Fx", b"x").assert_fault(403, "policy_denied");
    world.post("chmod", json!({ "path": "a.txt", "mode": "4755" })).assert_fault(400, "invalid_request");
    world.put("path=hard&append=true", b"!").assert_ok();
    world.put("path=a.txt", b"replaced").assert_ok();
    assert_eq!(world.inside("cat hard"), "0123456789!", "another name keeps what it had");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "what is outside");
    world.base_is_untouched();
}

#[test]
fn names_come_through_byte_for_byte() {
    let world = World::new(As::Root);
    let hostile = "path=bad%FF%0A%1B%5B31m-%2Bplus%20space";
    world.put(hostile, b"exact").assert_ok();
    assert_eq!(world.inside("cat \"$(printf 'bad\\377\\n\\033[31m-+plus space')\""), "exact");
    assert_eq!(world.get("content", "path=bad%ff%0a%1b[31m-%2Bplus+space").text(), "exact");
    let listed = world.get("list", "path=.").assert_ok();
    let name = listed["entries"].as_array().unwrap().iter().find(|e| e["path"].is_object()).unwrap()["path"].clone();
    let moved = world.post("rename", json!({ "from": name, "to": "plain" })).assert_ok();
    assert_eq!(moved["path"], "plain", "a name from a listing can be given back as it is");
    world.post("remove", json!({ "path": { "base64": "cGxhaW4=" } })).assert_fault(400, "invalid_request");
    world.post("remove", json!({ "path": "plain" })).assert_ok();
}

#[test]
fn archives_go_out_and_in() {
    let world = World::new(As::User);
    let packed = world.get("archive", "path=src");
    assert_eq!((packed.status, packed.header("content-type")), (200, Some("application/x-tar")));
    let put = |query: &str, bytes: &[u8]| {
        world.daemon.ask("PUT", &world.url("archive", query)).body("application/x-tar", bytes).send()
    };
    assert_eq!(put("path=copy%2Fof", &packed.body).assert_ok()["entries"], 2);
    assert_eq!(world.inside("cat copy/of/main.rs"), "fn main() {}\n");
    assert_eq!(world.get("archive", "path=copy%2Fof").body, packed.body, "the same tree gives the same bytes");
    world.get("archive", "path=none").assert_fault(404, "not_found");
    let evil = tar(
        "import tarfile,io,sys\nt=tarfile.open(fileobj=sys.stdout.buffer,mode='w|')\ni=tarfile.TarInfo('../evil')\nt.addfile(i,io.BytesIO(b''))\nt.close()",
    );
    put("path=.", &evil).assert_fault(400, "invalid_request");
    put("path=.", &packed.body[..700]).assert_fault(400, "invalid_request");
    assert!(!world.place.project.join("../evil").exists());
    world.base_is_untouched();
}

fn tar(code: &str) -> Vec<u8> {
    Command::new("python3").args(["-c", code]).output().unwrap().stdout
}

/// A limit of the sandbox holds for what comes from outside, and an upload that breaks off leaves nothing.
#[test]
fn uploads_end_at_the_sandboxs_limits() {
    let world = World::with(As::Root, json!({ "limits": { "max_disk_mb": 1 } }));
    world.put("path=fits", &vec![b'x'; 900 << 10]).assert_ok();
    let fault = world.put("path=more", &vec![b'x'; 400 << 10]).assert_fault(413, "limit_exceeded");
    assert_eq!(fault["limit_kind"], "disk_mb");
    world.put("path=small", b"x").assert_ok();
    let mut stream = world.daemon.unix();
    let head = format!(
        "PUT {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\ncontent-length: 5000\r\n\r\nhalf",
        world.url("content", "path=half")
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    if let Some(answer) = receive(&mut stream) {
        answer.assert_fault(400, "invalid_request");
    }
    let end = Instant::now() + Duration::from_secs(60);
    while world.inside("ls -A") != "a.txt\nfits\nsmall\nsrc\n" {
        assert!(Instant::now() < end, "a draft is left: {}", world.inside("ls -A"));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn changes_are_told_as_they_happen() {
    let world = World::new(As::Root);
    world.get("watch", "path=a.txt").assert_fault(409, "conflict");
    let mut open = world.daemon.ask("GET", &world.url("watch", "path=.&recursive=true")).open();
    assert!(open.until("event: ready"));
    world.inside("mkdir new; echo x > new/file; mv a.txt b.txt; rm new/file");
    assert!(open.until("\"removed\""), "{}", String::from_utf8_lossy(&open.text));
    let text = String::from_utf8_lossy(&open.text).into_owned();
    for want in [
        r#"{"what":"created","path":"new","is_dir":true}"#,
        r#""path":"new/file"}"#,
        r#"{"what":"renamed","path":"a.txt","to":"b.txt"}"#,
    ] {
        assert!(text.contains(want), "{want} in {text}");
    }
    world.daemon.ask("POST", &format!("/v1/sandboxes/{}/stop", world.id)).send().assert_ok();
    assert!(open.until("event: lost"), "{}", open.rest());
}

/// Each may what its scope says, and sees its own tenant's files only.
#[test]
fn scopes_and_tenants_hold_for_files() {
    let world = World::new(As::Root);
    let token = |name: &str, scope: &str, tenant: &str| {
        world.daemon.token(json!({ "name": name, "scopes": [scope], "tenant": tenant }))
    };
    let (reviewer, stranger) = (token("rita", "reviewer", "default"), token("eve", "agent", "other"));
    let ask = |token: &str, method: &str, query: &str| {
        let ask = world.daemon.ask(method, &world.url("content", query)).bearer(token);
        if method == "PUT" { ask.body("application/octet-stream", b"x").send() } else { ask.send() }
    };
    assert_eq!(ask(&reviewer, "GET", "path=a.txt").text(), "0123456789");
    ask(&reviewer, "PUT", "path=a.txt").assert_fault(403, "policy_denied");
    ask(&stranger, "GET", "path=a.txt").assert_fault(404, "not_found");
    ask(&stranger, "PUT", "path=a.txt").assert_fault(404, "not_found");
    world.put("path=w", b"x").assert_ok();
    let log = world.place.cofferdam(["audit", "log"]).output().unwrap();
    assert!(String::from_utf8_lossy(&log.stdout).contains("files.write"), "who wrote is in the journal");
}

fn cofferdam(world: &World, args: &[&str], input: Option<&[u8]>) -> Output {
    let mut command = world.place.cofferdam(args);
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
        let world = World::new(who);
        let at = |path: &str| format!("{}:{path}", world.id);
        let run = |args: &[&str]| cofferdam(&world, args, None);
        let here = world.place.root.join("here");
        world.place.dir(&here);
        world.place.file(here.join("tree/x/run.sh"), "#!/bin/sh\n");
        let path = |name: &str| here.join(name).to_str().unwrap().to_owned();
        ok(run(&["cp", &path("tree"), &at("in")]));
        ok(run(&["cp", &path("tree"), &at("in")]));
        assert_eq!(
            world.inside("cd in && find . -type f | sort"),
            "./tree/x/run.sh\n./x/run.sh\n",
            "into what is there"
        );
        ok(run(&["cp", &path("tree/."), &at(".")]));
        ok(cofferdam(&world, &["cp", "-", &at("from-pipe")], Some(b"piped")));
        assert_eq!(ok(run(&["cp", &at("from-pipe"), "-"])), b"piped");
        ok(run(&["cp", &at("from-pipe"), &path("")]));
        assert_eq!(fs::read(here.join("from-pipe")).unwrap(), b"piped");
        ok(run(&["cp", &at("in"), &path("out")]));
        assert_eq!(fs::read_to_string(here.join("out/tree/x/run.sh")).unwrap(), "#!/bin/sh\n");
        let stream = ok(run(&["cp", &at("in"), "-"]));
        ok(cofferdam(&world, &["cp", "--tar", "-", &at("again")], Some(&stream)));
        assert_eq!(world.inside("cat again/x/run.sh"), "#!/bin/sh\n");
        let listed = String::from_utf8(ok(run(&["files", "ls", &world.id]))).unwrap();
        assert!(listed.contains("from-pipe") && listed.contains("drwx"), "{listed}");
        ok(run(&["files", "mkdir", "-p", &at("m/n")]));
        ok(run(&["files", "mv", &at("from-pipe"), "m/n/moved"]));
        assert_eq!(ok(run(&["files", "cat", &at("m/n/moved")])), b"piped");
        let stat: Value = serde_json::from_slice(&ok(run(&["files", "stat", "--json", &at("m")]))).unwrap();
        assert_eq!(stat["kind"], "dir");
        let found = String::from_utf8(ok(run(&["files", "search", &world.id, "-e", "needle", "-g", "*.rs"]))).unwrap();
        assert_eq!(found, "src/lib.rs:1: // needle\n");
        assert_eq!(run(&["files", "search", &world.id, "-g", "*.none"]).status.code(), Some(1));
        assert_eq!(run(&["files", "rm", &at("m")]).status.code(), Some(125), "not empty");
        ok(run(&["files", "rm", "-r", &at("m")]));
        assert_eq!(run(&["files", "cat", &at("../x")]).status.code(), Some(2));
        assert_eq!(run(&["cp", &path("tree"), &path("other")]).status.code(), Some(2), "no sandbox is named");
        // Links are copied as links, and one that stands where a directory should go leads nowhere.
        world.inside("mkdir -p evil/sub; echo x > evil/sub/f; ln -s /etc evil/etc");
        let (target, outside) = (world.place.dir(here.join("target")), world.place.dir(here.join("outside")));
        std::os::unix::fs::symlink(&outside, target.join("sub")).unwrap();
        assert_eq!(run(&["cp", &at("evil/."), &path("target")]).status.code(), Some(2));
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        fs::remove_file(target.join("sub")).unwrap();
        ok(run(&["cp", &at("evil/."), &path("target")]));
        assert_eq!(fs::read_link(target.join("etc")).unwrap().to_str(), Some("/etc"));
        world.base_is_untouched();
    }
}

/// Whoever looks at files, or changes them, starts nothing and wakes nothing; and what has to stand for it is counted.
#[test]
fn files_of_one_that_rests_start_and_wake_nothing() {
    for who in [As::Root, As::User] {
        let service = json!({"name": "tick", "command": "while :; do echo x >> ticks; sleep 0.05; done"});
        let world = World::with(who, json!({"services": [service]}));
        let at = format!("/v1/sandboxes/{}", world.id);
        let reviewer = world.daemon.token(json!({"name": "r", "scopes": ["reviewer"]}));
        let look = |standing: &str| {
            let listed = world.daemon.ask("GET", &world.url("list", "path=.")).bearer(&reviewer).send().assert_ok();
            let whole = world.daemon.get(&at).assert_ok();
            assert_eq!(
                (&whole["standing"], &whole["live"]),
                (&json!(standing), &json!(standing == "frozen")),
                "{who:?}"
            );
            listed.to_string().contains("ticks")
        };
        assert!(!look("active"), "{who:?}: its service did not run");
        world.put("path=written", b"1").assert_ok();
        assert!(!look("active"), "{who:?}: nor by writing");
        assert_eq!(world.daemon.get(&format!("{at}/runs")).assert_ok()["runs"], json!([]));
        // The control: a command starts it, also right behind a look.
        let seen =
            "i=0; while [ ! -e ticks ] && [ $i -lt 400 ]; do i=$((i+1)); sleep 0.05; done; cat written; ls ticks";
        let run =
            |script: &str| world.daemon.post(&format!("{at}/runs?wait=60s"), json!({"shell": script})).assert_ok();
        assert_eq!(run(seen)["outcome"]["stdout"], "1ticks\n", "{who:?}");
        for tier in ["frozen", "hibernated"] {
            world.daemon.post(&format!("{at}/suspend"), json!({"tier": tier})).assert_ok();
            let ticks = || world.get("stat", "path=ticks").assert_ok()["size"].as_u64().unwrap();
            let before = ticks();
            assert!(look(tier), "{who:?}: the control, it was there");
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(ticks(), before, "{who:?} {tier}: it goes on");
            look(tier);
            assert_eq!(run("echo awake")["outcome"]["stdout"], "awake\n");
            let begun = Instant::now();
            while ticks() == before {
                assert!(begun.elapsed() < Duration::from_secs(60), "{who:?} {tier}: it does not go on");
            }
        }
        world.daemon.ask("POST", &format!("{at}/stop")).send().assert_ok();
        look("stopped");
    }
}

/// What follows an archive is bounded, and so is what has no name in it.
#[test]
fn an_archive_has_an_end() {
    let world = World::new(As::User);
    let put =
        |bytes: &[u8]| world.daemon.ask("PUT", &world.url("archive", "path=.")).body("application/x-tar", bytes).send();
    let tar =
        Command::new("tar").args(["-C"]).arg(&world.place.project).args(["-cf", "-", "a.txt"]).output().unwrap().stdout;
    put(&[&tar[..], &[0; 64 << 10]].concat()).assert_ok();
    let fault = put(&[&tar[..], &vec![0; 3 << 20]].concat()).assert_fault(400, "invalid_request");
    assert!(fault["message"].as_str().unwrap().contains("behind the archive"), "{fault}");
}
