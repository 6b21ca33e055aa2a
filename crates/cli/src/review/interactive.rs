//! `approve -i`: asks about one hunk or file after the other, as `git add -p` does. Changes that would run on the
//! reviewer's machine come last and are marked. Decides nothing itself; all content is printed by the painter, which
//! escapes control sequences.

use super::lexer;
use super::paint::{self, Brush, RED};
use api::{ChangeBody, ChangeClass, ChangeKind, Diff, FileDiff, Hunk, Rel};
use node::review::split;
use std::borrow::Cow;
use std::io::{self, BufRead, Write};

/// The subject of one question.
struct Card<'a> {
    file: &'a FileDiff,
    /// A single hunk, or a part of one; `None` for the whole file.
    hunk: Option<Cow<'a, Hunk>>,
}

/// The questions, with the answers so far.
struct HunkQuestions<'a> {
    cards: Vec<Card<'a>>,
    answers: Vec<Option<bool>>,
    at: usize,
}

/// Result of an answer.
#[derive(Debug, PartialEq, Eq)]
enum AnswerEffect {
    Next,
    /// The hunk cannot be split.
    Whole,
    Help,
    Done,
}

const HELP: &str = "y - approve this\nn - leave it\nq - leave it and all that follow\na - approve this and the rest of the file\n\
                    d - leave this and the rest of the file\ns - split it where unchanged lines lie between its changes\nj - decide later, go to the next\nk - go back\n? - this help\n";

/// Asks, and returns the paths and hunks that shall land.
pub fn ask(diff: &Diff, brush: Brush) -> io::Result<(Vec<Rel>, Vec<String>)> {
    let mut deck = HunkQuestions::of(diff);
    let (mut lines, mut out) = (io::stdin().lock(), io::stderr().lock());
    write!(out, "{}", not_asked(diff, brush))?;
    while deck.at < deck.cards.len() {
        let card = &deck.cards[deck.at];
        let what = if card.hunk.is_some() { "hunk" } else { "change" };
        write!(out, "{}", shown(card, brush))?;
        loop {
            write!(out, "({}/{}) approve this {what} [y,n,q,a,d,s,j,k,?]? ", deck.at + 1, deck.cards.len())?;
            out.flush()?;
            let mut line = String::new();
            // End of input means quit.
            let word = if lines.read_line(&mut line)? == 0 { "q" } else { line.trim() };
            match deck.answer(word) {
                AnswerEffect::Help => write!(out, "{HELP}")?,
                AnswerEffect::Whole => writeln!(out, "it has no unchanged lines between its changes")?,
                AnswerEffect::Next => break,
                AnswerEffect::Done => return Ok(deck.chosen()),
            }
        }
    }
    Ok(deck.chosen())
}

/// Files without a question that are named at most.
const MOST_NAMED: usize = 10;

/// Lists changes that cannot land as they are, and so have no question.
fn not_asked(diff: &Diff, brush: Brush) -> String {
    let drifted: Vec<&FileDiff> = diff.files.iter().filter(|file| file.change.drifted).collect();
    let mut text = String::new();
    for file in drifted.iter().take(MOST_NAMED) {
        text.push_str(&format!("{}\n", paint::title(&file.change, brush)));
    }
    if drifted.len() > MOST_NAMED {
        text.push_str(&format!("… and {} more\n", drifted.len() - MOST_NAMED));
    }
    if !drifted.is_empty() {
        text.push_str("not asked about: `cofferdam rebase` comes first\n\n");
    }
    text
}

fn shown(card: &Card<'_>, brush: Brush) -> String {
    let mut text = String::new();
    if let ChangeClass::RunsOnHost { why } = &card.file.change.class {
        text.push_str(&brush.paint(RED, &format!("runs on your machine: {}\n", paint::visible(why))));
    }
    match &card.hunk {
        None => text.push_str(&paint::file(card.file, brush)),
        Some(hunk) => {
            let language = lexer::of(&String::from_utf8_lossy(card.file.change.path.as_bytes()));
            text.push_str(&paint::title(&card.file.change, brush));
            text.push('\n');
            text.push_str(&paint::hunk(hunk, language, brush));
        }
    }
    text
}

