//! The head of a request.

use super::fields::{self, Fields, token};
use super::target::Target;
use super::{Body, Connection, Head, Refused, Version, framing, scan, scan::Seen, version};
use crate::authority;
use policy::HostName;

const MAX_METHOD: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub target: Target,
    pub version: Version,
    pub fields: Fields,
    /// The length of the head. The body starts there.
    pub consumed: usize,
    /// Never until close.
    pub body: Body,
    /// The host that the request is for, in the one spelling of the policy.
    pub host: HostName,
    /// The port, where the request names one. A URL names one even when it leaves it out.
    pub port: Option<u16>,
    pub connection: Connection,
}

/// Fields that offer the server another protocol, and what belongs to it.
const OFFERS: [&str; 2] = ["upgrade", "http2-settings"];

impl Request {
    /// Takes back an offer to go on in another protocol in which requests name hosts of their own: HTTP/2 without TLS, and TLS.
    /// Nobody could read those. Servers may ignore an offer, so to the client this is a server that does. Whether there was one.
    pub fn take_back_offer(&mut self) -> bool {
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

/// The head without the lines that offer another protocol; the others stay as they are.
pub(crate) fn without_offer(head: &[u8]) -> Vec<u8> {
    let name = |line: &[u8]| line.split(|byte| *byte == b':').next().unwrap_or_default().to_ascii_lowercase();
    let lines = head.split_inclusive(|byte| *byte == b'\n').enumerate();
    // The first line is the request's own.
    let kept = lines.filter(|(at, line)| *at == 0 || !OFFERS.iter().any(|offer| name(line) == offer.as_bytes()));
    kept.flat_map(|(_, line)| line).copied().collect()
}

/// Reads the head at the start of the bytes.
pub fn read_request(bytes: &[u8]) -> Head<Request> {
    resume_request(bytes, &mut Seen::default())
}

/// The same for bytes that grow: `seen` stays with them from one call to the next.
pub fn resume_request(bytes: &[u8], seen: &mut Seen) -> Head<Request> {
    let head = scan::end(bytes, seen);
    head.and_then(|len| len.map(|len| request(&bytes[..len], Reader::Server)).transpose()).into()
}

/// The same for a proxy. There the target says whom a request is for, and the Host field is written anew: one that cannot be
/// read is put right. Clients that use a connection to a proxy for several hosts are known to get the brackets wrong.
pub fn resume_proxied(bytes: &[u8], seen: &mut Seen) -> Head<Request> {
    let head = scan::end(bytes, seen);
    head.and_then(|len| len.map(|len| request(&bytes[..len], Reader::Proxy)).transpose()).into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Server,
    Proxy,
}

fn request(head: &[u8], reader: Reader) -> Result<Request, Refused> {
    let mut lines = fields::lines(head);
    let (method, target, version) = first_line(lines.next().unwrap_or_default())?;
    let mut fields = Fields::read(lines)?;
    if reader == Reader::Proxy {
        put_right(&mut fields, &target);
    }
    let named = host_field(&fields)?;
    let (host, port) = place(&target, named, version)?;
    let body = body(method, &fields, version)?;
    let connection = framing::connection(&fields, version);
    Ok(Request {
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

/// Three words with one space between them.
fn first_line(line: &[u8]) -> Result<(&str, Target, Version), Refused> {
    let words: Vec<&[u8]> = line.splitn(4, |byte| *byte == b' ').collect();
    let [method, target, last] = words.as_slice() else {
        return Err((400, "the first line is not made of three words"));
    };
    let version = version(last)?;
    let method = token(method).ok_or((400, "the method is empty or malformed"))?;
    // Methods are told apart by case, but not by every server: one that is denied must have no other spelling.
    if method.len() > MAX_METHOD || method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err((501, "the method is too long or has small letters"));
    }
    Ok((method, Target::read(method, target)?, version))
}

/// Writes a Host field that cannot be read as the target has it. One that can be read stays, and must agree.
fn put_right(fields: &mut Fields, target: &Target) {
    let (Target::Absolute { host, port, .. } | Target::Authority { host, port }) = target else { return };
    let mut named = fields.0.iter_mut().filter(|f| f.name.eq_ignore_ascii_case("host"));
    let (Some(field), None) = (named.next(), named.next()) else { return };
    if std::str::from_utf8(&field.value).ok().and_then(authority::parse).is_none() {
        let is_usual = matches!(target, Target::Absolute { secure: false, port: 80, .. });
        field.value = if is_usual { host.to_string() } else { format!("{host}:{port}") }.into_bytes();
    }
}

/// The host of the Host field, if there is one.
fn host_field(fields: &Fields) -> Result<Option<(HostName, Option<u16>)>, Refused> {
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

/// The one place that the request is for. The target and the field must not name two.
fn place(
    target: &Target,
    named: Option<(HostName, Option<u16>)>,
    version: Version,
) -> Result<(HostName, Option<u16>), Refused> {
    let differ = Err((400, "Host is not the host of the target"));
    match (target, named) {
        (Target::Absolute { host, port, .. }, Some((named, at))) => {
            let at = at.unwrap_or(if is_secure(target) { 443 } else { 80 });
            if *host == named && *port == at { Ok((named, Some(at))) } else { differ }
        }
        // Many clients leave the port out of the field here.
        (Target::Authority { host, port }, Some((named, at))) => {
            if *host == named && at.is_none_or(|at| at == *port) {
                Ok((named, Some(*port)))
            } else {
                differ
            }
        }
        (Target::Origin(_) | Target::Asterisk, Some(named)) => Ok(named),
        // HTTP/1.0 knows no Host; many tools that only open a tunnel speak it.
        (Target::Absolute { host, port, .. } | Target::Authority { host, port }, None)
            if version == Version::Http10 =>
        {
            Ok((host.clone(), Some(*port)))
        }
        (_, None) => Err((400, "Host is missing")),
    }
}

fn is_secure(target: &Target) -> bool {
    matches!(target, Target::Absolute { secure: true, .. })
}

fn body(method: &str, fields: &Fields, version: Version) -> Result<Body, Refused> {
    let declared = framing::declared(fields, version)?;
    match declared {
        Some(Body::Length(0)) | None if method == "CONNECT" => Ok(Body::None),
        Some(_) if method == "CONNECT" => Err((400, "CONNECT has a body")),
        // Servers differ in which spellings they know; one that does not know this one sees a body as a request.
        Some(Body::Chunked) if fields.get("transfer-encoding") != Some(b"chunked") => {
            Err((501, "Transfer-Encoding is not chunked"))
        }
        declared => Ok(declared.unwrap_or(Body::None)),
    }
}
