//! A repository that makes git run programs, in every way git offers. Our commit runs none of them; git itself does, as
//! the control.

use crate::fixture::GitFixture;
use api::{CommitAuthor, Rel};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use workspace::git;
use workspace::git::{CommitFiles, head};

/// Settings that name programs; `%` stands for the program.
const SETTINGS: &[&str] = &[
    "core.fsmonitor=%",
    "core.sshCommand=%",
    "core.askPass=%",
    "core.pager=%",
    "core.editor=%",
    "core.gitProxy=%",
    "core.alternateRefsCommand=%",
    "credential.helper=!%",
    "diff.external=%",
    "diff.evil.command=%",
    "diff.evil.textconv=%",
    "merge.evil.driver=%",
    "gpg.program=%",
    "gpg.format=ssh",
    "gpg.ssh.program=%",
    "gpg.ssh.defaultKeyCommand=%",
    "commit.gpgSign=true",
    "sequence.editor=%",
    "interactive.diffFilter=%",
    "pager.config=%",
    "pager.diff=%",
    "trailer.evil.command=%",
    "trailer.evil.cmd=%",
    "uploadpack.packObjectsHook=%",
    "remote.origin.uploadpack=%",
    "remote.origin.url=ext::%",
    "remote.origin.promisor=true",
    "remote.origin.partialCloneFilter=blob:none",
    "protocol.ext.allow=always",
    "submodule.inner.update=!%",
    "submodule.recurse=true",
    "alias.update-index=!%",
    "alias.write-tree=!%",
    "alias.config=!%",
    "init.templateDir=/nonexistent",
];

const HOOKS: &[&str] = &[
    "pre-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "post-index-change",
    "reference-transaction",
    "fsmonitor-watchman",
    "post-checkout",
];

struct Trap {
    fixture: GitFixture,
    program: PathBuf,
    sprung: PathBuf,
}

impl Trap {
    fn set() -> Trap {
        let fixture = GitFixture::new();
        let (program, sprung) = (fixture.root.join("canary"), fixture.root.join("sprung"));
        fixture
            .script(&program, &format!("#!/bin/sh\necho \"$0 $*\" >> {}\ncat 2>/dev/null\nexit 0\n", sprung.display()));
        fixture.write(".gitattributes", "*.evil diff=evil merge=evil\n");
        fixture.write("x.evil", "x\n");
        fixture.git(&["add", "-A"]);
        fixture.git(&["commit", "-qm", "attributes"]);
        let trap = Trap { fixture, program, sprung };
        let git_dir = trap.fixture.project.join(".git");
        trap.fill(&git_dir.join("config"), true);
        trap.fill(&git_dir.join("config.worktree"), false);
        trap.fill(&trap.fixture.root.join("included"), false);
        for hook in HOOKS {
            std::fs::copy(&trap.program, git_dir.join("hooks").join(hook)).unwrap();
        }
        trap
    }

    fn fill(&self, file: &Path, first: bool) {
        let program = self.program.to_str().unwrap();
        let mut text = std::fs::read_to_string(file).unwrap_or_default();
        for setting in SETTINGS {
            let (key, value) = setting.split_once('=').unwrap();
            let (section, name) = key.rsplit_once('.').unwrap();
            let section = match section.split_once('.') {
                Some((a, b)) => format!("[{a} \"{b}\"]"),
                None => format!("[{section}]"),
            };
            text += &format!("{section}\n\t{name} = \"{}\"\n", value.replace('%', program));
        }
        if first {
            text += &format!("[include]\n\tpath = {}\n", self.fixture.root.join("included").display());
            text += "[extensions]\n\tworktreeConfig = true\n[core]\n\trepositoryformatversion = 1\n";
        }
        std::fs::write(file, text).unwrap();
    }

    fn sprang(&self) -> String {
        let log = std::fs::read_to_string(&self.sprung).unwrap_or_default();
        let _ = std::fs::remove_file(&self.sprung);
        log
    }
}

