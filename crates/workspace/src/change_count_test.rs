use super::*;
use crate::{Layer, Layers};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A base with a few files and an empty layer over it.
struct World {
    root: PathBuf,
    up: PathBuf,
    stack: Stack,
}

impl World {
    fn new() -> World {
        let random = sys::random::id_bytes();
        let root = std::env::temp_dir().join(terms::id("tally", random));
        for dir in ["base/a/b", "base/c", "state"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        for file in ["top", "a/one", "a/b/two", "c/three"] {
            fs::write(root.join("base").join(file), "before").unwrap();
        }
        let base = Dir::open(&root.join("base")).unwrap();
        let layers = Layers::open(&Dir::open(&root.join("state")).unwrap()).unwrap();
        let (layer, _lock): (Layer, _) = layers.make(&base, random).unwrap();
        let since = layer.made_at().unwrap();
        let up = root.join("state/layers").join(&layer.id).join("up");
        World { up, stack: Stack { base, driver: Driver::Overlay, layers: vec![layer], since }, root }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Changes of a guest in the layer, as overlayfs leaves them, and changes of the host to the base.
#[derive(Clone, Debug)]
enum Act {
    Write(usize, u8),
    Mode(usize, bool),
    Remove(usize),
    Strike(usize),
    Link(usize),
    Opaque(usize),
    Below(usize, u8),
    Gone(usize),
    Nothing,
}

const PATHS: [&str; 10] =
    ["top", "new", "a/one", "a/b/two", "a/b/more", "c/three", "n/x", "n/m/y", ".git/HEAD", ".git/refs/z"];

fn acts() -> impl Strategy<Value = Act> {
    let path = 0..PATHS.len();
    prop_oneof![
        4 => (path.clone(), 0u8..3).prop_map(|(at, n)| Act::Write(at, n)),
        1 => (path.clone(), any::<bool>()).prop_map(|(at, shut)| Act::Mode(at, shut)),
        2 => path.clone().prop_map(Act::Remove),
        1 => path.clone().prop_map(Act::Strike),
        1 => path.clone().prop_map(Act::Link),
        1 => path.clone().prop_map(Act::Opaque),
        2 => (path.clone(), 0u8..3).prop_map(|(at, n)| Act::Below(at, n)),
        1 => path.prop_map(Act::Gone),
        1 => Just(Act::Nothing),
    ]
}

fn clear(path: &Path) {
    let _ = fs::remove_dir_all(path);
    let _ = fs::remove_file(path);
}

/// Creates the parent directory and removes what is in the way.
fn above(top: &Path, at: &str) -> PathBuf {
    let mut here = top.to_owned();
    for part in Path::new(at).parent().unwrap().components() {
        here.push(part);
        if !here.is_dir() || here.is_symlink() {
            clear(&here);
            fs::create_dir(&here).unwrap();
        }
    }
    top.join(at)
}

impl World {
    fn act(&self, act: &Act) {
        let words = |n: u8| ["before", "after!", "something longer"][n as usize];
        match act {
            Act::Write(at, n) => {
                let path = above(&self.up, PATHS[*at]);
                clear(&path);
                fs::write(path, words(*n)).unwrap();
            }
            Act::Mode(at, shut) => {
                let path = self.up.join(PATHS[*at]);
                let dir = path.parent().unwrap().to_owned();
                let at = if *shut || !path.exists() { dir } else { path };
                if at.exists() && at != self.up {
                    let mode = if *shut { 0o700 } else { 0o755 };
                    fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap();
                }
            }
            Act::Remove(at) => clear(&self.up.join(PATHS[*at])),
            Act::Strike(at) => {
                let path = above(&self.up, PATHS[*at]);
                clear(&path);
                let made = std::process::Command::new("mknod").arg(path).args(["c", "0", "0"]).status().unwrap();
                assert!(made.success());
            }
            Act::Link(at) => {
                let path = above(&self.up, PATHS[*at]);
                clear(&path);
                symlink("elsewhere", path).unwrap();
            }
            Act::Opaque(at) => {
                let dir = above(&self.up, PATHS[*at]).parent().unwrap().to_owned();
                if dir != self.up {
                    rustix::fs::setxattr(dir, "user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty()).unwrap();
                }
            }
            Act::Below(at, n) => {
                let path = above(&self.root.join("base"), PATHS[*at]);
                clear(&path);
                fs::write(path, words(*n)).unwrap();
            }
            Act::Gone(at) => clear(self.root.join("base").join(PATHS[*at]).parent().unwrap()),
            Act::Nothing => {}
        }
        // One tick of the coarsest file system clock here.
        std::thread::sleep(Duration::from_millis(12));
    }
}

/// A cached count equals a full one, whatever changed in between in the layer or below.
// promise 18
#[test]
fn memory_changes_nothing_in_what_is_counted() {
    let mut runner = TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    let all = proptest::collection::vec(acts(), 1..14);
    runner
        .run(&all, |all| {
            let (world, mut tally) = (World::new(), Tally::default());
            let later = terms::clock::now_ms() + 3_600_000;
            for act in &all {
                // The base directory itself may be gone by then.
                if !world.root.join("base").exists() {
                    break;
                }
                world.act(act);
                prop_assert_eq!(
                    tally.count_at(&world.stack, later).unwrap(),
                    count(&world.stack).unwrap().0,
                    "{:?} of {:?}",
                    act,
                    all
                );
            }
            Ok(())
        })
        .unwrap();
}

/// A file that has just changed is compared again: it may change once more within the same tick of the clock.
// promise 18
#[test]
fn what_is_fresh_is_not_trusted() {
    let (world, mut tally) = (World::new(), Tally::default());
    world.act(&Act::Write(6, 0));
    assert_eq!(tally.count(&world.stack).unwrap().changes.added, 1);
    assert!(tally.seen.iter().all(|seen| !seen.settled));
    assert_eq!(tally.count_at(&world.stack, terms::clock::now_ms() + 3000).unwrap().changes.added, 1);
    assert!(tally.seen.iter().all(|seen| seen.settled), "the control: a little later it is");
}

#[test]
fn more_than_is_remembered_is_counted_all_the_same() {
    let (world, mut tally) = (World::new(), Tally::default());
    for n in 0..MOST_REMEMBERED + 10 {
        fs::create_dir(world.up.join(format!("d{n}"))).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(tally.count(&world.stack).unwrap().changes.added, MOST_REMEMBERED as u64 + 10);
        assert!(tally.seen.is_empty());
    }
}
