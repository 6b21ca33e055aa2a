//! Runs the host's `git` as a child process, outside of any enclosure: with an environment and
//! config of our own, a deadline, and a bound on its output.

use super::locate::Repository;
use super::refs::give;
use super::settings::GitEnvironment;
use crate::dir::Dir;
use api::Rel;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, Phase};

/// Deadline of one call.
const PATIENCE: Duration = Duration::from_secs(120);

/// Bytes of stderr that are kept.
const MOST_COMPLAINT: usize = 16 << 10;

/// Settings passed with `-c`, which override every config file. They disable programs that git
/// would start and files from which it would read more config, turn off maintenance, and make
/// writes durable.
const FIXED: &[&str] = &[
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.pager=cat",
    "core.editor=false",
    "core.sshCommand=false",
    "core.gitProxy=none",
    "core.askPass=",
    "core.alternateRefsCommand=false",
    "credential.helper=",
    "gpg.program=false",
    "gpg.ssh.program=false",
    "gpg.x509.program=false",
    "diff.external=",
    "commit.gpgSign=false",
    "protocol.allow=never",
    "maintenance.auto=false",
    "gc.auto=0",
    "submodule.recurse=false",
    "core.untrackedCache=false",
    "core.commitGraph=false",
    "core.multiPackIndex=true",
    "core.fsync=all",
    "core.fsyncMethod=batch",
];

/// Returns the real path of `git`: searched in the caller's PATH, but never inside the work tree.
pub(super) fn program(surroundings: &GitEnvironment<'_>, tree: &Path) -> Result<PathBuf, Fault> {
    let path = surroundings.var("PATH").map_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"), OsStr::to_owned);
    let places = std::env::split_paths(&path).filter(|dir| dir.is_absolute());
    let real = places.filter_map(|dir| std::fs::canonicalize(dir.join("git")).ok());
    let usable = |file: &PathBuf| {
        let meta = std::fs::metadata(file);
        !file.starts_with(tree) && meta.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    real.into_iter().find(usable).ok_or_else(|| {
        let fault = Fault::new(ErrorKind::UnsupportedHost, "git is not installed: no `git` in PATH");
        fault.hint("install git, or approve without --commit").phase(Phase::Review)
    })
}

/// Arguments of one call of the program.
#[derive(Default)]
pub(super) struct Call<'a> {
    pub args: Vec<OsString>,
    pub env: Vec<(&'a str, OsString)>,
    pub input: Vec<u8>,
    /// File that is the standard input, instead of `input`.
    pub file: Option<File>,
    /// Bound on its output in bytes.
    pub most: u64,
    /// Exit codes that are not failures, besides 0.
    pub fine: &'a [i32],
    /// User and group id of the child, if we are root.
    pub user: Option<(u32, u32)>,
    pub dir: Option<&'a Path>,
}

pub(super) fn call(program: &Path, call: Call<'_>) -> Result<Vec<u8>, Fault> {
    let mut command = Command::new(program);
    command.env_clear().args(&call.args).current_dir(call.dir.unwrap_or(Path::new("/")));
    let from_file = call.file.as_ref().map(File::try_clone).transpose();
    let from_file = from_file.map_err(|e| failed(program, &call.args, &e.to_string()))?;
    command.stdin(from_file.map_or_else(Stdio::piped, Stdio::from)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let fixed = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/nonexistent"),
        ("LC_ALL", "C"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_ALLOW_PROTOCOL", ""),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_NO_REPLACE_OBJECTS", "1"),
        ("GIT_ADVICE", "0"),
        ("GIT_PAGER", "cat"),
        ("GIT_EDITOR", "false"),
        ("GIT_CEILING_DIRECTORIES", "/"),
    ];
    command.envs(fixed).envs(call.env.iter().map(|(name, value)| (name, value)));
    if let Some((uid, gid)) = call.user.filter(|_| rustix::process::geteuid().is_root()) {
        command.uid(uid).gid(gid);
    }
    // A process group of its own, so that its children do not outlive the deadline.
    command.process_group(0);
    let mut child = command.spawn().map_err(|e| failed(program, &call.args, &e.to_string()))?;
    let ended = communicate(&mut child, &call);
    let status = child.wait().map_err(|e| failed(program, &call.args, &e.to_string()))?;
    let (output, complaint) = ended.map_err(|e| failed(program, &call.args, &e.to_string()))?;
    match status.code() {
        Some(code) if code == 0 || call.fine.contains(&code) => Ok(output),
        _ => Err(failed(program, &call.args, String::from_utf8_lossy(&complaint).trim())),
    }
}

/// Writes the input and reads the output. A separate thread writes, or a child that writes before it reads would
/// deadlock.
fn communicate(child: &mut Child, call: &Call<'_>) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdout), Some(stderr)) = (stdout, stderr) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let deadline = Instant::now() + PATIENCE;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A child that has read enough closes its end (EPIPE); its exit status tells the result.
            let _ = stdin.map(|mut stdin| stdin.write_all(&call.input));
        });
        let complaint = scope.spawn(move || read_complaint(stderr, deadline));
        let output = read_until(&mut stdout, deadline, call.most);
        if output.is_err() {
            // The threads end when the pipes close, which a child of the child may hold, too.
            kill_group(child);
        }
        let complaint = complaint.join().unwrap_or_default();
        output.map(|output| (output, complaint))
    })
}

