//! The view of a stack, and its diff, compared with a plain model: trees as maps.

use crate::fixture::*;
use api::{ChangeKind, FileKind, Rel};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A tree: the node at each path, directories included.
type Tree = BTreeMap<String, Node>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Dir,
    File(String),
    Link(String),
}

#[derive(Clone, Debug)]
enum Act {
    Write(String, String),
    Link(String, String),
    MakeDir(String),
    Remove(String),
    NewLayer,
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "d"]), 1..4).prop_map(|parts| parts.join("/"))
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (path(), "[xyz]{0,3}\n").prop_map(|(p, t)| Act::Write(p, t)),
        1 => (path(), "[xyz]{1,3}").prop_map(|(p, t)| Act::Link(p, t)),
        1 => path().prop_map(Act::MakeDir),
        3 => path().prop_map(Act::Remove),
        1 => Just(Act::NewLayer),
    ]
}

fn parents(path: &str) -> Vec<String> {
    let parts: Vec<&str> = path.split('/').collect();
    (1..parts.len()).map(|n| parts[..n].join("/")).collect()
}

fn below<'a>(tree: &'a Tree, path: &str) -> Vec<&'a String> {
    let prefix = format!("{path}/");
    tree.keys().filter(|k| *k == path || k.starts_with(&prefix)).collect()
}

/// Applies an operation to the model and to the topmost layer as the kernel would; ignores what the kernel would
/// refuse.
fn perform(fixture: &mut StackFixture, tree: &mut Tree, act: &Act) {
    let (path, node) = match act {
        Act::NewLayer => return fixture.push_layer(),
        Act::Remove(path) => {
            if !tree.contains_key(path) {
                return;
            }
            let gone: Vec<String> = below(tree, path).into_iter().cloned().collect();
            gone.iter().for_each(|k| drop(tree.remove(k)));
            let up = fixture.up();
            remove(&up.join(path));
            make_parents(&up, path);
            return strike(&up, path);
        }
        Act::Write(path, text) => (path, Node::File(text.clone())),
        Act::Link(path, target) => (path, Node::Link(target.clone())),
        Act::MakeDir(path) => (path, Node::Dir),
    };
    let way_is_free = parents(path).iter().all(|p| tree.get(p).is_none_or(|n| *n == Node::Dir));
    let is_write_to_file = matches!((&node, tree.get(path)), (Node::File(_), Some(Node::File(_))));
    if !way_is_free || (tree.contains_key(path) && !is_write_to_file) {
        return;
    }
    let up = fixture.up();
    let missing: Vec<String> = parents(path).into_iter().filter(|p| !tree.contains_key(p)).collect();
    for parent in missing.iter().chain([path].into_iter().filter(|_| node == Node::Dir)) {
        make_parents(&up, parent);
        // A new directory over a whiteout is opaque.
        let was_struck = up.join(parent).symlink_metadata().is_ok();
        remove(&up.join(parent));
        fs::create_dir(up.join(parent)).unwrap();
        if was_struck || lower_has(fixture, parent) {
            opaque(&up, parent);
        }
        tree.insert(parent.clone(), Node::Dir);
    }
    match &node {
        Node::Dir => return,
        Node::File(text) => {
            make_parents(&up, path);
            if !up.join(path).is_file() {
                remove(&up.join(path));
            }
            fs::write(up.join(path), text).unwrap();
        }
        Node::Link(target) => {
            make_parents(&up, path);
            remove(&up.join(path));
            link(&up, path, target);
        }
    }
    tree.insert(path.clone(), node);
}

/// Looks for an entry at the path below the topmost layer, which a new directory must hide.
fn lower_has(fixture: &StackFixture, path: &str) -> bool {
    let stack = fixture.stack();
    let lower = &stack.layers[..stack.layers.len() - 1];
    let at = Rel::parse(path.as_bytes()).unwrap();
    lower.iter().any(|layer| layer.up.meta(&at).unwrap().is_some()) || stack.base.meta(&at).unwrap().is_some()
}

fn make_parents(up: &Path, path: &str) {
    for parent in parents(path) {
        if !up.join(&parent).is_dir() {
            fs::create_dir(up.join(&parent)).unwrap();
        }
    }
}

fn remove(path: &Path) {
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
}

/// The tree that the view shows.
fn seen(fixture: &StackFixture) -> Tree {
    let stack = fixture.stack();
    let mut tree = Tree::new();
    let mut todo = vec![Rel::top()];
    while let Some(dir) = todo.pop() {
        for (name, meta) in stack.names(&dir).unwrap() {
            let path = dir.join(&name);
            let node = match meta.kind {
                FileKind::Dir => {
                    todo.push(path.clone());
                    Node::Dir
                }
                FileKind::Symlink => Node::Link(String::from_utf8(stack.link_target(&path).unwrap()).unwrap()),
                _ => Node::File(std::io::read_to_string(stack.file(&path).unwrap()).unwrap()),
            };
            tree.insert(path.to_string(), node);
        }
    }
    tree
}

/// The base's tree with a diff applied.
fn applied(base: &Tree, fixture: &StackFixture) -> Tree {
    let diff = fixture.diff_all();
    let mut tree = base.clone();
    for file in &diff.files {
        let change = &file.change;
        if let Some(from) = change.kind.from() {
            tree.remove(&from.to_string());
        }
        if change.kind == ChangeKind::Deleted || change.kind == ChangeKind::Type {
            tree.remove(&change.path.to_string());
        }
    }
    let stack = fixture.stack();
    for file in diff.files.iter().filter(|f| f.change.after.is_some()) {
        let path = &file.change.path;
        parents(&path.to_string()).into_iter().for_each(|p| drop(tree.insert(p, Node::Dir)));
        let node = match file.change.after.as_ref().unwrap().kind {
            FileKind::Dir => Node::Dir,
            FileKind::Symlink => Node::Link(String::from_utf8(stack.link_target(path).unwrap()).unwrap()),
            _ => Node::File(std::io::read_to_string(stack.file(path).unwrap()).unwrap()),
        };
        tree.insert(path.to_string(), node);
    }
    tree
}

fn build(dir: &Path, tree: &Tree) {
    for (path, node) in tree {
        match node {
            Node::Dir => fs::create_dir_all(dir.join(path)).unwrap(),
            Node::File(text) => write(dir, path, text),
            Node::Link(target) => link(dir, path, target),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    // promise 13
    #[test]
    fn view_and_diff_agree_with_a_model(start in prop::collection::vec(act(), 0..12), later in prop::collection::vec(act(), 0..25)) {
        let mut fixture = StackFixture::new();
        // The base is produced by the same operations, on the model alone, and then written out.
        let mut base = Tree::new();
        {
            let mut scratch = StackFixture::new();
            start.iter().for_each(|act| perform(&mut scratch, &mut base, act));
        }
        build(&fixture.base(), &base);
        let mut tree = base.clone();
        later.iter().for_each(|act| perform(&mut fixture, &mut tree, act));
        prop_assert_eq!(&seen(&fixture), &tree, "the view");
        prop_assert_eq!(&applied(&base, &fixture), &tree, "the diff: {:?}", summary(&fixture.diff_all()));
        prop_assert_eq!(fixture.diff_all().digest, fixture.diff_all().digest);
    }
}
