//! The program's first instructions, before those of the C library. That library's own start and the moving of addresses take as
//! long as a new network namespace does. So where the first word is `run`, a helper is begun here, on another processor, and makes
//! namespaces meanwhile; `ahead` takes it over once there is a program to speak of.
//!
//! Nothing works here yet but the kernel: no address in our data has been moved, no thread pointer is set, no function of the
//! C library may be called. Therefore these are instructions, and few. A program that is not linked with them (see the build script
//! of the binary) has no helper here, and one is started later.

use std::sync::atomic::{AtomicI32, Ordering};

/// Words of a mask of processors.
pub(crate) const WORDS: usize = 128;

/// What the instructions and we have in common; its places are spelled out below.
#[repr(C)]
struct Begun {
    /// The helper's process, or 0 when none was begun.
    pid: i32,
    parent: i32,
    /// What came of its namespaces: 1 when they are made, an error number below zero.
    made: AtomicI32,
    /// Set when it may go on with `life`.
    go: AtomicI32,
    life: usize,
    argument: usize,
    /// The thread pointer that it goes on with.
    thread: usize,
    /// How many bytes of the masks count; none when below.
    mask_len: isize,
    mask: [u64; WORDS],
    elsewhere: [u64; WORDS],
}

/// A helper that was begun by the instructions; it waits to be told how to go on.
pub(crate) struct Early {
    pub(crate) pid: i32,
    pub(crate) mask_len: usize,
    pub(crate) mask: [u64; WORDS],
}

/// What the helper is told: a life, with its argument.
pub(crate) type Life = extern "C" fn(*mut libc::c_void) -> i32;

mod first_instructions {
    use super::Begun;
    use crate::ahead::MADE;
    use crate::spawn::NEW_USER;
    use std::mem::offset_of;

    /// The first process of a guest goes on with its copy of the helper's stack.
    const STACK: usize = 256 * 1024;

    unsafe extern "C" {
        /// Zero until the instructions ran.
        pub(super) static mut cofferdam_begun: Begun;
    }

