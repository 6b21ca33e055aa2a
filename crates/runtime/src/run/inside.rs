//! Arguments of a command, its environment inside, and the program that its first word resolves to there.

use super::RunRefused;
use super::home::HomePrograms;
use super::view::View;
use crate::network::Planned;
use enclosure::TRUST_VARIABLES;
use policy::{Action, HostFileType, Resolved};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use terms::{Denial, ErrorKind, Fault, Phase, RunId};

/// Returns the arguments of a command; with `shell`, of a shell that runs this text.
pub fn argv(command: &[OsString], shell: Option<&OsStr>) -> Result<Vec<OsString>, Fault> {
    let argv = match shell {
        Some(text) => {
            let shell = ["sh", "-c"].into_iter().map(OsString::from).chain([text.to_owned()]);
            let name = if command.is_empty() { None } else { Some(OsString::from("sh")) };
            shell.chain(name).chain(command.iter().cloned()).collect()
        }
        None => command.to_vec(),
    };
    if argv.is_empty() || argv[0].is_empty() {
        return Err(Fault::invalid("no command given").hint("cofferdam run -- COMMAND [ARG…]").phase(Phase::Admission));
    }
    Ok(argv)
}

/// Proxy variables, which would lead programs past the doors to a proxy that does not exist inside.
const PROXIES: [&str; 6] = ["http_proxy", "https_proxy", "all_proxy", "no_proxy", "ftp_proxy", "rsync_proxy"];

/// Context of commands in one guest: the parts of their environment besides the policy and the caller's own, and the tree in which programs
/// are looked up.
pub struct Inside {
    /// Variables by which toolchains find their installation.
    tools: Vec<String>,
    /// Variables that lead to a home inside that is elsewhere than the caller's, and to toolchains below the caller's.
    places: Vec<(OsString, OsString)>,
    /// Variables that hold secrets outside, and their placeholders inside.
    secrets: Vec<String>,
    placeholders: Vec<(String, String)>,
    /// Programs inside must trust the guest CA.
    inspects: bool,
    view: View,
    home: Option<HomePrograms>,
}

impl Inside {
    pub fn new(
        tools: Vec<String>,
        places: Vec<(OsString, OsString)>,
        network: &Planned,
        view: View,
        home: Option<HomePrograms>,
    ) -> Inside {
        Inside {
            tools,
            places,
            secrets: network.secrets.variables().map(String::from).collect(),
            placeholders: network.secrets.placeholders().map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
            inspects: network.inspects(),
            view,
            home,
        }
    }

