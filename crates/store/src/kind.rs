//! Kinds of records. A program lists all of its kinds in one table; a record type takes its kind from there by name, and does not
//! compile with a name that is not listed.

use terms::Fault;

/// A kind of record: one row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Name in the database.
    pub name: &'static str,
    /// Version of the body's format. A body of an older version is read by a newer program.
    pub version: u32,
    pub id: IdShape,
    /// Content of a record, for readers of the table.
    pub about: &'static str,
}

/// Shape of the ids of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdShape {
    /// Ids begin with this prefix.
    Prefix(&'static str),
    /// There is one record, with this id.
    One(&'static str),
}

impl Kind {
    /// Finds a kind in a table. In a constant, a name that is not in the table is an error of compilation.
    ///
    /// # Panics
    /// Where the table has no kind of the name.
    #[must_use]
    pub const fn find(table: &'static [Kind], name: &str) -> &'static Kind {
        let mut at = 0;
        while at < table.len() {
            if is_same(table[at].name.as_bytes(), name.as_bytes()) {
                return &table[at];
            }
            at += 1;
        }
        panic!("this kind of record is not in the table of kinds")
    }

    /// Checks that an id has the shape of this kind.
    pub(crate) fn check_id(&self, id: &str) -> Result<(), Fault> {
        let fits = match self.id {
            IdShape::Prefix(prefix) => id.starts_with(prefix),
            IdShape::One(only) => id == only,
        };
        if fits { Ok(()) } else { Err(Fault::internal(format!("{id:?} is not an id of a {}", self.name))) }
    }
}

/// Compares texts where `==` cannot: in a constant.
const fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}
