//! Probes of kernel features, each in a throw-away child, or with arguments that change nothing. For `doctor` and
//! `bench`; no probe is on the path of a run, and no mount is ever made in the caller's namespace.

use crate::bpf::Insn;
use crate::{CallError, doors, errno, netlink};
use std::ffi::{CStr, CString};
use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

/// The operation that the child tries in its namespaces.
#[derive(Clone, Copy, Debug)]
pub enum Trial<'a> {
    /// No operation: only creates the namespaces.
    Namespaces,
    /// Makes its mounts private and mounts a tmpfs.
    Tmpfs,
    /// Mounts a fresh `/proc`, which container hosts that mask parts of theirs refuse.
    Proc,
    /// Clones a mount tree, makes it read-only and moves it: open_tree, mount_setattr, move_mount.
    Tree,
    /// Mounts an overlay; `user` with the options of a user namespace.
    Overlay { user: bool },
    /// Makes an idmapped mount of a tmpfs with the map of this user namespace.
    IdMapped { ids: BorrowedFd<'a> },
    /// Installs a seccomp filter that allows every call, with a listener.
    Listener,
    /// Builds a network namespace that redirects all traffic to our sockets, with the batches of `netlink::routes` and
    /// `netfilter::rules` and the filters of `syn_capture::filter`.
    Doors { routes: &'a [u8], rules: &'a [u8], filters: [&'a [Insn]; 2], ipv6: bool },
}

/// Calls at which a child may fail; the child sends the index.
const CALLS: [&str; 17] = [
    "clone3",
    "setgroups",
    "uid_map",
    "gid_map",
    "private mounts",
    "mount tmpfs",
    "chdir",
    "mkdir",
    "mount proc",
    "open_tree",
    "mount_setattr",
    "move_mount",
    "mount overlay",
    "seccomp",
    "routes",
    "nf_tables with tproxy",
    "transparent sockets",
];
/// Candidates for a mount point; a mount over it is visible to the child alone.
const MOUNT_POINTS: [&CStr; 5] = [c"/tmp", c"/mnt", c"/run", c"/var", c"/usr"];

/// Tries an operation in new namespaces, flags as for `clone3(2)`; the error names the call that failed.
pub fn attempt(namespaces: u64, trial: Trial<'_>) -> Result<(), CallError> {
    let maps = Maps::of_caller();
    let (mut reader, writer) = std::io::pipe().map_err(|e| from_io("pipe", &e))?;
    let mut args = [0u64; 11];
    const FLAGS: usize = 0;
    const EXIT_SIGNAL: usize = 4;
    args[FLAGS] = namespaces;
    args[EXIT_SIGNAL] = libc::SIGCHLD as u64;
    crate::dont_fork::allow();
    // SAFETY: no stack is given, so this is a fork. The child makes raw calls on memory that was finished before: it
    // neither allocates nor takes a lock, whatever other threads of the caller were doing.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, args.as_ptr(), size_of_val(&args)) };
    if pid == 0 {
        let outcome = maps.enter(namespaces).and_then(|()| try_operation(trial));
        report_and_exit(writer.as_raw_fd(), outcome);
    }
    if pid < 0 {
        return Err(CallError::last("clone3"));
    }
    drop(writer);
    let mut answer = [0u8; 2];
    let heard = reader.read_exact(&mut answer);
    // SAFETY: our own child; no status wanted.
    unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), libc::__WALL) };
    match (heard, answer) {
        (Ok(()), [_, 0]) => Ok(()),
        (Ok(()), [call, errno]) => {
            Err(CallError { call: CALLS.get(usize::from(call)).copied().unwrap_or("?"), errno: i32::from(errno) })
        }
        // The child was killed, by a seccomp filter that kills.
        (Err(_), _) => Err(CallError { call: "killed by a filter", errno: libc::EPERM }),
    }
}

/// Sends the result from the child and exits.
fn report_and_exit(to: RawFd, outcome: Result<(), CallError>) -> ! {
    let answer = match outcome {
        Ok(()) => [0, 0],
        Err(e) => [CALLS.iter().position(|c| *c == e.call).unwrap_or(usize::MAX) as u8, e.errno.clamp(1, 255) as u8],
    };
    // SAFETY: two bytes from a local, then the end of this process without running anything of the copy.
    unsafe {
        libc::write(to, answer.as_ptr().cast(), answer.len());
        libc::_exit(0)
    }
}

