//! `cofferdam diff` and `prune`: requests the changes and prints them in the requested format.

use super::miss;
use super::pager::Out;
use super::paint::{self, BOLD, Brush, DIM, GREEN, RED, YELLOW};
use crate::pipe::Pipe;
use crate::{connection, render};
use api::{ChangeBody, ChangeClass, ChangeKind, FileDiff, FileKind, LineKind, WorkspaceDiff, WorkspaceHistory};
use clap::ArgMatches;
use client::Engine;
use node::review::ReviewScope;
use node::review::diff::{DiffReader, ReadDiff};
use node::sandbox::Which;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use terms::Fault;

pub fn main(matches: &ArgMatches) -> ExitCode {
    let words: Vec<OsString> = matches.get_many::<OsString>("words").unwrap_or_default().cloned().collect();
    let everything = matches.get_flag("all");
    let ask = ReadDiff { of: ReviewScope::Words(words), everything, reader: DiffReader::Person, page: None };
    let json = matches.get_flag("json");
    let shown = connection::open(matches).and_then(|engine| {
        let shown = match matches.get_flag("patch") {
            _ if matches.get_flag("home") => engine.diff_home(&ask.of).map(|answer| home(matches, &answer)),
            true => patch(matches, &engine, &ask),
            false => engine.diff(&ask).and_then(|answer| show(matches, &answer)),
        };
        shown.map_err(|fault| miss::explain(&engine, &ask.of, fault))
    });
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => render::fault(&fault, json),
    }
}

fn show(matches: &ArgMatches, answer: &WorkspaceDiff) -> Result<(), Fault> {
    let is = |name: &str| matches.get_flag(name);
    if is("json") {
        render::print_json(answer);
        return Ok(());
    }
    let brush = brush(matches);
    // Without a name on the line, it is said which sandbox was taken. Every word is a path then.
    let words = matches.get_many::<OsString>("words").map_or(0, |words| words.len());
    let is_named = words > answer.only.len();
    let is_short = is("name-only") || is("name-status");
    if !is_named && (answer.running || (is_short && !answer.others.is_empty())) {
        render::note(&taken(answer));
    }
    let mut out = Out::open(!is("no-pager"));
    let written = if is("name-only") {
        names(&mut out, answer, |_| String::new())
    } else if is("name-status") {
        names(&mut out, answer, |file| format!("{}\t", letter(file)))
    } else if is("stat") {
        stat(&mut out, answer, brush, is_named)
    } else {
        everything(&mut out, answer, brush, is_named)
    };
    // A reader that left early is no error of ours.
    let _ = written;
    Ok(())
}

/// Prints the changes of a home: names with letters, since nothing of it is reviewed.
fn home(matches: &ArgMatches, answer: &WorkspaceDiff) {
    if matches.get_flag("json") {
        return render::print_json(answer);
    }
    let mut out = Out::open(!matches.get_flag("no-pager"));
    let before = |file: &FileDiff| match matches.get_flag("name-only") {
        true => "~/".to_owned(),
        false => format!("{}\t~/", letter(file)),
    };
    // A reader that left early is no error of ours.
    let _ = names(&mut out, answer, before);
}

/// Returns which sandbox was taken for a directory, and what else is there.
fn taken(answer: &WorkspaceDiff) -> String {
    let running = if answer.running { ", whose command still runs" } else { "" };
    let others = others(answer).map(|others| format!("; {others}")).unwrap_or_default();
    format!("this is {}{running}{others}", called(answer.name.as_deref(), &answer.sandbox))
}

/// Returns the name that a person types for a sandbox.
fn called<'a>(name: Option<&'a str>, id: &'a str) -> &'a str {
    name.unwrap_or_else(|| id.get(..SHORT).unwrap_or(id))
}

/// Length of a prefix of an id that is unique in practice.
const SHORT: usize = 12;
/// Most other sandboxes that are named.
const MOST_NAMED: usize = 4;

