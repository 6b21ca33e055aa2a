//! Git as agents use it: linked work trees, submodules and subdirectories; commits made inside and how they come out.

use crate::support::{As, BOTH, Place, either, to_the_end};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Runs cofferdam in a directory: exit status, stdout as JSON, all output as text.
fn verb(place: &Place, at: &Path, args: &[&str]) -> (i32, Value, String) {
    let output = to_the_end(place.cofferdam(args).current_dir(at), b"");
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), json, text)
}

#[track_caller]
fn ok(place: &Place, at: &Path, args: &[&str]) -> String {
    let (status, _, text) = verb(place, at, args);
    assert_eq!(status, 0, "{args:?}: {text}");
    text
}

/// Runs a script in a new sandbox over a directory.
#[track_caller]
fn run(place: &Place, at: &Path, name: &str, script: &str) -> String {
    ok(place, at, &["run", "-v", "--name", name, "--", "/bin/sh", "-ec", script])
}

#[track_caller]
fn git(place: &Place, at: &Path, args: &[&str]) -> String {
    let output = to_the_end(place.outside("git").args(args).current_dir(at), b"");
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// A repository with two files and one commit.
fn repository(who: As) -> Place {
    let place = Place::new(who);
    place.file(
        "home/.gitconfig",
        "[user]\n\tname = Rita\n\temail = rita@example.org\n[protocol \"file\"]\n\tallow = always\n",
    );
    place.file("home/project/a.txt", "one\n");
    place.file("home/project/sub/b.txt", "two\n");
    git(&place, &place.project, &["init", "-q", "-b", "main"]);
    git(&place, &place.project, &["add", "-A"]);
    git(&place, &place.project, &["commit", "-qm", "first"]);
    // A file stamped in the same clock tick as a sandbox would look older than it.
    std::thread::sleep(std::time::Duration::from_millis(20));
    place
}

/// Everything that a git directory holds, by path and bytes.
fn everything(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut pending) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => pending.push(path),
                false => found.push((path.clone(), fs::read(path).unwrap())),
            }
        }
    }
    found.sort();
    found
}

const WORK: &str = "test -z \"$(git status --porcelain)\"
    echo more >> a.txt; test \"$(git status --porcelain)\" = ' M a.txt'
    git diff | grep -q '^+more'; git add a.txt; git commit -qm inside
    git log --format='%an <%ae> %s' -1; git log --oneline | wc -l; git branch --show-current";

#[test]
fn a_linked_work_tree_has_git_inside_and_nothing_of_it_outside() {
    for who in BOTH {
        let place = repository(who);
        let tree = place.home.join("tree");
        git(&place, &place.project, &["worktree", "add", "-q", tree.to_str().unwrap(), "-b", "side"]);
        let before = everything(&place.project.join(".git"));
        let objects = place.project.join(".git/objects");
        let attempt = format!("{WORK}; touch {0}/x 2> /dev/null && exit 9; ls {0} | grep -q info", objects.display());
        let said = run(&place, &tree, "w", &attempt);
        assert!(said.contains("Agent <agent@cofferdam.invalid> inside\n2\nside\n"), "{said}");
        assert!(everything(&place.project.join(".git")) == before, "the repository is as it was");
        assert_eq!(git(&place, &tree, &["status", "--porcelain"]), "");
        // What git wrote is kept: the next command in the sandbox finds the commit.
        let again = ok(&place, &tree, &["exec", "w", "--", "git", "log", "--format=%s", "-1"]);
        assert!(again.contains("inside"), "{again}");
        let (_, diff, text) = verb(&place, &tree, &["diff", "w", "--json"]);
        assert_eq!(diff["git"]["commits"][0]["subject"], "inside", "{text}");
        assert_eq!(diff["git"]["switched"], false, "{text}");
        assert_eq!(diff["files"].as_array().map(Vec::len), Some(1), "{text}");
        ok(&place, &tree, &["fetch", "w"]);
        assert_eq!(git(&place, &tree, &["log", "--format=%s", "-1", "refs/cofferdam/w"]), "inside");
        ok(&place, &tree, &["approve", "w", "--commits"]);
        assert_eq!(git(&place, &tree, &["log", "--format=%an %s", "-1"]), "Agent inside");
        assert_eq!(git(&place, &tree, &["status", "--porcelain"]), "");
        assert_eq!(git(&place, &place.project, &["log", "--format=%s", "-1"]), "first", "the other tree's branch");
    }
}

