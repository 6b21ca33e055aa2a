//! Locks on read-only files: a host program gets its lock, whatever a guest holds.

use crate::support::{As, BOTH, Place, binary, to_the_end};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Takes every kind of lock on each file, prints the refused ones, and holds the rest until its input ends.
const HOLD: &str = r#"
import errno, fcntl, os, struct, sys
span = struct.pack("hhqqixxxx", fcntl.F_RDLCK, 0, 0, 0, 0)
ways = {"shared": lambda fd: fcntl.flock(fd, fcntl.LOCK_SH), "exclusive": lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
        "posix": lambda fd: fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB), "wait": lambda fd: fcntl.lockf(fd, fcntl.LOCK_SH),
        "ofd": lambda fd: fcntl.fcntl(fd, 37, span), "ofd wait": lambda fd: fcntl.fcntl(fd, 38, span),
        "lease": lambda fd: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)}
held = []
for path in sys.argv[1:]:
    for name, way in ways.items():
        held.append(os.open(path, os.O_RDONLY))
        try: way(held[-1])
        except OSError as e: print(os.path.basename(path), name, errno.errorcode[e.errno])
print("held", flush=True)
sys.stdin.read()
"#;

/// Tries every lock on each file without waiting, and prints the refused ones.
const WANT: &str = r#"
import errno, fcntl, os, sys
ways = {"flock": lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB), "posix": lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)}
for path in sys.argv[1:]:
    for name, way in ways.items():
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        try: way(fd)
        except OSError as e: print(os.path.basename(path), name, errno.errorcode[e.errno])
        os.close(fd)
"#;

/// Starts a guest that holds locks, and returns it with its output.
fn hold(mut command: Command, files: &[&Path]) -> (Child, String) {
    command.args(["--", "/usr/bin/python3", "-c", HOLD]).args(files);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    while !output.ends_with("held\n") {
        assert_ne!(lines.read_line(&mut output).unwrap(), 0, "it must hold: {output}");
    }
    (child, output)
}

