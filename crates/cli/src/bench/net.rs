//! The page of `cofferdam bench --net`.

use crate::render;
use bench::{NetContender, NetReport};
use std::fmt::Write as _;

pub fn page(answer: &NetReport) -> String {
    let mut text = String::new();
    let NetReport { rounds, connections_a_round, bulk_rounds, kernel, cpus, load, .. } = answer;
    let mib = answer.bulk_bytes / (1024 * 1024);
    let _ = writeln!(
        text,
        "{rounds} rounds of {connections_a_round} fresh connections and {bulk_rounds} of one download of {mib} MiB, every \
         contender once a round in shuffled order, after one to warm up; plain HTTP on 127.0.0.1, curl's own clock; Linux \
         {kernel}, {cpus} cpus, load {load}\n"
    );
    let _ = writeln!(
        text,
        "{:<22}{:>16}{:>12}{:>12}{:>14}",
        "connect to first byte", "p50 µs", "p95 µs", "p99 µs", "bulk MB/s"
    );
    answer.contenders.iter().for_each(|contender| row(&mut text, contender));
    let _ = writeln!(text, "\n{:<38}{:>14}{:>14}{:>10}", "ratio", "first byte", "more µs", "bulk");
    for ratio in &answer.ratios {
        let (first, more, bulk) = (ratio.first_byte, ratio.first_byte_more_us, ratio.bulk);
        let _ = writeln!(text, "{:<38}{first:>12.2} ×{more:>14.0}{bulk:>8.2} ×", ratio.name);
    }
    let _ = writeln!(
        text,
        "\n{:<26}{:>12}{:>12}{:>12}{:>12}",
        "supervisor's resident kB", "before", "with them", "with again", "after"
    );
    for held in &answer.held {
        let name = format!("{} × {}", held.name, held.connections);
        let _ = match (&held.resident_kb, &held.absent) {
            (Some(kb), _) => {
                let (before, first, second, after) = (kb.before, kb.with_first, kb.with_second, kb.after);
                writeln!(text, "{name:<26}{before:>12}{first:>12}{second:>12}{after:>12}")
            }
            (None, why) => left_out(&mut text, &name, why.as_deref()),
        };
    }
    text
}

fn row(text: &mut String, contender: &NetContender) {
    let _ = match (&contender.first_byte_us, contender.bulk_mb_s) {
        (Some(us), Some(rate)) => {
            let name = contender.name;
            let version = contender.version.as_ref().map(|v| format!("  version {}", render::safe(v)));
            let failed = Some(contender.failed).filter(|n| *n > 0).map(|n| format!("  {n} transfers failed"));
            let notes: String = version.into_iter().chain(failed).collect();
            writeln!(text, "{name:<22}{:>16.0}{:>12.0}{:>12.0}{rate:>14.0}{notes}", us.p50, us.p95, us.p99)
        }
        _ => left_out(text, contender.name, contender.absent.as_deref()),
    };
}

fn left_out(text: &mut String, name: &str, why: Option<&str>) -> std::fmt::Result {
    writeln!(text, "{name:<26}  left out: {}", render::safe(why.unwrap_or("not measured")))
}
