//! Cost of inspection: the same requests direct and inspected, side by side. Run it with
//! `cargo test --release -p cofferdam-egress --test inspect speed -- --ignored --nocapture`.

use super::servers;
use super::world::*;
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

const BULK: usize = 256 << 20;
const REQUESTS: usize = 2000;
const CONNECTIONS: usize = 200;

/// Runs work in a thread with a runtime of its own, which lives until the process exits.
fn apart<T: Send + 'static>(work: impl AsyncFnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tell.send(work().await).ok();
            std::future::pending::<()>().await;
        });
    });
    told.recv().unwrap()
}

struct Way {
    addr: SocketAddr,
    connector: tokio_rustls::TlsConnector,
}

impl Way {
    async fn connect(&self) -> TlsStream<TcpStream> {
        let tcp = TcpStream::connect(self.addr).await.unwrap();
        tcp.set_nodelay(true).unwrap();
        self.connector.connect(ServerName::try_from(HOST).unwrap(), tcp).await.unwrap()
    }

    async fn bulk(&self) -> f64 {
        let mut stream = self.connect().await;
        let begun = Instant::now();
        send(&mut stream, format!("GET /ok/bulk?n={BULK} HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes()).await;
        head(&mut stream).await;
        let (mut left, mut buffer) = (BULK, vec![0; 64 * 1024]);
        while left > 0 {
            left -= stream.read(&mut buffer).await.unwrap();
        }
        BULK as f64 / 1e6 / begun.elapsed().as_secs_f64()
    }

    async fn latency(&self) -> f64 {
        let mut stream = self.connect().await;
        let mut took = Vec::new();
        for _ in 0..REQUESTS {
            let begun = Instant::now();
            send(&mut stream, format!("GET /ok/204 HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes()).await;
            let mut buffer = [0; 4096];
            assert!(stream.read(&mut buffer).await.unwrap() > 30);
            took.push(begun.elapsed());
        }
        micros(took)
    }

    async fn opening(&self) -> f64 {
        let mut took = Vec::new();
        for _ in 0..CONNECTIONS {
            let begun = Instant::now();
            assert_eq!(get(&mut self.connect().await, "/ok/204").await.status, 204);
            took.push(begun.elapsed());
        }
        micros(took)
    }

    async fn requests2(&self) -> h2::client::SendRequest<Bytes> {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(1 << 20).initial_connection_window_size(1 << 22);
        let (requests, connection) = builder.handshake(self.connect().await).await.unwrap();
        tokio::spawn(connection);
        requests
    }

    async fn bulk2(&self) -> f64 {
        let mut requests = self.requests2().await.ready().await.unwrap();
        let begun = Instant::now();
        let uri = format!("https://{HOST}:{}/ok/bulk?n={BULK}", self.addr.port());
        let request = http::Request::get(uri).body(()).unwrap();
        let mut body = requests.send_request(request, true).unwrap().0.await.unwrap().into_body();
        let mut left = BULK;
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            left -= data.len();
            body.flow_control().release_capacity(data.len()).unwrap();
        }
        assert_eq!(left, 0);
        BULK as f64 / 1e6 / begun.elapsed().as_secs_f64()
    }

    async fn latency2(&self) -> f64 {
        let mut requests = self.requests2().await;
        let uri = format!("https://{HOST}:{}/ok", self.addr.port());
        let mut took = Vec::new();
        for _ in 0..REQUESTS {
            let begun = Instant::now();
            requests = requests.ready().await.unwrap();
            let request = http::Request::head(&uri).body(()).unwrap();
            let response = requests.send_request(request, true).unwrap().0.await.unwrap();
            assert_eq!(response.status(), 200);
            took.push(begun.elapsed());
        }
        micros(took)
    }
}

fn micros(mut took: Vec<Duration>) -> f64 {
    took.sort();
    took[took.len() / 2].as_secs_f64() * 1e6
}

fn print(what: &str, unit: &str, direct: f64, inspected: f64) {
    println!(
        "{what:32} direct {direct:8.0} {unit:5} inspected {inspected:8.0} {unit:5} ratio {:.2}",
        inspected / direct
    );
}

#[test]
#[ignore = "a measurement; takes a while and wants a release build"]
fn speed_of_inspecting() {
    let begun = Instant::now();
    (0..20).for_each(|_| drop(egress::guest_ca::GuestCa::new().unwrap()));
    println!("an authority takes {:.0} us to make", begun.elapsed().as_secs_f64() * 1e6 / 20.0);
    for secret in [false, true] {
        let world = Arc::new(if secret { World::with_secret() } else { World::new() });
        let acceptors = [["http/1.1"], ["h2"]].map(|p| world.servers.acceptor(&[HOST], &p));
        let [old, new] = acceptors;
        let (old, new) = apart(async move || (servers::http1(Some(old)).await.0, servers::http2(Some(new)).await.0));
        let inspected = world.clone();
        apart(async move || {
            inspected.listen(old).await;
            inspected.listen(new).await;
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(measure(&world, old, new, if secret { " with a secret" } else { "" }));
    }
}

async fn measure(world: &World, old: SocketAddr, new: SocketAddr, how: &str) {
    let ways = |addr: SocketAddr, protocol: &str| {
        let root = world.guest_root();
        let near = SocketAddr::new("127.0.0.2".parse().unwrap(), addr.port());
        let direct = Way { addr, connector: client(world.servers.root(), &[protocol]) };
        (direct, Way { addr: near, connector: client(root, &[protocol]) })
    };
    let (direct, through) = ways(old, "http/1.1");
    print(&format!("HTTP/1.1 bulk{how}"), "MB/s", direct.bulk().await, through.bulk().await);
    print(&format!("HTTP/1.1 request{how}"), "us", direct.latency().await, through.latency().await);
    print(&format!("HTTP/1.1 new connection{how}"), "us", direct.opening().await, through.opening().await);
    let (direct, through) = ways(new, "h2");
    print(&format!("HTTP/2 bulk{how}"), "MB/s", direct.bulk2().await, through.bulk2().await);
    print(&format!("HTTP/2 request{how}"), "us", direct.latency2().await, through.latency2().await);
}
