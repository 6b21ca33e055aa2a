//! Tokens: the bearer credentials of the daemon's API, each with a tenant and scopes. Only a digest of the secret is stored.

use api::{DEFAULT_TENANT, JournalStep, LimitBounds, Scope, TokenCreate, TokenCreated, TokenRevoked};
use runtime::Node;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::Digest;
use sha2::Sha256;
use state::State;
use state::journal::note;
use state::names::check_name;
use state::sandbox::{Run, Sandbox, Tombstone};
use state::snapshot::Snapshot;
use state::{Caller, Own};
use std::cell::{Ref, RefCell};
use std::path::{Path, PathBuf};
use store::{Kept, Record, Store, Tx};
use terms::{ErrorKind, Fault, Phase, Retry};
use workspace::Dir;

/// Built-in policies that open nothing of the host and no network; others must be granted by name.
pub const USUAL_POLICIES: [&str; 5] = ["default", "read-only", "workspace-write", "no-network", "strict"];
/// Most tokens.
const MOST: u64 = 10_000;
const MOST_GRANTS: usize = 64;
/// Resolution of the time of last use.
const USED_EVERY_MS: u64 = 60_000;

/// A token as it is kept; ids are `tok_…`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenRecord {
    /// For people, and for the journal.
    pub label: String,
    pub tenant: String,
    pub scopes: Vec<Scope>,
    pub dirs: Vec<PathBuf>,
    pub policies: Vec<String>,
    /// Ids of sandboxes that it may use beside those that it made.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub sandboxes: Vec<String>,
    /// Defaults and ceilings for the limits of its sandboxes.
    #[serde(skip_serializing_if = "LimitBounds::is_empty", default)]
    pub limits: LimitBounds,
    /// SHA-256 of the secret, in hex. The secret has 256 random bits, so that nothing slower is needed.
    pub digest: String,
    pub created_ms: u64,
    pub created_by: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub used_ms: Option<u64>,
}

impl TokenRecord {
    /// Returns the sandboxes that a bound token may use; none if it has all of its tenant. An agent's token also has those that
    /// it made.
    pub fn own(&self, id: &str) -> Option<Own> {
        let has = |scope| self.scopes.contains(&scope);
        let is_bound = !has(Scope::Operator) && (has(Scope::Agent) || !self.sandboxes.is_empty());
        is_bound.then(|| Own { token: id.to_owned(), sandboxes: self.sandboxes.clone() })
    }
}

impl Record for TokenRecord {
    const KIND: &'static store::Kind = state::records::kind("token");

    fn scope(&self) -> Option<&str> {
        Some(&self.tenant)
    }
}

fn shown(kept: Kept<TokenRecord>) -> api::Token {
    let Kept { id, record, .. } = kept;
    let TokenRecord { label: name, tenant, scopes, dirs, policies, sandboxes, .. } = record;
    let TokenRecord { limits, created_ms, created_by, expires_ms, used_ms, .. } = record;
    api::Token {
        id,
        name,
        tenant,
        scopes,
        dirs,
        policies,
        sandboxes,
        limits,
        created_ms,
        created_by,
        expires_ms,
        used_ms,
    }
}

pub fn create(node: &Node, caller: &Caller, ask: &TokenCreate) -> Result<TokenCreated, Fault> {
    check_name(&ask.name)?;
    check_tenant(&ask.tenant)?;
    let state = node.states.open(caller)?;
    let secret = terms::hex::encode([sys::random::id_bytes(), sys::random::id_bytes()].concat());
    let at_ms = terms::clock::now_ms();
    let usual = || USUAL_POLICIES.iter().map(|name| (*name).to_owned()).collect();
    let token = TokenRecord {
        label: ask.name.clone(),
        tenant: ask.tenant.clone(),
        scopes: scopes(ask)?,
        dirs: dirs(ask, &state)?,
        policies: if ask.policies.is_empty() { usual() } else { presets(ask)? },
        sandboxes: sandboxes(ask, caller)?,
        limits: limits(ask)?,
        digest: digest(&secret),
        created_ms: at_ms,
        created_by: caller.user.clone(),
        expires_ms: ask.ttl_ms.map(|ttl| at_ms.saturating_add(ttl)),
        used_ms: None,
    };
    let id = terms::id("tok", sys::random::id_bytes());
    let kept = state.store.write(|tx| {
        if tx.count::<TokenRecord>()? >= MOST {
            let fault =
                Fault::new(ErrorKind::LimitExceeded, format!("there are {MOST} tokens already, which is the maximum"));
            return Err(fault.retry(Retry::Later).hint("revoke some").phase(Phase::Admission));
        }
        let body = json!({"name": token.label, "tenant": token.tenant, "scopes": token.scopes, "dirs": token.dirs,
            "sandboxes": token.sandboxes, "limits": token.limits, "expires_ms": token.expires_ms});
        note(tx, "token", JournalStep::Done, &id, caller, body)?;
        tx.add(&id, token)
    })?;
    let token = format!("cof_{}_{secret}", id.trim_start_matches("tok_"));
    Ok(TokenCreated { shown: shown(kept), token })
}

