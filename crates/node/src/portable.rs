//! `export` and `import`: workspaces as files.

use crate::snapshots::take::unmade;
use crate::snapshots::{discard, earlier, note, running, try_find};
use crate::{create, own_bases};
use api::{Driver, Exported, JournalStep, Rel, SandboxImported};
use runtime::Node;
use runtime::denied;
use runtime::policies::{self, Flag, RequestedPolicy};
use state::idempotency::KeyedRequest;
use state::names::check_name;
use state::reach::{BaseFault, Reach};
use state::sandbox::{self, Sandbox, TTL_MS};
use state::snapshot::covered;
use state::{Caller, bounds, total};
use std::io::{Read, Write};
use std::path::Path;
use store::Entry;
use terms::{Fault, Phase};
use workspace::archive::{self, Bounds};
use workspace::origin::Origin;
use workspace::{Dir, Layer, copy, driver};

/// Writes the changes of a snapshot or of a sandbox without a live run.
pub fn export(node: &Node, caller: &Caller, word: &str, out: &mut dyn Write) -> Result<Exported, Fault> {
    let state = &node.states.lend(caller)?;
    let written = match state.store.read(|tx| try_find(tx, word, caller))? {
        Some(kept) => {
            let ground = &kept.record.ground;
            let what = ExportSource {
                id: &kept.id,
                driver: ground.driver,
                base: ground.base(),
                layers: ground.verified(state)?,
            };
            let may = denied::may_export(&kept.id, (&ground.policy, &ground.base), caller)?;
            write(what, about(&ground.base, &ground.policy, &ground.limits), &may, out)?
        }
        None => {
            let found = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
            let (kept, _, Some(_lock)) = running::lock(node, state, &found.id)? else {
                let busy = running::busy(state, &found, "export");
                return Err(busy.hint("take a snapshot of it, and export that"));
            };
            let open = |id: &String| state.layers.get(id).map_err(|e| state::snapshot::lost(id, &e));
            let layers = kept.record.layers.iter().map(open).collect::<Result<Vec<_>, _>>()?;
            let Sandbox { base, base_id, since, policy, limits, driver, .. } = &kept.record;
            let what = ExportSource { id: &kept.id, driver: *driver, base: covered(base, *base_id, *since), layers };
            let may = denied::may_export(&kept.id, (policy, base), caller)?;
            write(what, about(base, policy, limits), &may, out)?
        }
    };
    let body = serde_json::json!({ "digest": written.digest, "entries": written.entries });
    state.store.write(|tx| {
        let (at_ms, actor) = (terms::clock::now_ms(), &caller.user);
        tx.note(&Entry { at_ms, verb: "export", step: JournalStep::Done, subject: &written.id, actor, body })
    })?;
    Ok(written)
}

/// Describes the export, without anything that differs between two exports of the same workspace.
fn about(base: &Path, policy: &serde_json::Value, limits: &terms::Limits) -> serde_json::Value {
    serde_json::json!({ "base": base, "policy": policy, "limits": limits })
}

/// The layers to write, and the directory they covered, if it still exists.
struct ExportSource<'a> {
    id: &'a str,
    driver: Driver,
    base: Result<Dir, Fault>,
    layers: Vec<Layer>,
}

fn write(
    what: ExportSource<'_>,
    about: serde_json::Value,
    may: &dyn Fn(&Rel) -> Result<(), Fault>,
    out: &mut dyn Write,
) -> Result<Exported, Fault> {
    let ExportSource { id, driver, base, layers } = what;
    let of_it = |fault: Fault| fault.subject(id);
    let is_copy = driver != Driver::Overlay;
    // Layers record their changes themselves; a copy has to be compared with its base.
    let base = if is_copy { Some(base.map_err(of_it)?) } else { base.ok() };
    let taking_part = if is_copy { layers.len().saturating_sub(1) } else { 0 };
    let source = archive::ExportSource {
        layers: layers[taking_part..].iter().map(|l| &l.up).collect(),
        marks: workspace::Marks::of(driver),
        base: base.as_ref(),
        origin: layers.last().filter(|_| is_copy).and_then(Origin::read),
    };
    let done = archive::export(&source, about, may, out).map_err(of_it)?;
    let archive::Exported { digest, entries, bytes } = done;
    Ok(Exported { protocol_version: terms::PROTOCOL_VERSION, id: id.to_owned(), digest, entries, bytes })
}

/// A longer `about` is not kept under a key: it is the sender's to choose, and keys are kept for a day.
const LONGEST_KEPT: usize = 16 << 10;

/// The answer to keep under an idempotency key.
fn kept_answer(made: &SandboxImported) -> SandboxImported {
    let is_short = made.about.to_string().len() <= LONGEST_KEPT;
    SandboxImported { about: if is_short { made.about.clone() } else { serde_json::Value::Null }, ..made.clone() }
}

/// Options of the new sandbox that are not in the file. The policy in the file is reported but never applied.
#[derive(Debug)]
pub struct ImportOptions<'a> {
    /// The directory to cover; an empty one of its own by default.
    pub dir: Option<&'a Path>,
    pub name: Option<&'a str>,
    pub policies: Vec<RequestedPolicy>,
    pub flags: Vec<Flag>,
    pub bounds: Bounds,
    /// The workspace driver; the best one that works by default.
    pub driver: Option<Driver>,
    /// Idempotency key.
    pub once: Option<KeyedRequest>,
}

