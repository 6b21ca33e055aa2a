//! How an interpreter is started as a worker: its command line, and the descriptors of its channel on both sides.

use crate::frame::{self, Kind};
use api::{Language, RingFigure, RingFigures};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use sys::ring::Rings;

const PYTHON: &str = include_str!("python.py");
const JAVASCRIPT: &str = include_str!("javascript.js");
/// Runs the worker's source, which is on an inherited descriptor: no file of it is needed inside. The worker knows its own frames by this
/// file name.
const PYTHON_LINE: &str = "import os,sys;sys.version_info>=(3,8) or sys.exit('python3 is version %s; 3.8 or newer is needed'%sys.version.split()[0]);\
    exec(compile(os.pread(102,os.fstat(102).st_size,0),'<cofferdam worker>','exec'),\
    {'__name__':'cofferdam_worker'})";
const JAVASCRIPT_LINE: &str = "+process.versions.node.split('.')[0]<18&&(console.error('node is version '+process.versions.node+'; 18 or newer is needed'),process.exit(1));\
    {const f=require('fs'),n=+process.env.COFFERDAM_WORKER.split(',')[2],\
    b=Buffer.alloc(f.fstatSync(n).size);f.readSync(n,b,0,b.length,0);\
    require('vm').runInThisContext('(function(require){'+b+'\\n})',{filename:'cofferdam-worker.js'})(require)}";
/// An interactive shell without a terminal: only such a one goes on with the next command after an interruption. Its commands come on
/// descriptor 100.
const BASH_LINE: &str = "exec bash --noprofile --norc --noediting -i <&100 100<&-";

/// How a worker is started.
#[derive(Clone, Debug)]
pub struct Launch {
    language: Language,
    pub argv: Vec<String>,
    /// Variables to set beside those that the policy passes.
    pub env: Vec<(&'static str, &'static str)>,
}

/// Both sides of a new channel.
#[derive(Debug)]
pub struct Ends {
    /// For `Channel::open`.
    pub supervisor: Vec<OwnedFd>,
    /// Inherited by the worker as 100 and the numbers behind it.
    pub worker: Vec<OwnedFd>,
}

/// The greeting of a worker.
#[derive(Clone, Debug, Serialize)]
pub struct Hello {
    pub language: Language,
    pub cwd: String,
    pub env: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Greeting<'a> {
    protocol: u32,
    #[serde(flatten)]
    hello: &'a Hello,
}

const PROTOCOL: u32 = 1;

impl Launch {
    pub fn of(language: Language) -> Launch {
        let (argv, env): (&[&str], &[_]) = match language {
            Language::Python => (&["python3", "-c", PYTHON_LINE], &[("COFFERDAM_WORKER", "100,101,102")]),
            Language::Javascript => (&["node", "-e", JAVASCRIPT_LINE], &[("COFFERDAM_WORKER", "100,101,102")]),
            Language::Bash => (&["bash", "--noprofile", "--norc", "-c", BASH_LINE], &[("HISTFILE", "")]),
        };
        Launch { language, argv: argv.iter().map(|&word| word.to_owned()).collect(), env: env.to_vec() }
    }

    /// Makes a channel.
    pub fn ends(&self) -> io::Result<Ends> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let source = match self.language {
            Language::Python => PYTHON,
            Language::Javascript => JAVASCRIPT,
            Language::Bash => {
                let [(output, output_end), (errors, errors_end)] =
                    [pipe_with(PipeFlags::CLOEXEC)?, pipe_with(PipeFlags::CLOEXEC)?];
                let code = rustix::fs::memfd_create("code", MemfdFlags::CLOEXEC)?;
                let supervisor = vec![ours, output, errors, code.try_clone()?];
                return Ok(Ends { supervisor, worker: vec![theirs, output_end, errors_end, code] });
            }
        };
        let rings = sys::ring::create(sys::ring::CAPACITY).map_err(|e| io::Error::from_raw_os_error(e.errno))?;
        let supervisor = vec![rings.try_clone()?, ours];
        Ok(Ends { supervisor, worker: vec![rings, theirs, sealed_source(source)?] })
    }

    /// Puts the greeting into a new channel: the worker finds it when it starts.
    pub fn greet(&self, supervisor: &[OwnedFd], hello: &Hello) -> io::Result<()> {
        if self.language == Language::Bash {
            return crate::shell::greet(supervisor);
        }
        let text = serde_json::to_vec(&Greeting { protocol: PROTOCOL, hello })?;
        let memfd = supervisor.first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut rings = Rings::map(memfd).map_err(io::Error::other)?;
        for frame in frame::encode(Kind::Hello, 0, &text) {
            if !frame::write(&mut rings.producer, &frame).map_err(io::Error::other)? {
                return Err(io::Error::other("a greeting that does not fit a ring"));
            }
        }
        Ok(())
    }
}

/// Returns the source in a file that nothing can change.
fn sealed_source(source: &str) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("worker", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut bytes = source.as_bytes();
    while !bytes.is_empty() {
        bytes = &bytes[rustix::io::write(&file, bytes)?..];
    }
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(file)
}

/// Returns figures of a worker's rings, as their memory tells them.
pub fn figures(language: Language, supervisor: &[OwnedFd]) -> Option<RingFigures> {
    let memfd = supervisor.first().filter(|_| language != Language::Bash)?;
    let found = sys::ring::figures(memfd).ok()?;
    let figure = |ring: sys::ring::RingFigure| {
        let sys::ring::RingFigure { queued_bytes, bytes, frames } = ring;
        RingFigure { queued_bytes, bytes, frames }
    };
    let (to_worker, from_worker) = (figure(found.input), figure(found.output));
    Some(RingFigures { capacity_bytes: found.capacity_bytes, to_worker, from_worker })
}

/// Called after an interruption of a worker, in which this request may be under way.
pub fn interrupted(language: Language, supervisor: &[OwnedFd], request: u32) {
    if language == Language::Bash {
        crate::shell::repeat_end(supervisor, request);
    }
}

/// Tells both sides of a channel that it is over: its worker finds the end of the socket, and so does each supervisor that has a copy.
pub fn hang_up(supervisor: &[OwnedFd]) {
    for end in supervisor {
        let _ = shutdown(end.as_fd(), Shutdown::Both); // only the socket among them can be shut down
    }
}
