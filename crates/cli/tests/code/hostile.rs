//! Code that tries to break its interpreter, the channel or its reader: typed answers, and nothing else is affected.

use crate::fixture::CodeFixture;
use crate::support::{As, either};

/// The sandbox works on, in this context and in another.
#[track_caller]
fn works_on(f: &CodeFixture) {
    assert_eq!(f.python("20 + 22").ok().value(), "42");
    assert_eq!(f.call(&["--context", "bystander"], "kept").ok().value(), "'kept'", "another context is not affected");
}

fn with_bystander(who: As) -> CodeFixture {
    let f = CodeFixture::new(who);
    f.call(&["--context", "bystander"], "kept = 'kept'").ok();
    f
}

// promise 29
#[test]
fn code_that_is_no_text_or_too_long_is_refused() {
    let f = with_bystander(As::User);
    let fault = f.call_from_input(&[], b"print('\xff')").fault("invalid_request");
    assert!(fault.message().contains("UTF-8") && fault.message().contains("7"), "{fault:#?}");
    let long = vec![b'#'; (8 << 20) + 1];
    let refused = f.call_from_input(&[], &long).fault("invalid_request");
    assert!(refused.message().contains("8388608"), "{refused:#?}");
    f.call_from_input(&[], &long[1..]).ok();
    for (language, error) in [("python", "SyntaxError"), ("javascript", "RangeError")] {
        let nested = "[".repeat(4 << 20);
        let deep = f.call_from_input(&["-l", language], nested.as_bytes());
        let kept = deep.document["outcome"]["context_lost"] == false;
        let name = deep.document["error"]["name"].as_str().unwrap_or_default().to_owned();
        assert!(kept && (name == error || name.ends_with("Error")), "{language}: {:.2000}", format!("{deep:#?}"));
    }
    let zero = f.call(&["-l", "python"], "x = 1");
    zero.ok();
    f.call_from_input(&["-l", "bash"], b"echo \0").fault("invalid_request");
    works_on(&f);
}

