//! The table of all kinds of records. A record type takes its kind from here; a name that is not in the table does not compile.

use store::IdShape::{One, Prefix};
use store::{IdShape, Kind};

/// Table of the kinds of records in the store.
pub const KINDS: &[Kind] = &[
    row("anchors", Prefix("sbx_"), "known states of single files of a sandbox's base; by the sandbox's id"),
    row("batch", Prefix("bat_"), "changes that were landed together"),
    row("batch_paths", Prefix("bat_"), "paths of a batch, apart from it because there may be many; by the batch's id"),
    row("boot", One("last"), "the boot in which the state was opened last"),
    row("conflicted", Prefix("sbx_"), "paths that a rebase left in conflict; by the sandbox's id"),
    row("frozen", Prefix("lay_"), "digest of a frozen layer; by the layer's id"),
    row("pool", Prefix("tpl_"), "size of a template's warm pool; by the template's id"),
    row("reviewed", Prefix("sbx_"), "the diff that was shown last, which an approval must match; by the sandbox's id"),
    row("run", Prefix("run_"), "a command in a sandbox, with its outcome once it has ended"),
    row("sandbox", Prefix("sbx_"), "a sandbox: base, layers, policy, limits"),
    row("snapshot", Prefix("snp_"), "layers of a sandbox at one moment"),
    row("spare", Prefix("sbx_"), "a sandbox of a warm pool that is not claimed yet; by the id that it will have"),
    row("template", Prefix("tpl_"), "a named snapshot that sandboxes are created from"),
    row("token", Prefix("tok_"), "a token for the HTTP API: digest, tenant, rights"),
    row("tombstone", Prefix("sbx_"), "a removed sandbox, with the layers that went with it; by the sandbox's id"),
    row("unfinished", Prefix("bat_"), "a batch that is being landed or undone; by the batch's id"),
];

/// A kind in the first version of its format.
const fn row(name: &'static str, id: IdShape, about: &'static str) -> Kind {
    Kind { name, version: 1, id, about }
}

/// Returns the kind of a name. In a constant, a name that is not in the table is an error of compilation.
pub const fn kind(name: &str) -> &'static Kind {
    Kind::find(KINDS, name)
}

#[cfg(test)]
mod tests {
    use super::KINDS;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Calls `each` with the path and the text of all Rust sources of the workspace's crates, but the store's.
    fn each_source(dir: &Path, each: &mut dyn FnMut(&Path, &str)) {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("crates/store") && !path.ends_with("target") {
                each_source(&path, each);
            } else if path.extension().is_some_and(|end| end == "rs") {
                each(&path, &std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    #[test]
    fn names_are_unique_and_sorted() {
        assert!(KINDS.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn every_kind_is_declared_in_the_table_and_used_by_one_type() {
        // Only a declaration names the shape of its ids.
        let (declaration, here) = (concat!("Id", "Shape"), concat!("const fn ", "row"));
        let mut used = Vec::new();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        each_source(crates, &mut |path, text| {
            if text.contains(here) {
                return;
            }
            for (number, line) in text.lines().enumerate() {
                let at = format!("{}:{}", path.display(), number + 1);
                if let Some(kind) =
                    line.trim().strip_prefix("const KIND: ").filter(|_| text.contains("impl Record for"))
                {
                    let name = kind.split_once(r#"records::kind(""#).and_then(|(_, rest)| rest.split_once('"'));
                    used.push(name.unwrap_or_else(|| panic!("{at}: the kind is not from the table")).0.to_owned());
                }
                assert!(!line.contains(declaration), "{at}: a kind outside of the table");
            }
        });
        let table: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(used.len(), table.len(), "each by one type: {used:?}");
        assert_eq!(used.iter().map(String::as_str).collect::<BTreeSet<_>>(), table);
    }
}