/// Looking leaves nothing to review, and read-only runs have git as well.
#[test]
fn looking_at_a_linked_work_tree_keeps_nothing() {
    for who in either() {
        let place = repository(who);
        let tree = place.home.join("tree");
        git(&place, &place.project, &["worktree", "add", "-q", tree.to_str().unwrap(), "-b", "side"]);
        ok(&place, &tree, &["run", "--", "git", "status"]);
        let (_, listed, text) = verb(&place, &tree, &["ls", "--json"]);
        assert!(!text.contains("sbx_"), "{listed} {text}");
        let said = ok(&place, &tree, &["run", "--read-only", "--", "git", "log", "--format=%s"]);
        assert!(said.contains("first"), "{said}");
        ok(&place, &tree, &["run", "--", "git", "branch", "new"]);
        let (_, _, text) = verb(&place, &tree, &["ls", "--json"]);
        assert!(text.contains("sbx_"), "the control: a branch is kept: {text}");
    }
}

#[test]
fn a_submodule_has_git_inside() {
    for who in either() {
        let place = repository(who);
        let library = place.dir("home/library");
        git(&place, &library, &["init", "-q", "-b", "main"]);
        place.file("home/library/a.txt", "one\n");
        git(&place, &library, &["add", "-A"]);
        git(&place, &library, &["commit", "-qm", "library"]);
        git(&place, &place.project, &["submodule", "add", "-q", library.to_str().unwrap(), "lib"]);
        git(&place, &place.project, &["commit", "-qm", "with a submodule"]);
        let before = everything(&place.project.join(".git"));
        let said = run(&place, &place.project.join("lib"), "w", WORK);
        assert!(said.contains("Agent <agent@cofferdam.invalid> inside\n2\n"), "{said}");
        assert!(everything(&place.project.join(".git")) == before, "the repository is as it was");
    }
}

/// A `.git` file chooses what is shown inside, so it is followed only where the git directory leads back.
#[test]
fn a_git_file_that_leads_elsewhere_is_not_followed() {
    for who in either() {
        let place = repository(who);
        let tree = place.home.join("tree");
        git(&place, &place.project, &["worktree", "add", "-q", tree.to_str().unwrap(), "-b", "side"]);
        let objects = place.project.join(".git/objects");
        let look = format!("ls {} 2> /dev/null || echo hidden; git status 2>&1 || true", objects.display());
        let said = run(&place, &tree, "control", &look);
        assert!(!said.contains("hidden") && said.contains("On branch side"), "{said}");
        let foreign = [
            ("tree", format!("gitdir: {}/.git/worktrees/tree\n", place.project.display())),
            ("whole", format!("gitdir: {}/.git\n", place.project.display())),
            ("made", "gitdir: made\n".to_owned()),
        ];
        for (name, text) in foreign {
            let at = place.dir(format!("home/{name}-trap"));
            place.file(at.join(".git"), text);
            // A git directory that claims to be a work tree's, of a repository that does not know it.
            place.file(at.join("made/commondir"), format!("{}/.git\n", place.project.display()));
            place.file(at.join("made/gitdir"), format!("{}\n", at.join(".git").display()));
            place.file(at.join("made/HEAD"), "ref: refs/heads/main\n");
            let said = run(&place, &at, name, &look);
            assert!(said.contains("hidden") && !said.contains("On branch"), "{name}: {said}");
            assert!(said.contains("git does not work inside"), "{name}: {said}");
        }
    }
}

