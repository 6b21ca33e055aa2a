//! The first message of a TLS client: the name it asks for, read without ending the encryption. The message may come in
//! any number of records and segments.

use crate::bytes::Bytes;
use policy::HostName;
use std::collections::BTreeSet;

/// The most bytes that are looked at, framing included. Clients with large keys send some two thousand.
pub const MAX_HELLO: usize = 64 * 1024;

const RECORD_HEADER: usize = 5;
const MAX_FRAGMENT: usize = 16 * 1024;
const MESSAGE_HEADER: usize = 4;
/// Tools that split the message to get past filters make some dozens of it. Thousands only cost time: all of them are
/// walked again with every segment.
const MAX_RECORDS: usize = 256;

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;
const ECH: u16 = 0xfe0d;
/// What came before ECH, and hid the name as well.
const ESNI: u16 = 0xffce;

/// What the bytes of a client so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// The first bytes are not those of TLS.
    NotTls,
    NeedMore,
    Bad(&'static str),
    Client(Client),
}

/// What a client says about itself before anything is secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// The name asked for, in the one spelling of the policy.
    pub sni: Option<String>,
    /// Protocols in order of preference; bytes that are not printable are escaped.
    pub alpn: Vec<String>,
    /// Another name may be hidden in the message. Browsers send the same extension without one, to keep it common.
    pub ech: bool,
    /// Versions as numbers: 0x0303 is TLS 1.2, 0x0304 is TLS 1.3. Clients add some that do not exist.
    pub versions: Vec<u16>,
}

/// Reads the bytes that came from a client since the start of the connection.
pub fn read(bytes: &[u8]) -> Hello {
    let within = bytes.get(..MAX_HELLO).unwrap_or(bytes);
    match message(within) {
        Ok(Some(body)) => match client(&body) {
            Ok(client) => Hello::Client(client),
            Err(reason) => Hello::Bad(reason),
        },
        Ok(None) if within.len() == MAX_HELLO => Hello::Bad("it is longer than 64 KiB"),
        Ok(None) => Hello::NeedMore,
        Err(stop) => stop,
    }
}

/// The body of the first handshake message, once all of it is there. Records are walked before anything is copied, so
/// that asking again after every segment costs little.
fn message(bytes: &[u8]) -> Result<Option<Vec<u8>>, Hello> {
    let mut fragments = Vec::new();
    let mut have = 0;
    let mut start = Vec::with_capacity(MESSAGE_HEADER);
    let mut rest = bytes;
    while let Some(len) = record_len(rest, if have == 0 { Hello::NotTls } else { Hello::Bad(INTERRUPTED) })? {
        let fragment = &rest[RECORD_HEADER..rest.len().min(RECORD_HEADER + len)];
        if fragments.len() == MAX_RECORDS {
            return Err(Hello::Bad("it is split into too many records"));
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

const INTERRUPTED: &str = "something else stands between its records";

/// The length of the record that starts here, once its header is there; `foreign` when it is no record of a handshake.
/// Bytes are judged in their order, so that the verdict does not depend on how many have come.
fn record_len(rest: &[u8], foreign: Hello) -> Result<Option<usize>, Hello> {
    let is_handshake = [22..=22, 3..=3, 0..=4].iter().zip(rest).all(|(wanted, byte)| wanted.contains(byte));
    if !is_handshake {
        return Err(foreign);
    }
    let mut bytes = Bytes::from(rest, 3);
    match bytes.u16().map(usize::from) {
        None => Ok(None),
        Some(0) => Err(Hello::Bad("a record is empty")),
        Some(len) if len > MAX_FRAGMENT => Err(Hello::Bad("a record is longer than 16 KiB")),
        Some(len) => Ok(Some(len)),
    }
}

/// The length of the message that starts so, once its header is there.
fn message_len(start: &[u8]) -> Result<Option<usize>, Hello> {
    if start.first().is_some_and(|kind| *kind != 1) {
        return Err(Hello::Bad("the first message is not ClientHello"));
    }
    let mut bytes = Bytes::from(start, 1);
    let Some((high, low)) = bytes.u8().zip(bytes.u16()) else {
        return Ok(None);
    };
    match usize::from(high) << 16 | usize::from(low) {
        len if len > MAX_HELLO - MESSAGE_HEADER - RECORD_HEADER => Err(Hello::Bad("it is longer than 64 KiB")),
        len => Ok(Some(len)),
    }
}

const CUT: &str = "it is cut short or malformed";

fn client(body: &[u8]) -> Result<Client, &'static str> {
    let mut bytes = Bytes::new(body);
    let (version, extensions) = fixed_part(&mut bytes).ok_or(CUT)?;
    if !bytes.is_empty() {
        return Err("bytes follow the extensions");
    }
    let mut client = Client::default();
    let mut seen = BTreeSet::new();
    let mut bytes = Bytes::new(extensions);
    while !bytes.is_empty() {
        let (kind, data) = bytes.u16().and_then(|kind| Some((kind, bytes.long_run()?))).ok_or(CUT)?;
        // Of two of a kind, one reader takes the first and another the last.
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

/// Everything before the extensions: the version of old, and the extensions themselves.
fn fixed_part<'a>(bytes: &mut Bytes<'a>) -> Option<(u16, &'a [u8])> {
    let version = bytes.u16()?;
    bytes.take(32)?;
    bytes.short_run().filter(|session| session.len() <= 32)?;
    bytes.long_run().filter(|ciphers| !ciphers.is_empty() && ciphers.len() % 2 == 0)?;
    bytes.short_run().filter(|compressions| !compressions.is_empty())?;
    let extensions = if bytes.is_empty() { &[] } else { bytes.long_run()? };
    Some((version, extensions))
}

/// The one name asked for. The standard leaves room for lists and other kinds of names; no client sends them, and
/// readers differ in what they make of them.
fn server_name(data: &[u8]) -> Result<String, &'static str> {
    let list = whole(data, |bytes| bytes.long_run()).ok_or("the list of server names is malformed")?;
    let mut bytes = Bytes::new(list);
    let (kind, name) = bytes.u8().zip(bytes.long_run()).ok_or("the list of server names is malformed")?;
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
    let mut bytes = Bytes::new(whole(data, |bytes| bytes.long_run())?);
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let name = bytes.short_run().filter(|name| !name.is_empty())?;
        out.push(name.escape_ascii().to_string());
    }
    (!out.is_empty()).then_some(out)
}

fn versions(data: &[u8]) -> Option<Vec<u16>> {
    let mut bytes = Bytes::new(whole(data, |bytes| bytes.short_run())?);
    let mut out = Vec::new();
    while !bytes.is_empty() {
        out.push(bytes.u16()?);
    }
    (!out.is_empty()).then_some(out)
}

/// What `read` takes from the data, when that is all of it.
fn whole<'a>(data: &'a [u8], read: impl Fn(&mut Bytes<'a>) -> Option<&'a [u8]>) -> Option<&'a [u8]> {
    let mut bytes = Bytes::new(data);
    read(&mut bytes).filter(|_| bytes.is_empty())
}
