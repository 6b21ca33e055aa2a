//! Flags that select a daemon. Every verb takes them, before or after its name.

use super::{all_verbs, path};
use clap::{Arg, ArgMatches};
use std::ffi::OsString;

pub fn args() -> [Arg; 4] {
    [
        Arg::new("server").long("server").value_name("URL|SOCKET").help(
            "Use a daemon: socket path, unix:PATH, https://HOST:PORT, or\n\
             http:// on this machine [environment: COFFERDAM_SERVER]",
        ),
        path("token-file")
            .value_name("FILE")
            .help("Authenticate with the token in FILE (mode 0600)\n[environment: COFFERDAM_TOKEN_FILE]"),
        path("server-ca").value_name("FILE").help(
            "Trust the CA certificates in FILE (PEM) instead of the system's\n[environment: COFFERDAM_SERVER_CA]",
        ),
        Arg::new("server-timeout").long("server-timeout").value_name("TIME").help(
            "Give up if the daemon is silent for TIME, e.g. 30s [default: as\n\
             long as a verb may take; environment: COFFERDAM_SERVER_TIMEOUT]",
        ),
    ]
    .map(|arg| arg.global(true).help_heading("Daemon"))
}

const FLAGS: [&str; 4] = ["--server", "--server-timeout", "--token-file", "--server-ca"];

/// Moves the flags before a verb to the place after it, where every verb parses them. A line without a verb stays as it is.
pub fn behind_the_verb(words: Vec<OsString>) -> Vec<OsString> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let text = word.to_string_lossy();
        match FLAGS
            .iter()
            .find(|flag| text.strip_prefix(**flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))
        {
            None => break,
            Some(flag) => at += if text == *flag { 2 } else { 1 },
        }
    }
    let is_verb = words.get(at).and_then(|word| word.to_str()).is_some_and(|word| all_verbs().any(|verb| verb == word));
    if at == 0 || !is_verb {
        return words;
    }
    let mut words = words;
    let verb = words.remove(at);
    words.insert(0, verb);
    words
}

/// Returns the given flags as words, for a verb that calls another one.
pub fn given(m: &ArgMatches) -> Vec<OsString> {
    let mut words = Vec::new();
    for flag in &FLAGS[..2] {
        if let Some(word) = m.get_one::<String>(flag.trim_start_matches('-')) {
            words.extend([OsString::from(flag), word.into()]);
        }
    }
    for flag in &FLAGS[2..] {
        if let Some(file) = m.get_one::<OsString>(flag.trim_start_matches('-')) {
            words.extend([OsString::from(flag), file.clone()]);
        }
    }
    words
}

/// Returns true if the line or the environment may name a daemon. Checked before a local run prepares anything.
pub fn may_be_meant(words: &[OsString]) -> bool {
    words.iter().any(|word| word.to_string_lossy().starts_with(FLAGS[0]))
        || std::env::var_os("COFFERDAM_SERVER").is_some_and(|server| !server.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_before_a_verb_are_its_own() {
        let moved = |words: &[&str]| {
            let words = behind_the_verb(words.iter().map(Into::into).collect());
            words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        for (words, wanted) in [
            (&["--server", "/x", "ls", "-a"][..], "ls --server /x -a"),
            (&["--server=/x", "--token-file", "t", "run", "--", "ls"], "run --server=/x --token-file t -- ls"),
            (&["--server", "/x", "--", "ls"], "--server /x -- ls"),
            (&["--server", "/x", "mytool", "ls"], "--server /x mytool ls"),
            (&["ls", "--server", "/x"], "ls --server /x"),
            (&["--server"], "--server"),
            (&["--servers", "ls"], "--servers ls"),
            (&[], ""),
        ] {
            assert_eq!(moved(words), wanted);
        }
    }
}
