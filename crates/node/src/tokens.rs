//! Tokens: who may come through the daemon's door, for whom and for what. Of a token's secret only a digest is kept.

use runtime::Node;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use state::State;
use state::bounds::Level;
use state::journal::note;
use state::names::check_name;
use state::sandbox::{Run, Sandbox, Tombstone};
use state::snapshot::Snapshot;
use state::{Caller, Own};
use std::cell::{Ref, RefCell};
use std::path::{Path, PathBuf};
use store::{Kept, Record, Step, Store, Tx};
use terms::{ErrorKind, Fault, Phase, Retry};
use utoipa::ToSchema;
use workspace::Dir;

/// The tenant that the daemon's own state belongs to.
pub const DEFAULT_TENANT: &str = "default";
/// Built-in policies that open nothing of the host and no network; others must be granted by name.
pub const USUAL_POLICIES: [&str; 5] = ["default", "read-only", "workspace-write", "no-network", "strict"];
/// Tokens that there can be.
const MOST: u64 = 10_000;
const MOST_GRANTS: usize = 64;
/// How exactly the last use is remembered.
const USED_EVERY_MS: u64 = 60_000;

/// What a credential is good for. Each scope is its own: a reviewer cannot run, an agent cannot approve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Run commands, read and write its own sandboxes: those that it made or was bound to.
    Agent,
    /// Diff, approve, reject.
    Reviewer,
    /// All of it, and policy, limits, tokens.
    Operator,
    /// The daemon's figures, and nothing else.
    Metrics,
}

impl Scope {
    pub fn name(self) -> &'static str {
        match self {
            Scope::Agent => "agent",
            Scope::Reviewer => "reviewer",
            Scope::Operator => "operator",
            Scope::Metrics => "metrics",
        }
    }
}

/// A token as it is kept; ids are `tok_…`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Token {
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
    #[serde(skip_serializing_if = "Level::is_empty", default)]
    pub limits: Level,
    /// SHA-256 of the secret, in hex. The secret has 256 random bits, so that nothing slower is needed.
    pub digest: String,
    pub created_ms: u64,
    pub created_by: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub used_ms: Option<u64>,
}

impl Token {
    /// The only sandboxes that there are for it; none where it has all of its tenant. Who runs commands has what it made.
    pub fn own(&self, id: &str) -> Option<Own> {
        let has = |scope| self.scopes.contains(&scope);
        let is_bound = !has(Scope::Operator) && (has(Scope::Agent) || !self.sandboxes.is_empty());
        is_bound.then(|| Own { token: id.to_owned(), sandboxes: self.sandboxes.clone() })
    }
}

impl Record for Token {
    const KIND: &'static store::Kind = state::records::kind("token");

    fn scope(&self) -> Option<&str> {
        Some(&self.tenant)
    }
}

/// What a new token shall be.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TokenCreate)]
pub struct Ask {
    /// For people, and for the journal.
    pub name: String,
    #[serde(default = "default_tenant")]
    pub tenant: String,
    #[schema(min_items = 1)]
    pub scopes: Vec<Scope>,
    /// Directories that its sandboxes may cover, with all below.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub dirs: Vec<PathBuf>,
    /// Built-in policies that its sandboxes may have; those that open neither files of the host nor a network, where none is
    /// given.
    #[serde(default)]
    pub policies: Vec<String>,
    /// Sandboxes of its tenant that it may use, by id or name. An agent's token has these and those that it makes itself, and for it there
    /// are no others; a reviewer's has all where none is given.
    #[serde(default)]
    pub sandboxes: Vec<String>,
    /// Defaults and ceilings for the limits of its sandboxes, beside those of its tenant and of the node.
    #[serde(default)]
    pub limits: Level,
    /// Good for so long; until it is revoked, where none is given.
    #[serde(default)]
    pub ttl_ms: Option<u64>,
}

fn default_tenant() -> String {
    DEFAULT_TENANT.into()
}

