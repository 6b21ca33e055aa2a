//! Listing, searching and watching.

use crate::fixture::{WorkspaceFixture, kind, rel};
use api::{FileEvent, FileEventKind, FileListing, PathText, Rel, SearchBound, SearchResult};
use node::files::Interest;
use node::files::list::{self, ListOptions};
use node::files::search;
use node::files::watch::{self, InotifyWatch};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};
use terms::ErrorKind;

fn names(listing: &FileListing) -> Vec<String> {
    listing.entries.iter().map(|entry| entry.path.to_string()).collect()
}

#[test]
fn pages_of_any_size_tell_everything_once_and_in_order() {
    let fixture = WorkspaceFixture::new();
    for path in ["a/1", "a/b/2", "a/b.c/3", "a.b", "a-b/4", "z/y/x/w", "z/y/v"] {
        fixture.put(path, "x");
    }
    fs::create_dir(fixture.ws.join("empty")).unwrap();
    symlink("a", fixture.ws.join("link")).unwrap();
    let all = list::list(&fixture.root(), &Rel::top(), &ListOptions { depth: 10, ..ListOptions::default() }).unwrap();
    let want = "a a/1 a/b a/b/2 a/b.c a/b.c/3 a-b a-b/4 a.b empty link z z/y z/y/v z/y/x z/y/x/w";
    assert_eq!(names(&all).join(" "), want);
    assert_eq!(all.next, None);
    assert_eq!(all.entries[10].target, Some(PathText::Text("a".into())));
    for limit in 1..=16 {
        let (mut described, mut after) = (Vec::new(), None);
        loop {
            let page = list::list(&fixture.root(), &Rel::top(), &ListOptions { depth: 10, limit, after }).unwrap();
            described.extend(names(&page));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(described.join(" "), want, "in pages of {limit}");
    }
    let flat = list::list(&fixture.root(), &rel("z"), &ListOptions::default()).unwrap();
    assert_eq!(names(&flat), ["z/y"]);
    assert_eq!(
        names(&list::list(&fixture.root(), &rel("link"), &ListOptions::default()).unwrap()),
        ["a/1", "a/b", "a/b.c"]
    );
    for ask in [
        ListOptions { depth: 0, ..ListOptions::default() },
        ListOptions { limit: 0, ..ListOptions::default() },
        ListOptions { limit: 10_001, ..ListOptions::default() },
    ] {
        assert_eq!(kind(list::list(&fixture.root(), &Rel::top(), &ask)), ErrorKind::InvalidRequest);
    }
    for after in ["", "zz", "2e2e", "61/62"] {
        let ask = ListOptions { after: Some(after.into()), ..ListOptions::default() };
        assert_eq!(kind(list::list(&fixture.root(), &Rel::top(), &ask)), ErrorKind::InvalidRequest, "{after:?}");
    }
    assert_eq!(kind(list::list(&fixture.root(), &rel("a.b"), &ListOptions::default())), ErrorKind::Conflict);
}

fn search(fixture: &WorkspaceFixture, path: &str, ask: search::SearchOptions) -> SearchResult {
    search::search(&fixture.root(), &rel(path), &ask).unwrap()
}

fn content(text: &str) -> search::SearchOptions {
    search::SearchOptions { content: Some(text.into()), ..search::SearchOptions::default() }
}

fn globs(texts: &[&str]) -> search::SearchOptions {
    search::SearchOptions { globs: texts.iter().map(|t| (*t).to_owned()).collect(), ..search::SearchOptions::default() }
}

#[test]
fn files_are_found_by_name_and_by_what_is_in_them() {
    let fixture = WorkspaceFixture::new();
    fixture.put("src/main.rs", "fn main() {\n    let needle = 1;\n}\n");
    fixture.put("src/deep/lib.rs", "// needle\n// Needle(\nlast needle");
    fixture.put("notes.txt", "no match");
    fixture.put("binary", "needle\0");
    let paths = |found: &SearchResult| -> Vec<String> { found.matches.iter().map(|m| m.path.to_string()).collect() };
    assert_eq!(paths(&search(&fixture, ".", globs(&["*.rs"]))), ["src/deep/lib.rs", "src/main.rs"]);
    assert_eq!(paths(&search(&fixture, ".", globs(&["src/*.rs"]))), ["src/main.rs"]);
    assert_eq!(paths(&search(&fixture, "src", globs(&["**/lib.rs", "/main.rs"]))), ["src/deep/lib.rs", "src/main.rs"]);
    let found = search(&fixture, ".", content("needle"));
    assert_eq!((found.complete, found.binary), (true, 1));
    let places: Vec<_> =
        found.matches.iter().map(|m| (m.path.to_string(), m.line.unwrap(), m.column.unwrap())).collect();
    let lib = "src/deep/lib.rs".to_owned();
    assert_eq!(places, [(lib.clone(), 1, 4), (lib, 3, 6), ("src/main.rs".into(), 2, 9)]);
    assert_eq!(found.matches[2].text, Some(PathText::Text("    let needle = 1;".into())));
    let any_case = search::SearchOptions { ignore_case: true, ..content("^// needle\\($") };
    assert_eq!(search(&fixture, ".", any_case).matches.len(), 1);
    assert_eq!(search(&fixture, ".", search::SearchOptions { fixed: true, ..content("Needle(") }).matches.len(), 1);
    let both = search::SearchOptions { globs: vec!["main.*".into()], ..content("needle") };
    assert_eq!(paths(&search(&fixture, ".", both)), ["src/main.rs"]);
    for bad in [
        content("("),
        content(""),
        globs(&["["]),
        search::SearchOptions::default(),
        content(&"(a{1,1000}){1,1000}".repeat(9)),
    ] {
        assert_eq!(kind(search::search(&fixture.root(), &Rel::top(), &bad)), ErrorKind::InvalidRequest);
    }
}

#[test]
fn a_search_that_stops_says_at_which_bound() {
    let fixture = WorkspaceFixture::new();
    fixture.put("f", &"needle\n".repeat(20));
    fixture.put("long", &"x".repeat(2 << 20));
    let few = search(&fixture, ".", search::SearchOptions { limit: 5, ..content("needle") });
    assert_eq!((few.matches.len(), few.complete, few.stopped_by), (5, false, Some(SearchBound::Matches)));
    let exact = search(&fixture, ".", search::SearchOptions { limit: 20, ..content("needle") });
    assert_eq!((exact.matches.len(), exact.complete), (20, true), "exactly the bound is no stop");
    assert_eq!(exact.skipped.len(), 1, "a line that is too long is told: {exact:?}");
    let hurried = search(&fixture, ".", search::SearchOptions { patience: Duration::ZERO, ..content("needle") });
    assert_eq!((hurried.complete, hurried.stopped_by), (false, Some(SearchBound::Time)));
    // Catastrophic backtracking for other regex engines, on matching text.
    fixture.put("evil", &format!("{}!\n", "a".repeat(200_000)));
    let began = Instant::now();
    assert!(search(&fixture, ".", content("(a+)+$")).complete);
    assert!(began.elapsed() < Duration::from_secs(180));
}

/// A search or watch for a client that has left stops at once.
#[test]
fn nothing_is_looked_through_for_nobody() {
    let fixture = WorkspaceFixture::new();
    fixture.put("d/f", "needle\n");
    let (waits, left) = (Interest::default(), Interest::default());
    left.end();
    let ask = |interest: &Interest| search::SearchOptions { interest: interest.clone(), ..content("needle") };
    assert_eq!(search(&fixture, ".", ask(&left)).stopped_by, Some(SearchBound::Time));
    assert_eq!(kind(watch::watch(fixture.root(), &Rel::top(), true, left)), ErrorKind::LimitExceeded);
    assert_eq!(search(&fixture, ".", ask(&waits)).matches.len(), 1, "the control");
    assert!(watch::watch(fixture.root(), &Rel::top(), true, waits).is_ok(), "the control");
}

/// Collects events until the wanted one arrives.
fn until(watch: &mut InotifyWatch, last: impl Fn(&FileEvent) -> bool) -> Vec<FileEvent> {
    let (mut all, end) = (Vec::new(), Instant::now() + Duration::from_secs(20));
    while Instant::now() < end {
        all.extend(watch.take().unwrap());
        if all.iter().any(&last) {
            return all;
        }
        let mut fds = [rustix::event::PollFd::new(watch, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Duration::from_millis(200).try_into().unwrap())).unwrap();
    }
    panic!("it never came; so far {all:?}");
}

fn described(events: &[FileEvent]) -> Vec<String> {
    let one = |e: &FileEvent| match &e.to {
        Some(to) => format!("{:?} {} {to}", e.what, e.path),
        None => format!("{:?} {}", e.what, e.path),
    };
    events.iter().map(one).collect()
}

#[test]
fn changes_are_told_as_they_happen() {
    let fixture = WorkspaceFixture::new();
    fixture.put("d/f", "x");
    let mut watch = watch::watch(fixture.root(), &Rel::top(), true, Interest::default()).unwrap();
    assert_eq!(watch.take().unwrap(), []);
    assert!(watch.as_fd().try_clone_to_owned().is_ok());
    fs::write(fixture.ws.join("d/f"), "y").unwrap();
    fs::rename(fixture.ws.join("d/f"), fixture.ws.join("g")).unwrap();
    fs::create_dir_all(fixture.ws.join("new/er")).unwrap();
    fs::write(fixture.ws.join("new/er/file"), "z").unwrap();
    let events = until(&mut watch, |e| e.path == rel("new/er/file"));
    let events = described(&events);
    for want in ["Written d/f", "Renamed d/f g", "Created new", "Created new/er", "Created new/er/file"] {
        assert!(events.iter().any(|e| e == want), "{want} in {events:?}");
    }
    fs::rename(fixture.ws.join("new"), fixture.ws.join("moved")).unwrap();
    fs::write(fixture.ws.join("moved/er/late"), "z").unwrap();
    let events = described(&until(&mut watch, |e| e.path == rel("moved/er/late")));
    assert_eq!(&events[..2], ["Renamed new moved", "Created moved/er/late"], "directories keep being watched");
    fs::remove_dir_all(fixture.ws.join("moved")).unwrap();
    until(&mut watch, |e| e.what == FileEventKind::Removed && e.path == rel("moved"));
    assert!(!watch.is_over());
    let mut below = watch::watch(fixture.root(), &rel("d"), true, Interest::default()).unwrap();
    fs::remove_dir_all(fixture.ws.join("d")).unwrap();
    until(&mut below, |e| e.what == FileEventKind::Gone);
    assert!(below.is_over());
}

#[test]
fn what_is_not_below_is_not_told_and_what_is_lost_is() {
    let fixture = WorkspaceFixture::new();
    fixture.put("d/e/f", "x");
    symlink(&fixture.outside, fixture.ws.join("out")).unwrap();
    let mut flat = watch::watch(fixture.root(), &rel("d"), false, Interest::default()).unwrap();
    fs::write(fixture.ws.join("d/e/f"), "y").unwrap();
    fs::write(fixture.ws.join("d/here"), "y").unwrap();
    assert_eq!(described(&until(&mut flat, |e| e.path == rel("d/here")))[0], "Created d/here");
    assert_eq!(kind(watch::watch(fixture.root(), &rel("out"), true, Interest::default())), ErrorKind::PolicyDenied);
    assert_eq!(kind(watch::watch(fixture.root(), &rel("d/here"), true, Interest::default())), ErrorKind::Conflict);
    let most: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    for n in 0..most / 2 + 1000 {
        // Alternating files, so that events cannot be coalesced.
        let at = fixture.ws.join(format!("d/{}", n % 2));
        fs::write(&at, "").unwrap();
        fs::remove_file(&at).unwrap();
    }
    let events = until(&mut flat, |e| e.what == FileEventKind::Overflow);
    assert!(events.len() > 1000, "and what was kept is told, too");
}
