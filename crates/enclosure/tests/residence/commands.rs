//! Commands in a live enclosure: start, streams, signals, end.

use super::Case;
use super::fixture::*;
use enclosure::{ResidenceEvent, Streams};
use std::fs::File;
use std::io::Write;

pub const CASES: &[Case] = &[
    ("a_command_runs_and_is_told_of", a_command_runs_and_is_told_of),
    ("many_run_at_once", many_run_at_once),
    ("input_is_read_and_ends", input_is_read_and_ends),
    ("what_cannot_start_says_why", what_cannot_start_says_why),
    ("signals_reach_the_command", signals_reach_the_command),
    ("a_terminal_has_a_size", a_terminal_has_a_size),
    ("long_commands_pass_and_longer_ones_are_refused", long_commands_pass_and_longer_ones_are_refused),
];

fn a_command_runs_and_is_told_of() {
    let mut live = stand();
    let (status, output, error) = live.run("echo out; echo err >&2; pwd; umask; exit 3");
    assert_eq!(code(status), Some(3));
    assert_eq!(output, format!("out\n{}\n{:04o}\n", place().join("project").display(), 0o022));
    assert_eq!(error, "err\n");
    let (status, output, _) =
        live.run("ls -l /proc/self/fd | wc -l; cat /proc/self/status | grep -E '^(CapEff|NoNewPrivs|Seccomp):'");
    assert_eq!(code(status), Some(0));
    // Three streams, the directory being listed, and the descriptor of the count.
    assert!(output.starts_with("5\n"), "{output}");
    assert!(
        output.contains("CapEff:\t0000000000000000")
            && output.contains("NoNewPrivs:\t1")
            && output.contains("Seccomp:\t2")
    );
    live.residence.close();
    assert_eq!(census(), Vec::<i32>::new());
}

fn many_run_at_once() {
    let mut live = stand();
    let mut all: Vec<_> =
        (0..20).map(|n| live.start(&format!("sleep 0.{}; echo out {n}; echo err {n} >&2; exit {n}", n % 5))).collect();
    for (n, started) in all.iter_mut().enumerate() {
        let mut streams = Default::default();
        let end = live.ended_with_output(started, &mut streams);
        assert_eq!((code(end.status), streams), (Some(n as i32), (format!("out {n}\n"), format!("err {n}\n"))));
    }
    assert!(!live.happened.iter().any(|h| matches!(h, ResidenceEvent::Ended { .. } | ResidenceEvent::Fell { .. })));
    // No shepherd is left, as a process or as a zombie.
    let (_, output, _) = live.run("ls /proc | grep -c '^[0-9]'");
    assert!(output.trim().parse::<u32>().unwrap() <= 5, "{output}");
}

fn input_is_read_and_ends() {
    let mut live = stand();
    let mut started = live.start_with(shell("cat; echo done", Streams::Pipes { input: true }));
    let mut input = File::from(started.input.take().unwrap());
    input.write_all(b"one\n").unwrap();
    live.read_until(&started.output, "one\n");
    drop(input);
    let mut streams = Default::default();
    let end = live.ended_with_output(&mut started, &mut streams);
    assert_eq!((code(end.status), streams.0.as_str()), (Some(0), "done\n"));
    let (_, output, _) = live.run("cat | wc -c");
    assert_eq!(output, "0\n", "without input there is an end at once");
}

fn what_cannot_start_says_why() {
    let mut live = stand();
    let mut missing = shell("", PIPES);
    missing.program = "/nowhere/at/all".into();
    let fault = live.residence.start(missing).unwrap_err();
    assert_eq!((fault.error_kind, fault.exit_status.unwrap_or(0)), (terms::ErrorKind::NotFound, 127), "{fault:?}");
    let mut plain = shell("", PIPES);
    plain.program = "/etc/hostname".into();
    let fault = live.residence.start(plain).unwrap_err();
    assert_eq!(fault.exit_status.unwrap_or(0), 126, "{fault:?}");
    let mut lost = shell("true", PIPES);
    lost.cwd = "/nowhere".into();
    let fault = live.residence.start(lost).unwrap_err();
    assert!(fault.message.contains("working directory"), "{fault:?}");
    let mut relative = shell("true", PIPES);
    relative.program = "sh".into();
    assert_eq!(live.residence.start(relative).unwrap_err().error_kind, terms::ErrorKind::InvalidRequest);
    assert_eq!(code(live.run("exit 7").0), Some(7), "and others start as before");
}

