//! Input of a command: complete, in order, and with back-pressure.

use crate::place::LiveSandbox;
use crate::support::{As, Place};
use crate::words::text;
use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

// promise 20
#[test]
fn who_writes_too_fast_waits() {
    let place = Place::new(As::Root);
    let live = LiveSandbox::new(&place, &[]);
    let script = "while [ ! -e go ]; do sleep 0.05; done; wc -c";
    let mut command = place.cofferdam(["exec", &live.id, "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, taken) = (child.stdin.take().unwrap(), AtomicUsize::new(0));
    const WHOLE: usize = 4 << 20;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..WHOLE / 4096 {
                stdin.write_all(&[b'x'; 4096]).unwrap();
                taken.fetch_add(4096, Ordering::SeqCst);
            }
            drop(stdin);
        });
        // The writer blocks long before all is written: input is not buffered for a command that does not read.
        let mut before = usize::MAX;
        while before != taken.load(Ordering::SeqCst) || before == 0 {
            before = taken.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(300));
        }
        // The writer is released before the assertions: it is joined.
        let others = live.sh(&[], "touch go; echo others go on", b"");
        let output = child.wait_with_output().unwrap();
        assert!(before < WHOLE / 2, "{before} bytes are kept somewhere");
        assert_eq!(others.stdout, b"others go on\n");
        assert_eq!(text(&output.stdout).trim(), WHOLE.to_string());
    });
}

#[test]
fn a_command_that_does_not_read_ends_as_it_likes() {
    let place = Place::new(As::User);
    let live = LiveSandbox::new(&place, &[]);
    let much = vec![b'y'; 1 << 20];
    let done = live.sh(&[], "exec 0<&-; echo closed; exit 2", &much);
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(2), "closed\n".to_owned()));
    let none = live.sh(&["--no-stdin"], "cat; echo end", &much);
    assert_eq!(text(&none.stdout), "end\n");
}
