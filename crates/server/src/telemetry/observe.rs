//! One request as it is seen from outside: how long it took, what came of it, and where in a trace it stands.

use super::Telemetry;
use super::layer::Null;
use super::metrics::Request;
use super::trace::{Attribute, Context, Kind, Span, now_ns, within};
use http::{HeaderMap, Method, StatusCode};
use std::time::Instant;
use terms::Fault;
use tracing::field::Value;
use tracing::{Instrument, Level};

/// The name that is counted for what no route is found for: paths are endless, labels must not be.
const NO_ROUTE: &str = "none";
/// Asked for all day by machines: told at `debug` only, and no trace of it.
const QUIET: [&str; 2] = ["/v1/health", "/v1/metrics"];

/// A request that is being answered.
pub struct Seen {
    telemetry: Telemetry,
    method: &'static str,
    began: Instant,
    start_ns: u64,
    context: Context,
    parent: Option<[u8; 8]>,
}

/// The end of a request.
pub struct Told<'a> {
    pub request_id: &'a str,
    /// The template of the route that was found.
    pub route: Option<&'a str>,
    /// Whose credential it was.
    pub tenant: Option<&'a str>,
    pub status: StatusCode,
    pub fault: Option<&'a Fault>,
}

impl Seen {
    pub fn begin(telemetry: &Telemetry, method: &Method, headers: &HeaderMap) -> Seen {
        let given = headers.get("traceparent").and_then(|value| Context::parse(value.to_str().ok()?));
        telemetry.metrics().began();
        Seen {
            telemetry: telemetry.clone(),
            method: known(method),
            began: Instant::now(),
            start_ns: now_ns(),
            context: given.map_or_else(Context::begin, Context::below),
            parent: given.map(|context| context.span),
        }
    }

    /// Answers it: the work has this request's trace context, and its log lines have the request's id.
    pub async fn during<F: Future>(&self, request_id: &str, work: F) -> F::Output {
        within(self.context, work).instrument(tracing::info_span!("request", request_id)).await
    }

    pub fn end(self, told: &Told<'_>) {
        let route = told.route.unwrap_or(NO_ROUTE);
        let refused = told.fault.map(|f| (f.error_kind.name(), f.limit_kind.map_or("", |kind| kind.name())));
        let took = self.began.elapsed();
        let (method, status) = (self.method, told.status.as_u16());
        self.telemetry.metrics().request(&Request { method, route: route.into(), status, took, refused });
        self.log(told, route);
        self.span(told, route);
    }

    fn log(&self, told: &Told<'_>, route: &str) {
        let level = match told.status.as_u16() {
            500.. => Level::ERROR,
            _ if is_quiet(route) => Level::DEBUG,
            _ => Level::INFO,
        };
        let ms = (self.began.elapsed().as_secs_f64() * 1e5).round() / 100.0;
        let (request_id, method, status) = (told.request_id, self.method, told.status.as_u16());
        let null = tracing::field::debug(Null);
        let tenant: &dyn Value = told.tenant.as_ref().map_or(&null as &dyn Value, |tenant| tenant);
        let error_kind = told.fault.map(|fault| fault.error_kind.name());
        let limit_kind = told.fault.and_then(|fault| fault.limit_kind).map(|kind| kind.name());
        // The message of a refusal is made of the client's own words, and is theirs; that of a failure of the daemon must be known.
        let fault = told.fault.filter(|_| told.status.is_server_error()).map(|fault| fault.message.as_str());
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

    fn span(&self, told: &Told<'_>, route: &str) {
        let Some(spans) = self.telemetry.spans().filter(|_| self.context.sampled && !is_quiet(route)) else { return };
        let mut attributes = vec![
            ("http.request.method", Attribute::Text(self.method.into())),
            ("http.route", Attribute::Text(route.into())),
            ("http.response.status_code", Attribute::Count(told.status.as_u16().into())),
            ("cofferdam.request_id", Attribute::Text(told.request_id.into())),
        ];
        attributes.extend(told.tenant.map(|tenant| ("cofferdam.tenant", Attribute::Text(tenant.into()))));
        attributes.extend(told.fault.map(|f| ("error.type", Attribute::Text(f.error_kind.name().into()))));
        spans.put(Span {
            trace: self.context.trace,
            id: self.context.span,
            parent: self.parent,
            name: format!("{} {route}", self.method),
            kind: Kind::Server,
            start_ns: self.start_ns,
            end_ns: self.start_ns + self.began.elapsed().as_nanos() as u64,
            attributes,
            error: told.status.is_server_error().then(|| told.status.to_string()),
        });
    }
}

impl Drop for Seen {
    /// Also when the client left before there was an answer.
    fn drop(&mut self) {
        self.telemetry.metrics().ended();
    }
}

fn is_quiet(route: &str) -> bool {
    QUIET.iter().any(|quiet| route.starts_with(quiet))
}

fn known(method: &Method) -> &'static str {
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