/// Reads error output to its end or until the deadline, and returns the beginning of it.
fn read_complaint(mut stderr: ChildStderr, deadline: Instant) -> Vec<u8> {
    let (mut kept, mut piece) = (Vec::new(), [0u8; 4 << 10]);
    while wait_readable(&stderr, deadline).is_ok() {
        match stderr.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                let space = MOST_COMPLAINT.saturating_sub(kept.len());
                kept.extend_from_slice(&piece[..count.min(space)]);
            }
        }
    }
    kept
}

fn kill_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

fn wait_readable(from: &impl std::os::fd::AsFd, deadline: Instant) -> io::Result<()> {
    loop {
        let timeout = sys::deadline::time_left(deadline);
        match rustix::event::poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it did not end within {PATIENCE:?}")));
            }
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map(drop).map_err(io::Error::from),
        }
    }
}

fn read_until(from: &mut (impl Read + std::os::fd::AsFd), deadline: Instant, most: u64) -> io::Result<Vec<u8>> {
    let (mut all, mut piece) = (Vec::new(), vec![0u8; 64 << 10]);
    loop {
        wait_readable(from, deadline)?;
        match from.read(&mut piece)? {
            0 => return Ok(all),
            count if (all.len() + count) as u64 > most => {
                return Err(io::Error::new(
                    io::ErrorKind::FileTooLarge,
                    format!("its output is longer than {most} bytes"),
                ));
            }
            count => all.extend_from_slice(&piece[..count]),
        }
    }
}

fn failed(program: &Path, args: &[OsString], why: &str) -> Fault {
    let verbs = ["config", "read-tree", "update-index", "write-tree", "commit-tree", "cat-file", "ls-tree", "ls-files"];
    let verbs = verbs
        .iter()
        .chain(["check-attr", "diff-index", "hash-object", "symbolic-ref", "rev-parse", "update-ref"].iter())
        .chain(["index-pack", "pack-objects", "rev-list", "diff-tree", "merge-base", "for-each-ref"].iter());
    let verb = verbs.into_iter().find(|verb| args.iter().any(|arg| arg == **verb)).unwrap_or(&"");
    let message = format!("{} {verb}: {why}", program.display());
    Fault::new(ErrorKind::Unavailable, message).phase(Phase::Application)
}

/// Scratch git directory that shares only objects with the real one, so that the real config, hooks
/// and references are not visible. A reftable, which only git can read, is shared by a link, and
/// `info/attributes` is copied. Lies inside the real directory, has the same owner, and is removed
/// when dropped.
pub(super) struct ScratchRepository {
    program: PathBuf,
    pub parent: Dir,
    pub name: String,
    pub path: PathBuf,
    top: PathBuf,
    objects: PathBuf,
    carried: Vec<String>,
    pub owner: (u32, u32),
}

/// Age from which leftovers of crashes are removed.
const STALE: Duration = Duration::from_secs(3600);
const MARK: &str = "cofferdam-";
/// Symbolic link to the reference store of a repository with reftables.
const TABLE: &str = "reftable";

/// Largest `info/attributes` that is copied.
const MOST_ATTRIBUTES: u64 = 1 << 20;