/// The id maps that any caller may write for itself, formatted before the clone.
struct Maps {
    uid: CString,
    gid: CString,
}

impl Maps {
    fn of_caller() -> Maps {
        let (uid, gid) = crate::host::ids();
        Maps { uid: crate::cstring(format!("{uid} {uid} 1\n")), gid: crate::cstring(format!("{gid} {gid} 1\n")) }
    }

    fn enter(&self, namespaces: u64) -> Result<(), CallError> {
        if namespaces & libc::CLONE_NEWUSER as u64 == 0 {
            return Ok(());
        }
        put("setgroups", c"/proc/self/setgroups", c"deny")?;
        put("uid_map", c"/proc/self/uid_map", &self.uid)?;
        put("gid_map", c"/proc/self/gid_map", &self.gid)
    }
}

fn put(call: &'static str, path: &CStr, text: &CStr) -> Result<(), CallError> {
    let text = text.to_bytes();
    // SAFETY: C strings and a buffer with its true length; the descriptor is closed where it was opened.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        check(call, fd.into())?;
        let wrote = libc::write(fd, text.as_ptr().cast(), text.len());
        let result = check(call, wrote as i64).map(drop);
        libc::close(fd);
        result
    }
}

fn check(call: &'static str, result: libc::c_long) -> Result<RawFd, CallError> {
    if result < 0 { Err(CallError::last(call)) } else { Ok(result as RawFd) }
}

fn try_operation(trial: Trial<'_>) -> Result<(), CallError> {
    match trial {
        Trial::Namespaces => Ok(()),
        Trial::Listener => listener(),
        Trial::Doors { routes, rules, filters, ipv6 } => open_doors(routes, rules, filters, ipv6),
        Trial::Tmpfs => enter_tmpfs(),
        Trial::Proc => {
            enter_tmpfs()?;
            make_dir(c"p")?;
            mount("mount proc", c"proc", c"p", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC, c"")
        }
        Trial::Tree => {
            enter_tmpfs()?;
            make_dir(c"a")?;
            make_dir(c"b")?;
            let tree = copy_tree(c"a")?;
            const READ_ONLY: u64 = 1;
            set_attr(tree, READ_ONLY, 0)?;
            const FROM_EMPTY: u32 = 4;
            // SAFETY: C strings and numbers.
            let moved = unsafe {
                libc::syscall(libc::SYS_move_mount, tree, c"".as_ptr(), libc::AT_FDCWD, c"b".as_ptr(), FROM_EMPTY)
            };
            check("move_mount", moved).map(drop)
        }
        Trial::Overlay { user } => {
            enter_tmpfs()?;
            for dir in [c"lower", c"upper", c"work", c"merged"] {
                make_dir(dir)?;
            }
            let options = if user {
                c"lowerdir=lower,upperdir=upper,workdir=work,userxattr"
            } else {
                c"lowerdir=lower,upperdir=upper,workdir=work"
            };
            mount("mount overlay", c"overlay", c"merged", 0, options)
        }
        Trial::IdMapped { ids } => {
            enter_tmpfs()?;
            make_dir(c"a")?;
            const IDMAP: u64 = 0x0010_0000;
            set_attr(copy_tree(c"a")?, IDMAP, ids.as_raw_fd() as u64)
        }
    }
}

fn open_doors(routes: &[u8], rules: &[u8], filters: [&[Insn]; 2], ipv6: bool) -> Result<(), CallError> {
    let error_at = |call| move |errno| CallError { call, errno };
    netlink::send(netlink::ROUTE, routes).map_err(error_at("routes"))?;
    netlink::send(netlink::NETFILTER, rules).map_err(error_at("nf_tables with tproxy"))?;
    let mut opened = doors::Opened::NONE;
    doors::open(ipv6, &[], filters, &mut opened).map_err(error_at("transparent sockets"))
}

fn enter_tmpfs() -> Result<(), CallError> {
    // SAFETY: C strings or null, all outliving the calls.
    unsafe {
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        let cut = libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null());
        check("private mounts", cut.into())?;
        let stand =
            MOUNT_POINTS.iter().find(|at| libc::access(at.as_ptr(), libc::F_OK) == 0).copied().unwrap_or(c"/tmp");
        mount("mount tmpfs", c"tmpfs", stand, libc::MS_NOSUID | libc::MS_NODEV, c"mode=755")?;
        check("chdir", libc::chdir(stand.as_ptr()).into()).map(drop)
    }
}

