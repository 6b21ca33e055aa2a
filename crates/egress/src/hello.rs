//! Parser for the TLS ClientHello, mainly for its SNI, without terminating TLS. The message may be split into any
//! number of records and segments.

use crate::byte_reader::ByteReader;
use policy::HostName;
use std::collections::BTreeSet;

/// Limit on bytes examined, record headers included. Clients with large key shares send some two thousand.
pub const MAX_HELLO: usize = 64 * 1024;

const RECORD_HEADER: usize = 5;
const MAX_FRAGMENT: usize = 16 * 1024;
const MESSAGE_HEADER: usize = 4;
/// Limit on records. Tools that split the message to evade filters make dozens of them; thousands only cost time,
/// because all records are walked again with every segment.
const MAX_RECORDS: usize = 256;

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;
const ECH: u16 = 0xfe0d;
/// Predecessor of ECH, which encrypts the name as well.
const ESNI: u16 = 0xffce;

/// Result of parsing a client's bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Not a TLS handshake record.
    NotTls,
    NeedMore,
    Bad(&'static str),
    Client(ClientHello),
}

/// Plaintext contents of a ClientHello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// Server name in canonical form.
    pub sni: Option<String>,
    /// ALPN protocols in order of preference; unprintable bytes are escaped.
    pub alpn: Vec<String>,
    /// True if an encrypted name (ECH or ESNI) may be present. Browsers send the extension without one as well, to keep
    /// it common.
    pub ech: bool,
    /// Version numbers: 0x0303 is TLS 1.2, 0x0304 is TLS 1.3. Clients add some that do not exist (GREASE).
    pub versions: Vec<u16>,
}

/// Parses all bytes that a client has sent since the start of the connection.
pub fn read(bytes: &[u8]) -> Hello {
    let within = bytes.get(..MAX_HELLO).unwrap_or(bytes);
    match message(within) {
        Ok(Some(body)) => match client(&body) {
            Ok(client) => Hello::Client(client),
            Err(reason) => Hello::Bad(reason),
        },
        Ok(None) if within.len() == MAX_HELLO => Hello::Bad("the ClientHello is longer than 64 KiB"),
        Ok(None) => Hello::NeedMore,
        Err(stop) => stop,
    }
}

/// Reassembles the body of the first handshake message, or returns `None` while it is incomplete. Records are walked
/// before any byte is copied, so that repeating this after every segment costs little.
fn message(bytes: &[u8]) -> Result<Option<Vec<u8>>, Hello> {
    let mut fragments = Vec::new();
    let mut have = 0;
    let mut start = Vec::with_capacity(MESSAGE_HEADER);
    let mut rest = bytes;
    while let Some(len) = record_len(rest, if have == 0 { Hello::NotTls } else { Hello::Bad(INTERRUPTED) })? {
        let fragment = &rest[RECORD_HEADER..rest.len().min(RECORD_HEADER + len)];
        if fragments.len() == MAX_RECORDS {
            return Err(Hello::Bad("the ClientHello is split into too many records"));
        }
        fragments.push(fragment);
        have += fragment.len();
        start.extend(fragment.iter().take(MESSAGE_HEADER - start.len()));
        if let Some(wanted) = message_len(&start)?
            && have >= MESSAGE_HEADER + wanted
        {
            let body = fragments.concat();
            return Ok(body.get(MESSAGE_HEADER..MESSAGE_HEADER + wanted).map(<[u8]>::to_vec));
        }
        rest = &rest[(RECORD_HEADER + len).min(rest.len())..];
    }
    Ok(None)
}

const INTERRUPTED: &str = "other records interrupt the ClientHello";

/// Returns the length of the record at the start, or `None` while its header is incomplete; fails with `foreign` if it
/// is no handshake record. Bytes are judged in order, so that the result does not depend on how many have arrived.
fn record_len(rest: &[u8], foreign: Hello) -> Result<Option<usize>, Hello> {
    let is_handshake = [22..=22, 3..=3, 0..=4].iter().zip(rest).all(|(wanted, byte)| wanted.contains(byte));
    if !is_handshake {
        return Err(foreign);
    }
    let mut bytes = ByteReader::from(rest, 3);
    match bytes.u16().map(usize::from) {
        None => Ok(None),
        Some(0) => Err(Hello::Bad("a record is empty")),
        Some(len) if len > MAX_FRAGMENT => Err(Hello::Bad("a record is longer than 16 KiB")),
        Some(len) => Ok(Some(len)),
    }
}

