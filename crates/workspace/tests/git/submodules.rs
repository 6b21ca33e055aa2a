//! What lands in a submodule is committed there, and its new commit in the repository around it; never in a repository that merely
//! pretends to be the submodule's.

use crate::place::{Place, staged};
use std::fs;
use std::path::{Path, PathBuf};
use terms::ErrorKind;
use workspace::git::Author;

const FILE: [&str; 2] = ["-c", "protocol.file.allow=always"];

/// A repository with one file, to be taken as a submodule.
fn library(place: &Place, name: &str) -> PathBuf {
    let library = place.root.join(name);
    fs::create_dir(&library).unwrap();
    place.git_in(&library, &["init", "-q", "-b", "main", "."]);
    fs::write(library.join("l"), "l\n").unwrap();
    place.git_in(&library, &["add", "-A"]);
    place.git_in(&library, &["commit", "-qm", name]);
    library
}

fn add(place: &Place, dir: &Path, library: &Path, at: &str) {
    let words = [&FILE[..], &["submodule", "--quiet", "add", library.to_str().unwrap(), at]].concat();
    place.git_in(dir, &words);
    place.git_in(dir, &["commit", "-qam", "a submodule"]);
}

/// With a submodule at `deps/lib`, and one in that at `more/inner`.
fn nested() -> Place {
    let place = Place::new();
    let inner = library(&place, "inner");
    let outer = library(&place, "outer");
    add(&place, &outer, &inner, "more/inner");
    add(&place, &place.project, &outer, "deps/lib");
    place.git(&[&FILE[..], &["submodule", "--quiet", "update", "--init", "--recursive"]].concat());
    place
}

fn head(place: &Place, dir: &Path) -> String {
    place.git_in(dir, &["rev-parse", "HEAD"])
}

#[test]
fn a_submodule_gets_a_commit_of_its_own_and_the_repository_around_it_the_link() {
    let place = nested();
    let (lib, inner) = (place.project.join("deps/lib"), place.project.join("deps/lib/more/inner"));
    let before = [head(&place, &place.project), head(&place, &lib), head(&place, &inner)];
    place.git_in(&lib, &["switch", "-q", "-C", "work"]);
    let paths = ["a.txt", "deps/lib/l", "deps/lib/new", "deps/lib/more/inner/l"];
    let done = place.commit(&place.project, Author::Agent, &paths, || {
        for path in paths {
            place.write(path, "landed\n");
        }
    });
    let done = done.unwrap();
    let after = [head(&place, &place.project), head(&place, &lib), head(&place, &inner)];
    assert_eq!(done.commit.as_ref(), Some(&after[0]));
    let told: Vec<_> = done.inside.iter().map(|one| (one.path.to_string(), one.commit.clone())).collect();
    let due = [("deps/lib".to_owned(), after[1].clone()), ("deps/lib/more/inner".to_owned(), after[2].clone())];
    assert_eq!(told, due);
    assert_eq!(done.inside[0].branch, "work");
    for (dir, before) in [&place.project, &lib, &inner].into_iter().zip(&before) {
        assert_eq!(place.git_in(dir, &["rev-parse", "HEAD^"]), *before, "one commit upon what was there");
        assert_eq!(place.git_in(dir, &["status", "--porcelain"]), "", "{}", dir.display());
        assert_eq!(place.git_in(dir, &["fsck", "--strict", "--no-dangling"]), "");
        assert_eq!(place.git_in(dir, &["log", "-1", "--format=%an %s"]), "builder What landed");
    }
    assert_eq!(place.git(&["show", "--name-only", "--format=", "HEAD"]), "a.txt\ndeps/lib");
    assert_eq!(place.git_in(&lib, &["show", "--name-only", "--format=", "HEAD"]), "l\nmore/inner\nnew");
    assert!(place.git(&["ls-tree", "HEAD", "deps/lib"]).contains(&format!("160000 commit {}", after[1])));
    // Its own head was on no branch, as an update leaves it; that is said.
    assert!(done.notes.iter().any(|note| note.contains("more/inner is on no branch")), "{:?}", done.notes);
}

#[test]
fn a_commit_of_nothing_but_a_submodule_and_one_below_the_top_work() {
    let place = nested();
    let lib = place.project.join("deps/lib");
    let write = || fs::write(lib.join("l"), "2\n").unwrap();
    let done = place.commit(&place.project.join("deps"), Author::Reviewer, &["lib/l"], write).unwrap();
    assert_eq!(place.git(&["show", "--name-only", "--format=", "HEAD"]), "deps/lib");
    assert_eq!(done.inside[0].path.to_string(), "lib", "as a path of the base");
    assert_eq!(head(&place, &lib), done.inside[0].commit);
    // A sandbox over the submodule itself commits there alone.
    let before = head(&place, &place.project);
    let done = place.commit(&lib, Author::Reviewer, &["l"], || fs::write(lib.join("l"), "3\n").unwrap()).unwrap();
    assert_eq!((head(&place, &lib), done.inside.len()), (done.commit.unwrap(), 0));
    assert_eq!(head(&place, &place.project), before);
    assert_eq!(place.git(&["status", "--porcelain"]), " M deps/lib");
    // Its head is then not the one that is recorded; the next commit takes that along, and says so.
    let done = place.commit(&place.project, Author::Reviewer, &["deps/lib/l"], || {
        fs::write(lib.join("l"), "4\n").unwrap();
    });
    assert!(done.unwrap().notes.iter().any(|note| note.contains("deps/lib stood on")));
    assert_eq!(place.git(&["status", "--porcelain"]), "");
}

