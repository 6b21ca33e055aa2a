//! The file: read whole, every key known or refused by name and line.

use super::{KEYS, Key, Origin, Setting, Value};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use terms::{ErrorKind, Fault, Phase};
use toml::de::{DeTable, DeValue};

/// No configuration is longer.
const LARGEST: u64 = 1 << 20;

/// What the file sets; none where there is no file and need not be one.
pub fn read(path: &Path, must_be: bool) -> Result<Option<Vec<Setting>>, Fault> {
    let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
    let file = match opened {
        Ok(fd) => File::from(fd),
        Err(e) if !must_be && matches!(e, rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(e) => return Err(unreadable(path, &e.to_string())),
    };
    check_owner(path, &file)?;
    let mut text = String::new();
    file.take(LARGEST + 1).read_to_string(&mut text).map_err(|e| unreadable(path, &e.to_string()))?;
    match text.len() as u64 > LARGEST {
        true => Err(unreadable(path, "it is larger than 1 MiB")),
        false => parse(path, &text).map(Some),
    }
}

/// What somebody else could change would let them choose, for instance, where we send what we see.
fn check_owner(path: &Path, file: &File) -> Result<(), Fault> {
    let meta = file.metadata().map_err(|e| unreadable(path, &e.to_string()))?;
    let us = rustix::process::geteuid().as_raw();
    if !meta.is_file() {
        return Err(unreadable(path, "it is no plain file"));
    }
    if meta.uid() != us && meta.uid() != 0 {
        return Err(unreadable(path, "it belongs to another user"));
    }
    match meta.mode() & 0o022 {
        0 => Ok(()),
        _ => Err(unreadable(path, "others may write to it; `chmod go-w` it")),
    }
}

fn unreadable(path: &Path, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::InvalidRequest, format!("the configuration {}: {why}", path.display()));
    fault.hint("name another with --config or COFFERDAM_CONFIG").phase(Phase::Admission)
}

fn parse(path: &Path, text: &str) -> Result<Vec<Setting>, Fault> {
    let document = DeTable::parse(text).map_err(|e| {
        let line = e.span().map_or(1, |span| line_of(text, span.start));
        at(path, line, &format!("no TOML: {}", e.message()))
    })?;
    let mut found = Vec::new();
    walk(&Within { path, text, above: "" }, document.get_ref(), &mut found)?;
    Ok(found)
}

struct Within<'a> {
    path: &'a Path,
    text: &'a str,
    /// The keys above, each with a dot behind it.
    above: &'a str,
}

fn walk(within: &Within<'_>, table: &DeTable<'_>, found: &mut Vec<Setting>) -> Result<(), Fault> {
    for (name, value) in table {
        let line = line_of(within.text, name.span().start);
        let full = format!("{}{}", within.above, name.get_ref());
        let wrong = |why: &str| at(within.path, line, why);
        if let Some(key) = known(&full) {
            let value =
                key.kind.of_toml(value.get_ref()).map_err(|why| wrong(&format!("{full} {why}")).hint(key.about))?;
            found.push(setting(within.path, line, full, value));
        } else if let (true, DeValue::Table(below)) = (is_section(&full), value.get_ref()) {
            walk(&Within { above: &format!("{full}."), ..*within }, below, found)?;
        } else if is_section(&full) {
            let section =
                KEYS.iter().filter(|key| fits(key.name, &full, false)).find_map(|key| section_of(key.name, &full));
            let section = section.unwrap_or_else(|| full.clone());
            return Err(wrong(&format!("{full} is a section, not a value")).hint(format!("write [{section}]")));
        } else {
            return Err(wrong(&format!("there is no key {full}")).hint(nearest(&full)));
        }
    }
    Ok(())
}

fn setting(path: &Path, line: usize, key: String, value: Value) -> Setting {
    Setting { key, value, origin: Origin::File { file: path.to_owned(), line } }
}

fn at(path: &Path, line: usize, why: &str) -> Fault {
    Fault::invalid(format!("{}:{line}: {why}", path.display())).phase(Phase::Admission)
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// The key that a name in a file means.
pub fn known(full: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| fits(key.name, full, true))
}

fn is_section(full: &str) -> bool {
    KEYS.iter().any(|key| fits(key.name, full, false))
}

/// Whether a name is that of a key (`whole`), or of a section above it. `*` is the name of a tenant.
fn fits(key: &str, name: &str, whole: bool) -> bool {
    let (key, name): (Vec<&str>, Vec<&str>) = (key.split('.').collect(), name.split('.').collect());
    let same = |(part, word): (&&str, &&str)| part == word || (*part == "*" && is_tenant(word));
    let long_enough = if whole { key.len() == name.len() } else { key.len() > name.len() };
    long_enough && key.iter().zip(&name).all(same)
}

