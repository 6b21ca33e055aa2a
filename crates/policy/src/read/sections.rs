//! Parsing of the sections that are not lists of rules.

use crate::cursor::{Cursor, Problem, one_of_these, parsed};
use crate::document::{Capability, Env, Secret};
use crate::host::HostName;
use crate::path::{PathRefusal, RulePath};
use crate::schema::{self, AUDIT_EVENTS, DEGRADES};
use std::collections::BTreeMap;
use terms::{LimitKind, Limits, OnOutputLimit};

/// Bound on the paths that one document copies into the home.
const MOST_COPIED: usize = 256;

pub(super) fn syscalls(at: &Cursor<'_>) -> Result<Vec<String>, Problem> {
    let names = at.object(&schema::SYSCALLS)?.unique_texts("deny")?;
    for (i, name) in names.iter().enumerate() {
        let shaped = name.len() <= 64
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            && name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
        if !shaped {
            let items = at.object(&schema::SYSCALLS)?.list("deny")?;
            return Err(items[i]
                .problem(format!("{name:?} is not the name of a system call"))
                .hint("lower case letters, digits and \"_\", such as \"ptrace\""));
        }
    }
    Ok(names)
}

pub(super) fn env(at: &Cursor<'_>) -> Result<Env, Problem> {
    let fields = at.object(&schema::ENV)?;
    let mut env = Env::default();
    if fields.get("pass").is_some() {
        let names = fields.unique_texts("pass")?;
        for (name, at) in names.iter().zip(fields.list("pass")?) {
            env_name(&at, name.strip_suffix('*').unwrap_or(name), name)?;
        }
        env.pass = Some(names);
    }
    for (name, at) in fields.get("set").map_or(Ok(Vec::new()), |at| at.entries())? {
        env_name(&at, name, name)?;
        if name.is_empty() {
            return Err(at.problem("the name of the variable is empty"));
        }
        if name == "COFFERDAM" || name == "COFFERDAM_RUN_ID" {
            return Err(at.problem(format!("{name:?} is set by the product")).hint("choose another name"));
        }
        let value = at.raw_text()?;
        if value.contains('\0') {
            return Err(at.problem("the value contains a NUL character"));
        }
        env.set.insert(name.to_owned(), value.to_owned());
    }
    Ok(env)
}

/// Paths that are copied into the home.
pub(super) fn home(at: &Cursor<'_>) -> Result<Vec<RulePath>, Problem> {
    let fields = at.object(&schema::HOME)?;
    let items = fields.list("copy")?;
    if items.len() > MOST_COPIED {
        let problem = at.problem(format!("{} paths are copied", items.len()));
        return Err(problem.hint(format!("at most {MOST_COPIED} are; name a directory above them")));
    }
    items.iter().map(|item| parsed(item, copied_path)).collect()
}

/// Parses a path that is copied into the home: a plain one below it.
pub(crate) fn copied_path(text: &str) -> Result<RulePath, PathRefusal> {
    let path = RulePath::parse(text)?;
    match path.below_home() {
        Some(_) => Ok(path),
        None => {
            Err(PathRefusal::new(format!("{text:?} is not a plain path below the home")).hint("such as ~/.config/tool"))
        }
    }
}

/// `part` is `whole` without its final wildcard.
fn env_name(at: &Cursor<'_>, part: &str, whole: &str) -> Result<(), Problem> {
    match part.chars().find(|c| *c == '=' || *c == '*' || c.is_whitespace() || c.is_control()) {
        Some('*') => Err(at
            .problem(format!("{whole:?} has a wildcard that is not its last character"))
            .hint("only \"pass\" takes one, at the end: \"LC_*\"")),
        Some(bad) => Err(at
            .problem(format!("{whole:?} contains the character {bad:?}"))
            .hint("it is the name of a variable, without its value")),
        None => Ok(()),
    }
}

