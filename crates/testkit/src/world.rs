//! A small internet for tests: a network namespace with public addresses of its own, servers at them, and names for
//! them in `/etc/hosts`. No packet leaves the machine, and nothing outlives the test.

use super::{As, Place, Run, binary, to_the_end, unique};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A public address of the servers of every world.
pub const PUBLIC: &str = "5.5.5.5";
/// An address from a public range that belongs to the host of every world.
pub const OWN: &str = "5.5.7.7";
/// A private address, which only a rule that names it allows.
pub const PRIVATE: &str = "10.9.8.7";

/// Binds all given sockets, exits when they are bound, and serves in the background: `http`, `https` (with a
/// certificate of the world's own authority), `files` (the same with the files in `world/files`, git repositories below
/// `/git`), `greet` (sends first, then echoes), `shut` (sends a word, shuts down its half, and records how many bytes
/// it receives), `udp` (echoes), `mute` (accepts no connection).
const SERVERS: &str = r#"
import http.server, os, socket, ssl, subprocess, sys, threading
here = os.path.dirname(sys.argv[1])

def answer(kind):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def reply(self):
            length = int(self.headers.get("content-length") or 0)
            got = self.rfile.read(length)
            # Backwards, because secrets are masked on their way back.
            auth = (self.headers.get("authorization") or "")[::-1]
            body = f"{self.command} {self.path} host={self.headers.get('host')} auth={auth} body={len(got)}\n".encode()
            if self.path.startswith("/large/"):
                body = b"x" * int(self.path.rsplit("/", 1)[1])
            status = 200
            self.send_response(status)
            if self.path.endswith(".html") or self.path.endswith("/"):
                self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body)
        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = reply
        def log_message(self, *args):
            pass
    return Handler

class Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def __init__(self, *args):
        super().__init__(*args, directory=here + "/files")
    def do_GET(self):
        open(here + "/requests", "a").write(self.path + "\n")
        self.repository() if self.path.startswith("/git/") else super().do_GET()
    def do_POST(self):
        self.repository() if self.path.startswith("/git/") else self.send_error(405)
    def body(self):
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        got = b""
        while size := int(self.rfile.readline(), 16):
            got += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return got
    def repository(self):
        path, _, query = self.path.partition("?")
        said = {"HTTP_" + k.upper().replace("-", "_"): v for k, v in self.headers.items()}
        env = dict(os.environ, **said, REQUEST_METHOD=self.command, PATH_INFO=path, QUERY_STRING=query,
            GIT_PROJECT_ROOT=here + "/files", GIT_HTTP_EXPORT_ALL="1", CONTENT_TYPE=self.headers.get("content-type") or "")
        got = subprocess.run(["git", "http-backend"], input=self.body(), env=env, stdout=subprocess.PIPE).stdout
        head, _, body = got.partition(b"\r\n\r\n")
        head = [line.split(": ", 1) for line in head.decode().split("\r\n")]
        self.send_response(int(dict(head).get("Status", "200").split()[0]))
        for name, value in head:
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # With the usual five a crowd waits seconds for the kernel to ask again.
    request_queue_size = 512
    def __init__(self, at, handler):
        self.address_family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
        super().__init__(at, handler)

def listen(at):
    return socket.create_server(at, family=socket.AF_INET6 if ":" in at[0] else socket.AF_INET, backlog=512)

def greet(server):
    def one(stream):
        stream.sendall(b"220 hello\n")
        while got := stream.recv(65536):
            stream.sendall(got)
        stream.sendall(b"bye\n")
        stream.close()
    while True:
        threading.Thread(target=one, args=(server.accept()[0],), daemon=True).start()

def shut(server):
    while True:
        stream, _ = server.accept()
        stream.sendall(b"no more\n")
        stream.shutdown(socket.SHUT_WR)
        heard = 0
        while got := stream.recv(65536):
            heard += len(got)
        open(here + "/heard", "a").write(f"{heard}\n")

def udp(server):
    while True:
        got, peer = server.recvfrom(65536)
        server.sendto(got, peer)

