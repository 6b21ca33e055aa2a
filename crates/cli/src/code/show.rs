//! Events of a call as text: output unchanged into a pipe and with control sequences escaped on a terminal, values by their plain text.

use crate::render;
use crate::tame::TerminalFilter;
use api::{CodeError, CodeEvent, CodeOutcome, MimeBundle};
use node::code::error_text;
use std::io::{self, IsTerminal, Write};
use terms::Verdict;

pub struct Show {
    out: Option<TerminalFilter>,
    err: Option<TerminalFilter>,
}

impl Default for Show {
    fn default() -> Show {
        let tame = |is_terminal: bool| is_terminal.then(TerminalFilter::default);
        Show { out: tame(io::stdout().is_terminal()), err: tame(io::stderr().is_terminal()) }
    }
}

impl Show {
    /// Prints an event. A reader that left early is no error of ours: the code goes on.
    pub fn event(&mut self, event: CodeEvent) {
        let _ = match event {
            CodeEvent::Stdout(text) => write(&mut crate::stdout::lock(), self.out.as_mut(), &text.into_bytes()),
            CodeEvent::Stderr(text) => write(&mut io::stderr(), self.err.as_mut(), &text.into_bytes()),
            CodeEvent::Display(bundle) | CodeEvent::Result(bundle) => self.value(&bundle),
            CodeEvent::Error(error) => self.error(&error),
            CodeEvent::Started(_) | CodeEvent::End(_) => Ok(()),
        };
    }

    fn value(&mut self, bundle: &MimeBundle) -> io::Result<()> {
        let plain = bundle.data.get("text/plain").and_then(|value| value.as_str());
        let text = plain.map_or_else(|| others(bundle), str::to_owned);
        write(&mut crate::stdout::lock(), self.out.as_mut(), format!("{text}\n").as_bytes())
    }

    fn error(&mut self, error: &CodeError) -> io::Result<()> {
        let text = error_text(error);
        write(&mut io::stderr(), self.err.as_mut(), format!("{}\n", text.trim_end()).as_bytes())
    }

    /// Prints what was held back of an escape sequence.
    pub fn flush(&mut self) {
        let rest = |tame: &mut Option<TerminalFilter>| tame.as_mut().map(TerminalFilter::end).unwrap_or_default();
        let _ = write(&mut crate::stdout::lock(), None, rest(&mut self.out).as_bytes());
        let _ = write(&mut io::stderr(), None, rest(&mut self.err).as_bytes());
    }
}

/// Names the representations of a value that has no plain text.
fn others(bundle: &MimeBundle) -> String {
    let sizes = bundle.data.iter().map(|(kind, value)| match value.as_str() {
        Some(text) => format!("{kind}, {} bytes", text.len()),
        None => kind.clone(),
    });
    format!("[{}]", sizes.collect::<Vec<_>>().join("; "))
}

fn write(to: &mut dyn Write, tame: Option<&mut TerminalFilter>, bytes: &[u8]) -> io::Result<()> {
    match tame {
        Some(tame) => to.write_all(tame.take(bytes).as_bytes())?,
        None => to.write_all(bytes)?,
    }
    to.flush()
}

/// Says on standard error how a call ended, where its events have not.
pub fn outcome(outcome: &CodeOutcome) {
    outcome.denials.iter().filter(|denial| denial.is_refusal()).for_each(render::print_denial);
    if let Some(message) = &outcome.message {
        render::note(message);
    }
    if outcome.context_lost && outcome.verdict != Verdict::Ok {
        render::note("the interpreter's state is lost; the next call begins with a new one");
    }
}
