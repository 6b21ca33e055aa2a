//! Every manager of the table: it brings its installation, independent of the files beside it, and no credential.

use crate::home::Home;

/// A manager: its PATH entries, the files of its installation, and files beside it that stay hidden.
pub struct Case {
    pub name: &'static str,
    pub path: &'static [&'static str],
    pub gives: &'static [&'static str],
    pub hides: &'static [&'static str],
    pub links: &'static [&'static str],
}

pub const MANAGERS: &[Case] = &[
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

/// A home with every manager in it, so that each case also shows the effect of the others' files.
pub fn full_home() -> Home {
    let home = Home::new();
    for case in MANAGERS {
        let files = case.gives.iter().chain(case.hides).chain(case.links);
        files.for_each(|file| home.make(file));
    }
    home
}

// promise 4
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
