//! Configuration file: read whole; unknown keys are refused by name and line.

use super::{ConfigKey, KEYS, Setting, ValueOrigin};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use terms::{ErrorKind, Fault, Phase};
use toml::de::{DeTable, DeValue};

/// Largest configuration file that is read.
const LARGEST: u64 = 1 << 20;

/// Reads the settings of the file; `None` where it does not exist and is optional.
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

/// Refuses a file that other users could change: it decides, for instance, where telemetry is sent.
fn check_owner(path: &Path, file: &File) -> Result<(), Fault> {
    let meta = file.metadata().map_err(|e| unreadable(path, &e.to_string()))?;
    let us = rustix::process::geteuid().as_raw();
    if !meta.is_file() {
        return Err(unreadable(path, "it is not a regular file"));
    }
    if meta.uid() != us && meta.uid() != 0 {
        return Err(unreadable(path, "it belongs to another user"));
    }
    match meta.mode() & 0o022 {
        0 => Ok(()),
        _ => Err(unreadable(path, "other users can write to it; run `chmod go-w` on it")),
    }
}

fn unreadable(path: &Path, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::InvalidRequest, format!("the configuration {}: {why}", path.display()));
    fault.hint("name another with --config or COFFERDAM_CONFIG").phase(Phase::Admission)
}

fn parse(path: &Path, text: &str) -> Result<Vec<Setting>, Fault> {
    let document = DeTable::parse(text).map_err(|e| {
        let line = e.span().map_or(1, |span| line_of(text, span.start));
        at(path, line, &format!("not valid TOML: {}", e.message()))
    })?;
    let mut found = Vec::new();
    walk(&Section { path, text, above: "" }, document.get_ref(), &mut found)?;
    Ok(found)
}

struct Section<'a> {
    path: &'a Path,
    text: &'a str,
    /// Prefix of the enclosing sections, with a trailing dot.
    above: &'a str,
}

fn walk(within: &Section<'_>, table: &DeTable<'_>, found: &mut Vec<Setting>) -> Result<(), Fault> {
    for (name, value) in table {
        let line = line_of(within.text, name.span().start);
        let full = format!("{}{}", within.above, name.get_ref());
        let wrong = |why: &str| at(within.path, line, why);
        match (known(&full), section(&full), value.get_ref()) {
            (Some(key), _, value) => {
                let value = key.kind.of_toml(value).map_err(|why| wrong(&format!("{full} {why}")).hint(key.about))?;
                let origin = ValueOrigin::File { file: within.path.to_owned(), line };
                found.push(Setting { key: full, value, origin });
            }
            (None, Some(_), DeValue::Table(below)) => {
                walk(&Section { above: &format!("{full}."), ..*within }, below, found)?;
            }
            (None, Some(section), _) => {
                return Err(wrong(&format!("{full} is a section, not a value")).hint(format!("write [{section}]")));
            }
            (None, None, _) => return Err(wrong(&format!("unknown key {full}")).hint(nearest(&full))),
        }
    }
    Ok(())
}

fn at(path: &Path, line: usize, why: &str) -> Fault {
    Fault::invalid(format!("{}:{line}: {why}", path.display())).phase(Phase::Admission)
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// Splits a name into its form in the table, with `*` for the name of a tenant, and that name.
fn form_of(full: &str) -> (String, &str) {
    // Tenant names are parts of paths and of metric labels.
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    let named = full.strip_prefix("tenant.").map(|rest| rest.split('.').next().unwrap_or(rest));
    match named.filter(|tenant| (1..=64).contains(&tenant.len()) && tenant.chars().all(fine)) {
        Some(tenant) => (format!("tenant.*{}", &full["tenant.".len() + tenant.len()..]), tenant),
        None => (full.to_owned(), "NAME"),
    }
}

/// Returns the key that a name in a file means.
pub fn known(full: &str) -> Option<&'static ConfigKey> {
    let (form, _) = form_of(full);
    KEYS.iter().find(|key| key.name == form)
}

