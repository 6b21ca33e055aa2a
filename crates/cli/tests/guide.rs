//! Runs the guide. Every block marked `sh run` in README.md and docs/guide is executed with `sh -eu`, and the block
//! marked `text` that follows it must be what is printed, both streams together. Each page starts in a fresh directory
//! and its blocks run there one after the other, as a reader would type them; as root and as an ordinary user.
//!
//! In expected text `…` within a line stands for anything, and on a line of its own for any number of lines.
//! `sh run root` is executed only as root: it needs what an ordinary user has only after `cofferdam setup`.

use testkit as support;

use std::fs;
use std::path::{Path, PathBuf};
use support::terminal::shell_at_terminal;
use support::{As, Place, binary, either, to_the_end};

/// A block to run, with its expected output.
#[derive(Debug, PartialEq, Eq)]
struct Example {
    line: usize,
    only_root: bool,
    script: String,
    expected: Option<String>,
}

/// A fenced block: number of its first line, info string, text, and the line after its end.
struct Block<'a> {
    line: usize,
    info: &'a str,
    text: String,
    end: usize,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let lines: Vec<&str> = page.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        if let Some(info) = lines[at].strip_prefix("```") {
            let length = lines[at + 1..].iter().position(|l| *l == "```").expect("a fence must be closed");
            let text = lines[at + 1..at + 1 + length].iter().map(|l| format!("{l}\n")).collect();
            found.push(Block { line: at + 1, info, text, end: at + length + 2 });
            at += length + 2;
        } else {
            at += 1;
        }
    }
    found
}

fn examples(page: &str) -> Vec<Example> {
    let lines: Vec<&str> = page.lines().collect();
    let blocks = blocks(page);
    let mut found = Vec::new();
    for (i, block) in blocks.iter().enumerate() {
        let only_root = match block.info {
            "sh run" => false,
            "sh run root" => true,
            _ => continue,
        };
        let directly = |next: &&Block<'_>| lines[block.end..next.line - 1].iter().all(|l| l.trim().is_empty());
        let expected = blocks.get(i + 1).filter(|b| b.info == "text").filter(directly).map(|b| b.text.clone());
        found.push(Example { line: block.line, only_root, script: block.text.clone(), expected });
    }
    found
}

/// Matches a text against a pattern; `…` stands for anything within a line, and on a line of its own for any lines.
fn matches(pattern: &[&str], text: &[&str]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ["…", rest @ ..] => (0..=text.len()).any(|n| matches(rest, &text[n..])),
        [line, rest @ ..] => {
            text.split_first().is_some_and(|(first, more)| line_matches(line, first) && matches(rest, more))
        }
    }
}

fn line_matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Where a reader types the examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// In a script, whose output goes to a file.
    Script,
    /// The same in a project below the temp directory.
    BelowTmp,
    /// At a terminal, where nobody answers what a program asks; only statuses are compared.
    Terminal,
}

/// A directory below /tmp, removed on drop.
struct TmpProject(PathBuf);

impl TmpProject {
    fn new(place: &Place) -> TmpProject {
        let made = Path::new("/tmp").join(place.root.file_name().unwrap());
        place.dir(made.join("project"));
        TmpProject(made)
    }
}

impl Drop for TmpProject {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a page to its end or to its first example with other output.
fn follow(page: &Path, who: As) -> Result<usize, String> {
    follow_as(page, who, Reader::Script)
}

fn follow_as(page: &Path, who: As, reader: Reader) -> Result<usize, String> {
    let place = Place::new(who);
    let below_tmp = (reader == Reader::BelowTmp).then(|| TmpProject::new(&place));
    let dir = below_tmp.as_ref().map_or(place.project.clone(), |made| made.0.join("project"));
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", binary().parent().unwrap().display());
    let mut done = 0;
    for example in examples(&fs::read_to_string(page).unwrap()) {
        if example.only_root && who != As::Root {
            continue;
        }
        let at = format!("{}:{} as {who:?}, {reader:?}", page.display(), example.line);
        if reader == Reader::Terminal {
            let mut driver = place.outside("/usr/bin/python3");
            driver.env("PATH", &path).env("PAGER", "cat").current_dir(&dir);
            let screen = shell_at_terminal(driver, &example.script);
            if screen.code != 0 {
                return Err(format!("{at} ends with {}:\n{}\n{}", screen.code, example.script, screen.text));
            }
            done += 1;
            continue;
        }
        let mut shell = place.outside("sh");
        shell.env("PATH", &path).current_dir(&dir).args(["-eu", "-c"]).arg(format!("exec 2>&1\n{}", example.script));
        let output = to_the_end(&mut shell, b"");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            return Err(format!("{at} ends with {}:\n{}\n{printed}", output.status, example.script));
        }
        let expected = example.expected.unwrap_or_else(|| "…".into());
        let (pattern, text): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), printed.lines().collect());
        if !matches(&pattern, &text) {
            return Err(format!("{at} prints\n{printed}\nand not\n{expected}"));
        }
        done += 1;
    }
    Ok(done)
}

#[track_caller]
fn follow_all(who: As) {
    let (done, failed): (Vec<_>, Vec<_>) = pages().iter().map(|page| follow(page, who)).partition(Result::is_ok);
    let failed: Vec<String> = failed.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let done: usize = done.into_iter().flatten().sum();
    assert!(done > 25, "the examples are found: {done}");
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = fs::read_dir(root.join("docs/guide")).unwrap().flatten().map(|e| e.path());
    let mut pages: Vec<PathBuf> = guide.filter(|p| p.extension().is_some_and(|e| e == "md")).collect();
    pages.sort();
    pages.push(root.join("README.md"));
    pages
}

// promise 28
#[test]
fn the_guide_works_as_root() {
    follow_all(As::Root);
}

// promise 28
#[test]
fn the_guide_works_as_an_ordinary_user() {
    follow_all(As::User);
}

/// The tour also works where a reader pastes it: at a terminal, and in a project below the temp directory.
// promise 28
#[test]
fn the_tour_works_at_a_terminal_and_below_the_temp_directory() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut failed = Vec::new();
    for who in either() {
        for page in ["README.md", "docs/guide/read-a-denial.md"] {
            for reader in [Reader::Terminal, Reader::BelowTmp] {
                failed.extend(follow_as(&root.join(page), who, reader).err());
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn examples_are_found_with_what_they_print() {
    let page = "a\n```sh run\necho 1\n```\n\n```text\n1\n```\n```sh\nno\n```\n```sh run root\ntrue\n```\nthen\n```text\n2\n```\n";
    let found = examples(page);
    let plain = Example { line: 2, only_root: false, script: "echo 1\n".into(), expected: Some("1\n".into()) };
    let root = Example { line: 12, only_root: true, script: "true\n".into(), expected: None };
    assert_eq!(found, [plain, root]);
}

#[test]
fn an_ellipsis_stands_for_anything() {
    for (pattern, text, want) in [
        ("a\nb", "a\nb", true),
        ("a", "a\nb", false),
        ("a\n…", "a\nb\nc", true),
        ("…\nc", "c", true),
        ("a … c", "a b c", true),
        ("a … c", "a b d", false),
        ("a …b… c", "a xbx c", true),
        ("…", "", true),
        ("ab…b", "ab", false),
    ] {
        let (p, t): (Vec<&str>, Vec<&str>) = (pattern.lines().collect(), text.lines().collect());
        assert_eq!(matches(&p, &t), want, "{pattern:?} over {text:?}");
    }
}
