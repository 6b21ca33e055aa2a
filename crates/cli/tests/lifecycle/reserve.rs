//! Reservations: exclusive, with their holder reported.

use super::words::Verbs;
use crate::support::{As, Place};

// promise 18
#[test]
fn what_is_reserved_is_had_by_one() {
    let place = Place::new(As::User);
    let inner = place.dir("home/project/src/deep");
    let holder = place.create(&["--name", "holder", "--reserve", "src"]);
    let (src, other_base) = (place.project.join("src"), place.dir("home/project/docs"));
    let taken: [&[&str]; 6] = [
        &["--reserve", "src"],
        &["--reserve", "src/deep/er"],
        &["--reserve", "."],
        &["--reserve", src.to_str().unwrap()],
        // Another directory, the same path on the host.
        &[inner.to_str().unwrap(), "--reserve", "."],
        &[src.to_str().unwrap(), "--reserve", "x", "--shared"],
    ];
    for words in taken {
        let fault = place.fault(&[&["create"], words].concat(), "conflict");
        let message = fault["message"].as_str().unwrap();
        assert!(message.contains(&holder) && message.contains("holder") && message.contains("since 2"), "{message}");
        assert_eq!(fault["subject"], holder.as_str());
    }
    let free: [&[&str]; 4] = [
        &["--reserve", "docs"],
        &["--reserve", "srcs"],
        &[other_base.to_str().unwrap()],
        &["--reserve", "a", "--shared"],
    ];
    free.iter().for_each(|words| drop(place.create(words)));
    assert_eq!(place.layers().len(), 5, "what is refused leaves nothing");
    place.json(&["rm", "holder"]);
    place.create(&["--reserve", "src"]);
}

// promise 18
#[test]
fn those_who_share_share() {
    let place = Place::new(As::User);
    place.create(&["--reserve", "src", "--shared"]);
    place.create(&["--reserve", "src/a", "--shared"]);
    place.fault(&["create", "--reserve", "src"], "conflict");
}

// promise 18
#[test]
fn a_reservation_is_let_go_as_it_was_said() {
    let place = Place::new(As::User);
    let long = place.create(&["--reserve", "long"]);
    let short = place.create(&["--reserve", "short", "--reserve-until", "stop"]);
    place.json(&["stop", &long]);
    place.json(&["stop", &short]);
    place.fault(&["create", "--reserve", "long"], "conflict");
    assert_eq!(place.json(&["inspect", &short])["holds_reservations"], false);
    let next = place.create(&["--reserve", "short"]);
    // The released reservation is held by another sandbox now.
    let refused = place.fault(&["start", &short], "conflict");
    assert_eq!(refused["subject"], next.as_str());
    place.json(&["rm", &next]);
    place.json(&["start", &short]);
    place.fault(&["create", "--reserve", "short"], "conflict");
}

// promise 14, 18
#[test]
fn of_fifty_who_ask_at_once_one_wins() {
    let place = Place::new(As::User);
    // Requests collide pairwise: the same path, above or below it.
    let ask = |n: usize| {
        let path = if n.is_multiple_of(2) { "src" } else { "src/below" };
        usize::from(place.verb(&["create", "--reserve", path]).status.success())
    };
    let won: usize = std::thread::scope(|scope| {
        let ask = &ask;
        let asked: Vec<_> = (0..50).map(|n| scope.spawn(move || ask(n))).collect();
        asked.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!((won, place.states().len(), place.layers().len()), (1, 1, 1));
    place.audit();
}
