//! PATH leads to toolchains and to nothing else. Homes are made of real files and symlinks, and every
//! row of the credential table is planted in each of them.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use node::toolchains::{SENSITIVE, Toolchains, discover, sensitive};

/// A home with a workspace in it, removed at the end.
struct Home {
    top: PathBuf,
    home: PathBuf,
    cwd: PathBuf,
    vars: Vec<(&'static str, OsString)>,
}

impl Home {
    fn new() -> Home {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let top = fs::canonicalize(std::env::temp_dir()).unwrap();
        let top = top.join(format!("toolchains-{}-{number}", std::process::id()));
        let home = top.join("people/u");
        let cwd = home.join("src/project");
        fs::create_dir_all(&cwd).unwrap();
        let made = Home { top, home, cwd, vars: Vec::new() };
        for secret in made.secrets() {
            fs::create_dir_all(secret).unwrap();
        }
        made
    }

    /// Each place of the table, as a directory so that a test can put files in it.
    fn secrets(&self) -> Vec<PathBuf> {
        let places = SENSITIVE.iter().map(|(place, _)| place.replace('*', "x"));
        places.map(|place| self.home.join(place)).collect()
    }

    /// `~/…` is below this home, `T/…` beside it, `W/…` in the workspace.
    fn at(&self, path: &str) -> PathBuf {
        match path.split_once('/') {
            Some(("~", rest)) => self.home.join(rest),
            Some(("T", rest)) => self.top.join(rest),
            Some(("W", rest)) => self.cwd.join(rest),
            _ if path == "~" => self.home.clone(),
            _ => PathBuf::from(path),
        }
    }

    /// `path` a program, `path/` a directory, `path = text` a program of that text, `path -> target` a symlink.
    fn make(&self, what: &str) {
        if let Some((link, target)) = what.split_once(" -> ") {
            let link = self.at(link);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            let target = if target.starts_with(['~', 'T', 'W']) { self.at(target) } else { PathBuf::from(target) };
            symlink(target, link).unwrap();
        } else if let Some(dir) = what.strip_suffix('/') {
            fs::create_dir_all(self.at(dir)).unwrap();
        } else {
            let (file, text) = what.split_once(" = ").unwrap_or((what, "\x7fELF"));
            let file = self.at(file);
            let text =
                text.replace('~', self.home.to_str().unwrap()).replace("T/", &format!("{}/", self.top.display()));
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    fn var(mut self, name: &'static str, value: &str) -> Home {
        let value = self.at(value).into_os_string();
        self.vars.push((name, value));
        self
    }

    fn path(&self, entries: &[&str]) -> OsString {
        let entries: Vec<OsString> = entries.iter().map(|entry| self.at(entry).into_os_string()).collect();
        entries.join(OsStr::new(":"))
    }

    fn find(&self, entries: &[&str], command: Option<&str>) -> Toolchains {
        self.find_in(&self.path(entries), command)
    }

    fn find_in(&self, path: &OsStr, command: Option<&str>) -> Toolchains {
        let env = |name: &str| self.vars.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
        let found = discover(path, &self.home, &self.cwd, command.map(OsStr::new), &env);
        self.check_shape(&found);
        found
    }

    /// What holds for every answer.
    fn check_shape(&self, found: &Toolchains) {
        for pair in found.grants.windows(2) {
            assert!(pair[0].path < pair[1].path, "sorted: {found:#?}");
        }
        for grant in &found.grants {
            assert!(grant.path.is_absolute() && grant.path.exists(), "exists: {grant:?}");
            assert!(!self.home.starts_with(&grant.path), "not the home: {grant:?}");
            assert!(!grant.path.starts_with(&self.cwd), "the workspace needs no grant: {grant:?}");
            let nested = found.grants.iter().filter(|other| grant.path.starts_with(&other.path)).count();
            assert_eq!(nested, 1, "not inside another: {grant:?}");
        }
        for secret in self.secrets() {
            assert!(!granted(found, &secret), "{} is visible: {found:#?}", secret.display());
        }
    }

    #[track_caller]
    fn gives(&self, found: &Toolchains, paths: &[&str]) {
        for path in paths {
            let path = self.at(path);
            assert!(path.symlink_metadata().is_ok(), "the test made {}", path.display());
            assert!(granted(found, &path), "{} is not granted: {found:#?}", path.display());
        }
    }

    #[track_caller]
    fn hides(&self, found: &Toolchains, paths: &[&str]) {
        for path in paths {
            let path = self.at(path);
            assert!(path.symlink_metadata().is_ok(), "the test made {}", path.display());
            assert!(!granted(found, &path), "{} is granted: {found:#?}", path.display());
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.top);
    }
}

fn granted(found: &Toolchains, path: &Path) -> bool {
    found.grants.iter().any(|grant| path.starts_with(&grant.path))
}

/// A manager: its PATH entries, the files of its installation, and files beside it that stay hidden.
struct Case {
    name: &'static str,
    path: &'static [&'static str],
    gives: &'static [&'static str],
    hides: &'static [&'static str],
    links: &'static [&'static str],
}

