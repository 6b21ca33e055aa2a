//! The document that asks a daemon for a new sandbox. Policy files are read on the caller's host; directories and the paths in rules are
//! those of the daemon's host.

use super::remote::{Remote, text};
use api::{PolicySource, SandboxCreate};
use node::create::CreateSandbox;
use node::policies::{self, Flag, RequestedPolicy};
use std::path::Path;
use terms::Fault;

/// Returns the document, and notes on settings that an importer could not carry over.
pub fn sandbox_create(ask: &CreateSandbox, remote: &Remote) -> Result<(SandboxCreate, Vec<String>), Fault> {
    let (policies, notes) = policies_of(&ask.policies, &ask.flags, ask.template.is_some(), remote)?;
    let dir = match (&ask.dir, &ask.template) {
        _ if ask.own_base => None,
        // A template has a directory of its own.
        (None, Some(_)) => None,
        (dir, _) => Some(remote.absolute(dir.as_deref().unwrap_or(Path::new("")))?),
    };
    let create = SandboxCreate {
        dir: dir
            .map(|dir| dir.trim_end_matches('/').to_owned())
            .map(|dir| if dir.is_empty() { "/".into() } else { dir.into() }),
        name: ask.name.clone(),
        template: ask.template.clone(),
        policies,
        limits: ask.limits,
        cpus: ask.cpus,
        ttl_ms: ask.ttl_ms,
        idle_ms: ask.idle_ms,
        metadata: ask.metadata.clone(),
        env: ask.env.clone(),
        timeout_ms: ask.timeout_ms,
        on_timeout: ask.on_timeout,
        reserve: ask.reserve.iter().map(|path| text(path, "--reserve")).collect::<Result<_, _>>()?,
        sharing: ask.sharing,
        driver: ask.driver,
        services: ask.services.clone(),
        read_only: ask.read_only,
        secrets: ask.secrets.clone(),
        events_max: ask.events_max,
        report_reads: ask.report_reads,
        ask_timeout_ms: ask.ask_timeout_ms,
    };
    Ok((create, notes))
}

/// Returns policies as a daemon takes them, with notes: built-in ones by name, files and rules as documents.
pub fn policies_of(
    sources: &[RequestedPolicy],
    flags: &[Flag],
    template: bool,
    remote: &Remote,
) -> Result<(Vec<PolicySource>, Vec<String>), Fault> {
    let (mut all, mut notes) = (Vec::new(), Vec::new());
    for source in sources {
        match source {
            RequestedPolicy::Preset(name) => all.push(PolicySource::Name(name.clone())),
            other => {
                let loaded = policies::load(other)?;
                notes.extend(loaded.notes);
                all.push(document(&loaded.document)?);
            }
        }
    }
    // Rules alone are added to the default, or to those of a template.
    if all.is_empty() && !flags.is_empty() && !template {
        all.push(PolicySource::Name("default".into()));
    }
    for rules in policies::of_flags(flags, &remote.caller)? {
        all.push(document(&rules)?);
    }
    Ok((all, notes))
}

fn document(document: &policies::Document) -> Result<PolicySource, Fault> {
    let read = serde_json::from_str(&document.to_json());
    read.map(PolicySource::Document).map_err(|e| Fault::internal(format!("cannot convert a policy to JSON: {e}")))
}
