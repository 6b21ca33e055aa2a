//! Explanations of decisions about a path, a program or a network address. Text for people, JSON for programs; both are
//! made from the same decisions.

use crate::decide::Decision;
use crate::document::Proto;
use crate::net::NetRequest;
use crate::node::Node;
use crate::perms::{Perm, Perms};
use crate::resolve::Resolved;
use crate::write::ObjectEntries;
use std::path::Path;

/// Decisions about one subject; operations with the same decision share a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub subject: String,
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// `read_file` and the other permissions, `execute`, or `connect`.
    pub operations: Vec<&'static str>,
    pub decision: Decision,
}

pub fn explain_fs(resolved: &Resolved, path: &Path) -> Explanation {
    let mut rows: Vec<(Perms, Decision)> = Vec::new();
    for perm in Perm::ALL {
        let decision = match perm {
            Perm::Execute => resolved.exec(path),
            _ => resolved.fs(path, perm),
        };
        let one = Perms::of(&[perm]);
        match rows.iter_mut().find(|(_, known)| *known == decision) {
            Some((perms, _)) => *perms = perms.union(one),
            None => rows.push((one, decision)),
        }
    }
    rows.sort_by_key(|(perms, _)| Perms::known_names().position(|name| name == perms.names()[0]));
    let rows = rows.into_iter().map(|(perms, decision)| Row { operations: perms.names(), decision }).collect();
    Explanation { subject: path.display().to_string(), rows }
}

pub fn explain_exec(resolved: &Resolved, path: &Path) -> Explanation {
    let row = Row { operations: vec!["execute"], decision: resolved.exec(path) };
    Explanation { subject: path.display().to_string(), rows: vec![row] }
}

pub fn explain_net(resolved: &Resolved, ask: &NetRequest<'_>) -> Explanation {
    let (place, decision) = match (ask.unix, ask.host, ask.addr) {
        (None, Some(host), _) if ask.proto == Proto::Icmp => (host.to_owned(), resolved.datagrams(ask)),
        (Some(path), _, _) => (path.display().to_string(), resolved.connects(path)),
        (_, Some(host), _) => (format!("{host}:{}", ask.port), resolved.net(ask)),
        (_, None, Some(addr)) => (std::net::SocketAddr::new(addr, ask.port).to_string(), resolved.net(ask)),
        (None, None, None) => (String::new(), resolved.net(ask)),
    };
    let row = Row { operations: vec!["connect"], decision };
    Explanation { subject: format!("{} {place}", ask.proto.name()), rows: vec![row] }
}

impl Explanation {
    pub fn to_text(&self) -> String {
        let mut out = format!("{}\n", self.subject);
        for Row { operations, decision } in &self.rows {
            let (action, rule) = (decision.action.name(), &decision.rule);
            out.push_str(&format!("  {action:5} {}  ({rule})\n", operations.join(", ")));
            for m in &decision.matches {
                out.push_str(&format!("        {}: {}\n", m.rule, m.text));
            }
            if let Some(hint) = &decision.hint {
                out.push_str(&format!("        to allow it: {hint}\n"));
            }
        }
        out
    }

    pub fn to_json(&self) -> String {
        let rows = self.rows.iter().map(row_node).collect();
        let mut out = ObjectEntries::default();
        out.put("subject", Node::text(&self.subject));
        out.put("decisions", Node::List(rows));
        out.into_node().to_json()
    }
}

fn row_node(row: &Row) -> Node {
    let mut out = ObjectEntries::default();
    out.put("operations", Node::texts(&row.operations));
    out.put("action", Node::text(row.decision.action.name()));
    out.put("rule", Node::text(&row.decision.rule));
    out.put_some("hint", row.decision.hint.as_ref().map(Node::text));
    let matches = row.decision.matches.iter().map(|m| {
        let mut entry = ObjectEntries::default();
        entry.put("rule", Node::text(&m.rule));
        entry.put("action", Node::text(m.action.name()));
        entry.put("text", Node::text(&m.text));
        entry.into_node()
    });
    out.put("matches", Node::List(matches.collect()));
    out.into_node()
}

#[cfg(test)]
#[path = "explain_test.rs"]
mod test;
