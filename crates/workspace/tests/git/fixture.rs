//! A directory per test, with a home, a repository and the real git.

use api::{CommitAuthor, Rel};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use terms::Fault;
use workspace::git::{Committed, GitEnvironment, Plan, Prepared, Staged, prepare};

pub struct GitFixture {
    pub root: PathBuf,
    pub home: PathBuf,
    pub project: PathBuf,
    pub env: Vec<(OsString, OsString)>,
}

impl GitFixture {
    /// A repository with one commit: `a.txt` and `src/lib.rs`.
    pub fn new() -> GitFixture {
        let fixture = GitFixture::empty();
        fixture.git(&["init", "-q", "-b", "main", "."]);
        fixture.write("a.txt", "one\ntwo\nthree\n");
        fixture.write("src/lib.rs", "fn f() {}\n");
        fixture.git(&["add", "-A"]);
        fixture.git(&["commit", "-qm", "first"]);
        fixture
    }

    pub fn empty() -> GitFixture {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("cofferdam-git-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        let (home, project) = (root.join("home"), root.join("project"));
        std::fs::create_dir_all(&home).unwrap();
        std::fs::create_dir_all(&project).unwrap();
        let root = std::fs::canonicalize(&root).unwrap();
        let (home, project) = (root.join("home"), root.join("project"));
        std::fs::write(home.join(".gitconfig"), "[user]\n\tname = Rita Reviewer\n\temail = rita@example.org\n")
            .unwrap();
        let env = vec![("HOME".into(), home.clone().into()), ("PATH".into(), std::env::var_os("PATH").unwrap())];
        GitFixture { root, home, project, env }
    }

    pub fn surroundings(&self) -> GitEnvironment<'_> {
        GitEnvironment { env: &self.env }
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.project.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub fn script(&self, path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs the real git as the user would.
    pub fn try_git(&self, dir: &Path, args: &[&str]) -> Output {
        let mut command = Command::new("git");
        command.env_clear().envs(self.env.iter().map(|(k, v)| (k, v))).args(args).current_dir(dir);
        command.output().unwrap()
    }

    pub fn git(&self, args: &[&str]) -> String {
        self.git_in(&self.project, args)
    }

    pub fn git_in(&self, dir: &Path, args: &[&str]) -> String {
        let output = self.try_git(dir, args);
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    pub fn prepare(&self, base: &Path, author: CommitAuthor, paths: &[&str]) -> Result<Prepared, Fault> {
        let plan = Plan { message: "What landed\n\nand why", author, agent: "builder", sandbox: "sbx_1" };
        let paths: Vec<Rel> = paths.iter().map(|p| Rel::parse(p.as_bytes()).unwrap()).collect();
        prepare(base, &self.surroundings(), &plan, &paths)
    }

    /// Prepares a commit, lets `land` write to the base, and commits the result.
    pub fn commit(
        &self,
        base: &Path,
        author: CommitAuthor,
        paths: &[&str],
        land: impl FnOnce(),
    ) -> Result<Committed, Fault> {
        let prepared = self.prepare(base, author, paths)?;
        land();
        prepared.commit("bat_1", &staged(base, paths))
    }
}

pub fn staged(base: &Path, paths: &[&str]) -> Vec<Staged> {
    let digest = |path: &Path| -> Option<String> {
        let meta = std::fs::symlink_metadata(path).ok()?;
        let bytes = match meta.is_symlink() {
            true => std::fs::read_link(path).ok()?.into_os_string().into_encoded_bytes(),
            false => std::fs::read(path).ok()?,
        };
        Some(Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect())
    };
    let one = |path: &&str| Staged { path: Rel::parse(path.as_bytes()).unwrap(), digest: digest(&base.join(path)) };
    paths.iter().map(one).collect()
}

impl Drop for GitFixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}
