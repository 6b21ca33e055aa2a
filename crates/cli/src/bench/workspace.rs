//! The page of `cofferdam bench --workspace`.

use crate::render;
use bench::{WorkspaceReport, WorkspaceRow};
use std::fmt::Write as _;

pub fn page(answer: &WorkspaceReport) -> String {
    let mut text = String::new();
    let WorkspaceReport { rounds, kernel, cpus, .. } = answer;
    let _ = writeln!(text, "{rounds} rounds, every step once a round by each; Linux {kernel}, {cpus} cpus\n");
    let _ = writeln!(text, "{:<28}{:<18}{:>9}{:>12}{:>12}", "step", "by", "files", "p50 ms", "p95 ms");
    for row in &answer.rows {
        let WorkspaceRow { step, who, files, us, absent } = row;
        let _ = match us {
            Some(us) => {
                let (p50, p95) = (us.p50 / 1000.0, us.p95 / 1000.0);
                writeln!(text, "{step:<28}{who:<18}{files:>9}{p50:>12.2}{p95:>12.2}")
            }
            None => {
                let why = absent.as_deref().unwrap_or("not measured");
                writeln!(text, "{step:<28}{who:<18}{files:>9}  left out: {}", render::safe(why))
            }
        };
    }
    let _ = writeln!(text, "\n{:<74}{:>8}", "ratio of medians", "");
    for ratio in &answer.ratios {
        let _ = writeln!(text, "{:<74}{:>6.2} ×", ratio.name, ratio.p50);
    }
    text
}
