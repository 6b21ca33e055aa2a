//! The daemon's sockets and life cycle: listens, limits connections, and shuts down in order.

mod connection;
mod http2;
mod linger;
mod socket;
mod tls;

use crate::admission::Quotas;
use crate::credentials::{Credentials, Peer};
use crate::front::RequestHandler;
use crate::gate::Names;
use crate::routes;
use crate::telemetry::{Collector, Null};
use crate::url_grants::UrlGrants;
use api::{Scope, TokenCreate};
use connection::Connections;
use node::bounds::Configured;
use node::config::{Keep, Logs, Telemetry};
use node::tokens;
use node::{BoundedResource, Caller, Node, bound};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::Serialize;
use socket::DaemonSocket;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;

/// Settings of the daemon.
#[derive(Clone)]
pub struct Settings {
    pub caller: Caller,
    /// The state directory, which holds those of all tenants.
    pub state: PathBuf,
    pub socket: PathBuf,
    /// Address of a TCP listener besides the socket; its clients need tokens.
    pub listen: Option<SocketAddr>,
    /// Allows to listen on addresses other than loopback, with TLS.
    pub anywhere: bool,
    /// Certificates and key, for TLS on TCP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Host names that the daemon accepts besides localhost.
    pub allow_hosts: Vec<String>,
    /// Origins whose pages may send requests.
    pub allow_origins: Vec<String>,
    /// Time for open requests to finish after the shutdown has started.
    pub grace: Duration,
    /// Longest silence of a client: in the head of a request, between parts of its body, and between requests.
    pub patience: Duration,
    /// Maximum size of a JSON body, in bytes.
    pub max_body: usize,
    /// Concurrent connections, in all and from one address.
    pub connections: usize,
    pub connections_each: usize,
    /// Concurrent event streams; one tenant gets at most half.
    pub event_streams: u64,
    pub quotas: Quotas,
    /// Defaults and ceilings for the limits of sandboxes.
    pub limits: Configured,
    /// Maximum number of warm sandboxes.
    pub warm: u64,
    /// Retention of past records.
    pub keep: Keep,
    pub logs: Logs,
    pub telemetry: Telemetry,
    /// Source of the settings that a fault may name: a flag, a variable, or a line of a file.
    pub names: SettingNames,
}

#[derive(Clone, Debug)]
pub struct SettingNames {
    pub socket: String,
    pub listen: String,
    pub tls_cert: String,
    pub tls_key: String,
}

/// By their flags.
impl Default for SettingNames {
    fn default() -> SettingNames {
        let [socket, listen, tls_cert, tls_key] =
            ["--socket", "--listen", "--tls-cert", "--tls-key"].map(str::to_owned);
        SettingNames { socket, listen, tls_cert, tls_key }
    }
}

impl Settings {
    pub const GRACE: Duration = Duration::from_secs(30);
    pub const PATIENCE: Duration = Duration::from_secs(30);
    pub const MAX_BODY: usize = 1 << 20;
    pub const CONNECTIONS: usize = 16_384;
    pub const CONNECTIONS_EACH: usize = 12_288;
    /// Extra connections reserved for the Unix socket.
    pub const RESERVED: usize = 64;
    pub const EVENT_STREAMS: u64 = 1024;
    pub const WARM: u64 = 8;

    pub fn new(caller: Caller, state: PathBuf) -> Settings {
        Settings {
            socket: state.join("cofferdam.sock"),
            caller,
            state,
            listen: None,
            anywhere: false,
            tls: None,
            allow_hosts: Vec::new(),
            allow_origins: Vec::new(),
            grace: Settings::GRACE,
            patience: Settings::PATIENCE,
            max_body: Settings::MAX_BODY,
            connections: Settings::CONNECTIONS,
            connections_each: Settings::CONNECTIONS_EACH,
            event_streams: Settings::EVENT_STREAMS,
            quotas: Quotas::default(),
            limits: Configured::default(),
            warm: Settings::WARM,
            keep: Keep::default(),
            logs: Logs::default(),
            telemetry: Telemetry::default(),
            names: SettingNames::default(),
        }
    }
}

