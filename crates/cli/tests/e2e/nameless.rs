//! Unlinked files and `O_TMPFILE` count against limits on space and files, in whichever process and by whichever
//! handle.

use crate::support::{As, BOTH, Place, Run};

/// Seconds to hold the file: long above the limit, so that the supervisor samples it at least once, and short below it.
const LINGER: &str = "40";
const MOMENT: &str = "0.3";

/// Python helpers to hold a file of `N` KiB without a name for `S` seconds: `fill` writes it, `hold` waits.
const PRELUDE: &str = "
import ctypes, os, socket, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
def fill(f): [os.write(f, b'z' * 1024) for _ in range(N)]; return f
def hold(): time.sleep(S)
def tmpfile(): return os.open('.', os.O_TMPFILE | os.O_RDWR)
def unlinked(): f = os.open('x', os.O_CREAT | os.O_RDWR); os.unlink('x'); return f
def mapped(f, kib): assert libc.mmap(None, ctypes.c_size_t(kib << 10), 1, 1, f, 0) != 2**64 - 1; os.close(f)
";

struct Way {
    name: &'static str,
    script: &'static str,
}

const WAYS: [Way; 10] = [
    Way { name: "unlinked while it is open", script: "fill(unlinked()); hold()" },
    Way {
        name: "unlinked after it was written",
        script: "f = fill(os.open('x', os.O_CREAT | os.O_RDWR)); os.unlink('x'); hold()",
    },
    Way {
        name: "replaced by a rename",
        script: "f = fill(os.open('x', os.O_CREAT | os.O_RDWR)); open('y', 'w'); os.rename('y', 'x'); hold()",
    },
    Way { name: "never had a name", script: "fill(tmpfile()); hold()" },
    Way { name: "mapped, and closed", script: "mapped(fill(tmpfile()), N); hold()" },
    Way {
        name: "held by a child alone",
        script: "f = fill(tmpfile())\nif os.fork() == 0: hold(); os._exit(0)\nos.close(f); os.wait()",
    },
    Way { name: "several files", script: "k = [tmpfile() for _ in range(4)]; N //= 4; [fill(f) for f in k]; hold()" },
    // A process that is not dumpable shows its descriptors to root alone.
    Way { name: "in a process that hides them", script: "libc.prctl(4, 0, 0, 0, 0); fill(tmpfile()); hold()" },
    Way {
        name: "in a thread's own table",
        script: "def go():\n libc.unshare(0x400); fill(tmpfile()); hold()\nthreading.Thread(target=go).start()",
    },
    Way {
        name: "below a path that is too long to be told",
        script: "for _ in range(30): os.mkdir('d' * 200); os.chdir('d' * 200)\nfill(unlinked()); hold()",
    },
];

fn hold(place: &Place, flags: &[&str], kib: u32, seconds: &str, script: &str) -> Run {
    place.python(&[&["--rm"], flags].concat(), &format!("N = {kib}; S = {seconds}\n{PRELUDE}{script}"))
}

#[track_caller]
fn assert_over(run: &Run, kind: &str, what: &str) {
    let o = &run.outcome;
    assert_eq!((&o["verdict"], &o["limit_kind"]), (&"limit_exceeded".into(), &kind.into()), "{what}: {}", run.story());
    assert!(o["used"].as_f64() > o["limit"].as_f64(), "{what}: {}", run.story());
}

#[test]
fn files_without_a_name_take_space() {
    for who in BOTH {
        let place = Place::new(who);
        for Way { name, script } in &WAYS {
            let what = format!("{who:?}: {name}");
            assert_over(&hold(&place, &["--disk", "4m"], 4400, LINGER, script), "disk_mb", &what);
            // Control: a file just below the limit.
            let under = hold(&place, &["--disk", "4m"], 3900, MOMENT, script);
            assert_eq!(under.text("/verdict"), "ok", "{what}: {}", under.story());
        }
    }
}

/// For a closed file with a partial mapping, `/proc` shows an ordinary user the mapped range, and root the file's size.
#[test]
fn a_page_of_a_mapping_keeps_the_whole_file() {
    let place = Place::new(As::Root);
    let gone = "def go():\n mapped(fill(tmpfile()), 4); hold(); os._exit(0)\nthreading.Thread(target=go).start()\nlibc.syscall(60, 0)";
    for (name, script) in [("a page", "mapped(fill(tmpfile()), 4); hold()"), ("a page, the first thread gone", gone)] {
        assert_over(&hold(&place, &["--disk", "4m"], 4400, LINGER, script), "disk_mb", name);
        let under = hold(&place, &["--disk", "4m"], 3900, MOMENT, script);
        assert_eq!(under.text("/verdict"), "ok", "{name}: {}", under.story());
    }
}

#[test]
fn each_counts_once() {
    for who in BOTH {
        let place = Place::new(who);
        let copies = "f = fill(tmpfile()); k = [os.dup(f) for _ in range(20)]\n\
            for _ in range(3):\n if os.fork() == 0: hold(); os._exit(0)\nmapped(os.dup(f), N); hold()";
        let run = hold(&place, &["--disk", "4m"], 3000, MOMENT, copies);
        assert_eq!(run.text("/verdict"), "ok", "{who:?}: {}", run.story());
        // A file that gains or loses its name between two looks is counted once.
        let named = "for n in range(40):\n f = fill(tmpfile()); assert libc.linkat(-100, b'/proc/self/fd/%d' % f, -100, b'n', 0x400) == 0\n \
            os.unlink('n'); os.close(f)";
        let run = hold(&place, &["--disk", "4m"], 3000, MOMENT, named);
        assert_eq!(run.text("/verdict"), "ok", "{who:?}: {}", run.story());
    }
}

#[test]
fn they_are_files_as_well() {
    for who in BOTH {
        let place = Place::new(who);
        let many = "k = [tmpfile() for _ in range(N)]; hold()";
        assert_over(&hold(&place, &["--limit", "files=40"], 50, LINGER, many), "files", &format!("{who:?}"));
        let run = hold(&place, &["--limit", "files=40"], 40, MOMENT, many);
        assert_eq!(run.text("/verdict"), "ok", "{who:?}, exactly as many: {}", run.story());
    }
}

/// Files in the private tmpfs are counted by the kernel.
#[test]
fn the_private_space_counts_them_too() {
    for who in BOTH {
        let place = Place::new(who);
        for dir in ["/tmp", "/dev/shm"] {
            let script = format!("os.chdir('{dir}')\ntry: fill(unlinked())\nexcept OSError: pass\nhold()");
            assert_over(&hold(&place, &["--disk", "4m"], 4400, LINGER, &script), "disk_mb", dir);
            let run = hold(&place, &["--disk", "4m"], 3900, MOMENT, &script);
            assert_eq!(run.text("/verdict"), "ok", "{who:?} {dir}: {}", run.story());
        }
    }
}

/// The peak is reported although the file is gone at the end.
#[test]
fn the_most_that_was_taken_is_told() {
    for who in BOTH {
        let place = Place::new(who);
        let run = hold(&place, &["--disk", "40m"], 3000, "2", "fill(tmpfile()); hold()");
        assert_eq!(run.text("/verdict"), "ok", "{}", run.story());
        let bytes = run.outcome["usage"]["disk_bytes"].as_u64().unwrap();
        assert!((3_000 << 10..3_500 << 10).contains(&bytes), "{who:?}: {bytes}: {}", run.story());
    }
}
