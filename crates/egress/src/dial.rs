//! Outgoing TCP connections: connect, socket options, and error messages. No rule is evaluated here.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Idle time before keep-alive probes, which detect a dead server within some minutes.
const KEEPALIVE: Duration = Duration::from_secs(120);

/// Reason reported for a server that does not answer.
pub(crate) const NO_ANSWER: &str = "the server does not answer";

/// Connects to exactly this address; the kernel's own timeout applies.
pub(crate) async fn connect(addr: SocketAddr) -> Result<TcpStream, Error> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // A server on this host has answered before the first call returns; the second call returns the result.
    for _ in 0..2 {
        match rustix::net::connect(&socket, &addr) {
            Ok(()) => return TcpStream::from_std(socket.into()),
            Err(Errno::INPROGRESS | Errno::ALREADY | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let stream = TcpStream::from_std(socket.into())?;
    stream.writable().await?;
    stream.take_error()?.map_or(Ok(stream), Err)
}

/// Connects within a time limit, for clients that can be sent an error message.
pub(crate) async fn connect_within(limit: Duration, addr: SocketAddr) -> Result<TcpStream, Error> {
    let stream = timeout(limit, connect(addr)).await.map_err(|_| ErrorKind::TimedOut)??;
    set_options(&stream)?;
    Ok(stream)
}

/// Sets the options of every connection to a server: TCP_NODELAY and keep-alive.
pub(crate) fn set_options(stream: &TcpStream) -> Result<(), Error> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_keepalive(stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    Ok(())
}

/// Describes a connection error.
pub(crate) fn reason_of(error: &Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "the server refused the connection".to_owned(),
        ErrorKind::TimedOut => NO_ANSWER.to_owned(),
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => "the server cannot be reached".to_owned(),
        _ => error.to_string(),
    }
}
