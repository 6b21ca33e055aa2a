//! A policy with the variables of its paths expanded. It can decide and plan.

use crate::cidr::Cidr;
use crate::document::{Env, FsRule, NetRule, NetTarget};
use crate::error::PolicyError;
use crate::glob::Pattern;
use crate::host::HostPattern;
use crate::path::{self, Base, RulePath};
use crate::perms::{Perm, Perms};
use crate::plan::HostFileType;
use crate::policy::{Labelled, Policy};
use crate::private::PrivateDirs;
use crate::write;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use terms::{Action, Limits};

/// Values of the variables; the environment is not read here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub home: PathBuf,
    pub workspace: PathBuf,
    /// Directories that PATH leads to beyond the system's; a rule on `$TOOLCHAINS` becomes one rule for each.
    pub toolchains: Vec<PathBuf>,
}

/// Expands `~`, `$HOME`, `$WORKSPACE` and `$TOOLCHAINS`.
pub fn resolve(policy: &Policy, ctx: &Context) -> Result<Resolved, PolicyError> {
    check_context(ctx)?;
    let mut resolved = Resolved {
        policy: policy.clone(),
        workspace: ctx.workspace.clone(),
        home: ctx.home.clone(),
        private: PrivateDirs::default(),
        private_workspace: Some(ctx.workspace.clone()).filter(|workspace| PrivateDirs::default().hold(workspace)),
        files: Vec::new(),
        programs: Vec::new(),
        sockets: Vec::new(),
        own: Vec::new(),
        implied: Vec::new(),
    };
    // If only named programs run, `execute` in a file rule grants nothing: see `exec.rules`.
    let withheld = match policy.default_exec() {
        Action::Deny => Perms::of(&[Perm::Execute]),
        _ => Perms::NONE,
    };
    for Labelled { rule, label } in &policy.fs {
        let perms = if grants(rule.action) { rule.perms.minus(withheld) } else { rule.perms };
        let text = write::fs_rule(rule).to_compact_json();
        for pattern in expand(&rule.path, label, ctx)? {
            let rule = FileRule::new(label, rule.action, perms, &text, pattern);
            resolved.files.push(rule.with_private_workspace(&resolved.private_workspace));
        }
    }
    for Labelled { rule, label } in &policy.exec {
        let perms = Perms::of(&[Perm::ReadFile, Perm::Execute]);
        let text = write::exec_rule(rule).to_compact_json();
        for pattern in expand(&rule.path, label, ctx)? {
            let file = FileRule::new(label, rule.action, perms, &text, pattern)
                .with_private_workspace(&resolved.private_workspace);
            resolved.programs.push(ProgramRule { file, sha256: rule.sha256 });
        }
    }
    for Labelled { rule, label } in &policy.net {
        if let NetTarget::Unix(path) = &rule.to {
            let text = write::net_rule(rule).to_compact_json();
            for pattern in expand(path, label, ctx)? {
                let rule = FileRule::new(label, rule.action, Perms::NONE, &text, pattern);
                resolved.sockets.push(rule.with_private_workspace(&resolved.private_workspace));
            }
        }
    }
    Ok(resolved)
}

/// A policy for one workspace on one host.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub(crate) policy: Policy,
    pub(crate) workspace: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) private: PrivateDirs,
    /// The workspace, if it lies in a private directory; after `follow`, only if it exists.
    pub(crate) private_workspace: Option<PathBuf>,
    pub(crate) files: Vec<FileRule>,
    pub(crate) programs: Vec<ProgramRule>,
    /// Network rules about Unix sockets. After `follow`, an allowance has sockets only.
    pub(crate) sockets: Vec<FileRule>,
    /// The host's own addresses.
    pub(crate) own: Vec<std::net::IpAddr>,
    /// Rules for loaders of allowed programs. Known after `follow`.
    pub(crate) implied: Vec<FileRule>,
}

