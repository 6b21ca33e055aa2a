//! Proxies HTTP/1.1 and WebSockets to a port inside a sandbox. Responses of a guest are untrusted:
//!
//! - the guest never gets a credential of the daemon (`front` removes it), nor hop-by-hop headers;
//! - a page of the guest has an opaque origin (CSP `sandbox`), so that it cannot read anything else from the daemon's address, and no
//!   route accepts a credential that a browser sends by itself;
//! - cookies and redirects of the guest stay below its own path (`confine`), and headers that apply to a whole origin are removed.
mod confine;

use self::confine::Redirect;
use crate::gate;
use crate::refuse::{FromGuest, Refusal};
use crate::tasks::{Task, TaskKind};
use crate::{Principal, Shared};
use api::Scope;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::Response;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{StatusCode, Uri, Version};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Phase, Retry};
use tokio::net::TcpStream;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Time for a guest to begin its response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time to wait for a listener in a sandbox that this request woke, and the interval of attempts.
const WAKE_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum size of the head of a response.
const MAX_HEAD: usize = 64 << 10;
/// Maximum lifetime of a tunnel.
const MAX_TUNNEL: Duration = Duration::from_secs(24 * 3600);

/// Defines one handler per method: each is an OpenAPI operation of its own. HEAD is served by GET.
macro_rules! port_routes {
    ($(($name:ident, $top:ident, $method:ident, $about:literal)),+ $(,)?) => {
        pub fn routes() -> OpenApiRouter<Shared> {
            OpenApiRouter::new().routes(routes!($($name),+)).routes(routes!($($top),+))
        }

        $(
            #[doc = $about]
            #[utoipa::path($method, path = "/v1/sandboxes/{id}/ports/{port}/{*rest}", tag = "ports",
                params(("id" = String, Path), ("port" = u16, Path), ("*rest" = String, Path, description = "The path of the guest.")),
                responses((status = 200, description = "The guest's response, with any status."),
                    (status = 101, description = "The guest switched protocols."),
                    (status = 409, description = "The sandbox is stopped.", body = Fault),
                    (status = 502, description = "The guest's response is invalid.", body = Fault)),
                extensions(("x-passes-through" = json!(true))))]
            async fn $name(
                State(shared): State<Shared>,
                principal: Principal,
                place: PortPath,
                request: Request,
            ) -> Result<Response, Refusal> {
                proxy(shared, principal, place, request).await
            }

            #[doc = $about]
            #[utoipa::path($method, path = "/v1/sandboxes/{id}/ports/{port}/", tag = "ports",
                params(("id" = String, Path), ("port" = u16, Path)),
                responses((status = 200, description = "The guest's response, with any status."),
                    (status = 101, description = "The guest switched protocols."),
                    (status = 409, description = "The sandbox is stopped.", body = Fault),
                    (status = 502, description = "The guest's response is invalid.", body = Fault)),
                extensions(("x-passes-through" = json!(true))))]
            async fn $top(
                State(shared): State<Shared>,
                principal: Principal,
                place: PortPath,
                request: Request,
            ) -> Result<Response, Refusal> {
                proxy(shared, principal, place, request).await
            }
        )+
    };
}

port_routes!(
    (get, get_top, get, "Forwards a GET request to a port inside the sandbox, or opens a WebSocket to it."),
    (post, post_top, post, "Forwards a POST request to a port inside the sandbox."),
    (put, put_top, put, "Forwards a PUT request to a port inside the sandbox."),
    (patch, patch_top, patch, "Forwards a PATCH request to a port inside the sandbox."),
    (delete, delete_top, delete, "Forwards a DELETE request to a port inside the sandbox."),
    (options, options_top, options, "Forwards an OPTIONS request to a port inside the sandbox."),
);

/// The sandbox and port in the path. Read from the raw path: the rest belongs to the guest and need not be text.
struct PortPath {
    id: String,
    port: u16,
}

impl FromRequestParts<Shared> for PortPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<PortPath, Refusal> {
        let mut named = gate::parts_of(parts.uri.path()).into_iter().skip(3).step_by(2);
        let (id, port) = (named.next().unwrap_or_default(), named.next().unwrap_or_default());
        let refuse = || Fault::invalid(format!("the path: port {port:?}: not a port")).hint("a port is 1 to 65535");
        let number = port.parse().map_err(|_| refuse().phase(Phase::Admission))?;
        Ok(PortPath { id, port: number })
    }
}

