//! Concurrent verbs on one sandbox: no change is lost, and frozen layers stay unchanged.

use node::create;
use node::liveness;
use node::review::approve::{self, ReviewedDiff};
use node::review::{ReviewScope, prune, rebase, reject, undo};
use node::sandbox::Which;
use node::snapshots;
use node::{Caller, Node};
use state::lock::LockResult;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terms::{ErrorKind, Fault};

/// Files written while the other verbs run.
const FILES: usize = 40;

fn which(word: String) -> Which {
    Which { word: Some(word), version: None }
}

struct NodeFixture {
    root: PathBuf,
    base: PathBuf,
    node: Node,
    caller: Caller,
}

impl NodeFixture {
    fn new() -> NodeFixture {
        let root = std::env::temp_dir().join(format!("cofferdam-race-{}", std::process::id()));
        for dir in ["project", "home"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        let root = std::fs::canonicalize(&root).unwrap();
        let (base, home) = (root.join("project"), root.join("home"));
        let env = [
            ("HOME", home.clone()),
            ("PATH", "/usr/local/bin:/usr/bin:/bin".into()),
            ("COFFERDAM_STATE", root.join("state")),
        ];
        let env = env.into_iter().map(|(name, value)| (name.into(), value.into_os_string())).collect();
        let caller = Caller::new(base.clone(), home, "rita".into(), env, |_| None);
        NodeFixture { root, base, node: Node::for_command(), caller }
    }

    fn approve(&self, id: &str) -> Result<(), Fault> {
        let ask = approve::ApproveChanges {
            of: ReviewScope::Words(vec![id.into()]),
            everything: false,
            exact: Vec::new(),
            hunks: Vec::new(),
            runs_on_host: false,
            seen: ReviewedDiff::Unseen,
            commit: None,
        };
        approve::approve(&self.node, &self.caller, &ask).map(drop)
    }

    fn reject(&self, id: &str, path: &str) -> Result<(), Fault> {
        let ask = reject::RejectChanges {
            of: ReviewScope::Words(vec![id.into(), path.into()]),
            hunks: Vec::new(),
            everything: false,
            digest: None,
        };
        reject::reject(&self.node, &self.caller, &ask).map(drop)
    }

    /// Writes as a run would: locks the sandbox, then writes to its top layer.
    fn write(&self, id: &str, files: &[(String, String)]) {
        let state = self.node.states.open(&self.caller).unwrap();
        let hold = loop {
            match liveness::lock_patiently(&self.node, &state, id).unwrap() {
                attempt if matches!(attempt.result, LockResult::Locked(Some(_))) => break attempt,
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let top = state.path.join("layers").join(hold.sandbox.record.layers.last().unwrap()).join("up");
        for (name, text) in files {
            // A whiteout may be there.
            let _ = std::fs::remove_file(top.join(name));
            std::fs::write(top.join(name), text).unwrap();
        }
    }
}

impl Drop for NodeFixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// Sets the flag on drop, so that the other threads end however the writer ends.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Conflict and not-found are expected results of a race; any other fault is not.
#[track_caller]
fn fine(done: Result<(), Fault>) {
    if let Err(fault) = done {
        assert!(matches!(fault.error_kind, ErrorKind::Conflict | ErrorKind::NotFound), "{fault:?}");
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn verbs_that_meet_lose_nothing_and_leave_what_is_frozen_alone() {
    let fixture = NodeFixture::new();
    let id = create::create(&fixture.node, &fixture.caller, &create::CreateSandbox::default()).unwrap().id;
    let over = AtomicBool::new(false);
    let (fixture, id, over) = (&fixture, id.as_str(), &over);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(over);
        let again = |mut work: Box<dyn FnMut() + Send>| {
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    work();
                    // A pause, so that waiting threads get the sandbox, too.
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        };
        again(Box::new(move || fine(snapshots::take(&fixture.node, &fixture.caller, Some(id), None).map(drop))));
        again(Box::new(move || fine(fixture.approve(id))));
        again(Box::new(move || fine(undo::undo(&fixture.node, &fixture.caller, Some(id)).map(drop))));
        again(Box::new(move || {
            let ask = rebase::RebaseSandbox { which: which(id.to_owned()), dry_run: false };
            fine(rebase::rebase(&fixture.node, &fixture.caller, &ask).map(drop));
            fine(prune::prune(&fixture.node, &fixture.caller, &which(id.to_owned())).map(drop));
            fine(snapshots::squash(&fixture.node, &fixture.caller, id).map(drop));
        }));
        for n in 0..FILES {
            let wanted = (format!("kept-{n}"), format!("{n}\n"));
            // A change that runs on the host never lands by default, so it is there to be rejected.
            fixture.write(id, &[wanted, (".envrc".to_owned(), format!("{n}\n"))]);
            fine(fixture.reject(id, ".envrc"));
        }
    });
    fine(fixture.reject(id, ".envrc"));
    fine(fixture.approve(id));
    for n in 0..FILES {
        assert_eq!(read(&fixture.base.join(format!("kept-{n}"))), format!("{n}\n"));
    }
    assert!(!fixture.base.join(".envrc").exists(), "it was thrown away");
    let state = fixture.node.states.open(&fixture.caller).unwrap();
    let all = snapshots::list_of(&fixture.node, &fixture.caller, id).unwrap();
    assert!(all.len() > 1, "{all:?}");
    for snapshot in &all {
        // Each layer is read again and compared with what it was when it was frozen.
        snapshots::fork(&fixture.node, &fixture.caller, Some(&snapshot.id), None, 1).unwrap();
    }
    assert!(state.store.verify().unwrap().broken.is_none());
}
