//! Limits of a live enclosure, and of each command in it.

use super::Case;
use super::fixture::*;
use enclosure::ResidenceEvent;
use terms::{LimitKind, Limits};

pub const CASES: &[Case] = &[
    ("too_many_processes_end_everything_once", too_many_processes_end_everything_once),
    ("memory_is_the_matter_of_whoever_used_it", memory_is_the_matter_of_whoever_used_it),
    ("processor_time_is_counted_anew", processor_time_is_counted_anew),
    ("a_full_space_can_be_emptied", a_full_space_can_be_emptied),
    ("open_files_are_limited", open_files_are_limited),
];

impl LiveEnclosure {
    fn limit(&mut self) -> LimitKind {
        self.until("a limit", |live| {
            let at = live.happened.iter().position(|h| matches!(h, ResidenceEvent::Limit(_)))?;
            match live.happened.remove(at) {
                ResidenceEvent::Limit(hit) => Some(hit.kind),
                _ => None,
            }
        })
    }

    fn no_limit(&self) {
        assert!(!self.happened.iter().any(|h| matches!(h, ResidenceEvent::Limit(_))), "{:?}", self.happened);
    }
}

/// Groups need a host that lets us make them; without, such limits are refused, and that is what is tested.
fn with_groups(limits: Limits) -> Option<LiveEnclosure> {
    match planned(spec(limits)).reside(enclosure::GuestServices::default()) {
        Ok(residence) => Some(LiveEnclosure { residence, happened: Vec::new() }),
        Err(fault) => {
            assert!(!is_root() && fault.error_kind == terms::ErrorKind::UnsupportedLimit, "{fault:?}");
            None
        }
    }
}

fn too_many_processes_end_everything_once() {
    let Some(mut live) = with_groups(Limits { max_processes: Some(8), ..Limits::default() }) else { return };
    // Shepherds do not count: as many commands as the limit allows run at once.
    let all: Vec<_> = (0..8).map(|_| live.start("exec sleep 1000")).collect();
    live.residence.turn().unwrap();
    live.no_limit();
    all.iter().for_each(|started| live.residence.end(started.job));
    all.iter().for_each(|started| drop(live.ended(started.job)));
    // `exec` needs no further process, which the other commands may have used up by then.
    let other = live.start("exec sleep 1000");
    let many = live.start("for n in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done; wait");
    assert_eq!(live.limit(), LimitKind::Processes);
    assert_eq!((live.ended(other.job).status, live.ended(many.job).status.is_some()), (Some(9), true));
    assert_eq!(code(live.run("exit 3").0), Some(3), "it stands, and what comes is not blamed");
    live.no_limit();
}

const TAKE: &str = "exec python3 -c 'x=bytearray(200<<20)'";

fn memory_is_the_matter_of_whoever_used_it() {
    let Some(mut live) = with_groups(Limits { max_memory_mb: Some(64.0), ..Limits::default() }) else { return };
    let alone = live.start(&format!("({TAKE}); sleep 1000"));
    let end = live.ended(alone.job);
    assert!(end.out_of_memory.is_some_and(|hit| hit.kind == LimitKind::MemoryMb), "{end:?}");
    let other = live.start("sleep 1000");
    let taker = live.start(TAKE);
    let end = live.ended(taker.job);
    assert!(end.out_of_memory.is_some(), "{end:?}");
    let (status, output, _) = live.run("echo fine");
    assert_eq!((code(status), output.as_str()), (Some(0), "fine\n"));
    live.residence.end(other.job);
    let end = live.ended(other.job);
    assert!(end.out_of_memory.is_none(), "{end:?}");
    live.no_limit();
}

fn processor_time_is_counted_anew() {
    let Some(mut live) = with_groups(Limits { max_cpu_ms: Some(500), ..Limits::default() }) else { return };
    let busy = "exec python3 -c 'import time\nt=time.process_time()\nwhile time.process_time()<t+0.3: pass'";
    for _ in 0..2 {
        assert_eq!(code(live.run(busy).0), Some(0));
        live.no_limit();
    }
    let started = live.start("while :; do :; done");
    assert_eq!(live.limit(), LimitKind::CpuMs);
    assert_eq!(live.ended(started.job).status, Some(9));
}

fn a_full_space_can_be_emptied() {
    let mut live = stand_with(spec(Limits { max_disk_mb: Some(2.0), ..Limits::default() }));
    assert_eq!(code(live.run("head -c 2097152 /dev/zero > /tmp/full").0), Some(0), "exactly at the limit");
    live.no_limit();
    let started = live.start("head -c 100000 /dev/zero > /tmp/more; sleep 1000");
    assert_eq!(live.limit(), LimitKind::DiskMb);
    live.ended(started.job);
    assert_eq!(code(live.run("rm /tmp/full /tmp/more; sleep 0.1; head -c 1000 /dev/zero > /tmp/again").0), Some(0));
    live.no_limit();
}

fn open_files_are_limited() {
    let mut live = stand_with(spec(Limits { max_open_files: Some(20), ..Limits::default() }));
    let opens = |n: u32| format!("exec python3 -c 'f=[open(\"/dev/null\") for _ in range({n})]'");
    assert_eq!(code(live.run(&opens(8)).0), Some(0));
    live.no_limit();
    let started = live.start(&opens(30));
    assert_eq!(live.limit(), LimitKind::OpenFiles);
    live.ended(started.job);
    assert_eq!(code(live.run(&opens(8)).0), Some(0));
    live.no_limit();
}
