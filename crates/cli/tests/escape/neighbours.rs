//! Isolation between guests, and from the host's mounts: no state of one run is left for the next.

use crate::CANARY;
use crate::support::{BOTH, Place, unique};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

// promise 2, 12
#[test]
fn nothing_is_left_for_the_next_guest_or_the_host() {
    let mark = format!("residue{}x{}", std::process::id(), unique());
    let key = 0x0c0f_0000 | (std::process::id() & 0xffff);
    let leave = format!(
        "
import ctypes, os
c = ctypes.CDLL(None)
for d in ('/tmp', '/var/tmp', '/dev/shm'):
    open(d + '/{mark}', 'w').write('{CANARY}')
made = [c.shmget({key}, 4096, 0o1666), c.semget({key}, 1, 0o1666), c.msgget({key}, 0o1666)]
assert min(made) >= 0, made
c.mq_open(b'/{mark}', os.O_CREAT | os.O_RDWR, 0o666, None)
"
    );
    let look = format!(
        "
import ctypes, os
c = ctypes.CDLL(None)
for d in ('/tmp', '/var/tmp', '/dev/shm', '/run', '/run/lock', '/dev/mqueue', '/tmp/.X11-unix'):
    if os.path.isdir(d) and '{mark}' in os.listdir(d): print('found in', d)
for name, got in (('shm', c.shmget({key}, 0, 0)), ('sem', c.semget({key}, 0, 0)), ('msg', c.msgget({key}, 0))):
    if got >= 0: print('found', name)
if c.mq_open(b'/{mark}', os.O_RDONLY) >= 0: print('found queue')
"
    );
    let on_host = || {
        let mut found: Vec<String> = Vec::new();
        for dir in ["/tmp", "/var/tmp", "/dev/shm", "/run", "/dev/mqueue"] {
            let names = fs::read_dir(dir).into_iter().flatten().flatten();
            found.extend(names.filter(|e| e.file_name() == *mark).map(|e| e.path().display().to_string()));
        }
        for kind in ["shm", "sem", "msg"] {
            let table = fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
            let ours = table.lines().any(|l| l.split_whitespace().next() == Some(&key.to_string()));
            found.extend(ours.then(|| kind.to_string()));
        }
        found
    };
    for who in BOTH {
        let place = Place::new(who);
        place.python(&[], &leave).assert_ok();
        assert_eq!(place.python(&[], &look).assert_ok().stdout(), "", "{who:?}: the next one");
        // Concurrent guests: the first is still running.
        let stay = format!("{leave}\nprint('ready', flush=True)\nimport time; time.sleep(60)");
        let mut first = spawn(&place, &[], &["/usr/bin/python3", "-c", &stay]);
        assert_eq!(line(&mut first), "ready");
        assert_eq!(place.python(&[], &look).assert_ok().stdout(), "", "{who:?}: the neighbour");
        assert_eq!(on_host(), Vec::<String>::new(), "{who:?}: the host, meanwhile");
        end(first);
        assert_eq!(on_host(), Vec::<String>::new(), "{who:?}: the host, afterwards");
        // Control: within one run each object is visible.
        let own = place.python(&[], &format!("{leave}\n{look}")).assert_ok().stdout();
        for what in ["/tmp", "/var/tmp", "/dev/shm", "shm", "sem", "msg"] {
            assert!(own.contains(what), "{who:?}: {what} is not there for the guest itself: {own}");
        }
    }
}

pub fn spawn(place: &Place, flags: &[&str], command: &[&str]) -> Child {
    let mut c = place.cofferdam(["run"]);
    c.args(flags).arg("--").args(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

pub fn line(child: &mut Child) -> String {
    let mut text = String::new();
    BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).read_line(&mut text).unwrap();
    text.trim_end().to_string()
}

pub fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A mount namespace with shared propagation, as on most hosts.
// promise 2, 12
#[test]
fn mounts_reach_neither_in_nor_out() {
    for (who, mode) in BOTH.into_iter().flat_map(|who| [(who, "--rm"), (who, "--read-only")]) {
        let place = Place::new(who);
        let late = place.dir("home/project/late");
        place.file("home/project/canary", "");
        let inside = "
import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
tags = [l for l in open('/proc/self/mountinfo') if ' shared:' in l or ' master:' in l]
print('tags', len(tags))
tried = [c.mount(b'x', b'/tmp', b'tmpfs', 0, None), c.mount(b'/etc', b'/tmp', None, 4096, None),
         c.mount(None, b'/', None, 1 << 20 | 16384, None), c.umount2(b'late', 2)]
print('mounted', tried.count(0), flush=True)
input()
print('late', os.listdir('late'))
";
        let script = "
mount --make-rshared / && cd \"$1\" && shift || exit 90
before=$(wc -l < /proc/self/mountinfo)
mkfifo ../in && chmod 666 ../in
\"$@\" < ../in > ../out &
exec 3> ../in
for i in $(seq 500); do grep -q mounted ../out 2>/dev/null && break; sleep 0.02; done
mount -t tmpfs tmpfs late && touch late/secret && echo go >&3
wait $!
umount late
cat ../out
echo host $(( $(wc -l < /proc/self/mountinfo) - before ))";
        let guest = place.cofferdam(["run", mode, "--", "/usr/bin/python3", "-c", inside]);
        let mut c = Command::new("unshare");
        c.args(["--mount", "sh", "-c", script, "sh"])
            .arg(&place.project)
            .arg(guest.get_program())
            .args(guest.get_args());
        c.env_clear().envs(guest.get_envs().filter_map(|(n, v)| Some((n, v?))));
        let output = c.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let want = "tags 0\nmounted 0\nlate []\nhost 0\n";
        assert_eq!(text, want, "{who:?} {mode}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(late.is_dir());
    }
}