    std::arch::global_asm!(
        ".pushsection .bss.cofferdam_begun, \"aw\", @nobits",
        ".balign 64",
        ".globl cofferdam_begun",
        ".hidden cofferdam_begun",
        "cofferdam_begun:",
        ".skip {size}",
        ".balign 64",
        "cofferdam_begun_stack:",
        ".skip {stack}",
        ".popsection",

        ".pushsection .text.cofferdam_entry, \"ax\", @progbits",
        ".globl cofferdam_entry",
        ".hidden cofferdam_entry",
        ".type cofferdam_entry, @function",
        "cofferdam_entry:",
        // The kernel put the number of arguments at the top of the stack, and their addresses behind it.
        "cmp qword ptr [rsp], 3",
        "jb 2f",
        "mov rax, [rsp + 16]",
        "cmp dword ptr [rax], 0x6e7572", // "run" and the end of the word
        "je 3f",
        // Every page with an address in it is about to be written. Asked for at once they cost less than met one by one;
        // a kernel that does not know how, or a linker that laid them out otherwise, leaves all as it was.
        "2: mov r8, rdx",
        "lea rdi, [rip + __init_array_start]",
        "and rdi, -4096",
        "lea rsi, [rip + _edata]",
        "sub rsi, rdi",
        "mov edx, {populate}",
        "mov eax, {madvise}",
        "syscall",
        "mov rdx, r8",
        "jmp _start",

        // What the C library finds in this register is for it.
        "3: push rdx",
        "lea rbx, [rip + cofferdam_begun]",
        "mov eax, {getpid}",
        "syscall",
        "mov [rbx + {parent}], eax",
        "mov eax, {getaffinity}",
        "xor edi, edi",
        "mov esi, {mask_size}",
        "lea rdx, [rbx + {mask}]",
        "syscall",
        "mov [rbx + {mask_len}], rax",
        "mov eax, {getaffinity}",
        "xor edi, edi",
        "mov esi, {mask_size}",
        "lea rdx, [rbx + {elsewhere}]",
        "syscall",
        "mov eax, {clone}",
        "mov edi, {clone_flags}",
        "lea rsi, [rip + cofferdam_begun_stack + {stack}]",
        "xor edx, edx",
        "xor r10d, r10d",
        "xor r8d, r8d",
        "syscall",
        "test eax, eax",
        "jz 5f",
        "js 4f",
        "mov [rbx + {pid}], eax",
        // A new process starts where its parent runs, and one of the two would wait for the other: it is told to be elsewhere. Where
        // there is no elsewhere the kernel refuses, and all is as it was.
        "push rax",
        "mov eax, {getcpu}",
        "mov rdi, rsp",
        "xor esi, esi",
        "xor edx, edx",
        "syscall",
        "pop rax",
        "mov eax, eax",
        "cmp eax, {most_cpus}",
        "jae 4f",
        "btr qword ptr [rbx + {elsewhere}], rax",
        "mov eax, {setaffinity}",
        "mov edi, [rbx + {pid}]",
        "mov rsi, [rbx + {mask_len}]",
        "lea rdx, [rbx + {elsewhere}]",
        "syscall",
        "4: pop rdx",
        "xor ebx, ebx",
        "jmp 2b",

        // The helper. It ends with its parent, which may be gone already, and hears no signal.
        "5: xor ebp, ebp",
        "mov eax, {prctl}",
        "mov edi, {pdeathsig}",
        "mov esi, {sigkill}",
        "syscall",
        "mov eax, {getppid}",
        "syscall",
        "cmp eax, [rbx + {parent}]",
        "jne 9f",
        "push -1",
        "mov eax, {sigprocmask}",
        "mov edi, {setmask}",
        "mov rsi, rsp",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        "pop rcx",
        "mov eax, {unshare}",
        "mov edi, {new_user}",
        "syscall",
        "test eax, eax",
        "js 6f",
        "mov eax, {unshare}",
        "mov edi, {new_rest}",
        "syscall",
        "test eax, eax",
        "js 6f",
        "mov eax, 1",
        "6: mov [rbx + {made}], eax",
        "7: cmp dword ptr [rbx + {go}], 0",
        "jne 8f",
        "mov eax, {futex}",
        "lea rdi, [rbx + {go}]",
        "xor esi, esi",
        "xor edx, edx",
        "xor r10d, r10d",
        "syscall",
        "jmp 7b",
        "8: mov eax, {arch_prctl}",
        "mov edi, {set_fs}",
        "mov rsi, [rbx + {thread}]",
        "syscall",
        "mov rdi, [rbx + {argument}]",
        "call [rbx + {life}]",
        "9: mov eax, {exit_group}",
        "mov edi, 1",
        "syscall",
        "jmp 9b",
        ".size cofferdam_entry, . - cofferdam_entry",
        ".popsection",
        size = const size_of::<Begun>(),
        stack = const STACK,
        pid = const offset_of!(Begun, pid),
        parent = const offset_of!(Begun, parent),
        made = const offset_of!(Begun, made),
        go = const offset_of!(Begun, go),
        life = const offset_of!(Begun, life),
        argument = const offset_of!(Begun, argument),
        thread = const offset_of!(Begun, thread),
        mask_len = const offset_of!(Begun, mask_len),
        mask = const offset_of!(Begun, mask),
        elsewhere = const offset_of!(Begun, elsewhere),
        mask_size = const super::WORDS * 8,
        most_cpus = const super::WORDS * 64,
        clone_flags = const libc::CLONE_VM | libc::CLONE_FILES | libc::SIGCHLD,
        new_user = const NEW_USER,
        new_rest = const MADE,
        pdeathsig = const libc::PR_SET_PDEATHSIG,
        sigkill = const libc::SIGKILL,
        setmask = const libc::SIG_SETMASK,
        set_fs = const super::SET_FS,
        getpid = const libc::SYS_getpid,
        getppid = const libc::SYS_getppid,
        getcpu = const libc::SYS_getcpu,
        getaffinity = const libc::SYS_sched_getaffinity,
        setaffinity = const libc::SYS_sched_setaffinity,
        clone = const libc::SYS_clone,
        prctl = const libc::SYS_prctl,
        sigprocmask = const libc::SYS_rt_sigprocmask,
        unshare = const libc::SYS_unshare,
        futex = const libc::SYS_futex,
        arch_prctl = const libc::SYS_arch_prctl,
        exit_group = const libc::SYS_exit_group,
        madvise = const libc::SYS_madvise,
        populate = const libc::MADV_POPULATE_WRITE,
    );
}

/// `ARCH_SET_FS`.
const SET_FS: u32 = 0x1002;

/// What the instructions wrote. Ours to change once they are over; the helper that they began looks at it, too.
fn shared() -> *mut Begun {
    &raw mut first_instructions::cofferdam_begun
}

/// The helper that was begun with the program, for the first who asks.
pub(crate) fn begun() -> Option<Early> {
    // SAFETY: written before there was a program, and by nobody else but us since.
    unsafe {
        let begun = shared();
        let pid = std::mem::take(&mut (*begun).pid);
        // A copy of the process that they ran in has no such helper.
        let ours = pid > 0 && (*begun).parent == std::process::id() as i32;
        let mask_len = usize::try_from((*begun).mask_len).unwrap_or(0);
        ours.then(|| Early { pid, mask_len, mask: (*begun).mask })
    }
}

/// Has it go on with `life`; what it is to work with must outlive it.
pub(crate) fn go_on(_: &Early, life: Life, argument: *mut libc::c_void) {
    let thread: usize;
    // SAFETY: the thread pointer's own first word is its address. The helper reads what is written here once it was told to
    // go on, which is the last thing that is written.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly, preserves_flags));
        let begun = shared();
        (*begun).life = life as usize;
        (*begun).argument = argument as usize;
        (*begun).thread = thread;
        (*begun).go.store(1, Ordering::Release);
        crate::meeting::wake(&(*begun).go);
    }
}

/// For the helper itself, once it goes on: what came of its namespaces.
pub(crate) fn made() -> Result<(), i32> {
    // SAFETY: nobody writes it any more.
    match unsafe { (*shared()).made.load(Ordering::Acquire) } {
        1 => Ok(()),
        errno => Err(-errno),
    }
}
