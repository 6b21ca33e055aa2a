//! Debian's Chromium with an empty profile, driven over its pipe: messages are JSON, each ended by a zero byte. What a test has a page do
//! is done as the page, with its origin and under its rules.

use crate::support::Place;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const CHROMIUM: &str = "/usr/bin/chromium";
/// Longer than anything takes that is not stuck, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(90);

/// As root, without a network of its own, and with nothing of its maker's services. All names below `.example` are this machine.
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
    asked: u64,
}

/// A page that is open.
pub struct Tab(String);

impl Browser {
    pub fn start(place: &Place) -> Browser {
        let profile = place.root.join("chromium");
        std::fs::create_dir(&profile).unwrap();
        // It speaks on descriptors 3 and 4.
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
        Browser { child, to, from, asked: 0 }
    }

    /// A word with the browser, or with a tab. What happens meanwhile is of no interest.
    fn ask(&mut self, tab: Option<&Tab>, method: &str, params: Value) -> Value {
        self.asked += 1;
        let mut message = json!({ "id": self.asked, "method": method, "params": params });
        if let Some(Tab(session)) = tab {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut heard =
                self.from.recv_timeout(left).unwrap_or_else(|e| panic!("{method}: {e}; is {CHROMIUM} installed?"));
            if heard["id"] == self.asked {
                assert!(heard.get("error").is_none(), "{method}: {heard}");
                return heard["result"].take();
            }
        }
    }

    /// A tab with nothing in it.
    pub fn tab(&mut self) -> Tab {
        let made = self.ask(None, "Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": made["targetId"], "flatten": true });
        let tab = Tab(self.ask(None, "Target.attachToTarget", attach)["sessionId"].as_str().unwrap().to_owned());
        self.ask(Some(&tab), "Page.enable", json!({}));
        tab
    }

    /// Goes to an address as a person does who types it, and waits until all of it is there. Why it was not gone to, if it was not.
    pub fn go(&mut self, tab: &Tab, url: &str) -> Option<String> {
        let gone = self.ask(Some(tab), "Page.navigate", json!({ "url": url }));
        if let Some(why) = gone["errorText"].as_str() {
            return Some(why.to_owned());
        }
        let ready = "document.readyState === 'complete' || new Promise(r => addEventListener('load', () => r(true)))";
        self.eval(tab, ready);
        None
    }

    /// What an expression of the page comes to; promises are waited for. It may open windows, as after a click.
    pub fn eval(&mut self, tab: &Tab, expression: &str) -> Value {
        let ask = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true });
        let mut heard = self.ask(Some(tab), "Runtime.evaluate", ask);
        assert!(heard.get("exceptionDetails").is_none(), "{expression}: {heard:#}");
        heard["result"]["value"].take()
    }

    /// Lets a page speak to its own origin though its rules say no: for controls.
    pub fn bypass_rules(&mut self, tab: &Tab) {
        self.ask(Some(tab), "Page.setBypassCSP", json!({ "enabled": true }));
    }

    /// Addresses of documents that pages of other sites have in frames, as these see themselves: one that could not be shown is an error.
    pub fn frames(&mut self) -> Vec<String> {
        let all = self.ask(None, "Target.getTargets", json!({}))["targetInfos"].as_array().cloned().unwrap_or_default();
        let framed = all.iter().filter(|target| target["type"] == "iframe");
        framed.map(|target| self.document_of(&target["targetId"])).collect()
    }

    fn document_of(&mut self, target: &Value) -> String {
        let attach = json!({ "targetId": target, "flatten": true });
        let tab = Tab(self.ask(None, "Target.attachToTarget", attach)["sessionId"].as_str().unwrap().to_owned());
        self.eval(&tab, "location.href").as_str().unwrap_or_default().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its other processes go when the first does.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
