//! The program's entry point, before the C library's. The library's own start and the relocations take as long as
//! creating a network namespace. So if the first argument is `run`, a helper is cloned here, on another processor, and
//! creates namespaces meanwhile; `early_setup` takes it over once Rust code runs.
//!
//! Only system calls work here: no relocation has been applied, no thread pointer is set, no function of the C library
//! may be called. Therefore this is assembly, and short. A program that is not linked with it (see the build script of
//! the binary) has no helper here, and starts one later.

use std::sync::atomic::{AtomicI32, Ordering};

/// Words of an affinity mask.
pub(crate) const WORDS: usize = 128;

/// Memory shared between the assembly and Rust; the field offsets are passed to the assembly below.
#[repr(C)]
struct EntryShared {
    /// The helper's pid, or 0 if none was started.
    pid: i32,
    parent: i32,
    /// Result of creating the namespaces: 1 on success, a negative error number on failure.
    made: AtomicI32,
    /// Futex word, set when the helper may call `life`.
    go: AtomicI32,
    /// Address of the function that the helper calls once it may go on (`HelperMain`), and the function's argument.
    life: usize,
    argument: usize,
    /// The thread pointer that the helper sets before it calls `life`.
    thread: usize,
    /// Length of the masks in bytes; negative if they are unknown.
    mask_len: isize,
    mask: [u64; WORDS],
    elsewhere: [u64; WORDS],
}

/// A helper that was started at the entry point; it waits for a function to call.
pub(crate) struct EntryHelper {
    pub(crate) pid: i32,
    pub(crate) mask_len: usize,
    pub(crate) mask: [u64; WORDS],
}

/// The function that the helper calls, with its argument.
pub(crate) type HelperMain = extern "C" fn(*mut libc::c_void) -> i32;

mod first_instructions {
    use super::EntryShared;
    use crate::namespaces::{HELPER_MAKES, NEW_USER};
    use std::mem::offset_of;

    /// Stack size in bytes. The guest's pid 1 continues on its copy of the helper's stack.
    const STACK: usize = 256 * 1024;

    unsafe extern "C" {
        /// Zero until the entry point ran.
        pub(super) static mut cofferdam_begun: EntryShared;
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
        // The kernel put argc at the top of the stack, and argv behind it.
        "cmp qword ptr [rsp], 3",
        "jb 2f",
        "mov rax, [rsp + 16]",
        "cmp dword ptr [rax], 0x6e7572", // "run" and the end of the word
        "je 3f",
        // Every page with a relocation is about to be written. Populating them at once costs less than one fault each;
        // a kernel without MADV_POPULATE_WRITE, or another section layout, leaves them unchanged.
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

        // rdx belongs to the C library.
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
        // A new process starts on its parent's processor, where one of the two would wait for the other: its affinity
        // is set to the other processors. If there is none the kernel refuses, and the affinity stays unchanged.
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

        // The helper. It ends with its parent, which may be gone already, and blocks all signals.
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
        size = const size_of::<EntryShared>(),
        stack = const STACK,
        pid = const offset_of!(EntryShared, pid),
        parent = const offset_of!(EntryShared, parent),
        made = const offset_of!(EntryShared, made),
        go = const offset_of!(EntryShared, go),
        life = const offset_of!(EntryShared, life),
        argument = const offset_of!(EntryShared, argument),
        thread = const offset_of!(EntryShared, thread),
        mask_len = const offset_of!(EntryShared, mask_len),
        mask = const offset_of!(EntryShared, mask),
        elsewhere = const offset_of!(EntryShared, elsewhere),
        mask_size = const super::WORDS * 8,
        most_cpus = const super::WORDS * 64,
        clone_flags = const libc::CLONE_VM | libc::CLONE_FILES | libc::SIGCHLD,
        new_user = const NEW_USER,
        new_rest = const HELPER_MAKES,
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

/// Returns the shared memory. Rust may change it once the entry point is done; the helper reads it, too.
fn shared() -> *mut EntryShared {
    &raw mut first_instructions::cofferdam_begun
}

/// Returns the helper that was started at the entry point, to the first caller only.
pub(crate) fn take_helper() -> Option<EntryHelper> {
    // SAFETY: written at the entry point, and only by this module since.
    unsafe {
        let begun = shared();
        let pid = std::mem::take(&mut (*begun).pid);
        // A fork of the process that ran the entry point has no such helper.
        let ours = pid > 0 && (*begun).parent == std::process::id() as i32;
        let mask_len = usize::try_from((*begun).mask_len).unwrap_or(0);
        ours.then(|| EntryHelper { pid, mask_len, mask: (*begun).mask })
    }
}

/// Makes the helper call `life`; `argument` must outlive the helper.
pub(crate) fn resume(_: &EntryHelper, life: HelperMain, argument: *mut libc::c_void) {
    let thread: usize;
    // SAFETY: the thread pointer's own first word is its address. The helper reads these fields after `go` is set,
    // which is written last.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly, preserves_flags));
        let begun = shared();
        (*begun).life = life as usize;
        (*begun).argument = argument as usize;
        (*begun).thread = thread;
        (*begun).go.store(1, Ordering::Release);
        crate::setup_barrier::wake(&(*begun).go);
    }
}

/// Returns, in the helper, the result of creating its namespaces.
pub(crate) fn namespaces_result() -> Result<(), i32> {
    // SAFETY: no longer written.
    match unsafe { (*shared()).made.load(Ordering::Acquire) } {
        1 => Ok(()),
        errno => Err(-errno),
    }
}
