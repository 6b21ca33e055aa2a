//! The seccomp filter of a guest: `calls` lists the system calls, each group with its reason, and this module compiles
//! them into a filter. A call that is not listed fails with ENOSYS, so a call that a later kernel adds is refused until
//! it is listed.

mod calls;

use self::calls::{
    ALLOWED, ALLOWED_LEGACY, Calls, LOOKS, LOOKS_LEGACY, MAKES_DESCRIPTORS, MAKES_DESCRIPTORS_LEGACY, REFUSED,
    REFUSED_LEGACY, RESERVES, SHARED, WATCHED, WATCHED_LEGACY,
};
pub use self::calls::{INDISPENSABLE, INDISPENSABLE_TO_STAY, name, number, reason, table};
use crate::bpf::{Action, CallRule, Filter, Insn, Test};
use crate::file_lock;
use std::collections::BTreeMap;

/// x86_64, as the kernel's audit numbers it.
const ARCH: u32 = 0xc000_003e;
/// Bit of x32 calls, which have the same architecture.
const FOREIGN_BIT: u32 = 0x4000_0000;

/// Notifications that the supervisor wants beyond refused calls.
#[derive(Clone, Debug, Default)]
pub struct NotifyOptions {
    /// The filter has a listener. Without one every refusal is a plain error number.
    pub listener: bool,
    /// Notify of read-only opens, too. Each open then waits for the supervisor.
    pub reads: bool,
    /// Notify of read-only opens, because a person may be asked about one.
    pub asks: bool,
    /// Notify of calls that only inspect a path (stat, access, readlink), to learn which paths a command needs.
    pub looks: bool,
    /// Notify of every call that makes a descriptor, to report when `max_open_files` was reached.
    pub descriptors: bool,
    /// Notify of calls that reserve space, to report when `max_disk_mb` was reached: a refused call leaves no trace.
    pub space: bool,
    /// Notify of byte-range locks (fcntl), too. Each then waits for the supervisor, and small databases take many.
    pub range_locks: bool,
    /// Names from the policy's `syscalls.deny`.
    pub deny: Vec<String>,
    /// Memory files (memfd) must be non-executable (exec rules list the programs that may run).
    pub no_exec_memory_files: bool,
    /// The supervisor makes Unix connections itself, so that the socket's path is read once; datagram sockets with
    /// names are refused, because their destination cannot be seen.
    pub connects_for_guest: bool,
    /// Marks the one execve that starts the command, which was checked before: the kernel ignores the arguments that
    /// carry the mark, and no process inside knows it. It saves the start a notification; all other mechanisms apply to
    /// it as to any other.
    pub start_mark: Option<[u32; 2]>,
    /// The guest has no namespaces: no sockets but pairs, no queues, no file metadata, no limits of other processes.
    pub alone: bool,
}

/// `CLONE_NEW*` bits as clone(2) and unshare(2) take them.
const NAMESPACES: u32 = 0x7e02_0000;
const NEW_TIME: u32 = 0x80;
/// Open flags that may change something: write access, creation, truncation.
const OPEN_CHANGES: u32 = 0o1 | 0o2 | 0o100 | 0o1000;

/// Open flags that create a file (O_CREAT, O_TMPFILE), so that the mode argument is used.
const OPEN_MAKES: u32 = 0o100 | 0o20_000_000;
/// Set-user-id and set-group-id bits. Inside they have no effect; on a file that stays on the host they would.
const SET_ID: u32 = 0o6000;
const SOCKET_TYPE: u32 = 0xf;
const F_SETDELEG: u32 = 1039;
/// fcntl commands that make a descriptor.
const COPIES: [u32; 2] = [libc::F_DUPFD as u32, libc::F_DUPFD_CLOEXEC as u32];
/// fcntl commands that take locks.
const RANGE_LOCKS: [u32; 4] =
    [file_lock::SET_POSIX, file_lock::SET_POSIX_WAIT, file_lock::SET_OPEN_FILE, file_lock::SET_OPEN_FILE_WAIT];

/// ioctls that make and remove subvolumes and snapshots on btrfs and bcachefs, directories that landlock does not
/// check.
const SUBVOLUMES: [u32; 8] =
    [0x5000_9401, 0x5000_940e, 0x5000_940f, 0x5000_9417, 0x5000_9418, 0x5000_943f, 0x4020_bc10, 0x4020_bc11];

