//! A test internet that keeps a log: in its network namespace one server answers at every address and logs each
//! connection, byte and DNS query. Traffic that is not in the log did not leave the guest.

use crate::support::world::World;
use crate::support::{As, Run};
use std::fs;
use std::time::Duration;

/// The server at every address. `LOG` gets a line for each connection (`tcp ADDRESS PORT`), the data on it (`said`,
/// with the bytes as Python prints them), each datagram (`udp`) and each DNS query (`dns NAME TYPE`). Port 8080 has the
/// web server of Python's library, which accepts any word as a method and any white space between words, with a site
/// per host (`site HOST`).
const SERVER: &str = r#"
import gzip, os, socket, ssl, struct, sys, threading, time
from wsgiref.simple_server import WSGIRequestHandler, make_server
log = open(sys.argv[1], "ab", buffering=0)
here, project = os.path.dirname(sys.argv[1]), sys.argv[2]
lock = threading.Lock()
def note(*words):
    with lock:
        log.write((" ".join(str(w) for w in words) + "\n").encode())

def plain(address):
    return address[7:] if address.startswith("::ffff:") else address

def answer(head):
    body = b"hello"
    path = head.split(b" ")[1] if head.count(b" ") > 1 else b"/"
    auth = b"".join(l[14:].strip() for l in head.split(b"\r\n") if l.lower().startswith(b"authorization:"))
    ok = b"HTTP/1.1 200 OK\r\n"
    def sized(body, more=b""):
        return [ok + more + b"content-length: %d\r\n\r\n" % len(body) + body]
    if path == b"/two":
        return [sized(b"first")[0] + sized(b"second")[0]]
    if path == b"/early":
        return [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 3 + sized(b"hinted")[0]]
    if path == b"/short":
        return [ok + b"content-length: 100\r\n\r\nshort"]
    if path == b"/double":
        return [ok + b"content-length: 5\r\ncontent-length: 50\r\n\r\nhello" + sized(b"smuggled")[0]]
    if path == b"/both":
        return [ok + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + sized(b"smuggled")[0]]
    if path.startswith(b"/to/"):
        return [b"HTTP/1.1 302 Found\r\nlocation: http://" + path[4:] + b"/\r\ncontent-length: 0\r\n\r\n"]
    if path == b"/header":
        return sized(b"x", b"x-echo: " + auth + b"\r\n")
    if path == b"/body":
        return sized(b"you sent " + auth)
    if path == b"/backwards":
        return sized(auth[::-1])
    if path == b"/split":
        return [ok + b"transfer-encoding: chunked\r\n\r\n"] + [b"1\r\n%c\r\n" % c for c in auth] + [b"0\r\n\r\n"]
    if path == b"/gzip":
        return sized(gzip.compress(auth), b"content-encoding: gzip\r\n")
    if path == b"/status":
        return [b"HTTP/1.1 200 " + auth + b"\r\ncontent-length: 0\r\n\r\n"]
    return sized(b"hello")

def talk(stream, to, port):
    try:
        if port in (443, 8443):
            held = stream.recv(65536, socket.MSG_PEEK)
            note("said", to, port, held)
            stream = tls.wrap_socket(stream, server_side=True)
        if port == 7000:
            stream.sendall(b"220 ready\n")
        while got := stream.recv(65536):
            note("said", to, port, got)
            if port == 7000:
                stream.sendall(got)
                continue
            if port == 7001:
                time.sleep(3600)
            for part in answer(got):
                stream.sendall(part)
                if len(part) < 20: time.sleep(0.002)
            if b"GET /short" in got or b"GET /double" in got or b"GET /both" in got: break
    except OSError as e:
        pass
    stream.close()

def streams(server, port):
    while True:
        stream, _ = server.accept()
        to = plain(stream.getsockname()[0])
        note("tcp", to, port)
        threading.Thread(target=talk, args=(stream, to, port), daemon=True).start()

