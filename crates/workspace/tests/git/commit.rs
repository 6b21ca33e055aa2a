//! Commits of exactly the landed files, in every shape of repository.

use crate::fixture::{GitFixture, staged};
use api::CommitAuthor;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use terms::ErrorKind;
use workspace::git::{Committed, head};

fn id(committed: &Committed) -> &str {
    committed.commit.as_deref().expect("a commit")
}

// promise 16
#[test]
fn only_what_was_approved_is_committed_and_the_rest_of_the_index_stays() {
    let fixture = GitFixture::new();
    fixture.write("staged.txt", "mine\n");
    fixture.git(&["add", "staged.txt"]);
    fixture.write("src/lib.rs", "fn mine() {}\n");
    fixture.write("untracked.txt", "mine\n");
    let before = fixture.git(&["rev-parse", "HEAD"]);
    let done = fixture.commit(&fixture.project, CommitAuthor::Reviewer, &["a.txt", "new/b.txt"], || {
        fixture.write("a.txt", "one\n2\nthree\n");
        fixture.write("new/b.txt", "b\n");
    });
    let done = done.unwrap();
    assert_eq!(fixture.git(&["rev-parse", "HEAD"]), id(&done));
    assert_eq!(fixture.git(&["rev-parse", "HEAD^"]), before);
    assert_eq!(done.branch, "main");
    assert_eq!(fixture.git(&["show", "--name-only", "--format=", "HEAD"]), "a.txt\nnew/b.txt");
    assert_eq!(fixture.git(&["status", "--porcelain"]), " M src/lib.rs\nA  staged.txt\n?? untracked.txt");
    assert_eq!(fixture.git(&["fsck", "--strict", "--no-dangling"]), "");
    assert!(fixture.git(&["reflog", "-1"]).contains("commit: What landed"), "{}", fixture.git(&["reflog", "-1"]));
    let left = std::fs::read_dir(fixture.project.join(".git")).unwrap().flatten();
    assert!(
        left.into_iter().all(|e| !e.file_name().to_string_lossy().starts_with("cofferdam-")),
        "nothing is left behind"
    );
}