const EPERM: u16 = libc::EPERM as u16;
const ENOSYS: u16 = libc::ENOSYS as u16;
/// Skips the call and returns 0.
const DONE: Action = Action::Errno(0);
const EAFNOSUPPORT: u16 = libc::EAFNOSUPPORT as u16;

/// Returns true if a call that reached the listener is refused, rather than only watched.
pub fn is_refused(nr: u32, args: &[u64; 6], watch: &NotifyOptions) -> bool {
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

/// Returns the index of the mode argument of a call that creates or changes a file.
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

/// Returns the number of descriptors that a watched call makes when it succeeds.
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
pub fn program(watch: &NotifyOptions) -> Vec<Insn> {
    filter(watch).compile()
}

fn filter(watch: &NotifyOptions) -> Filter {
    let refused = if watch.listener { Action::Notify } else { Action::Errno(EPERM) };
    let watched = if watch.listener { Action::Notify } else { Action::Allow };
    let mut calls: BTreeMap<u32, CallRule> = BTreeMap::new();
    let mut put = |list: Calls, answer: Action| {
        for (_, nr) in list {
            calls.insert(*nr, answer.into());
        }
    };
    ALLOWED.iter().for_each(|(_, list)| put(list, Action::Allow));
    put(ALLOWED_LEGACY, Action::Allow);
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
        calls.insert(libc::SYS_prlimit64 as u32, CallRule::when(own, prlimit(), Action::Errno(EPERM)));
    }
    for name in &watch.deny {
        if let Some(nr) = number(name) {
            calls.insert(nr, refused.into());
        }
    }
    Filter { arch: ARCH, foreign_bit: FOREIGN_BIT, calls, default_action: Action::Errno(ENOSYS) }
}

