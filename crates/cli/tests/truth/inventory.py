"""All that is in a tree, as JSON on one line: `inventory.py TOP`. Names and bytes are spelled as diffs spell them; times only where
somebody set them, because two trees that are changed one after the other are never changed at the same moment."""

import base64
import hashlib
import json
import os
import stat
import sys

TOP = os.fsencode(sys.argv[1])
# The year 2001: what is changed today is later, and what the tests set is earlier.
LONG_AGO = 10**18
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}


def text(name):
    try:
        return name.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(name).decode()}


def entry(path, info):
    """What a diff says of it."""
    kind = KINDS[stat.S_IFMT(info.st_mode)]
    found = {"kind": kind, "mode": format(stat.S_IMODE(info.st_mode), "03o"), "size": 0}
    if kind == "file":
        with open(path, "rb") as f:
            found |= {"size": info.st_size, "digest": hashlib.file_digest(f, "sha256").hexdigest()}
    if kind == "symlink":
        target = os.readlink(path)
        found |= {"size": len(target), "digest": hashlib.sha256(target).hexdigest(), "target": text(target)}
    names = os.listxattr(path, follow_symlinks=False) if kind in ("file", "dir") else []
    if names:
        found["xattrs"] = {name: os.getxattr(path, name, follow_symlinks=False).hex() for name in names}
    return found


def told(path):
    info = os.lstat(path)
    is_dir = stat.S_ISDIR(info.st_mode)
    found = {"path": text(os.path.relpath(path, TOP)), "entry": entry(path, info)}
    found["time"] = info.st_mtime_ns if info.st_mtime_ns < LONG_AGO else "since"
    # The number of links of a directory is no promise of a workspace.
    return found | ({"holds": bool(os.listdir(path))} if is_dir else {"links": info.st_nlink})


paths = sorted(os.path.join(at, name) for at, dirs, files in os.walk(TOP) for name in dirs + files)
print(json.dumps([told(path) for path in paths]))
