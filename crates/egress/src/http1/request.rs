//! Request heads.

use super::fields::{self, HeaderFields, token};
use super::target::RequestTarget;
use super::{BodyFraming, Connection, Head, HeadError, Version, framing, scan, scan::HeadScan, version};
use crate::authority;
use policy::HostName;

const MAX_METHOD: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    pub method: String,
    pub target: RequestTarget,
    pub version: Version,
    pub fields: HeaderFields,
    /// Length of the head, where the body starts.
    pub consumed: usize,
    /// Never `UntilClose`.
    pub body: BodyFraming,
    /// Host of the request in canonical form.
    pub host: HostName,
    /// Port, if the request names one. A URL implies one even without a port.
    pub port: Option<u16>,
    pub connection: Connection,
}

/// Fields that offer a protocol switch, with their parameters.
const OFFERS: [&str; 2] = ["upgrade", "http2-settings"];

impl RequestHead {
    /// Removes an offer to switch to a protocol whose requests name hosts of their own (HTTP/2 without TLS, or TLS),
    /// because the broker could not judge those. Servers may ignore an offer, so the client sees a server that does.
    /// Returns true if there was one.
    pub fn remove_upgrade_offer(&mut self) -> bool {
        let names_hosts = |word: &[u8]| {
            let word = word.to_ascii_lowercase();
            [&b"h2"[..], b"http", b"tls"].iter().any(|name| word.starts_with(name))
        };
        if !self.fields.words("upgrade").any(names_hosts) {
            return false;
        }
        OFFERS.iter().for_each(|name| self.fields.remove(name));
        if let Connection::Upgrade(_) = self.connection {
            self.connection = Connection::KeepAlive;
        }
        true
    }
}

/// Returns the head without the fields that offer a protocol switch; other bytes are unchanged.
pub(crate) fn without_upgrade_offer(head: &[u8]) -> Vec<u8> {
    let name = |line: &[u8]| line.split(|byte| *byte == b':').next().unwrap_or_default().to_ascii_lowercase();
    let lines = head.split_inclusive(|byte| *byte == b'\n').enumerate();
    // The request line is no field.
    let kept = lines.filter(|(at, line)| *at == 0 || !OFFERS.iter().any(|offer| name(line) == offer.as_bytes()));
    kept.flat_map(|(_, line)| line).copied().collect()
}

/// Parses the head at the start of the bytes.
pub fn read_request(bytes: &[u8]) -> Head<RequestHead> {
    resume_request(bytes, &mut HeadScan::default())
}

/// Parses the head of a growing buffer: `seen` keeps the position between calls.
pub fn resume_request(bytes: &[u8], seen: &mut HeadScan) -> Head<RequestHead> {
    let head = scan::head_len(bytes, seen);
    head.and_then(|len| len.map(|len| request(&bytes[..len], Role::Server)).transpose()).into()
}

/// Parses a head for a proxy. There the target decides which host a request is for and the Host field is rewritten, so
/// a malformed Host field is repaired: clients that use one proxy connection for several hosts are known to get the
/// brackets wrong.
pub fn resume_proxied(bytes: &[u8], seen: &mut HeadScan) -> Head<RequestHead> {
    let head = scan::head_len(bytes, seen);
    head.and_then(|len| len.map(|len| request(&bytes[..len], Role::Proxy)).transpose()).into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Server,
    Proxy,
}

fn request(head: &[u8], role: Role) -> Result<RequestHead, HeadError> {
    let mut lines = fields::lines(head);
    let (method, target, version) = first_line(lines.next().unwrap_or_default())?;
    let mut fields = HeaderFields::read(lines)?;
    if role == Role::Proxy {
        repair_host_field(&mut fields, &target);
    }
    let named = host_field(&fields)?;
    let (host, port) = destination(&target, named, version)?;
    let body = body(method, &fields, version)?;
    let connection = framing::connection(&fields, version);
    Ok(RequestHead {
        method: method.to_owned(),
        target,
        version,
        fields,
        consumed: head.len(),
        body,
        host,
        port,
        connection,
    })
}

