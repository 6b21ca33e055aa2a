//! Process trees.

use std::fs;

/// Returns the children of all threads of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.flat_map(|t| of(t).split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// Returns true if the process is pid 1 of a pid namespace.
pub fn is_first(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("NSpid:") && line.split_whitespace().nth(2) == Some("1"))
}

/// Returns the pid 1 of the guest of a supervisor or keeper.
pub fn first_of(keeper: u32) -> Option<u32> {
    children(keeper).into_iter().find(|pid| is_first(*pid))
}
