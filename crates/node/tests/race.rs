//! Verbs that change one sandbox at the same time: no change is lost, and what was frozen stays as it was.

use node::Caller;
use node::lifecycle::create;
use node::lifecycle::live::{self, Whose};
use node::lifecycle::stop::Which;
use node::review::approve::{self, Seen};
use node::review::{Of, prune, rebase, reject, undo};
use node::snapshots;
use node::state::State;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terms::{ErrorKind, Fault};

/// Files that are written while all the rest goes on.
const FILES: usize = 40;

fn which(word: String) -> Which {
    Which { word: Some(word), version: None }
}

struct World {
    root: PathBuf,
    base: PathBuf,
    caller: Caller,
}

impl World {
    fn new() -> World {
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
        let caller = Caller {
            cwd: base.clone(),
            home,
            user: "rita".into(),
            env,
            read_late: |_| None,
            reach: Default::default(),
        };
        World { root, base, caller }
    }

    fn approve(&self, id: &str) -> Result<(), Fault> {
        let ask = approve::Ask {
            of: Of::Words(vec![id.into()]),
            everything: false,
            exact: Vec::new(),
            hunks: Vec::new(),
            runs_on_host: false,
            seen: Seen::Unseen,
            commit: None,
        };
        approve::approve(&self.caller, &ask).map(drop)
    }

    fn reject(&self, id: &str, path: &str) -> Result<(), Fault> {
        let ask = reject::Ask {
            of: Of::Words(vec![id.into(), path.into()]),
            hunks: Vec::new(),
            everything: false,
            digest: None,
        };
        reject::reject(&self.caller, &ask).map(drop)
    }

    /// What a run does: the sandbox for itself, then files in its top layer.
    fn write(&self, id: &str, files: &[(String, String)]) {
        let state = State::open(&self.caller).unwrap();
        let hold = loop {
            match live::hold_patiently(&state, id).unwrap() {
                hold if matches!(hold.whose, Whose::Mine(Some(_))) => break hold,
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let top = state.path.join("layers").join(hold.sandbox.record.layers.last().unwrap()).join("up");
        for (name, text) in files {
            // A mark that says that it is gone may stand there.
            let _ = std::fs::remove_file(top.join(name));
            std::fs::write(top.join(name), text).unwrap();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// However the writing ends, the rest ends with it.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// To come too late, or to find nothing to do, is no failure; anything else is.
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
    let world = World::new();
    let id = create::create(&create::Ask::default(), &world.caller).unwrap().id;
    let over = AtomicBool::new(false);
    let (world, id, over) = (&world, id.as_str(), &over);
    std::thread::scope(|scope| {
        let _end = End(over);
        let again = |mut work: Box<dyn FnMut() + Send>| {
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    work();
                    // Whoever waits for the sandbox gets it, too.
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        };
        let open = || State::open(&world.caller).unwrap();
        again(Box::new(move || fine(snapshots::take(&open(), &world.caller, Some(id), None).map(drop))));
        again(Box::new(move || fine(world.approve(id))));
        again(Box::new(move || fine(undo::undo(&world.caller, Some(id)).map(drop))));
        again(Box::new(move || {
            let ask = rebase::Ask { which: which(id.to_owned()), dry_run: false };
            fine(rebase::rebase(&world.caller, &ask).map(drop));
            fine(prune::prune(&world.caller, &which(id.to_owned())).map(drop));
            fine(snapshots::squash(&open(), &world.caller, id).map(drop));
        }));
        for n in 0..FILES {
            let wanted = (format!("kept-{n}"), format!("{n}\n"));
            // What runs on the host never lands by itself, so it is there to be thrown away.
            world.write(id, &[wanted, (".envrc".to_owned(), format!("{n}\n"))]);
            fine(world.reject(id, ".envrc"));
        }
    });
    fine(world.reject(id, ".envrc"));
    fine(world.approve(id));
    for n in 0..FILES {
        assert_eq!(read(&world.base.join(format!("kept-{n}"))), format!("{n}\n"));
    }
    assert!(!world.base.join(".envrc").exists(), "it was thrown away");
    let state = State::open(&world.caller).unwrap();
    let all = snapshots::list(&state, Some(id)).unwrap();
    assert!(all.len() > 1, "{all:?}");
    for snapshot in &all {
        // Each layer is read again and compared with what it was when it was frozen.
        snapshots::fork(&state, &world.caller, Some(&snapshot.id), None, 1).unwrap();
    }
    assert!(state.store.verify().unwrap().broken.is_none());
}