    fn is_secret(&self, name: &OsStr) -> bool {
        self.secrets.iter().any(|secret| name == secret.as_str())
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    /// Builds the environment of a command: variables that the policy passes and sets, those by which toolchains find their installation,
    /// and the requested ones.
    pub fn environment(
        &self,
        asked: &[OsString],
        around: &[(OsString, OsString)],
        resolved: &Resolved,
        run_id: &RunId,
    ) -> Result<Variables, Fault> {
        let mut inside: BTreeMap<OsString, OsString> = BTreeMap::new();
        let bare = resolved.env().pass.is_none();
        for (name, value) in around {
            let Some(text) = name.to_str() else { continue };
            if self.is_secret(name) || PROXIES.iter().any(|proxy| text.eq_ignore_ascii_case(proxy)) {
                continue;
            }
            let tool = bare && self.tools.iter().any(|t| t == text);
            if tool || policy::env::passes(resolved.env(), text) {
                inside.insert(name.clone(), value.clone());
            }
        }
        inside.extend(self.places.iter().cloned());
        if self.inspects {
            inside.extend(TRUST_VARIABLES.iter().map(|(name, file)| (name.into(), file.into())));
        }
        for (name, value) in &resolved.env().set {
            inside.insert(name.into(), value.into());
        }
        for item in asked {
            let (name, value) = env_item(item, around)?;
            if let Some(value) = value.filter(|_| !self.is_secret(&name)) {
                inside.insert(name, value);
            }
        }
        inside.extend(self.placeholders.iter().map(|(name, value)| (name.into(), value.into())));
        inside.insert("COFFERDAM".into(), "1".into());
        inside.insert("COFFERDAM_RUN_ID".into(), run_id.as_str().into());
        Ok(inside.into_iter().collect())
    }

    /// Resolves the program as a shell inside would, and distinguishes "not there" from "not allowed".
    pub fn find_program(
        &self,
        name: &OsStr,
        env: &[(OsString, OsString)],
        cwd: &Path,
        resolved: &Resolved,
    ) -> Result<PathBuf, RunRefused> {
        let candidates: Vec<PathBuf> = if name.as_bytes().contains(&b'/') {
            vec![cwd.join(name)]
        } else {
            let path = env.iter().find(|(n, _)| n == "PATH").map(|(_, v)| v.as_os_str());
            let path = path.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
            std::env::split_paths(path).map(|dir| cwd.join(dir).join(name)).collect()
        };
        let mut refused = None;
        let mut found_plain = None;
        for candidate in &candidates {
            let in_home = self.home.as_ref().and_then(|home| home.find(candidate));
            let (found, own) = in_home.map_or_else(|| (self.view.find(candidate), false), |(f, own)| (Some(f), own));
            let Some((real, kind, mode)) = found else { continue };
            if kind != HostFileType::File || mode & 0o111 == 0 {
                found_plain.get_or_insert((candidate, kind));
                continue;
            }
            // Where every program may start, those of the sandbox's own home may as well.
            if own && resolved.policy().default_exec() != Action::Deny {
                return Ok(candidate.clone());
            }
            match check_exec(&real, resolved) {
                None => return Ok(candidate.clone()),
                Some(denial) => refused = refused.or(Some(denial)),
            }
        }
        if let Some(denial) = refused {
            let message = format!("{}: refused by {}", denial.target, denial.rule);
            let fault = Fault::new(ErrorKind::PolicyDenied, message).phase(Phase::Start);
            let fault = denial.hint.iter().fold(fault, |fault, hint| fault.hint(hint.clone()));
            return Err(RunRefused { fault: Box::new(fault), denial: Some(Box::new(denial)) });
        }
        let shown = name.to_string_lossy();
        if let Some((path, kind)) = found_plain {
            let (what, hint) = match kind {
                HostFileType::File => {
                    ("", format!("make it executable (chmod +x), or name its interpreter: sh {shown}"))
                }
                HostFileType::Dir => (" but a directory", "name a program in it".to_owned()),
                _ => ("", "name a program".to_owned()),
            };
            let message = format!("{}: not an executable file{what}", path.display());
            let fault = Fault::new(ErrorKind::InvalidRequest, message).exit(126).phase(Phase::Start);
            return Err(fault.hint(hint).into());
        }
        let message = format!("{shown}: command not found");
        let fault = Fault::new(ErrorKind::NotFound, message).exit(127).phase(Phase::Start);
        Err(fault.hint(where_looked(name, &candidates)).into())
    }
}

type Variables = Vec<(OsString, OsString)>;

fn env_item(item: &OsStr, around: &[(OsString, OsString)]) -> Result<(OsString, Option<OsString>), Fault> {
    let bytes = item.as_bytes();
    let (name, value) = match bytes.iter().position(|b| *b == b'=') {
        Some(at) => (&bytes[..at], Some(OsStr::from_bytes(&bytes[at + 1..]).to_owned())),
        None => (bytes, None),
    };
    if name.is_empty() {
        return Err(Fault::invalid(format!("--env {item:?}: no name before '='")).phase(Phase::Admission));
    }
    let name = OsStr::from_bytes(name).to_owned();
    let value = value.or_else(|| around.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone()));
    Ok((name, value))
}

/// Lists the directories in which a command was looked up, up to a readable number.
fn where_looked(name: &OsStr, candidates: &[PathBuf]) -> String {
    const MOST: usize = 8;
    if name.as_bytes().contains(&b'/') {
        return format!("{} does not exist", candidates[0].display());
    }
    let dirs = candidates.iter().filter_map(|at| at.parent()).map(|dir| dir.display().to_string());
    let shown: Vec<String> = dirs.take(MOST).collect();
    let rest = if candidates.len() > MOST { ":…" } else { "" };
    match shown.is_empty() {
        true => "PATH is empty; name it by its path".to_owned(),
        false => format!("it is in no directory of PATH: {}{rest}", shown.join(":")),
    }
}

fn check_exec(real: &Path, resolved: &Resolved) -> Option<Denial> {
    // A project below /tmp is granted like any other; other programs there are not shown inside.
    let decision = resolved.exec(real);
    match decision.action {
        Action::Allow | Action::Warn => None,
        // The start waits for the answer.
        Action::Ask if resolved.asks_to_start(real) => None,
        action => Some(Denial {
            op: "exec".into(),
            target: real.to_string_lossy().into_owned(),
            rule: decision.rule,
            action,
            count: 1,
            pid: 0,
            exe: String::new(),
            hint: decision.hint,
            quiet: false,
        }),
    }
}
