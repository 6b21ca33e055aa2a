//! Commands on a terminal: window size, keys, and the terminal's state afterwards.

use crate::support::terminal::on_terminal;
use crate::support::{Place, either, to_the_end};
use serde_json::json;

#[test]
fn on_a_terminal_the_command_has_one_of_the_same_size() {
    for who in either() {
        let place = Place::new(who);
        let text =
            "test -t 0 -a -t 1 -a -t 2 && echo all-tty; stty size; tty; echo $TERM; echo to-tty >/dev/tty; exit 6";
        for flags in [&[][..], &["-it"], &["-i", "--tty"], &["-i", "-t"], &["-t", "-i"]] {
            let mut args = flags.to_vec();
            args.extend(["--", "sh", "-c", text]);
            let screen = on_terminal(&place, &args, json!([]));
            screen.assert_code(6);
            let lines: Vec<&str> = screen.text.lines().map(str::trim_end).collect();
            assert_eq!(lines[..2], ["all-tty", "31 97"], "{}", screen.text);
            assert!(lines[2].starts_with("/dev/pts/"), "{}", screen.text);
            assert_eq!(lines[3..], ["xterm", "to-tty"], "{}", screen.text);
            assert_eq!(screen.outcome["exit"], json!({"code": 6}));
        }
    }
}

#[test]
fn without_a_terminal_there_is_none_unless_asked_for() {
    for who in either() {
        let place = Place::new(who);
        let text =
            "for n in 0 1 2; do test -t $n && echo tty $n; done; (: </dev/tty) 2>/dev/null && echo ctty; echo end";
        let got = to_the_end(&mut place.cofferdam(["run", "-c", text]), b"");
        assert_eq!(String::from_utf8_lossy(&got.stdout), "end\n");
        let screen = on_terminal(&place, &["--no-tty", "-c", text], json!([]));
        assert_eq!(screen.assert_code(0).text, "end\r\n");
        let got = to_the_end(&mut place.cofferdam(["run", "--tty", "-c", "test -t 1 && stty size"]), b"");
        assert_eq!(String::from_utf8_lossy(&got.stdout), "24 80\r\n");
        let dialects: [&[&str]; 7] = [
            &["-it", "--"],
            &["-i", "-t", "--"],
            &["-t", "-i"],
            &["-q", "-i", "-t"],
            &["-t"],
            &["-t", "--rm", "--"],
            &["-i", "--rm", "-t"],
        ];
        for flags in dialects {
            let words = ["run"].iter().chain(flags).chain(&["cat"]);
            let got = to_the_end(&mut place.cofferdam(words), b"typed\n");
            assert_eq!(String::from_utf8_lossy(&got.stdout), "typed\r\ntyped\r\n", "{flags:?}: echoed, then copied");
            assert_eq!(got.status.code(), Some(0));
        }
        // `-t` with an amount is the timeout, and `-i` alone only keeps the input.
        for flags in [&["-i", "-t", "280s", "--"][..], &["-t", "60s"], &["-i"]] {
            let words = ["run"].iter().chain(flags).chain(&["cat"]);
            let timed = to_the_end(&mut place.cofferdam(words), b"typed\n");
            assert_eq!(String::from_utf8_lossy(&timed.stdout), "typed\n", "{flags:?}");
        }
    }
}

#[test]
fn a_resized_window_is_seen_inside() {
    for who in either() {
        let place = Place::new(who);
        let text = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done";
        let steps = json!([["expect", "ready"], ["resize", 44, 133], ["expect", "44 133"]]);
        on_terminal(&place, &["-c", text], steps).assert_code(0);
    }
}

#[test]
fn keys_of_the_terminal_go_to_the_command() {
    for who in either() {
        let place = Place::new(who);
        let text = "trap 'echo interrupted; exit 7' INT; echo ready; while :; do sleep 0.05; done";
        let steps = json!([["expect", "ready"], ["send", "\u{3}"], ["expect", "interrupted"]]);
        let screen = on_terminal(&place, &["-c", text], steps);
        screen.assert_code(7);
        assert_eq!(screen.outcome["verdict"], "failed", "the command was interrupted, the run was not");
        let screen = on_terminal(
            &place,
            &["-c", "echo ready; exec sleep 1000"],
            json!([["expect", "ready"], ["send", "\u{3}"]]),
        );
        screen.assert_code(130);
        let steps = json!([["send", "hello\n"], ["expect", "hello\r\nhello\r\n"], ["send", "\u{4}"]]);
        on_terminal(&place, &["--", "cat"], steps).assert_code(0);
        // An interactive shell with job control: Ctrl-C ends the job, not the shell.
        let steps = json!([
            ["expect", "go> "],
            ["send", "sh -c 'echo started; exec sleep 1000'\n"],
            ["expect", "started\r\n"],
            ["send", "\u{3}"],
            ["expect", "go> "],
            ["send", "echo alive $((1+1))\n"],
            ["expect", "alive 2"],
            ["send", "exit 9\n"]
        ]);
        on_terminal(&place, &["-e", "PS1=go> ", "--", "sh", "-i"], steps).assert_code(9);
    }
}

// promise 11
#[test]
fn the_terminal_is_given_back_however_the_run_ends() {
    for who in either() {
        let place = Place::new(who);
        let screen = on_terminal(&place, &["-c", "stty -echo raw; echo ready; kill -9 $$"], json!([]));
        screen.assert_code(137);
        let steps = json!([["expect", "ready"], ["signal", 15]]);
        let screen = on_terminal(&place, &["-c", "stty raw; echo ready; exec sleep 1000"], steps);
        screen.assert_code(143);
        assert_eq!(screen.outcome["verdict"], "cancelled");
        on_terminal(&place, &["-t", "300ms", "-c", "stty raw; exec sleep 1000"], json!([])).assert_code(124);
        on_terminal(&place, &["--", "no-such-program"], json!([])).assert_code(127);
        place.script("home/project/lost-interpreter", "#!/no/such/interpreter\n");
        on_terminal(&place, &["--", "./lost-interpreter"], json!([])).assert_code(127);
    }
}

#[test]
fn what_a_terminal_program_prints_last_is_not_lost() {
    for who in either() {
        let place = Place::new(who);
        let screen = on_terminal(&place, &["-c", "seq 1 20000; echo the-end"], json!([]));
        screen.assert_code(0);
        assert_eq!(screen.text.lines().count(), 20_001);
        assert!(screen.text.ends_with("the-end\r\n"));
    }
}
