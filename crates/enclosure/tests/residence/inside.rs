//! Attacks of a guest on its shepherds and pid 1.

use super::Case;
use super::fixture::*;
use enclosure::{ResidenceEvent, Streams};
use std::time::Duration;

pub const CASES: &[Case] = &[
    ("the_tree_ends_with_its_command", the_tree_ends_with_its_command),
    ("whoever_kills_all_is_survived", whoever_kills_all_is_survived),
    ("a_stopped_shepherd_does_not_keep_its_tree", a_stopped_shepherd_does_not_keep_its_tree),
    ("a_shepherd_cannot_be_looked_into", a_shepherd_cannot_be_looked_into),
    ("a_storm_of_forks_ends", a_storm_of_forks_ends),
    ("signals_to_the_first_process_do_nothing", signals_to_the_first_process_do_nothing),
    ("refusals_are_each_jobs_own", refusals_are_each_jobs_own),
];

/// Number of processes inside with this word among their arguments.
fn living(live: &mut LiveEnclosure, word: &str) -> String {
    // Bracketed, so that grep does not find itself.
    let (first, rest) = word.split_at(1);
    live.run(&format!("grep -alE '[{first}]{rest}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l")).1.trim().to_string()
}

fn the_tree_ends_with_its_command() {
    let mut live = stand();
    let other = live.start("exec sleep 7777");
    let text = "setsid sh -c 'sleep 5555 & sleep 5555' & (setsid setsid sleep 5555 & ) ; nohup sleep 5555 & sleep 0.1; echo up; exit 6";
    let (status, output, _) = live.run(text);
    assert_eq!((code(status), output.as_str()), (Some(6), "up\n"));
    assert_eq!(living(&mut live, "5555"), "0", "told of when all are gone");
    // Ended on request, with processes that ignore other signals.
    let started = live
        .start("trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM; sleep 5555 & sleep 5555' & echo up; sleep 5555");
    live.read_until(&started.output, "up");
    live.residence.end(started.job);
    assert_eq!(live.ended(started.job).status, Some(9));
    assert_eq!(living(&mut live, "5555"), "0");
    assert_eq!(living(&mut live, "7777"), "1", "those of others stay");
    live.residence.end(other.job);
    live.ended(other.job);
}

fn whoever_kills_all_is_survived() {
    let mut live = stand();
    let other = live.start("setsid sleep 5555 & sleep 5555");
    let killer = live.start("sleep 0.1; kill -9 -1; sleep 5555");
    assert_eq!(live.ended(killer.job).status, None, "its end is not known");
    assert_eq!(live.ended(other.job).status, None);
    assert!(!live.happened.iter().any(|h| matches!(h, ResidenceEvent::Fell { .. })));
    assert_eq!(living(&mut live, "5555"), "0", "nothing of them is left");
    assert_eq!(code(live.run("exit 5").0), Some(5), "and others start as before");
}

fn a_stopped_shepherd_does_not_keep_its_tree() {
    let mut live = stand();
    let started = live.start("kill -STOP $PPID; echo up; sleep 5555");
    live.read_until(&started.output, "up");
    live.residence.end(started.job);
    assert_eq!(live.ended(started.job).status, Some(9), "woken to do its part");
    // A shepherd that is stopped over and over.
    let started = live.start("(setsid sh -c 'while :; do kill -STOP $0; done' $PPID &) ; echo up; sleep 5555");
    live.read_until(&started.output, "up");
    live.residence.end(started.job);
    live.ended(started.job);
    assert_eq!(living(&mut live, "5555"), "0");
    // A shepherd that is killed.
    let started = live.start("sleep 5555 & setsid sleep 5555 & kill -9 $PPID; sleep 5555");
    assert_eq!(live.ended(started.job).status, None);
    assert_eq!(living(&mut live, "5555"), "0");
}