/// A token as it is shown: all but its secret.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Token)]
pub struct Shown {
    pub id: String,
    pub name: String,
    pub tenant: String,
    pub scopes: Vec<Scope>,
    #[schema(value_type = Vec<String>)]
    pub dirs: Vec<PathBuf>,
    pub policies: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub sandboxes: Vec<String>,
    /// Defaults and ceilings for the limits of its sandboxes, as they were given with it.
    #[serde(skip_serializing_if = "Level::is_empty", default)]
    pub limits: Level,
    pub created_ms: u64,
    pub created_by: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_ms: Option<u64>,
    /// When it was last used, to the minute.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub used_ms: Option<u64>,
}

/// A new token, with its secret, which is told this once.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct Minted {
    #[serde(flatten)]
    pub shown: Shown,
    /// What to send: `Authorization: Bearer …`.
    pub token: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Revoked {
    pub id: String,
    /// False when there was none any more.
    pub changed: bool,
}

fn shown(kept: Kept<Token>) -> Shown {
    let Kept { id, record, .. } = kept;
    let Token { label: name, tenant, scopes, dirs, policies, sandboxes, .. } = record;
    let Token { limits, created_ms, created_by, expires_ms, used_ms, .. } = record;
    Shown { id, name, tenant, scopes, dirs, policies, sandboxes, limits, created_ms, created_by, expires_ms, used_ms }
}

pub fn create(node: &Node, caller: &Caller, ask: &Ask) -> Result<Minted, Fault> {
    check_name(&ask.name)?;
    check_tenant(&ask.tenant)?;
    let state = node.states.open(caller)?;
    let secret = terms::hex::encode([sys::random::id_bytes(), sys::random::id_bytes()].concat());
    let at_ms = terms::clock::now_ms();
    let usual = || USUAL_POLICIES.iter().map(|name| (*name).to_owned()).collect();
    let token = Token {
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
        if tx.count::<Token>()? >= MOST {
            let fault = Fault::new(ErrorKind::LimitExceeded, format!("there are {MOST} tokens, the most there can be"));
            return Err(fault.retry(Retry::Later).hint("revoke some").phase(Phase::Admission));
        }
        let body = json!({"name": token.label, "tenant": token.tenant, "scopes": token.scopes, "dirs": token.dirs,
            "sandboxes": token.sandboxes, "limits": token.limits, "expires_ms": token.expires_ms});
        note(tx, "token", Step::Done, &id, caller, body)?;
        tx.add(&id, token)
    })?;
    let token = format!("cof_{}_{secret}", id.trim_start_matches("tok_"));
    Ok(Minted { shown: shown(kept), token })
}

/// All of them, the newest first.
pub fn list(node: &Node, caller: &Caller) -> Result<Vec<Shown>, Fault> {
    let mut all = node.states.open(caller)?.store.read(|tx| tx.list::<Token>())?;
    all.sort_by(|a, b| b.record.created_ms.cmp(&a.record.created_ms).then_with(|| a.id.cmp(&b.id)));
    Ok(all.into_iter().map(shown).collect())
}

/// From now on it opens nothing. Done again, it changes nothing.
pub fn revoke(node: &Node, caller: &Caller, id: &str) -> Result<Revoked, Fault> {
    let state = node.states.open(caller)?;
    let changed = state.store.write(|tx| {
        let there = tx.remove::<Token>(id)?;
        if there {
            note(tx, "token revoke", Step::Done, id, caller, serde_json::Value::Null)?;
        } else if tx.noted(Some(id), None, 1)?.is_empty() {
            let fault = Fault::new(ErrorKind::NotFound, format!("there is no token {id:?}")).subject(id);
            return Err(fault.hint("`cofferdam token ls` lists them").phase(Phase::Admission));
        }
        Ok(there)
    })?;
    Ok(Revoked { id: id.to_owned(), changed })
}

/// The tokens of a state directory, for who asks often.
pub struct Gate {
    caller: Caller,
    store: RefCell<Store>,
}

impl Gate {
    pub fn open(node: &Node, caller: &Caller) -> Result<Gate, Fault> {
        Ok(Gate { store: RefCell::new(node.states.open(caller)?.store), caller: caller.clone() })
    }

