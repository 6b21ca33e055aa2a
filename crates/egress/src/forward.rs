//! Plain HTTP/1 in the name of a host: every request is read strictly and judged by its host before it is passed on, so
//! that a connection to one host does not carry requests for another. Requests go one at a time; bodies are passed on
//! as they come.

use crate::chunked::{Chunked, Piece};
use crate::event::Socket;
use crate::flow::{Flow, Way, hang_up, read_more, write_all};
use crate::gate::{Place, Ruling, Settled, Verdict};
use crate::http1::{self, Body, Connection, Head, MAX_HEAD, Request, Seen};
use crate::pump::{Pump, relay};
use crate::tcp::asking;
use std::io::{Error, ErrorKind};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

/// How long a head may take from its first byte on.
const HEAD: Duration = Duration::from_secs(30);
/// How much of a body is held at once.
const PIECE: usize = 64 * 1024;

/// What becomes of the connection after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Again,
    Close,
    /// Both ends have agreed on another protocol.
    Tunnel,
}

/// A way to one server, with what was read from it beyond the last response.
pub(crate) struct Server<'a> {
    pub flow: &'a Flow,
    pub stream: &'a TcpStream,
    pub ahead: Vec<u8>,
}

/// Passes requests to one server, as long as they are for a host that may be reached there. Of the first bytes, so many have
/// passed already.
pub(crate) async fn along(
    flow: &Flow,
    guest: &TcpStream,
    (mut bytes, mut passed): (Vec<u8>, usize),
    outside: &TcpStream,
    place: &Place,
) -> Result<(), Error> {
    let mut place = place.clone();
    let mut server = Server { flow, stream: outside, ahead: Vec::new() };
    while let Some(request) = read_head(guest, &mut bytes, http1::resume_request).await? {
        let mut request = match request {
            Ok(request) => request,
            Err((status, reason)) => return refuse(flow, guest, status, &flow.gate.refusal(None, reason)).await,
        };
        let ruling = match answered(flow, guest, &mut place, &request.host.to_string()).await {
            Verdict::Pass(ruling) if request.method == "CONNECT" => Some((405, ruling.refused("it is no proxy"))),
            Verdict::Pass(_) => None,
            Verdict::Refuse(ruling) | Verdict::Ask(_, ruling) => Some((403, ruling)),
            Verdict::Inspect(_) => {
                let reason = "requests to this host are read, and need a connection of their own";
                Some((421, flow.gate.refusal(Some(&request.host.to_string()), reason)))
            }
        };
        if let Some((status, ruling)) = ruling {
            return refuse(flow, guest, status, &ruling).await;
        }
        let mut head: Vec<u8> = bytes.drain(..request.consumed).collect();
        if request.take_back_offer() {
            // What has passed already is of the first line, which stays.
            head = http1::without_offer(&head);
        }
        let rest = &head[std::mem::take(&mut passed)..];
        match server.exchange(guest, rest, &request, &mut bytes).await? {
            After::Again => {}
            After::Close => return Ok(()),
            After::Tunnel => return server.tunnel(guest, bytes).await,
        }
    }
    Ok(())
}

/// What holds for a request to a host, once a person has answered where one must be asked.
async fn answered(flow: &Flow, guest: &TcpStream, place: &mut Place, host: &str) -> Verdict {
    loop {
        let (matter, ruling) = match flow.gate.named(place, host) {
            Verdict::Ask(matter, ruling) => (matter, ruling),
            verdict => return verdict,
        };
        match flow.gate.settle(&matter, &ruling, asking(place, Socket::of(guest))).await {
            Settled::Allowed => place.leave.add(matter),
            Settled::Refused(ruling) => return Verdict::Refuse(ruling),
            Settled::Changed => {}
        }
    }
}

