//! Commit messages: checks the text and adds trailers that name sandbox and batch.

use terms::{Fault, Phase};

const LONGEST_MESSAGE: usize = 64 << 10;

/// Checks a message and strips trailing whitespace and empty lines at the ends.
pub(super) fn checked_message(message: &str) -> Result<String, Fault> {
    let lines: Vec<&str> = message.lines().map(str::trim_end).collect();
    let text = lines.join("\n").trim_matches('\n').to_owned();
    let why = match () {
        () if text.trim().is_empty() => "is empty",
        () if text.contains('\0') => "has a NUL byte in it",
        () if text.len() > LONGEST_MESSAGE => "is longer than 64 KiB",
        () => return Ok(text),
    };
    Err(Fault::invalid(format!("the message {why}")).hint("describe the change with -m").phase(Phase::Review))
}

/// Appends trailers as a paragraph of their own, or to a last paragraph of trailers.
pub(super) fn with_trailers<'a>(message: &str, trailers: impl Iterator<Item = &'a str>) -> String {
    let is_trailer = |line: &str| {
        let token = line.split_once(": ").map(|(token, _)| token);
        token.is_some_and(|t| !t.is_empty() && t.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
    };
    let last = message.rsplit_once("\n\n").map(|(_, last)| last);
    let joins = last.is_some_and(|last| last.lines().all(is_trailer));
    let mut text = format!("{message}\n{}", if joins { "" } else { "\n" });
    trailers.for_each(|trailer| text.extend([trailer, "\n"]));
    text
}
