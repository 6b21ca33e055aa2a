//! Names of files that a tool on a reviewer's machine runs or obeys without asking: the table behind the class "runs on
//! your machine". One module for each kind of tool; every line is a pattern and the reason that a reviewer is shown.
//!
//! Patterns are matched against folded paths (lower case, composed, see `class.rs`), so they are written in lower case. `**/` in
//! front means anywhere in the tree; a pattern without it means the top alone, where the name is too common below.
//! The table cannot be complete: unknown names are handled by `unknown.rs`. A file that it names is shown even if the
//! base ignores it, so a rule for a directory must not cover a cache: those are in `exclude.rs`.

mod agents;
mod automation;
mod builds;
mod desktops;
mod editors;
mod infrastructure;
mod interpreters;
mod javascript;
mod languages;
mod linters;
pub mod matcher;
mod settings;
mod shells;
mod version_control;

use std::sync::LazyLock;

/// Condition under which a change of such a file counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunCondition {
    Always,
    /// JSON document: if the value under one of these keys differs.
    Keys(&'static [&'static str]),
    /// Document with sections `[name]`: if lines differ outside these, which are descriptive only.
    Outside(&'static [&'static str]),
    /// If a differing line contains one of these words.
    Words(&'static [&'static str]),
}

#[derive(Debug)]
pub struct RunsRule {
    pub pattern: &'static str,
    /// Reason shown to the reviewer: the tool or its kind of file.
    pub why: &'static str,
    pub when: RunCondition,
    /// Exceptions from the pattern: an extension if it begins with a dot, else a whole name.
    pub except: &'static [&'static str],
}

impl RunsRule {
    /// True if a folded file name is an exception.
    pub fn excepts(&self, name: &str) -> bool {
        self.except.iter().any(|other| match other.starts_with('.') {
            true => name.ends_with(other),
            false => name == *other,
        })
    }
}

const fn rule(pattern: &'static str, why: &'static str) -> RunsRule {
    RunsRule { pattern, why, when: RunCondition::Always, except: &[] }
}

const fn rule_when(pattern: &'static str, why: &'static str, when: RunCondition) -> RunsRule {
    RunsRule { pattern, why, when, except: &[] }
}

const fn rule_except(pattern: &'static str, why: &'static str, except: &'static [&'static str]) -> RunsRule {
    RunsRule { pattern, why, when: RunCondition::Always, except }
}

/// Extensions of modules and documents. `Makefile.common` is a makefile, `makefile.py` is a module named after
/// makefiles.
const SOURCES: &[&str] = &[
    ".py",
    ".pyc",
    ".pyi",
    ".pyo",
    ".rs",
    ".go",
    ".c",
    ".h",
    ".cc",
    ".cpp",
    ".hpp",
    ".java",
    ".class",
    ".kt",
    ".scala",
    ".cs",
    ".swift",
    ".ts",
    ".tsx",
    ".js",
    ".jsx",
    ".mjs",
    ".cjs",
    ".map",
    ".rb",
    ".php",
    ".lua",
    ".vim",
    ".el",
    ".ex",
    ".exs",
    ".erl",
    ".hs",
    ".ml",
    ".vue",
    ".md",
    ".rst",
    ".adoc",
    ".txt",
    ".html",
    ".css",
    ".svg",
    ".png",
    ".json",
    ".snap",
    ".tmlanguage",
];

/// Rules in order of precedence. The first match gives the reason, so kinds with exact names come before catch-alls.
pub static RULES: LazyLock<Vec<&'static RunsRule>> = LazyLock::new(|| {
    let tables = [
        version_control::RULES,
        shells::RULES,
        interpreters::RULES,
        desktops::RULES,
        agents::RULES,
        editors::RULES,
        automation::RULES,
        infrastructure::RULES,
        javascript::RULES,
        languages::RULES,
        builds::RULES,
        linters::RULES,
        settings::RULES,
    ];
    tables.into_iter().flatten().collect()
});
