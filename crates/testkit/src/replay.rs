//! Replay of reviews: the contents that a directory must have by the diffs shown to its reviewers and by the journal.

use super::{Place, to_the_end};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Paths that the participants write to.
pub const PATHS: [&str; 6] = ["a", "b", "c", "d/a", "d/b", "n/a"];
/// Paths that the directory has at first.
pub const FIRST: [&str; 4] = ["a", "b", "d/a", "d/stays"];

/// Digests by path; `None` where no file exists.
pub type Contents = BTreeMap<String, Option<String>>;

/// Digests before and after.
type Sides = (Option<String>, Option<String>);

/// Diffs that a reviewer was about to approve: both sides of every path.
#[derive(Default)]
pub struct Reviews(BTreeMap<String, BTreeMap<String, Sides>>);

impl Reviews {
    /// Records a diff; returns its digest and its paths.
    pub fn add(&mut self, shown: &Value) -> (String, Vec<String>) {
        let digest = shown["digest"].as_str().unwrap().to_owned();
        let side = |file: &Value, side: &str| file[side]["digest"].as_str().map(str::to_owned);
        let (mut contents, mut paths) = (BTreeMap::new(), Vec::new());
        for file in shown["files"].as_array().into_iter().flatten() {
            let path = file["path"].as_str().unwrap().to_owned();
            paths.push(path.clone());
            match file["kind"]["renamed"]["from"].as_str() {
                Some(from) => {
                    contents.insert(from.to_owned(), (side(file, "before"), None));
                    contents.insert(path, (None, side(file, "after")));
                }
                None => drop(contents.insert(path, (side(file, "before"), side(file, "after")))),
            }
        }
        self.0.insert(digest.clone(), contents);
        (digest, paths)
    }

    /// Replays the journal from the initial contents; returns the contents and the batches it names.
    pub fn replayed(&self, place: &Place, mut now: Contents) -> (Contents, BTreeSet<String>) {
        let told = document(place, &["provenance", ".", "--json"]);
        assert_eq!(told["more"], false, "all of it");
        let mut paths: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for batch in told["batches"].as_array().unwrap() {
            let own = batch["paths"].as_array().unwrap().iter().map(|path| path.as_str().unwrap().to_owned());
            // Directories are made and removed with their files.
            let own = own.filter(|path| PATHS.contains(&path.as_str())).collect();
            paths.insert(batch["batch"].as_str().unwrap().to_owned(), own);
        }
        let mut before: BTreeMap<String, Contents> = BTreeMap::new();
        for entry in journal(place) {
            let is_landing = ["approve", "undo"].contains(&entry["verb"].as_str().unwrap()) && entry["step"] == "done";
            if !is_landing {
                continue;
            }
            let body = &entry["body"];
            let (id, digest) = (body["batch"].as_str().unwrap().to_owned(), body["digest"].as_str().unwrap());
            let touched = paths.get(&id).cloned().unwrap_or_default();
            before.insert(id.clone(), touched.iter().map(|path| (path.clone(), now[path].clone())).collect());
            for path in touched {
                let after = match body["undoes"].as_str() {
                    Some(undone) => before[undone][&path].clone(),
                    None => {
                        let (was, after) = self.0[digest].get(&path).cloned().unwrap_or_default();
                        assert_eq!(was, now[&path], "{id} landed on what was reviewed: {path}");
                        after
                    }
                };
                now.insert(path, after);
            }
        }
        (now, before.into_keys().collect())
    }
}

/// Writes the first files into a place.
pub fn furnish(place: &Place) -> Contents {
    for path in FIRST {
        place.file(format!("home/project/{path}"), format!("first {path}\n"));
    }
    contents(place)
}

pub fn contents(place: &Place) -> Contents {
    PATHS.iter().map(|path| ((*path).to_owned(), digest_of(&place.project.join(path)))).collect()
}

fn digest_of(path: &Path) -> Option<String> {
    let output = Command::new("sha256sum").arg("--").arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    output.status.success().then(|| text.split(' ').next().unwrap().to_owned())
}

/// Returns the whole journal, oldest first.
pub fn journal(place: &Place) -> Vec<Value> {
    let document = document(place, &["audit", "log", "--json", "-n", "10000"]);
    document["entries"].as_array().unwrap().clone()
}

fn document(place: &Place, words: &[&str]) -> Value {
    let output = to_the_end(&mut place.cofferdam(words), b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
