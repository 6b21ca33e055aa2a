//! `fork`: new sandboxes that share the frozen layers of a snapshot, each with a top of its own.

use super::take::{SnapshotPurpose, fresh_layer, take_of, unmade};
use super::{check_in_use, discard, earlier, note, set_anchors, try_find};
use api::{Driver, ForkedSandbox, SandboxForked};
use runtime::Node;
use state::State;
use state::idempotency::KeyedRequest;
use state::names::check_name;
use state::sandbox::{self, Sandbox, TTL_MS, Tombstone};
use state::snapshot::Ground;
use state::{Caller, Reach, bounds, total};
use store::Tx;
use terms::{ErrorKind, Fault, Phase};
use workspace::{Layer, Lock, copy};

/// Most sandboxes that one call makes.
pub const MOST: u32 = 256;

/// Makes sandboxes from a snapshot, or from a sandbox, of which a snapshot is taken first.
pub fn fork(
    node: &Node,
    caller: &Caller,
    word: Option<&str>,
    name: Option<&str>,
    count: u32,
) -> Result<SandboxForked, Fault> {
    fork_once(node, caller, word, name, count, None)
}

/// Makes sandboxes, at most once under a key.
pub fn fork_once(
    node: &Node,
    caller: &Caller,
    word: Option<&str>,
    name: Option<&str>,
    count: u32,
    once: Option<&KeyedRequest>,
) -> Result<SandboxForked, Fault> {
    let state = &node.states.lend(caller)?;
    if let Some(known) = earlier(state, once)? {
        return Ok(SandboxForked { existed: true, ..known });
    }
    name.map_or(Ok(()), check_name)?;
    if count == 0 || count > MOST {
        let fault = Fault::invalid(format!("count is {count}")).hint(format!("from 1 to {MOST}"));
        return Err(fault.phase(Phase::Admission));
    }
    let ForkOrigin { snapshot, sandbox: of, ground } = origin(node, state, caller, word)?;
    let base = ground.base()?;
    let frozen = ground.verified(state)?;
    let at_ms = terms::clock::now_ms();
    let mut grown = Vec::new();
    for _ in 0..count {
        let copies = |tree: &Layer| total::admit_copy(&state.layers, &state.path, caller, (&tree.up, ground.driver));
        let fits = frozen.last().map_or(Ok(()), copies);
        match fits.and_then(|()| grow(state, &ground, &frozen, &base)) {
            Ok(one) => grown.push(one),
            Err(fault) => {
                undo(state, &grown);
                return Err(fault);
            }
        }
    }
    let names = (1..=count).map(|n| match (name, count) {
        (Some(name), 1) => Some(name.to_owned()),
        (Some(name), _) => Some(format!("{name}-{n}")),
        (None, _) => None,
    });
    let recorded = state.store.write(|tx| {
        let mut made = Vec::new();
        check_in_use(tx, &ground.layers)?;
        let last = in_force(tx, &of, caller)?;
        for (name, (layers, _)) in names.zip(&grown) {
            let id = terms::id("sbx", sys::random::id_bytes());
            let sandbox = sandbox_on(&ground, name.clone(), layers.clone(), at_ms, &snapshot);
            let sandbox = match last.clone() {
                Some(Sandbox { policy, ceiling, limits, cpus, secrets, .. }) => {
                    Sandbox { policy, ceiling, limits, cpus, secrets, ..sandbox }
                }
                None => sandbox,
            };
            let mut sandbox = Sandbox { owner: caller.owner(), ..sandbox };
            let told = bounds::apply(&mut sandbox, caller)?;
            sandbox.notes.extend(told);
            tx.add(&id, sandbox)?;
            set_anchors(tx, &id, &ground.anchors)?;
            note(
                tx,
                at_ms,
                "fork",
                &id,
                &caller.user,
                serde_json::json!({ "snapshot": snapshot, "digest": ground.digest() }),
            )?;
            made.push(ForkedSandbox { id, name });
        }
        let (protocol_version, snapshot) = (terms::PROTOCOL_VERSION, snapshot.clone());
        let forked = SandboxForked { protocol_version, snapshot, sandboxes: made, existed: false };
        once.map_or(Ok(()), |once| once.keep(tx, &forked.snapshot, &forked, at_ms))?;
        Ok(forked)
    });
    match recorded {
        Ok(forked) => Ok(forked),
        Err(fault) => {
            undo(state, &grown);
            Err(fault)
        }
    }
}

