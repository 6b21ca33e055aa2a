//! Files that land in a submodule are committed there, and its new commit in the repository around it; never in a
//! repository that only pretends to be the submodule's.

use crate::fixture::{GitFixture, staged};
use api::CommitAuthor;
use std::fs;
use std::path::{Path, PathBuf};
use terms::ErrorKind;

const FILE: [&str; 2] = ["-c", "protocol.file.allow=always"];

/// A repository with one file, for use as a submodule.
fn library(fixture: &GitFixture, name: &str) -> PathBuf {
    let library = fixture.root.join(name);
    fs::create_dir(&library).unwrap();
    fixture.git_in(&library, &["init", "-q", "-b", "main", "."]);
    fs::write(library.join("l"), "l\n").unwrap();
    fixture.git_in(&library, &["add", "-A"]);
    fixture.git_in(&library, &["commit", "-qm", name]);
    library
}

fn add(fixture: &GitFixture, dir: &Path, library: &Path, at: &str) {
    let words = [&FILE[..], &["submodule", "--quiet", "add", library.to_str().unwrap(), at]].concat();
    fixture.git_in(dir, &words);
    fixture.git_in(dir, &["commit", "-qam", "a submodule"]);
}

/// A repository with a submodule at `deps/lib`, which has one at `more/inner`.
fn nested() -> GitFixture {
    let fixture = GitFixture::new();
    let inner = library(&fixture, "inner");
    let outer = library(&fixture, "outer");
    add(&fixture, &outer, &inner, "more/inner");
    add(&fixture, &fixture.project, &outer, "deps/lib");
    fixture.git(&[&FILE[..], &["submodule", "--quiet", "update", "--init", "--recursive"]].concat());
    fixture
}

fn head(fixture: &GitFixture, dir: &Path) -> String {
    fixture.git_in(dir, &["rev-parse", "HEAD"])
}

// promise 16
#[test]
fn a_submodule_gets_a_commit_of_its_own_and_the_repository_around_it_the_link() {
    let fixture = nested();
    let (lib, inner) = (fixture.project.join("deps/lib"), fixture.project.join("deps/lib/more/inner"));
    let before = [head(&fixture, &fixture.project), head(&fixture, &lib), head(&fixture, &inner)];
    fixture.git_in(&lib, &["switch", "-q", "-C", "work"]);
    let paths = ["a.txt", "deps/lib/l", "deps/lib/new", "deps/lib/more/inner/l"];
    let done = fixture.commit(&fixture.project, CommitAuthor::Agent, &paths, || {
        for path in paths {
            fixture.write(path, "landed\n");
        }
    });
    let done = done.unwrap();
    let after = [head(&fixture, &fixture.project), head(&fixture, &lib), head(&fixture, &inner)];
    assert_eq!(done.commit.as_ref(), Some(&after[0]));
    let commits: Vec<_> = done.inside.iter().map(|one| (one.path.to_string(), one.commit.clone())).collect();
    let due = [("deps/lib".to_owned(), after[1].clone()), ("deps/lib/more/inner".to_owned(), after[2].clone())];
    assert_eq!(commits, due);
    assert_eq!(done.inside[0].branch, "work");
    for (dir, before) in [&fixture.project, &lib, &inner].into_iter().zip(&before) {
        assert_eq!(fixture.git_in(dir, &["rev-parse", "HEAD^"]), *before, "one commit upon what was there");
        assert_eq!(fixture.git_in(dir, &["status", "--porcelain"]), "", "{}", dir.display());
        assert_eq!(fixture.git_in(dir, &["fsck", "--strict", "--no-dangling"]), "");
        assert_eq!(fixture.git_in(dir, &["log", "-1", "--format=%an %s"]), "builder What landed");
    }
    assert_eq!(fixture.git(&["show", "--name-only", "--format=", "HEAD"]), "a.txt\ndeps/lib");
    assert_eq!(fixture.git_in(&lib, &["show", "--name-only", "--format=", "HEAD"]), "l\nmore/inner\nnew");
    assert!(fixture.git(&["ls-tree", "HEAD", "deps/lib"]).contains(&format!("160000 commit {}", after[1])));
    // The submodule's HEAD was detached, as an update leaves it; a note says so.
    assert!(done.notes.iter().any(|note| note.contains("more/inner is on no branch")), "{:?}", done.notes);
}