def datagrams(server, port):
    while True:
        got, peer = server.recvfrom(65536)
        note("udp", port, got[:40])
        server.sendto(got, peer)

asked = {}
def resolver(server):
    while True:
        got, peer = server.recvfrom(65536)
        at, labels = 12, []
        while got[at]:
            labels.append(got[at + 1:at + 1 + got[at]].decode())
            at += 1 + got[at]
        name, kind = ".".join(labels), struct.unpack(">H", got[at + 1:at + 3])[0]
        note("dns", name, kind)
        asked[name, kind] = asked.get((name, kind), 0) + 1
        found = NAMES.get(name, "5.5.5.6" if name.endswith(".wild.test") else None)
        # Addresses of a list are returned in turn, each with a TTL of 0.
        if isinstance(found, list): found = found[min(asked[name, kind], len(found)) - 1]
        data = []
        for one in (found or "").split():
            family = socket.AF_INET6 if ":" in one else socket.AF_INET
            if kind == (28 if ":" in one else 1): data.append(socket.inet_pton(family, one))
        head = got[:2] + struct.pack(">HHHHH", 0x8180 | (0 if found else 3), 1, len(data), 0, 0) + got[12:at + 5]
        server.sendto(head + b"".join(b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(d)) + d for d in data), peer)

NAMES = {
    "good.test": "5.5.5.5", "other.test": "5.5.5.7", "bad.test": "5.5.5.5", "secret.test": "5.5.5.8",
    "meta.test": "169.254.169.254", "lan.test": "10.9.8.7", "loop.test": "127.0.0.1", "zero.test": "0.0.0.0",
    "six.test": "::1 fe80::1 fd00::1", "nat.test": "64:ff9b::a9fe:a9fe 2002:a9fe:a9fe:: ::169.254.169.254",
    "mixed.test": "5.5.5.9 169.254.169.254", "turns.test": ["5.5.5.10", "169.254.169.254", "127.0.0.1"],
}
tls = None
if os.path.exists(here + "/leaf.pem"):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(here + "/leaf.pem", here + "/leaf.key")
PORTS = [22, 25, 53, 80, 443, 1080, 3128, 7000, 7001, 8000, 8443, 9000]
for port in PORTS:
    server = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
    threading.Thread(target=streams, args=(server, port), daemon=True).start()
class Sites(WSGIRequestHandler):
    def log_message(self, *words): pass
def site(env, start):
    note("site", env.get("HTTP_HOST", "none"))
    start("200 OK", [("content-type", "text/plain")])
    return [b"hello from " + env.get("HTTP_HOST", "none").encode()]
web = make_server("0.0.0.0", 8080, site, handler_class=Sites)
threading.Thread(target=web.serve_forever, daemon=True).start()
for port in (53, 123, 443, 7000):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("::", port))
    threading.Thread(target=datagrams, args=(s, port), daemon=True).start()
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("9.9.9.9", 53))
threading.Thread(target=resolver, args=(s,), daemon=True).start()
for at in (project + "/host.sock", "\0host-canary"):
    s = socket.socket(socket.AF_UNIX)
    s.bind(at)
    if at[0] == "/": os.chmod(at, 0o777)
    s.listen(64)
    def unix(s=s, at=at):
        while True:
            s.accept()
            note("unix", repr(at))
    threading.Thread(target=unix, daemon=True).start()
parent = os.getppid()
open(here + "/ready", "w")
while os.getppid() == parent: time.sleep(0.05)
"#;

/// Shared helpers of attackers inside. Each function to reach a host returns the response, or nothing.
pub const WAYS: &str = r#"
import concurrent.futures, os, socket, ssl, struct, sys, threading, time
GET = "GET {} HTTP/1.1\r\nHost: {}\r\n\r\n"
# Long enough for servers on the same machine.
PATIENCE = 1.5
def all_of(s):
    got = b""
    try:
        while part := s.recv(65536):
            got += part
            if b"hello" in got or b"hinted" in got: break
    except OSError: pass
    return got