impl HunkQuestions<'_> {
    fn of(diff: &Diff) -> HunkQuestions<'_> {
        let can_land =
            |file: &&FileDiff| !matches!(file.change.class, ChangeClass::Never { .. }) && !file.change.drifted;
        let is_risky = |file: &&FileDiff| matches!(file.change.class, ChangeClass::RunsOnHost { .. });
        let mut files: Vec<&FileDiff> = diff.files.iter().filter(can_land).collect();
        files.sort_by_key(is_risky);
        let mut cards = Vec::new();
        for file in files {
            match &file.body {
                ChangeBody::Text(hunks) if matches!(file.change.kind, ChangeKind::Modified) => {
                    cards.extend(hunks.iter().map(|hunk| Card { file, hunk: Some(Cow::Borrowed(hunk)) }));
                }
                _ => cards.push(Card { file, hunk: None }),
            }
        }
        HunkQuestions { answers: vec![None; cards.len()], cards, at: 0 }
    }

    fn answer(&mut self, word: &str) -> AnswerEffect {
        match word {
            "y" | "n" => {
                self.answers[self.at] = Some(word == "y");
                self.at += 1;
            }
            "a" | "d" => {
                let path = &self.cards[self.at].file.change.path;
                while self.at < self.cards.len() && self.cards[self.at].file.change.path == *path {
                    self.answers[self.at] = Some(word == "a");
                    self.at += 1;
                }
            }
            "s" => return self.split(),
            "j" => self.at += 1,
            "k" => self.at = self.at.saturating_sub(1),
            "q" => return AnswerEffect::Done,
            _ => return AnswerEffect::Help,
        }
        AnswerEffect::Next
    }

    /// Asks about the parts of a hunk one by one; a part is not split again.
    fn split(&mut self) -> AnswerEffect {
        let Card { file, hunk: Some(Cow::Borrowed(hunk)) } = &self.cards[self.at] else { return AnswerEffect::Whole };
        let (file, parts) = (*file, split(hunk));
        if parts.len() < 2 {
            return AnswerEffect::Whole;
        }
        let answers = vec![None; parts.len()];
        let cards = parts.into_iter().map(|part| Card { file, hunk: Some(Cow::Owned(part)) });
        self.cards.splice(self.at..=self.at, cards);
        self.answers.splice(self.at..=self.at, answers);
        AnswerEffect::Next
    }

    /// Returns the choice. A file with all hunks chosen is chosen as a whole, with its mode.
    fn chosen(&self) -> (Vec<Rel>, Vec<String>) {
        let (mut paths, mut hunks) = (Vec::new(), Vec::new());
        for cards in self.by_file() {
            let taken = |n: &&usize| self.answers[**n] == Some(true);
            let file = &self.cards[cards[0]].file.change;
            if cards.iter().all(|n| taken(&n)) {
                paths.push(file.path.clone());
            } else {
                hunks.extend(
                    cards.iter().filter(taken).filter_map(|n| self.cards[*n].hunk.as_ref().map(|h| h.id.clone())),
                );
            }
        }
        (paths, hunks)
    }

    /// Groups the card numbers by file.
    fn by_file(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (number, card) in self.cards.iter().enumerate() {
            let same = |group: &Vec<usize>| self.cards[group[0]].file.change.path == card.file.change.path;
            match groups.last_mut().filter(|group| same(group)) {
                Some(group) => group.push(number),
                None => groups.push(vec![number]),
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{Change, DiffLine, LineKind};

    /// A hunk whose id ends in `+` has an unchanged line between two new ones.
    fn file(path: &str, class: ChangeClass, hunks: &[&str]) -> FileDiff {
        let of = |kind| DiffLine { kind, text: "x\n".into() };
        let line = |id: &str| match id.ends_with('+') {
            true => vec![of(LineKind::Added), of(LineKind::Context), of(LineKind::Added)],
            false => vec![of(LineKind::Added)],
        };
        let hunk = |id: &&str| Hunk {
            id: (*id).into(),
            old_start: 1,
            old_lines: 0,
            new_start: 1,
            new_lines: 1,
            lines: line(id),
        };
        let path = serde_json::from_value::<Rel>(path.into()).unwrap();
        let (kind, before, after, flags, drifted) = (ChangeKind::Modified, None, None, Vec::new(), false);
        let change = Change { path, kind, class, before, after, flags, drifted };
        FileDiff { change, body: ChangeBody::Text(hunks.iter().map(hunk).collect()) }
    }

    fn chosen(answers: &str) -> (Vec<String>, Vec<String>) {
        let files = vec![
            file("Makefile", ChangeClass::RunsOnHost { why: "build script".into() }, &["m1"]),
            file("a", ChangeClass::Ordinary, &["a1", "a2", "a3"]),
            file("b", ChangeClass::Ordinary, &["b1"]),
            file("c", ChangeClass::Ordinary, &["c+"]),
            file("pipe", ChangeClass::Never { why: "FIFO".into() }, &["p1"]),
        ];
        let diff = Diff { digest: String::new(), files, withheld: Vec::new(), notes: Vec::new() };
        let mut deck = HunkQuestions::of(&diff);
        for word in answers.split(' ') {
            if deck.at >= deck.cards.len() || deck.answer(word) == AnswerEffect::Done {
                break;
            }
        }
        let (paths, hunks) = deck.chosen();
        (paths.iter().map(ToString::to_string).collect(), hunks)
    }

    #[test]
    fn answers_choose_what_they_say() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("y n y y n y", &["b", "Makefile"], &["a1", "a3"]),
            ("y y y n n n", &["a"], &[]),
            ("n a y n n", &["b"], &["a2", "a3"]),
            ("y d y n n", &["b"], &["a1"]),
            ("d n s y n n", &[], &["c+.1"]),
            ("d n s n y n", &[], &["c+.2"]),
            ("d n s y y n", &["c"], &[]),
            ("d n s s a n", &["c"], &[]),
            ("s y q", &[], &["a1"]),
            ("y q", &[], &["a1"]),
            ("q", &[], &[]),
            ("y k n y y n n n", &["a"; 0], &["a2", "a3"]),
            ("j j y n n n", &[], &["a3"]),
            ("? x y q", &[], &["a1"]),
        ];
        for (answers, paths, hunks) in cases {
            let (got_paths, got_hunks) = chosen(answers);
            assert_eq!(
                (&got_paths[..], &got_hunks[..]),
                (
                    &paths.iter().map(|p| p.to_string()).collect::<Vec<_>>()[..],
                    &hunks.iter().map(|h| h.to_string()).collect::<Vec<_>>()[..]
                ),
                "{answers}"
            );
        }
    }
}