/// A rule about files. `reals` is known after the rule was resolved on a host.
#[derive(Clone, Debug)]
pub(crate) struct FileRule {
    pub(crate) label: String,
    pub(crate) action: Action,
    pub(crate) perms: Perms,
    /// The rule as the document has it.
    pub(crate) text: String,
    /// The pattern as written, and with the links of its head resolved.
    pub(crate) patterns: Vec<Pattern>,
    /// Sorted by path, unique.
    pub(crate) reals: Option<Vec<RealPath>>,
    /// For an ask rule: the paths that a person can be asked about. Known with `reals`, and a subset of them.
    pub(crate) asked: Vec<RealPath>,
    pub(crate) private: PrivateDirs,
    /// The workspace, if it lies in a private directory: the rule applies in it even from above that directory.
    pub(crate) private_workspace: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RealPath {
    pub(crate) path: PathBuf,
    pub(crate) kind: HostFileType,
}

#[derive(Clone, Debug)]
pub(crate) struct ProgramRule {
    pub(crate) file: FileRule,
    pub(crate) sha256: Option<[u8; 32]>,
}

impl FileRule {
    fn new(label: &str, action: Action, perms: Perms, text: &str, pattern: Pattern) -> FileRule {
        let (label, text) = (label.to_owned(), text.to_owned());
        FileRule {
            label,
            action,
            perms,
            text,
            patterns: vec![pattern],
            reals: None,
            asked: Vec::new(),
            private: PrivateDirs::default(),
            private_workspace: None,
        }
    }

    fn with_private_workspace(self, private_workspace: &Option<PathBuf>) -> FileRule {
        FileRule { private_workspace: private_workspace.clone(), ..self }
    }

    /// Returns true if a rule that names `head` may apply to `path`: an allowance enters no private directory from
    /// above. A denial, and a rule that asks, applies everywhere.
    pub(crate) fn leads_to(&self, head: &Path, path: &Path) -> bool {
        !self.grants()
            || self.private.may_enter(head, path)
            || self.private_workspace.as_ref().is_some_and(|island| path.starts_with(island))
    }

    pub(crate) fn grants(&self) -> bool {
        grants(self.action)
    }

    /// Returns true if the rule allows something, at once or after a question.
    fn opens(&self) -> bool {
        self.grants() || self.asks()
    }

    pub(crate) fn asks(&self) -> bool {
        self.action == Action::Ask
    }

    /// Returns true if the rule covers `path`. On a host an allowance covers only paths that existed when the plan was
    /// made; a denial also covers paths created later, and private directories.
    pub(crate) fn covers(&self, path: &Path) -> bool {
        let leads = |p: &Pattern| self.leads_to(&p.head(p.literal_len()), path);
        let named = || self.patterns.iter().any(|p| p.covers(path) && leads(p));
        match &self.reals {
            None => named(),
            Some(_) => self.reaches(path) || (!self.grants() && named()),
        }
    }

    /// Returns the part of an exec rule that is refused without asking: paths that cannot be asked about.
    pub(crate) fn refuses(&self, asks: impl Fn(&Path) -> bool) -> Option<FileRule> {
        if self.grants() || !self.asks() {
            return (!self.grants()).then(|| self.clone());
        }
        let reals = self.reals.iter().flatten().filter(|real| !asks(&real.path)).cloned().collect();
        Some(FileRule { patterns: Vec::new(), reals: Some(reals), ..self.clone() })
    }

    /// Returns true if a person can be asked about `path`, as found on a host.
    pub(crate) fn can_ask(&self, path: &Path) -> bool {
        self.asked.iter().any(|real| path.starts_with(&real.path))
    }

