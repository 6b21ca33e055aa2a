//! Attacks on a workspace: ways from the layers to the base, forged overlayfs marks, and other paths to the directories
//! of the layers. Each has a control that must succeed.

use crate::kernel::truth::state;
use crate::support::{As, BOTH, Place};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

fn furnished(who: As) -> Place {
    let place = Place::new(who);
    for name in ["file", "other", "dir/inner", "dir/deep/inner"] {
        place.file(place.project.join(name), format!("base {name}\n"));
    }
    place
}

fn tree(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut waiting) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                waiting.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}

/// Extended attributes of a file, as Python reads them outside.
fn attributes(place: &Place, path: &Path) -> String {
    let text = "import os, sys\nfor n in sorted(os.listxattr(sys.argv[1], follow_symlinks=False)): print(n, os.getxattr(sys.argv[1], n, follow_symlinks=False))";
    let output = place.outside("/usr/bin/python3").args(["-c", text]).arg(path).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A guest can forge neither whiteouts nor redirects.
// promise 12, 13
#[test]
fn marks_of_layers_cannot_be_forged() {
    const FORGE: &str = "
import os, stat
done = []
def attempt(name, work):
    try: work(); done.append(name)
    except OSError: pass
for path in ('x', 'dir/x', '/tmp/x'):
    attempt('node ' + path, lambda: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(0, 0)))
attempt('moved', lambda: os.rename('/tmp/x', 'moved'))
attempt('linked', lambda: os.link('/tmp/x', 'linked'))
for kind in (stat.S_IFCHR, stat.S_IFBLK):
    attempt('device', lambda: os.mknod('device', 0o666 | kind, os.makedev(1, 3)))
os.mkdir('fresh')
for path in ('fresh', 'dir', 'file'):
    for prefix in ('trusted.overlay.', 'security.'):
        attempt(prefix + path, lambda: os.setxattr(path, prefix + 'opaque', b'y'))
    for name in ('opaque', 'redirect', 'metacopy', 'origin', 'whiteout', 'upper', 'overlay.redirect'):
        os.setxattr(path, 'user.overlay.' + name, b'/../../../../etc')
    assert os.getxattr(path, 'user.overlay.redirect') == b'/../../../../etc'
os.setxattr('file', 'user.plain', b'control')
print(done)
print(sorted(os.listdir('dir')))";
    for who in BOTH {
        let place = furnished(who);
        let before = state(&place.project);
        let run = place.python(&["--keep"], FORGE);
        // A 0:0 device node in the guest's own /tmp has no meaning, and cannot be moved into the workspace.
        let stdout = run.assert_ok().stdout();
        assert!(
            !stdout.contains("node x") && !stdout.contains("node dir/x") && !stdout.contains("device"),
            "{who:?}: {stdout}"
        );
        assert!(
            !stdout.contains("moved") && !stdout.contains("linked") && !stdout.contains("trusted"),
            "{who:?}: {stdout}"
        );
        assert!(stdout.ends_with("['deep', 'inner']\n"), "{who:?}: the directory still shows what is below: {stdout}");
        let layers = fs::read_dir(place.state().join("layers")).unwrap().flatten().map(|e| e.path());
        let up = layers.map(|l| l.join("up")).next().unwrap();
        for path in tree(&up) {
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            assert!(!kind.is_char_device() && !kind.is_block_device(), "{who:?}: {}", path.display());
        }
        for name in ["fresh", "dir", "file"] {
            let found = attributes(&place, &up.join(name));
            let kernels = |line: &&str| {
                let name = line.split(' ').next().unwrap();
                !name.starts_with("user.overlay.overlay.") && name.starts_with("user.overlay.")
            };
            for line in found.lines().filter(kernels) {
                // The kernel's own marks on a directory or a copy, never with values from the guest.
                assert!(!line.contains("etc"), "{who:?} {name}: {line}");
                assert!(
                    !["redirect", "metacopy"].iter().any(|m| line.contains(&format!("overlay.{m}"))),
                    "{who:?}: {line}"
                );
            }
            assert!(found.contains("user.overlay.overlay.redirect"), "control: {who:?} {name}: {found}");
        }
        assert!(attributes(&place, &up.join("file")).contains("user.plain"), "control");
        // The next run sees the same tree.
        let id = run.text("/sandbox");
        let again = place.sh(&["--sandbox", &id], "cat dir/inner fresh/* 2>/dev/null; ls dir; cat file");
        assert_eq!(again.stdout(), "base dir/inner\ndeep\ninner\nbase file\n", "{who:?}: {}", again.story());
        assert_eq!(state(&place.project), before, "{who:?}");
    }
}

