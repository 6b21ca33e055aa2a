//! Writes events of the `tracing` crate as log lines. An event of this crate becomes one line, with its own fields and those of the
//! enclosing spans (`request`, `verb`). Events of libraries are not logged: their fields could hold secrets.
//!
//! Fields keep their type: text, number, boolean. `Null` is a field without a value; a field that is `None` is omitted.

use super::log::Log;
use node::config::LogLevel;
use serde_json::Value;
use std::fmt;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

/// The crate whose events are logged.
const OURS: &str = "server";
/// The field in which the macros put the text of an event.
const MESSAGE: &str = "message";

/// A field without a value, e.g. the tenant of a request without a credential: `tenant = ?Null`.
pub struct Null;

impl fmt::Debug for Null {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("null")
    }
}

/// Writes events to a log.
pub struct LogLayer(Log);

impl LogLayer {
    /// Returns a subscriber that writes to this log.
    pub fn subscriber(log: Log) -> impl Subscriber + Send + Sync {
        Registry::default().with(LogLayer(log))
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let is_ours = metadata.target().split("::").next() == Some(OURS);
        is_ours && (metadata.is_span() || self.0.is_enabled(level(*metadata.level())))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = RecordedFields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = RecordedFields::default();
        event.record(&mut fields);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(of_span) = span.extensions().get::<RecordedFields>() {
                fields.add(of_span);
            }
        }
        self.0.line(level(*event.metadata().level()), &fields.message, &fields.named);
    }
}

fn level(level: Level) -> LogLevel {
    match level {
        Level::ERROR => LogLevel::Error,
        Level::WARN => LogLevel::Warn,
        Level::INFO => LogLevel::Info,
        Level::DEBUG | Level::TRACE => LogLevel::Debug,
    }
}

/// Fields of an event or a span, in their order.
#[derive(Default)]
struct RecordedFields {
    message: String,
    named: Vec<(&'static str, Value)>,
}

impl RecordedFields {
    /// Adds the fields of an enclosing span; inner fields of the same name win.
    fn add(&mut self, around: &RecordedFields) {
        for (name, value) in &around.named {
            if !self.named.iter().any(|(known, _)| known == name) {
                self.named.push((name, value.clone()));
            }
        }
    }

    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.named.push((field.name(), value.into()));
    }
}

impl Visit for RecordedFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        match field.name() {
            MESSAGE => self.message = text,
            _ if text == "null" => self.put(field, Value::Null),
            _ => self.put(field, text),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            MESSAGE => self.message = value.to_owned(),
            _ => self.put(field, value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::tests::written;
    use super::*;

    fn told(json: bool, tell: impl FnOnce()) -> String {
        written(json, |log| tracing::subscriber::with_default(LogLayer::subscriber(log.clone()), tell))
    }

    #[test]
    fn an_event_is_the_line_that_it_always_was() {
        let tell = || {
            let (tenant, fault) = (Some("blue"), None::<&str>);
            tracing::info!(route = "/v1/health", status = 200_u16, ms = 1.5, tenant, fault, "request");
            tracing::warn!(tenant = ?Null, open = 3_usize, "the daemon ends");
        };
        let text = told(true, tell);
        let lines: Vec<&str> = text.lines().map(|line| line.split_once(",\"time\"").unwrap().0).collect();
        assert!(
            lines[0].starts_with(r#"{"level":"info","message":"request","ms":1.5,"route":"/v1/health","status":200"#)
        );
        assert!(text.lines().next().unwrap().contains(r#""tenant":"blue""#) && !text.contains("fault"), "{text}");
        assert_eq!(lines[1], r#"{"level":"warn","message":"the daemon ends","open":3,"tenant":null"#);
        let text = told(false, tell);
        let lines: Vec<&str> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
        let first = "info  request route=/v1/health status=200 ms=1.5 tenant=blue";
        assert_eq!(lines, [first, "warn  the daemon ends tenant=null open=3"]);
    }

    #[test]
    fn lines_have_the_fields_of_the_spans_around() {
        let text = told(false, || {
            let request = tracing::info_span!("request", request_id = "req_1", tenant = "far");
            let verb = request.in_scope(|| tracing::debug_span!("verb", tenant = "near"));
            verb.in_scope(|| tracing::info!(count = 1, "inside"));
            tracing::info!("outside");
        });
        let lines: Vec<&str> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
        assert_eq!(lines, ["info  inside count=1 tenant=near request_id=req_1", "info  outside"]);
    }

    #[test]
    fn neither_libraries_nor_lower_levels_are_told() {
        let text = told(false, || {
            tracing::error!(target: "h2::codec", "a library");
            tracing::error!(target: "serverless", "another");
            tracing::debug!("too low");
            tracing::error!("the control");
        });
        assert!(text.ends_with("error the control\n") && text.lines().count() == 1, "{text}");
    }
}
