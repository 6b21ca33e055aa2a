//! Server-sent events, as a browser reads them.

use super::patience::Until;
use serde_json::Value;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub struct Event {
    pub name: String,
    pub id: String,
    pub data: Value,
}

/// Parses the events of a chunked response, as far as it arrived.
pub fn events(text: &str) -> Vec<Event> {
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let mut plain = String::new();
    let mut rest = body;
    while let Some((size, after)) = rest.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size, 16) else { break };
        if size == 0 || after.len() < size {
            break;
        }
        plain += &after[..size];
        rest = after[size..].trim_start_matches("\r\n");
    }
    let field = |block: &str, name: &str| {
        let found = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned));
        found.unwrap_or_default()
    };
    let of = |block: &str| Event {
        name: field(block, "event"),
        id: field(block, "id"),
        data: serde_json::from_str(&field(block, "data")).unwrap_or_default(),
    };
    // An event without a final empty line was cut off and does not count.
    let whole = plain.rfind("\n\n").map_or("", |end| &plain[..end]);
    whole.split("\n\n").filter(|block| block.contains("event:")).map(of).collect()
}

/// Concatenates the output of one stream.
pub fn said(events: &[Event], stream: &str) -> String {
    events.iter().filter(|e| e.name == stream).map(|e| e.data["data"].as_str().unwrap()).collect()
}

/// Reads the output of a run to its end, across restarts of the server: resumes after the last complete event. `None`
/// if the run is unknown or does not end in time.
pub fn read_along(ask: &dyn Fn(&str) -> Option<UnixStream>, limit: Duration) -> Option<Vec<Event>> {
    let (mut all, begun): (Vec<Event>, _) = (Vec::new(), Instant::now());
    while begun.elapsed() < limit {
        let seen = all.iter().rfind(|event| !event.id.is_empty());
        let last = seen.map_or(String::new(), |last| format!("last-event-id: {}\r\n", last.id));
        let Some(stream) = ask(&last) else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let mut bytes = Vec::new();
        let _ = Until(stream, begun + limit).read_to_end(&mut bytes); // a stream that was cut off is resumed
        let text = String::from_utf8_lossy(&bytes);
        if text.contains("\"error_kind\":\"not_found\"") {
            return None;
        }
        // Events of the daemon itself are not part of the run.
        all.extend(events(&text).into_iter().filter(|event| !event.id.is_empty() || event.name == "end"));
        if all.last().is_some_and(|last| last.name == "end") {
            return Some(all);
        }
    }
    None
}
