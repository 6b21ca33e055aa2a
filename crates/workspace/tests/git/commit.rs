//! Commits of exactly what landed, in every shape of repository.

use crate::place::{Place, staged};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use terms::ErrorKind;
use workspace::git::{Author, Committed, head};

fn id(committed: &Committed) -> &str {
    committed.commit.as_deref().expect("a commit")
}

#[test]
fn only_what_was_approved_is_committed_and_the_rest_of_the_index_stays() {
    let place = Place::new();
    place.write("staged.txt", "mine\n");
    place.git(&["add", "staged.txt"]);
    place.write("src/lib.rs", "fn mine() {}\n");
    place.write("untracked.txt", "mine\n");
    let before = place.git(&["rev-parse", "HEAD"]);
    let done = place.commit(&place.project, Author::Reviewer, &["a.txt", "new/b.txt"], || {
        place.write("a.txt", "one\n2\nthree\n");
        place.write("new/b.txt", "b\n");
    });
    let done = done.unwrap();
    assert_eq!(place.git(&["rev-parse", "HEAD"]), id(&done));
    assert_eq!(place.git(&["rev-parse", "HEAD^"]), before);
    assert_eq!(done.branch, "main");
    assert_eq!(place.git(&["show", "--name-only", "--format=", "HEAD"]), "a.txt\nnew/b.txt");
    assert_eq!(place.git(&["status", "--porcelain"]), " M src/lib.rs\nA  staged.txt\n?? untracked.txt");
    assert_eq!(place.git(&["fsck", "--strict", "--no-dangling"]), "");
    assert!(place.git(&["reflog", "-1"]).contains("commit: What landed"), "{}", place.git(&["reflog", "-1"]));
    let left = std::fs::read_dir(place.project.join(".git")).unwrap().flatten();
    assert!(
        left.into_iter().all(|e| !e.file_name().to_string_lossy().starts_with("cofferdam-")),
        "nothing is left behind"
    );
}

