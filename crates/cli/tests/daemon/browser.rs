//! Hostile pages in a real browser: from other sites, from other ports, from a name rebound to this host (DNS
//! rebinding), and from guests. The browser sits behind a gateway that adds a credential to every request, so that
//! only the daemon's own rules keep pages out.

mod devtools;
mod front;

use crate::support::http::{Answer, Daemon, exchange};
use crate::support::{As, Place};
use devtools::Browser;
use serde_json::{Value, json};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Guest server: records requests, serves pages, sets a cookie and redirects to wherever the query says.
const GUEST: &str = r#"
import http.server, json, urllib.parse
seen = []
PAGES = {"/page": "text/html", "/page.svg": "image/svg+xml", "/page.xhtml": "application/xhtml+xml"}
class Guest(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def reply(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        at = urllib.parse.urlparse(self.path)
        if at.path != "/seen":
            seen.append([self.command, self.path, self.headers.get("cookie")])
        page = '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>guest</title></head><body>guest</body></html>'
        if at.path == "/page.svg":
            page = '<svg xmlns="http://www.w3.org/2000/svg"><text>guest</text></svg>'
        body = (json.dumps(seen) if at.path == "/seen" else page).encode()
        self.send_response(302 if at.path == "/lead" else 200)
        if at.path == "/lead":
            self.send_header("location", urllib.parse.unquote(at.query))
        if at.path == "/refresh":
            self.send_header("refresh", "0;url=/v1/sandboxes")
        self.send_header("set-cookie", "own=guest; Path=/")
        self.send_header("access-control-allow-origin", "*")
        self.send_header("service-worker-allowed", "/")
        self.send_header("content-type", PAGES.get(at.path, "text/html"))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = reply
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Guest).serve_forever()
"#;

/// Attacks of a page against an origin; returns whatever the page could read, which should be errors only. Where a
/// page cannot even learn whether a request was sent (`no-cors`, forms), the daemon's state is compared instead.
const ATTACKS: &str = r#"
async (base) => {
  const web = base + '/v1/sandboxes/web', got = [];
  const note = (what, value) => got.push(what + ': ' + value);
  // Works in documents other than HTML, too.
  const make = tag => document.createElementNS('http://www.w3.org/1999/xhtml', tag);
  const late = (ms, value) => new Promise(r => setTimeout(() => r(value), ms));
  const body = JSON.stringify({ name: 'made-by-a-page' });
  const reads = [base + '/v1/sandboxes', base + '/v1/tokens', base + '/v1/openapi.json', web + '/files/content?path=secret',
    web + '/ports/8000/read'];
  for (const url of reads) {
    for (const init of [{}, { credentials: 'include' }, { headers: { 'x-cofferdam': '1' } }]) {
      await fetch(url, init).then(async a => note('read ' + url, await a.text()), () => {});
    }
    await fetch(url, { mode: 'no-cors' }).then(a => a.type === 'opaque' || note('read ' + url, a.type), () => {});
  }
  const changes = [base + '/v1/sandboxes', base + '/v1/tokens', base + '/v1/gc', web + '/stop', web + '/suspend', web + '/runs',
    web + '/workspace/approve', web + '/files/remove', web + '/ports/8000/changed'];
  for (const url of changes) {
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data', undefined]) {
      const init = { method: 'POST', mode: 'no-cors', body: new Blob([body], type ? { type } : {}), credentials: 'include' };
      await fetch(url, init).catch(() => {});
    }
    await fetch(url, { method: 'POST', body, headers: { 'content-type': 'application/json', 'x-cofferdam': '1' } })
      .then(a => note('changed ' + url, a.status), () => {});
    navigator.sendBeacon(url, body);
  }
  await fetch(web, { method: 'DELETE' }).then(a => note('deleted', a.status), () => {});
  const form = (action, method, enctype) => new Promise(done => {
    const frame = make('iframe'), form = make('form');
    frame.name = 'f' + Math.random();
    Object.assign(form, { action, method, enctype, target: frame.name });
    form.innerHTML = '<input name="x" value="y"/>';
    document.documentElement.append(frame, form);
    form.submit();
    frame.onload = () => done();
    setTimeout(done, 1500);
  });
  const forms = [];
  for (const url of [web + '/stop', base + '/v1/gc', web + '/ports/8000/form'])
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data']) forms.push(form(url, 'post', type));
  forms.push(form(base + '/v1/sandboxes', 'get', ''));
  await Promise.all(forms);
  const load = (tag, set) => new Promise(done => {
    const it = make(tag);
    it.onload = it.onloadeddata = () => done(true);
    it.onerror = () => done(false);
    Object.assign(it, set);
    document.documentElement.append(it);
    setTimeout(() => done(false), 1500);
  });
  for (const url of [base + '/v1/sandboxes', base + '/v1/openapi.json', web + '/files/content?path=script.js', web + '/ports/8000/sub'])
    for (const [tag, set] of [['img', { src: url }], ['script', { src: url }], ['script', { src: url, type: 'module' }],
      ['link', { href: url, rel: 'stylesheet' }], ['video', { src: url }]])
      if (await load(tag, set)) note('loaded ' + tag, url);
  if (window.ran) note('ran', window.ran);
  for (const at of ['/ports/8000/socket', '/files/watch?path=.']) {
    const opened = await Promise.race([new Promise(done => {
      const socket = new WebSocket(web.replace('http', 'ws') + at);
      socket.onopen = () => done(true);
      socket.onerror = () => done(false);
    }), late(5000, 'no end')]);
    if (opened) note('socket ' + at, opened);
  }
  for (const at of [base + '/v1/events', web + '/files/watch?path=.']) {
    const opened = await Promise.race([new Promise(done => {
      const events = new EventSource(at, { withCredentials: true });
      events.onopen = () => done(true);
      events.onerror = () => { if (events.readyState === 2) done(false); };
    }), late(5000, 'no end')]);
    if (opened) note('events ' + at, opened);
  }
  const opened = window.open(base + '/v1/sandboxes');
  await late(500);
  try { if (opened && opened.document.body.innerText) note('window', opened.document.body.innerText); } catch { }
  return got;
}
"#;