#[test]
fn deletes_modes_links_and_changes_of_kind_are_committed() {
    let fixture = GitFixture::new();
    fixture.write("dir/x", "x\n");
    fixture.write("dir/y", "y\n");
    fixture.write("tool", "#!/bin/sh\n");
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "-qm", "more"]);
    let paths = ["a.txt", "dir/x", "dir/y", "dir", "tool", "link", "odd\nname\twith \"quotes\""];
    let done = fixture.commit(&fixture.project, CommitAuthor::Reviewer, &paths, || {
        std::fs::remove_file(fixture.project.join("a.txt")).unwrap();
        std::fs::remove_dir_all(fixture.project.join("dir")).unwrap();
        // A link in place of a directory: no file may be read through it.
        symlink("src", fixture.project.join("dir")).unwrap();
        symlink("nowhere", fixture.project.join("link")).unwrap();
        std::fs::set_permissions(fixture.project.join("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
        fixture.write("odd\nname\twith \"quotes\"", "odd\n");
    });
    id(&done.unwrap());
    assert_eq!(fixture.git(&["status", "--porcelain"]), "");
    let tree = fixture.git(&["ls-tree", "-r", "HEAD"]);
    assert!(tree.contains("120000 blob") && tree.contains("\tdir\n") && tree.contains("100755"), "{tree}");
    assert!(!tree.contains("a.txt"), "{tree}");
}

#[test]
fn who_stands_in_the_commit() {
    let fixture = GitFixture::new();
    let show = |format: &str| fixture.git(&["log", "-1", &format!("--format={format}")]);
    for (n, author) in [CommitAuthor::Agent, CommitAuthor::Reviewer, CommitAuthor::Coauthored].into_iter().enumerate() {
        let done = fixture.commit(&fixture.project, author, &["a.txt"], || fixture.write("a.txt", &format!("{n}\n")));
        id(&done.unwrap());
        assert_eq!(show("%cn <%ce>"), "Rita Reviewer <rita@example.org>");
        let expected = if author == CommitAuthor::Agent {
            "builder <agent@cofferdam.invalid>"
        } else {
            "Rita Reviewer <rita@example.org>"
        };
        assert_eq!(show("%an <%ae>"), expected);
        let trailers = show("%(trailers:only)");
        assert!(trailers.contains("Cofferdam-Sandbox: sbx_1\nCofferdam-Batch: bat_1"), "{trailers}");
        assert_eq!(
            trailers.contains("Co-authored-by: builder <agent@cofferdam.invalid>"),
            author == CommitAuthor::Coauthored
        );
        assert_eq!(show("%s"), "What landed");
    }
}

// promise 16
#[test]
fn without_a_name_without_a_repository_or_with_git_at_work_it_is_refused_before_anything_lands() {
    let fixture = GitFixture::new();
    let refused = |fixture: &GitFixture| {
        fixture.prepare(&fixture.project, CommitAuthor::Agent, &["a.txt"]).err().expect("refused")
    };
    assert!(fixture.prepare(&fixture.project, CommitAuthor::Agent, &["a.txt"]).is_ok(), "the control");
    std::fs::write(fixture.home.join(".gitconfig"), "").unwrap();
    assert!(refused(&fixture).message.contains("user.name"));
    fixture.git(&["config", "user.name", "Local"]);
    fixture.git(&["config", "user.email", "local@example.org"]);
    assert!(
        fixture.prepare(&fixture.project, CommitAuthor::Agent, &["a.txt"]).is_ok(),
        "the repository's own name counts"
    );
    for (file, word) in [("MERGE_HEAD", "merge"), ("CHERRY_PICK_HEAD", "cherry-pick"), ("index.lock", "index")] {
        std::fs::write(fixture.project.join(".git").join(file), "").unwrap();
        let fault = refused(&fixture);
        assert!(fault.message.contains(word) && fault.hint.is_some(), "{}", fault.message);
        std::fs::remove_file(fixture.project.join(".git").join(file)).unwrap();
    }
    let other = GitFixture::empty();
    let fault = other.prepare(&other.project, CommitAuthor::Agent, &["a.txt"]).err().expect("refused");
    assert_eq!(
        (fault.error_kind, fault.message.contains("not in a git repository")),
        (ErrorKind::InvalidRequest, true)
    );
    let plan = workspace::git::Plan { message: " \n", author: CommitAuthor::Agent, agent: "", sandbox: "sbx_1" };
    let empty = workspace::git::prepare(&fixture.project, &fixture.surroundings(), &plan, &[]);
    assert!(empty.err().expect("refused").message.contains("message"));
}

// promise 16
#[test]
fn a_head_that_moved_or_a_file_that_is_not_what_landed_is_not_committed_over() {
    let fixture = GitFixture::new();
    let moved = fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt"], || {
        fixture.write("a.txt", "landed\n");
        fixture.write("other", "o\n");
        fixture.git(&["add", "other"]);
        fixture.git(&["commit", "-qm", "meanwhile"]);
    });
    let fault = moved.expect_err("refused");
    assert_eq!(
        (fault.error_kind, fault.message.contains("no longer at")),
        (ErrorKind::Conflict, true),
        "{}",
        fault.message
    );
    assert_eq!(fixture.git(&["log", "-1", "--format=%s"]), "meanwhile");
    let prepared = fixture.prepare(&fixture.project, CommitAuthor::Agent, &["a.txt"]).unwrap();
    let landed = staged(&fixture.project, &["a.txt"]);
    fixture.write("a.txt", "edited after it landed\n");
    let fault = prepared.commit("bat_1", &landed).expect_err("refused");
    assert!(fault.message.contains("not what landed") && fault.hint.is_some(), "{}", fault.message);
    assert_eq!(fixture.git(&["log", "-1", "--format=%s"]), "meanwhile");
}

#[test]
fn unborn_branches_detached_heads_and_packed_references_work() {
    let fixture = GitFixture::empty();
    fixture.git(&["init", "-q", "-b", "feature/x", "."]);
    assert_eq!(head(&fixture.project), None);
    let done = fixture.commit(&fixture.project, CommitAuthor::Agent, &["n"], || fixture.write("n", "n\n")).unwrap();
    assert_eq!((fixture.git(&["rev-parse", "HEAD"]), done.branch.as_str()), (id(&done).to_owned(), "feature/x"));
    assert_eq!(fixture.git(&["status", "--porcelain"]), "");
    fixture.git(&["pack-refs", "--all"]);
    assert_eq!(head(&fixture.project).as_deref(), Some(id(&done)));
    let done = fixture.commit(&fixture.project, CommitAuthor::Agent, &["n"], || fixture.write("n", "2\n")).unwrap();
    assert_eq!(head(&fixture.project).as_deref(), Some(id(&done)));
    fixture.git(&["checkout", "-q", "--detach"]);
    let on_none = fixture.commit(&fixture.project, CommitAuthor::Agent, &["n"], || fixture.write("n", "3\n")).unwrap();
    assert_eq!(fixture.git(&["rev-parse", "HEAD"]), id(&on_none));
    assert_eq!(fixture.git(&["rev-parse", "feature/x"]), id(&done));
    assert!(on_none.branch.contains("detached"));
}

