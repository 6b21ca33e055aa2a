//! An interactive session on a terminal: several lines, history, rich results as text, Ctrl-C.

use crate::fixture::CodeFixture;
use crate::support::As;
use crate::support::terminal::at_terminal;
use crate::support::to_the_end;
use crate::support::words::text;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;

// promise 29
#[test]
fn lines_are_typed_and_judged_by_the_interpreter() {
    let f = CodeFixture::new(As::User);
    let steps = json!([
        ["expect", ">>> "],
        ["send", "def twice(n):\r"],
        ["expect", "def twice"],
        ["send", "    return 2 * n\r\r"],
        ["expect", ">>> "],
        ["send", "twice(21)\r"],
        ["expect", "42"],
        ["expect", ">>> "],
        ["send", "exec(\"print('be' + 'gun')\\nwhile True: pass\")\r"],
        ["expect", "begun"],
        ["send", "\u{3}"],
        ["expect", "interrupted"],
        ["expect", ">>> "],
        ["send", "twice(50)\r"],
        ["expect", "100"],
        ["expect", ">>> "],
        ["send", "\u{4}"],
    ]);
    let screen = at_terminal(&f.place, &["code", "-i", "--sandbox", "s"], steps);
    screen.assert_code(0);
    let history = f.place.state().join("code_history");
    let kept = std::fs::read_to_string(&history).unwrap();
    assert!(kept.contains("twice(21)"), "{kept}");
    assert_eq!(std::fs::metadata(&history).unwrap().permissions().mode() & 0o777, 0o600);
}

// promise 29
#[test]
fn a_session_reads_lines_of_a_pipe() {
    let f = CodeFixture::new(As::User);
    let mut command = f.place.cofferdam(["code", "-i", "-l", "bash", "--sandbox", "s"]);
    let done = to_the_end(&mut command, b"x=20\nfor n in 1 2; do\n  x=$((x + 11))\ndone\necho $x\nfalse\n");
    assert!(text(&done.stdout).contains("42"), "{done:?}");
    assert_eq!(done.status.code(), Some(1), "the status of the last call");
}