async fn proxy(shared: Shared, principal: Principal, place: PortPath, request: Request) -> Result<Response, Refusal> {
    let PortPath { id, port } = place;
    principal.require_scope(Scope::Agent)?;
    let stream = connect_port(&shared, &principal, &id, port).await?;
    let stream = TcpStream::from_std(stream.into()).map_err(|e| port_fault(&id, port, &e.to_string()))?;
    let mut request = request;
    let from_client = is_upgrade(request.headers()).then(|| hyper::upgrade::on(&mut request));
    let prefix = format!("/v1/sandboxes/{id}/ports/{port}");
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default().to_owned();
    let request = guest_request(request, &prefix, port, from_client.is_some())?;
    let own = request.uri().path().to_owned();
    let gone = |e: hyper::Error| port_fault(&id, port, &e.to_string());
    let (mut sender, connection) =
        http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await.map_err(gone)?;
    // The connection ends with the response, or when the client stops waiting.
    tokio::spawn(connection.with_upgrades());
    let late = |_| port_fault(&id, port, &format!("no response within {} s", RESPONSE_TIMEOUT.as_secs()));
    let mut response =
        tokio::time::timeout(RESPONSE_TIMEOUT, sender.send_request(request)).await.map_err(late)?.map_err(gone)?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let from_guest = hyper::upgrade::on(&mut response);
        let Some(from_client) = from_client else {
            return Err(port_fault(&id, port, "it switches protocols without an upgrade request"));
        };
        let task = shared.tasks().admit(TaskKind::PortTunnel, &principal.tenant)?;
        shared.tasks().spawn(tunnel(shared.clone(), principal, task, from_client, from_guest));
    }
    let place = confine::GuestOrigin { prefix: &prefix, port, path: &own, host: &host, names: shared.hosts() };
    client_response(response.map(Body::new), &place).map_err(|why| port_fault(&id, port, why))
}

/// Connects to the port. After waking a sandbox, waits until its service listens or has failed.
async fn connect_port(shared: &Shared, principal: &Principal, id: &str, port: u16) -> Result<OwnedFd, Refusal> {
    let until = Instant::now() + WAKE_TIMEOUT;
    loop {
        let word = id.to_owned();
        let connect = move |node: &node::Node, caller: &node::Caller| node::ports::connect(node, caller, &word, port);
        let refusal = match shared.make_live(principal, id, connect).await {
            Ok((_, stream)) => return Ok(stream),
            Err(refusal) => refusal,
        };
        if refusal.fault.retry != Retry::Now || Instant::now() >= until {
            return Err(refusal);
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = shared.until_end() => return Err(refusal),
        }
    }
}

/// Copies bytes in both directions until both ends are closed, the credential is no longer valid, or the maximum lifetime is over.
async fn tunnel(
    shared: Shared,
    principal: Principal,
    _task: Task,
    client: hyper::upgrade::OnUpgrade,
    guest: hyper::upgrade::OnUpgrade,
) {
    let Ok((client, guest)) = tokio::try_join!(client, guest) else { return };
    let (mut client, mut guest) = (TokioIo::new(client), TokioIo::new(guest));
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut guest) => {}
        _ = shared.until_closed(&principal) => {}
        () = tokio::time::sleep(MAX_TUNNEL) => {}
    }
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    let named = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let asks = named.flat_map(|value| value.split(',')).any(|token| token.trim().eq_ignore_ascii_case("upgrade"));
    asks && headers.contains_key(header::UPGRADE)
}