/// The next request, or the status and the reason for which it cannot be read; `None` when no more come.
pub(crate) async fn read_head(
    guest: &TcpStream,
    bytes: &mut Vec<u8>,
    read: fn(&[u8], &mut Seen) -> Head<Request>,
) -> Result<Option<Result<Request, (u16, &'static str)>>, Error> {
    let mut seen = Seen::default();
    if bytes.is_empty() && read_more(guest, bytes, PIECE).await? == 0 {
        return Ok(None);
    }
    let whole = async {
        loop {
            match read(bytes, &mut seen) {
                Head::Done(request) => return Ok(Some(Ok(request))),
                Head::Bad { status, reason } => return Ok(Some(Err((status, reason)))),
                Head::NeedMore => {}
            }
            if read_more(guest, bytes, MAX_HEAD).await? == 0 {
                return Ok(None);
            }
        }
    };
    timeout(HEAD, whole).await.unwrap_or(Ok(Some(Err((408, "the head takes too long")))))
}

impl Server<'_> {
    /// One request with its body, and its response. `head` is what the server gets; `bytes` follow it.
    pub async fn exchange(
        &mut self,
        guest: &TcpStream,
        head: &[u8],
        request: &Request,
        bytes: &mut Vec<u8>,
    ) -> Result<After, Error> {
        let (flow, stream, ahead) = (self.flow, self.stream, &mut self.ahead);
        flow.spend(Way::FromGuest, head.len())?;
        write_all(stream, head).await?;
        let sending = pass_body(flow, Way::FromGuest, guest, bytes, stream, request.body);
        let receiving = respond(flow, stream, ahead, guest, &request.method);
        tokio::pin!(sending, receiving);
        let mut all_sent = false;
        let after = loop {
            tokio::select! {
                biased;
                sent = &mut sending, if !all_sent => {
                    sent?;
                    all_sent = true;
                }
                after = &mut receiving => break after?,
            }
        };
        match (&request.connection, after) {
            (Connection::Upgrade(_), After::Tunnel) if all_sent => Ok(After::Tunnel),
            (_, After::Tunnel) => Err(Error::new(ErrorKind::InvalidData, "it changes the protocol unasked")),
            // It answered before it had heard all, and will not hear the rest.
            (Connection::KeepAlive | Connection::Upgrade(_), After::Again) if all_sent => Ok(After::Again),
            _ => Ok(After::Close),
        }
    }

    /// Passes on everything from now on.
    pub async fn tunnel(self, guest: &TcpStream, bytes: Vec<u8>) -> Result<(), Error> {
        self.flow.spend(Way::FromGuest, bytes.len())?;
        self.flow.spend(Way::ToGuest, self.ahead.len())?;
        tokio::try_join!(write_all(self.stream, &bytes), write_all(guest, &self.ahead))?;
        relay(self.flow, guest, self.stream, Pump::new(Way::ToGuest)).await
    }
}

/// Passes on the response to a request, and all that comes before it.
async fn respond(
    flow: &Flow,
    server: &TcpStream,
    ahead: &mut Vec<u8>,
    guest: &TcpStream,
    method: &str,
) -> Result<After, Error> {
    loop {
        let mut seen = Seen::default();
        let response = loop {
            match http1::resume_response(ahead, method, &mut seen) {
                Head::Done(response) => break response,
                Head::Bad { reason, .. } => return Err(Error::new(ErrorKind::InvalidData, reason)),
                Head::NeedMore => {}
            }
            if read_more(server, ahead, MAX_HEAD).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        };
        let head: Vec<u8> = ahead.drain(..response.consumed).collect();
        flow.spend(Way::ToGuest, head.len())?;
        write_all(guest, &head).await?;
        match response.status {
            101 => return Ok(After::Tunnel),
            100..=199 => continue,
            _ => {}
        }
        pass_body(flow, Way::ToGuest, server, ahead, guest, response.body).await?;
        let ends = response.body == Body::UntilClose || response.connection == Connection::Close;
        return Ok(if ends { After::Close } else { After::Again });
    }
}

