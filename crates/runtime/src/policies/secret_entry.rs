//! A secret as typed on the command line: `NAME@HOST[:HEADER[:FORMAT]]`. A typed text may hold the secret itself by mistake, so no fault
//! repeats it.

use policy::{Format, Secret};
use terms::{Fault, Phase};

/// Header and format where none are typed.
const HEADER: &str = "authorization";
const FORMAT: &str = "Bearer {}";

/// Returns true for the form with a host, as opposed to `NAME=SOURCE`. Names of variables have neither character.
pub fn is_entry(word: &str) -> bool {
    word.find(['@', '=']).is_some_and(|at| word[at..].starts_with('@'))
}

/// Returns the name in `NAME@HOST…`.
pub fn name_of(word: &str) -> &str {
    word.split_once('@').map_or(word, |(name, _)| name)
}

pub fn parse(word: &str) -> Result<Secret, Fault> {
    let (name, rest) = word.split_once('@').ok_or_else(|| refuse("no '@' after the name"))?;
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(refuse("the part before '@' is not the name of a variable"));
    }
    let (host, rest) = split_host(rest)?;
    let (header, format) = match rest.split_once(':') {
        None if rest.is_empty() => (HEADER, FORMAT),
        None if rest.eq_ignore_ascii_case(HEADER) => (HEADER, FORMAT),
        None => (rest, "{}"),
        Some((header, format)) => (header, format),
    };
    if !header.is_empty() && header.bytes().all(|b| b.is_ascii_digit()) {
        return Err(refuse("a secret has no port: it is added to requests to any port of its host"));
    }
    // The document's own parser checks host, header and format.
    let inject = serde_json::json!({"host": host, "header": header, "format": format});
    let document = serde_json::json!({"version": 1, "secrets": [{"name": name, "inject": inject}]});
    let mut parsed = policy::parse(&document.to_string(), Format::Json, "--secret").map_err(|error| {
        let field = match error.field.rsplit_once('.') {
            Some((_, field)) => field.to_owned(),
            None => "entry".to_owned(),
        };
        refuse(&format!("its {field} is not valid"))
    })?;
    parsed.secrets.pop().ok_or_else(|| refuse("no secret"))
}

/// Splits `HOST[:REST]`; an IPv6 address is in brackets.
fn split_host(text: &str) -> Result<(&str, &str), Fault> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(inner) => inner.split_once(']').ok_or_else(|| refuse("no ']' after the address"))?,
        None => match text.find(':') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        },
    };
    match (host, rest.strip_prefix(':')) {
        ("", _) => Err(refuse("no host after the '@'")),
        (_, Some("")) => Err(refuse("no header after the colon")),
        (host, Some(rest)) => Ok((host, rest)),
        (host, None) if rest.is_empty() => Ok((host, "")),
        (_, None) => Err(refuse("something other than ':' after the address")),
    }
}

fn refuse(why: &str) -> Fault {
    let hint = "write NAME@HOST[:HEADER[:FORMAT]], such as API_KEY@api.example.org, API_KEY@api.example.org:x-api-key or 'API_KEY@api.example.org:authorization:token {}'";
    Fault::invalid(format!("--secret: {why}")).hint(hint).phase(Phase::Admission)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_entry_has_a_host_and_maybe_a_header_and_a_format() {
        for (word, expected) in [
            ("K@api.test", ("api.test", "authorization", "Bearer {}")),
            ("K@api.test:authorization", ("api.test", "authorization", "Bearer {}")),
            ("K@api.test:X-Api-Key", ("api.test", "x-api-key", "{}")),
            ("K@127.0.0.1:x-api-key", ("127.0.0.1", "x-api-key", "{}")),
            ("K@[::1]:x-api-key", ("::1", "x-api-key", "{}")),
            ("K@api.test:authorization:token {}", ("api.test", "authorization", "token {}")),
            ("K@api.test:cookie:a=b:{}", ("api.test", "cookie", "a=b:{}")),
        ] {
            let secret = parse(word).map_err(|fault| fault.message).unwrap();
            let host = secret.host.to_string();
            let host = host.trim_matches(['[', ']']);
            assert_eq!((host, secret.header.as_str(), secret.format.as_str()), expected, "{word}");
            assert!(secret.name == "K" && !secret.optional);
        }
    }

    #[test]
    fn mistakes_are_told_without_the_text() {
        for word in [
            "hunter2 x@api.test",
            "@api.test",
            "K@",
            "K@:x-api-key",
            "K@api.test:",
            "K@api.test:443",
            "K@*.hunter2.test",
            "K@[::1",
            "K@[::1]x",
            "K@api.test:hunter2 header",
            "K@api.test:x-api-key:hunter2",
            "K@api.test:x-api-key:{}{}",
        ] {
            let fault = parse(word).map(|secret| secret.name).unwrap_err();
            assert!(!fault.message.contains("hunter2"), "{word}: {}", fault.message);
            assert!(fault.hint.is_some(), "{word}");
        }
        for (word, expected) in [("K@h", true), ("K=cmd:echo a@b", false), ("K", false), ("K@h:cookie:a={}", true)] {
            assert_eq!(is_entry(word), expected, "{word}");
        }
    }
}
