//! Which system calls a guest may make: `calls` lists them, each group with its reason, and here they become a filter. What is not
//! listed does not exist (ENOSYS), so a call that a later kernel adds is refused until someone puts it there.

mod calls;

use self::calls::{
    ALLOWED, ALLOWED_LEGACY, Calls, LOOKS, LOOKS_LEGACY, MAKES_DESCRIPTORS, MAKES_DESCRIPTORS_LEGACY, REFUSED,
    REFUSED_LEGACY, RESERVES, SHARED, WATCHED, WATCHED_LEGACY,
};
pub use self::calls::{INDISPENSABLE, INDISPENSABLE_TO_STAY, name, number, reason, table};
use crate::bpf::{Answer, Choice, Filter, Insn, Test};
use crate::file_lock;
use std::collections::BTreeMap;

/// x86_64, as the kernel's audit numbers it.
const ARCH: u32 = 0xc000_003e;
/// Calls of x32, which have the same architecture.
const FOREIGN_BIT: u32 = 0x4000_0000;

/// What the supervisor wants to hear of beyond refused calls.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// There is a listener. Without one every refusal is a plain error number.
    pub listener: bool,
    /// Tell of opens that only read, too. Each open then waits for the supervisor.
    pub reads: bool,
    /// Tell of opens that only read, because a person may be asked about one.
    pub asks: bool,
    /// Tell of calls that only look at a path (stat, access, readlink), to learn what a command needs to see.
    pub looks: bool,
    /// Tell of every call that makes a descriptor, to say when `max_open_files` was met.
    pub descriptors: bool,
    /// Tell of calls that reserve space, to say when `max_disk_mb` was met: one that is refused leaves no trace.
    pub space: bool,
    /// Tell of locks on ranges of bytes (fcntl), too. Each then waits for the supervisor, and small databases take many.
    pub range_locks: bool,
    /// Names from the policy's `syscalls.deny`.
    pub deny: Vec<String>,
    /// Memory files must be made unexecutable (exec rules list what may run).
    pub no_exec_memory_files: bool,
    /// The supervisor makes connections itself, so that a path to a socket is read once; datagrams between sockets
    /// with names are refused, because nobody can see where they go.
    pub connects_for_guest: bool,
    /// Marks the one execve that starts the command, which was judged before anything was made: the kernel ignores the
    /// arguments that carry it, and nobody inside knows it. It spares the start a word with the supervisor; all
    /// walls hold for it as for any other.
    pub start_mark: Option<[u32; 2]>,
    /// There are no namespaces: no sockets but pairs, no queues, no metadata of files, no limits of other processes.
    pub alone: bool,
}

/// `CLONE_NEW*` bits as clone(2) and unshare(2) take them.
const NAMESPACES: u32 = 0x7e02_0000;
const NEW_TIME: u32 = 0x80;
/// An open with any of these bits may change something: write access, creation, truncation.
const OPEN_CHANGES: u32 = 0o1 | 0o2 | 0o100 | 0o1000;

/// An open with one of these makes a file (O_CREAT, O_TMPFILE), so its mode argument counts.
const OPEN_MAKES: u32 = 0o100 | 0o20_000_000;
/// Set-user-id and set-group-id. Inside they have no effect; on a file that stays on the host they would.
const SET_ID: u32 = 0o6000;
const SOCKET_TYPE: u32 = 0xf;
const F_SETDELEG: u32 = 1039;
/// Commands of fcntl that make a descriptor.
const COPIES: [u32; 2] = [libc::F_DUPFD as u32, libc::F_DUPFD_CLOEXEC as u32];
/// Commands of fcntl that take locks.
const RANGE_LOCKS: [u32; 4] =
    [file_lock::SET_POSIX, file_lock::SET_POSIX_WAIT, file_lock::SET_OPEN_FILE, file_lock::SET_OPEN_FILE_WAIT];

/// Make and remove directories by name on btrfs and bcachefs, where landlock does not look: subvolumes and snapshots.
const SUBVOLUMES: [u32; 8] =
    [0x5000_9401, 0x5000_940e, 0x5000_940f, 0x5000_9417, 0x5000_9418, 0x5000_943f, 0x4020_bc10, 0x4020_bc11];

