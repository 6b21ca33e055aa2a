//! Config of the user and of a repository, read as data: identity of the reviewer, line endings, filters. Values that
//! name programs are never passed on.

use super::child::{Call, ScratchRepository, call, program};
use super::locate::{Repository, bounded, identity, refused, unreadable};
use crate::dir::Dir;
use api::Rel;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use terms::{ErrorKind, Fault, Phase};

/// Environment of the caller: PATH for `git`, and HOME for the config with the reviewer's identity.
#[derive(Clone, Copy, Debug)]
pub struct GitEnvironment<'a> {
    pub env: &'a [(OsString, OsString)],
}

impl GitEnvironment<'_> {
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.env.iter().find(|(n, v)| n == name && !v.is_empty()).map(|(_, value)| value.as_os_str())
    }
}

/// Name and email address in a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    pub email: String,
}

impl Identity {
    /// Creates an identity without characters that git strips or rejects.
    pub fn new(name: &str, email: &str) -> Option<Identity> {
        let plain = |text: &str| -> String {
            let kept = text.chars().filter(|c| !c.is_control() && !api::is_invisible(*c) && !"<>".contains(*c));
            kept.take(256).collect::<String>().trim_matches(|c: char| ".,:;\\\"' ".contains(c)).to_owned()
        };
        let (name, email) = (plain(name), plain(email));
        (!name.is_empty() && !email.is_empty()).then_some(Identity { name, email })
    }
}

/// Config values that matter for a commit.
pub(super) struct GitSettings {
    pub program: PathBuf,
    pub sha256: bool,
    /// References are stored in a reftable.
    pub reftable: bool,
    /// Settings for the conversion of contents to blobs, as `key=value`.
    pub carried: Vec<String>,
    /// Configured filters: contents under them differ from what git stores.
    pub filters: BTreeSet<String>,
    /// Config key that changes how git LFS stores files.
    pub odd_lfs: Option<String>,
    pub reviewer: Option<Identity>,
    /// The user signs commits.
    pub signs: bool,
}

/// Size bound of a config file.
const LARGEST: u64 = 1 << 20;

const WANTED: &str = r"^(core\.(autocrlf|eol|filemode|symlinks|sharedrepository|worktree|bare)|extensions\..*|user\.(name|email)|commit\.gpgsign|filter\..*|lfs\.(storage|extension\..*))$";

/// Config keys that affect blobs and name no program.
const CARRIED: &[&str] = &["core.autocrlf", "core.eol", "core.filemode", "core.symlinks", "core.sharedrepository"];

/// Repository format extensions that make no difference here.
const UNDERSTOOD: &[&str] =
    &["noop", "preciousobjects", "partialclone", "objectformat", "worktreeconfig", "relativeworktrees", "refstorage"];

impl GitSettings {
    pub fn read(repository: &Repository, surroundings: &GitEnvironment<'_>) -> Result<GitSettings, Fault> {
        let program = program(surroundings, &repository.top)?;
        let reader = ConfigReader { program: &program, repository, surroundings };
        let local = reader.local()?;
        check_format(repository, &local)?;
        check_work_tree(repository, &local)?;
        let apart = ScratchRepository::make(program.clone(), repository, false, Vec::new())?;
        let mut all = reader.of_user("--system", &apart)?;
        all.extend(reader.of_user("--global", &apart)?);
        all.extend(local.clone());
        let says = |key: &str| all.get(key).map(String::as_str);
        let plain = |value: &&str| value.len() < 16 && value.bytes().all(|b| b.is_ascii_alphanumeric());
        let carried = CARRIED.iter().filter_map(|key| Some(format!("{key}={}", says(key).filter(plain)?))).collect();
        let filter = |key: &String| Some(key.strip_prefix("filter.")?.rsplit_once('.')?.0.to_owned());
        let own = |name: &str| surroundings.var(name).and_then(OsStr::to_str);
        let name = own("GIT_COMMITTER_NAME").or(says("user.name"));
        let email = own("GIT_COMMITTER_EMAIL").or(says("user.email")).or(own("EMAIL"));
        Ok(GitSettings {
            sha256: local.get("extensions.objectformat").is_some_and(|format| format == "sha256"),
            reftable: local.get("extensions.refstorage").is_some_and(|storage| storage == "reftable"),
            carried,
            odd_lfs: all.keys().find(|key| key.starts_with("lfs.")).cloned(),
            filters: all.keys().filter_map(filter).collect(),
            reviewer: name.zip(email).and_then(|(name, email)| Identity::new(name, email)),
            signs: says("commit.gpgsign").is_some_and(is_true),
            program,
        })
    }
}

struct ConfigReader<'a> {
    program: &'a PathBuf,
    repository: &'a Repository,
    surroundings: &'a GitEnvironment<'a>,
}

