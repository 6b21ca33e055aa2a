//! Settings of Anthropic's sandbox runtime (`~/.srt-settings.json`).
//!
//! There, reading is allowed everywhere but under `denyRead`; `allowRead` opens again what lies inside. Here reading
//! starts from the preset `default`, and a denial always wins: the notes say where that is stricter.

use super::{Import, Imported, READ, WRITE, foreign_host, foreign_path, host_rule, loopback_rules, socket_rule};
use crate::cursor::{Cursor, Problem};
use crate::document::Format;
use crate::error::PolicyError;
use crate::node::Node;
use crate::path::{Base, RulePath};
use crate::perms::Perms;
use crate::read;
use terms::Action;

pub fn srt(text: &str, source: &str) -> Result<Imported, PolicyError> {
    let node = read::tree(text, Format::Json, source)?;
    let mut import = Import::new(source);
    settings(&mut import, &Cursor::root(&node)).map_err(|p| read::placed(p, text, Format::Json, source))?;
    Ok(import.done())
}

fn settings(import: &mut Import, at: &Cursor<'_>) -> Result<(), Problem> {
    import.document.extends = vec!["default".to_owned()];
    for (key, at) in at.entries()? {
        match key {
            "network" => network(import, &at)?,
            "filesystem" => filesystem(import, &at)?,
            "ignoreViolations" => {
                import.note("ignoreViolations: left out; denials are counted and reported once each");
            }
            "enableWeakerNestedSandbox" | "enableWeakerNetworkIsolation" => {
                if at.boolean()? {
                    import.note(format!("{key}: left out; name what may be missing under \"degrade\""));
                }
            }
            "allowAppleEvents" | "allowPty" | "ripgrep" | "mandatoryDenySearchDepth" => {
                import.note(format!("{key}: has no meaning here and was left out"));
            }
            other => import.note(format!("{other}: unknown key, left out")),
        }
    }
    import.note("srt lets every file be read that denyRead does not name; here the workspace, system programs and toolchains are readable, and what the rules add");
    import.note("srt refuses writes to .git/hooks, shell start-up files and the like by itself; add deny rules for those that matter");
    Ok(())
}

fn network(import: &mut Import, at: &Cursor<'_>) -> Result<(), Problem> {
    for (key, at) in at.entries()? {
        match key {
            "allowedDomains" => domains(import, &at, Action::Allow)?,
            "deniedDomains" => domains(import, &at, Action::Deny)?,
            "allowUnixSockets" => sockets(import, &at)?,
            "allowAllUnixSockets" => {
                if at.boolean()? {
                    import.note("network.allowAllUnixSockets: left out; name each socket of the host that is needed");
                }
            }
            "allowLocalBinding" => {
                if at.boolean()? {
                    import.note("network.allowLocalBinding: not needed; ports that a command opens are its own");
                }
            }
            "deniedDomainReasons"
            | "httpProxyPort"
            | "socksProxyPort"
            | "mitmProxy"
            | "parentProxy"
            | "tlsTerminate"
            | "allowMachLookup" => import.note(format!("network.{key}: left out; the broker is part of the product")),
            other => import.note(format!("network.{other}: unknown key, left out")),
        }
    }
    Ok(())
}

fn domains(import: &mut Import, at: &Cursor<'_>, action: Action) -> Result<(), Problem> {
    for item in at.items()? {
        match foreign_host(item.text()?) {
            Err(refusal) => import.unreadable(&item, action, refusal)?,
            Ok((host, ports)) => {
                if action == Action::Allow {
                    for rule in loopback_rules(&host, &ports) {
                        import.note("localhost: the addresses of this host's loopback are allowed by name");
                        import.net(rule);
                    }
                }
                import.net(host_rule(action, host, ports));
            }
        }
    }
    Ok(())
}

