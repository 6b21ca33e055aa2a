//! Differences that a developer could notice. Each probe runs outside in a plain directory and inside in a workspace
//! over an equal one, as root and as a user; its output must be the same, or differ exactly as
//! docs/concepts/workspace.md says.

use crate::inside::{Inside, python_outside, stdout_of};
use crate::support::{As, BOTH, Place};

/// Common start of the probes.
const WORDS: &str = r#"
import ctypes, errno, fcntl, mmap, os, sqlite3, stat, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def tried(call, *words):
    try:
        call(*words)
        return "done"
    except OSError as e:
        return errno.errorcode[e.errno]
def other(text):
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.strip()
"#;

/// A project prepared by the same shell text on both sides.
fn project(who: As, before: &str) -> Place {
    let place = Place::new(who);
    stdout_of(place.outside("/bin/sh").args(["-ec", before]), "before");
    place
}

/// The probe prints the same outside and inside.
#[track_caller]
fn same(before: &str, probe: &str) {
    let expected = python_outside(&project(As::User, before), &[WORDS, probe].concat(), &[]);
    assert!(!expected.is_empty(), "control: the probe tells something");
    for who in BOTH {
        let place = project(who, before);
        let found = Inside::new(&place).python(&[WORDS, probe].concat(), &[]);
        assert_eq!(expected, found, "{who:?}");
    }
}

/// The probe prints one thing outside and another inside.
#[track_caller]
fn differs(before: &str, probe: &str, outside: &str, inside: &str) {
    let probe = [WORDS, probe].concat();
    let place = project(As::User, before);
    assert_eq!(python_outside(&place, &probe, &[]).trim(), outside, "outside");
    for who in BOTH {
        let place = project(who, before);
        assert_eq!(Inside::new(&place).python(&probe, &[]).trim(), inside, "{who:?}");
    }
}

#[test]
fn a_file_keeps_its_number_when_it_is_first_written() {
    let probe = r#"
with open("old") as reader:
    number = os.fstat(reader.fileno()).st_ino
    with open("old", "a") as f:
        f.write("more")
    print(os.stat("old").st_ino == number, os.fstat(reader.fileno()).st_ino == number, reader.read())
print({os.lstat(e.path).st_dev == os.stat(".").st_dev for e in os.scandir(".")}, all(e.inode() == os.lstat(e.path).st_ino for e in os.scandir(".")))
print(os.path.basename(os.getcwd()), os.path.samefile(os.getcwd(), "."))
"#;
    same("echo text > old; echo more > other; mkdir dir", probe);
}

#[test]
fn watching_and_locking_work_across_the_first_write() {
    let probe = r#"
watch = libc.inotify_init1(os.O_NONBLOCK)
print(libc.inotify_add_watch(watch, b"old", 0xFFF), libc.inotify_add_watch(watch, b".", 0xFFF))
for _ in range(2):
    with open("old", "a") as f:
        f.write("x")
os.rename("old", "moved")
os.remove("moved")
told = os.read(watch, 65536)
while told:
    wd, mask, _, length = struct.unpack_from("iIII", told)
    print(wd, hex(mask), told[16 : 16 + length].rstrip(b"\0"))
    told = told[16 + length :]
with open("locked") as holder:
    fcntl.flock(holder, fcntl.LOCK_EX)
    print(other("import fcntl\nf = open('locked', 'a')\ntry:\n    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    print('taken')\nexcept OSError as e:\n    print(e)"))
with open("region", "r+") as holder:
    fcntl.lockf(holder, fcntl.LOCK_EX, 10, 5)
    ask = "import fcntl, sys\nf = open('region', 'r+')\nfor at in (0, 5):\n    try:\n        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)\n        print('taken')\n    except OSError as e:\n        print(e)"
    print(other(ask))
"#;
    same("echo text > old; echo text > locked; echo 01234567890123456789 > region", probe);
}

