//! Steps that mount the sandbox's own home: an overlay of its layers over a generated skeleton, which holds the mount
//! points of what the host shows below the home. An earlier run may have put anything into the layers, so no step makes
//! a name in the mounted home, and what is mounted below it is opened without following links.

use super::{Builder, LAYERS, QUIET, empty};
use crate::spec::GuestSpec;
use crate::workspace::{Cache, OwnHome};
use policy::{Grant, HostFileType, Perms, private_place};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use sys::op::{Attr, Op};
use terms::{ErrorKind, Fault, Phase};

/// The generated skeleton, below the home's layers.
const SKELETON: &str = "/.old/sys/skeleton";
/// Mount point of the home where a grant shows the host's directory around it.
const APART: &str = "/.old/sys/home";
/// Home of a run that keeps nothing, in the scratch tmpfs.
const SCRATCH_HOME: &str = "/.old/proc/home";

/// Bytes of mount options: a page, with its final zero byte.
const LONGEST_OPTIONS: usize = 4095;

/// Name of messages about the home's layers.
const RULE: &str = "home";

/// An entry of the skeleton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    Dir,
    File,
}

/// Lists the mount points below the sandbox's own home, parents before children.
pub fn home_points(spec: &GuestSpec) -> BTreeMap<PathBuf, Point> {
    let mut points = BTreeMap::new();
    let Some(home) = spec.plan.private.home() else { return points };
    let plan = &spec.plan;
    let kind = |kind: HostFileType| if kind == HostFileType::Dir { Point::Dir } else { Point::File };
    let grants = plan.grants.iter().map(|g| (&g.path, kind(g.kind)));
    let sockets = plan.sockets.iter().map(|socket| (&socket.path, Point::File));
    let asked = plan.asked.iter().map(|place| (&place.path, kind(place.kind)));
    let dirs = spec.workspace.iter().map(|w| &w.at).chain([&spec.cwd]).map(|dir| (dir, Point::Dir));
    // What a granted directory shows already needs no mount point.
    let is_shown = |at: &Path| {
        let above = |g: &Grant| g.kind == HostFileType::Dir && g.path != at && g.path.starts_with(home);
        plan.grants.iter().any(|g| above(g) && at.starts_with(&g.path))
    };
    for (at, point) in grants.chain(sockets).chain(asked).chain(dirs) {
        if !at.starts_with(home) || at == home || is_shown(at) {
            continue;
        }
        for above in at.ancestors().skip(1).take_while(|above| *above != home) {
            points.insert(above.to_path_buf(), Point::Dir);
        }
        points.entry(at.clone()).or_insert(point);
    }
    points
}