/// No handle, link, mapping or name writes through to the base.
// promise 12, 14
#[test]
fn no_way_writes_through_to_the_base() {
    const THROUGH: &str = "
import ctypes, fcntl, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
def quietly(work):
    try: work()
    except OSError: pass
read = os.open('file', os.O_RDONLY)
quietly(lambda: os.write(os.open('/proc/self/fd/%d' % read, os.O_RDWR), b'proc'))
quietly(lambda: os.link('file', 'second')); quietly(lambda: open('second', 'a').write('linked'))
quietly(lambda: os.link('/proc/self/fd/%d' % read, 'third', follow_symlinks=True)); quietly(lambda: open('third', 'a').write('x'))
quietly(lambda: libc.linkat(read, b'', -100, b'fourth', 0x1000)); quietly(lambda: open('fourth', 'a').write('x'))
quietly(lambda: os.rename('other', 'renamed')); quietly(lambda: open('renamed', 'a').write('x'))
quietly(lambda: os.rename('dir/deep', 'deep')); quietly(lambda: open('dir/deep/inner', 'a').write('x'))
early = mmap.mmap(os.open('dir/inner', os.O_RDONLY), 4, mmap.MAP_SHARED, mmap.PROT_READ)
late = os.open('dir/inner', os.O_RDWR)
m = mmap.mmap(late, 4, mmap.MAP_SHARED); m[0:4] = b'mmap'; m.flush()
quietly(lambda: os.truncate('dir/inner', 0)); quietly(lambda: os.fchmod(read, 0o777)); quietly(lambda: os.fchown(read, os.getuid(), os.getgid()))
quietly(lambda: os.utime(read, (1, 1))); quietly(lambda: os.posix_fallocate(late, 0, 8192))
quietly(lambda: os.copy_file_range(os.open('/etc/hostname', os.O_RDONLY), late, 4))
quietly(lambda: fcntl.ioctl(read, 0x40086602, b'\\x10' + bytes(7)))
quietly(lambda: libc.renameat2(-100, b'file', -100, b'dir', 2))
quietly(lambda: libc.syscall(316, -100, b'renamed', -100, b'gone', 4))
quietly(lambda: os.removexattr('file', 'user.base')); quietly(lambda: os.setxattr(read, 'user.base', b'changed'))
print(open('dir/inner', 'rb').read(4))";
    for who in BOTH {
        let place = furnished(who);
        fs::hard_link(place.project.join("file"), place.home.join("beside")).unwrap();
        let note = place
            .outside("/usr/bin/python3")
            .args(["-c", "import os; os.setxattr('file', 'user.base', b'base')"])
            .status();
        assert!(note.unwrap().success());
        let (before, marked) = (state(&place.project), attributes(&place, &place.project.join("file")));
        let run = place.python(&["--keep"], THROUGH);
        run.assert_ok();
        assert_eq!(state(&place.project), before, "{who:?}: {}", run.story());
        assert_eq!(attributes(&place, &place.project.join("file")), marked, "{who:?}");
        assert_eq!(fs::read_to_string(place.home.join("beside")).unwrap(), "base file\n", "{who:?}");
        assert_eq!(fs::metadata(place.project.join("file")).unwrap().nlink(), 2);
        // Control: inside, the changes are there.
        let seen = place.sh(&["--sandbox", &run.text("/sandbox")], "cat second");
        assert!(seen.assert_ok().stdout().contains("linked"), "{who:?}: {}", seen.story());
    }
}