/// Returns the length of the handshake message, or `None` while its header is incomplete.
fn message_len(start: &[u8]) -> Result<Option<usize>, Hello> {
    if start.first().is_some_and(|kind| *kind != 1) {
        return Err(Hello::Bad("the first message is not ClientHello"));
    }
    let mut bytes = ByteReader::from(start, 1);
    let Some((high, low)) = bytes.u8().zip(bytes.u16()) else {
        return Ok(None);
    };
    match usize::from(high) << 16 | usize::from(low) {
        len if len > MAX_HELLO - MESSAGE_HEADER - RECORD_HEADER => {
            Err(Hello::Bad("the ClientHello is longer than 64 KiB"))
        }
        len => Ok(Some(len)),
    }
}

const CUT: &str = "the ClientHello is truncated or malformed";

fn client(body: &[u8]) -> Result<ClientHello, &'static str> {
    let mut bytes = ByteReader::new(body);
    let (version, extensions) = fixed_part(&mut bytes).ok_or(CUT)?;
    if !bytes.is_empty() {
        return Err("bytes follow the extensions");
    }
    let mut client = ClientHello::default();
    let mut seen = BTreeSet::new();
    let mut bytes = ByteReader::new(extensions);
    while !bytes.is_empty() {
        let (kind, data) = bytes.u16().and_then(|kind| Some((kind, bytes.u16_prefixed()?))).ok_or(CUT)?;
        // Of two extensions with one type, one parser takes the first and another the last.
        if !seen.insert(kind) {
            return Err("an extension comes twice");
        }
        match kind {
            SERVER_NAME => client.sni = Some(server_name(data)?),
            ALPN => client.alpn = protocols(data).ok_or("the list of protocols is malformed")?,
            SUPPORTED_VERSIONS => client.versions = versions(data).ok_or("the list of versions is malformed")?,
            ECH | ESNI => client.ech = true,
            _ => {}
        }
    }
    if client.versions.is_empty() {
        client.versions.push(version);
    }
    Ok(client)
}

/// Reads all fields before the extensions. Returns the legacy version and the extensions.
fn fixed_part<'a>(bytes: &mut ByteReader<'a>) -> Option<(u16, &'a [u8])> {
    let version = bytes.u16()?;
    bytes.take(32)?;
    bytes.u8_prefixed().filter(|session| session.len() <= 32)?;
    bytes.u16_prefixed().filter(|ciphers| !ciphers.is_empty() && ciphers.len() % 2 == 0)?;
    bytes.u8_prefixed().filter(|compressions| !compressions.is_empty())?;
    let extensions = if bytes.is_empty() { &[] } else { bytes.u16_prefixed()? };
    Some((version, extensions))
}

/// Returns the only server name. The standard permits lists and other name types; no client sends them, and parsers
/// disagree about them.
fn server_name(data: &[u8]) -> Result<String, &'static str> {
    let list = whole(data, |bytes| bytes.u16_prefixed()).ok_or("the list of server names is malformed")?;
    let mut bytes = ByteReader::new(list);
    let (kind, name) = bytes.u8().zip(bytes.u16_prefixed()).ok_or("the list of server names is malformed")?;
    if !bytes.is_empty() {
        return Err("there is more than one server name");
    }
    if kind != 0 {
        return Err("the server name is not the name of a host");
    }
    let text = std::str::from_utf8(name).map_err(|_| "the server name is not ASCII")?;
    match HostName::parse(text) {
        Ok(HostName::Name(name)) => Ok(name),
        Ok(HostName::Addr(_)) => Err("the server name is an address"),
        Err(_) => Err("the server name is not the name of a host"),
    }
}

fn protocols(data: &[u8]) -> Option<Vec<String>> {
    let mut bytes = ByteReader::new(whole(data, |bytes| bytes.u16_prefixed())?);
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let name = bytes.u8_prefixed().filter(|name| !name.is_empty())?;
        out.push(name.escape_ascii().to_string());
    }
    (!out.is_empty()).then_some(out)
}

fn versions(data: &[u8]) -> Option<Vec<u16>> {
    let mut bytes = ByteReader::new(whole(data, |bytes| bytes.u8_prefixed())?);
    let mut out = Vec::new();
    while !bytes.is_empty() {
        out.push(bytes.u16()?);
    }
    (!out.is_empty()).then_some(out)
}

/// Applies `read` and requires that it consumes all data.
fn whole<'a>(data: &'a [u8], read: impl Fn(&mut ByteReader<'a>) -> Option<&'a [u8]>) -> Option<&'a [u8]> {
    let mut bytes = ByteReader::new(data);
    read(&mut bytes).filter(|_| bytes.is_empty())
}
