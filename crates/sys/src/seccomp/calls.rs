//! Tables of system calls by name and number, in groups with their reasons. The filter (`super`) assigns the action of
//! a group.

use std::borrow::Cow;
use std::sync::OnceLock;

macro_rules! calls {
    ($($name:ident)*) => { &[$((stringify!($name), paste(libc::$name))),*] };
}
const fn paste(nr: libc::c_long) -> u32 {
    nr as u32
}

pub(super) type Calls = &'static [(&'static str, u32)];

/// Calls that are always allowed.
pub(super) const ALLOWED: &[(&str, Calls)] = &[
    (
        "reading, writing and waiting on descriptors the guest already holds",
        calls!(SYS_read SYS_write SYS_close SYS_fstat SYS_lseek SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev
            SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2 SYS_fsync SYS_fdatasync SYS_ftruncate
            SYS_getdents64 SYS_fchdir SYS_sendfile SYS_splice SYS_tee SYS_vmsplice
            SYS_copy_file_range SYS_sync_file_range SYS_fadvise64 SYS_readahead SYS_fallocate SYS_syncfs SYS_sync
            SYS_dup SYS_dup3 SYS_pipe2 SYS_close_range SYS_fstatfs SYS_pselect6 SYS_ppoll SYS_epoll_create1
            SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_signalfd4 SYS_timerfd_create
            SYS_timerfd_settime SYS_timerfd_gettime SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch
            SYS_io_setup SYS_io_destroy SYS_io_getevents SYS_io_submit SYS_io_cancel),
    ),
    (
        "looking at paths; mounts and landlock decide what is there",
        calls!(SYS_newfstatat SYS_statx SYS_statfs SYS_faccessat SYS_faccessat2 SYS_readlinkat SYS_getcwd SYS_chdir
            SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr),
    ),
    ("metadata of what the guest may write; read-only mounts refuse the rest", calls!(SYS_umask)),
    (
        "memory of its own",
        calls!(SYS_mmap SYS_mprotect SYS_munmap SYS_brk SYS_mremap SYS_msync SYS_mincore SYS_madvise SYS_mlock
            SYS_mlock2 SYS_munlock SYS_mlockall SYS_munlockall SYS_membarrier SYS_pkey_mprotect SYS_pkey_alloc
            SYS_pkey_free SYS_process_madvise SYS_process_mrelease SYS_mseal SYS_get_mempolicy SYS_set_mempolicy
            SYS_mbind SYS_set_mempolicy_home_node SYS_remap_file_pages),
    ),
    (
        "processes and threads; the pid namespace holds only its own",
        calls!(SYS_exit SYS_exit_group SYS_wait4 SYS_waitid SYS_kill SYS_tkill SYS_tgkill SYS_getpid SYS_getppid
            SYS_gettid SYS_getpgid SYS_setpgid SYS_getsid SYS_setsid SYS_set_tid_address SYS_futex SYS_futex_waitv
            SYS_set_robust_list SYS_get_robust_list SYS_rseq SYS_sched_yield SYS_sched_getaffinity
            SYS_sched_setaffinity SYS_sched_getparam SYS_sched_setparam SYS_sched_getscheduler
            SYS_sched_setscheduler SYS_sched_get_priority_max SYS_sched_get_priority_min
            SYS_sched_rr_get_interval SYS_sched_getattr SYS_sched_setattr SYS_getpriority SYS_setpriority
            SYS_ioprio_get SYS_ioprio_set SYS_getcpu SYS_prctl SYS_pidfd_open SYS_pidfd_send_signal
            SYS_pidfd_getfd SYS_kcmp SYS_restart_syscall SYS_getrusage SYS_times SYS_sysinfo SYS_uname),
    ),
    (
        "debuggers within the guest's own tree; processes outside cannot be named",
        calls!(SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev),
    ),
    (
        "its own identity and limits; there is no privilege left to gain",
        calls!(SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid SYS_getresgid SYS_getgroups SYS_setuid
            SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_setfsuid SYS_setfsgid SYS_setgroups
            SYS_capget SYS_capset SYS_getrlimit),
    ),
    (
        "signals and timers",
        calls!(SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigpending SYS_rt_sigtimedwait
            SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_rt_sigsuspend SYS_sigaltstack SYS_nanosleep SYS_getitimer
            SYS_setitimer SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun
            SYS_timer_delete SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_gettimeofday SYS_getrandom),
    ),
    (
        "sockets; the network namespace has nothing but its own loopback",
        calls!(SYS_accept SYS_accept4 SYS_listen SYS_shutdown SYS_getsockname SYS_getpeername
            SYS_setsockopt SYS_getsockopt SYS_recvfrom SYS_recvmsg SYS_recvmmsg SYS_sendmsg SYS_sendmmsg),
    ),
    (
        "System V and POSIX queues of its own ipc namespace",
        calls!(SYS_shmget SYS_shmat SYS_shmdt SYS_shmctl SYS_semget SYS_semop SYS_semtimedop SYS_semctl SYS_msgget
            SYS_msgsnd SYS_msgrcv SYS_msgctl SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive
            SYS_mq_notify SYS_mq_getsetattr),
    ),
    (
        "sandboxes inside: a guest may only tighten",
        calls!(SYS_seccomp SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self),
    ),
];