fn release(mut child: Child) {
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// Locks that a host program cannot get; as root, which may write to all files.
fn refused_outside(files: &[&Path]) -> String {
    let output = to_the_end(Command::new("/usr/bin/python3").args(["-c", WANT]).args(files), b"");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn locks_on_what_can_only_be_read_do_not_reach_the_host() {
    for who in BOTH {
        let place = Place::new(who);
        let shown = place.file("home/shown/file", "data");
        let project = place.file("home/project/own", "data");
        let open = place.file("home/open/direct", "data");
        // A root caller's guest has an /etc/passwd of its own.
        let (passwd, profile) = (Path::new("/etc/passwd"), Path::new("/etc/profile"));
        let (above, beside) = (shown.parent().unwrap(), open.parent().unwrap());
        let create = ["create", "--name", "live", "--read", text(above)];
        for words in [&create[..], &["start", "--live", "live"]] {
            let output = to_the_end(&mut place.cofferdam(words), b"");
            assert!(output.status.success(), "{words:?}: {output:?}");
        }
        let grants = ["--read", text(above), "--write", text(beside)];
        let run = |words: &[&str]| place.cofferdam(words.iter().chain(&grants));
        let refused = |name: &str| format!("{name} exclusive EROFS\n{name} lease EPERM\n");
        let read_only = ["file", "passwd", "profile", "null"].map(refused).concat() + "held\n";
        let null = Path::new("/dev/null");
        for (how, command, files, expected) in [
            ("run", run(&["run"]), vec![&*shown, passwd, profile, null], read_only.clone()),
            ("run", run(&["run", "--read-only"]), vec![&project], format!("{}held\n", refused("own"))),
            ("exec", place.cofferdam(["exec", "live"]), vec![&shown, passwd, profile, null], read_only),
        ] {
            let (guest, output) = hold(command, &files);
            assert_eq!(output, expected, "{who:?} {how}");
            assert_eq!(refused_outside(&files), "", "{who:?} {how}");
            release(guest);
        }
        // Controls: locks on a writable grant are shared with the host, and locks in a workspace stay in it.
        let (guest, output) = hold(run(&["run"]), &[&open, &project]);
        assert_eq!(
            output, "direct exclusive EAGAIN\ndirect lease EPERM\nown exclusive EAGAIN\nown lease EPERM\nheld\n",
            "{who:?}"
        );
        assert_eq!(refused_outside(&[&open, &project]), "direct flock EAGAIN\ndirect posix EAGAIN\n", "{who:?}");
        release(guest);
        assert_eq!(refused_outside(&[&open]), "", "{who:?}: they end with the guest");
    }
}

#[test]
fn an_exclusive_lock_on_what_can_only_be_read_is_told() {
    for who in BOTH {
        let place = Place::new(who);
        let file = place.file("home/shown/file", "data");
        let run = place.sh(&["--read", text(file.parent().unwrap())], &format!("flock -n {} true", text(&file)));
        assert_ne!(run.code(), 0, "{}", run.story());
        assert!(run.stderr().contains("Read-only file system"), "{}", run.story());
        run.assert_denied("fs.lock", text(&file));
        let shared = place.sh(&["--read", text(file.parent().unwrap())], &format!("flock -s {} true", text(&file)));
        shared.assert_ok();
        assert!(shared.denials().is_empty(), "control: {}", shared.story());
    }
}

/// Swaps a read-only file in and out of the descriptor on which another thread takes locks.
const SWAP: &str = r#"
import fcntl, os, sys, threading
shown, own, rounds = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR), int(sys.argv[3])
number, over = os.dup(own), False
def swap():
    while not over: os.dup2(shown, number); os.dup2(own, number)
threading.Thread(target=swap).start()
took = failed = 0
for _ in range(rounds):
    try: fcntl.flock(number, fcntl.LOCK_EX); took += 1
    except OSError: failed += 1
over = True
print("both", took > 0, failed > 0)
print("held", flush=True)
sys.stdin.read()
"#;

/// The lock is taken on the file that was checked, even if its descriptor number now refers to another.
#[test]
fn a_descriptor_that_is_changed_meanwhile_locks_nothing_else() {
    let rounds = crate::support::times(3000, 100_000).to_string();
    for who in BOTH {
        let place = Place::new(who);
        let shown = place.file("home/shown/file", "data");
        let open = place.file("home/open/direct", "data");
        let mut command = place.cofferdam(["run", "--read", text(shown.parent().unwrap()), "--write"]);
        command
            .args([text(open.parent().unwrap()), "--", "/usr/bin/python3", "-c", SWAP])
            .args([&shown, &open])
            .arg(&rounds);
        let mut guest = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = String::new();
        let mut lines = BufReader::new(guest.stdout.take().unwrap());
        while !output.ends_with("held\n") {
            assert_ne!(lines.read_line(&mut output).unwrap(), 0, "{output}");
        }
        assert_eq!(output, "both True True\nheld\n", "{who:?}: the control");
        assert_eq!(refused_outside(&[&shown, &open]), "direct flock EAGAIN\n", "{who:?}");
        release(guest);
    }
}

/// Without a mount namespace, the rules decide which files are read-only.
#[test]
fn locks_do_not_reach_the_host_without_namespaces() {
    let place = Place::new(As::User);
    let shown = place.file("home/shown/file", "data");
    let open = place.file("home/open/direct", "data");
    let policy = place.policy(serde_json::json!({"version": 1, "extends": ["default"], "degrade": ["namespaces"]}));
    let blocked = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let mut command = place.outside("unshare");
    command.args(["-U", "--map-current-user", "--keep-caps", "sh", "-c", blocked, "sh"]).arg(binary());
    command.args(["run", "--read-only", "-s", &policy, "--read", text(shown.parent().unwrap())]);
    command.args(["--write", text(open.parent().unwrap())]);
    let files = [shown.as_path(), Path::new("/etc/passwd"), open.as_path()];
    let (guest, output) = hold(command, &files);
    assert!(
        output
            .starts_with("file exclusive EROFS\nfile lease EPERM\npasswd exclusive EROFS\npasswd lease EPERM\ndirect"),
        "{output}"
    );
    assert_eq!(refused_outside(&files), "direct flock EAGAIN\ndirect posix EAGAIN\n");
    release(guest);
}