    /// The store as it is there now: of one that was moved away or replaced nothing is believed any more.
    fn store(&self, node: &Node) -> Result<Ref<'_, Store>, Fault> {
        if !self.store.borrow().is_current() {
            let again = node.states.open(&self.caller)?.store;
            *self.store.borrow_mut() = again;
        }
        Ok(self.store.borrow())
    }

    /// Whether the state can be opened and read anew, as every verb does.
    pub fn works(&self, node: &Node) -> Result<(), Fault> {
        node.states.open(&self.caller)?.store.read(|tx| tx.count::<Token>()).map(drop)
    }

    /// Whose a secret is; none where it is nobody's, or not any more.
    pub fn whose(&self, node: &Node, presented: &str) -> Result<Option<Kept<Token>>, Fault> {
        let Some((id, secret)) = split(presented) else { return Ok(None) };
        let known = self.get(node, &id)?;
        // Computed and compared whether or not there is such a token, so that time tells nothing.
        let none = "0".repeat(64);
        let expected = known.as_ref().map_or(none.as_str(), |kept| kept.record.digest.as_str());
        let same = same(digest(secret).as_bytes(), expected.as_bytes());
        Ok(known.filter(|_| same))
    }

    /// A token by its id, if it is good now.
    pub fn get(&self, node: &Node, id: &str) -> Result<Option<Kept<Token>>, Fault> {
        let now = terms::clock::now_ms();
        let kept = self.store(node)?.read(|tx| tx.get::<Token>(id))?;
        Ok(kept.filter(|kept| kept.record.expires_ms.is_none_or(|end| end > now)))
    }

    /// Remembers that it was used, to the minute. Nobody is refused because this failed.
    pub fn used(&self, node: &Node, kept: &Kept<Token>) {
        let now = terms::clock::now_ms();
        if kept.record.used_ms.is_some_and(|before| before.saturating_add(USED_EVERY_MS) > now) {
            return;
        }
        let _ = self.store(node).and_then(|store| {
            store.write(|tx| {
                let Some(mut kept) = tx.get::<Token>(&kept.id)? else { return Ok(()) };
                kept.record.used_ms = Some(now);
                tx.change(kept).map(drop)
            })
        });
    }

    /// Notes that somebody named what belongs to another tenant, or to another agent of the same.
    pub fn note_foreign(&self, node: &Node, actor: &str, subject: &str, route: &str, and_more: bool) {
        let mut body = json!({"route": route, "why": "it belongs to another"});
        if and_more {
            body["more"] = json!("further tries of this minute are not noted");
        }
        let at_ms = terms::clock::now_ms();
        let entry = store::Entry { at_ms, verb: "foreign", step: Step::Failed, subject, actor, body };
        let _ = self.store(node).and_then(|store| store.write(|tx| tx.note(&entry)));
    }
}

/// Whether a state directory has a sandbox, or something of one, whose id begins so.
pub fn knows(caller: &Caller, id: &str) -> Result<bool, Fault> {
    Ok(!named(caller, id, |_, _| Ok(true))?.is_empty())
}

/// Whether a state directory has one of exactly this id that is there for this caller.
pub fn shows(caller: &Caller, id: &str) -> Result<bool, Fault> {
    Ok(!named(caller, id, |tx, found| Ok(found == id && caller.sees_id(tx, found)?))?.is_empty())
}

/// Whether a state directory has one that is not there for this caller.
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

/// `cof_ID_SECRET`: the token's id, and its secret.
fn split(text: &str) -> Option<(String, &str)> {
    let (id, secret) = text.strip_prefix("cof_")?.split_once('_')?;
    let is_hex = |text: &str, length: usize| text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit());
    (is_hex(id, 32) && is_hex(secret, 64)).then(|| (format!("tok_{id}"), secret))
}

fn digest(secret: &str) -> String {
    terms::hex::encode(Sha256::digest(secret.as_bytes()))
}

/// Takes the same time wherever they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(a.len() ^ b.len(), |acc, (a, b)| std::hint::black_box(acc | usize::from(a ^ b)));
    std::hint::black_box(differ) == 0
}

