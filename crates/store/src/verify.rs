//! Verification of the whole journal: the chain in the database, the remembered heads, and the segment files.

use crate::chain;
use crate::handle::Store;
use api::JournalVerified;
use terms::Fault;

impl Store {
    /// Verifies the whole journal, and compares it with `journal.head`.
    pub fn verify(&self) -> Result<JournalVerified, Fault> {
        // Heads are read before the entries: an entry that is appended meanwhile is then ahead of the heads, never behind them.
        let anchors = self.head.entries();
        let mut verified = self.read(|tx| chain::verify(tx.rows, Some(&anchors)))?;
        match self.verify_segments()? {
            Ok(here) => verified.archived_here = here,
            Err(broken) => verified.broken = verified.broken.or(Some(broken)),
        }
        Ok(verified)
    }
}