/// Returns the keys below a section.
fn inside(full: &str) -> impl Iterator<Item = &'static ConfigKey> {
    let prefix = format!("{}.", form_of(full).0);
    KEYS.iter().filter(move |key| key.name.starts_with(&prefix))
}

/// Returns the section of the first key at or below a name; none where there is no such key.
fn section(full: &str) -> Option<String> {
    let (section, _) = inside(full).next()?.name.rsplit_once('.')?;
    Some(section.replace('*', form_of(full).1))
}

/// Suggests what may have been meant: the keys of the same section, or the sections.
fn nearest(full: &str) -> String {
    let lower = full.to_ascii_lowercase();
    if lower != full && (known(&lower).is_some() || section(&lower).is_some()) {
        return format!("write names, including those of tenants, in lower case: {lower}");
    }
    let above = full.rsplit_once('.').map_or("", |(above, _)| above);
    let Some(section) = section(above) else {
        let mut all: Vec<&str> = KEYS.iter().filter_map(|key| Some(key.name.rsplit_once('.')?.0)).collect();
        all.dedup();
        let last = all.pop().unwrap_or_default();
        return format!("sections are [{}] and [{last}]", all.join("], [")).replace('*', "NAME");
    };
    let names: Vec<&str> = inside(above).filter_map(|key| key.name.rsplit('.').next()).collect();
    format!("[{section}] has {}", names.join(", "))
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
            ("[serve]\nsocket = \"/s\"\nsokket = 1\n", "/c.toml:3: unknown key serve.sokket | [serve] has socket,"),
            (
                "\n[server]\nsocket = \"/s\"\n",
                "/c.toml:2: unknown key server | sections are [serve], [log], [telemetry], [run], [warm], [limits], [limits.default], \
                 [limits.ceiling], [keep], [quota], [tenant.NAME.quota], [tenant.NAME.limits.default] and [tenant.NAME.limits.ceiling]",
            ),
            ("serve = 1", "/c.toml:1: serve is a section, not a value"),
            ("[serve]\ngrace = 30\n", "/c.toml:2: serve.grace is an integer, but a string like \"30s\" is expected"),
            ("[serve]\n\n\nmax_body = \"9q\"\n", "/c.toml:4: serve.max_body is \"9q\": unknown unit"),
            ("[serve]\nsocket = \"here\"\n", "which is not absolute"),
            ("[serve]\nmax_connections = 0\n", "use 1 to"),
            ("[log]\nlevel = \"loud\"\n", "use error, warn, info, debug"),
            ("[log\n", "/c.toml:1: not valid TOML"),
            ("[log]\nlevel = \"info\"\nlevel = \"warn\"\n", "/c.toml:3: not valid TOML: duplicate key"),
            ("[tenant.\"A B\".quota]\nruns = 1\n", "unknown key tenant.A B"),
            (
                "[tenant.blue]\nruns = 3\n",
                "/c.toml:2: unknown key tenant.blue.runs | [tenant.blue.quota] has sandboxes,",
            ),
            (
                "[tenant.Blue.quota]\nruns = 3\n",
                "unknown key tenant.Blue | write names, including those of tenants, in lower case: tenant.blue",
            ),
            ("[Serve]\nsocket = \"/s\"\n", "unknown key Serve | write names"),
            ("[tenant.a.quota]\nrun = 1\n", "/c.toml:2: unknown key tenant.a.quota.run"),
            ("tenant = 1\n", "tenant is a section, not a value | write [tenant.NAME.quota]"),
            ("[tenant]\nt = 1\n", "tenant.t is a section, not a value | write [tenant.t.quota]"),
            ("[limits]\nceiling = 1\n", "limits.ceiling is a section, not a value | write [limits.ceiling]"),
            ("[tenant.\"a.b\".quota]\nruns = 1\n", "unknown key tenant.a.b"),
            ("[warm]\nmax = -1\n", "/c.toml:2: warm.max is not a whole number of at least 1"),
            ("[quota]\ncpus = 0.0\n", "/c.toml:2: quota.cpus is 0; use 0.01 to 1000000000"),
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
