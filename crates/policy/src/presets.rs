//! The built-in policies. They are ordinary documents, so that `policy show` prints exactly what holds.

use crate::document::{Document, Format, parse};

/// Every preset with one line about it, in the order people should read them.
pub const PRESETS: [(&str, &str); 7] = [
    ("default", "the workspace, system programs and toolchains can be read and run; nothing else, no network"),
    ("read-only", "like default, and nothing of the host can be changed whatever else is allowed"),
    ("workspace-write", "like default, and the workspace can be changed"),
    ("no-network", "no network whatever else is allowed"),
    ("networked", "every public address, where nothing else denies it"),
    ("strict", "nothing: every file and every program must be named"),
    ("package-install", "like workspace-write, and the usual package registries"),
];

/// The JSON text of a preset.
pub fn preset(name: &str) -> Option<&'static str> {
    Some(match name {
        "default" => include_str!("presets/default.json"),
        "read-only" => include_str!("presets/read-only.json"),
        "workspace-write" => include_str!("presets/workspace-write.json"),
        "no-network" => include_str!("presets/no-network.json"),
        "networked" => include_str!("presets/networked.json"),
        "strict" => include_str!("presets/strict.json"),
        "package-install" => include_str!("presets/package-install.json"),
        _ => return None,
    })
}

/// A preset as a document; its name is its source.
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
