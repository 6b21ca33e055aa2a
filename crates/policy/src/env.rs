//! Environment variables: which pass, which are set, and how two lists of names merge.

use crate::document::Env;

/// Variables that pass by default.
pub const PASSED: [&str; 10] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TERM", "COLORTERM", "TZ"];

/// Returns true if a variable of the outside is visible inside.
pub fn passes(env: &Env, name: &str) -> bool {
    match &env.pass {
        Some(list) => list.iter().any(|pattern| matches(pattern, name)),
        None => PASSED.iter().any(|pattern| matches(pattern, name)),
    }
}

pub(crate) fn merge(a: Env, b: Env) -> Env {
    let mut set = a.set;
    set.extend(b.set);
    let pass = match (a.pass, b.pass) {
        (Some(a), Some(b)) => Some(common(&a, &b)),
        (a, b) => a.or(b),
    };
    tidy(Env { pass, set })
}

/// Normalises the list: sorted, and without names that another pattern covers.
pub(crate) fn tidy(mut env: Env) -> Env {
    if let Some(list) = &mut env.pass {
        list.sort();
        list.dedup();
        let all = list.clone();
        list.retain(|name| !all.iter().any(|other| other != name && covers(other, name)));
    }
    env
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

/// Returns true if every name that matches `narrow` matches `wide` too.
fn covers(wide: &str, narrow: &str) -> bool {
    match wide.strip_suffix('*') {
        Some(prefix) => narrow.strip_suffix('*').unwrap_or(narrow).starts_with(prefix),
        None => wide == narrow,
    }
}

/// Intersects two lists of patterns. Of two patterns that share a name one covers the other, so the intersection is the
/// narrower.
fn common(a: &[String], b: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    for x in a {
        for y in b {
            if covers(x, y) {
                out.push(y.clone());
            } else if covers(y, x) {
                out.push(x.clone());
            }
        }
    }
    out
}

#[cfg(test)]
mod test {
    use super::*;
    use std::collections::BTreeMap;

    fn env(names: &[&str]) -> Env {
        Env { pass: Some(names.iter().map(|n| (*n).to_owned()).collect()), set: BTreeMap::new() }
    }

    #[test]
    fn lists_meet() {
        for (a, b, both) in [
            (&["A", "B"][..], &["B", "C"][..], &["B"][..]),
            (&["LC_*"], &["LC_ALL", "LANG"], &["LC_ALL"]),
            (&["LC_*", "L*"], &["LC_A*"], &["LC_A*"]),
            (&["*"], &["X", "Y*"], &["X", "Y*"]),
            (&[], &["X"], &[]),
        ] {
            assert_eq!(merge(env(a), env(b)), env(both));
            assert_eq!(merge(env(b), env(a)), env(both));
        }
    }

    #[test]
    fn the_list_that_passes_by_itself() {
        assert!(passes(&Env::default(), "LC_ALL"));
        assert!(passes(&Env::default(), "PATH"));
        assert!(!passes(&Env::default(), "AWS_SECRET_ACCESS_KEY"));
        assert!(!passes(&env(&[]), "PATH"));
    }
}