#[test]
fn deletes_modes_links_and_changes_of_kind_are_committed() {
    let place = Place::new();
    place.write("dir/x", "x\n");
    place.write("dir/y", "y\n");
    place.write("tool", "#!/bin/sh\n");
    place.git(&["add", "-A"]);
    place.git(&["commit", "-qm", "more"]);
    let paths = ["a.txt", "dir/x", "dir/y", "dir", "tool", "link", "odd\nname\twith \"quotes\""];
    let done = place.commit(&place.project, Author::Reviewer, &paths, || {
        std::fs::remove_file(place.project.join("a.txt")).unwrap();
        std::fs::remove_dir_all(place.project.join("dir")).unwrap();
        // A link where a directory was: nothing may be taken from beyond it.
        symlink("src", place.project.join("dir")).unwrap();
        symlink("nowhere", place.project.join("link")).unwrap();
        std::fs::set_permissions(place.project.join("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
        place.write("odd\nname\twith \"quotes\"", "odd\n");
    });
    id(&done.unwrap());
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    let tree = place.git(&["ls-tree", "-r", "HEAD"]);
    assert!(tree.contains("120000 blob") && tree.contains("\tdir\n") && tree.contains("100755"), "{tree}");
    assert!(!tree.contains("a.txt"), "{tree}");
}

#[test]
fn who_stands_in_the_commit() {
    let place = Place::new();
    let show = |format: &str| place.git(&["log", "-1", &format!("--format={format}")]);
    for (n, author) in [Author::Agent, Author::Reviewer, Author::Coauthored].into_iter().enumerate() {
        let done = place.commit(&place.project, author, &["a.txt"], || place.write("a.txt", &format!("{n}\n")));
        id(&done.unwrap());
        assert_eq!(show("%cn <%ce>"), "Rita Reviewer <rita@example.org>");
        let expected = if author == Author::Agent {
            "builder <agent@cofferdam.invalid>"
        } else {
            "Rita Reviewer <rita@example.org>"
        };
        assert_eq!(show("%an <%ae>"), expected);
        let trailers = show("%(trailers:only)");
        assert!(trailers.contains("Cofferdam-Sandbox: sbx_1\nCofferdam-Batch: bat_1"), "{trailers}");
        assert_eq!(
            trailers.contains("Co-authored-by: builder <agent@cofferdam.invalid>"),
            author == Author::Coauthored
        );
        assert_eq!(show("%s"), "What landed");
    }
}

#[test]
fn without_a_name_without_a_repository_or_with_git_at_work_it_is_refused_before_anything_lands() {
    let place = Place::new();
    let refused = |place: &Place| place.prepare(&place.project, Author::Agent, &["a.txt"]).err().expect("refused");
    assert!(place.prepare(&place.project, Author::Agent, &["a.txt"]).is_ok(), "the control");
    std::fs::write(place.home.join(".gitconfig"), "").unwrap();
    assert!(refused(&place).message.contains("user.name"));
    place.git(&["config", "user.name", "Local"]);
    place.git(&["config", "user.email", "local@example.org"]);
    assert!(place.prepare(&place.project, Author::Agent, &["a.txt"]).is_ok(), "the repository's own name counts");
    for (file, word) in [("MERGE_HEAD", "merge"), ("CHERRY_PICK_HEAD", "cherry-pick"), ("index.lock", "index")] {
        std::fs::write(place.project.join(".git").join(file), "").unwrap();
        let fault = refused(&place);
        assert!(fault.message.contains(word) && fault.hint.is_some(), "{}", fault.message);
        std::fs::remove_file(place.project.join(".git").join(file)).unwrap();
    }
    let other = Place::empty();
    let fault = other.prepare(&other.project, Author::Agent, &["a.txt"]).err().expect("refused");
    assert_eq!((fault.error_kind, fault.message.contains("no git repository")), (ErrorKind::InvalidRequest, true));
    let plan = workspace::git::Plan { message: " \n", author: Author::Agent, agent: "", sandbox: "sbx_1" };
    let empty = workspace::git::prepare(&place.project, &place.surroundings(), &plan, &[]);
    assert!(empty.err().expect("refused").message.contains("message"));
}

#[test]
fn a_head_that_moved_or_a_file_that_is_not_what_landed_is_not_committed_over() {
    let place = Place::new();
    let moved = place.commit(&place.project, Author::Agent, &["a.txt"], || {
        place.write("a.txt", "landed\n");
        place.write("other", "o\n");
        place.git(&["add", "other"]);
        place.git(&["commit", "-qm", "meanwhile"]);
    });
    let fault = moved.expect_err("refused");
    assert_eq!((fault.error_kind, fault.message.contains("moved")), (ErrorKind::Conflict, true), "{}", fault.message);
    assert_eq!(place.git(&["log", "-1", "--format=%s"]), "meanwhile");
    let prepared = place.prepare(&place.project, Author::Agent, &["a.txt"]).unwrap();
    let landed = staged(&place.project, &["a.txt"]);
    place.write("a.txt", "edited after it landed\n");
    let fault = prepared.commit("bat_1", &landed).expect_err("refused");
    assert!(fault.message.contains("not what landed") && fault.hint.is_some(), "{}", fault.message);
    assert_eq!(place.git(&["log", "-1", "--format=%s"]), "meanwhile");
}

#[test]
fn unborn_branches_detached_heads_and_packed_references_work() {
    let place = Place::empty();
    place.git(&["init", "-q", "-b", "feature/x", "."]);
    assert_eq!(head(&place.project), None);
    let done = place.commit(&place.project, Author::Agent, &["n"], || place.write("n", "n\n")).unwrap();
    assert_eq!((place.git(&["rev-parse", "HEAD"]), done.branch.as_str()), (id(&done).to_owned(), "feature/x"));
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    place.git(&["pack-refs", "--all"]);
    assert_eq!(head(&place.project).as_deref(), Some(id(&done)));
    let done = place.commit(&place.project, Author::Agent, &["n"], || place.write("n", "2\n")).unwrap();
    assert_eq!(head(&place.project).as_deref(), Some(id(&done)));
    place.git(&["checkout", "-q", "--detach"]);
    let on_none = place.commit(&place.project, Author::Agent, &["n"], || place.write("n", "3\n")).unwrap();
    assert_eq!(place.git(&["rev-parse", "HEAD"]), id(&on_none));
    assert_eq!(place.git(&["rev-parse", "feature/x"]), id(&done));
    assert!(on_none.branch.contains("detached"));
}

#[test]
fn linked_work_trees_and_directories_below_the_top_work() {
    let place = Place::new();
    let linked = place.root.join("linked");
    place.git(&["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    let done =
        place.commit(&linked, Author::Agent, &["a.txt"], || std::fs::write(linked.join("a.txt"), "l\n").unwrap());
    let done = done.unwrap();
    assert_eq!((place.git(&["rev-parse", "side"]), done.branch.as_str()), (id(&done).to_owned(), "side"));
    assert_ne!(place.git(&["rev-parse", "main"]), id(&done));
    assert_eq!(place.git_in(&linked, &["status", "--porcelain"]), "");
    assert_eq!(head(&linked).as_deref(), Some(id(&done)));
    let below = place.project.join("src");
    let done = place.commit(&below, Author::Agent, &["lib.rs"], || place.write("src/lib.rs", "fn g() {}\n")).unwrap();
    assert_eq!(place.git(&["show", "--name-only", "--format=", "main"]), "src/lib.rs");
    assert_eq!(head(&below).as_deref(), Some(id(&done)));
}

#[test]
fn a_git_file_that_leads_to_a_repository_that_does_not_know_it_is_refused() {
    let place = Place::new();
    let stray = place.root.join("stray");
    std::fs::create_dir(&stray).unwrap();
    std::fs::write(stray.join("a.txt"), "x\n").unwrap();
    for there in [place.project.join(".git"), place.project.join(".git/worktrees/w")] {
        if there.ends_with("w") {
            place.git(&["worktree", "add", "-q", place.root.join("w").to_str().unwrap()]);
        }
        std::fs::write(stray.join(".git"), format!("gitdir: {}\n", there.display())).unwrap();
        let fault = place.prepare(&stray, Author::Agent, &["a.txt"]).err().expect("refused");
        assert!(fault.message.contains("work tree"), "{}", fault.message);
    }
    place.git(&["config", "core.worktree", stray.to_str().unwrap()]);
    let fault = place.prepare(&place.project, Author::Agent, &["a.txt"]).err().expect("refused");
    assert!(fault.message.contains("another work tree"), "{}", fault.message);
}

#[test]
fn sha256_sparse_and_line_ends_are_honoured() {
    let place = Place::empty();
    place.git(&["init", "-q", "-b", "main", "--object-format=sha256", "."]);
    place.git(&["config", "core.autocrlf", "true"]);
    place.write("in/a", "a\n");
    place.write("out/b", "b\n");
    place.git(&["add", "-A"]);
    place.git(&["commit", "-qm", "first"]);
    place.git(&["sparse-checkout", "set", "in"]);
    assert!(!place.project.join("out/b").exists(), "the check-out is sparse");
    let done = place.commit(&place.project, Author::Agent, &["in/a"], || place.write("in/a", "1\r\n2\r\n")).unwrap();
    assert_eq!(id(&done).len(), 64);
    assert_eq!(place.git(&["cat-file", "blob", "HEAD:in/a"]), "1\n2");
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    assert_eq!(place.git(&["ls-tree", "-r", "--name-only", "HEAD"]), "in/a\nout/b");
}

#[test]
fn filtered_files_are_refused_and_others_beside_them_are_not() {
    let place = Place::new();
    place.write(".gitattributes", "*.bin filter=crypt\n*.txt text eol=lf\n");
    place.git(&["add", "-A"]);
    place.git(&["commit", "-qm", "attributes"]);
    assert!(place.prepare(&place.project, Author::Agent, &["x.bin"]).is_ok(), "git itself keeps it as it is, too");
    let more = "[filter \"crypt\"]\n\tclean = crypt\n\trequired = true\n";
    let config = std::fs::read_to_string(place.home.join(".gitconfig")).unwrap();
    std::fs::write(place.home.join(".gitconfig"), config + more).unwrap();
    let fault = place.prepare(&place.project, Author::Agent, &["a.txt", "x.bin"]).err().expect("refused");
    assert!(fault.message.contains("x.bin") && fault.message.contains("crypt"), "{}", fault.message);
    let done = place.commit(&place.project, Author::Agent, &["a.txt"], || place.write("a.txt", "1\r\n2\r\n"));
    id(&done.unwrap());
    assert_eq!(place.git(&["cat-file", "blob", "HEAD:a.txt"]), "1\n2");
}

#[test]
fn files_of_lfs_are_committed_as_pointers_and_their_bytes_are_kept() {
    let place = Place::new();
    place.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    place.git(&["add", "-A"]);
    place.git(&["commit", "-qm", "attributes"]);
    let more =
        "[filter \"lfs\"]\n\tclean = git-lfs clean -- %f\n\tprocess = git-lfs filter-process\n\trequired = true\n";
    let config = std::fs::read_to_string(place.home.join(".gitconfig")).unwrap();
    std::fs::write(place.home.join(".gitconfig"), config.clone() + more).unwrap();
    let old = "version https://git-lfs.github.com/spec/v1\noid sha256:1111111111111111111111111111111111111111111111111111111111111111\nsize 7\n";
    let write = || {
        place.write("x.bin", "content\n");
        place.write("empty.bin", "");
        place.write("pointer.bin", old);
        place.script(&place.project.join("run.bin"), "#!/bin/sh\n");
        place.write("a.txt", "text\n");
    };
    let all = ["x.bin", "empty.bin", "pointer.bin", "run.bin", "a.txt"];
    let done = place.commit(&place.project, Author::Agent, &all, write).unwrap();
    assert!(done.notes.iter().any(|note| note.contains("2 files are kept by git LFS")), "{:?}", done.notes);
    let oid = "434728a410a78f56fc1b5899c3593436e61ab0c731e9072d95e96db290205e53";
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 8");
    assert_eq!(place.git(&["cat-file", "blob", "HEAD:x.bin"]), pointer);
    assert_eq!(place.git(&["cat-file", "blob", "HEAD:pointer.bin"]), old.trim_end(), "what is a pointer stays one");
    assert_eq!(place.git(&["cat-file", "blob", "HEAD:empty.bin"]), "");
    assert_eq!(place.git(&["cat-file", "blob", "HEAD:a.txt"]), "text", "the control: others are committed as they are");
    assert!(place.git(&["ls-tree", "HEAD", "run.bin"]).starts_with("100755"));
    let kept = place.project.join(".git/lfs/objects/43/47").join(oid);
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "content\n");
    assert_eq!(std::fs::read_dir(kept.parent().unwrap()).unwrap().count(), 1, "nothing lies beside it");
    let again = place.commit(&place.project, Author::Agent, &["x.bin"], || ()).unwrap();
    assert_eq!(again.commit, None, "the same file makes the same pointer: {:?}", again.notes);
    place.git(&["config", "lfs.storage", "/elsewhere"]);
    let fault = place.prepare(&place.project, Author::Agent, &["x.bin"]).err().expect("refused");
    assert!(fault.message.contains("lfs.storage"), "{}", fault.message);
    assert!(place.prepare(&place.project, Author::Agent, &["a.txt"]).is_ok(), "the control");
}

#[test]
fn a_reftable_is_moved_by_git_itself() {
    let place = Place::empty();
    if !place.try_git(&place.project, &["init", "-q", "-b", "main", "--ref-format=reftable", "."]).status.success() {
        // This git knows no such thing; a repository that claims to have one is refused, below.
        place.git(&["init", "-q", "-b", "main", "."]);
        place.git(&["config", "core.repositoryformatversion", "1"]);
        place.git(&["config", "extensions.refstorage", "reftable"]);
        std::fs::create_dir(place.project.join(".git/reftable")).unwrap();
        let fault = place.prepare(&place.project, Author::Agent, &["a.txt"]).err().expect("refused");
        assert!(fault.message.contains("knows no reftable"), "{}", fault.message);
        return;
    }
    let done = place.commit(&place.project, Author::Agent, &["a.txt"], || place.write("a.txt", "1\n")).unwrap();
    assert_eq!(place.git(&["rev-parse", "main"]), id(&done), "the first commit of a branch");
    let done = place.commit(&place.project, Author::Agent, &["a.txt"], || place.write("a.txt", "2\n")).unwrap();
    assert_eq!(place.git(&["rev-parse", "main"]), id(&done));
    assert_eq!(done.branch, "main");
    assert!(place.git(&["reflog", "-1", "main"]).contains("commit: "), "{}", place.git(&["reflog", "main"]));
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    place.git(&["checkout", "-q", "--detach"]);
    let done = place.commit(&place.project, Author::Agent, &["a.txt"], || place.write("a.txt", "3\n")).unwrap();
    assert_eq!(place.git(&["rev-parse", "HEAD"]), id(&done));
    assert_eq!(place.git(&["rev-parse", "main"]), place.git(&["rev-parse", "HEAD~1"]), "no branch moved");
    let commit = || {
        place.write("a.txt", "4\n");
        place.git(&["commit", "-q", "--allow-empty", "-m", "somebody else"]);
    };
    let fault = place.commit(&place.project, Author::Agent, &["a.txt"], commit).expect_err("it moved");
    assert!(fault.message.contains("moved away"), "{}", fault.message);
    place.git(&["fsck"]);
}

#[test]
fn what_the_reviewer_had_not_committed_is_told_and_empty_commits_are_not_made() {
    let place = Place::new();
    place.write("a.txt", "mine\n");
    let done =
        place.commit(&place.project, Author::Agent, &["a.txt"], || place.write("a.txt", "mine\nand more\n")).unwrap();
    assert!(done.notes.iter().any(|note| note.contains("a.txt")), "{:?}", done.notes);
    let done = place.commit(&place.project, Author::Agent, &["a.txt"], || place.write("a.txt", "next\n")).unwrap();
    assert_eq!(done.notes, Vec::<String>::new());
    let none = place.commit(&place.project, Author::Agent, &["a.txt"], || ()).unwrap();
    assert_eq!((none.commit, none.notes.len()), (None, 1));
    place.git(&["config", "commit.gpgsign", "true"]);
    let done = place.commit(&place.project, Author::Agent, &["a.txt"], || place.write("a.txt", "signed?\n")).unwrap();
    assert!(done.commit.is_some() && done.notes.iter().any(|note| note.contains("not signed")), "{:?}", done.notes);
}

#[test]
fn what_root_commits_for_another_belongs_to_that_other() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let all = Command::new("chown").args(["-R", "1500:1500"]).arg(&place.project).status().unwrap();
    assert!(all.success());
    std::fs::set_permissions(&place.root, std::fs::Permissions::from_mode(0o755)).unwrap();
    let done = place.commit(&place.project, Author::Agent, &["a.txt", "b"], || {
        place.write("a.txt", "1\n");
        place.write("b", "2\n");
    });
    id(&done.unwrap());
    let mut left = vec![place.project.join(".git")];
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
    let place = Place::new();
    place.git(&["config", "core.splitIndex", "true"]);
    place.git(&["update-index", "--split-index"]);
    place.write("staged.txt", "mine\n");
    place.git(&["add", "staged.txt"]);
    let shared = |place: &Place| {
        let names = std::fs::read_dir(place.project.join(".git")).unwrap().flatten();
        names.into_iter().filter(|e| e.file_name().to_string_lossy().starts_with("sharedindex")).count()
    };
    assert!(shared(&place) > 0, "it is split");
    let done = place.commit(&place.project, Author::Agent, &["a.txt"], || place.write("a.txt", "1\n")).unwrap();
    assert_eq!(done.notes, Vec::<String>::new());
    assert_eq!(place.git(&["status", "--porcelain"]), "A  staged.txt");
}
