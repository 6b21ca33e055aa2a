//! A live enclosure apart from its commands: files, ports, freezing, and its end.

use super::fixture::*;
use super::{CASE, Case, PLACE};
use enclosure::{GuestServices, Published, ResidenceEvent};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use terms::Limits;

pub const CASES: &[Case] = &[
    ("files_are_seen_from_outside", files_are_seen_from_outside),
    ("ports_are_reached", ports_are_reached),
    ("what_stands_still_goes_on", what_stands_still_goes_on),
    ("who_ends_while_still_ends_on_waking", who_ends_while_still_ends_on_waking),
    ("nothing_outlives_its_supervisor", nothing_outlives_its_supervisor),
    ("the_fall_is_told", the_fall_is_told),
    ("what_is_used_is_told", what_is_used_is_told),
    ("a_start_costs_little", a_start_costs_little),
    ("only_who_was_prepared_to_stay_stays", only_who_was_prepared_to_stay_stays),
];

fn beneath(root: BorrowedFd<'_>, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mode = if flags.contains(OFlags::CREATE) { Mode::from(0o644) } else { Mode::empty() };
    openat2(root, path, flags | OFlags::CLOEXEC, mode, resolve)
}

fn files_are_seen_from_outside() {
    let project = place().join("project");
    fs::create_dir_all(&project).unwrap();
    fs::write(project.join("base"), "of the base").unwrap();
    let mut live = stand();
    let (status, _, error) = live.run(
        "echo inside > made; echo changed > base; mkdir d; echo deep > d/f; ln -s /etc/passwd out; echo t > /tmp/t",
    );
    assert_eq!(code(status), Some(0), "{error}");
    let read = |root: BorrowedFd<'_>, path: &str| {
        let mut text = String::new();
        beneath(root, path, OFlags::RDONLY).map(|fd| File::from(fd).read_to_string(&mut text)).map(|_| text)
    };
    let root = live.residence.root().unwrap();
    assert_eq!(read(root, "made").unwrap(), "inside\n");
    assert_eq!(read(root, "base").unwrap(), "changed\n");
    assert_eq!(read(root, "d/f").unwrap(), "deep\n");
    assert_eq!(fs::read_to_string(project.join("base")).unwrap(), "of the base", "the host has its own");
    assert_eq!(read(root, "out").unwrap_err(), rustix::io::Errno::XDEV, "a link leads nowhere else");
    assert_eq!(read(root, "../home").unwrap_err(), rustix::io::Errno::XDEV);
    assert_eq!(read(live.residence.tmp().unwrap(), "t").unwrap(), "t\n");
    // Files created from outside belong to the guest.
    let owner = live.residence.owner();
    for root in [live.residence.root().unwrap(), live.residence.tmp().unwrap()] {
        let _credentials = sys::fs_ids::FsIdGuard::take(owner.0, owner.1).unwrap();
        let fd = beneath(root, "from-outside", OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL).unwrap();
        File::from(fd).write_all(b"hello\n").unwrap();
    }
    let text = "cat from-outside /tmp/from-outside; stat -c %u from-outside /tmp/from-outside made; id -u; echo more >> from-outside; rm /tmp/from-outside";
    let (status, output, error) = live.run(text);
    assert_eq!(code(status), Some(0), "{error}");
    let lines: Vec<_> = output.lines().collect();
    assert!(lines[..2] == ["hello", "hello"] && lines[2..].iter().all(|id| *id == lines[2]), "{output}");
    assert_eq!(read(live.residence.root().unwrap(), "from-outside").unwrap(), "hello\nmore\n");
    // In the layer the file belongs to the caller, like files that the guest creates itself.
    live.residence.close();
    let uid = |name: &str| fs::metadata(place().join("layer/up").join(name)).unwrap().uid();
    assert_eq!(uid("from-outside"), uid("made"));
}

const SERVER: &str = "exec python3 -m http.server --bind 127.0.0.1 8123";