fn a_shepherd_cannot_be_looked_into() {
    let mut live = stand();
    let look = "for p in 1 $PPID; do for f in environ maps mem fd/0; do cat /proc/$p/$f >/dev/null 2>&1 && echo $p $f; done; \
        ls /proc/$p/fd/ 2>/dev/null; readlink /proc/$p/exe; done; cat /proc/self/environ >/dev/null && echo control";
    assert_eq!(live.run(look).1, "control\n");
    let trace = "python3 -c 'import ctypes,sys\nc=ctypes.CDLL(None,use_errno=True)\nfor p in (1,int(sys.argv[1])):\n  r=c.ptrace(16,p,0,0)\n  print(r,ctypes.get_errno())' $PPID";
    assert_eq!(live.run(trace).1, "-1 1\n-1 1\n");
}

fn a_storm_of_forks_ends() {
    let mut live = stand();
    let other = live.start_with(shell("while read line; do echo $line; done", Streams::Pipes { input: true }));
    // Each process forks twice and exits, so that no scan of the tree sees it twice in the same shape. Bounded in count
    // and time, so that the storm also ends on a machine that is too slow to kill it.
    let storm = "import os,resource,time\nresource.setrlimit(resource.RLIMIT_NPROC,(150,150))\nend=time.time()+60\nwhile time.time()<end:\n  try:\n    if os.fork()==0:\n      os.setsid()\n      if os.fork(): os._exit(0)\n    else:\n      try: os.waitpid(-1,os.WNOHANG)\n      except OSError: pass\n  except OSError: time.sleep(0.001)";
    let mut start = shell(&format!("echo up; exec python3 -c '{storm}'"), PIPES);
    start.env.push(("STORM".into(), "1".into()));
    let started = live.start_with(start);
    live.read_until(&started.output, "up");
    std::thread::sleep(Duration::from_millis(500));
    live.residence.end(started.job);
    live.ended(started.job);
    assert_eq!(living(&mut live, "WNOHANG"), "0");
    rustix::io::write(other.input.as_ref().unwrap(), b"still here\n").unwrap();
    live.read_until(&other.output, "still here\n");
}

fn signals_to_the_first_process_do_nothing() {
    let mut live = stand();
    let text = "for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; python3 -c 'import os\nfor _ in range(3000):\n  os.kill(1,40)'; echo sent";
    let (status, output, _) = live.run(text);
    assert_eq!((code(status), output.as_str()), (Some(0), "sent\n"));
    // Signals sent to pid 1 do not stay queued, so the guest's own queue has room.
    let queue = "python3 -c 'import os,signal\nsignal.pthread_sigmask(signal.SIG_BLOCK,[50])\nfor _ in range(500): os.kill(os.getpid(),50)\nprint(\"room\")'";
    assert_eq!(live.run(queue).1, "room\n");
    let (_, output, _) = live.run("ulimit -n; grep -c . /proc/1/status");
    assert!(!output.is_empty());
}

fn refusals_are_each_jobs_own() {
    let mut live = stand();
    let one =
        live.start("echo x > /etc/one; (setsid sh -c 'echo x > /etc/deep; echo x > /etc/deep' &) ; sleep 0.3; exit 1");
    let two = live.start("sleep 0.1; echo x > /etc/two; exit 1");
    let (end_one, end_two) = (live.ended(one.job), live.ended(two.job));
    let targets = |end: &enclosure::CommandEnd| {
        let mut all: Vec<_> = end.denials.iter().map(|d| (d.target.clone(), d.count)).collect();
        all.sort();
        all
    };
    assert_eq!(targets(&end_one), [("/etc/deep".to_string(), 2), ("/etc/one".to_string(), 1)]);
    assert_eq!(targets(&end_two), [("/etc/two".to_string(), 1)]);
    let reported = live.happened.iter().filter(|h| matches!(h, ResidenceEvent::Denied { job: Some(_), .. })).count();
    assert_eq!(reported, 3, "{:?}", live.happened);
    // The same denial by another job is reported again.
    let three = live.start("echo x > /etc/two; exit 1");
    assert_eq!(targets(&live.ended(three.job)), [("/etc/two".to_string(), 1)]);
}
