//! Fixture: guest, judge and servers in one process. The judge evaluates a real policy; everything else is real but
//! small.

use egress::event::{Event, EventStage, Op};
use egress::guest_ca::GuestCa;
use egress::inspect::{self, InspectorSettings, Tls};
use egress::request_judge::{Destination, Injection, RequestInfo, RequestJudge};
use policy::{Context, Decision, Format, NetRequest, Resolved, effective, parse, resolve};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpListener;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ALL_VERSIONS, ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub const HOST: &str = "api.example.org";
pub const OTHER: &str = "other.example.org";
pub const SECRET: &str = "sk-very/secret+0123456789\"x";
pub const PLACEHOLDER: &str = "COFFERDAM_PLACEHOLDER_API_KEY";

/// Rules of most tests.
pub const RULES: &str = r#"
    {"action":"allow","host":"api.example.org","methods":["GET","HEAD","POST","PUT","OPTIONS"],"paths":["/ok","/ok/**"]},
    {"action":"warn","host":"api.example.org","methods":["GET"],"paths":["/warn"]},
    {"action":"ask","host":"api.example.org","paths":["/ask"]},
    {"action":"deny","host":"api.example.org","paths":["/ok/not","/ok/not/**"]},
    {"action":"allow","host":"other.example.org"},
    {"action":"allow","cidr":"93.184.216.34/32","paths":["/address"]}"#;

pub struct TestJudge {
    rules: Mutex<Resolved>,
    revision: AtomicU64,
    events: Mutex<Vec<Event>>,
    pub spent: (AtomicU64, AtomicU64),
    pub limit: AtomicU64,
    /// Header that gets the secret, if there is one.
    pub secret_in: Option<&'static str>,
}

