//! Debian's Chromium with an empty profile, driven over its DevTools pipe: JSON messages, each ended by a zero byte.
//! Scripts of a test run as the page, with its origin and under its rules.

use crate::support::Place;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const CHROMIUM: &str = "/usr/bin/chromium";
/// Upper bound for any step that is not stuck, on a busy host.
const PATIENCE: Duration = Duration::from_secs(180);

/// Runs as root, without a network and without Google services. Names below `.example` resolve to this host.
const FLAGS: [&str; 13] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--remote-debugging-pipe",
    "--host-resolver-rules=MAP *.example 127.0.0.1",
    "about:blank",
];

pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    last_id: u64,
}

/// An open page.
pub struct Tab(String);

impl Browser {
    pub fn start(place: &Place) -> Browser {
        let profile = place.root.join("chromium");
        std::fs::create_dir(&profile).unwrap();
        // Chromium's DevTools pipe uses descriptors 3 and 4.
        let script = r#"exec "$0" "$@" 3<&0 4>&1 0</dev/null 1>&2"#;
        let mut child = Command::new("sh")
            .args(["-c", script, CHROMIUM, &format!("--user-data-dir={}", profile.display())])
            .args(FLAGS)
            .env("HOME", &profile)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (to, mut out) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while out.read_until(0, &mut message).is_ok_and(|n| n > 0) {
                message.pop();
                let _ = sender.send(serde_json::from_slice(&message).unwrap_or_default());
                message.clear();
            }
        });
        Browser { child, to, from, last_id: 0 }
    }

    /// Sends a DevTools command to the browser or to a tab and returns its result; events in between are skipped.
    fn send(&mut self, tab: Option<&Tab>, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": params });
        if let Some(Tab(session)) = tab {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut received =
                self.from.recv_timeout(left).unwrap_or_else(|e| panic!("{method}: {e}; is {CHROMIUM} installed?"));
            if received["id"] == self.last_id {
                assert!(received.get("error").is_none(), "{method}: {received}");
                return received["result"].take();
            }
        }
    }

    /// Opens an empty tab.
    pub fn tab(&mut self) -> Tab {
        let made = self.send(None, "Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": made["targetId"], "flatten": true });
        let tab = Tab(self.send(None, "Target.attachToTarget", attach)["sessionId"].as_str().unwrap().to_owned());
        self.send(Some(&tab), "Page.enable", json!({}));
        tab
    }

    /// Navigates as a person who types the address, and waits for the load event. Returns the reason if the navigation
    /// failed.
    pub fn go(&mut self, tab: &Tab, url: &str) -> Option<String> {
        let gone = self.send(Some(tab), "Page.navigate", json!({ "url": url }));
        if let Some(why) = gone["errorText"].as_str() {
            return Some(why.to_owned());
        }
        let ready = "document.readyState === 'complete' || new Promise(r => addEventListener('load', () => r(true)))";
        self.eval(tab, ready);
        None
    }

    /// Evaluates an expression in the page and awaits promises. Counts as a user gesture, so it may open windows.
    pub fn eval(&mut self, tab: &Tab, expression: &str) -> Value {
        let ask = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true });
        let mut received = self.send(Some(tab), "Runtime.evaluate", ask);
        assert!(received.get("exceptionDetails").is_none(), "{expression}: {received:#}");
        received["result"]["value"].take()
    }

    /// Bypasses the page's content security policy: for controls.
    pub fn bypass_rules(&mut self, tab: &Tab) {
        self.send(Some(tab), "Page.setBypassCSP", json!({ "enabled": true }));
    }

    /// URLs of cross-site documents in frames, as the documents see them: a refused one is an error page.
    pub fn frames(&mut self) -> Vec<String> {
        let all =
            self.send(None, "Target.getTargets", json!({}))["targetInfos"].as_array().cloned().unwrap_or_default();
        let framed = all.iter().filter(|target| target["type"] == "iframe");
        framed.map(|target| self.document_of(&target["targetId"])).collect()
    }

    fn document_of(&mut self, target: &Value) -> String {
        let attach = json!({ "targetId": target, "flatten": true });
        let tab = Tab(self.send(None, "Target.attachToTarget", attach)["sessionId"].as_str().unwrap().to_owned());
        self.eval(&tab, "location.href").as_str().unwrap_or_default().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromium's other processes exit with the first.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