fn signals_reach_the_command() {
    let mut live = stand();
    let started = live.start("trap 'echo caught; exit 9' TERM; echo up; while :; do sleep 0.05; done");
    live.read_until(&started.output, "up");
    assert!(live.residence.signal(started.job, 15));
    live.read_until(&started.output, "caught");
    assert_eq!(code(live.ended(started.job).status), Some(9));
    assert!(!live.residence.signal(started.job, 15), "it is gone");

    let started = live.start("echo up; exec sleep 1000");
    live.read_until(&started.output, "up");
    assert!(live.residence.signal(started.job, 9));
    assert_eq!(live.ended(started.job).status, Some(9));

    let started = live.start("echo up; while :; do date +%N; sleep 0.02; done");
    live.read_until(&started.output, "up");
    assert!(live.residence.signal(started.job, 19));
    live.until("a stop", |_| {
        std::thread::sleep(std::time::Duration::from_millis(200));
        drain(&started.output).is_empty().then_some(())
    });
    assert!(live.residence.signal(started.job, 18));
    live.read_until(&started.output, "\n");
    live.residence.end(started.job);
    assert_eq!(live.ended(started.job).status, Some(9));
}

fn a_terminal_has_a_size() {
    let mut live = stand();
    let start = shell(
        "stty size; tty; trap 'stty size; exit 4' WINCH; echo up; while :; do sleep 0.05; done",
        Streams::Terminal { rows: 33, columns: 101 },
    );
    let started = live.start_with(start);
    let output = live.read_until(&started.output, "up");
    assert!(output.contains("33 101") && output.contains("/dev/pts/0"), "{output:?}");
    live.residence.resize(started.job, 40, 120);
    live.read_until(&started.output, "40 120");
    assert_eq!(code(live.ended(started.job).status), Some(4));
    // Terminal input, end of file included.
    let started =
        live.start_with(shell("read word; echo got $word; cat; echo end", Streams::Terminal { rows: 24, columns: 80 }));
    let mut input = File::from(started.input.unwrap());
    input.write_all(b"hello\n").unwrap();
    live.read_until(&started.output, "got hello");
    input.write_all(b"\x04").unwrap();
    live.read_until(&started.output, "end");
    assert_eq!(code(live.ended(started.job).status), Some(0));
}

fn long_commands_pass_and_longer_ones_are_refused() {
    let mut live = stand();
    let long = |bytes: usize| {
        let mut start = shell("echo $#; printf %s \"$1\" | wc -c; printf %s \"$LONG\" | wc -c", PIPES);
        start.argv.push("sh".into());
        start.argv.extend((0..bytes / 100_000).map(|_| "x".repeat(100_000).into()));
        start.env.push(("LONG".into(), "y".repeat(120_000).into()));
        start
    };
    let mut started = live.start_with(long(1_000_000));
    let mut streams = Default::default();
    let end = live.ended_with_output(&mut started, &mut streams);
    assert_eq!((code(end.status), streams.0.as_str()), (Some(0), "10\n100000\n120000\n"), "{}", streams.1);
    let fault = live.residence.start(long(5_000_000)).unwrap_err();
    assert!(fault.error_kind == terms::ErrorKind::InvalidRequest && fault.message.contains("bytes"), "{fault:?}");
    let mut zero = shell("true", PIPES);
    zero.argv.push("a\0b".into());
    assert_eq!(live.residence.start(zero).unwrap_err().error_kind, terms::ErrorKind::InvalidRequest);
}
