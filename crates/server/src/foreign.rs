//! Who names what belongs to another tenant is told that there is no such thing; and the operator finds it in the journal.

use crate::{Shared, Who};
use node::Caller;
use node::tokens::{self, DEFAULT_TENANT};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The same try is noted so often, and no more tries than this are remembered: nobody floods the journal.
const EVERY: Duration = Duration::from_secs(60);
const REMEMBERED: usize = 1024;
/// States that are looked through.
const MOST_TENANTS: usize = 1000;

/// Tries of the last minute: by whom, for what.
#[derive(Default)]
pub struct Tries(Mutex<HashMap<(String, String), Instant>>);

/// Looks, behind the answer's back, whether the path names what another tenant has.
pub fn note(shared: &Shared, who: &Who, path: &str) {
    let Some(id) = path.split('/').find(|part| is_id(part)).map(str::to_owned) else { return };
    let of = who.token.clone().unwrap_or_else(|| who.name.clone());
    if !shared.tries().is_new((of, id.clone())) {
        return;
    }
    let (shared, who, path) = (shared.clone(), who.clone(), path.to_owned());
    tokio::spawn(async move {
        let (all, tenant, sought) = (states(&shared), who.tenant.clone(), id.clone());
        let elsewhere = move || {
            let others = all.into_iter().filter(|(name, _)| *name != tenant);
            Ok(others.into_iter().any(|(_, caller)| tokens::knows(&caller, &sought).unwrap_or(false)))
        };
        if shared.blocking(elsewhere).await.unwrap_or(false) {
            shared.credentials().note_foreign(who, id, path).await;
        }
    });
}

/// A whole id: who has one did not guess it.
fn is_id(part: &str) -> bool {
    let rest = part.split_once('_').filter(|(kind, _)| kind.len() == 3).map(|(_, rest)| rest);
    rest.is_some_and(|rest| rest.len() == 32 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

impl Tries {
    fn is_new(&self, one: (String, String)) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|_, at| at.elapsed() < EVERY);
        seen.len() < REMEMBERED && seen.insert(one, Instant::now()).is_none()
    }
}

/// The callers that stand for every tenant there is.
fn states(shared: &Shared) -> Vec<(String, Caller)> {
    let dirs = std::fs::read_dir(shared.state().join("tenants")).into_iter().flatten().flatten();
    let names = dirs.filter_map(|dir| dir.file_name().into_string().ok()).take(MOST_TENANTS);
    let of = |name: String| {
        let who = Who { tenant: name.clone(), ..crate::shared::owner("daemon") };
        (name, shared.caller(&who))
    };
    std::iter::once(DEFAULT_TENANT.to_owned()).chain(names).map(of).collect()
}