#[test]
fn whoever_stands_in_a_subdirectory_works_on_the_repository() {
    for who in BOTH {
        let place = repository(who);
        let sub = place.project.join("sub");
        let said = run(
            &place,
            &sub,
            "w",
            "pwd; git status --porcelain; echo x > new; echo y > ../up; git add ..; git commit -qm deep; git log --format=%s",
        );
        assert!(said.contains("/project/sub\n") && said.contains("deep\nfirst\n"), "{said}");
        assert!(!said.contains("refused"), "a commit touches nothing that a rule refuses: {said}");
        assert!(said.contains("the workspace is the git repository"), "{said}");
        let (_, diff, text) = verb(&place, &sub, &["diff", "--json"]);
        let paths: Vec<_> = diff["files"].as_array().expect(&text).iter().map(|file| &file["path"]).collect();
        assert_eq!(paths, ["sub/new", "up"], "{text}");
        assert!(!place.project.join("up").exists());
        // With a directory of its own choice the caller gets that.
        let said = ok(&place, &sub, &["run", "-v", "-w", ".", "--", "sh", "-c", "ls ..; git status 2>&1 || true"]);
        assert!(said.contains("not a git repository") && !said.contains("a.txt"), "{said}");
        ok(&place, &sub, &["create", "--name", "made"]);
        let (_, made, text) = verb(&place, &sub, &["inspect", "made", "--json"]);
        assert_eq!(made["base"].as_str(), place.project.to_str(), "{text}");
    }
}

