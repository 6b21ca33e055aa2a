//! A port inside a sandbox, through the daemon's own address: HTTP/1.1 and WebSockets. What a guest serves is nobody's to trust:
//!
//! - the guest never sees a credential of ours (`front` takes it away), nor headers that are between us and the client;
//! - a page of it has an origin of its own (`sandbox`), so it can read nothing else that comes from this address, and none of our
//!   routes takes anything for a credential that a browser sends by itself;
//! - its cookies and redirects stay below its own path (`confine`), and headers that speak for a whole origin are dropped.

mod confine;

use self::confine::Led;
use crate::gate;
use crate::refuse::{OfGuest, Refusal};
use crate::tasks::{Kind, Task};
use crate::{Scope, Shared, Who};
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

/// How long a guest may take to begin its answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long whoever wakes a sandbox waits for what shall listen there, and how often that is looked for.
const WAKES: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
/// The longest head of an answer.
const MOST_HEAD: usize = 64 << 10;
/// The longest that a tunnel lasts.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// One function for each method: each is an operation of its own. Whoever asks for a head alone is served by the first.
macro_rules! ways {
    ($(($name:ident, $top:ident, $method:ident, $about:literal)),+ $(,)?) => {
        pub fn routes() -> OpenApiRouter<Shared> {
            OpenApiRouter::new().routes(routes!($($name),+)).routes(routes!($($top),+))
        }

        $(
            #[doc = $about]
            #[utoipa::path($method, path = "/v1/sandboxes/{id}/ports/{port}/{*rest}", tag = "ports",
                params(("id" = String, Path), ("port" = u16, Path), ("*rest" = String, Path, description = "The guest's own path.")),
                responses((status = 200, description = "Whatever the guest answers, with any status."),
                    (status = 101, description = "The guest took up another protocol."),
                    (status = 409, description = "The sandbox is stopped.", body = Fault),
                    (status = 502, description = "The guest's answer is none.", body = Fault)),
                extensions(("x-passes-through" = json!(true))))]
            async fn $name(
                State(shared): State<Shared>,
                who: Who,
                place: Place,
                request: Request,
            ) -> Result<Response, Refusal> {
                pass(shared, who, place, request).await
            }

            #[doc = $about]
            #[utoipa::path($method, path = "/v1/sandboxes/{id}/ports/{port}/", tag = "ports",
                params(("id" = String, Path), ("port" = u16, Path)),
                responses((status = 200, description = "Whatever the guest answers, with any status."),
                    (status = 101, description = "The guest took up another protocol."),
                    (status = 409, description = "The sandbox is stopped.", body = Fault),
                    (status = 502, description = "The guest's answer is none.", body = Fault)),
                extensions(("x-passes-through" = json!(true))))]
            async fn $top(
                State(shared): State<Shared>,
                who: Who,
                place: Place,
                request: Request,
            ) -> Result<Response, Refusal> {
                pass(shared, who, place, request).await
            }
        )+
    };
}

ways!(
    (get, get_top, get, "Read from a port inside, or open a WebSocket to it."),
    (post, post_top, post, "Send to a port inside."),
    (put, put_top, put, "Put to a port inside."),
    (patch, patch_top, patch, "Change something behind a port inside."),
    (delete, delete_top, delete, "Delete something behind a port inside."),
    (options, options_top, options, "Ask a port inside what it takes."),
);

/// Which port is meant. It is read from the path itself: what follows is the guest's own, and need not be text.
struct Place {
    id: String,
    port: u16,
}

impl FromRequestParts<Shared> for Place {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Place, Refusal> {
        let mut named = gate::parts_of(parts.uri.path()).into_iter().skip(3).step_by(2);
        let (id, port) = (named.next().unwrap_or_default(), named.next().unwrap_or_default());
        let refuse = || Fault::invalid(format!("the path: port: {port:?} is none")).hint("a port is 1 to 65535");
        let number = port.parse().map_err(|_| refuse().phase(Phase::Admission))?;
        Ok(Place { id, port: number })
    }
}

async fn pass(shared: Shared, who: Who, place: Place, request: Request) -> Result<Response, Refusal> {
    let Place { id, port } = place;
    who.needs(Scope::Agent)?;
    let stream = reach(&shared, &who, &id, port).await?;
    let stream = TcpStream::from_std(stream.into()).map_err(|e| broken(&id, port, &e.to_string()))?;
    let mut request = request;
    let from_client = is_upgrade(request.headers()).then(|| hyper::upgrade::on(&mut request));
    let prefix = format!("/v1/sandboxes/{id}/ports/{port}");
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default().to_owned();
    let request = to_guest(request, &prefix, port, from_client.is_some())?;
    let own = request.uri().path().to_owned();
    let gone = |e: hyper::Error| broken(&id, port, &e.to_string());
    let (mut sender, connection) =
        http1::Builder::new().max_buf_size(MOST_HEAD).handshake(TokioIo::new(stream)).await.map_err(gone)?;
    // It ends with the last of the answer, or with whoever waits for it.
    tokio::spawn(connection.with_upgrades());
    let late = |_| broken(&id, port, &format!("no answer within {} s", PATIENCE.as_secs()));
    let mut answer = tokio::time::timeout(PATIENCE, sender.send_request(request)).await.map_err(late)?.map_err(gone)?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let from_guest = hyper::upgrade::on(&mut answer);
        let Some(from_client) = from_client else {
            return Err(broken(&id, port, "it changes the protocol, and nobody asked for that"));
        };
        let task = shared.tasks().admit(Kind::PortTunnel, &who.tenant)?;
        shared.tasks().spawn(tunnel(shared.clone(), who, task, from_client, from_guest));
    }
    let place = confine::Place { prefix: &prefix, port, path: &own, host: &host, names: shared.hosts() };
    to_client(answer.map(Body::new), &place).map_err(|why| broken(&id, port, why))
}

