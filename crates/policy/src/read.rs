//! Reading a document: text to tree, tree to checked values. Nothing unknown, doubled or ambiguous passes.

use crate::cursor::{Cursor, Fields, Problem, one_of_these, parsed, steps};
use crate::document::{Capability, Defaults, Document, Env, ExecRule, Format, FsRule, Secret, VERSION};
use crate::error::PolicyError;
use crate::host::Host;
use crate::locate::{self, line_column};
use crate::node::{Node, Reader};
use crate::path::RulePath;
use crate::perms::Perms;
use crate::read_net;
use crate::schema::{self, AUDIT_EVENTS, DEGRADES};
use serde::de::DeserializeSeed;
use std::collections::{BTreeMap, BTreeSet};
use terms::{Action, LimitKind, Limits, OnOutputLimit};

/// A document is written by people; one that is larger is a mistake or an attack.
const MAX_BYTES: usize = 1 << 20;
const MAX_RULES: usize = 10_000;
/// Keys of TOML may nest without brackets, which its reader follows by recursion.
const MAX_DOTS: usize = 32;

pub(crate) fn document(text: &str, format: Format, source: &str) -> Result<Document, PolicyError> {
    let node = tree(text, format, source)?;
    read_document(&Cursor::root(&node), source).map_err(|problem| placed(problem, text, format, source))
}

/// The tree of a text, for this reader and for the importers.
pub(crate) fn tree(text: &str, format: Format, source: &str) -> Result<Node, PolicyError> {
    if text.len() > MAX_BYTES {
        return Err(PolicyError::without_place(source, "", format!("the document has {} bytes", text.len()))
            .hint(format!("at most {MAX_BYTES} are read")));
    }
    match format {
        Format::Json => json_tree(text, source),
        Format::Toml => toml_tree(text, source),
    }
}

/// A problem with its place in the text.
pub(crate) fn placed(problem: Problem, text: &str, format: Format, source: &str) -> PolicyError {
    let (line, column) = locate::locate(text, format, &problem.path, problem.spot);
    PolicyError {
        message: problem.message,
        source: source.to_owned(),
        line,
        column,
        field: locate::render(&problem.path),
        hint: problem.hint,
    }
}

fn json_tree(text: &str, source: &str) -> Result<Node, PolicyError> {
    let mut track = serde_path_to_error::Track::new();
    let mut reader = serde_json::Deserializer::from_str(text);
    let result = Reader { depth: 0 }
        .deserialize(serde_path_to_error::Deserializer::new(&mut reader, &mut track))
        .and_then(|node| reader.end().map(|()| node));
    result.map_err(|error| PolicyError {
        message: error.to_string().split(" at line ").next().unwrap_or_default().to_owned(),
        source: source.to_owned(),
        line: error.line().max(1),
        column: error.column().max(1),
        field: locate::render(&steps(&track.path())),
        hint: None,
    })
}

fn toml_tree(text: &str, source: &str) -> Result<Node, PolicyError> {
    if let Some(line) = text.lines().position(|line| line.matches('.').count() > MAX_DOTS && is_deep(line)) {
        let mut error = PolicyError::without_place(source, "", format!("a key has more than {MAX_DOTS} dots"));
        (error.line, error.column) = (line + 1, 1);
        return Err(error);
    }
    let mut track = serde_path_to_error::Track::new();
    let result = toml::Deserializer::parse(text).and_then(|reader| {
        Reader { depth: 0 }.deserialize(serde_path_to_error::Deserializer::new(reader, &mut track))
    });
    result.map_err(|error| {
        let (line, column) = line_column(text, error.span().map_or(0, |span| span.start));
        PolicyError {
            message: error.message().to_owned(),
            source: source.to_owned(),
            line,
            column,
            field: locate::render(&steps(&track.path())),
            hint: None,
        }
    })
}

/// Whether the dots of a line may belong to a key: those inside quotes do not.
fn is_deep(line: &str) -> bool {
    let mut quote = None;
    let mut dots = 0;
    for c in line.chars() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('.', None) => dots += 1,
            _ => {}
        }
    }
    dots > MAX_DOTS
}