/// Directories of base and layers can be reached by no path other than the workspace's.
// promise 12
#[test]
fn the_parts_of_a_workspace_are_not_there_by_themselves() {
    const SEEK: &str = "
import os, sys
state, found = sys.argv[1], []
for top in ('/.old', '/.old/sys', '/.old/sys/0', '/.old/sys/1', '/.old/sys/1/up', '/.old/sys/1/work', '/.made', '/sys', state, os.path.dirname(state)):
    for path in (top, '/proc/self/root' + top, '/proc/1/root' + top, '/proc/self/cwd/../../../..' + top):
        try: found.append((path, os.listdir(path)))
        except OSError: pass
for line in open('/proc/self/mountinfo'):
    at = line.split()[4]
    if 'lay_' in line or '/up' in at: found.append(line)
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        for fd in os.listdir('/proc/%s/fd' % pid):
            to = os.readlink('/proc/%s/fd/%s' % (pid, fd))
            if 'lay_' in to or '/.old' in to: found.append((pid, fd, to))
    except OSError: pass
print([f for f in found if f[0] not in (os.path.dirname(state),) and '..' not in f[0]])
open('control', 'w').write('x'); print(os.path.exists('control'))";
    for who in BOTH {
        let place = furnished(who);
        let held = place.state();
        let run = place.run(&[], &["/usr/bin/python3", "-c", SEEK, held.to_str().unwrap()]);
        let stdout = run.assert_ok().stdout();
        assert!(
            !stdout.contains("lay_") && !stdout.contains("store.db") && !stdout.contains("'up'"),
            "{who:?}: {stdout}"
        );
        assert!(stdout.ends_with("True\n"), "control: {stdout}");
        // The same holds where a policy shows the surrounding directory.
        let around = place.root.to_str().unwrap();
        let run = place.run(&["--read", around], &["/usr/bin/python3", "-c", SEEK, held.to_str().unwrap()]);
        let write = format!("for f in {0}/layers/*/up/x {0}/x; do echo x > $f; done; true", held.display());
        let tried = place.sh(&["--read", around, "--rm"], &write);
        assert!(run.code() == 0 && tried.code() == 0, "{}", tried.story());
        assert!(!held.join("x").exists(), "{who:?}");
    }
}

/// A guest that makes unreadable, deep or large trees does not keep its workspace from being measured, continued or
/// dropped.
// promise 12, 13
#[test]
fn hostile_trees_can_be_dropped_and_gone_on_with() {
    const HOSTILE: &str = "
import os
os.mkdir('shut'); open('shut/file', 'w').close(); os.chmod('shut', 0)
for _ in range(1500):
    os.mkdir('d' * 100); os.chdir('d' * 100)
open(b'bad \\xff\\n\\x1b[2J', 'w').write('x')";
    for who in BOTH {
        let place = furnished(who);
        let dropped = place.python(&["--rm"], HOSTILE);
        assert_eq!(dropped.assert_ok().outcome["changes"]["deleted"], 0, "{who:?}");
        assert_eq!(fs::read_dir(place.state().join("layers")).unwrap().count(), 0, "{who:?}: all of it is gone");
        let kept = place.python(&[], HOSTILE);
        let id = kept.assert_ok().text("/sandbox");
        assert!(id.starts_with("sbx_"), "{}", kept.story());
        let again = place.sh(&["--sandbox", &id], "ls | wc -l; chmod 700 shut; ls shut");
        assert_eq!(again.assert_ok().stdout(), "5\nfile\n", "{who:?}: {}", again.story());
    }
}
