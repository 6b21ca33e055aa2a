//! Listing, searching and watching.

use crate::world::{World, kind, rel};
use node::files::Interest;
use node::files::list::{self, Ask};
use node::files::search::{self, Bound};
use node::files::watch::{self, Event, Watch, What};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};
use terms::ErrorKind;
use workspace::Rel;

fn names(listing: &list::Listing) -> Vec<String> {
    listing.entries.iter().map(|entry| entry.path.to_string()).collect()
}

#[test]
fn pages_of_any_size_tell_everything_once_and_in_order() {
    let world = World::new();
    for path in ["a/1", "a/b/2", "a/b.c/3", "a.b", "a-b/4", "z/y/x/w", "z/y/v"] {
        world.put(path, "x");
    }
    fs::create_dir(world.ws.join("empty")).unwrap();
    symlink("a", world.ws.join("link")).unwrap();
    let all = list::list(&world.root(), &Rel::top(), &Ask { depth: 10, ..Ask::default() }).unwrap();
    let want = "a a/1 a/b a/b/2 a/b.c a/b.c/3 a-b a-b/4 a.b empty link z z/y z/y/v z/y/x z/y/x/w";
    assert_eq!(names(&all).join(" "), want);
    assert_eq!(all.next, None);
    assert_eq!(all.entries[10].target, Some(workspace::Target::Text("a".into())));
    for limit in 1..=16 {
        let (mut told, mut after) = (Vec::new(), None);
        loop {
            let page = list::list(&world.root(), &Rel::top(), &Ask { depth: 10, limit, after }).unwrap();
            told.extend(names(&page));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(told.join(" "), want, "in pages of {limit}");
    }
    let flat = list::list(&world.root(), &rel("z"), &Ask::default()).unwrap();
    assert_eq!(names(&flat), ["z/y"]);
    assert_eq!(names(&list::list(&world.root(), &rel("link"), &Ask::default()).unwrap()), ["a/1", "a/b", "a/b.c"]);
    for ask in [
        Ask { depth: 0, ..Ask::default() },
        Ask { limit: 0, ..Ask::default() },
        Ask { limit: 10_001, ..Ask::default() },
    ] {
        assert_eq!(kind(list::list(&world.root(), &Rel::top(), &ask)), ErrorKind::InvalidRequest);
    }
    for after in ["", "zz", "2e2e", "61/62"] {
        let ask = Ask { after: Some(after.into()), ..Ask::default() };
        assert_eq!(kind(list::list(&world.root(), &Rel::top(), &ask)), ErrorKind::InvalidRequest, "{after:?}");
    }
    assert_eq!(kind(list::list(&world.root(), &rel("a.b"), &Ask::default())), ErrorKind::Conflict);
}

fn search(world: &World, path: &str, ask: search::Ask) -> search::Found {
    search::search(&world.root(), &rel(path), &ask).unwrap()
}

fn content(text: &str) -> search::Ask {
    search::Ask { content: Some(text.into()), ..search::Ask::default() }
}

fn globs(texts: &[&str]) -> search::Ask {
    search::Ask { globs: texts.iter().map(|t| (*t).to_owned()).collect(), ..search::Ask::default() }
}

#[test]
fn files_are_found_by_name_and_by_what_is_in_them() {
    let world = World::new();
    world.put("src/main.rs", "fn main() {\n    let needle = 1;\n}\n");
    world.put("src/deep/lib.rs", "// needle\n// Needle(\nlast needle");
    world.put("notes.txt", "no match");
    world.put("binary", "needle\0");
    let paths = |found: &search::Found| -> Vec<String> { found.matches.iter().map(|m| m.path.to_string()).collect() };
    assert_eq!(paths(&search(&world, ".", globs(&["*.rs"]))), ["src/deep/lib.rs", "src/main.rs"]);
    assert_eq!(paths(&search(&world, ".", globs(&["src/*.rs"]))), ["src/main.rs"]);
    assert_eq!(paths(&search(&world, "src", globs(&["**/lib.rs", "/main.rs"]))), ["src/deep/lib.rs", "src/main.rs"]);
    let found = search(&world, ".", content("needle"));
    assert_eq!((found.complete, found.binary), (true, 1));
    let places: Vec<_> =
        found.matches.iter().map(|m| (m.path.to_string(), m.line.unwrap(), m.column.unwrap())).collect();
    let lib = "src/deep/lib.rs".to_owned();
    assert_eq!(places, [(lib.clone(), 1, 4), (lib, 3, 6), ("src/main.rs".into(), 2, 9)]);
    assert_eq!(found.matches[2].text, Some(workspace::Target::Text("    let needle = 1;".into())));
    let any_case = search::Ask { ignore_case: true, ..content("^// needle\\($") };
    assert_eq!(search(&world, ".", any_case).matches.len(), 1);
    assert_eq!(search(&world, ".", search::Ask { fixed: true, ..content("Needle(") }).matches.len(), 1);
    let both = search::Ask { globs: vec!["main.*".into()], ..content("needle") };
    assert_eq!(paths(&search(&world, ".", both)), ["src/main.rs"]);
    for bad in
        [content("("), content(""), globs(&["["]), search::Ask::default(), content(&"(a{1,1000}){1,1000}".repeat(9))]
    {
        assert_eq!(kind(search::search(&world.root(), &Rel::top(), &bad)), ErrorKind::InvalidRequest);
    }
}

#[test]
fn a_search_that_stops_says_at_which_bound() {
    let world = World::new();
    world.put("f", &"needle\n".repeat(20));
    world.put("long", &"x".repeat(2 << 20));
    let few = search(&world, ".", search::Ask { limit: 5, ..content("needle") });
    assert_eq!((few.matches.len(), few.complete, few.stopped_by), (5, false, Some(Bound::Matches)));
    let exact = search(&world, ".", search::Ask { limit: 20, ..content("needle") });
    assert_eq!((exact.matches.len(), exact.complete), (20, true), "exactly the bound is no stop");
    assert_eq!(exact.skipped.len(), 1, "a line that is too long is told: {exact:?}");
    let hurried = search(&world, ".", search::Ask { patience: Duration::ZERO, ..content("needle") });
    assert_eq!((hurried.complete, hurried.stopped_by), (false, Some(Bound::Time)));
    // A pattern that would take other engines for ever, over text that is made for it.
    world.put("evil", &format!("{}!\n", "a".repeat(200_000)));
    let began = Instant::now();
    assert!(search(&world, ".", content("(a+)+$")).complete);
    assert!(began.elapsed() < Duration::from_secs(10));
}

/// What nobody waits for is not looked for, however much there is.
#[test]
fn nothing_is_looked_through_for_nobody() {
    let world = World::new();
    world.put("d/f", "needle\n");
    let (waits, left) = (Interest::default(), Interest::default());
    left.end();
    let ask = |interest: &Interest| search::Ask { interest: interest.clone(), ..content("needle") };
    assert_eq!(search(&world, ".", ask(&left)).stopped_by, Some(Bound::Time));
    assert_eq!(kind(watch::watch(world.root(), &Rel::top(), true, left)), ErrorKind::LimitExceeded);
    assert_eq!(search(&world, ".", ask(&waits)).matches.len(), 1, "the control");
    assert!(watch::watch(world.root(), &Rel::top(), true, waits).is_ok(), "the control");
}

/// Waits for events until one is the last that is wanted.
fn until(watch: &mut Watch, last: impl Fn(&Event) -> bool) -> Vec<Event> {
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

fn told(events: &[Event]) -> Vec<String> {
    let one = |e: &Event| match &e.to {
        Some(to) => format!("{:?} {} {to}", e.what, e.path),
        None => format!("{:?} {}", e.what, e.path),
    };
    events.iter().map(one).collect()
}

#[test]
fn changes_are_told_as_they_happen() {
    let world = World::new();
    world.put("d/f", "x");
    let mut watch = watch::watch(world.root(), &Rel::top(), true, Interest::default()).unwrap();
    assert_eq!(watch.take().unwrap(), []);
    assert!(watch.as_fd().try_clone_to_owned().is_ok());
    fs::write(world.ws.join("d/f"), "y").unwrap();
    fs::rename(world.ws.join("d/f"), world.ws.join("g")).unwrap();
    fs::create_dir_all(world.ws.join("new/er")).unwrap();
    fs::write(world.ws.join("new/er/file"), "z").unwrap();
    let events = until(&mut watch, |e| e.path == rel("new/er/file"));
    let events = told(&events);
    for want in ["Written d/f", "Renamed d/f g", "Created new", "Created new/er", "Created new/er/file"] {
        assert!(events.iter().any(|e| e == want), "{want} in {events:?}");
    }
    fs::rename(world.ws.join("new"), world.ws.join("moved")).unwrap();
    fs::write(world.ws.join("moved/er/late"), "z").unwrap();
    let events = told(&until(&mut watch, |e| e.path == rel("moved/er/late")));
    assert_eq!(&events[..2], ["Renamed new moved", "Created moved/er/late"], "directories keep being watched");
    fs::remove_dir_all(world.ws.join("moved")).unwrap();
    until(&mut watch, |e| e.what == What::Removed && e.path == rel("moved"));
    assert!(!watch.is_over());
    let mut below = watch::watch(world.root(), &rel("d"), true, Interest::default()).unwrap();
    fs::remove_dir_all(world.ws.join("d")).unwrap();
    until(&mut below, |e| e.what == What::Gone);
    assert!(below.is_over());
}

#[test]
fn what_is_not_below_is_not_told_and_what_is_lost_is() {
    let world = World::new();
    world.put("d/e/f", "x");
    symlink(&world.outside, world.ws.join("out")).unwrap();
    let mut flat = watch::watch(world.root(), &rel("d"), false, Interest::default()).unwrap();
    fs::write(world.ws.join("d/e/f"), "y").unwrap();
    fs::write(world.ws.join("d/here"), "y").unwrap();
    assert_eq!(told(&until(&mut flat, |e| e.path == rel("d/here")))[0], "Created d/here");
    assert_eq!(kind(watch::watch(world.root(), &rel("out"), true, Interest::default())), ErrorKind::PolicyDenied);
    assert_eq!(kind(watch::watch(world.root(), &rel("d/here"), true, Interest::default())), ErrorKind::Conflict);
    let most: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    for n in 0..most / 2 + 1000 {
        // Each makes events that cannot be taken together.
        let at = world.ws.join(format!("d/{}", n % 2));
        fs::write(&at, "").unwrap();
        fs::remove_file(&at).unwrap();
    }
    let events = until(&mut flat, |e| e.what == What::Overflow);
    assert!(events.len() > 1000, "and what was kept is told, too");
}
