//! Settings of Anthropic's sandbox runtime (`~/.srt-settings.json`).
//!
//! In srt reading is allowed everywhere but under `denyRead`; `allowRead` opens paths inside it again. Here reading
//! starts from the preset `default`, and a denial always wins: the notes say where that is stricter.

use super::known::{self, KeyHandling, KeyTable};
use super::{Import, Imported, READ, WRITE, foreign_host, foreign_path, host_rule, loopback_rules, socket_rule};
use crate::cidr::Cidr;
use crate::cursor::{Cursor, Problem, parsed};
use crate::document::{Env, Format, NetRule, NetTarget};
use crate::error::PolicyError;
use crate::host::HostPattern;
use crate::node::Node;
use crate::path::{Base, RulePath};
use crate::perms::Perms;
use crate::read;
use terms::Action;

pub fn srt(text: &str, source: &str) -> Result<Imported, PolicyError> {
    let node = read::tree(text, Format::Json, source)?;
    let mut import = Import::new(source);
    settings(&mut import, &Cursor::root(&node)).map_err(|p| read::with_position(p, text, Format::Json, source))?;
    Ok(import.done())
}

use KeyHandling::{Carried, LeftOut, Nothing};

const MAC: &str = "it is about macOS";
const PARTS: &str = "it says where parts of srt are";
const BROKER: &str = "connections are made by the broker here, which takes no other proxy";

const SETTINGS: KeyTable = &[
    ("network", Carried),
    ("filesystem", Carried),
    ("credentials", Carried),
    ("enableWeakerNestedSandbox", LeftOut("name what may be missing under \"degrade\"")),
    ("git", LeftOut("set safe.directory in the git settings that the command reads")),
    ("ignoreViolations", Nothing("denials are counted and reported once each")),
    ("enableWeakerNetworkIsolation", Nothing(MAC)),
    ("allowAppleEvents", Nothing(MAC)),
    ("allowPty", Nothing(MAC)),
    ("windows", Nothing("it is about Windows")),
    ("ripgrep", Nothing(PARTS)),
    ("seccomp", Nothing(PARTS)),
    ("bwrapPath", Nothing(PARTS)),
    ("socatPath", Nothing(PARTS)),
    ("javaAgentJarPath", Nothing(PARTS)),
    ("mandatoryDenySearchDepth", Nothing("patterns need no search here")),
];

const NETWORK: KeyTable = &[
    ("allowedDomains", Carried),
    ("deniedDomains", Carried),
    ("deniedResolvedAddresses", Carried),
    ("allowUnixSockets", Carried),
    ("allowAllUnixSockets", LeftOut("name each socket of the host that is needed")),
    ("httpProxyPort", LeftOut(BROKER)),
    ("socksProxyPort", LeftOut(BROKER)),
    ("mitmProxy", LeftOut(BROKER)),
    ("parentProxy", LeftOut(BROKER)),
    ("tlsTerminate", LeftOut("rules with \"methods\" or \"paths\" have requests read")),
    ("strictAllowlist", Nothing("operations that no rule allows are refused without a question")),
    ("deniedDomainReasons", Nothing("they are instructions for a model")),
    ("allowLocalBinding", Nothing("ports that a command opens are its own")),
    ("allowMachLookup", Nothing(MAC)),
];

const FILESYSTEM: KeyTable = &[
    ("allowRead", Carried),
    ("denyRead", Carried),
    ("allowWrite", Carried),
    ("denyWrite", Carried),
    ("autoAllowSystemPaths", Carried),
    ("disabled", LeftOut("files are judged by rules here, and these are carried over")),
    ("allowGitConfig", Nothing(".git is treated as any other directory")),
];

const CREDENTIALS: KeyTable = &[
    ("files", Carried),
    ("envVars", Carried),
    ("allowPlaintextInject", LeftOut(SECRETS)),
    ("awsPairs", LeftOut(SECRETS)),
    ("sigv4", LeftOut(SECRETS)),
];
const SECRETS: &str = "\"secrets\" of a policy put values into requests, by host and header";

/// Keys about finding and injecting a masked value; here the whole value is hidden instead.
const HIDDEN: KeyHandling = Nothing("the whole is hidden");
const CREDENTIAL: KeyTable = &[
    ("path", Carried),
    ("name", Carried),
    ("mode", Carried),
    ("injectHosts", LeftOut(SECRETS)),
    ("extract", HIDDEN),
    ("onExtractNoMatch", HIDDEN),
    ("decode", HIDDEN),
    ("maskClaims", HIDDEN),
    ("maskDuplicates", HIDDEN),
];