/// A repository of the home directory is nobody's project.
#[test]
fn nobody_is_taken_up_to_the_home_directory() {
    let place = repository(As::User);
    let other = place.dir("home/plain");
    git(&place, &place.home, &["init", "-q"]);
    let said = run(&place, &other, "w", "pwd; touch new");
    assert!(!said.contains("the workspace is the git repository"), "{said}");
    let (_, made, text) = verb(&place, &other, &["inspect", "w", "--json"]);
    assert_eq!(made["base"].as_str(), other.to_str(), "{text}");
    // Nor to a directory that somebody else owns.
    let shared = place.root.join("shared");
    fs::create_dir_all(shared.join(".git/objects")).unwrap();
    fs::create_dir_all(shared.join(".git/refs")).unwrap();
    fs::write(shared.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    let mine = place.dir(shared.join("mine"));
    place.own(&mine);
    let said = run(&place, &mine, "x", "touch new");
    assert!(!said.contains("the workspace is the git repository"), "{said}");
}

const TWO_COMMITS: &str = "echo 2 >> a.txt; git commit -qam 'second

why it was done'; git mv sub/b.txt sub/c.txt; echo run > tool; chmod +x tool; git add -A
    git -c user.name=Otto -c user.email=otto@example.org commit -qm third";

#[test]
fn commits_are_fetched_and_nothing_else_moves() {
    for who in BOTH {
        let place = repository(who);
        let at = &place.project;
        run(&place, at, "w", TWO_COMMITS);
        let text = ok(&place, at, &["diff", "w"]);
        let order =
            ["COMMITS on main", "second (Agent <agent@cofferdam.invalid>)", "a.txt", "third (Otto <otto@example.org>)"];
        let found: Vec<_> = order.iter().map(|word| text.find(word)).collect();
        assert!(found.iter().all(Option::is_some) && found.is_sorted(), "{text}");
        let index = fs::read(at.join(".git/index")).unwrap();
        let (status, answer, text) = verb(&place, at, &["fetch", "w", "--json"]);
        assert_eq!((status, answer["reference"].as_str()), (0, Some("refs/cofferdam/w")), "{text}");
        assert_eq!(answer["commits"].as_array().map(Vec::len), Some(2), "{text}");
        assert_eq!(
            git(&place, at, &["log", "--format=%an %s", "refs/cofferdam/w"]),
            "Otto third\nAgent second\nRita first"
        );
        git(&place, at, &["fsck", "--strict"]);
        assert_eq!(fs::read(at.join(".git/index")).unwrap(), index);
        assert_eq!(git(&place, at, &["status", "--porcelain"]), "");
        assert_eq!(git(&place, at, &["rev-parse", "main"]), git(&place, at, &["rev-parse", "refs/cofferdam/w~2"]));
        let journal = ok(&place, at, &["audit", "log", "w"]);
        assert!(journal.contains("fetch"), "{journal}");
        // Again, to a name of the user's; a branch is not overwritten.
        ok(&place, at, &["fetch", "w", "--as", "refs/heads/from-w"]);
        assert_eq!(git(&place, at, &["log", "--format=%s", "-1", "from-w"]), "third");
        git(&place, at, &["branch", "taken"]);
        for (name, why) in [
            ("refs/heads/taken", "exists already"),
            ("refs/heads/main", "is checked out"),
            ("HEAD", "not a reference name"),
        ] {
            let (status, _, text) = verb(&place, at, &["fetch", "w", "--as", name]);
            assert!(status != 0 && text.contains(why), "{name}: {text}");
        }
        // Only what is new since comes again, and the reference follows.
        ok(&place, at, &["exec", "w", "--", "git", "commit", "--allow-empty", "-qm", "fourth"]);
        ok(&place, at, &["fetch", "w"]);
        assert_eq!(git(&place, at, &["log", "--format=%s", "-1", "refs/cofferdam/w"]), "fourth");
        // The agent repacks everything; the commits are still found.
        ok(&place, at, &["exec", "w", "--", "sh", "-ec", "git commit --allow-empty -qm fifth; git gc -q --prune=now"]);
        ok(&place, at, &["fetch", "w"]);
        assert_eq!(git(&place, at, &["log", "--format=%s", "-1", "refs/cofferdam/w"]), "fifth");
    }
}

#[test]
fn commits_are_approved_as_they_are() {
    for who in BOTH {
        let place = repository(who);
        let at = &place.project;
        run(&place, at, "w", TWO_COMMITS);
        let (status, _, text) = verb(&place, at, &["approve", "w", "--commits"]);
        assert!(status != 0 && text.contains("have not been reviewed"), "{text}");
        ok(&place, at, &["diff", "w"]);
        let inside = ok(&place, at, &["exec", "w", "--", "git", "rev-parse", "HEAD"]).trim().to_owned();
        let (status, receipt, text) = verb(&place, at, &["approve", "w", "--commits", "--json"]);
        assert_eq!((status, receipt["commit"].as_str()), (0, Some(inside.as_str())), "{text}");
        assert_eq!(git(&place, at, &["log", "--format=%an %s"]), "Otto third\nAgent second\nRita first");
        assert_eq!(git(&place, at, &["log", "--format=%b", "-1", "main~1"]), "why it was done");
        assert_eq!(git(&place, at, &["status", "--porcelain"]), "", "work tree and index are the commit's");
        git(&place, at, &["fsck", "--strict"]);
        let (_, diff, text) = verb(&place, at, &["diff", "w", "--json"]);
        assert!(diff["git"].is_null() && diff["files"].as_array().is_some_and(Vec::is_empty), "{text}");
        let undone = ok(&place, at, &["undo"]);
        assert!(undone.contains("stays in the history"), "{undone}");
        assert_eq!(fs::read_to_string(at.join("a.txt")).unwrap(), "one\n");
    }
}

#[test]
fn commits_that_are_not_what_was_shown_do_not_land() {
    for who in either() {
        let place = repository(who);
        let at = &place.project;
        let head = git(&place, at, &["rev-parse", "HEAD"]);
        let refused = |why: &str, more: &[&str]| {
            let args: Vec<&str> = ["approve", "w", "--commits"].iter().chain(more).copied().collect();
            let (status, _, text) = verb(&place, at, &args);
            assert!(status != 0 && text.contains(why), "{why}: {text}");
            assert_eq!(git(&place, at, &["rev-parse", "HEAD"]), head, "{why}");
            assert_eq!(git(&place, at, &["status", "--porcelain"]), "", "{why}");
        };
        let inside = |script: &str| ok(&place, at, &["exec", "w", "--", "/bin/sh", "-ec", script]);
        run(&place, at, "w", "echo 2 >> a.txt; git commit -qam second");
        ok(&place, at, &["diff", "w"]);
        // The same files by another commit.
        inside("git commit -q --amend -m 'another message'");
        refused("was reviewed", &[]);
        ok(&place, at, &["diff", "w"]);
        inside("echo 3 >> a.txt");
        refused("changed since it was reviewed", &[]);
        ok(&place, at, &["diff", "w"]);
        refused("not in the workspace as they were committed", &[]);
        // What runs on the reviewer's machine is named, also where a later commit takes it back.
        inside("echo all: > Makefile; git add -A; git commit -qm makefile; git rm -q Makefile; git commit -qm gone");
        ok(&place, at, &["diff", "w"]);
        refused("Makefile (in a commit in between)", &[]);
        inside("echo all: > Makefile; git add -A; git commit -qm again");
        ok(&place, at, &["diff", "w"]);
        refused("would run on your machine", &[]);
        let (status, _, text) = verb(&place, at, &["approve", "w", "--commits", "Makefile"]);
        assert_eq!(status, 0, "the control: {text}");
        assert_eq!(git(&place, at, &["log", "--format=%s", "-1"]), "again");
    }
}

#[test]
fn commits_are_written_again_where_the_branch_moved_on() {
    for who in either() {
        let place = repository(who);
        let at = &place.project;
        run(&place, at, "w", TWO_COMMITS);
        place.file("home/project/theirs", "theirs\n");
        git(&place, at, &["add", "theirs"]);
        git(&place, at, &["commit", "-qm", "meanwhile"]);
        ok(&place, at, &["diff", "w"]);
        let text = ok(&place, at, &["approve", "w", "--commits"]);
        assert!(text.contains("moved meanwhile"), "{text}");
        let all = "Otto/Rita third\nAgent/Rita second\nRita/Rita meanwhile\nRita/Rita first";
        assert_eq!(git(&place, at, &["log", "--format=%an/%cn %s"]), all);
        assert_eq!(git(&place, at, &["log", "--format=%b", "-1", "main~1"]), "why it was done");
        assert_eq!(git(&place, at, &["status", "--porcelain"]), "");
        // Both changed the same file: git's own merge is the way.
        run(&place, at, "x", "echo inside >> a.txt; git commit -qam inside");
        place.file("home/project/a.txt", "outside\n");
        git(&place, at, &["commit", "-qam", "outside"]);
        ok(&place, at, &["diff", "x"]);
        let (status, _, text) = verb(&place, at, &["approve", "x", "--commits"]);
        assert!(status != 0 && text.contains("both sides changed a.txt"), "{text}");
        ok(&place, at, &["fetch", "x"]);
    }
}

#[test]
fn a_branch_that_was_switched_inside_is_told() {
    for who in either() {
        let place = repository(who);
        let at = &place.project;
        git(&place, at, &["branch", "other"]);
        let before = git(&place, at, &["log", "--format=%s", "main"]).lines().count();
        run(&place, at, "w", "git switch -q other; echo x > x; git add x; git commit -qm x");
        let text = ok(&place, at, &["diff", "w"]);
        assert!(text.contains("inside, branch other is checked out; the base is on main"), "{text}");
        let text = ok(&place, at, &["diff", "--stat", "w"]);
        assert!(text.contains("inside, branch other is checked out"), "{text}");
        let (_, diff, text) = verb(&place, at, &["diff", "w", "--json"]);
        let git = &diff["git"];
        assert_eq!((git["branch"].as_str(), git["base_branch"].as_str()), (Some("other"), Some("main")), "{text}");
        assert_eq!(git["switched"], true, "{text}");
        // Its commits do not go onto the base's branch by mistake: as a branch of their own, or by the name of the last one.
        let (status, _, text) = verb(&place, at, &["approve", "w", "--commits"]);
        assert!(status != 0 && text.contains("inside, other is checked out, and the base has main"), "{text}");
        assert_eq!(self::git(&place, at, &["log", "--format=%s", "main"]).lines().count(), before, "{text}");
        ok(&place, at, &["fetch", "w", "--as", "refs/heads/agents"]);
        assert_eq!(self::git(&place, at, &["log", "-1", "--format=%s", "agents"]).trim(), "x");
        let tip = &git["commit"].as_str().unwrap()[..12];
        let wrong = verb(&place, at, &["approve", "w", "--commits=0123456789ab"]);
        assert!(wrong.0 != 0 && wrong.2.contains("was reviewed"), "{}", wrong.2);
        ok(&place, at, &["approve", "w", &format!("--commits={tip}")]);
        assert_eq!(self::git(&place, at, &["log", "-1", "--format=%s", "main"]).trim(), "x");
        run(&place, at, "v", "echo x > x");
        let (_, diff, text) = verb(&place, at, &["diff", "v", "--json"]);
        assert!(diff["git"].is_null(), "the control: {text}");
    }
}

/// Settings, hooks and references of the repository inside that make git run programs. Inside they do, as the control.
const TRAPS: &str = "p=$PWD/canary; printf '#!/bin/sh\\ntouch %s/sprung\\ncat\\n' $PWD > $p; chmod +x $p
    for name in core.fsmonitor core.sshCommand core.pager core.editor core.alternateRefsCommand gpg.program \
        diff.external uploadpack.packObjectsHook credential.helper core.askPass; do git config $name $p; done
    git config core.hooksPath $PWD/hooks; mkdir hooks
    for hook in pre-commit post-commit reference-transaction post-index-change post-checkout; do cp canary hooks/$hook; done
    cp -r hooks .git/; git config extensions.worktreeConfig true; cp .git/config .git/config.worktree
    git status > /dev/null || true";

#[test]
fn a_hostile_repository_inside_runs_nothing_outside() {
    for who in BOTH {
        let place = repository(who);
        let at = &place.project;
        let script = format!("echo 2 >> a.txt; git commit -qam second; {TRAPS}; test -e sprung && echo the trap works");
        let said = run(&place, at, "w", &script);
        assert!(said.contains("the trap works"), "{said}");
        ok(&place, at, &["diff", "w", "--json"]);
        ok(&place, at, &["diff", "w"]);
        ok(&place, at, &["fetch", "w"]);
        ok(&place, at, &["approve", "w", "--commits"]);
        assert_eq!(git(&place, at, &["log", "--format=%s", "-1"]), "second");
        let left: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 3, "neither canary nor what it makes: {left:?}");
    }
}

