//! Filling of pools: the daemon checks which spares are missing and makes one at a time.

use super::leave::{body, drop_spare};
use super::take_away;
use crate::create::spare_key::key_of;
use crate::create::{self, Base, NewLayers};
use crate::quota::AddedUsage;
use crate::snapshots::check_in_use;
use api::JournalStep;
use runtime::Node;
use runtime::keeper::Keeper;
use rustix::fs::{AtFlags, Mode, OFlags};
use serde_json::Value;
use state::State;
use state::journal::note;
use state::pool::{Pool, Spare, SpareStage};
use state::sandbox::Sandbox;
use state::snapshot::Template;
use state::{Caller, total};
use std::path::Path;
use store::Kept;
use terms::{ErrorKind, Fault, Phase};
use workspace::git;

/// Marker file of a state directory with pools, so that frequent checks need not open the store.
const MARK: &str = "pools";

/// Denominator of the share of memory that must be free before a spare is made.
const LEAST_FREE: u64 = 8;

/// Missing spares of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct MissingSpares {
    pub pool: String,
    pub template: String,
    pub count: u32,
    /// Quota usage of each.
    pub each: AddedUsage,
}

pub(super) fn mark(state: &State) -> Result<(), Fault> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(&state.dir, MARK, flags, Mode::from_raw_mode(0o600))
        .map(drop)
        .map_err(|e| state::directory::unusable(&state.path, &e.to_string()))
}

/// Returns true if a state directory may have pools.
pub fn marked(state: &Path) -> bool {
    state.join(MARK).exists()
}

/// Removes unusable and surplus spares, and those made for another environment. Returns the missing spares, and the number of
/// good ones.
pub fn sweep(node: &Node, caller: &Caller) -> Result<(Vec<MissingSpares>, u64), Fault> {
    let state = node.states.open(caller)?;
    take_away(node, caller, &state)?;
    let (pools, spares) = state.store.read(|tx| {
        let mut pools = Vec::new();
        for pool in tx.list::<Pool>()? {
            if let Some(template) = tx.get::<Template>(&pool.id)? {
                pools.push((pool, template));
            }
        }
        Ok((pools, tx.list::<Spare>()?))
    })?;
    if pools.is_empty() && spares.is_empty() {
        // `set` writes the marker before and after its transaction.
        let _ = rustix::fs::unlinkat(&state.dir, MARK, AtFlags::empty());
        if state.store.read(|tx| tx.count::<Pool>())? > 0 {
            mark(&state)?;
        }
        return Ok((Vec::new(), 0));
    }
    let (mut lacks, mut all) = (Vec::new(), 0);
    for (pool, template) in &pools {
        let key = key_of(&template.record.address(), &wanted(pool, template), caller)?;
        let mut good = 0;
        for spare in spares.iter().filter(|spare| spare.record.pool == pool.id) {
            // Only this daemon makes spares, and not during a sweep: one still in the making was left by a daemon that died.
            let is_ready = spare.record.stage == SpareStage::Ready && Some(&spare.record.key) == key.as_ref();
            match is_ready && good < pool.record.keep {
                true => good += 1,
                false => drop(drop_spare(node, &state, &spare.id, caller)?),
            }
        }
        all += u64::from(good);
        let (count, name) = (pool.record.keep.saturating_sub(good), template.record.name.clone());
        if count > 0 {
            lacks.push(MissingSpares {
                pool: pool.id.clone(),
                template: name,
                count,
                each: AddedUsage::of(&wanted(pool, template)),
            });
        }
    }
    Ok((lacks, all))
}

/// Returns a sandbox as the pool requires it, without layers.
fn wanted(pool: &Kept<Pool>, template: &Kept<Template>) -> Sandbox {
    let (Pool { policy, limits, cpus, languages, .. }, ground) = (&pool.record, &template.record.ground);
    Sandbox {
        limits: *limits,
        cpus: *cpus,
        languages: languages.clone(),
        driver: ground.driver,
        git_head: git::head(&ground.base),
        ..Sandbox::new(ground.base.clone(), ground.base_id, policy.clone(), terms::clock::now_ms())
    }
}

/// Makes a spare for a pool and starts its keeper. A failure is shown with the pool.
pub fn make_spare(node: &Node, caller: &Caller, pool: &str) -> Result<(), Fault> {
    let state = node.states.open(caller)?;
    let made = make(node, &state, pool, caller);
    let trouble = made.as_ref().err().map(|fault| fault.message.clone());
    record_trouble(&state, pool, trouble)?;
    made
}

