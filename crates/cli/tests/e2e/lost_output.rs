//! Lost output is never ignored: on a full disk every verb ends with an error status, and so does a run whose command
//! succeeded. A reader that closes its pipe early did so on purpose, and is no error.

use crate::support::left::soon;
use crate::support::{As, Place, either, to_the_end};
use std::fs;
use std::process::{Command, Stdio};

/// Runs a verb with stdout on `/dev/full`: exit status and stderr.
fn into_the_full(place: &Place, words: &[&str]) -> (i32, String) {
    let script = "exec \"$@\" > /dev/full";
    let mut command = place.outside("sh");
    command.args(["-c", script, "sh"]).arg(crate::support::binary()).args(words);
    let got = to_the_end(&mut command, b"");
    (got.status.code().unwrap_or(-1), String::from_utf8_lossy(&got.stderr).into_owned())
}

// promise 11
#[test]
fn a_run_whose_output_is_lost_says_so() {
    for who in either() {
        let place = Place::new(who);
        let status = place.file("status.json", "");
        let words = ["run", "--status-file", status.to_str().unwrap(), "--", "echo", "hello"];
        let (code, stderr) = into_the_full(&place, &words);
        assert_eq!(code, 125, "{stderr}");
        assert!(stderr.contains("standard output: No space left on device"), "{stderr}");
        let outcome: serde_json::Value = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap();
        assert_eq!(outcome["verdict"], "ok", "what the command did is told as it was");
        assert_eq!(outcome["output_lost"], "standard output: No space left on device (os error 28)");
        assert_eq!(outcome["truncated"]["stdout"], 6);
        // Control: the same command with a working stdout.
        let got = to_the_end(&mut place.cofferdam(words), b"");
        assert_eq!((got.status.code(), &got.stdout[..]), (Some(0), &b"hello\n"[..]));
        let outcome: serde_json::Value = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap();
        assert_eq!(outcome.get("output_lost"), None);
        // A command without output loses none.
        assert_eq!(into_the_full(&place, &["run", "--", "true"]).0, 0);
    }
}

// promise 11
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
        let (code, stderr) = into_the_full(&place, words);
        assert_eq!(code, 125, "{words:?}: {stderr}");
        assert!(stderr.contains("No space left on device"), "{words:?}: {stderr}");
        let fine = to_the_end(&mut place.cofferdam(words), b"");
        assert!(fine.status.success() && !fine.stdout.is_empty(), "{words:?}");
        // Output of `cp` is read by programs, which must not take a part for the whole.
        let expected = if words[0] == "cp" { 125 } else { 0 };
        assert_eq!(left_early(&place, words), expected, "{words:?}");
    }
}

/// Exit status of a verb whose reader is gone before the first byte.
fn left_early(place: &Place, words: &[&str]) -> i32 {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = place.cofferdam(words);
    command.stdout(writer).stderr(Stdio::null()).status().unwrap().code().unwrap_or(-1)
}

// promise 11
#[test]
fn in_a_live_sandbox_it_is_the_same() {
    for who in either() {
        let place = Place::new(who);
        for words in [&["create", "--name", "lab"][..], &["start", "--live", "lab"]] {
            assert!(to_the_end(&mut place.cofferdam(words), b"").status.success());
        }
        let (code, stderr) = into_the_full(&place, &["exec", "lab", "--", "echo", "hello"]);
        assert_eq!(code, 125, "{stderr}");
        assert!(stderr.contains("standard output: No space left on device"), "{stderr}");
        let got = to_the_end(&mut place.cofferdam(["exec", "lab", "--", "echo", "hello"]), b"");
        assert_eq!((got.status.code(), &got.stdout[..]), (Some(0), &b"hello\n"[..]));
        assert!(to_the_end(&mut place.cofferdam(["rm", "--force", "lab"]), b"").status.success());
    }
}

/// Exit status of a command in a live sandbox whose reader takes one line and leaves; `None` if the command does not
/// end.
fn one_line_of(place: &Place, command: &[&str]) -> Option<i32> {
    let mut words = place.cofferdam(["exec", "lab", "--"]);
    let mut child = words.args(command).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = Command::new("head");
    first.args(["-n", "1"]).stdin(child.stdout.take().unwrap());
    assert_eq!(to_the_end(&mut first, b"").stdout, b"y\n");
    // `first` holds our copy of the pipe's read end.
    drop(first);
    if !soon(|| child.try_wait().unwrap().is_some()) {
        child.kill().unwrap();
        child.wait().unwrap();
        return None;
    }
    child.wait().unwrap().code()
}

/// Regression: the command never ended, and the shell waited for the pipeline.
// promise 11
#[test]
fn a_reader_that_leaves_ends_a_command_of_a_live_sandbox() {
    for who in either() {
        let place = Place::new(who);
        for words in [&["create", "--name", "lab"][..], &["start", "--live", "lab"]] {
            assert!(to_the_end(&mut place.cofferdam(words), b"").status.success());
        }
        assert_eq!(one_line_of(&place, &["yes"]), Some(141), "{who:?}: by SIGPIPE, as outside");
        // Python ignores SIGPIPE and would see its writes fail.
        let text = "while True: print('y', flush=True)";
        assert_eq!(one_line_of(&place, &["python3", "-c", text]), Some(143), "{who:?}");
        // A command that writes no more runs to its own end.
        assert_eq!(one_line_of(&place, &["sh", "-c", "echo y; sleep 2; exit 5"]), Some(5), "{who:?}");
        let gone = to_the_end(&mut place.cofferdam(["ps", "--json"]), b"");
        assert!(!String::from_utf8_lossy(&gone.stdout).contains("run_"), "{who:?}: it goes on");
        assert!(to_the_end(&mut place.cofferdam(["rm", "--force", "lab"]), b"").status.success());
    }
}