/// Lists all tokens, newest first.
pub fn list(node: &Node, caller: &Caller) -> Result<Vec<api::Token>, Fault> {
    let mut all = node.states.open(caller)?.store.read(|tx| tx.list::<TokenRecord>())?;
    all.sort_by(|a, b| b.record.created_ms.cmp(&a.record.created_ms).then_with(|| a.id.cmp(&b.id)));
    Ok(all.into_iter().map(shown).collect())
}

/// Revokes a token at once. A repetition changes nothing.
pub fn revoke(node: &Node, caller: &Caller, id: &str) -> Result<TokenRevoked, Fault> {
    let state = node.states.open(caller)?;
    let changed = state.store.write(|tx| {
        let there = tx.remove::<TokenRecord>(id)?;
        if there {
            note(tx, "token revoke", JournalStep::Done, id, caller, serde_json::Value::Null)?;
        } else if tx.noted(Some(id), None, 1)?.is_empty() {
            let fault = Fault::new(ErrorKind::NotFound, format!("there is no token {id:?}")).subject(id);
            return Err(fault.hint("`cofferdam token ls` lists them").phase(Phase::Admission));
        }
        Ok(there)
    })?;
    Ok(TokenRevoked { id: id.to_owned(), changed })
}

/// The tokens of a state directory, with an open store for frequent lookups.
pub struct TokenLookup {
    caller: Caller,
    store: RefCell<Store>,
}

impl TokenLookup {
    pub fn open(node: &Node, caller: &Caller) -> Result<TokenLookup, Fault> {
        Ok(TokenLookup { store: RefCell::new(node.states.open(caller)?.store), caller: caller.clone() })
    }

    /// Returns the current store; a store whose directory was moved or replaced is reopened.
    fn store(&self, node: &Node) -> Result<Ref<'_, Store>, Fault> {
        if !self.store.borrow().is_current() {
            let again = node.states.open(&self.caller)?.store;
            *self.store.borrow_mut() = again;
        }
        Ok(self.store.borrow())
    }

    /// Fails if the state cannot be opened and read, as every verb does.
    pub fn works(&self, node: &Node) -> Result<(), Fault> {
        node.states.open(&self.caller)?.store.read(|tx| tx.count::<TokenRecord>()).map(drop)
    }

    /// Returns the token of a presented secret; none if it is unknown, revoked or expired.
    pub fn find_by_secret(&self, node: &Node, presented: &str) -> Result<Option<Kept<TokenRecord>>, Fault> {
        let Some((id, secret)) = split(presented) else { return Ok(None) };
        let known = self.get(node, &id)?;
        // Computed and compared also for an unknown id, so that timing reveals nothing.
        let none = "0".repeat(64);
        let expected = known.as_ref().map_or(none.as_str(), |kept| kept.record.digest.as_str());
        let same = same(digest(secret).as_bytes(), expected.as_bytes());
        Ok(known.filter(|_| same))
    }

    /// Returns a token by its id, if it is valid now.
    pub fn get(&self, node: &Node, id: &str) -> Result<Option<Kept<TokenRecord>>, Fault> {
        let now = terms::clock::now_ms();
        let kept = self.store(node)?.read(|tx| tx.get::<TokenRecord>(id))?;
        Ok(kept.filter(|kept| kept.record.expires_ms.is_none_or(|end| end > now)))
    }

    /// Records the time of use, to the minute. A failure refuses no request.
    pub fn used(&self, node: &Node, kept: &Kept<TokenRecord>) {
        let now = terms::clock::now_ms();
        if kept.record.used_ms.is_some_and(|before| before.saturating_add(USED_EVERY_MS) > now) {
            return;
        }
        let _ = self.store(node).and_then(|store| {
            store.write(|tx| {
                let Some(mut kept) = tx.get::<TokenRecord>(&kept.id)? else { return Ok(()) };
                kept.record.used_ms = Some(now);
                tx.change(kept).map(drop)
            })
        });
    }

    /// Writes to the journal that a caller named an object of another tenant, or of another agent of the same tenant.
    pub fn note_foreign(&self, node: &Node, actor: &str, subject: &str, route: &str, and_more: bool) {
        let mut body = json!({"route": route, "why": "it belongs to another tenant or token"});
        if and_more {
            body["more"] = json!("further attempts of this minute are not recorded");
        }
        let at_ms = terms::clock::now_ms();
        let entry = store::Entry { at_ms, verb: "foreign", step: JournalStep::Failed, subject, actor, body };
        let _ = self.store(node).and_then(|store| store.write(|tx| tx.note(&entry)));
    }
}

