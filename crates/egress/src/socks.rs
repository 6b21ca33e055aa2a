//! SOCKS5 as a server, for clients that reach the broker through it. Only CONNECT: a guest has no business with being
//! connected to, and datagrams go by other ways. Who the client says it is makes no difference.

use crate::bytes::Bytes;
use policy::HostName;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const VERSION: u8 = 5;
const NO_AUTH: u8 = 0;
const PASSWORD: u8 = 2;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;

/// How a request ended, as the client is told.
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

/// What to do after the bytes so far. `consumed` are gone from the front of them before the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    NeedMore,
    /// Send this, and go on.
    Reply {
        bytes: Vec<u8>,
        consumed: usize,
    },
    /// Connect, then send `reply`. What follows `consumed` is for the other end.
    Connect {
        host: HostName,
        port: u16,
        consumed: usize,
    },
    /// Send this, which may be nothing, and close.
    Bad {
        reply: Vec<u8>,
        reason: &'static str,
    },
}

/// One client, from its greeting to its request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Socks {
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Greeting,
    Password,
    Request,
    Done,
}

impl Socks {
    pub fn new() -> Socks {
        Socks::default()
    }

    /// Reads the next message of the client. No message is longer than 513 bytes.
    pub fn step(&mut self, bytes: &[u8]) -> Step {
        let (next, step) = match self.stage {
            Stage::Greeting => greeting(bytes),
            Stage::Password => (Stage::Request, password(bytes)),
            Stage::Request => (Stage::Done, request(bytes)),
            Stage::Done => (Stage::Done, bad(Vec::new(), "the request has been read")),
        };
        match step {
            Step::NeedMore => {}
            Step::Bad { .. } => self.stage = Stage::Done,
            _ => self.stage = next,
        }
        step
    }
}

/// The reply to a request: how it ended, and the address that the other end sees, if that is to be told.
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

fn bad(reply: Vec<u8>, reason: &'static str) -> Step {
    Step::Bad { reply, reason }
}

fn refused(status: Status, reason: &'static str) -> Step {
    bad(reply(status, None), reason)
}

fn greeting(bytes: &[u8]) -> (Stage, Step) {
    let mut bytes = Bytes::new(bytes);
    match bytes.u8() {
        None => return (Stage::Greeting, Step::NeedMore),
        Some(VERSION) => {}
        // Version 4 knows "rejected", in a message of its own.
        Some(4) => return (Stage::Done, bad(vec![0, 0x5b, 0, 0, 0, 0, 0, 0], "it is SOCKS4, only SOCKS5 is spoken")),
        Some(_) => return (Stage::Done, bad(Vec::new(), "it is not SOCKS")),
    }
    let Some(methods) = bytes.short_run() else {
        return (Stage::Greeting, Step::NeedMore);
    };
    let chosen = |method| Step::Reply { bytes: vec![VERSION, method], consumed: bytes.at() };
    if methods.contains(&NO_AUTH) {
        (Stage::Request, chosen(NO_AUTH))
    } else if methods.contains(&PASSWORD) {
        (Stage::Password, chosen(PASSWORD))
    } else {
        (Stage::Done, bad(vec![VERSION, NO_METHOD], "it offers no method that is known here"))
    }
}

/// A name and a password, which are taken whatever they are.
fn password(bytes: &[u8]) -> Step {
    let mut bytes = Bytes::new(bytes);
    match bytes.u8() {
        None => return Step::NeedMore,
        Some(1) => {}
        Some(_) => return bad(vec![1, 1], "the password has an unknown form"),
    }
    match bytes.short_run().and_then(|_| bytes.short_run()) {
        None => Step::NeedMore,
        Some(_) => Step::Reply { bytes: vec![1, 0], consumed: bytes.at() },
    }
}

/// Bytes are judged in their order, so that the verdict does not depend on how many have come.
fn request(whole: &[u8]) -> Step {
    match whole.first() {
        None => return Step::NeedMore,
        Some(&VERSION) => {}
        Some(_) => return refused(Status::Failed, "the request is not of SOCKS5"),
    }
    match whole.get(1) {
        None => return Step::NeedMore,
        Some(&CONNECT) => {}
        Some(2) => return refused(Status::CommandNotSupported, "BIND is not supported"),
        Some(3) => return refused(Status::CommandNotSupported, "UDP ASSOCIATE is not supported"),
        Some(_) => return refused(Status::CommandNotSupported, "the command is unknown"),
    }
    match whole.get(2) {
        None => return Step::NeedMore,
        Some(0) => {}
        Some(_) => return refused(Status::Failed, "the reserved byte is not zero"),
    }
    let mut bytes = Bytes::from(whole, 3);
    let host = match bytes.u8() {
        None => return Step::NeedMore,
        Some(1) => bytes.array::<4>().map(|octets| Ok(HostName::Addr(octets.into()))),
        Some(3) => bytes.short_run().map(domain),
        Some(4) => bytes.array::<16>().map(|octets| Ok(HostName::Addr(IpAddr::from(octets).to_canonical()))),
        Some(_) => return refused(Status::AddressNotSupported, "the type of the address is unknown"),
    };
    let port = bytes.u16();
    match (host, port) {
        (Some(Err(reason)), _) => refused(Status::Failed, reason),
        (None, _) | (_, None) => Step::NeedMore,
        (_, Some(0)) => refused(Status::Failed, "the port is zero"),
        (Some(Ok(host)), Some(port)) => Step::Connect { host, port, consumed: bytes.at() },
    }
}

/// Names come to be judged as names; an address spelled as one is an address.
fn domain(name: &[u8]) -> Result<HostName, &'static str> {
    let text = std::str::from_utf8(name).map_err(|_| "the name is not ASCII")?;
    HostName::parse(text).map_err(|_| "the name is not the name of a host")
}
