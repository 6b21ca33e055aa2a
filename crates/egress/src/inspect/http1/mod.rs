//! HTTP/1.x: one request after the other, each read by the strict readers and written anew. One connection of the guest
//! has one to the server, which is opened again when the server closed it between two requests.

mod exchange;
mod wire;

pub(super) use wire::{Left, Pair, Reader, Stop, Writer};

use super::answer::{RULE_HEADER, Refusal};
use super::case::{Asked, Case};
use super::headers::end_here;
use super::stream::Io;
use super::tls::{Protocol, Trouble};
use super::{Session, linger};
use crate::event::Op;
use crate::http1::{
    Body, Connection, Field, Fields, Request, Target, Version, resume_request, write_request, write_response,
};
use exchange::Exchange;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use zeroize::{Zeroize, Zeroizing};

/// How much of the body of a refused request is read past, to keep its connection.
const MAX_PAST: u64 = 256 * 1024;

pub(super) async fn run(session: Arc<Session>, guest: Io, server: Option<Result<Io, Trouble>>) {
    let (server, trouble) = match server {
        Some(Ok(server)) => (Some(Pair::new(server)), None),
        Some(Err(trouble)) => (None, Some(trouble)),
        None => (None, None),
    };
    let mut link = Link { session, guest: Pair::new(guest), server, trouble };
    loop {
        let after = match link.next_request().await {
            Ok(Some(request)) => link.serve(request).await,
            Ok(None) => After::Close,
            Err(after) => after,
        };
        match after {
            After::Next => {}
            After::Close => {
                link.server = None;
                return linger(&mut link.guest.whole()).await;
            }
            After::Gone => return,
        }
    }
}

/// What becomes of the guest's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Next,
    Close,
    Gone,
}

struct Link {
    session: Arc<Session>,
    guest: Pair,
    server: Option<Pair>,
    /// Why the server could not be reached when the connection began; told once, then it is tried again.
    trouble: Option<Trouble>,
}

impl Link {
    async fn next_request(&mut self) -> Result<Option<Request>, After> {
        let settings = &self.session.tls.settings;
        if self.guest.reader.is_empty() {
            match timeout(settings.idle, self.guest.reader.more()).await {
                Ok(Ok(0)) => return Ok(None),
                Ok(Ok(_)) => {}
                Ok(Err(_)) => return Err(After::Gone),
                Err(_) => return Err(After::Close),
            }
        }
        let reading = self.guest.reader.head(resume_request, |request| request.consumed);
        match timeout(settings.head, reading).await {
            Ok(Ok(request)) => Ok(request),
            Ok(Err(Stop::Gone(_))) => Err(After::Gone),
            Ok(Err(Stop::Bad(status, reason))) => Err(self.refuse_unread(status, reason).await),
            Err(_) => Err(self.refuse_unread(408, "its head takes too long").await),
        }
    }

    async fn serve(&mut self, mut request: Request) -> After {
        let case = match asked(&request, self.session.is_secure()) {
            Ok(asked) => match self.session.judge(asked, &request.fields).await {
                Ok(case) => case,
                Err(refusal) => return self.refuse(&request, refusal).await,
            },
            Err(reason) => return self.refuse_unread(400, reason).await,
        };
        if let Err(Trouble(reason)) = self.reach().await {
            case.failed(&reason);
            return self.refuse(&request, Refusal::unavailable(reason)).await;
        }
        let Some(server) = &mut self.server else {
            return After::Gone;
        };
        let upgrade = wants_websocket(&request);
        let head = match outgoing(&mut request, &case, &self.session, upgrade) {
            Ok(head) => head,
            Err(refusal) => {
                case.failed(&refusal.message);
                return self.refuse(&request, refusal).await;
            }
        };
        case.opened();
        let done = Exchange::new(&request, &case, upgrade).run(&mut self.guest, server, &head).await;
        if !done.keep_server {
            self.server = None;
        }
        match done.refusal {
            None => done.after,
            Some(refusal) => self.answer(&request.method, refusal, false).await,
        }
    }