#[test]
fn false_objects_alternates_grafts_and_replacements_deceive_nobody() {
    for who in BOTH {
        let place = repository(who);
        let at = &place.project;
        // Objects of another repository that an alternate inside would reach if it were followed.
        let secret = place.dir("home/secret");
        place.file("home/secret/s", "secret\n");
        git(&place, &secret, &["init", "-q", "-b", "main"]);
        git(&place, &secret, &["add", "-A"]);
        git(&place, &secret, &["commit", "-qm", "secret"]);
        let theirs = git(&place, &secret, &["rev-parse", "HEAD"]);
        let head = git(&place, at, &["rev-parse", "HEAD"]);
        let before = everything(&at.join(".git"));
        let outcome = |name: &str, script: &str, is_taken: bool| {
            run(&place, at, name, script);
            ok(&place, at, &["diff", name]);
            let (status, _, text) = verb(&place, at, &["fetch", name]);
            assert_eq!(status == 0, is_taken, "{name}: {text}");
            if !is_taken {
                let now = everything(&at.join(".git"));
                let names = |all: &[(PathBuf, Vec<u8>)]| all.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>();
                assert_eq!(names(&now), names(&before), "{name}: nothing is left behind");
                assert!(now == before, "{name}: nothing is changed");
            }
            text
        };
        let named = |id: &str| format!(".git/objects/{}/{}", &id[..2], &id[2..]);
        let alternate = format!(
            "echo {}/.git/objects > .git/objects/info/alternates; echo {theirs} > .git/refs/heads/main",
            secret.display()
        );
        outcome("alternate", &alternate, false);
        // A loose object under the name of another: of a commit, and of a blob that a true commit has.
        let other = "echo x > x; git add x; git commit -qm x; id=$(git rev-parse HEAD)
            f=.git/objects/$(echo $id | cut -c1-2)/$(echo $id | cut -c3-); echo y > y; git add y; git commit -qm y
            g=$(git rev-parse HEAD); g=.git/objects/$(echo $g | cut -c1-2)/$(echo $g | cut -c3-); chmod u+w $f; cp $g $f
            git reset -q --soft $id || echo $id > .git/refs/heads/main";
        outcome("commit", other, false);
        let blob = "echo true > x; git add x; git commit -qm x; id=$(git rev-parse HEAD:x); no=$(echo false | git hash-object -w --stdin)
            f=.git/objects/$(echo $id | cut -c1-2)/$(echo $id | cut -c3-); g=.git/objects/$(echo $no | cut -c1-2)/$(echo $no | cut -c3-)
            chmod u+w $f; cp $g $f";
        outcome("blob", blob, false);
        outcome(
            "garbage",
            "echo x > x; git add x; git commit -qm x; f=.git/objects/$(git rev-parse HEAD:x | sed 's|^..|&/|'); chmod u+w $f; echo garbage > $f",
            false,
        );
        outcome(
            "missing",
            "echo x > x; git add x; git commit -qm x; rm -f .git/objects/$(git rev-parse HEAD:x | sed 's|^..|&/|')",
            false,
        );
        outcome(
            "link",
            "echo x > x; git add x; git commit -qm x; f=.git/objects/$(git rev-parse HEAD:x | sed 's|^..|&/|'); cp $f /tmp/o; rm -f $f; ln -s /etc/passwd $f",
            false,
        );
        outcome(
            "pipe",
            "echo x > x; git add x; git commit -qm x; f=.git/objects/$(git rev-parse HEAD:x | sed 's|^..|&/|'); rm -f $f; mkfifo $f",
            false,
        );
        outcome(
            "pack",
            "echo x > x; git add x; git commit -qm x; git repack -qad; for p in .git/objects/pack/*.pack; do chmod u+w $p; printf xxxx | dd of=$p bs=1 seek=40 conv=notrunc 2> /dev/null; done",
            false,
        );
        // A tree that holds `.git`: git refuses it in a push that is checked.
        let dot_git = "b=$(echo x | git hash-object -w --stdin); t=$(printf '100644 blob %s\\tconfig\\n' $b | git mktree)
            r=$(printf '040000 tree %s\\t.git\\n' $t | git mktree); c=$(git commit-tree -p HEAD -m evil $r); echo $c > .git/refs/heads/main";
        outcome("dotgit", dot_git, false);
        // Grafts and replacements show other history inside; outside the commit is what its name says.
        let graft = format!(
            "echo x > x; git add x; git commit -qm true; id=$(git rev-parse HEAD); mkdir -p .git/info; echo $id > .git/info/grafts
             o=$(git commit-tree -m false HEAD^{{tree}}); git replace -f $id $o; test \"$(git log --format=%s)\" = false; test -e {}",
            named(&head)
        );
        outcome("graft", &graft, true);
        assert_eq!(git(&place, at, &["log", "--format=%s", "refs/cofferdam/graft"]), "true\nfirst");
        git(&place, at, &["fsck", "--strict"]);
        assert_eq!(git(&place, at, &["rev-parse", "HEAD"]), head);
        assert_eq!(git(&place, at, &["for-each-ref", "--format=%(refname)"]), "refs/cofferdam/graft\nrefs/heads/main");
    }
}