const MANAGERS: &[Case] = &[
    Case {
        name: "pyenv",
        path: &["~/.pyenv/plugins/pyenv-virtualenv/shims", "~/.pyenv/shims", "~/.pyenv/bin"],
        gives: &[
            "~/.pyenv/shims/python3",
            "~/.pyenv/libexec/pyenv",
            "~/.pyenv/versions/3.12.1/bin/python3",
            "~/.pyenv/version",
            "~/.pyenv/plugins/pyenv-virtualenv/shims/activate",
        ],
        hides: &["~/.pyenv/versions/3.11.7/pip.conf", "~/notes"],
        links: &[],
    },
    Case {
        name: "rustup and cargo",
        path: &["~/.cargo/bin"],
        gives: &[
            "~/.cargo/bin/cargo",
            "~/.cargo/env",
            "~/.cargo/registry/cache/x.crate",
            "~/.cargo/git/db/x",
            "~/.rustup/toolchains/stable/bin/rustc",
            "~/.rustup/settings.toml",
        ],
        hides: &["~/.cargo/.crates.toml"],
        links: &[],
    },
    Case {
        name: "nvm",
        path: &["~/.nvm/versions/node/v20/bin"],
        gives: &[
            "~/.nvm/versions/node/v20/bin/node",
            "~/.nvm/versions/node/v20/lib/node_modules/npm/cli.js",
            "~/.nvm/nvm.sh",
        ],
        hides: &["~/.nvm/versions/node/v18/etc/npmrc"],
        links: &[],
    },
    Case {
        name: "fnm",
        path: &["~/.local/share/fnm/aliases/default/bin", "~/.local/share/fnm"],
        gives: &["~/.local/share/fnm/fnm", "~/.local/share/fnm/node-versions/v20/installation/bin/node"],
        hides: &["~/.local/share/fnm/node-versions/v18/installation/etc/npmrc"],
        links: &["~/.local/share/fnm/aliases/default -> ~/.local/share/fnm/node-versions/v20/installation"],
    },
    Case {
        name: "volta",
        path: &["~/.volta/bin"],
        gives: &["~/.volta/bin/node", "~/.volta/tools/image/node/20.1.0/bin/node", "~/.volta/layout.v4"],
        hides: &["~/.volta/hooks.json"],
        links: &[],
    },
    Case {
        name: "mise",
        path: &["~/.local/share/mise/shims"],
        gives: &[
            "~/.local/share/mise/shims/node",
            "~/.local/share/mise/installs/node/20/bin/node",
            "~/.local/bin/mise",
            "~/.tool-versions",
        ],
        hides: &["~/.local/bin/other", "~/.local/share/mise/installs/node/18/etc/npmrc"],
        links: &[],
    },
    Case {
        name: "asdf",
        path: &["~/.asdf/bin", "~/.asdf/shims"],
        gives: &["~/.asdf/bin/asdf", "~/.asdf/shims/ruby", "~/.asdf/installs/ruby/3/bin/ruby", "~/.tool-versions"],
        hides: &["~/.asdf/installs/nodejs/20/etc/npmrc"],
        links: &[],
    },
    Case {
        name: "uv",
        path: &["~/.local/bin"],
        gives: &[
            "~/.local/bin/uv",
            "~/.local/share/uv/python/cpython-3.12/bin/python3.12",
            "~/.local/share/uv/tools/ruff/bin/ruff",
        ],
        hides: &["~/.local/share/uv/other"],
        links: &[],
    },
    Case {
        name: "miniconda",
        path: &["~/miniconda3/envs/work/bin", "~/miniconda3/condabin"],
        gives: &[
            "~/miniconda3/bin/python",
            "~/miniconda3/condabin/conda",
            "~/miniconda3/conda-meta/history",
            "~/miniconda3/envs/work/bin/python",
            "~/miniconda3/envs/work/conda-meta/history",
        ],
        hides: &["~/miniconda3/.condarc", "~/miniconda3/envs/other/pip.conf"],
        links: &[],
    },
    Case {
        name: "mamba",
        path: &["~/.local/share/mamba/envs/x/bin"],
        gives: &["~/.local/share/mamba/envs/x/bin/python", "~/.local/share/mamba/envs/x/conda-meta/history"],
        hides: &["~/.local/share/other/file"],
        links: &[],
    },
    Case {
        name: "conda in an unusual place",
        path: &["T/data/conda/envs/work/bin"],
        gives: &[
            "T/data/conda/conda-meta/history",
            "T/data/conda/envs/work/bin/python",
            "T/data/conda/envs/work/conda-meta/history",
        ],
        hides: &["T/data/conda/.condarc", "T/data/other"],
        links: &[],
    },
    Case {
        name: "go",
        path: &["~/go/bin"],
        gives: &["~/go/bin/gopls", "~/go/pkg/mod/example.org/x/x.go", "~/sdk/go1.24/bin/go"],
        hides: &["~/go/src/private/main.go"],
        links: &[],
    },
    Case {
        name: "go unpacked below home",
        path: &["~/.local/go/bin"],
        gives: &[
            "~/.local/go/bin/go",
            "~/.local/go/src/fmt/print.go",
            "~/.local/go/pkg/tool/link",
            "~/.local/go/VERSION",
        ],
        hides: &["~/.local/other"],
        links: &[],
    },
    Case {
        name: "sdkman",
        path: &["~/.sdkman/candidates/java/current/bin"],
        gives: &["~/.sdkman/candidates/java/21/bin/java", "~/.sdkman/bin/sdkman-init.sh"],
        hides: &["~/.m2/repository"],
        links: &["~/.sdkman/candidates/java/current -> 21"],
    },
    Case {
        name: "rbenv",
        path: &["~/.rbenv/shims", "~/.rbenv/bin"],
        gives: &["~/.rbenv/shims/ruby", "~/.rbenv/versions/3.3/bin/ruby", "~/.rbenv/libexec/rbenv"],
        hides: &["~/.rbenv/versions/3.2/etc/gemrc"],
        links: &[],
    },
    Case {
        name: "nodenv",
        path: &["~/.nodenv/shims"],
        gives: &["~/.nodenv/shims/node", "~/.nodenv/versions/20/bin/node"],
        hides: &["~/.nodenv/versions/18/etc/npmrc"],
        links: &[],
    },
    Case {
        name: "jenv",
        path: &["~/.jenv/shims"],
        gives: &["~/.jenv/shims/java", "~/.jenv/version"],
        hides: &["~/jdks/secret"],
        links: &[],
    },
    Case {
        name: "pnpm",
        path: &["~/.local/share/pnpm"],
        gives: &["~/.local/share/pnpm/pnpm", "~/.local/share/pnpm/global/5/node_modules/x/x.js"],
        hides: &["~/.local/share/pnpm/auth.ini"],
        links: &[],
    },
    Case {
        name: "bun",
        path: &["~/.bun/bin"],
        gives: &["~/.bun/bin/bun", "~/.bun/install/global/node_modules/x/x.js"],
        hides: &["~/.bun/other"],
        links: &[],
    },
    Case {
        name: "deno",
        path: &["~/.deno/bin"],
        gives: &["~/.deno/bin/deno", "~/.cache/deno/npm/x"],
        hides: &["~/.cache/deno/location_data/x"],
        links: &[],
    },
    Case {
        name: "yarn",
        path: &["~/.yarn/bin", "~/.config/yarn/global/node_modules/.bin"],
        gives: &[
            "~/.yarn/bin/yarn",
            "~/.config/yarn/global/node_modules/x/x.js",
            "~/.config/yarn/global/node_modules/.bin/x",
        ],
        hides: &["~/.config/yarn/other"],
        links: &[],
    },
    Case {
        name: "npm prefix",
        path: &["~/.npm-global/bin"],
        gives: &["~/.npm-global/bin/tsc", "~/.npm-global/lib/node_modules/typescript/tsc.js"],
        hides: &["~/.npm-global/etc/npmrc"],
        links: &[],
    },
    Case {
        name: "pipx",
        path: &["~/.local/bin"],
        gives: &[
            "~/.local/bin/black",
            "~/.local/share/pipx/venvs/black/bin/black",
            "~/.local/share/pipx/shared/bin/pip",
        ],
        hides: &["~/.local/share/pipx/logs/log"],
        links: &[],
    },
    Case {
        name: "poetry",
        path: &["~/.local/bin"],
        gives: &["~/.local/share/pypoetry/venv/bin/poetry", "~/.cache/pypoetry/virtualenvs/p/bin/python"],
        hides: &["~/.cache/pypoetry/other"],
        links: &[],
    },
    Case {
        name: "ghcup",
        path: &["~/.ghcup/bin", "~/.cabal/bin"],
        gives: &["~/.ghcup/bin/ghc", "~/.ghcup/ghc/9.8/lib/x", "~/.cabal/bin/hlint", "~/.cabal/store/x"],
        hides: &["~/.cabal/other"],
        links: &[],
    },
    Case {
        name: "homebrew",
        path: &["~/.linuxbrew/bin", "~/.linuxbrew/sbin"],
        gives: &["~/.linuxbrew/bin/jq", "~/.linuxbrew/Cellar/jq/1/bin/jq", "~/.linuxbrew/etc/openssl/cert.pem"],
        hides: &["~/.linuxbrew/var/db", "~/.linuxbrew/etc/npmrc"],
        links: &[],
    },
    Case {
        name: "jabba",
        path: &["~/.jabba/jdk/21/bin"],
        gives: &["~/.jabba/jdk/21/bin/java", "~/.jabba/jdk/21/lib/modules"],
        hides: &["~/other"],
        links: &[],
    },
    Case {
        name: "coursier",
        path: &["~/.local/share/coursier/bin"],
        gives: &["~/.local/share/coursier/bin/scala", "~/.cache/coursier/jvm/21/bin/java"],
        hides: &["~/.cache/other"],
        links: &[],
    },
    Case {
        name: "dotnet",
        path: &["~/.dotnet", "~/.dotnet/tools"],
        gives: &["~/.dotnet/dotnet", "~/.dotnet/shared/x.dll", "~/.dotnet/tools/dotnet-ef", "~/.nuget/packages/x"],
        hides: &["~/.dotnet/other"],
        links: &[],
    },
    Case {
        name: "rvm and gems",
        path: &["~/.rvm/bin", "~/.gem/ruby/3.3.0/bin", "~/.local/share/gem/ruby/3.3.0/bin"],
        gives: &[
            "~/.rvm/rubies/3.3/bin/ruby",
            "~/.rvm/bin/rvm",
            "~/.gem/ruby/3.3.0/bin/rake",
            "~/.local/share/gem/ruby/3.3.0/bin/rake",
        ],
        hides: &["~/.gem/other"],
        links: &[],
    },
    Case {
        name: "opam, elan, juliaup, foundry, krew, composer, pixi, rye, proto",
        path: &[
            "~/.opam/default/bin",
            "~/.elan/bin",
            "~/.juliaup/bin",
            "~/.foundry/bin",
            "~/.krew/bin",
            "~/.config/composer/vendor/bin",
            "~/.pixi/bin",
            "~/.rye/shims",
            "~/.proto/shims",
        ],
        gives: &[
            "~/.opam/config",
            "~/.opam/default/bin/ocaml",
            "~/.elan/toolchains/x/bin/lean",
            "~/.elan/bin/lean",
            "~/.juliaup/bin/julia",
            "~/.julia/juliaup/julia-1.11/bin/julia",
            "~/.foundry/bin/forge",
            "~/.krew/store/x",
            "~/.krew/bin/kubectl-x",
            "~/.config/composer/vendor/bin/phpunit",
            "~/.pixi/bin/x",
            "~/.rye/shims/python",
            "~/.rye/py/x",
            "~/.proto/shims/node",
            "~/.proto/tools/node/bin/node",
        ],
        hides: &["~/.foundry/other"],
        links: &[],
    },
    Case {
        name: "user commands",
        path: &["~/.local/bin", "~/bin"],
        gives: &["~/.local/bin/tool", "~/.local/lib/python3.12/site-packages/x.py", "~/bin/mine"],
        hides: &["~/.local/share/app/data", "~/bin/.env", "~/lib/x", "~/share/x"],
        links: &[],
    },
    Case {
        name: "unknown installation",
        path: &["~/tools/foo/bin"],
        gives: &["~/tools/foo/bin/foo", "~/tools/foo/lib/x.so", "~/tools/foo/share/x", "~/tools/foo/include/x.h"],
        hides: &["~/tools/foo/etc/password", "~/tools/foo/notes", "~/tools/bar/x"],
        links: &[],
    },
    Case {
        name: "unknown directory",
        path: &["~/dotfiles/scripts"],
        gives: &["~/dotfiles/scripts/x"],
        hides: &["~/dotfiles/other", "~/dotfiles/lib/x", "~/dotfiles/scripts/.netrc"],
        links: &[],
    },
    Case {
        name: "outside home",
        path: &["T/data/tools/bin"],
        gives: &["T/data/tools/bin/x", "T/data/tools/lib/x.so"],
        hides: &["T/data/tools/etc/x", "T/data/other"],
        links: &[],
    },
    Case {
        name: "shims in an unusual place",
        path: &["~/dev/env-manager/shims"],
        gives: &["~/dev/env-manager/shims/x", "~/dev/env-manager/versions/1/bin/x"],
        hides: &["~/dev/env-manager/notes", "~/dev/other"],
        links: &[],
    },
];

