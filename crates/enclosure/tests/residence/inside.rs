//! What a guest does to those who watch over it.

use super::Case;
use super::world::*;
use enclosure::{Happened, Streams};
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

/// Numbers inside of processes that have this word among their arguments.
fn living(home: &mut Home, word: &str) -> String {
    // Bracketed, so that the one who looks is not found.
    let (first, rest) = word.split_at(1);
    home.run(&format!("grep -alE '[{first}]{rest}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l")).1.trim().to_string()
}

fn the_tree_ends_with_its_command() {
    let mut home = stand();
    let other = home.start("exec sleep 7777");
    let text = "setsid sh -c 'sleep 5555 & sleep 5555' & (setsid setsid sleep 5555 & ) ; nohup sleep 5555 & sleep 0.1; echo up; exit 6";
    let (status, output, _) = home.run(text);
    assert_eq!((code(status), output.as_str()), (Some(6), "up\n"));
    assert_eq!(living(&mut home, "5555"), "0", "told of when all are gone");
    // And by order, with one that hears no other signal.
    let started = home
        .start("trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM; sleep 5555 & sleep 5555' & echo up; sleep 5555");
    home.hears(&started.output, "up");
    home.residence.end(started.job);
    assert_eq!(home.ended(started.job).status, Some(9));
    assert_eq!(living(&mut home, "5555"), "0");
    assert_eq!(living(&mut home, "7777"), "1", "those of others stay");
    home.residence.end(other.job);
    home.ended(other.job);
}

fn whoever_kills_all_is_survived() {
    let mut home = stand();
    let other = home.start("setsid sleep 5555 & sleep 5555");
    let killer = home.start("sleep 0.1; kill -9 -1; sleep 5555");
    assert_eq!(home.ended(killer.job).status, None, "nobody knows how it would have ended");
    assert_eq!(home.ended(other.job).status, None);
    assert!(!home.happened.iter().any(|h| matches!(h, Happened::Fell { .. })));
    assert_eq!(living(&mut home, "5555"), "0", "nothing of them is left");
    assert_eq!(code(home.run("exit 5").0), Some(5), "and others start as before");
}

fn a_stopped_shepherd_does_not_keep_its_tree() {
    let mut home = stand();
    let started = home.start("kill -STOP $PPID; echo up; sleep 5555");
    home.hears(&started.output, "up");
    home.residence.end(started.job);
    assert_eq!(home.ended(started.job).status, Some(9), "woken to do its part");
    // One that is stopped again and again.
    let started = home.start("(setsid sh -c 'while :; do kill -STOP $0; done' $PPID &) ; echo up; sleep 5555");
    home.hears(&started.output, "up");
    home.residence.end(started.job);
    home.ended(started.job);
    assert_eq!(living(&mut home, "5555"), "0");
    // One that is killed.
    let started = home.start("sleep 5555 & setsid sleep 5555 & kill -9 $PPID; sleep 5555");
    assert_eq!(home.ended(started.job).status, None);
    assert_eq!(living(&mut home, "5555"), "0");
}

fn a_shepherd_cannot_be_looked_into() {
    let mut home = stand();
    let look = "for p in 1 $PPID; do for f in environ maps mem fd/0; do cat /proc/$p/$f >/dev/null 2>&1 && echo $p $f; done; \
        ls /proc/$p/fd/ 2>/dev/null; readlink /proc/$p/exe; done; cat /proc/self/environ >/dev/null && echo control";
    assert_eq!(home.run(look).1, "control\n");
    let trace = "python3 -c 'import ctypes,sys\nc=ctypes.CDLL(None,use_errno=True)\nfor p in (1,int(sys.argv[1])):\n  r=c.ptrace(16,p,0,0)\n  print(r,ctypes.get_errno())' $PPID";
    assert_eq!(home.run(trace).1, "-1 1\n-1 1\n");
}

fn a_storm_of_forks_ends() {
    let mut home = stand();
    let other = home.start_with(shell("while read line; do echo $line; done", Streams::Pipes { input: true }));
    // Each makes two of itself and goes away: no look at the tree sees it twice in the same shape. Bounded by its own
    // count and time, so that a machine that is too slow to end it gets rid of it.
    let storm = "import os,resource,time\nresource.setrlimit(resource.RLIMIT_NPROC,(150,150))\nend=time.time()+60\nwhile time.time()<end:\n  try:\n    if os.fork()==0:\n      os.setsid()\n      if os.fork(): os._exit(0)\n    else:\n      try: os.waitpid(-1,os.WNOHANG)\n      except OSError: pass\n  except OSError: time.sleep(0.001)";
    let mut start = shell(&format!("echo up; exec python3 -c '{storm}'"), PIPES);
    start.env.push(("STORM".into(), "1".into()));
    let started = home.start_with(start);
    home.hears(&started.output, "up");
    std::thread::sleep(Duration::from_millis(500));
    home.residence.end(started.job);
    home.ended(started.job);
    assert_eq!(living(&mut home, "WNOHANG"), "0");
    rustix::io::write(other.input.as_ref().unwrap(), b"still here\n").unwrap();
    home.hears(&other.output, "still here\n");
}

fn signals_to_the_first_process_do_nothing() {
    let mut home = stand();
    let text = "for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; python3 -c 'import os\nfor _ in range(3000):\n  os.kill(1,40)'; echo sent";
    let (status, output, _) = home.run(text);
    assert_eq!((code(status), output.as_str()), (Some(0), "sent\n"));
    // What was sent does not stay: room for signals is the guest's own.
    let queue = "python3 -c 'import os,signal\nsignal.pthread_sigmask(signal.SIG_BLOCK,[50])\nfor _ in range(500): os.kill(os.getpid(),50)\nprint(\"room\")'";
    assert_eq!(home.run(queue).1, "room\n");
    let (_, output, _) = home.run("ulimit -n; grep -c . /proc/1/status");
    assert!(!output.is_empty());
}

fn refusals_are_each_jobs_own() {
    let mut home = stand();
    let one =
        home.start("echo x > /etc/one; (setsid sh -c 'echo x > /etc/deep; echo x > /etc/deep' &) ; sleep 0.3; exit 1");
    let two = home.start("sleep 0.1; echo x > /etc/two; exit 1");
    let (end_one, end_two) = (home.ended(one.job), home.ended(two.job));
    let targets = |end: &enclosure::End| {
        let mut all: Vec<_> = end.denials.iter().map(|d| (d.target.clone(), d.count)).collect();
        all.sort();
        all
    };
    assert_eq!(targets(&end_one), [("/etc/deep".to_string(), 2), ("/etc/one".to_string(), 1)]);
    assert_eq!(targets(&end_two), [("/etc/two".to_string(), 1)]);
    let told = home.happened.iter().filter(|h| matches!(h, Happened::Denied { job: Some(_), .. })).count();
    assert_eq!(told, 3, "{:?}", home.happened);
    // The same again by another is told again.
    let three = home.start("echo x > /etc/two; exit 1");
    assert_eq!(targets(&home.ended(three.job)), [("/etc/two".to_string(), 1)]);
}
