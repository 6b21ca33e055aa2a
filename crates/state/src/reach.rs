//! Reach of a caller into the host. A user of the binary has the user's own rights; a client of the daemon with a token has what the token
//! grants, and cannot widen it by a directory or by a policy that shows or opens more.

use crate::bounds::Bounds;
use crate::ownership::Own;
use crate::policy_source::{Flag, RequestedPolicy};
use policy::{Action, Base, Document, HostName, HostPattern, NetTarget, RulePath};
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, Phase};

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Reach {
    /// Full rights of the user that the process runs as.
    #[default]
    All,
    Only(Grants),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grants {
    /// Directories that sandboxes may cover, including everything below; canonical.
    pub dirs: Vec<PathBuf>,
    /// Built-in policies that may be named.
    pub policies: Vec<String>,
    /// Policies may come with a request, as long as they open nothing but the directories.
    pub documents: bool,
    /// Questions of rules may be answered.
    pub answers: bool,
    /// Sandboxes that the caller sees; all of the state where `None`.
    pub own: Option<Own>,
    /// Defaults and ceilings for the limits of its sandboxes.
    pub bounds: Bounds,
}

/// Reasons why a directory cannot be covered.
#[derive(Debug)]
pub enum BaseFault {
    Missing(std::io::Error),
    Refused(Box<Fault>),
}

fn refuse(message: String, hint: &str) -> Fault {
    Fault::new(ErrorKind::PolicyDenied, message).hint(hint).phase(Phase::Admission)
}

impl Reach {
    /// Returns whether the caller may decide what sandboxes of the tenant may do: the host's own user, and an operator of the tenant. Other
    /// callers choose within their decisions.
    pub fn decides(&self) -> bool {
        match self {
            Reach::All => true,
            Reach::Only(grants) => grants.documents,
        }
    }

    /// Returns whether the caller may answer questions of rules, and so may see what waits for an answer.
    pub fn answers(&self) -> bool {
        match self {
            Reach::All => true,
            Reach::Only(grants) => grants.answers,
        }
    }

    /// Returns the canonical path of a directory that a sandbox may cover. A caller without the grant learns nothing of it: neither whether
    /// it exists nor where a link leads.
    pub fn base(&self, asked: &Path) -> Result<PathBuf, BaseFault> {
        let path = std::fs::canonicalize(asked);
        match self {
            Reach::All => path.map_err(BaseFault::Missing),
            Reach::Only(grants) => match path {
                Ok(path) if grants.dirs.iter().any(|dir| path.starts_with(dir)) => Ok(path),
                _ => {
                    let message = format!("{}: this credential has no grant for the directory", asked.display());
                    let hint = "leave `dir` out for an empty one (`cofferdam create --empty`), or have the directory granted to the token";
                    Err(BaseFault::Refused(Box::new(refuse(message, hint))))
                }
            },
        }
    }

    /// Checks that a policy may come from this source at all.
    pub fn check_source(&self, source: &RequestedPolicy) -> Result<(), Fault> {
        let Reach::Only(grants) = self else { return Ok(()) };
        match source {
            RequestedPolicy::Preset(name) if grants.policies.contains(name) => Ok(()),
            RequestedPolicy::Preset(name) => {
                let known = grants.policies.join(", ");
                Err(refuse(
                    format!("this credential has no grant for the policy {name:?}"),
                    &format!("granted: {known}"),
                ))
            }
            RequestedPolicy::File(path) => {
                let message = format!("{}: the daemon reads no policy files for a client", path.display());
                Err(refuse(message, "send the document in the request"))
            }
            RequestedPolicy::Text(_) if grants.documents => Ok(()),
            RequestedPolicy::Text(_) => {
                let message = "this credential may not use a policy of its own".to_owned();
                Err(refuse(message, "name a policy that was granted to it, or use an operator's token"))
            }
        }
    }

    /// Checks that a document opens nothing but what was granted. Any caller may add denials.
    pub fn check_document(&self, source: &RequestedPolicy, document: &Document) -> Result<(), Fault> {
        let (Reach::Only(grants), RequestedPolicy::Text(_)) = (self, source) else { return Ok(()) };
        let opens = |action: Action| action != Action::Deny;
        let no = |what: String| {
            Err(refuse(what, "with this credential, rules can allow only the workspace and public hosts by name"))
        };
        if document.defaults.fs.is_some_and(opens) {
            return no("defaults.fs allows the whole host".into());
        }
        if let Some(name) = document.extends.iter().find(|name| !grants.policies.contains(name)) {
            return no(format!("extends {name:?}, which was not granted"));
        }
        // Not even below a granted directory: a process that may write there can plant a link, and rules follow links of the host.
        let inside = |path: &RulePath| path.base() == Base::Workspace;
        if let Some(rule) = document.fs.iter().find(|rule| opens(rule.action) && !inside(&rule.path)) {
            return no(format!("fs.rules: {} is outside of the workspace", rule.path));
        }
        for rule in document.net.iter().filter(|rule| opens(rule.action)) {
            match &rule.to {
                NetTarget::Unix(path) => return no(format!("net.rules: {path} is a socket of the host")),
                // Private networks are the operator's; the broker makes sure that a name leads to public addresses only.
                NetTarget::Cidr(range) => return no(format!("net.rules: the range {range} was not granted")),
                NetTarget::Host(HostPattern::Exact(HostName::Addr(address))) => {
                    return no(format!("net.rules: the address {address} was not granted"));
                }
                _ => {}
            }
        }
        if let Some(path) = document.home_copy.first() {
            return no(format!("home.copy: {path} is in the home of the daemon's user"));
        }
        match document.degrade.as_ref().and_then(|names| names.first()) {
            Some(name) => no(format!("degrade: {name:?} is not allowed")),
            None => Ok(()),
        }
    }

    /// Refuses rules given by flags, which belong to users at the host.
    pub fn check_flags(&self, flags: &[Flag]) -> Result<(), Fault> {
        match self {
            Reach::Only(_) if !flags.is_empty() => {
                let message = "single rules cannot be given with this credential".to_owned();
                Err(refuse(message, "send them as a policy document"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only() -> Reach {
        let (dirs, policies) = (vec!["/srv/granted".into()], vec!["default".into()]);
        Reach::Only(Grants { dirs, policies, documents: true, answers: true, own: None, bounds: Bounds::default() })
    }

    fn check(text: &str) -> Result<(), Fault> {
        let source = RequestedPolicy::Text(text.to_owned());
        let document = policy::parse(text, policy::Format::Json, "request.json")?;
        only().check_document(&source, &document)
    }

    #[test]
    fn a_document_opens_nothing_but_what_was_granted() {
        for good in [
            r#"{"version":1,"extends":["default"]}"#,
            r#"{"version":1,"fs":{"rules":[{"action":"deny","path":"/etc","perms":["read_file"]}]}}"#,
            r#"{"version":1,"fs":{"rules":[{"action":"allow","path":"$WORKSPACE/x","perms":["read_file"]}]}}"#,
            r#"{"version":1,"net":{"rules":[{"action":"allow","host":"example.org","ports":"443"}]}}"#,
        ] {
            assert_eq!(check(good).map_err(|f| f.message), Ok(()), "{good}");
        }
        for bad in [
            r#"{"version":1,"extends":["networked"]}"#,
            r#"{"version":1,"defaults":{"fs":"allow"}}"#,
            r#"{"version":1,"fs":{"rules":[{"action":"allow","path":"/srv","perms":["read_file"]}]}}"#,
            r#"{"version":1,"fs":{"rules":[{"action":"allow","path":"/srv/granted/a","perms":["read_file"]}]}}"#,
            r#"{"version":1,"net":{"rules":[{"action":"allow","proto":"unix","path":"$WORKSPACE/sock"}]}}"#,
            r#"{"version":1,"net":{"rules":[{"action":"allow","host":"127.0.0.1","ports":"80"}]}}"#,
            r#"{"version":1,"net":{"rules":[{"action":"allow","host":"[::1]","ports":"80"}]}}"#,
            r#"{"version":1,"net":{"rules":[{"action":"warn","host":"169.254.169.254","ports":"80"}]}}"#,
            r#"{"version":1,"fs":{"rules":[{"action":"warn","path":"/srv/granted-not","perms":["read_file"]}]}}"#,
            r#"{"version":1,"fs":{"rules":[{"action":"allow","path":"~/x","perms":["read_file"]}]}}"#,
            r#"{"version":1,"net":{"rules":[{"action":"allow","proto":"unix","path":"/run/docker.sock"}]}}"#,
            r#"{"version":1,"net":{"rules":[{"action":"allow","cidr":"10.0.0.0/8"}]}}"#,
            r#"{"version":1,"degrade":["landlock.scope"]}"#,
            r#"{"version":1,"home":{"copy":["~/.ssh"]}}"#,
        ] {
            assert_eq!(check(bad).map_err(|f| f.error_kind), Err(ErrorKind::PolicyDenied), "{bad}");
        }
    }

    #[test]
    fn names_directories_and_files_are_refused_unless_granted() {
        let preset = |name: &str| RequestedPolicy::Preset(name.to_owned());
        assert!(only().check_source(&preset("default")).is_ok());
        assert!(only().check_source(&preset("networked")).is_err());
        assert!(only().check_source(&RequestedPolicy::File("/etc/passwd".into())).is_err());
        let granted = Reach::Only(Grants { dirs: vec!["/usr".into()], ..Grants::default() });
        assert!(granted.base("/usr/bin".as_ref()).is_ok() && Reach::All.base("/".as_ref()).is_ok(), "controls");
        let told = |path: &str| match granted.base(path.as_ref()) {
            Err(BaseFault::Refused(fault)) => fault.message.replace(path, "PATH"),
            other => panic!("{path}: {other:?}"),
        };
        let (there, missing, link) = (told("/etc"), told("/etc/no-such-thing"), told("/proc/self/cwd"));
        assert!(there == missing && missing == link, "{there} {missing} {link}");
    }
}