/// One home with every manager in it, so that each case also shows what the others' files do to it.
fn full_home() -> Home {
    let home = Home::new();
    for case in MANAGERS {
        let files = case.gives.iter().chain(case.hides).chain(case.links);
        files.for_each(|file| home.make(file));
    }
    home
}

#[test]
fn each_manager_brings_its_installation_and_no_credential() {
    let home = full_home();
    for case in MANAGERS {
        println!("{}", case.name);
        let found = home.find(case.path, None);
        home.gives(&found, case.gives);
        home.hides(&found, case.hides);
        assert_eq!(found, home.find(case.path, None), "the same twice");
    }
}

#[test]
fn all_managers_at_once() {
    let home = full_home();
    let path: Vec<&str> = MANAGERS.iter().flat_map(|case| case.path).copied().collect();
    let found = home.find(&path, None);
    for case in MANAGERS {
        home.gives(&found, case.gives);
    }
}

#[test]
fn a_command_in_a_pipx_environment_brings_its_python() {
    let home = Home::new();
    for file in [
        "~/.local/bin/black -> ~/.local/share/pipx/venvs/black/bin/black",
        "~/.local/share/pipx/venvs/black/bin/black = #!~/.local/share/pipx/venvs/black/bin/python",
        "~/.local/share/pipx/venvs/black/bin/python -> ~/pythons/3.12/bin/python3.12",
        "~/.local/share/pipx/venvs/black/pyvenv.cfg = home = ~/pythons/3.12/bin\n",
        "~/pythons/3.12/bin/python3.12",
        "~/pythons/3.12/lib/python3.12/os.py",
        "~/pythons/diary",
    ] {
        home.make(file);
    }
    let found = home.find(&["~/.local/bin"], None);
    home.gives(&found, &["~/.local/bin/black", "~/.local/share/pipx/venvs/black/bin/python"]);
    home.gives(&found, &["~/pythons/3.12/bin/python3.12", "~/pythons/3.12/lib/python3.12/os.py"]);
    home.hides(&found, &["~/pythons/diary"]);
}