// promise 16
#[test]
fn nothing_that_a_repository_names_is_run() {
    let trap = Trap::set();
    let fixture = &trap.fixture;
    let before = head(&fixture.project).expect("its commit");
    let done = fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt", "x.evil"], || {
        fixture.write("a.txt", "landed\n");
        fixture.write("x.evil", "landed\n");
    });
    let done = done.expect("a commit all the same");
    assert_eq!(head(&fixture.project), done.commit);
    let paths = [Rel::parse(b"a.txt").unwrap(), Rel::parse(b"x.evil").unwrap()];
    let old = CommitFiles::look_up(&fixture.project, &fixture.surroundings(), &before, &paths).unwrap().expect("known");
    assert_eq!(old.contents(&paths[0], 1000).unwrap(), git::CommittedFile::File(b"one\ntwo\nthree\n".to_vec()));
    assert_eq!(trap.sprang(), "", "nothing was run by us");
    // Control: git itself runs the programs, through settings and hooks.
    fixture.write("a.txt", "by hand\n");
    fixture.try_git(&fixture.project, &["-c", "commit.gpgSign=false", "commit", "-qam", "by hand"]);
    let sprung = trap.sprang();
    assert!(sprung.contains("canary") && sprung.contains("hooks/"), "git runs them: {sprung}");
    fixture.try_git(&fixture.project, &["status"]);
    assert!(trap.sprang().contains("canary"), "git asks the file system monitor");
    fixture.try_git(&fixture.project, &["diff", "HEAD^"]);
    assert!(trap.sprang().contains("canary"), "git runs the external diff");
}

/// Git reads included files of a repository's config as soon as it opens the repository. Regression: an included FIFO
/// blocked a commit until the deadline, and a device made it fail.
// promise 16
#[test]
fn nothing_that_a_repository_includes_is_opened() {
    for included in ["pipe", "/dev/zero"] {
        let fixture = GitFixture::new();
        let (git_dir, config) = (fixture.project.join(".git"), fixture.project.join(".git/config"));
        assert!(Command::new("mkfifo").arg(git_dir.join("pipe")).status().unwrap().success());
        let before = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, format!("{before}[include]\n\tpath = {included}\n")).unwrap();
        // Control: an include for this repository in the user's own config applies.
        let own = fixture.home.join(".gitconfig");
        let usual = std::fs::read_to_string(&own).unwrap_or_default();
        let condition = format!("[includeIf \"gitdir:{}\"]\n\tpath = work\n", git_dir.display());
        std::fs::write(&own, format!("{usual}{condition}")).unwrap();
        std::fs::write(fixture.home.join("work"), "[user]\n\tname = At Work\n\temail = work@example.org\n").unwrap();
        let since = Instant::now();
        let done =
            fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt"], || fixture.write("a.txt", "landed\n"));
        done.expect("a commit all the same");
        assert!(since.elapsed() < Duration::from_secs(300), "{included}: {:?}", since.elapsed());
        std::fs::write(&config, before).unwrap();
        assert_eq!(fixture.git(&["log", "-1", "--format=%cn"]).trim(), "At Work");
    }
}