fn others(answer: &WorkspaceDiff) -> Option<String> {
    let all = &answer.others;
    let mut names: Vec<String> = all
        .iter()
        .take(MOST_NAMED)
        .map(|other| {
            let running = if other.running { " (running)" } else { "" };
            format!("{}{running}", called(other.name.as_deref(), &other.sandbox))
        })
        .collect();
    if all.len() > MOST_NAMED {
        names.push("…".to_owned());
    }
    let names = names.join(", ");
    match all.len() {
        0 => None,
        1 => Some(format!("another sandbox covers this directory: {names}")),
        n => Some(format!("{n} other sandboxes cover this directory: {names}")),
    }
}

fn brush(matches: &ArgMatches) -> Brush {
    Brush { colours: colours(matches.get_one::<String>("color").map_or("auto", String::as_str)) }
}

fn colours(when: &str) -> bool {
    match when {
        "always" => true,
        "never" => false,
        _ => render::takes_colours(&io::stdout()),
    }
}

/// Prints a patch: unchanged into a pipe or file, with control characters escaped on a terminal.
fn patch(matches: &ArgMatches, engine: &Engine, ask: &ReadDiff) -> Result<(), Fault> {
    let (mut out, brush) = (Pipe::new(Out::open(!matches.get_flag("no-pager"))), brush(matches));
    if !io::stdout().is_terminal() {
        // A reader that left early is no error.
        return engine.patch(ask, &mut out).or_else(|fault| if out.is_broken() { Ok(()) } else { Err(fault) });
    }
    let mut whole = Vec::new();
    engine.patch(ask, &mut whole)?;
    for line in String::from_utf8_lossy(&whole).split_inclusive('\n') {
        let colour = match line.as_bytes().first() {
            Some(b'+') => GREEN,
            Some(b'-') => RED,
            Some(b'd') => BOLD,
            _ => "",
        };
        let text = paint::visible(line.strip_suffix('\n').unwrap_or(line));
        if writeln!(out, "{}", brush.paint(colour, &text)).is_err() {
            break;
        }
    }
    Ok(())
}

fn letter(file: &FileDiff) -> char {
    match file.change.kind {
        ChangeKind::Added => 'A',
        ChangeKind::Deleted => 'D',
        ChangeKind::Renamed { .. } => 'R',
        ChangeKind::Type => 'T',
        ChangeKind::Modified | ChangeKind::Mode | ChangeKind::Xattr => 'M',
    }
}

fn names(out: &mut Out, answer: &WorkspaceDiff, before: impl Fn(&FileDiff) -> String) -> io::Result<()> {
    for file in &answer.diff.files {
        let from = file.change.kind.from().filter(|_| !before(file).is_empty());
        let from = from.map(|from| format!("{from}\t")).unwrap_or_default();
        writeln!(out, "{}{from}{}", before(file), file.change.path)?;
    }
    Ok(())
}

/// Counts added and removed lines.
fn counts(file: &FileDiff) -> (usize, usize) {
    let ChangeBody::Text(hunks) = &file.body else { return (0, 0) };
    let count = |kind| hunks.iter().flat_map(|hunk| &hunk.lines).filter(|line| line.kind == kind).count();
    (count(LineKind::Added), count(LineKind::Removed))
}

fn stat(out: &mut Out, answer: &WorkspaceDiff, brush: Brush, is_named: bool) -> io::Result<()> {
    head(out, answer, brush)?;
    if let Some(git) = &answer.git {
        history(out, answer, git, brush)?;
    }
    let files: Vec<&FileDiff> = answer.diff.files.iter().filter(|file| !is_told_below(file, answer)).collect();
    let name = |file: &FileDiff| match file.change.kind.from() {
        Some(from) => format!("{from} → {}", file.change.path),
        None => file.change.path.to_string(),
    };
    let width = files.iter().map(|file| name(file).chars().count()).max().unwrap_or(0).min(60);
    let most = files.iter().map(|file| counts(file)).map(|(a, r)| a + r).max().unwrap_or(0);
    for file in files {
        let (added, removed) = counts(file);
        let scale = |n: usize| if most <= 40 { n } else { (n * 40).div_ceil(most) };
        let bar = brush.paint(GREEN, &"+".repeat(scale(added))) + &brush.paint(RED, &"-".repeat(scale(removed)));
        let amount = match &file.body {
            ChangeBody::Text(_) => (added + removed).to_string(),
            ChangeBody::Whole => "whole".to_owned(),
            ChangeBody::None => file.change.kind.name().to_owned(),
        };
        writeln!(out, " {:width$} | {amount:>5} {bar}{}", name(file), brush.paint(YELLOW, &marks(file)))?;
    }
    summary(out, answer)?;
    ending(out, answer, brush, is_named)
}