#[test]
fn links_and_scripts_of_a_bin_directory_are_followed() {
    let home = Home::new();
    for file in [
        "~/.local/bin/nvim -> ../../nvim-0.11/bin/nvim",
        "~/nvim-0.11/bin/nvim",
        "~/nvim-0.11/share/nvim/runtime.vim",
        "~/.local/bin/claude -> ~/.local/share/claude/versions/2.0",
        "~/.local/share/claude/versions/2.0",
        "~/.local/bin/agent -> ~/.local/share/agent/versions/1/agent",
        "~/.local/share/agent/versions/1/agent",
        "~/.local/share/agent/data",
        "~/.local/bin/idea -> ~/opt/idea/bin/idea.sh",
        "~/opt/idea/bin/idea.sh",
        "~/opt/idea/jbr/lib/x.so",
        "~/opt/other/x",
        "~/.local/bin/chained -> ~/apps/current/bin/tool",
        "~/apps/current -> v2",
        "~/apps/v2/bin/tool",
        "~/apps/v2/lib/x.so",
        "~/apps/v1/bin/tool",
        "~/.local/bin/single -> ~/src/other/run.sh",
        "~/src/other/run.sh",
        "~/src/other/code",
        "~/.local/bin/script = #!~/venvs/a/bin/python -u\n",
        "~/venvs/a/bin/python -> /usr/bin/python3",
        "~/venvs/a/pyvenv.cfg = home = /usr/bin\n",
        "~/venvs/a/lib/x.py",
        "~/venvs/b/lib/x.py",
        "~/.local/bin/long = #!/bin/sh\n'''exec' \"~/venvs/with space/bin/python\" \"$0\" \"$@\"\n",
        "~/venvs/with space/bin/python -> /usr/bin/python3",
        "~/venvs/with space/pyvenv.cfg = home = /usr/bin\n",
        "~/.local/bin/js -> ~/work/node_modules/x/cli.js",
        "~/work/node_modules/x/cli.js",
        "~/work/node_modules/y/y.js",
        "~/work/index.js",
    ] {
        home.make(file);
    }
    let found = home.find(&["~/.local/bin"], None);
    home.gives(&found, &["~/nvim-0.11/bin/nvim", "~/nvim-0.11/share/nvim/runtime.vim"]);
    home.gives(&found, &["~/.local/share/claude/versions/2.0", "~/.local/share/agent/versions/1/agent"]);
    home.gives(&found, &["~/opt/idea/jbr/lib/x.so", "~/src/other/run.sh"]);
    home.gives(&found, &["~/apps/current/bin", "~/apps/v2/bin/tool", "~/apps/v2/lib/x.so"]);
    home.gives(&found, &["~/venvs/a/lib/x.py", "~/venvs/with space/bin/python"]);
    home.gives(&found, &["~/work/node_modules/y/y.js"]);
    home.hides(&found, &["~/.local/share/agent/data", "~/opt/other/x", "~/apps/v1/bin/tool", "~/src/other/code"]);
    home.hides(&found, &["~/venvs/b/lib/x.py", "~/work/index.js"]);
}

