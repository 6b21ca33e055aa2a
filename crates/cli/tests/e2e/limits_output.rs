//! The output limit, and output without one: cut at the exact byte, counted, and never buffered in the supervisor's
//! memory.

use crate::support::{As, Place, binary, either};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

// promise 8
#[test]
fn output_is_kept_to_the_byte() {
    for who in either() {
        let place = Place::new(who);
        let text: String = (0..20_000).map(|n| format!("{n:05}\n")).collect();
        let file = place.file("home/project/text", &text);
        let cat = format!("cat {}", file.display());
        for cap in [1usize, 4095, 4096, 4097, 65_535, 65_536, 65_537, 119_999] {
            let run = place.sh(&["--output", &cap.to_string()], &format!("{cat}; sleep 400"));
            run.assert_code(137);
            assert!(run.stdout() == text[..cap], "{cap}: {} bytes came", run.output.stdout.len());
            assert_eq!(run.outcome["usage"]["output_bytes"], cap, "{cap}");
        }
        let at = place.sh(&["--output", "120000"], &cat);
        at.assert_ok();
        assert!(at.stdout() == text);
        // The limit applies to the sum of both streams, and each keeps its order.
        let both = place.sh(&["-q", "--output", "100001"], &format!("{cat} & {cat} >&2; wait; sleep 400"));
        both.assert_code(137);
        let (out, err) = (both.stdout(), both.stderr());
        assert_eq!(out.len() + err.len(), 100_001);
        assert!(text.starts_with(&out) && text.starts_with(&err));
    }
}

#[test]
fn truncated_output_goes_on_and_is_counted() {
    for who in either() {
        let place = Place::new(who);
        let run = place.sh(
            &["--limit", "output=10,on_output_limit=truncate"],
            "printf 1234567; printf abcdef >&2; head -c 300000 /dev/zero; exit 7",
        );
        run.assert_code(7);
        assert_eq!(run.text("/verdict"), "failed", "{}", run.story());
        assert_eq!(run.output.stdout.len() + run.output.stderr.len(), 10, "{}", run.story());
        let dropped = |stream: &str| run.outcome["truncated"][stream].as_u64().unwrap();
        assert_eq!(dropped("stdout") + run.output.stdout.len() as u64, 300_007);
        assert_eq!(dropped("stderr") + run.output.stderr.len() as u64, 6);
        assert_eq!(run.outcome["usage"]["output_bytes"], 10);
        let policy = place.file(
            "p.json",
            r#"{"version": 1, "extends": ["default"], "limits": {"max_output_bytes": 10, "on_output_limit": "truncate"}}"#,
        );
        let fits = place.sh(&["-s", policy.to_str().unwrap()], "printf 1234567890");
        fits.assert_ok();
        assert_eq!(fits.outcome["truncated"]["stdout"], 0);
        place.sh(&["-s", policy.to_str().unwrap()], "yes | head -c 1000000").assert_ok();
    }
}

/// The outcome document holds the kept part and names the limit.
#[test]
fn output_in_the_document_obeys_the_cap() {
    let place = Place::new(As::User);
    let run = place.sh(&["--json", "--output", "5"], "printf 123456789; sleep 400");
    run.assert_code(137);
    let document: Value = serde_json::from_str(&run.stdout()).unwrap();
    assert_eq!(document["stdout"], "12345");
    assert_eq!(document["limit_kind"], "output_bytes");
}

/// Starts a run with pipes on stdin and stdout.
fn start(place: &Place, flags: &[&str], script: &str) -> Child {
    let mut c = place.cofferdam(["run"]);
    c.args(flags).args(["--", "/bin/sh", "-c", script]);
    c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn memory_high_water(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

// promise 8
#[test]
fn our_memory_stays_flat_under_a_flood() {
    for who in either() {
        let place = Place::new(who);
        let after = |bytes: u64| {
            // Without a workspace: a longer run with one is recorded while it goes on, which takes memory once.
            let mut child = start(&place, &["--read-only"], &format!("yes | head -c {bytes}; read x"));
            let mut out = child.stdout.take().unwrap();
            let copied = std::io::copy(&mut out.by_ref().take(bytes), &mut std::io::sink()).unwrap();
            assert_eq!(copied, bytes);
            let high = memory_high_water(child.id());
            drop(child.stdin.take());
            child.wait().unwrap();
            high
        };
        let (small, large) = (after(10_000_000), after(1_000_000_000));
        assert!(large <= small + 1024, "{who:?}: {small} kB after 10 MB, {large} kB after 1 GB");
    }
}

// promise 8
#[test]
fn a_slow_reader_makes_the_guest_wait() {
    for who in either() {
        let place = Place::new(who);
        let shared = place.dir("shared");
        let counter = place.file("shared/count", "0");
        let count = || fs::read_to_string(&counter).unwrap().trim().parse::<u64>().unwrap_or(0);
        let block = "a".repeat(1000);
        let script = format!("i=0; while :; do printf '%s' {block}; i=$((i+1)); echo $i > {}; done", counter.display());
        let mut child = start(&place, &["--write", shared.to_str().unwrap()], &script);
        let settled = |least: u64| {
            let deadline = Instant::now() + Duration::from_secs(180);
            let mut last = u64::MAX;
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let now = count();
                if now == last && now > least {
                    return now;
                }
                last = now;
                assert!(Instant::now() < deadline, "the guest still writes: {now}");
            }
        };
        let first = settled(0);
        assert!(first < 1000, "two pipes and one chunk hold far less than a megabyte: {first} kB were written");
        let mut out = child.stdout.take().unwrap();
        let mut some = vec![0; 500_000];
        out.read_exact(&mut some).unwrap();
        assert!(some.iter().all(|b| *b == b'a'));
        // Control: once the reader continues, so does the guest.
        assert!(settled(first) >= first + 400);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_reader_that_leaves_ends_the_guest_like_outside() {
    for who in either() {
        let place = Place::new(who);
        // Outside, a flooding command dies of SIGPIPE; a run reports the same in its status.
        let outside = place.outside("sh").args(["-c", "yes | head -n 1"]).output().unwrap();
        let inside =
            place.outside("sh").arg("-c").arg(format!("{} run -- yes | head -n 1", binary().display())).output();
        assert_eq!(inside.unwrap().stdout, outside.stdout);
        let mut child = start(&place, &[], "yes; echo $? > /dev/null; exit 41");
        let mut line = [0; 2];
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut line).unwrap();
        drop(out);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(41), "the shell saw its child end: {status:?}");
        let mut child = start(&place, &[], "exec yes");
        child.stdout.take().unwrap().read_exact(&mut line).unwrap();
        let status = child.wait().unwrap();
        assert!(status.code() == Some(128 + 13) || status.signal() == Some(13), "{status:?}");
    }
}
