"""Seeded operations on a tree: `storm.py TOP SEED FIRST COUNT [links]`. Prints the result of each, so that two runs can be compared line
by line. Choices depend only on the seed and the content of the tree; no file outside TOP is touched. A COUNT of 0 creates the initial
tree."""

import ctypes
import errno
import mmap
import os
import random
import shutil
import stat
import sys
import zlib

TOP = os.fsencode(sys.argv[1])
SEED, FIRST, COUNT = (int(word) for word in sys.argv[2:5])
LINKS = sys.argv[5:] == ["links"]
# Few names, so that they are reused: a removed entry comes back as another kind.
NAMES = [b"a", b"b", b"c", b"d.txt", b"e.txt", b"with space", "ümlaut".encode(), b"-dash", b"bad\xff", b".wh.a", b"new\nline", b"x" * 255]
XATTRS = ["user.one", "user.two", "user.overlay.opaque", "user.overlay.mine"]
MOST = 150
libc = ctypes.CDLL(None, use_errno=True)


class Tree:
    """The current entries, sorted, with a checksum that distinguishes trees."""

    def __init__(self):
        self.dirs, self.files, self.rest, seen = [TOP], [], [], []
        for at, dirs, files in os.walk(TOP):
            for name in dirs + files:
                path = os.path.join(at, name)
                info = os.lstat(path)
                mode = info.st_mode
                kind = self.dirs if stat.S_ISDIR(mode) else self.files if stat.S_ISREG(mode) else self.rest
                kind.append(path)
                seen.append((path[len(TOP) :], mode, () if kind is self.dirs else (info.st_size, info.st_nlink)))
        self.sum = zlib.crc32(repr(sorted(seen)).encode())
        for kind in (self.dirs, self.files, self.rest):
            kind.sort()

    def below(self):
        return self.dirs[1:]

    def everything(self):
        return sorted(self.below() + self.files + self.rest)


def content(r):
    size = r.choice([0, 1, 10, 100, 4096, 5000, 70000])
    if r.random() < 0.5:
        return b"".join(b"line %d\n" % r.randrange(50) for _ in range(size // 8))
    return r.randbytes(size)


def opened(path, flags, mode=0o644):
    return os.fdopen(os.open(path, flags | os.O_NOFOLLOW, mode), "r+b", buffering=0)


def create(r, t):
    path = fresh(r, t)
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, r.choice([0o644, 0o600, 0o755])) as f:
        f.write(content(r))


def write(r, t):
    path = r.path(t.files)
    with opened(path, os.O_RDWR) as f:
        f.seek(r.randrange(os.fstat(f.fileno()).st_size + 500))
        f.write(content(r))


def append(r, t):
    path = r.path(t.files)
    with opened(path, os.O_RDWR | os.O_APPEND) as f:
        f.write(content(r))


def overwrite(r, t):
    path = r.path(t.files)
    with opened(path, os.O_RDWR | os.O_TRUNC) as f:
        f.write(content(r))


def truncate(r, t):
    path = r.path(t.files)
    os.truncate(path, r.choice([0, 1, 5000, r.randrange(100000)]))


def mapped(r, t):
    path = r.path(t.files)
    with opened(path, os.O_RDWR) as f:
        size = os.fstat(f.fileno()).st_size
        if size:
            with mmap.mmap(f.fileno(), size) as m:
                at = r.randrange(size)
                m[at : at + 1] = b"M"


def allocate(r, t):
    path = r.path(t.files)
    # Holes, zeroes and space beyond the end: FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, FALLOC_FL_ZERO_RANGE.
    mode = r.choice([3, 0, 16])
    with opened(path, os.O_RDWR) as f:
        at, size = ctypes.c_long(r.randrange(20000)), ctypes.c_long(r.randrange(1, 20000))
        checked(libc.fallocate(f.fileno(), mode, at, size))


def save(r, t):
    put(r.path(t.files), content(r))


def put(path, data):
    """Replaces a file by renaming another over it, as editors do."""
    beside = os.path.join(os.path.dirname(path), b"beside~")
    with opened(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL) as f:
        f.write(data)
        os.fsync(f.fileno())
    os.rename(beside, path)


def rename(r, t):
    path, to = r.path(t.files + t.rest), fresh(r, t)
    os.rename(path, to)


def exchange(r, t):
    path, to = r.path(t.files + t.rest), r.path(t.files + t.rest)
    checked(libc.renameat2(-100, path, -100, to, 2))


def move(r, t):
    """Moves a directory as mv does: by rename, or by copy where the kernel returns EXDEV."""
    path, to = r.path(t.below()), fresh(r, t)
    if not moves_whole(path):
        return
    try:
        os.rename(path, to)
    except OSError as e:
        if e.errno != errno.EXDEV:
            raise
        if os.path.lexists(to):
            os.rmdir(to)
        copy(path, to)
        remove(path)


def moves_whole(path):
    for at, _, files in os.walk(path):
        linked = any(os.lstat(os.path.join(at, name)).st_nlink > 1 for name in files)
        if linked or not os.access(at, os.W_OK):
            return False
    return True


def copy(path, to):
    info = os.lstat(path)
    if stat.S_ISDIR(info.st_mode):
        os.mkdir(to)
        for name in sorted(os.listdir(path)):
            copy(os.path.join(path, name), os.path.join(to, name))
        shutil.copystat(path, to)
    elif stat.S_ISFIFO(info.st_mode):
        os.mkfifo(to)
        shutil.copystat(path, to)
    elif stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(path), to)
        shutil.copystat(path, to, follow_symlinks=False)
    else:
        shutil.copy2(path, to)


