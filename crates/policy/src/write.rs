//! Serialisation: values back to a tree, in the canonical order of documents and digests. Absent values are left out.

use crate::document::{Capability, Defaults, Document, Env, ExecRule, FsRule, NetRule, NetTarget, Secret};
use crate::node::Node;
use crate::perms::Perms;
use std::collections::BTreeMap;
use terms::{Action, LimitKind, Limits, OnOutputLimit};

pub(crate) fn document(doc: &Document) -> Node {
    let mut out = ObjectEntries::default();
    out.put("version", Node::Int(doc.version.into()));
    out.put_some("extends", (!doc.extends.is_empty()).then(|| Node::texts(&doc.extends)));
    out.put_some("defaults", defaults(&doc.defaults));
    out.put_some("fs", rules(doc.fs.iter().map(fs_rule)));
    out.put_some("net", rules(doc.net.iter().map(net_rule)));
    out.put_some("exec", rules(doc.exec.iter().map(exec_rule)));
    out.put_some("syscalls", list_in("deny", &doc.syscalls_deny));
    out.put_some("env", doc.env.as_ref().map(env));
    let copied: Vec<String> = doc.home_copy.iter().map(ToString::to_string).collect();
    out.put_some("home", list_in("copy", &copied));
    out.put_some("secrets", (!doc.secrets.is_empty()).then(|| Node::List(doc.secrets.iter().map(secret).collect())));
    out.put_some("audit", list_in("events", &doc.audit_events));
    out.put_some("limits", limits(&doc.limits));
    out.put_some("capabilities", capabilities(&doc.capabilities));
    out.put_some("degrade", doc.degrade.as_ref().map(Node::texts));
    out.into_node()
}

/// Entries in insertion order.
#[derive(Default)]
pub(crate) struct ObjectEntries(Vec<(String, Node)>);

impl ObjectEntries {
    pub(crate) fn put(&mut self, key: &str, value: Node) {
        self.0.push((key.to_owned(), value));
    }

    pub(crate) fn put_some(&mut self, key: &str, value: Option<Node>) {
        if let Some(value) = value {
            self.put(key, value);
        }
    }

    pub(crate) fn into_node(self) -> Node {
        Node::Map(self.0)
    }

    fn into_some(self) -> Option<Node> {
        (!self.0.is_empty()).then_some(Node::Map(self.0))
    }
}

pub(crate) fn defaults(defaults: &Defaults) -> Option<Node> {
    let mut out = ObjectEntries::default();
    for (name, action) in [("fs", defaults.fs), ("net", defaults.net), ("exec", defaults.exec)] {
        out.put_some(name, action.map(|a| Node::text(a.name())));
    }
    out.into_some()
}

fn rules(rules: impl Iterator<Item = Node>) -> Option<Node> {
    let rules: Vec<Node> = rules.collect();
    (!rules.is_empty()).then(|| Node::Map(vec![("rules".to_owned(), Node::List(rules))]))
}

pub(crate) fn list_in(key: &str, values: &[String]) -> Option<Node> {
    (!values.is_empty()).then(|| Node::Map(vec![(key.to_owned(), Node::texts(values))]))
}

pub(crate) fn fs_rule(rule: &FsRule) -> Node {
    let mut out = ObjectEntries::default();
    out.put("action", Node::text(rule.action.name()));
    out.put("path", Node::text(rule.path.to_string()));
    let implied = rule.perms == Perms::ALL && matches!(rule.action, Action::Deny | Action::Ask);
    out.put_some("perms", (!implied).then(|| Node::texts(rule.perms.names())));
    out.into_node()
}

pub(crate) fn exec_rule(rule: &ExecRule) -> Node {
    let mut out = ObjectEntries::default();
    out.put("action", Node::text(rule.action.name()));
    out.put("path", Node::text(rule.path.to_string()));
    out.put_some("sha256", rule.sha256.map(|digest| Node::text(terms::hex::encode(digest))));
    out.into_node()
}