/// Names of tenants are parts of paths and of labels.
fn is_tenant(word: &str) -> bool {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    (1..=64).contains(&word.len()) && word.chars().all(fine)
}

/// A hint at what may have been meant: the keys of the same section, or the sections.
fn nearest(full: &str) -> String {
    let lower = full.to_ascii_lowercase();
    if lower != full && (known(&lower).is_some() || is_section(&lower)) {
        return format!("names are lower case, those of tenants, too: {lower}");
    }
    let above = full.rsplit_once('.').map_or("", |(above, _)| above);
    let inside = || KEYS.iter().filter(|key| !above.is_empty() && fits(key.name, above, false));
    let Some(section) = inside().find_map(|key| section_of(key.name, above)) else {
        return "sections are [serve], [log], [telemetry], [warm], [limits], [limits.default], [limits.ceiling], [keep], [quota], \
                [tenant.NAME.quota], [tenant.NAME.limits.default] and [tenant.NAME.limits.ceiling]"
            .into();
    };
    let names: Vec<&str> = inside().filter_map(|key| key.name.rsplit('.').next()).collect();
    format!("[{section}] has {}", names.join(", "))
}

/// The section that a key stands in, with the tenant that `above` names.
fn section_of(key: &str, above: &str) -> Option<String> {
    let (section, _) = key.rsplit_once('.')?;
    let mut given = above.split('.');
    let named = |part| match (part, given.next()) {
        ("*", Some(tenant)) => tenant.to_owned(),
        ("*", None) => "NAME".to_owned(),
        (part, _) => part.to_owned(),
    };
    Some(section.split('.').map(named).collect::<Vec<_>>().join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let fault = parse(Path::new("/c.toml"), text).unwrap_err();
        format!("{} | {}", fault.message, fault.hint.unwrap_or_default())
    }

    #[test]
    fn what_is_not_known_is_refused_by_name_and_line() {
        for (text, want) in [
            ("[serve]\nsocket = \"/s\"\nsokket = 1\n", "/c.toml:3: there is no key serve.sokket | [serve] has socket,"),
            ("\n[server]\nsocket = \"/s\"\n", "/c.toml:2: there is no key server | sections are"),
            ("serve = 1", "/c.toml:1: serve is a section, not a value"),
            ("[serve]\ngrace = 30\n", "/c.toml:2: serve.grace is an integer where a text like \"30s\" is due"),
            ("[serve]\n\n\nmax_body = \"9q\"\n", "/c.toml:4: serve.max_body is \"9q\": unknown unit"),
            ("[serve]\nsocket = \"here\"\n", "which is not absolute"),
            ("[serve]\nmax_connections = 0\n", "use 1 to"),
            ("[log]\nlevel = \"loud\"\n", "use error, warn, info, debug"),
            ("[log\n", "/c.toml:1: no TOML"),
            ("[log]\nlevel = \"info\"\nlevel = \"warn\"\n", "/c.toml:3: no TOML: duplicate key"),
            ("[tenant.\"A B\".quota]\nruns = 1\n", "there is no key tenant.A B"),
            (
                "[tenant.blue]\nruns = 3\n",
                "/c.toml:2: there is no key tenant.blue.runs | [tenant.blue.quota] has sandboxes,",
            ),
            (
                "[tenant.Blue.quota]\nruns = 3\n",
                "no key tenant.Blue | names are lower case, those of tenants, too: tenant.blue",
            ),
            ("[Serve]\nsocket = \"/s\"\n", "there is no key Serve | names are lower case"),
            ("[tenant.a.quota]\nrun = 1\n", "/c.toml:2: there is no key tenant.a.quota.run"),
        ] {
            assert!(refused(text).contains(want), "{text:?}: {}", refused(text));
        }
    }

    #[test]
    fn what_is_known_has_its_line() {
        let text =
            "[serve]\nallow_hosts = [\"a\", \"b\"]\nmax_body = 2048\n[tenant.blue.quota]\nruns = 4\ncpus = 1.5\n";
        let mut found = parse(Path::new("/c.toml"), text).unwrap();
        found.sort_by_key(|setting| setting.key.clone());
        let told: Vec<String> = found.iter().map(|s| format!("{} {:?} {}", s.key, s.value, s.origin)).collect();
        assert_eq!(
            told,
            [
                "serve.allow_hosts Texts([\"a\", \"b\"]) /c.toml:2",
                "serve.max_body Count(2048) /c.toml:3",
                "tenant.blue.quota.cpus Number(1.5) /c.toml:6",
                "tenant.blue.quota.runs Count(4) /c.toml:5",
            ]
        );
    }
}