    /// Makes sure that there is a server to send a request to.
    async fn reach(&mut self) -> Result<(), Trouble> {
        // What a server says unasked would be taken for the answer to the next request.
        if let Some(server) = &mut self.server
            && server.reader.is_silent().await
        {
            return Ok(());
        }
        self.server = None;
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble);
        }
        let (server, _) = self.session.dial(&[Protocol::Http1]).await?;
        self.server = Some(Pair::new(server));
        Ok(())
    }

    /// Answers what is no request. Where the next one would begin is not known.
    async fn refuse_unread(&mut self, status: u16, reason: &str) -> After {
        self.session.refuse_unread(Op::Request, None, reason);
        self.answer("", Refusal::malformed(status, reason), false).await
    }

    /// Answers in the place of the server, and keeps the connection when the rest of the request can be passed over.
    async fn refuse(&mut self, request: &Request, refusal: Refusal) -> After {
        let past = match request.body {
            // The client may send the body after this answer, or leave it out.
            body if body != Body::None && request.fields.get("expect").is_some() => false,
            Body::Length(len) => len <= MAX_PAST,
            _ => true,
        };
        let keep = past && request.connection != Connection::Close;
        match self.answer(&request.method, refusal, keep).await {
            After::Next => self.pass_over(request.body).await,
            after => after,
        }
    }

    async fn pass_over(&mut self, body: Body) -> After {
        let (mut left, mut past) = (Left::of(body), 0);
        let reading = async {
            while let Ok(Some(data)) = self.guest.reader.piece(&mut left).await {
                past += data.len() as u64;
                if past > MAX_PAST {
                    return After::Close;
                }
            }
            if matches!(left, Left::Length(1..)) { After::Gone } else { After::Next }
        };
        timeout(self.session.tls.settings.head, reading).await.unwrap_or(After::Close)
    }

    async fn answer(&mut self, method: &str, refusal: Refusal, keep: bool) -> After {
        let body = refusal.body();
        let mut fields = Fields::default();
        fields.add("content-type", "application/json");
        fields.add("content-length", body.len().to_string());
        if let Some(rule) = refusal.rule_value() {
            fields.add(RULE_HEADER, rule);
        }
        fields.add("connection", if keep { "keep-alive" } else { "close" });
        let Ok(mut out) = write_response(refusal.status, refusal.phrase().as_bytes(), &fields) else {
            return After::Gone;
        };
        if method != "HEAD" {
            out.extend(body);
        }
        let writer = &mut self.guest.writer;
        let writing = async {
            writer.write_all(&out).await?;
            writer.flush().await
        };
        match timeout(self.session.tls.settings.head, writing).await {
            Ok(Ok(())) if keep => After::Next,
            Ok(Ok(())) => After::Close,
            _ => After::Gone,
        }
    }
}

/// The request in the words of the policy.
fn asked(request: &Request, secure: bool) -> Result<Asked, &'static str> {
    let path = match &request.target {
        Target::Origin(path) => path,
        Target::Absolute { secure: said, path, .. } if *said == secure => path,
        Target::Absolute { .. } => return Err("the scheme of the target is not that of the connection"),
        Target::Asterisk => "*",
        Target::Authority { .. } => return Err("a tunnel cannot be opened inside a connection that is inspected"),
    };
    Ok(Asked { host: request.host.clone(), port: request.port, method: request.method.clone(), path: path.to_owned() })
}

/// Whether the request wants to become a WebSocket. Other protocols are not offered to the server: some carry requests
/// again, which nobody would read.
fn wants_websocket(request: &Request) -> bool {
    let named = matches!(&request.connection, Connection::Upgrade(name) if name.eq_ignore_ascii_case("websocket"));
    named && request.method == "GET" && request.body == Body::None
}

/// The head as the server gets it.
fn outgoing(
    request: &mut Request,
    case: &Case,
    session: &Session,
    upgrade: bool,
) -> Result<Zeroizing<Vec<u8>>, Refusal> {
    let fields = &mut request.fields;
    end_here(fields);
    if request.version == Version::Http10 {
        fields.remove("expect");
    }
    fields.remove("host");
    let host = authority(case.host(), session.addr.port(), session.is_secure());
    fields.0.insert(0, Field { name: "Host".to_owned(), value: host.into_bytes() });
    if upgrade {
        fields.add("Connection", "Upgrade");
        fields.add("Upgrade", "websocket");
    }
    case.inject(fields)?;
    let path = request.target.path().unwrap_or("*");
    let head = write_request(&request.method, path, fields);
    if !case.injections.is_empty() {
        fields.0.iter_mut().for_each(|f| f.value.zeroize());
    }
    head.map(Zeroizing::new).map_err(|e| Refusal::malformed(400, &format!("{} cannot be passed on", e.0)))
}

/// The host as a request names it.
pub(super) fn authority(host: &str, port: u16, secure: bool) -> String {
    match (port, secure) {
        (443, true) | (80, false) => host.to_owned(),
        _ => format!("{host}:{port}"),
    }
}
