//! Plain HTTP/1 under a host name: every request is parsed strictly and judged by its host before it is forwarded, so
//! that a connection to one host does not carry requests for another. Requests go one at a time; bodies are streamed.

use crate::chunked::{Chunked, DecodeStep};
use crate::event::GuestSocket;
use crate::flow::{Direction, Flow, half_close, read_more, write_all};
use crate::gate::{ApprovalOutcome, QuestionContext, Remote, Ruling, StreamDecision};
use crate::http1::{self, BodyFraming, Connection, Head, HeadScan, MAX_HEAD, RequestHead};
use crate::pump::{Pump, relay};
use std::io::{Error, ErrorKind};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

/// Deadline for a complete head, from its first byte on.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit on buffered bytes of a body.
const PIECE: usize = 64 * 1024;

/// Use of the connection after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterExchange {
    Again,
    Close,
    /// Both peers have agreed to switch protocols.
    Tunnel,
}

/// A connection to a server, with bytes read beyond the last response.
pub(crate) struct ServerStream<'a> {
    pub flow: &'a Flow,
    pub stream: &'a TcpStream,
    pub ahead: Vec<u8>,
}

/// Forwards requests to one server as long as they are for a host that is allowed there. `passed` counts the leading
/// bytes that went to the server already.
pub(crate) async fn forward_requests(
    flow: &Flow,
    guest: &TcpStream,
    (mut bytes, mut passed): (Vec<u8>, usize),
    outside: &TcpStream,
    remote: &Remote,
) -> Result<(), Error> {
    let mut remote = remote.clone();
    let mut server = ServerStream { flow, stream: outside, ahead: Vec::new() };
    while let Some(request) = read_head(guest, &mut bytes, http1::resume_request).await? {
        let mut request = match request {
            Ok(request) => request,
            Err((status, reason)) => return refuse(flow, guest, status, &flow.gate.refusal(None, reason)).await,
        };
        let ruling = match judge_with_approval(flow, guest, &mut remote, &request.host.to_string()).await {
            StreamDecision::Pass(ruling) if request.method == "CONNECT" => {
                Some((405, ruling.refused("this server is not a proxy")))
            }
            StreamDecision::Pass(_) => None,
            StreamDecision::Refuse(ruling) | StreamDecision::Ask(_, ruling) => Some((403, ruling)),
            StreamDecision::Inspect(_) => {
                let reason = "requests to this host are inspected, and need a connection of their own";
                Some((421, flow.gate.refusal(Some(&request.host.to_string()), reason)))
            }
        };
        if let Some((status, ruling)) = ruling {
            return refuse(flow, guest, status, &ruling).await;
        }
        let mut head: Vec<u8> = bytes.drain(..request.consumed).collect();
        if request.remove_upgrade_offer() {
            // Bytes that went to the server are part of the request line, which stays.
            head = http1::without_upgrade_offer(&head);
        }
        let rest = &head[std::mem::take(&mut passed)..];
        match server.exchange(guest, rest, &request, &mut bytes).await? {
            AfterExchange::Again => {}
            AfterExchange::Close => return Ok(()),
            AfterExchange::Tunnel => return server.tunnel(guest, bytes).await,
        }
    }
    Ok(())
}

/// Judges a request for a host, and awaits a person's answer if the rule says `ask`.
async fn judge_with_approval(flow: &Flow, guest: &TcpStream, remote: &mut Remote, host: &str) -> StreamDecision {
    loop {
        let (subject, ruling) = match flow.gate.judge_named(remote, host) {
            StreamDecision::Ask(subject, ruling) => (subject, ruling),
            decision => return decision,
        };
        match flow
            .gate
            .await_approval(&subject, &ruling, QuestionContext::connection(remote, GuestSocket::of(guest)))
            .await
        {
            ApprovalOutcome::Approved => remote.approved.add(subject),
            ApprovalOutcome::Refused(ruling) => return StreamDecision::Refuse(ruling),
            ApprovalOutcome::Changed => {}
        }
    }
}

/// Reads the next request, or the status and reason with which it is refused; `None` at end of stream.
pub(crate) async fn read_head(
    guest: &TcpStream,
    bytes: &mut Vec<u8>,
    read: fn(&[u8], &mut HeadScan) -> Head<RequestHead>,
) -> Result<Option<Result<RequestHead, (u16, &'static str)>>, Error> {
    let mut seen = HeadScan::default();
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
    timeout(HEAD_TIMEOUT, whole).await.unwrap_or(Ok(Some(Err((408, "the head takes too long")))))
}

impl ServerStream<'_> {
    /// Forwards one request with its body, and its response. `head` is sent to the server; `bytes` follow it.
    pub async fn exchange(
        &mut self,
        guest: &TcpStream,
        head: &[u8],
        request: &RequestHead,
        bytes: &mut Vec<u8>,
    ) -> Result<AfterExchange, Error> {
        let (flow, stream, ahead) = (self.flow, self.stream, &mut self.ahead);
        flow.count_bytes(Direction::FromGuest, head.len())?;
        write_all(stream, head).await?;
        let sending = pass_body(flow, Direction::FromGuest, guest, bytes, stream, request.body);
        let receiving = forward_response(flow, stream, ahead, guest, &request.method);
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
            (Connection::Upgrade(_), AfterExchange::Tunnel) if all_sent => Ok(AfterExchange::Tunnel),
            (_, AfterExchange::Tunnel) => {
                Err(Error::new(ErrorKind::InvalidData, "the server switches protocols without being asked"))
            }
            // Closed otherwise: the server answered before the end of the request and will not read the rest.
            (Connection::KeepAlive | Connection::Upgrade(_), AfterExchange::Again) if all_sent => {
                Ok(AfterExchange::Again)
            }
            _ => Ok(AfterExchange::Close),
        }
    }

    /// Relays bytes in both directions after a protocol switch.
    pub async fn tunnel(self, guest: &TcpStream, bytes: Vec<u8>) -> Result<(), Error> {
        self.flow.count_bytes(Direction::FromGuest, bytes.len())?;
        self.flow.count_bytes(Direction::ToGuest, self.ahead.len())?;
        tokio::try_join!(write_all(self.stream, &bytes), write_all(guest, &self.ahead))?;
        relay(self.flow, guest, self.stream, Pump::new(Direction::ToGuest)).await
    }
}

