//! Traces: spans, their parents, and the `traceparent` header (W3C Trace Context).

use std::time::{SystemTime, UNIX_EPOCH};
use terms::hex;

/// A timed operation of a trace.
#[derive(Clone, Debug)]
pub struct Span {
    pub trace: [u8; 16],
    pub id: [u8; 8],
    pub parent: Option<[u8; 8]>,
    pub name: String,
    pub kind: SpanKind,
    pub start_ns: u64,
    pub end_ns: u64,
    pub attributes: Vec<(&'static str, Attribute)>,
    pub error: Option<String>,
}

/// Span kind, with the numbers of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Internal = 1,
    Server = 2,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    Text(String),
    Count(u64),
}

/// The current position in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    /// The sampled flag of the trace's origin.
    pub sampled: bool,
}

tokio::task_local! {
    static CURRENT: Context;
}

/// Returns the trace context of the request that this task handles.
pub fn current() -> Option<Context> {
    CURRENT.try_with(|context| *context).ok()
}

pub async fn within<F: Future>(context: Context, work: F) -> F::Output {
    CURRENT.scope(context, work).await
}

impl Context {
    /// Starts a new trace.
    pub fn begin() -> Context {
        Context { trace: node::random::id_bytes(), span: new_id(), sampled: true }
    }

    /// Parses `00-TRACE-SPAN-FLAGS`. An invalid header is ignored: a trace is never worth a refusal.
    pub fn parse(header: &str) -> Option<Context> {
        let mut parts = header.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let known = version.len() == 2 && version != "ff" && (version != "00" || parts.next().is_none());
        let (trace, span, flags) = (bytes::<16>(trace)?, bytes::<8>(span)?, bytes::<1>(flags)?);
        bytes::<1>(version)?;
        let real = trace != [0; 16] && span != [0; 8];
        (known && real).then_some(Context { trace, span, sampled: flags[0] & 1 == 1 })
    }

    pub fn header(&self) -> String {
        format!("00-{}-{}-{:02x}", hex::encode(self.trace), hex::encode(self.span), u8::from(self.sampled))
    }

    /// Returns the context of a new child span.
    pub fn below(self) -> Context {
        Context { span: new_id(), ..self }
    }
}

pub fn new_id() -> [u8; 8] {
    let random = node::random::id_bytes();
    let mut id = [0; 8];
    id.copy_from_slice(&random[..8]);
    id
}

pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Decodes an id of `N` bytes; lower case only, as the standard wants it.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_lower = text.len() == 2 * N && !text.bytes().any(|b| b.is_ascii_uppercase());
    hex::decode(text).filter(|_| is_lower)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were() {
        let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = Context::parse(header).unwrap();
        assert_eq!(context.header(), header);
        let below = context.below();
        assert_eq!(below.trace, context.trace);
        assert_ne!(below.span, context.span);
        assert!(Context::parse("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more").is_some());
    }

    #[test]
    fn what_is_no_context_is_none() {
        for header in [
            "",
            "00-0-0-0",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-ébf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            assert_eq!(Context::parse(header), None, "{header:?}");
        }
    }
}