/// Passes on a body as it is, up to its end. `ahead` was read already; what is left in it follows the body.
async fn pass_body(
    flow: &Flow,
    way: Way,
    from: &TcpStream,
    ahead: &mut Vec<u8>,
    to: &TcpStream,
    body: Body,
) -> Result<(), Error> {
    let mut end = Ending::of(body);
    loop {
        let (len, over) = end.within(ahead)?;
        flow.spend(way, len)?;
        write_all(to, &ahead[..len]).await?;
        ahead.drain(..len);
        if over {
            return Ok(());
        }
        if read_more(from, ahead, PIECE).await? == 0 {
            return if body == Body::UntilClose { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) };
        }
        // Two ends that are always ready would keep the thread for themselves.
        consume_budget().await;
    }
}

/// Finds the end of a body.
enum Ending {
    After(u64),
    Chunked(Box<Chunked>),
    Never,
}

impl Ending {
    fn of(body: Body) -> Ending {
        match body {
            Body::None => Ending::After(0),
            Body::Length(len) => Ending::After(len),
            Body::Chunked => Ending::Chunked(Box::default()),
            Body::UntilClose => Ending::Never,
        }
    }

    /// How many of the bytes are of the body, and whether it ends with them.
    fn within(&mut self, bytes: &[u8]) -> Result<(usize, bool), Error> {
        match self {
            Ending::Never => Ok((bytes.len(), false)),
            Ending::After(left) => {
                let len = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= len as u64;
                Ok((len, *left == 0))
            }
            Ending::Chunked(decoder) => {
                let mut at = 0;
                loop {
                    match decoder.next(&bytes[at..]) {
                        Piece::NeedMore => return Ok((bytes.len(), false)),
                        Piece::Data(range) => at += range.end,
                        Piece::End(len) => return Ok((at + len, true)),
                        Piece::Bad(reason) => return Err(Error::new(ErrorKind::InvalidData, reason)),
                    }
                }
            }
        }
    }
}

/// Tells a client that speaks HTTP why it does not go on.
pub(crate) async fn refuse(flow: &Flow, guest: &TcpStream, status: u16, ruling: &Ruling) -> Result<(), Error> {
    flow.refused(ruling);
    say(guest, status, ruling).await
}

/// A response that says what a ruling says, after which the connection ends.
pub(crate) async fn say(guest: &TcpStream, status: u16, ruling: &Ruling) -> Result<(), Error> {
    let message = ruling.reason.clone().unwrap_or_else(|| format!("{} does not allow it", ruling.rule));
    let kind = if status == 502 { "provider_failed" } else { "policy_denied" };
    let hint = ruling.hint.as_deref().map(|hint| format!(r#","hint":{}"#, quoted(hint))).unwrap_or_default();
    let (rule, message) = (quoted(&ruling.rule), quoted(&message));
    let body = format!("{{\"error_kind\":\"{kind}\",\"rule\":{rule},\"message\":{message}{hint}}}\n");
    let mut fields = http1::Fields::default();
    fields.add("cofferdam-rule", ruling.rule.as_bytes());
    fields.add("content-type", "application/json");
    fields.add("content-length", body.len().to_string());
    fields.add("connection", "close");
    let head = http1::write_response(status, b"Refused", &fields);
    let mut bytes = head.map_err(|unwritable| Error::new(ErrorKind::InvalidData, unwritable.0))?;
    bytes.extend(body.into_bytes());
    write_all(guest, &bytes).await?;
    part(guest).await;
    Ok(())
}

/// Ends a connection so that what was said last is heard: closing it on bytes that nobody read would be a reset.
async fn part(guest: &TcpStream) {
    const PATIENCE: Duration = Duration::from_secs(1);
    const MAX_BYTES: usize = 1 << 20;
    hang_up(guest);
    let drained = async {
        let (mut bytes, mut total) = (Vec::new(), 0);
        while let Ok(got @ 1..) = read_more(guest, &mut bytes, PIECE).await {
            total += got;
            bytes.clear();
            if total > MAX_BYTES {
                return;
            }
        }
    };
    let _ = timeout(PATIENCE, drained).await;
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
