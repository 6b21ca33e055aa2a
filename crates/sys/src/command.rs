//! The command that a guest's pid 1 starts, and the order that points a pid 1 to its command and steps.

use crate::arena::{Arena, ArenaRef, Text};
use crate::job::MOST_INHERITED;
use crate::op::Op;
use std::ffi::{CStr, c_char};
use std::os::fd::RawFd;

/// The program to run inside, with every string and pointer that the kernel needs in memory that pid 1 sees.
pub struct Command {
    pub(crate) path: Text,
    argv: Pointers,
    envp: Pointers,
    pub(crate) stdio: [RawFd; 3],
    /// Descriptors that it gets as `job::FIRST_INHERITED` and the numbers behind it; -1 for none.
    pub(crate) inherit: [RawFd; MOST_INHERITED],
    /// The caller's file creation mask, which the command gets back.
    pub umask: u32,
    /// Limit on open files of each of its processes.
    pub open_files: Option<u64>,
    /// Start mark, equal to `start_mark` of the filter's `NotifyOptions`.
    pub start_mark: [u32; 2],
    /// The guest has a pid namespace, whose end kills every process in it.
    pub own_pids: bool,
    /// Working directory, if different from pid 1's.
    pub(crate) cwd: Option<Text>,
    /// Socket for the report that the command starts, and the terminal's master to send along; without it the parent
    /// reports.
    pub(crate) start_report: Option<(RawFd, RawFd)>,
    /// There is no command: pid 1 stays and starts the commands that it receives; see `job`.
    pub(crate) accepts_jobs: bool,
}

/// An array of C strings that ends with null, and the memory that holds the strings.
struct Pointers {
    list: ArenaRef<[*const c_char]>,
    texts: ArenaRef<[u8]>,
}

impl Pointers {
    fn new<T: AsRef<[u8]>>(arena: &Arena, strings: &[T]) -> Pointers {
        let mut bytes = Vec::with_capacity(strings.iter().map(|s| s.as_ref().len() + 1).sum());
        let mut starts = Vec::with_capacity(strings.len());
        for string in strings {
            let string = string.as_ref();
            assert!(!string.contains(&0), "arguments with NUL are refused at the door");
            starts.push(bytes.len());
            bytes.extend_from_slice(string);
            bytes.push(0);
        }
        let texts = arena.list(&bytes);
        let start_of = |at: usize| texts[at..].as_ptr().cast::<c_char>();
        let list: Vec<_> = starts.into_iter().map(start_of).chain([std::ptr::null()]).collect();
        Pointers { list: arena.list(&list), texts }
    }

    fn is_in(&self, arena: &Arena) -> bool {
        self.list.is_in(arena) && self.texts.is_in(arena)
    }
}

impl From<&'static [*const c_char]> for Pointers {
    fn from(list: &'static [*const c_char]) -> Pointers {
        Pointers { list: list.into(), texts: ArenaRef::from(&[][..]) }
    }
}

impl Command {
    /// Builds a command. `stdio` are the descriptors that it gets as 0, 1 and 2, unless the steps open a terminal for
    /// it.
    pub fn new<T: AsRef<[u8]>>(arena: &Arena, path: &[u8], argv: &[T], envp: &[T], stdio: [RawFd; 3]) -> Command {
        Command {
            path: arena.text(path),
            argv: Pointers::new(arena, argv),
            envp: Pointers::new(arena, envp),
            stdio,
            inherit: [-1; MOST_INHERITED],
            umask: 0o022,
            open_files: None,
            start_mark: [0; 2],
            own_pids: true,
            cwd: None,
            start_report: None,
            accepts_jobs: false,
        }
    }

    /// No command: pid 1 waits to receive some.
    pub fn none(arena: &Arena) -> Command {
        Command { accepts_jobs: true, ..Command::new::<&[u8]>(arena, b"", &[], &[], [-1; 3]) }
    }

    /// Builds a command whose strings and arrays lie in static memory; the arrays end with null.
    pub(crate) fn at(
        path: &'static CStr,
        argv: &'static [*const c_char],
        envp: &'static [*const c_char],
        stdio: [RawFd; 3],
    ) -> Command {
        let (umask, open_files, start_mark) = (0o022, None, [0; 2]);
        let (cwd, start_report, accepts_jobs) = (None, None, false);
        let (path, argv, envp) = (path.into(), argv.into(), envp.into());
        Command {
            path,
            argv,
            envp,
            stdio,
            inherit: [-1; MOST_INHERITED],
            umask,
            open_files,
            start_mark,
            own_pids: true,
            cwd,
            start_report,
            accepts_jobs,
        }
    }

    pub(crate) fn argv_pointers(&self) -> *const *const c_char {
        self.argv.list.as_ptr()
    }

    pub(crate) fn envp_pointers(&self) -> *const *const c_char {
        self.envp.list.as_ptr()
    }

    /// Returns true if a process that was cloned after `arena` was made sees all of the command.
    pub(crate) fn is_in(&self, arena: &Arena) -> bool {
        let cwd = self.cwd.as_ref().is_none_or(|cwd| cwd.is_in(arena));
        cwd && self.path.is_in(arena) && self.argv.is_in(arena) && self.envp.is_in(arena)
    }
}

/// The order for a pid 1 that was started early: the addresses of its steps and its command, and the number of steps
/// that are done.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Order {
    pub(crate) ops: *const Op,
    pub(crate) count: usize,
    pub(crate) done: usize,
    pub(crate) command: *const Command,
    /// Affinity mask to set from now on, with its length in bytes; empty when unknown.
    pub(crate) mask: *const u64,
    pub(crate) mask_len: usize,
}
