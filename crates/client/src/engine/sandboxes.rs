//! create, ls, ps, inspect, start, stop, suspend, resume, rm, gc.

use super::Engine;
use super::remote::{Remote, milliseconds};
use super::sandbox_create::sandbox_create;
use crate::transport::Request;
use api::{
    Capability, GcCollected, GcReport, LiveRun, LiveRunList, PublishChange, RunStatus, SandboxChange, SandboxChanged,
    SandboxCreated, SandboxDetails, SandboxList, SandboxRemoved, SandboxResumed, SandboxStateChanged, SandboxSummary,
    SandboxSuspend, SandboxSuspended, Tier, TopReport,
};
use node::change;
use node::config::Keep;
use node::create::{self, CopyTotals};
use node::gc;
use node::keeper::begin;
use node::keeper::suspend;
use node::list;
use node::remove;
use node::sandbox::Which;
use node::stop;
use node::top::UsageSampler;
use serde::Deserialize;
use std::time::Duration;
use terms::Fault;

impl Engine {
    /// Creates a sandbox. A local driver that copies reports its progress.
    pub fn create(
        &self,
        ask: &create::CreateSandbox,
        progress: &mut dyn FnMut(&CopyTotals),
    ) -> Result<SandboxCreated, Fault> {
        match self {
            Engine::Local(node, caller) => create::create_with_progress(node, caller, ask, progress),
            Engine::Remote(remote) => remote.create(ask),
        }
    }

    pub fn list(&self, removed: bool) -> Result<Vec<SandboxSummary>, Fault> {
        let remote = match self {
            Engine::Local(node, caller) => return list::list(node, caller, removed),
            Engine::Remote(remote) => remote,
        };
        remote.sandboxes(removed, false)
    }

    /// Same as `list`, with the last command, the changes and the size of each, as far as they can be told in a few seconds.
    pub fn list_described(&self, removed: bool) -> Result<Vec<SandboxSummary>, Fault> {
        match self {
            Engine::Local(node, caller) => {
                let mut rows = list::list(node, caller, removed)?;
                list::describe(node, caller, &mut rows)?;
                Ok(rows)
            }
            // An older daemon has no details to tell.
            Engine::Remote(remote) if remote.require(Capability::SandboxDetails, "details").is_err() => {
                self.list(removed)
            }
            Engine::Remote(remote) => remote.sandboxes(removed, true),
        }
    }

    /// Lists runs of one sandbox or of all, the newest first; with `running` only those that go on.
    pub fn runs(&self, word: Option<&str>, running: bool) -> Result<Vec<RunStatus>, Fault> {
        #[derive(Deserialize)]
        struct Page {
            runs: Vec<RunStatus>,
            #[serde(default)]
            next: Option<String>,
        }
        let remote = match self {
            Engine::Local(node, caller) => return begin::list(node, caller, word, running),
            Engine::Remote(remote) => remote,
        };
        let request = || {
            let request = match word {
                Some(word) => Request::get(&["v1", "sandboxes", word, "runs"]),
                None => Request::get(&["v1", "runs"]),
            };
            request.query("running", if running { "true" } else { "false" })
        };
        remote.list(request, |page: Page| (page.runs, page.next))
    }

    pub fn running(&self) -> Result<Vec<LiveRun>, Fault> {
        match self {
            Engine::Local(node, caller) => list::runs(node, caller),
            Engine::Remote(remote) => remote.get(&["v1", "running"]).map(|list: LiveRunList| list.runs),
        }
    }

    pub fn inspect(&self, word: Option<&str>) -> Result<SandboxDetails, Fault> {
        match self {
            Engine::Local(node, caller) => list::inspect(node, caller, word),
            Engine::Remote(remote) => remote.inspect(word),
        }
    }

    pub fn start(&self, which: &Which, live: bool) -> Result<SandboxStateChanged, Fault> {
        match (self, live) {
            (Engine::Local(node, caller), true) => stop::start_live(node, caller, which),
            (Engine::Local(node, caller), false) => stop::start(node, caller, which),
            (Engine::Remote(remote), live) => remote.start(which, live),
        }
    }

    pub fn stop(&self, which: &Which, patience: Duration) -> Result<SandboxStateChanged, Fault> {
        match self {
            Engine::Local(node, caller) => stop::stop(node, caller, which, patience),
            Engine::Remote(remote) => remote.stop(which, patience),
        }
    }

    pub fn suspend(&self, which: &Which, tier: Tier, patience: Duration) -> Result<SandboxSuspended, Fault> {
        match self {
            Engine::Local(node, caller) => suspend::suspend(node, caller, which, tier, patience),
            Engine::Remote(remote) => remote.post_to(
                which,
                &["suspend"],
                &SandboxSuspend { tier, grace_ms: Some(patience.as_millis() as u64) },
            ),
        }
    }

    pub fn resume(&self, which: &Which) -> Result<SandboxResumed, Fault> {
        match self {
            Engine::Local(node, caller) => suspend::resume(node, caller, which),
            Engine::Remote(remote) => remote.post_empty(which, "resume"),
        }
    }

