//! Servers around the daemon: a foreign site, and a gateway that adds a credential. Behind the gateway every request
//! of a browser is authenticated, also one that a hostile page caused: the worst case.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Calls `serve` with each connection to the listener and the head of its request.
fn listen(listener: TcpListener, serve: impl Fn(TcpStream, String) + Send + Sync + 'static) {
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || {
                let mut stream = stream;
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read(&mut byte) {
                        Ok(1) => head.push(byte[0]),
                        _ => return,
                    }
                }
                serve(stream, String::from_utf8_lossy(&head).into_owned());
            });
        }
    });
}

pub fn port() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Foreign site: an empty page at every path and a cookie for its whole host; request heads are recorded.
pub fn site(seen: Arc<Mutex<Vec<String>>>) -> u16 {
    let (listener, port) = port();
    listen(listener, move |mut stream, head| {
        seen.lock().unwrap().push(head);
        let page = "<!doctype html><title>elsewhere</title><body>";
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nset-cookie: session=elsewhere; Path=/\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n{page}",
            page.len()
        );
    });
    port
}

/// Forwards requests to the daemon with the credential added, one per connection, and counts them.
pub fn gateway(listener: TcpListener, daemon: u16, token: String, count: Arc<AtomicUsize>) {
    listen(listener, move |mut client, head| {
        count.fetch_add(1, Ordering::Relaxed);
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", daemon)) else { return };
        let upgrades = head.to_ascii_lowercase().contains("\r\nupgrade:");
        let lines = head.split("\r\n").filter(|line| !line.is_empty());
        let kept = lines.filter(|line| upgrades || !line.to_ascii_lowercase().starts_with("connection:"));
        let mut whole: Vec<String> = kept.map(str::to_owned).collect();
        whole.push(format!("authorization: Bearer {}", token));
        if !upgrades {
            whole.push("connection: close".into());
        }
        if server.write_all(format!("{}\r\n\r\n", whole.join("\r\n")).as_bytes()).is_err() {
            return;
        }
        let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from_client, &mut to_server);
            let _ = to_server.shutdown(Shutdown::Write);
        });
        let _ = std::io::copy(&mut server, &mut client);
        let _ = client.shutdown(Shutdown::Both);
    });
}
