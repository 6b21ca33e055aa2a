//! What the cases share: a residence over a project, and waiting for what happens in it.

use enclosure::{
    Beside, Cpus, End, Enforced, Happened, Job, LocalHost, Over, Prepared, Request, Residence, Start, Started, Stdio,
    Streams, Workspace, begin, choose, prepare,
};
use policy::{Action, Context, Format, Perms};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use terms::{Limits, PolicyStamp, RunId};

/// More than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn place() -> PathBuf {
    PathBuf::from(std::env::var_os(super::PLACE).unwrap())
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn request(limits: Limits) -> Request {
    request_under(r#"{"version":1,"extends":["default"]}"#, limits)
}

pub fn request_under(policy: &str, limits: Limits) -> Request {
    let place = place();
    let (project, home, layer) = (place.join("project"), place.join("home"), place.join("layer"));
    for dir in [&project, &home, &layer.join("up"), &layer.join("work")] {
        fs::create_dir_all(dir).unwrap();
    }
    let document = policy::parse(policy, Format::Json, "test").unwrap();
    let effective = policy::effective(&[document]).unwrap();
    let context = Context { home: home.clone(), workspace: project.clone(), toolchains: Vec::new() };
    let resolved = policy::resolve(&effective, &context).unwrap();
    let resolved = resolved.with_fs(Action::Allow, &project, Perms::WRITE, "workspace").unwrap();
    let plan = resolved.plan(&LocalHost::default()).unwrap();
    let enforced: Enforced = choose(&[]).unwrap();
    Request {
        run_id: RunId::from_random([7; _]),
        deny_calls: resolved.syscalls_deny().iter().cloned().collect(),
        policy: resolved,
        plan,
        stamp: Box::new(|| PolicyStamp { revision: 1, ..PolicyStamp::default() }),
        enforced,
        program: "/bin/true".into(),
        argv: vec!["true".into()],
        env: Vec::new(),
        cwd: project.clone(),
        home,
        toolchains: Vec::new(),
        user: "somebody".into(),
        limits,
        cpus: Cpus(None),
        stdio: Stdio { input: false, capture: false, terminal: false, all_to_stderr: false },
        watch_reads: false,
        watch_looks: false,
        resident: true,
        network: None,
        workspace: Some(Workspace {
            at: project,
            over: Over::Layers(vec![layer]),
            open: Box::new(|path| File::open(path)),
        }),
    }
}

pub fn prepared(request: Request) -> Prepared {
    match prepare(request, begin()) {
        Ok(prepared) => prepared,
        Err(fault) => panic!("{fault:?}"),
    }
}

pub fn stand() -> Home {
    stand_with(request(Limits::default()))
}

pub fn stand_with(request: Request) -> Home {
    match prepared(request).reside(Beside::default()) {
        Ok(residence) => Home { residence, happened: Vec::new() },
        Err(fault) => panic!("{fault:?}"),
    }
}

/// A residence, and what happened in it that nobody asked about yet.
pub struct Home {
    pub residence: Residence<'static>,
    pub happened: Vec<Happened>,
}

pub fn shell(text: &str, streams: Streams) -> Start {
    let env = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/tmp")];
    Start {
        program: "/bin/sh".into(),
        argv: ["sh", "-c", text].map(Into::into).to_vec(),
        env: env.map(|(name, value)| (name.into(), value.into())).to_vec(),
        cwd: place().join("project"),
        streams,
    }
}

pub const PIPES: Streams = Streams::Pipes { input: false };

impl Home {
    pub fn start(&mut self, text: &str) -> Started {
        self.start_with(shell(text, PIPES))
    }

    pub fn start_with(&mut self, start: Start) -> Started {
        self.residence.start(start).unwrap_or_else(|fault| panic!("{fault:?}"))
    }

    /// Looks until `found` finds something; keeps what is not wanted.
    pub fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Home) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            let told = self.residence.turn().unwrap_or_else(|fault| panic!("{fault:?}"));
            self.happened.extend(told);
            if let Some(found) = found(self) {
                return found;
            }
            assert!(Instant::now() < end, "{what} did not happen; {:?}", self.happened);
            let (fds, at) = self.residence.waits();
            // Short, because what is waited for may show elsewhere.
            let short = Duration::from_millis(20);
            let left = at.map_or(short, |at| at.saturating_duration_since(Instant::now()).min(short));
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            let _ = poll(&mut fds, Some(&timeout));
        }
    }

    pub fn ended(&mut self, job: Job) -> End {
        self.until("an end", |home| {
            let at = home.happened.iter().position(|h| matches!(h, Happened::Ended { job: of, .. } if *of == job))?;
            match home.happened.remove(at) {
                Happened::Ended { end, .. } => Some(end),
                _ => None,
            }
        })
    }

    /// Runs to its end: status, output and errors.
    pub fn run(&mut self, text: &str) -> (Option<i32>, String, String) {
        let mut started = self.start(text);
        let mut heard = (String::new(), String::new());
        let end = self.ended_hearing(&mut started, &mut heard);
        (end.status, heard.0, heard.1)
    }

    pub fn ended_hearing(&mut self, started: &mut Started, heard: &mut (String, String)) -> End {
        let job = started.job;
        let end = self.until("an end", |home| {
            heard.0.push_str(&drain(&started.output));
            heard.1.push_str(&started.error.as_ref().map(drain).unwrap_or_default());
            let at = home.happened.iter().position(|h| matches!(h, Happened::Ended { job: of, .. } if *of == job))?;
            match home.happened.remove(at) {
                Happened::Ended { end, .. } => Some(end),
                _ => None,
            }
        });
        heard.0.push_str(&drain(&started.output));
        heard.1.push_str(&started.error.as_ref().map(drain).unwrap_or_default());
        end
    }

    /// Reads until the output holds a text.
    pub fn hears(&mut self, from: &OwnedFd, text: &str) -> String {
        let mut heard = String::new();
        self.until(text, |_| {
            heard.push_str(&drain(from));
            heard.contains(text).then(|| heard.clone())
        })
    }
}

/// What can be read without waiting.
pub fn drain(fd: &OwnedFd) -> String {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    let mut file = File::from(fd.try_clone().unwrap());
    loop {
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub fn code(status: Option<i32>) -> Option<i32> {
    status.filter(|status| status & 0x7f == 0).map(|status| status >> 8)
}

/// Processes whose variables name this place: all that were ever started here, wherever they hid.
pub fn census() -> Vec<i32> {
    let own = std::process::id() as i32;
    let below = |pid: i32| {
        let mut at = pid;
        for _ in 0..64 {
            if at == own {
                return true;
            }
            let Some(above) = parent(at) else { return false };
            at = above;
        }
        false
    };
    let listed = fs::read_dir("/proc").unwrap().flatten();
    let pids = listed.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| *pid != own && below(*pid)).collect()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// What a supervisor does that another one starts.
pub fn role(name: &str) {
    assert_eq!(name, "to-be-killed");
    let mut home = stand();
    let started = home.start("setsid sleep 1000 & echo up; sleep 1000");
    home.hears(&started.output, "up");
    println!("up {}", census().iter().map(|pid| pid.to_string()).collect::<Vec<_>>().join(" "));
    loop {
        home.until("nothing", |_| None::<()>);
    }
}
