//! The supervisor is killed during a storm of writes: the layer stays usable with every completed write, and no mount
//! or process is left on the host.

use crate::inside::Inside;
use crate::support::left::mounts;
use crate::support::{BOTH, Place, to_the_end};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Writes numbered files from several processes, each renamed into place when complete, without end.
const WRITER: &str = r#"
import os
for worker in range(3):
    if os.fork() == 0:
        os.setsid()
        n = 0
        while True:
            n += 1
            with open(f"beside-{worker}", "w") as f:
                f.write(str(n) * 1000)
            os.rename(f"beside-{worker}", f"{worker}-{n}")
            with open("old", "a") as f:
                f.write("more\n")
for _ in range(3):
    os.wait()
"#;

// promise 12
#[test]
fn a_killed_supervisor_leaves_a_usable_layer_and_nothing_else() {
    for who in BOTH {
        let place = Place::new(who);
        place.file("home/project/old", "old\n");
        let inside = Inside::new(&place);
        let mounted = mounts(&place);
        for round in 0..3 {
            let mark = format!("crash-{}-{round}", place.root.display());
            let up = top_of(&place);
            let before = count(&up);
            let mut writer = inside.command(&["/usr/bin/python3", "-c", WRITER, &mark]);
            // The pipes of a dead supervisor must not block a process.
            let mut child = writer.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            wait_until("files are written", || count(&up) > before + 50);
            // `setpriv` has become the supervisor.
            child.kill().unwrap();
            child.wait().unwrap();
            wait_until("the guest is gone", || !runs(&mark));
            assert_eq!(mounts(&place), mounted, "{who:?}: mounts on the host");
            check(&inside, numbered(&up));
        }
        assert_eq!(fs::read_to_string(place.project.join("old")).unwrap(), "old\n", "{who:?}: the base");
        let diff = inside.diff();
        assert!(diff["files"].as_array().unwrap().len() > 100, "{who:?}: the diff tells of what was written");
        let stopped = to_the_end(&mut place.cofferdam(["rm", &inside.id]), b"");
        assert!(stopped.status.success(), "{who:?}: it can be removed: {}", String::from_utf8_lossy(&stopped.stderr));
    }
}

/// Renamed files are complete, the layer is writable, and an old file has every appended line.
fn check(inside: &Inside<'_>, expected: usize) {
    assert!(expected > 40, "control: {expected} files have their names");
    let report = inside.python(
        "import os, re\n\
         names = [n for n in os.listdir('.') if re.fullmatch(r'[0-2]-[0-9]+', n)]\n\
         broken = [n for n in names if open(n).read() != n[2:] * 1000]\n\
         lines = open('old').read().split('\\n')\n\
         broken += [l for l in lines[1:-1] if l != 'more']\n\
         open('again', 'w').write('yes'); os.rename('again', 'again-2'); os.remove('again-2')\n\
         print(len(names), broken, lines[0])",
        &[],
    );
    assert_eq!(report.trim(), format!("{expected} [] old"));
}

/// Number of files with the writers' final names.
fn numbered(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(['0', '1', '2'])).count()
}

/// Layer directory of the only sandbox, read on the host.
fn top_of(place: &Place) -> std::path::PathBuf {
    let mut layers = fs::read_dir(place.state().join("layers")).unwrap();
    layers.next().unwrap().unwrap().path().join("up")
}

fn count(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

/// Looks for a process with the mark in its command line.
fn runs(mark: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let words = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    words.into_iter().any(|words| String::from_utf8_lossy(&words).contains(mark))
}

#[track_caller]
fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(180);
    while !is() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
