//! A client of the soak: sends random requests, records responses, and reports contradictions.

use super::{Body, Dice, KeyedRequest, PATIENCE, Soak};
use crate::support::replay::PATHS;
use crate::support::sse;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Largest number of sandboxes that is kept.
const MOST: usize = 8;
/// Lines of a run whose output is followed.
const LINES: usize = 60;

pub struct Client<'a> {
    soak: &'a Soak,
    dice: Dice,
    number: usize,
    count: usize,
    /// Possible contents of the client's own file: the last acknowledged write, and every write that was cut off
    /// since.
    values: BTreeSet<String>,
}

fn id(said: &Value) -> String {
    said["id"].as_str().unwrap_or_default().to_owned()
}

impl<'a> Client<'a> {
    pub fn new(soak: &'a Soak, dice: Dice, number: usize) -> Client<'a> {
        Client { soak, dice, number, count: 0, values: BTreeSet::new() }
    }

    /// The response document if the verb succeeded.
    fn ask(&mut self, verb: &'static str, method: &str, path: &str, body: Body) -> Option<Value> {
        self.ask_with(verb, method, path, None, &body)
    }

    fn post(&mut self, verb: &'static str, path: &str, body: Value) -> Option<Value> {
        self.ask(verb, "POST", path, Body::Json(body))
    }

    /// Request under an idempotency key; now and then repeated at once.
    fn post_keyed(&mut self, verb: &'static str, path: &str, body: Value) -> Option<Value> {
        self.count += 1;
        let key = format!("c{}-{}", self.number, self.count);
        let mut keyed = KeyedRequest { path: path.to_owned(), key: key.clone(), body: body.clone(), answer: None };
        self.soak.record.lock().unwrap().keyed.insert(self.number, keyed.clone());
        let said = self.ask_with(verb, "POST", path, Some(&key), &Body::Json(body.clone()));
        keyed.answer.clone_from(&said);
        self.soak.record.lock().unwrap().keyed.insert(self.number, keyed.clone());
        if said.is_some() && self.dice.roll(3) > 0 {
            return said;
        }
        let again = self.ask_with(verb, "POST", path, Some(&key), &Body::Json(body));
        if let (Some(first), Some(again)) = (&said, &again) {
            let same = ["id", "run"].iter().all(|field| first[*field] == again[*field]);
            let what = format!("{path} under {key}: first {first}, then {again}");
            (!same).then(|| self.soak.report_violation(what));
        }
        keyed.answer = again.or(said);
        self.soak.record.lock().unwrap().keyed.insert(self.number, keyed.clone());
        keyed.answer
    }

    fn ask_with(
        &mut self,
        verb: &'static str,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: &Body,
    ) -> Option<Value> {
        let begun = Instant::now();
        let answer = loop {
            let _guard = self.soak.quiesce.read().unwrap();
            match self.soak.send(method, path, key, body) {
                Some(answer) => break answer,
                None if begun.elapsed() > PATIENCE => {
                    self.soak.report_violation(format!("{method} {path}: no daemon comes back"));
                    return None;
                }
                None => drop(_guard),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        if begun.elapsed() > PATIENCE - Duration::from_secs(5) {
            self.soak.report_violation(format!("{method} {path}: no answer in {:?}", begun.elapsed()));
        }
        let mut record = self.soak.record.lock().unwrap();
        let Some(answer) = answer else {
            *record.cut.entry(verb).or_default() += 1;
            return None;
        };
        let said: Value = match answer.header("content-type") {
            Some("application/json") => answer.json(),
            _ => Value::String(answer.text()),
        };
        if (200..300).contains(&answer.status) {
            *record.done.entry(verb).or_default() += 1;
            return Some(said);
        }
        *record.refused.entry(verb).or_default() += 1;
        let kind = said["error_kind"].as_str().unwrap_or("no fault");
        if !["conflict", "not_found", "unavailable"].contains(&kind) || !said["hint"].is_string() {
            record.violations.push(format!("{method} {path}: {} {said}", answer.status));
        }
        None
    }

    pub fn one(&mut self) -> Option<()> {
        let (sandboxes, snapshots, batches, runs) = {
            let record = self.soak.record.lock().unwrap();
            (record.sandboxes.clone(), record.snapshots.clone(), record.batches.clone(), record.runs.clone())
        };
        let sandbox = self.dice.pick(&sandboxes);
        let at = |verb: &str| sandbox.as_ref().map(|id| format!("/v1/sandboxes/{id}{verb}"));
        match self.dice.roll(44) {
            0..=3 => self.create()?,
            4..=11 => self.write(&sandbox?)?,
            12 | 13 => self.approve(&sandbox?)?,
            14..=16 => {
                let sandbox = sandbox?;
                self.write(&sandbox)?;
                self.approve(&sandbox)?;
            }
            17 => self.reject(&sandbox?)?,
            18 | 19 => {
                let (sandbox, batch) = self.dice.pick(&batches)?;
                let path = format!("/v1/sandboxes/{sandbox}/workspace/undo");
                let said = self.post("undo", &path, json!({ "batch": batch }))?;
                self.acknowledged(&sandbox, &said);
            }
            20 | 21 => {
                let said = self.post_keyed("snapshot", &at("/snapshots")?, json!({}))?;
                self.soak.record.lock().unwrap().snapshots.push(id(&said));
            }
            22 => {
                let said = self.post_keyed("fork", &at("/fork")?, json!({}))?;
                let made = said["sandboxes"].as_array().into_iter().flatten().map(id);
                self.soak.record.lock().unwrap().sandboxes.extend(made);
            }
            23 => {
                let ask = json!({ "snapshot": self.dice.pick(&snapshots)?, "discard": true });
                self.post("restore", &at("/restore")?, ask)?;
            }
            24 | 25 => {
                let tier = if self.dice.roll(3) == 0 { "hibernated" } else { "frozen" };
                self.post("suspend", &at("/suspend")?, json!({ "tier": tier, "grace_ms": 100 }))?;
            }
            26 => drop(self.ask("resume", "POST", &at("/resume")?, Body::None)?),
            27 => {
                let limits = json!({ "max_output_bytes": 100_000 + self.dice.roll(100_000) });
                self.ask("patch", "PATCH", &at("")?, Body::Json(json!({ "limits": limits })))?;
            }
            28 => drop(self.ask("stop", "POST", &at("/stop?timeout=100ms")?, Body::None)?),
            29 => drop(self.ask("start", "POST", &at("/start")?, Body::None)?),
            30 => drop(self.ask("gc", "POST", "/v1/gc", Body::None)?),
            31 if sandboxes.len() > 3 => drop(self.ask("rm", "DELETE", &at("?force=true&timeout=0s")?, Body::None)?),
            32 | 33 => self.background(&sandbox?)?,
            34 => {
                let run = self.dice.pick(&runs)?;
                self.ask("kill", "POST", &format!("/v1/runs/{run}/kill"), Body::None)?;
            }
            35 => {
                let run = self.dice.pick(&runs)?;
                self.post("signal", &format!("/v1/runs/{run}/signal"), json!({ "signal": 15 }))?;
            }
            36 | 37 => self.speak(&sandbox?)?,
            38 => self.follow()?,
            39 => drop(self.ask("look", "GET", &at("")?, Body::None)?),
            _ => self.own()?,
        }
        Some(())
    }

    fn create(&mut self) -> Option<()> {
        let made = self.soak.record.lock().unwrap().sandboxes.clone();
        if made.len() >= MOST {
            let old = made[self.dice.roll(made.len() - 2)].clone();
            let path = format!("/v1/sandboxes/{old}?force=true&timeout=0s");
            self.ask("rm", "DELETE", &path, Body::None)?;
            self.soak.record.lock().unwrap().sandboxes.retain(|id| *id != old);
        }
        let ask = json!({ "dir": self.soak.place.project, "policies": ["workspace-write"] });
        let said = self.post_keyed("create", "/v1/sandboxes", ask)?;
        self.soak.record.lock().unwrap().sandboxes.push(id(&said));
        Some(())
    }

    /// Runs a shell text to its end; returns its output if it got there.
    fn sh(&mut self, verb: &'static str, sandbox: &str, text: &str) -> Option<String> {
        let path = format!("/v1/sandboxes/{sandbox}/runs?wait=5s");
        let said = self.post_keyed(verb, &path, json!({ "shell": text }))?;
        self.soak.record.lock().unwrap().runs.push(said["run"].as_str().unwrap().to_owned());
        (said["outcome"]["verdict"] == "ok").then(|| said["outcome"]["stdout"].as_str().unwrap().to_owned())
    }

    /// Writes a unique text by a command in the sandbox, or removes a file.
    fn write(&mut self, sandbox: &str) -> Option<()> {
        let path = PATHS[self.dice.roll(PATHS.len())];
        self.count += 1;
        let (number, count) = (self.number, self.count);
        if self.dice.roll(3) == 0 {
            let at = format!("/v1/sandboxes/{sandbox}/files/content?path={}&parents=true", path.replace('/', "%2F"));
            return self.ask("put", "PUT", &at, Body::Bytes(format!("{number} {count}\n").into_bytes())).map(drop);
        }
        let text = match self.dice.roll(4) {
            0 => format!("rm -f {path}; echo {count}"),
            _ => format!("mkdir -p d n; echo {number} {count} > {path}; echo {count}"),
        };
        let said = self.sh("exec", sandbox, &text)?;
        if said != format!("{count}\n") {
            self.soak.report_violation(format!("{text:?} in {sandbox} said {said:?}"));
        }
        Some(())
    }

    fn approve(&mut self, sandbox: &str) -> Option<()> {
        let shown = self.ask("diff", "GET", &format!("/v1/sandboxes/{sandbox}/workspace/diff"), Body::None)?;
        let (digest, paths) = self.soak.record.lock().unwrap().reviews.add(&shown);
        let one = self.dice.pick(&paths).filter(|_| self.dice.roll(2) == 0);
        let ask = match one {
            Some(path) => json!({ "digest": digest, "paths": [path] }),
            None => json!({ "digest": digest, "all": true }),
        };
        let said = self.post("approve", &format!("/v1/sandboxes/{sandbox}/workspace/approve"), ask)?;
        self.acknowledged(sandbox, &said);
        Some(())
    }

    fn reject(&mut self, sandbox: &str) -> Option<()> {
        let shown = self.ask("diff", "GET", &format!("/v1/sandboxes/{sandbox}/workspace/diff"), Body::None)?;
        let ask = json!({ "digest": shown["digest"], "all": true });
        self.post("reject", &format!("/v1/sandboxes/{sandbox}/workspace/reject"), ask).map(drop)
    }

    fn acknowledged(&self, sandbox: &str, said: &Value) {
        let mut record = self.soak.record.lock().unwrap();
        let Some(batch) = said["batch"].as_str().map(str::to_owned) else { return };
        record.landed.insert(batch.clone());
        record.batches.push((sandbox.to_owned(), batch));
    }

    fn background(&mut self, sandbox: &str) -> Option<()> {
        let ask = json!({ "shell": format!("sleep {} & wait", self.soak.mark) });
        let said = self.post_keyed("background", &format!("/v1/sandboxes/{sandbox}/runs"), ask)?;
        self.soak.record.lock().unwrap().runs.push(said["run"].as_str().unwrap().to_owned());
        Some(())
    }

    /// Input of `cat` comes back as its output, if the run gets to its end.
    fn speak(&mut self, sandbox: &str) -> Option<()> {
        let ask = json!({ "command": ["cat"], "input": true, "limits": { "max_wall_ms": 5000 } });
        let said = self.post_keyed("background", &format!("/v1/sandboxes/{sandbox}/runs"), ask)?;
        let run = said["run"].as_str().unwrap().to_owned();
        let input = |eof: bool| format!("/v1/runs/{run}/input?eof={eof}");
        self.ask("input", "POST", &input(false), Body::Bytes(b"one\n".to_vec()))?;
        self.ask("input", "POST", &input(true), Body::Bytes(b"two\n".to_vec()))?;
        let done = self.ask("wait", "GET", &format!("/v1/runs/{run}?wait=10s"), Body::None)?;
        let outcome = &done["outcome"];
        if outcome["verdict"] == "ok" && outcome["stdout"] != "one\ntwo\n" {
            self.soak.report_violation(format!("{run} was told one, two and said {outcome}"));
        }
        Some(())
    }

    /// Follows a run from its beginning and resumes after each cut. Uses a sandbox of its own: another client could
    /// suspend a shared one and never resume it.
    fn follow(&mut self) -> Option<()> {
        let sandbox = self.own_sandbox()?;
        let text = format!("i=1; while [ $i -le {LINES} ]; do echo $i; i=$((i+1)); sleep 0.02; done");
        let ask = json!({ "shell": text, "limits": { "max_wall_ms": 20_000 } });
        let said = self.post_keyed("background", &format!("/v1/sandboxes/{sandbox}/runs"), ask)?;
        let run = said["run"].as_str().unwrap().to_owned();
        let path = format!("/v1/runs/{run}/output");
        let ask = |more: &str| {
            let mut stream = UnixStream::connect(&self.soak.socket).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let _ = stream.write_all(&self.soak.request("GET", &path, more, &Body::None));
            Some(stream)
        };
        let begun = Instant::now();
        let Some(all) = sse::read_along(&ask, PATIENCE) else {
            (begun.elapsed() > PATIENCE).then(|| self.soak.report_violation(format!("{run} has no end")));
            return None;
        };
        let (output, verdict) = (sse::said(&all, "stdout"), all.last()?.data["verdict"].clone());
        let whole: String = (1..=LINES).map(|n| format!("{n}\n")).collect();
        if !whole.starts_with(&output) || (verdict == "ok" && output != whole) {
            self.soak.report_violation(format!("{run} ended as {verdict} and said {output:?}"));
        }
        *self.soak.record.lock().unwrap().done.entry("follow").or_default() += 1;
        Some(())
    }

    /// The name of a sandbox that only this client uses.
    fn own_sandbox(&mut self) -> Option<String> {
        let name = format!("own-{}", self.number);
        if self.values.is_empty() {
            let ask = json!({ "name": name, "policies": ["workspace-write"] });
            if self.post_keyed("create", "/v1/sandboxes", ask).is_none() {
                // A request that was cut off may have created it.
                self.ask("look", "GET", &format!("/v1/sandboxes/{name}"), Body::None)?;
            }
            self.values.insert("none\n".to_owned());
        }
        Some(name)
    }

    /// Acknowledged writes to the client's own sandbox are read again, whichever process was killed since.
    fn own(&mut self) -> Option<()> {
        let name = self.own_sandbox()?;
        self.count += 1;
        let value = self.count.to_string();
        let content = format!("/v1/sandboxes/{name}/files/content?path=value");
        match self.dice.roll(3) {
            0 => {
                self.values.insert(value.clone());
                self.ask("put", "PUT", &content, Body::Bytes(value.clone().into_bytes()))?;
                self.values = BTreeSet::from([value]);
            }
            1 => {
                self.values.insert(value.clone());
                self.sh("exec", &name, &format!("printf {value} > new && mv new value"))?;
                self.values = BTreeSet::from([value]);
            }
            _ => {
                let by = ["exec", "get"][self.dice.roll(2)];
                let said = match by {
                    // A reader that is killed fails, and says nothing about the file.
                    "exec" => self.sh(by, &name, "if [ -e value ]; then cat value; else echo none; fi")?,
                    _ => self.ask(by, "GET", &content, Body::None)?.as_str()?.to_owned(),
                };
                if !self.values.contains(&said) {
                    let asked = self.count;
                    let what = format!("{name} holds {said:?} by {by}, at {asked}, and not one of {:?}", self.values);
                    self.soak.report_violation(what);
                }
            }
        }
        Some(())
    }
}
