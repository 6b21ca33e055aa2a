//! A hostile daemon for every verb: the command line ends in time with a fault of its own kind, does not panic, sends
//! nothing elsewhere, writes only where it was told to, and prints no terminal control sequence.

use crate::fake::{Fake, whole};
use crate::support::certificate::Certificate;
use crate::support::{As, Place};
use crate::table::{ARGS, RAW, Side, TABLE};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const JSON: &str = "application/json";
/// Terminal control sequences: colours, a title, the clipboard, and single control characters.
const ESCAPES: &str = "\\u001b[31mred\\u001b]0;title\\u0007\\u009b2J\\u001b]52;c;eA==\\u0007\\u202e\\r";

/// Upper bound for any step that is not stuck; the server timeout is half a second here.
const PATIENCE: Duration = Duration::from_secs(180);

/// Runs to the end, or fails.
pub fn run_to_end(command: &mut Command, what: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdin.take());
    let begun = Instant::now();
    let read = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            // Keeps as much as a terminal's scrollback would.
            let _ = from.by_ref().take(8 << 20).read_to_end(&mut all);
            let _ = io::copy(&mut from, &mut io::sink());
            all
        })
    };
    let out = read(Box::new(child.stdout.take().unwrap()));
    let err = read(Box::new(child.stderr.take().unwrap()));
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{what}: it does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
}

/// True if printed bytes contain a terminal control character.
pub fn has_control_chars(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.chars().any(|c| (c.is_control() && c != '\n' && c != '\t') || ('\u{202a}'..='\u{202e}').contains(&c))
}

/// Every path below a directory, with its content.
pub fn tree(dir: &Path, all: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        let seen = if kind.is_file() { fs::read(&path).unwrap_or_default() } else { Vec::new() };
        all.insert(path.to_string_lossy().into_owned(), seen);
        if kind.is_dir() {
            tree(&path, all);
        }
    }
}

/// A directory under attack: its content must stay, except for `made`.
pub struct Scene {
    pub place: Place,
    before: BTreeMap<String, Vec<u8>>,
}

impl Scene {
    pub fn new() -> Scene {
        let place = Place::new(As::Root);
        place.file("home/project/exported", "no archive");
        place.file("home/kept", "as it was");
        let mut before = BTreeMap::new();
        tree(&place.home, &mut before);
        Scene { place, before }
    }