/// Removes hop-by-hop headers, and those that `Connection` names.
fn drop_hops(headers: &mut HeaderMap, keep_upgrade: bool) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|token| token.trim().parse().ok())
        .collect();
    let upgrade = headers.get(header::UPGRADE).cloned().filter(|_| keep_upgrade);
    // With Transfer-Encoding the length is not the body's (RFC 9112, 6.3); hyper writes both anew.
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    named.iter().for_each(|name| drop(headers.remove(name)));
    for name in ["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"] {
        headers.remove(name);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(header::UPGRADE, upgrade);
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

/// Request headers that are not passed to the guest.
const REMOVED_REQUEST_HEADERS: [&str; 8] = [
    "authorization",
    "proxy-authorization",
    "x-cofferdam",
    "forwarded",
    "x-forwarded-for",
    "traceparent",
    "tracestate",
    "idempotency-key",
];

/// Rewrites a request for the guest: with its own host and path.
fn guest_request(request: Request, prefix: &str, port: u16, upgrades: bool) -> Result<http::Request<Body>, Refusal> {
    let (mut parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    // The path is passed on as it was sent, without decoding.
    let own = target.match_indices('/').nth(5).map_or("/", |(at, _)| &target[at..]);
    let odd =
        |e: http::uri::InvalidUri| Refusal::from(Fault::invalid(format!("the path: {e}")).phase(Phase::Admission));
    parts.uri = own.parse::<Uri>().map_err(odd)?;
    parts.version = Version::HTTP_11;
    drop_hops(&mut parts.headers, upgrades);
    REMOVED_REQUEST_HEADERS.iter().for_each(|name| drop(parts.headers.remove(*name)));
    confine::cookies_to_guest(&mut parts.headers);
    let value = |text: String| HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("localhost"));
    parts.headers.insert(header::HOST, value(format!("localhost:{port}")));
    if parts.headers.contains_key(header::ORIGIN) {
        parts.headers.insert(header::ORIGIN, value(format!("http://localhost:{port}")));
    }
    parts.headers.insert("x-forwarded-prefix", value(prefix.to_owned()));
    parts.extensions = http::Extensions::new();
    Ok(http::Request::from_parts(parts, body))
}

/// Response headers that would apply to the daemon's whole origin, and are removed.
const REMOVED_RESPONSE_HEADERS: [&str; 15] = [
    "accept-ch",
    "alt-svc",
    "clear-site-data",
    "critical-ch",
    "nel",
    "origin-agent-cluster",
    "proxy-authenticate",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "set-login",
    "speculation-rules",
    "strict-transport-security",
    "use-as-dictionary",
    "www-authenticate",
];

/// Rewrites a response for the client, or returns why it cannot be passed on.
fn client_response(mut response: Response, place: &confine::GuestOrigin<'_>) -> Result<Response, &'static str> {
    let upgrades = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    drop_hops(headers, upgrades);
    REMOVED_RESPONSE_HEADERS.iter().for_each(|name| drop(headers.remove(*name)));
    let shared: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("access-control-")).cloned().collect();
    shared.iter().for_each(|name| drop(headers.remove(name)));
    if headers.get_all(header::LOCATION).iter().count() > 1 {
        return Err("its response has two Location headers");
    }
    match headers.get(header::LOCATION).map(|to| place.redirect(to)) {
        None | Some(Redirect::Elsewhere) => {}
        Some(Redirect::Own(to)) => drop(headers.insert(header::LOCATION, to)),
        Some(Redirect::Ours) => {
            return Err("its Location header leads to this daemon, with the credential of the client");
        }
    }
    let cookies: Vec<HeaderValue> =
        headers.get_all(header::SET_COOKIE).iter().filter_map(|cookie| place.cookie(cookie)).collect();
    headers.remove(header::SET_COOKIE);
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    // Appended: with a policy of the guest's own, both apply.
    let apart = HeaderValue::from_static("sandbox allow-scripts allow-forms allow-downloads; frame-ancestors 'none'");
    headers.append(header::CONTENT_SECURITY_POLICY, apart);
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    *response.version_mut() = Version::HTTP_11;
    response.extensions_mut().insert(FromGuest);
    Ok(response)
}

fn port_fault(sandbox: &str, port: u16, why: &str) -> Refusal {
    let fault = Fault::new(ErrorKind::ProviderFailed, format!("port {port} of {sandbox}: {why}")).subject(sandbox);
    fault.retry(Retry::Later).hint("check the service that listens on this port").phase(Phase::Execution).into()
}

#[cfg(test)]
mod test {
    use super::*;

    const PREFIX: &str = "/v1/sandboxes/sbx_1/ports/3000";

    fn value(text: &str) -> HeaderValue {
        HeaderValue::from_str(text).unwrap()
    }

    #[test]
    fn a_length_beside_another_coding_is_not_passed_on() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, value("3"));
        drop_hops(&mut headers, false);
        assert_eq!(headers.get(header::CONTENT_LENGTH), Some(&value("3")), "the control");
        headers.insert(header::TRANSFER_ENCODING, value("chunked"));
        drop_hops(&mut headers, false);
        assert!(headers.is_empty(), "{headers:?}");
    }

    #[test]
    fn no_credential_and_no_hop_reaches_the_guest() {
        let request = http::Request::builder()
            .uri("/v1/sandboxes/sbx_1/ports/3000/a%2Fb?c=d")
            .header("host", "localhost:7070")
            .header("origin", "http://localhost:7070")
            .header("authorization", "Bearer cof_x")
            .header("connection", "close, x-hop")
            .header("x-hop", "1")
            .header("x-cofferdam", "1")
            .header("x-own", "kept")
            .body(Body::empty())
            .unwrap();
        let passed = guest_request(request, PREFIX, 3000, false).unwrap();
        assert_eq!(passed.uri(), "/a%2Fb?c=d");
        let mut names: Vec<&str> = passed.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["host", "origin", "x-forwarded-prefix", "x-own"]);
        assert_eq!(
            (&passed.headers()["host"], &passed.headers()["origin"]),
            (&value("localhost:3000"), &value("http://localhost:3000"))
        );
        let bare = http::Request::builder().uri("/v1/sandboxes/sbx_1/ports/3000/").body(Body::empty()).unwrap();
        assert_eq!(guest_request(bare, PREFIX, 3000, false).unwrap().uri(), "/");
    }
}