/// A stream to the port. Who wakes a sandbox by asking waits until the service listens that was begun for that, or does not come to it.
async fn reach(shared: &Shared, who: &Who, id: &str, port: u16) -> Result<OwnedFd, Refusal> {
    let until = Instant::now() + WAKES;
    loop {
        let word = id.to_owned();
        let connect = move |node: &node::Node, caller: &node::Caller| node::ports::connect(node, caller, &word, port);
        let refusal = match shared.enlivening(who, id, connect).await {
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

/// Passes bytes both ways until both ends say no more, the client's credential is good no more, or the day is over.
async fn tunnel(
    shared: Shared,
    who: Who,
    _task: Task,
    client: hyper::upgrade::OnUpgrade,
    guest: hyper::upgrade::OnUpgrade,
) {
    let Ok((client, guest)) = tokio::try_join!(client, guest) else { return };
    let (mut client, mut guest) = (TokioIo::new(client), TokioIo::new(guest));
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut guest) => {}
        _ = shared.until_closed(&who) => {}
        () = tokio::time::sleep(LONGEST) => {}
    }
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    let named = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let asks = named.flat_map(|value| value.split(',')).any(|token| token.trim().eq_ignore_ascii_case("upgrade"));
    asks && headers.contains_key(header::UPGRADE)
}

/// Headers that are between two ends of one connection, and those that `Connection` names.
fn drop_hops(headers: &mut HeaderMap, keep_upgrade: bool) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|token| token.trim().parse().ok())
        .collect();
    let upgrade = headers.get(header::UPGRADE).cloned().filter(|_| keep_upgrade);
    // Where both stand there, the length is not the body's; the other is ours to write anew.
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

/// What of a request is ours, and no guest's.
const OURS: [&str; 8] = [
    "authorization",
    "proxy-authorization",
    "x-cofferdam",
    "forwarded",
    "x-forwarded-for",
    "traceparent",
    "tracestate",
    "idempotency-key",
];

/// The request as the guest gets it: for its own host, at its own path.
fn to_guest(request: Request, prefix: &str, port: u16, upgrades: bool) -> Result<http::Request<Body>, Refusal> {
    let (mut parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    // The path as the client wrote it, whatever is encoded in it.
    let own = target.match_indices('/').nth(5).map_or("/", |(at, _)| &target[at..]);
    let odd =
        |e: http::uri::InvalidUri| Refusal::from(Fault::invalid(format!("the path: {e}")).phase(Phase::Admission));
    parts.uri = own.parse::<Uri>().map_err(odd)?;
    parts.version = Version::HTTP_11;
    drop_hops(&mut parts.headers, upgrades);
    OURS.iter().for_each(|name| drop(parts.headers.remove(*name)));
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

/// What of an answer would speak for all that comes from our address.
const OF_AN_ORIGIN: [&str; 15] = [
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

/// The answer as the client gets it; or why it gets none.
fn to_client(mut answer: Response, place: &confine::Place<'_>) -> Result<Response, &'static str> {
    let upgrades = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    drop_hops(headers, upgrades);
    OF_AN_ORIGIN.iter().for_each(|name| drop(headers.remove(*name)));
    let shared: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("access-control-")).cloned().collect();
    shared.iter().for_each(|name| drop(headers.remove(name)));
    if headers.get_all(header::LOCATION).iter().count() > 1 {
        return Err("it leads to two places at once");
    }
    match headers.get(header::LOCATION).map(|to| place.led(to)) {
        None | Some(Led::Elsewhere) => {}
        Some(Led::Own(to)) => drop(headers.insert(header::LOCATION, to)),
        Some(Led::Ours) => return Err("it leads to this daemon, with the credential that came to it"),
    }
    let cookies: Vec<HeaderValue> =
        headers.get_all(header::SET_COOKIE).iter().filter_map(|cookie| place.cookie(cookie)).collect();
    headers.remove(header::SET_COOKIE);
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    // Beside one of the guest's own, both hold.
    let apart = HeaderValue::from_static("sandbox allow-scripts allow-forms allow-downloads; frame-ancestors 'none'");
    headers.append(header::CONTENT_SECURITY_POLICY, apart);
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    *answer.version_mut() = Version::HTTP_11;
    answer.extensions_mut().insert(OfGuest);
    Ok(answer)
}

fn broken(sandbox: &str, port: u16, why: &str) -> Refusal {
    let fault = Fault::new(ErrorKind::ProviderFailed, format!("port {port} of {sandbox}: {why}")).subject(sandbox);
    fault.retry(Retry::Later).hint("look at what listens there").phase(Phase::Execution).into()
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
        let passed = to_guest(request, PREFIX, 3000, false).unwrap();
        assert_eq!(passed.uri(), "/a%2Fb?c=d");
        let mut names: Vec<&str> = passed.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["host", "origin", "x-forwarded-prefix", "x-own"]);
        assert_eq!(
            (&passed.headers()["host"], &passed.headers()["origin"]),
            (&value("localhost:3000"), &value("http://localhost:3000"))
        );
        let bare = http::Request::builder().uri("/v1/sandboxes/sbx_1/ports/3000/").body(Body::empty()).unwrap();
        assert_eq!(to_guest(bare, PREFIX, 3000, false).unwrap().uri(), "/");
    }
}
