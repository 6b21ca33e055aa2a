//! Entries of verbs in the journal.

use crate::Caller;
use api::JournalStep;
use serde_json::Value;
use store::{Entry, Tx};
use terms::Fault;

/// Appends one step of a verb to the journal, with the caller as its actor.
pub fn note(
    tx: &Tx<'_>,
    verb: &str,
    step: JournalStep,
    subject: &str,
    caller: &Caller,
    body: Value,
) -> Result<u64, Fault> {
    tx.note(&Entry { at_ms: terms::clock::now_ms(), verb, step, subject, actor: &caller.user, body })
}