impl Builder<'_> {
    /// True for the sandbox's own home and paths below it.
    pub(super) fn is_in_home(&self, path: &Path) -> bool {
        self.spec.plan.private.is_in_home(path)
    }

    /// Mounts the home. Comes after the grants above it and before those below it.
    pub(super) fn home(&mut self) -> Result<(), Fault> {
        let spec = self.spec;
        let Some(home) = spec.plan.private.home() else { return Ok(()) };
        // A mount above a private directory does not have what is in it.
        let place = private_place(home);
        let reaches = |above: &&Path| place.is_none_or(|place| above.starts_with(place));
        let mut above = home.ancestors().skip(1).take_while(reaches);
        let is_shown = above.any(|above| self.mounted.contains(above.as_os_str()));
        match is_shown {
            // The host shows the directory around it, and has no such home.
            true if !std::fs::symlink_metadata(home).is_ok_and(|found| found.is_dir()) => return Ok(()),
            true => {}
            false => {
                home.parent().into_iter().for_each(|above| self.dir(above));
                self.push(Op::Dir { at: self.cpath(home), mode: 0o755 });
            }
        }
        self.dirs.insert(home.into());
        let points = home_points(spec);
        let attr = self.scratch_attr();
        match &spec.own_home {
            OwnHome::Layers { lower, top, .. } => {
                self.layers_place();
                self.push(Op::Dir { at: self.cstring(SKELETON), mode: 0o700 });
                self.furnish(Path::new(SKELETON), home, &points);
                let options = self.home_options(lower, top)?;
                let at = if is_shown { self.cstring(APART) } else { self.cpath(home) };
                if is_shown {
                    self.push(Op::Dir { at: at.clone(), mode: 0o755 });
                }
                self.push(Op::Overlay { at: at.clone(), options, attr });
                if is_shown {
                    self.push(Op::Bind { from: at, at: self.cpath(home), attr });
                }
            }
            OwnHome::Tree(tree) => {
                self.layers_place();
                self.lay_tree(tree, home, attr, RULE);
                self.pin_points(&points);
            }
            OwnHome::Scratch => {
                self.push(Op::Dir { at: self.cstring(SCRATCH_HOME), mode: 0o700 });
                self.furnish(Path::new(SCRATCH_HOME), home, &points);
                self.push(Op::Bind { from: self.cstring(SCRATCH_HOME), at: self.cpath(home), attr });
                self.pin_points(&points);
            }
        }
        self.has_home = true;
        Ok(())
    }

    fn home_options(&mut self, lower: &[(PathBuf, &'static str)], top: &Path) -> Result<sys::arena::Text, Fault> {
        self.top_layer.get_or_insert_with(|| top.to_path_buf());
        let upper = self.layer(top, QUIET, RULE);
        let mut options = String::from("userxattr,volatile,lowerdir=");
        for (layer, part) in lower.iter().rev() {
            let layer = self.layer(layer, QUIET.with(Attr::READ_ONLY), RULE);
            let _ = write!(options, "{layer}/{part}:");
        }
        let _ = write!(options, "{SKELETON},upperdir={upper}/home,workdir={upper}/homework");
        if options.len() > LONGEST_OPTIONS {
            let message = format!("the home consists of {} layers: more than one mount supports", lower.len());
            let hint = "`cofferdam gc` joins layers that nothing else needs";
            return Err(Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Planning));
        }
        Ok(self.cstring(options))
    }

    /// Mounts a package cache of the host with the sandbox's additions above it.
    pub(super) fn cache(&mut self, cache: &Cache, grant: &Grant) -> Result<(), Fault> {
        let OwnHome::Layers { top, .. } = &self.spec.own_home else { return Ok(()) };
        let (base, whole) = (format!("{LAYERS}/base-{}", cache.name), format!("{LAYERS}/cache-{}", cache.name));
        let read_only = QUIET.with(Attr::READ_ONLY);
        for at in [&base, &whole] {
            self.push(Op::Dir { at: self.cstring(at), mode: 0o755 });
        }
        self.lay_tree(&cache.at, Path::new(&base), read_only, &grant.rule);
        let (upper, name) = (self.layer(top, QUIET, RULE), &cache.name);
        let mut options = String::from("userxattr,volatile,lowerdir=");
        for layer in cache.lower.iter().rev() {
            let layer = self.layer(layer, read_only, RULE);
            let _ = write!(options, "{layer}/caches/{name}:");
        }
        let _ = write!(options, "{base},upperdir={upper}/caches/{name},workdir={upper}/cachework/{name}");
        if options.len() > LONGEST_OPTIONS {
            let message = format!("{}: its additions are in more layers than one mount supports", cache.at.display());
            let hint = "`cofferdam gc` joins layers that nothing else needs";
            return Err(Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Planning));
        }
        self.push(Op::Overlay { at: self.cstring(&whole), options: self.cstring(options), attr: QUIET });
        let writable = Grant { perms: grant.perms.union(Perms::WRITE), ..grant.clone() };
        let attr = self.attr_of(&writable);
        self.push(Op::Bind { from: self.cstring(&whole), at: self.cpath(&cache.at), attr });
        self.mounted.insert(cache.at.clone().into());
        Ok(())
    }

    /// Makes the mount points, links and generated files in a fresh directory that becomes the home's lowest part.
    fn furnish(&mut self, place: &Path, home: &Path, points: &BTreeMap<PathBuf, Point>) {
        let inside = |at: &Path| at.strip_prefix(home).map_or_else(|_| place.to_path_buf(), |rest| place.join(rest));
        for (at, point) in points {
            let made = self.cpath(&inside(at));
            self.push(match point {
                Point::Dir => Op::Dir { at: made, mode: 0o755 },
                Point::File => Op::File { at: made, mode: 0o644, bytes: empty() },
            });
            self.dirs.insert(at.into());
        }
        let links: Vec<_> = self.spec.plan.links.iter().filter(|link| link.at.starts_with(home)).cloned().collect();
        for link in links.iter().filter(|link| link.at != home && !points.contains_key(&link.at)) {
            if points.keys().any(|at| link.at.starts_with(at) && points.get(at) == Some(&Point::File)) {
                continue;
            }
            self.furnish_above(place, home, &link.at);
            self.push(Op::Link { at: self.cpath(&inside(&link.at)), target: self.cpath(&link.target) });
            self.dirs.insert(link.at.clone().into());
        }
        let Some(made) = self.made_git_settings().filter(|made| made.directory.starts_with(home)) else { return };
        let taken = |at: &Path| points.get(at) == Some(&Point::File) || links.iter().any(|link| at == link.at);
        if made.directory.ancestors().any(taken) || made.files.iter().any(|(at, _)| points.contains_key(at)) {
            return;
        }
        self.furnish_above(place, home, &made.directory.join("config"));
        for (at, bytes) in &made.files {
            let bytes = self.arena.list(bytes);
            self.push(Op::File { at: self.cpath(&inside(at)), mode: 0o644, bytes });
        }
    }

    /// Returns the number of entries that `furnish` makes, with the directory itself; no fewer than there will be.
    pub(super) fn expected_home_entries(&self) -> u64 {
        let Some(home) = self.spec.plan.private.home() else { return 0 };
        let mut entries: BTreeSet<PathBuf> = home_points(self.spec).into_keys().collect();
        let links = self.spec.plan.links.iter().map(|link| link.at.clone());
        let made = self.made_git_settings().into_iter().flat_map(|made| made.files.map(|(at, _)| at));
        for at in links.chain(made).filter(|at| at.starts_with(home) && at != home) {
            entries.extend(at.ancestors().take_while(|above| *above != home).map(Path::to_path_buf));
        }
        1 + entries.len() as u64
    }

    /// Makes the directories between the home and `at`.
    fn furnish_above(&mut self, place: &Path, home: &Path, at: &Path) {
        let mut above: Vec<&Path> = at.ancestors().skip(1).take_while(|dir| *dir != home).collect();
        above.reverse();
        for dir in above {
            if self.dirs.insert(dir.into()) {
                let made = place.join(dir.strip_prefix(home).unwrap_or(dir));
                self.push(Op::Dir { at: self.cpath(&made), mode: 0o755 });
            }
        }
    }

    /// Pins the directories that lead to mount points. In an overlay they cannot be renamed; here a guest could move
    /// one away together with what is mounted below it.
    fn pin_points(&mut self, points: &BTreeMap<PathBuf, Point>) {
        for at in points.keys() {
            self.dirs.insert(at.into());
            let leads = points.keys().any(|below| below != at && below.starts_with(at));
            let is_shown = self.spec.plan.grants.iter().any(|g| g.path == *at);
            if leads && !is_shown {
                self.pin(at);
            }
        }
    }

    /// Returns the place at which a layer is attached; attaches it once.
    pub(super) fn layer(&mut self, layer: &Path, attr: Attr, rule: &str) -> String {
        if let Some(place) = self.attached.get(layer.as_os_str()) {
            return place.clone();
        }
        let place = format!("{LAYERS}/{}", self.attached.len() + 1);
        self.push(Op::Dir { at: self.cstring(&place), mode: 0o755 });
        self.lay_tree(layer, Path::new(&place), attr, rule);
        self.attached.insert(layer.into(), place.clone());
        place
    }

    /// Creates the stand-in for a place in the home that a person is asked about.
    pub(super) fn stand_in_home(&mut self, at: &Path) {
        let attr = QUIET.with(Attr::READ_ONLY).with(Attr::NO_EXEC);
        self.rebind(at, attr);
    }
}

/// True where `at`, the target of a failed step, lies below the home: an entry of the home is in the way.
pub fn is_below(home: Option<&Path>, at: &[u8]) -> bool {
    home.is_some_and(|home| {
        let at = Path::new(std::ffi::OsStr::from_bytes(at));
        at != home && at.starts_with(home)
    })
}