    /// Returns true if a real path of the rule is `path` or above it.
    fn reaches(&self, path: &Path) -> bool {
        let reals = self.reals.as_deref().unwrap_or_default();
        let is_real = |at: &Path| reals.binary_search_by(|real| real.path.as_path().cmp(at)).is_ok();
        path.ancestors().filter(|at| !self.grants() || self.private.reaches(at, path)).any(is_real)
    }
}

/// Returns true if an action permits an operation without asking.
pub(crate) fn grants(action: Action) -> bool {
    matches!(action, Action::Allow | Action::Warn)
}

impl Resolved {
    /// Gives the sandbox a home of its own at `home`, a real path: rules from above end there. A rule that names the
    /// home itself means the host's; then there is none.
    pub fn with_own_home(mut self, home: &Path) -> Resolved {
        let names = |rule: &FileRule| rule.opens() && rule.patterns[0].as_path().is_some_and(|path| path == home);
        if !self.every_rule().any(names) {
            self.set_private(PrivateDirs::with_home(home.to_path_buf()));
        }
        self
    }

    /// Returns the private directories of the sandbox.
    pub fn private(&self) -> &PrivateDirs {
        &self.private
    }

    /// Returns true if some rule leads to the home itself on this host, so that the home is not the sandbox's own.
    pub(crate) fn names_home(&self) -> bool {
        let Some(home) = self.private.home() else { return false };
        let leads = |rule: &FileRule| rule.reals.iter().flatten().chain(&rule.asked).any(|real| real.path == home);
        self.every_rule().any(|rule| rule.opens() && leads(rule))
    }

    pub(crate) fn set_private(&mut self, private: PrivateDirs) {
        let island = Some(self.workspace.clone()).filter(|workspace| private.hold(workspace));
        let programs = self.programs.iter_mut().map(|p| &mut p.file);
        for rule in self.files.iter_mut().chain(programs).chain(&mut self.sockets) {
            (rule.private, rule.private_workspace) = (private.clone(), island.clone());
        }
        (self.private, self.private_workspace) = (private, island);
    }

