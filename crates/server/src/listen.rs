//! The daemon's sockets and its life: it listens, caps what comes, and ends in order.

mod connection;
mod linger;
mod socket;
mod tls;

use crate::admission::Quotas;
use crate::credentials::{Credentials, Peer};
use crate::front::Front;
use crate::gate::Names;
use crate::routes;
use crate::telemetry::{Collector, Null};
use connection::Connections;
use node::bounds::Configured;
use node::config::{Keep, Logs, Telemetry};
use node::tokens::{self, Scope};
use node::{Bounded, Caller, Node, bound};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::Serialize;
use socket::Socket;
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

/// What the daemon is started with.
#[derive(Clone)]
pub struct Settings {
    pub caller: Caller,
    /// The state directory; every tenant's lies in it.
    pub state: PathBuf,
    pub socket: PathBuf,
    /// A TCP listener beside the socket, which needs tokens.
    pub listen: Option<SocketAddr>,
    /// Other addresses than the host's own may be listened on, with TLS.
    pub anywhere: bool,
    /// Certificates and key, for TLS on TCP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Names that the daemon answers to, beside localhost.
    pub allow_hosts: Vec<String>,
    /// How long what goes on may take once the daemon was told to end.
    pub grace: Duration,
    /// How long a client may take for the head of a request, between parts of its body, and between requests.
    pub patience: Duration,
    /// The largest document that a route takes, in bytes.
    pub max_body: usize,
    /// Connections at a time, in all and from one address.
    pub connections: usize,
    pub connections_each: usize,
    /// Streams of events at a time, half of them of one tenant.
    pub event_streams: u64,
    pub quotas: Quotas,
    /// Defaults and ceilings for the limits of sandboxes.
    pub limits: Configured,
    /// Sandboxes that stand ready for templates at most.
    pub warm: u64,
    /// How long what is past is kept.
    pub keep: Keep,
    pub logs: Logs,
    pub telemetry: Telemetry,
    /// How whoever started it named what may be refused: a flag, a variable, or a line of a file.
    pub names: Named,
}

#[derive(Clone, Debug)]
pub struct Named {
    pub socket: String,
    pub listen: String,
    pub tls_cert: String,
    pub tls_key: String,
}

/// By their flags.
impl Default for Named {
    fn default() -> Named {
        let [socket, listen, tls_cert, tls_key] =
            ["--socket", "--listen", "--tls-cert", "--tls-key"].map(str::to_owned);
        Named { socket, listen, tls_cert, tls_key }
    }
}

impl Settings {
    pub const GRACE: Duration = Duration::from_secs(30);
    pub const PATIENCE: Duration = Duration::from_secs(30);
    pub const MAX_BODY: usize = 1 << 20;
    pub const CONNECTIONS: usize = 16_384;
    pub const CONNECTIONS_EACH: usize = 12_288;
    /// Connections on the Unix socket beyond those that all may have together.
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
            names: Named::default(),
        }
    }
}

/// What `serve` would do.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    pub state: PathBuf,
    pub socket: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    pub tls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_token: Option<PathBuf>,
    pub hosts: Vec<String>,
    pub connections: usize,
    pub grace_ms: u64,
    /// What would go otherwise than was asked for.
    pub notes: Vec<String>,
}

fn invalid(message: String, hint: &str) -> Fault {
    Fault::invalid(message).hint(hint).phase(Phase::Admission)
}