#[test]
fn the_command_itself_is_followed_precisely() {
    let home = Home::new();
    for number in 0..600 {
        home.make(&format!("~/.local/bin/a{number} = #!/bin/sh\n"));
    }
    for file in [
        "~/.local/bin/zz = #!/usr/bin/env -S tool --flag\n",
        "~/tools/bin/tool -> ~/far/away/bin/tool",
        "~/far/away/bin/tool",
        "~/far/away/lib/x.so",
        "~/elsewhere/run",
        "~/elsewhere/data",
    ] {
        home.make(file);
    }
    let path = ["~/.local/bin", "~/tools/bin"];
    home.gives(&home.find(&path, Some("zz")), &["~/far/away/lib/x.so"]);
    let command = home.at("~/elsewhere/run");
    let found = home.find(&path, command.to_str());
    home.gives(&found, &["~/elsewhere/run"]);
    home.hides(&found, &["~/elsewhere/data"]);
    let found = home.find(&path, Some("../../elsewhere/run"));
    home.gives(&found, &["~/elsewhere/run"]);
    home.hides(&home.find(&path, None), &["~/elsewhere/run"]);
    home.hides(&home.find(&path, Some("no-such-command")), &["~/elsewhere/run"]);
}

#[test]
fn environments_bring_their_base() {
    let home = Home::new();
    for file in [
        "~/envs/web/bin/python -> ~/.pyenv/versions/3.12/bin/python3.12",
        "~/envs/web/lib/x.py",
        "~/envs/web/pyvenv.cfg = home = ~/.pyenv/versions/3.12/bin\ninclude-system-site-packages = false\n",
        "~/.pyenv/versions/3.12/bin/python3.12",
        "~/envs/api/bin/python",
        "~/envs/api/lib/x.py",
        "~/envs/api/pip.conf",
        "~/envs/api/pyvenv.cfg = home = /usr/bin\n",
    ] {
        home.make(file);
    }
    let found = home.find(&["~/envs/web/bin"], None);
    home.gives(&found, &["~/envs/web/pyvenv.cfg", "~/envs/web/lib/x.py", "~/.pyenv/versions/3.12/bin/python3.12"]);
    home.hides(&found, &["~/envs/api/lib/x.py"]);
    let found = home.find(&["~/envs/api/bin"], None);
    home.gives(&found, &["~/envs/api/bin/python", "~/envs/api/lib/x.py", "~/envs/api/pyvenv.cfg"]);
    home.hides(&found, &["~/envs/api/pip.conf"]);
}

#[test]
fn linked_installations_of_a_manager_are_followed() {
    let home = Home::new();
    for file in [
        "~/.rustup/toolchains/stable/bin/rustc",
        "~/.rustup/toolchains/dev -> ~/src/rust/build/stage1",
        "~/src/rust/build/stage1/bin/rustc",
        "~/src/rust/build/stage1/lib/librustc.so",
        "~/src/rust/README",
        "~/.cargo/bin/cargo",
        "~/.jenv/shims/java",
        "~/.jenv/versions/21 -> ~/jdks/21",
        "~/jdks/21/bin/java",
        "~/jdks/21/lib/modules",
        "~/jdks/21/conf/security",
        "~/jdks/17/bin/java",
    ] {
        home.make(file);
    }
    let found = home.find(&["~/.cargo/bin", "~/.jenv/shims"], None);
    home.gives(&found, &["~/src/rust/build/stage1/bin/rustc", "~/src/rust/build/stage1/lib/librustc.so"]);
    home.gives(&found, &["~/jdks/21/bin/java", "~/jdks/21/lib/modules", "~/jdks/21/conf/security"]);
    home.hides(&found, &["~/src/rust/README", "~/jdks/17/bin/java"]);
}

#[test]
fn nix_profile_is_granted_by_its_name() {
    let home = Home::new();
    for file in [
        "T/nix/store/abc-profile/bin/hello",
        "~/.local/state/nix/profiles/profile-1-link -> T/nix/store/abc-profile",
        "~/.local/state/nix/profiles/profile -> profile-1-link",
        "~/.nix-profile -> ~/.local/state/nix/profiles/profile",
        "~/.local/state/other",
    ] {
        home.make(file);
    }
    let found = home.find(&["~/.nix-profile/bin"], None);
    home.gives(
        &found,
        &["~/.nix-profile/bin/hello", "T/nix/store/abc-profile/bin/hello", "~/.local/state/nix/profiles/profile"],
    );
    home.hides(&found, &["~/.local/state/other"]);
}

#[test]
fn fnm_multishell_links_work() {
    let home = Home::new();
    for file in [
        "~/.local/share/fnm/node-versions/v20/installation/bin/node",
        "~/.local/share/fnm/node-versions/v20/installation/lib/node_modules/npm/x.js",
        "~/.local/state/fnm_multishells/7_1 -> ~/.local/share/fnm/node-versions/v20/installation",
        "~/.local/state/fnm_multishells/other",
    ] {
        home.make(file);
    }
    let found = home.find(&["~/.local/state/fnm_multishells/7_1/bin"], Some("node"));
    home.gives(&found, &["~/.local/share/fnm/node-versions/v20/installation/bin/node"]);
    home.gives(
        &found,
        &["~/.local/state/fnm_multishells/7_1/bin/node", "~/.local/state/fnm_multishells/7_1/lib/node_modules"],
    );
    home.hides(&found, &["~/.local/state/fnm_multishells/other"]);
}

