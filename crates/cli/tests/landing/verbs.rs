//! `approve`, `reject`, `undo` and `provenance` from a user's view.

use crate::fixture::EditedProject;
use crate::support::As;

fn both(test: impl Fn(EditedProject)) {
    [As::Root, As::User].into_iter().for_each(|who| test(EditedProject::new(who)));
}

#[test]
fn approve_lands_what_was_shown_and_undo_takes_it_back() {
    both(|w| {
        let before = w.tree();
        let fault = w.fault(&["approve", "--json"]);
        assert_eq!(fault["error_kind"], "conflict", "no diff was shown: {fault}");
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
        let undone = w.json(&["undo", "--json"]);
        assert_eq!(w.tree(), before);
        let names: Vec<_> =
            undone["landed"].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
        assert!(names.contains(&"new/deep/file"), "{names:?}");
        assert!(!names.iter().any(|name| ["new", "new/deep"].contains(name)), "files, not what held them: {names:?}");
        assert_eq!(w.fault(&["undo", "--json"])["error_kind"], "not_found");
        w.ok(&["diff", "--stat"]);
        w.ok(&["approve", "changed"]);
        assert_eq!(w.read("changed"), "of the guest\n");
        w.ok(&["audit", "verify"]);
    });
}

// promise 14
#[test]
fn a_stale_digest_is_a_conflict_and_a_fresh_one_lands() {
    let w = EditedProject::new(As::User);
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

/// Approval applies to the diff that was shown: after a restore the sandbox has other content, which does not land
/// under the former digest, and the former content is not lost.
// promise 14
#[test]
fn a_digest_from_before_a_restore_is_a_conflict_and_loses_nothing() {
    let w = EditedProject::new(As::User);
    let first = w.json(&["snapshot", &w.name, "--json"])["id"].as_str().unwrap().to_owned();
    w.ok(&["exec", &w.name, "--", "sh", "-c", "echo later > changed; echo more > added"]);
    let seen = w.json(&["diff", "--json"]);
    let digest = seen["digest"].as_str().unwrap().to_owned();
    let second = w.json(&["snapshot", &w.name, "--json"])["id"].as_str().unwrap().to_owned();
    let before = w.tree();
    w.ok(&["restore", &first]);
    for words in
        [&["approve", "--digest", &digest, "--json"][..], &["approve", "changed", "--digest", &digest, "--json"]]
    {
        let fault = w.fault(words);
        assert_eq!(fault["error_kind"], "conflict", "{words:?}: {fault}");
    }
    assert_eq!(w.tree(), before, "nothing has landed");
    assert!(w.ok(&["diff", "--name-only"]).contains("changed"), "what it holds now is still there to be approved");
    // Restored, the former content has its digest again and can land under it.
    w.ok(&["restore", &second]);
    let again = w.json(&["diff", "--json"]);
    assert_eq!(again["digest"], seen["digest"]);
    w.ok(&["restore", &first]);
    let now = w.json(&["diff", "--json"]);
    assert_ne!(now["digest"], seen["digest"]);
    w.ok(&["approve", "changed", "--digest", now["digest"].as_str().unwrap()]);
    assert_eq!(w.read("changed"), "of the guest\n", "the control: a fresh digest lands what it was made of");
    assert!(!w.project().join("added").exists());
    w.ok(&["audit", "verify"]);
}

// promise 15
#[test]
fn what_is_rejected_is_gone_and_undo_works_without_the_sandbox() {
    let w = EditedProject::new(As::User);
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
    let w = EditedProject::new(As::User);
    let output = w.cofferdam(&["approve", "-i"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}

/// `--all` is the explicit form of the default.
#[test]
fn all_is_everything_ordinary_and_goes_with_no_path() {
    let w = EditedProject::new(As::User);
    w.ok(&["diff", "--stat"]);
    assert_eq!(w.fault(&["approve", "--all", "changed", "--json"])["error_kind"], "invalid_request");
    assert_eq!(w.read("changed"), "of the base: changed\n");
    w.ok(&["approve", "--all"]);
    assert_eq!(w.read("changed"), "of the guest\n");
    assert!(!w.project().join("Makefile").exists(), "what runs on the host is not ordinary");
}

/// A denied name can be created in the workspace, where it is harmless, and never lands.
#[test]
fn what_the_policy_denies_never_lands() {
    both(|w| {
        let name = format!("{}-kept", w.name);
        let denied = ["--deny-write", "kept", "--deny-write", "later/one"];
        w.ok(&[&["create", ".", "--name", &name][..], &denied].concat());
        w.ok(&["exec", &name, "--", "sh", "-c", "mkdir later; echo 1 > free"]);
        // A guest that got past the check of names, which is no boundary, would have created them in the layer.
        let layer = w.json(&["inspect", &name, "--json"])["layers"][0].as_str().unwrap().to_owned();
        let up = w.place.state().join("layers").join(layer).join("up");
        w.place.file(up.join("kept"), "1\n");
        w.place.file(up.join("later/one"), "1\n");
        let shown = w.json(&["diff", &name, "--json"]);
        let files = shown["files"].as_array().unwrap();
        let of = |path: &str| files.iter().find(|f| f["path"] == path).unwrap().to_string();
        assert!(of("kept").contains("denies it") && !of("free").contains("denies it"), "{shown}");
        for path in ["kept", "later/one"] {
            let fault = w.fault(&["approve", &name, path, "--json"]);
            assert!(fault["message"].as_str().unwrap().contains("fs.rules["), "the rule is named: {fault}");
        }
        let receipt = w.json(&["approve", &name, "--all", "--json"]);
        assert!(w.project().join("free").exists(), "control: {receipt}");
        assert!(!w.project().join("kept").exists() && !w.project().join("later/one").exists(), "{receipt}");
        let left = receipt["left"].to_string();
        assert!(left.contains("kept") && left.contains("later/one"), "{left}");
    });
}

#[test]
fn copies_that_can_bring_nothing_back_are_collected_and_undo_says_so() {
    let w = EditedProject::new(As::User);
    w.ok(&["diff", "--stat"]);
    let first = w.json(&["approve", "changed", "--json"])["batch"].as_str().unwrap().to_owned();
    let back = w.json(&["undo", "--json"])["batch"].as_str().unwrap().to_owned();
    w.ok(&["diff", "--stat"]);
    let second = w.json(&["approve", "changed", "--json"])["batch"].as_str().unwrap().to_owned();
    let batches = w.place.state().join("batches");
    // A batch directory without a record, as left by a kill between their removals.
    let orphan = format!("bat_{}", "0".repeat(32));
    w.place.file(batches.join(&orphan).join("1"), "copy");
    let listed = w.json(&["gc", "--dry-run", "--json"]);
    assert!(batches.join(&first).exists() && batches.join(&orphan).exists(), "listing takes nothing");
    let gone = w.json(&["gc", "--json"]);
    assert_eq!((&listed["items"], &listed["bytes"]), (&gone["items"], &gone["bytes"]));
    let ids: Vec<&str> = gone["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&first.as_str()) && ids.contains(&orphan.as_str()), "{gone}");
    assert!(!batches.join(&first).exists() && !batches.join(&orphan).exists());
    assert!(batches.join(&second).exists() && batches.join(&back).exists(), "what can be undone stays");
    assert_eq!(w.fault(&["undo", &first, "--json"])["error_kind"], "conflict");
    w.ok(&["undo", &second]);
    assert_eq!(w.read("changed"), "of the base: changed\n");
    std::fs::remove_dir_all(batches.join(&back)).unwrap();
    let fault = w.fault(&["undo", &back, "--json"]);
    assert!(fault["message"].as_str().unwrap().contains("collected"), "{fault}");
    assert_eq!(w.json(&["provenance", "changed", "--json"])["batches"].as_array().unwrap().len(), 4, "records stay");
}
