//! Destination of a guest's connection: one of the broker's own services (DNS, SOCKS5, HTTP proxy) or a remote address.

use crate::connection::{self, GuestConnection, Services};
use crate::dial;
use crate::gate::{GateState, Remote, Ruling};
use crate::proxy;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use sys::doors::RESOLVER;
use tokio::net::TcpStream;
use tokio::sync::watch;

const DNS_PORT: u16 = 53;
const SOCKS_PORT: u16 = 1080;
const PROXY_PORT: u16 = 3128;

/// Destination of one connection, chosen by the address that the guest connects to.
pub(crate) enum Endpoint {
    /// DNS over TCP, which is answered at every address.
    Resolver,
    Socks,
    HttpProxy,
    Remote(Remote),
}

impl Endpoint {
    pub fn of(original: SocketAddr) -> Endpoint {
        let addr = SocketAddr::new(original.ip().to_canonical(), original.port());
        let ours = addr.ip() == IpAddr::from(RESOLVER);
        match addr.port() {
            DNS_PORT => Endpoint::Resolver,
            SOCKS_PORT if ours => Endpoint::Socks,
            PROXY_PORT if ours => Endpoint::HttpProxy,
            _ => Endpoint::Remote(Remote::at(addr, None)),
        }
    }
}

/// Serves an accepted connection to its end. `dialed` is the connection to the server and the ruling that allowed it;
/// `state` was subscribed before that ruling, so that no change of the rules is missed.
pub(crate) async fn serve(
    services: &Arc<Services>,
    guest: TcpStream,
    endpoint: Endpoint,
    dialed: Option<(TcpStream, Ruling)>,
    state: watch::Receiver<GateState>,
) {
    if guest.set_nodelay(true).is_err() {
        return;
    }
    let remote = match endpoint {
        // After any error the client sees its connection closed.
        Endpoint::Resolver => return drop(services.resolver.serve_stream(guest).await),
        Endpoint::Socks => return proxy::socks(services, guest).await,
        Endpoint::HttpProxy => return proxy::http(services, guest).await,
        Endpoint::Remote(remote) => remote,
    };
    let mut connection = GuestConnection { state, ..GuestConnection::new(services, guest, remote) };
    if let Some((outside, ruling)) = dialed {
        // Fails if the server is gone already, which the first read detects.
        let _ = dial::set_options(&outside);
        (connection.outside, connection.ruling) = (Some(outside), Some(ruling));
    }
    connection::serve(connection, Vec::new()).await;
}
