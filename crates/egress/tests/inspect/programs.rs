//! Real programs as guests. Programs that are not installed are skipped.

use super::servers;
use super::world::*;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

struct Guest {
    addr: SocketAddr,
    seen: servers::Seen,
    /// The guest's CA certificate as a file.
    authority: PathBuf,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.authority);
    }
}

async fn guest(http2: bool) -> Guest {
    let world = Arc::new(World::with_secret());
    let (addr, seen) = match http2 {
        true => servers::https2(&world.servers).await,
        false => servers::https(&world.servers).await,
    };
    world.listen(addr).await;
    let authority = std::env::temp_dir().join(format!("cofferdam-inspect-{}-{}.pem", std::process::id(), addr.port()));
    std::fs::write(&authority, world.authority.certificate_pem()).unwrap();
    Guest { addr, seen, authority }
}

/// Runs a program to its end; returns `None` if it is not installed.
async fn run(mut command: Command) -> Option<Output> {
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    let output = within(tokio::task::spawn_blocking(move || command.output())).await.unwrap();
    match output {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("not installed: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Guest {
    async fn curl(&self, arguments: &[&str], path: &str) -> Option<(String, String)> {
        let port = self.addr.port();
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "15", "--resolve", &format!("{HOST}:{port}:127.0.0.2"), "--cacert"]);
        command.arg(&self.authority).args(arguments).arg(format!("https://{HOST}:{port}{path}"));
        command.args(["-w", "\n%{http_code} %{http_version} %{num_connects}"]);
        let output = run(command).await?;
        assert!(output.status.success(), "{path} {arguments:?} {}", text(&output.stderr));
        let out = text(&output.stdout);
        let (body, told) = out.rsplit_once('\n').unwrap();
        Some((told.to_owned(), body.to_owned()))
    }

    /// Runs a script with host, port and CA certificate in its environment.
    async fn script(&self, program: &str, flag: &str, script: &str) -> Option<String> {
        let mut command = Command::new(program);
        command.args([flag, script]).env("PORT", self.addr.port().to_string()).env("HOST", HOST);
        command.env("PLACEHOLDER", PLACEHOLDER).env("CA", &self.authority);
        for name in ["NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"] {
            command.env(name, &self.authority);
        }
        let output = run(command).await?;
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        Some(text(&output.stdout))
    }
}

