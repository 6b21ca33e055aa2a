//! What all routes share.

use crate::refuse::Refusal;
use crate::who::Who;
use node::Caller;
use std::sync::Arc;
use terms::Fault;

/// Cheap to clone; one for the whole daemon.
#[derive(Clone)]
pub struct Shared(Arc<Inner>);

struct Inner {
    /// The surroundings that the daemon was started in.
    caller: Caller,
}

impl Shared {
    pub fn new(caller: Caller) -> Shared {
        Shared(Arc::new(Inner { caller }))
    }

    /// The caller that a verb of the node is given for somebody: the daemon's surroundings, the tenant's state.
    pub fn caller(&self, who: &Who) -> Caller {
        Caller { user: who.name.clone(), ..self.0.caller.clone() }
    }

    /// Carries out a verb. Verbs block, so each has a thread for as long as it takes.
    pub async fn verb<T, F>(&self, who: &Who, verb: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Caller) -> Result<T, Fault> + Send + 'static,
    {
        let caller = self.caller(who);
        match tokio::task::spawn_blocking(move || verb(&caller)).await {
            Ok(done) => done.map_err(Refusal::from),
            Err(e) => Err(Fault::internal(format!("a verb ended without an answer: {e}")).into()),
        }
    }
}
