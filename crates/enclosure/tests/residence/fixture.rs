//! Shared by the cases: a live enclosure over a project, and waiting for its events.

use enclosure::{
    ChangeStorage, CommandEnd, Cpus, Enforced, GuestPlan, GuestServices, GuestSpec, JobId, LocalHost, OwnHome,
    PlannedCommand, Residence, ResidenceEvent, Started, Stdio, Streams, Workspace, begin, choose,
};
use policy::{Action, Context, Format, Perms};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use terms::{Limits, PolicyStamp, RunId};

/// A deadline far above what any case needs on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

pub fn place() -> PathBuf {
    PathBuf::from(std::env::var_os(super::PLACE).unwrap())
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn spec(limits: Limits) -> GuestSpec {
    spec_under(r#"{"version":1,"extends":["default"]}"#, limits)
}

pub fn spec_under(policy: &str, limits: Limits) -> GuestSpec {
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
    GuestSpec {
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
            at: project.clone(),
            base: project,
            over: ChangeStorage::Layers(vec![layer]),
            open: Box::new(|path| File::open(path)),
        }),
        own_home: OwnHome::Scratch,
    }
}

pub fn planned(spec: GuestSpec) -> GuestPlan {
    match GuestPlan::new(spec, begin()) {
        Ok(plan) => plan,
        Err(fault) => panic!("{fault:?}"),
    }
}

pub fn stand() -> LiveEnclosure {
    stand_with(spec(Limits::default()))
}

pub fn stand_with(spec: GuestSpec) -> LiveEnclosure {
    match planned(spec).reside(GuestServices::default()) {
        Ok(residence) => LiveEnclosure { residence, happened: Vec::new() },
        Err(fault) => panic!("{fault:?}"),
    }
}

/// A live enclosure, with events that no case has consumed yet.
pub struct LiveEnclosure {
    pub residence: Residence<'static>,
    pub happened: Vec<ResidenceEvent>,
}

pub fn shell(text: &str, streams: Streams) -> PlannedCommand {
    let env = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/tmp")];
    PlannedCommand {
        program: "/bin/sh".into(),
        argv: ["sh", "-c", text].map(Into::into).to_vec(),
        env: env.map(|(name, value)| (name.into(), value.into())).to_vec(),
        cwd: place().join("project"),
        streams,
        inherit: Vec::new(),
    }
}

pub const PIPES: Streams = Streams::Pipes { input: false };

impl LiveEnclosure {
    pub fn start(&mut self, text: &str) -> Started {
        self.start_with(shell(text, PIPES))
    }

    pub fn start_with(&mut self, start: PlannedCommand) -> Started {
        self.residence.start(start).unwrap_or_else(|fault| panic!("{fault:?}"))
    }

    /// Polls until `found` returns a value; other events are kept.
    pub fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut LiveEnclosure) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            let events = self.residence.turn().unwrap_or_else(|fault| panic!("{fault:?}"));
            self.happened.extend(events);
            if let Some(found) = found(self) {
                return found;
            }
            assert!(Instant::now() < end, "{what} did not happen; {:?}", self.happened);
            let (fds, at) = self.residence.waits();
            // A short poll, because the awaited change may show without an event.
            let short = Duration::from_millis(20);
            let left = at.map_or(short, |at| at.saturating_duration_since(Instant::now()).min(short));
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            let _ = poll(&mut fds, Some(&timeout));
        }
    }

    pub fn ended(&mut self, job: JobId) -> CommandEnd {
        self.until("an end", |live| {
            let at =
                live.happened.iter().position(|h| matches!(h, ResidenceEvent::Ended { job: of, .. } if *of == job))?;
            match live.happened.remove(at) {
                ResidenceEvent::Ended { end, .. } => Some(end),
                _ => None,
            }
        })
    }

    /// Runs a shell text to its end: status, stdout and stderr.
    pub fn run(&mut self, text: &str) -> (Option<i32>, String, String) {
        let mut started = self.start(text);
        let mut streams = (String::new(), String::new());
        let end = self.ended_with_output(&mut started, &mut streams);
        (end.status, streams.0, streams.1)
    }

    pub fn ended_with_output(&mut self, started: &mut Started, streams: &mut (String, String)) -> CommandEnd {
        let job = started.job;
        let end = self.until("an end", |live| {
            streams.0.push_str(&drain(&started.output));
            streams.1.push_str(&started.error.as_ref().map(drain).unwrap_or_default());
            let at =
                live.happened.iter().position(|h| matches!(h, ResidenceEvent::Ended { job: of, .. } if *of == job))?;
            match live.happened.remove(at) {
                ResidenceEvent::Ended { end, .. } => Some(end),
                _ => None,
            }
        });
        streams.0.push_str(&drain(&started.output));
        streams.1.push_str(&started.error.as_ref().map(drain).unwrap_or_default());
        end
    }

    /// Reads until the output contains a text.
    pub fn read_until(&mut self, from: &OwnedFd, text: &str) -> String {
        let mut output = String::new();
        self.until(text, |_| {
            output.push_str(&drain(from));
            output.contains(text).then(|| output.clone())
        })
    }
}

/// Output that can be read without blocking.
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

/// Processes with this test's directory in their environment: every one that was started here, also after reparenting.
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

/// The role of a supervisor that a case starts in order to kill it.
pub fn role(name: &str) {
    assert_eq!(name, "to-be-killed");
    let mut live = stand();
    let started = live.start("setsid sleep 1000 & echo up; sleep 1000");
    live.read_until(&started.output, "up");
    println!("up {}", census().iter().map(|pid| pid.to_string()).collect::<Vec<_>>().join(" "));
    loop {
        live.until("nothing", |_| None::<()>);
    }
}
