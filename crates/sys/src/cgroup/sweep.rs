//! Groups whose supervisor was killed before it could remove them. Only names of ours whose owner is certainly dead
//! are touched; what still runs in them is killed first.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::DELEGATED;
use super::dir::Dir;
use super::group::Group;
use super::layout::{Layout, Version};
use super::owner::Owner;

type Found = Vec<(Version, Arc<Dir>, PathBuf)>;

/// Names of groups whose owner is gone.
pub fn orphans(layout: &Layout) -> Vec<String> {
    found(layout).into_keys().collect()
}

/// Returns how many sandboxes' groups were removed.
pub fn sweep(layout: &Layout) -> usize {
    found(layout).into_iter().filter(|(name, found)| end(name, found.clone())).count()
}

fn found(layout: &Layout) -> BTreeMap<String, Found> {
    let mut orphans: BTreeMap<String, Found> = BTreeMap::new();
    for hierarchy in &layout.hierarchies {
        let place = hierarchy.place().ok();
        let own = place.map(|p| (p.dir.clone(), p.path.clone()));
        for (dir, path) in own.into_iter().chain(delegated(&hierarchy.mount)) {
            for name in dir.children() {
                if Owner::of_group(&name).is_some_and(|owner| owner.is_dead()) {
                    orphans.entry(name).or_default().push((hierarchy.version, dir.clone(), path.clone()));
                }
            }
        }
    }
    orphans
}

/// The directories of delegated users, as far as we may write there: all of them for root.
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

fn end(name: &str, found: Found) -> bool {
    let group = Group::adopt(name, found);
    if group.populated() && group.kill().is_ok() {
        let deadline = Instant::now() + Duration::from_secs(1);
        while group.populated() && Instant::now() < deadline {
            sleep(Duration::from_millis(1));
        }
    }
    group.remove().is_ok()
}
