//! The implementation side: real verbs, in a directory of their own.

use super::expect::{Model, Pending, VerbResult};
use super::tree::Files;
use super::{IN_BASE, Op, PATHS, Part, STAYS, Write};
use api::{FileDiff, FileKind, Rel, Sharing};
use node::config::Keep;
use node::directory::State;
use node::review::approve::{self, ReviewedDiff};
use node::review::diff::{self, DiffReader};
use node::review::{ReviewScope, reject, undo};
use node::sandbox::Which;
use node::sandbox::{self, Sandbox};
use node::snapshots::{self, ChangesSince, Snapshot};
use node::{Caller, Node};
use node::{create, gc, list, remove, stop};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use terms::Fault;

pub struct RealNode {
    root: PathBuf,
    node: Node,
    caller: Caller,
}

impl RealNode {
    pub fn new() -> RealNode {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("cofferdam-model-{}-{n}", std::process::id()));
        let project = root.join("project");
        fs::create_dir_all(&project).unwrap();
        let project = fs::canonicalize(project).unwrap();
        let first = |path: &&str| put(&project.join(path), &Write { kind: '-', value: 9 }.text(path));
        PATHS[..IN_BASE].iter().chain([&STAYS]).for_each(first);
        let env = vec![("COFFERDAM_STATE".into(), root.join("state").into()), ("PATH".into(), "/usr/bin:/bin".into())];
        let caller = Caller::new(project, root.join("home"), "tester".into(), env, |_| None);
        RealNode { root, node: Node::for_command(), caller }
    }

    fn state(&self) -> State {
        self.node.states.open(&self.caller).unwrap()
    }

    pub fn act(&self, op: &Op, model: &Model) -> VerbResult {
        match self.done(op, model) {
            None => VerbResult::NotApplicable,
            Some(Ok(answer)) => VerbResult::Done(answer),
            Some(Err(fault)) => VerbResult::Refused(fault),
        }
    }

    fn done(&self, op: &Op, model: &Model) -> Option<Result<String, Fault>> {
        // Operations without an expectation are not tried.
        model.expect(op)?;
        let which = |n: usize| Which { word: model.pick(n).map(|b| b.id.clone()), version: None };
        let id = |n: usize| model.pick(n).map(|b| b.id.clone());
        let (node, caller, patience) = (&self.node, &self.caller, Duration::from_secs(1));
        Some(match op {
            Op::Create(wanted) => {
                let ask = create::CreateSandbox {
                    name: wanted.name.map(|n| format!("name{n}")),
                    reserve: wanted.reserve.iter().map(|path| (*path).into()).collect(),
                    sharing: Sharing { shared: wanted.shared, until_stop: wanted.until_stop },
                    ttl_ms: wanted.short.then_some(0),
                    key: wanted.key.map(|k| format!("key{k}")),
                    ..create::CreateSandbox::default()
                };
                let made = create::create(node, caller, &ask).map(|made| made.id);
                tick();
                made
            }
            Op::Write { sandbox, path, write } => {
                let held = model.pick(*sandbox)?;
                let shows_below = held.stack.shows_below(&model.base, path);
                self.write(&held.id, path, write.as_ref(), shows_below)
            }
            Op::Outside { path, write } => {
                tick();
                let at = caller.cwd.join(path);
                match write {
                    Some(write) => put(&at, &write.text(path)),
                    None => fs::remove_file(at).unwrap(),
                }
                tick();
                Ok(String::new())
            }
            Op::Diff(n) => diff::diff(node, caller, &look(&id(*n)?)).map(|_| String::new()),
            Op::Approve { sandbox, part, stale } => {
                let id = id(*sandbox)?;
                tick();
                let seen = match (stale, diff::diff(node, caller, &look(&id))) {
                    (true, _) => "0".repeat(64),
                    (false, Ok(shown)) => shown.diff.digest,
                    (false, Err(fault)) => return Some(Err(fault)),
                };
                let ask = approve::ApproveChanges {
                    of: of(&id, *part),
                    everything: *part == Part::All,
                    exact: Vec::new(),
                    hunks: Vec::new(),
                    runs_on_host: false,
                    seen: ReviewedDiff::Digest(seen),
                    commit: None,
                };
                let landed = approve::approve(node, caller, &ask).map(|receipt| receipt.batch);
                tick();
                landed
            }
            Op::Reject { sandbox, part } => {
                let (of, everything) = (of(&id(*sandbox)?, *part), *part == Part::All);
                let ask = reject::RejectChanges { of, hunks: Vec::new(), everything, digest: None };
                reject::reject(node, caller, &ask).map(|answer| answer.sandbox)
            }
            Op::Undo(n) => {
                tick();
                let undone =
                    undo::undo(node, caller, Some(&model.batches[model.batch(*n)?].id)).map(|receipt| receipt.batch);
                tick();
                undone
            }
            Op::Stop(n) => stop::stop(node, caller, &which(*n), patience).map(|moved| moved.id),
            Op::StopStale(n) => {
                stop::stop(node, caller, &Which { version: Some(9999), ..which(*n) }, patience).map(|moved| moved.id)
            }
            Op::Start(n) => stop::start(node, caller, &which(*n)).map(|moved| moved.id),
            Op::Remove(n) => remove::remove(node, caller, &which(*n), None).map(|removed| removed.id),
            Op::Snapshot(n) => snapshots::take(node, caller, id(*n).as_deref(), None).map(|taken| taken.id),
            Op::Fork(n) => {
                snapshots::fork(node, caller, id(*n).as_deref(), None, 1).map(|forked| forked.sandboxes[0].id.clone())
            }
            Op::ForkSnapshot(n) => {
                let shot = model.snapshot(*n)?.id.clone();
                snapshots::fork(node, caller, Some(&shot), None, 1).map(|forked| forked.sandboxes[0].id.clone())
            }
            Op::Restore(n) => {
                let (shot, one) = (model.snapshot(*n)?, &model.sandboxes[model.restored(*n)?]);
                snapshots::restore(
                    node,
                    caller,
                    &shot.id,
                    &Which { word: Some(one.id.clone()), version: None },
                    ChangesSince::Keep,
                )
                .map(|r| r.sandbox)
            }
            Op::Collect => {
                let listed = gc::plan(node, caller, &Keep::default()).unwrap();
                let taken = gc::collect(node, caller, &Keep::default());
                if let Ok(taken) = &taken {
                    assert_eq!(listed.items, taken.items, "what is listed is what goes");
                    assert!(taken.failed.is_empty(), "{:?}", taken.failed);
                }
                taken.map(|_| String::new())
            }
        })
    }

    /// Writes as a command would: locks the layer, then creates the file or its whiteout.
    fn write(&self, id: &str, path: &str, write: Option<&Write>, shows_below: bool) -> Result<String, Fault> {
        let state = self.state();
        let kept = state.store.read(|tx| tx.get::<Sandbox>(id))?.unwrap();
        let top = state.layers.get(kept.record.layers.last().unwrap()).unwrap();
        let _lock = top.lock().unwrap().expect("the layer is not locked");
        let up = state.path.join("layers").join(&top.id).join("up");
        let at = up.join(path);
        let _ = fs::remove_file(&at);
        match write {
            Some(write) => put(&at, &write.text(path)),
            None if shows_below => strike_out(&at),
            // A parent directory created only for the file is removed.
            None => drop(at.parent().filter(|dir| *dir != up).map(fs::remove_dir)),
        }
        Ok(id.to_owned())
    }

    /// Files of the base. No file of a batch is left in it.
    pub fn base(&self) -> Files {
        let mut files = Files::new();
        for dir in ["", "d"] {
            for entry in fs::read_dir(self.caller.cwd.join(dir)).unwrap() {
                let path = entry.unwrap().path();
                if !path.is_dir() || path.is_symlink() {
                    let name = path.strip_prefix(&self.caller.cwd).unwrap().to_str().unwrap().to_owned();
                    files.insert(name, encoded(&path));
                }
            }
        }
        files
    }

    /// Pending changes of a sandbox.
    pub fn diff(&self, id: &str) -> BTreeMap<String, Pending> {
        let shown = diff::diff(&self.node, &self.caller, &look(id)).unwrap();
        let pending = |file: FileDiff| {
            let change = file.change;
            (change.path.to_string(), Pending { kind: change.kind.name(), drifted: change.drifted })
        };
        shown.diff.files.into_iter().map(pending).collect()
    }

    pub fn states(&self) -> BTreeMap<String, String> {
        let rows = list::list(&self.node, &self.caller, false).unwrap();
        rows.into_iter().map(|row| (row.id, row.state.name().to_owned())).collect()
    }

    /// The guest's view of each sandbox.
    pub fn files(&self, model: &Model) -> BTreeMap<String, Files> {
        let state = self.state();
        let seen = |id: &String| {
            let kept = state.store.read(|tx| tx.get::<Sandbox>(id)).unwrap().unwrap();
            let stack = sandbox::stack(&state, &kept).unwrap();
            let mut files = Files::new();
            for dir in ["", "d"] {
                let dir = Rel::parse(dir.as_bytes()).unwrap();
                for path in stack.names(&dir).unwrap().keys().map(|name| dir.join(name)) {
                    if let Some(text) = encoded_view(&stack, &path) {
                        files.insert(path.to_string(), text);
                    }
                }
            }
            files
        };
        model.states().keys().map(|id| (id.clone(), seen(id))).collect()
    }

    /// Invariants: the journal verifies and no layer is missing. After a collection, no unreferenced layer is left.
    pub fn check(&self, collected: bool) {
        let state = self.state();
        let verified = state.store.verify().unwrap();
        assert_eq!(verified.broken, None);
        // Entries that need not be on disk at once are anchored with a later one.
        assert!(verified.anchored <= verified.entries, "{verified:?}");
        let (referred, present) = (referred(&state), present(&state));
        assert!(referred.is_subset(&present), "missing: {:?}", referred.difference(&present));
        if collected {
            // What an expired sandbox alone kept alive is found by the next collection.
            gc::collect(&self.node, &self.caller, &Keep::default()).unwrap();
            assert_eq!(self::referred(&state), self::present(&state));
            assert!(gc::plan(&self.node, &self.caller, &Keep::default()).unwrap().items.is_empty());
        }
    }
}

