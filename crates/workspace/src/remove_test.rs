use super::*;
use crate::testing::Scratch;
use api::Rel;
use rustix::fs::Mode;

#[test]
fn what_is_not_there_is_gone_already() {
    let scratch = Scratch::new();
    assert_eq!(tree(&scratch.dir, b"nothing").unwrap(), Removed::default());
}

#[test]
fn links_are_taken_and_what_they_lead_to_is_not() {
    let scratch = Scratch::new();
    scratch.file("outside/kept", b"kept");
    scratch.mkdir("tree");
    rustix::fs::symlinkat("../outside", scratch.dir.dir(&Rel::top().join(b"tree")).unwrap(), "away").unwrap();
    rustix::fs::symlinkat("outside", &scratch.dir, "itself").unwrap();
    tree(&scratch.dir, b"tree").unwrap();
    tree(&scratch.dir, b"itself").unwrap();
    assert_eq!(scratch.read("outside/kept"), b"kept");
    assert_eq!(scratch.dir.names().unwrap(), [b"outside".to_vec()]);
}

#[test]
fn a_chain_of_directories_beyond_any_path_is_taken() {
    let scratch = Scratch::new();
    scratch.mkdir("deep");
    let mut way = Descent::at(&scratch.dir).unwrap();
    way.enter(b"deep").unwrap();
    for _ in 0..10_000 {
        rustix::fs::mkdirat(way.here(), "dd", Mode::from_raw_mode(0o700)).unwrap();
        way.enter(b"dd").unwrap();
    }
    rustix::fs::mkdirat(way.here(), "shut", Mode::from_raw_mode(0)).unwrap();
    drop(way);
    let removed = tree(&scratch.dir, b"deep").unwrap();
    assert_eq!(removed.dirs, 10_002);
    assert!(scratch.dir.names().unwrap().is_empty());
}

#[test]
fn more_files_than_are_read_at_a_time_are_taken() {
    let scratch = Scratch::new();
    for i in 0..BATCH * 2 + 7 {
        scratch.file(&format!("many/{i}"), b"");
    }
    let removed = tree(&scratch.dir, b"many").unwrap();
    assert_eq!(removed.files, BATCH as u64 * 2 + 7);
    assert!(scratch.dir.names().unwrap().is_empty());
}

#[test]
fn shut_directories_are_taken() {
    let scratch = Scratch::new();
    scratch.file("a/b/file", b"x");
    scratch.chmod("a/b", 0o000);
    scratch.chmod("a", 0o555);
    tree(&scratch.dir, b"a").unwrap();
    assert!(scratch.dir.names().unwrap().is_empty());
}