/// Returns true if a state directory has a record of a sandbox whose id begins so.
pub fn knows(caller: &Caller, id: &str) -> Result<bool, Fault> {
    Ok(!named(caller, id, |_, _| Ok(true))?.is_empty())
}

/// Returns true if a state directory has exactly this id and the caller may see it.
pub fn shows(caller: &Caller, id: &str) -> Result<bool, Fault> {
    Ok(!named(caller, id, |tx, found| Ok(found == id && caller.sees_id(tx, found)?))?.is_empty())
}

/// Returns true if a state directory has an id with this beginning that the caller may not see.
pub fn hides(caller: &Caller, id: &str) -> Result<bool, Fault> {
    Ok(caller.is_bound() && !named(caller, id, |tx, id| caller.sees_id(tx, id).map(|seen| !seen))?.is_empty())
}

fn named(caller: &Caller, id: &str, is: impl Fn(&Tx<'_>, &str) -> Result<bool, Fault>) -> Result<Vec<String>, Fault> {
    const MOST: u32 = 16;
    let path = state::directory::place(caller)?;
    if !path.join("store.db").exists() {
        return Ok(Vec::new());
    }
    Store::open(&path)?.read(|tx| {
        let mut found = tx.ids_from::<Sandbox>(id, MOST)?;
        found.extend(tx.ids_from::<Tombstone>(id, MOST)?);
        found.extend(tx.ids_from::<Run>(id, MOST)?);
        found.extend(tx.ids_from::<Snapshot>(id, MOST)?);
        let mut those = Vec::new();
        for id in found {
            if is(tx, &id)? {
                those.push(id);
            }
        }
        Ok(those)
    })
}

/// Splits `cof_ID_SECRET` into the token's id and its secret.
fn split(text: &str) -> Option<(String, &str)> {
    let (id, secret) = text.strip_prefix("cof_")?.split_once('_')?;
    let is_hex = |text: &str, length: usize| text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit());
    (is_hex(id, 32) && is_hex(secret, 64)).then(|| (format!("tok_{id}"), secret))
}

fn digest(secret: &str) -> String {
    terms::hex::encode(Sha256::digest(secret.as_bytes()))
}

/// Compares in constant time.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(a.len() ^ b.len(), |acc, (a, b)| std::hint::black_box(acc | usize::from(a ^ b)));
    std::hint::black_box(differ) == 0
}

/// Checks a tenant's name, which becomes the name of a directory: no capitals and no dots, besides the rule of `check_name`. A
/// `_` may be the first.
pub fn check_tenant(name: &str) -> Result<(), Fault> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    if (1..=64).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('-') {
        return Ok(());
    }
    let fault = Fault::invalid(format!("tenant {name:?}: not a valid tenant name")).phase(Phase::Admission);
    Err(fault.hint("use 1 to 64 lower-case letters, digits, dashes and underscores; no dash first, e.g. team-a"))
}

fn scopes(ask: &TokenCreate) -> Result<Vec<Scope>, Fault> {
    let mut scopes = ask.scopes.clone();
    scopes.sort();
    scopes.dedup();
    match scopes.is_empty() {
        true => Err(Fault::invalid("scopes: none").hint("give agent, reviewer or operator").phase(Phase::Admission)),
        false => Ok(scopes),
    }
}

/// Refuses limits on a token of the host's operator: no ceiling binds it, so the limits would not hold.
fn limits(ask: &TokenCreate) -> Result<LimitBounds, Fault> {
    let unbound = ask.tenant == DEFAULT_TENANT && ask.scopes.contains(&Scope::Operator);
    if !ask.limits.is_empty() && unbound {
        let fault = Fault::invalid("limits: not supported for a token of the daemon's own operator");
        return Err(fault.hint("leave them out, or give the token other scopes or a tenant").phase(Phase::Admission));
    }
    ask.limits.check()?;
    Ok(ask.limits)
}

