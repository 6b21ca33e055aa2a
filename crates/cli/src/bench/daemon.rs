//! The page of `cofferdam bench --daemon`.

use bench::{Count, DaemonReport, Growth, Idle, LoadRow, Weight};
use std::fmt::Write as _;

pub fn page(answer: &DaemonReport) -> String {
    let mut text = String::new();
    let DaemonReport { command, unit_us, kernel, cpus, load, .. } = answer;
    let _ = writeln!(
        text,
        "a daemon as a second process, asked over its socket; the unit is start to end of {command} without us, {:.0} µs \
         at p50 in this run; Linux {kernel}, {cpus} cpus, load {load}\n",
        unit_us.p50
    );
    let _ = writeln!(
        text,
        "{:<28}{:>8}{:>8}{:>12}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "", "clients", "times", "a second", "p50 ms", "p95 ms", "p99 ms", "units", "p99/p50"
    );
    for LoadRow { name, clients, times, per_second, us, units, p99_by_p50 } in &answer.rows {
        let [p50, p95, p99] = [us.p50, us.p95, us.p99].map(|us| us / 1000.0);
        let _ = writeln!(
            text,
            "{name:<28}{clients:>8}{times:>8}{per_second:>12.1}{p50:>10.2}{p95:>10.2}{p99:>10.2}{units:>8.1} ×{p99_by_p50:>8.1} ×"
        );
    }
    idle(&mut text, &answer.idle);
    growth(&mut text, &answer.growth);
    text
}

fn idle(text: &mut String, idle: &Idle) {
    let _ = writeln!(text, "\n{} idle live sandboxes, each on average:", idle.sandboxes);
    for (what, figure, unit) in [
        ("made and live in a second", idle.per_second, ""),
        ("processes", idle.processes_each, ""),
        ("threads", idle.threads_each, ""),
        ("resident, its share of all pages", idle.pss_kb_each, " kB"),
        ("resident, pages of its own alone", idle.anon_kb_each, " kB"),
        ("descriptors of its keeper", idle.keeper_descriptors_each, ""),
        ("descriptors of the daemon", idle.daemon_descriptors_each, ""),
        ("the daemon's own memory", idle.daemon_anon_kb_each, " kB"),
    ] {
        let _ = writeln!(text, "  {what:<38}{figure:>10.1}{unit}");
    }
}

fn growth(text: &mut String, growth: &Growth) {
    let Growth { cycles, failed, seconds, before, after, early, late, .. } = growth;
    let _ = writeln!(
        text,
        "\n{cycles} cycles of create, command and delete in {seconds:.1} s, {failed} failed; left behind:"
    );
    type Left = fn(&Count) -> u64;
    let rows: [(&str, Left); 8] = [
        ("mounts", |c| c.mounts as u64),
        ("control groups", |c| c.cgroups as u64),
        ("processes", |c| c.processes as u64),
        ("descriptors of the daemon", |c| c.daemon_descriptors as u64),
        ("places of keepers", |c| c.keepers as u64),
        ("layers", |c| c.layers as u64),
        ("bases", |c| c.bases as u64),
        ("sandboxes", |c| c.sandboxes),
    ];
    let _ = writeln!(text, "  {:<38}{:>10}{:>10}", "", "before", "after");
    for (name, count) in rows {
        let differs = if count(before) == count(after) { "" } else { "  differs" };
        let _ = writeln!(text, "  {name:<38}{:>10}{:>10}{differs}", count(before), count(after));
    }
    type Grown = fn(&Weight) -> u64;
    let rows: [(&str, Grown); 6] = [
        ("the daemon's own memory, kB", |w| w.daemon_anon_kb),
        ("its threads", |w| w.daemon_threads),
        ("records of runs", |w| w.runs),
        ("tombstones", |w| w.tombstones),
        ("entries of the journal", |w| w.journal_entries),
        ("the store, bytes", |w| w.store_bytes),
    ];
    let _ = writeln!(text, "  {:<38}{:>12}{:>12}", "", "a tenth in", "at the end");
    for (name, weight) in rows {
        let _ = writeln!(text, "  {name:<38}{:>12}{:>12}", weight(early), weight(late));
    }
}