fn by_argument(watch: &NotifyOptions, refused: Action, watched: Action, calls: &mut BTreeMap<u32, CallRule>) {
    let mut put = |nr: libc::c_long, choice: CallRule| {
        calls.insert(nr as u32, choice);
    };
    let any = |arg, mask| Test::AnyBit { arg, mask };
    let one_of = |arg, values: Vec<u32>| Test::OneOf { arg, mask: u32::MAX, values };
    let no_set_id = |mode, otherwise: Action| CallRule::when(any(mode, SET_ID), refused, otherwise);
    let open = |flags: u8, mode: u8| {
        let rest = match watch.reads || watch.asks || watch.descriptors {
            true => CallRule::Always(watched),
            false => CallRule::when(any(flags, OPEN_CHANGES), watched, Action::Allow),
        };
        CallRule::when(any(flags, OPEN_MAKES), no_set_id(mode, watched), rest)
    };
    if let Some([one, two]) = watch.start_mark {
        let marked = CallRule::when(one_of(5, vec![two]), Action::Allow, watched);
        put(libc::SYS_execve, CallRule::when(one_of(4, vec![one]), marked, watched));
    }
    put(libc::SYS_openat, open(2, 3));
    // Flags and mode are in memory, which no filter can read; callers fall back to openat.
    put(libc::SYS_openat2, Action::Errno(ENOSYS).into());
    put(libc::SYS_fchmod, no_set_id(1, watched));
    put(libc::SYS_fchmodat, no_set_id(2, watched));
    put(libc::SYS_fchmodat2, no_set_id(2, watched));
    put(libc::SYS_mknodat, no_set_id(2, watched));
    put(libc::SYS_open, open(1, 2));
    put(libc::SYS_creat, no_set_id(1, watched));
    put(libc::SYS_chmod, no_set_id(1, watched));
    put(libc::SYS_mknod, no_set_id(1, watched));
    // The guest's pid 1 belongs to the supervisor; the guest must not set its limits.
    put(libc::SYS_prlimit64, CallRule::when(one_of(0, vec![1]), Action::Errno(EPERM), prlimit()));
    put(libc::SYS_setrlimit, CallRule::when(one_of(0, vec![libc::RLIMIT_CORE]), DONE, Action::Allow));
    // Nor its scheduling and io priority: every later command inherits them. A user's processes include ours.
    let not_first = |arg| CallRule::when(one_of(arg, vec![1]), Action::Errno(EPERM), Action::Allow);
    let scheduling =
        [libc::SYS_sched_setaffinity, libc::SYS_sched_setparam, libc::SYS_sched_setscheduler, libc::SYS_sched_setattr];
    scheduling.into_iter().for_each(|nr| put(nr, not_first(0)));
    const PRIO_USER: u32 = 2;
    const IOPRIO_WHO_USER: u32 = 3;
    for (nr, user) in [(libc::SYS_setpriority, PRIO_USER), (libc::SYS_ioprio_set, IOPRIO_WHO_USER)] {
        put(nr, CallRule::when(one_of(0, vec![user]), Action::Errno(EPERM), not_first(1)));
    }
    put(libc::SYS_clone, CallRule::when(any(0, NAMESPACES), refused, Action::Allow));
    // Flags in memory, as with openat2; libc falls back to clone.
    put(libc::SYS_clone3, Action::Errno(ENOSYS).into());
    put(libc::SYS_unshare, CallRule::when(any(0, NAMESPACES | NEW_TIME), refused, Action::Allow));
    // TIOCSTI injects terminal input, TIOCLINUX pastes, TIOCCONS redirects the console, TIOCSETD loads line
    // disciplines.
    let typed = one_of(1, [&[0x5412, 0x541c, 0x541d, 0x5423], &SUBVOLUMES[..]].concat());
    put(libc::SYS_ioctl, CallRule::when(typed, refused, Action::Allow));
    let made = if watch.descriptors { watched } else { Action::Allow };
    let unix = match watch.connects_for_guest {
        true => {
            let connected = Test::OneOf {
                arg: 1,
                mask: SOCKET_TYPE,
                values: vec![libc::SOCK_STREAM as u32, libc::SOCK_SEQPACKET as u32],
            };
            CallRule::when(connected, made, refused)
        }
        false => CallRule::Always(made),
    };
    let is_unix = one_of(0, vec![libc::AF_UNIX as u32]);
    let internet = one_of(0, vec![libc::AF_INET as u32, libc::AF_INET6 as u32]);
    let other = Action::Errno(EAFNOSUPPORT);
    put(libc::SYS_socketpair, CallRule::when(is_unix.clone(), unix.clone(), other));
    put(libc::SYS_socket, CallRule::when(is_unix, unix, CallRule::when(internet, made, other)));
    // A lease or delegation on a read-only file makes the host's writers wait for the guest.
    let leases = one_of(1, vec![libc::F_SETLEASE as u32, F_SETDELEG]);
    // A lock on such a file makes the host's programs wait as well; the supervisor checks the file. Unlocking does no
    // harm.
    let heard = [(watch.range_locks, &RANGE_LOCKS[..]), (watch.descriptors, &COPIES)];
    let heard: Vec<u32> = heard.into_iter().filter(|(wanted, _)| *wanted).flat_map(|(_, list)| list).copied().collect();
    let rest =
        if heard.is_empty() { Action::Allow.into() } else { CallRule::when(one_of(1, heard), watched, Action::Allow) };
    put(libc::SYS_fcntl, CallRule::when(leases, Action::Errno(EPERM), rest));
    let unlocks = vec![libc::LOCK_UN as u32, (libc::LOCK_UN | libc::LOCK_NB) as u32];
    put(libc::SYS_flock, CallRule::when(one_of(1, unlocks), Action::Allow, watched));
    put(libc::SYS_sendto, CallRule::when(Test::Pointer { arg: 4 }, watched, Action::Allow));
    put(libc::SYS_personality, CallRule::when(one_of(0, vec![0, u32::MAX]), Action::Allow, refused));
    const NO_EXEC_SEAL: u32 = 8;
    let memory_file = match watch.no_exec_memory_files {
        true => CallRule::when(any(1, NO_EXEC_SEAL), made, refused),
        false => CallRule::Always(made),
    };
    put(libc::SYS_memfd_create, memory_file);
}

