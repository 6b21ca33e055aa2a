//! snapshot, fork, restore, template, export, import.

use super::remote::Remote;
use super::sandbox_create::policies_of;
use super::{Engine, unsupported_by_daemon};
use crate::transport::{Request, RequestBody};
use api::{
    Exported, PolicySource, SandboxFork, SandboxForked, SandboxImported, SandboxRestore, SandboxRestored, SnapshotList,
    SnapshotSummary, SnapshotTake, SnapshotTaken, Template, TemplateCreate, TemplateCreated, TemplateList,
    TemplateSummary, TemplateWarm, TemplateWarmed,
};
use node::portable::{self, ImportOptions};
use node::sandbox::Which;
use node::snapshots::{self, ChangesSince};
use node::templates;
use node::warm;
use serde::Deserialize;
use std::io::{Read, Write};
use terms::{ErrorKind, Fault, Phase};

#[derive(Deserialize)]
struct Deleted {
    removed: String,
}

impl Engine {
    pub fn snapshot(&self, which: &Which, name: Option<&str>, sync: bool) -> Result<SnapshotTaken, Fault> {
        match self {
            Engine::Local(node, caller) => {
                let take = if sync { snapshots::take_to_disk } else { snapshots::take_once };
                take(node, caller, which, name, None)
            }
            Engine::Remote(remote) => {
                remote.post_to(which, &["snapshots"], &SnapshotTake { name: name.map(str::to_owned), sync })
            }
        }
    }

    /// Squashes a deep stack of layers after a snapshot. A failure is left to the next snapshot; a daemon squashes by itself.
    pub fn settle(&self, taken: &SnapshotTaken) {
        if let (Engine::Local(node, caller), true) = (self, taken.layers > snapshots::DEEP) {
            let _ = snapshots::squash(node, caller, &taken.sandbox);
        }
    }

    pub fn snapshots(&self, word: Option<&str>) -> Result<Vec<SnapshotSummary>, Fault> {
        let remote = match (self, word) {
            (Engine::Local(node, caller), Some(word)) => return snapshots::list_of(node, caller, word),
            (Engine::Local(node, caller), None) => return snapshots::list_all(node, caller),
            (Engine::Remote(remote), _) => remote,
        };
        let request = || match word {
            Some(word) => Request::get(&["v1", "sandboxes", word, "snapshots"]),
            None => Request::get(&["v1", "snapshots"]),
        };
        let mut all = remote.list(request, |page: SnapshotList| (page.snapshots, page.next))?;
        all.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
        Ok(all)
    }

    pub fn snapshot_remove(&self, word: &str) -> Result<String, Fault> {
        match self {
            Engine::Local(node, caller) => snapshots::remove(node, caller, word),
            Engine::Remote(remote) => remote.delete(&["v1", "snapshots", word]),
        }
    }

    pub fn fork(&self, word: Option<&str>, name: Option<&str>, count: u32) -> Result<SandboxForked, Fault> {
        match self {
            Engine::Local(node, caller) => snapshots::fork(node, caller, word, name, count),
            Engine::Remote(remote) => {
                let request = SandboxFork { snapshot: None, name: name.map(str::to_owned), count };
                remote.post(&["v1", "snapshots", &remote.word(word)?, "fork"], &request)
            }
        }
    }

    /// Restores a snapshot; without a sandbox, into the one that it was taken of.
    pub fn restore(&self, snapshot: &str, which: &Which, since: ChangesSince) -> Result<SandboxRestored, Fault> {
        let remote = match self {
            Engine::Local(node, caller) => return snapshots::restore(node, caller, snapshot, which, since),
            Engine::Remote(remote) => remote,
        };
        let word = match &which.word {
            Some(word) => word.clone(),
            None => remote.get(&["v1", "snapshots", snapshot]).map(|found: SnapshotSummary| found.sandbox)?,
        };
        let request = SandboxRestore { snapshot: snapshot.to_owned(), discard: matches!(since, ChangesSince::Discard) };
        remote.post_to(&Which { word: Some(word), version: which.version }, &["restore"], &request)
    }

    /// Refuses a name that another template has.
    pub fn refuse_other_template(&self, name: &str) -> Result<(), Fault> {
        let remote = match self {
            Engine::Local(node, caller) => return templates::refuse_other_template(node, caller, name),
            Engine::Remote(remote) => remote,
        };
        match remote.get::<Template>(&["v1", "templates", name]) {
            Err(fault) if fault.error_kind == ErrorKind::NotFound => Ok(()),
            Err(fault) => Err(fault),
            Ok(other) => {
                let message = format!("the template {name:?} exists already: {}", other.template.address);
                let fault = Fault::new(ErrorKind::Conflict, message).subject(other.template.id);
                Err(fault.hint("choose another name, or remove that one").phase(Phase::Admission))
            }
        }
    }

    pub fn template_create(
        &self,
        name: &str,
        from: Option<&str>,
        prepared: Option<&str>,
    ) -> Result<TemplateCreated, Fault> {
        match self {
            Engine::Local(node, caller) => templates::create(node, caller, name, from, prepared),
            Engine::Remote(remote) => {
                let (name, from) = (name.to_owned(), Some(remote.word(from)?));
                let request = TemplateCreate { name, from, prepared: prepared.map(str::to_owned), prepare: None };
                remote.post(&["v1", "templates"], &request)
            }
        }
    }