// promise 16
#[test]
fn a_commit_of_nothing_but_a_submodule_and_one_below_the_top_work() {
    let fixture = nested();
    let lib = fixture.project.join("deps/lib");
    let write = || fs::write(lib.join("l"), "2\n").unwrap();
    let done = fixture.commit(&fixture.project.join("deps"), CommitAuthor::Reviewer, &["lib/l"], write).unwrap();
    assert_eq!(fixture.git(&["show", "--name-only", "--format=", "HEAD"]), "deps/lib");
    assert_eq!(done.inside[0].path.to_string(), "lib", "as a path of the base");
    assert_eq!(head(&fixture, &lib), done.inside[0].commit);
    // A sandbox over the submodule itself commits there alone.
    let before = head(&fixture, &fixture.project);
    let done =
        fixture.commit(&lib, CommitAuthor::Reviewer, &["l"], || fs::write(lib.join("l"), "3\n").unwrap()).unwrap();
    assert_eq!((head(&fixture, &lib), done.inside.len()), (done.commit.unwrap(), 0));
    assert_eq!(head(&fixture, &fixture.project), before);
    assert_eq!(fixture.git(&["status", "--porcelain"]), " M deps/lib");
    // The submodule's HEAD then differs from the recorded one; the next commit includes that, with a note.
    let done = fixture.commit(&fixture.project, CommitAuthor::Reviewer, &["deps/lib/l"], || {
        fs::write(lib.join("l"), "4\n").unwrap();
    });
    assert!(done.unwrap().notes.iter().any(|note| note.contains("deps/lib was at")));
    assert_eq!(fixture.git(&["status", "--porcelain"]), "");
}

// promise 16
#[test]
fn linked_work_trees_have_submodules_of_their_own() {
    let fixture = nested();
    let linked = fixture.root.join("linked");
    fixture.git(&["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    fixture.git_in(&linked, &[&FILE[..], &["submodule", "--quiet", "update", "--init"]].concat());
    let main = head(&fixture, &fixture.project.join("deps/lib"));
    let write = || fs::write(linked.join("deps/lib/l"), "side\n").unwrap();
    let done = fixture.commit(&linked, CommitAuthor::Agent, &["deps/lib/l"], write).unwrap();
    assert_eq!(head(&fixture, &linked.join("deps/lib")), done.inside[0].commit);
    assert_eq!(fixture.git(&["rev-parse", "side"]), done.commit.unwrap());
    assert_eq!(head(&fixture, &fixture.project.join("deps/lib")), main, "the other work tree's stays where it was");
}

// promise 16
#[test]
fn a_head_that_cannot_be_moved_outside_leaves_none_moved_inside() {
    let fixture = nested();
    let lib = fixture.project.join("deps/lib");
    let before = [head(&fixture, &fixture.project), head(&fixture, &lib)];
    let lock = fixture.project.join(".git/refs/heads/main.lock");
    let refused = fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt", "deps/lib/l"], || {
        fixture.write("a.txt", "x\n");
        fixture.write("deps/lib/l", "x\n");
        fs::write(&lock, "").unwrap();
    });
    assert_eq!(refused.expect_err("refused").error_kind, ErrorKind::Conflict);
    assert_eq!([head(&fixture, &fixture.project), head(&fixture, &lib)], before);
    fs::remove_file(&lock).unwrap();
    let again = fixture.prepare(&fixture.project, CommitAuthor::Agent, &["a.txt", "deps/lib/l"]).unwrap();
    let done = again.commit("bat_2", &staged(&fixture.project, &["a.txt", "deps/lib/l"])).unwrap();
    assert_eq!(done.inside.len(), 1, "the control");
}