fn rules(text: &str) -> Resolved {
    let json = format!(r#"{{"version":1,"defaults":{{"net":"deny"}},"net":{{"rules":[{text}]}}}}"#);
    let document = parse(&json, Format::Json, "test").unwrap_or_else(|e| panic!("{e}"));
    let ctx = Context { home: "/home/u".into(), workspace: "/w".into(), toolchains: Vec::new() };
    resolve(&effective(&[document]).unwrap(), &ctx).unwrap()
}

impl TestJudge {
    pub fn replace(&self, text: &str) {
        *self.rules.lock().unwrap() = rules(text);
        self.revision.fetch_add(1, SeqCst);
    }

    /// Returns the stages of requests so far, with their paths.
    pub fn stages(&self) -> Vec<(EventStage, String)> {
        let events = self.events.lock().unwrap();
        let requests = events.iter().filter(|e| e.op == Op::Request);
        requests.map(|e| (e.stage, e.path.clone().unwrap_or_default())).collect()
    }

    /// Waits for an event.
    pub async fn wait(&self, wanted: impl Fn(&Event) -> bool) -> Event {
        for _ in 0..6000 {
            if let Some(event) = self.events.lock().unwrap().iter().find(|e| wanted(e)) {
                return event.clone();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no such event among {:#?}", self.events.lock().unwrap());
    }
}

impl RequestJudge for TestJudge {
    fn request(&self, ask: &RequestInfo<'_>) -> Decision {
        // The test servers are on loopback; the rules are evaluated for a public address.
        let addr = Some("93.184.216.34".parse().unwrap());
        let host = if ask.host == "127.0.0.1" { "93.184.216.34" } else { ask.host };
        let (method, path) = (Some(ask.method), Some(ask.path));
        self.rules.lock().unwrap().net(&NetRequest { addr, method, path, ..NetRequest::tcp(host, ask.port) })
    }

    fn injections(&self, ask: &RequestInfo<'_>) -> Vec<Injection> {
        let Some(header) = self.secret_in.filter(|_| ask.host == HOST) else {
            return Vec::new();
        };
        vec![Injection {
            header: header.to_owned(),
            placeholder: PLACEHOLDER.to_owned(),
            value: format!("Bearer {SECRET}").into_bytes().into(),
            secret: SECRET.as_bytes().into(),
        }]
    }

    fn revision(&self) -> u64 {
        self.revision.load(SeqCst)
    }

    fn record(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn count_bytes(&self, bytes_in: u64, bytes_out: u64) -> bool {
        let all = self.spent.0.fetch_add(bytes_in, SeqCst) + self.spent.1.fetch_add(bytes_out, SeqCst);
        all + bytes_in + bytes_out <= self.limit.load(SeqCst)
    }
}

pub struct World {
    pub judge: Arc<TestJudge>,
    pub tls: Arc<Tls>,
    pub authority: Arc<GuestCa>,
    pub servers: ServerAuthority,
}

impl World {
    pub fn new() -> World {
        World::with(RULES, false, InspectorSettings::default())
    }

    pub fn with_secret() -> World {
        World::with(RULES, true, InspectorSettings::default())
    }

    pub fn with_secret_in(header: &'static str) -> World {
        World::made(RULES, Some(header), InspectorSettings::default())
    }

    pub fn with(text: &str, with_secret: bool, settings: InspectorSettings) -> World {
        World::made(text, with_secret.then_some("authorization"), settings)
    }

    fn made(text: &str, secret_in: Option<&'static str>, settings: InspectorSettings) -> World {
        let servers = ServerAuthority::new();
        let authority = Arc::new(GuestCa::new().unwrap());
        let settings = InspectorSettings { extra_roots: vec![servers.root()], ..settings };
        let judge = TestJudge {
            rules: Mutex::new(rules(text)),
            revision: 1.into(),
            events: Mutex::default(),
            spent: Default::default(),
            limit: u64::MAX.into(),
            secret_in,
        };
        let tls = Arc::new(Tls::new(Some(authority.clone()), settings));
        World { judge: Arc::new(judge), tls, authority, servers }
    }

    /// Opens a guest connection to a server, with the names that are allowed there.
    pub fn connect(&self, addr: SocketAddr, names: &[&str]) -> DuplexStream {
        let (guest, ours) = tokio::io::duplex(256 * 1024);
        self.serve(ours, addr, names);
        guest
    }

    /// Opens a guest connection of which `first` was already read; dropping the task set closes it.
    pub fn connect_with(&self, addr: SocketAddr, first: &[u8]) -> (DuplexStream, tokio::task::JoinSet<()>) {
        let (guest, ours) = tokio::io::duplex(256 * 1024);
        let to = Destination { names: vec![HOST.to_owned()], addr };
        let mut set = tokio::task::JoinSet::new();
        set.spawn(inspect::serve(ours, first.to_vec(), to, self.judge.clone(), self.tls.clone()));
        (guest, set)
    }

    fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, ours: S, addr: SocketAddr, names: &[&str]) {
        let to = Destination { names: names.iter().map(|n| (*n).to_owned()).collect(), addr };
        tokio::spawn(inspect::serve(ours, Vec::new(), to, self.judge.clone(), self.tls.clone()));
    }

    /// Listens on the same port at another address, for real programs: connections there are inspected.
    pub async fn listen(self: &Arc<World>, addr: SocketAddr) {
        let listener = TcpListener::bind(("127.0.0.2", addr.port())).await.unwrap();
        let world = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                world.serve(stream, addr, &[HOST]);
            }
        });
    }

    pub fn guest_root(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.authority.certificate_pem().as_bytes()).unwrap()
    }

    /// TLS client of the guest, which trusts the guest's CA only.
    pub async fn guest_tls<S>(&self, stream: S, sni: &str, alpn: &[&str]) -> std::io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        client(self.guest_root(), alpn).connect(ServerName::try_from(sni.to_owned()).unwrap(), stream).await
    }

    /// Opens TLS with HTTP/1.1 to the usual host.
    pub async fn https(&self, addr: SocketAddr) -> TlsStream<DuplexStream> {
        self.guest_tls(self.connect(addr, &[HOST]), HOST, &["http/1.1"]).await.unwrap()
    }

    /// Opens TLS with HTTP/2 to the usual host.
    pub async fn http2(&self, addr: SocketAddr) -> h2::client::SendRequest<bytes::Bytes> {
        let stream = self.guest_tls(self.connect(addr, &[HOST]), HOST, &["h2", "http/1.1"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        requests
    }
}

pub fn client(root: CertificateDer<'static>, alpn: &[&str]) -> TlsConnector {
    client_of(ALL_VERSIONS, root, alpn)
}

pub fn client_of(
    versions: &[&'static SupportedProtocolVersion],
    root: CertificateDer<'static>,
    alpn: &[&str],
) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(root).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(versions).unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

/// Certificate authority of the test servers.
pub struct ServerAuthority {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
}

impl ServerAuthority {
    pub fn new() -> ServerAuthority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().der().clone();
        ServerAuthority { issuer: Issuer::new(params, key), root }
    }

    pub fn root(&self) -> CertificateDer<'static> {
        self.root.clone()
    }

    pub fn acceptor(&self, names: &[&str], alpn: &[&str]) -> TlsAcceptor {
        self.odd_acceptor(names, alpn, Odd::default())
    }

    pub fn odd_acceptor(&self, names: &[&str], alpn: &[&str], odd: Odd) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).unwrap();
        if let Some((from, to)) = odd.life {
            params.not_before = from.into();
            params.not_after = to.into();
        }
        let certificate = match odd.signs_itself {
            true => {
                params.distinguished_name.push(DnType::CommonName, "itself");
                params.self_signed(&key).unwrap()
            }
            false => params.signed_by(&key, &self.issuer).unwrap(),
        };
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(odd.versions).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(self.root()).unwrap();
        let asking = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
        let builder = match odd.asks {
            Asks::Nothing => builder.with_no_client_auth(),
            Asks::Politely => builder.with_client_cert_verifier(asking.allow_unauthenticated().build().unwrap()),
            Asks::Strictly => builder.with_client_cert_verifier(asking.build().unwrap()),
        };
        let mut config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
        config.max_early_data_size = odd.early;
        TlsAcceptor::from(Arc::new(config))
    }
}

