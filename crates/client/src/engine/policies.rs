//! Policies: explain and check.

use super::Engine;
use super::remote::text;
use super::sandbox_create::policies_of;
use api::{PolicyChecked, PolicyExplain, PolicyExplained};
use node::policies::{self, Flag, RequestedPolicy};
use std::ffi::OsStr;
use terms::Fault;

impl Engine {
    /// Explains the decision of policies and rules on the host where commands would run.
    pub fn explain(&self, what: &OsStr, sources: &[RequestedPolicy], flags: &[Flag]) -> Result<PolicyExplained, Fault> {
        let remote = match self {
            Engine::Local(_, caller) => return policies::explain(what, sources, flags, caller),
            Engine::Remote(remote) => remote,
        };
        let (policies, _) = policies_of(sources, flags, false, remote)?;
        let request = PolicyExplain {
            what: text(what, "the subject to explain:")?,
            sandbox: None,
            preset: None,
            policy: None,
            policies,
            dir: Some(remote.current_dir()?),
        };
        remote.post(&["v1", "policies", "explain"], &request)
    }

    /// Checks whether a policy can be enforced. Returns its digest and notes.
    pub fn policy_check(&self, document: &policies::Document) -> Result<(String, Vec<String>), Fault> {
        match self {
            Engine::Local(_, caller) => {
                policies::check(document, caller).map(|checked| (checked.digest, checked.notes))
            }
            Engine::Remote(remote) => {
                let document: serde_json::Value = serde_json::from_str(&document.to_json())
                    .map_err(|e| Fault::internal(format!("cannot convert a policy to JSON: {e}")))?;
                let checked: PolicyChecked = remote.post(&["v1", "policies", "check"], &document)?;
                Ok((checked.digest, checked.notes))
            }
        }
    }
}
