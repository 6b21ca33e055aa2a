//! Reads the marks `// promise N` that tests carry.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Parses the numbered list of PROMISES.md: number and title of each, numbered in order.
pub fn titles(page: &str) -> BTreeMap<u32, String> {
    let mut titles = BTreeMap::new();
    for line in page.lines() {
        let Some((number, rest)) = line.split_once(". **") else { continue };
        let (Ok(number), Some((title, _))) = (number.parse(), rest.split_once(".**")) else { continue };
        assert_eq!(number, titles.len() as u32 + 1, "PROMISES.md: numbers in order: {line}");
        titles.insert(number, title.to_owned());
    }
    titles
}

/// A test that proves a promise.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    pub promise: u32,
    /// Path of the source file below `crates`.
    pub file: String,
    pub test: String,
}

/// Lists the marks of all tests, sorted by promise, file and name.
pub fn marks(root: &Path) -> Vec<Mark> {
    let crates = root.join("crates");
    let mut files = Vec::new();
    sources_below(&crates, &mut files);
    let mut marks: Vec<Mark> = files.iter().flat_map(|file| marks_of(&crates, file)).collect();
    marks.sort();
    marks
}

fn marks_of(crates: &Path, file: &Path) -> Vec<Mark> {
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut marks = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(numbers) = line.strip_prefix("// promise ") else { continue };
        let name = file.strip_prefix(crates).unwrap().display().to_string();
        let function = lines[at + 1..].iter().find(|line| !line.starts_with("#[")).and_then(|line| function_name(line));
        let test = function.unwrap_or_else(|| panic!("{name}:{}: the mark is not above a test", at + 1));
        for number in numbers.split(", ") {
            let promise = number.parse().unwrap_or_else(|e| panic!("{name}:{}: {number:?}: {e}", at + 1));
            marks.push(Mark { promise, file: name.clone(), test: test.to_owned() });
        }
    }
    marks
}

fn function_name(line: &str) -> Option<&str> {
    line.split_once("fn ")?.1.split(['(', '<']).next()
}

fn sources_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}
