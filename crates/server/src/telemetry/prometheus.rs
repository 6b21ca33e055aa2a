//! Encodes metrics in the text format of Prometheus, version 0.0.4.

use super::metrics::{BOUNDS, Family, Histogram, MetricKind, Sample, SampleValue};
use std::fmt::Write;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub fn text(families: &[Family]) -> String {
    let mut out = String::new();
    for family in families {
        let kind = match family.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let _ = writeln!(out, "# HELP {} {}\n# TYPE {} {kind}", family.name, family.help, family.name);
        for sample in &family.samples {
            match &sample.amount {
                SampleValue::Number(number) => line(&mut out, family.name, sample, None, *number),
                SampleValue::Histogram(spread) => histogram(&mut out, family.name, sample, spread),
            }
        }
    }
    out
}

fn histogram(out: &mut String, name: &str, sample: &Sample, spread: &Histogram) {
    let bounds = BOUNDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
    let mut below = 0;
    for (bound, count) in bounds.zip(spread.counts) {
        below += count;
        line(out, &format!("{name}_bucket"), sample, Some(&bound), below as f64);
    }
    line(out, &format!("{name}_sum"), sample, None, spread.sum);
    line(out, &format!("{name}_count"), sample, None, spread.count() as f64);
}

fn line(out: &mut String, name: &str, sample: &Sample, bound: Option<&str>, number: f64) {
    let labels = sample.labels.iter().map(|(name, value)| (*name, value.as_str())).chain(bound.map(|b| ("le", b)));
    let labels: Vec<String> = labels.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    let _ = writeln!(out, "{name}{labels} {number}");
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