fn look(id: &str) -> diff::ReadDiff {
    diff::ReadDiff { of: of(id, Part::All), everything: false, reader: DiffReader::Program, page: None }
}

fn of(id: &str, part: Part) -> ReviewScope {
    let paths = match part {
        Part::All => Vec::new(),
        Part::At(path) => vec![Rel::parse(path.as_bytes()).unwrap()],
    };
    ReviewScope::Sandbox { which: Which { word: Some(id.to_owned()), version: None }, paths }
}

/// Creates a file from its encoded form; see `tree`.
fn put(at: &Path, word: &str) {
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    let _ = fs::remove_file(at);
    let (kind, text) = word.split_at(1);
    if kind == "l" {
        return symlink(text, at).unwrap();
    }
    fs::write(at, text).unwrap();
    let mode = if kind == "x" { 0o755 } else { 0o644 };
    fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap();
}

/// The encoded form of a file.
fn encoded(at: &Path) -> String {
    match fs::symlink_metadata(at).unwrap() {
        link if link.is_symlink() => format!("l{}", fs::read_link(at).unwrap().to_str().unwrap()),
        meta => format!("{}{}", kind_of(meta.permissions().mode()), fs::read_to_string(at).unwrap()),
    }
}

/// The encoded form of a file in a guest's view; `None` for a directory.
fn encoded_view(stack: &workspace::Stack, path: &Rel) -> Option<String> {
    let meta = stack.meta(path).unwrap().unwrap().meta;
    match meta.kind {
        FileKind::Dir => None,
        FileKind::Symlink => Some(format!("l{}", String::from_utf8(stack.link_target(path).unwrap()).unwrap())),
        _ => {
            let mut text = String::new();
            stack.file(path).unwrap().read_to_string(&mut text).unwrap();
            Some(format!("{}{text}", kind_of(meta.mode)))
        }
    }
}