def say(s, text):
    s.settimeout(PATIENCE)
    try:
        s.sendall(text if isinstance(text, bytes) else text.encode())
        return all_of(s)
    except OSError: return b""
def direct(host, port=80, text=None):
    try: s = socket.create_connection((host, port), 3)
    except (OSError, UnicodeError): return b""
    return say(s, text or GET.format("/", host))
def dialled(host, port):
    s = socket.create_connection(("192.0.0.53", 1080), 5)
    s.settimeout(5)
    s.sendall(b"\5\1\0"); s.recv(2)
    try: place = b"\1" + socket.inet_pton(socket.AF_INET, host)
    except OSError:
        try: place = b"\4" + socket.inet_pton(socket.AF_INET6, host)
        except OSError: place = b"\3" + bytes([len(host.encode())]) + host.encode()
    s.sendall(b"\5\1\0" + place + struct.pack(">H", port))
    got = s.recv(10)
    return s if got[1:2] == b"\0" else None
def socks(host, port=80, text=None):
    try: s = dialled(host, port)
    except OSError: return b""
    return say(s, text or GET.format("/", host)) if s else b""
def spelled(host): return f"[{host}]" if ":" in host else host
def tunnel(host, port):
    s = socket.create_connection(("192.0.0.53", 3128), 5)
    s.settimeout(5)
    s.sendall(f"CONNECT {spelled(host)}:{port} HTTP/1.1\r\nHost: {spelled(host)}:{port}\r\n\r\n".encode())
    got = s.recv(4096)
    return s if b" 200 " in got else None
def connect(host, port=80, text=None):
    try: s = tunnel(host, port)
    except OSError: return b""
    return say(s, text or GET.format("/", spelled(host))) if s else b""
def absolute(host, port=80, text=None):
    try: s = socket.create_connection(("192.0.0.53", 3128), 5)
    except OSError: return b""
    at = spelled(host) + ("" if port == 80 else f":{port}")
    return say(s, text or GET.format(f"http://{at}/", at))
EVERY = (direct, socks, connect, absolute)
def at_once(work, jobs):
    with concurrent.futures.ThreadPoolExecutor(16) as pool: list(pool.map(lambda job: work(*job), jobs))
"#;

/// A test internet in which `good.test`, `other.test` and everything below `wild.test` resolve to public addresses,
/// `bad.test` to the address of `good.test`, and the remaining names to addresses that no public name should have.
pub fn internet(who: As) -> World {
    let world = World::new(who);
    let dir = world.place.dir("world");
    fs::write(dir.join("internet.py"), SERVER).unwrap();
    let (dir, project) = (dir.display(), world.place.project.clone());
    let project = project.display();
    world.own_etc().before(&format!(
        "echo nameserver 9.9.9.9 > /etc/resolv.conf\nip route add local 0.0.0.0/0 dev lo\nip -6 route add local ::/0 dev lo\n\
         rm -f {dir}/ready {project}/host.sock\n/usr/bin/python3 {dir}/internet.py {dir}/log {project} &\n\
         while [ ! -e {dir}/ready ]; do sleep 0.02; done"
    ))
}

/// The log so far.
pub fn seen(world: &World) -> String {
    std::thread::sleep(Duration::from_millis(100));
    fs::read_to_string(world.place.root.join("world/log")).unwrap_or_default()
}

/// Distinct log lines of one kind.
pub fn lines(world: &World, kind: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in seen(world).lines().filter(|line| line.split(' ').next() == Some(kind)) {
        if !found.iter().any(|f| f == line) {
            found.push(line.to_owned());
        }
    }
    found.sort();
    found
}

/// Runs a Python attack with the shared helpers.
pub fn attack(world: &World, flags: &[&str], text: &str) -> Run {
    let file = world.place.file("home/project/attack.py", format!("{WAYS}\n{text}"));
    world.run(flags, &["/usr/bin/python3", file.to_str().unwrap()])
}