    /// Runs a verb once and checks that nothing was harmed; returns its output.
    pub fn ask(&self, server: &str, verb: &str, args: &[&str], what: &str) -> Output {
        let what = format!("{verb} and {what}");
        let made = self.place.dir("home/project/made");
        let mut command = self.place.cofferdam(args);
        command.env("COFFERDAM_SERVER", server).env("COFFERDAM_SERVER_TIMEOUT", "500ms");
        command.env("COFFERDAM_STATE", self.place.root.join("none"));
        let out = run_to_end(&mut command, &what);
        let told = || format!("{what}: {:?}\n{}\n{}", out.status, lossy(&out.stdout), lossy(&out.stderr));
        assert!(out.status.code().is_some_and(|code| code != 101), "{}", told());
        assert!(!lossy(&out.stderr).contains("panicked"), "{}", told());
        if !RAW.contains(&verb) {
            assert!(!has_control_chars(&out.stdout) && !has_control_chars(&out.stderr), "{}", told());
        }
        fs::remove_dir_all(&made).unwrap();
        let mut after = BTreeMap::new();
        tree(&self.place.home, &mut after);
        assert!(after == self.before, "{}\n{:?}", told(), after.keys().collect::<Vec<_>>());
        assert!(!self.place.root.join("none/store").exists(), "{}", told());
        out
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

type Case = (&'static str, fn(&mut dyn Write) -> io::Result<()>);

fn ok(body: &str) -> Vec<u8> {
    whole("200 OK", JSON, body.as_bytes())
}

/// Responses to every verb, each of which must end in a fault.
const CASES: &[Case] = &[
    ("nothing at all", |_| Ok(())),
    ("no HTTP", |to| to.write_all(b"\x00\xff\x16\x03 hello\r\n\r\n")),
    ("an empty document", |to| to.write_all(&ok(""))),
    ("half a document", |to| to.write_all(&ok("{\"protocol_version\":1,\"id\":\"sbx_"))),
    ("a body that breaks off", |to| {
        to.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5000\r\n\r\n{\"protocol_version\":1,")
    }),
    ("a page", |to| to.write_all(&whole("200 OK", "text/html", b"<html>hello"))),
    ("another version", |to| to.write_all(&ok("{\"protocol_version\":99}"))),
    ("wrong types", |to| {
        to.write_all(&ok(
            "{\"protocol_version\":1,\"id\":7,\"run\":[],\"sandboxes\":{},\"runs\":3,\"entries\":\"x\",\"secrets\":1,\
             \"tokens\":{},\"snapshots\":0,\"templates\":null,\"questions\":-1,\"diff\":[],\"path\":false,\"removed\":2}",
        ))
    }),
    ("no text", |to| to.write_all(&whole("200 OK", JSON, b"{\"protocol_version\":1,\"id\":\"\xff\xfe\"}"))),
    ("deep nesting", |to| to.write_all(&ok(&format!("{{\"protocol_version\":1,\"x\":{}", "[".repeat(100_000))))),
    ("a fault that drives terminals", |to| {
        let fault = format!(
            "{{\"protocol_version\":1,\"success\":false,\"error_kind\":\"conflict\",\"message\":\"{ESCAPES}\",\"hint\":\"{ESCAPES}\",\
             \"subject\":\"{ESCAPES}\",\"request_id\":\"r\"}}"
        );
        to.write_all(&whole("409 Conflict", JSON, fault.as_bytes()))
    }),
    ("a fault of no kind", |to| {
        to.write_all(&whole("500 No", JSON, b"{\"error_kind\":\"\\u001b[31m\",\"message\":[]}"))
    }),
    ("a thousand heads", |to| {
        to.write_all(b"HTTP/1.1 200 OK\r\n")?;
        (0..100_000).try_for_each(|n| to.write_all(format!("x-{n}: y\r\n").as_bytes()))
    }),
    ("a status line without an end", |to| {
        to.write_all(b"HTTP/1.1 200 ")?;
        (0..2_000).try_for_each(|_| to.write_all(&[b'a'; 1000]))
    }),
    ("an id that is a way out", |to| {
        to.write_all(&ok("{\"protocol_version\":1,\"id\":\"../../../home/kept\",\"run\":\"../../x\",\"sandbox\":\"/etc\",\"removed\":\"..\"}"))
    }),
];

// promise 27
#[test]
fn whatever_a_daemon_answers_every_verb_ends_with_a_fault() {
    let scene = Scene::new();
    let asked = TABLE.iter().filter(|(_, place)| matches!(place, Side::Remote(..))).map(|(verb, _)| *verb);
    assert!(asked.clone().all(|verb| ARGS.iter().any(|(known, _)| *known == verb)), "every verb is tried");
    let fake = Fake::start(scene.place.root.join("fake"));
    let server = fake.socket.to_string_lossy().into_owned();
    let mut wrong = Vec::new();
    for (what, case) in CASES {
        let case = *case;
        fake.respond_with(move |_, to| case(to));
        for (verb, args) in ARGS {
            let out = scene.ask(&server, verb, args, what);
            // A verb that needs only an id accepts one, however odd.
            let told = format!("{verb} and {what}: {:?} {} {}", out.status, lossy(&out.stdout), lossy(&out.stderr));
            // File content cannot be told from other bytes.
            let may_be = *what == "an id that is a way out" || *verb == "files cat";
            if (out.status.success() && !may_be) || (out.stderr.is_empty() && !out.status.success()) {
                wrong.push(told);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n---\n"));
}

// promise 27
#[test]
fn streams_that_lie_are_given_up() {
    let scene = Scene::new();
    let fake = Fake::start(scene.place.root.join("fake"));
    let server = fake.socket.to_string_lossy().into_owned();
    let shown = "{\"protocol_version\":1,\"run\":\"run_1\",\"sandbox\":\"sbx_1\",\"command\":[\"x\"],\"running\":true,\"started_ms\":1,\
                 \"at\":{\"input\":true,\"terminal\":false,\"offset\":0}}";
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let streams: &[Case] = &[
        ("no end of an event", |to| {
            to.write_all(b"data: ")?;
            (0..20_000).try_for_each(|_| to.write_all(&[b'a'; 1000]))
        }),
        ("a stream that goes backwards", |to| {
            let said = "{\"offset\":0,\"at_ms\":1,\"encoding\":\"base64\",\"data\":\"eA==\"}";
            (0..1000).try_for_each(|n| {
                to.write_all(format!("event: stdout\nid: {}\ndata: {said}\n\n", 500 - n % 400).as_bytes())
            })
        }),
        ("pieces without a place", |to| {
            to.write_all(
                b"event: stdout\ndata: {\"offset\":0,\"at_ms\":1,\"encoding\":\"base64\",\"data\":\"eA==\"}\n\n",
            )
        }),
        ("unknown words", |to| to.write_all(b"event: hello\ndata: {}\n\n")),
        ("no base64", |to| {
            to.write_all(
                b"event: stdout\nid: 5\ndata: {\"offset\":0,\"at_ms\":1,\"encoding\":\"base64\",\"data\":\"!\"}\n\n",
            )
        }),
        ("an end that is none", |to| to.write_all(b"event: end\nid: 9\ndata: {\"verdict\":\"\\u001b\"}\n\n")),
        ("silence", |_| {
            std::thread::sleep(Duration::from_secs(20));
            Ok(())
        }),
    ];
    for (what, stream) in streams {
        let (stream, shown) = (*stream, shown.to_owned());
        fake.respond_with(move |asked, to| {
            let streams = ["/output", "/events", "/watch"].iter().any(|end| asked.ends_with(end));
            match streams {
                true => to.write_all(HEAD).and_then(|()| stream(to)),
                false => to.write_all(&ok(&shown)),
            }
        });
        for (verb, args) in
            ARGS.iter().filter(|(verb, _)| ["exec", "shell", "logs", "attach", "files watch"].contains(verb))
        {
            let out = scene.ask(&server, verb, args, what);
            // The log of an active run has no end event.
            let may_be = *what == "unknown words" && *verb == "logs";
            assert!((!out.status.success() && !out.stderr.is_empty()) || may_be, "{verb} and {what}: {out:?}");
        }
        if *what != "silence" {
            let out = scene.ask(&server, "logs", &["logs", "-f", "run_1"], what);
            assert!(!out.status.success(), "{what}: {out:?}");
        }
    }
    // A daemon that neither waits nor reports an outcome does not block a client for ever, whether it calls the run
    // active or not.
    for running in ["true", "false"] {
        let shown = shown.replace("\"running\":true", &format!("\"running\":{running}"));
        fake.respond_with(move |_, to| to.write_all(&ok(&shown)));
        let out = scene.ask(&server, "wait", &["wait", "run_1"], "no end");
        assert_eq!(out.status.code(), Some(125), "{out:?}");
        assert!(lossy(&out.stderr).contains("neither waits for the end of run_1"), "{out:?}");
    }
    // A daemon that acknowledges input at another offset than it was sent to.
    let shown = shown.to_owned();
    fake.respond_with(move |asked, to| match asked {
        asked if asked.ends_with("/input") => {
            to.write_all(&ok("{\"protocol_version\":1,\"run\":\"r\",\"bytes\":1,\"offset\":77,\"eof\":false}"))
        }
        asked if asked.ends_with("/output") => {
            to.write_all(HEAD)?;
            std::thread::sleep(Duration::from_secs(5));
            Ok(())
        }
        _ => to.write_all(&ok(&shown)),
    });
    let mut exec = scene.place.cofferdam(["exec", "box", "cat"]);
    let exec = exec.env("COFFERDAM_SERVER", &server).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut exec = exec;
    exec.stdin.take().unwrap().write_all(b"four").unwrap();
    let out = exec.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(125), "{}", lossy(&out.stderr));
    assert!(lossy(&out.stderr).contains("77"), "{}", lossy(&out.stderr));
}

// promise 27
#[test]
fn slowness_and_size_have_an_end() {
    let scene = Scene::new();
    let fake = Fake::start(scene.place.root.join("fake"));
    let server = fake.socket.to_string_lossy().into_owned();
    let cases: &[Case] = &[
        ("silence", |_| {
            std::thread::sleep(Duration::from_secs(20));
            Ok(())
        }),
        ("a status line that drips", |to| {
            to.write_all(b"HTTP/1.1 200 ")?;
            (0..200).try_for_each(|_| {
                std::thread::sleep(Duration::from_millis(100));
                to.write_all(b"a")
            })
        }),
        ("a document that drips", |to| {
            to.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"protocol_version\":1")?;
            (0..200).try_for_each(|_| {
                std::thread::sleep(Duration::from_millis(100));
                to.write_all(b" ")
            })
        }),
        ("a document without an end", |to| {
            to.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"protocol_version\":1")?;
            (0..300).try_for_each(|_| to.write_all(&vec![b' '; 1 << 20]))
        }),
        ("a list without an end", |to| {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            let next = NEXT.fetch_add(1, Ordering::Relaxed);
            to.write_all(&ok(&format!("{{\"protocol_version\":1,\"sandboxes\":[],\"next\":\"{next}\"}}")))
        }),
    ];
    for (what, case) in cases {
        let case = *case;
        fake.respond_with(move |_, to| case(to));
        let out = scene.ask(&server, "ls", &["ls"], what);
        assert!(!out.status.success() && !out.stderr.is_empty(), "{what}: {out:?}");
    }
    // An export that breaks off leaves no file.
    fake.respond_with(|_, to| {
        to.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/zstd\r\ncontent-length: 1000\r\n\r\nhalf")
    });
    let mut export = scene.place.cofferdam(["export", "snap", "exported"]);
    let out = run_to_end(export.env("COFFERDAM_SERVER", &server), "export");
    assert!(!out.status.success());
    assert_eq!(fs::read_to_string(scene.place.project.join("exported")).unwrap(), "no archive", "as it was");
}

// promise 27
#[test]
fn a_token_goes_to_nobody_else() {
    let scene = Scene::new();
    let place = &scene.place;
    let token = place.file("token", "cof_the-token-itself");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let listen = |seen: Arc<AtomicUsize>, answer: Box<dyn Fn() -> Vec<u8> + Send>| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut head = vec![0; 4096];
                let got = stream.read(&mut head).unwrap_or(0);
                if lossy(&head[..got]).contains("the-token-itself") {
                    seen.fetch_add(1, Ordering::SeqCst);
                }
                let _ = stream.write_all(&answer());
            }
        });
        port
    };
    let elsewhere = Arc::new(AtomicUsize::new(0));
    let other = listen(elsewhere.clone(), Box::new(|| ok("{\"protocol_version\":1,\"sandboxes\":[]}")));
    let here = Arc::new(AtomicUsize::new(0));
    for status in ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"] {
        let to = format!(
            "HTTP/1.1 {status}\r\nlocation: http://127.0.0.1:{other}/v1/sandboxes\r\nrefresh: 0; url=http://127.0.0.1:{other}/\r\ncontent-length: 0\r\n\r\n"
        );
        let port = listen(here.clone(), Box::new(move || to.clone().into_bytes()));
        let mut ls = place.cofferdam(["ls", "--json"]);
        ls.env("COFFERDAM_SERVER", format!("http://127.0.0.1:{port}")).env("COFFERDAM_TOKEN_FILE", &token);
        // Proxies count as elsewhere, too.
        ls.env("http_proxy", format!("http://127.0.0.1:{other}")).env("ALL_PROXY", format!("http://127.0.0.1:{other}"));
        let out = run_to_end(&mut ls, status);
        assert_eq!(out.status.code(), Some(125), "{status}: {}", lossy(&out.stdout));
        let fault: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(fault["error_kind"], "provider_failed", "{fault}");
    }
    // Each listing is two requests: what the daemon can do, and the list.
    assert_eq!((here.load(Ordering::SeqCst), elsewhere.load(Ordering::SeqCst)), (8, 0), "asked here, and nowhere else");
    // A certificate for another name gets no request at all.
    let Certificate { cert, key } = Certificate::new(place, "other", "DNS:other.example");
    let port = crate::support::free_port();
    let mut served = Command::new("openssl")
        .args(["s_server", "-quiet", "-accept", &port.to_string(), "-key"])
        .arg(&key)
        .arg("-cert")
        .arg(&cert)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut ls = place.cofferdam(["ls", "--json", "--server-ca"]);
    ls.arg(&cert).env("COFFERDAM_SERVER", format!("https://localhost:{port}")).env("COFFERDAM_TOKEN_FILE", &token);
    let out = run_to_end(&mut ls, "another name");
    served.kill().unwrap();
    let heard = served.wait_with_output().unwrap();
    let fault: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(fault["error_kind"], "unauthenticated", "{fault}");
    assert!(!lossy(&heard.stdout).contains("the-token-itself"));
}

