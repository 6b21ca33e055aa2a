//! Coding agents that have a preset: the commands by which it is chosen, and what a preset cannot say.

/// A coding agent. Its preset has the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agent {
    pub name: &'static str,
    /// Names of its programs.
    pub commands: &'static [&'static str],
    /// File in which the agent keeps a login, below the home. No preset copies it; `--copy-in` does.
    pub login: Option<&'static str>,
    /// Secret of the preset that is the token in that file, where its format is known: the copy then has the placeholder.
    pub login_secret: Option<&'static str>,
    /// Words that `run` adds behind the program, because only a command line can say them.
    pub adds: &'static [&'static str],
    /// Reason for those words.
    pub note: Option<&'static str>,
    /// Beginnings of words of a command line with which nothing is added: the caller has decided.
    pub unless: &'static [&'static str],
    /// Parts of words that say the same as what would be added.
    pub same: &'static [&'static str],
}

const fn agent(name: &'static str, commands: &'static [&'static str]) -> Agent {
    Agent { name, commands, login: None, login_secret: None, adds: &[], note: None, unless: &[], same: &[] }
}

pub const AGENTS: [Agent; 8] = [
    Agent {
        login: Some("~/.claude/.credentials.json"),
        login_secret: Some("CLAUDE_LOGIN"),
        ..agent("claude", &["claude"])
    },
    Agent {
        login: Some("~/.codex/auth.json"),
        login_secret: Some("CODEX_LOGIN"),
        adds: &["-c", "sandbox_mode=danger-full-access"],
        note: Some("its own sandbox cannot start inside this one"),
        unless: &["-s", "--sandbox", "sandbox_mode", "--full-auto", "--dangerously-bypass", "--yolo"],
        same: &["danger-full-access", "--dangerously-bypass-approvals-and-sandbox", "--yolo"],
        ..agent("codex", &["codex"])
    },
    Agent { login: Some("~/.local/share/opencode/auth.json"), ..agent("opencode", &["opencode"]) },
    Agent { login: Some("~/.gemini/oauth_creds.json"), ..agent("gemini", &["gemini"]) },
    agent("aider", &["aider"]),
    Agent { login: Some("~/.config/mini-swe-agent/.env"), ..agent("mini", &["mini", "mini-swe-agent"]) },
    Agent { login: Some("~/.config/goose/secrets.yaml"), ..agent("goose", &["goose"]) },
    Agent { login: Some("~/.copilot/config.json"), ..agent("copilot", &["copilot"]) },
];

/// Returns the agent with a program of this name.
pub fn agent_of_command(name: &str) -> Option<&'static Agent> {
    AGENTS.iter().find(|agent| agent.commands.contains(&name))
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::presets::preset_document;
    use terms::Action;

    #[test]
    fn each_has_a_preset_that_grants_hosts_and_optional_secrets_and_nothing_else() {
        for agent in AGENTS {
            let name = agent.name;
            let document = preset_document(name).unwrap_or_else(|| panic!("{name} has no preset"));
            assert_eq!(document.extends, ["default"], "{name}");
            assert!(document.fs.is_empty() && document.exec.is_empty() && document.syscalls_deny.is_empty(), "{name}");
            assert!(document.env.as_ref().is_none_or(|env| env.pass.is_none()), "{name} passes what default passes");
            for rule in &document.net {
                assert!(!rule.to.is_address(), "{name}");
                let is_https = rule.ports.as_ref().is_some_and(|ports| ports.to_string() == "443");
                match rule.action {
                    Action::Allow => assert!(is_https && !rule.quiet && !rule.opaque, "{name}: {rule:?}"),
                    action => assert!(action == Action::Deny && rule.quiet, "{name}: {rule:?}"),
                }
            }
            let has = |name: &str| document.secrets.iter().any(|secret| secret.name == name);
            assert!(agent.login_secret.is_none_or(|secret| agent.login.is_some() && has(secret)), "{name}");
            for secret in &document.secrets {
                assert!(secret.optional, "{name}: {}", secret.name);
                let resolved = crate::effective(std::slice::from_ref(&document)).unwrap();
                let host = secret.host.to_string();
                let reaches = |rule: &crate::NetRule| {
                    rule.action == Action::Allow && {
                        matches!(&rule.to, crate::NetTarget::Host(pattern) if pattern.matches(&secret.host))
                    }
                };
                assert!(
                    resolved.net.iter().any(|r| reaches(&r.rule)),
                    "{name}: {host} gets a secret and is not allowed"
                );
            }
        }
    }

    #[test]
    fn programs_have_one_agent() {
        let commands: Vec<_> = AGENTS.iter().flat_map(|agent| agent.commands).collect();
        for (i, command) in commands.iter().enumerate() {
            assert!(!commands[..i].contains(command), "{command}");
        }
        assert_eq!(agent_of_command("mini-swe-agent").map(|agent| agent.name), Some("mini"));
        assert_eq!(agent_of_command("claude-code"), None);
    }
}
