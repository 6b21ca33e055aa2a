//! Paths of rules: absolute, or below `~`, `$HOME`, `$WORKSPACE` or `$TOOLCHAINS`, with wildcards. Checked when parsed,
//! written back in canonical form, and expanded only with given values.

use crate::component::{self, PatternPart};
use crate::glob::{self, Pattern};
use std::fmt;
use std::path::{Path, PathBuf};

pub(crate) const FORMS: &str = "use an absolute path, ~/…, $HOME/… or $WORKSPACE/…";

/// Base of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Base {
    Root,
    Home,
    Workspace,
    Toolchains,
}

/// A checked rule path. Two spellings of the same pattern are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RulePath {
    base: Base,
    parts: Vec<PatternPart>,
}

/// The reason why a value is refused, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRefusal {
    pub message: String,
    pub hint: Option<String>,
}

impl PathRefusal {
    pub(crate) fn new(message: impl Into<String>) -> PathRefusal {
        PathRefusal { message: message.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> PathRefusal {
        self.hint = Some(hint.into());
        self
    }
}

impl RulePath {
    pub fn parse(text: &str) -> Result<RulePath, PathRefusal> {
        let path = RulePath::parse_shape(text)?;
        match path.is_per_process() {
            true => Err(PathRefusal::new(format!("{text:?} is a different file in every process"))
                .hint("name the file it should lead to")),
            false => Ok(path),
        }
    }

    /// Parses without the checks about this host's files, for the path of a URL.
    pub(crate) fn parse_shape(text: &str) -> Result<RulePath, PathRefusal> {
        let (base, rest) = split_base(text)?;
        if text.contains("//") {
            return Err(
                PathRefusal::new(format!("{text:?} holds an empty component (\"//\")")).hint("remove one slash")
            );
        }
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        // A final slash, which often marks a directory, is ignored.
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let mut parts = Vec::new();
        if !rest.is_empty() {
            for component in rest.split('/') {
                parts.push(parse_component(component, text)?);
            }
        }
        if parts.len() > glob::MAX_PARTS {
            return Err(PathRefusal::new(format!("{text:?} has more than {} components", glob::MAX_PARTS)));
        }
        Ok(RulePath { base, parts: squeeze(parts) })
    }

    /// Builds a rule path for exactly this absolute path; wildcard characters in it are literal. `None` if it is not
    /// absolute, contains `.` or `..`, or is not UTF-8.
    pub fn literal(path: &Path) -> Option<RulePath> {
        let text = path.to_str()?;
        let escaped: Vec<String> = text.split('/').map(component::escape).collect();
        match text.starts_with('/') {
            true => RulePath::parse(&escaped.join("/")).ok(),
            false => None,
        }
    }

    /// Returns the path relative to the home, for a plain path below it.
    pub fn below_home(&self) -> Option<PathBuf> {
        let name = |part: &PatternPart| match part {
            PatternPart::Literal(name) => Some(name.clone()),
            _ => None,
        };
        let below: PathBuf = self.parts.iter().map(name).collect::<Option<_>>()?;
        (self.base == Base::Home && !self.parts.is_empty()).then_some(below)
    }

    pub fn base(&self) -> Base {
        self.base
    }

    /// Returns true if `inner` is this path or below it, judged by the texts alone.
    pub fn contains(&self, inner: &RulePath) -> bool {
        self.base == inner.base && inner.parts.starts_with(&self.parts)
            || self.base == Base::Root && self.parts.is_empty()
    }

    /// Expands the pattern below `base` (the value of the variable, or `/`), whose characters are literal.
    pub(crate) fn on(&self, base: &Path) -> Option<Pattern> {
        let head = glob::names(base).map(|n| PatternPart::Literal(n.to_owned()));
        Pattern::new(head.chain(self.parts.iter().cloned()).collect())
    }

    /// Returns true for `/proc/self/fd/7` and the like: a link that differs by process, and that may lead outside.
    fn is_per_process(&self) -> bool {
        let name = |i: usize| match self.parts.get(i) {
            Some(PatternPart::Literal(name)) => name.to_str().unwrap_or_default(),
            _ => "",
        };
        let pid = !name(1).is_empty() && name(1).bytes().all(|b| b.is_ascii_digit());
        self.base == Base::Root
            && match name(0) {
                "proc" => pid || matches!(name(1), "self" | "thread-self"),
                "dev" => matches!(name(1), "fd" | "stdin" | "stdout" | "stderr"),
                _ => false,
            }
    }
}

impl fmt::Display for RulePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.base {
            Base::Root if self.parts.is_empty() => "/",
            Base::Root => "",
            Base::Home => "~",
            Base::Workspace => "$WORKSPACE",
            Base::Toolchains => "$TOOLCHAINS",
        })?;
        for part in &self.parts {
            write!(f, "/{}", component::part_text(part))?;
        }
        Ok(())
    }
}

/// Checks that the value of a variable can be the start of a path.
pub(crate) fn check_base(path: &Path) -> Result<(), String> {
    let plain: PathBuf = std::iter::once(std::ffi::OsStr::new("/")).chain(glob::names(path)).collect();
    match path.is_absolute() && plain.as_os_str() == path.as_os_str() {
        true => Ok(()),
        false => Err(format!("{:?} is not an absolute path in its plain form", path.display().to_string())),
    }
}