    pub fn templates(&self) -> Result<Vec<TemplateSummary>, Fault> {
        match self {
            Engine::Local(node, caller) => templates::describe_templates(node, caller),
            Engine::Remote(remote) => {
                remote.list(|| Request::get(&["v1", "templates"]), |page: TemplateList| (page.templates, page.next))
            }
        }
    }

    pub fn template(&self, word: &str) -> Result<TemplateSummary, Fault> {
        match self {
            Engine::Local(node, caller) => templates::describe_template(node, caller, word),
            Engine::Remote(remote) => remote.get(&["v1", "templates", word]).map(|found: Template| found.template),
        }
    }

    /// Sets how many sandboxes are kept warm for a template, and with which policies and limits.
    pub fn template_warm(&self, ask: &warm::KeepSpares) -> Result<TemplateWarmed, Fault> {
        let remote = match self {
            Engine::Local(node, caller) => return warm::set(node, caller, ask),
            Engine::Remote(remote) => remote,
        };
        let (policies, _) = policies_of(&ask.policies, &ask.flags, true, remote)?;
        let languages = ask.languages.clone();
        let request = TemplateWarm { keep: ask.keep, policies, limits: ask.limits, cpus: ask.cpus, languages };
        remote.client.document(Request::put(&["v1", "templates", &ask.template, "warm"]).document(&request)?)
    }

    pub fn template_remove(&self, word: &str) -> Result<String, Fault> {
        match self {
            Engine::Local(node, caller) => templates::remove_template(node, caller, word),
            Engine::Remote(remote) => remote.delete(&["v1", "templates", word]),
        }
    }

    pub fn export(&self, word: &str, out: &mut dyn Write) -> Result<Exported, Fault> {
        match self {
            Engine::Local(node, caller) => portable::export(node, caller, word, out),
            Engine::Remote(remote) => {
                let headers = remote.client.bytes(Request::get(&["v1", "snapshots", word, "export"]), out)?;
                let header = headers.get("cofferdam-exported");
                let written = header.and_then(|written| serde_json::from_slice(written.as_bytes()).ok());
                written.ok_or_else(|| {
                    Fault::new(ErrorKind::ProviderFailed, "the daemon does not describe the file that it wrote")
                })
            }
        }
    }

    /// Imports a snapshot. Returns also notes on settings that an importer of policies could not carry over.
    pub fn import(
        &self,
        onto: ImportOptions<'_>,
        mut input: Box<dyn Read + Send>,
    ) -> Result<(SandboxImported, Vec<String>), Fault> {
        match self {
            Engine::Local(node, caller) => {
                let imported = portable::import(node, caller, onto, &mut input)?;
                Ok((imported, Vec::new()))
            }
            Engine::Remote(remote) => remote.import(onto, input),
        }
    }
}

/// Policies of an import, as its query carries them.
struct ImportPolicies {
    /// Names of built-in policies, separated by commas.
    names: Option<String>,
    /// A JSON list of documents.
    documents: Option<String>,
    notes: Vec<String>,
}

impl Remote {
    fn import_policies(&self, onto: &ImportOptions<'_>) -> Result<ImportPolicies, Fault> {
        // The body is the file, so policies go into the head of the request.
        const MAX_BYTES: usize = 8 << 10;
        let (all, notes) = policies_of(&onto.policies, &onto.flags, false, self)?;
        let (mut names, mut documents) = (Vec::new(), Vec::new());
        for policy in all {
            match policy {
                PolicySource::Name(name) => names.push(name),
                document => documents.push(document),
            }
        }
        let text = serde_json::to_string(&documents)
            .map_err(|e| Fault::internal(format!("cannot write the policies of an import: {e}")))?;
        if text.len() > MAX_BYTES {
            let what = format!("an import under policy files and rules of more than {MAX_BYTES} bytes");
            let hint = "name built-in policies with -p, or import it on the daemon's host without --server";
            let why = "they are sent in the head of the request, because its body is the file";
            return Err(unsupported_by_daemon(&what, why, hint));
        }
        Ok(ImportPolicies {
            names: (!names.is_empty()).then(|| names.join(",")),
            documents: (!documents.is_empty()).then_some(text),
            notes,
        })
    }

    fn delete(&self, path: &[&str]) -> Result<String, Fault> {
        self.client.document(Request::delete(path)).map(|deleted: Deleted| deleted.removed)
    }

    fn import(
        &self,
        onto: ImportOptions<'_>,
        input: Box<dyn Read + Send>,
    ) -> Result<(SandboxImported, Vec<String>), Fault> {
        let ImportPolicies { names, documents, notes } = self.import_policies(&onto)?;
        let request = Request::post(&["v1", "import"]).body(RequestBody::Stream(input, "application/octet-stream"));
        let request = request.query_if("dir", onto.dir.map(|dir| self.absolute(dir)).transpose()?);
        // A bound that the caller chose is set without ratio.
        let max_bytes = onto.bounds.ratio.is_none().then(|| onto.bounds.bytes.to_string());
        let request = request.query_if("name", onto.name).query_if("policy", names).query_if("documents", documents);
        let driver = onto.driver.map(|driver| serde_json::to_value(driver).map_err(|e| Fault::internal(e.to_string())));
        let driver = driver.transpose()?.and_then(|driver| driver.as_str().map(str::to_owned));
        let request = request.query_if("max_bytes", max_bytes).query_if("driver", driver);
        self.client.document(request).map(|imported| (imported, notes))
    }
}