/// Unusual TLS settings of a server.
pub struct Odd {
    pub versions: &'static [&'static SupportedProtocolVersion],
    pub life: Option<(SystemTime, SystemTime)>,
    pub signs_itself: bool,
    pub asks: Asks,
    /// Size limit of early data.
    pub early: u32,
}

impl Default for Odd {
    fn default() -> Odd {
        Odd { versions: ALL_VERSIONS, life: None, signs_itself: false, asks: Asks::Nothing, early: 0 }
    }
}

/// Client certificate request of a server.
pub enum Asks {
    Nothing,
    Politely,
    Strictly,
}

/// A response as a client reads it.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|l| l.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
        Some(line.split_once(':')?.1.trim())
    }
}

/// Sends bytes and reads one response.
pub async fn ask<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, request: &str) -> Answer {
    send(stream, request.as_bytes()).await;
    answer(stream, request.starts_with("HEAD ")).await
}

pub async fn send<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
    stream.flush().await.unwrap();
}

pub async fn get<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, path: &str) -> Answer {
    ask(stream, &format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await
}

/// Reads one response, byte by byte so that no byte of the next is consumed.
pub async fn answer<S: AsyncRead + Unpin>(stream: &mut S, bodiless: bool) -> Answer {
    within(async {
        let head = head(stream).await;
        let status = head.get(9..12).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("no status in {head:?}"));
        let mut answer = Answer { status, head, body: Vec::new() };
        if bodiless || (100..200).contains(&status) || status == 204 || status == 304 {
            return answer;
        }
        if let Some(len) = answer.header("content-length").map(|v| v.parse().unwrap()) {
            answer.body.resize(len, 0);
            stream.read_exact(&mut answer.body).await.unwrap();
        } else if answer.header("transfer-encoding").is_some() {
            answer.body = chunks(stream).await;
        } else {
            stream.read_to_end(&mut answer.body).await.unwrap();
        }
        answer
    })
    .await
}

pub async fn head<S: AsyncRead + Unpin>(stream: &mut S) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// Reads a chunked body, with trailers in lines of their own after it.
async fn chunks<S: AsyncRead + Unpin>(stream: &mut S) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let size = usize::from_str_radix(line(stream).await.trim(), 16).expect("the size of a chunk");
        if size == 0 {
            break;
        }
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk).await.unwrap();
        body.extend(&chunk[..size]);
    }
    loop {
        let trailer = line(stream).await;
        if trailer == "\r\n" || trailer.is_empty() {
            return body;
        }
        body.extend(trailer.as_bytes());
    }
}

async fn line<S: AsyncRead + Unpin>(stream: &mut S) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        match stream.read_u8().await {
            Ok(byte) => line.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&line).into_owned()
}

/// Bounds the time of a test step.
pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("in time")
}

/// Returns true if the peer has closed the connection.
pub async fn is_closed<S: AsyncRead + Unpin>(stream: &mut S) -> bool {
    let mut byte = [0];
    let read = tokio::time::timeout(Duration::from_secs(30), stream.read(&mut byte)).await;
    matches!(read, Ok(Ok(0) | Err(_)))
}

/// Reads a ClientHello of the corpus, as that program sent it.
pub fn hello_of(program: &str) -> Vec<u8> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/hello");
    std::fs::read(root.join(program)).unwrap()
}
