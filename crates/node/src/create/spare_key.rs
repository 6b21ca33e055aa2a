//! The key of a spare: a digest of everything that is fixed when an enclosure is built. A `create` with the same key can take the
//! spare.

use policy::Format;
use runtime::policies;
use runtime::secrets::{self, Secrets};
use sha2::{Digest, Sha256};
use state::sandbox::Sandbox;
use state::{Caller, bounds};
use std::ffi::OsStr;
use terms::{Fault, Limits};

/// Returns the key, or none if no spare can match: the secrets would come from the caller's own environment.
pub(crate) fn key_of(template: &str, sandbox: &Sandbox, caller: &Caller) -> Result<Option<String>, Fault> {
    let document = policy::parse(&sandbox.policy.to_string(), Format::Json, template).map_err(Fault::from)?;
    let mut effective = policy::effective(&[document]).map_err(Fault::from)?;
    let needs = secrets::needs(effective.secrets.iter().map(|secret| &secret.rule));
    if !Secrets::find(&needs, &[], caller)?.are_kept() {
        return Ok(None);
    }
    // The tools that are shown inside, and their names, depend on the environment that a keeper is started in.
    let around = policies::surroundings(&mut effective, caller, &sandbox.base, None);
    let user = ["USER", "LOGNAME"].iter().find_map(|name| caller.var(name)).and_then(OsStr::to_str).unwrap_or("user");
    // Limits that a keeper can change when the sandbox is taken over are not part of the key.
    let limits = match bounds::holds_memory_and_processes() {
        true => Limits { max_memory_mb: None, max_processes: None, ..sandbox.limits },
        false => sandbox.limits,
    };
    let all = (
        (template, &sandbox.policy, &limits, sandbox.cpus),
        (&sandbox.base, sandbox.base_id, sandbox.driver),
        (&caller.home, user, &around.context.toolchains, &around.installations, &around.env_names),
    );
    let text = serde_json::to_vec(&all).map_err(|e| Fault::internal(e.to_string()))?;
    Ok(Some(terms::hex::encode(Sha256::digest(&text))))
}
