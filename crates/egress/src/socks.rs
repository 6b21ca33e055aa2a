//! SOCKS5 server handshake. Only CONNECT is supported: the guest does not accept connections this way, and UDP has a
//! path of its own. Any credentials are accepted.

use crate::byte_reader::ByteReader;
use policy::HostName;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const VERSION: u8 = 5;
const NO_AUTH: u8 = 0;
const PASSWORD: u8 = 2;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;

/// Reply code sent to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    Succeeded = 0,
    Failed = 1,
    NotAllowed = 2,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    TimedOut = 6,
    CommandNotSupported = 7,
    AddressNotSupported = 8,
}

/// Next action after the bytes so far. The caller removes `consumed` bytes before the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocksStep {
    NeedMore,
    /// Send these bytes and continue.
    Reply {
        bytes: Vec<u8>,
        consumed: usize,
    },
    /// Connect, then send the reply. Bytes after `consumed` belong to the server.
    Connect {
        host: HostName,
        port: u16,
        consumed: usize,
    },
    /// Send the reply, which may be empty, and close.
    Bad {
        reply: Vec<u8>,
        reason: &'static str,
    },
}

/// Handshake with one client, from its greeting to its request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocksHandshake {
    stage: SocksStage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SocksStage {
    #[default]
    Greeting,
    Password,
    Request,
    Done,
}

impl SocksHandshake {
    pub fn new() -> SocksHandshake {
        SocksHandshake::default()
    }

    /// Reads the next message of the client. No message is longer than 513 bytes.
    pub fn step(&mut self, bytes: &[u8]) -> SocksStep {
        let (next, step) = match self.stage {
            SocksStage::Greeting => greeting(bytes),
            SocksStage::Password => (SocksStage::Request, password(bytes)),
            SocksStage::Request => (SocksStage::Done, request(bytes)),
            SocksStage::Done => (SocksStage::Done, bad(Vec::new(), "the request has been read")),
        };
        match step {
            SocksStep::NeedMore => {}
            SocksStep::Bad { .. } => self.stage = SocksStage::Done,
            _ => self.stage = next,
        }
        step
    }
}

/// Builds the reply to a request: its status, and the bound address if known.
pub fn reply(status: Status, bound: Option<SocketAddr>) -> Vec<u8> {
    let bound = bound.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into());
    let mut out = vec![VERSION, status as u8, 0];
    match bound.ip() {
        IpAddr::V4(addr) => {
            out.push(1);
            out.extend(addr.octets());
        }
        IpAddr::V6(addr) => {
            out.push(4);
            out.extend(addr.octets());
        }
    }
    out.extend(bound.port().to_be_bytes());
    out
}

fn bad(reply: Vec<u8>, reason: &'static str) -> SocksStep {
    SocksStep::Bad { reply, reason }
}

fn refused(status: Status, reason: &'static str) -> SocksStep {
    bad(reply(status, None), reason)
}

fn greeting(bytes: &[u8]) -> (SocksStage, SocksStep) {
    let mut bytes = ByteReader::new(bytes);
    match bytes.u8() {
        None => return (SocksStage::Greeting, SocksStep::NeedMore),
        Some(VERSION) => {}
        // SOCKS4 has a rejection message of its own.
        Some(4) => {
            return (
                SocksStage::Done,
                bad(vec![0, 0x5b, 0, 0, 0, 0, 0, 0], "the client speaks SOCKS4, only SOCKS5 is supported"),
            );
        }
        Some(_) => return (SocksStage::Done, bad(Vec::new(), "the client does not speak SOCKS")),
    }
    let Some(methods) = bytes.u8_prefixed() else {
        return (SocksStage::Greeting, SocksStep::NeedMore);
    };
    let chosen = |method| SocksStep::Reply { bytes: vec![VERSION, method], consumed: bytes.at() };
    if methods.contains(&NO_AUTH) {
        (SocksStage::Request, chosen(NO_AUTH))
    } else if methods.contains(&PASSWORD) {
        (SocksStage::Password, chosen(PASSWORD))
    } else {
        (SocksStage::Done, bad(vec![VERSION, NO_METHOD], "the client offers no supported authentication method"))
    }
}

/// Reads a user name and password (RFC 1929); any are accepted.
fn password(bytes: &[u8]) -> SocksStep {
    let mut bytes = ByteReader::new(bytes);
    match bytes.u8() {
        None => return SocksStep::NeedMore,
        Some(1) => {}
        Some(_) => return bad(vec![1, 1], "the password has an unknown form"),
    }
    match bytes.u8_prefixed().and_then(|_| bytes.u8_prefixed()) {
        None => SocksStep::NeedMore,
        Some(_) => SocksStep::Reply { bytes: vec![1, 0], consumed: bytes.at() },
    }
}

/// Parses bytes in order, so that the result does not depend on how many have arrived.
fn request(whole: &[u8]) -> SocksStep {
    match whole.first() {
        None => return SocksStep::NeedMore,
        Some(&VERSION) => {}
        Some(_) => return refused(Status::Failed, "the request is not of SOCKS5"),
    }
    match whole.get(1) {
        None => return SocksStep::NeedMore,
        Some(&CONNECT) => {}
        Some(2) => return refused(Status::CommandNotSupported, "BIND is not supported"),
        Some(3) => return refused(Status::CommandNotSupported, "UDP ASSOCIATE is not supported"),
        Some(_) => return refused(Status::CommandNotSupported, "the command is unknown"),
    }
    match whole.get(2) {
        None => return SocksStep::NeedMore,
        Some(0) => {}
        Some(_) => return refused(Status::Failed, "the reserved byte is not zero"),
    }
    let mut bytes = ByteReader::from(whole, 3);
    let host = match bytes.u8() {
        None => return SocksStep::NeedMore,
        Some(1) => bytes.array::<4>().map(|octets| Ok(HostName::Addr(octets.into()))),
        Some(3) => bytes.u8_prefixed().map(domain),
        Some(4) => bytes.array::<16>().map(|octets| Ok(HostName::Addr(IpAddr::from(octets).to_canonical()))),
        Some(_) => return refused(Status::AddressNotSupported, "the type of the address is unknown"),
    };
    let port = bytes.u16();
    match (host, port) {
        (Some(Err(reason)), _) => refused(Status::Failed, reason),
        (None, _) | (_, None) => SocksStep::NeedMore,
        (_, Some(0)) => refused(Status::Failed, "the port is zero"),
        (Some(Ok(host)), Some(port)) => SocksStep::Connect { host, port, consumed: bytes.at() },
    }
}

/// Parses a domain name; an IP address in text form becomes an address.
fn domain(name: &[u8]) -> Result<HostName, &'static str> {
    let text = std::str::from_utf8(name).map_err(|_| "the name is not ASCII")?;
    HostName::parse(text).map_err(|_| "the name is not the name of a host")
}