/// Older variants of allowed calls.
pub(super) const ALLOWED_LEGACY: Calls = calls!(SYS_stat SYS_lstat SYS_poll SYS_access SYS_pipe SYS_select SYS_dup2 SYS_pause
    SYS_alarm SYS_fork SYS_vfork SYS_getdents SYS_readlink SYS_getpgrp SYS_arch_prctl SYS_time SYS_epoll_create SYS_epoll_wait SYS_inotify_init SYS_signalfd SYS_eventfd
    SYS_set_thread_area SYS_get_thread_area);

/// Calls that are refused and reported, with the reason.
pub(super) const REFUSED: &[(&str, Calls)] = &[
    (
        "changes the machine: clock, name, swap, modules, boot, accounting, quotas, terminals",
        calls!(
        SYS_settimeofday SYS_clock_settime SYS_clock_adjtime SYS_adjtimex SYS_sethostname SYS_setdomainname
        SYS_swapon SYS_swapoff SYS_reboot SYS_kexec_load SYS_kexec_file_load SYS_init_module SYS_finit_module
        SYS_delete_module SYS_acct SYS_quotactl SYS_quotactl_fd SYS_vhangup SYS_syslog),
    ),
    (
        "rearranges the file tree that encloses the guest",
        calls!(
        SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_open_tree SYS_move_mount SYS_fsopen SYS_fsconfig
        SYS_fsmount SYS_fspick SYS_mount_setattr),
    ),
    ("enters or makes namespaces", calls!(SYS_setns)),
    ("reaches files by handle, past the mounts", calls!(SYS_open_by_handle_at SYS_name_to_handle_at)),
    (
        "does file and socket work where this filter cannot see it",
        calls!(
        SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register),
    ),
    ("keys are not bound to a namespace", calls!(SYS_add_key SYS_request_key SYS_keyctl)),
    (
        "large kernel interfaces a guest has no need of",
        calls!(
        SYS_bpf SYS_perf_event_open SYS_userfaultfd SYS_fanotify_init SYS_fanotify_mark SYS_memfd_secret
        SYS_lookup_dcookie SYS_nfsservctl SYS_move_pages SYS_migrate_pages),
    ),
];

pub(super) const REFUSED_LEGACY: Calls =
    calls!(SYS_iopl SYS_ioperm SYS_modify_ldt SYS_uselib SYS_ustat SYS_sysfs SYS__sysctl);

/// Calls that change files, start programs or open connections. Mounts, landlock and the empty network decide them; the
/// supervisor is notified so that a refusal can be distinguished from a failure.
pub(super) const WATCHED: Calls = calls!(SYS_mkdirat SYS_unlinkat SYS_renameat SYS_renameat2 SYS_linkat SYS_symlinkat
    SYS_truncate SYS_fchownat SYS_execve SYS_execveat SYS_connect SYS_utimensat SYS_setxattr SYS_lsetxattr
    SYS_fsetxattr SYS_removexattr SYS_lremovexattr SYS_fremovexattr SYS_fchown SYS_bind);
pub(super) const WATCHED_LEGACY: Calls = calls!(SYS_mkdir SYS_rmdir SYS_unlink SYS_rename SYS_link SYS_symlink SYS_chown SYS_lchown SYS_utime
        SYS_utimes SYS_futimesat);

/// Calls that inspect a path without opening it.
pub(super) const LOOKS: Calls = calls!(SYS_newfstatat SYS_statx SYS_faccessat SYS_faccessat2 SYS_readlinkat SYS_chdir);
pub(super) const LOOKS_LEGACY: Calls = calls!(SYS_stat SYS_lstat SYS_access SYS_readlink);

/// Calls that make descriptors, beyond the opens.
pub(super) const MAKES_DESCRIPTORS: Calls = calls!(SYS_dup SYS_pipe2 SYS_accept SYS_accept4 SYS_eventfd2
    SYS_epoll_create1 SYS_timerfd_create SYS_signalfd4 SYS_inotify_init1 SYS_memfd_create SYS_pidfd_open
    SYS_pidfd_getfd SYS_mq_open);
pub(super) const MAKES_DESCRIPTORS_LEGACY: Calls =
    calls!(SYS_pipe SYS_eventfd SYS_epoll_create SYS_signalfd SYS_inotify_init);

/// Calls that reserve space without writing.
pub(super) const RESERVES: Calls = calls!(SYS_fallocate);