/// A tenant's name becomes a directory's: no capitals and no dots, beside the rule of `check_name`. A `_` may be the first.
pub fn check_tenant(name: &str) -> Result<(), Fault> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    if (1..=64).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('-') {
        return Ok(());
    }
    let fault = Fault::invalid(format!("tenant {name:?}: no name of a tenant")).phase(Phase::Admission);
    Err(fault.hint("use 1 to 64 lower-case letters, digits, dashes and underscores; no dash first, e.g. team-a"))
}

fn scopes(ask: &Ask) -> Result<Vec<Scope>, Fault> {
    let mut scopes = ask.scopes.clone();
    scopes.sort();
    scopes.dedup();
    match scopes.is_empty() {
        true => Err(Fault::invalid("scopes: none").hint("give agent, reviewer or operator").phase(Phase::Admission)),
        false => Ok(scopes),
    }
}

/// Whoever has the host is bound by no ceiling, so that one on such a token would promise what does not hold.
fn limits(ask: &Ask) -> Result<Level, Fault> {
    let unbound = ask.tenant == DEFAULT_TENANT && ask.scopes.contains(&Scope::Operator);
    if !ask.limits.is_empty() && unbound {
        let fault = Fault::invalid("limits: a token of the daemon's own operator is bound by none");
        return Err(fault.hint("leave them out, or give the token other scopes or a tenant").phase(Phase::Admission));
    }
    ask.limits.check()?;
    Ok(ask.limits)
}

fn presets(ask: &Ask) -> Result<Vec<String>, Fault> {
    if let Some(name) = ask.policies.iter().find(|name| policy::preset(name).is_none()) {
        let known: Vec<_> = policy::PRESETS.iter().map(|(name, _)| *name).collect();
        let fault = Fault::invalid(format!("policies: {name:?} is no built-in policy")).phase(Phase::Admission);
        return Err(fault.hint(format!("there are {}", known.join(", "))));
    }
    Ok(ask.policies.clone())
}

/// Where a tenant's sandboxes are kept: the daemon's own tenant has the state itself.
pub fn state_of(state: &Path, tenant: &str) -> PathBuf {
    if tenant == DEFAULT_TENANT { state.to_owned() } else { state.join("tenants").join(tenant) }
}

/// What the words stand for now, in the tenant's own state.
fn sandboxes(ask: &Ask, caller: &Caller) -> Result<Vec<String>, Fault> {
    if ask.sandboxes.is_empty() {
        return Ok(Vec::new());
    }
    let refuse =
        |why: String, hint: &str| Fault::invalid(format!("sandboxes: {why}")).hint(hint).phase(Phase::Admission);
    if ask.sandboxes.len() > MOST_GRANTS {
        let hint = "make several tokens, or a tenant for them";
        return Err(refuse(format!("{}; at most {MOST_GRANTS}", ask.sandboxes.len()), hint));
    }
    let scopes = &ask.scopes;
    if scopes.contains(&Scope::Operator) || !scopes.iter().any(|s| matches!(s, Scope::Agent | Scope::Reviewer)) {
        return Err(refuse("only an agent's or a reviewer's token is bound to some".to_owned(), "leave them out"));
    }
    let place = state_of(&state::directory::place(caller)?, &ask.tenant);
    let none = |word: &str| refuse(format!("tenant {} has no sandbox {word:?}", ask.tenant), "name one that is there");
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

/// What is granted is what the names stand for now, and never the state itself.
fn dirs(ask: &Ask, state: &State) -> Result<Vec<PathBuf>, Fault> {
    if ask.dirs.len() > MOST_GRANTS {
        let fault = Fault::invalid(format!("dirs: {}; at most {MOST_GRANTS}", ask.dirs.len()));
        return Err(fault.hint("grant a directory above them").phase(Phase::Admission));
    }
    let real = |dir: &PathBuf| {
        let bad = |why: String| {
            let fault = Fault::invalid(format!("dirs: {}: {why}", dir.display())).phase(Phase::Admission);
            fault.hint("grant a directory that exists, by its whole path")
        };
        if !dir.is_absolute() {
            return Err(bad("not a whole path".into()));
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
