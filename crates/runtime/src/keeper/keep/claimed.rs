//! Spares: a keeper in a pool runs nothing and gives out no files until its record names an owner.

use super::{Keep, RECORD_CHECK_EVERY};
use crate::keeper::wire::{KeeperRequest, WireText, words_of};
use state::sandbox::Sandbox;
use std::time::{Duration, Instant};
use store::Store;
use terms::{ErrorKind, Fault, Phase};

impl Keep {
    /// Refuses requests that a spare does not serve. The claiming client may have died before it told the keeper, so the record decides.
    pub(super) fn check_claimed(&mut self, ask: &KeeperRequest) -> Result<(), Fault> {
        let harmless = matches!(
            ask,
            KeeperRequest::Hello
                | KeeperRequest::List
                | KeeperRequest::Usage
                | KeeperRequest::Claim { .. }
                | KeeperRequest::End { .. }
        );
        if !self.premises.ready || harmless {
            return Ok(());
        }
        let (around, actor) = (words_of(&self.caller), self.caller.user.clone());
        self.claim(&around, &actor)
    }

    /// Hands the spare to its owner: applies the owner's secrets, services and timeouts.
    pub(super) fn claim(&mut self, around: &[(WireText, WireText)], actor: &str) -> Result<(), Fault> {
        if !self.premises.ready {
            return Ok(());
        }
        let id = self.premises.sandbox.id.clone();
        let kept = Store::open(&self.state)?.read(|tx| tx.get::<Sandbox>(&id))?.ok_or_else(|| {
            let fault =
                Fault::new(ErrorKind::Conflict, format!("{id} is a spare that is not claimed yet")).subject(&id);
            fault.hint("`cofferdam create --template` claims one").phase(Phase::Admission)
        })?;
        self.keep_alive = kept.record.stays;
        self.plan_contexts(&kept.record.languages, around, actor);
        self.premises.claimed(kept, &self.caller, &mut self.residence)?;
        self.last_activity = Instant::now();
        self.begin_services(around, actor)
    }

    /// Checks the record of a spare that was not told anything: claims it if it has an owner, and ends the keeper if it is no longer
    /// wanted.
    pub(super) fn check_spare_record(&mut self) {
        if !self.premises.ready || self.ending.is_some() || Instant::now() < self.record_check_at {
            return;
        }
        self.record_check_at = Instant::now() + RECORD_CHECK_EVERY;
        let id = self.premises.sandbox.id.clone();
        let look = Store::open(&self.state).and_then(|store| {
            store.read(|tx| Ok((state::pool::as_kept(tx, &id)?.is_some(), tx.get::<Sandbox>(&id)?.is_some())))
        });
        match look {
            Ok((false, true)) => {
                let (around, actor) = (words_of(&self.caller), self.caller.user.clone());
                if self.claim(&around, &actor).is_err() {
                    self.begin_end(Duration::ZERO);
                }
            }
            Ok((false, false)) => self.begin_end(Duration::ZERO),
            // A store that cannot be read now may be readable later.
            Ok((true, _)) | Err(_) => {}
        }
    }
}
