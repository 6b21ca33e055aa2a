//! `cofferdam top`: usage of sandboxes with and without a keeper; for people, for pipes, as JSON.

use crate::daemon::{Running, until};
use crate::support::terminal::at_terminal;
use crate::support::{As, Place, binary, either, to_the_end};
use serde_json::Value;

fn json(place: &Place, args: &[&str]) -> Value {
    let output = to_the_end(place.cofferdam(args).arg("--json"), b"");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{args:?}: {e}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn row(place: &Place, id: &str) -> Value {
    let look = json(place, &["top"]);
    let found = look["sandboxes"].as_array().unwrap().iter().find(|row| row["id"] == id).cloned();
    found.unwrap_or_else(|| panic!("{id} is there: {look:#}"))
}

#[test]
fn what_is_busy_is_told_with_a_keeper_and_without() {
    const BUSY: &str = "while :; do :; done";
    for who in either() {
        let place = Place::new(who);
        let idle = json(&place, &["create", "--name", "idle"])["id"].as_str().unwrap().to_owned();
        let alone = json(&place, &["create"])["id"].as_str().unwrap().to_owned();
        let kept = json(&place, &["create"])["id"].as_str().unwrap().to_owned();
        let mut run = Running::begin(place.cofferdam(["exec", &alone, "--", "sh", "-c", BUSY]));
        let detached = to_the_end(&mut place.cofferdam(["exec", "-d", &kept, "--", "sh", "-c", BUSY]), b"");
        assert!(detached.status.success(), "{}", String::from_utf8_lossy(&detached.stderr));
        let works = |row: &Value| {
            row["runs"] == 1 && row["cpu_percent"].as_f64().unwrap() > 1.0 && row["memory_bytes"].as_u64().unwrap() > 0
        };
        let found = until("the run without a keeper", || Some(row(&place, &alone)).filter(works));
        assert_eq!((&found["live"], &found["state"]), (&false.into(), &"running".into()), "{found:#}");
        let found = until("the run with one", || Some(row(&place, &kept)).filter(works));
        assert_eq!(found["live"], true, "{found:#}");
        assert!(found["net_bytes"].is_u64() && found["processes"].as_u64().unwrap() > 0, "{found:#}");
        let found = row(&place, &idle);
        assert_eq!((&found["runs"], &found["cpu_percent"]), (&0.into(), &0.0.into()), "{found:#}");
        // In a pipe the output is one table without terminal control sequences.
        let table = to_the_end(&mut place.cofferdam(["top"]), b"");
        let table = String::from_utf8(table.stdout).unwrap();
        assert!(table.starts_with("SANDBOX") && table.contains("idle") && !table.contains('\x1b'), "{table}");
        assert_eq!(table.lines().count(), 4);
        for id in [&alone, &kept] {
            json(&place, &["stop", id, "-t", "0"]);
        }
        run.0.wait().unwrap();
        assert_eq!(json(&place, &["fsck"])["problems"], Value::Array(Vec::new()));
    }
}

/// Width of a text in terminal cells, for the characters used here.
fn cells(text: &str) -> usize {
    text.chars().map(|c| if ('\u{3000}'..'\u{a000}').contains(&c) { 2 } else { 1 }).sum()
}

#[test]
fn it_fits_the_window_and_follows_it() {
    let place = Place::new(As::User);
    let long = "n".repeat(60);
    for name in ["日本語の箱", "plain", &long] {
        json(&place, &["create", "--name", name]);
    }
    let steps = serde_json::json!([
        ["expect", "SANDBOX"],
        ["resize", 16, 40],
        ["expect", "\u{1b}[H"],
        ["expect", "\u{1b}[H"],
        ["expect", "\u{1b}[H"],
        ["signal", 2]
    ]);
    let seen = at_terminal(&place, &["top", "-d", "100ms"], steps);
    let drawn: Vec<&str> = seen.text.split("\u{1b}[H\u{1b}[J").filter(|part| part.contains("plain")).collect();
    let widest = |part: &&str| part.lines().map(|line| cells(line.trim_end())).max().unwrap();
    assert!(drawn.first().is_some_and(|part| widest(part) <= 97 && part.contains("NET")), "{:?}", seen.text);
    assert!(drawn.iter().any(|part| widest(part) <= 40), "it follows: {:?}", seen.text);
    // Columns are aligned for wide characters, in a pipe, too.
    for words in [&["ls"][..], &["top"]] {
        let table = to_the_end(&mut place.cofferdam(words), b"");
        let table = String::from_utf8(table.stdout).unwrap();
        let at = |line: &str| cells(line.split("active").next().unwrap());
        let rows: Vec<usize> = table.lines().skip(1).map(at).collect();
        assert!(rows.len() == 3 && rows.iter().all(|row| *row == rows[0]), "{table}");
        assert!(table.contains(&long), "nothing is cut for a pipe: {table}");
    }
}

#[test]
fn on_a_terminal_it_goes_on() {
    let place = Place::new(As::User);
    json(&place, &["create", "--name", "seen"]);
    let line = format!("{} top -d 100ms", binary().display());
    let mut command = place.outside("timeout");
    let output = to_the_end(command.args(["-s", "INT", "2", "script", "-qec", &line, "/dev/null"]), b"");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.matches("\x1b[H\x1b[J").count() > 2 && text.contains("seen"), "{text:?}");
}
