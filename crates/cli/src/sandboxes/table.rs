//! Tables for people: columns, short ids, sizes and relative times.

use super::cells;
use crate::render;
use std::io::Write;

/// Separator of columns.
const BETWEEN: &str = "  ";
/// Minimum width of a column.
const LEAST: usize = 8;

pub struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&'static str]) -> Table {
        Table { head: head.to_vec(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| render::safe(cell)).collect());
    }

    /// Prints every column as wide as its widest cell, except for the last.
    pub fn print(&self) {
        self.write(&self.widths(), usize::MAX);
    }

    /// Prints a table for a terminal of `most` cells: one column is narrowed for the others, and longer lines are cut.
    pub fn print_within(&self, most: usize, gives_way: usize) {
        let mut widths = self.widths();
        let whole = widths.iter().sum::<usize>() + BETWEEN.len() * widths.len().saturating_sub(1);
        let least = LEAST.min(widths[gives_way]);
        widths[gives_way] = widths[gives_way].saturating_sub(whole.saturating_sub(most)).max(least);
        self.write(&widths, most);
    }

    fn widths(&self) -> Vec<usize> {
        let wide = |(i, head): (usize, &&str)| {
            let cells = self.rows.iter().filter_map(|row| row.get(i)).map(|cell| cells::width(cell));
            cells.max().unwrap_or(0).max(cells::width(head))
        };
        self.head.iter().enumerate().map(wide).collect()
    }

    fn write(&self, widths: &[usize], most: usize) {
        let head: Vec<String> = self.head.iter().map(|h| (*h).to_owned()).collect();
        let mut out = crate::stdout::lock();
        for row in std::iter::once(&head).chain(&self.rows) {
            let cells = row.iter().zip(widths);
            let cells = cells.map(|(cell, width)| cells::padded(&cells::shortened(cell, *width), *width));
            let line = cells.collect::<Vec<_>>().join(BETWEEN);
            // A reader that left early is no error of ours.
            if writeln!(out, "{}", cells::cut(line.trim_end(), most)).is_err() {
                return;
            }
        }
    }
}

/// Shortens an id to a prefix that people type; any unique prefix is accepted.
pub fn short(id: &str) -> String {
    id.char_indices().nth(16).map_or(id, |(end, _)| &id[..end]).to_owned()
}

pub fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut amount, mut unit) = (count as f64, 0);
    while amount >= 1024.0 && unit + 1 < units.len() {
        (amount, unit) = (amount / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{count} B") } else { format!("{amount:.1} {}", units[unit]) }
}

/// Formats the time since `at_ms`.
pub fn ago(at_ms: u64, now_ms: u64) -> String {
    format!("{} ago", span(now_ms.saturating_sub(at_ms)))
}

/// Formats the time since `at_ms` without a word beside it.
pub fn age(at_ms: u64, now_ms: u64) -> String {
    span(now_ms.saturating_sub(at_ms))
}

/// Formats the time until `at_ms`, rounded: a lifetime of seven days that began a while ago shows as seven days.
pub fn from_now(at_ms: u64, now_ms: u64) -> String {
    let left = at_ms.saturating_sub(now_ms);
    format!("in {}", span(left + unit(left).0 * 500))
}

fn span(ms: u64) -> String {
    let (seconds, name) = unit(ms);
    format!("{}{name}", ms / 1000 / seconds)
}

/// Returns the unit for a duration: its length in seconds, and its name.
fn unit(ms: u64) -> (u64, &'static str) {
    match ms / 1000 {
        0..120 => (1, "s"),
        120..7_200 => (60, "m"),
        7_200..172_800 => (3600, "h"),
        _ => (86_400, "d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_at_a_glance() {
        for (count, want) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")] {
            assert_eq!(bytes(count), want);
        }
        for (ms, want) in [(0, "0s"), (119_000, "119s"), (120_000, "2m"), (7_200_000, "2h"), (604_800_000, "7d")] {
            assert_eq!(span(ms), want);
        }
        const DAY: u64 = 86_400_000;
        for (left, want) in [(7 * DAY - 90_000, "in 7d"), (6 * DAY + DAY / 4, "in 6d"), (DAY, "in 24h"), (400, "in 0s")]
        {
            assert_eq!(from_now(left, 0), want);
        }
    }
}