def remove(path):
    """Removes a tree in the order of names, so that after an error both trees have lost the same entries."""
    for name in sorted(os.listdir(path)):
        below = os.path.join(path, name)
        if stat.S_ISDIR(os.lstat(below).st_mode):
            remove(below)
        else:
            os.unlink(below)
    os.rmdir(path)


def link(r, t):
    """Links a file created in this layer: hard links of a lower file do not stay one file (docs/concepts/workspace.md)."""
    if not LINKS:
        return
    path, to = r.path(t.files), fresh(r, t)
    if os.stat(path).st_nlink == 1:
        put(path, content(r))
    os.link(path, to)


def symlink(r, t):
    path = fresh(r, t)
    os.symlink(r.choice([b"a", b"../b", b"nowhere", b"/etc/passwd", b"bad\xfe"]), path)


def fifo(r, t):
    path = fresh(r, t)
    os.mkfifo(path)


def unlink(r, t):
    path = r.path(t.everything())
    os.unlink(path)


def mkdir(r, t):
    path = fresh(r, t)
    os.mkdir(path, r.choice([0o755, 0o700]))


def rmdir(r, t):
    path = r.path(t.below())
    os.rmdir(path)


def clear(r, t):
    path = r.path(t.below())
    remove(path)


def replace(r, t):
    """Removes a directory and recreates its name: no entry of the old one may show through."""
    path = r.path(t.below())
    remove(path)
    r.choice([os.mkdir, lambda p: os.symlink(b"a", p), lambda p: open(p, "wb").write(b"once a directory\n")])(path)


def chmod(r, t):
    path = r.path(t.files + t.below())
    os.chmod(path, r.choice([0o755, 0o755, 0o700, 0o555] if os.path.isdir(path) else [0o644, 0o600, 0o755, 0o444, 0o400]))


def utimes(r, t):
    path = r.path(t.everything())
    long_ago = r.randrange(10**17, 10**18)
    os.utime(path, ns=(long_ago, long_ago), follow_symlinks=False)


def setxattr(r, t):
    path, name = r.path(t.files + t.below()), r.note(r.choice(XATTRS))
    os.setxattr(path, name, r.choice([b"", b"y", r.randbytes(30)]), follow_symlinks=False)


def removexattr(r, t):
    path, name = r.path(t.files + t.below()), r.note(r.choice(XATTRS))
    os.removexattr(path, name, follow_symlinks=False)


OPERATIONS = {
    create: 10, write: 8, append: 5, overwrite: 4, truncate: 4, mapped: 4, allocate: 4, save: 5, rename: 8, exchange: 2, move: 5,
    link: 4, symlink: 3, fifo: 1, unlink: 7, mkdir: 6, rmdir: 3, clear: 1, replace: 1, chmod: 5, utimes: 5, setxattr: 4, removexattr: 2,
}
SHRINKING = {unlink: 5, clear: 2, rmdir: 1}


class Choice(random.Random):
    """A random generator that records the chosen paths."""

    def __init__(self, n):
        super().__init__(f"{SEED}/{n}")
        self.chosen = []

    def path(self, paths):
        self.chosen.append(self.choice(paths))
        return self.chosen[-1]

    def note(self, word):
        self.chosen.append(word.encode())
        return word

    def told(self):
        return ascii(b" ".join(self.chosen).replace(TOP + b"/", b"").replace(b"x" * 255, b"x..."))[2:-1]


def fresh(r, t):
    return r.path([os.path.join(r.choice(t.dirs), r.choice(NAMES))])


def checked(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), "refused")


def step(n):
    r, t = Choice(n), Tree()
    choices = SHRINKING if len(t.everything()) > MOST else OPERATIONS
    operation = r.choices(list(choices), choices.values())[0]
    result = "done"
    try:
        operation(r, t)
    except OSError as e:
        result = errno.errorcode.get(e.errno, str(e))
    except IndexError:
        result = "nothing there to do it to"
    print(n, f"{t.sum:08x}", operation.__name__, r.told(), result)


def plant():
    """Creates three levels of every kind of entry, with times that later changes can be distinguished from."""
    r, dirs = random.Random(SEED), [TOP]
    for _ in range(3):
        wanted = dict.fromkeys(os.path.join(r.choice(dirs), r.choice(NAMES)) for _ in range(6))
        dirs = [path for path in wanted if not os.path.lexists(path)] or dirs
        for path in (path for path in dirs if not os.path.lexists(path)):
            os.mkdir(path, r.choice([0o755, 0o700]))
            names = r.sample(NAMES, 5)
            for name in names[:3]:
                with open(os.path.join(path, name), "wb") as f:
                    f.write(content(r))
                os.chmod(f.name, r.choice([0o644, 0o600, 0o755, 0o444]))
            os.symlink(r.choice(names), os.path.join(path, names[3]))
    t = Tree()
    for path in t.below() + [path for path in t.files if os.stat(path).st_mode & 0o200]:
        if r.random() < 0.2:
            os.setxattr(path, "user.one", r.randbytes(5))
    for path in reversed(t.everything()):
        long_ago = r.randrange(10**17, 10**18)
        os.utime(path, ns=(long_ago, long_ago), follow_symlinks=False)


os.umask(0o022)
if COUNT == 0:
    plant()
for number in range(FIRST, FIRST + COUNT):
    step(number)
