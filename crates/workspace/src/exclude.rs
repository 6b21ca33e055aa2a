//! Paths withheld from review: build artefacts, caches, and files ignored by the base's own `.gitignore`. They stay in
//! the workspace, are counted and do not land by themselves. Rules that a guest wrote are disregarded: it could hide
//! changes behind them.

use crate::dir::Dir;
use crate::ignore::{Patience, Rules, price_of};
use api::{Rel, Withheld};
use std::collections::BTreeMap;
use std::io::Read;
use std::rc::Rc;

/// Selection of the paths withheld from review.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exclude {
    #[default]
    Artefacts,
    /// Withholds only git directories.
    Nothing,
}

/// Reason why a path is withheld, and the group that it is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithheldReason {
    pub group: usize,
    pub keeping: Keeping,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// Withholds all contents, whatever the names.
    Artefact,
    /// Withholds all contents but files that run on a reviewer's machine.
    Ignored,
    /// Withholds all contents of a git directory, whatever `Exclude` says.
    Git,
}

pub const GIT: &str = "git's own directory; commits made inside stay inside";
pub const IGNORED: &str = "ignored by .gitignore";

/// Evidence that a directory holds artefacts and does not merely have the name.
#[derive(Clone, Copy, Debug)]
enum Evidence {
    Name,
    /// A sibling file with one of these names.
    Beside(&'static [&'static str]),
    /// A `.gitignore` of the base that matches it.
    Ignored,
}

const ARTEFACTS: &[(&str, Evidence, &str)] = &[
    ("node_modules", Evidence::Name, "installed packages"),
    ("bower_components", Evidence::Name, "installed packages"),
    ("jspm_packages", Evidence::Name, "installed packages"),
    (".pnpm-store", Evidence::Name, "package cache"),
    (".venv", Evidence::Name, "Python environment"),
    (
        "venv",
        Evidence::Beside(&["pyproject.toml", "requirements.txt", "setup.py", "setup.cfg", "Pipfile"]),
        "Python environment",
    ),
    ("__pycache__", Evidence::Name, "cache"),
    (".pytest_cache", Evidence::Name, "cache"),
    (".mypy_cache", Evidence::Name, "cache"),
    (".ruff_cache", Evidence::Name, "cache"),
    (".hypothesis", Evidence::Name, "cache"),
    (".ipynb_checkpoints", Evidence::Name, "cache"),
    (".tox", Evidence::Name, "test environments"),
    (".nox", Evidence::Name, "test environments"),
    (".eggs", Evidence::Name, "build artefacts"),
    (
        "target",
        Evidence::Beside(&["Cargo.toml", "pom.xml", "build.sbt", "project.clj", "Cargo.lock"]),
        "build artefacts",
    ),
    (".gradle", Evidence::Name, "cache"),
    (".next", Evidence::Name, "build artefacts"),
    (".nuxt", Evidence::Name, "build artefacts"),
    (".output", Evidence::Ignored, "build artefacts"),
    (".svelte-kit", Evidence::Name, "build artefacts"),
    (".turbo", Evidence::Name, "cache"),
    (".parcel-cache", Evidence::Name, "cache"),
    (".angular", Evidence::Name, "cache"),
    (".nyc_output", Evidence::Name, "test reports"),
    (".dart_tool", Evidence::Name, "cache"),
    (".terraform", Evidence::Name, "cache"),
    (".stack-work", Evidence::Name, "build artefacts"),
    ("dist-newstyle", Evidence::Name, "build artefacts"),
    (".zig-cache", Evidence::Name, "cache"),
    ("zig-cache", Evidence::Name, "cache"),
    ("zig-out", Evidence::Beside(&["build.zig"]), "build artefacts"),
    ("_build", Evidence::Beside(&["mix.exs", "dune-project", "rebar.config"]), "build artefacts"),
    ("deps", Evidence::Beside(&["mix.exs"]), "installed packages"),
    ("cmake-build-debug", Evidence::Name, "build artefacts"),
    ("cmake-build-release", Evidence::Name, "build artefacts"),
    ("DerivedData", Evidence::Ignored, "build artefacts"),
    ("dist", Evidence::Ignored, "build artefacts"),
    ("build", Evidence::Ignored, "build artefacts"),
    ("out", Evidence::Ignored, "build artefacts"),
    ("bin", Evidence::Ignored, "build artefacts"),
    ("obj", Evidence::Ignored, "build artefacts"),
    ("coverage", Evidence::Ignored, "test reports"),
    ("htmlcov", Evidence::Ignored, "test reports"),
    ("vendor", Evidence::Ignored, "installed packages"),
    ("env", Evidence::Ignored, "Python environment"),
    ("tmp", Evidence::Ignored, "cache"),
    (".cache", Evidence::Ignored, "cache"),
    ("cache", Evidence::Ignored, "cache"),
    // Environments and indexes of tools whose settings run on a reviewer's machine; those that the base ignores are
    // generated again.
    (".direnv", Evidence::Ignored, "environment"),
    (".devenv", Evidence::Ignored, "environment"),
    (".devbox", Evidence::Ignored, "environment"),
    (".pixi", Evidence::Ignored, "environment"),
    (".fvm", Evidence::Ignored, "installed packages"),
    (".nuget", Evidence::Ignored, "installed packages"),
    (".conan", Evidence::Ignored, "installed packages"),
    (".conan2", Evidence::Ignored, "installed packages"),
    (".bloop", Evidence::Ignored, "cache"),
    (".metals", Evidence::Ignored, "cache"),
    (".scala-build", Evidence::Ignored, "cache"),
    (".elixir_ls", Evidence::Ignored, "cache"),
    (".lexical", Evidence::Ignored, "cache"),
];