fn sockets(import: &mut Import, at: &Cursor<'_>) -> Result<(), Problem> {
    // Older settings have a boolean here.
    if let Node::Bool(all) = at.node {
        if *all {
            import.note("network.allowUnixSockets: true was left out; name each socket of the host that is needed");
        }
        return Ok(());
    }
    for item in at.items()? {
        match foreign_path(item.text()?) {
            Ok(path) => import.net(socket_rule(Action::Allow, path)),
            Err(refusal) => import.unreadable(&item, Action::Allow, refusal)?,
        }
    }
    Ok(())
}

fn filesystem(import: &mut Import, at: &Cursor<'_>) -> Result<(), Problem> {
    let mut lists = Lists::default();
    for (key, at) in at.entries()? {
        match key {
            "allowRead" => lists.allow_read = paths(import, &at, Action::Allow)?,
            "denyRead" => lists.deny_read = paths(import, &at, Action::Deny)?,
            "allowWrite" => lists.allow_write = paths(import, &at, Action::Allow)?,
            "denyWrite" => lists.deny_write = paths(import, &at, Action::Deny)?,
            "autoAllowSystemPaths" => {
                if !at.boolean()? {
                    import.document.extends.clear();
                    import.note("filesystem.autoAllowSystemPaths: false, so the preset \"default\" is left out");
                }
            }
            "allowGitConfig" => {
                import.note("filesystem.allowGitConfig: left out; .git is treated as any other directory")
            }
            other => import.note(format!("filesystem.{other}: unknown key, left out")),
        }
    }
    lists.apply(import);
    Ok(())
}

#[derive(Default)]
struct Lists {
    allow_read: Vec<RulePath>,
    deny_read: Vec<RulePath>,
    allow_write: Vec<RulePath>,
    deny_write: Vec<RulePath>,
}

impl Lists {
    fn apply(&self, import: &mut Import) {
        for path in &self.allow_read {
            import.fs(Action::Allow, path.clone(), READ);
        }
        for path in &self.allow_write {
            import.fs(Action::Allow, path.clone(), WRITE);
        }
        for path in &self.deny_read {
            self.deny_read(import, path);
        }
        for path in &self.deny_write {
            import.fs(Action::Deny, path.clone(), Perms::CHANGES);
        }
    }

    /// A denied region that is opened again inside needs no rule where nothing is readable to begin with.
    fn deny_read(&self, import: &mut Import, path: &RulePath) {
        let inside: Vec<String> =
            self.allow_read.iter().filter(|open| path.contains(open)).map(ToString::to_string).collect();
        if inside.is_empty() {
            import.fs(Action::Deny, path.clone(), Perms::ALL);
            return;
        }
        let inside = inside.join(", ");
        if path.base() == Base::Root && path.to_string() == "/" {
            import.document.extends.clear();
            import.note(format!(
                "filesystem.denyRead: \"/\" leaves only {inside}, so the preset \"default\" is left out"
            ));
        } else if path.base() == Base::Home || !is_in_default(path) {
            import.note(format!(
                "filesystem.denyRead: {path} is opened again for {inside}; it needs no rule, since nothing else of it is readable but the workspace"
            ));
        } else {
            import.fs(Action::Deny, path.clone(), Perms::ALL);
            import.note(format!(
                "filesystem.denyRead: {path} stays denied, {inside} inside it too: a denial always wins"
            ));
        }
    }
}

/// Whether the preset `default` makes it readable.
fn is_in_default(path: &RulePath) -> bool {
    let rules = crate::presets::preset_document("default").map(|d| d.fs).unwrap_or_default();
    rules.iter().any(|rule| rule.path.contains(path) || path.contains(&rule.path))
}

fn paths(import: &mut Import, at: &Cursor<'_>, action: Action) -> Result<Vec<RulePath>, Problem> {
    let mut out = Vec::new();
    for item in at.items()? {
        match foreign_path(item.text()?) {
            Ok(path) => out.push(path),
            Err(refusal) => import.unreadable(&item, action, refusal)?,
        }
    }
    Ok(out)
}