/// Forwards the response to a request, and interim responses before it.
async fn forward_response(
    flow: &Flow,
    server: &TcpStream,
    ahead: &mut Vec<u8>,
    guest: &TcpStream,
    method: &str,
) -> Result<AfterExchange, Error> {
    loop {
        let mut seen = HeadScan::default();
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
        flow.count_bytes(Direction::ToGuest, head.len())?;
        write_all(guest, &head).await?;
        match response.status {
            101 => return Ok(AfterExchange::Tunnel),
            100..=199 => continue,
            _ => {}
        }
        pass_body(flow, Direction::ToGuest, server, ahead, guest, response.body).await?;
        let ends = response.body == BodyFraming::UntilClose || response.connection == Connection::Close;
        return Ok(if ends { AfterExchange::Close } else { AfterExchange::Again });
    }
}

/// Streams a body unchanged to its end. `ahead` holds bytes already read; bytes left in it follow the body.
async fn pass_body(
    flow: &Flow,
    direction: Direction,
    from: &TcpStream,
    ahead: &mut Vec<u8>,
    to: &TcpStream,
    body: BodyFraming,
) -> Result<(), Error> {
    let mut end = BodyEnd::of(body);
    loop {
        let (len, over) = end.within(ahead)?;
        flow.count_bytes(direction, len)?;
        write_all(to, &ahead[..len]).await?;
        ahead.drain(..len);
        if over {
            return Ok(());
        }
        if read_more(from, ahead, PIECE).await? == 0 {
            return if body == BodyFraming::UntilClose { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) };
        }
        // Two peers that are always ready would starve other tasks.
        consume_budget().await;
    }
}

/// Finds the end of a body.
enum BodyEnd {
    After(u64),
    Chunked(Box<Chunked>),
    Never,
}

impl BodyEnd {
    fn of(body: BodyFraming) -> BodyEnd {
        match body {
            BodyFraming::None => BodyEnd::After(0),
            BodyFraming::Length(len) => BodyEnd::After(len),
            BodyFraming::Chunked => BodyEnd::Chunked(Box::default()),
            BodyFraming::UntilClose => BodyEnd::Never,
        }
    }

    /// Returns how many of the bytes belong to the body, and whether the body ends with them.
    fn within(&mut self, bytes: &[u8]) -> Result<(usize, bool), Error> {
        match self {
            BodyEnd::Never => Ok((bytes.len(), false)),
            BodyEnd::After(left) => {
                let len = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= len as u64;
                Ok((len, *left == 0))
            }
            BodyEnd::Chunked(decoder) => {
                let mut at = 0;
                loop {
                    match decoder.next(&bytes[at..]) {
                        DecodeStep::NeedMore => return Ok((bytes.len(), false)),
                        DecodeStep::Data(range) => at += range.end,
                        DecodeStep::End(len) => return Ok((at + len, true)),
                        DecodeStep::Bad(reason) => return Err(Error::new(ErrorKind::InvalidData, reason)),
                    }
                }
            }
        }
    }
}

/// Reports a refusal and answers the HTTP client with it.
pub(crate) async fn refuse(flow: &Flow, guest: &TcpStream, status: u16, ruling: &Ruling) -> Result<(), Error> {
    flow.refused(ruling);
    send_refusal(guest, status, ruling).await
}

/// Sends an error response for a ruling and closes the connection.
pub(crate) async fn send_refusal(guest: &TcpStream, status: u16, ruling: &Ruling) -> Result<(), Error> {
    let message = ruling.reason.clone().unwrap_or_else(|| format!("{} does not allow it", ruling.rule));
    let kind = if status == 502 { "provider_failed" } else { "policy_denied" };
    let hint = ruling.hint.as_deref().map(|hint| format!(r#","hint":{}"#, json_string(hint))).unwrap_or_default();
    let (rule, message) = (json_string(&ruling.rule), json_string(&message));
    let body = format!("{{\"error_kind\":\"{kind}\",\"rule\":{rule},\"message\":{message}{hint}}}\n");
    let mut fields = http1::HeaderFields::default();
    fields.add("cofferdam-rule", ruling.rule.as_bytes());
    fields.add("content-type", "application/json");
    fields.add("content-length", body.len().to_string());
    fields.add("connection", "close");
    let head = http1::write_response(status, b"Refused", &fields);
    let mut bytes = head.map_err(|unwritable| Error::new(ErrorKind::InvalidData, unwritable.0))?;
    bytes.extend(body.into_bytes());
    write_all(guest, &bytes).await?;
    close_gracefully(guest).await;
    Ok(())
}

/// Closes a connection so that the last response arrives: closing a socket with unread bytes would send a reset.
async fn close_gracefully(guest: &TcpStream) {
    const PATIENCE: Duration = Duration::from_secs(1);
    const MAX_BYTES: usize = 1 << 20;
    half_close(guest);
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

/// Quotes a JSON string.
fn json_string(text: &str) -> String {
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