fn read_document(at: &Cursor<'_>, source: &str) -> Result<Document, Problem> {
    let fields = at.object(&schema::DOCUMENT)?;
    let mut document = Document::new(source);
    document.version = read_version(&fields.need("version")?)?;
    document.extends = unique_texts(&fields, "extends")?;
    if let Some(at) = fields.get("defaults") {
        document.defaults = read_defaults(&at)?;
    }
    document.fs = rules(&fields, "fs", &schema::FS, read_fs_rule)?;
    document.net = rules(&fields, "net", &schema::NET, read_net::rule)?;
    document.exec = rules(&fields, "exec", &schema::EXEC, read_exec_rule)?;
    if let Some(at) = fields.get("syscalls") {
        document.syscalls_deny = read_syscalls(&at)?;
    }
    document.env = fields.get("env").map(|at| read_env(&at)).transpose()?;
    document.secrets = read_secrets(&fields.list("secrets")?)?;
    if let Some(at) = fields.get("audit") {
        document.audit_events = read_audit(&at)?;
    }
    if let Some(at) = fields.get("limits") {
        document.limits = read_limits(&at)?;
    }
    if let Some(at) = fields.get("capabilities") {
        document.capabilities = read_capabilities(&at)?;
    }
    document.degrade = fields.get("degrade").map(|at| read_degrade(&at)).transpose()?;
    Ok(document)
}

fn read_version(at: &Cursor<'_>) -> Result<u32, Problem> {
    match at.node {
        Node::Int(1) => Ok(VERSION),
        Node::Int(n) => Err(at.problem(format!("version {n} is not known")).hint("this program reads version 1")),
        _ => Err(at.problem(format!("expected the number 1, found {}", at.node.kind()))),
    }
}

fn read_defaults(at: &Cursor<'_>) -> Result<Defaults, Problem> {
    let fields = at.object(&schema::DEFAULTS)?;
    let read = |name| fields.get(name).map(|at| default_action(&at)).transpose();
    Ok(Defaults { fs: read("fs")?, net: read("net")?, exec: read("exec")? })
}

fn default_action(at: &Cursor<'_>) -> Result<Action, Problem> {
    match action(at)? {
        action @ (Action::Allow | Action::Deny) => Ok(action),
        other => Err(at.problem(format!("{:?} is not a default", other.name())).hint("use \"allow\" or \"deny\"")),
    }
}

pub(crate) fn action(at: &Cursor<'_>) -> Result<Action, Problem> {
    at.one_of(&[Action::Allow, Action::Deny, Action::Warn, Action::Ask].map(|a| (a.name(), a)))
}

