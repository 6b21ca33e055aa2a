//! Client helpers that run in the guest.

use crate::world::CONTROL;
use egress::dns::{self, Rcode, RecordType, Response};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

/// Upper bound on every wait.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Queries the guest's resolver, which answers at every address.
pub fn ask(name: &str, kind: RecordType) -> Response {
    ask_at("192.0.0.53:53", name, kind)
}

pub fn ask_at(server: &str, name: &str, kind: RecordType) -> Response {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(server).unwrap();
    socket.send(&dns::build_query(7, name, kind).unwrap()).unwrap();
    let mut buffer = [0; 4096];
    let len = socket.recv(&mut buffer).expect("an answer");
    dns::parse_response(&buffer[..len], 7, name, kind).unwrap()
}

pub fn ask_on_stream(name: &str, kind: RecordType) -> Response {
    let mut stream = connect("8.8.8.8:53");
    let query = dns::build_query(9, name, kind).unwrap();
    stream.write_all(&(query.len() as u16).to_be_bytes()).unwrap();
    stream.write_all(&query).unwrap();
    let mut len = [0; 2];
    stream.read_exact(&mut len).unwrap();
    let mut message = vec![0; u16::from_be_bytes(len).into()];
    stream.read_exact(&mut message).unwrap();
    dns::parse_response(&message, 9, name, kind).unwrap()
}

/// Resolves a name to its IPv4 addresses, of which there must be some.
#[track_caller]
pub fn resolve(name: &str) -> Vec<IpAddr> {
    let answer = ask(name, RecordType::A);
    assert_eq!(answer.rcode, Rcode::NoError, "{name}");
    answer.addresses
}

pub fn connect(to: &str) -> TcpStream {
    let to: SocketAddr = to.parse().unwrap();
    let stream = TcpStream::connect(to).unwrap_or_else(|e| panic!("{to}: {e}"));
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

#[track_caller]
pub fn read(stream: &mut TcpStream, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    stream.read_exact(&mut got).unwrap_or_else(|e| panic!("{}: {e}", wanted.escape_ascii()));
    assert_eq!(got, wanted, "{}", got.escape_ascii());
}

/// Sends bytes and expects the same back.
#[track_caller]
pub fn echoes(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    read(stream, bytes);
}

#[track_caller]
pub fn reaches(to: &str) {
    echoes(&mut connect(to), b"\x01hello");
}

/// Expects that the connection is refused, or reset after the bytes.
#[track_caller]
pub fn is_reset(to: &str, bytes: &[u8]) {
    match TcpStream::connect(to) {
        Ok(stream) => breaks(stream, bytes),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}"),
    }
}

/// Expects that the connection is refused.
#[track_caller]
pub fn is_refused(to: &str) {
    assert_eq!(TcpStream::connect(to).unwrap_err().kind(), ErrorKind::ConnectionRefused, "{to}");
}

#[track_caller]
pub fn breaks(mut stream: TcpStream, bytes: &[u8]) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The first call after the reset gets the error.
    let error = match stream.write_all(bytes) {
        Ok(()) => stream.read(&mut [0; 100]).expect_err("nothing may come"),
        Err(error) => error,
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
}

pub fn control(word: &str) -> String {
    let mut stream = connect(CONTROL);
    writeln!(stream, "{word}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Reads an HTTP response with a length, as status and body.
#[track_caller]
pub fn response(stream: &mut TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", bytes.escape_ascii());
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let lower = head.to_lowercase();
    let len = lower.lines().find_map(|l| l.strip_prefix("content-length: ")).map_or(0, |l| l.parse().unwrap());
    let mut body = vec![0; len];
    stream.read_exact(&mut body).unwrap();
    (status, String::from_utf8(body).unwrap())
}

/// Builds a ClientHello with or without SNI.
pub fn hello(name: Option<&str>) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    let mut extensions = vec![0, 43, 0, 3, 2, 3, 4];
    if let Some(name) = name {
        let len = name.len() as u16;
        extensions.extend([0, 0]);
        for part in [len + 5, len + 3] {
            extensions.extend(part.to_be_bytes());
        }
        extensions.push(0);
        extensions.extend(len.to_be_bytes());
        extensions.extend(name.as_bytes());
    }
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut message = vec![1, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    let mut record = vec![22, 3, 1];
    record.extend((message.len() as u16).to_be_bytes());
    record.extend(message);
    record
}
