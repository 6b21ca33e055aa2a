//! Text for people: lines on a terminal, without control sequences of a guest.

use crate::stdout;
use api::is_invisible;
use node::run::hidden::Hidden;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use terms::{Action, Denial, Fault, Limit, Outcome, PROTOCOL_VERSION, Verdict};

/// Makes control characters of foreign text visible.
pub fn safe(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_invisible(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// Makes control characters visible in text of several lines.
pub fn safe_lines(text: &str) -> String {
    text.lines().map(safe).collect::<Vec<_>>().join("\n")
}

/// True for a terminal that supports colours and cursor movement.
pub fn can_draw(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

pub fn takes_colours(stream: &impl IsTerminal) -> bool {
    can_draw(stream) && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

fn colours() -> bool {
    takes_colours(&std::io::stderr())
}

fn paint(code: &str, text: &str) -> String {
    if colours() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
}

pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{} {}", paint("2", "cofferdam:"), safe(text));
}

/// Formats a refusal on one line: operation, rule, and how to allow it.
pub fn denial(denial: &Denial) -> String {
    let (word, colour) = match denial.action {
        Action::Warn => ("warned", "33"),
        _ => ("refused", "31"),
    };
    let times = if denial.count > 1 { format!(" ({} times)", denial.count) } else { String::new() };
    let by = if denial.exe.is_empty() { String::new() } else { format!(" by {}", safe(&denial.exe)) };
    let hint = denial.hint.as_ref().map(|h| format!("; {}", safe(&shortened_hint(h)))).unwrap_or_default();
    format!(
        "{} {} {}{by}{times}: rule {}{hint}",
        paint(colour, word),
        safe(&denial.op),
        safe(&denial.target),
        safe(&denial.rule)
    )
}

/// Shortens a hint to its flag, if it has one: authors of policies find the rule in the document.
fn shortened_hint(hint: &str) -> String {
    let Some((rule, flag)) = hint.rsplit_once("or run with ") else { return hint.to_string() };
    // A reason may stand before the rule.
    let why = rule.split("add {").next().unwrap_or_default().trim_end_matches([' ', ';', ':', ',']);
    let separator = if why.is_empty() { "" } else { "; " };
    format!("{why}{separator}allow it with {flag}")
}

pub fn print_denial(d: &Denial) {
    let _ = writeln!(std::io::stderr(), "{} {}", paint("2", "cofferdam:"), denial(d));
}

/// Prints a refusal while the guest has the terminal in raw mode, where a line feed needs a carriage return.
pub fn print_denial_live(d: &Denial) {
    let _ = write!(std::io::stderr(), "{} {}\r\n", paint("2", "cofferdam:"), denial(d));
}

/// Prints a path in the command's arguments that is hidden from it. No refusal, because no access was observed.
pub fn hidden(found: &Hidden) {
    let hint = found.hint.as_ref().map(|h| format!("; {}", shortened_hint(h))).unwrap_or_default();
    note(&format!("{} is hidden inside: rule {}{hint}", found.path.display(), found.rule));
}

/// Prints the notes after a run on a terminal.
pub fn summary(outcome: &Outcome, already_shown: bool) {
    if !already_shown {
        outcome.denials.iter().filter(|denial| !denial.quiet).for_each(print_denial);
    }
    if outcome.denials_dropped > 0 {
        note(&format!("{} further refusals of other kinds", outcome.denials_dropped));
    }
    outcome.notes.iter().for_each(|text| note(text));
    if outcome.verdict == Verdict::LimitExceeded {
        let kind = outcome.limit_kind.map_or("", |k| k.name());
        let amount = |l: Option<Limit>| match l {
            Some(Limit::Count(n)) => n.to_string(),
            Some(Limit::Megabytes(mb)) => format!("{mb:.3}").trim_end_matches('0').trim_end_matches('.').to_string(),
            None => "?".into(),
        };
        let text = format!("ended by limit {kind}: {} used, {} allowed", amount(outcome.used), amount(outcome.limit));
        let _ = writeln!(std::io::stderr(), "{} {}", paint("2", "cofferdam:"), paint("31", &text));
    }
    if !outcome.enforcement.missing.is_empty() {
        note(&format!("enforcement was partial; missing: {}", outcome.enforcement.missing.join(", ")));
    }
    if let (Verdict::Lost, Some(message)) = (outcome.verdict, &outcome.message) {
        note(message);
    }
}

/// Prints a fault and returns its exit status.
pub fn fault(fault: &Fault, json: bool) -> ExitCode {
    if json {
        print_json(fault);
    } else {
        let _ = writeln!(std::io::stderr(), "{} {}", paint("31", "cofferdam:"), safe(&fault.message));
        if let Some(hint) = &fault.hint {
            let _ = writeln!(std::io::stderr(), "  {} {}", paint("2", "hint:"), safe(hint));
        }
    }
    ExitCode::from(fault.status())
}

/// Prints the parser's message: help, or a usage error.
pub fn usage_error(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if error.use_stderr() {
        return ExitCode::from(2);
    }
    // A reader that left early is no error of ours.
    let _ = stdout::noted(printed);
    ExitCode::SUCCESS
}

/// Envelope of every document, with the version of the API contract.
#[derive(serde::Serialize)]
pub struct Document<T: serde::Serialize> {
    protocol_version: u32,
    #[serde(flatten)]
    content: T,
}

impl<T: serde::Serialize> Document<T> {
    pub fn of(content: T) -> Document<T> {
        Document { protocol_version: PROTOCOL_VERSION, content }
    }
}

pub fn print_document(content: impl serde::Serialize) -> ExitCode {
    print_json(&Document::of(content));
    ExitCode::SUCCESS
}

/// Prints a line for people and flushes it.
pub fn say(text: &str) {
    let mut out = stdout::lock();
    // A reader that left early is no error of ours.
    let _ = writeln!(out, "{}", safe(text)).and_then(|()| out.flush());
}

pub fn print_json(value: &impl serde::Serialize) {
    let mut out = stdout::lock();
    let mut serializer = Serializer::with_formatter(&mut out, Visible(PrettyFormatter::new()));
    // A reader that left early is no error of ours.
    let _ = serde::Serialize::serialize(value, &mut serializer).map_err(io::Error::from).and_then(|()| writeln!(out));
}

/// Formats a document on one line, with control characters escaped.
pub fn json_line(value: &impl serde::Serialize) -> String {
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, Visible(CompactFormatter));
    match serde::Serialize::serialize(value, &mut serializer) {
        Ok(()) => String::from_utf8(out).unwrap_or_default(),
        Err(_) => String::new(),
    }
}

/// JSON formatter that escapes control and invisible characters. Parsers read the same document.
struct Visible<F>(F);

impl<F: Formatter> Formatter for Visible<F> {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_invisible(*c)) {
            out.write_all(&rest.as_bytes()[..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = &rest[at + c.len_utf8()..];
        }
        out.write_all(rest.as_bytes())
    }

    fn begin_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}
