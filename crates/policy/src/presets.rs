//! Built-in policies. They are ordinary documents, so that `policy show` prints exactly what applies.

use crate::document::{Document, Format, parse};

/// Presets with one line about each, in reading order.
pub const PRESETS: [(&str, &str); 15] = [
    ("default", "the workspace, system programs and toolchains can be read and run; no other files, no network"),
    ("read-only", "like default, and no file of the host can be changed, even if another document allows it"),
    ("workspace-write", "like default, and the workspace can be changed"),
    ("no-network", "no network, even if another document allows it"),
    ("networked", "every public address, unless another document denies it"),
    ("strict", "nothing is allowed: every file and every program must be named"),
    ("package-install", "like workspace-write, and the usual package registries"),
    ("claude", "like default, for Claude Code: its model, keys and settings"),
    ("codex", "like default, for Codex: its model, keys and settings"),
    ("opencode", "like default, for opencode: the usual models, keys and settings"),
    ("gemini", "like default, for Gemini CLI: its model, keys and settings"),
    ("aider", "like default, for aider: the usual models, keys and settings"),
    ("mini", "like default, for mini-swe-agent: the usual models and keys"),
    ("goose", "like default, for goose: the usual models, keys and settings"),
    ("copilot", "like default, for GitHub Copilot CLI: its models, tokens and settings"),
];

/// Returns the JSON text of a preset.
pub fn preset(name: &str) -> Option<&'static str> {
    Some(match name {
        "default" => include_str!("presets/default.json"),
        "read-only" => include_str!("presets/read-only.json"),
        "workspace-write" => include_str!("presets/workspace-write.json"),
        "no-network" => include_str!("presets/no-network.json"),
        "networked" => include_str!("presets/networked.json"),
        "strict" => include_str!("presets/strict.json"),
        "package-install" => include_str!("presets/package-install.json"),
        "claude" => include_str!("presets/claude.json"),
        "codex" => include_str!("presets/codex.json"),
        "opencode" => include_str!("presets/opencode.json"),
        "gemini" => include_str!("presets/gemini.json"),
        "aider" => include_str!("presets/aider.json"),
        "mini" => include_str!("presets/mini.json"),
        "goose" => include_str!("presets/goose.json"),
        "copilot" => include_str!("presets/copilot.json"),
        _ => return None,
    })
}

/// Returns a preset as a document; its name is its source.
pub fn preset_document(name: &str) -> Option<Document> {
    parse(preset(name)?, Format::Json, name).ok()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn all_of_them_read() {
        for (name, _) in PRESETS {
            let document = parse(preset(name).unwrap(), Format::Json, name).unwrap();
            for base in &document.extends {
                assert!(preset(base).is_some(), "{name} extends {base}");
            }
        }
        assert_eq!(preset("nothing"), None);
    }
}
