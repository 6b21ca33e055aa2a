//! Metrics and traces of runs, read from the journal so that runs started without the daemon are
//! included. Each run is counted, and sent as one tree of spans: one span for the run and one per
//! phase.

use super::send::Spans;
use super::trace::{Attribute, Context, Span, SpanKind};
use api::{JournalEntry, JournalStep};
use node::audit::{JournalFilter, Tail};
use node::figures::Figures;
use node::run::Phases;
use node::{Caller, Node};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Journal entries per read.
const PAGE: u32 = 1000;
/// Entries per poll; the next poll continues.
const MAX_PER_POLL: usize = 100_000;

/// Positions in the journals of all tenants, and the counts.
#[derive(Default)]
pub struct Runs {
    tails: BTreeMap<String, Tail>,
    started: u64,
    ended: BTreeMap<String, u64>,
    limits: BTreeMap<String, u64>,
}

impl Runs {
    /// Reads new entries of a tenant's journal, and returns the position to continue from. The
    /// first call begins at `from`, or at the end of the journal if that is `None`.
    pub fn read_new_entries(
        &mut self,
        node: &Node,
        tenant: &str,
        caller: &Caller,
        from: Option<u64>,
        spans: Option<&Spans>,
    ) -> Option<u64> {
        if !self.tails.contains_key(tenant) {
            let wanted = || JournalFilter { verb: Some("run".into()), ..JournalFilter::default() };
            // A position that no longer exists or is too old counts as none.
            let tail = Tail::open(node, caller, from, wanted()).or_else(|_| Tail::open(node, caller, None, wanted()));
            self.tails.insert(tenant.to_owned(), tail.ok()?);
        }
        let mut read = 0;
        while read < MAX_PER_POLL {
            let entries = self.tails.get_mut(tenant)?.next(PAGE).ok()?;
            read += entries.len();
            entries.iter().for_each(|entry| self.count(entry, spans));
            if entries.len() < PAGE as usize {
                break;
            }
        }
        self.tails.get(tenant).map(Tail::at)
    }

    fn count(&mut self, entry: &JournalEntry, spans: Option<&Spans>) {
        let word = |name: &str| entry.body[name].as_str();
        match entry.step {
            JournalStep::Intent => self.started += 1,
            // The run never started, or its supervisor was lost.
            JournalStep::Failed => *self.ended.entry("fault".into()).or_default() += 1,
            JournalStep::Done => {
                *self.ended.entry(word("verdict").unwrap_or("lost").to_owned()).or_default() += 1;
                if let Some(kind) = word("limit_kind") {
                    *self.limits.entry(kind.to_owned()).or_default() += 1;
                }
            }
        }
        if let (JournalStep::Done | JournalStep::Failed, Some(spans)) = (entry.step, spans) {
            span_tree(entry).into_iter().for_each(|span| spans.put(span));
        }
    }

    /// Adds the counts to the figures.
    pub fn add_to(&self, figures: &mut Figures) {
        figures.runs_started += self.started;
        for (from, into) in [(&self.ended, &mut figures.runs_ended), (&self.limits, &mut figures.limits_met)] {
            from.iter().for_each(|(name, n)| *into.entry(name.clone()).or_default() += n);
        }
    }
}

/// Returns the spans of a run that has ended. Span ids are derived from the run's id, so that a
/// collector can tell that a span was sent twice.
fn span_tree(entry: &JournalEntry) -> Vec<Span> {
    let Some(run) = entry.body["run"].as_str() else { return Vec::new() };
    let Some(phases) = Phases::of(&entry.body) else { return Vec::new() };
    let given = phases.trace.as_deref().and_then(Context::parse);
    if given.is_some_and(|context| !context.sampled) {
        return Vec::new();
    }
    let trace = given.map_or_else(|| digest(run, "trace"), |context| context.trace);
    let root: [u8; 8] = digest(run, "run");
    let ns = |us: u64| us.saturating_mul(1000);
    let span = |id, parent, name: &str, from_us: u64, us: u64| Span {
        trace,
        id,
        parent,
        name: name.to_owned(),
        kind: SpanKind::Internal,
        start_ns: ns(phases.begun_us + from_us),
        end_ns: ns(phases.begun_us + from_us + us),
        attributes: Vec::new(),
        error: None,
    };
    let whole = phases.list.iter().map(|timed| timed.from_us + timed.us).max().unwrap_or(0);
    let mut first = span(root, given.map(|context| context.span), "run", 0, whole);
    first.attributes = attributes(entry, run);
    first.error = match entry.step {
        JournalStep::Failed => Some(entry.body["message"].as_str().unwrap_or("the run did not start").to_owned()),
        _ => entry.body["verdict"].as_str().filter(|verdict| *verdict != "ok").map(str::to_owned),
    };
    let mut spans = vec![first];
    for (n, timed) in phases.list.iter().enumerate() {
        let name = timed.phase.name();
        spans.push(span(digest(run, &format!("{n} {name}")), Some(root), name, timed.from_us, timed.us));
    }
    spans
}

fn attributes(entry: &JournalEntry, run: &str) -> Vec<(&'static str, Attribute)> {
    let text = |text: &str| Attribute::Text(text.to_owned());
    let mut all = vec![("cofferdam.run_id", text(run)), ("cofferdam.sandbox", text(&entry.subject))];
    all.extend(entry.body["verdict"].as_str().map(|verdict| ("cofferdam.verdict", text(verdict))));
    all.extend(entry.body["limit_kind"].as_str().map(|kind| ("cofferdam.limit_kind", text(kind))));
    all.extend(entry.body["status"].as_u64().map(|status| ("process.exit.code", Attribute::Count(status))));
    all
}

fn digest<const N: usize>(run: &str, what: &str) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&Sha256::digest(format!("{run} {what}"))[..N]);
    out
}
