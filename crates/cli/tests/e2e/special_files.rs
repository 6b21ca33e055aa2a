//! FIFOs, sockets and devices are not copied into or out of a sandbox, and opening them never blocks a verb.

use crate::support::{As, BOTH, Place, to_the_end};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::process::{Command, Output, Stdio};

const MAKE: &str = "echo text > file; mkdir sub; mkfifo pipe sub/pipe; ln -s /etc/passwd link; chmod 755 file\n\
    /usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'";

fn verb(place: &Place, words: &[&str]) -> Output {
    to_the_end(&mut place.cofferdam(words), b"")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)))
}

fn mkfifo(place: &Place, path: &str) {
    let path = place.root.join(path);
    assert!(place.outside("mkfifo").arg(&path).status().unwrap().success(), "{}", path.display());
}

#[test]
fn special_files_stay_in_the_sandbox() {
    for who in BOTH {
        let place = Place::new(who);
        let run = place.sh(&[], MAKE);
        let id = run.text("/sandbox");
        assert_eq!(run.text("/verdict"), "ok", "{}", run.story());
        place.dir("home/out");
        let out = place.home.join("out");
        let copied = verb(&place, &["cp", "--json", &format!("{id}:."), out.to_str().unwrap()]);
        assert_eq!(copied.status.code(), Some(0), "{who:?}: {}", text(&copied.stderr));
        let left_out = &document(&copied)["left_out"];
        assert_eq!(*left_out, json!({"count": 3, "paths": ["pipe", "sock", "sub/pipe"]}), "{who:?}");
        assert!(text(&copied.stderr).contains("3 special files were left out: pipe, sock, sub/pipe"), "{copied:?}");
        // Control: all other files are there.
        assert_eq!(fs::read_to_string(out.join("file")).unwrap(), "text\n");
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&fs::metadata(out.join("file")).unwrap()) & 0o7777, 0o755);
        assert_eq!(fs::read_link(out.join("link")).unwrap().to_str(), Some("/etc/passwd"), "a link, and only that");
        for dir in [&out, &out.join("sub")] {
            let special = |e: &fs::DirEntry| e.file_type().is_ok_and(|kind| kind.is_fifo() || kind.is_socket());
            assert!(!fs::read_dir(dir).unwrap().flatten().any(|e| special(&e)), "{}", dir.display());
        }
        // A tar stream leaves them out as well; a special file that is named itself is refused.
        let tar = place.cofferdam(["cp", "--tar", &format!("{id}:."), "-"]).output().unwrap();
        assert!(tar.status.success() && text(&tar.stderr).contains("sub/pipe"), "{}", text(&tar.stderr));
        let listed = to_the_end(Command::new("tar").arg("-tv"), &tar.stdout);
        assert!(text(&listed.stdout).contains("file"), "the control");
        assert!(!text(&listed.stdout).contains("pipe"), "{}", text(&listed.stdout));
        let named = verb(&place, &["cp", "--json", &format!("{id}:pipe"), out.to_str().unwrap()]);
        assert_eq!(document(&named)["error_kind"], "conflict", "{who:?}");
    }
}

#[test]
fn a_fifo_of_the_host_holds_nobody_up() {
    let place = Place::new(As::User);
    place.file("home/in/file", "text");
    mkfifo(&place, "home/in/pipe");
    mkfifo(&place, "home/alone");
    let made = verb(&place, &["create", "--name", "box"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let tree = place.home.join("in");
    let copied = verb(&place, &["cp", "--json", tree.to_str().unwrap(), "box:in"]);
    assert_eq!(document(&copied)["left_out"], json!({"count": 1, "paths": ["pipe"]}), "{}", text(&copied.stderr));
    let alone = place.home.join("alone");
    let refused = verb(&place, &["cp", "--json", alone.to_str().unwrap(), "box:alone"]);
    let fault = document(&refused);
    assert_eq!(fault["error_kind"], "conflict", "{fault}");
    assert!(fault["hint"].as_str().unwrap().contains("cofferdam cp -"), "{fault}");
    // A destination with a FIFO of that name: the verb neither writes to it nor blocks.
    let over = verb(&place, &["cp", "--json", "box:in/file", alone.to_str().unwrap()]);
    assert!(over.status.success() || document(&over)["error_kind"] == "conflict", "{}", text(&over.stdout));
    // Control: a shell's process substitution is a FIFO with a writer.
    let mut piped = place.outside("bash");
    piped.args(["-c", "\"$0\" cp <(echo piped) box:piped"]).arg(crate::support::binary());
    if let Some((_, server)) = place.cofferdam(["ls"]).get_envs().find(|(name, _)| *name == "COFFERDAM_SERVER") {
        piped.env("COFFERDAM_SERVER", server.unwrap_or_default());
    }
    let piped = piped.stdin(Stdio::null()).output().unwrap();
    assert!(piped.status.success(), "{}", text(&piped.stderr));
    let shown = verb(&place, &["files", "cat", "box:piped"]);
    assert_eq!(text(&shown.stdout), "piped\n");
}
