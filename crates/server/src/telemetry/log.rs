//! Log lines for the daemon's operator: JSON, or text on a terminal, on stderr. A thread writes them, so that a slow reader of stderr makes
//! no request wait. `layer` makes them from events of the `tracing` crate.
//!
//! A line never contains a token, a secret, a body or a query string.

use node::config::{LogFormat, LogLevel, Logs};
use serde_json::{Map, Value};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::SystemTime;

/// Maximum number of queued lines.
const MAX_QUEUED: usize = 4096;
/// Maximum length of a line, and of one text in it.
const MAX_LINE: usize = 16 << 10;
const MAX_TEXT: usize = 1024;

/// A log. Cheap to clone.
#[derive(Clone)]
pub struct Log(Arc<Inner>);

struct Inner {
    level: LogLevel,
    json: bool,
    lines: SyncSender<LogItem>,
    dropped: Arc<AtomicU64>,
}

enum LogItem {
    Line(Vec<u8>),
    /// A request for a notification once all previous lines are written.
    Flush(SyncSender<()>),
}

impl Log {
    /// Starts a log to stderr.
    pub fn start(logs: Logs) -> Log {
        let json = match logs.format {
            LogFormat::Json => true,
            LogFormat::Text => false,
            LogFormat::Auto => !std::io::stderr().is_terminal(),
        };
        Log::to(std::io::stderr(), logs.level, json)
    }

    fn to(mut out: impl Write + Send + 'static, level: LogLevel, json: bool) -> Log {
        let (lines, waiting) = sync_channel::<LogItem>(MAX_QUEUED);
        let dropped = Arc::new(AtomicU64::new(0));
        let unread = dropped.clone();
        let writer = move || {
            while let Ok(note) = waiting.recv() {
                match note {
                    // Without a reader lost lines are visible in the metrics only.
                    LogItem::Line(line) => {
                        unread.fetch_add(u64::from(out.write_all(&line).is_err()), Ordering::Relaxed);
                    }
                    LogItem::Flush(done) => drop(done.try_send(())),
                }
            }
        };
        // Without the thread every line is dropped and counted.
        let _ = std::thread::Builder::new().name("log".into()).spawn(writer);
        Log(Arc::new(Inner { level, json, lines, dropped }))
    }

    pub fn is_enabled(&self, level: LogLevel) -> bool {
        level <= self.0.level
    }

    /// Queues a line, unless its level is disabled.
    pub fn line(&self, level: LogLevel, message: &str, fields: &[(&str, Value)]) {
        if !self.is_enabled(level) {
            return;
        }
        let now = terms::clock::timestamp(SystemTime::now());
        let mut line =
            if self.0.json { json(&now, level, message, fields) } else { text(&now, level, message, fields) };
        if line.len() > MAX_LINE {
            line = json(&now, level, message, &[("too_long", true.into())]);
        }
        line.push('\n');
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.0.lines.try_send(LogItem::Line(line.into()))
        {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of dropped lines.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Waits a moment until all queued lines are written, at shutdown.
    pub fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.0.lines.try_send(LogItem::Flush(done)).is_ok() {
            let _ = written.recv_timeout(std::time::Duration::from_millis(500));
        }
    }
}

fn name(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
    }
}

fn json(now: &str, level: LogLevel, message: &str, fields: &[(&str, Value)]) -> String {
    let mut line = Map::new();
    line.insert("time".into(), now.into());
    line.insert("level".into(), name(level).into());
    line.insert("message".into(), shortened(message).into());
    for (key, value) in fields {
        let value = value.as_str().map_or_else(|| value.clone(), |text| shortened(text).into());
        line.insert((*key).into(), value);
    }
    Value::Object(line).to_string()
}

/// Formats `TIME LEVEL message key=value …`; texts of more than a word are quoted, with control characters escaped.
fn text(now: &str, level: LogLevel, message: &str, fields: &[(&str, Value)]) -> String {
    let mut line = format!("{now} {:5} {}", name(level), shortened(message).escape_debug());
    for (key, value) in fields {
        let plain = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && c != '"' && c != '=');
        let shown = match value.as_str() {
            Some(text) if plain(text) => shortened(text).to_owned(),
            Some(text) => format!("{:?}", shortened(text)),
            None => value.to_string(),
        };
        line.push_str(&format!(" {key}={shown}"));
    }
    line
}

fn shortened(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::io::Read;

    /// Returns the lines of a log with level `info`.
    pub fn written(json: bool, tell: impl FnOnce(&Log)) -> String {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let log = Log::to(writer, LogLevel::Info, json);
        tell(&log);
        drop(log);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_line_is_one_document_whatever_is_in_it() {
        let odd = "a\nb\u{1b}[2J\"=";
        let text = written(true, |log| {
            log.line(LogLevel::Info, "request", &[("route", odd.into()), ("ms", 1.5.into())]);
            log.line(LogLevel::Debug, "unheard", &[]);
        });
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 1);
        assert_eq!(
            (&lines[0]["route"], &lines[0]["ms"], &lines[0]["level"]),
            (&odd.into(), &1.5.into(), &"info".into())
        );
        let text = written(false, |log| {
            log.line(LogLevel::Warn, "request", &[("route", odd.into()), ("tenant", "blue".into())])
        });
        assert_eq!(text.lines().count(), 1);
        assert!(text.ends_with("warn  request route=\"a\\nb\\u{1b}[2J\\\"=\" tenant=blue\n"), "{text}");
    }

    #[test]
    fn lines_that_nobody_reads_any_more_are_counted() {
        let (reader, writer) = std::io::pipe().unwrap();
        let log = Log::to(writer, LogLevel::Info, true);
        log.line(LogLevel::Info, "read", &[]);
        log.flush();
        assert_eq!(log.dropped(), 0);
        drop(reader);
        (0..3).for_each(|_| log.line(LogLevel::Info, "unread", &[]));
        log.flush();
        assert_eq!(log.dropped(), 3);
    }

    #[test]
    fn a_reader_that_does_not_read_makes_nobody_wait() {
        let (reader, writer) = std::io::pipe().unwrap();
        let log = Log::to(writer, LogLevel::Info, true);
        let long = "x".repeat(1000);
        (0..2 * MAX_QUEUED).for_each(|_| log.line(LogLevel::Info, &long, &[]));
        assert!(log.dropped() > 0);
        drop(reader);
    }
}
