//! Credentials: authenticates requests by bearer token or socket uid, and closes streams whose token was revoked or has expired.

use crate::extract::single;
use crate::principal::Principal;
use crate::refuse::Refusal;
use crate::shared::owner;
use api::{DEFAULT_TENANT, Scope};
use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use node::bounds::{Configured, Holder};
use node::tokens::{TokenLookup, TokenRecord};
use node::{Caller, Grants, Node, Reach};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use terms::Fault;
use tokio::sync::watch;

/// Interval between checks of the tokens of open streams; the route that revokes a token checks at once.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The peer of a connection.
#[derive(Clone, Debug)]
pub enum Peer {
    /// A client of the Unix socket, with the uid that the kernel reports for it.
    Unix {
        uid: Option<u32>,
    },
    Tcp {
        address: std::net::SocketAddr,
    },
}

#[derive(Clone)]
pub struct Credentials(Arc<Inner>);

struct Inner {
    node: Arc<Node>,
    gate: Arc<Mutex<TokenLookup>>,
    /// The user that the daemon runs as: uid and name.
    uid: u32,
    user: String,
    /// Defaults and ceilings of limits, by tenant.
    limits: Configured,
    /// Tokens with open streams.
    open: Mutex<HashMap<String, watch::Sender<bool>>>,
}

impl Credentials {
    pub fn open(node: Arc<Node>, caller: &Caller, limits: Configured) -> Result<Credentials, Fault> {
        let gate = Arc::new(Mutex::new(TokenLookup::open(&node, caller)?));
        let (uid, user) = (rustix::process::geteuid().as_raw(), caller.user.clone());
        Ok(Credentials(Arc::new(Inner { node, gate, uid, user, limits, open: Mutex::default() })))
    }

    /// Authenticates a request. A token that is sent must be valid, even where none is needed.
    pub async fn authenticate(&self, peer: &Peer, headers: &HeaderMap) -> Result<Principal, Refusal> {
        if let Some(text) = single(headers, &AUTHORIZATION)? {
            let token = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            let Some((_, token)) = token else {
                return Err(unauthenticated("the Authorization header is not a bearer token"));
            };
            return self.of_token(token.trim().to_owned()).await;
        }
        match peer {
            Peer::Unix { uid: Some(uid) } if *uid == self.0.uid => Ok(owner(&self.0.user)),
            Peer::Unix { .. } => Err(unauthenticated("this socket accepts only the user that the daemon runs as")),
            Peer::Tcp { .. } => Err(unauthenticated("no credential")),
        }
    }

    async fn of_token(&self, token: String) -> Result<Principal, Refusal> {
        let found = self.with_gate(move |node, gate| {
            let found = gate.find_by_secret(node, &token)?;
            found.iter().for_each(|kept| gate.used(node, kept));
            Ok(found)
        });
        self.principal(found.await?.map(|kept| (kept.id, kept.record)))
    }

    /// Authenticates the holder of a ticket or of a signed URL: a token by its id, or the daemon's own user.
    pub async fn of_holder(&self, holder: Option<String>) -> Result<Principal, Refusal> {
        match holder {
            None => Ok(owner(&self.0.user)),
            Some(id) => {
                let found = self.with_gate(move |node, gate| gate.get(node, &id)).await?;
                self.principal(found.map(|kept| (kept.id, kept.record)))
            }
        }
    }

    fn principal(&self, found: Option<(String, TokenRecord)>) -> Result<Principal, Refusal> {
        let Some((id, token)) = found else { return Err(unauthenticated("the token is unknown, revoked or expired")) };
        let reach = reach(&id, &token, &self.0.limits);
        let TokenRecord { label, tenant, scopes, .. } = token;
        Ok(Principal { tenant, name: label, scopes, reach, token: Some(id) })
    }

    async fn with_gate<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Node, &TokenLookup) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (node, gate) = (self.0.node.clone(), self.0.gate.clone());
        // After a panic elsewhere the store's connection is still consistent: transactions roll back.
        let work = move || question(&node, &gate.lock().unwrap_or_else(PoisonError::into_inner));
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|e| Fault::internal(format!("cannot read the tokens: {e}")))?.map_err(Refusal::from)
    }

    /// Checks that the token store exists and can be read from the disk.
    pub async fn works(&self) -> Result<(), Refusal> {
        self.with_gate(|node, gate| gate.works(node)).await
    }

    /// Resolves when a token is revoked or has expired.
    pub async fn until_invalid(&self, token: &str) {
        let mut bad = {
            let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.entry(token.to_owned()).or_insert_with(|| watch::channel(false).0).subscribe()
        };
        // The sender goes only together with its token.
        let _ = bad.wait_for(|bad| *bad).await;
    }

    /// Closes streams whose token was revoked or has expired.
    pub async fn close_revoked(&self) {
        let ids: Vec<String> = {
            let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|_, sender| sender.receiver_count() > 0);
            open.keys().cloned().collect()
        };
        if ids.is_empty() {
            return;
        }
        let good = self.with_gate(move |node, gate| {
            let good = ids.into_iter().map(|id| gate.get(node, &id).map(|kept| (id, kept.is_some())));
            good.collect::<Result<Vec<_>, _>>()
        });
        // A store that cannot be read for a moment closes no stream: the next check decides.
        let Ok(good) = good.await else { return };
        let open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, _) in good.iter().filter(|(_, good)| !good) {
            open.get(id).map(|sender| sender.send_replace(true));
        }
    }

    /// Repeats the check for as long as the daemon lives.
    pub async fn watch(self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.close_revoked().await;
        }
    }

    /// Records in the operator's journal that a client named an id of another tenant, and whether further attempts are omitted for a while.
    pub async fn note_foreign(&self, principal: Principal, subject: String, route: String, and_more: bool) {
        let actor = format!("{} of {}", principal.name, principal.tenant);
        let noted = self.with_gate(move |node, gate| {
            gate.note_foreign(node, &actor, &subject, &route, and_more);
            Ok(())
        });
        let _ = noted.await;
    }
}

/// The reach of a token. Operators of the daemon's own tenant have the host; others have their grants. An agent brings no policies.
fn reach(id: &str, token: &TokenRecord, limits: &Configured) -> Reach {
    let operator = token.scopes.contains(&Scope::Operator);
    let shares_with_host = token.tenant == DEFAULT_TENANT;
    match operator && shares_with_host {
        true => Reach::All,
        false => {
            let (dirs, policies) = (token.dirs.clone(), token.policies.clone());
            let answers = operator || token.scopes.contains(&Scope::Reviewer);
            let holder = Holder { tenant: &token.tenant, token: &token.limits, is_agent: !operator, shares_with_host };
            let bounds = limits.bounds(holder);
            Reach::Only(Grants { dirs, policies, documents: operator, answers, own: token.own(id), bounds })
        }
    }
}

fn unauthenticated(why: &str) -> Refusal {
    Refusal::http(StatusCode::UNAUTHORIZED, why, "send `Authorization: Bearer …` with a token of the daemon")
}