fn ports_are_reached() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let published = listener.local_addr().unwrap();
    let spec = spec(Limits::default());
    let beside = GuestServices { publish: vec![Published { listener, port: 8123 }], ..GuestServices::default() };
    let residence = planned(spec).reside(beside).unwrap_or_else(|fault| panic!("{fault:?}"));
    let mut live = LiveEnclosure { residence, happened: Vec::new() };
    let fault = live.residence.connect(8123).unwrap_err();
    assert_eq!(fault.error_kind, terms::ErrorKind::Unavailable);
    live.run("echo served > file");
    let server = live.start(SERVER);
    let stream = live.until("a server", |live| live.residence.connect(8123).ok());
    let ask = |mut stream: TcpStream| {
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /file HTTP/1.0\r\n\r\n").unwrap();
        stream
    };
    let read_all = |mut stream: TcpStream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    // The guest's own calls must be served meanwhile.
    for stream in [TcpStream::from(stream), TcpStream::connect(published).unwrap()] {
        let stream = ask(stream);
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || sender.send(read_all(stream)).unwrap());
        let text = live.until("an answer", |_| receiver.try_recv().ok());
        thread.join().unwrap();
        assert!(text.ends_with("served\n"), "{text}");
    }
    live.residence.end(server.job);
    live.ended(server.job);
    live.until("silence", |live| live.residence.connect(8123).is_err().then_some(()));
}

fn what_stands_still_goes_on() {
    let mut live = stand();
    let counter = live.start("n=0; while :; do n=$((n+1)); echo $n; sleep 0.01; done");
    let threads = live.start("python3 -c 'import threading,time\nfor _ in range(4): threading.Thread(target=lambda: [open(\"/tmp/t%d\" % n, \"w\").close() for n in iter(int, 1)]).start()'");
    live.read_until(&counter.output, "5\n");
    let frozen = live.residence.freeze().unwrap_or_else(|fault| panic!("{fault:?}"));
    assert!(["cgroup", "signals"].contains(&frozen.with));
    assert_eq!(frozen.paged_out.is_some(), is_root(), "{frozen:?}");
    drain(&counter.output);
    let still = Instant::now() + Duration::from_millis(300);
    live.until("time", |live| (Instant::now() > still || !live.happened.is_empty()).then_some(()));
    assert_eq!(drain(&counter.output), "", "it counts on");
    assert!(live.happened.is_empty(), "{:?}", live.happened);
    let fault = live.residence.start(shell("true", PIPES)).unwrap_err();
    assert_eq!(fault.error_kind, terms::ErrorKind::Conflict);
    assert_eq!(live.residence.freeze().unwrap().with, frozen.with, "twice is once");
    live.residence.thaw().unwrap();
    live.read_until(&counter.output, "\n");
    assert_eq!(code(live.run("exit 3").0), Some(3));
    for started in [counter, threads] {
        live.residence.end(started.job);
        assert_eq!(live.ended(started.job).status, Some(9));
    }
}

fn who_ends_while_still_ends_on_waking() {
    let mut live = stand();
    let ended = live.start("echo up; sleep 1000");
    let signalled = live.start("trap 'exit 8' TERM; echo up; while :; do sleep 0.02; done");
    live.read_until(&ended.output, "up");
    live.read_until(&signalled.output, "up");
    live.residence.freeze().unwrap();
    live.residence.end(ended.job);
    assert!(live.residence.signal(signalled.job, 15));
    let (_, deadline) = live.residence.waits();
    assert!(deadline.is_none(), "no deadline while frozen");
    let still = Instant::now() + Duration::from_millis(100);
    live.until("time", |_| (Instant::now() > still).then_some(()));
    assert!(live.happened.is_empty(), "{:?}", live.happened);
    live.residence.thaw().unwrap();
    assert_eq!(live.ended(ended.job).status, Some(9));
    assert_eq!(code(live.ended(signalled.job).status), Some(8));
    // A frozen enclosure that is closed leaves no process.
    live.start("sleep 1000");
    live.residence.freeze().unwrap();
    live.residence.close();
    assert_eq!(census(), Vec::<i32>::new());
}

