//! Steps that mount a workspace over its directory. Its layers are attached at short paths that disappear with the old
//! root, so the guest can reach them only through the whole.

use super::{Builder, LAYERS, OLD, QUIET};
use crate::idmap::Purpose;
use crate::workspace::{ChangeStorage, MOST_LAYERS, Workspace};
use policy::{Grant, Guard, Perm};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use sys::arena::Text;
use sys::op::{Attr, Op};
use terms::{ErrorKind, Fault, Phase};

/// Mount point of the whole workspace, where parts of it need other attributes than the rest.
const WHOLE: &str = "/.old/sys/whole";

impl Builder<'_> {
    /// Returns the workspace, where `path` is in it.
    pub(super) fn workspace_at(&self, path: &Path) -> Option<&Workspace> {
        self.spec.workspace.as_ref().filter(|w| path.starts_with(&w.at))
    }

    /// Adds a grant for the workspace itself, where only a grant above covers it.
    pub(super) fn with_workspace(&self, mut grants: Vec<Grant>) -> Vec<Grant> {
        let Some(workspace) = &self.spec.workspace else { return grants };
        if grants.iter().any(|g| g.path == workspace.at) {
            return grants;
        }
        let above = grants.iter().rposition(|g| g.covers(&workspace.at));
        if let Some(grant) = above.map(|i| Grant { path: workspace.at.clone(), ..grants[i].clone() }) {
            let at = grants.partition_point(|g| g.path < workspace.at);
            grants.insert(at, grant);
        }
        grants
    }

    /// Shows a grant at or below the workspace's directory, from the workspace.
    pub(super) fn grant_in_workspace(&mut self, grant: &Grant, all: &[Grant]) -> Result<(), Fault> {
        let spec = self.spec;
        let Some(workspace) = &spec.workspace else { return Ok(()) };
        if grant.path == workspace.at {
            return self.lay(workspace, grant, all);
        }
        let outer = all.iter().find(|g| g.path == workspace.at);
        if grant.perms.contains(Perm::Execute) && outer.is_some_and(|g| !g.perms.contains(Perm::Execute)) {
            let (from, attr) = (self.source(&grant.path), self.attr_of(grant));
            self.push(Op::Bind { from, at: self.cpath(&grant.path), attr });
        }
        Ok(())
    }

    fn lay(&mut self, workspace: &Workspace, grant: &Grant, all: &[Grant]) -> Result<(), Fault> {
        super::grants::check_in_private(grant)?;
        let at = &workspace.at;
        self.dir(at);
        let attr = self.attr_of(grant);
        match &workspace.over {
            ChangeStorage::Tree(tree) if self.asks_in_workspace() => {
                self.layers_place();
                self.push(Op::Dir { at: self.cstring(WHOLE), mode: 0o755 });
                self.lay_tree(tree, Path::new(WHOLE), QUIET, &grant.rule);
                self.push(Op::Bind { from: self.cstring(WHOLE), at: self.cpath(at), attr });
                self.workspace_source = Some(WHOLE.into());
            }
            ChangeStorage::Tree(tree) => {
                self.lay_tree(tree, at, attr, &grant.rule);
                self.workspace_source = Some(self.cpath(at).to_bytes().to_vec());
            }
            ChangeStorage::Layers(layers) => {
                let options = self.options(workspace, layers, &grant.rule)?;
                let inner = |g: &Grant| g.path != *at && g.path.starts_with(at) && g.perms.contains(Perm::Execute);
                let varies = !grant.perms.contains(Perm::Execute) && all.iter().any(inner);
                // What leads to it in the sandbox's own home is the guest's, and only a bind follows no link.
                if varies || self.lists_programs() || self.asks_in_workspace() || self.is_in_home(at) {
                    self.push(Op::Dir { at: self.cstring(WHOLE), mode: 0o755 });
                    self.push(Op::Overlay { at: self.cstring(WHOLE), options, attr: QUIET });
                    self.push(Op::Bind { from: self.cstring(WHOLE), at: self.cpath(at), attr });
                    self.workspace_source = Some(WHOLE.into());
                } else {
                    self.push(Op::Overlay { at: self.cpath(at), options, attr });
                    self.workspace_source = Some(at.as_os_str().as_bytes().to_vec());
                }
            }
        }
        self.mounted.insert(at.clone().into());
        Ok(())
    }

    fn options(&mut self, workspace: &Workspace, layers: &[PathBuf], rule: &str) -> Result<Text, Fault> {
        if layers.is_empty() || layers.len() > MOST_LAYERS {
            let message = format!("a workspace has 1 to {MOST_LAYERS} layers; this one has {}", layers.len());
            let hint = "`cofferdam gc` joins layers that nothing else needs";
            return Err(Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Planning));
        }
        self.top_layer = layers.last().cloned();
        self.layers_place();
        let read_only = QUIET.with(Attr::READ_ONLY);
        let base = self.lay_base(&workspace.base, read_only, rule);
        let struck = self.whiteout_layer(workspace);
        let places: Vec<String> = layers
            .iter()
            .enumerate()
            .map(|(i, layer)| {
                let attr = if i + 1 == layers.len() { QUIET } else { read_only };
                self.layer(layer, attr, rule)
            })
            .collect();
        let (top, frozen) = places.split_last().map_or(("", &places[..0]), |(top, rest)| (top.as_str(), rest));
        let mut options = String::from("userxattr,volatile,lowerdir=");
        for layer in frozen.iter().rev() {
            let _ = write!(options, "{layer}/up:");
        }
        // Directly above the base: a file that the guest creates under such a name is its own.
        if let Some(struck) = struck {
            let _ = write!(options, "{struck}:");
        }
        let _ = write!(options, "{base},upperdir={top}/up,workdir={top}/work");
        Ok(self.cstring(options))
    }

    /// Attaches the base at a path of its own.
    fn lay_base(&mut self, base: &Path, attr: Attr, rule: &str) -> String {
        let place = format!("{LAYERS}/0");
        self.push(Op::Dir { at: self.cstring(&place), mode: 0o755 });
        self.lay_tree(base, Path::new(&place), attr, rule);
        place
    }

    pub(super) fn lay_tree(&mut self, tree: &Path, at: &Path, attr: Attr, rule: &str) {
        if self.guest.privileged {
            self.shifted(tree, at, attr, rule, Purpose::Layer);
        } else {
            let from = self.path_of(&[OLD.as_bytes(), tree.as_os_str().as_bytes()]);
            self.push(Op::Bind { from, at: self.cpath(at), attr });
        }
    }

    /// Creates a layer of whiteouts for hidden names that do not exist yet: should one of them appear on the host, it
    /// stays hidden inside.
    fn whiteout_layer(&mut self, workspace: &Workspace) -> Option<String> {
        let spec = self.spec;
        let hidden: Vec<(PathBuf, PathBuf)> =
            spec.plan.guards.iter().filter_map(|guard| place_of(guard, &workspace.at)).collect();
        let mut layer = None;
        for (dir, name) in hidden {
            let layer: &String = layer.get_or_insert_with(|| self.new_layer());
            self.add_whiteout(layer, &workspace.at, &workspace.at.join(dir), &name);
        }
        layer
    }

    /// Returns the bind source for the tree at `path`.
    pub(super) fn source(&self, path: &Path) -> Text {
        let inside = self.workspace_at(path).and_then(|w| path.strip_prefix(&w.at).ok());
        match (inside, &self.workspace_source) {
            (Some(rest), Some(whole)) if rest.as_os_str().is_empty() => self.cstring(whole),
            (Some(rest), Some(whole)) => self.path_of(&[whole, b"/", rest.as_os_str().as_bytes()]),
            _ => self.path_of(&[OLD.as_bytes(), path.as_os_str().as_bytes()]),
        }
    }
}

/// Returns the directory below `top` in which a hidden name would appear, and its first missing component.
fn place_of(guard: &Guard, top: &Path) -> Option<(PathBuf, PathBuf)> {
    let denied = Path::new(&guard.pattern);
    let plain = !guard.pattern.contains(['*', '?', '[', '\\']);
    let rest = denied.strip_prefix(top).ok().filter(|rest| plain && guard.hides && !rest.as_os_str().is_empty())?;
    let mut dir = PathBuf::new();
    for part in rest {
        match std::fs::symlink_metadata(top.join(&dir).join(part)) {
            Ok(found) if found.is_dir() => dir.push(part),
            // A symbolic link leads elsewhere, and its target has rules of its own.
            Ok(_) => return None,
            Err(_) => return Some((dir, part.into())),
        }
    }
    None
}
