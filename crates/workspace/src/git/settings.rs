//! What the user's and a repository's settings say, read as data: who the reviewer is, how lines end, which filters exist. Values
//! that name programs are never handed on.

use super::child::{Call, Scratch, call, program};
use super::locate::{Repository, bounded, identity, refused, unreadable};
use crate::dir::Dir;
use crate::name::Rel;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use terms::{ErrorKind, Fault, Phase};

/// The caller's environment: where to find `git`, and whose settings name the reviewer.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    pub env: &'a [(OsString, OsString)],
}

impl Surroundings<'_> {
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.env.iter().find(|(n, v)| n == name && !v.is_empty()).map(|(_, value)| value.as_os_str())
    }
}

/// Who stands in a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    pub email: String,
}

impl Identity {
    /// Without what git itself would strip or stumble over.
    pub fn new(name: &str, email: &str) -> Option<Identity> {
        let plain = |text: &str| -> String {
            let kept = text.chars().filter(|c| !c.is_control() && !crate::name::is_invisible(*c) && !"<>".contains(*c));
            kept.take(256).collect::<String>().trim_matches(|c: char| ".,:;\\\"' ".contains(c)).to_owned()
        };
        let (name, email) = (plain(name), plain(email));
        (!name.is_empty() && !email.is_empty()).then_some(Identity { name, email })
    }
}

/// What counts of all settings.
pub(super) struct Settings {
    pub program: PathBuf,
    pub sha256: bool,
    /// References are kept as a reftable.
    pub reftable: bool,
    /// How contents become blobs, as `key=value`.
    pub carried: Vec<String>,
    /// Filters that somebody has configured: contents under them are not what git would keep.
    pub filters: BTreeSet<String>,
    /// A setting by which git LFS would keep files otherwise than it usually does.
    pub odd_lfs: Option<String>,
    pub reviewer: Option<Identity>,
    /// The user has commits signed.
    pub signs: bool,
}

/// A file of settings may be so long.
const LARGEST: u64 = 1 << 20;

const WANTED: &str = r"^(core\.(autocrlf|eol|filemode|symlinks|sharedrepository|worktree|bare)|extensions\..*|user\.(name|email)|commit\.gpgsign|filter\..*|lfs\.(storage|extension\..*))$";

/// Settings that change what a blob is and name no program, with what they may say.
const CARRIED: &[&str] = &["core.autocrlf", "core.eol", "core.filemode", "core.symlinks", "core.sharedrepository"];

/// Extensions of the format that change nothing for what is done here.
const UNDERSTOOD: &[&str] =
    &["noop", "preciousobjects", "partialclone", "objectformat", "worktreeconfig", "relativeworktrees", "refstorage"];

impl Settings {
    pub fn read(repository: &Repository, surroundings: &Surroundings<'_>) -> Result<Settings, Fault> {
        let program = program(surroundings, &repository.top)?;
        let reader = Reader { program: &program, repository, surroundings };
        let local = reader.local()?;
        check_format(repository, &local)?;
        check_work_tree(repository, &local)?;
        let apart = Scratch::make(program.clone(), repository, false, Vec::new())?;
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
        Ok(Settings {
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

struct Reader<'a> {
    program: &'a PathBuf,
    repository: &'a Repository,
    surroundings: &'a Surroundings<'a>,
}

impl Reader<'_> {
    /// The repository's own, without what it includes: given to the child as bytes, so that it opens nothing itself.
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
        // Status 1 says that there is no such setting.
        let call_ = Call { args, env, input: text, most: 4 * LARGEST, fine: &[1], ..Call::default() };
        call(self.program, call_).map(|out| pairs(&out))
    }

    /// The user's own, or the system's, with all that these include: theirs to decide, and nothing in them is run either.
    /// Which work tree it is decides what is included. Git would also read the settings of a directory that it is told of, and open
    /// whatever those include: it finds them `apart`, where there is nothing of the repository's.
    fn of_user(&self, scope: &str, apart: &Scratch) -> Result<BTreeMap<String, String>, Fault> {
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
                env.extend([("HOME", home.to_owned()), ("GIT_CONFIG_GLOBAL", one.into_os_string())]);
            }
        }
        let call_ = Call { args: args.collect(), env, most: 4 * LARGEST, fine: &[1], ..Call::default() };
        match call(self.program, call_) {
            Ok(out) => Ok(pairs(&out)),
            // No such file is no settings.
            Err(fault) if fault.message.contains("unable to read config file") => Ok(BTreeMap::new()),
            Err(fault) => Err(fault),
        }
    }
}

/// `key\nvalue\0`, where a key alone means true. Later ones win.
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

/// A git directory that was found by way of a file, and one that names a work tree, must mean the one it was found from.
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

pub(super) fn nobody() -> Fault {
    let fault = Fault::new(ErrorKind::InvalidRequest, "git does not know who you are: no user.name and user.email");
    fault.hint("git config --global user.name NAME && git config --global user.email EMAIL").phase(Phase::Review)
}
