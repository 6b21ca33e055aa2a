//! The page of `cofferdam bench --code`.

use crate::render;
use bench::{CallRow, CodeReport, MemoryRow, OutputRow, WriteRow};
use std::fmt::Write as _;

pub fn page(answer: &CodeReport) -> String {
    let mut text = String::new();
    let CodeReport { rounds, kernel, cpus, load, .. } = answer;
    let _ = writeln!(
        text,
        "{rounds} rounds, every contender once a round in shuffled order; Linux {kernel}, {cpus} cpus, load {load}\n"
    );
    let heads = ["p50 µs", "p95 µs", "p99 µs", "Jupyter takes"];
    let _ = writeln!(text, "{:<22}{:>12}{:>12}{:>12}{:>16}", "1+1", heads[0], heads[1], heads[2], heads[3]);
    for CallRow { name, us, faster_than_jupyter, absent } in &answer.calls {
        let _ = match (us, absent) {
            (Some(us), _) => {
                let faster = faster_than_jupyter.map(|times| format!("{times:.1} ×")).unwrap_or_default();
                writeln!(text, "{name:<22}{:>12.0}{:>12.0}{:>12.0}{faster:>16}", us.p50, us.p95, us.p99)
            }
            (None, why) => {
                let why = why.as_deref().unwrap_or("not measured");
                writeln!(text, "{name:<22}  left out: {}", render::safe(why))
            }
        };
    }
    let OutputRow { mib, rings_gb_per_s, pipe_gb_per_s, ratio } = &answer.output;
    let _ = writeln!(
        text,
        "\n{mib} MiB of output: {rings_gb_per_s:.2} GB/s over the rings, {pipe_gb_per_s:.2} GB/s through a pipe of a process outside ({ratio:.2} ×)"
    );
    let WriteRow { files, worker_us_each, command_us_each, ratio } = &answer.writes;
    let _ = writeln!(
        text,
        "{files} files of 4 KiB: {worker_us_each:.1} µs each in the interpreter, {command_us_each:.1} µs in a command ({ratio:.2} ×)"
    );
    let MemoryRow { worker_kb, plain_kb } = &answer.memory;
    let _ = writeln!(text, "resident memory: {worker_kb} kB, of a Python that does nothing {plain_kb} kB");
    text
}