fn kind_of(mode: u32) -> char {
    match mode & 0o7777 {
        0o644 => '-',
        0o755 => 'x',
        other => panic!("unexpected mode {other:o}"),
    }
}

/// Creates a whiteout, as the kernel does.
fn strike_out(at: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    mknodat(CWD, at, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

/// Waits for the next tick of the coarse clock, so that changes before and after have different timestamps.
fn tick() {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let (begun, mut last) = (now(), now());
    while last == begun {
        std::thread::sleep(Duration::from_micros(200));
        last = now();
    }
}

/// Layers that records refer to, counted without the store's own count.
fn referred(state: &State) -> BTreeSet<String> {
    let all = state.store.read(|tx| {
        let mut all: BTreeSet<String> = BTreeSet::new();
        all.extend(tx.list::<Sandbox>()?.into_iter().flat_map(|kept| kept.record.layers));
        let shots = tx.list::<Snapshot>()?.into_iter().map(|kept| kept.record.ground);
        all.extend(shots.flat_map(|ground| ground.frozen.into_iter().map(|layer| layer.id)));
        Ok(all)
    });
    all.unwrap()
}

fn present(state: &State) -> BTreeSet<String> {
    state.layer_names().unwrap().into_iter().collect()
}

impl Drop for RealNode {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