#[test]
fn a_root_behind_a_symlink_is_granted_under_both_names() {
    let home = Home::new();
    home.make("T/disk/pyenv/shims/python3");
    home.make("T/disk/pyenv/versions/3.12/bin/python3");
    home.make("T/disk/other");
    home.make("~/.pyenv -> T/disk/pyenv");
    let found = home.find(&["~/.pyenv/shims"], None);
    home.gives(&found, &["~/.pyenv/versions/3.12/bin/python3", "T/disk/pyenv/versions/3.12/bin/python3"]);
    home.hides(&found, &["T/disk/other"]);
}

#[test]
fn a_home_behind_a_symlink_hides_the_same() {
    let mut home = Home::new();
    home.make("~/.cargo/bin/cargo");
    home.make("~/.rustup/toolchains/stable/bin/rustc");
    let real = home.home.clone();
    home.make("T/link -> ~");
    symlink(&real, home.top.join("home-link")).unwrap();
    home.home = home.top.join("home-link");
    let found = home.find(&["~/.cargo/bin"], None);
    home.gives(&found, &["~/.cargo/bin/cargo", "~/.rustup/toolchains/stable/bin/rustc"]);
    for (place, _) in SENSITIVE {
        let secret = real.join(place.replace('*', "x"));
        assert!(!granted(&found, &secret), "{}", secret.display());
    }
}

#[test]
fn variables_name_roots_and_are_passed_on() {
    let home = Home::new()
        .var("PYENV_ROOT", "T/disk/py")
        .var("RUSTUP_HOME", "T/disk/rustup")
        .var("PYENV_VERSION", "3.12.1")
        .var("JAVA_HOME", "~/jdks/21")
        .var("NVM_DIR", "~/.nvm")
        .var("GOPATH", "https://user:password@example.org/")
        .var("GITHUB_TOKEN", "abc");
    for file in [
        "T/disk/py/shims/python3",
        "T/disk/py/versions/3/bin/python3",
        "T/disk/rustup/toolchains/x/bin/rustc",
        "T/disk/secret",
        "~/.cargo/bin/cargo",
        "~/jdks/21/bin/java",
        "~/jdks/21/lib/modules",
    ] {
        home.make(file);
    }
    let found = home.find(&["T/disk/py/shims", "~/.cargo/bin"], None);
    home.gives(
        &found,
        &["T/disk/py/versions/3/bin/python3", "T/disk/rustup/toolchains/x/bin/rustc", "~/jdks/21/lib/modules"],
    );
    home.hides(&found, &["T/disk/secret"]);
    assert_eq!(found.env, ["JAVA_HOME", "PYENV_ROOT", "PYENV_VERSION", "RUSTUP_HOME"]);
}

#[test]
fn a_variable_that_names_the_home_widens_nothing() {
    let mut home = Home::new();
    for file in ["~/bin/tool", "~/git/repository", "~/lib/x", "~/versions/x", "~/shims/x", "~/.cargo/bin/cargo"] {
        home.make(file);
    }
    for name in
        ["PYENV_ROOT", "CARGO_HOME", "GOPATH", "PNPM_HOME", "JAVA_HOME", "VIRTUAL_ENV", "WORKON_HOME", "UV_TOOL_DIR"]
    {
        for value in ["~", "T/people", "/", "~/.ssh", "~/.local/share", "~/Documents"] {
            home.vars = vec![(name, home.at(value).into_os_string())];
            let found = home.find(&["~/bin", "~/.cargo/bin"], None);
            home.gives(&found, &["~/bin/tool", "~/.cargo/bin/cargo"]);
            home.hides(&found, &["~/git/repository", "~/lib/x", "~/versions/x", "~/shims/x"]);
        }
    }
}

#[test]
fn settings_come_only_without_secrets() {
    let home = Home::new();
    home.make("~/.cargo/bin/cargo");
    for (text, comes) in [
        ("[build]\njobs = 4\n[target.x86_64-unknown-linux-gnu]\nlinker = \"clang\"\n", true),
        ("[registries.work]\ntoken = \"abc\"\n", false),
        ("[http]\nproxy = \"http://a:b@host\"\n", false),
        ("[env]\nX = \"1\"\n", false),
        ("[source.x]\nregistry = \"https://h/6f1ed002ab5595859014ebf0951522d9\"\n", false),
    ] {
        home.make(&format!("~/.cargo/config.toml = {text}"));
        let found = home.find(&["~/.cargo/bin"], None);
        home.gives(&found, &["~/.cargo/bin/cargo"]);
        assert_eq!(granted(&found, &home.at("~/.cargo/config.toml")), comes, "{text}");
    }
}

#[test]
fn a_link_never_leads_to_credentials() {
    let home = Home::new();
    for file in [
        "~/.local/bin/good -> ~/fine/bin/good",
        "~/fine/bin/good",
        "~/fine/lib/x.so",
        "~/.local/bin/ssh-dir -> ~/.ssh",
        "~/.local/bin/home -> ~",
        "~/.local/bin/root -> /",
        "~/.local/bin/up -> ../..",
        "~/.local/bin/key -> ~/.ssh/id_ed25519",
        "~/.ssh/id_ed25519",
        "~/.local/bin/tool -> ~/.aws/bin/tool",
        "~/.aws/bin/tool",
        "~/.aws/lib/x",
        "~/.local/bin/doc -> ~/Documents/app/bin/tool",
        "~/Documents/app/bin/tool",
        "~/Documents/app/lib/x",
        "~/.local/bin/loop -> loop2",
        "~/.local/bin/loop2 -> loop",
        "~/.local/bin/token = #!~/.config/gh/bin/x\n",
        "~/.config/gh/bin/x",
        "~/.local/bin/sneaky -> ~/sneaky/bin/x",
        "~/sneaky -> ~/.gnupg",
        "~/.gnupg/bin/x",
        "~/fine/share -> ~/.kube",
        "~/.kube/x",
        "~/.pyenv/shims/python3",
        "~/.pyenv/versions/evil -> ~/.docker",
        "~/.docker/bin/x",
        "~/.docker/lib/x",
    ] {
        home.make(file);
    }
    fs::write(home.at("~/plain-secret"), "x").unwrap();
    home.make("~/.local/bin/not-a-program -> ~/plain-secret");
    for command in
        [None, Some("key"), Some("tool"), Some("sneaky"), Some("token"), Some("loop"), Some("up"), Some("home")]
    {
        let found = home.find(&["~/.local/bin", "~/.pyenv/shims"], command);
        home.gives(&found, &["~/.local/bin/good", "~/fine/lib/x.so", "~/.pyenv/shims/python3"]);
        home.hides(&found, &["~/.ssh/id_ed25519", "~/.aws/lib/x", "~/Documents/app/lib/x", "~/plain-secret"]);
        home.hides(&found, &["~/.config/gh/bin/x", "~/.gnupg/bin/x", "~/sneaky/bin/x", "~/.kube/x", "~/.docker/lib/x"]);
        home.hides(&found, &["~/fine/share/x"]);
    }
}