fn undo(state: &State, grown: &[(Vec<String>, Lock)]) {
    for (layers, _) in grown {
        layers.last().into_iter().for_each(|top| discard(state, top));
    }
}

/// The snapshot that a fork or a template is made from.
pub struct ForkOrigin {
    pub snapshot: String,
    /// The snapshot's sandbox, which may be gone.
    pub sandbox: String,
    pub ground: Ground,
}

/// Returns the snapshot that a word names, or takes one of the sandbox that it names.
pub fn origin(node: &Node, state: &State, caller: &Caller, word: Option<&str>) -> Result<ForkOrigin, Fault> {
    let known = match word {
        Some(word) => state.store.read(|tx| try_find(tx, word, caller))?,
        None => None,
    };
    if let Some(kept) = known {
        return Ok(ForkOrigin { snapshot: kept.id, sandbox: kept.record.sandbox, ground: kept.record.ground });
    }
    let found = state.store.read(|tx| sandbox::find(tx, word, caller)).map_err(|fault| match word {
        Some(word) if fault.error_kind == ErrorKind::NotFound => {
            let fault = Fault::new(ErrorKind::NotFound, format!("there is no snapshot and no sandbox {word:?}"));
            fault.hint("`cofferdam snapshot ls` and `cofferdam ls` list them").subject(word).phase(Phase::Admission)
        }
        _ => fault,
    })?;
    let (taken, snapshot) = take_of(node, state, caller, found, None, SnapshotPurpose::Automatic)?;
    Ok(ForkOrigin { snapshot: taken.id, sandbox: snapshot.sandbox, ground: snapshot.ground })
}

/// Returns the current or last record of a sandbox, whose rules and limits apply to what this caller makes from a snapshot of it:
/// a permission that was revoked since must not come back with an old snapshot. None for the host's own user, who gets those of
/// the snapshot.
pub fn in_force(tx: &Tx<'_>, sandbox: &str, caller: &Caller) -> Result<Option<Sandbox>, Fault> {
    if caller.reach == Reach::All {
        return Ok(None);
    }
    if let Some(kept) = tx.get::<Sandbox>(sandbox)? {
        return Ok(Some(kept.record));
    }
    match tx.get::<Tombstone>(sandbox)? {
        Some(gone) => Ok(Some(gone.record.sandbox)),
        None => {
            let message = format!("{sandbox} is gone, and its last policy is no longer recorded");
            let hint = "export the snapshot and import it under a policy of yours, or ask an operator of the host";
            Err(Fault::new(ErrorKind::PolicyDenied, message).hint(hint).subject(sandbox).phase(Phase::Admission))
        }
    }
}

/// Adds a fresh top to frozen layers; returns the ids of the whole stack. The lock is held until a record refers to the top.
pub fn grow(
    state: &State,
    ground: &Ground,
    frozen: &[Layer],
    base: &workspace::Dir,
) -> Result<(Vec<String>, Lock), Fault> {
    let (top, lock) = match frozen.last() {
        Some(below) => fresh_layer(state, below)?,
        None => state.layers.make(base, sys::random::id_bytes()).map_err(|e| unmade(&e))?,
    };
    match (ground.driver, frozen.last()) {
        (Driver::Overlay, _) => Ok((ground.layers.iter().cloned().chain([top.id]).collect(), lock)),
        (_, Some(tree)) => match copy::tree(tree, &top) {
            Ok(_) => Ok((vec![top.id], lock)),
            Err(fault) => {
                let _ = state.layers.remove(&top.id);
                Err(fault)
            }
        },
        (_, None) => Err(Fault::internal("a copying workspace without its tree")),
    }
}

fn sandbox_on(ground: &Ground, name: Option<String>, layers: Vec<String>, at_ms: u64, from: &str) -> Sandbox {
    Sandbox {
        name,
        driver: ground.driver,
        layers,
        since: ground.since,
        git_head: ground.git_head.clone(),
        limits: ground.limits,
        cpus: ground.cpus,
        expires_ms: Some(at_ms + TTL_MS),
        notes: vec![format!("forked from {from}")],
        ..Sandbox::new(ground.base.clone(), ground.base_id, ground.policy.clone(), at_ms)
    }
}