#[test]
fn linked_work_trees_and_directories_below_the_top_work() {
    let fixture = GitFixture::new();
    let linked = fixture.root.join("linked");
    fixture.git(&["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    let done = fixture
        .commit(&linked, CommitAuthor::Agent, &["a.txt"], || std::fs::write(linked.join("a.txt"), "l\n").unwrap());
    let done = done.unwrap();
    assert_eq!((fixture.git(&["rev-parse", "side"]), done.branch.as_str()), (id(&done).to_owned(), "side"));
    assert_ne!(fixture.git(&["rev-parse", "main"]), id(&done));
    assert_eq!(fixture.git_in(&linked, &["status", "--porcelain"]), "");
    assert_eq!(head(&linked).as_deref(), Some(id(&done)));
    let below = fixture.project.join("src");
    let done = fixture
        .commit(&below, CommitAuthor::Agent, &["lib.rs"], || fixture.write("src/lib.rs", "fn g() {}\n"))
        .unwrap();
    assert_eq!(fixture.git(&["show", "--name-only", "--format=", "main"]), "src/lib.rs");
    assert_eq!(head(&below).as_deref(), Some(id(&done)));
}

#[test]
fn a_git_file_that_leads_to_a_repository_that_does_not_know_it_is_refused() {
    let fixture = GitFixture::new();
    let stray = fixture.root.join("stray");
    std::fs::create_dir(&stray).unwrap();
    std::fs::write(stray.join("a.txt"), "x\n").unwrap();
    for there in [fixture.project.join(".git"), fixture.project.join(".git/worktrees/w")] {
        if there.ends_with("w") {
            fixture.git(&["worktree", "add", "-q", fixture.root.join("w").to_str().unwrap()]);
        }
        std::fs::write(stray.join(".git"), format!("gitdir: {}\n", there.display())).unwrap();
        let fault = fixture.prepare(&stray, CommitAuthor::Agent, &["a.txt"]).err().expect("refused");
        assert!(fault.message.contains("work tree"), "{}", fault.message);
    }
    fixture.git(&["config", "core.worktree", stray.to_str().unwrap()]);
    let fault = fixture.prepare(&fixture.project, CommitAuthor::Agent, &["a.txt"]).err().expect("refused");
    assert!(fault.message.contains("another work tree"), "{}", fault.message);
}

#[test]
fn sha256_sparse_and_line_ends_are_honoured() {
    let fixture = GitFixture::empty();
    fixture.git(&["init", "-q", "-b", "main", "--object-format=sha256", "."]);
    fixture.git(&["config", "core.autocrlf", "true"]);
    fixture.write("in/a", "a\n");
    fixture.write("out/b", "b\n");
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "-qm", "first"]);
    fixture.git(&["sparse-checkout", "set", "in"]);
    assert!(!fixture.project.join("out/b").exists(), "the check-out is sparse");
    let done = fixture
        .commit(&fixture.project, CommitAuthor::Agent, &["in/a"], || fixture.write("in/a", "1\r\n2\r\n"))
        .unwrap();
    assert_eq!(id(&done).len(), 64);
    assert_eq!(fixture.git(&["cat-file", "blob", "HEAD:in/a"]), "1\n2");
    assert_eq!(fixture.git(&["status", "--porcelain"]), "");
    assert_eq!(fixture.git(&["ls-tree", "-r", "--name-only", "HEAD"]), "in/a\nout/b");
}

