//! What people read: lines on a terminal, free of anything a guest could use to drive it.

use crate::stdout;
use node::review::is_invisible;
use node::run::hidden::Hidden;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use terms::{Action, Denial, Fault, Limit, Outcome, PROTOCOL_VERSION, Verdict};

/// Text from outside with control characters made visible.
pub fn safe(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_invisible(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// The same for text of several lines.
pub fn safe_lines(text: &str) -> String {
    text.lines().map(safe).collect::<Vec<_>>().join("\n")
}

/// Whether more than lines can be written to a stream: it is a terminal, and one that knows colours and moves of its cursor.
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

/// One refusal, one line: what, by which rule, how to allow it.
pub fn denial(denial: &Denial) -> String {
    let (word, colour) = match denial.action {
        Action::Warn => ("warned", "33"),
        _ => ("refused", "31"),
    };
    let times = if denial.count > 1 { format!(" ({} times)", denial.count) } else { String::new() };
    let by = if denial.exe.is_empty() { String::new() } else { format!(" by {}", safe(&denial.exe)) };
    let hint = denial.hint.as_ref().map(|h| format!("; {}", safe(&in_short(h)))).unwrap_or_default();
    format!(
        "{} {} {}{by}{times}: rule {}{hint}",
        paint(colour, word),
        safe(&denial.op),
        safe(&denial.target),
        safe(&denial.rule)
    )
}

/// Where a flag does it, the flag alone: the rule is in the document for those who write policies.
fn in_short(hint: &str) -> String {
    match hint.rsplit_once("or run with ") {
        Some((_, flag)) => format!("allow it with {flag}"),
        None => hint.to_string(),
    }
}

pub fn print_denial(d: &Denial) {
    let _ = writeln!(std::io::stderr(), "{} {}", paint("2", "cofferdam:"), denial(d));
}

/// The same while the guest has the terminal, which is raw: the carriage must be returned by hand.
pub fn print_denial_live(d: &Denial) {
    let _ = write!(std::io::stderr(), "{} {}\r\n", paint("2", "cofferdam:"), denial(d));
}

/// Something that a command was named and could not see. No refusal: nobody saw it ask.
pub fn hidden(found: &Hidden) {
    let hint = found.hint.as_ref().map(|h| format!("; {}", in_short(h))).unwrap_or_default();
    note(&format!("{} is hidden inside: rule {}{hint}", found.path.display(), found.rule));
}

/// What is worth saying after a run, when somebody watches.
pub fn summary(outcome: &Outcome, already_shown: bool) {
    if !already_shown {
        outcome.denials.iter().for_each(print_denial);
    }
    if outcome.denials_dropped > 0 {
        note(&format!("{} further refusals of other kinds", outcome.denials_dropped));
    }
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

/// Prints a fault and gives the exit status for it.
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

/// What the parser has to say: help, or what was wrong with the words.
pub fn usage_error(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if error.use_stderr() {
        return ExitCode::from(2);
    }
    // A reader that left early is no error of ours.
    let _ = stdout::noted(printed);
    ExitCode::SUCCESS
}

/// Every document says which version of the contract it follows.
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

/// A line for people, at once.
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

/// A document on one line, as visible as the others.
pub fn json_line(value: &impl serde::Serialize) -> String {
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, Visible(CompactFormatter));
    match serde::Serialize::serialize(value, &mut serializer) {
        Ok(()) => String::from_utf8(out).unwrap_or_default(),
        Err(_) => String::new(),
    }
}

/// JSON in which characters that a terminal would obey, or not show, are spelled out. To whoever reads JSON it is the same.
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