impl ConfigReader<'_> {
    /// Config of the repository, without includes: passed to the child on standard input, so that it opens no file
    /// itself.
    fn local(&self) -> Result<BTreeMap<String, String>, Fault> {
        let Repository { common, common_path, own, own_path, .. } = self.repository;
        let read = |dir: &Dir, path: &PathBuf, name: &[u8]| {
            bounded(dir, &Rel::top().join(name), LARGEST)
                .map_err(|e| unreadable(path, &e))
                .map(Option::unwrap_or_default)
        };
        let mut all = self.parse(read(common, common_path, b"config")?)?;
        if all.get("extensions.worktreeconfig").is_some_and(|value| is_true(value)) {
            let extensions: Vec<_> = all.iter().filter(|(key, _)| key.starts_with("extensions.")).collect();
            let kept: BTreeMap<_, _> = extensions.into_iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            all.extend(self.parse(read(own, own_path, b"config.worktree")?)?);
            all.extend(kept);
        }
        Ok(all)
    }

    fn parse(&self, text: Vec<u8>) -> Result<BTreeMap<String, String>, Fault> {
        let args = ["config", "--file", "-", "--no-includes", "-z", "--get-regexp", WANTED];
        let args = args.into_iter().map(OsString::from).collect();
        let env = vec![("GIT_DIR", OsString::from("/dev/null"))];
        // Exit code 1 means that no key matches.
        let call_ = Call { args, env, input: text, most: 4 * LARGEST, fine: &[1], ..Call::default() };
        call(self.program, call_).map(|out| pairs(&out))
    }

    /// Config of the user or of the system, with includes, which their owner chose; no program in it is run either.
    /// GIT_DIR is set because conditional includes depend on it. Git would also read the config of that directory and
    /// open its includes: GIT_COMMON_DIR points to the scratch directory `apart`, which holds no data of the
    /// repository.
    fn of_user(&self, scope: &str, apart: &ScratchRepository) -> Result<BTreeMap<String, String>, Fault> {
        let args = ["config", scope, "--includes", "-z", "--get-regexp", WANTED].into_iter().map(OsString::from);
        let mut env = vec![
            ("GIT_DIR", self.repository.own_path.clone().into_os_string()),
            ("GIT_COMMON_DIR", apart.path.clone().into_os_string()),
            ("GIT_OBJECT_DIRECTORY", self.repository.common_path.join("objects").into_os_string()),
        ];
        match scope {
            "--system" => env.push(("GIT_CONFIG_NOSYSTEM", "0".into())),
            _ => {
                let Some(home) = self.surroundings.var("HOME") else { return Ok(BTreeMap::new()) };
                let xdg = self.surroundings.var("XDG_CONFIG_HOME").map(OsStr::to_owned);
                let xdg = PathBuf::from(xdg.unwrap_or_else(|| PathBuf::from(home).join(".config").into_os_string()));
                let global = self.surroundings.var("GIT_CONFIG_GLOBAL").map(PathBuf::from);
                let one = global.unwrap_or_else(|| {
                    let old = PathBuf::from(home).join(".gitconfig");
                    if old.exists() { old } else { xdg.join("git/config") }
                });
                // A missing file has no settings; git's exit code for it depends on the version.
                if matches!(one.try_exists(), Ok(false)) {
                    return Ok(BTreeMap::new());
                }
                env.extend([("HOME", home.to_owned()), ("GIT_CONFIG_GLOBAL", one.into_os_string())]);
            }
        }
        let call_ = Call { args: args.collect(), env, most: 4 * LARGEST, fine: &[1], ..Call::default() };
        call(self.program, call_).map(|out| pairs(&out))
    }
}

/// Parses `key\nvalue\0`; a key alone means true. The last value wins.
fn pairs(out: &[u8]) -> BTreeMap<String, String> {
    let entries = out.split(|b| *b == 0).filter(|entry| !entry.is_empty());
    let texts = entries.filter_map(|entry| std::str::from_utf8(entry).ok());
    texts.map(|text| text.split_once('\n').unwrap_or((text, "true"))).map(|(k, v)| (k.into(), v.into())).collect()
}

fn is_true(value: &str) -> bool {
    ["true", "yes", "on", "1"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

fn check_format(repository: &Repository, local: &BTreeMap<String, String>) -> Result<(), Fault> {
    let unknown = local.iter().find(|(key, value)| {
        let name = key.strip_prefix("extensions.");
        let odd = match name {
            Some("refstorage") => *value != "files" && *value != "reftable",
            Some("objectformat") => *value != "sha1" && *value != "sha256",
            _ => false,
        };
        odd || name.is_some_and(|name| !UNDERSTOOD.contains(&name))
    });
    match unknown {
        None => Ok(()),
        Some((key, value)) => {
            Err(refused(&repository.common_path, &format!("its format is not supported: {key} = {value}")))
        }
    }
}

/// Checks that a git directory found by a `.git` file, or one with `core.worktree`, names the work tree it was found
/// from.
fn check_work_tree(repository: &Repository, local: &BTreeMap<String, String>) -> Result<(), Fault> {
    let linked = repository.own_path != repository.common_path;
    let named = local.get("core.worktree");
    if linked || (named.is_none() && !repository.by_file) {
        return Ok(());
    }
    let there = named.map(|path| repository.own_path.join(OsStr::from_bytes(path.as_bytes())));
    let there = there.and_then(|path| Dir::open(&path).ok()).and_then(|dir| identity(&dir));
    let here = Dir::open(&repository.top).ok().and_then(|dir| identity(&dir));
    match there.is_some() && there == here {
        true => Ok(()),
        false => Err(refused(&repository.own_path, "its settings name another work tree than this directory")),
    }
}

pub(super) fn no_identity() -> Fault {
    let fault = Fault::new(ErrorKind::InvalidRequest, "git does not know who you are: no user.name and user.email");
    fault.hint("git config --global user.name NAME && git config --global user.email EMAIL").phase(Phase::Review)
}