#[test]
fn path_entries_that_are_credentials_are_refused_and_noted() {
    let home = Home::new();
    home.make("~/.aws/bin/x");
    home.make("~/.deno/bin/deno");
    for entry in [
        "~/.ssh",
        "~/.aws/bin",
        "~/Documents",
        "~/.config",
        "~/.local",
        "~/.local/share",
        "~/.cargo",
        "~",
        "/",
        "T/people",
    ] {
        let found = home.find(&[entry, "~/.deno/bin"], None);
        home.gives(&found, &["~/.deno/bin/deno"]);
        assert_eq!(found.grants.len(), 1, "{entry}: {found:#?}");
        if entry != "~/.cargo" {
            assert!(found.skipped.iter().any(|skip| skip.path == home.at(entry)), "{entry} is noted: {found:#?}");
        }
    }
}

#[test]
fn the_workspace_widens_nothing() {
    let home = Home::new();
    for file in [
        "W/node_modules/.bin/tool -> ~/private/bin/tool",
        "W/bin/x -> ~/.ssh",
        "W/bin/y -> ~/private/bin/tool",
        "~/private/bin/tool",
        "~/private/lib/x",
        "W/evil/bin/python -> ~/private/bin/tool",
        "W/evil/pyvenv.cfg = home = ~/private/bin\n",
        "W/evil2/bin/python",
        "W/evil2/pyvenv.cfg = home = ~/.ssh\n",
        "W/evil3/bin/python = #!~/private/bin/tool\n",
        "W/.venv/bin/python -> python3",
        "W/.venv/bin/python3 -> ~/.local/share/uv/python/cpython-3.12/bin/python3.12",
        "W/.venv/pyvenv.cfg = home = ~/.local/share/uv/python/cpython-3.12/bin\n",
        "~/.local/share/uv/python/cpython-3.12/bin/python3.12",
        "~/bin -> W/bin",
        "W/rustup/toolchains/x -> ~/private",
        "~/.rustup -> W/rustup",
        "~/.cargo/bin/cargo",
    ] {
        home.make(file);
    }
    let all = ["W/node_modules/.bin", "W/bin", "W/evil/bin", "W/evil2/bin", "W/evil3/bin", "~/bin", "~/.cargo/bin"];
    for command in [None, Some("tool"), Some("x"), Some("y"), Some("python"), Some("evil/bin/python"), Some("./bin/y")]
    {
        let found = home.find(&all, command);
        home.hides(&found, &["~/private/bin/tool", "~/private/lib/x"]);
        home.gives(&found, &["~/.cargo/bin/cargo"]);
    }
    // The control: an environment in the workspace whose Python a known manager installed starts.
    for (path, command) in
        [(&["W/.venv/bin"][..], None), (&[], Some(".venv/bin/python")), (&[], Some("./.venv/bin/python3"))]
    {
        let found = home.find(path, command);
        home.gives(&found, &["~/.local/share/uv/python/cpython-3.12/bin/python3.12"]);
        home.hides(&found, &["~/private/lib/x"]);
    }
}

#[test]
fn at_home_the_current_directory_is_no_workspace() {
    let mut home = Home::new();
    home.make("~/.deno/bin/deno");
    for cwd in [home.home.clone(), home.top.clone(), PathBuf::from("/")] {
        home.cwd = cwd.clone();
        let found = discover(&home.path(&["~/.deno/bin"]), &home.home, &cwd, None, &|_| None);
        home.gives(&found, &["~/.deno/bin/deno"]);
        assert_eq!(found.grants.len(), 1, "{found:#?}");
    }
}

#[test]
fn another_users_home_is_never_granted_whole() {
    let found = |entry: &str| discover(OsStr::new(entry), Path::new("/home/u"), Path::new("/srv/w/x"), None, &|_| None);
    for entry in [
        "/home/other",
        "/root",
        "/home",
        "/var",
        "/tmp",
        "/run",
        "/proc",
        "/sys",
        "/dev",
        "/proc/self",
        "/dev/shm",
        "/var/lib",
        "/run/user/0",
    ] {
        assert_eq!(found(entry).grants, [], "{entry}");
    }
    for path in ["/home/other/.ssh", "/home/other", "/root/.aws", "/home/other/.cargo"] {
        assert!(sensitive(Path::new(path), Path::new("/home/u")).is_some(), "{path}");
    }
    assert_eq!(sensitive(Path::new("/home/other/tools/bin"), Path::new("/home/u")), None);
}

#[test]
fn system_directories_need_no_grant() {
    let home = Home::new();
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/x/bin:/nix/store/x/bin:/lib64:/etc/x";
    assert_eq!(home.find_in(OsStr::new(path), Some("sh")), Toolchains::default());
}