// promise 16
#[test]
fn a_git_file_that_leads_elsewhere_is_refused_before_anything_lands() {
    let fixture = nested();
    let lib = fixture.project.join("deps/lib");
    let own = fs::read_to_string(lib.join(".git")).unwrap();
    // Another repository of the user, whose config even names this directory as its work tree.
    let victim = library(&fixture, "victim");
    fixture.git_in(&victim, &["config", "core.worktree", lib.to_str().unwrap()]);
    let refused = |what: &str| {
        let fault = fixture.prepare(&fixture.project, CommitAuthor::Agent, &["a.txt", "deps/lib/l"]).err().expect(what);
        assert_eq!(fault.error_kind, ErrorKind::Conflict, "{what}: {}", fault.message);
        assert!(fault.message.contains("deps/lib") || fault.message.contains("work tree"), "{what}: {}", fault.message);
    };
    fs::write(lib.join(".git"), format!("gitdir: {}\n", victim.join(".git").display())).unwrap();
    refused("another repository");
    // A link among the modules that leads to that repository.
    std::os::unix::fs::symlink(victim.join(".git"), fixture.project.join(".git/modules/evil")).unwrap();
    fs::write(lib.join(".git"), "gitdir: ../../.git/modules/evil\n").unwrap();
    refused("a link among the modules");
    // The surrounding repository's git directory, and its directory of modules.
    for there in ["../../.git", "../../.git/modules"] {
        fs::write(lib.join(".git"), format!("gitdir: {there}\n")).unwrap();
        assert!(fixture.prepare(&fixture.project, CommitAuthor::Agent, &["deps/lib/l"]).is_err(), "{there}");
    }
    // Names and URLs in .gitmodules have no effect.
    fs::write(lib.join(".git"), own).unwrap();
    let hostile = "[submodule \"deps/lib\"]\n\tpath = ../../victim\n\turl = ext::sh -c false\n\tupdate = !false\n\tignore = all\n";
    fs::write(fixture.project.join(".gitmodules"), hostile).unwrap();
    let before = head(&fixture, &victim);
    let write = || fs::write(lib.join("l"), "landed\n").unwrap();
    let done = fixture.commit(&fixture.project, CommitAuthor::Agent, &["deps/lib/l"], write).unwrap();
    assert_eq!((head(&fixture, &lib), head(&fixture, &victim)), (done.inside[0].commit.clone(), before), "the control");
}

/// `.gitmodules` is part of the tree, so its author is not trusted; its entries lead nowhere.
// promise 16
#[test]
fn hostile_names_and_paths_in_gitmodules_lead_nowhere() {
    let fixture = nested();
    let lib = fixture.project.join("deps/lib");
    let victim = library(&fixture, "victim");
    let untouched = head(&fixture, &victim);
    let outside = victim.to_str().unwrap();
    let hostile = [
        ("a path above", "[submodule \"deps/lib\"]\n\tpath = ../victim\n".to_owned()),
        ("an absolute path", format!("[submodule \"deps/lib\"]\n\tpath = {outside}\n")),
        ("a name above", "[submodule \"../../victim/.git\"]\n\tpath = deps/lib\n".to_owned()),
        ("an absolute name", format!("[submodule \"{outside}/.git\"]\n\tpath = deps/lib\n")),
        ("one name twice", "[submodule \"x\"]\n\tpath = deps/lib\n[submodule \"x\"]\n\tpath = ../victim\n".to_owned()),
        ("one path twice", "[submodule \"x\"]\n\tpath = deps/lib\n[submodule \"y\"]\n\tpath = deps/lib\n".to_owned()),
        ("a name in another's", "[submodule \"deps/lib/modules/more\"]\n\tpath = deps/lib\n".to_owned()),
        ("no settings at all", "[submodule \"deps/lib\n".to_owned()),
    ];
    for (what, text) in hostile {
        fs::write(fixture.project.join(".gitmodules"), text).unwrap();
        let modules = fs::read_dir(fixture.project.join(".git/modules")).unwrap().count();
        let write = || fs::write(lib.join("l"), format!("{what}\n")).unwrap();
        let done = fixture.commit(&fixture.project, CommitAuthor::Agent, &["deps/lib/l"], write);
        let done = done.unwrap_or_else(|fault| panic!("{what}: {}", fault.message));
        assert_eq!(done.inside.len(), 1, "{what}");
        assert_eq!(head(&fixture, &lib), done.inside[0].commit, "{what}: it is committed where it landed");
        assert_eq!(fixture.git_in(&lib, &["show", "HEAD:l"]), what);
        assert_eq!(head(&fixture, &victim), untouched, "{what}");
        assert_eq!(fixture.git_in(&victim, &["status", "--porcelain"]), "", "{what}");
        assert_eq!(fs::read_dir(fixture.project.join(".git/modules")).unwrap().count(), modules, "{what}");
    }
}

