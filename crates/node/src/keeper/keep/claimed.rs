//! While it stands ready: nothing runs and nobody has its files, until its record says that it is somebody's.

use super::{Keep, LOOK};
use crate::keeper::wire::{Ask, Word, words_of};
use crate::sandbox::Sandbox;
use crate::warm;
use std::time::{Duration, Instant};
use store::Store;
use terms::{ErrorKind, Fault, Phase};

impl Keep {
    /// What is asked of one that stands ready. Whoever took it over may have died before he said so; the record knows.
    pub(super) fn check_claimed(&mut self, ask: &Ask) -> Result<(), Fault> {
        let harmless = matches!(ask, Ask::Hello | Ask::List | Ask::Usage | Ask::Claim { .. } | Ask::End { .. });
        if !self.premises.ready || harmless {
            return Ok(());
        }
        let (around, actor) = (words_of(&self.caller), self.caller.user.clone());
        self.claim(&around, &actor)
    }

    /// It is somebody's: his secrets, his services, his times.
    pub(super) fn claim(&mut self, around: &[(Word, Word)], actor: &str) -> Result<(), Fault> {
        if !self.premises.ready {
            return Ok(());
        }
        let id = self.premises.sandbox.id.clone();
        let kept = Store::open(&self.state)?.read(|tx| tx.get::<Sandbox>(&id))?.ok_or_else(|| {
            let fault = Fault::new(ErrorKind::Conflict, format!("{id} stands ready and is nobody's yet")).subject(&id);
            fault.hint("`cofferdam create --template` takes one over").phase(Phase::Admission)
        })?;
        self.stays = kept.record.stays;
        self.premises.claimed(kept, &self.caller, &mut self.residence)?;
        self.stirred = Instant::now();
        self.begin_services(around, actor)
    }

    /// Nobody told it, and still it may be somebody's, or wanted no more: then it leaves by itself.
    pub(super) fn look_whether_wanted(&mut self) {
        if !self.premises.ready || self.ending.is_some() || Instant::now() < self.look_at {
            return;
        }
        self.look_at = Instant::now() + LOOK;
        let id = self.premises.sandbox.id.clone();
        let look = Store::open(&self.state).and_then(|store| {
            store.read(|tx| Ok((warm::as_kept(tx, &id)?.is_some(), tx.get::<Sandbox>(&id)?.is_some())))
        });
        match look {
            Ok((false, true)) => {
                let (around, actor) = (words_of(&self.caller), self.caller.user.clone());
                if self.claim(&around, &actor).is_err() {
                    self.begin_end(Duration::ZERO);
                }
            }
            Ok((false, false)) => self.begin_end(Duration::ZERO),
            // A store that cannot be read now can be later.
            Ok((true, _)) | Err(_) => {}
        }
    }
}