/// The checked settings: what `serve` would do.
#[derive(Clone, Debug, Serialize)]
pub struct CheckedSettings {
    pub state: PathBuf,
    pub socket: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    pub tls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_token: Option<PathBuf>,
    pub hosts: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<String>,
    pub connections: usize,
    pub grace_ms: u64,
    /// Deviations from the settings.
    pub notes: Vec<String>,
}

fn invalid(message: String, hint: &str) -> Fault {
    Fault::invalid(message).hint(hint).phase(Phase::Admission)
}

/// Checks the settings without changing anything.
pub fn check(settings: &Settings) -> Result<CheckedSettings, Fault> {
    let (tls, authority) = match &settings.tls {
        Some(files) => (true, tls::read(files, &settings.names)?.note),
        None => (false, None),
    };
    let setting = &settings.names.listen;
    if let Some(address) = settings.listen {
        let loopback = address.ip().is_loopback();
        if !loopback && !settings.anywhere {
            let message = format!("{setting} {address}: other machines could connect");
            return Err(invalid(
                message,
                "listen on 127.0.0.1, or add --listen-anywhere with --tls-cert and --tls-key",
            ));
        }
        if !loopback && !tls {
            let message = format!("{setting} {address}: tokens would cross the network in clear");
            return Err(invalid(
                message,
                "give --tls-cert and --tls-key, or put a proxy with TLS in front of 127.0.0.1",
            ));
        }
    }
    Collector::of(&settings.telemetry)?;
    socket::check(&settings.names.socket, &settings.socket)?;
    let (allowed, mut notes) = descriptors(settings.connections);
    notes.extend(authority);
    let port = settings.listen.map(|address| address.port());
    let hosts = ["localhost", "127.0.0.1", "[::1]"].iter().map(|name| match port {
        Some(port) => format!("{name}:{port}"),
        None => (*name).to_owned(),
    });
    Ok(CheckedSettings {
        state: settings.state.clone(),
        socket: settings.socket.clone(),
        listen: settings.listen.map(|a| format!("{}://{a}", if tls { "https" } else { "http" })),
        tls,
        operator_token: settings.listen.map(|_| settings.state.join(OPERATOR_TOKEN)),
        hosts: hosts.chain(settings.allow_hosts.iter().cloned()).collect(),
        origins: settings.allow_origins.clone(),
        connections: allowed,
        grace_ms: settings.grace.as_millis() as u64,
        notes,
    })
}

/// Checks the settings, and that the daemon could start now: locks and addresses are taken and released. A running daemon is not disturbed.
pub fn dry_run(settings: &Settings) -> Result<CheckedSettings, Fault> {
    let checked = check(settings)?;
    socket::check_unlocked(&settings.state.join("daemon.lock"))?;
    socket::check_unlocked(&socket::lock_path(&settings.socket))?;
    if let Some(address) = settings.listen {
        std::net::TcpListener::bind(address).map_err(|e| cannot_bind(&settings.names.listen, address, &e))?;
    }
    node::directory::look(&settings.state)?;
    Ok(checked)
}

/// Listen backlog; with a smaller one a burst of clients would have to retry.
const BACKLOG: i32 = 4096;

/// Descriptors besides those of connections: the store, keepers, streams.
const OTHER_DESCRIPTORS: u64 = 2048;

/// Returns the number of connections that fit below the hard limit of open files, and a note where that is less than wanted.
fn descriptors(wanted: usize) -> (usize, Vec<String>) {
    let now = bound(BoundedResource::OpenFiles);
    let most = now.maximum.unwrap_or(u64::MAX);
    let need = wanted as u64 + OTHER_DESCRIPTORS;
    if most >= need {
        return (wanted, Vec::new());
    }
    let fit = most.saturating_sub(OTHER_DESCRIPTORS).max(most / 2) as usize;
    let note =
        format!("{most} open files are allowed (ulimit -Hn), so that {fit} connections are possible, not {wanted}");
    (fit, vec![note])
}

