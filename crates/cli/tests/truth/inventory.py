"""Inventory of a tree as one line of JSON: `inventory.py TOP`. Names and bytes are encoded as in diffs. Only times that were set explicitly
are included, because two trees that are changed one after the other never have equal times otherwise."""

import base64
import hashlib
import json
import os
import stat
import sys

TOP = os.fsencode(sys.argv[1])
# The year 2001: changes of today are later, and times that the tests set are earlier.
LONG_AGO = 10**18
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}


def text(name):
    try:
        return name.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(name).decode()}


def entry(path, info):
    """The entry as in a diff."""
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


def described(path):
    info = os.lstat(path)
    is_dir = stat.S_ISDIR(info.st_mode)
    found = {"path": text(os.path.relpath(path, TOP)), "entry": entry(path, info)}
    found["time"] = info.st_mtime_ns if info.st_mtime_ns < LONG_AGO else "since"
    # A workspace does not promise the link count of a directory.
    return found | ({"holds": bool(os.listdir(path))} if is_dir else {"links": info.st_nlink})


paths = sorted(os.path.join(at, name) for at, dirs, files in os.walk(TOP) for name in dirs + files)
print(json.dumps([described(path) for path in paths]))
