//! `restore`: resets a sandbox to a snapshot. The changes since are kept as a snapshot of their own, unless they shall be
//! dropped.

use super::fork::grow;
use super::take::{below, drop_meta, sealed};
use super::{anchors_of, check_in_use, discard, drop_unused, find, note, running, set_anchors};
use api::{Driver, SandboxRestored};
use runtime::Node;
use state::Caller;
use state::sandbox::Sandbox;
use state::sandbox::{self, Which};
use state::snapshot::{Ground, Snapshot};
use store::Kept;
use terms::{ErrorKind, Fault, Phase};

/// Fate of the changes since the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangesSince {
    Keep,
    Discard,
}

/// Restores the named sandbox, or else the one that the snapshot was taken of.
pub fn restore(
    node: &Node,
    caller: &Caller,
    snapshot: &str,
    which: &Which,
    since: ChangesSince,
) -> Result<SandboxRestored, Fault> {
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
    let answer = |kept, unchanged| SandboxRestored {
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
        (ChangesSince::Discard, _) => None,
        (ChangesSince::Keep, true) => Some((former, None)),
        (ChangesSince::Keep, false) => {
            let top = sealed(&top, sandbox.record.driver)?;
            Some((former.into_iter().chain([top.clone()]).collect(), Some(top)))
        }
    };
    drop_meta(&top)?;
    let (layers, _held) = grow(state, ground, &frozen, &base)?;
    let (at_ms, kept_id) = (terms::clock::now_ms(), terms::id("snp", sys::random::id_bytes()));
    let done = state.store.write(|tx| {
        let mut now = tx.get::<Sandbox>(&sandbox.id)?.ok_or_else(|| sandbox::unknown(&sandbox.id))?;
        if now.record.layers != sandbox.record.layers {
            let fault = Fault::new(ErrorKind::Conflict, format!("{} was changed meanwhile", sandbox.id));
            return Err(fault.hint("try again").subject(&sandbox.id));
        }
        check_in_use(tx, &ground.layers)?;
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

/// Checks that the snapshot has the base and the driver of the sandbox.
fn fits(snapshot: &Kept<Snapshot>, sandbox: &Kept<Sandbox>) -> Result<(), Fault> {
    let (ground, now) = (&snapshot.record.ground, &sandbox.record);
    // The device number is left out: it may have changed with a reboot.
    if ground.base == now.base && ground.base_id.1 == now.base_id.1 && ground.driver == now.driver {
        return Ok(());
    }
    let message =
        format!("{} is of {}, and {} covers {}", snapshot.id, ground.base.display(), sandbox.id, now.base.display());
    let fault = Fault::new(ErrorKind::Conflict, message).subject(&sandbox.id).phase(Phase::Admission);
    Err(fault.hint("make a sandbox of it with `cofferdam fork`"))
}
