//! What does happen: the verbs themselves, in a directory of their own.

use super::Op;
use super::expect::{Files, Model, Said};
use node::Caller;
use node::lifecycle::stop::Which;
use node::lifecycle::{create, gc, list, remove, stop};
use node::sandbox::{self, Sandbox, Sharing};
use node::snapshots::{self, Since, Snapshot};
use node::state::State;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use terms::Fault;
use workspace::Rel;

pub struct World {
    root: PathBuf,
    caller: Caller,
}

impl World {
    pub fn new() -> World {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("cofferdam-model-{}-{n}", std::process::id()));
        let project = root.join("project");
        fs::create_dir_all(&project).unwrap();
        let project = fs::canonicalize(project).unwrap();
        let env = vec![("COFFERDAM_STATE".into(), root.join("state").into()), ("PATH".into(), "/usr/bin:/bin".into())];
        let caller = Caller {
            cwd: project,
            home: root.join("home"),
            user: "tester".into(),
            env,
            read_late: |_| None,
            reach: Default::default(),
        };
        World { root, caller }
    }

    fn state(&self) -> State {
        State::open(&self.caller).unwrap()
    }

    pub fn act(&self, op: &Op, model: &Model) -> Said {
        match self.done(op, model) {
            None => Said::Nothing,
            Some(Ok(answer)) => Said::Done(answer),
            Some(Err(fault)) => Said::Refused(fault),
        }
    }

    fn done(&self, op: &Op, model: &Model) -> Option<Result<String, Fault>> {
        // Those that the model says nothing of are not tried.
        model.expect(op)?;
        let which = |n: usize| Which { word: model.pick(n).map(|b| b.id.clone()), version: None };
        let id = |n: usize| model.pick(n).map(|b| b.id.clone());
        let (caller, patience) = (&self.caller, Duration::from_secs(1));
        Some(match op {
            Op::Create(wanted) => {
                let ask = create::Ask {
                    name: wanted.name.map(|n| format!("name{n}")),
                    reserve: wanted.reserve.iter().map(|path| (*path).into()).collect(),
                    sharing: Sharing { shared: wanted.shared, until_stop: wanted.until_stop },
                    ttl_ms: wanted.short.then_some(0),
                    key: wanted.key.map(|k| format!("key{k}")),
                    ..create::Ask::default()
                };
                create::create(&ask, caller).map(|made| made.id)
            }
            Op::Write { sandbox, file, value } => self.write(&id(*sandbox)?, *file, *value),
            Op::Stop(n) => stop::stop(&which(*n), patience, caller).map(|moved| moved.id),
            Op::StopStale(n) => {
                stop::stop(&Which { version: Some(9999), ..which(*n) }, patience, caller).map(|moved| moved.id)
            }
            Op::Start(n) => stop::start(&which(*n), caller).map(|moved| moved.id),
            Op::Remove(n) => remove::remove(&which(*n), None, caller).map(|removed| removed.id),
            Op::Snapshot(n) => snapshots::take(&self.state(), caller, id(*n).as_deref(), None).map(|taken| taken.id),
            Op::Fork(n) => snapshots::fork(&self.state(), caller, id(*n).as_deref(), None, 1)
                .map(|forked| forked.sandboxes[0].id.clone()),
            Op::ForkSnapshot(n) => {
                let shot = model.shot(*n)?.id.clone();
                snapshots::fork(&self.state(), caller, Some(&shot), None, 1)
                    .map(|forked| forked.sandboxes[0].id.clone())
            }
            Op::Restore(n) => {
                let (shot, one) = (model.shot(*n)?, &model.boxes[model.restored(*n)?]);
                snapshots::restore(
                    &self.state(),
                    caller,
                    &shot.id,
                    &Which { word: Some(one.id.clone()), version: None },
                    Since::Keep,
                )
                .map(|r| r.sandbox)
            }
            Op::Collect => {
                let listed = gc::plan(caller).unwrap();
                let taken = gc::collect(caller);
                if let Ok(taken) = &taken {
                    assert_eq!(listed.items, taken.items, "what is listed is what goes");
                    assert!(taken.failed.is_empty(), "{:?}", taken.failed);
                }
                taken.map(|_| String::new())
            }
        })
    }

    /// What a command does that writes a file: it holds the layer, and the file is in it.
    fn write(&self, id: &str, file: u8, value: u16) -> Result<String, Fault> {
        let state = self.state();
        let kept = state.store.read(|tx| tx.get::<Sandbox>(id))?.unwrap();
        let top = state.layers.get(kept.record.layers.last().unwrap()).unwrap();
        let _held = top.lock().unwrap().expect("nobody else has it");
        let path = state.path.join("layers").join(&top.id).join("up").join(format!("f{file}"));
        fs::write(&path, value.to_string()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        Ok(id.to_owned())
    }

    pub fn states(&self) -> BTreeMap<String, String> {
        let rows = list::list(&self.caller, false).unwrap();
        rows.into_iter().map(|row| (row.id, row.state.name().to_owned())).collect()
    }

    /// What a guest would see in each sandbox.
    pub fn files(&self, model: &Model) -> BTreeMap<String, Files> {
        let state = self.state();
        let seen = |id: &String| {
            let kept = state.store.read(|tx| tx.get::<Sandbox>(id)).unwrap().unwrap();
            let stack = sandbox::stack(&state, &kept).unwrap();
            let names = stack.names(&Rel::top()).unwrap();
            let read = |name: &Vec<u8>| {
                let mut text = String::new();
                stack.file(&Rel::top().join(name)).unwrap().read_to_string(&mut text).unwrap();
                (String::from_utf8(name.clone()).unwrap(), text)
            };
            names.keys().map(read).collect()
        };
        model.states().keys().map(|id| (id.clone(), seen(id))).collect()
    }

    /// What holds at all times: the journal is whole and no layer is missing. After a collection, none is left over.
    pub fn check(&self, collected: bool) {
        let state = self.state();
        let verified = state.store.verify().unwrap();
        assert_eq!((verified.broken, verified.anchored), (None, verified.entries));
        let (referred, present) = (referred(&state), present(&state));
        assert!(referred.is_subset(&present), "missing: {:?}", referred.difference(&present));
        if collected {
            // What an expired sandbox alone kept alive is found by the next collection.
            gc::collect(&self.caller).unwrap();
            assert_eq!(self::referred(&state), self::present(&state));
            assert!(gc::plan(&self.caller).unwrap().items.is_empty());
        }
    }
}

/// Layers that records name, counted without the store's own way of counting them.
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
    gc::layer_names(state).unwrap().into_iter().collect()
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