/// Builds the rule for prlimit64 on a process of the guest. RLIMIT_CORE stays unchanged: at 0 instead of 1 the kernel
/// would start the host's `core_pattern` handler for every crash. Programs that guard secrets set it to 0 and give up
/// on failure, so setting a new limit seems to succeed. A call that also reads the old limit is refused, because a
/// filter cannot write it.
fn prlimit() -> CallRule {
    let exchange = CallRule::when(Test::Pointer { arg: 3 }, Action::Errno(EPERM), DONE);
    let changes = CallRule::when(Test::Pointer { arg: 2 }, exchange, Action::Allow);
    CallRule::when(Test::OneOf { arg: 1, mask: u32::MAX, values: vec![libc::RLIMIT_CORE] }, changes, Action::Allow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::evaluate;

    fn ask(watch: &NotifyOptions, nr: libc::c_long, args: [u64; 6]) -> u32 {
        evaluate(&program(watch), ARCH, nr as u32, args).expect("the program ends in an answer")
    }

    /// Checks that every number, on every architecture that the kernel has, gets the action in the table.
    // promise 3
    #[test]
    fn no_call_of_another_abi_gets_through() {
        let program = program(&NotifyOptions::default());
        for arch in [0x4000_0003u32, 0xc000_00b7, 0x4000_0028, 0x8000_0015, 0, u32::MAX] {
            for nr in 0..600 {
                assert_eq!(evaluate(&program, arch, nr, [0; 6]), Some(Action::Kill.code()));
            }
        }
        for nr in 0..600 {
            let got = evaluate(&program, ARCH, FOREIGN_BIT | nr, [0; 6]);
            assert_eq!(got, Some(Action::Errno(ENOSYS).code()), "x32 call {nr}");
        }
        assert_eq!(ask(&NotifyOptions::default(), libc::SYS_read, [0; 6]), Action::Allow.code());
    }

    #[test]
    fn refusals_hold_with_and_without_a_listener() {
        for listener in [false, true] {
            let watch = NotifyOptions { listener, ..NotifyOptions::default() };
            let want = if listener { Action::Notify } else { Action::Errno(EPERM) }.code();
            for (_, calls) in REFUSED {
                for (name, nr) in *calls {
                    assert_eq!(ask(&watch, libc::c_long::from(*nr), [u64::MAX; 6]), want, "{name}");
                }
            }
        }
    }

    // promise 3
    #[test]
    fn a_call_of_a_later_kernel_does_not_exist() {
        for nr in [468, 500, 999, 0x3fff_ffff] {
            assert_eq!(ask(&NotifyOptions::default(), nr, [0; 6]), Action::Errno(ENOSYS).code());
        }
    }

    #[test]
    fn terminal_injection_is_refused_whatever_the_high_bits() {
        let watch = NotifyOptions::default();
        for high in [0u64, 1 << 32, 0xffff_ffff << 32] {
            let args = [0, high | 0x5412, 0, 0, 0, 0];
            assert_eq!(ask(&watch, libc::SYS_ioctl, args), Action::Errno(EPERM).code());
        }
        assert_eq!(ask(&watch, libc::SYS_ioctl, [0, 0x5413, 0, 0, 0, 0]), Action::Allow.code());
    }

    /// A file system's own ioctl to make a directory would bypass the landlock right to make one.
    // promise 3
    #[test]
    fn no_subvolume_is_made_or_removed() {
        let watch = NotifyOptions::default();
        for request in SUBVOLUMES {
            let args = [0, u64::from(request), 0, 0, 0, 0];
            assert_eq!(ask(&watch, libc::SYS_ioctl, args), Action::Errno(EPERM).code(), "{request:#x}");
        }
        // FICLONE copies only bytes.
        assert_eq!(ask(&watch, libc::SYS_ioctl, [0, 0x4004_9409, 0, 0, 0, 0]), Action::Allow.code());
    }

    #[test]
    fn locks_are_heard_of_and_leases_refused() {
        let notify = Action::Notify.code();
        for (range_locks, descriptors) in [(false, false), (true, false), (false, true), (true, true)] {
            let watch = NotifyOptions { listener: true, range_locks, descriptors, ..NotifyOptions::default() };
            let fcntl = |command: u32| ask(&watch, libc::SYS_fcntl, [3, u64::from(command), 4096, 0, 0, 0]);
            let answer = |heard: bool| if heard { notify } else { Action::Allow.code() };
            RANGE_LOCKS.into_iter().for_each(|command| assert_eq!(fcntl(command), answer(range_locks), "{command}"));
            COPIES.into_iter().for_each(|command| assert_eq!(fcntl(command), answer(descriptors), "{command}"));
            assert_eq!(fcntl(libc::F_GETLK as u32), Action::Allow.code());
            for lease in [libc::F_SETLEASE as u32, F_SETDELEG] {
                assert_eq!(fcntl(lease), Action::Errno(EPERM).code(), "{lease}");
            }
            for (operation, heard) in [(1, true), (2, true), (2 | 4, true), (8, false), (8 | 4, false), (32, true)] {
                assert_eq!(ask(&watch, libc::SYS_flock, [3, operation, 0, 0, 0, 0]), answer(heard), "{operation}");
            }
        }
    }

    /// The kernel reads the resource as an unsigned int: high bits do not change it.
    #[test]
    fn the_limit_on_core_dumps_can_be_read_and_not_changed() {
        const CORE: u64 = libc::RLIMIT_CORE as u64;
        let allow = Action::Allow.code();
        for alone in [false, true] {
            let watch = NotifyOptions { alone, ..NotifyOptions::default() };
            for resource in [CORE, CORE | 1 << 32, CORE | 0xffff_ffff << 32] {
                let prlimit = |new, old| ask(&watch, libc::SYS_prlimit64, [0, resource, new, old, 0, 0]);
                assert_eq!(prlimit(0, 4096), allow);
                assert_eq!(prlimit(4096, 0), DONE.code());
                assert_eq!(prlimit(1 << 32, 0), DONE.code(), "a pointer counts with both halves");
                assert_eq!(prlimit(4096, 4096), Action::Errno(EPERM).code());
                assert_eq!(ask(&watch, libc::SYS_setrlimit, [resource, 4096, 0, 0, 0, 0]), DONE.code());
            }
            let files = u64::from(libc::RLIMIT_NOFILE);
            assert_eq!(ask(&watch, libc::SYS_prlimit64, [0, files, 4096, 4096, 0, 0]), allow, "control");
            assert_eq!(ask(&watch, libc::SYS_setrlimit, [files, 4096, 0, 0, 0, 0]), allow, "control");
        }
        assert_eq!(
            ask(&NotifyOptions::default(), libc::SYS_prlimit64, [1, CORE, 4096, 0, 0, 0]),
            Action::Errno(EPERM).code()
        );
    }

    #[test]
    fn opens_that_only_read_cost_nothing_unless_asked_for() {
        let quiet = NotifyOptions { listener: true, ..NotifyOptions::default() };
        let loud = NotifyOptions { reads: true, ..quiet.clone() };
        assert_eq!(ask(&quiet, libc::SYS_openat, [0; 6]), Action::Allow.code());
        assert_eq!(ask(&loud, libc::SYS_openat, [0; 6]), Action::Notify.code());
        assert_eq!(ask(&quiet, libc::SYS_openat, [0, 0, 0o101, 0, 0, 0]), Action::Notify.code());
    }

    #[test]
    fn no_file_is_made_set_id() {
        let watch = NotifyOptions { listener: true, ..NotifyOptions::default() };
        let refused =
            |nr, args: [u64; 6]| ask(&watch, nr, args) == Action::Notify.code() && is_refused(nr as u32, &args, &watch);
        for mode in [0o4755u64, 0o2755, 0xffff_0000_0000_0000 | 0o6000] {
            assert!(refused(libc::SYS_fchmod, [0, mode, 0, 0, 0, 0]));
            assert!(refused(libc::SYS_fchmodat, [0, 0, mode, 0, 0, 0]));
            assert!(refused(libc::SYS_openat, [0, 0, 0o101, mode, 0, 0]));
        }
        assert!(!is_refused(libc::SYS_fchmod as u32, &[0, 0o755, 0, 0, 0, 0], &watch));
        // Without O_CREAT the mode is whatever happened to be in the register.
        assert!(!refused(libc::SYS_openat, [0, 0, 0, 0o4755, 0, 0]));
        assert_eq!(ask(&watch, libc::SYS_openat, [0, 0, 0, 0o4755, 0, 0]), Action::Allow.code());
    }

    #[test]
    fn a_policy_can_take_calls_away() {
        let watch = NotifyOptions { deny: vec!["ptrace".into()], ..NotifyOptions::default() };
        assert_eq!(ask(&NotifyOptions::default(), libc::SYS_ptrace, [0; 6]), Action::Allow.code());
        assert_eq!(ask(&watch, libc::SYS_ptrace, [0; 6]), Action::Errno(EPERM).code());
        assert_eq!(name(libc::SYS_ptrace as u32), "ptrace");
        assert_eq!(number("no_such_call"), None);
    }
}