/// Mounts a file system; its type is also used as the source.
fn mount(call: &'static str, kind: &CStr, at: &CStr, flags: libc::c_ulong, options: &CStr) -> Result<(), CallError> {
    // SAFETY: C strings that outlive the call.
    let got = unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) };
    check(call, got.into()).map(drop)
}

fn make_dir(at: &CStr) -> Result<(), CallError> {
    // SAFETY: a C string that outlives the call.
    check("mkdir", unsafe { libc::mkdir(at.as_ptr(), 0o755) }.into()).map(drop)
}

/// Clones a mount tree; the descriptor stays open until the child ends.
fn copy_tree(at: &CStr) -> Result<RawFd, CallError> {
    const CLONE: u32 = 1;
    const RECURSIVE: u32 = 0x8000;
    let flags = CLONE | libc::O_CLOEXEC as u32 | RECURSIVE;
    // SAFETY: a C string and numbers.
    check("open_tree", unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, at.as_ptr(), flags) })
}

fn set_attr(tree: RawFd, set: u64, userns: u64) -> Result<(), CallError> {
    let request: [u64; 4] = [set, 0, libc::MS_PRIVATE, userns];
    // SAFETY: an empty C string and a structure that outlives the call, with its true size.
    let got = unsafe {
        let flags = libc::AT_EMPTY_PATH;
        libc::syscall(libc::SYS_mount_setattr, tree, c"".as_ptr(), flags, request.as_ptr(), size_of_val(&request))
    };
    check("mount_setattr", got).map(drop)
}

const SET_MODE_FILTER: u32 = 1;
const NEW_LISTENER: u32 = 1 << 3;
const WAIT_KILLABLE: u32 = 1 << 5;

fn listener() -> Result<(), CallError> {
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    let mut pass = libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: ALLOW };
    let program = libc::sock_fprog { len: 1, filter: &raw mut pass };
    // SAFETY: a program of the stated length that outlives the call.
    unsafe {
        check("seccomp", libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into())?;
        check("seccomp", libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, NEW_LISTENER, &program)).map(drop)
    }
}

/// Checks whether the kernel supports this action of a filter (`SECCOMP_RET_*`).
pub fn seccomp_action(answer: u32) -> Result<(), CallError> {
    const GET_ACTION_AVAIL: u32 = 2;
    // SAFETY: a number that outlives the call.
    let got = unsafe { libc::syscall(libc::SYS_seccomp, GET_ACTION_AVAIL, 0u32, &answer) };
    check("seccomp", got).map(drop)
}

/// Returns the kernel's sizes of a notification, its response and its data.
pub fn notification_sizes() -> Result<[u16; 3], CallError> {
    const GET_NOTIF_SIZES: u32 = 3;
    let mut sizes = [0u16; 3];
    // SAFETY: the kernel fills three numbers.
    let got = unsafe { libc::syscall(libc::SYS_seccomp, GET_NOTIF_SIZES, 0u32, sizes.as_mut_ptr()) };
    check("seccomp", got).map(|_| sizes)
}

/// Returns true if the kernel supports WAIT_KILLABLE_RECV, with which a waiting caller reacts to fatal signals only.
/// Tried with an invalid program pointer, so that no filter is installed: a kernel that knows the flag fails with
/// EFAULT.
pub fn supports_wait_killable() -> bool {
    let flags = NEW_LISTENER | WAIT_KILLABLE;
    // SAFETY: a null pointer, which the kernel refuses.
    unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, 0usize) < 0 && errno() == libc::EFAULT }
}

/// Tries the plain system calls that a run needs, each on a process or file of our own.
pub fn calls() -> Vec<(&'static str, Result<(), CallError>)> {
    vec![
        ("pidfd", pidfd()),
        ("clone3", attempt(0, Trial::Namespaces)),
        ("close_range", close_range()),
        ("openat2", openat2()),
        ("process_vm_readv", read_own_memory()),
    ]
}

fn pidfd() -> Result<(), CallError> {
    // SAFETY: numbers; the descriptor is closed at once, and signal 0 only asks.
    unsafe {
        let fd = check("pidfd_open", libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0))?;
        let got = check("pidfd_send_signal", libc::syscall(libc::SYS_pidfd_send_signal, fd, 0, 0usize, 0u32)).map(drop);
        libc::close(fd);
        got
    }
}