// promise 16
#[test]
fn no_filter_is_run_whoever_configured_it() {
    let trap = Trap::set();
    let fixture = &trap.fixture;
    let program = trap.program.to_str().unwrap().to_owned();
    let mut config = std::fs::read_to_string(fixture.project.join(".git/config")).unwrap();
    for key in ["clean", "smudge"] {
        config += &format!("[filter \"evil\"]\n\t{key} = {program}\n");
    }
    std::fs::write(fixture.project.join(".git/config"), config).unwrap();
    let before = head(&fixture.project).unwrap();
    // The attribute lands together with the file, after all checks.
    let late = fixture.commit(&fixture.project, CommitAuthor::Agent, &[".gitattributes", "x.evil"], || {
        fixture.write(".gitattributes", "*.evil filter=evil\n");
        fixture.write("x.evil", "landed\n");
    });
    assert!(late.expect_err("refused").message.contains("x.evil"));
    let early = fixture.prepare(&fixture.project, CommitAuthor::Agent, &["x.evil"]).err().expect("refused");
    assert!(early.message.contains("filter"), "{}", early.message);
    let path = [Rel::parse(b"x.evil").unwrap()];
    let old = CommitFiles::look_up(&fixture.project, &fixture.surroundings(), &before, &path).unwrap().expect("known");
    assert_eq!(old.contents(&path[0], 1000).unwrap(), git::CommittedFile::Unknown);
    assert_eq!(head(&fixture.project).unwrap(), before);
    assert_eq!(trap.sprang(), "", "nothing was run by us");
    fixture
        .try_git(&fixture.project, &["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "add", "x.evil"]);
    assert!(trap.sprang().contains("canary"), "git runs the filter");
}

// promise 16
#[test]
fn a_git_in_the_tree_is_not_the_one_that_is_run() {
    let mut trap = Trap::set();
    let bin = trap.fixture.project.join("bin");
    let program = trap.program.clone();
    std::fs::create_dir(&bin).unwrap();
    std::fs::copy(&program, bin.join("git")).unwrap();
    let usual = std::env::var("PATH").unwrap();
    trap.fixture.env.retain(|(name, _)| name != "PATH");
    trap.fixture.env.push(("PATH".into(), format!("{}:.:{usual}", bin.display()).into()));
    let fixture = &trap.fixture;
    let done = fixture.commit(&fixture.project, CommitAuthor::Agent, &["a.txt"], || fixture.write("a.txt", "1\n"));
    assert!(done.expect("a commit").commit.is_some());
    assert_eq!(trap.sprang(), "");
}

// promise 16
#[test]
fn what_only_looks_like_a_repository_is_none() {
    let fixture = GitFixture::new();
    // A bare repository in the tree, whose config git would read when run inside it.
    let bare = fixture.project.join("vendor/bare");
    fixture.git(&["init", "-q", "--bare", bare.to_str().unwrap()]);
    let own = head(&fixture.project).unwrap();
    assert_eq!(head(&bare), Some(own.clone()), "the directory belongs to the repository above it");
    let done =
        fixture.commit(&bare, CommitAuthor::Agent, &["note"], || std::fs::write(bare.join("note"), "n\n").unwrap());
    assert_eq!(fixture.git(&["rev-parse", "HEAD"]), done.unwrap().commit.unwrap());
    // References that lead out of the git directory.
    std::fs::write(fixture.root.join("outside"), format!("{own}\n")).unwrap();
    for bad in ["ref: ../../../outside", "ref: refs/../../../outside", "ref: /etc/passwd", "ref: refs/heads/x.lock"] {
        std::fs::write(fixture.project.join(".git/HEAD"), bad).unwrap();
        assert_eq!(head(&fixture.project), None, "{bad}");
    }
    std::fs::write(fixture.project.join(".git/HEAD"), "ref: refs/heads/linked").unwrap();
    std::os::unix::fs::symlink(fixture.root.join("outside"), fixture.project.join(".git/refs/heads/linked")).unwrap();
    assert_eq!(head(&fixture.project), None, "no link is followed");
    std::fs::write(fixture.project.join(".git/HEAD"), "ref: refs/heads/main").unwrap();
    assert!(head(&fixture.project).is_some(), "the control");
}

// promise 16
#[test]
fn nothing_that_a_submodule_names_is_run() {
    let trap = Trap::set();
    let outer = GitFixture::new();
    let source = trap.fixture.project.to_str().unwrap();
    let add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", source, "inner"];
    // A clean config while the submodule is added; the hostile one is put back afterwards.
    let config = std::fs::read_to_string(trap.fixture.project.join(".git/config")).unwrap();
    std::fs::write(trap.fixture.project.join(".git/config"), "[core]\n\trepositoryformatversion = 0\n").unwrap();
    outer.git(&add);
    outer.git(&["commit", "-qm", "inner"]);
    let settings = outer.project.join(".git/modules/inner");
    trap.fill(&settings.join("config"), false);
    std::fs::write(trap.fixture.project.join(".git/config"), config).unwrap();
    for hook in HOOKS {
        std::fs::create_dir_all(settings.join("hooks")).unwrap();
        std::fs::copy(&trap.program, settings.join("hooks").join(hook)).unwrap();
    }
    let _ = trap.sprang();
    let inner = outer.project.join("inner");
    let done =
        outer.commit(&inner, CommitAuthor::Agent, &["a.txt"], || std::fs::write(inner.join("a.txt"), "1\n").unwrap());
    assert_eq!(head(&inner), done.expect("a commit").commit);
    assert!(outer.prepare(&outer.project, CommitAuthor::Agent, &["a.txt"]).is_ok());
    assert_eq!(trap.sprang(), "", "nothing was run by us");
    outer.try_git(&inner, &["status"]);
    assert!(trap.sprang().contains("canary"), "git runs it");
}
