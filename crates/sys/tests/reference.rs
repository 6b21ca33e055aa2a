//! Checks that `docs/reference/syscalls.md` matches the table. `UPDATE_REFERENCE=1 cargo test` rewrites it.

use std::path::Path;

const HEAD: &str = "# System calls

Generated from `crates/sys/src/seccomp/calls.rs`; do not edit.

The filter has four verdicts.

- **allowed**: the call reaches the kernel. Mounts, landlock and namespaces decide what it can do there.
- **refused**: fails with EPERM and is reported as a denial with `op` `syscall`.
- **watched**: mounts, landlock and the empty network decide. The supervisor is notified of the call first, so that a
  refusal can be distinguished from a failure.
- **by argument**: allowed, watched or refused depending on an argument that is a plain number.

A call that is not listed does not exist for a guest (ENOSYS), on any kernel. The same error is returned for
`clone3` and `openat2`, whose flags are in memory that no filter can read; C libraries fall back to `clone` and
`openat`. Calls of another architecture end the process. A policy can refuse more calls (`syscalls.deny`), never fewer.

With `--report-reads` and `policy learn`, opens that only read are watched too; with `policy learn` also calls that only
inspect a path; with `max_open_files` all calls that make a descriptor. Where there are no namespaces (see
[SECURITY.md](../../SECURITY.md)), sockets, queues and changes of metadata are refused as well.
";

fn render() -> String {
    let mut out = String::from(HEAD);
    let mut last = "";
    for (verdict, why, names) in sys::seccomp::table() {
        if verdict != last {
            out.push_str(&format!("\n## {}\n\n| why | calls |\n|---|---|\n", capital(verdict)));
            last = verdict;
        }
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        out.push_str(&format!("| {why} | {} |\n", names.join(", ")));
    }
    out
}

fn capital(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_uppercase() + rest
}

#[test]
fn the_table_of_calls_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/syscalls.md");
    let text = render();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "docs/reference/syscalls.md is old; run this test with UPDATE_REFERENCE=1");
}