/// Calls whose arguments decide; see `by_argument` in the filter.
const BY_ARGUMENT: Calls = calls!(SYS_openat SYS_openat2 SYS_mknodat SYS_fchmod SYS_fchmodat SYS_fchmodat2 SYS_clone SYS_clone3 SYS_unshare SYS_ioctl SYS_socket SYS_socketpair
    SYS_sendto SYS_personality SYS_memfd_create SYS_fcntl SYS_flock SYS_setrlimit SYS_prlimit64);
const BY_ARGUMENT_LEGACY: Calls = calls!(SYS_open SYS_creat SYS_mknod SYS_chmod);

/// Calls by which a guest without namespaces would reach the host's network and queues, and the metadata of files,
/// which landlock does not cover.
pub(super) const SHARED: [&str; 34] = [
    "socket",
    "shmget",
    "shmat",
    "shmctl",
    "semget",
    "semop",
    "semtimedop",
    "semctl",
    "msgget",
    "msgsnd",
    "msgrcv",
    "msgctl",
    "mq_open",
    "mq_unlink",
    "chmod",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "chown",
    "fchown",
    "lchown",
    "fchownat",
    "utime",
    "utimes",
    "futimesat",
    "utimensat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "sched_setscheduler",
    "setpriority",
];

/// Calls that our own pid 1 and the start of the command need; a policy cannot take these away.
pub const INDISPENSABLE: [&str; 18] = [
    "sendmsg",
    "rt_sigtimedwait",
    "wait4",
    "kill",
    "getrusage",
    "exit_group",
    "clone",
    "dup2",
    "dup3",
    "close",
    "close_range",
    "setsid",
    "ioctl",
    "rt_sigaction",
    "rt_sigprocmask",
    "execve",
    "prlimit64",
    "umask",
];

/// Further calls that pid 1 and its shepherds need where the guest accepts jobs.
pub const INDISPENSABLE_TO_STAY: [&str; 11] =
    ["recvmsg", "ppoll", "read", "write", "open", "openat", "prctl", "mmap", "chdir", "pipe2", "getpid"];

/// Returns the number of a call by its name, for `syscalls.deny`; `None` if this architecture has no such call.
pub fn number(name: &str) -> Option<u32> {
    everything().find(|(known, _)| known.strip_prefix("SYS_") == Some(name)).map(|(_, nr)| nr)
}

/// Returns the name of a call by its number, for reports.
pub fn name(nr: u32) -> Cow<'static, str> {
    // Cached, because every notified call looks its name up several times.
    static NAMES: OnceLock<Vec<&'static str>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let mut names = Vec::new();
        for (name, nr) in everything() {
            let at = nr as usize;
            names.resize(names.len().max(at + 1), "");
            names[at] = &name["SYS_".len()..];
        }
        names
    });
    match names.get(nr as usize) {
        Some(name) if !name.is_empty() => Cow::Borrowed(name),
        _ => Cow::Owned(format!("syscall_{nr}")),
    }
}

fn everything() -> impl Iterator<Item = (&'static str, u32)> {
    let grouped = ALLOWED.iter().chain(REFUSED).flat_map(|(_, calls)| calls.iter());
    let flat =
        [ALLOWED_LEGACY, REFUSED_LEGACY, WATCHED, WATCHED_LEGACY, MAKES_DESCRIPTORS, BY_ARGUMENT, BY_ARGUMENT_LEGACY];
    grouped.chain(flat.into_iter().flatten()).copied()
}

/// Returns the reason why a call is refused, for messages and the reference; `None` for calls that are not.
pub fn reason(nr: u32) -> Option<&'static str> {
    REFUSED.iter().find(|(_, calls)| calls.iter().any(|(_, n)| *n == nr)).map(|(reason, _)| *reason)
}

/// Returns the table as rows of group, verdict and names, for the reference manual.
pub fn table() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let names = |calls: Calls| calls.iter().map(|(name, _)| &name["SYS_".len()..]).collect::<Vec<_>>();
    let mut rows: Vec<_> = ALLOWED.iter().map(|(why, calls)| ("allowed", *why, names(calls))).collect();
    rows.push(("allowed", "older variants of the above", names(ALLOWED_LEGACY)));
    rows.extend(REFUSED.iter().map(|(why, calls)| ("refused", *why, names(calls))));
    rows.push(("refused", "older interfaces", names(REFUSED_LEGACY)));
    rows.push(("watched", "decided by mounts, landlock and the network namespace; reported when refused", {
        let mut all = names(WATCHED);
        all.extend(names(WATCHED_LEGACY));
        all
    }));
    rows.push((
        "by argument",
        "namespaces, terminal injection, subvolumes, socket families, write access, leases, locks, limits on core dumps",
        names(BY_ARGUMENT),
    ));
    rows
}
