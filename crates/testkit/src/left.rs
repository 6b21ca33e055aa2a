//! What may be left of a run when it is over: processes, mounts, control groups.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Processes of the host whose command line or executable holds `marker`, by process id.
pub fn census(marker: &str) -> Vec<i32> {
    let numbers = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let of = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        format!("{} {}", String::from_utf8_lossy(&line), exe.display())
    };
    numbers.filter(|pid| of(*pid).contains(marker)).collect()
}

/// Waits until a condition holds; false when it never does.
pub fn soon(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// All mounts but those in places of other tests that run on this machine.
pub fn mounts() -> String {
    let (all, own) = ("/cofferdam-test-", format!("/cofferdam-test-{}-", std::process::id()));
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    text.lines().filter(|line| !line.contains(all) || line.contains(&own)).map(|line| format!("{line}\n")).collect()
}

/// Control groups of ours whose owner is gone. The name starts with the owner's process id.
pub fn orphaned_groups() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    while let Some((dir, depth)) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|t| t.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            match name.strip_prefix("cofferdam-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok()) {
                Some(owner) if Path::new(&format!("/proc/{owner}")).exists() => {}
                Some(_) => found.push(entry.path()),
                None if depth < 4 => open.push((entry.path(), depth + 1)),
                None => {}
            }
        }
    }
    found
}
