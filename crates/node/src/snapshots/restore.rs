//! `restore`: a sandbox goes back to a snapshot. What it had since is kept as a snapshot of its own, unless it shall be dropped.

use super::fork::grow;
use super::take::{below, no_orphan, sealed};
use super::{anchors_of, discard, drop_unused, find, note, running, set_anchors, still_there};
use runtime::Node;
use serde::{Deserialize, Serialize};
use state::Caller;
use state::sandbox::Sandbox;
use state::sandbox::{self, Which};
use state::snapshot::{Ground, Snapshot};
use store::Kept;
use terms::{ErrorKind, Fault, Phase};
use utoipa::ToSchema;
use workspace::Driver;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Restored {
    pub protocol_version: u32,
    pub sandbox: String,
    pub snapshot: String,
    /// What the sandbox had until now; none where it was dropped or there was nothing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kept: Option<String>,
    /// It was there already.
    pub unchanged: bool,
}

/// What becomes of the changes since the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    Keep,
    Discard,
}

/// The sandbox that is meant, or else the one that the snapshot was taken of.
pub fn restore(node: &Node, caller: &Caller, snapshot: &str, which: &Which, since: Since) -> Result<Restored, Fault> {
    let state = &node.states.lend(caller)?;
    let (snapshot, found) = state.store.read(|tx| {
        let snapshot = find(tx, snapshot, caller)?;
        let word = which.word.as_ref().unwrap_or(&snapshot.record.sandbox).clone();
        let sandbox = state::sandbox::pick(tx, &Which { word: Some(word), version: which.version }, caller)?;
        Ok((snapshot, sandbox))
    })?;
    fits(&snapshot, &found)?;
    let ground = &snapshot.record.ground;
    let (sandbox, top, lock) = running::lock(node, state, &found.id)?;
    let Some(_lock) = lock else { return Err(running::busy(state, &sandbox, "restore")) };
    let answer = |kept, unchanged| Restored {
        protocol_version: terms::PROTOCOL_VERSION,
        sandbox: sandbox.id.clone(),
        snapshot: snapshot.id.clone(),
        kept,
        unchanged,
    };
    let former = below(state, &sandbox.record)?;
    let overlay = sandbox.record.driver == Driver::Overlay;
    let empty = overlay && top.is_empty().map_err(|e| state::snapshot::lost(&top.id, &e))?;
    let base = ground.base()?;
    let frozen = ground.verified(state)?;
    if empty && former == ground.frozen && sandbox.record.since == ground.since {
        return Ok(answer(None, true));
    }
    let rest = match (since, empty) {
        (Since::Discard, _) => None,
        (Since::Keep, true) => Some((former, None)),
        (Since::Keep, false) => {
            let top = sealed(&top, sandbox.record.driver)?;
            Some((former.into_iter().chain([top.clone()]).collect(), Some(top)))
        }
    };
    no_orphan(&top)?;
    let (layers, _held) = grow(state, ground, &frozen, &base)?;
    let (at_ms, kept_id) = (terms::clock::now_ms(), terms::id("snp", sys::random::id_bytes()));
    let done = state.store.write(|tx| {
        let mut now = tx.get::<Sandbox>(&sandbox.id)?.ok_or_else(|| sandbox::unknown(&sandbox.id))?;
        if now.record.layers != sandbox.record.layers {
            let fault = Fault::new(ErrorKind::Conflict, format!("{} was changed meanwhile", sandbox.id));
            return Err(fault.hint("try again").subject(&sandbox.id));
        }
        still_there(tx, &ground.layers)?;
        if let Some((layers, top)) = &rest {
            if let Some(top) = top {
                tx.add(&top.id, top.clone())?;
            }
            let was = Ground::of(&now.record, layers.clone(), anchors_of(tx, &sandbox.id)?);
            let digest = was.digest();
            let sandbox = sandbox.id.clone();
            tx.add(
                &kept_id,
                Snapshot { name: None, sandbox, automatic: true, digest, created_ms: at_ms, ground: was },
            )?;
        }
        now.record.layers.clone_from(&layers);
        now.record.since = ground.since;
        now.record.git_head.clone_from(&ground.git_head);
        now.record.used_ms = at_ms;
        tx.change(now)?;
        set_anchors(tx, &sandbox.id, &ground.anchors)?;
        let body = serde_json::json!({ "snapshot": snapshot.id, "kept": rest.as_ref().map(|_| &kept_id) });
        note(tx, at_ms, "restore", &sandbox.id, &caller.user, body)
    });
    if let Err(fault) = done {
        layers.last().into_iter().for_each(|top| discard(state, top));
        return Err(fault);
    }
    drop_unused(state, &sandbox.record.layers)?;
    Ok(answer(rest.map(|_| kept_id), false))
}

/// A snapshot of another directory, or kept in another way, has nothing to say to a sandbox.
fn fits(snapshot: &Kept<Snapshot>, sandbox: &Kept<Sandbox>) -> Result<(), Fault> {
    let (ground, now) = (&snapshot.record.ground, &sandbox.record);
    // Devices may have been numbered anew between the two.
    if ground.base == now.base && ground.base_id.1 == now.base_id.1 && ground.driver == now.driver {
        return Ok(());
    }
    let message =
        format!("{} is of {}, and {} covers {}", snapshot.id, ground.base.display(), sandbox.id, now.base.display());
    let fault = Fault::new(ErrorKind::Conflict, message).subject(&sandbox.id).phase(Phase::Admission);
    Err(fault.hint("make a sandbox of it with `cofferdam fork`"))
}
