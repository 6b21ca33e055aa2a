//! TLS on both sides: towards the guest with a leaf of its authority, towards the server as any careful client.

use super::secrets::Spelled;
use super::stream::{Io, Metered, Prefixed};
use crate::authority_of_guest::Authority;
use crate::court::Court;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use terms::Fault;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::server::NoServerSessionStorage;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{self, AlertDescription, CertificateError, ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// How many connections of one guest may speak HTTP/2 at once.
const MAX_HTTP2: usize = 128;

/// What may be set about inspecting; the defaults are meant for use.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Authorities that servers may show besides those that the host trusts, as DER.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// How long the other side may take to be reached, its handshake included.
    pub connect: Duration,
    /// How long a handshake or a head may take from its first byte on.
    pub head: Duration,
    /// How long a connection may stay without a request, and a request without a byte.
    pub idle: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            extra_roots: Vec::new(),
            connect: Duration::from_secs(20),
            head: Duration::from_secs(30),
            idle: Duration::from_secs(600),
        }
    }
}

/// What all inspected connections of one guest share.
pub struct Tls {
    /// None where the guest trusts no authority of ours: then only what comes without TLS can be read.
    authority: Option<Arc<Authority>>,
    pub(super) settings: Settings,
    provider: Arc<CryptoProvider>,
    /// Made with the first connection: reading the roots of the host takes some milliseconds.
    client: OnceLock<Result<ClientConfig, String>>,
    pub(super) spelled: Spelled,
    /// How many more connections may speak HTTP/2: one can hold megabytes that nobody takes.
    http2: Arc<Semaphore>,
}

/// Why the other side cannot be used, in words for the guest.
#[derive(Clone, Debug)]
pub(super) struct Trouble(pub String);

/// The protocols of HTTP that can be inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    pub const ALL: [Protocol; 2] = [Protocol::Http2, Protocol::Http1];

    /// As a client offers it.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Http1 => "http/1.1",
            Protocol::Http2 => "h2",
        }
    }
}

impl Tls {
    pub fn new(authority: Option<Arc<Authority>>, settings: Settings) -> Tls {
        let provider = Arc::new(ring::default_provider());
        Tls {
            authority,
            settings,
            provider,
            client: OnceLock::new(),
            spelled: Spelled::default(),
            http2: Arc::new(Semaphore::new(MAX_HTTP2)),
        }
    }

    /// Whether TLS of the guest can be read.
    pub(crate) fn has_authority(&self) -> bool {
        self.authority.is_some()
    }

    /// Room for one more connection with HTTP/2, as long as it is kept.
    pub(super) fn http2_slot(&self) -> Option<OwnedSemaphorePermit> {
        self.http2.clone().try_acquire_owned().ok()
    }

    pub(super) fn leaf(&self, name: Option<&str>, addr: Option<IpAddr>) -> Result<Arc<CertifiedKey>, Fault> {
        match &self.authority {
            Some(authority) => authority.leaf(name, addr),
            None => Err(Fault::internal("the guest trusts no authority of ours")),
        }
    }

    /// Opens a plain connection to the server.
    pub(super) async fn dial(&self, addr: SocketAddr, court: &Arc<dyn Court>) -> Result<Io, Trouble> {
        let opened = self.in_time(addr, TcpStream::connect(addr)).await?;
        let tcp = opened.map_err(|e| Trouble(format!("{addr} cannot be reached: {e}")))?;
        // Only a delay is lost when this fails.
        let _ = tcp.set_nodelay(true);
        Ok(Box::new(Metered::new(tcp, court.clone())))
    }

    /// Opens a connection to the server and checks who it is; with the protocol it chose among those offered.
    pub(super) async fn connect(
        &self,
        addr: SocketAddr,
        name: ServerName<'static>,
        offered: &[Protocol],
        court: &Arc<dyn Court>,
    ) -> Result<(Io, Protocol), Trouble> {
        let mut config = self.client.get_or_init(|| self.client_config()).clone().map_err(Trouble)?;
        config.alpn_protocols = offered.iter().map(|p| p.name().into()).collect();
        let tcp = self.dial(addr, court).await?;
        let called = match &name {
            ServerName::DnsName(name) => name.as_ref().to_owned(),
            _ => addr.ip().to_string(),
        };
        let made = self.in_time(addr, TlsConnector::from(Arc::new(config)).connect(name, tcp)).await?;
        let stream = made.map_err(|e| Trouble(handshake_trouble(&called, &e)))?;
        let chosen = match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Protocol::Http2,
            _ => Protocol::Http1,
        };
        Ok((Box::new(stream), chosen))
    }

    async fn in_time<T>(&self, addr: SocketAddr, work: impl Future<Output = T>) -> Result<T, Trouble> {
        timeout(self.settings.connect, work).await.map_err(|_| Trouble(format!("{addr} does not answer in time")))
    }

    /// Ends the encryption of the guest, whose first bytes were read.
    pub(super) async fn accept(
        &self,
        guest: Prefixed<Io>,
        leaf: Arc<CertifiedKey>,
        protocol: Option<Protocol>,
    ) -> io::Result<Io> {
        let versions = ServerConfig::builder_with_provider(self.provider.clone()).with_safe_default_protocol_versions();
        let builder = versions.map_err(io::Error::other)?.with_no_client_auth();
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(leaf)));
        config.alpn_protocols = protocol.iter().map(|p| p.name().into()).collect();
        // The name is judged anew with each connection, so nothing of one serves for another.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let accepted = timeout(self.settings.head, TlsAcceptor::from(Arc::new(config)).accept(guest)).await;
        Ok(Box::new(accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??))
    }

    fn client_config(&self) -> Result<ClientConfig, String> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots.add_parsable_certificates(self.settings.extra_roots.iter().cloned());
        if roots.is_empty() {
            return Err("the host trusts no certificate authority, so no server can be checked".to_owned());
        }
        let builder = ClientConfig::builder_with_provider(self.provider.clone()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|e| format!("TLS cannot be set up: {e}"))?;
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }
}

fn handshake_trouble(name: &str, error: &io::Error) -> String {
    match rustls_error(error) {
        Some(rustls::Error::InvalidCertificate(why)) => {
            format!("the certificate of {name} is not valid: {}", certificate_trouble(why))
        }
        Some(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)) => {
            format!("{name} speaks no protocol that the client speaks")
        }
        Some(other) => format!("TLS with {name} failed: {}", alert_trouble(other)),
        None => format!("TLS with {name} failed: {error}"),
    }
}

/// Why a stream to a server broke. Some say only after the handshake what they did not like about it.
pub(super) fn stream_trouble(error: &io::Error) -> String {
    rustls_error(error).map_or_else(|| error.to_string(), alert_trouble)
}

fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>())
}

/// Old servers have no alert of their own for it, and send the one for all failures.
fn alert_trouble(error: &rustls::Error) -> String {
    match error {
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server wants a certificate of its client, and none can be shown".to_owned()
        }
        other => other.to_string(),
    }
}

fn certificate_trouble(why: &CertificateError) -> String {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "it is not valid yet".to_owned(),
        CertificateError::UnknownIssuer => "nobody whom this host trusts has signed it".to_owned(),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another name".to_owned()
        }
        other => format!("{other:?}"),
    }
}