#[test]
fn filtered_files_are_refused_and_others_beside_them_are_not() {
    let fixture = GitFixture::new();
    fixture.write(".gitattributes", "*.bin filter=crypt\n*.txt text eol=lf\n");
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "-qm", "attributes"]);
    assert!(
        fixture.prepare(&fixture.project, CommitAuthor::Agent, &["x.bin"]).is_ok(),
        "git itself keeps it as it is, too"
    );
    let more = "[filter \"crypt\"]\n\tclean = crypt\n\trequired = true\n";
    let config = std::fs::read_to_string(fixture.home.join(".gitconfig")).unwrap();
    std::fs::write(fixture.home.join(".gitconfig"), config + more).unwrap();
    let fault = fixture.prepare(&fixture.project, CommitAuthor::Agent, &["a.txt", "x.bin"]).err().expect("refused");
    assert!(fault.message.contains("x.bin") && fault.message.contains("crypt"), "{}", fault.message);
    let done =
        fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt"], || fixture.write("a.txt", "1\r\n2\r\n"));
    id(&done.unwrap());
    assert_eq!(fixture.git(&["cat-file", "blob", "HEAD:a.txt"]), "1\n2");
}

// promise 16
#[test]
fn files_of_lfs_are_committed_as_pointers_and_their_bytes_are_kept() {
    let fixture = GitFixture::new();
    fixture.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "-qm", "attributes"]);
    let more =
        "[filter \"lfs\"]\n\tclean = git-lfs clean -- %f\n\tprocess = git-lfs filter-process\n\trequired = true\n";
    let config = std::fs::read_to_string(fixture.home.join(".gitconfig")).unwrap();
    std::fs::write(fixture.home.join(".gitconfig"), config.clone() + more).unwrap();
    let old = "version https://git-lfs.github.com/spec/v1\noid sha256:1111111111111111111111111111111111111111111111111111111111111111\nsize 7\n";
    let write = || {
        fixture.write("x.bin", "content\n");
        fixture.write("empty.bin", "");
        fixture.write("pointer.bin", old);
        fixture.script(&fixture.project.join("run.bin"), "#!/bin/sh\n");
        fixture.write("a.txt", "text\n");
    };
    let all = ["x.bin", "empty.bin", "pointer.bin", "run.bin", "a.txt"];
    let done = fixture.commit(&fixture.project, CommitAuthor::Agent, &all, write).unwrap();
    assert!(done.notes.iter().any(|note| note.contains("2 files are stored by git LFS")), "{:?}", done.notes);
    let oid = "434728a410a78f56fc1b5899c3593436e61ab0c731e9072d95e96db290205e53";
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 8");
    assert_eq!(fixture.git(&["cat-file", "blob", "HEAD:x.bin"]), pointer);
    assert_eq!(fixture.git(&["cat-file", "blob", "HEAD:pointer.bin"]), old.trim_end(), "what is a pointer stays one");
    assert_eq!(fixture.git(&["cat-file", "blob", "HEAD:empty.bin"]), "");
    assert_eq!(
        fixture.git(&["cat-file", "blob", "HEAD:a.txt"]),
        "text",
        "the control: others are committed as they are"
    );
    assert!(fixture.git(&["ls-tree", "HEAD", "run.bin"]).starts_with("100755"));
    let kept = fixture.project.join(".git/lfs/objects/43/47").join(oid);
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "content\n");
    assert_eq!(std::fs::read_dir(kept.parent().unwrap()).unwrap().count(), 1, "nothing lies beside it");
    let again = fixture.commit(&fixture.project, CommitAuthor::Agent, &["x.bin"], || ()).unwrap();
    assert_eq!(again.commit, None, "the same file makes the same pointer: {:?}", again.notes);
    fixture.git(&["config", "lfs.storage", "/elsewhere"]);
    let fault = fixture.prepare(&fixture.project, CommitAuthor::Agent, &["x.bin"]).err().expect("refused");
    assert!(fault.message.contains("lfs.storage"), "{}", fault.message);
    assert!(fixture.prepare(&fixture.project, CommitAuthor::Agent, &["a.txt"]).is_ok(), "the control");
}

