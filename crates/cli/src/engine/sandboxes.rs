//! create, ls, ps, inspect, start, stop, suspend, resume, rm, gc.

use super::make;
use super::runs::if_unwatched;
use super::there::time;
use super::{Engine, There};
use client::Ask;
use node::config::Keep;
use node::keeper::suspend::{self, Resumed, Suspended};
use node::lifecycle::change::{self, Changed};
use node::lifecycle::create::{self, Copied, Created};
use node::lifecycle::gc::{self, Collected};
use node::lifecycle::list::{self, Live, Row, Whole};
use node::lifecycle::remove::{self, Removed};
use node::lifecycle::stop::{self, Moved, Which};
use node::sandbox::Tier;
use server::wire::{Going, Sandboxes, SuspendAsk, Swept};
use std::time::Duration;
use terms::Fault;

impl Engine {
    /// Tells how far a driver that copies has come, where that is seen.
    pub fn create(&self, ask: &create::Ask, progress: &mut dyn FnMut(&Copied)) -> Result<Created, Fault> {
        match self {
            Engine::Here(caller) => create::create_telling(ask, caller, progress),
            Engine::There(there) => there.create(ask),
        }
    }

    pub fn list(&self, removed: bool) -> Result<Vec<Row>, Fault> {
        let there = match self {
            Engine::Here(caller) => return list::list(caller, removed),
            Engine::There(there) => there,
        };
        let ask = || Ask::get(&["v1", "sandboxes"]).query("removed", if removed { "true" } else { "false" });
        let mut rows = there.list(ask, |part: Sandboxes| (part.sandboxes, part.next))?;
        rows.sort_by(|a, b| b.used_ms.cmp(&a.used_ms).then_with(|| a.id.cmp(&b.id)));
        Ok(rows)
    }

    pub fn running(&self) -> Result<Vec<Live>, Fault> {
        match self {
            Engine::Here(caller) => list::runs(caller),
            Engine::There(there) => there.get(&["v1", "running"]).map(|going: Going| going.runs),
        }
    }

    pub fn inspect(&self, word: Option<&str>) -> Result<Whole, Fault> {
        match self {
            Engine::Here(caller) => list::inspect(word, caller),
            Engine::There(there) => there.inspect(word),
        }
    }

    pub fn start(&self, which: &Which, live: bool) -> Result<Moved, Fault> {
        match (self, live) {
            (Engine::Here(caller), true) => stop::start_live(which, caller),
            (Engine::Here(caller), false) => stop::start(which, caller),
            (Engine::There(there), live) => there.start(which, live),
        }
    }

    pub fn stop(&self, which: &Which, patience: Duration) -> Result<Moved, Fault> {
        match self {
            Engine::Here(caller) => stop::stop(which, patience, caller),
            Engine::There(there) => there.stop(which, patience),
        }
    }

    pub fn suspend(&self, which: &Which, tier: Tier, patience: Duration) -> Result<Suspended, Fault> {
        match self {
            Engine::Here(caller) => suspend::suspend(which, tier, patience, caller),
            Engine::There(there) => {
                there.to(which, &["suspend"], &SuspendAsk { tier, grace_ms: Some(patience.as_millis() as u64) })
            }
        }
    }

    pub fn resume(&self, which: &Which) -> Result<Resumed, Fault> {
        match self {
            Engine::Here(caller) => suspend::resume(which, caller),
            Engine::There(there) => there.bare(which, "resume"),
        }
    }

    pub fn remove(&self, which: &Which, force: Option<Duration>) -> Result<Removed, Fault> {
        match self {
            Engine::Here(caller) => remove::remove(which, force, caller),
            Engine::There(there) => there.remove(which, force),
        }
    }

    pub fn change(&self, which: &Which, ask: &change::Ask) -> Result<Changed, Fault> {
        match self {
            Engine::Here(caller) => change::change(which, ask, caller),
            Engine::There(there) => {
                let word = there.word(which.word.as_deref())?;
                let request = Ask::patch(&["v1", "sandboxes", &word]).if_version(which.version);
                there.client.document(request.document(ask)?)
            }
        }
    }

    /// With `dry`, only what would be collected.
    pub fn collect(&self, dry: bool) -> Result<Collected, Fault> {
        let swept: Swept = match (self, dry) {
            (Engine::Here(caller), true) => return gc::plan(caller, &Keep::of(caller)?),
            (Engine::Here(caller), false) => return gc::collect(caller, &Keep::of(caller)?),
            (Engine::There(there), true) => there.get(&["v1", "gc"])?,
            (Engine::There(there), false) => there.client.document(Ask::post(&["v1", "gc"]))?,
        };
        Ok(swept.collected)
    }
}

impl There {
    pub fn create(&self, ask: &create::Ask) -> Result<Created, Fault> {
        let (make, notes) = make::make(ask, self)?;
        let mut request = Ask::post(&["v1", "sandboxes"]).document(&make)?;
        if let Some(key) = &ask.key {
            request = request.header("idempotency-key", key)?;
        }
        let mut made: Created = self.client.document(request).map_err(if_unwatched)?;
        made.notes.splice(0..0, notes);
        Ok(made)
    }

    /// Opens ports of the daemon's host to a sandbox.
    pub fn publish(&self, which: &Which, ports: &[String]) -> Result<(), Fault> {
        if ports.is_empty() {
            return Ok(());
        }
        let word = self.word(which.word.as_deref())?;
        let publish = Some(change::Publish { add: ports.to_vec(), ..change::Publish::default() });
        let ask = Ask::patch(&["v1", "sandboxes", &word]);
        let _changed: Changed =
            self.client.document(ask.document(&change::Ask { publish, ..change::Ask::default() })?)?;
        Ok(())
    }

    pub fn inspect(&self, word: Option<&str>) -> Result<Whole, Fault> {
        self.get(&["v1", "sandboxes", &self.word(word)?])
    }

    fn bare<T: serde::de::DeserializeOwned>(&self, which: &Which, verb: &str) -> Result<T, Fault> {
        let word = self.word(which.word.as_deref())?;
        self.client.document(Ask::post(&["v1", "sandboxes", &word, verb]).if_version(which.version))
    }

    pub fn start(&self, which: &Which, live: bool) -> Result<Moved, Fault> {
        let word = self.word(which.word.as_deref())?;
        let ask = Ask::post(&["v1", "sandboxes", &word, "start"]).if_version(which.version);
        self.client.document(ask.query_if("live", live.then_some("true")))
    }

    pub fn stop(&self, which: &Which, patience: Duration) -> Result<Moved, Fault> {
        let word = self.word(which.word.as_deref())?;
        let ask = Ask::post(&["v1", "sandboxes", &word, "stop"]).if_version(which.version);
        self.client.document(ask.query("timeout", time(patience)))
    }

    pub fn remove(&self, which: &Which, force: Option<Duration>) -> Result<Removed, Fault> {
        let word = self.word(which.word.as_deref())?;
        let mut ask = Ask::delete(&["v1", "sandboxes", &word]).if_version(which.version);
        if let Some(patience) = force {
            ask = ask.query("force", "true").query("timeout", time(patience));
        }
        self.client.document(ask)
    }
}
