//! Which keys foreign settings may have, and what each means here. A key that is in no table is refused: a misspelled denial
//! must not leave open what it was to close.

use super::Import;
use crate::cursor::{Cursor, Problem};
use crate::node::Node;

/// What a key of another tool means here.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meaning {
    /// It is carried over.
    Carried,
    /// It says something that no rule here says; why, or what to do instead. The user is told at every run.
    LeftOut(&'static str),
    /// It says nothing about what a command may do here; why.
    Nothing(&'static str),
}

pub(super) type Table = &'static [(&'static str, Meaning)];

/// The entries of an object that are carried over. Of the others, those that say something are told, and unknown ones refused.
/// `path` is where the object stands, with a dot behind it, or nothing.
pub(super) fn entries<'a>(
    import: &mut Import,
    at: &Cursor<'a>,
    path: &str,
    table: Table,
) -> Result<Vec<(&'a str, Cursor<'a>)>, Problem> {
    let mut carried = Vec::new();
    for (key, value) in at.entries()? {
        match table.iter().find(|(name, _)| *name == key) {
            None => return Err(at.unknown_key(key, || table.iter().map(|(name, _)| *name))),
            Some((_, Meaning::Carried)) => carried.push((key, value)),
            Some((_, Meaning::LeftOut(why))) if says_something(value.node) => {
                import.left_out(format!("{path}{key}: not carried over; {why}"));
            }
            Some((_, Meaning::Nothing(why))) => import.note(format!("{path}{key}: left out; {why}")),
            Some((_, Meaning::LeftOut(_))) => {}
        }
    }
    Ok(carried)
}

/// Whether a setting is more than the absence of one.
fn says_something(node: &Node) -> bool {
    match node {
        Node::Bool(value) => *value,
        Node::List(items) => !items.is_empty(),
        Node::Map(entries) => !entries.is_empty(),
        Node::Null => false,
        _ => true,
    }
}