pub(super) fn secrets(items: &[Cursor<'_>]) -> Result<Vec<Secret>, Problem> {
    let mut secrets = Vec::new();
    for at in items {
        let secret = secret(at)?;
        // Several required ones would leave open which of them is sent.
        let place = (secret.host.clone(), secret.header.clone());
        let rival = secrets.iter().any(|s: &Secret| {
            (&s.host, &s.header) == (&place.0, &place.1) && (s.name == secret.name || !(s.optional && secret.optional))
        });
        if rival {
            return Err(at
                .problem(format!("two secrets for the header {:?} of {}", secret.header, secret.host))
                .hint("only secrets that are all \"optional\" may share a header"));
        }
        secrets.push(secret);
    }
    Ok(secrets)
}

fn secret(at: &Cursor<'_>) -> Result<Secret, Problem> {
    let fields = at.object(&schema::SECRET)?;
    let name_at = fields.need("name")?;
    let name = name_at.text()?;
    env_name(&name_at, name, name)?;
    let inject = fields.need("inject")?.object(&schema::INJECT)?;
    let host = parsed(&inject.need("host")?, HostName::parse)?;
    let header_at = inject.need("header")?;
    let header = header_at.text()?.to_ascii_lowercase();
    if !header.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)) {
        return Err(header_at.problem(format!("{header:?} is not the name of a header")));
    }
    let format = match inject.get("format") {
        None => "{}".to_owned(),
        Some(at) => {
            let format = at.text()?;
            if format.matches("{}").count() != 1 {
                return Err(at.problem(format!("{format:?} must contain \"{{}}\" once")).hint("such as \"Bearer {}\""));
            }
            format.to_owned()
        }
    };
    let optional = fields.get("optional").map_or(Ok(false), |at| at.boolean())?;
    Ok(Secret { name: name.to_owned(), host, header, format, optional })
}

pub(super) fn audit(at: &Cursor<'_>) -> Result<Vec<String>, Problem> {
    let fields = at.object(&schema::AUDIT)?;
    for item in fields.list("events")? {
        item.one_of(&AUDIT_EVENTS)?;
    }
    fields.unique_texts("events")
}

pub(super) fn limits(at: &Cursor<'_>) -> Result<Limits, Problem> {
    let fields = at.object(&schema::LIMITS)?;
    let count = |name| fields.get(name).map(|at| at.count()).transpose();
    let megabytes = |name| fields.get(name).map(|at| at.megabytes()).transpose();
    let past = [("end", OnOutputLimit::End), ("truncate", OnOutputLimit::Truncate)];
    Ok(Limits {
        max_wall_ms: count("max_wall_ms")?,
        max_cpu_ms: count("max_cpu_ms")?,
        max_memory_mb: megabytes("max_memory_mb")?,
        max_output_bytes: count("max_output_bytes")?,
        max_processes: count("max_processes")?,
        max_open_files: count("max_open_files")?,
        max_disk_mb: megabytes("max_disk_mb")?,
        max_files: count("max_files")?,
        max_net_bytes: count("max_net_bytes")?,
        max_steps: count("max_steps")?,
        on_output_limit: fields.get("on_output_limit").map(|at| at.one_of(&past)).transpose()?,
    })
}

pub(super) fn capabilities(at: &Cursor<'_>) -> Result<BTreeMap<String, Capability>, Problem> {
    let mut out = BTreeMap::new();
    for (name, at) in at.entries()? {
        let shaped = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if !shaped {
            return Err(at.problem(format!("{name:?} is not the name of a capability")).hint("such as \"net.fetch\""));
        }
        let fields = at.object(&schema::CAPABILITY)?;
        let allow = fields.need("allow")?.boolean()?;
        let budget = fields.get("budget").map(|at| at.count()).transpose()?;
        out.insert(name.to_owned(), Capability { allow, budget });
    }
    Ok(out)
}

pub(super) fn degrade(at: &Cursor<'_>) -> Result<Vec<String>, Problem> {
    let limits: Vec<String> = LimitKind::ALL.iter().map(|kind| format!("max_{}", kind.name())).collect();
    let known: Vec<&str> = DEGRADES.iter().map(|(n, _)| *n).chain(limits.iter().map(String::as_str)).collect();
    let mut out: Vec<String> = Vec::new();
    for item in at.items()? {
        let name = item.text()?;
        if !known.contains(&name) {
            return Err(item.problem(format!("unknown value {name:?}")).hint(one_of_these(name, &known)));
        }
        if out.iter().any(|n| n == name) {
            return Err(item.problem(format!("{name:?} is already in the list")));
        }
        out.push(name.to_owned());
    }
    Ok(out)
}