pub(crate) fn net_rule(rule: &NetRule) -> Node {
    let mut out = ObjectEntries::default();
    out.put("action", Node::text(rule.action.name()));
    out.put_some("proto", rule.proto.map(|p| Node::text(p.name())));
    match &rule.to {
        NetTarget::Host(host) => out.put("host", Node::text(host.to_string())),
        NetTarget::Cidr(cidr) => out.put("cidr", Node::text(cidr.to_string())),
        NetTarget::Unix(path) => out.put("path", Node::text(path.to_string())),
    }
    out.put_some("ports", rule.ports.as_ref().map(|p| Node::text(p.to_string())));
    out.put_some("methods", rule.methods.as_ref().map(Node::texts));
    out.put_some("paths", rule.paths.as_ref().map(|paths| Node::texts(paths.iter().map(ToString::to_string))));
    out.put_some("opaque", rule.opaque.then_some(Node::Bool(true)));
    out.put_some("quiet", rule.quiet.then_some(Node::Bool(true)));
    out.into_node()
}

pub(crate) fn env(env: &Env) -> Node {
    let mut out = ObjectEntries::default();
    out.put_some("pass", env.pass.as_ref().map(Node::texts));
    let set = env.set.iter().map(|(k, v)| (k.clone(), Node::text(v))).collect::<Vec<_>>();
    out.put_some("set", (!set.is_empty()).then_some(Node::Map(set)));
    out.into_node()
}

pub(crate) fn secret(secret: &Secret) -> Node {
    let mut inject = ObjectEntries::default();
    inject.put("host", Node::text(secret.host.to_string()));
    inject.put("header", Node::text(&secret.header));
    inject.put("format", Node::text(&secret.format));
    let mut out = ObjectEntries::default();
    out.put("name", Node::text(&secret.name));
    out.put("inject", inject.into_node());
    out.put_some("optional", secret.optional.then_some(Node::Bool(true)));
    out.into_node()
}

pub(crate) fn limits(limits: &Limits) -> Option<Node> {
    let mut out = ObjectEntries::default();
    for kind in LimitKind::ALL {
        out.put_some(&format!("max_{}", kind.name()), limit(limits, kind));
    }
    out.put_some(
        "on_output_limit",
        limits.on_output_limit.map(|past| match past {
            OnOutputLimit::End => Node::text("end"),
            OnOutputLimit::Truncate => Node::text("truncate"),
        }),
    );
    out.into_some()
}

/// Returns the value of one limit; whole megabytes are written without a decimal point.
pub(crate) fn limit(limits: &Limits, kind: LimitKind) -> Option<Node> {
    let count = |value: Option<u64>| value.map(|n| Node::Int(n.into()));
    let megabytes = |value: Option<f64>| {
        value.map(|n| if n.fract() == 0.0 && n.abs() < 1e15 { Node::Int(n as i128) } else { Node::Float(n) })
    };
    match kind {
        LimitKind::WallMs => count(limits.max_wall_ms),
        LimitKind::CpuMs => count(limits.max_cpu_ms),
        LimitKind::MemoryMb => megabytes(limits.max_memory_mb),
        LimitKind::OutputBytes => count(limits.max_output_bytes),
        LimitKind::Processes => count(limits.max_processes),
        LimitKind::OpenFiles => count(limits.max_open_files),
        LimitKind::DiskMb => megabytes(limits.max_disk_mb),
        LimitKind::Files => count(limits.max_files),
        LimitKind::NetBytes => count(limits.max_net_bytes),
        LimitKind::Steps => count(limits.max_steps),
        // Limits of the daemon only.
        _ => None,
    }
}

pub(crate) fn capabilities(capabilities: &BTreeMap<String, Capability>) -> Option<Node> {
    let mut out = ObjectEntries::default();
    for (name, capability) in capabilities {
        let mut entry = ObjectEntries::default();
        entry.put("allow", Node::Bool(capability.allow));
        entry.put_some("budget", capability.budget.map(|n| Node::Int(n.into())));
        out.put(name, entry.into_node());
    }
    out.into_some()
}
