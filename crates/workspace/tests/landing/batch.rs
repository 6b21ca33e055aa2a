//! Approve and undo as the verbs do, without a store: all steps of a batch in order.

use crate::fixture::{StackFixture, rel};
use api::{Diff, FileKind, Rel};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use terms::Fault;
use workspace::diff::{Options, diff};
use workspace::land::{BaseLock, Landing};
use workspace::plan::{Goal, Plan, Shape};
use workspace::select::{Marked, Selection, choose, choose_to_drop};
use workspace::stage::{self, BatchDirs, CheckedDrafts};
use workspace::{Dir, Stack, goal, reject, undo};

static COUNT: AtomicU32 = AtomicU32::new(0);

pub fn paths(paths: &[&str]) -> Selection {
    Selection { paths: paths.iter().map(|path| rel(path)).collect(), ..Selection::default() }
}

pub fn hunks(ids: &[&str]) -> Selection {
    Selection { hunks: ids.iter().map(|id| (*id).to_owned()).collect(), ..Selection::default() }
}

impl StackFixture {
    /// A directory for the copies of a batch.
    pub fn batch(&self) -> (String, Dir) {
        let id = format!("bat_{:06}", COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = self.top.join("state/batches").join(&id);
        fs::create_dir_all(&dir).unwrap();
        (id, Dir::open(&dir).unwrap())
    }

    /// Lands a selection of the current diff; returns the id of the batch.
    pub fn approve(&mut self, wish: &Selection) -> Result<String, Fault> {
        let seen = self.diff();
        self.approve_seen(&seen, wish)
    }

    /// Lands a selection of a diff that was shown earlier.
    pub fn approve_seen(&mut self, seen: &Diff, wish: &Selection) -> Result<String, Fault> {
        let stack = self.stack();
        let chosen = choose(seen, wish, &Marked::new())?;
        let (goals, _) = goal::goals(&chosen.picks)?;
        let (id, plan) = self.land(&stack, goals, None)?;
        let partly: Vec<_> = chosen.picks.iter().filter(|p| p.hunks.is_some()).map(|p| &p.file.change.path).collect();
        let whole: Vec<_> = plan.items.iter().map(|i| i.at.clone()).filter(|at| !partly.contains(&at)).collect();
        undo::drop_landed(&stack, &whole).unwrap();
        Ok(id)
    }

    /// Like `approve_seen` during a run: the layer is not touched, and no anchor is set.
    pub fn approve_seen_keeping(&mut self, seen: &Diff) -> Result<String, Fault> {
        let stack = self.stack();
        let chosen = choose(seen, &Selection::all(), &Marked::new())?;
        let (goals, _) = goal::goals(&chosen.picks)?;
        self.land(&stack, goals, None).map(|(id, _)| id)
    }

    /// Another workspace over the same base.
    pub fn beside(&self) -> StackFixture {
        let other = StackFixture::new();
        fs::remove_dir(other.base()).unwrap();
        std::os::unix::fs::symlink(self.base(), other.base()).unwrap();
        other
    }

    pub fn undo(&mut self, id: &str) -> Result<String, Fault> {
        let stack = self.stack();
        let dir = Dir::open(&self.top.join("state/batches").join(id)).unwrap();
        let (plan, landed) = undo::read(&dir, id)?;
        let (goals, _) = undo::goals(&stack.base, &plan, &landed)?;
        undo::put_back(&stack, &plan)?;
        self.land(&stack, goals, Some(&dir)).map(|(id, _)| id)
    }

    pub fn reject(&self, wish: &Selection) -> Result<(), Fault> {
        let diff = self.diff();
        let chosen = choose_to_drop(&diff, wish)?;
        reject::reject(&self.stack(), &chosen)
    }

    fn land(&mut self, stack: &Stack, goals: Vec<Goal>, undone: Option<&Dir>) -> Result<(String, Plan), Fault> {
        let _held = BaseLock::take(&stack.base, std::time::Duration::from_secs(60))?;
        let (id, batch) = self.batch();
        let view = undone.is_none().then_some(stack);
        let site = BatchDirs { base: &stack.base, batch: &batch, id: &id, view, undone };
        let drawn = CheckedDrafts::of(&stack.base, goals, &|at| Ok(Shape::dir(dir_mode(stack, at))))?;
        let plan = match stage::stage(&site, &drawn) {
            Ok(plan) => plan,
            Err(fault) => {
                stage::discard(&stack.base, &drawn.holds(), &id).unwrap();
                return Err(fault);
            }
        };
        let mut landing = Landing::new(&stack.base, &plan);
        if let Err(fault) = landing.carry_out() {
            assert_eq!(landing.roll_back().unwrap(), Vec::<String>::new(), "{fault}");
            landing.tidy().unwrap();
            return Err(fault);
        }
        for (path, seen) in undo::landed(&stack.base, &batch, &plan)?.0 {
            self.anchors.set(&path, seen);
        }
        assert_eq!(landing.tidy().unwrap(), Vec::<String>::new());
        Ok((id, plan))
    }

    /// Unreviewed changes, as short lines.
    pub fn pending(&self) -> Vec<String> {
        crate::fixture::summary(&diff(&self.stack(), &self.anchors, &Options::default()).unwrap())
    }
}

pub fn dir_mode(stack: &Stack, at: &Rel) -> u32 {
    let found = stack.meta(at).unwrap().filter(|found| found.meta.kind == FileKind::Dir);
    found.map_or(0o755, |found| found.meta.mode & 0o1777)
}

/// A tree for comparison: kind, mode, content or target, and mtime of files.
pub fn tree(dir: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(here) = waiting.pop() {
        for entry in fs::read_dir(&here).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let mode = meta.permissions().mode() & 0o7777;
            let what = if meta.is_symlink() {
                format!("link {:?}", fs::read_link(&path).unwrap())
            } else if meta.is_dir() {
                waiting.push(path.clone());
                format!("dir {mode:o}")
            } else {
                let bytes = fs::read(&path).unwrap();
                format!("file {mode:o} {:?} {}.{}", String::from_utf8_lossy(&bytes), meta.mtime(), meta.mtime_nsec())
            };
            all.insert(path.strip_prefix(dir).unwrap().as_os_str().as_bytes().to_vec(), what);
        }
    }
    all
}

/// Like `tree`, without times.
pub fn shape(dir: &Path) -> BTreeMap<Vec<u8>, String> {
    let without = |what: String| match what.starts_with("file") {
        true => what.rsplit_once(' ').unwrap().0.to_owned(),
        false => what,
    };
    tree(dir).into_iter().map(|(path, what)| (path, without(what))).collect()
}