const EPERM: u16 = libc::EPERM as u16;
const ENOSYS: u16 = libc::ENOSYS as u16;
/// The call does nothing and returns 0.
const DONE: Answer = Answer::Errno(0);
const EAFNOSUPPORT: u16 = libc::EAFNOSUPPORT as u16;

/// Whether a call that reached the listener is one the guest may not make, rather than one that is only watched.
pub fn is_refused(nr: u32, args: &[u64; 6], watch: &Watch) -> bool {
    let in_list = |calls: Calls| calls.iter().any(|(_, n)| *n == nr);
    let always = [libc::SYS_clone, libc::SYS_unshare, libc::SYS_ioctl, libc::SYS_personality];
    REFUSED.iter().any(|(_, calls)| in_list(calls))
        || in_list(REFUSED_LEGACY)
        || always.iter().any(|n| *n as u32 == nr)
        || mode_argument(nr, args).is_some_and(|arg| args[arg] & u64::from(SET_ID) != 0)
        || (nr == libc::SYS_memfd_create as u32 && watch.no_exec_memory_files)
        || (watch.connects_for_guest && is_named_datagram(nr, args))
        || (watch.alone && SHARED.iter().any(|name| number(name) == Some(nr)))
        || watch.deny.iter().any(|name| number(name) == Some(nr))
}

/// Which argument is the mode of a file that the call makes or changes.
fn mode_argument(nr: u32, args: &[u64; 6]) -> Option<usize> {
    let makes = |flags: u64| flags & u64::from(OPEN_MAKES) != 0;
    match &*name(nr) {
        "chmod" | "fchmod" | "creat" | "mknod" => Some(1),
        "fchmodat" | "fchmodat2" | "mknodat" => Some(2),
        "open" if makes(args[1]) => Some(2),
        "openat" if makes(args[2]) => Some(3),
        _ => None,
    }
}

fn is_named_datagram(nr: u32, args: &[u64; 6]) -> bool {
    let socket = [libc::SYS_socket, libc::SYS_socketpair].iter().any(|n| *n as u32 == nr);
    let connected = [libc::SOCK_STREAM as u32, libc::SOCK_SEQPACKET as u32];
    socket && args[0] as u32 == libc::AF_UNIX as u32 && !connected.contains(&(args[1] as u32 & SOCKET_TYPE))
}

/// How many descriptors a watched call makes when it succeeds.
pub fn descriptors_made(nr: u32, args: &[u64; 6]) -> u64 {
    let is = |calls: Calls| calls.iter().any(|(_, n)| *n == nr);
    match &*name(nr) {
        "pipe" | "pipe2" | "socketpair" => 2,
        "open" | "openat" | "openat2" | "creat" | "socket" => 1,
        "fcntl" => COPIES.contains(&(args[1] as u32)).into(),
        _ if is(MAKES_DESCRIPTORS) || is(MAKES_DESCRIPTORS_LEGACY) => 1,
        _ => 0,
    }
}

/// Builds the filter that every process of a guest runs under.
pub fn program(watch: &Watch) -> Vec<Insn> {
    filter(watch).compile()
}

