//! Removal of groups whose supervisor was killed before it could remove them. Only groups of ours whose owner is
//! certainly dead are touched; their remaining members are killed first.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::dir::Dir;
use super::group::{Group, OrphanDir};
use super::layout::Layout;
use super::owner::Owner;
use super::{DELEGATED, RUNS};

/// Returns the names of groups whose owner is gone.
pub fn orphans(layout: &Layout) -> Vec<String> {
    found(layout).into_keys().collect()
}

/// Removes orphaned groups and returns the number of sandboxes that they belonged to.
pub fn sweep(layout: &Layout) -> usize {
    found(layout).into_iter().filter(|(name, found)| end(name, found.clone())).count()
}

fn found(layout: &Layout) -> BTreeMap<String, Vec<OrphanDir>> {
    let mut orphans: BTreeMap<String, Vec<OrphanDir>> = BTreeMap::new();
    for hierarchy in &layout.hierarchies {
        let parent_group = hierarchy.parent_group().ok();
        let own = parent_group.map(|p| (p.dir.clone(), p.path.clone()));
        for (dir, path) in own.into_iter().chain(delegated(&hierarchy.mount)).flat_map(with_runs) {
            for name in dir.children() {
                if Owner::of_group(&name).is_some_and(|owner| owner.is_dead()) {
                    let (above, parent, path) = (above_of(&path), dir.clone(), path.clone());
                    orphans.entry(name).or_default().push(OrphanDir {
                        version: hierarchy.version,
                        parent,
                        above,
                        path,
                    });
                }
            }
        }
    }
    orphans
}

/// Returns a parent group, and the shared runs directory in it if there is one.
fn with_runs((dir, path): (Arc<Dir>, PathBuf)) -> Vec<(Arc<Dir>, PathBuf)> {
    let runs = dir.child(RUNS).ok().map(|runs| (Arc::new(runs), path.join(RUNS)));
    [(dir, path)].into_iter().chain(runs).collect()
}

fn above_of(path: &std::path::Path) -> Option<Arc<Dir>> {
    let above = path.parent().filter(|_| path.ends_with(RUNS))?;
    Dir::open(above).ok().map(Arc::new)
}

/// Returns the directories of delegated users that this process may write to: all of them for root.
fn delegated(mount: &std::path::Path) -> Vec<(Arc<Dir>, PathBuf)> {
    let all = mount.join(DELEGATED);
    let Ok(dir) = Dir::open(&all) else {
        return Vec::new();
    };
    let open = |user: String| {
        let dir = dir.child(&user).ok()?;
        dir.may_write(".").ok()?;
        Some((Arc::new(dir), all.join(user)))
    };
    dir.children().into_iter().filter_map(open).collect()
}

fn end(name: &str, found: Vec<OrphanDir>) -> bool {
    let group = Group::adopt(name, found);
    if group.populated() && group.kill().is_ok() {
        let deadline = Instant::now() + Duration::from_secs(1);
        while group.populated() && Instant::now() < deadline {
            sleep(Duration::from_millis(1));
        }
    }
    group.remove().is_ok()
}
