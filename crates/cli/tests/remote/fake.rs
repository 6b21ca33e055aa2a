//! A fake daemon that answers as a test says, and a proxy that records a real daemon's answers. Neither knows anything
//! of the product.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Writes the response to a request, given as `METHOD PATH`.
pub type Responder = dyn Fn(&str, &mut dyn Write) -> io::Result<()> + Send + Sync;

/// Fake daemon, stopped on drop.
pub struct Fake {
    pub socket: PathBuf,
    responder: Arc<Mutex<Arc<Responder>>>,
    over: Arc<AtomicBool>,
}

impl Fake {
    pub fn start(socket: PathBuf) -> Fake {
        let listener = UnixListener::bind(&socket).unwrap();
        let nothing: Arc<Responder> = Arc::new(|_: &str, _: &mut dyn Write| Ok(()));
        let (responder, over) = (Arc::new(Mutex::new(nothing)), Arc::new(AtomicBool::new(false)));
        let (current, ends) = (responder.clone(), over.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let current = current.clone();
                thread::spawn(move || respond(stream, &current));
            }
        });
        Fake { socket, responder, over }
    }

    /// Replaces the responder for further requests.
    pub fn respond_with(&self, responder: impl Fn(&str, &mut dyn Write) -> io::Result<()> + Send + Sync + 'static) {
        *self.responder.lock().unwrap() = Arc::new(responder);
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&self.socket);
    }
}

fn respond(mut stream: UnixStream, current: &Mutex<Arc<Responder>>) {
    // Timeouts keep a stuck connection from outliving a test.
    let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
    let _ = stream.set_write_timeout(Some(Duration::from_secs(30)));
    let Some(asked) = request(&mut stream) else { return };
    let responder = current.lock().unwrap().clone();
    // A connection carries one response; the client decides whether to read it.
    let _ = responder(&asked, &mut stream);
    let _ = stream.shutdown(Shutdown::Both);
}

/// `METHOD PATH` without the query; the body is read and dropped.
fn request(stream: &mut UnixStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > 1 << 20 || stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse::<u64>().ok());
    if let Some(length) = length {
        let _ = io::copy(&mut (&*stream).take(length), &mut io::sink());
    }
    // A body without a length is left unread, as by a server that refuses early.
    key_of(head.lines().next()?)
}

fn key_of(line: &str) -> Option<String> {
    let mut words = line.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    Some(format!("{method} {}", target.split('?').next()?))
}

/// A complete HTTP response.
pub fn whole(status: &str, sort: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {sort}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Responses of a real daemon by request, in order of arrival.
pub type Transcript = BTreeMap<String, Vec<Vec<u8>>>;

/// Recording proxy between the command line and a real daemon.
pub struct Recorder {
    pub socket: PathBuf,
    kept: Arc<Mutex<Transcript>>,
}

impl Recorder {
    pub fn start(socket: PathBuf, real: &Path) -> Recorder {
        let listener = UnixListener::bind(&socket).unwrap();
        let kept = Arc::new(Mutex::new(Transcript::new()));
        let (real, writes) = (real.to_owned(), kept.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (real, writes) = (real.clone(), writes.clone());
                thread::spawn(move || pass(stream, &real, &writes));
            }
        });
        Recorder { socket, kept }
    }

    pub fn transcript(&self) -> Transcript {
        self.kept.lock().unwrap().clone()
    }
}

fn pass(mut near: UnixStream, real: &Path, kept: &Mutex<Transcript>) {
    let Ok(mut far) = UnixStream::connect(real) else { return };
    let (Ok(mut from), Ok(mut to)) = (near.try_clone(), far.try_clone()) else { return };
    let asks = thread::spawn(move || {
        let (mut first, mut buffer) = (Vec::new(), [0; 16 << 10]);
        while let Ok(got @ 1..) = from.read(&mut buffer) {
            if first.len() < 4096 {
                first.extend_from_slice(&buffer[..got]);
            }
            if to.write_all(&buffer[..got]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
        first
    });
    let (mut answer, mut buffer) = (Vec::new(), [0; 16 << 10]);
    while let Ok(got @ 1..) = far.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..got]);
        if near.write_all(&buffer[..got]).is_err() {
            break;
        }
    }
    let _ = near.shutdown(Shutdown::Both);
    let first = asks.join().unwrap_or_default();
    let line = String::from_utf8_lossy(&first).lines().next().unwrap_or_default().to_owned();
    if let (Some(key), false) = (key_of(&line), answer.is_empty()) {
        kept.lock().unwrap().entry(key).or_default().push(answer);
    }
}
