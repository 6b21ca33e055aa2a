//! Names that users give to sandboxes, snapshots, templates, tokens and services.

use terms::{Fault, Phase};

const LONGEST_NAME: usize = 64;
/// Prefixes of ids.
const PREFIXES: [&str; 6] = ["bat", "lay", "run", "sbx", "snp", "tpl"];

/// Checks a name of a sandbox, snapshot, template, token or service: letters and digits of any script, `.`, `_` and `-`, a letter or a
/// digit first, 64 bytes at most; and nothing that looks like an id. So a name can be used in a URL, in a path and on a command line as it
/// is. Names from before this rule stay, and their objects can be addressed by id.
pub fn check_name(name: &str) -> Result<(), Fault> {
    let refuse = |why: &str| {
        let fault = Fault::invalid(format!("name {name:?}: {why}")).phase(Phase::Admission);
        Err(fault
            .hint("use letters, digits, `.`, `_` and `-`, a letter or a digit first, at most 64 bytes, e.g. fix-login"))
    };
    match problem(name) {
        Some(why) => refuse(why),
        None => Ok(()),
    }
}

/// Returns the problem of a name, if there is one.
pub fn problem(name: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
    match name.chars().next() {
        None => Some("empty"),
        _ if name.len() > LONGEST_NAME => Some("longer than 64 bytes"),
        _ if name.contains(' ') => Some("contains a space"),
        _ if !name.chars().all(plain) => Some("contains a character other than letters, digits, `.`, `_` and `-`"),
        Some(first) if !first.is_alphanumeric() => Some("does not begin with a letter or digit"),
        _ if looks_like_id(name) => Some("looks like an id"),
        _ => None,
    }
}

fn looks_like_id(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('_')))
}

/// Tells whether a text can be the name of something that exists: earlier versions allowed more names.
pub fn may_be_name(text: &str) -> bool {
    let never = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':');
    (1..=LONGEST_NAME).contains(&text.len()) && !text.contains(never) && !looks_like_id(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_told_from_ids_flags_and_one_another() {
        for good in
            ["fix", "fix-login_2", "2nd", "ÄÖ", "日本語の箱", "a.b", "v1..2", "sbxwork", "deadbeef", &"x".repeat(64)]
        {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "-f",
            ".",
            "..",
            ".hidden",
            "_x",
            "%2f",
            "a\u{301}\u{200d}b",
            "a\\b",
            "a b",
            "a\nb",
            "a/b",
            "a:b",
            "sbx_work",
            "sbx_0123456789",
            "a\u{202e}b",
            "a\u{200b}",
            &"x".repeat(65),
        ] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