fn filter(watch: &Watch) -> Filter {
    let refused = if watch.listener { Answer::Notify } else { Answer::Errno(EPERM) };
    let watched = if watch.listener { Answer::Notify } else { Answer::Allow };
    let mut calls: BTreeMap<u32, Choice> = BTreeMap::new();
    let mut put = |list: Calls, answer: Answer| {
        for (_, nr) in list {
            calls.insert(*nr, answer.into());
        }
    };
    ALLOWED.iter().for_each(|(_, list)| put(list, Answer::Allow));
    put(ALLOWED_LEGACY, Answer::Allow);
    REFUSED.iter().for_each(|(_, list)| put(list, refused));
    put(REFUSED_LEGACY, refused);
    put(WATCHED, watched);
    put(WATCHED_LEGACY, watched);
    if watch.looks || watch.reads {
        put(LOOKS, watched);
        put(LOOKS_LEGACY, watched);
    }
    if watch.descriptors {
        put(MAKES_DESCRIPTORS, watched);
        put(MAKES_DESCRIPTORS_LEGACY, watched);
    }
    if watch.space {
        put(RESERVES, watched);
    }
    by_argument(watch, refused, watched, &mut calls);
    if watch.alone {
        for name in SHARED {
            if let Some(nr) = number(name) {
                calls.insert(nr, refused.into());
            }
        }
        let own = Test::OneOf { arg: 0, mask: u32::MAX, values: vec![0] };
        calls.insert(libc::SYS_prlimit64 as u32, Choice::when(own, prlimit(), Answer::Errno(EPERM)));
    }
    for name in &watch.deny {
        if let Some(nr) = number(name) {
            calls.insert(nr, refused.into());
        }
    }
    Filter { arch: ARCH, foreign_bit: FOREIGN_BIT, calls, otherwise: Answer::Errno(ENOSYS) }
}