/// Writes the line that says which sandbox this is.
fn head(out: &mut Out, answer: &WorkspaceDiff, brush: Brush) -> io::Result<()> {
    let name = answer.name.as_deref().map(|name| format!(" ({})", render::safe(name))).unwrap_or_default();
    let base = render::safe(&answer.base.to_string_lossy());
    writeln!(out, "{}{name} over {base}", brush.paint(BOLD, &render::safe(&answer.sandbox)))
}

/// Returns the marks of a line of statistics: why a file does not land by itself, and its flags.
fn marks(file: &FileDiff) -> String {
    let mut marks = match &file.change.class {
        ChangeClass::Ordinary => String::new(),
        ChangeClass::RunsOnHost { why } => format!("  runs on your machine [{}]", paint::visible(why)),
        ChangeClass::Never { why } => format!("  never lands [{}]", paint::visible(why)),
    };
    for flag in &file.change.flags {
        marks.push_str(&format!("  [{}]", paint::flag_words(*flag)));
    }
    marks
}

fn summary(out: &mut Out, answer: &WorkspaceDiff) -> io::Result<()> {
    let (added, removed) =
        answer.diff.files.iter().map(counts).fold((0, 0), |(a, r), (added, removed)| (a + added, r + removed));
    let files = answer.diff.files.len();
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    writeln!(
        out,
        " {files} change{}, {added} line{} added, {removed} line{} removed",
        plural(files),
        plural(added),
        plural(removed)
    )
}

fn everything(out: &mut Out, answer: &WorkspaceDiff, brush: Brush, is_named: bool) -> io::Result<()> {
    head(out, answer, brush)?;
    if let Some(git) = &answer.git {
        history(out, answer, git, brush)?;
    }
    let in_class = |wanted: fn(&ChangeClass) -> bool| answer.diff.files.iter().filter(move |f| wanted(&f.change.class));
    let heading = |out: &mut Out, colour: &str, text: &str| writeln!(out, "\n{}", brush.paint(colour, text));
    let runs: Vec<_> = in_class(|class| matches!(class, ChangeClass::RunsOnHost { .. })).collect();
    if !runs.is_empty() {
        heading(out, "1;33", "RUNS ON YOUR MACHINE: lands only when it is named")?;
        runs.iter().try_for_each(|file| write!(out, "\n{}", paint::file(file, brush)))?;
    }
    let ordinary: Vec<_> =
        in_class(|class| *class == ChangeClass::Ordinary).filter(|file| !is_told_below(file, answer)).collect();
    if !ordinary.is_empty() {
        if !runs.is_empty() {
            heading(out, BOLD, "OTHER CHANGES")?;
        }
        ordinary.iter().try_for_each(|file| write!(out, "\n{}", paint::file(file, brush)))?;
    }
    let never: Vec<_> = in_class(|class| matches!(class, ChangeClass::Never { .. })).collect();
    if !never.is_empty() {
        heading(out, BOLD, "NEVER LANDS")?;
        never.iter().try_for_each(|file| writeln!(out, "{}", paint::title(&file.change, brush)))?;
    }
    if answer.diff.files.is_empty() {
        writeln!(out, "nothing changed")?;
    } else {
        writeln!(out)?;
        summary(out, answer)?;
    }
    ending(out, answer, brush, is_named)
}