fn settings(import: &mut Import, at: &Cursor<'_>) -> Result<(), Problem> {
    import.document.extends = vec!["default".to_owned()];
    for (key, at) in known::entries(import, at, "", SETTINGS)? {
        match key {
            "network" => network(import, &at)?,
            "filesystem" => filesystem(import, &at)?,
            _ => credentials(import, &at)?,
        }
    }
    import.note("srt lets every file be read that denyRead does not name; here the workspace, system programs and toolchains are readable, and what the rules add");
    import.note("srt refuses writes to .git/hooks, shell start-up files and the like by itself; add deny rules for those that matter");
    Ok(())
}

fn network(import: &mut Import, at: &Cursor<'_>) -> Result<(), Problem> {
    for (key, at) in known::entries(import, at, "network.", NETWORK)? {
        match key {
            "allowedDomains" => domains(import, &at, Action::Allow)?,
            "deniedDomains" => domains(import, &at, Action::Deny)?,
            "deniedResolvedAddresses" => addresses(import, &at)?,
            _ => sockets(import, &at)?,
        }
    }
    Ok(())
}

/// Imports addresses to which no allowed name may resolve. Here they are denied under any name, and without one.
fn addresses(import: &mut Import, at: &Cursor<'_>) -> Result<(), Problem> {
    for item in at.items()? {
        let text = item.text()?;
        let range = text.parse().map(|addr| Ok(Cidr::of(addr))).unwrap_or_else(|_| Cidr::parse(text));
        let range = range.map_err(|refusal| item.refused(refusal))?;
        import.net(NetRule {
            proto: None,
            to: NetTarget::Cidr(range),
            ..host_rule(Action::Deny, HostPattern::Any, None)
        });
    }
    Ok(())
}

/// Imports files and variables that a command must not have. A value that srt masks is hidden here: it is not restored
/// in requests.
fn credentials(import: &mut Import, at: &Cursor<'_>) -> Result<(), Problem> {
    for (list, at) in known::entries(import, at, "credentials.", CREDENTIALS)? {
        for item in at.items()? {
            let fields = known::entries(import, &item, &format!("credentials.{list}[]."), CREDENTIAL)?;
            let field = |name: &str| fields.iter().find(|(key, _)| *key == name).map(|(_, at)| at);
            let need = |name: &str| field(name).ok_or_else(|| item.problem(format!("the key {name:?} is missing")));
            let masked = need("mode")?.one_of(&[("deny", false), ("mask", true)])?;
            if list == "files" {
                let path = parsed(need("path")?, foreign_path)?;
                import.fs(Action::Deny, path, Perms::ALL);
            } else {
                let name = need("name")?;
                if crate::env::passes(&Env::default(), name.text()?) {
                    let message = format!("{} passes here, and cannot be taken away by an import", name.text()?);
                    return Err(name.problem(message).hint("write a policy with \"env\": {\"pass\": [...]}"));
                }
            }
            if masked {
                import.left_out(format!("credentials.{list}: mode \"mask\" is carried over as \"deny\"; {SECRETS}"));
            }
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
    // A boolean in older settings.
    if let Node::Bool(all) = at.node {
        if *all {
            import.left_out("network.allowUnixSockets: not carried over; name each socket of the host that is needed");
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
    for (key, at) in known::entries(import, at, "filesystem.", FILESYSTEM)? {
        match key {
            "allowRead" => lists.allow_read = paths(import, &at, Action::Allow)?,
            "denyRead" => lists.deny_read = paths(import, &at, Action::Deny)?,
            "allowWrite" => lists.allow_write = paths(import, &at, Action::Allow)?,
            "denyWrite" => lists.deny_write = paths(import, &at, Action::Deny)?,
            // A key of older settings.
            _ => {
                if !at.boolean()? {
                    import.document.extends.clear();
                    import.note("filesystem.autoAllowSystemPaths: false, so the preset \"default\" is left out");
                }
            }
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

    /// Imports a denied path. If it is opened again inside, it needs no rule where it is not readable to begin with.
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

/// Returns true if the preset `default` makes the path readable.
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