fn raise_open_files(connections: usize) {
    let now = bound(BoundedResource::OpenFiles);
    let need = connections as u64 + OTHER_DESCRIPTORS;
    if now.current.is_some_and(|current| current < need) {
        let current = Some(now.maximum.map_or(need, |most| most.min(need)));
        // Without a higher limit the kernel refuses further connections.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum: now.maximum });
    }
}

/// Threads besides those of verbs: more than all streams together can use.
const EXTRA_THREADS: usize = 192;

/// Time to flush logs and telemetry when the grace period is over.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// File name of the first operator's token.
const OPERATOR_TOKEN: &str = "operator.token";

/// Serves until SIGTERM or SIGINT. `ready` is called once the daemon accepts requests.
pub fn serve(settings: Settings, ready: impl FnOnce(&CheckedSettings) + Send) -> Result<(), Fault> {
    let mut checked = check(&settings)?;
    // Created first: keepers inherit the limit of open files that the daemon was started with.
    let node = Arc::new(Node::for_daemon());
    raise_open_files(settings.connections);
    let broken = |e: std::io::Error| Fault::internal(format!("the daemon cannot start: {e}"));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    // Verbs are limited elsewhere, and so are streams of archives and watches; the rest looks up tokens, and must never wait
    // behind those.
    let threads = crate::shared::MAX_CONCURRENT as usize + EXTRA_THREADS;
    let runtime = runtime.enable_all().max_blocking_threads(threads).build().map_err(broken)?;
    let done = runtime.block_on(run(node, settings, &mut checked, ready));
    // Remaining work has had its grace period, or a second signal cut it short.
    runtime.shutdown_background();
    done
}

