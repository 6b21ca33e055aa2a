//! Leftovers of a run: processes, mounts, control groups.

use super::Place;
use super::patience::PATIENCE;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Returns the pids of processes on the host whose command line or executable contains `marker`.
pub fn census(marker: &str) -> Vec<i32> {
    let numbers = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let of = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        format!("{} {}", String::from_utf8_lossy(&line), exe.display())
    };
    numbers.filter(|pid| of(*pid).contains(marker)).collect()
}

/// Waits until a condition holds; false if it does not within `PATIENCE`.
pub fn soon(mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
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

/// Returns the mounts of the host, except those of other tests, which come and go meanwhile, in this process and in
/// others.
pub fn mounts(place: &Place) -> String {
    const OTHERS: [&str; 3] = ["/cofferdam-test-", "/cofferdam-store-", "/target/tmp/"];
    let own = place.root.to_str().unwrap();
    // A plain prefix comparison would confuse the places 1 and 12.
    let is_own = |line: &str| line.split([' ', ',', ':', '=']).any(|word| Path::new(word).starts_with(own));
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let counts = |line: &&str| is_own(line) || !OTHERS.iter().any(|other| line.contains(other));
    text.lines().filter(counts).map(|line| format!("{line}\n")).collect()
}

/// Returns control groups of ours whose owner is gone. The name starts with the owner's pid.
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