/// A submodule directory, or a parent of it, that is a link leads out of the tree.
// promise 16
#[test]
fn a_submodule_behind_a_link_is_refused() {
    let fixture = nested();
    let victim = library(&fixture, "victim");
    let untouched = head(&fixture, &victim);
    let around = fixture.root.join("around");
    fs::create_dir(&around).unwrap();
    fs::rename(&victim, around.join("lib")).unwrap();
    let before = head(&fixture, &fixture.project);
    for (link, to) in [("deps/lib", around.join("lib")), ("deps", around.clone())] {
        let (there, kept) = (fixture.project.join(link), fixture.root.join("kept"));
        fs::rename(&there, &kept).unwrap();
        std::os::unix::fs::symlink(&to, &there).unwrap();
        let refused = fixture.prepare(&fixture.project, CommitAuthor::Agent, &["deps/lib/l"]);
        assert!(refused.is_err(), "{link} is a link");
        assert_eq!(head(&fixture, &around.join("lib")), untouched, "{link}");
        fs::remove_file(&there).unwrap();
        fs::rename(&kept, &there).unwrap();
    }
    assert_eq!(head(&fixture, &fixture.project), before);
    let write = || fixture.write("deps/lib/l", "landed\n");
    let done = fixture.commit(&fixture.project, CommitAuthor::Agent, &["deps/lib/l"], write).unwrap();
    assert_eq!(done.inside.len(), 1, "the control");
}

/// Two submodules with one git directory: neither gets the other's commits.
// promise 16
#[test]
fn submodules_that_share_a_git_directory_do_not_move_each_others_heads() {
    let fixture = nested();
    let other = library(&fixture, "other");
    add(&fixture, &fixture.project, &other, "deps/two");
    let (lib, two) = (fixture.project.join("deps/lib"), fixture.project.join("deps/two"));
    let own = fs::read_to_string(two.join(".git")).unwrap();
    let before = [head(&fixture, &fixture.project), head(&fixture, &lib), head(&fixture, &two)];
    fs::write(two.join(".git"), "gitdir: ../../.git/modules/deps/lib\n").unwrap();
    let paths = ["deps/lib/l", "deps/two/l"];
    for paths in [&paths[..], &paths[1..]] {
        let done = fixture.commit(&fixture.project, CommitAuthor::Agent, paths, || {
            paths.iter().for_each(|path| fixture.write(path, "landed\n"));
        });
        assert!(done.is_err(), "{paths:?}");
        assert_eq!([head(&fixture, &fixture.project), head(&fixture, &lib)], before[..2], "{paths:?}");
    }
    fs::write(two.join(".git"), own).unwrap();
    assert_eq!(head(&fixture, &two), before[2]);
    let again = fixture.commit(&fixture.project, CommitAuthor::Agent, &paths, || {
        paths.iter().for_each(|path| fixture.write(path, "again\n"));
    });
    assert_eq!(again.unwrap().inside.len(), 2, "the control");
}

// promise 16
#[test]
fn a_repository_that_is_no_submodule_and_one_that_is_not_checked_out_are_left_alone() {
    let fixture = nested();
    let embedded = fixture.project.join("embedded");
    fs::create_dir(&embedded).unwrap();
    fixture.git_in(&embedded, &["init", "-q", "."]);
    let done = fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt", "embedded/x"], || {
        fixture.write("a.txt", "both\n");
        fixture.write("embedded/x", "both\n");
    });
    let done = done.unwrap();
    assert!(done.notes.len() == 1 && done.notes[0].contains("embedded is a repository of its own"), "{:?}", done.notes);
    assert_eq!(fixture.git(&["show", "--name-only", "--format=", "HEAD"]), "a.txt");
    fixture.git(&["submodule", "--quiet", "deinit", "-f", "deps/lib"]);
    let fault = fixture.prepare(&fixture.project, CommitAuthor::Agent, &["deps/lib/new"]).err().expect("refused");
    assert!(fault.message.contains("deps/lib"), "{}", fault.message);
    assert!(fixture.prepare(&fixture.project, CommitAuthor::Agent, &["deps/other"]).is_ok(), "the control");
}
