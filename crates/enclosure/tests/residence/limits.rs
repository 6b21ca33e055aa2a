//! Limits of the whole, and of each command.

use super::Case;
use super::world::*;
use enclosure::Happened;
use terms::{LimitKind, Limits};

pub const CASES: &[Case] = &[
    ("too_many_processes_end_everything_once", too_many_processes_end_everything_once),
    ("memory_is_the_matter_of_whoever_used_it", memory_is_the_matter_of_whoever_used_it),
    ("processor_time_is_counted_anew", processor_time_is_counted_anew),
    ("a_full_space_can_be_emptied", a_full_space_can_be_emptied),
    ("open_files_are_limited", open_files_are_limited),
];

impl Home {
    fn limit(&mut self) -> LimitKind {
        self.until("a limit", |home| {
            let at = home.happened.iter().position(|h| matches!(h, Happened::Limit(_)))?;
            match home.happened.remove(at) {
                Happened::Limit(hit) => Some(hit.kind),
                _ => None,
            }
        })
    }

    fn no_limit(&self) {
        assert!(!self.happened.iter().any(|h| matches!(h, Happened::Limit(_))), "{:?}", self.happened);
    }
}

/// Groups need a host that lets us make them; without, such limits are refused, and that is what is tested.
fn with_groups(limits: Limits) -> Option<Home> {
    match prepared(request(limits)).reside(enclosure::Beside::default()) {
        Ok(residence) => Some(Home { residence, happened: Vec::new() }),
        Err(fault) => {
            assert!(!is_root() && fault.error_kind == terms::ErrorKind::UnsupportedLimit, "{fault:?}");
            None
        }
    }
}

fn too_many_processes_end_everything_once() {
    let Some(mut home) = with_groups(Limits { max_processes: Some(8), ..Limits::default() }) else { return };
    // Shepherds are not the guest's: as many as are allowed run beside each other.
    let all: Vec<_> = (0..8).map(|_| home.start("exec sleep 1000")).collect();
    home.residence.turn().unwrap();
    home.no_limit();
    all.iter().for_each(|started| home.residence.end(started.job));
    all.iter().for_each(|started| drop(home.ended(started.job)));
    // Needs no process more, which the others may have taken by then.
    let other = home.start("exec sleep 1000");
    let many = home.start("for n in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done; wait");
    assert_eq!(home.limit(), LimitKind::Processes);
    assert_eq!((home.ended(other.job).status, home.ended(many.job).status.is_some()), (Some(9), true));
    assert_eq!(code(home.run("exit 3").0), Some(3), "it stands, and what comes is not blamed");
    home.no_limit();
}

const TAKE: &str = "exec python3 -c 'x=bytearray(200<<20)'";

fn memory_is_the_matter_of_whoever_used_it() {
    let Some(mut home) = with_groups(Limits { max_memory_mb: Some(64.0), ..Limits::default() }) else { return };
    let alone = home.start(&format!("({TAKE}); sleep 1000"));
    let end = home.ended(alone.job);
    assert!(end.out_of_memory.is_some_and(|hit| hit.kind == LimitKind::MemoryMb), "{end:?}");
    let other = home.start("sleep 1000");
    let taker = home.start(TAKE);
    let end = home.ended(taker.job);
    assert!(end.out_of_memory.is_some(), "{end:?}");
    let (status, output, _) = home.run("echo fine");
    assert_eq!((code(status), output.as_str()), (Some(0), "fine\n"));
    home.residence.end(other.job);
    let end = home.ended(other.job);
    assert!(end.out_of_memory.is_none(), "{end:?}");
    home.no_limit();
}

fn processor_time_is_counted_anew() {
    let Some(mut home) = with_groups(Limits { max_cpu_ms: Some(500), ..Limits::default() }) else { return };
    let busy = "exec python3 -c 'import time\nt=time.process_time()\nwhile time.process_time()<t+0.3: pass'";
    for _ in 0..2 {
        assert_eq!(code(home.run(busy).0), Some(0));
        home.no_limit();
    }
    let started = home.start("while :; do :; done");
    assert_eq!(home.limit(), LimitKind::CpuMs);
    assert_eq!(home.ended(started.job).status, Some(9));
}

fn a_full_space_can_be_emptied() {
    let mut home = stand_with(request(Limits { max_disk_mb: Some(2.0), ..Limits::default() }));
    assert_eq!(code(home.run("head -c 2097152 /dev/zero > /tmp/full").0), Some(0), "exactly at the limit");
    home.no_limit();
    let started = home.start("head -c 100000 /dev/zero > /tmp/more; sleep 1000");
    assert_eq!(home.limit(), LimitKind::DiskMb);
    home.ended(started.job);
    assert_eq!(code(home.run("rm /tmp/full /tmp/more; sleep 0.1; head -c 1000 /dev/zero > /tmp/again").0), Some(0));
    home.no_limit();
}

fn open_files_are_limited() {
    let mut home = stand_with(request(Limits { max_open_files: Some(20), ..Limits::default() }));
    let opens = |n: u32| format!("exec python3 -c 'f=[open(\"/dev/null\") for _ in range({n})]'");
    assert_eq!(code(home.run(&opens(8)).0), Some(0));
    home.no_limit();
    let started = home.start(&opens(30));
    assert_eq!(home.limit(), LimitKind::OpenFiles);
    home.ended(started.job);
    assert_eq!(code(home.run(&opens(8)).0), Some(0));
    home.no_limit();
}
