//! Encodes spans and metrics as OTLP: protobuf messages of `opentelemetry-proto`, written field by field. Only messages that the daemon
//! sends are implemented; the tests decode them with the schema itself.

use super::metrics::{BOUNDS, Family, Histogram, MetricKind, Sample, SampleValue};
use super::trace::{Attribute, Span};

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn key(&mut self, field: u32, wire: u32) {
        self.varint(u64::from(field << 3 | wire));
    }

    fn number(&mut self, field: u32, n: u64) {
        self.key(field, 0);
        self.varint(n);
    }

    fn fixed(&mut self, field: u32, n: u64) {
        self.key(field, 1);
        self.0.extend(n.to_le_bytes());
    }

    fn double(&mut self, field: u32, n: f64) {
        self.fixed(field, n.to_bits());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn inner(&mut self, field: u32, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }

    /// Writes a `KeyValue` with an `AnyValue`.
    fn attribute(&mut self, field: u32, name: &str, value: &Attribute) {
        self.inner(field, |pair| {
            pair.text(1, name);
            pair.inner(2, |any| match value {
                Attribute::Text(text) => any.text(1, text),
                Attribute::Count(n) => any.number(3, *n),
            });
        });
    }

    /// Writes the `Resource`: name and version of the service.
    fn resource(&mut self, service: &str) {
        let version = Attribute::Text(env!("CARGO_PKG_VERSION").into());
        self.inner(1, |resource| {
            resource.attribute(1, "service.name", &Attribute::Text(service.into()));
            resource.attribute(1, "service.version", &version);
        });
    }

    fn scope(&mut self) {
        self.inner(1, |scope| {
            scope.text(1, "cofferdam");
            scope.text(2, env!("CARGO_PKG_VERSION"));
        });
    }
}

/// Encodes an `ExportTraceServiceRequest`.
pub fn spans(service: &str, spans: &[Span]) -> Vec<u8> {
    let mut request = Message::default();
    request.inner(1, |of_resource| {
        of_resource.resource(service);
        of_resource.inner(2, |of_scope| {
            of_scope.scope();
            spans.iter().for_each(|one| of_scope.inner(2, |message| span(message, one)));
        });
    });
    request.0
}

fn span(message: &mut Message, span: &Span) {
    message.bytes(1, &span.trace);
    message.bytes(2, &span.id);
    if let Some(parent) = &span.parent {
        message.bytes(4, parent);
    }
    message.text(5, &span.name);
    message.number(6, span.kind as u64);
    message.fixed(7, span.start_ns);
    message.fixed(8, span.end_ns);
    span.attributes.iter().for_each(|(name, value)| message.attribute(9, name, value));
    if let Some(why) = &span.error {
        // STATUS_CODE_ERROR
        message.inner(15, |status| {
            status.text(2, why);
            status.number(3, 2);
        });
    }
}

/// Encodes an `ExportMetricsServiceRequest`: cumulative values from `start_ns` to `now_ns`.
pub fn metrics(service: &str, families: &[Family], start_ns: u64, now_ns: u64) -> Vec<u8> {
    let mut request = Message::default();
    request.inner(1, |of_resource| {
        of_resource.resource(service);
        of_resource.inner(2, |of_scope| {
            of_scope.scope();
            for family in families.iter().filter(|family| !family.samples.is_empty()) {
                of_scope.inner(2, |message| metric(message, family, start_ns, now_ns));
            }
        });
    });
    request.0
}

/// AGGREGATION_TEMPORALITY_CUMULATIVE
const SINCE_START: u64 = 2;

fn metric(message: &mut Message, family: &Family, start_ns: u64, now_ns: u64) {
    message.text(1, family.name);
    message.text(2, family.help);
    let points = |data: &mut Message| {
        for sample in &family.samples {
            match &sample.amount {
                SampleValue::Number(n) => data.inner(1, |point| number_point(point, sample, *n, start_ns, now_ns)),
                SampleValue::Histogram(spread) => {
                    data.inner(1, |point| spread_point(point, sample, spread, start_ns, now_ns))
                }
            }
        }
    };
    match family.kind {
        MetricKind::Gauge => message.inner(5, points),
        MetricKind::Counter => message.inner(7, |sum| {
            points(sum);
            sum.number(2, SINCE_START);
            sum.number(3, 1);
        }),
        MetricKind::Histogram => message.inner(9, |histogram| {
            points(histogram);
            histogram.number(2, SINCE_START);
        }),
    }
}

fn number_point(point: &mut Message, sample: &Sample, n: f64, start_ns: u64, now_ns: u64) {
    point.fixed(2, start_ns);
    point.fixed(3, now_ns);
    point.double(4, n);
    sample.labels.iter().for_each(|(name, value)| point.attribute(7, name, &Attribute::Text(value.clone())));
}

fn spread_point(point: &mut Message, sample: &Sample, spread: &Histogram, start_ns: u64, now_ns: u64) {
    point.fixed(2, start_ns);
    point.fixed(3, now_ns);
    point.fixed(4, spread.count());
    point.double(5, spread.sum);
    let packed: Vec<u8> = spread.counts.iter().flat_map(|n| n.to_le_bytes()).collect();
    point.bytes(6, &packed);
    let packed: Vec<u8> = BOUNDS.iter().flat_map(|bound| bound.to_le_bytes()).collect();
    point.bytes(7, &packed);
    sample.labels.iter().for_each(|(name, value)| point.attribute(9, name, &Attribute::Text(value.clone())));
}