fn split_base(text: &str) -> Result<(Base, &str), PathRefusal> {
    if text.is_empty() {
        return Err(PathRefusal::new("the path is empty").hint(FORMS));
    }
    if let Some(bad) = text.chars().find(|c| c.is_control()) {
        return Err(PathRefusal::new(format!("{text:?} contains the character {bad:?}")));
    }
    for (prefix, base) in
        [("~", Base::Home), ("$HOME", Base::Home), ("$WORKSPACE", Base::Workspace), ("$TOOLCHAINS", Base::Toolchains)]
    {
        if let Some(rest) = text.strip_prefix(prefix)
            && (rest.is_empty() || rest.starts_with('/'))
        {
            return Ok((base, rest));
        }
    }
    if text.starts_with('~') {
        return Err(PathRefusal::new(format!("{text:?} names the home of another user")).hint(FORMS));
    }
    if text.starts_with('$') {
        let name = text.split('/').next().unwrap_or(text);
        return Err(PathRefusal::new(format!("{name:?} is not a variable of the policy"))
            .hint("there are $HOME, $WORKSPACE and $TOOLCHAINS"));
    }
    match text.starts_with('/') {
        true => Ok((Base::Root, text)),
        false => Err(PathRefusal::new(format!("{text:?} is relative")).hint(FORMS)),
    }
}

fn parse_component(component: &str, whole: &str) -> Result<PatternPart, PathRefusal> {
    match component {
        "." | ".." => {
            Err(PathRefusal::new(format!("{whole:?} holds a {component:?} component"))
                .hint("write the path it leads to"))
        }
        _ => match component::parse_part(component).map_err(PathRefusal::new)? {
            // `[.]` and `[.][.]` are other spellings of the components refused above.
            PatternPart::Literal(name) if name == "." || name == ".." => {
                Err(PathRefusal::new(format!("{whole:?} holds a {name:?} component")))
            }
            PatternPart::Literal(name) if name.len() > 255 => {
                Err(PathRefusal::new(format!("{whole:?} holds a component of more than 255 bytes")))
            }
            part => Ok(part),
        },
    }
}

/// Reduces `a/**/**/b` to `a/**/b`, the canonical form.
fn squeeze(mut parts: Vec<PatternPart>) -> Vec<PatternPart> {
    parts.dedup_by(|a, b| *a == PatternPart::AnyDepth && *b == PatternPart::AnyDepth);
    parts
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn one_spelling() {
        for (text, spelled) in [
            ("/", "/"),
            ("/a/", "/a"),
            ("$HOME/x", "~/x"),
            ("~", "~"),
            ("~/", "~"),
            ("$WORKSPACE/**/**/a", "$WORKSPACE/**/a"),
            ("/a[*]b", "/a[*]b"),
            ("/[a]", "/a"),
            ("/[a-c]", "/[a-c]"),
            ("/[^a]", "/[!a]"),
            ("/[a-]", "/[a-]"),
            ("/$x", "/$x"),
            ("/a~", "/a~"),
        ] {
            let path = RulePath::parse(text).unwrap();
            assert_eq!(path.to_string(), spelled, "{text}");
            assert_eq!(RulePath::parse(spelled).unwrap(), path, "{text}");
        }
    }

    #[test]
    fn refused() {
        for (text, message) in [
            ("", "the path is empty"),
            ("a/b", "\"a/b\" is relative"),
            ("./a", "\"./a\" is relative"),
            ("/a/../b", "\"/a/../b\" holds a \"..\" component"),
            ("/a/./b", "\"/a/./b\" holds a \".\" component"),
            ("/[.][.]/b", "\"/[.][.]/b\" holds a \"..\" component"),
            ("/a//b", "\"/a//b\" holds an empty component (\"//\")"),
            ("//", "\"//\" holds an empty component (\"//\")"),
            ("~root/x", "\"~root/x\" names the home of another user"),
            ("$HOMER/x", "\"$HOMER\" is not a variable of the policy"),
            ("/a\0b", "\"/a\\0b\" contains the character '\\0'"),
            ("/a[b", "\"[\" without \"]\" in \"a[b\""),
            ("/a[]b", "\"[]\" in \"a[]b\" matches nothing"),
            ("/a[z-a]", "the range z-a in \"a[z-a]\" is the wrong way round"),
            ("/a**b", "\"**\" stands alone in a component, not inside \"a**b\""),
            ("/proc/self/fd/7", "\"/proc/self/fd/7\" is a different file in every process"),
            ("/proc/1/root", "\"/proc/1/root\" is a different file in every process"),
            ("/dev/fd/3", "\"/dev/fd/3\" is a different file in every process"),
        ] {
            match RulePath::parse(text) {
                Err(refusal) => assert_eq!(refusal.message, message),
                Ok(path) => panic!("{text:?} was taken as {path}"),
            }
        }
    }

    #[test]
    fn literal_paths_are_not_patterns() {
        let path = RulePath::literal(Path::new("/a/[x]/b*")).unwrap();
        let pattern = path.on(Path::new("/")).unwrap();
        assert!(pattern.covers(Path::new("/a/[x]/b*/c")));
        assert!(!pattern.covers(Path::new("/a/x/bc")));
        assert_eq!(RulePath::literal(Path::new("a")), None);
        assert_eq!(RulePath::literal(Path::new("/a/../b")), None);
    }

    #[test]
    fn bases() {
        assert!(check_base(Path::new("/home/u")).is_ok());
        assert!(check_base(Path::new("/")).is_ok());
        for bad in ["home", "", "/a/", "/a/../b", "/a//b", "/./a"] {
            assert!(check_base(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