#[test]
fn linked_work_trees_have_submodules_of_their_own() {
    let place = nested();
    let linked = place.root.join("linked");
    place.git(&["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    place.git_in(&linked, &[&FILE[..], &["submodule", "--quiet", "update", "--init"]].concat());
    let main = head(&place, &place.project.join("deps/lib"));
    let write = || fs::write(linked.join("deps/lib/l"), "side\n").unwrap();
    let done = place.commit(&linked, Author::Agent, &["deps/lib/l"], write).unwrap();
    assert_eq!(head(&place, &linked.join("deps/lib")), done.inside[0].commit);
    assert_eq!(place.git(&["rev-parse", "side"]), done.commit.unwrap());
    assert_eq!(head(&place, &place.project.join("deps/lib")), main, "the other work tree's stays where it was");
}

#[test]
fn a_head_that_cannot_be_moved_outside_leaves_none_moved_inside() {
    let place = nested();
    let lib = place.project.join("deps/lib");
    let before = [head(&place, &place.project), head(&place, &lib)];
    let lock = place.project.join(".git/refs/heads/main.lock");
    let refused = place.commit(&place.project, Author::Agent, &["a.txt", "deps/lib/l"], || {
        place.write("a.txt", "x\n");
        place.write("deps/lib/l", "x\n");
        fs::write(&lock, "").unwrap();
    });
    assert_eq!(refused.expect_err("refused").error_kind, ErrorKind::Conflict);
    assert_eq!([head(&place, &place.project), head(&place, &lib)], before);
    fs::remove_file(&lock).unwrap();
    let again = place.prepare(&place.project, Author::Agent, &["a.txt", "deps/lib/l"]).unwrap();
    let done = again.commit("bat_2", &staged(&place.project, &["a.txt", "deps/lib/l"])).unwrap();
    assert_eq!(done.inside.len(), 1, "the control");
}

#[test]
fn a_git_file_that_leads_elsewhere_is_refused_before_anything_lands() {
    let place = nested();
    let lib = place.project.join("deps/lib");
    let own = fs::read_to_string(lib.join(".git")).unwrap();
    // Another repository of the user's, which even says that this is its work tree.
    let victim = library(&place, "victim");
    place.git_in(&victim, &["config", "core.worktree", lib.to_str().unwrap()]);
    let refused = |what: &str| {
        let fault = place.prepare(&place.project, Author::Agent, &["a.txt", "deps/lib/l"]).err().expect(what);
        assert_eq!(fault.error_kind, ErrorKind::Conflict, "{what}: {}", fault.message);
        assert!(fault.message.contains("deps/lib") || fault.message.contains("work tree"), "{what}: {}", fault.message);
    };
    fs::write(lib.join(".git"), format!("gitdir: {}\n", victim.join(".git").display())).unwrap();
    refused("another repository");
    // One among the modules that is a link to it.
    std::os::unix::fs::symlink(victim.join(".git"), place.project.join(".git/modules/evil")).unwrap();
    fs::write(lib.join(".git"), "gitdir: ../../.git/modules/evil\n").unwrap();
    refused("a link among the modules");
    // The repository around it, and its modules as a whole.
    for there in ["../../.git", "../../.git/modules"] {
        fs::write(lib.join(".git"), format!("gitdir: {there}\n")).unwrap();
        assert!(place.prepare(&place.project, Author::Agent, &["deps/lib/l"]).is_err(), "{there}");
    }
    // Names and addresses in .gitmodules mean nothing here.
    fs::write(lib.join(".git"), own).unwrap();
    let hostile = "[submodule \"deps/lib\"]\n\tpath = ../../victim\n\turl = ext::sh -c false\n\tupdate = !false\n\tignore = all\n";
    fs::write(place.project.join(".gitmodules"), hostile).unwrap();
    let before = head(&place, &victim);
    let write = || fs::write(lib.join("l"), "landed\n").unwrap();
    let done = place.commit(&place.project, Author::Agent, &["deps/lib/l"], write).unwrap();
    assert_eq!((head(&place, &lib), head(&place, &victim)), (done.inside[0].commit.clone(), before), "the control");
}

/// `.gitmodules` comes with the tree, so that anybody may have written it; what it says leads nowhere.
#[test]
fn hostile_names_and_paths_in_gitmodules_lead_nowhere() {
    let place = nested();
    let lib = place.project.join("deps/lib");
    let victim = library(&place, "victim");
    let untouched = head(&place, &victim);
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
        fs::write(place.project.join(".gitmodules"), text).unwrap();
        let modules = fs::read_dir(place.project.join(".git/modules")).unwrap().count();
        let write = || fs::write(lib.join("l"), format!("{what}\n")).unwrap();
        let done = place.commit(&place.project, Author::Agent, &["deps/lib/l"], write);
        let done = done.unwrap_or_else(|fault| panic!("{what}: {}", fault.message));
        assert_eq!(done.inside.len(), 1, "{what}");
        assert_eq!(head(&place, &lib), done.inside[0].commit, "{what}: it is committed where it landed");
        assert_eq!(place.git_in(&lib, &["show", "HEAD:l"]), what);
        assert_eq!(head(&place, &victim), untouched, "{what}");
        assert_eq!(place.git_in(&victim, &["status", "--porcelain"]), "", "{what}");
        assert_eq!(fs::read_dir(place.project.join(".git/modules")).unwrap().count(), modules, "{what}");
    }
}

/// The directory of a submodule, or one above it, that is a link leads out of the tree.
#[test]
fn a_submodule_behind_a_link_is_refused() {
    let place = nested();
    let victim = library(&place, "victim");
    let untouched = head(&place, &victim);
    let around = place.root.join("around");
    fs::create_dir(&around).unwrap();
    fs::rename(&victim, around.join("lib")).unwrap();
    let before = head(&place, &place.project);
    for (link, to) in [("deps/lib", around.join("lib")), ("deps", around.clone())] {
        let (there, kept) = (place.project.join(link), place.root.join("kept"));
        fs::rename(&there, &kept).unwrap();
        std::os::unix::fs::symlink(&to, &there).unwrap();
        let refused = place.prepare(&place.project, Author::Agent, &["deps/lib/l"]);
        assert!(refused.is_err(), "{link} is a link");
        assert_eq!(head(&place, &around.join("lib")), untouched, "{link}");
        fs::remove_file(&there).unwrap();
        fs::rename(&kept, &there).unwrap();
    }
    assert_eq!(head(&place, &place.project), before);
    let write = || place.write("deps/lib/l", "landed\n");
    let done = place.commit(&place.project, Author::Agent, &["deps/lib/l"], write).unwrap();
    assert_eq!(done.inside.len(), 1, "the control");
}

/// Two submodules that claim one git directory: neither gets the commits of the other.
#[test]
fn submodules_that_share_a_git_directory_do_not_move_each_others_heads() {
    let place = nested();
    let other = library(&place, "other");
    add(&place, &place.project, &other, "deps/two");
    let (lib, two) = (place.project.join("deps/lib"), place.project.join("deps/two"));
    let own = fs::read_to_string(two.join(".git")).unwrap();
    let before = [head(&place, &place.project), head(&place, &lib), head(&place, &two)];
    fs::write(two.join(".git"), "gitdir: ../../.git/modules/deps/lib\n").unwrap();
    let paths = ["deps/lib/l", "deps/two/l"];
    for paths in [&paths[..], &paths[1..]] {
        let done = place.commit(&place.project, Author::Agent, paths, || {
            paths.iter().for_each(|path| place.write(path, "landed\n"));
        });
        assert!(done.is_err(), "{paths:?}");
        assert_eq!([head(&place, &place.project), head(&place, &lib)], before[..2], "{paths:?}");
    }
    fs::write(two.join(".git"), own).unwrap();
    assert_eq!(head(&place, &two), before[2]);
    let again = place.commit(&place.project, Author::Agent, &paths, || {
        paths.iter().for_each(|path| place.write(path, "again\n"));
    });
    assert_eq!(again.unwrap().inside.len(), 2, "the control");
}

#[test]
fn a_repository_that_is_no_submodule_and_one_that_is_not_checked_out_are_left_alone() {
    let place = nested();
    let embedded = place.project.join("embedded");
    fs::create_dir(&embedded).unwrap();
    place.git_in(&embedded, &["init", "-q", "."]);
    let done = place.commit(&place.project, Author::Agent, &["a.txt", "embedded/x"], || {
        place.write("a.txt", "both\n");
        place.write("embedded/x", "both\n");
    });
    let done = done.unwrap();
    assert!(done.notes.len() == 1 && done.notes[0].contains("embedded is a repository of its own"), "{:?}", done.notes);
    assert_eq!(place.git(&["show", "--name-only", "--format=", "HEAD"]), "a.txt");
    place.git(&["submodule", "--quiet", "deinit", "-f", "deps/lib"]);
    let fault = place.prepare(&place.project, Author::Agent, &["deps/lib/new"]).err().expect("refused");
    assert!(fault.message.contains("deps/lib"), "{}", fault.message);
    assert!(place.prepare(&place.project, Author::Agent, &["deps/other"]).is_ok(), "the control");
}
