//! What a spare is good for, as one word: everything that is fixed when an enclosure is built. A `create` that comes to the same
//! word wants just what stands there.

use policy::Format;
use runtime::policies;
use runtime::secrets::Secrets;
use sha2::{Digest, Sha256};
use state::sandbox::Sandbox;
use state::{Caller, bounds};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use terms::{Fault, Limits};

/// None where a spare cannot be what is wanted: its secrets would come from the caller's own surroundings.
pub(crate) fn key_of(template: &str, sandbox: &Sandbox, caller: &Caller) -> Result<Option<String>, Fault> {
    let document = policy::parse(&sandbox.policy.to_string(), Format::Json, template).map_err(Fault::from)?;
    let mut effective = policy::effective(&[document]).map_err(Fault::from)?;
    let named: BTreeSet<&str> = effective.secrets.iter().map(|secret| secret.rule.name.as_str()).collect();
    if !Secrets::find(&named, &[], caller)?.are_kept() {
        return Ok(None);
    }
    // Which tools are shown inside, and under whose name, comes from the surroundings that a keeper is started in.
    let around = policies::surroundings(&mut effective, caller, &sandbox.base, None);
    let user = ["USER", "LOGNAME"].iter().find_map(|name| caller.var(name)).and_then(OsStr::to_str).unwrap_or("user");
    // Those that a keeper can change when somebody takes the sandbox over are fixed by nothing.
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