fn by_argument(watch: &Watch, refused: Answer, watched: Answer, calls: &mut BTreeMap<u32, Choice>) {
    let mut put = |nr: libc::c_long, choice: Choice| {
        calls.insert(nr as u32, choice);
    };
    let any = |arg, mask| Test::AnyBit { arg, mask };
    let one_of = |arg, values: Vec<u32>| Test::OneOf { arg, mask: u32::MAX, values };
    let no_set_id = |mode, otherwise: Answer| Choice::when(any(mode, SET_ID), refused, otherwise);
    let open = |flags: u8, mode: u8| {
        let rest = match watch.reads || watch.asks || watch.descriptors {
            true => Choice::Always(watched),
            false => Choice::when(any(flags, OPEN_CHANGES), watched, Answer::Allow),
        };
        Choice::when(any(flags, OPEN_MAKES), no_set_id(mode, watched), rest)
    };
    if let Some([one, two]) = watch.start_mark {
        let marked = Choice::when(one_of(5, vec![two]), Answer::Allow, watched);
        put(libc::SYS_execve, Choice::when(one_of(4, vec![one]), marked, watched));
    }
    put(libc::SYS_openat, open(2, 3));
    // Its flags and mode are in memory, where no filter can look; callers fall back to openat.
    put(libc::SYS_openat2, Answer::Errno(ENOSYS).into());
    put(libc::SYS_fchmod, no_set_id(1, watched));
    put(libc::SYS_fchmodat, no_set_id(2, watched));
    put(libc::SYS_fchmodat2, no_set_id(2, watched));
    put(libc::SYS_mknodat, no_set_id(2, watched));
    put(libc::SYS_open, open(1, 2));
    put(libc::SYS_creat, no_set_id(1, watched));
    put(libc::SYS_chmod, no_set_id(1, watched));
    put(libc::SYS_mknod, no_set_id(1, watched));
    // The guest's pid 1 is ours; its limits are not the guest's to set.
    put(libc::SYS_prlimit64, Choice::when(one_of(0, vec![1]), Answer::Errno(EPERM), prlimit()));
    put(libc::SYS_setrlimit, Choice::when(one_of(0, vec![libc::RLIMIT_CORE]), DONE, Answer::Allow));
    // Nor is its share of the processors and disks: every later command has it from there. A user's processes are ours as well.
    let not_first = |arg| Choice::when(one_of(arg, vec![1]), Answer::Errno(EPERM), Answer::Allow);
    let scheduling =
        [libc::SYS_sched_setaffinity, libc::SYS_sched_setparam, libc::SYS_sched_setscheduler, libc::SYS_sched_setattr];
    scheduling.into_iter().for_each(|nr| put(nr, not_first(0)));
    const PRIO_USER: u32 = 2;
    const IOPRIO_WHO_USER: u32 = 3;
    for (nr, user) in [(libc::SYS_setpriority, PRIO_USER), (libc::SYS_ioprio_set, IOPRIO_WHO_USER)] {
        put(nr, Choice::when(one_of(0, vec![user]), Answer::Errno(EPERM), not_first(1)));
    }
    put(libc::SYS_clone, Choice::when(any(0, NAMESPACES), refused, Answer::Allow));
    // As with openat2; libc falls back to clone.
    put(libc::SYS_clone3, Answer::Errno(ENOSYS).into());
    put(libc::SYS_unshare, Choice::when(any(0, NAMESPACES | NEW_TIME), refused, Answer::Allow));
    // TIOCSTI types into the terminal, TIOCLINUX pastes, TIOCCONS takes the console, TIOCSETD loads disciplines.
    let typed = one_of(1, [&[0x5412, 0x541c, 0x541d, 0x5423], &SUBVOLUMES[..]].concat());
    put(libc::SYS_ioctl, Choice::when(typed, refused, Answer::Allow));
    let made = if watch.descriptors { watched } else { Answer::Allow };
    let unix = match watch.connects_for_guest {
        true => {
            let connected = Test::OneOf {
                arg: 1,
                mask: SOCKET_TYPE,
                values: vec![libc::SOCK_STREAM as u32, libc::SOCK_SEQPACKET as u32],
            };
            Choice::when(connected, made, refused)
        }
        false => Choice::Always(made),
    };
    let is_unix = one_of(0, vec![libc::AF_UNIX as u32]);
    let internet = one_of(0, vec![libc::AF_INET as u32, libc::AF_INET6 as u32]);
    let other = Answer::Errno(EAFNOSUPPORT);
    put(libc::SYS_socketpair, Choice::when(is_unix.clone(), unix.clone(), other));
    put(libc::SYS_socket, Choice::when(is_unix, unix, Choice::when(internet, made, other)));
    // A lease or delegation on a file that can only be read makes the host's writers wait for us.
    let leases = one_of(1, vec![libc::F_SETLEASE as u32, F_SETDELEG]);
    // A lock on such a file keeps the host's programs waiting as well; the supervisor looks at which file it is. Dropping one does no harm.
    let heard = [(watch.range_locks, &RANGE_LOCKS[..]), (watch.descriptors, &COPIES)];
    let heard: Vec<u32> = heard.into_iter().filter(|(wanted, _)| *wanted).flat_map(|(_, list)| list).copied().collect();
    let rest =
        if heard.is_empty() { Answer::Allow.into() } else { Choice::when(one_of(1, heard), watched, Answer::Allow) };
    put(libc::SYS_fcntl, Choice::when(leases, Answer::Errno(EPERM), rest));
    let unlocks = vec![libc::LOCK_UN as u32, (libc::LOCK_UN | libc::LOCK_NB) as u32];
    put(libc::SYS_flock, Choice::when(one_of(1, unlocks), Answer::Allow, watched));
    put(libc::SYS_sendto, Choice::when(Test::Pointer { arg: 4 }, watched, Answer::Allow));
    put(libc::SYS_personality, Choice::when(one_of(0, vec![0, u32::MAX]), Answer::Allow, refused));
    const NO_EXEC_SEAL: u32 = 8;
    let memory_file = match watch.no_exec_memory_files {
        true => Choice::when(any(1, NO_EXEC_SEAL), made, refused),
        false => Choice::Always(made),
    };
    put(libc::SYS_memfd_create, memory_file);
}