#[test]
fn odd_paths() {
    let home = Home::new();
    home.make("~/.deno/bin/deno");
    let deno = home.at("~/.deno/bin").into_os_string();
    let with = |odd: &[u8]| {
        let mut path = OsString::from(OsStr::from_bytes(odd));
        path.push(":");
        path.push(&deno);
        path
    };
    let long = b"/".iter().chain(b"x".iter().cycle().take(5000)).copied().collect::<Vec<u8>>();
    let deep = b"/x".repeat(1000);
    for odd in [
        &b""[..],
        b":::",
        b".",
        b"..",
        b"./node_modules/.bin",
        b"bin",
        b"~/.ssh",
        b"/does/not/exist",
        b"/usr/../proc/self",
        b"/mnt/c/Windows/System32",
        b"/tmp/\xff\xfe/bin",
        b"/\0/x",
        b"//",
        b"/.",
        &long,
        &deep,
    ] {
        let found = home.find_in(&with(odd), Some("deno"));
        home.gives(&found, &["~/.deno/bin/deno"]);
        assert_eq!(found.grants.len(), 1, "{:?}: {found:#?}", OsStr::from_bytes(odd));
    }
    assert_eq!(home.find_in(OsStr::new(""), None).grants, []);
}

#[test]
fn names_that_are_not_utf8_are_granted_as_they_are() {
    let home = Home::new();
    let dir = home.home.join(OsStr::from_bytes(b"t\xff\xfe")).join("bin");
    fs::create_dir_all(&dir).unwrap();
    let found = home.find_in(dir.as_os_str(), None);
    assert_eq!(found.grants.len(), 1);
    assert_eq!(found.grants[0].path, dir);
}

#[test]
fn duplicates_and_slashes_make_one_grant() {
    let home = Home::new();
    home.make("~/.deno/bin/deno");
    let base = home.at("~/.deno").display().to_string();
    let path = format!("{base}/bin:{base}/bin/:{base}//bin:{base}/./bin:{base}/bin/../bin:{base}/bin");
    let found = home.find_in(OsStr::new(&path), None);
    home.gives(&found, &["~/.deno/bin/deno"]);
    assert_eq!(found.grants.len(), 1, "{found:#?}");
}

#[test]
fn ten_thousand_entries_are_bounded() {
    let home = Home::new();
    home.make("~/.deno/bin/deno");
    let mut path = home.at("~/.deno/bin").into_os_string();
    for number in 0..10_000 {
        path.push(format!(":{}/many/{number}/bin", home.home.display()));
        if number < 500 {
            home.make(&format!("~/many/{number}/bin/x"));
        }
    }
    let start = Instant::now();
    let found = home.find_in(&path, Some("x"));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    home.gives(&found, &["~/.deno/bin/deno"]);
    assert!(found.grants.len() <= 64 && !found.skipped.is_empty(), "{} grants", found.grants.len());
}

#[test]
fn a_pipe_in_a_bin_directory_does_not_block() {
    let home = Home::new();
    home.make("~/bin/tool");
    let made = std::process::Command::new("mkfifo").arg(home.at("~/bin/pipe")).arg(home.at("~/bin/.pipe")).status();
    assert!(made.unwrap().success());
    home.make("~/bin/pyvenv -> pipe");
    home.gives(&home.find(&["~/bin"], Some("pipe")), &["~/bin/tool"]);
}

/// `cargo test --release -p cofferdam-node --test toolchains -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn cost() {
    let usual = Home::new();
    for file in [
        "~/.cargo/bin/cargo",
        "~/.cargo/registry/index/x",
        "~/.rustup/toolchains/stable/bin/cargo",
        "~/.nvm/versions/node/v20/bin/node",
        "~/.nvm/versions/node/v22/bin/node",
        "~/.pyenv/shims/python3 = #!/usr/bin/env bash",
        "~/.pyenv/versions/3.11.7/bin/python3",
        "~/.pyenv/versions/3.12.1/bin/python3",
        "~/.local/share/uv/python/cpython-3.12/bin/python3.12",
    ] {
        usual.make(file);
    }
    for n in 0..20 {
        let venv = format!("~/.local/share/pipx/venvs/t{n}");
        usual.make(&format!("{venv}/bin/t{n}"));
        usual.make(&format!("{venv}/bin/python -> ~/.pyenv/versions/3.12.1/bin/python3"));
        usual.make(&format!("~/.local/bin/t{n} -> {venv}/bin/t{n}"));
        usual.make(&format!("~/.local/bin/s{n} = #!/usr/bin/python3\n"));
    }
    let system = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let own = ["~/.local/bin", "~/.cargo/bin", "~/.nvm/versions/node/v20/bin", "~/.pyenv/shims"];
    let ten: Vec<&str> = own.into_iter().chain(system).collect();
    let full = full_home();
    let all: Vec<&str> = MANAGERS.iter().flat_map(|case| case.path).copied().chain(system).collect();
    for (name, home, path) in [
        ("6 system entries", &usual, &system[..]),
        ("cargo, nvm, pyenv and 6 system entries", &usual, &ten[1..]),
        ("the same and ~/.local/bin with 20 pipx links, 20 scripts", &usual, &ten[..]),
        ("every manager, a credential in each", &full, &all[..]),
    ] {
        let path = home.path(path);
        let command = Some(OsStr::new("python3"));
        let run = || discover(&path, &home.home, &home.cwd, command, &|name| std::env::var_os(name));
        let mut times: Vec<Duration> = (0..2000)
            .map(|_| {
                let start = Instant::now();
                std::hint::black_box(run());
                start.elapsed()
            })
            .collect();
        times.sort();
        let grants = run().grants.len();
        println!("{name}: p50 {:?}, p99 {:?}, {grants} grants", times[1000], times[1980]);
    }
}
