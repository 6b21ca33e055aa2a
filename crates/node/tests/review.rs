//! Review verbs on sandboxes with hand-written layers, without a guest.

use api::{CommitAuthor, RebaseFate, Receipt, Rel};
use node::review::ReviewScope;
use node::review::approve::{self, ReviewedDiff, approve};
use node::review::commit;
use node::review::diff;
use node::review::rebase::{self, rebase};
use node::review::undo::undo;
use node::sandbox::Sandbox;
use node::sandbox::Which;
use node::{Caller, Node};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use workspace::Dir;

fn which(word: String) -> Which {
    Which { word: Some(word), version: None }
}

struct Bench {
    root: PathBuf,
    base: PathBuf,
    node: Node,
    caller: Caller,
}

const TEN: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n";

impl Bench {
    fn new() -> Bench {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("cofferdam-review-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        let base = root.join("project");
        std::fs::create_dir_all(&base).unwrap();
        std::fs::create_dir_all(root.join("home")).unwrap();
        let root = std::fs::canonicalize(&root).unwrap();
        let base = root.join("project");
        std::fs::write(base.join("a.txt"), TEN).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let home = root.join("home");
        let env = [
            ("HOME", home.clone()),
            ("PATH", "/usr/local/bin:/usr/bin:/bin".into()),
            ("COFFERDAM_STATE", root.join("state")),
        ];
        let env = env.into_iter().map(|(name, value)| (name.into(), value.into_os_string())).collect();
        let caller = Caller::new(base.clone(), home, "rita".into(), env, |_| None);
        Bench { root, base, node: Node::for_command(), caller }
    }

    /// A sandbox, and the directory of its changes.
    fn sandbox(&self, name: &str) -> (String, PathBuf) {
        let state = self.node.states.open(&self.caller).unwrap();
        let base = Dir::open(&self.base).unwrap();
        let number = u8::try_from(name.len()).unwrap();
        let (layer, _lock) = state.layers.make(&base, [number; 16]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let meta = base.meta(&Rel::top()).unwrap().unwrap();
        let record: Sandbox = serde_json::from_value(serde_json::json!({
            "name": name, "base": self.base, "base_id": [meta.dev, meta.ino], "driver": "overlay", "layers": [layer.id],
            "since": layer.made_at().unwrap(), "state": "active", "policy": {}, "created_ms": 1, "used_ms": 1,
            "git_head": workspace::git::head(&self.base),
        }))
        .unwrap();
        let id = terms::id("sbx", [number; 16]);
        state.store.write(|tx| tx.add(&id, record).map(drop)).unwrap();
        (id, state.path.join("layers").join(&layer.id).join("up"))
    }

    fn approve(&self, id: &str, commit: Option<commit::CommitOptions>) -> Receipt {
        let ask = approve::ApproveChanges {
            of: ReviewScope::Words(vec![id.into()]),
            everything: false,
            exact: Vec::new(),
            hunks: Vec::new(),
            runs_on_host: false,
            seen: ReviewedDiff::Unseen,
            commit,
        };
        approve(&self.node, &self.caller, &ask).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}

/// Merge base without git: the copy that the approval kept of the file.
#[test]
fn a_copy_that_an_approval_kept_is_the_past_of_a_merge() {
    let bench = Bench::new();
    let (one, up_one) = bench.sandbox("a");
    let (two, up_two) = bench.sandbox("bb");
    write(&up_one, "a.txt", &TEN.replace("2\n", "two\n"));
    write(&up_two, "a.txt", &TEN.replace("9\n", "nine\n"));
    bench.approve(&two, None);
    assert_eq!(std::fs::read_to_string(bench.base.join("a.txt")).unwrap(), TEN.replace("9\n", "nine\n"));
    let answer =
        rebase(&bench.node, &bench.caller, &rebase::RebaseSandbox { which: which(one.clone()), dry_run: false })
            .unwrap();
    assert_eq!(answer.files.iter().map(|f| &f.fate).collect::<Vec<_>>(), [&RebaseFate::Merged], "{answer:?}");
    let both = TEN.replace("2\n", "two\n").replace("9\n", "nine\n");
    assert_eq!(std::fs::read_to_string(up_one.join("a.txt")).unwrap(), both);
    bench.approve(&one, None);
    assert_eq!(std::fs::read_to_string(bench.base.join("a.txt")).unwrap(), both);
    let state = bench.node.states.open(&bench.caller).unwrap();
    assert!(state.store.verify().unwrap().broken.is_none());
    let noted = state.store.read(|tx| tx.noted(Some(&one), None, 100)).unwrap();
    let steps: Vec<_> = noted.iter().filter(|n| n.verb == "rebase").map(|n| n.step.name()).collect();
    assert_eq!(steps, ["intent", "done"]);
}

fn has_drifted(bench: &Bench, id: &str) -> bool {
    let of = ReviewScope::sandbox(which(id.to_owned()));
    let ask = diff::ReadDiff { of, everything: false, reader: diff::DiffReader::Program, page: None };
    diff::diff(&bench.node, &bench.caller, &ask).unwrap().diff.files[0].change.drifted
}

/// Drift count of `inspect`.
fn drifted(bench: &Bench, id: &str) -> u64 {
    node::list::inspect(&bench.node, &bench.caller, Some(id)).unwrap().pending.unwrap().drifted
}

/// A file restored to the content that another sandbox knew does not block that sandbox's changes, whatever its times.
#[test]
fn what_was_undone_is_no_drift_to_others() {
    let bench = Bench::new();
    let ((one, up_one), (two, up_two)) = (bench.sandbox("a"), bench.sandbox("bb"));
    write(&up_one, "a.txt", "one\n");
    write(&up_two, "a.txt", "two\n");
    let batch = bench.approve(&one, None).batch;
    assert!(has_drifted(&bench, &two), "the control: it is another");
    assert_eq!(drifted(&bench, &two), 1, "at a glance, too");
    undo(&bench.node, &bench.caller, Some(&batch)).unwrap();
    assert!(!has_drifted(&bench, &two), "the bytes are what they were");
    assert_eq!(drifted(&bench, &two), 0, "at a glance, too");
    node::gc::collect(&bench.node, &bench.caller, &node::config::Keep::default()).unwrap();
    assert!(!has_drifted(&bench, &two), "what tells so is kept as long as somebody asks");
    write(&bench.base, "a.txt", "by hand\n");
    assert!(has_drifted(&bench, &two), "changed by hand");
    write(&bench.base, "a.txt", TEN);
    bench.approve(&two, None);
    assert_eq!(std::fs::read_to_string(bench.base.join("a.txt")).unwrap(), "two\n");
}

/// New timestamps with the given content.
fn touch(bench: &Bench, text: &str) {
    std::thread::sleep(Duration::from_millis(50));
    std::fs::remove_file(bench.base.join("a.txt")).unwrap();
    write(&bench.base, "a.txt", text);
}

// promise 14
#[test]
fn what_was_only_touched_is_no_drift_where_somebody_had_looked() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    let ((one, up_one), (two, up_two)) = (bench.sandbox("a"), bench.sandbox("bb"));
    write(&up_one, "a.txt", "one\n");
    write(&up_two, "a.txt", "two\n");
    assert!(!has_drifted(&bench, &one), "the control, and a look");
    touch(&bench, TEN);
    assert!(!has_drifted(&bench, &one), "the bytes are what they were");
    assert_eq!(drifted(&bench, &one), 0, "at a glance, too");
    assert!(has_drifted(&bench, &two), "no earlier diff of this one: it cannot tell");
    touch(&bench, &TEN.replace('1', "7"));
    assert!(has_drifted(&bench, &one), "as many bytes, and others");
    touch(&bench, TEN);
    assert!(!has_drifted(&bench, &one), "there and back");
    let bits = |mode| std::fs::set_permissions(bench.base.join("a.txt"), PermissionsExt::from_mode(mode)).unwrap();
    bits(0o600);
    assert!(has_drifted(&bench, &one), "its bits are not what they were");
    bits(0o644);
    bench.approve(&one, None);
    assert_eq!(std::fs::read_to_string(bench.base.join("a.txt")).unwrap(), "one\n");
}

/// A diff of a drifted file records no new knowledge, and knowledge from before a rebase does not count after it.
// promise 14
#[test]
fn only_what_a_sandbox_knew_counts_as_what_it_was() {
    let bench = Bench::new();
    let (one, up_one) = bench.sandbox("a");
    write(&up_one, "a.txt", "one\n");
    touch(&bench, "by hand\n");
    assert!(has_drifted(&bench, &one), "the control, and a look");
    touch(&bench, "by hand\n");
    assert!(has_drifted(&bench, &one), "it never knew that");

    let (two, up_two) = bench.sandbox("bb");
    write(&up_two, "a.txt", "two\n");
    assert!(!has_drifted(&bench, &two), "the control, and a look");
    std::fs::remove_file(up_two.join("a.txt")).unwrap();
    touch(&bench, "again by hand\n");
    rebase(&bench.node, &bench.caller, &rebase::RebaseSandbox { which: which(two.clone()), dry_run: false }).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    write(&up_two, "a.txt", "two\n");
    touch(&bench, "by hand\n");
    assert!(has_drifted(&bench, &two), "what it was before the rebase is not what it knows now");
}

/// Drift is not hidden by restored timestamps, by a clean git index, or by a damaged list of known files.
// promise 14
#[test]
fn nobodys_word_is_taken_for_what_a_file_was() {
    let bench = repository();
    let (id, up) = bench.sandbox("a");
    write(&up, "a.txt", "one\n");
    let first = std::fs::metadata(bench.base.join("a.txt")).unwrap().modified().unwrap();
    touch(&bench, &TEN.replace('1', "7"));
    // The index claims that the file never had other content.
    git(&bench, &["add", "a.txt"]);
    git(&bench, &["update-index", "--assume-unchanged", "a.txt"]);
    std::fs::File::options().write(true).open(bench.base.join("a.txt")).unwrap().set_modified(first).unwrap();
    assert!(has_drifted(&bench, &id), "by its bytes it is another");
    let list = up.parent().unwrap().join("sights");
    for text in ["", "[]", "{}", "[{\"path\":\"a.txt\"}]", "\0\0\0\0"] {
        std::fs::write(&list, text).unwrap();
        assert!(has_drifted(&bench, &id), "{text:?}");
    }
    let ask = rebase::RebaseSandbox { which: which(id.clone()), dry_run: false };
    assert_eq!(rebase(&bench.node, &bench.caller, &ask).unwrap().conflicts, 1, "and a rebase tells");
}

/// Content replaced before a sandbox was made is not known to it, and is no merge base for its changes.
#[test]
fn what_was_there_before_the_sandbox_is_not_what_it_knew() {
    let bench = Bench::new();
    let (one, up_one) = bench.sandbox("a");
    write(&up_one, "a.txt", "one\n");
    bench.approve(&one, None);
    std::thread::sleep(Duration::from_millis(20));
    let (two, up_two) = bench.sandbox("bb");
    write(&up_two, "a.txt", "two\n");
    assert!(!has_drifted(&bench, &two), "the control");
    write(&bench.base, "a.txt", TEN);
    assert!(has_drifted(&bench, &two), "it knew what landed");
    let answer =
        rebase(&bench.node, &bench.caller, &rebase::RebaseSandbox { which: which(two), dry_run: true }).unwrap();
    assert_eq!(answer.conflicts, 1, "both sides changed it: {answer:?}");
}

#[test]
fn a_deletion_that_was_undone_is_no_drift_to_others() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let bench = Bench::new();
    let ((one, up_one), (two, up_two)) = (bench.sandbox("a"), bench.sandbox("bb"));
    for up in [&up_one, &up_two] {
        mknodat(CWD, up.join("a.txt"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    }
    let batch = bench.approve(&one, None).batch;
    undo(&bench.node, &bench.caller, Some(&batch)).unwrap();
    assert!(!has_drifted(&bench, &two), "the bytes are what they were");
    bench.approve(&two, None);
    assert!(!bench.base.join("a.txt").exists());
}

fn git(bench: &Bench, args: &[&str]) -> String {
    let mut command = std::process::Command::new("git");
    command.env_clear().envs(bench.caller.env.iter().map(|(k, v)| (k, v))).args(args).current_dir(&bench.base);
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

fn repository() -> Bench {
    let bench = Bench::new();
    write(&bench.caller.home, ".gitconfig", "[user]\n\tname = Rita\n\temail = rita@example.org\n");
    git(&bench, &["init", "-q", "-b", "main"]);
    git(&bench, &["add", "-A"]);
    git(&bench, &["commit", "-qm", "first"]);
    std::thread::sleep(Duration::from_millis(20));
    bench
}

#[test]
fn what_lands_is_committed_and_the_batch_knows_as_what() {
    let bench = repository();
    write(&bench.base, "mine", "not for this commit\n");
    let (id, up) = bench.sandbox("agent-7");
    write(&up, "a.txt", &TEN.replace("2\n", "two\n"));
    std::fs::create_dir(up.join("new")).unwrap();
    write(&up.join("new"), "b.txt", "b\n");
    let wish = commit::CommitOptions { message: "Two".into(), author: CommitAuthor::Agent };
    let receipt = bench.approve(&id, Some(wish));
    assert_eq!(receipt.commit.as_deref(), Some(git(&bench, &["rev-parse", "HEAD"]).as_str()), "{receipt:?}");
    assert_eq!(
        git(&bench, &["show", "--name-only", "--format=%an|%cn|%s", "HEAD"]),
        "agent-7|Rita|Two\n\na.txt\nnew/b.txt"
    );
    assert_eq!(git(&bench, &["status", "--porcelain"]), "?? mine");
    let trailers = git(&bench, &["log", "-1", "--format=%(trailers:only)"]);
    assert!(trailers.contains(&id) && trailers.contains(&receipt.batch), "{trailers}");
    let state = bench.node.states.open(&bench.caller).unwrap();
    let batch = state.store.read(|tx| tx.get::<node::batch::Batch>(&receipt.batch)).unwrap().unwrap();
    assert_eq!(batch.record.commit, receipt.commit);
}

#[test]
fn a_commit_that_cannot_be_made_keeps_everything_from_landing() {
    let bench = repository();
    let (id, up) = bench.sandbox("agent");
    write(&up, "a.txt", "changed\n");
    write(&bench.base.join(".git"), "MERGE_HEAD", "");
    let wish = Some(commit::CommitOptions { message: "x".into(), author: CommitAuthor::Reviewer });
    let ask = approve::ApproveChanges {
        of: ReviewScope::Words(vec![id.into()]),
        everything: false,
        exact: Vec::new(),
        hunks: Vec::new(),
        runs_on_host: false,
        seen: ReviewedDiff::Unseen,
        commit: wish,
    };
    let fault = approve(&bench.node, &bench.caller, &ask).unwrap_err();
    assert!(fault.message.contains("merge"), "{}", fault.message);
    assert_eq!(std::fs::read_to_string(bench.base.join("a.txt")).unwrap(), TEN);
    std::fs::remove_file(bench.base.join(".git/MERGE_HEAD")).unwrap();
    assert!(approve(&bench.node, &bench.caller, &ask).unwrap().commit.is_some(), "the control");
}

#[test]
fn marks_of_a_conflict_land_only_when_their_file_is_named() {
    let bench = repository();
    let (id, up) = bench.sandbox("agent");
    write(&up, "a.txt", &TEN.replace("5\n", "ours\n"));
    write(&up, "b.txt", "b\n");
    write(&bench.base, "a.txt", &TEN.replace("5\n", "theirs\n"));
    let answer =
        rebase(&bench.node, &bench.caller, &rebase::RebaseSandbox { which: which(id.clone()), dry_run: false })
            .unwrap();
    assert_eq!(answer.conflicts, 1, "{answer:?}");
    let receipt = bench.approve(&id, None);
    assert_eq!(receipt.landed.iter().map(|l| l.path.to_string()).collect::<Vec<_>>(), ["b.txt"], "{receipt:?}");
    assert!(
        receipt.left.iter().any(|left| left.path.to_string() == "a.txt" && left.why.contains("conflict")),
        "{receipt:?}"
    );
    let words = vec![id.into(), "a.txt".into()];
    let ask = approve::ApproveChanges {
        of: ReviewScope::Words(words),
        everything: false,
        exact: Vec::new(),
        hunks: Vec::new(),
        runs_on_host: false,
        seen: ReviewedDiff::Unseen,
        commit: None,
    };
    approve(&bench.node, &bench.caller, &ask).unwrap();
    assert!(std::fs::read_to_string(bench.base.join("a.txt")).unwrap().contains("<<<<<<< workspace"), "it was named");
}

/// Copies of the last hundred batches over a directory are kept at any age, and those of others for thirty days.
#[test]
fn copies_of_batches_are_kept_by_number_and_by_age() {
    use node::batch::Batch;
    let bench = Bench::new();
    let (id, up) = bench.sandbox("a");
    write(&up, "a.txt", "changed\n");
    let batch = bench.approve(&id, None).batch;
    let state = bench.node.states.open(&bench.caller).unwrap();
    let landed_at = |at_ms: u64| {
        let change = |tx: &store::Tx<'_>| {
            let mut kept = tx.get::<Batch>(&batch)?.unwrap();
            kept.record.at_ms = at_ms;
            tx.change(kept)
        };
        state.store.write(change).unwrap().record
    };
    let is_listed = || {
        let items = node::gc::plan(&bench.node, &bench.caller, &node::config::Keep::default()).unwrap().items;
        items.iter().any(|item| item.id == batch)
    };
    let record = landed_at(1);
    assert!(!is_listed(), "old, and among the last");
    let now = terms::clock::now_ms();
    let later = |n: u64| Batch { at_ms: now + n, ..record.clone() };
    state.store.write(|tx| (0..100).try_for_each(|n| tx.add(&format!("bat_{n:032}"), later(n)).map(drop))).unwrap();
    landed_at(now - 1000);
    assert!(!is_listed(), "not among the last, and young");
    landed_at(1);
    assert!(is_listed(), "neither");
    node::gc::collect(&bench.node, &bench.caller, &node::config::Keep::default()).unwrap();
    let fault = node::review::undo::undo(&bench.node, &bench.caller, Some(&batch)).unwrap_err();
    assert!(fault.message.contains("collected"), "{fault:?}");
}
