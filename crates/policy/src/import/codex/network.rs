//! The network half of a codex profile.

use super::super::known::{self, KeyHandling, KeyTable};
use super::super::{Import, foreign_host, foreign_path, host_rule, loopback_rules, socket_rule};
use crate::cursor::{Cursor, Problem};
use crate::document::{NetTarget, Proto};
use crate::path::PathRefusal;
use terms::Action;

const PROXY: KeyHandling = KeyHandling::Nothing("it is about the proxy of codex; the broker is part of the product");
const NETWORK: KeyTable = &[
    ("enabled", KeyHandling::Carried),
    ("mode", KeyHandling::Carried),
    ("domains", KeyHandling::Carried),
    ("allowed_domains", KeyHandling::Carried),
    ("denied_domains", KeyHandling::Carried),
    ("unix_sockets", KeyHandling::Carried),
    ("allow_unix_sockets", KeyHandling::Carried),
    ("mitm", KeyHandling::Carried),
    ("dangerously_allow_all_unix_sockets", KeyHandling::LeftOut("name each socket of the host that is needed")),
    (
        "allow_upstream_proxy",
        KeyHandling::LeftOut("connections are made by the broker here, which takes no other proxy"),
    ),
    ("allow_local_binding", KeyHandling::Nothing("ports that a command opens are its own")),
    ("dangerously_allow_non_loopback_proxy", PROXY),
    ("enable_socks5", PROXY),
    ("enable_socks5_udp", PROXY),
    ("proxy_url", PROXY),
    ("socks_url", PROXY),
    ("admin_url", PROXY),
    ("dangerously_allow_non_loopback_admin", PROXY),
];

pub(super) fn network(import: &mut Import, at: &Cursor<'_>) -> Result<(), Problem> {
    let mut enabled = false;
    let mut limited = false;
    let mut listed = false;
    let before = import.document.net.len();
    for (key, at) in known::entries(import, at, "network.", NETWORK)? {
        match key {
            "enabled" => enabled = at.boolean()?,
            "mode" => limited = at.one_of(&[("limited", true), ("full", false)])?,
            "domains" => {
                listed = true;
                for (host, at) in at.entries()? {
                    domain(import, &at, host, at.one_of(&[("allow", Action::Allow), ("deny", Action::Deny)])?)?;
                }
            }
            "allowed_domains" | "denied_domains" => {
                listed = true;
                let action = if key == "allowed_domains" { Action::Allow } else { Action::Deny };
                for item in at.items()? {
                    domain(import, &item, item.text()?, action)?;
                }
            }
            "unix_sockets" => {
                for (path, at) in at.entries()? {
                    let action =
                        at.one_of(&[("allow", Action::Allow), ("none", Action::Deny), ("deny", Action::Deny)])?;
                    socket(import, &at, path, action)?;
                }
            }
            "mitm" => {
                // The hooks restrict requests to hosts.
                let problem = at.problem("settings about requests cannot be carried over");
                return Err(
                    problem.hint("leave it out, and write a policy with \"methods\", \"paths\" and \"secrets\"")
                );
            }
            _ => {
                for item in at.items()? {
                    socket(import, &item, item.text()?, Action::Allow)?;
                }
            }
        }
    }
    finish_network(import, before, enabled, limited, listed);
    Ok(())
}

fn finish_network(import: &mut Import, before: usize, enabled: bool, limited: bool, listed: bool) {
    if !enabled {
        let added = import.document.net.len() - before;
        import.document.net.retain(|rule| rule.action == Action::Deny);
        if added > 0 {
            import.note("network.enabled is not true, so nothing of it is allowed");
        }
        return;
    }
    if !listed {
        import.document.defaults.net = Some(Action::Allow);
        import.note("network.enabled without domains: every public address is allowed");
    }
    if limited {
        let read_methods: Vec<String> = ["GET", "HEAD", "OPTIONS"].map(str::to_owned).into();
        let rules = import.document.net[before..].iter_mut();
        for rule in rules.filter(|r| r.action == Action::Allow && r.proto == Some(Proto::Tcp)) {
            if matches!(rule.to, NetTarget::Host(_)) {
                rule.methods = Some(read_methods.clone());
            }
        }
        import.note("network.mode limited: only the methods GET, HEAD and OPTIONS are allowed");
        if !listed {
            import.document.defaults.net = None;
            import.note("network.mode limited without domains cannot be carried over; no network is allowed");
        }
    }
}

fn domain(import: &mut Import, at: &Cursor<'_>, host: &str, action: Action) -> Result<(), Problem> {
    match foreign_host(host) {
        Err(refusal) => import.unreadable(at, action, refusal),
        Ok((host, ports)) => {
            if action == Action::Allow {
                loopback_rules(&host, &ports).into_iter().for_each(|rule| import.net(rule));
            }
            import.net(host_rule(action, host, ports));
            Ok(())
        }
    }
}

fn socket(import: &mut Import, at: &Cursor<'_>, path: &str, action: Action) -> Result<(), Problem> {
    let parsed = match path.is_empty() {
        true => Err(PathRefusal::new("the socket's path is empty")),
        false => foreign_path(path),
    };
    match parsed {
        Ok(path) => import.net(socket_rule(action, path)),
        Err(refusal) => import.unreadable(at, action, refusal)?,
    }
    Ok(())
}