// promise 29
#[test]
fn an_interpreter_that_ends_itself_is_told_as_lost() {
    for who in either() {
        let f = with_bystander(who);
        for (code, how) in [
            ("import os; os._exit(3)", "status 3"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
            ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ] {
            f.python("x = 1").ok();
            let lost = f.python(code).ended("lost", 125, true);
            assert!(lost.message().contains(how), "{code}: {lost:#?}");
            f.python("x").failed("NameError");
        }
        f.call(&["-l", "javascript"], "process.reallyExit(4)").ended("lost", 125, true);
        f.call(&["-l", "bash"], "kill -KILL $$").ended("lost", 125, true);
        works_on(&f);
    }
}

// promise 29
#[test]
fn exits_of_a_program_are_errors_of_the_call() {
    let f = CodeFixture::new(As::User);
    f.python("x = 1").ok();
    f.python("import sys; sys.exit(3)").failed("SystemExit");
    assert_eq!(f.python("x").ok().value(), "1");
    f.call(&["-l", "javascript"], "var y = 2").ok();
    let exit = f.call(&["-l", "javascript"], "process.exit(3)");
    assert_eq!((exit.status, &exit.document["outcome"]["context_lost"]), (1, &false.into()), "{exit:#?}");
    assert_eq!(f.call(&["-l", "javascript"], "y").ok().value(), "2");
}

// promise 29
#[test]
fn a_fork_of_the_interpreter_is_no_second_one() {
    let f = with_bystander(As::User);
    let code = "import os\npid = os.fork()\nif pid == 0:\n    print('child', flush=True)\n    os._exit(0)\nos.waitpid(pid, 0)[1]";
    let forked = f.python(code).ok();
    assert_eq!((forked.value(), forked.stdout()), ("0", "child\n"));
    // A child that goes on as if it were the interpreter answers nothing.
    let both = f.python("import os\npid = os.fork()\n'child' if pid == 0 else 'parent'");
    assert_eq!(both.ok().value(), "'parent'");
    works_on(&f);
    // Nor does one of a thread pool, or one that outlives the call.
    f.python("import multiprocessing as m\nm.get_context('fork').Pool(2).map(abs, [-1, -2])").ok();
    works_on(&f);
}

// promise 29
#[test]
fn descriptors_that_code_closes_are_its_own_loss() {
    let f = with_bystander(As::User);
    let closed = f.python("import os; os.closerange(0, 256)");
    let verdict = &closed.document["outcome"]["verdict"];
    assert!(["ok", "lost"].iter().any(|word| verdict == word), "{closed:#?}");
    works_on(&f);
    let every = f.python(
        "import os\nfor name in os.listdir('/proc/self/fd'):\n    try: os.close(int(name))\n    except OSError: pass",
    );
    assert_eq!(every.document["outcome"]["context_lost"], true, "without its channel it cannot go on: {every:#?}");
    works_on(&f);
    let bash = f.call(&["-l", "bash"], "for fd in {0..255}; do eval \"exec $fd>&-\"; done 2>/dev/null");
    assert!(bash.document["outcome"]["verdict"].is_string(), "{bash:#?}");
    assert_eq!(f.call(&["-l", "bash"], "echo on").ok().stdout(), "on\n");
}

/// Finds the rings in the interpreter's own memory, and writes what it likes.
const FIND: &str = r#"
import os, mmap, struct, zlib, socket
def rings():
    for name in os.listdir('/proc/self/fd'):
        try:
            if 'memfd:' not in os.readlink('/proc/self/fd/' + name): continue
            m = mmap.mmap(int(name), 0)
        except (OSError, ValueError): continue
        if m[:4] == b'CFR1': return m
def bell():
    for name in os.listdir('/proc/self/fd'):
        try:
            s = socket.socket(fileno=os.dup(int(name)))
            if s.family == socket.AF_UNIX: return s
        except OSError: pass
m = rings(); cap = struct.unpack_from('<I', m, 8)[0]; out = 64 + cap
def put(frame):
    head = struct.unpack_from('<Q', m, out + 16)[0]
    for i, b in enumerate(frame): m[out + 64 + (head + i) % cap] = b
    struct.pack_into('<Q', m, out + 16, head + len(frame)); bell().send(b'1')
def frame(kind, payload, request=0, flags=0, crc=None, length=None):
    h = struct.pack('<IBBHI', len(payload) if length is None else length, kind, flags, 0, request)
    return h + struct.pack('<I', zlib.crc32(h + payload) if crc is None else crc) + payload
"#;

// promise 29
#[test]
fn forged_frames_and_headers_cost_their_interpreter_alone() {
    let f = with_bystander(As::User);
    for lie in [
        "put(frame(0x11, b'x', crc=1))",
        "put(frame(0x11, b'', length=1 << 31))",
        "put(frame(0x99, b''))",
        "put(frame(0x01, b'{}'))",
        "put(frame(0x11, b'x', flags=1))",
        "put(frame(0x16, b'no json'))",
        "put(frame(0x16, b'[' * 200000))",
        "put(frame(0x14, b'{\"data\": 3}'))",
        "struct.pack_into('<Q', m, out + 16, 1 << 63); bell().send(b'1')",
        "struct.pack_into('<Q', m, out + 16, struct.unpack_from('<Q', m, out + 24)[0] + cap + 1); bell().send(b'1')",
        "struct.pack_into('<Q', m, out + 16, 0); struct.pack_into('<Q', m, out + 24, 5); bell().send(b'1')",
        "struct.pack_into('<Q', m, 64 - 40, 1 << 62); bell().send(b'1')",
        "m[out:out + 16] = bytes(16); m[:16] = bytes(16); bell().send(b'1')",
    ] {
        let lied = f.python(&format!("{FIND}\n{lie}\nimport time; time.sleep(3)"));
        let outcome = &lied.document["outcome"];
        let is_ended = outcome["verdict"] == "lost" && outcome["context_lost"] == true;
        // A header that no reader needs any more may lie without an effect on this call.
        let is_ignored = lie.starts_with("m[") || lie.contains("64 - 40");
        assert!(is_ended || (is_ignored && outcome["verdict"].is_string()), "{lie}: {lied:#?}");
        if !is_ended {
            // The call did not need what lies; the next one does, and says that its context begins anew.
            let next = f.python("1");
            assert!(next.status == 0 || next.message().contains("protocol"), "{lie}: {next:#?}");
        } else {
            assert!(lied.message().contains("protocol"), "{lie}: {lied:#?}");
        }
        works_on(&f);
    }
    // The control: a true frame is an ordinary event, whatever wrote it.
    let forged = f.python(&format!("{FIND}\nput(frame(0x11, b'forged\\n'))\nNone")).ok();
    assert!(forged.stdout().contains("forged\n"), "{forged:#?}");
}

// promise 29
#[test]
fn a_shell_whose_output_is_redirected_still_ends_its_calls() {
    let f = with_bystander(As::User);
    let bash = |code: &str| f.call(&["-l", "bash", "-t", "60s"], code);
    assert_eq!(bash("exec 2>&1; echo out; echo err >&2").ok().stdout(), "out\nerr\n");
    bash("exec 3>&1 >/dev/null; echo hidden").ok();
    assert_eq!(bash("exec >&3; echo back").ok().stdout(), "back\n");
    bash("set -x; readonly __cofferdam=1; builtin() { false; }; unset -f builtin; echo traced").ok();
    // The end of the shell is seen whatever it printed before.
    let forged = bash("printf '\\001cofferdam:00000005:0\\001'; kill -KILL $$");
    assert_eq!(forged.document["outcome"]["context_lost"], true, "{forged:#?}");
    assert_eq!(bash("echo again").ok().stdout(), "again\n");
    works_on(&f);
}

// promise 29
#[test]
fn an_interpreter_that_closes_its_channel_does_not_go_on_unseen() {
    let f = with_bystander(As::User);
    let closed = f.python("import os, time\nos.closerange(3, 1 << 16)\nwhile True: time.sleep(0.1)");
    assert!(closed.message().contains("closed its channel"), "{closed:#?}");
    closed.ended("lost", 125, true);
    works_on(&f);
}

// promise 29
#[test]
fn a_flood_of_wake_ups_and_of_output_is_bounded() {
    let f = with_bystander(As::User);
    let rung = f.call(&["-t", "60s"], &format!("{FIND}\nb = bell(); b.setblocking(False)\nfor _ in range(200000):\n    try: b.send(b'1' * 100)\n    except BlockingIOError: pass\n'rung'")).ok();
    assert_eq!(rung.value(), "'rung'");
    // Far more than the rings hold, and than may be kept: what comes is passed on or dropped at its limit.
    let flood = f.call(
        &["--max-output", "32m"],
        "import os\nblock = b'x' * (1 << 20)\nfor _ in range(1024): os.write(1, block)",
    );
    flood.ended("limit_exceeded", 137, false);
    let value = f.call(&["--max-output", "1m"], "'x' * (100 << 20)");
    assert!(value.document["outcome"]["verdict"] != "ok", "{:.300}", format!("{value:?}"));
    works_on(&f);
}

// promise 29
#[test]
fn an_endless_value_ends_its_call() {
    let f = with_bystander(As::User);
    let endless = "class E:\n    def __repr__(self):\n        while True: pass\nE()";
    f.call(&["-t", "300ms"], endless).ended("limit_exceeded", 124, false);
    let huge = f.call(&["-t", "60s"], "class H:\n    def _repr_html_(self): return 'x' * (65 << 20)\nH()");
    let outcome = &huge.document["outcome"];
    assert!(
        outcome["verdict"] != "ok" || huge.document["results"][0]["data"]["text/html"].is_null(),
        "{:.300}",
        format!("{outcome:?}")
    );
    let nameless = f.python("class X(Exception):\n    def __str__(self): raise X()\nraise X()");
    assert_eq!(nameless.status, 1, "{nameless:#?}");
    works_on(&f);
}
