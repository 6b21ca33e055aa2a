//! Observation of one request: duration, result, log line, metrics and trace span.

use super::Telemetry;
use super::layer::Null;
use super::metrics::AnsweredRequest;
use super::trace::{Attribute, Context, Span, SpanKind, now_ns, within};
use http::{HeaderMap, Method, StatusCode};
use std::time::Instant;
use terms::Fault;
use tracing::field::Value;
use tracing::{Instrument, Level};

/// Label of requests without a route: paths are unbounded, labels must not be.
const NO_ROUTE: &str = "none";
/// Routes that machines poll: logged at `debug` only, and not traced.
const POLLED: [&str; 2] = ["/v1/health", "/v1/metrics"];

/// A request that is being answered.
pub struct ObservedRequest {
    telemetry: Telemetry,
    method: &'static str,
    began: Instant,
    start_ns: u64,
    context: Context,
    parent: Option<[u8; 8]>,
}

/// The end of a request.
pub struct RequestEnd<'a> {
    pub request_id: &'a str,
    /// The template of the matching route.
    pub route: Option<&'a str>,
    /// The tenant of the credential.
    pub tenant: Option<&'a str>,
    pub status: StatusCode,
    pub fault: Option<&'a Fault>,
}

impl ObservedRequest {
    pub fn begin(telemetry: &Telemetry, method: &Method, headers: &HeaderMap) -> ObservedRequest {
        let given = headers.get("traceparent").and_then(|value| Context::parse(value.to_str().ok()?));
        telemetry.metrics().began();
        ObservedRequest {
            telemetry: telemetry.clone(),
            method: method_label(method),
            began: Instant::now(),
            start_ns: now_ns(),
            context: given.map_or_else(Context::begin, Context::below),
            parent: given.map(|context| context.span),
        }
    }

    /// Runs the handler in this request's trace context, with the request's id in its log lines.
    pub async fn run<F: Future>(&self, request_id: &str, work: F) -> F::Output {
        within(self.context, work).instrument(tracing::info_span!("request", request_id)).await
    }

    pub fn end(self, end: &RequestEnd<'_>) {
        let route = end.route.unwrap_or(NO_ROUTE);
        let refused = end.fault.map(|f| (f.error_kind.name(), f.limit_kind.map_or("", |kind| kind.name())));
        let took = self.began.elapsed();
        let (method, status) = (self.method, end.status.as_u16());
        self.telemetry.metrics().request(&AnsweredRequest { method, route: route.into(), status, took, refused });
        self.log(end, route);
        self.span(end, route);
    }

    fn log(&self, end: &RequestEnd<'_>, route: &str) {
        let level = match end.status.as_u16() {
            500.. => Level::ERROR,
            _ if is_polled(route) => Level::DEBUG,
            _ => Level::INFO,
        };
        let ms = (self.began.elapsed().as_secs_f64() * 1e5).round() / 100.0;
        let (request_id, method, status) = (end.request_id, self.method, end.status.as_u16());
        let null = tracing::field::debug(Null);
        let tenant: &dyn Value = end.tenant.as_ref().map_or(&null as &dyn Value, |tenant| tenant);
        let error_kind = end.fault.map(|fault| fault.error_kind.name());
        let limit_kind = end.fault.and_then(|fault| fault.limit_kind).map(|kind| kind.name());
        // A refusal's message may contain the client's data and is not logged; that of a failure of the daemon is.
        let fault = end.fault.filter(|_| end.status.is_server_error()).map(|fault| fault.message.as_str());
        macro_rules! tell {
            ($level:ident) => {
                tracing::$level!(
                    request_id, method, route, status, ms, tenant, error_kind, limit_kind, fault, "request"
                )
            };
        }
        match level {
            Level::ERROR => tell!(error),
            Level::DEBUG => tell!(debug),
            _ => tell!(info),
        }
    }

    fn span(&self, end: &RequestEnd<'_>, route: &str) {
        let Some(spans) = self.telemetry.spans().filter(|_| self.context.sampled && !is_polled(route)) else { return };
        let mut attributes = vec![
            ("http.request.method", Attribute::Text(self.method.into())),
            ("http.route", Attribute::Text(route.into())),
            ("http.response.status_code", Attribute::Count(end.status.as_u16().into())),
            ("cofferdam.request_id", Attribute::Text(end.request_id.into())),
        ];
        attributes.extend(end.tenant.map(|tenant| ("cofferdam.tenant", Attribute::Text(tenant.into()))));
        attributes.extend(end.fault.map(|f| ("error.type", Attribute::Text(f.error_kind.name().into()))));
        spans.put(Span {
            trace: self.context.trace,
            id: self.context.span,
            parent: self.parent,
            name: format!("{} {route}", self.method),
            kind: SpanKind::Server,
            start_ns: self.start_ns,
            end_ns: self.start_ns + self.began.elapsed().as_nanos() as u64,
            attributes,
            error: end.status.is_server_error().then(|| end.status.to_string()),
        });
    }
}

impl Drop for ObservedRequest {
    /// Counts the end, also when the client left before the response.
    fn drop(&mut self) {
        self.telemetry.metrics().ended();
    }
}

fn is_polled(route: &str) -> bool {
    POLLED.iter().any(|quiet| route.starts_with(quiet))
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "OTHER",
    }
}