#[test]
fn mappings_holes_and_copies_in_the_kernel_work() {
    let probe = r#"
with open("map", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
    other("import mmap\nf = open('map', 'r+b')\nm = mmap.mmap(f.fileno(), 0)\nm[0:3] = b'NEW'")
    print(m[0:5], open("map").read(5))
with open("holes", "r+b") as f:
    before = os.fstat(f.fileno()).st_blocks
    f.write(b"x")
    f.flush()
    print(before, os.fstat(f.fileno()).st_blocks < 100, os.fstat(f.fileno()).st_size, os.lseek(f.fileno(), 1, os.SEEK_HOLE) < 1 << 20)
fd = os.open("room", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(fd, 0, 1 << 20)
print(os.fstat(fd).st_blocks, libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(1 << 19)), os.fstat(fd).st_blocks)
source = os.open("map", os.O_RDONLY)
print(os.copy_file_range(source, os.open("copied", os.O_WRONLY | os.O_CREAT), 7), os.sendfile(os.open("sent", os.O_WRONLY | os.O_CREAT), source, 0, 7), open("copied").read(), open("sent").read())
fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
os.write(fd, b"nameless")
print(libc.linkat(-100, b"/proc/self/fd/%d" % fd, -100, b"named", 0x400), open("named").read())
fd = os.open("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
page = mmap.mmap(-1, 4096)
page[:] = b"z" * 4096
print(os.write(fd, page), tried(os.open, "running", os.O_WRONLY))
"#;
    same("echo 0123456789 > map; truncate -s 10M holes; echo x > running", probe);
}

#[test]
fn a_running_program_cannot_be_written() {
    let probe = r#"
sleeper = subprocess.Popen(["./sleeper", "60"])
while os.readlink(f"/proc/{sleeper.pid}/exe").rsplit("/", 1)[1] != "sleeper":
    pass
print(tried(os.open, "sleeper", os.O_WRONLY))
sleeper.kill()
sleeper.wait()
print(tried(os.open, "sleeper", os.O_WRONLY))
"#;
    same("cp /bin/sleep sleeper", probe);
}

#[test]
fn a_link_that_leads_outside_is_a_file_like_any_other() {
    let probe = r#"
def long_ago(path):
    os.utime(path, ns=(10**17, 10**17), follow_symlinks=False)
    os.chown(path, os.getuid(), os.getgid(), follow_symlinks=False)
    return os.lstat(path).st_mtime_ns, os.readlink(path)
os.symlink("/usr/bin/env", "new")
print(long_ago("new"), long_ago("old"))
# The link's target belongs neither to the guest nor to an ordinary user.
print(tried(os.utime, "new") in ("EACCES", "EPERM", "EROFS"))
subprocess.run(["cp", "-a", "old", "copied"], check=True)
subprocess.run("tar cf t.tar old new && mkdir out && tar xf t.tar -C out", shell=True, check=True)
print(os.readlink("copied"), os.lstat("copied").st_mtime_ns, os.lstat("out/old").st_mtime_ns)
"#;
    same("ln -s /etc/passwd old", probe);
}

#[test]
fn databases_with_a_shared_log_work() {
    let probe = r#"
db = sqlite3.connect("db")
print(db.execute("pragma journal_mode = wal").fetchone())
db.execute("insert into t values (1)")
db.commit()
print(other("import sqlite3\ndb = sqlite3.connect('db')\ndb.execute('insert into t values (2)')\ndb.commit()\nprint(db.execute('select sum(x) from t').fetchone())"))
print(db.execute("select sum(x) from t").fetchone(), db.execute("pragma integrity_check").fetchone(), os.path.exists("db-shm"))
"#;
    let before =
        "python3 -c \"import sqlite3; db = sqlite3.connect('db'); db.execute('create table t (x)'); db.commit()\"";
    same(before, probe);
}

#[test]
fn a_repository_can_be_worked_on_packed_and_checked() {
    let before = "git init -q .; git config user.email t@example.org; git config user.name t; mkdir src\n\
        for n in 1 2 3 4 5; do echo $n > src/$n; git add .; git commit -qm $n; done";
    let probe = r#"
def git(*words):
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout
print(git("status", "--porcelain"))
with open("src/1", "a") as f:
    f.write("more")
os.remove("src/2")
print(git("status", "--porcelain"))
git("commit", "-qam", "inside")
git("checkout", "-q", "-b", "branch", "HEAD~3")
git("checkout", "-q", "-")
git("stash", "list")
git("gc", "-q", "--prune=now")
git("fsck", "--strict")
print(git("log", "--format=%s"), git("status", "--porcelain"), git("count-objects"))
"#;
    same(before, probe);
}

#[test]
fn what_was_built_outside_is_up_to_date_inside() {
    let before = "printf 'all: prog\\nprog: main.o\\n\\tcc -o prog main.o\\nmain.o: main.c main.h\\n\\tcc -c main.c\\n' > Makefile\n\
        echo '#include \"main.h\"' > main.c; echo 'int main(void) { return ANSWER; }' >> main.c\n\
        echo '#define ANSWER 3' > main.h; make -s";
    let probe = r##"
def make():
    return subprocess.run(["make"], capture_output=True, text=True, check=True).stdout
print(make())
with open("main.h", "w") as f:
    f.write("#define ANSWER 4\n")
print(make(), subprocess.run(["./prog"]).returncode)
print(make())
"##;
    same(before, probe);
}

#[test]
fn directories_of_the_base_are_moved_by_copying() {
    let before = "mkdir -p dir/sub; echo text > dir/sub/file";
    differs(before, "print(tried(os.rename, 'dir', 'moved'))", "done", "EXDEV");
    let probe = "subprocess.run(['mv', 'dir', 'moved'], check=True)\nos.mkdir('new')\nos.rename('new', 'newer')\n\
        print(os.listdir('moved/sub'), os.path.exists('dir'), os.path.isdir('newer'))";
    same(before, probe);
    same(before, "import shutil\nprint(shutil.move('dir', 'moved'), os.listdir('moved/sub'), os.path.exists('dir'))");
    // Git detects a moved directory as a rename, and moves one when it switches branches.
    let before = "git init -q -b main .; git config user.email t@example.org; git config user.name t\n\
        mkdir -p dir/sub; seq 100 > dir/sub/file; git add -A; git commit -qm one";
    let probe = "def git(*words): return subprocess.run(['git', *words], capture_output=True, text=True).stdout\n\
        subprocess.run('git checkout -qb side && mv dir moved && git add -A && git commit -qm two', shell=True, check=True)\n\
        print(git('show', '--format=%s', '--name-status', '-M'))\n\
        git('checkout', '-q', 'main')\nprint(os.listdir('.'), git('status', '--porcelain'))\n\
        git('checkout', '-q', 'side')\nprint(sorted(os.listdir('.')), git('status', '--porcelain'))";
    same(before, probe);
    let probe = "print(subprocess.run(['git', 'mv', 'dir', 'moved'], stderr=subprocess.DEVNULL).returncode)";
    differs(before, probe, "0", "128");
}

#[test]
fn hard_links_of_the_base_come_apart() {
    let before = "echo text > one; ln one two; echo text > alone";
    let probe = "open('one', 'a').write('more')\nprint(os.path.samefile('one', 'two'), open('two').read().strip())";
    differs(before, probe, "True text\nmore", "False text");
    let probe = "os.link('alone', 'name')\nopen('name', 'a').write('more')\nprint(os.path.samefile('alone', 'name'), open('alone').read().split())";
    differs(before, probe, "True ['text', 'more']", "False ['text', 'more']");
    let probe = "open('new', 'w').write('text')\nos.link('new', 'name')\nopen('name', 'a').write('more')\n\
        print(os.path.samefile('new', 'name'), os.stat('new').st_nlink, open('new').read())";
    same(before, probe);
}

#[test]
fn hard_links_made_inside_come_apart_after_a_snapshot() {
    for who in BOTH {
        let place = project(who, "true");
        let inside = Inside::new(&place);
        let write = "import os\nopen('one', 'a').write('x')\nprint(os.path.samefile('one', 'two'), open('two').read())";
        inside.python("import os\nopen('one', 'w')\nos.link('one', 'two')", &[]);
        assert_eq!(inside.python(write, &[]), "True x\n", "{who:?}: in another run");
        inside.snapshot();
        assert_eq!(inside.python(write, &[]), "False x\n", "{who:?}: after a snapshot");
    }
}

#[test]
fn everything_belongs_to_the_guest_who_is_never_root() {
    for (who, uid) in [(As::Root, 1000), (As::User, 1500)] {
        let place = project(who, "echo text > old");
        let probe =
            "import os\nopen('new', 'w')\nprint({os.getuid(), *(os.stat(p).st_uid for p in ('.', 'old', 'new'))})";
        assert_eq!(Inside::new(&place).python(probe, &[]), format!("{{{uid}}}\n"), "{who:?}");
    }
}

#[test]
fn a_mapping_made_before_the_first_write_keeps_the_old_bytes() {
    let before = "echo 0123456789 > old";
    let write = "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\nopen('old', 'r+').write('NEW')\nprint(m[0:3])";
    differs(before, &format!("f = open('old')\n{write}"), "b'NEW'", "b'012'");
    // A mapping of a file that is open for writing, or was written before, is shared.
    same(before, &format!("f = open('old', 'r+')\n{write}"));
    same(before, &format!("open('old', 'a').write('x')\nf = open('old')\n{write}"));
}

#[test]
fn reading_does_not_change_when_a_file_of_the_base_was_read() {
    let before = "touch -d 2001-01-01 old; echo text > made; touch -a -d 2001-01-01 made";
    let probe =
        "before = os.stat('made').st_atime_ns\nopen('made').read()\nprint(os.stat('made').st_atime_ns == before)";
    differs(before, probe, "False", "True");
    same(before, &format!("os.utime('made', (1000, 2000))\n{probe}"));
}

#[test]
fn the_file_system_says_what_it_is() {
    let kind = "print(subprocess.run(['stat', '-f', '-c', '%T', '.'], capture_output=True, text=True).stdout == 'overlayfs\\n')";
    differs("true", kind, "False", "True");
    // Programs that derive the number of subdirectories from the link count take 1 for "not known".
    let links = "open('dir/new', 'w')\nprint(os.stat('dir').st_nlink)";
    differs("mkdir -p dir/sub", links, "3", "1");
    let before = "touch -d 2001-01-01 .";
    differs(before, "print(os.stat('.').st_mtime < 10**9)", "True", "False");
}

#[test]
fn what_is_refused_on_purpose_is_refused() {
    let before = "mkdir dir; echo text > file\n\
        python3 -c 'import os; [os.setxattr(\"file\", \"user.\" + n, b\"x\") for n in (\"other\", \"overlay.mine\")]'";
    differs(before, "print(tried(os.chmod, 'dir', 0o2755), tried(os.chmod, 'file', 0o755))", "done done", "EPERM done");
    let node = "print(tried(os.mknod, 'node', stat.S_IFCHR, 0), tried(os.mkfifo, 'fifo'))";
    differs(before, node, "done done", "EACCES done");
    differs(before, "print(tried(fcntl.fcntl, open('file'), fcntl.F_SETLEASE, fcntl.F_RDLCK))", "done", "EPERM");
    // Attributes of another overlay in the base have no meaning and are hidden; those set inside are the guest's own.
    differs(before, "print(os.listxattr('file'))", "['user.other', 'user.overlay.mine']", "['user.other']");
    let own = "open('new', 'w')\nos.setxattr('new', 'user.overlay.mine', b'y')\nprint(os.listxattr('new'))";
    same(before, own);
}
