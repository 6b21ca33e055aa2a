//! What was said and did not arrive is never passed over: on a full disk every verb ends with a status of its own, and so does a run
//! whose command succeeded. A reader that left early is another matter: that is a wish.

use crate::support::{As, BOTH, Place, to_the_end};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Our standard output on a disk that takes nothing: the status, and what was said beside it.
fn into_the_full(place: &Place, words: &[&str]) -> (i32, String) {
    let script = "exec \"$@\" > /dev/full";
    let mut command = place.outside("sh");
    command.args(["-c", script, "sh"]).arg(crate::support::binary()).args(words);
    let got = to_the_end(&mut command, b"");
    (got.status.code().unwrap_or(-1), String::from_utf8_lossy(&got.stderr).into_owned())
}

#[test]
fn a_run_whose_output_is_lost_says_so() {
    for who in BOTH {
        let place = Place::new(who);
        let status = place.file("status.json", "");
        let words = ["run", "--status-file", status.to_str().unwrap(), "--", "echo", "hello"];
        let (code, said) = into_the_full(&place, &words);
        assert_eq!(code, 125, "{said}");
        assert!(said.contains("standard output: No space left on device"), "{said}");
        let outcome: serde_json::Value = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap();
        assert_eq!(outcome["verdict"], "ok", "what the command did is told as it was");
        assert_eq!(outcome["output_lost"], "standard output: No space left on device (os error 28)");
        assert_eq!(outcome["truncated"]["stdout"], 6);
        // The control: the same, and somebody takes it.
        let got = to_the_end(&mut place.cofferdam(words), b"");
        assert_eq!((got.status.code(), &got.stdout[..]), (Some(0), &b"hello\n"[..]));
        let outcome: serde_json::Value = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap();
        assert_eq!(outcome.get("output_lost"), None);
        // Nothing was said, nothing was lost.
        assert_eq!(into_the_full(&place, &["run", "--", "true"]).0, 0);
    }
}

#[test]
fn no_document_is_cut_off_unsaid() {
    let place = Place::new(As::User);
    place.file("home/project/file", "text\n");
    assert!(to_the_end(&mut place.cofferdam(["create", "--name", "lab"]), b"").status.success());
    assert!(
        to_the_end(&mut place.cofferdam(["exec", "lab", "--", "sh", "-c", "echo more > file"]), b"").status.success()
    );
    let verbs: [&[&str]; 14] = [
        &["ls"],
        &["ls", "--json"],
        &["inspect", "lab"],
        &["diff", "lab"],
        &["diff", "lab", "--json"],
        &["diff", "lab", "--patch"],
        &["files", "cat", "lab:file"],
        &["cp", "lab:file", "-"],
        &["policy", "show", "default"],
        &["run", "--json", "--", "true"],
        &["run", "--explain", "--", "true"],
        &["audit", "log"],
        &["man"],
        &["--version"],
    ];
    for words in verbs {
        let (code, said) = into_the_full(&place, words);
        assert_eq!(code, 125, "{words:?}: {said}");
        assert!(said.contains("No space left on device"), "{words:?}: {said}");
        let fine = to_the_end(&mut place.cofferdam(words), b"");
        assert!(fine.status.success() && !fine.stdout.is_empty(), "{words:?}");
        // What `cp` gives is for a program, which must not take a part for the whole.
        let expected = if words[0] == "cp" { 125 } else { 0 };
        assert_eq!(left_early(&place, words), expected, "{words:?}");
    }
}

/// The status of a verb whose reader is gone before it says anything.
fn left_early(place: &Place, words: &[&str]) -> i32 {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = place.cofferdam(words);
    command.stdout(writer).stderr(Stdio::null()).status().unwrap().code().unwrap_or(-1)
}

#[test]
fn in_a_live_sandbox_it_is_the_same() {
    for who in BOTH {
        let place = Place::new(who);
        for words in [&["create", "--name", "lab"][..], &["start", "--live", "lab"]] {
            assert!(to_the_end(&mut place.cofferdam(words), b"").status.success());
        }
        let (code, said) = into_the_full(&place, &["exec", "lab", "--", "echo", "hello"]);
        assert_eq!(code, 125, "{said}");
        assert!(said.contains("standard output: No space left on device"), "{said}");
        let got = to_the_end(&mut place.cofferdam(["exec", "lab", "--", "echo", "hello"]), b"");
        assert_eq!((got.status.code(), &got.stdout[..]), (Some(0), &b"hello\n"[..]));
        assert!(to_the_end(&mut place.cofferdam(["rm", "--force", "lab"]), b"").status.success());
    }
}

/// The status of a command in a live sandbox of which a reader takes one line; none where it does not end.
fn one_line_of(place: &Place, command: &[&str]) -> Option<i32> {
    let mut words = place.cofferdam(["exec", "lab", "--"]);
    let mut child = words.args(command).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = Command::new("head");
    first.args(["-n", "1"]).stdin(child.stdout.take().unwrap());
    assert_eq!(to_the_end(&mut first, b"").stdout, b"y\n");
    // It holds our end of the pipe.
    drop(first);
    for _ in 0..150 {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// It went on for ever, and whoever had written the pipe waited for it.
#[test]
fn a_reader_that_leaves_ends_a_command_of_a_live_sandbox() {
    for who in BOTH {
        let place = Place::new(who);
        for words in [&["create", "--name", "lab"][..], &["start", "--live", "lab"]] {
            assert!(to_the_end(&mut place.cofferdam(words), b"").status.success());
        }
        assert_eq!(one_line_of(&place, &["yes"]), Some(141), "{who:?}: by SIGPIPE, as outside");
        // Python ignores that, and would see its writes fail.
        let text = "while True: print('y', flush=True)";
        assert_eq!(one_line_of(&place, &["python3", "-c", text]), Some(143), "{who:?}");
        // Who says nothing more is left to its own end.
        assert_eq!(one_line_of(&place, &["sh", "-c", "echo y; sleep 2; exit 5"]), Some(5), "{who:?}");
        let gone = to_the_end(&mut place.cofferdam(["ps", "--json"]), b"");
        assert!(!String::from_utf8_lossy(&gone.stdout).contains("run_"), "{who:?}: it goes on");
        assert!(to_the_end(&mut place.cofferdam(["rm", "--force", "lab"]), b"").status.success());
    }
}