impl ScratchRepository {
    pub fn make(
        program: PathBuf,
        repository: &Repository,
        sha256: bool,
        carried: Vec<String>,
    ) -> Result<ScratchRepository, Fault> {
        let mut random = [0u8; 16];
        let _ = rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty());
        let name = terms::id(MARK.trim_end_matches('-'), random).replace('_', "-");
        let fail = |e: io::Error| super::locate::unreadable(&repository.own_path, &e);
        clear_stale(&repository.own);
        let scratch = ScratchRepository {
            program,
            parent: repository.own.try_clone().map_err(fail)?,
            path: repository.own_path.join(&name),
            name,
            top: repository.top.clone(),
            objects: repository.common_path.join("objects"),
            carried,
            owner: repository.owner,
        };
        let table = repository.has_reftable()?.then(|| repository.common_path.join(TABLE));
        scratch.fill(repository, sha256, table.as_deref()).map_err(fail)?;
        Ok(scratch)
    }

    fn fill(&self, repository: &Repository, sha256: bool, table: Option<&Path>) -> io::Result<()> {
        make_dir(&self.parent, self.name.as_bytes(), self.owner)?;
        let own = self.parent.dir(&Rel::top().join(self.name.as_bytes()))?;
        let format = if sha256 { "sha256" } else { "sha1" };
        let mut config =
            format!("[core]\n\trepositoryformatversion = 1\n\tbare = false\n[extensions]\n\tobjectformat = {format}\n");
        if let Some(table) = table {
            config.push_str("\trefstorage = reftable\n");
            rustix::fs::symlinkat(table, &own, TABLE)?;
        }
        put(&own, b"config", config.as_bytes(), self.owner)?;
        put(&own, b"HEAD", b"ref: refs/heads/none\n", self.owner)?;
        make_dir(&own, b"refs", self.owner)?;
        make_dir(&own, b"info", self.owner)?;
        let info = Rel::top().join(b"info");
        let attributes = super::locate::bounded(&repository.common, &info.join(b"attributes"), MOST_ATTRIBUTES)?;
        if let Some(text) = attributes {
            put(&own.dir(&info)?, b"attributes", &text, self.owner)?;
        }
        Ok(())
    }

    /// Runs a plumbing command in the work tree, by default on the scratch index.
    pub fn git(&self, args: &[&OsStr], more: Call<'_>) -> Result<Vec<u8>, Fault> {
        let mut all: Vec<OsString> = vec!["--literal-pathspecs".into(), "--no-pager".into()];
        for setting in FIXED.iter().map(|s| OsString::from(*s)).chain(self.carried.iter().map(OsString::from)) {
            all.extend(["-c".into(), setting]);
        }
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let mut env = vec![
            ("GIT_DIR", self.path.clone().into_os_string()),
            ("GIT_WORK_TREE", self.top.clone().into_os_string()),
            ("GIT_OBJECT_DIRECTORY", self.objects.clone().into_os_string()),
            ("GIT_INDEX_FILE", self.path.join("index").into_os_string()),
        ];
        env.extend(more.env);
        let most = if more.most == 0 { 64 << 20 } else { more.most };
        let call_ = Call { args: all, env, most, user: Some(self.owner), dir: Some(&self.top), ..more };
        call(&self.program, call_)
    }
}

impl Drop for ScratchRepository {
    fn drop(&mut self) {
        clear(&self.parent, &self.name);
    }
}

fn clear_stale(own: &Dir) {
    let Ok(names) = own.names() else { return };
    let marked = names.into_iter().filter_map(|name| String::from_utf8(name).ok()).filter(|name| {
        name.strip_prefix(MARK).is_some_and(|rest| rest.len() == 32 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
    });
    for name in marked {
        let age = own.meta_of(name.as_bytes()).ok().flatten().map(|meta| meta.mtime.0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
        if age.is_some_and(|made| made + (STALE.as_secs() as i64) < now) {
            clear(own, &name);
        }
    }
}

fn clear(parent: &Dir, name: &str) {
    // A leftover is removed by `clear_stale` when a later scratch directory is made, as after a
    // crash.
    let _ = crate::remove::tree(parent, name.as_bytes());
}

pub(super) fn make_dir(at: &Dir, name: &[u8], owner: (u32, u32)) -> io::Result<()> {
    rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o700))?;
    give(at, name, owner)
}

fn put(at: &Dir, name: &[u8], bytes: &[u8], owner: (u32, u32)) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut file = File::from(at.open_at(&Rel::top().join(name), flags, Mode::from_raw_mode(0o600))?);
    file.write_all(bytes)?;
    give(at, name, owner)
}