/// Makes a sandbox over a directory, with the changes in a file. A refused file leaves nothing behind.
pub fn import(
    node: &Node,
    caller: &Caller,
    onto: ImportOptions<'_>,
    input: &mut dyn Read,
) -> Result<SandboxImported, Fault> {
    let state = &node.states.lend(caller)?;
    if let Some(known) = earlier(state, onto.once.as_ref())? {
        return Ok(SandboxImported { existed: true, ..known });
    }
    onto.name.map_or(Ok(()), check_name)?;
    let id = terms::id("sbx", sys::random::id_bytes());
    let own = if onto.dir.is_none() { Some(own_bases::make(state, &id)?) } else { None };
    let dir = onto.dir.or(own.as_ref().map(own_bases::OwnBase::path)).unwrap_or(Path::new(""));
    let bad = |why: String| {
        let fault = Fault::invalid(format!("{}: {why}", dir.display())).phase(Phase::Admission);
        fault.hint("name a directory that exists and that you may read")
    };
    let reach = if own.is_none() { &caller.reach } else { &Reach::All };
    let path = reach.base(&caller.cwd.join(dir)).map_err(|why| match why {
        BaseFault::Missing(e) => bad(e.to_string()),
        BaseFault::Refused(fault) => *fault,
    })?;
    if path.to_str().is_none() {
        return Err(bad("its path is not UTF-8".to_owned()));
    }
    let base = Dir::open_canonical(&path).map_err(|e| bad(e.to_string()))?;
    state::directory::check_apart(&state.dir, &state.path, &base, &path)?;
    state::directory::check_space(&state.dir, &state.path)?;
    let (room, _) = total::left(&state.layers, &state.path, caller)?;
    let policy = policies::effective(&onto.policies, &onto.flags, caller)?.policy;
    create::rules::validate(&policy, &create::CreateSandbox::default(), caller, &path)?;
    let policy: serde_json::Value =
        serde_json::from_str(&policy.to_json()).map_err(|e| Fault::internal(e.to_string()))?;
    let meta = base.meta(&Rel::top()).map_err(|e| bad(e.to_string()))?.ok_or_else(|| bad("it is gone".to_owned()))?;
    let driver = driver::choose(&base, &state.layers.dir, onto.driver)?;
    total::admit_copy(&state.layers, &state.path, caller, (&base, driver))?;
    let bounds = Bounds { bytes: room.map_or(onto.bounds.bytes, |left| onto.bounds.bytes.min(left)), ..onto.bounds };
    let (layer, lock) = state.layers.make(&base, sys::random::id_bytes()).map_err(|e| unmade(&e))?;
    let since = layer.made_at().map_err(|e| state::snapshot::lost(&layer.id, &e))?;
    let made = fill(&base, &layer, driver, &bounds, input).and_then(|(unpacked, left_out)| {
        let at_ms = terms::clock::now_ms();
        let mut sandbox = Sandbox {
            name: onto.name.map(str::to_owned),
            owner: caller.owner(),
            driver,
            layers: vec![layer.id.clone()],
            since,
            git_head: workspace::git::head(&path),
            expires_ms: Some(at_ms + TTL_MS),
            notes: [format!("imported, digest {}", unpacked.digest)].into_iter().chain(left_out).collect(),
            ..Sandbox::new(path.clone(), (meta.dev, meta.ino), policy.clone(), at_ms)
        };
        let told = bounds::apply(&mut sandbox, caller)?;
        sandbox.notes.extend(told);
        let body = serde_json::json!({ "digest": unpacked.digest, "entries": unpacked.entries, "base": path });
        let archive::Imported { about, digest, entries, bytes } = unpacked;
        let name = onto.name.map(str::to_owned);
        let (protocol_version, existed) = (terms::PROTOCOL_VERSION, false);
        let made = SandboxImported { protocol_version, id, name, digest, entries, bytes, about, existed };
        state.layers.settle_names(&layer).map_err(|e| unmade(&e))?;
        state.store.write(|tx| {
            tx.add(&made.id, sandbox)?;
            onto.once.as_ref().map_or(Ok(()), |once| once.keep(tx, &made.id, &kept_answer(&made), at_ms))?;
            note(tx, at_ms, "import", &made.id, &caller.user, body)
        })?;
        Ok(made)
    });
    if made.is_err() {
        discard(state, &layer.id);
    }
    drop(lock);
    if made.is_ok() || state.store.is_in_doubt() {
        own.into_iter().for_each(own_bases::OwnBase::keep);
    }
    if made.is_ok() {
        create::wait_for_clock(&layer);
    }
    made
}

/// Unpacks into a fresh layer, which a copying driver fills with the directory first; returns the notes on what the copy left
/// out.
fn fill(
    base: &Dir,
    layer: &Layer,
    driver: Driver,
    bounds: &Bounds,
    input: &mut dyn Read,
) -> Result<(archive::Imported, Option<String>), Fault> {
    let left_out = match driver {
        Driver::Overlay => None,
        Driver::Reflink | Driver::Copy => copy::into_layer(base, layer, driver, &mut |_| {})?.left_out(),
    };
    Ok((archive::import(input, &layer.up, workspace::Marks::of(driver), bounds)?, left_out))
}