/// Archives whose names lead outside, and a file that is declared a directory.
// promise 27
#[test]
fn a_copy_stays_where_it_was_told_to_go() {
    let scene = Scene::new();
    let fake = Fake::start(scene.place.root.join("fake"));
    let server = fake.socket.to_string_lossy().into_owned();
    let pack = "import io, sys, tarfile\n\
                out = io.BytesIO(); t = tarfile.open(fileobj=out, mode='w', format=tarfile.PAX_FORMAT)\n\
                def add(name, kind=tarfile.REGTYPE, to='', data=b'evil', mode=0o6777):\n\
                \x20   i = tarfile.TarInfo(name); i.type = kind; i.linkname = to; i.mode = mode; i.size = len(data) if kind == tarfile.REGTYPE else 0\n\
                \x20   t.addfile(i, io.BytesIO(data))\n\
                which = sys.argv[1]\n\
                add('good')\n\
                if which == 'up': add('../../kept')\n\
                if which == 'whole': add('/tmp/cofferdam-evil')\n\
                if which == 'link': add('l', tarfile.SYMTYPE, '../../..'); add('l/kept')\n\
                if which == 'hard': add('h', tarfile.LNKTYPE, '../../kept'); add('h')\n\
                if which == 'device': add('d', tarfile.CHRTYPE); add('later')\n\
                if which == 'fifo': add('d', tarfile.FIFOTYPE); add('later')\n\
                t.close(); sys.stdout.buffer.write(out.getvalue())";
    for which in ["plain", "up", "whole", "link", "hard", "device", "fifo"] {
        let tar = Command::new("python3").args(["-c", pack, which]).output().unwrap().stdout;
        assert!(tar.len() > 1000);
        fake.respond_with(move |asked, to| match asked {
            asked if asked.ends_with("/archive") => to.write_all(&whole("200 OK", "application/x-tar", &tar)),
            _ => to.write_all(&ok("{\"protocol_version\":1,\"path\":\"dir\",\"name\":\"dir\",\"kind\":\"dir\",\"size\":0,\"mode\":2559,\"modified_ms\":0,\"links\":2}")),
        });
        let made = scene.place.dir("home/project/made");
        let mut cp = scene.place.cofferdam(["cp", "box:dir", "made/copied"]);
        let out = run_to_end(cp.env("COFFERDAM_SERVER", &server), which);
        if which == "plain" {
            assert!(out.status.success(), "the control: {}", lossy(&out.stderr));
            let mode = fs::metadata(made.join("copied/good")).unwrap().permissions().mode();
            assert_eq!(mode & 0o7000, 0, "{mode:o}");
        }
        if ["device", "fifo"].contains(&which) {
            // The entry is left out and named, and the rest is copied.
            assert!(out.status.success() && lossy(&out.stderr).contains("left out: d "), "{}", lossy(&out.stderr));
            assert!(made.join("copied/later").is_file() && !made.join("copied/d").exists(), "{which}");
        }
        fs::remove_dir_all(&made).unwrap();
        assert!(!Path::new("/tmp/cofferdam-evil").exists());
        assert_eq!(fs::read_to_string(scene.place.home.join("kept")).unwrap(), "as it was", "{which}");
    }
}
