//! TLS on both sides: towards the guest with a leaf of its CA, towards the server as a verifying client.

use super::secrets::NeedleCache;
use super::stream::{Io, Metered, Prefixed};
use crate::guest_ca::GuestCa;
use crate::request_judge::RequestJudge;
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

/// Limit on concurrent HTTP/2 connections of one guest.
const MAX_HTTP2: usize = 128;

/// Settings of the inspector; the defaults are meant for production.
#[derive(Clone, Debug)]
pub struct InspectorSettings {
    /// Root certificates for servers beside those of the host, in DER.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// Deadline for connecting to a server, TLS handshake included.
    pub connect: Duration,
    /// Deadline for a TLS handshake or a request head, from its first byte on.
    pub head: Duration,
    /// Idle time after which a connection without a request, or a request without traffic, ends.
    pub idle: Duration,
}

impl Default for InspectorSettings {
    fn default() -> InspectorSettings {
        InspectorSettings {
            extra_roots: Vec::new(),
            connect: Duration::from_secs(20),
            head: Duration::from_secs(30),
            idle: Duration::from_secs(600),
        }
    }
}

/// State shared by all inspected connections of one guest.
pub struct Tls {
    /// Without a CA that the guest trusts, only plaintext requests can be inspected.
    authority: Option<Arc<GuestCa>>,
    pub(super) settings: InspectorSettings,
    provider: Arc<CryptoProvider>,
    /// Built at the first connection: loading the host's root certificates takes some milliseconds.
    client: OnceLock<Result<ClientConfig, String>>,
    pub(super) needle_cache: NeedleCache,
    /// Permits for HTTP/2 connections, each of which can hold megabytes of data that its peer does not read.
    http2: Arc<Semaphore>,
}

/// Reason why a server cannot be used, worded for the guest.
#[derive(Clone, Debug)]
pub(super) struct UpstreamError(pub String);

/// HTTP versions that can be inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    pub const ALL: [Protocol; 2] = [Protocol::Http2, Protocol::Http1];

    /// ALPN name.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Http1 => "http/1.1",
            Protocol::Http2 => "h2",
        }
    }
}

impl Tls {
    pub fn new(authority: Option<Arc<GuestCa>>, settings: InspectorSettings) -> Tls {
        let provider = Arc::new(ring::default_provider());
        Tls {
            authority,
            settings,
            provider,
            client: OnceLock::new(),
            needle_cache: NeedleCache::default(),
            http2: Arc::new(Semaphore::new(MAX_HTTP2)),
        }
    }

    /// Returns true if the guest's TLS can be terminated.
    pub(crate) fn has_authority(&self) -> bool {
        self.authority.is_some()
    }

    /// Takes a permit for one more HTTP/2 connection.
    pub(super) fn http2_slot(&self) -> Option<OwnedSemaphorePermit> {
        self.http2.clone().try_acquire_owned().ok()
    }

    pub(super) fn leaf(&self, name: Option<&str>, addr: Option<IpAddr>) -> Result<Arc<CertifiedKey>, Fault> {
        match &self.authority {
            Some(authority) => authority.leaf(name, addr),
            None => Err(Fault::internal("the guest has no certificate authority of the broker to trust")),
        }
    }

    /// Opens a plaintext connection to the server.
    pub(super) async fn dial(&self, addr: SocketAddr, judge: &Arc<dyn RequestJudge>) -> Result<Io, UpstreamError> {
        let opened = self.in_time(addr, TcpStream::connect(addr)).await?;
        let tcp = opened.map_err(|e| UpstreamError(format!("{addr} cannot be reached: {e}")))?;
        // A failure only costs latency.
        let _ = tcp.set_nodelay(true);
        Ok(Box::new(Metered::new(tcp, judge.clone())))
    }

    /// Opens a TLS connection to the server and verifies its certificate. Also returns the protocol chosen by ALPN.
    pub(super) async fn connect(
        &self,
        addr: SocketAddr,
        name: ServerName<'static>,
        offered: &[Protocol],
        judge: &Arc<dyn RequestJudge>,
    ) -> Result<(Io, Protocol), UpstreamError> {
        let mut config = self.client.get_or_init(|| self.client_config()).clone().map_err(UpstreamError)?;
        config.alpn_protocols = offered.iter().map(|p| p.name().into()).collect();
        let tcp = self.dial(addr, judge).await?;
        let called = match &name {
            ServerName::DnsName(name) => name.as_ref().to_owned(),
            _ => addr.ip().to_string(),
        };
        let made = self.in_time(addr, TlsConnector::from(Arc::new(config)).connect(name, tcp)).await?;
        let stream = made.map_err(|e| UpstreamError(handshake_trouble(&called, &e)))?;
        let chosen = match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Protocol::Http2,
            _ => Protocol::Http1,
        };
        Ok((Box::new(stream), chosen))
    }

    async fn in_time<T>(&self, addr: SocketAddr, work: impl Future<Output = T>) -> Result<T, UpstreamError> {
        timeout(self.settings.connect, work).await.map_err(|_| UpstreamError(format!("{addr} does not answer in time")))
    }

    /// Accepts the guest's TLS handshake, whose first bytes were already read.
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
        // No session resumption: the server name has to be judged with each connection.
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

/// Describes an error of a server's stream. With TLS 1.3 a server may reject the client's certificate only after the
/// handshake.
pub(super) fn stream_trouble(error: &io::Error) -> String {
    rustls_error(error).map_or_else(|| error.to_string(), alert_trouble)
}

fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>())
}

/// Names the missing client certificate, where the alert says so; older servers send the generic handshake failure.
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
        CertificateError::UnknownIssuer => "signed by no certificate authority that this host trusts".to_owned(),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another name".to_owned()
        }
        other => format!("{other:?}"),
    }
}