    pub fn remove(&self, which: &Which, force: Option<Duration>) -> Result<SandboxRemoved, Fault> {
        match self {
            Engine::Local(node, caller) => remove::remove(node, caller, which, force),
            Engine::Remote(remote) => remote.remove(which, force),
        }
    }

    pub fn change(&self, which: &Which, ask: &SandboxChange) -> Result<SandboxChanged, Fault> {
        match self {
            Engine::Local(node, caller) => change::change(node, caller, which, ask, change::Widening::Allowed),
            Engine::Remote(remote) => {
                let word = remote.word(which.word.as_deref())?;
                let request = Request::patch(&["v1", "sandboxes", &word]).if_version(which.version);
                remote.client.document(request.document(ask)?)
            }
        }
    }

    /// Returns the resources that sandboxes use, now and since the look before.
    pub fn top(&self, top: &mut UsageSampler) -> Result<TopReport, Fault> {
        match self {
            Engine::Local(node, caller) => top.look(node, caller),
            Engine::Remote(remote) => remote.get(&["v1", "top"]).map(|look| top.compare(look)),
        }
    }

    /// Collects garbage; with `dry`, only lists it.
    pub fn collect(&self, dry: bool) -> Result<GcCollected, Fault> {
        let swept: GcReport = match (self, dry) {
            (Engine::Local(node, caller), true) => return gc::plan(node, caller, &Keep::of(caller)?),
            (Engine::Local(node, caller), false) => return gc::collect(node, caller, &Keep::of(caller)?),
            (Engine::Remote(remote), true) => remote.get(&["v1", "gc"])?,
            (Engine::Remote(remote), false) => remote.client.document(Request::post(&["v1", "gc"]))?,
        };
        Ok(swept.collected)
    }
}

impl Remote {
    fn sandboxes(&self, removed: bool, details: bool) -> Result<Vec<SandboxSummary>, Fault> {
        let request = || {
            let request = Request::get(&["v1", "sandboxes"]).query("removed", if removed { "true" } else { "false" });
            request.query_if("details", details.then_some("true"))
        };
        let mut rows = self.list(request, |page: SandboxList| (page.sandboxes, page.next))?;
        rows.sort_by(|a, b| b.used_ms.cmp(&a.used_ms).then_with(|| a.id.cmp(&b.id)));
        Ok(rows)
    }

    pub fn create(&self, ask: &create::CreateSandbox) -> Result<SandboxCreated, Fault> {
        if ask.report_reads {
            self.require(Capability::ReportReads, "--report-reads")?;
        }
        if ask.ask_timeout_ms.is_some() {
            self.require(Capability::AskTimeout, "--ask-timeout")?;
        }
        let (create, notes) = sandbox_create(ask, self)?;
        let mut request = Request::post(&["v1", "sandboxes"]).document(&create)?;
        if let Some(key) = &ask.key {
            request = request.header("idempotency-key", key)?;
        }
        let mut made: SandboxCreated = self.client.document(request)?;
        made.notes.splice(0..0, notes);
        Ok(made)
    }

    /// Publishes ports of a sandbox on the daemon's host.
    pub fn publish(&self, which: &Which, ports: &[String]) -> Result<(), Fault> {
        if ports.is_empty() {
            return Ok(());
        }
        let word = self.word(which.word.as_deref())?;
        let publish = Some(PublishChange { add: ports.to_vec(), ..PublishChange::default() });
        let request = Request::patch(&["v1", "sandboxes", &word]);
        let request = request.document(&SandboxChange { publish, ..SandboxChange::default() })?;
        self.client.document(request).map(|_: SandboxChanged| ())
    }

    pub fn inspect(&self, word: Option<&str>) -> Result<SandboxDetails, Fault> {
        self.get(&["v1", "sandboxes", &self.word(word)?])
    }

    fn post_empty<T: serde::de::DeserializeOwned>(&self, which: &Which, verb: &str) -> Result<T, Fault> {
        let word = self.word(which.word.as_deref())?;
        self.client.document(Request::post(&["v1", "sandboxes", &word, verb]).if_version(which.version))
    }

    pub fn start(&self, which: &Which, live: bool) -> Result<SandboxStateChanged, Fault> {
        let word = self.word(which.word.as_deref())?;
        let request = Request::post(&["v1", "sandboxes", &word, "start"]).if_version(which.version);
        self.client.document(request.query_if("live", live.then_some("true")))
    }

    pub fn stop(&self, which: &Which, patience: Duration) -> Result<SandboxStateChanged, Fault> {
        let word = self.word(which.word.as_deref())?;
        let request = Request::post(&["v1", "sandboxes", &word, "stop"]).if_version(which.version);
        self.client.document(request.query("timeout", milliseconds(patience)))
    }

    pub fn remove(&self, which: &Which, force: Option<Duration>) -> Result<SandboxRemoved, Fault> {
        let word = self.word(which.word.as_deref())?;
        let mut request = Request::delete(&["v1", "sandboxes", &word]).if_version(which.version);
        if let Some(patience) = force {
            request = request.query("force", "true").query("timeout", milliseconds(patience));
        }
        self.client.document(request)
    }
}