/// Suffixes of artefact files.
const ARTEFACT_FILES: &[(&str, &str)] = &[(".pyc", "cache"), (".pyo", "cache"), (".DS_Store", "cache")];

/// Returns the reason if a name is that of build artefacts or a cache. `has` looks up a sibling name.
pub fn artefact(name: &[u8], is_dir: bool, ignored: bool, has: impl Fn(&[u8]) -> bool) -> Option<&'static str> {
    if !is_dir {
        return ARTEFACT_FILES.iter().find(|(end, _)| name.ends_with(end.as_bytes())).map(|(_, why)| *why);
    }
    let (_, evidence, why) = ARTEFACTS.iter().find(|(known, _, _)| known.as_bytes() == name)?;
    let holds = match evidence {
        Evidence::Name => true,
        Evidence::Beside(files) => ignored || files.iter().any(|file| has(file.as_bytes())),
        Evidence::Ignored => ignored,
    };
    holds.then_some(*why)
}

/// Ignore rules that apply in a directory: its own and those of its parents, innermost first.
#[derive(Debug)]
pub struct Ignore {
    rules: Rules,
    above: Option<Rc<Ignore>>,
    /// Cost of matching the rules here and above.
    cost: u64,
}

impl Ignore {
    /// Result of the innermost rule that matches: ignored or not; None if no rule matches.
    pub fn decide(&self, path: &Rel, is_dir: bool, patience: &mut Patience) -> Option<bool> {
        patience.tries = patience.tries.checked_sub(self.cost * price_of(path))?;
        let mut level = Some(self);
        while let Some(ignore) = level {
            if let Some(decided) = ignore.rules.decide(path, is_dir) {
                return Some(decided);
            }
            level = ignore.above.as_deref();
        }
        None
    }
}

/// Largest `.gitignore` that is read; a larger one is not a list of names.
const LARGEST_RULES: u64 = 1 << 20;

/// Adds the rules of the base's `.gitignore` in a directory; at the top, also those of `.git/info/exclude`.
pub fn rules_of(
    base: Option<&Dir>,
    at: &Rel,
    above: Option<Rc<Ignore>>,
    patience: &mut Patience,
) -> Option<Rc<Ignore>> {
    let Some(base) = base else { return above };
    let mut levels = above;
    let files: &[&[u8]] = if at.is_top() { &[b".git/info/exclude", b".gitignore"] } else { &[b".gitignore"] };
    for file in files.iter().filter_map(|file| Rel::parse(file)) {
        let Some(text) = read_rules(base, &file) else { continue };
        let rules = Rules::parse(at, &text, patience);
        let cost = rules.cost() + levels.as_ref().map_or(0, |above| above.cost);
        levels = Some(Rc::new(Ignore { rules, above: levels, cost }));
    }
    levels
}

/// Reads a rule file. An unreadable one yields no rules: more is shown then, never less.
fn read_rules(base: &Dir, at: &Rel) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    base.file(at).ok()?.take(LARGEST_RULES + 1).read_to_end(&mut text).ok()?;
    (text.len() as u64 <= LARGEST_RULES).then_some(text)
}

/// Number of withheld files in one directory beyond which they are merged into one line.
const MOST_SINGLE: usize = 8;

/// Drops empty groups, merges many files of one directory into one line, and sorts.
pub fn gather(all: Vec<Withheld>) -> Vec<Withheld> {
    let mut by_place: BTreeMap<(Rel, String), Vec<Withheld>> = BTreeMap::new();
    for one in all.into_iter().filter(|w| w.files > 0) {
        let parent = one.path.split().map_or(Rel::top(), |(parent, _)| parent);
        by_place.entry((parent, one.why.clone())).or_default().push(one);
    }
    let together = by_place.into_iter().flat_map(|((parent, why), group)| match group.len() > MOST_SINGLE {
        false => group,
        true => {
            let (files, bytes) = group.iter().fold((0, 0), |(f, b), w| (f + w.files, b + w.bytes));
            vec![Withheld { path: parent, why: format!("{why} ({} names in it)", group.len()), files, bytes }]
        }
    });
    let mut told: Vec<_> = together.collect();
    told.sort_by(|a, b| a.path.cmp(&b.path).then_with(|| a.why.cmp(&b.why)));
    told
}
