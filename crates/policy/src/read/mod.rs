//! Parsing of a document: text to tree, tree to checked values. Unknown, duplicate or ambiguous input is refused.

mod net;
mod rules;
mod sections;

use crate::cursor::{Cursor, ObjectFields, Problem, steps};
use crate::document::{Defaults, Document, Format, VERSION};
use crate::error::PolicyError;
use crate::locate::{self, line_column};
use crate::node::{Node, NodeSeed};
use crate::schema;
use serde::de::DeserializeSeed;
use terms::Action;

/// Bound on a document in bytes; people write documents, and a larger one is a mistake or an attack.
const MAX_BYTES: usize = 1 << 20;
const MAX_RULES: usize = 10_000;

pub(crate) fn document(text: &str, format: Format, source: &str) -> Result<Document, PolicyError> {
    let node = tree(text, format, source)?;
    read_document(&Cursor::root(&node), source).map_err(|problem| with_position(problem, text, format, source))
}

/// Parses a text into a tree, for this reader and for the importers.
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

/// Adds the position in the text to a problem.
pub(crate) fn with_position(problem: Problem, text: &str, format: Format, source: &str) -> PolicyError {
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
    let result = NodeSeed { depth: 0 }
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
    let mut track = serde_path_to_error::Track::new();
    let result = toml::Deserializer::parse(text).and_then(|reader| {
        NodeSeed { depth: 0 }.deserialize(serde_path_to_error::Deserializer::new(reader, &mut track))
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

fn read_document(at: &Cursor<'_>, source: &str) -> Result<Document, Problem> {
    let fields = at.object(&schema::DOCUMENT)?;
    let mut document = Document::new(source);
    document.version = read_version(&fields.need("version")?)?;
    document.extends = fields.unique_texts("extends")?;
    if let Some(at) = fields.get("defaults") {
        document.defaults = read_defaults(&at)?;
    }
    document.fs = rules_of(&fields, "fs", &schema::FS, rules::fs)?;
    document.net = rules_of(&fields, "net", &schema::NET, net::rule)?;
    document.exec = rules_of(&fields, "exec", &schema::EXEC, rules::exec)?;
    if let Some(at) = fields.get("syscalls") {
        document.syscalls_deny = sections::syscalls(&at)?;
    }
    document.env = fields.get("env").map(|at| sections::env(&at)).transpose()?;
    if let Some(at) = fields.get("home") {
        document.home_copy = sections::home(&at)?;
    }
    document.secrets = sections::secrets(&fields.list("secrets")?)?;
    if let Some(at) = fields.get("audit") {
        document.audit_events = sections::audit(&at)?;
    }
    if let Some(at) = fields.get("limits") {
        document.limits = sections::limits(&at)?;
    }
    if let Some(at) = fields.get("capabilities") {
        document.capabilities = sections::capabilities(&at)?;
    }
    document.degrade = fields.get("degrade").map(|at| sections::degrade(&at)).transpose()?;
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
        Action::Ask => Err(at
            .problem("\"ask\" is not a default")
            .hint("use \"deny\", and rules that ask about single paths, hosts or programs")),
        other => Err(at.problem(format!("{:?} is not a default", other.name())).hint("use \"allow\" or \"deny\"")),
    }
}

fn action(at: &Cursor<'_>) -> Result<Action, Problem> {
    at.one_of(&[Action::Allow, Action::Deny, Action::Warn, Action::Ask].map(|a| (a.name(), a)))
}

fn rules_of<T>(
    fields: &ObjectFields<'_>,
    name: &str,
    section: &schema::Section,
    read: impl Fn(&Cursor<'_>) -> Result<T, Problem>,
) -> Result<Vec<T>, Problem> {
    let Some(at) = fields.get(name) else {
        return Ok(Vec::new());
    };
    let items = at.object(section)?.list("rules")?;
    if items.len() > MAX_RULES {
        return Err(at.problem(format!("{} rules", items.len())).hint(format!("at most {MAX_RULES} are read")));
    }
    items.iter().map(read).collect()
}