fn presets(ask: &TokenCreate) -> Result<Vec<String>, Fault> {
    if let Some(name) = ask.policies.iter().find(|name| policy::preset(name).is_none()) {
        let known: Vec<_> = policy::PRESETS.iter().map(|(name, _)| *name).collect();
        let fault = Fault::invalid(format!("policies: {name:?} is not a built-in policy")).phase(Phase::Admission);
        return Err(fault.hint(format!("built-in policies: {}", known.join(", "))));
    }
    Ok(ask.policies.clone())
}

/// Returns the state directory of a tenant; the daemon's own tenant has the daemon's.
pub fn state_of(state: &Path, tenant: &str) -> PathBuf {
    if tenant == DEFAULT_TENANT { state.to_owned() } else { state.join("tenants").join(tenant) }
}

/// Resolves the names to ids of sandboxes in the tenant's state.
fn sandboxes(ask: &TokenCreate, caller: &Caller) -> Result<Vec<String>, Fault> {
    if ask.sandboxes.is_empty() {
        return Ok(Vec::new());
    }
    let refuse =
        |why: String, hint: &str| Fault::invalid(format!("sandboxes: {why}")).hint(hint).phase(Phase::Admission);
    if ask.sandboxes.len() > MOST_GRANTS {
        let hint = "create several tokens, or a tenant for them";
        return Err(refuse(format!("{}; at most {MOST_GRANTS}", ask.sandboxes.len()), hint));
    }
    let scopes = &ask.scopes;
    if scopes.contains(&Scope::Operator) || !scopes.iter().any(|s| matches!(s, Scope::Agent | Scope::Reviewer)) {
        return Err(refuse(
            "only a token with scope agent or reviewer can name sandboxes".to_owned(),
            "leave them out",
        ));
    }
    let place = state_of(&state::directory::place(caller)?, &ask.tenant);
    let none =
        |word: &str| refuse(format!("tenant {} has no sandbox {word:?}", ask.tenant), "name an existing sandbox");
    if !place.join("store.db").exists() {
        return Err(none(&ask.sandboxes[0]));
    }
    let store = Store::open(&place)?;
    let find = |word: &String| match store.read(|tx| state::sandbox::find(tx, Some(word), caller)) {
        Err(fault) if fault.error_kind == ErrorKind::NotFound => Err(none(word)),
        found => found.map(|kept| kept.id),
    };
    let mut found = ask.sandboxes.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    found.sort();
    found.dedup();
    Ok(found)
}

/// Resolves the granted directories to real paths, and refuses the state directory.
fn dirs(ask: &TokenCreate, state: &State) -> Result<Vec<PathBuf>, Fault> {
    if ask.dirs.len() > MOST_GRANTS {
        let fault = Fault::invalid(format!("dirs: {}; at most {MOST_GRANTS}", ask.dirs.len()));
        return Err(fault.hint("grant a directory above them").phase(Phase::Admission));
    }
    let real = |dir: &PathBuf| {
        let bad = |why: String| {
            let fault = Fault::invalid(format!("dirs: {}: {why}", dir.display())).phase(Phase::Admission);
            fault.hint("grant a directory that exists, by its absolute path")
        };
        if !dir.is_absolute() {
            return Err(bad("not an absolute path".into()));
        }
        let path = std::fs::canonicalize(dir).map_err(|e| bad(e.to_string()))?;
        let opened = Dir::open(&path).map_err(|e| bad(e.to_string()))?;
        state::directory::check_apart(&state.dir, &state.path, &opened, &path)?;
        Ok(path)
    };
    ask.dirs.iter().map(real).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_told_from_what_is_none() {
        let (id, secret) = ("0".repeat(32), "f".repeat(64));
        assert_eq!(split(&format!("cof_{id}_{secret}")), Some((format!("tok_{id}"), secret.as_str())));
        for bad in ["", "cof_", &format!("cof_{id}"), &format!("cof_{id}_{id}"), &format!("tok_{id}_{secret}")] {
            assert_eq!(split(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_equal_bytes_are_the_same() {
        assert!(same(b"abc", b"abc") && same(b"", b""));
        for (a, b) in [("abc", "abd"), ("abc", "ab"), ("", "a"), ("bbc", "abc")] {
            assert!(!same(a.as_bytes(), b.as_bytes()), "{a} {b}");
        }
    }

    #[test]
    fn tenants_are_names_of_directories() {
        assert!(["default", "a", "team-2"].into_iter().all(|name| check_tenant(name).is_ok()));
        let long = "a".repeat(65);
        assert!(["", "A", "a/b", "..", "-a", "a b", "ä", &long].into_iter().all(|name| check_tenant(name).is_err()));
    }
}