fn rules<T>(
    fields: &Fields<'_>,
    name: &str,
    section: &schema::Section,
    read: impl Fn(&Cursor<'_>) -> Result<T, Problem>,
) -> Result<Vec<T>, Problem> {
    let Some(at) = fields.get(name) else { return Ok(Vec::new()) };
    let items = at.object(section)?.list("rules")?;
    if items.len() > MAX_RULES {
        return Err(at.problem(format!("{} rules", items.len())).hint(format!("at most {MAX_RULES} are read")));
    }
    items.iter().map(read).collect()
}

fn read_fs_rule(at: &Cursor<'_>) -> Result<FsRule, Problem> {
    let fields = at.object(&schema::FS_RULE)?;
    let action = action(&fields.need("action")?)?;
    let path = parsed(&fields.need("path")?, RulePath::parse)?;
    let perms = match fields.get("perms") {
        Some(at) => read_perms(&at)?,
        None if matches!(action, Action::Deny | Action::Ask) => Perms::ALL,
        None => {
            return Err(fields
                .problem(format!("an {} rule needs \"perms\"", action.name()).replace("an warn", "a warn"))
                .hint("such as [\"read_file\", \"read_dir\"]"));
        }
    };
    Ok(FsRule { action, path, perms })
}

fn read_perms(at: &Cursor<'_>) -> Result<Perms, Problem> {
    let mut perms = Perms::NONE;
    for item in at.items()? {
        let name = item.text()?;
        let names: Vec<&str> = Perms::known_names().collect();
        let added = Perms::named(name)
            .ok_or_else(|| item.problem(format!("unknown permission {name:?}")).hint(one_of_these(name, &names)))?;
        if perms.and(added) == added {
            return Err(item.problem(format!("{name:?} is already in the list")));
        }
        perms = perms.union(added);
    }
    match perms.is_empty() {
        true => Err(at.problem("the list is empty").hint("name at least one permission")),
        false => Ok(perms),
    }
}

fn read_exec_rule(at: &Cursor<'_>) -> Result<ExecRule, Problem> {
    let fields = at.object(&schema::EXEC_RULE)?;
    let action = action(&fields.need("action")?)?;
    let path = parsed(&fields.need("path")?, RulePath::parse)?;
    let sha256 = match fields.get("sha256") {
        None => None,
        Some(at) if matches!(action, Action::Deny | Action::Ask) => {
            return Err(at
                .problem(format!("\"sha256\" does not go with {:?}", action.name()))
                .hint("a denial holds for any bytes; leave the digest out"));
        }
        Some(at) => Some(read_sha256(&at)?),
    };
    Ok(ExecRule { action, path, sha256 })
}

fn read_sha256(at: &Cursor<'_>) -> Result<[u8; 32], Problem> {
    let text = at.text()?;
    let mut digest = [0; 32];
    let good = text.len() == 64
        && text.bytes().all(|b| b.is_ascii_hexdigit())
        && digest.iter_mut().enumerate().all(|(i, byte)| match u8::from_str_radix(&text[2 * i..2 * i + 2], 16) {
            Ok(value) => {
                *byte = value;
                true
            }
            Err(_) => false,
        });
    match good {
        true => Ok(digest),
        false => Err(at.problem(format!("{text:?} is not a SHA-256 digest")).hint("64 hexadecimal digits")),
    }
}

fn read_syscalls(at: &Cursor<'_>) -> Result<Vec<String>, Problem> {
    let names = unique_texts(&at.object(&schema::SYSCALLS)?, "deny")?;
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

fn read_env(at: &Cursor<'_>) -> Result<Env, Problem> {
    let fields = at.object(&schema::ENV)?;
    let mut env = Env::default();
    if fields.get("pass").is_some() {
        let names = unique_texts(&fields, "pass")?;
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
            return Err(at.problem("the value holds a NUL character"));
        }
        env.set.insert(name.to_owned(), value.to_owned());
    }
    Ok(env)
}

/// `part` is `whole` without its final wildcard.
fn env_name(at: &Cursor<'_>, part: &str, whole: &str) -> Result<(), Problem> {
    match part.chars().find(|c| *c == '=' || *c == '*' || c.is_whitespace() || c.is_control()) {
        Some('*') => Err(at.problem(format!("{whole:?} has a wildcard that is not its last character"))
            .hint("only \"pass\" takes one, at the end: \"LC_*\"")),
        Some(bad) => Err(at.problem(format!("{whole:?} holds the character {bad:?}"))
            .hint("it is the name of a variable, without its value")),
        None => Ok(()),
    }
}

fn read_secrets(items: &[Cursor<'_>]) -> Result<Vec<Secret>, Problem> {
    let mut seen = BTreeSet::new();
    let mut secrets = Vec::new();
    for at in items {
        let secret = read_secret(at)?;
        if !seen.insert((secret.host.clone(), secret.header.clone())) {
            return Err(at.problem(format!("two secrets for the header {:?} of {}", secret.header, secret.host)));
        }
        secrets.push(secret);
    }
    Ok(secrets)
}

fn read_secret(at: &Cursor<'_>) -> Result<Secret, Problem> {
    let fields = at.object(&schema::SECRET)?;
    let name_at = fields.need("name")?;
    let name = name_at.text()?;
    env_name(&name_at, name, name)?;
    let inject = fields.need("inject")?.object(&schema::INJECT)?;
    let host = parsed(&inject.need("host")?, Host::parse)?;
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
                return Err(at.problem(format!("{format:?} must hold \"{{}}\" once")).hint("such as \"Bearer {}\""));
            }
            format.to_owned()
        }
    };
    Ok(Secret { name: name.to_owned(), host, header, format })
}

fn read_audit(at: &Cursor<'_>) -> Result<Vec<String>, Problem> {
    let fields = at.object(&schema::AUDIT)?;
    for item in fields.list("events")? {
        item.one_of(&AUDIT_EVENTS)?;
    }
    unique_texts(&fields, "events")
}

fn read_limits(at: &Cursor<'_>) -> Result<Limits, Problem> {
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

fn read_capabilities(at: &Cursor<'_>) -> Result<BTreeMap<String, Capability>, Problem> {
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

fn read_degrade(at: &Cursor<'_>) -> Result<Vec<String>, Problem> {
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

fn unique_texts(fields: &Fields<'_>, name: &str) -> Result<Vec<String>, Problem> {
    let mut seen = BTreeSet::new();
    let mut out = Vec::new();
    for item in fields.list(name)? {
        let text = item.text()?;
        if !seen.insert(text) {
            return Err(item.problem(format!("{text:?} is already in the list")));
        }
        out.push(text.to_owned());
    }
    Ok(out)
}