#[tokio::test]
async fn curl_in_both_protocols() {
    for (http2, flag, version) in [(false, "--http1.1", "1.1"), (true, "--http2", "2"), (false, "--http2", "1.1")] {
        let guest = guest(http2).await;
        let secret = format!("Authorization: Bearer {PLACEHOLDER}");
        let Some((told, body)) = guest.curl(&[flag, "--compressed", "-H", &secret], "/ok/tell").await else {
            return;
        };
        assert_eq!(told, format!("200 {version} 1"));
        assert!(body.contains("Bearer ****") && !body.contains("sk-very"), "{body}");
        let (told, body) = guest.curl(&[flag], "/no").await.unwrap();
        assert_eq!(told, format!("403 {version} 1"));
        assert!(body.contains(r#""error_kind":"policy_denied""#), "{body}");
        let (told, body) = guest.curl(&[flag, "-H", "Authorization: Bearer mine"], "/ok").await.unwrap();
        assert!(told.starts_with("403") && body.contains("credential of its own"), "{told} {body}");
        let file = std::env::temp_dir().join(format!("cofferdam-inspect-up-{}", guest.addr.port()));
        std::fs::write(&file, vec![b'u'; 300_000]).unwrap();
        let upload = file.to_str().unwrap();
        let (told, body) = guest.curl(&[flag, "-T", upload], "/ok/up").await.unwrap();
        assert!(told.starts_with("200") && body.matches('u').count() >= 300_000, "{told}");
        let (told, _) = guest.curl(&[flag, "-T", upload], "/no/up").await.unwrap();
        assert!(told.starts_with("403"), "{told}");
        std::fs::remove_file(&file).unwrap();
        let (told, body) = guest.curl(&[flag], "/ok/bulk?n=5000000").await.unwrap();
        assert_eq!((told.get(..3), body.len()), (Some("200"), 5_000_000));
        let (told, _) = guest.curl(&[flag, "-I"], "/ok").await.unwrap();
        assert!(told.starts_with("200"), "{told}");
        assert!(guest.seen.heads().iter().all(|h| !h.contains("/no")));
    }
}

#[tokio::test]
async fn python_with_its_own_library_and_requests() {
    let guest = guest(false).await;
    let urllib = r#"
import os, json, socket, ssl, urllib.request, urllib.error
real = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: real("127.0.0.2" if host == os.environ["HOST"] else host, *rest, **more)
base = "https://%s:%s" % (os.environ["HOST"], os.environ["PORT"])
context = ssl.create_default_context(cafile=os.environ["CA"])
context.verify_flags |= ssl.VERIFY_X509_STRICT
def ask(path, **more):
    try:
        answer = urllib.request.urlopen(urllib.request.Request(base + path, **more), context=context)
        return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
status, body = ask("/ok/tell", headers={"Authorization": "Bearer " + os.environ["PLACEHOLDER"]})
assert status == 200 and "****" in body and "sk-very" not in body, (status, body)
status, body = ask("/ok/p", data=b"posted")
assert status == 200 and body.endswith("posted"), (status, body)
assert ask("/ok/chunked")[1] == "one two three"
status, body = ask("/no")
assert status == 403 and json.loads(body)["error_kind"] == "policy_denied", (status, body)
print("done")
"#;
    let Some(out) = guest.script("python3", "-c", urllib).await else {
        return;
    };
    assert_eq!(out, "done\n");
    let requests = r#"
try:
    import requests
except ImportError:
    print("done"); raise SystemExit
import os, socket
real = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: real("127.0.0.2" if host == os.environ["HOST"] else host, *rest, **more)
base = "https://%s:%s" % (os.environ["HOST"], os.environ["PORT"])
session = requests.Session()
session.verify = os.environ["CA"]
for i in range(20):
    answer = session.get(base + ("/ok/%d" % i if i % 2 else "/no"))
    assert answer.status_code == (200 if i % 2 else 403), answer
    assert i % 2 or answer.json()["rule"] == answer.headers["cofferdam-rule"]
answer = session.post(base + "/ok/p", data=iter([b"a" * 1000] * 50))
assert answer.status_code == 200 and answer.text.partition("\r\n\r\n")[2].count("aaaa") >= 50 * 249
assert session.post(base + "/no", data=b"x" * 100000).status_code == 403
assert session.get(base + "/ok").status_code == 200
assert session.put(base + "/ok/p", json={"a": 1}).text.endswith('{"a": 1}')
print("done")
"#;
    let before = guest.seen.connections();
    assert_eq!(guest.script("python3", "-c", requests).await.unwrap(), "done\n");
    assert!(guest.seen.connections() - before <= 1, "the connection stays for all of them");
}

#[tokio::test]
async fn node_with_fetch_and_http2() {
    let guest = guest(true).await;
    let script = r#"
const dns = require('node:dns'), real = dns.lookup, { HOST, PORT, PLACEHOLDER } = process.env;
dns.lookup = (name, options, done) => real(name === HOST ? '127.0.0.2' : name, options, done);
const base = `https://${HOST}:${PORT}`;
const check = (right, what) => { if (!right) { console.error('wrong:', what); process.exit(1); } };
function both() {
  return new Promise((resolve, reject) => {
    const client = require('node:http2').connect(base);
    client.on('error', reject);
    const stream = client.request({ ':method': 'POST', ':path': '/ok/both-ways', te: 'trailers' });
    const said = ['one', 'two', 'three'], heard = [];
    let trailers;
    stream.on('trailers', (t) => { trailers = t; });
    stream.on('data', (data) => { heard.push(data.toString()); said.length ? stream.write(said.shift()) : stream.end(); });
    stream.on('end', () => { client.close(); resolve([heard.join(' '), trailers && trailers['grpc-status']]); });
    stream.on('error', reject);
    stream.write(said.shift());
  });
}
const status = (path) => new Promise((resolve, reject) => {
  const client = require('node:http2').connect(base);
  client.on('error', reject);
  const stream = client.request({ ':path': path });
  stream.on('response', (headers) => { resolve(headers[':status']); client.close(); });
  stream.resume();
});
(async () => {
  const [heard, last] = await both();
  check(heard === 'one two three' && last === '0', [heard, last]);
  check(await status('/no') === 403, 'refused');
  check(await status('/ok') === 200, 'allowed');
  console.log('done');
})().catch((error) => { console.error(error); process.exit(1); });
"#;
    let Some(out) = guest.script("node", "-e", script).await else {
        return;
    };
    assert_eq!(out, "done\n");
    let guest = self::guest(false).await;
    let script = r#"
const dns = require('node:dns'), real = dns.lookup, { HOST, PORT, PLACEHOLDER } = process.env;
dns.lookup = (name, options, done) => real(name === HOST ? '127.0.0.2' : name, options, done);
const base = `https://${HOST}:${PORT}`;
const check = (right, what) => { if (!right) { console.error('wrong:', what); process.exit(1); } };
(async () => {
  for (let i = 0; i < 10; i++) {
    const refused = await fetch(base + '/no');
    check(refused.status === 403 && (await refused.json()).error_kind === 'policy_denied', refused.status);
    const told = await (await fetch(base + '/ok/tell', { headers: { authorization: `Bearer ${PLACEHOLDER}` } })).text();
    check(told.includes('****') && !told.includes('sk-very'), told);
    const posted = await (await fetch(base + '/ok/p', { method: 'POST', body: 'x'.repeat(100000) })).text();
    check(posted.endsWith('x'.repeat(100000)), posted.length);
  }
  const bulk = await (await fetch(base + '/ok/bulk?n=3000000')).arrayBuffer();
  check(bulk.byteLength === 3000000, bulk.byteLength);
  console.log('done');
  process.exit(0);
})().catch((error) => { console.error(error); process.exit(1); });
"#;
    assert_eq!(guest.script("node", "-e", script).await.unwrap(), "done\n");
}