// promise 16
#[test]
fn a_reftable_is_moved_by_git_itself() {
    let fixture = GitFixture::empty();
    if !fixture.try_git(&fixture.project, &["init", "-q", "-b", "main", "--ref-format=reftable", "."]).status.success()
    {
        // The installed git has no reftable support; a repository that claims to use it must be refused.
        fixture.git(&["init", "-q", "-b", "main", "."]);
        fixture.git(&["config", "core.repositoryformatversion", "1"]);
        fixture.git(&["config", "extensions.refstorage", "reftable"]);
        std::fs::create_dir(fixture.project.join(".git/reftable")).unwrap();
        let fault = fixture.prepare(&fixture.project, CommitAuthor::Agent, &["a.txt"]).err().expect("refused");
        assert!(fault.message.contains("does not support the reftable"), "{}", fault.message);
        return;
    }
    let done =
        fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt"], || fixture.write("a.txt", "1\n")).unwrap();
    assert_eq!(fixture.git(&["rev-parse", "main"]), id(&done), "the first commit of a branch");
    let done =
        fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt"], || fixture.write("a.txt", "2\n")).unwrap();
    assert_eq!(fixture.git(&["rev-parse", "main"]), id(&done));
    assert_eq!(done.branch, "main");
    assert!(fixture.git(&["reflog", "-1", "main"]).contains("commit: "), "{}", fixture.git(&["reflog", "main"]));
    assert_eq!(fixture.git(&["status", "--porcelain"]), "");
    fixture.git(&["checkout", "-q", "--detach"]);
    let done =
        fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt"], || fixture.write("a.txt", "3\n")).unwrap();
    assert_eq!(fixture.git(&["rev-parse", "HEAD"]), id(&done));
    assert_eq!(fixture.git(&["rev-parse", "main"]), fixture.git(&["rev-parse", "HEAD~1"]), "no branch moved");
    let commit = || {
        fixture.write("a.txt", "4\n");
        fixture.git(&["commit", "-q", "--allow-empty", "-m", "somebody else"]);
    };
    let fault = fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt"], commit).expect_err("it moved");
    assert!(fault.message.contains("is no longer at"), "{}", fault.message);
    fixture.git(&["fsck"]);
}

#[test]
fn what_the_reviewer_had_not_committed_is_told_and_empty_commits_are_not_made() {
    let fixture = GitFixture::new();
    fixture.write("a.txt", "mine\n");
    let done = fixture
        .commit(&fixture.project, CommitAuthor::Agent, &["a.txt"], || fixture.write("a.txt", "mine\nand more\n"))
        .unwrap();
    assert!(done.notes.iter().any(|note| note.contains("a.txt")), "{:?}", done.notes);
    let done =
        fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt"], || fixture.write("a.txt", "next\n")).unwrap();
    assert_eq!(done.notes, Vec::<String>::new());
    let none = fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt"], || ()).unwrap();
    assert_eq!((none.commit, none.notes.len()), (None, 1));
    fixture.git(&["config", "commit.gpgsign", "true"]);
    let done = fixture
        .commit(&fixture.project, CommitAuthor::Agent, &["a.txt"], || fixture.write("a.txt", "signed?\n"))
        .unwrap();
    assert!(done.commit.is_some() && done.notes.iter().any(|note| note.contains("not signed")), "{:?}", done.notes);
}

#[test]
fn what_root_commits_for_another_belongs_to_that_other() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let fixture = GitFixture::new();
    let all = Command::new("chown").args(["-R", "1500:1500"]).arg(&fixture.project).status().unwrap();
    assert!(all.success());
    std::fs::set_permissions(&fixture.root, std::fs::Permissions::from_mode(0o755)).unwrap();
    let done = fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt", "b"], || {
        fixture.write("a.txt", "1\n");
        fixture.write("b", "2\n");
    });
    id(&done.unwrap());
    let mut left = vec![fixture.project.join(".git")];
    while let Some(path) = left.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!(meta.uid(), 1500, "{}", path.display());
        if meta.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().flatten().map(|e| e.path()));
        }
    }
}

#[test]
fn an_index_in_two_files_stays_readable() {
    let fixture = GitFixture::new();
    fixture.git(&["config", "core.splitIndex", "true"]);
    fixture.git(&["update-index", "--split-index"]);
    fixture.write("staged.txt", "mine\n");
    fixture.git(&["add", "staged.txt"]);
    let shared = |fixture: &GitFixture| {
        let names = std::fs::read_dir(fixture.project.join(".git")).unwrap().flatten();
        names.into_iter().filter(|e| e.file_name().to_string_lossy().starts_with("sharedindex")).count()
    };
    assert!(shared(&fixture) > 0, "it is split");
    let done =
        fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt"], || fixture.write("a.txt", "1\n")).unwrap();
    assert_eq!(done.notes, Vec::<String>::new());
    assert_eq!(fixture.git(&["status", "--porcelain"]), "A  staged.txt");
}