work = []
for spec in sys.argv[2:]:
    kind, address, port = spec.split(",")
    at = (address, int(port))
    if kind in ("http", "https", "files"):
        server = Server(at, Files if kind == "files" else answer(kind))
        if kind != "http":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(here + "/leaf.pem", here + "/leaf.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        work.append(server.serve_forever)
    elif kind == "greet":
        work.append(lambda s=listen(at): greet(s))
    elif kind == "shut":
        work.append(lambda s=listen(at): shut(s))
    elif kind == "mute":
        # Once a queue of the least length is full, the kernel answers nobody.
        s = listen(at)
        s.listen(0)
        held = [socket.socket() for _ in range(4)]
        for one in held:
            one.setblocking(False)
            one.connect_ex(at)
        work.append(lambda s=s, held=held: threading.Event().wait())
    elif kind == "udp":
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.bind(at)
        work.append(lambda s=s: udp(s))
pid = os.fork()
if pid:
    open(sys.argv[1], "w").write(str(pid))
    os._exit(0)
os.setsid()
for fd in (0, 1, 2):
    os.dup2(os.open("/dev/null", os.O_RDWR), fd)
for one in work:
    threading.Thread(target=one, daemon=True).start()
threading.Event().wait(900)
"#;

pub struct World {
    pub place: Place,
    /// Servers as `kind,address,port`.
    servers: Vec<String>,
    /// Lines of `/etc/hosts`.
    hosts: Vec<String>,
    /// Shell text that runs as root first.
    before: String,
    trusted: bool,
    /// `/etc` is a writable copy without mounts.
    own_etc: bool,
}

impl World {
    pub fn new(who: As) -> World {
        World {
            place: Place::new(who),
            servers: Vec::new(),
            hosts: Vec::new(),
            before: String::new(),
            trusted: false,
            own_etc: false,
        }
    }

    pub fn server(mut self, kind: &str, address: &str, port: u16) -> World {
        self.servers.push(format!("{kind},{address},{port}"));
        self
    }

    pub fn host(mut self, address: &str, names: &str) -> World {
        self.hosts.push(format!("{address} {names}"));
        self
    }

    /// Gives the world an `/etc` that `before` may change.
    pub fn own_etc(mut self) -> World {
        self.own_etc = true;
        self
    }

    /// Adds shell text that changes the world, as root, in a mount namespace of its own.
    pub fn before(mut self, text: &str) -> World {
        self.before.push_str(text);
        self.before.push('\n');
        self
    }

    /// Makes a certificate for the names; the host trusts its authority, which is in the project as `ca.pem`.
    pub fn certificate(mut self, names: &[&str]) -> World {
        let dir = self.place.dir("world");
        let alternatives = names.iter().map(|n| format!("DNS:{n}")).collect::<Vec<_>>().join(",");
        let script = format!(
            "set -e; cd {dir}\n\
             openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 2 \
             -subj /CN=world -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign\n\
             openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout leaf.key -out leaf.csr -subj /CN=leaf\n\
             printf 'subjectAltName={alternatives}\\nbasicConstraints=CA:FALSE\\nextendedKeyUsage=serverAuth\\n' > ext\n\
             openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out leaf.pem -days 2 -extfile ext\n\
             cat /etc/ssl/certs/ca-certificates.crt ca.pem > bundle.pem; chmod 644 bundle.pem; cp ca.pem {project}/ca.pem\n\
             chmod 644 {project}/ca.pem\n",
            dir = dir.display(),
            project = self.place.project.display(),
        );
        let made = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(made.status.success(), "certificates: {}", String::from_utf8_lossy(&made.stderr));
        self.trusted = true;
        self
    }

    fn script(&self) -> String {
        let dir = self.place.dir("world");
        fs::write(dir.join("servers.py"), SERVERS).unwrap();
        fs::write(dir.join("hosts"), format!("127.0.0.1 localhost\n{}\n", self.hosts.join("\n"))).unwrap();
        let dir = dir.display();
        let (etc, put) = match self.own_etc {
            true => ("mount -t tmpfs none /mnt; cp -a /etc/. /mnt; mount --bind /mnt /etc; umount /mnt\n", "cp"),
            false => ("", "mount --bind"),
        };
        let trust = match self.trusted {
            true => format!("{put} {dir}/bundle.pem /etc/ssl/certs/ca-certificates.crt\n"),
            false => String::new(),
        };
        format!(
            "set -e\nip link set lo up\nip addr add {OWN}/32 dev lo\nip route add local {PUBLIC} dev lo\nip route add local {PRIVATE} dev lo\n{etc}{before}\
             {put} {dir}/hosts /etc/hosts\n{trust}\
             /usr/bin/python3 {dir}/servers.py {dir}/pid {servers}\n\
             set +e\n\"$@\"\nstatus=$?\nkill \"$(cat {dir}/pid)\"\nexit $status\n",
            before = self.before,
            servers = self.servers.join(" "),
        )
    }

    /// Builds a command as this world's user, beside its servers.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["-mn", "sh", "-c", &self.script(), "sh"]);
        if self.place.who == As::User {
            command.args(["setpriv", "--reuid", "1500", "--regid", "1500", "--clear-groups", "--"]);
        }
        command.arg(program).args(args);
        command.env_clear().env("HOME", &self.place.home).env("USER", "tester").env("LANG", "C.UTF-8");
        command.env("COFFERDAM_STATE", self.place.state());
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").current_dir(&self.place.project);
        command.stdin(std::process::Stdio::null());
        command
    }

    /// Runs `cofferdam run FLAGS… -- COMMAND…` in this world.
    pub fn run(&self, flags: &[&str], command: &[&str]) -> Run {
        self.run_with(flags, command, &[])
    }

    pub fn run_with(&self, flags: &[&str], command: &[&str], env: &[(&str, &str)]) -> Run {
        let status = self.file();
        let mut args = vec!["run", "--status-file", status.to_str().unwrap()];
        args.extend(flags);
        args.push("--");
        args.extend(command);
        let mut cofferdam = self.command(binary().to_str().unwrap(), &args);
        let output = to_the_end(cofferdam.envs(env.iter().copied()), b"");
        let outcome = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap_or(Value::Null);
        Run { output, outcome }
    }

    pub fn sh(&self, flags: &[&str], text: &str) -> Run {
        self.run(flags, &["/bin/sh", "-c", text])
    }

    pub fn python(&self, flags: &[&str], text: &str) -> Run {
        self.run(flags, &["/usr/bin/python3", "-c", text])
    }

    /// Makes an empty file that the world's user can write.
    pub fn file(&self) -> PathBuf {
        self.place.file(format!("made-{}", unique()), "")
    }
}