    fn every_rule(&self) -> impl Iterator<Item = &FileRule> {
        self.files.iter().chain(self.programs.iter().map(|p| &p.file)).chain(&self.sockets)
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Adds a file rule that is in no document, which the mode of the run adds or removes. The rule is on one plain
    /// path.
    pub fn with_fs(mut self, action: Action, path: &Path, perms: Perms, label: &str) -> Option<Resolved> {
        let rule = FsRule { action, path: RulePath::literal(path)?, perms };
        let text = write::fs_rule(&rule).to_compact_json();
        let rule = FileRule::new(label, action, perms, &text, Pattern::literal(path)?);
        let rule = FileRule { private: self.private.clone(), ..rule };
        self.files.push(rule.with_private_workspace(&self.private_workspace));
        Some(self)
    }

    pub fn limits(&self) -> Limits {
        self.policy.limits
    }

    pub fn env(&self) -> &Env {
        &self.policy.env
    }

    pub fn syscalls_deny(&self) -> &BTreeSet<String> {
        &self.policy.syscalls_deny
    }

    pub fn audit_events(&self) -> &BTreeSet<String> {
        &self.policy.audit_events
    }

    /// Returns the names of mechanisms that may be missing.
    pub fn degrade(&self) -> impl Iterator<Item = &str> {
        self.policy.degrade.iter().flatten().map(String::as_str)
    }

    pub fn may_degrade(&self, name: &str) -> bool {
        self.degrade().any(|known| known == name)
    }

    /// Returns the rule or default for which the run needs the broker; `None` if it needs no network at all.
    pub fn needs_network(&self) -> Option<String> {
        if self.policy.default_net() == Action::Allow {
            return Some("defaults.net".to_owned());
        }
        let leads_out = |rule: &NetRule| rule.action != Action::Deny && !matches!(rule.to, NetTarget::Unix(_));
        let rule = self.policy.net.iter().find(|r| leads_out(&r.rule)).map(|r| r.label.clone());
        rule.or_else(|| self.policy.secrets.first().map(|s| s.label.clone()))
    }

    /// Returns the labels of rules whose matches must be reported although they are permitted.
    pub fn warns(&self) -> impl Iterator<Item = &str> {
        let files = self.files.iter().chain(self.programs.iter().map(|p| &p.file));
        let files = files.filter(|r| r.action == Action::Warn).map(|r| r.label.as_str());
        files.chain(self.policy.net.iter().filter(|r| r.rule.action == Action::Warn).map(|r| r.label.as_str()))
    }

    /// Returns the first file rule that asks for permissions that cannot be asked for, and these. A rule without
    /// permissions asks for those that can be asked for, and denies the rest.
    pub fn asks_too_much(&self) -> Option<(&str, Perms)> {
        let rules = self.files.iter().filter(|r| r.asks() && r.perms != Perms::ALL);
        rules.map(|r| (r.label.as_str(), r.perms.minus(Perms::ASKABLE))).find(|(_, perms)| !perms.is_empty())
    }

    /// Returns true if a rule about files, programs or sockets asks.
    pub fn asks_locally(&self) -> bool {
        let programs = self.programs.iter().map(|p| &p.file);
        self.files.iter().chain(programs).chain(&self.sockets).any(FileRule::asks)
    }

    /// Returns the permissions at a path that no rule matches.
    pub(crate) fn default_perms(&self) -> Perms {
        match (self.policy.default_fs(), self.policy.default_exec()) {
            (Action::Deny, _) => Perms::NONE,
            (_, Action::Deny) => Perms::ORDINARY.minus(Perms::of(&[Perm::Execute])),
            _ => Perms::ORDINARY,
        }
    }

    /// Returns the default permissions at one path: the default is a rule from above, so it ends at private
    /// directories.
    pub(crate) fn default_perms_at(&self, path: &Path) -> Perms {
        let own = self.private.place_of(path).is_some();
        let in_island = || self.private_workspace.as_ref().is_some_and(|island| path.starts_with(island));
        if own && !in_island() { Perms::NONE } else { self.default_perms() }
    }

    /// Returns every rule about file permissions: those under `fs`, and allowed programs.
    pub(crate) fn file_rules(&self) -> impl Iterator<Item = &FileRule> {
        let programs = self.programs.iter().map(|p| &p.file).filter(|r| r.grants());
        self.files.iter().chain(programs).chain(&self.implied)
    }
}

/// Returns true if a rule names a range inside the special ones.
pub(crate) fn names_special(rule: &NetRule) -> bool {
    match &rule.to {
        NetTarget::Cidr(cidr) => cidr.is_special(),
        NetTarget::Host(HostPattern::Exact(crate::host::HostName::Addr(addr))) => Cidr::of(*addr).is_special(),
        _ => false,
    }
}

fn check_context(ctx: &Context) -> Result<(), PolicyError> {
    let named = [("$HOME", &ctx.home), ("$WORKSPACE", &ctx.workspace)];
    let toolchains = ctx.toolchains.iter().map(|t| ("$TOOLCHAINS", t));
    for (name, value) in named.into_iter().chain(toolchains) {
        path::check_base(value).map_err(|message| {
            PolicyError::without_place("", name, message).hint("give the absolute path of a directory")
        })?;
    }
    Ok(())
}

fn expand(path: &RulePath, label: &str, ctx: &Context) -> Result<Vec<Pattern>, PolicyError> {
    let root = PathBuf::from("/");
    let bases: Vec<&PathBuf> = match path.base() {
        Base::Root => vec![&root],
        Base::Home => vec![&ctx.home],
        Base::Workspace => vec![&ctx.workspace],
        Base::Toolchains => ctx.toolchains.iter().collect(),
    };
    let too_long =
        || PolicyError::without_place(label, "path", format!("\"{path}\" has too many components when expanded"));
    bases.into_iter().map(|base| path.on(base).ok_or_else(too_long)).collect()
}