fn close_range() -> Result<(), CallError> {
    // SAFETY: a range in which no descriptor can be.
    check("close_range", unsafe { libc::syscall(libc::SYS_close_range, u32::MAX, u32::MAX, 0u32) }).map(drop)
}

fn openat2() -> Result<(), CallError> {
    const NO_SYMLINKS: u64 = 4;
    let how: [u64; 3] = [(libc::O_PATH | libc::O_CLOEXEC) as u64, 0, NO_SYMLINKS];
    // SAFETY: a C string and a structure that outlive the call, with its true size; the descriptor is closed at once.
    unsafe {
        let got = libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, c"/".as_ptr(), how.as_ptr(), size_of_val(&how));
        check("openat2", got).map(|fd| {
            libc::close(fd);
        })
    }
}

fn read_own_memory() -> Result<(), CallError> {
    let byte = [1u8];
    match crate::process::read_memory(std::process::id() as i32, byte.as_ptr() as u64, 1) {
        Some(read) if read == byte => Ok(()),
        _ => Err(CallError::last("process_vm_readv")),
    }
}

/// Waits for a child and returns its exit status and peak resident size, in kilobytes. Takes the child, so that it is
/// not waited for twice.
pub fn wait_with_peak(child: Child) -> std::io::Result<(ExitStatus, u64)> {
    let pid = child.id();
    let mut status = 0;
    // SAFETY: plain data filled by the kernel; zeroed is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: locals that outlive the call.
        let got = unsafe { libc::wait4(pid as i32, &mut status, 0, &mut usage) };
        if got >= 0 {
            return Ok((ExitStatus::from_raw(status), usage.ru_maxrss.max(0) as u64));
        }
        if errno() != libc::EINTR {
            return Err(std::io::Error::last_os_error());
        }
    }
}

fn from_io(call: &'static str, error: &std::io::Error) -> CallError {
    CallError { call, errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespaces::{NEW_MOUNT, NEW_NET, NEW_PID, NEW_TIME, NEW_USER};

    #[test]
    fn what_works_here_is_found_to_work() {
        let ipv6 = crate::net::has_ipv6();
        let (routes, rules) = (netlink::routes(ipv6), crate::netfilter::rules(ipv6, &[]));
        let filters = [false, true].map(|ipv6| crate::syn_capture::filter(ipv6, &[]));
        let filters = filters.each_ref().map(Vec::as_slice);
        let doors = Trial::Doors { routes: &routes, rules: &rules, filters, ipv6 };
        for (namespaces, trial) in [
            (0, Trial::Namespaces),
            (NEW_USER | NEW_TIME, Trial::Namespaces),
            (NEW_USER | NEW_MOUNT, Trial::Tmpfs),
            (NEW_USER | NEW_MOUNT, Trial::Tree),
            (NEW_USER | NEW_MOUNT | NEW_PID, Trial::Proc),
            (NEW_USER | NEW_MOUNT, Trial::Overlay { user: true }),
            (0, Trial::Listener),
            (NEW_USER | NEW_NET, doors),
        ] {
            assert_eq!(attempt(namespaces, trial), Ok(()), "{trial:?}");
        }
        for (name, result) in calls() {
            assert_eq!(result, Ok(()), "{name}");
        }
    }

    #[test]
    fn what_cannot_work_names_its_call() {
        // A user namespace can mount /proc only with a pid namespace of its own.
        let refused = attempt(NEW_USER | NEW_MOUNT, Trial::Proc).unwrap_err();
        assert_eq!((refused.call, refused.errno), ("mount proc", libc::EPERM));
        // The kernel refuses both flags together.
        let invalid = attempt(NEW_MOUNT | libc::CLONE_FS as u64, Trial::Namespaces).unwrap_err();
        assert_eq!((invalid.call, invalid.errno), ("clone3", libc::EINVAL));
    }

    #[test]
    fn a_child_is_waited_for_with_its_memory() {
        let child = std::process::Command::new("/bin/sh").args(["-c", "exit 3"]).spawn().unwrap();
        let (status, peak) = wait_with_peak(child).unwrap();
        assert_eq!(status.code(), Some(3));
        assert!(peak > 100, "{peak} kB");
    }
}
