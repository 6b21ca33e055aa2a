//! `export` and `import`: workspaces as files.

use super::take::unmade;
use super::{check_name, earlier, look, note, running};
use crate::lifecycle::keys::Once;
use crate::lifecycle::{bases, create};
use crate::policies::{self, Flag, Source};
use crate::reach::{BaseFault, Reach};
use crate::sandbox::{self, Sandbox, TTL_MS};
use crate::state::{self, State};
use crate::{Caller, fresh};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::Path;
use store::{Entry, Step};
use terms::{ErrorKind, Fault, Phase};
use utoipa::ToSchema;
use workspace::archive::{self, Bounds};
use workspace::{Dir, Driver, Layer, Rel};

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Exported)]
pub struct Written {
    pub protocol_version: u32,
    /// What was exported: a sandbox or a snapshot.
    pub id: String,
    pub digest: String,
    pub entries: u64,
    pub bytes: u64,
}

/// Writes the changes of a snapshot or of a sandbox without a live run.
pub fn export(state: &State, caller: &Caller, word: &str, out: &mut dyn Write) -> Result<Written, Fault> {
    let written = match state.store.read(|tx| look(tx, word, caller))? {
        Some(kept) => {
            let ground = &kept.record.ground;
            let layers = ground.verified(state)?;
            write(&kept.id, ground.driver, &layers, about(&ground.base, &ground.policy, &ground.limits), out)?
        }
        None => {
            let found = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
            let (kept, _, Some(_lock)) = running::lock(state, &found.id)? else {
                let busy = running::busy(state, &found, "export");
                return Err(busy.hint("take a snapshot of it, and export that"));
            };
            let open = |id: &String| state.layers.get(id).map_err(|e| super::lost(id, &e));
            let layers = kept.record.layers.iter().map(open).collect::<Result<Vec<_>, _>>()?;
            let Sandbox { base, policy, limits, driver, .. } = &kept.record;
            write(&kept.id, *driver, &layers, about(base, policy, limits), out)?
        }
    };
    let body = serde_json::json!({ "digest": written.digest, "entries": written.entries });
    state.store.write(|tx| {
        let (at_ms, actor) = (fresh::now_ms(), &caller.user);
        tx.note(&Entry { at_ms, verb: "export", step: Step::Done, subject: &written.id, actor, body })
    })?;
    Ok(written)
}

/// Nothing that differs from one export of the same workspace to the next.
fn about(base: &Path, policy: &serde_json::Value, limits: &terms::Limits) -> serde_json::Value {
    serde_json::json!({ "base": base, "policy": policy, "limits": limits })
}

fn write(
    id: &str,
    driver: Driver,
    layers: &[Layer],
    about: serde_json::Value,
    out: &mut dyn Write,
) -> Result<Written, Fault> {
    if driver != Driver::Overlay {
        let fault = Fault::new(ErrorKind::UnsupportedHost, format!("{id} is a copy, which holds no list of changes"));
        return Err(fault.hint("take a patch with `cofferdam diff --patch`").subject(id).phase(Phase::Admission));
    }
    let ups: Vec<&Dir> = layers.iter().map(|l| &l.up).collect();
    let done = archive::export(&ups, about, out).map_err(|fault| fault.subject(id))?;
    let archive::Exported { digest, entries, bytes } = done;
    Ok(Written { protocol_version: terms::PROTOCOL_VERSION, id: id.to_owned(), digest, entries, bytes })
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    pub protocol_version: u32,
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    pub digest: String,
    pub entries: u64,
    pub bytes: u64,
    /// What the file says of where it comes from.
    #[schema(value_type = Object)]
    pub about: serde_json::Value,
}

/// What a new sandbox gets beside what is in the file. The file's own policy is told and never obeyed.
#[derive(Debug)]
pub struct Onto<'a> {
    /// An empty one of its own where none is given.
    pub dir: Option<&'a Path>,
    pub name: Option<&'a str>,
    pub policies: Vec<Source>,
    pub flags: Vec<Flag>,
    pub bounds: Bounds,
    /// Once under a key.
    pub once: Option<Once>,
}

/// A new sandbox over a directory, with the changes that a file holds. Of a file that is refused nothing stays.
pub fn import(state: &State, caller: &Caller, onto: Onto<'_>, input: &mut dyn Read) -> Result<Imported, Fault> {
    if let Some(known) = earlier(state, onto.once.as_ref())? {
        return Ok(known);
    }
    onto.name.map_or(Ok(()), check_name)?;
    let id = terms::id("sbx", fresh::random());
    let own = if onto.dir.is_none() { Some(bases::make(state, &id)?) } else { None };
    let dir = onto.dir.or(own.as_ref().map(bases::Own::path)).unwrap_or(Path::new(""));
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
    state::check_apart(&state.dir, &state.path, &base, &path)?;
    state::check_space(&state.dir, &state.path)?;
    let (policy, _) = policies::effective(&onto.policies, &onto.flags, caller)?;
    let policy: serde_json::Value =
        serde_json::from_str(&policy.to_json()).map_err(|e| Fault::internal(e.to_string()))?;
    let meta = base.meta(&Rel::top()).map_err(|e| bad(e.to_string()))?.ok_or_else(|| bad("it is gone".to_owned()))?;
    let (layer, lock) = state.layers.make(&base, fresh::random()).map_err(|e| unmade(&e))?;
    let made = archive::import(input, &layer.up, &onto.bounds).and_then(|unpacked| {
        let since = layer.made_at().map_err(|e| super::lost(&layer.id, &e))?;
        let at_ms = fresh::now_ms();
        let sandbox = Sandbox {
            name: onto.name.map(str::to_owned),
            owner: caller.owner(),
            layers: vec![layer.id.clone()],
            since,
            git_head: workspace::git::head(&path),
            expires_ms: Some(at_ms + TTL_MS),
            notes: vec![format!("imported, digest {}", unpacked.digest)],
            ..Sandbox::new(path.clone(), (meta.dev, meta.ino), policy.clone(), at_ms)
        };
        let body = serde_json::json!({ "digest": unpacked.digest, "entries": unpacked.entries, "base": path });
        let archive::Imported { about, digest, entries, bytes } = unpacked;
        let name = onto.name.map(str::to_owned);
        let made = Imported { protocol_version: terms::PROTOCOL_VERSION, id, name, digest, entries, bytes, about };
        state.store.write(|tx| {
            tx.add(&made.id, sandbox)?;
            onto.once.as_ref().map_or(Ok(()), |once| once.keep(tx, &made.id, &made, at_ms))?;
            note(tx, at_ms, "import", &made.id, &caller.user, body)
        })?;
        Ok(made)
    });
    if made.is_err() {
        let _ = state.layers.remove(&layer.id);
    }
    drop(lock);
    if made.is_ok() {
        own.into_iter().for_each(bases::Own::keep);
        create::wait_for_clock(&layer);
    }
    made
}