/// Tells which branch is checked out inside, and the commits made there.
fn history(out: &mut Out, answer: &WorkspaceDiff, git: &WorkspaceHistory, brush: Brush) -> io::Result<()> {
    if git.switched {
        let (branch, base) = (render::safe(&git.branch), render::safe(&git.base_branch));
        let text = format!("inside, branch {branch} is checked out; the base is on {base}");
        writeln!(out, "{} {text}; the diff includes the difference between the two", brush.paint(YELLOW, "note:"))?;
    }
    if git.commits.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", brush.paint(BOLD, &format!("COMMITS on {}", render::safe(&git.branch))))?;
    if git.commits_more > 0 {
        writeln!(out, "{} earlier commits are not listed", git.commits_more)?;
    }
    super::fetch::commits(out, &git.commits, brush)?;
    let sandbox = render::safe(answer.name.as_deref().unwrap_or(&answer.sandbox));
    if git.switched {
        return writeln!(
            out,
            "take them with: cofferdam fetch {sandbox} --as refs/heads/NAME, for a branch of their own"
        );
    }
    writeln!(out, "adopt them with: cofferdam approve {sandbox} --commits, or cofferdam fetch {sandbox}")
}

/// True for a directory that was removed with its content: its files are listed already.
fn is_told_below(file: &FileDiff, answer: &WorkspaceDiff) -> bool {
    let is_dir = file.change.before.as_ref().is_some_and(|e| e.kind == FileKind::Dir);
    if !is_dir || file.change.kind != ChangeKind::Deleted {
        return false;
    }
    // Sorted by path, descendants follow at once, or after names with the same prefix.
    let files = &answer.diff.files;
    let from = files.partition_point(|f| f.change.path <= file.change.path);
    files[from..].iter().take(64).any(|f| f.change.path.is_at_or_below(&file.change.path))
}

fn ending(out: &mut Out, answer: &WorkspaceDiff, brush: Brush, is_named: bool) -> io::Result<()> {
    if !answer.diff.withheld.is_empty() {
        writeln!(out, "\n{}", brush.paint(BOLD, "WITHHELD: stays in the workspace"))?;
    }
    for held in &answer.diff.withheld {
        let files = if held.files == 1 { "1 file".to_owned() } else { format!("{} files", held.files) };
        let size = bytes(held.bytes);
        let path = if held.path.is_top() { ".".to_owned() } else { held.path.to_string() };
        writeln!(out, "  {path}  {}", brush.paint(DIM, &format!("{files}, {size}; {}", render::safe(&held.why))))?;
    }
    let others = others(answer).filter(|_| !is_named);
    if !answer.diff.notes.is_empty() || others.is_some() {
        writeln!(out)?;
    }
    answer
        .diff
        .notes
        .iter()
        .chain(&others)
        .try_for_each(|note| writeln!(out, "{} {}", brush.paint(YELLOW, "note:"), render::safe(note)))?;
    if answer.diff.files.is_empty() {
        return Ok(());
    }
    let sandbox = render::safe(called(answer.name.as_deref(), &answer.sandbox));
    let seen = render::safe(&answer.diff.digest);
    writeln!(out, "\ndigest {seen}")?;
    // A diff that was shown as a whole is recorded as seen; a part is approved by the digest of the whole.
    let digest = if answer.only.is_empty() { String::new() } else { format!(" --digest {seen}") };
    writeln!(out, "approve with: cofferdam approve {sandbox}{digest}")
}

/// `cofferdam prune`.
pub fn prune(matches: &ArgMatches) -> ExitCode {
    let json = matches.get_flag("json");
    let which = Which { word: matches.get_one::<String>("id").cloned(), version: None };
    match connection::open(matches).and_then(|engine| engine.prune(&which)) {
        Ok(answer) if json => render::print_json(&answer),
        Ok(answer) => {
            let said = format!("{} files, {} taken out of {}", answer.files, bytes(answer.bytes), answer.sandbox);
            render::say(&said);
        }
        Err(fault) => return render::fault(&fault, json),
    }
    ExitCode::SUCCESS
}

pub fn bytes(amount: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (amount as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{amount} bytes") } else { format!("{value:.1} {}", units[unit]) }
}