/// prlimit64 on a process of the guest. RLIMIT_CORE stays as it is: at 0 instead of 1 the kernel would start the host's `core_pattern` handler
/// for every crash. Programs that guard secrets set it to 0 and give up where they cannot, so a new limit seems to be taken. Who wants
/// the old one told in the same call is refused, because a filter cannot write it.
fn prlimit() -> Choice {
    let exchange = Choice::when(Test::Pointer { arg: 3 }, Answer::Errno(EPERM), DONE);
    let changes = Choice::when(Test::Pointer { arg: 2 }, exchange, Answer::Allow);
    Choice::when(Test::OneOf { arg: 1, mask: u32::MAX, values: vec![libc::RLIMIT_CORE] }, changes, Answer::Allow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::evaluate;

    fn ask(watch: &Watch, nr: libc::c_long, args: [u64; 6]) -> u32 {
        evaluate(&program(watch), ARCH, nr as u32, args).expect("the program ends in an answer")
    }

    /// Every number, on every architecture name the kernel has, gets the answer the table states.
    #[test]
    fn no_call_of_another_abi_gets_through() {
        let program = program(&Watch::default());
        for arch in [0x4000_0003u32, 0xc000_00b7, 0x4000_0028, 0x8000_0015, 0, u32::MAX] {
            for nr in 0..600 {
                assert_eq!(evaluate(&program, arch, nr, [0; 6]), Some(Answer::Kill.code()));
            }
        }
        for nr in 0..600 {
            let got = evaluate(&program, ARCH, FOREIGN_BIT | nr, [0; 6]);
            assert_eq!(got, Some(Answer::Errno(ENOSYS).code()), "x32 call {nr}");
        }
        assert_eq!(ask(&Watch::default(), libc::SYS_read, [0; 6]), Answer::Allow.code());
    }

    #[test]
    fn refusals_hold_with_and_without_a_listener() {
        for listener in [false, true] {
            let watch = Watch { listener, ..Watch::default() };
            let want = if listener { Answer::Notify } else { Answer::Errno(EPERM) }.code();
            for (_, calls) in REFUSED {
                for (name, nr) in *calls {
                    assert_eq!(ask(&watch, libc::c_long::from(*nr), [u64::MAX; 6]), want, "{name}");
                }
            }
        }
    }

    #[test]
    fn a_call_of_a_later_kernel_does_not_exist() {
        for nr in [468, 500, 999, 0x3fff_ffff] {
            assert_eq!(ask(&Watch::default(), nr, [0; 6]), Answer::Errno(ENOSYS).code());
        }
    }

    #[test]
    fn terminal_injection_is_refused_whatever_the_high_bits() {
        let watch = Watch::default();
        for high in [0u64, 1 << 32, 0xffff_ffff << 32] {
            let args = [0, high | 0x5412, 0, 0, 0, 0];
            assert_eq!(ask(&watch, libc::SYS_ioctl, args), Answer::Errno(EPERM).code());
        }
        assert_eq!(ask(&watch, libc::SYS_ioctl, [0, 0x5413, 0, 0, 0, 0]), Answer::Allow.code());
    }

    /// A file system's own way to make a directory would go around the right to make one.
    #[test]
    fn no_subvolume_is_made_or_removed() {
        let watch = Watch::default();
        for request in SUBVOLUMES {
            let args = [0, u64::from(request), 0, 0, 0, 0];
            assert_eq!(ask(&watch, libc::SYS_ioctl, args), Answer::Errno(EPERM).code(), "{request:#x}");
        }
        // FICLONE copies nothing but bytes.
        assert_eq!(ask(&watch, libc::SYS_ioctl, [0, 0x4004_9409, 0, 0, 0, 0]), Answer::Allow.code());
    }

    #[test]
    fn locks_are_heard_of_and_leases_refused() {
        let notify = Answer::Notify.code();
        for (range_locks, descriptors) in [(false, false), (true, false), (false, true), (true, true)] {
            let watch = Watch { listener: true, range_locks, descriptors, ..Watch::default() };
            let fcntl = |command: u32| ask(&watch, libc::SYS_fcntl, [3, u64::from(command), 4096, 0, 0, 0]);
            let answer = |heard: bool| if heard { notify } else { Answer::Allow.code() };
            RANGE_LOCKS.into_iter().for_each(|command| assert_eq!(fcntl(command), answer(range_locks), "{command}"));
            COPIES.into_iter().for_each(|command| assert_eq!(fcntl(command), answer(descriptors), "{command}"));
            assert_eq!(fcntl(libc::F_GETLK as u32), Answer::Allow.code());
            for lease in [libc::F_SETLEASE as u32, F_SETDELEG] {
                assert_eq!(fcntl(lease), Answer::Errno(EPERM).code(), "{lease}");
            }
            for (operation, heard) in [(1, true), (2, true), (2 | 4, true), (8, false), (8 | 4, false), (32, true)] {
                assert_eq!(ask(&watch, libc::SYS_flock, [3, operation, 0, 0, 0, 0]), answer(heard), "{operation}");
            }
        }
    }

    /// The kernel reads the resource as an unsigned int: high bits make no other one of it.
    #[test]
    fn the_limit_on_core_dumps_can_be_read_and_not_changed() {
        const CORE: u64 = libc::RLIMIT_CORE as u64;
        let allow = Answer::Allow.code();
        for alone in [false, true] {
            let watch = Watch { alone, ..Watch::default() };
            for resource in [CORE, CORE | 1 << 32, CORE | 0xffff_ffff << 32] {
                let prlimit = |new, old| ask(&watch, libc::SYS_prlimit64, [0, resource, new, old, 0, 0]);
                assert_eq!(prlimit(0, 4096), allow);
                assert_eq!(prlimit(4096, 0), DONE.code());
                assert_eq!(prlimit(1 << 32, 0), DONE.code(), "a pointer counts with both halves");
                assert_eq!(prlimit(4096, 4096), Answer::Errno(EPERM).code());
                assert_eq!(ask(&watch, libc::SYS_setrlimit, [resource, 4096, 0, 0, 0, 0]), DONE.code());
            }
            let files = u64::from(libc::RLIMIT_NOFILE);
            assert_eq!(ask(&watch, libc::SYS_prlimit64, [0, files, 4096, 4096, 0, 0]), allow, "control");
            assert_eq!(ask(&watch, libc::SYS_setrlimit, [files, 4096, 0, 0, 0, 0]), allow, "control");
        }
        assert_eq!(ask(&Watch::default(), libc::SYS_prlimit64, [1, CORE, 4096, 0, 0, 0]), Answer::Errno(EPERM).code());
    }

    #[test]
    fn opens_that_only_read_cost_nothing_unless_asked_for() {
        let quiet = Watch { listener: true, ..Watch::default() };
        let loud = Watch { reads: true, ..quiet.clone() };
        assert_eq!(ask(&quiet, libc::SYS_openat, [0; 6]), Answer::Allow.code());
        assert_eq!(ask(&loud, libc::SYS_openat, [0; 6]), Answer::Notify.code());
        assert_eq!(ask(&quiet, libc::SYS_openat, [0, 0, 0o101, 0, 0, 0]), Answer::Notify.code());
    }

    #[test]
    fn no_file_is_made_set_id() {
        let watch = Watch { listener: true, ..Watch::default() };
        let refused =
            |nr, args: [u64; 6]| ask(&watch, nr, args) == Answer::Notify.code() && is_refused(nr as u32, &args, &watch);
        for mode in [0o4755u64, 0o2755, 0xffff_0000_0000_0000 | 0o6000] {
            assert!(refused(libc::SYS_fchmod, [0, mode, 0, 0, 0, 0]));
            assert!(refused(libc::SYS_fchmodat, [0, 0, mode, 0, 0, 0]));
            assert!(refused(libc::SYS_openat, [0, 0, 0o101, mode, 0, 0]));
        }
        assert!(!is_refused(libc::SYS_fchmod as u32, &[0, 0o755, 0, 0, 0, 0], &watch));
        // Without O_CREAT the mode is whatever happened to be in the register.
        assert!(!refused(libc::SYS_openat, [0, 0, 0, 0o4755, 0, 0]));
        assert_eq!(ask(&watch, libc::SYS_openat, [0, 0, 0, 0o4755, 0, 0]), Answer::Allow.code());
    }

    #[test]
    fn a_policy_can_take_calls_away() {
        let watch = Watch { deny: vec!["ptrace".into()], ..Watch::default() };
        assert_eq!(ask(&Watch::default(), libc::SYS_ptrace, [0; 6]), Answer::Allow.code());
        assert_eq!(ask(&watch, libc::SYS_ptrace, [0; 6]), Answer::Errno(EPERM).code());
        assert_eq!(name(libc::SYS_ptrace as u32), "ptrace");
        assert_eq!(number("no_such_call"), None);
    }
}