struct BrowserFixture {
    daemon: Daemon,
    place: Place,
    browser: Browser,
    /// Port of the gateway, which is the daemon's address as the browser knows it.
    gateway: u16,
    /// Number of requests that reached the gateway.
    sent: Arc<AtomicUsize>,
    site: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

impl BrowserFixture {
    fn new() -> BrowserFixture {
        let place = Place::new(As::Root);
        let (listener, gateway) = front::port();
        let host = format!("localhost:{gateway}");
        let daemon = Daemon::start_with(&place, &["--listen", "127.0.0.1:0", "--allow-host", &host]);
        // The gateway's credential is the operator's.
        let sent = Arc::default();
        front::gateway(listener, daemon.port.unwrap(), daemon.operator_token(), Arc::clone(&sent));
        let seen = Arc::default();
        let site = front::site(Arc::clone(&seen));
        daemon.post("/v1/sandboxes", json!({ "name": "web", "dir": place.project })).assert_ok();
        for (path, text) in
            [("secret", "canary"), ("script.js", "window.ran = 'script'"), ("page.html", "<script>1</script>")]
        {
            let at = format!("/v1/sandboxes/web/files/content?path={path}");
            daemon.ask("PUT", &at).body("application/octet-stream", text.as_bytes()).send().assert_ok();
        }
        let started = place.cofferdam(["exec", "-d", "web", "python3", "-c", GUEST]).output().unwrap();
        assert!(started.status.success(), "{started:?}");
        let browser = Browser::start(&place);
        let fixture = BrowserFixture { daemon, place, browser, gateway, sent, site, seen };
        let begun = Instant::now();
        while fixture.daemon.get("/v1/sandboxes/web/ports/8000/").status != 200 {
            assert!(begun.elapsed() < Duration::from_secs(180), "the server inside does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        fixture
    }

    fn base(&self) -> String {
        format!("http://localhost:{}", self.gateway)
    }

    /// Sends a request through the gateway as a program that is not a browser.
    fn program(&self, method: &str, path: &str, more: &str, body: &str) -> Answer {
        let (host, length) = (format!("localhost:{}", self.gateway), body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{more}content-length: {length}\r\n\r\n{body}");
        exchange(TcpStream::connect(("127.0.0.1", self.gateway)).unwrap(), head.as_bytes())
    }

    /// Everything that a page could have changed: sandboxes with their versions, tokens, files, runs.
    fn state(&self) -> Vec<Value> {
        let sandbox = self.daemon.get("/v1/sandboxes/web").assert_ok();
        let mut told = vec![json!([sandbox["id"], sandbox["state"], sandbox["standing"], sandbox["version"]])];
        let names = |path: &str, list: &str, field: &str| {
            let all = self.daemon.get(path).assert_ok()[list].as_array().unwrap().clone();
            Value::from(all.iter().map(|one| one[field].clone()).collect::<Vec<_>>())
        };
        told.push(names("/v1/sandboxes", "sandboxes", "id"));
        told.push(names("/v1/tokens", "tokens", "id"));
        told.push(names("/v1/sandboxes/web/runs", "runs", "run"));
        told.push(names("/v1/sandboxes/web/files/list?path=.", "entries", "path"));
        told
    }

    /// Requests that the guest has received so far.
    fn guest_saw(&self) -> Vec<Value> {
        self.daemon.get("/v1/sandboxes/web/ports/8000/seen").assert_ok().as_array().unwrap().clone()
    }

    /// Loads a page that makes every attack; checks that nothing was read or changed.
    #[track_caller]
    fn attack(&mut self, page: &str) {
        let (before, saw, sent) = (self.state(), self.guest_saw(), self.sent.load(Ordering::Relaxed));
        let tab = self.browser.tab();
        assert_eq!(self.browser.go(&tab, page), None, "{page}");
        let origin = self.browser.eval(&tab, "origin");
        let got = self.browser.eval(&tab, &format!("({ATTACKS})({:?})", self.base()));
        assert_eq!(got, json!([]), "{page} of {origin}");
        assert_eq!(self.state(), before, "{page}");
        // The control: the page sent its requests, and the browser let it.
        let tried = self.sent.load(Ordering::Relaxed) - sent;
        assert!(tried > 80, "{page}: only {tried} requests");
        let loads_of_page = |one: &&Value| !one[1].as_str().unwrap().starts_with("/page");
        let after = self.guest_saw();
        let new: Vec<&Value> = after[saw.len()..].iter().filter(loads_of_page).collect();
        assert!(new.is_empty(), "{page}: the guest heard {new:?}");
    }
}

impl Drop for BrowserFixture {
    fn drop(&mut self) {
        let _ = self.place.cofferdam(["rm", "--force", "-t", "0", "web"]).output();
    }
}

/// Cross-origin pages: another site, another port of this host, another name of this address.
// promise 23
#[test]
fn pages_of_other_origins_read_nothing_and_change_nothing() {
    let mut w = BrowserFixture::new();
    for host in ["evil.example", "localhost", "127.0.0.1"] {
        w.attack(&format!("http://{host}:{}/", w.site));
    }
    // The controls: the same request by a program, by a person who types the address, and by a page of the daemon's
    // own origin.
    let json = "content-type: application/json\r\n";
    assert_eq!(w.program("POST", "/v1/gc", "", "").status, 200);
    assert_eq!(w.program("POST", "/v1/sandboxes", json, r#"{"name":"made-by-a-program"}"#).status, 201);
    assert_eq!(w.program("GET", "/v1/sandboxes/web/files/content?path=secret", "", "").text(), "canary");
    let (tab, base) = (w.browser.tab(), w.base());
    assert_eq!(w.browser.go(&tab, &format!("{base}/v1/sandboxes")), None);
    let shown = w.browser.eval(&tab, "document.body.innerText");
    assert!(shown.as_str().unwrap().contains("made-by-a-program"), "{shown}");
    let make = "fetch('/v1/sandboxes', { method: 'POST', body: JSON.stringify({ name: 'own' }), \
                headers: { 'content-type': 'application/json', 'x-cofferdam': '1' } }).then(a => a.status, e => '' + e)";
    let refused = w.browser.eval(&tab, make);
    assert!(
        refused.as_str().is_some_and(|why| why.contains("TypeError")),
        "not even its documents run scripts: {refused}"
    );
    w.browser.bypass_rules(&tab);
    assert_eq!(w.browser.go(&tab, &format!("{base}/v1/sandboxes")), None);
    assert_eq!(w.browser.eval(&tab, make), 201);
    // A daemon that listens on its Unix socket only has no address that a page could reach.
    let place = Place::new(As::Root);
    let daemon = Daemon::start(&place);
    assert_eq!(daemon.get("/v1/sandboxes").status, 200);
    let heard = std::fs::read_to_string(format!("/proc/{}/net/tcp", daemon.child.id())).unwrap();
    let sockets = std::fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap().flatten();
    let sockets = sockets.filter_map(|fd| std::fs::read_link(fd.path()).ok()).map(|to| to.display().to_string());
    let inodes: Vec<String> = sockets.filter_map(|to| Some(to.strip_prefix("socket:[")?.replace(']', ""))).collect();
    let listens = |line: &&str| inodes.iter().any(|inode| line.split_whitespace().nth(9) == Some(inode));
    assert_eq!(heard.lines().find(listens), None);
}

/// DNS rebinding: a foreign name that resolves to this host makes the daemon part of the foreign site for the browser.
// promise 23
#[test]
fn a_name_that_was_turned_around_to_us_is_not_ours() {
    let mut w = BrowserFixture::new();
    let before = w.state();
    for port in [w.gateway, w.daemon.port.unwrap()] {
        let tab = w.browser.tab();
        assert_eq!(w.browser.go(&tab, &format!("http://rebound.example:{port}/v1/sandboxes")), None);
        let shown = w.browser.eval(&tab, "document.body.innerText");
        assert!(shown.as_str().unwrap().contains("is not this daemon"), "{shown}");
        w.browser.bypass_rules(&tab);
        w.browser.go(&tab, &format!("http://rebound.example:{port}/"));
        for (method, path) in [("GET", "/v1/sandboxes"), ("POST", "/v1/gc"), ("DELETE", "/v1/sandboxes/web")] {
            let ask = format!(
                "fetch('{path}', {{ method: '{method}', headers: {{ 'x-cofferdam': '1' }} }}).then(a => a.status)"
            );
            assert_eq!(w.browser.eval(&tab, &ask), 421, "{method} {path}");
        }
    }
    assert_eq!(w.state(), before);
}

/// Guest pages share the daemon's address and still get none of its rights.
// promise 23
#[test]
fn a_page_of_a_guest_is_not_a_page_of_the_daemon() {
    let mut w = BrowserFixture::new();
    let (base, site) = (w.base(), w.site);
    let guest = format!("{base}/v1/sandboxes/web/ports/8000");
    let tab = w.browser.tab();
    // Another server of this host sets a cookie that browsers send to every port.
    assert_eq!(w.browser.go(&tab, &format!("http://localhost:{site}/")), None);
    assert_eq!(w.browser.eval(&tab, "document.cookie"), "session=elsewhere");
    for page in ["/page", "/page.svg", "/page.xhtml"] {
        w.attack(&format!("{guest}{page}"));
    }
    assert_eq!(w.browser.go(&tab, &format!("{guest}/page")), None);
    let tell = "(async () => { const tried = [origin]; \
        for (const [name, work] of Object.entries({ cookie: () => document.cookie, local: () => localStorage.length, \
            session: () => sessionStorage.length, caches: () => caches.keys(), base: () => indexedDB.open('x'), \
            worker: () => navigator.serviceWorker.register('page'), shared: () => new SharedWorker('page') })) \
            try { await work(); tried.push(name); } catch { } \
        return tried; })()";
    assert_eq!(w.browser.eval(&tab, tell), json!(["null"]), "an origin of its own, and nothing that is kept for ours");
    assert_eq!(w.browser.eval(&tab, "document.body.innerText"), "guest", "the control: it is shown, and runs scripts");
    // The guest gets its own cookie back under the same name, and not the other server's.
    let saw = w.guest_saw();
    let cookies: Vec<&Value> = saw.iter().filter(|one| one[1] == "/page").map(|one| &one[2]).collect();
    assert_eq!(cookies, [&Value::Null, &json!("own=guest")]);
    // Redirects of the guest stay below its own path or leave the daemon.
    for to in
        ["/../../../../tokens", "../../../../../v1/tokens", "/%252e%252e/%252e%252e/tokens", "%2F..%2F..%2Ftokens"]
    {
        w.browser.go(&tab, &format!("{guest}/lead?{to}"));
        let path = w.browser.eval(&tab, "location.pathname");
        assert!(path.as_str().unwrap().starts_with("/v1/sandboxes/web/ports/8000/"), "{to} leads to {path}");
    }
    w.browser.go(&tab, &format!("{guest}/lead?{base}/v1/tokens"));
    let shown = w.browser.eval(&tab, "document.body.innerText");
    assert!(shown.as_str().unwrap().contains("leads to this daemon"), "{shown}");
    w.browser.go(&tab, &format!("{guest}/lead?http://127.0.0.1:{site}/"));
    assert!(w.browser.eval(&tab, "document.body.innerText").as_str().unwrap().contains("leads to this daemon"));
    w.browser.go(&tab, &format!("{guest}/lead?http://other.example:{site}/"));
    assert_eq!(w.browser.eval(&tab, "document.title"), "elsewhere", "the control");
    // A meta refresh of a guest page is a cross-site navigation.
    w.browser.go(&tab, &format!("{guest}/refresh"));
    let begun = Instant::now();
    while w.browser.eval(&tab, "location.pathname") != "/v1/sandboxes" {
        assert!(begun.elapsed() < Duration::from_secs(180), "it is not sent on");
        std::thread::sleep(Duration::from_millis(50));
    }
    let shown = w.browser.eval(&tab, "document.body ? document.body.innerText : ''");
    assert!(!shown.as_str().unwrap().contains("\"sandboxes\""), "{shown}");
    let seen = w.seen.lock().unwrap();
    assert!(!seen.iter().any(|head| head.contains("cof_")), "no credential went elsewhere: {seen:?}");
}

/// Responses cannot be framed, and bytes of a guest are never rendered as a page.
// promise 23
#[test]
fn no_answer_is_framed_or_taken_for_a_page() {
    let mut w = BrowserFixture::new();
    let (base, site) = (w.base(), w.site);
    let web = format!("{base}/v1/sandboxes/web");
    let all = [
        "/v1/openapi.json",
        "/v1/health/live",
        "/v1/sandboxes",
        "/metrics",
        "/v1/nothing",
        "/v1/sandboxes/web/ports/8000/page",
        "/v1/sandboxes/web/files/content?path=page.html",
    ];
    for path in all {
        let tab = w.browser.tab();
        w.browser.go(&tab, &format!("http://evil.example:{site}/"));
        let open = format!(
            "new Promise(done => {{ for (const [tag, name] of [['iframe', 'src'], ['object', 'data'], ['embed', 'src']]) {{ \
             const it = document.createElement(tag); it[name] = {base:?} + {path:?}; document.body.append(it); }} \
             setTimeout(done, 700); }})"
        );
        w.browser.eval(&tab, &open);
        let shown: Vec<String> = w.browser.frames().into_iter().filter(|url| url.starts_with(&base)).collect();
        assert!(shown.is_empty(), "{path} is framed: {shown:?}");
        // The response headers forbid it, also where no origin rule applies.
        let answer = w.program("GET", path, "", "");
        let rules = answer.header("content-security-policy").unwrap_or_default();
        assert!(rules.contains("frame-ancestors 'none'"), "{path}: {answer:?}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"), "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), None, "{path}");
    }
    // The control: a page that permits framing is framed.
    let tab = w.browser.tab();
    w.browser.go(&tab, &format!("http://evil.example:{site}/"));
    let open = format!(
        "new Promise(done => {{ const it = document.createElement('iframe'); it.src = 'http://other.example:{site}/'; \
         it.onload = done; document.body.append(it); }}).then(() => 1)"
    );
    w.browser.eval(&tab, &open);
    assert!(w.browser.frames().contains(&format!("http://other.example:{site}/")));
    // An HTML file is downloaded, not rendered.
    let tab = w.browser.tab();
    for at in ["/files/content?path=page.html", "/files/archive?path=."] {
        let why = w.browser.go(&tab, &format!("{web}{at}"));
        assert_eq!(why.as_deref(), Some("net::ERR_ABORTED"), "{at}");
        assert_eq!(w.browser.eval(&tab, "location.href"), "about:blank", "{at}");
        assert_eq!(
            w.program("GET", &format!("/v1/sandboxes/web{at}"), "", "").header("content-disposition"),
            Some("attachment")
        );
    }
}
