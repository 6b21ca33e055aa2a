//! Credentials: from what a request brings to who asks, and when a credential stops being good.

use crate::ask::single;
use crate::refuse::Refusal;
use crate::shared::owner;
use crate::who::{Scope, Who};
use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use node::bounds::{Configured, Holder};
use node::tokens::{DEFAULT_TENANT, Gate, Token};
use node::{Caller, Grants, Node, Reach};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use terms::Fault;
use tokio::sync::watch;

/// How often credentials of open streams are looked at; the route that revokes one looks at once.
const LOOK: Duration = Duration::from_millis(500);

/// Where a connection comes from.
#[derive(Clone, Debug)]
pub enum Peer {
    /// The socket, with the uid that the kernel gave for the other side.
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
    gate: Arc<Mutex<Gate>>,
    /// The user that the daemon runs as, by number and name.
    uid: u32,
    user: String,
    /// Defaults and ceilings of limits, by tenant.
    limits: Configured,
    /// Tokens that streams are open under.
    open: Mutex<HashMap<String, watch::Sender<bool>>>,
}

impl Credentials {
    pub fn open(node: Arc<Node>, caller: &Caller, limits: Configured) -> Result<Credentials, Fault> {
        let gate = Arc::new(Mutex::new(Gate::open(&node, caller)?));
        let (uid, user) = (rustix::process::geteuid().as_raw(), caller.user.clone());
        Ok(Credentials(Arc::new(Inner { node, gate, uid, user, limits, open: Mutex::default() })))
    }

    /// Who asks. A token that is sent must be good, also where none is needed.
    pub async fn who(&self, peer: &Peer, headers: &HeaderMap) -> Result<Who, Refusal> {
        if let Some(text) = single(headers, &AUTHORIZATION)? {
            let token = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            let Some((_, token)) = token else { return Err(unknown("the Authorization header is no bearer token")) };
            return self.of_token(token.trim().to_owned()).await;
        }
        match peer {
            Peer::Unix { uid: Some(uid) } if *uid == self.0.uid => Ok(owner(&self.0.user)),
            Peer::Unix { .. } => Err(unknown("this socket is for the user that the daemon runs as")),
            Peer::Tcp { .. } => Err(unknown("no credential")),
        }
    }

    async fn of_token(&self, token: String) -> Result<Who, Refusal> {
        let found = self.ask(move |node, gate| {
            let found = gate.whose(node, &token)?;
            found.iter().for_each(|kept| gate.used(node, kept));
            Ok(found)
        });
        let Some(kept) = found.await? else { return Err(unknown("the token is not known, or not good any more")) };
        let reach = reach(&kept.id, &kept.record, &self.0.limits);
        let Token { label, tenant, scopes, .. } = kept.record;
        Ok(Who { tenant, name: label, scopes, reach, token: Some(kept.id) })
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Node, &Gate) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (node, gate) = (self.0.node.clone(), self.0.gate.clone());
        // What a panic elsewhere left is a connection to the store, which is sound between transactions.
        let work = move || question(&node, &gate.lock().unwrap_or_else(PoisonError::into_inner));
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|e| Fault::internal(format!("the tokens: {e}")))?.map_err(Refusal::from)
    }

    /// Whether the store is there and can be read, as it lies on the disk now.
    pub async fn works(&self) -> Result<(), Refusal> {
        self.ask(|node, gate| gate.works(node)).await
    }

    /// Resolves when a token is revoked or has expired.
    pub async fn until_bad(&self, token: &str) {
        let mut bad = {
            let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.entry(token.to_owned()).or_insert_with(|| watch::channel(false).0).subscribe()
        };
        // The sender goes only together with its token.
        let _ = bad.wait_for(|bad| *bad).await;
    }

    /// Looks at the tokens of all open streams and closes those that are good no more.
    pub async fn look(&self) {
        let ids: Vec<String> = {
            let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|_, sender| sender.receiver_count() > 0);
            open.keys().cloned().collect()
        };
        if ids.is_empty() {
            return;
        }
        let good = self.ask(move |node, gate| {
            let good = ids.into_iter().map(|id| gate.get(node, &id).map(|kept| (id, kept.is_some())));
            good.collect::<Result<Vec<_>, _>>()
        });
        // A store that cannot be read for a moment closes nobody's stream: the next look will tell.
        let Ok(good) = good.await else { return };
        let open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, _) in good.iter().filter(|(_, good)| !good) {
            open.get(id).map(|sender| sender.send_replace(true));
        }
    }

    /// Looks again and again, as long as the daemon lives.
    pub async fn watch(self) {
        loop {
            tokio::time::sleep(LOOK).await;
            self.look().await;
        }
    }

    /// Notes in the operator's journal that somebody named what is another's, and whether further tries are not noted for a while.
    pub async fn note_foreign(&self, who: Who, subject: String, route: String, and_more: bool) {
        let actor = format!("{} of {}", who.name, who.tenant);
        let noted = self.ask(move |node, gate| {
            gate.note_foreign(node, &actor, &subject, &route, and_more);
            Ok(())
        });
        let _ = noted.await;
    }
}

/// The operator of the daemon's own tenant has the host; everybody else has what was granted. An agent brings no policies.
fn reach(id: &str, token: &Token, limits: &Configured) -> Reach {
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

fn unknown(why: &str) -> Refusal {
    Refusal::http(StatusCode::UNAUTHORIZED, why, "send `Authorization: Bearer …` with a token of the daemon")
}
