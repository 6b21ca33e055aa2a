//! Tables of known keys in foreign settings. A key that is in no table is refused: a misspelled denial must not leave
//! open what it should close.

use super::Import;
use crate::cursor::{Cursor, Problem};
use crate::node::Node;

/// Handling of a key of another tool.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyHandling {
    /// Imported as rules.
    Carried,
    /// Has no equivalent here; the text is the reason, or an alternative. The user is warned at every run.
    LeftOut(&'static str),
    /// Not about permissions; the text is the reason.
    Nothing(&'static str),
}

pub(super) type KeyTable = &'static [(&'static str, KeyHandling)];

/// Returns the entries to import. Entries without an equivalent are reported, and unknown ones refused. `path` is the
/// object's path with a final dot, or empty.
pub(super) fn entries<'a>(
    import: &mut Import,
    at: &Cursor<'a>,
    path: &str,
    table: KeyTable,
) -> Result<Vec<(&'a str, Cursor<'a>)>, Problem> {
    let mut carried = Vec::new();
    for (key, value) in at.entries()? {
        match table.iter().find(|(name, _)| *name == key) {
            None => return Err(at.unknown_key(key, || table.iter().map(|(name, _)| *name))),
            Some((_, KeyHandling::Carried)) => carried.push((key, value)),
            Some((_, KeyHandling::LeftOut(why))) if is_set(value.node) => {
                import.left_out(format!("{path}{key}: not carried over; {why}"));
            }
            Some((_, KeyHandling::Nothing(why))) => import.note(format!("{path}{key}: left out; {why}")),
            Some((_, KeyHandling::LeftOut(_))) => {}
        }
    }
    Ok(carried)
}

/// Returns true if a setting is neither null, false nor empty.
fn is_set(node: &Node) -> bool {
    match node {
        Node::Bool(value) => *value,
        Node::List(items) => !items.is_empty(),
        Node::Map(entries) => !entries.is_empty(),
        Node::Null => false,
        _ => true,
    }
}
