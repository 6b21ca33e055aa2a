//! Unix sockets of the host: decisions about connecting to them. An allowance covers exactly the sockets that existed
//! when it was resolved on a host; a denial also covers sockets created later.

use crate::decide::{Decision, matched};
use crate::document::{NetRule, NetTarget, Proto};
use crate::error::PlanError;
use crate::follow::{LinkFollower, tidy};
use crate::path::RulePath;
use crate::perms::Perm;
use crate::plan::{HostFileType, HostSocket};
use crate::resolve::{FileRule, RealPath, Resolved};
use crate::write;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use terms::Action;

/// Bound on the sockets of one plan; each is a mount.
const MOST: usize = 256;

impl Resolved {
    /// Decides whether a guest may connect to the socket at `path`, which is real. In a directory that it may write to,
    /// the guest makes and uses its own sockets; there only a denial inside the grant counts, not a broad one.
    pub fn connects(&self, path: &Path) -> Decision {
        let by_rule = self.reaches(path);
        let may_write = |at: &Path| self.fs(at, Perm::WriteFile);
        let by_grant = may_write(path);
        if by_rule.allowed() || !by_grant.allowed() {
            return by_rule;
        }
        let holds = |real: &RealPath| path.starts_with(&real.path) && may_write(&real.path).allowed();
        let named = |rule: &FileRule| !rule.grants() && rule.reals.iter().flatten().any(holds);
        match self.sockets.iter().any(named) {
            true => by_rule,
            // A warning rule about files does not warn about connections.
            false => Decision { action: Action::Allow, ..by_grant },
        }
    }

    /// Decides by the rules about sockets alone.
    pub fn reaches(&self, path: &Path) -> Decision {
        let matches = self.sockets.iter().filter(|r| r.covers(path)).map(matched).collect();
        Decision::of(matches, (Action::Deny, "defaults.net")).with_hint(|| self.socket_hint(path))
    }

    fn socket_hint(&self, path: &Path) -> Option<String> {
        let names = |rule: &&FileRule| rule.grants() && rule.patterns.iter().any(|p| p.covers(path));
        if let Some(rule) = self.sockets.iter().find(names) {
            let label = &rule.label;
            return Some(format!("{label} names it, but had no effect when the run started; --explain says why"));
        }
        let path = RulePath::literal(path)?;
        let to = NetTarget::Unix(path.clone());
        let (action, proto) = (Action::Allow, Some(Proto::Unix));
        let rule = NetRule { action, proto, to, ports: None, methods: None, paths: None, opaque: false, quiet: false };
        Some(format!("add {} to net.rules, or run with --net unix:{path}", write::net_rule(&rule).to_compact_json()))
    }

    /// Returns the sockets that a guest reaches by rule.
    pub(crate) fn reached_sockets(&self) -> Vec<HostSocket> {
        let mut found: BTreeMap<PathBuf, String> = BTreeMap::new();
        for rule in &self.sockets {
            let named = if rule.asks() { &rule.asked[..] } else { rule.reals.as_deref().unwrap_or_default() };
            let reached = |real: &&RealPath| self.reaches(&real.path).action != Action::Deny;
            for real in named.iter().filter(|_| rule.grants() || rule.asks()).filter(reached) {
                found.entry(real.path.clone()).or_insert_with(|| rule.label.clone());
            }
        }
        found.into_iter().map(|(path, rule)| HostSocket { path, rule }).collect()
    }
}

impl LinkFollower<'_> {
    /// Restricts allowances to sockets: those below a directory, except those that file rules hide.
    pub(crate) fn sockets(&mut self, out: &mut Resolved) -> Result<(), PlanError> {
        let mut rules = std::mem::take(&mut out.sockets);
        let mut count = 0;
        for rule in rules.iter_mut().filter(|r| r.grants() || r.asks()) {
            let asks = rule.asks();
            let found = if asks { std::mem::take(&mut rule.asked) } else { rule.reals.take().unwrap_or_default() };
            let mut sockets = Vec::new();
            for real in &found {
                match real.kind {
                    HostFileType::Socket => sockets.push(real.clone()),
                    HostFileType::Dir => self.sockets_below(&real.path, rule, &mut sockets)?,
                    HostFileType::File | HostFileType::Other => {}
                }
            }
            if sockets.is_empty() && !found.is_empty() {
                let (label, pattern) = (&rule.label, rule.patterns[0].text());
                self.note(format!("{label}: {pattern} names no socket, so the rule has no effect"));
            }
            sockets.retain(|real| self.is_shown(real, rule, out));
            count += sockets.len();
            if count > MOST {
                return Err(too_many(rule));
            }
            match asks {
                true => rule.asked = tidy(sockets),
                false => rule.reals = Some(tidy(sockets)),
            }
        }
        out.sockets = rules;
        Ok(())
    }

    fn sockets_below(&mut self, top: &Path, rule: &FileRule, sockets: &mut Vec<RealPath>) -> Result<(), PlanError> {
        let mut dirs = vec![top.to_path_buf()];
        while let Some(dir) = dirs.pop() {
            for name in self.host.list(&dir).unwrap_or_default() {
                self.budget.spend(&rule.label, &dir)?;
                let path = dir.join(&name);
                if !rule.leads_to(top, &path) {
                    continue;
                }
                match self.host.look(&path) {
                    // The target of a link is below the directory too, or not named by the rule.
                    Some(found) if found.real != path => {}
                    Some(found) if found.kind == HostFileType::Dir => dirs.push(path),
                    Some(found) if found.kind == HostFileType::Socket => {
                        sockets.push(RealPath { path, kind: HostFileType::Socket })
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Returns true unless a file rule hides the socket: a hidden socket cannot be connected to.
    fn is_shown(&mut self, real: &RealPath, rule: &FileRule, out: &Resolved) -> bool {
        let hides =
            |r: &&FileRule| !r.grants() && !r.asks() && r.perms.contains(Perm::ReadFile) && r.covers(&real.path);
        let Some(hiding) = out.files.iter().find(hides) else { return true };
        let (label, path, by) = (&rule.label, real.path.display(), &hiding.label);
        self.note(format!("{label}: {path} is hidden by {by}, so it cannot be connected to"));
        false
    }
}

fn too_many(rule: &FileRule) -> PlanError {
    PlanError {
        rule: rule.label.clone(),
        message: format!("{}: more than {MOST} sockets are named with it", rule.patterns[0].text()),
        hint: "name the sockets that are needed".to_owned(),
    }
}