/// Records a cause other than a failed attempt for which a pool is not full.
pub fn set_trouble(node: &Node, caller: &Caller, pool: &str, why: &str) -> Result<(), Fault> {
    record_trouble(&node.states.open(caller)?, pool, Some(why.to_owned()))
}

/// Records why a pool is not full; clears it with none.
fn record_trouble(state: &State, pool: &str, trouble: Option<String>) -> Result<(), Fault> {
    let now = |pool: Option<Kept<Pool>>| pool.filter(|kept| kept.record.trouble != trouble);
    if state.store.read(|tx| tx.get::<Pool>(pool).map(now))?.is_none() {
        return Ok(());
    }
    state.store.write(|tx| {
        let Some(mut kept) = now(tx.get::<Pool>(pool)?) else { return Ok(()) };
        kept.record.trouble = trouble.clone();
        tx.change(kept).map(drop)
    })
}

fn make(node: &Node, state: &State, pool: &str, caller: &Caller) -> Result<(), Fault> {
    let found = state.store.read(|tx| Ok(tx.get::<Pool>(pool)?.zip(tx.get::<Template>(pool)?)))?;
    let Some((kept, template)) = found else { return Ok(()) };
    let address = template.record.address();
    let ask =
        create::CreateSandbox { template: Some(address.clone()), own_base: true, ..create::CreateSandbox::default() };
    let base = Base::open(&ask, Some(&template.record.ground), None, caller)?;
    state::directory::check_apart(&state.dir, &state.path, &base.dir, &base.path)?;
    state::directory::check_space(&state.dir, &state.path)?;
    let mut sandbox = wanted(&kept, &template);
    total::admit(&state.layers, &state.path, caller)?;
    total::admit_copy(&state.layers, &state.path, caller, (&base.dir, sandbox.driver))?;
    let key = key_of(&address, &sandbox, caller)?.ok_or_else(|| {
        let message =
            "cannot make a spare: the secrets of its policy would come from the environment of the caller of `create`";
        let fault = Fault::new(ErrorKind::UnsupportedPolicy, message).phase(Phase::Planning);
        fault.hint("store them with `cofferdam secret set`, and let a daemon fill the pool")
    })?;
    let id = terms::id("sbx", sys::random::id_bytes());
    let stacked = NewLayers::make(state, caller, &base, &ask, &id, &mut sandbox, &mut |_| {})?;
    let below = sandbox.layers.split_last().map(|(_, below)| below.to_vec()).unwrap_or_default();
    let spare = Spare { pool: pool.to_owned(), key, stage: SpareStage::Coming, sandbox };
    let added = state.store.write(|tx| {
        let same = tx.get::<Pool>(pool)?.is_some_and(|now| now.version == kept.version);
        if !same || tx.list_in::<Spare>(pool)?.len() >= kept.record.keep as usize {
            return Ok(false);
        }
        check_in_use(tx, &below)?;
        note(tx, "spare", JournalStep::Intent, &id, caller, body(pool, &address))?;
        tx.add(&id, spare).map(|_| true)
    });
    if !matches!(added, Ok(true)) {
        stacked.drop_layer(state);
        return added.map(drop);
    }
    // The keeper holds the layers from here on.
    drop(stacked);
    let stands = Keeper::ensure(node, caller, &state.path, &id);
    if let Err(fault) = stands {
        drop_spare(node, state, &id, caller)?;
        return Err(fault);
    }
    state.store.write(|tx| {
        let Some(mut spare) = tx.get::<Spare>(&id)?.filter(|spare| spare.record.stage == SpareStage::Coming) else {
            return Ok(());
        };
        spare.record.stage = SpareStage::Ready;
        tx.change(spare)?;
        note(tx, "spare", JournalStep::Done, &id, caller, Value::Null).map(drop)
    })
}

/// Returns the reason for which no spare should be made now: memory is short.
pub fn memory_shortage() -> Option<String> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().split(' ').next()?.parse().ok()
    };
    let (all, free) = (field("MemTotal:")?, field("MemAvailable:")?);
    (free < all / LEAST_FREE).then(|| format!("memory is short: {} of {} MiB are free", free >> 10, all >> 10))
}
