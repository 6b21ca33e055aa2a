//! The transaction type that callers of the store get. Its methods are beside the types that they are about: records, keys, journal.

use crate::backend::{ChainLink, Transaction};
use std::cell::RefCell;
use terms::Fault;

/// A transaction; all of it takes effect, or nothing.
pub struct Tx<'a> {
    pub(crate) rows: &'a dyn Transaction,
    /// Last entry that this transaction appended to the journal.
    pub(crate) appended: RefCell<Option<ChainLink>>,
}

impl<'a> Tx<'a> {
    pub(crate) fn new(rows: &'a dyn Transaction) -> Tx<'a> {
        Tx { rows, appended: RefCell::new(None) }
    }
}

/// Refuses texts with a NUL character, which not every database can hold.
pub(crate) fn check_texts<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<(), Fault> {
    match texts.into_iter().find(|text| text.contains('\0')) {
        Some(text) => Err(Fault::invalid(format!("{text:?} has a NUL character")).hint("leave it out")),
        None => Ok(()),
    }
}
