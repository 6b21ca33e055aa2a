//! approve, reject, undo and provenance as a user meets them.

use crate::support::As;
use crate::world::World;

fn both(test: impl Fn(World)) {
    [As::Root, As::User].into_iter().for_each(|who| test(World::new(who)));
}

#[test]
fn approve_lands_what_was_shown_and_undo_takes_it_back() {
    both(|w| {
        let before = w.tree();
        let fault = w.fault(&["approve", "--json"]);
        assert_eq!(fault["error_kind"], "conflict", "nobody has looked: {fault}");
        w.ok(&["diff", "--stat"]);
        let receipt = w.json(&["approve", "--json"]);
        assert_eq!(w.read("changed"), "of the guest\n");
        assert_eq!(w.read("fresh"), "of the base: moved\n");
        assert!(!w.project().join("dead").exists() && !w.project().join("Makefile").exists());
        assert_eq!(receipt["left"][0]["path"], "Makefile");
        let known = w.json(&["provenance", "new/deep", "--json"]);
        assert_eq!(known["batches"][0]["batch"], receipt["batch"]);
        assert_eq!(known["batches"][0]["actor"], "tester");
        assert!(known["batches"][0]["runs"][0].as_str().unwrap().starts_with("run_"));
        w.ok(&["undo"]);
        assert_eq!(w.tree(), before);
        assert_eq!(w.fault(&["undo", "--json"])["error_kind"], "not_found");
        w.ok(&["diff", "--stat"]);
        w.ok(&["approve", "changed"]);
        assert_eq!(w.read("changed"), "of the guest\n");
        w.ok(&["audit", "verify"]);
    });
}

#[test]
fn a_stale_digest_is_a_conflict_and_a_fresh_one_lands() {
    let w = World::new(As::User);
    let seen = w.json(&["diff", "--json"]);
    let digest = seen["digest"].as_str().unwrap().to_owned();
    w.ok(&["exec", &w.name, "--", "sh", "-c", "echo later > changed"]);
    for words in [&["approve", "--json"][..], &["approve", "--digest", &digest, "--json"]] {
        assert_eq!(w.fault(words)["error_kind"], "conflict");
    }
    assert_eq!(w.read("changed"), "of the base: changed\n");
    let now = w.json(&["diff", "--json"]);
    w.ok(&["approve", "changed", "--digest", now["digest"].as_str().unwrap()]);
    assert_eq!(w.read("changed"), "later\n");
}

#[test]
fn what_is_rejected_is_gone_and_undo_works_without_the_sandbox() {
    let w = World::new(As::User);
    assert_eq!(w.fault(&["reject", "--json"])["error_kind"], "invalid_request");
    w.ok(&["reject", "dead", "./Makefile"]);
    let names = w.ok(&["diff", "--name-only"]);
    assert!(!names.contains("dead") && !names.contains("Makefile") && names.contains("changed"), "{names}");
    let before = w.tree();
    w.ok(&["approve"]);
    w.ok(&["rm", &w.name]);
    w.ok(&["undo"]);
    assert_eq!(w.tree(), before);
}

#[test]
fn questions_need_a_terminal() {
    let w = World::new(As::User);
    let output = w.cofferdam(&["approve", "-i"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}