/// Finds what is wrong with the settings, without changing anything.
pub fn check(settings: &Settings) -> Result<Checked, Fault> {
    let (tls, authority) = match &settings.tls {
        Some(files) => (true, tls::read(files, &settings.names)?.note),
        None => (false, None),
    };
    let told = &settings.names.listen;
    if let Some(address) = settings.listen {
        let loopback = address.ip().is_loopback();
        if !loopback && !settings.anywhere {
            let message = format!("{told} {address}: others could reach it");
            return Err(invalid(
                message,
                "listen on 127.0.0.1, or add --listen-anywhere with --tls-cert and --tls-key",
            ));
        }
        if !loopback && !tls {
            let message = format!("{told} {address}: tokens would cross the network in clear");
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
    Ok(Checked {
        state: settings.state.clone(),
        socket: settings.socket.clone(),
        listen: settings.listen.map(|a| format!("{}://{a}", if tls { "https" } else { "http" })),
        tls,
        operator_token: settings.listen.map(|_| settings.state.join(OPERATOR)),
        hosts: hosts.chain(settings.allow_hosts.iter().cloned()).collect(),
        connections: allowed,
        grace_ms: settings.grace.as_millis() as u64,
        notes,
    })
}

/// The same, and that the daemon could start now: what it takes for itself is taken and let go. Nobody who runs is disturbed.
pub fn rehearse(settings: &Settings) -> Result<Checked, Fault> {
    let checked = check(settings)?;
    socket::check_alone(&settings.state.join("daemon.lock"))?;
    socket::check_alone(&socket::beside(&settings.socket))?;
    if let Some(address) = settings.listen {
        std::net::TcpListener::bind(address).map_err(|e| unbound(&settings.names.listen, address, &e))?;
    }
    node::directory::look(&settings.state)?;
    Ok(checked)
}

/// Connections that the kernel keeps for us until we take them; with fewer a crowd would make others try again.
const WAITING: i32 = 4096;

/// Descriptors beside those of connections: the store, keepers, streams.
const OTHER_DESCRIPTORS: u64 = 2048;

/// Raises the bound on open files as far as it goes; how many connections fit below it.
fn descriptors(wanted: usize) -> (usize, Vec<String>) {
    let now = bound(Bounded::OpenFiles);
    let most = now.maximum.unwrap_or(u64::MAX);
    let need = wanted as u64 + OTHER_DESCRIPTORS;
    if most >= need {
        return (wanted, Vec::new());
    }
    let fit = most.saturating_sub(OTHER_DESCRIPTORS).max(most / 2) as usize;
    let note = format!("{most} open files are allowed (ulimit -Hn), so that {fit} connections fit, not {wanted}");
    (fit, vec![note])
}

fn raise(connections: usize) {
    let now = bound(Bounded::OpenFiles);
    let need = connections as u64 + OTHER_DESCRIPTORS;
    if now.current.is_some_and(|current| current < need) {
        let current = Some(now.maximum.map_or(need, |most| most.min(need)));
        // Where it cannot be raised, connections beyond it are refused by the kernel, and later by us.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum: now.maximum });
    }
}

/// Threads beside those of verbs: more than all streams together can take.
const BESIDE: usize = 192;

/// For what is told of a daemon that ends although not everybody has finished.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The file with the first operator's token.
const OPERATOR: &str = "operator.token";

/// Serves until it is told to end. `ready` is called once the daemon answers.
pub fn serve(settings: Settings, ready: impl FnOnce(&Checked) + Send) -> Result<(), Fault> {
    let mut checked = check(&settings)?;
    // Made first: keepers get the bound on open files that we were started with.
    let node = Arc::new(Node::for_daemon());
    raise(settings.connections);
    let broken = |e: std::io::Error| Fault::internal(format!("the daemon cannot start: {e}"));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    // Verbs are counted elsewhere, and so are streams of archives and of watches; the rest looks up tokens, and must never wait
    // behind those.
    let threads = crate::shared::AT_A_TIME as usize + BESIDE;
    let runtime = runtime.enable_all().max_blocking_threads(threads).build().map_err(broken)?;
    let done = runtime.block_on(live(node, settings, &mut checked, ready));
    // What goes on now had its time, or nobody wants to wait for it.
    runtime.shutdown_background();
    done
}

async fn live(
    node: Arc<Node>,
    settings: Settings,
    checked: &mut Checked,
    ready: impl FnOnce(&Checked),
) -> Result<(), Fault> {
    let (connections, _) = descriptors(settings.connections);
    let _alone = socket::alone(&settings.state.join("daemon.lock"))?;
    let socket = Socket::bind(&settings.names.socket, &settings.socket)?;
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
    let names = Names { port, tls: tls.is_some(), more: settings.allow_hosts.clone() };
    let (app, shared) = routes::all(&settings, node, credentials.clone());
    shared.telemetry().install()?;
    // Not one of those that end with `cancel`: a token that is revoked while streams finish still closes them.
    tokio::spawn(credentials.watch());
    shared.tasks().spawn(crate::running::adopt(shared.clone()));
    shared.tasks().spawn(crate::warm::tend(shared.clone(), settings.warm));
    shared.tasks().spawn(crate::tidy::tidy(shared.clone()));
    if let Some(collector) = collector {
        shared.telemetry().send(collector, settings.telemetry.interval);
    }
    let front = Front { app, shared: shared.clone(), names: Arc::new(names) };
    let open = Connections::new(connections, settings.connections_each);
    let accept = accept(&socket, tcp.as_ref(), tls, &front, &open);
    let signals = |kind| signal(kind).map_err(|e| Fault::internal(format!("signals: {e}")));
    let (mut term, mut int) = (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
    if let (Some(port), Some(address)) = (port, settings.listen) {
        let scheme = if checked.tls { "https" } else { "http" };
        checked.listen = Some(format!("{scheme}://{}", SocketAddr::new(address.ip(), port)));
    }
    tell_begin(checked);
    settings.limits.built_in.note().iter().for_each(|note| tracing::info!("{note}"));
    ready(checked);
    tokio::select! {
        () = accept => {}
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    drop((socket, tcp));
    tracing::info!(open = open.count(), "the daemon ends");
    shared.end();
    let finished = async {
        open.finished().await;
        shared.until_idle().await;
        shared.telemetry().close().await;
    };
    let overdue = async {
        tokio::time::sleep(settings.grace).await;
        // Whoever is overdue may hold what the last words need.
        let _ = tokio::time::timeout(LAST_WORDS, shared.telemetry().close()).await;
    };
    tokio::select! {
        () = finished => {}
        () = overdue => {}
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
}

fn tell_begin(checked: &Checked) {
    let (version, pid, socket) = (env!("CARGO_PKG_VERSION"), std::process::id(), checked.socket.display().to_string());
    let null = tracing::field::debug(Null);
    let listen = checked.listen.as_deref();
    let listen: &dyn tracing::Value = listen.as_ref().map_or(&null as &dyn tracing::Value, |listen| listen);
    tracing::info!(version, pid, socket, listen, "the daemon answers");
}

async fn bind(told: &str, address: SocketAddr) -> Result<TcpListener, Fault> {
    let bound = TcpListener::bind(address).await.and_then(|tcp| {
        rustix::net::listen(&tcp, WAITING)?;
        Ok(tcp)
    });
    bound.map_err(|e| unbound(told, address, &e))
}

fn unbound(told: &str, address: SocketAddr, error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("{told} {address}: {error}")).phase(Phase::Start);
    fault.hint("choose another port, or 0 for any that is free")
}

/// Takes connections for ever.
async fn accept(
    socket: &Socket,
    tcp: Option<&TcpListener>,
    tls: Option<TlsAcceptor>,
    front: &Front,
    open: &Connections,
) {
    let next = async || match tcp {
        Some(tcp) => tcp.accept().await,
        None => std::future::pending().await,
    };
    // Out of descriptors or memory: what is open goes on, and may end.
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

/// The token that the first operator comes in with over TCP: kept where only they can read it, and made anew where the one
/// in the file is good no more.
fn operator_token(node: &Node, settings: &Settings) -> Result<(), Fault> {
    let path = settings.state.join(OPERATOR);
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    if tokens::Gate::open(node, &settings.caller)?.whose(node, known.trim())?.is_some() {
        return Ok(());
    }
    let ask = tokens::Ask {
        name: "operator".into(),
        tenant: tokens::DEFAULT_TENANT.into(),
        scopes: vec![Scope::Operator],
        ..tokens::Ask::default()
    };
    let minted = tokens::create(node, &settings.caller, &ask)?;
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