async fn run(
    node: Arc<Node>,
    settings: Settings,
    checked: &mut CheckedSettings,
    ready: impl FnOnce(&CheckedSettings),
) -> Result<(), Fault> {
    let (connections, _) = descriptors(settings.connections);
    let _lock = socket::lock_exclusive(&settings.state.join("daemon.lock"))?;
    let socket = DaemonSocket::bind(&settings.names.socket, &settings.socket)?;
    let tcp = match settings.listen {
        Some(address) => Some(bind(&settings.names.listen, address).await?),
        None => None,
    };
    let tls = settings.tls.as_ref().map(|files| tls::read(files, &settings.names)).transpose()?.map(|tls| tls.acceptor);
    let collector = Collector::of(&settings.telemetry)?;
    let credentials = Credentials::open(node.clone(), &settings.caller, settings.limits.clone())?;
    if tcp.is_some() {
        operator_token(&node, &settings)?;
    }
    let port = tcp.as_ref().and_then(|tcp| tcp.local_addr().ok()).map(|address| address.port());
    let origins = settings.allow_origins.clone();
    let names = Names { port, tls: tls.is_some(), more: settings.allow_hosts.clone(), origins };
    let url_grants = UrlGrants::open(&settings.state).map_err(|e| {
        let message = format!("{}: the key that signs URLs: {e}", settings.state.display());
        Fault::new(terms::ErrorKind::Unavailable, message).hint("the state directory must be writable, with space left")
    })?;
    let (app, shared) = routes::all(&settings, node, credentials.clone(), url_grants);
    shared.telemetry().install()?;
    // Not spawned as a task that ends with `cancel`: a token that is revoked while streams finish still closes them.
    tokio::spawn(credentials.watch());
    shared.tasks().spawn(crate::run_listener::adopt(shared.clone()));
    shared.tasks().spawn(crate::warm_pools::fill_pools(shared.clone(), settings.warm));
    shared.tasks().spawn(crate::retention::collect(shared.clone()));
    shared.tasks().spawn(crate::timeouts::enforce(shared.clone()));
    if let Some(collector) = collector {
        shared.telemetry().send(collector, settings.telemetry.interval);
    }
    let front = RequestHandler { app, shared: shared.clone(), names: Arc::new(names) };
    let open = Connections::new(connections, settings.connections_each);
    let accept = accept(&socket, tcp.as_ref(), tls, &front, &open);
    let signals = |kind| signal(kind).map_err(|e| Fault::internal(format!("signals: {e}")));
    let (mut term, mut int) = (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
    if let (Some(port), Some(address)) = (port, settings.listen) {
        let scheme = if checked.tls { "https" } else { "http" };
        checked.listen = Some(format!("{scheme}://{}", SocketAddr::new(address.ip(), port)));
    }
    log_start(checked);
    settings.limits.built_in.note().iter().for_each(|note| tracing::info!("{note}"));
    ready(checked);
    tokio::select! {
        () = accept => {}
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    drop((socket, tcp));
    tracing::info!(open = open.count(), "the daemon is shutting down");
    shared.end();
    let finished = async {
        open.finished().await;
        shared.until_idle().await;
        shared.telemetry().close().await;
    };
    let overdue = async {
        tokio::time::sleep(settings.grace).await;
        // Overdue work may hold locks that the flush needs.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, shared.telemetry().close()).await;
    };
    tokio::select! {
        () = finished => {}
        () = overdue => {}
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
}

fn log_start(checked: &CheckedSettings) {
    let (version, pid, socket) = (env!("CARGO_PKG_VERSION"), std::process::id(), checked.socket.display().to_string());
    let null = tracing::field::debug(Null);
    let listen = checked.listen.as_deref();
    let listen: &dyn tracing::Value = listen.as_ref().map_or(&null as &dyn tracing::Value, |listen| listen);
    tracing::info!(version, pid, socket, listen, "the daemon is ready");
}

async fn bind(setting: &str, address: SocketAddr) -> Result<TcpListener, Fault> {
    let bound = TcpListener::bind(address).await.and_then(|tcp| {
        rustix::net::listen(&tcp, BACKLOG)?;
        Ok(tcp)
    });
    bound.map_err(|e| cannot_bind(setting, address, &e))
}

fn cannot_bind(setting: &str, address: SocketAddr, error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("{setting} {address}: {error}")).phase(Phase::Start);
    fault.hint("choose another port, or 0 for any that is free")
}

/// Accepts connections for ever.
async fn accept(
    socket: &DaemonSocket,
    tcp: Option<&TcpListener>,
    tls: Option<TlsAcceptor>,
    front: &RequestHandler,
    open: &Connections,
) {
    let next = async || match tcp {
        Some(tcp) => tcp.accept().await,
        None => std::future::pending().await,
    };
    // Out of descriptors or memory: open connections continue, and may end.
    let pause = || tokio::time::sleep(Duration::from_millis(20));
    loop {
        tokio::select! {
            taken = socket.listener.accept() => match taken {
                Ok((stream, _)) => {
                    let uid = stream.peer_cred().ok().map(|peer| peer.uid());
                    open.take(stream, Peer::Unix { uid }, None, front);
                }
                Err(_) => pause().await,
            },
            taken = next() => match taken {
                Ok((stream, address)) => {
                    let _ = stream.set_nodelay(true);
                    open.take(stream, Peer::Tcp { address }, tls.clone(), front);
                }
                Err(_) => pause().await,
            },
        }
    }
}

/// Writes a token for the first operator over TCP to a file that only the daemon's user can read, and replaces it where the token in the
/// file is no longer valid.
fn operator_token(node: &Node, settings: &Settings) -> Result<(), Fault> {
    let path = settings.state.join(OPERATOR_TOKEN);
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    if tokens::TokenLookup::open(node, &settings.caller)?.find_by_secret(node, known.trim())?.is_some() {
        return Ok(());
    }
    let request = TokenCreate {
        name: "operator".into(),
        tenant: api::DEFAULT_TENANT.into(),
        scopes: vec![Scope::Operator],
        ..TokenCreate::default()
    };
    let minted = tokens::create(node, &settings.caller, &request)?;
    write_secret(&path, &minted.token).map_err(|e| {
        let fault = Fault::new(ErrorKind::Unavailable, format!("{}: {e}", path.display())).phase(Phase::Start);
        fault.hint("the state directory must be writable, with space left")
    })
}

fn write_secret(path: &Path, secret: &str) -> std::io::Result<()> {
    let part = path.with_extension("part");
    let _ = std::fs::remove_file(&part);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    writeln!(file, "{secret}")?;
    file.sync_all()?;
    std::fs::rename(&part, path)
}