/// Parses the request line: three words with one space between them.
fn first_line(line: &[u8]) -> Result<(&str, RequestTarget, Version), HeadError> {
    let words: Vec<&[u8]> = line.splitn(4, |byte| *byte == b' ').collect();
    let [method, target, last] = words.as_slice() else {
        return Err((400, "the first line is not made of three words"));
    };
    let version = version(last)?;
    let method = token(method).ok_or((400, "the method is empty or malformed"))?;
    // Methods are case-sensitive, but not for every server: a denied method must have no other spelling.
    if method.len() > MAX_METHOD || method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err((501, "the method is too long or has small letters"));
    }
    Ok((method, RequestTarget::read(method, target)?, version))
}

/// Replaces a malformed Host field by the host of the target. A well-formed one stays, and must agree.
fn repair_host_field(fields: &mut HeaderFields, target: &RequestTarget) {
    let (RequestTarget::Absolute { host, port, .. } | RequestTarget::Authority { host, port }) = target else { return };
    let mut named = fields.0.iter_mut().filter(|f| f.name.eq_ignore_ascii_case("host"));
    let (Some(field), None) = (named.next(), named.next()) else { return };
    if std::str::from_utf8(&field.value).ok().and_then(authority::parse).is_none() {
        let is_usual = matches!(target, RequestTarget::Absolute { secure: false, port: 80, .. });
        field.value = if is_usual { host.to_string() } else { format!("{host}:{port}") }.into_bytes();
    }
}

/// Parses the Host field, if there is one.
fn host_field(fields: &HeaderFields) -> Result<Option<(HostName, Option<u16>)>, HeadError> {
    let mut values = fields.all("host");
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err((400, "Host comes twice"));
    }
    let read = std::str::from_utf8(value).ok().and_then(authority::parse);
    read.map(Some).ok_or((400, "Host is empty or malformed"))
}

/// Returns the destination of the request. Target and Host field must agree.
fn destination(
    target: &RequestTarget,
    named: Option<(HostName, Option<u16>)>,
    version: Version,
) -> Result<(HostName, Option<u16>), HeadError> {
    let differ = Err((400, "Host is not the host of the target"));
    match (target, named) {
        (RequestTarget::Absolute { host, port, .. }, Some((named, at))) => {
            let at = at.unwrap_or(if is_secure(target) { 443 } else { 80 });
            if *host == named && *port == at { Ok((named, Some(at))) } else { differ }
        }
        // Many clients leave out the port in this field.
        (RequestTarget::Authority { host, port }, Some((named, at))) => {
            if *host == named && at.is_none_or(|at| at == *port) { Ok((named, Some(*port))) } else { differ }
        }
        (RequestTarget::Origin(_) | RequestTarget::Asterisk, Some(named)) => Ok(named),
        // HTTP/1.0 has no Host field; many tools that only open a tunnel use it.
        (RequestTarget::Absolute { host, port, .. } | RequestTarget::Authority { host, port }, None)
            if version == Version::Http10 =>
        {
            Ok((host.clone(), Some(*port)))
        }
        (_, None) => Err((400, "Host is missing")),
    }
}

fn is_secure(target: &RequestTarget) -> bool {
    matches!(target, RequestTarget::Absolute { secure: true, .. })
}

fn body(method: &str, fields: &HeaderFields, version: Version) -> Result<BodyFraming, HeadError> {
    let declared = framing::declared(fields, version)?;
    match declared {
        Some(BodyFraming::Length(0)) | None if method == "CONNECT" => Ok(BodyFraming::None),
        Some(_) if method == "CONNECT" => Err((400, "CONNECT has a body")),
        // Servers differ in the spellings they know; one that does not know this spelling takes the body for another
        // request.
        Some(BodyFraming::Chunked) if fields.get("transfer-encoding") != Some(b"chunked") => {
            Err((501, "Transfer-Encoding is not chunked"))
        }
        declared => Ok(declared.unwrap_or(BodyFraming::None)),
    }
}