fn nothing_outlives_its_supervisor() {
    let mut supervisor = Command::new(std::env::current_exe().unwrap())
        .env(CASE, "to-be-killed")
        .env(PLACE, place())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(supervisor.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pids: Vec<&str> = line.strip_prefix("up ").unwrap().split_whitespace().collect();
    assert!(pids.len() >= 4, "{line}");
    // Zombies that the host's init has not reaped yet count as gone.
    let lives = |pid: &&&str| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    let alive = || pids.iter().filter(lives).count();
    assert_eq!(alive(), pids.len());
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    let end = Instant::now() + PATIENCE;
    while alive() > 0 {
        assert!(Instant::now() < end, "{} are left", alive());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn the_fall_is_told() {
    let mut live = stand();
    let started = live.start("sleep 1000");
    let first = live.residence.first();
    rustix::process::kill_process(rustix::process::Pid::from_raw(first).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    assert_eq!(live.ended(started.job).status, None);
    live.until("the fall", |live| live.happened.iter().any(|h| matches!(h, ResidenceEvent::Fell { .. })).then_some(()));
    assert_eq!(live.residence.start(shell("true", PIPES)).unwrap_err().error_kind, terms::ErrorKind::Unavailable);
    assert!(live.residence.connect(80).is_err() && live.residence.freeze().is_err());
    live.residence.turn().unwrap();
}

fn what_is_used_is_told() {
    let mut live = stand();
    assert_eq!(live.residence.usage().processes, 0);
    let started = live.start("python3 -c 'import time\nx=bytearray(40<<20)\nt=time.process_time()\nwhile time.process_time()<t+0.3: pass\nprint(\"up\",flush=True)\ntime.sleep(1000)'");
    live.read_until(&started.output, "up");
    let used = live.residence.usage();
    assert!(
        used.cpu_us >= 200_000 && used.memory_bytes > 40 << 20 && used.memory_peak_bytes >= used.memory_bytes,
        "{used:?}"
    );
    assert!((1..=3).contains(&used.processes), "{used:?}");
    live.residence.end(started.job);
    let end = live.ended(started.job);
    assert!(end.cpu_us >= 200_000 && end.max_rss_kb > 40 << 10, "{end:?}");
    // The shepherd exits right after its report.
    let after = live.until("idleness", |live| Some(live.residence.usage()).filter(|after| after.processes == 0));
    assert!(after.cpu_us >= 200_000 && after.memory_bytes < 40 << 20, "{after:?}");
}

/// A measurement rather than a promise: start inside compared with start outside.
fn a_start_costs_little() {
    const MANY: u32 = 100;
    let mut live = stand();
    let mut start = || {
        let mut start = shell("", PIPES);
        start.program = "/bin/true".into();
        start.argv = vec!["true".into()];
        let started = live.start_with(start);
        assert_eq!(code(live.ended(started.job).status), Some(0));
    };
    (0..10).for_each(|_| start());
    let began = Instant::now();
    (0..MANY).for_each(|_| start());
    let inside = began.elapsed() / MANY;
    let began = Instant::now();
    for _ in 0..MANY {
        assert!(Command::new("/bin/true").status().unwrap().success());
    }
    let outside = began.elapsed() / MANY;
    println!("a start and end inside takes {inside:?}, outside {outside:?}");
    // Compared with the same machine at the same time; only a wait for a timer would exceed this.
    assert!(inside < Duration::from_millis(400) + 50 * outside, "{inside:?}, outside {outside:?}");
}

fn only_who_was_prepared_to_stay_stays() {
    let mut spec = spec(Limits::default());
    spec.resident = false;
    assert!(planned(spec).reside(GuestServices::default()).is_err());
    let mut denied =
        spec_under(r#"{"version":1,"extends":["default"],"syscalls":{"deny":["pipe2"]}}"#, Limits::default());
    assert!(denied.deny_calls.contains(&"pipe2".to_string()));
    denied.resident = true;
    let fault = enclosure::GuestPlan::new(denied, enclosure::begin()).err().unwrap();
    assert_eq!(fault.error_kind, terms::ErrorKind::UnsupportedPolicy);
}
